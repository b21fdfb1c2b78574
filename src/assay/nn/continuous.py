"""Networks whose depth is a line: residual blocks as the drift of an equation, with noise on the way (neural SDE)."""

from __future__ import annotations

import copy
import math
from itertools import pairwise

import torch
from torch import Tensor, nn

from assay.errors import AssayError, ShapeError
from assay.nn.members import Drawn
from assay.nn.solve import DepthNoise, Scheme, check, solve

SIDE = 16  # of the maps that the equation is about: the stem halves larger images
WIDTH = 32
STEPS = 1000  # at most: more are a mistake, and a pass would seem to hang


class Continuous(nn.Module):
    """The state at depth `span`, from the state that comes in: n *d -> n *d.

    `drift(h, t)` is f. A step has the size `grid`, or a little less so that they are all alike. The noise is there in
    training and in eval mode, until it is turned off. Every state on the way goes through `state`, which hands it on:
    whoever watches that module sees the whole path.
    """

    def __init__(
        self, drift: nn.Module, noise: DepthNoise, *, grid: float, span: float = 1.0, scheme: Scheme = "euler"
    ) -> None:
        super().__init__()
        if not 0 < grid <= span < math.inf:
            raise AssayError(f"A depth of {span:g} in steps of grid={grid}; the grid is above 0 and at most the depth.")
        self.drift, self.state = drift, nn.Identity()
        self.noise, self.span, self.scheme = noise, span, scheme
        self.steps = math.ceil(span / grid - 1e-9)
        if self.steps > STEPS:
            raise AssayError(f"grid={grid} cuts a depth of {span:g} in more than {STEPS} steps; take a coarser grid.")
        check(noise, steps=self.steps, span=span, scheme=scheme)

    @property
    def rows_inside(self) -> bool:
        """Whether the drift is asked once."""
        return self.steps == 1

    def forward(self, h: Tensor) -> Tensor:  # n *d -> n *d
        return solve(
            self.drift, h, self.noise, steps=self.steps, span=self.span, scheme=self.scheme, passing=self.state
        )

    def extra_repr(self) -> str:
        return f"{self.noise}, steps={self.steps}, span={self.span:g}"


class Residual(nn.Module):
    """f(h, t) = block(h) - h: a step of size 1 is the block itself."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, h: Tensor, t: float) -> Tensor:  # n *d -> n *d
        out: Tensor = self.block(h) - h
        return out


class TimedConvolutions(nn.Module):
    """Three times group normalisation, ReLU and a 3 x 3 convolution, and a last normalisation; each convolution sees
    the depth as one more channel."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(_norm(width) for _ in range(4))
        self.relus = nn.ModuleList(nn.ReLU() for _ in range(3))
        self.convs = nn.ModuleList(nn.Conv2d(width + 1, width, 3, padding=1) for _ in range(3))

    def forward(self, h: Tensor, t: float) -> Tensor:  # n c h w -> n c h w
        time = h.new_full((h.shape[0], 1, *h.shape[2:]), t)
        for norm, relu, conv in zip(self.norms, self.relus, self.convs, strict=False):
            h = conv(torch.cat([time.to(h.dtype), relu(norm(h))], 1))
        out: Tensor = self.norms[3](h)
        return out


class ContinuousNet(nn.Module):
    """A classifier of images of any size whose middle is one equation: n c h w -> n k.

    A 3 x 3 convolution, halvings (group normalisation, ReLU, a 4 x 4 convolution of stride 2) until no side is above
    16, the equation on [0, 1], group normalisation, ReLU, mean, linear layer. Values in [low, low + span] are brought
    to -1 to 1 in front of it all.

    Source: Liu, UCLA 2021, sec. 2.3.4; the layers are those of the authors' public code, since the appendix that would
        name them is missing there. Departs from it: one width throughout (its larger stem has 64, 128 and 256).
    """

    middle: Tensor
    scale: Tensor

    def __init__(
        self,
        shape: tuple[int, ...],
        classes: int,
        noise: DepthNoise,
        *,
        grid: float = 0.1,
        width: int = WIDTH,
        low: Tensor | float = 0.0,
        span: Tensor | float = 1.0,
        scheme: Scheme = "euler",
    ) -> None:
        super().__init__()
        if len(shape) != 3 or min(shape) < 1:
            raise ShapeError(f"ContinuousNet got inputs of shape {shape}; it is for images, channels x height x width.")
        if width < 1 or classes < 2:
            raise AssayError(f"ContinuousNet got width={width}, classes={classes}; at least 1 and 2 are wanted.")
        half = torch.as_tensor(span).float() / 2
        self.register_buffer("scale", half.masked_fill(half == 0, 1.0))
        self.register_buffer("middle", torch.as_tensor(low).float() + half)
        layers: list[nn.Module] = [nn.Conv2d(shape[0], width, 3, padding=1)]
        if vanishes(shape):
            raise ShapeError(f"ContinuousNet halves images until no side is above {SIDE}, and {shape} vanishes so.")
        for _ in range(_halvings(shape)):
            layers += [_norm(width), nn.ReLU(), nn.Conv2d(width, width, 4, 2, 1)]
        self.stem = nn.Sequential(*layers)
        self.depth = Continuous(TimedConvolutions(width), noise, grid=grid, scheme=scheme)
        self.head = nn.Sequential(
            _norm(width), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, classes)
        )

    def forward(self, x: Tensor) -> Tensor:  # n c h w -> n k
        logits: Tensor = self.head(self.depth(self.stem((x - self.middle) / self.scale)))
        return logits


