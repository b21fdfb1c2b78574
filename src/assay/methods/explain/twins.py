r"""Twins: networks that answer as the model does and are built otherwise. An explanation should not tell them apart.

    P = max_x || f(x) - f'(x) ||_inf,      Q = mean_x d( E(f, x), E(f', x) ),      fooling ratio = Q / max(P, tol)

Source: Wang's dissertation, TU Delft 2024, sec. 6.6 and 6.7 (the axiom of implementation invariance, Sundararajan, Taly
and Yan, ICML 2017, arXiv:1703.01365, as a check of explanations). The source measures d by L1 alone and sets no limits.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal, NamedTuple, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from assay.errors import AssayError, ShapeError, SubjectError
from assay.methods.explain import surgery
from assay.methods.explain.gradcam import normalise

Explain = Callable[[nn.Module, Tensor], Tensor]  # (model, n *d) -> n h w
Distance = Literal["l1", "spearman", "top", "ssim"]
TOP = 0.2  # the share of pixels whose overlap the distance "top" asks for
TOL = 1e-6  # a prediction gap below it counts as none
SMALL = 0.05  # an explanation gap below it counts as none
SPREAD = 10.0  # rescaling draws factors from 1/10 to 10


class Twin(NamedTuple):
    """A network that answers alike. Its layers keep their names."""

    name: str
    model: nn.Module
    keeps: Literal["scores", "probabilities"]
    benign: bool  # built without the wish to deceive


def twins(
    model: nn.Module, layer: str, x: Tensor, *, rng: torch.Generator, sticker: Tensor | None = None
) -> Iterator[Twin]:
    """One twin after another: GradCAM's four lies at `layer`, then the harmless ones, each built when asked for.

    `x` is a batch of examples. `sticker` sets off T4, by default a smiley of a third of the image. A harmless twin for
    which the network has no place (no batch normalisation, no two layers in a row) is left out.
    """
    _, h, w = surgery.map_shape(model, layer, x)
    corner = torch.zeros(h, w)
    corner[: (h + 1) // 2, : (w + 1) // 2] = 1
    picture = surgery.smiley(h, w) if min(h, w) >= 7 else corner
    if sticker is None:
        sticker = surgery.smiley(*(max(7, side // 3) for side in x.shape[-2:]))
    yield Twin("T1 flat map", surgery.flat_map(model, layer, x), "scores", False)
    yield Twin("T2 chosen map", surgery.chosen_map(model, layer, x, picture=picture), "scores", False)
    yield Twin("T3 random map", surgery.random_map(model, layer, x, rng=rng), "probabilities", False)
    yield Twin("T4 triggered map", surgery.triggered_map(model, layer, x, sticker=sticker), "probabilities", False)
    if chains(model):
        yield Twin("channels permuted", permute_channels(model, rng=rng), "scores", True)
        yield Twin("layers rescaled", rescale(model, rng=rng), "scores", True)
    if any(chain.norm for chain in convolutions(model)):
        yield Twin("batch normalisation folded", fold_batch_norm(model), "scores", True)
    yield Twin("dead channel added", add_dead_channel(model, layer, x, rng=rng), "scores", True)


class Chain(NamedTuple):
    """A convolution whose maps go, each by itself, into one next layer."""

    conv: str
    norm: str | None  # the batch normalisation right behind it
    then: str | None  # the next Conv2d or Linear, if nothing but what treats each map by itself lies between


PER_MAP = (nn.ReLU, nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d, nn.Dropout, nn.Dropout2d,
           nn.Identity)  # fmt: skip
PER_MAP_CALLS: tuple[Any, ...] = (torch.relu, F.relu, F.max_pool2d, F.avg_pool2d, F.adaptive_avg_pool2d)


def convolutions(model: nn.Module) -> tuple[Chain, ...]:
    """Each plain convolution with what follows it."""
    if model.training:
        raise AssayError("The model is in training mode, where twins would differ; call model.eval() first.")
    try:
        traced = fx.symbolic_trace(model)
    except Exception as e:
        why = (str(e).strip().splitlines() or ["no message"])[0]
        raise SubjectError(
            f"torch.fx cannot read the forward pass ({type(e).__name__}: {why}); write it without decisions that "
            "depend on values."
        ) from e
    calls = [str(node.target) for node in traced.graph.nodes if node.op == "call_module"]
    modules = dict(traced.named_modules())
    found = []
    for node in traced.graph.nodes:
        conv = modules.get(str(node.target)) if node.op == "call_module" else None
        if not isinstance(conv, nn.Conv2d) or conv.groups != 1 or calls.count(str(node.target)) != 1:
            continue
        norm, then, flat, at = None, None, False, node
        while len(at.users) == 1:
            behind, (at,) = at, at.users
            module = modules.get(str(at.target)) if at.op == "call_module" else None
            if isinstance(module, nn.BatchNorm2d):
                if behind is not node or not (module.affine and module.track_running_stats and _once(at, calls)):
                    break
                norm = str(at.target)
            elif isinstance(module, nn.Linear | nn.Conv2d):
                takes = flat if isinstance(module, nn.Linear) else module.groups == 1
                then = str(at.target) if takes and _once(at, calls) else None
                break
            elif _flattens(at, module):
                flat = True
            elif not (isinstance(module, PER_MAP) or at.target in PER_MAP_CALLS or at.target == "relu"):
                break
        found.append(Chain(str(node.target), norm, then))
    return tuple(found)


def _once(node: fx.Node, calls: list[str]) -> bool:
    return calls.count(str(node.target)) == 1


def _flattens(node: fx.Node, module: nn.Module | None) -> bool:
    """Whether it turns n k h w into rows in which each map's numbers stand together."""
    if isinstance(module, nn.Flatten):
        return module.start_dim == 1 and module.end_dim == -1
    if node.target in (torch.flatten, "flatten"):
        return node.args[1:] == (1,) or (not node.args[1:] and node.kwargs == {"start_dim": 1})
    over = node.args[1:] if len(node.args) > 2 else node.args[1] if len(node.args) == 2 else node.kwargs.get("dim")
    return node.target in (torch.mean, "mean") and over in ((2, 3), [2, 3], (-2, -1), [-2, -1], (-1, -2), [-1, -2])


