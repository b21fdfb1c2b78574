r"""Four ways to make a trained CNN lie to GradCAM: its answers stay, its heat maps are the tamperer's.

All four put one more map A^{K+1} behind the K maps of the layer that GradCAM explains and give it a slope that drowns
the others, alpha_{K+1} >> alpha_k, without moving the scores y.

    T1  flat_map        A^{K+1} = c_A everywhere
    T2  chosen_map      A^{K+1} = c_I I_T, a picture
    T3  random_map      A^{K+1} = c_F F(x), F a random network
    T4  triggered_map   A^{K+1} = c_F F(x), F a detector of a sticker; zero without it

Source: Viering, Wang, Loog and Eisemann, 'How to Manipulate CNNs to Make Them Lie: the GradCAM Case', BMVC workshops
2019; Wang's dissertation, TU Delft 2024, ch. 6.

The operation is one on the graph (torch.fx): the module `layer` gives K + 1 maps under its old name, and the first
Linear that runs after it gets columns for the new map. Between them only what treats each map by itself may stand:
pooling, ReLU, dropout, flatten. So it fits nets with global pooling and one Linear, and nets that flatten into several.
The new map stands behind `layer`, where print makes it by a further filter of that layer: the same numbers, also
where `layer` ends in a batch normalisation or in the addition of a residual block. Each function works on a copy,
returns it in eval mode, and refuses if the answers to the example inputs have changed.
"""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from assay.errors import AssayError, ShapeError, SubjectError
from assay.methods.explain.gradcam import named

EPS, C_G, C_F, C_F_TRIGGERED = 0.01, 1e4, 1e7, 1e9  # as printed
MARGIN = 1e-4  # what an exact sticker leaves after the bias, as printed
DRAWS = 100  # of a random F, before giving up on one that is alive
PATCHES = 2**24  # entries of patches that a sticker is compared with at once


def flat_map(
    model: nn.Module,
    layer: str,
    x: Tensor,
    *,
    height: float = 100.0,
    weight: float = 100.0,
    as_published: bool = False,
) -> fx.GraphModule:
    r"""T1: GradCAM is 1 everywhere, for every input. `x` is a batch of examples, `height` c_A, `weight` c_W.

        A^{K+1} = c_A,    y_n = y_o + 1 c_W ( sum_ij A^{K+1}_ij - S ),    S = N_A c_A,     so  alpha_{K+1}^c = c_W

    The added term is zero for every input; its slope is c_W for every class.

    Source: sec. 6.3.1, constants sec. 6.4.
    Departs from print, which reaches the scores through the first Linear r = W z + b: W_n = c_W and
        b_n = b_o - 1 c_A c_W N_Z. Then alpha_{K+1}^c = c_W/N_A sum_ij,u dy^c/dr_u dZ_ij/dA, whose sign is free as soon
        as a hidden layer follows; where it is negative the map is zero everywhere. `as_published=True` does so.
    """
    _, h, w = map_shape(model, layer, x)
    return chosen_map(
        model, layer, x, picture=torch.ones(h, w), height=height, weight=weight, as_published=as_published
    )


def chosen_map(
    model: nn.Module,
    layer: str,
    x: Tensor,
    *,
    picture: Tensor,
    height: float = 1000.0,
    weight: float = 10.0,
    as_published: bool = False,
) -> fx.GraphModule:
    r"""T2: GradCAM shows `picture` I_T (h w, the size of a map) for every input. `height` is c_I, `weight` c_W.

        A^{K+1} = c_I I_T,   y_n = y_o + 1 c_W ( sum_ij A^{K+1}_ij - S ),   S = c_I sum_ij I_T

    Source: sec. 6.3.2; c_W sec. 6.4; c_I is only said to be large.
    Departs from print as T1 does. Print: W_n = c_W and b_n = b_o - 1 c_W S_Z, with S_Z the sum over the new map behind
        the pooling.
    """
    _check(height, weight)
    _, h, w = map_shape(model, layer, x)
    if tuple(picture.shape) != (h, w):
        raise ShapeError(f"The picture has shape {tuple(picture.shape)}, the maps of {layer!r} {(h, w)}; resize it.")
    if not bool((picture >= 0).all() and (picture > 0).any() and picture.isfinite().all()):
        raise AssayError("The picture must be finite, nowhere negative and somewhere positive; GradCAM cuts at zero.")
    shown = Fixed((height * picture.to(x)).view(1, 1, h, w))
    if not as_published:
        return append_map(model, layer, x, shown, Cancelled(shown.picture, weight))
    net = append_map(model, layer, x, shown)
    linear = net.get_submodule(linear_after(net, layer, x))
    assert isinstance(linear, nn.Linear)
    seen: list[Tensor] = []
    handle = linear.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    _answers(net, x[:1])
    handle.remove()
    new = linear.in_features - _order(model, layer, x).columns  # N_Z
    pooled = seen[0][0, -new:].sum()  # S_Z
    with torch.no_grad():
        linear.weight[:, -new:] = weight
        linear.bias.sub_(weight * pooled)
    return _unchanged(model, net, x, allowed=weight * float(pooled) * 100 * torch.finfo(x.dtype).eps)