def vanishes(shape: tuple[int, ...]) -> bool:
    """Whether an image is so long that its short side is gone before its long one is small."""
    return min(shape[1:]) < 1 << _halvings(shape)


def _halvings(shape: tuple[int, ...]) -> int:
    return max(0, math.ceil(math.log2(max(shape[1:]) / SIDE)))


def _norm(width: int) -> nn.GroupNorm:
    """32 groups of 64 channels, as in the public code; of fewer channels two a group, or the last mean says nothing."""
    return nn.GroupNorm(math.gcd(32, width, max(1, width // 2)), width)


def blocks(net: nn.Module, x: Tensor) -> list[str]:  # n *d
    """The modules of `net` that can be a drift, by name, in the order in which they are called.

    Such a module has parameters and layers of its own, is called once with one tensor and gives one of the same shape.
    It has a shortcut: with all its parameters at 0 it hands on what it gets, up to a ReLU. Without one it counts where
    a neighbour of its class in one nn.Sequential keeps its shape too. Of those inside each other, the outermost.
    """
    trial, given = copy.deepcopy(net).eval(), dict[str, list[Tensor | None]]()

    def note(name: str, args: tuple[object, ...], named: dict[str, object], out: object) -> None:
        h = args[0] if len(args) == 1 and not named else None
        fits = isinstance(h, Tensor) and isinstance(out, Tensor) and h.shape == out.shape and h.is_floating_point()
        given.setdefault(name, []).append(h.clone() if fits else None)  # type: ignore[attr-defined]

    composite = {
        name: module
        for name, module in trial.named_modules()
        if name and next(module.children(), None) is not None and next(module.parameters(), None) is not None
    }
    hooks = [
        m.register_forward_hook(lambda _, args, named, out, n=n: note(n, args, named, out), with_kwargs=True)
        for n, m in composite.items()
    ]
    with torch.random.fork_rng(devices=[x.device] if x.is_cuda else []), torch.no_grad():
        trial(x)
        for hook in hooks:
            hook.remove()
        fits = {name: at[0] for name, at in given.items() if len(at) == 1 and at[0] is not None}
        found = {
            name
            for name, h in fits.items()
            if not isinstance(composite[name], nn.Sequential) and _has_a_shortcut(composite[name], h)
        }
    for path, module in trial.named_modules():
        if isinstance(module, nn.Sequential):
            for a, b in pairwise(f"{path}.{name}".lstrip(".") for name in module._modules):
                if {a, b} <= set(fits) and type(composite[a]) is type(composite[b]):
                    found |= {a, b}
    return [n for n in given if n in found and not any(n.startswith(f"{other}.") for other in found)]


def _has_a_shortcut(block: nn.Module, h: Tensor) -> bool:
    """Whether it hands on what it gets without its parameters: a gate, which scales it, is no shortcut."""
    empty = copy.deepcopy(block)
    for parameter in empty.parameters():
        parameter.zero_()
    here = h.abs() + 1  # whatever a ReLU lets pass
    there = 2 * here.flip(-1)
    return torch.allclose(empty(here) - empty(there), here - there, rtol=1e-3, atol=1e-5 * float(there.max()))


def as_continuous(net: nn.Module, x: Tensor, noise: DepthNoise, *, grid: float = 1.0) -> nn.Module:  # n *d
    """A copy of `net` in which each of its blocks is the drift of an equation over a depth of 1, in steps of `grid`.

    A grid of 1 without noise is the net itself, with noise the net with that noise at each block. A finer one goes
    through each block several times, each time by a part of the way. `x` are a few inputs: a pass over them shows which
    modules are blocks.
    """
    names = blocks(net, x)
    if not names:
        raise AssayError(
            f"{type(net).__name__} has no block that keeps its shape around a shortcut; none can be a drift."
        )
    fresh = copy.deepcopy(net)
    for name in names:
        fresh.set_submodule(name, Continuous(Residual(fresh.get_submodule(name)), noise, grid=grid))
    return fresh


def with_draws(net: nn.Module, x: Tensor, draws: int) -> Drawn:  # n *d
    """A net with noise in its depth as one that is asked `draws` times; `x` are a few inputs.

    Its rows draw apart where without that noise it gives the same answer twice.
    """
    still, where = quiet(net).eval(), [x.device] if x.is_cuda else []
    with torch.random.fork_rng(devices=where), torch.no_grad():
        return Drawn(net, draws, rows_apart=torch.equal(still(x), still(x)))


def quiet(net: nn.Module) -> nn.Module:
    """A copy without noise on its way: what it answers without noise at test time."""
    still = copy.deepcopy(net)
    found = [module for module in still.modules() if isinstance(module, Continuous)]
    if not found:
        raise AssayError(f"{type(net).__name__} has no part of continuous depth, so there is no noise to turn off.")
    for module in found:
        module.noise = module.noise.quiet()
    return still