def chains(model: nn.Module) -> tuple[Chain, ...]:
    """The convolutions whose maps one next layer alone takes in: those may be reordered and rescaled."""
    return tuple(chain for chain in convolutions(model) if chain.then)


Edit = Callable[[nn.Conv2d, nn.BatchNorm2d | None, Tensor], None]
"""(convolution, batch normalisation behind it, the next layer's weight as o k m: its columns by map), in place."""


def permute_channels(model: nn.Module, *, rng: torch.Generator) -> nn.Module:
    """A copy whose convolutions have their maps in another order, which the next layers know."""

    def shuffle(conv: nn.Conv2d, norm: nn.BatchNorm2d | None, columns: Tensor) -> None:
        order = torch.randperm(conv.out_channels, generator=rng, device=rng.device).to(columns.device)
        for module in (conv, norm):
            for tensor in [] if module is None else [*module.parameters(), *module.buffers()]:
                if tensor.ndim:  # not the count of batches
                    tensor.copy_(tensor[order].clone())
        columns.copy_(columns[:, order].clone())

    return _each_chain(model, shuffle)


def rescale(model: nn.Module, *, rng: torch.Generator) -> nn.Module:
    """A copy whose maps are s_k > 0 times as high and whose next layers weigh them 1/s_k: relu(s z) = s relu(z)."""

    def stretch(conv: nn.Conv2d, norm: nn.BatchNorm2d | None, columns: Tensor) -> None:
        draws = torch.rand(conv.out_channels, generator=rng, device=rng.device, dtype=torch.float64)
        s = (SPREAD ** (2 * draws - 1)).to(columns)
        for p in (norm or conv).parameters():
            p.mul_(s.view(-1, *[1] * (p.ndim - 1)))
        columns.div_(s[None, :, None])

    return _each_chain(model, stretch)


def _each_chain(model: nn.Module, edit: Edit) -> nn.Module:
    twin = copy.deepcopy(model)
    found = chains(twin)
    if not found:
        raise AssayError("No convolution of the model feeds one next layer alone, so there is nothing to reorder.")
    modules: dict[str | None, Any] = dict(twin.named_modules())
    with torch.no_grad():
        for conv, norm, then in found:
            weight = modules[then].weight
            edit(modules[conv], modules.get(norm), weight.view(len(weight), modules[conv].out_channels, -1))
    return twin


def fold_batch_norm(model: nn.Module) -> nn.Module:
    """A copy without the batch normalisations that follow a convolution: their scale and shift are in its weights."""
    twin = copy.deepcopy(model)
    found = [c for c in convolutions(twin) if c.norm]
    if not found:
        raise AssayError("No batch normalisation follows a convolution of the model, so there is nothing to fold.")
    modules: dict[str | None, Any] = dict(twin.named_modules())
    for conv, norm, _ in found:
        twin.set_submodule(conv, fuse_conv_bn_eval(modules[conv], modules[norm]))
        twin.set_submodule(norm or "", nn.Identity())
    return twin.eval()


def add_dead_channel(model: nn.Module, layer: str, x: Tensor, *, rng: torch.Generator) -> nn.Module:
    """A copy whose `layer` has one more map that is always zero, and which the next Linear weighs as it does others."""
    _, h, w = surgery.map_shape(model, layer, x)
    twin = surgery.append_map(model, layer, x, surgery.Fixed(x.new_zeros(1, 1, h, w)))
    name = surgery.linear_after(model, layer, x)
    old, linear = model.get_submodule(name), twin.get_submodule(name)
    assert isinstance(old, nn.Linear)
    assert isinstance(linear, nn.Linear)
    new = linear.weight[:, old.in_features :]
    noise = torch.randn(new.shape, generator=rng, device=rng.device).to(new)
    with torch.no_grad():
        new.copy_(noise * old.weight.std())
    return twin