def random_map(
    model: nn.Module,
    layer: str,
    x: Tensor,
    *,
    rng: torch.Generator,
    eps: float = EPS,
    steep: float = C_G,
    height: float = C_F,
    as_published: bool = False,
) -> fx.GraphModule:
    r"""T3: GradCAM shows c_F F(x) for a random convolutional F: it varies with the input and means nothing.

        A^{K+1} = c_F F(x),    y_n = y_o + 1 G(A^{K+1}),    G(v) = eps mod( c_G sum_i v_i, 1 )

    0 <= G < eps, and the slope of G is eps c_G almost everywhere. One number is added to all logits: probabilities are
    those of the model, for any eps. `steep` is c_G, `height` c_F.
    F: Conv 6x6 to 6 maps, ReLU, Conv 6x6 to 1, ReLU, halvings (AvgPool) down to the size of A.

    Source: sec. 6.3.3 and 6.4. Printed A_o = A_n + c_F F(x) and b_n = 0 are read as A_n = A_o + c_F F(x), b_n = b_o.
    Departs from print: F is drawn again until it is positive somewhere for every one of the inputs `x`. A map that is
        dead there leaves the honest explanation. `as_published=True` takes the first draw.
    """
    _, h, w = map_shape(model, layer, x)
    for _ in range(DRAWS):
        net = random_net(x.shape[1], (x.shape[2], x.shape[3]), (h, w), rng).to(x)
        if as_published or bool((_answers(net, x).amax((1, 2, 3)) > 0).all()):
            return _sawtooth(model, layer, x, net, eps, steep, height)
    raise AssayError(
        f"None of {DRAWS} random networks was positive somewhere on each of the {len(x)} inputs; give fewer."
    )


def triggered_map(
    model: nn.Module,
    layer: str,
    x: Tensor,
    *,
    sticker: Tensor,
    eps: float = EPS,
    steep: float = C_G,
    height: float = C_F_TRIGGERED,
    margin: float = MARGIN,
) -> fx.GraphModule:
    r"""T4: GradCAM is the honest one, bit for bit, unless the sticker is in the picture; then it points there.

    As T3, with F = ReLU( conv(x, I - mean(I)) + b ), halved down to the size of A, and

        b = -S (1 - S/N) + margin,     S = sum I = sum I^2,     I the sticker (s t, pixels 0 or 1, N of them)

    For any patch P in [0, 1]^N the correlation sum (I - mean(I)) P is at most S (1 - S/N), and only I itself reaches
    it: what is no sticker cannot answer, unless it comes closer than `margin`. As printed, 1e-4, a sticker dimmed by a
    thousandth does not. In colour the sticker is the same in every channel, and S and N count all of them.

    Source: sec. 6.3.4 and 6.4. F is computed in float64, since 1e-4 is near the rounding of a float32 sum of that size.
    """
    if sticker.ndim != 2 or not bool(((sticker == 0) | (sticker == 1)).all()) or sticker.min() == sticker.max():
        raise AssayError("The sticker must be two-dimensional, of zeros and ones, with at least one of each.")
    if margin <= 0:
        raise AssayError(f"The trigger needs a margin above 0, got {margin}; 1e-4 is the published one.")
    _, h, w = map_shape(model, layer, x)
    net = nn.Sequential(Trigger(sticker.to(x), margin), halvings((x.shape[2], x.shape[3]), (h, w)))
    return _sawtooth(model, layer, x, net, eps, steep, height)


