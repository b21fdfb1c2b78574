r"""Where in two networks their values part: layer by layer, the first whose outputs differ beyond rounding.

Of a layer with the values a of the one and b of the other, for the same inputs,

    gap = max |a - b|,    relative = gap / max |a|,    and they part where relative > tolerance

Two networks of torch with the same names are laid beside each other by name. Else (an exported program, an ONNX graph)
by shape and order: each layer of the one, in the order in which they run, takes of the next tensors of the other that
have its shape the one that correlates most, if that is nearly all. A convolution whose batch normalisation was merged
into it has no counterpart, and the normalisation has: what has none is left out, and nothing is said of it. The last
of both, the answers, are laid beside each other however little they correlate.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn

from assay.nn.inner import inner_points

PARTED = 1e-3
"""Of the largest value of a layer: float32 rounds 1e-7 a step, int8 some 1e-2."""
ALIKE = 0.99  # correlation from which two tensors are taken for the same layer
AHEAD = 12  # tensors of the right shape that are looked at, from the last that was found
ENTRIES = 2**16  # of a tensor that a correlation is taken over


class Layer(NamedTuple):
    """A layer of the one network and its counterpart in the other."""

    name: str
    other: str
    shape: tuple[int, ...]  # without the inputs
    gap: float
    relative: float

    def parts(self, tolerance: float = PARTED) -> bool:
        return not self.relative <= tolerance  # a NaN parts


class Parting(NamedTuple):
    """The layers that both have, in order; what each has beside them counts as `alone`."""

    layers: tuple[Layer, ...]
    by_name: bool
    alone: tuple[int, int]
    resized: tuple[str, tuple[int, ...], tuple[int, ...]] | None = None
    """The first layer of one name and two shapes: channels were cut."""
    behind: int = 0
    """How many layers of either come after the last that both have, or that correlate."""
    by_place: bool = False
    """The last of `layers` are the answers, which do not correlate."""

    def first(self, tolerance: float = PARTED) -> Layer | None:
        return next((layer for layer in self.layers if layer.parts(tolerance)), None)


def inner(model: nn.Module, x: Tensor) -> dict[str, Tensor]:  # n *d -> by name n *k, in the order in which they ran
    """What each innermost module gives for these inputs; of a program of torch.export, each of its steps.

    A module that is called again has a number behind its name.
    """
    found: dict[str, Tensor] = {}
    graphs: list[tuple[fx.GraphModule, tuple[Any, ...]]] = []

    def keep(name: str, out: Any) -> None:
        if isinstance(out, Tensor) and out.dtype.is_floating_point and _laid_out(out) and len(out) == len(x):
            again = sum(1 for each in found if each.partition("#")[0] == name)
            found[f"{name}#{again + 1}" if again else name] = (
                out.detach().float().cpu().clone()
            )  # else changed in place

    def hook(name: str) -> Callable[[nn.Module, Any, Any], None]:
        return lambda _, __, out: keep(name, out)

    handles = []
    for name, module in inner_points(model):
        if isinstance(module, fx.GraphModule):
            handles.append(module.register_forward_pre_hook(lambda graph, given: graphs.append((graph, given))))
        elif not any(True for _ in module.children()):
            handles.append(module.register_forward_hook(hook(name)))
    try:
        with torch.no_grad():
            model(x)
    finally:
        for handle in handles:
            handle.remove()
    if len(found) < 2 and graphs:
        found.clear()
        with torch.no_grad():
            _Steps(graphs[0][0], keep).run(*graphs[0][1])
    return found


def _laid_out(value: Tensor) -> bool:
    """Whether there are numbers for each input that can be laid beside others."""
    return value.ndim > 1 and value.numel() > 0


class _Steps(fx.Interpreter):
    """Runs a graph and tells what each step gives."""

    def __init__(self, graph: fx.GraphModule, keep: Callable[[str, Any], None]) -> None:
        super().__init__(graph)
        self.keep = keep

    def run_node(self, n: fx.Node) -> Any:
        out = super().run_node(n)
        if n.op not in ("placeholder", "get_attr", "output"):
            self.keep(n.name, out)
        return out


def onnx_inner(
    content: bytes, session: Callable[[bytes], Any], x: Tensor
) -> dict[str, Tensor]:  # n *d -> by name n *k, in the order of the graph
    """What each node of an ONNX graph gives for these inputs, by a `session` made of the bytes of a graph."""
    import onnx

    graph = onnx.load_model_from_string(content)
    there = {out.name for out in graph.graph.output}
    names = [out for node in graph.graph.node for out in node.output if out]
    graph.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in there)
    running = session(graph.SerializeToString())
    takes = running.get_inputs()[0]
    whole = takes.shape[0] if isinstance(takes.shape[0], int) else len(x)
    runs = [running.run(names, {takes.name: part.numpy()}) for part in torch.split(x.float().cpu().contiguous(), whole)]
    found = {}
    for i, name in enumerate(names):
        parts = [torch.from_numpy(each[i]) for each in runs if each[i].dtype.kind == "f"]
        if len(parts) == len(runs) and all(map(_laid_out, parts)) and sum(map(len, parts)) == len(x):
            found[name] = torch.cat(parts).float()
    return found


def parting(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> Parting:
    """The layers of `a` beside those of `b`: by name where most names are in both, else by shape, order and
    correlation."""
    common = [name for name in a if name in b]
    if common and 2 * len(common) >= min(len(a), len(b)):
        cut = next((name for name in common if a[name].shape != b[name].shape), None)
        same = [name for name in common if a[name].shape == b[name].shape]
        layers = tuple(_layer(name, name, a[name], b[name]) for name in same)
        resized = None if cut is None else (cut, tuple(a[cut].shape[1:]), tuple(b[cut].shape[1:]))
        alone = (len(a) - len(same), len(b) - len(same))
        return Parting(layers, True, alone, resized, _behind(a, b, layers))
    layers = _in_order(a, b)
    behind, ends = _behind(a, b, layers), (list(a)[-1], list(b)[-1])
    taken = bool(layers) and (layers[-1].name == ends[0] or layers[-1].other == ends[1])
    by_place = a[ends[0]].shape == b[ends[1]].shape and not taken
    if by_place:
        layers = (*layers, _layer(*ends, a[ends[0]], b[ends[1]]))
    alone = (len(a) - len(layers), len(b) - len(layers))
    return Parting(layers, False, alone, None, behind, by_place)


def _behind(a: Mapping[str, Tensor], b: Mapping[str, Tensor], layers: Sequence[Layer]) -> int:
    if not layers:
        return max(len(a), len(b))
    return max(len(a) - 1 - list(a).index(layers[-1].name), len(b) - 1 - list(b).index(layers[-1].other))


def _in_order(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> tuple[Layer, ...]:
    others, start, layers = list(b), 0, []
    for name, value in a.items():
        fits = [i for i in range(start, len(others)) if b[others[i]].shape == value.shape][:AHEAD]
        alike = [_correlation(value, b[others[i]]) for i in fits]
        if not fits or max(alike) < ALIKE:
            continue
        # of several as alike, such as a tensor and its copy, the first
        at = next(i for i, found in zip(fits, alike, strict=True) if found >= max(alike) - 1e-6)
        layers.append(_layer(name, others[at], value, b[others[at]]))
        start = at + 1
    return tuple(layers)


def _layer(name: str, other: str, a: Tensor, b: Tensor) -> Layer:  # n *k, n *k
    gap = float(apart(a, b).max())
    most = float(_finite(a).abs().max())
    return Layer(name, other, tuple(a.shape[1:]), gap, gap / most if most > 0 else float(gap != 0))


def apart(a: Tensor, b: Tensor) -> Tensor:  # *d, *d -> *d
    """How far apart the values are; two infinities of one sign are not."""
    return torch.where(a == b, 0, (a - b).abs())


def _finite(x: Tensor) -> Tensor:
    return x.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)


def _correlation(a: Tensor, b: Tensor) -> float:  # n *k, n *k
    """Pearson's, over entries spread evenly, those that are not finite as 0; 1 for two constants that are the same."""
    step = max(1, a.numel() // ENTRIES)
    p, q = (_finite(each.flatten()[::step].double()) for each in (a, b))
    p, q = p - p.mean(), q - q.mean()
    size = float(p.norm() * q.norm())
    return float(p @ q) / size if size > 0 else float(torch.equal(a, b))


def said(where: Parting, tolerance: float = PARTED, *, answers: float = 0.0) -> str:
    """Where the gap opens, in a sentence; where that cannot be said, why. `answers` is how far these part, relative."""
    how = "by name" if where.by_name else "by shape, order and correlation"
    if where.resized is not None:
        name, one, two = where.resized
        before = [layer for layer in where.layers if not layer.parts(tolerance)]
        return (
            f"The network was cut: {name} gives {_sides(one)} in the one and {_sides(two)} in the other, so that "
            f"values cannot be laid beside each other from there on; {len(before)} of {len(where.layers)} layers of "
            "the same shape agree."
        )
    if not where.layers:
        return "Where it opens cannot be said: no layer of the one has a counterpart in the other."
    first = where.first(tolerance)
    if first is not None:
        at = [layer.name for layer in where.layers].index(first.name)
        how_far = (
            f"{first.gap:.3g} of {first.gap / first.relative:.3g}, {100 * first.relative:.2g} %"
            if math.isfinite(first.relative)
            else "values there are not finite"
        )
        if where.by_place and at == len(where.layers) - 1:
            if not at:
                return f"Where it opens cannot be said: no layer before the answers has a counterpart ({how_far})."
            return (
                f"It opens after {where.layers[at - 1].name}: nothing behind it has a counterpart that agrees, and the "
                f"answers differ ({how_far}). Layers were laid beside each other {how}."
            )
        agree = f"; the {at} before it agree" if at else ", the first that both have"
        return (
            f"It opens at {first.name}{'' if where.by_name else f' ({first.other} in the other)'}: {how_far}{agree}. "
            f"Layers were laid beside each other {how}."
        )
    last, lost = where.layers[-1], where.alone[0]
    if where.behind and not where.by_place and not answers <= tolerance:
        return (
            f"It opens after {last.name}: nothing behind it has a counterpart that agrees, and the answers differ "
            f"({100 * answers:.2g} %). Layers were laid beside each other {how}."
        )
    beyond = f"; {lost} layers have no counterpart, and nothing is said of them" if lost else ""
    return (
        f"No layer parts by more than {100 * tolerance:g} % of its largest value, up to {last.name}{beyond}. Layers "
        f"were laid beside each other {how}."
    )


def _sides(shape: Sequence[int]) -> str:
    return " x ".join(map(str, shape))