class Gaps(NamedTuple):
    """What lies between a model and its twin."""

    scores: float  # P, the largest change of a score
    posteriors: float  # the mean total variation between the probabilities
    maps: Tensor  # n, the distance between the two maps of each input
    tol: float

    @property
    def explanation(self) -> float:
        """Q."""
        return float(self.maps.mean())

    @property
    def fooling_ratio(self) -> float:
        """Q / max(P, tol): how far the explanation moves for each bit that the answers do."""
        return self.explanation / max(self.scores, self.tol)


def compare(
    model: nn.Module, twin: nn.Module, explain: Explain, x: Tensor, *, distance: Distance = "l1", tol: float = TOL
) -> Gaps:
    """P and Q between a model and its twin on the inputs `x`."""
    with torch.no_grad():
        y, other = model(x), twin(x)
    apart = (y.softmax(1) - other.softmax(1)).abs().sum(1) / 2
    gaps = map_distance(explain(model, x), explain(twin, x), distance)
    return Gaps(float((y - other).abs().max()), float(apart.mean()), gaps, tol)


def invariant(gaps: Iterable[Gaps], *, small: float = SMALL) -> bool | None:
    """Whether Q is small for every twin whose scores are the model's (P below its tol); None where there is none."""
    kept = [gap.explanation <= small for gap in gaps if gap.scores <= gap.tol]
    return all(kept) if kept else None


def map_distance(a: Tensor, b: Tensor, distance: Distance = "l1") -> Tensor:  # n h w, n h w -> n
    """How far two maps are apart, after each is divided by its maximum; 0 for equal ones.

    `l1`: the mean over pixels of |a - b|. `spearman`: 1 - rank correlation, ties at their mean rank; a constant map
    correlates with nothing but another one. `top`: 1 - the shared part of the highest fifth of the pixels. `ssim`:
    1 - structural similarity (Wang et al. 2004, windows of 7 x 7 or the whole of a smaller map).
    """
    if a.shape != b.shape or a.ndim != 3:
        raise ShapeError(f"Maps of shape {tuple(a.shape)} and {tuple(b.shape)} cannot be compared; give n h w twice.")
    if distance not in get_args(Distance):
        raise AssayError(f"There is no distance {distance!r}; choose one of {', '.join(get_args(Distance))}.")
    a, b = normalise(a), normalise(b)
    if distance == "l1":
        return (a - b).abs().mean((1, 2))
    if distance == "ssim":
        return 1 - _ssim(a, b)
    a, b = a.flatten(1), b.flatten(1)
    if distance == "spearman":
        return 1 - correlation(_ranks(a), _ranks(b))
    count = max(1, round(TOP * a.shape[1]))
    marks = [torch.zeros_like(m).scatter_(1, m.topk(count, 1).indices, 1) for m in (a, b)]
    return 1 - (marks[0] * marks[1]).sum(1) / count


def correlation(a: Tensor, b: Tensor) -> Tensor:  # n m, n m -> n
    """Pearson's correlation of each row; 0 where one row is constant, 1 where both are."""
    a, b = a - a.mean(1, keepdim=True), b - b.mean(1, keepdim=True)
    tiny = 100 * torch.finfo(a.dtype).eps
    p, q = a.norm(dim=1), b.norm(dim=1)
    flat_a, flat_b = p <= tiny, q <= tiny
    value = (a * b).sum(1) / torch.where(flat_a | flat_b, 1, p * q)
    return torch.where(flat_a | flat_b, (flat_a & flat_b).to(a.dtype), value)


def _ranks(a: Tensor) -> Tensor:  # n m -> n m
    ordered = a.sort(1).values
    below = torch.searchsorted(ordered, a.contiguous())
    up_to = torch.searchsorted(ordered, a.contiguous(), right=True)
    return (below + up_to).to(a.dtype) / 2


def _ssim(a: Tensor, b: Tensor) -> Tensor:  # n h w, n h w -> n
    side = [min(7, size) for size in a.shape[-2:]]
    count = side[0] * side[1]

    def mean(m: Tensor) -> Tensor:
        return F.avg_pool2d(m[:, None], side, 1)

    fair = count / max(count - 1, 1)  # sample variances
    mu_a, mu_b = mean(a), mean(b)
    var_a, var_b = fair * (mean(a * a) - mu_a**2), fair * (mean(b * b) - mu_b**2)
    both = fair * (mean(a * b) - mu_a * mu_b)
    c1, c2 = 0.01**2, 0.03**2
    values = (2 * mu_a * mu_b + c1) * (2 * both + c2) / ((mu_a**2 + mu_b**2 + c1) * (var_a + var_b + c2))
    return values.mean((1, 2, 3))