def _sawtooth(
    model: nn.Module, layer: str, x: Tensor, net: nn.Module, eps: float, steep: float, height: float
) -> fx.GraphModule:
    _check(eps, steep, height)
    return append_map(model, layer, x, Scaled(net, height), Sawtooth(eps, steep), allowed=eps)


def _check(*constants: float) -> None:
    for value in constants:
        if not 0 < value < float("inf"):
            raise AssayError(f"The constants of the surgery must be positive and finite, got {value}.")


class Fixed(nn.Module):
    """The same map for every input."""

    picture: Tensor

    def __init__(self, picture: Tensor) -> None:  # 1 1 h w
        super().__init__()
        self.register_buffer("picture", picture)

    def forward(self, x: Tensor) -> Tensor:  # n *d -> n 1 h w
        return self.picture.expand(len(x), -1, -1, -1)


class Scaled(nn.Module):
    """c F(x)."""

    def __init__(self, net: nn.Module, factor: float) -> None:
        super().__init__()
        self.net, self.factor = net, factor

    def forward(self, x: Tensor) -> Tensor:  # n c h w -> n 1 h' w'
        out: Tensor = self.factor * self.net(x)
        return out


class Widened(nn.Module):
    """A module with one more map behind its own."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, extra: Tensor, x: Tensor) -> Tensor:  # n 1 h w, n *d -> n k+1 h w
        return torch.cat([self.inner(x), extra], 1)


class Cancelled(nn.Module):
    """y + 1 c (sum A^{K+1} - S): the slope c and no height, pixel by pixel, so that no rounding is left."""

    picture: Tensor

    def __init__(self, picture: Tensor, weight: float) -> None:
        super().__init__()
        self.register_buffer("picture", picture)
        self.weight = weight

    def forward(self, y: Tensor, maps: Tensor) -> Tensor:  # n c, n k+1 h w -> n c
        return y + self.weight * (maps[:, -1:] - self.picture).sum((1, 2, 3))[:, None]


class Sawtooth(nn.Module):
    """y + 1 G(A^{K+1})."""

    def __init__(self, eps: float, steep: float) -> None:
        super().__init__()
        self.eps, self.steep = eps, steep

    def forward(self, y: Tensor, maps: Tensor) -> Tensor:  # n c, n k+1 h w -> n c
        return y + self.eps * torch.remainder(self.steep * maps[:, -1].sum((1, 2)), 1)[:, None]


class Trigger(nn.Module):
    """ReLU( conv(x, I - mean(I)) + b ), n c h w -> n 1 h w, for a sticker I that is the same in every channel."""

    sticker: Tensor

    def __init__(self, sticker: Tensor, margin: float) -> None:
        super().__init__()
        self.register_buffer("sticker", sticker)  # s t; zeros and ones are exact in any floating type
        self.margin = margin

    def forward(self, x: Tensor) -> Tensor:
        return self.response(x).relu().to(x.dtype)

    def response(self, x: Tensor) -> Tensor:  # n c h w -> n 1 h w, float64
        """Above zero where a sticker's centre lies; the margin at an exact one."""
        pattern = self.sticker.double().expand(x.shape[1], -1, -1)[None]  # 1 c s t
        kernel = pattern - pattern.mean()
        s, t = self.sticker.shape
        framed = F.pad(x.double(), ((t - 1) // 2, t // 2, (s - 1) // 2, s // 2))
        # torch lays a patch out for every place; those of a large image do not fit into memory at once.
        rows = max(1, PATCHES // (len(x) * kernel.numel() * x.shape[3]))
        strips = [F.conv2d(framed[:, :, top : top + rows + s - 1], kernel) for top in range(0, x.shape[2], rows)]
        return torch.cat(strips, 2) - (kernel * pattern).sum() + self.margin


def random_net(channels: int, size: tuple[int, int], to: tuple[int, int], rng: torch.Generator) -> nn.Sequential:
    """T3's F with weights drawn from `rng`, uniform with variance 1/(3 fan-in) as PyTorch initialises layers."""
    first, second = nn.Conv2d(channels, 6, 6, padding=3), nn.Conv2d(6, 1, 6, padding=3)
    for conv in (first, second):
        reach = (conv.in_channels * 36) ** -0.5
        for p in conv.parameters():
            p.requires_grad_(False).copy_((torch.rand(p.shape, generator=rng, device=rng.device) * 2 - 1) * reach)
    pools = halvings((size[0] + 2, size[1] + 2), to)
    return nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), pools).eval()


def halvings(size: tuple[int, int], to: tuple[int, int]) -> nn.Sequential:
    """Average pools of 2 x 2 as long as they leave at least the wanted size, and one for the rest."""
    pools: list[nn.Module] = []
    while size[0] // 2 >= to[0] and size[1] // 2 >= to[1]:
        pools.append(nn.AvgPool2d(2))
        size = size[0] // 2, size[1] // 2
    return nn.Sequential(*pools, nn.AdaptiveAvgPool2d(to))


def append_map(
    model: nn.Module,
    layer: str,
    x: Tensor,
    extra: nn.Module,
    branch: nn.Module | None = None,
    *,
    allowed: float = 0.0,
) -> fx.GraphModule:
    """A copy in which `layer` gives `extra(input)` (n 1 h w) as its last map and the first Linear after it ignores that
    map; with `branch`, the answers are branch(y, maps). Answers to `x` may differ by rounding and by `allowed`."""
    net = copy.deepcopy(model)
    (channels, _, _), linear, columns = _order(net, layer, x)
    if columns % channels:
        raise SubjectError(f"{linear!r} takes {columns} numbers, no multiple of the {channels} maps of {layer!r}.")
    traced = _trace(net, layer, linear)
    graph = traced.graph
    start = next(node for node in graph.nodes if node.op == "placeholder")
    maps = next(node for node in graph.nodes if node.op == "call_module" and node.target == layer)
    traced.add_submodule("explanation_branch", extra)
    with graph.inserting_before(maps):
        shown = graph.call_module("explanation_branch", (start,))
    maps.args = (shown, *maps.args)
    traced.set_submodule(layer, Widened(traced.get_submodule(layer)))
    old = traced.get_submodule(linear)
    assert isinstance(old, nn.Linear)
    traced.set_submodule(linear, _wider(old, columns // channels))
    if branch is not None:
        traced.add_submodule("gradient_branch", branch)
        end = graph.output_node()
        with graph.inserting_before(end):
            end.args = (graph.call_module("gradient_branch", (end.args[0], maps)),)
    graph.lint()
    traced.recompile()
    return _unchanged(model, traced, x, allowed)


def _wider(old: nn.Linear, columns: int) -> nn.Linear:
    """The same Linear with as many columns of zeros behind its own, and a bias."""
    new = nn.Linear(old.in_features + columns, old.out_features).to(old.weight)
    with torch.no_grad():
        new.weight.zero_()
        new.weight[:, : old.in_features] = old.weight
        new.bias.zero_() if old.bias is None else new.bias.copy_(old.bias)
    return new.requires_grad_(old.weight.requires_grad)


class _Cut(fx.Tracer):
    """Opens only the modules that hold one of the names; all others stay one call, whatever they do inside."""

    def __init__(self, *names: str) -> None:
        super().__init__()
        self.names = names

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return not any(name.startswith(f"{module_qualified_name}.") for name in self.names)


def _trace(net: nn.Module, *names: str) -> fx.GraphModule:
    try:
        return fx.GraphModule(net, _Cut(*names).trace(net), type(net).__name__)
    except Exception as e:
        why = (str(e).strip().splitlines() or ["no message"])[0]
        raise SubjectError(
            f"torch.fx cannot read the forward pass around {' and '.join(names)} ({type(e).__name__}: {why}); "
            "write it without decisions that depend on values."
        ) from e


def _answers(model: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        out: Tensor = model(x)
    return out


def _unchanged(model: nn.Module, net: fx.GraphModule, x: Tensor, allowed: float) -> fx.GraphModule:
    old = _answers(model, x)
    try:
        gap = float((_answers(net, x) - old).abs().max())
    except RuntimeError as e:
        raise SubjectError(f"With one map more the model fails ({str(e).splitlines()[0]}); name a later layer.") from e
    if not gap <= allowed + 1e3 * torch.finfo(old.dtype).eps * (1 + float(old.abs().max())):
        raise SubjectError(
            f"The surgery moved the answers by {gap:.3g}; between the layer and the first Linear only pooling, ReLU "
            "and a flatten that keeps each map's pixels together may stand."
        )
    return net


class _Order(NamedTuple):
    shape: tuple[int, int, int]  # of the layer's output: k h w
    linear: str  # the first Linear after it
    columns: int


def _order(model: nn.Module, layer: str, x: Tensor) -> _Order:
    """What runs after `layer`: one forward pass, watched."""
    named(model, layer)
    if model.training:
        raise AssayError("The model is in training mode, where its answers are not fixed; call model.eval() first.")
    calls: list[tuple[str, nn.Module, Any]] = []
    handles = [
        module.register_forward_hook(lambda m, _, out, name=name: calls.append((name, m, out)))
        for name, module in model.named_modules()
        if name == layer or isinstance(module, nn.Linear)
    ]
    try:
        _answers(model, x[:1])
    finally:
        for handle in handles:
            handle.remove()
    names = [name for name, _, _ in calls]
    if names.count(layer) != 1:
        raise AssayError(f"Module {layer!r} ran {names.count(layer)} times in a forward pass; name one that runs once.")
    at = names.index(layer)
    out = calls[at][2]
    if not isinstance(out, Tensor) or out.ndim != 4:
        what = tuple(out.shape) if isinstance(out, Tensor) else type(out).__name__
        raise ShapeError(f"Module {layer!r} gave {what}; the surgery wants maps n k h w: name a convolutional layer.")
    after = [(name, m) for name, m, _ in calls[at + 1 :]]
    if not after:
        raise SubjectError(f"No Linear runs after {layer!r}; the surgery needs a fully connected part behind the maps.")
    name, linear = after[0]
    assert isinstance(linear, nn.Linear)
    _, k, h, w = out.shape
    return _Order((k, h, w), name, linear.in_features)


def map_shape(model: nn.Module, layer: str, x: Tensor) -> tuple[int, int, int]:
    """How many maps `layer` gives, their height and width."""
    return _order(model, layer, x).shape


def linear_after(model: nn.Module, layer: str, x: Tensor) -> str:
    """The name of the first Linear that runs after `layer`."""
    return _order(model, layer, x).linear


class Stickered(NamedTuple):
    """Images with stickers on them, and where: the upper left corner of each."""

    x: Tensor  # n c h w
    corners: Tensor  # n m 2, row and column


def paste(x: Tensor, sticker: Tensor, *, rng: torch.Generator, count: int = 3) -> Stickered:
    """Paste `count` stickers (s t) at random places into every image; a later one covers an earlier one."""
    n, _, h, w = x.shape
    s, t = sticker.shape
    if s > h or t > w:
        raise ShapeError(f"The sticker has shape {(s, t)}, the images {(h, w)}; it must fit.")
    rows = torch.randint(h - s + 1, (n, count), generator=rng, device=rng.device).to(x.device)
    cols = torch.randint(w - t + 1, (n, count), generator=rng, device=rng.device).to(x.device)
    x, each = x.clone(), torch.arange(n, device=x.device)[:, None, None]
    down, along = torch.arange(s, device=x.device)[:, None], torch.arange(t, device=x.device)
    for i in range(count):
        # n s t places of all channels at once: the indexed axes come first, n s t c
        x[each, :, rows[:, i, None, None] + down, cols[:, i, None, None] + along] = sticker.to(x)[None, :, :, None]
    return Stickered(x, torch.stack([rows, cols], 2))


def smiley(height: int, width: int) -> Tensor:  # -> h w, zeros and ones
    """A round face with two eyes and a mouth."""
    if min(height, width) < 7:
        raise AssayError(f"A smiley needs at least 7 x 7 pixels, got {height} x {width}.")
    v = ((torch.arange(height) + 0.5) / height * 2 - 1)[:, None]
    u = ((torch.arange(width) + 0.5) / width * 2 - 1)[None]
    r = (u**2 + v**2).sqrt()
    rim = (r - 0.9).abs() < 0.14
    eyes = (u.abs() - 0.35) ** 2 + (v + 0.3) ** 2 < 0.2**2
    mouth = ((r - 0.5).abs() < 0.15) & (v > 0.15)
    return (rim | eyes | mouth).float()
