r"""Which channels live and die together, and how to take them out of a network for good.

Vertices are the sides of the layers: the input channels and the output channels of each convolution and each Linear. A
hyperedge joins all sides that must agree on which channels there are: a sum joins its terms, a normalisation or a
depthwise convolution follows its input. Pruning takes a channel from an edge, that is from all its sides at once.

    masked(x):  a channel that was dropped is 0 wherever a layer reads it
    cut(x):     the network without it;   cut(x) = masked(x)

A dropped channel is zeroed where it is read, not where it is written: what a bias, a batch normalisation's beta or an
activation with f(0) != 0 makes of it on the way does not leak, and padding is 0 as it is in the smaller network.

Source: Passov, David and Netanyahu, "Gator", 2022 (the hypergraph; 37 edges in a ResNet-50, 20 in a ResNet-34). Here it
    is read from the graph of torch.fx, channel by channel, so that concatenations, flattened maps, grouped and
    transposed convolutions have their edges too. What is not understood is left as it is: channels that meet an
    operation without a rule, the input or the answer are in no edge (`Reading.fixed` says why).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd
from torch.utils._pytree import tree_leaves
from torch.utils.hooks import RemovableHandle

from assay.errors import AssayError, SubjectError
from assay.methods.compress.dependency import Edge as Edge
from assay.methods.compress.dependency import Layer, Reader, Reading, ends, follows, is_depthwise
from assay.nn.emptied import Emptied

CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
Keep = Mapping[str, Tensor]  # name of an edge -> bool (size); edges that are not named keep all


def edges(model: nn.Module, example: Tensor) -> tuple[Edge, ...]:
    """What can be cut; an error in one line where nothing can. `example` is a batch of inputs; the model stays."""
    found = read(model, example)
    if not found.edges:
        name, why = next(iter(found.fixed.items()), ("the network", "it has no convolution and no Linear"))
        raise SubjectError(
            f"No channel of the network can be cut: {name!r} must keep its own, {why}; put at least one more layer "
            "between, or write that part with layers and operations that treat each channel by itself."
        )
    return found.edges


def read(model: nn.Module, example: Tensor) -> Reading:
    """The dependency hypergraph, proved: each edge that is given was cut on trial and left the answers as masked."""
    model = copy.deepcopy(model).eval()
    reader = Reader(model, example)
    found, fixed = reader.edges()
    trial = {edge.name: torch.arange(edge.size) > 0 for edge in found if edge.size > 1}
    doubted = bool(trial) and _gap(model, found, trial, reader.example[:1]) is not None
    good = []
    for edge in found:  # one channel goes as a whole and would hide the others: it is tried by itself
        tried = doubted or edge.size == 1
        why = _gap(model, (edge,), {edge.name: torch.arange(edge.size) > 0}, reader.example[:1]) if tried else None
        if why is None:
            good.append(edge)
        else:
            fixed[edge.name] = why
    return Reading(tuple(good), fixed)


def masked(model: nn.Module, edges: Sequence[Edge], keep: Keep) -> nn.Module:
    """A copy in which every dropped channel is 0 wherever it is read; it can be trained, and nothing leaks back in.

    An edge of which nothing is left takes those along that nobody reads or that nothing but biases feed any more: the
    block is gone.
    """
    kept = closed(edges, keep)
    model = copy.deepcopy(model)
    through_readers(model, edges, lambda edge, x: kept[edge.name])
    return model


def through_readers(
    model: nn.Module, edges: Sequence[Edge], gate: Callable[[Edge, Tensor], Tensor]
) -> list[RemovableHandle]:
    """Hook `model` (in place) so that each reader sees its input times `gate(edge, input)`: size, or n size.

    A gate of type bool drops instead: no number comes through it, not even an infinite one.
    """
    modules = dict(model.named_modules())
    reads: dict[str, list[Edge]] = {}
    for edge in edges:
        for name in edge.readers:
            reads.setdefault(name, []).append(edge)
    return [modules[name].register_forward_pre_hook(_Through(name, its, gate)) for name, its in reads.items()]


class _Through:
    """The hook on one reader."""

    def __init__(self, name: str, edges: Sequence[Edge], gate: Callable[[Edge, Tensor], Tensor]) -> None:
        self.edges, self.gate = edges, gate
        self.at = {
            edge.name: None if torch.equal(edge.inputs[name], torch.arange(edge.size)) else edge.inputs[name]
            for edge in edges
        }

    def __call__(self, module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        x = args[0]
        for edge in self.edges:
            each, at = self.gate(edge, x).to(x.device), self.at[edge.name]
            if at is not None:  # else each channel stands at its own place: to pick has a slow gradient
                at = at.to(x.device)
                each = torch.where(at < 0, torch.ones_like(each[..., :1]), each[..., at.clamp(min=0)])
            shape = [1] * x.dim()
            shape[0] = each.shape[0] if each.dim() == 2 else 1
            shape[-1 if isinstance(module, nn.Linear) else 1] = each.shape[-1]
            if each.dtype is torch.bool:
                x = x.masked_fill(~each.reshape(shape), 0.0)
            else:
                x = x * each.to(x.dtype).reshape(shape)
        return (x, *args[1:])


def cut(model: nn.Module, edges: Sequence[Edge], keep: Keep) -> nn.Module:
    """A copy without the dropped channels, smaller for good: same class, same forward code, same mode.

    A layer that has nothing left to read, or whose output nobody reads, becomes `Emptied`: it costs nothing and gives
    its bias, or 0, in the shape that the code around it wants. For that shape one channel stays where all are dropped;
    nobody reads it.
    """
    kept = closed(edges, keep)
    for name, module in model.named_modules():
        if any(isinstance(hook, _Through) for hook in module._forward_pre_hooks.values()):
            raise AssayError(
                f"{name!r} reads through a mask or a gate, whose size a smaller network does not have; take it off "
                "(handle.remove()), or cut the network that was masked."
            )
    model = copy.deepcopy(model)
    modules = dict(model.named_modules())
    dead_in, dead_out = _dead(edges, kept)
    held = _held(edges, kept)
    with torch.no_grad():
        for edge in edges:
            unread = held[edge.name] & ~kept[edge.name]
            for name in set(edge.readers) - dead_in if unread.any() else ():
                at = edge.inputs[name]
                _forget(cast(Layer, modules[name]), (at >= 0) & unread[at.clamp(min=0)])
        for name, module in modules.items():
            places_in, places_out = _places(edges, held, name, "inputs"), _places(edges, held, name, "outputs")
            if places_in is None and places_out is None:
                continue
            if isinstance(module, nn.Linear | _ConvNd):
                _shrink(module, places_in, places_out)
                if name in dead_in | dead_out:
                    _replace(model, module, Emptied.of(module, silent=name in dead_out))
            else:
                assert places_out is not None
                _shrink_norm(module, places_out)
    return model


def closed(edges: Sequence[Edge], keep: Keep) -> dict[str, Tensor]:
    """What is kept of every edge, checked; channels that lost all their readers or all their writers go too."""
    sizes = {edge.name: edge.size for edge in edges}
    for name, of in keep.items():
        if name not in sizes:
            known = ", ".join(map(repr, list(sizes)[:3]))
            raise AssayError(f"There is no edge {name!r} to cut; the network has {len(sizes)}: {known} and so on.")
        if of.shape != (sizes[name],) or of.dtype is not torch.bool:
            raise AssayError(
                f"keep[{name!r}] is {of.dtype} of shape {tuple(of.shape)}; it wants bool of shape ({sizes[name]},), "
                "True for a channel that stays."
            )
    kept = {e.name: keep[e.name].cpu() if e.name in keep else torch.ones(e.size, dtype=torch.bool) for e in edges}
    while True:
        dead_in, dead_out = _dead(edges, kept)
        left = {}
        for edge in edges:
            fed = _met(edge.outputs, set(edge.writers) - dead_in, edge.size)
            read = _met(edge.inputs, set(edge.readers) - dead_out, edge.size)
            left[edge.name] = kept[edge.name] & fed & (read | ~_met(edge.inputs, set(edge.readers), edge.size))
        if all(torch.equal(left[name], kept[name]) for name in kept):
            return kept
        kept = left


def lifeless(edges: Sequence[Edge], keep: Keep) -> bool:
    """Whether a layer that gives the answer, or part of it, would have nothing left to read."""
    kept = closed(edges, keep)
    dead_in, _ = _dead(edges, kept)
    return bool(dead_in - {name for edge in edges for name in edge.writers})


def shaped_like(model: nn.Module, tensors: Mapping[str, Tensor]) -> nn.Module:
    """A copy of `model` with its layers as large as `tensors`, the state of a network that was cut from it, says.

    The values are not loaded; `load_state_dict(tensors)` does that.
    """
    model = copy.deepcopy(model)
    with torch.no_grad():
        for name, module in list(model.named_modules()):
            weight, bias = tensors.get(f"{name}.weight"), tensors.get(f"{name}.bias")
            if isinstance(module, nn.Linear | _ConvNd) and "weight" in module._parameters:
                if weight is not None and weight.dim() == module.weight.dim():
                    _resize(module, weight)
                elif weight is None and bias is not None and bias.dim() == 1:
                    _shrink(module, None, torch.arange(ends(module)[1]) < len(bias))
                    _replace(model, module, Emptied.of(module, silent=False))
            elif follows(module) is not None:
                sized = weight if weight is not None else tensors.get(f"{name}.running_mean")
                if sized is not None and sized.dim() == 1:
                    _shrink_norm(module, torch.arange(cast(int, follows(module))) < len(sized))
    return model


# What is done to one module. All of it works on a copy, in place: a module keeps its class, its hooks and its aliases.


def _take(module: nn.Module, name: str, chosen: Tensor, dim: int = 0) -> None:
    """Keep only the chosen slices of a parameter or buffer, in the order in which it lies in memory."""
    old = getattr(module, name, None)
    if not isinstance(old, Tensor) or old.dim() == 0:
        return
    new = old.detach().index_select(dim, chosen.nonzero().flatten().to(old.device)).clone()
    last = CHANNELS_LAST.get(old.dim())
    if last is not None and old.is_contiguous(memory_format=last) and not old.is_contiguous():
        new = new.contiguous(memory_format=last)
    if isinstance(old, nn.Parameter):
        setattr(module, name, nn.Parameter(new, requires_grad=old.requires_grad))
    else:
        setattr(module, name, new)


def _shrink(layer: Layer, ins: Tensor | None, outs: Tensor | None) -> None:
    """Keep only these of its inputs and outputs; what groups share is the same in all of them."""
    before = ends(layer)
    ins = torch.ones(before[0], dtype=torch.bool) if ins is None else ins
    outs = torch.ones(before[1], dtype=torch.bool) if outs is None else outs
    flipped = isinstance(layer, _ConvTransposeNd)  # its weight is in x out/groups
    groups = 1 if isinstance(layer, nn.Linear) else layer.groups
    if is_depthwise(layer):
        each = before[1] // groups
        if not ins.any() or ins.all():  # told by its outputs alone
            ins = outs.reshape(-1, each)[:, 0]
        outs = ins.repeat_interleave(each)
        _take(layer, "weight", ins if flipped else outs)
        cast(_ConvNd, layer).groups = int(ins.sum())
    else:
        _take(layer, "weight", ins if flipped else ins[: before[0] // groups], 0 if flipped else 1)
        _take(layer, "weight", outs[: before[1] // groups] if flipped else outs, 1 if flipped else 0)
    _take(layer, "bias", outs)
    if isinstance(layer, nn.Linear):
        layer.in_features, layer.out_features = int(ins.sum()), int(outs.sum())
    else:
        layer.in_channels, layer.out_channels = int(ins.sum()), int(outs.sum())


def _resize(layer: Layer, weight: Tensor) -> None:
    """As large as this weight, whatever its values."""
    ins, outs = ends(layer)
    groups = 1 if isinstance(layer, nn.Linear) else layer.groups
    first, second = weight.shape[:2]
    if isinstance(layer, _ConvTransposeNd):
        after = (first, second * (first if is_depthwise(layer) else groups))
    else:
        after = (first * ins // outs if is_depthwise(layer) else second * groups, first)
    if after != (ins, outs):
        _shrink(layer, _alike(ins, after[0], groups), _alike(outs, after[1], groups))


def _alike(before: int, after: int, groups: int) -> Tensor:
    """As many places of `before` as are left, the first ones of every group."""
    if before == groups or groups == 1:
        return torch.arange(before) < after
    return (torch.arange(before // groups) < after // groups).repeat(groups)


def _shrink_norm(module: nn.Module, kept: Tensor) -> None:
    for name in ("weight", "bias", "running_mean", "running_var"):
        _take(module, name, kept)
    left = int(kept.sum())
    if isinstance(module, nn.GroupNorm):
        module.num_groups = left * module.num_groups // module.num_channels
        module.num_channels = left
    elif isinstance(module, nn.PReLU):
        module.num_parameters = left
    else:
        cast(_BatchNorm, module).num_features = left


def _forget(layer: Layer, places: Tensor) -> None:
    """Read nothing at these places of the input."""
    flipped = isinstance(layer, _ConvTransposeNd)
    chosen = (places if flipped else places[: layer.weight.shape[1]]).nonzero().flatten().to(layer.weight.device)
    layer.weight.index_fill_(0 if flipped else 1, chosen, 0.0)


def _replace(model: nn.Module, old: nn.Module, new: nn.Module) -> None:
    """Under every name that it has."""
    for parent in list(model.modules()):
        for key, child in parent._modules.items():
            if child is old:
                parent._modules[key] = new


def _places(edges: Sequence[Edge], held: Mapping[str, Tensor], name: str, side: str) -> Tensor | None:
    """Which places of this side stay; None for a module that no edge touches there."""
    kept: Tensor | None = None
    for edge in edges:
        at = getattr(edge, side).get(name)
        if at is not None:
            kept = torch.ones(len(at), dtype=torch.bool) if kept is None else kept
            kept &= (at < 0) | held[edge.name][at.clamp(min=0)]
    return kept


def _dead(edges: Sequence[Edge], kept: Mapping[str, Tensor]) -> tuple[set[str], set[str]]:
    """The layers that have nothing left to read, and those that have nothing left to write."""
    dead = []
    for names, side in (([e.readers for e in edges], "inputs"), ([e.writers for e in edges], "outputs")):
        left = {name: _places(edges, kept, name, side) for each in names for name in each}
        dead.append({name for name, of in left.items() if of is not None and not of.any()})
    return dead[0], dead[1]


def _met(places: Mapping[str, Tensor], names: set[str], size: int) -> Tensor:
    """The channels of an edge that stand at a place of one of these modules."""
    met = torch.zeros(size, dtype=torch.bool)
    for name in names:
        met[places[name][places[name] >= 0]] = True
    return met


def _held(edges: Sequence[Edge], kept: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What is kept, and one channel more wherever a module would have none."""
    held = {name: of.clone() for name, of in kept.items()}
    for side in ("outputs", "inputs"):
        for edge in edges:
            for name, at in getattr(edge, side).items():
                left = _places(edges, held, name, side)
                if left is not None and not left.any():
                    held[edge.name][at[at >= 0][0]] = True
    return held


def _gap(model: nn.Module, edges: Sequence[Edge], keep: Keep, example: Tensor) -> str | None:
    """Why these cannot be cut, by trial: the smaller network fails or answers otherwise. None: all is well."""
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            answers = []
            for smaller in (masked(model, edges, keep), cut(model, edges, keep)):
                torch.manual_seed(0)
                answers.append([t for t in tree_leaves(smaller(example)) if isinstance(t, Tensor)])
    except Exception as e:  # somebody's forward pass, which may count on its channels in any way
        why = (str(e).strip().splitlines() or ["no message"])[0]
        return f"without one of its channels the forward pass fails ({type(e).__name__}: {why})"
    for one, other in zip(*answers, strict=True):
        if one.shape != other.shape:
            return "without one of its channels the answer has another shape"
        if one.is_floating_point() and one.numel():
            allowed = (1e3 if one.dtype.itemsize >= 4 else 30) * torch.finfo(one.dtype).eps
            gap = float((one.double() - other.double()).abs().max())
            if not gap <= allowed * (1 + float(one.double().abs().max())):
                return f"without one of its channels the answers differ by {gap:.3g} from those with it at 0"
    return None
