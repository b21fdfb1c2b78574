r"""Can the input choose its explanation? A change that is hard to see gives the map a shape at will; the class stays.

    L(x') = ||h(x') - h_t||^2 + gamma ||g(x') - g(x)||^2,    ||x' - x|| <= radius,  argmax g(x') = argmax g(x)    (8.2)

g are the logits, divided by the standard deviation of those of x over the classes, and h is the heat map: |values| of
the class that x has, summed over channels (or over a word's embedding) and divided by their length, as heat maps are
shown. So ||h - h_t||^2 = 2 - 2 cos(h, h_t).

Where the answer is no class, h is the map of one number of it (spoken.py), and g are the logits of bad and good that an
aim reads off it (aim.py): the answer stays good enough.

A ReLU network's gradient is constant on each piece: it tells nothing about where to go. While searching, every kink is
rounded (softly.py: ReLU is softplus(beta z) / beta, z in units of its own size) with beta rising from step to step;
what is kept is judged with the kinks back in place. `kinks_left` names what no rounding is known for.

Source: Wang's dissertation, TU Delft 2024, sec. 8.3, eq. 8.2 and 8.3, after Dombrowski et al., NeurIPS 2019,
    arXiv:1906.07983, from where softplus comes; the one step is that of Goodfellow et al., ICLR 2015, arXiv:1412.6572.
    gamma, radius, steps and beta are not in the dissertation; the defaults were tried out on the bundled network.
Departs from print: h is normalised; the best point met is kept, not the last. The start is x itself, so that no map
    ends further from h_t than it began. Logits and layers are measured in their own units: the same function written
    with other weights, or answers in another unit, are searched alike.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from assay.errors import AssayError, ShapeError, SubjectError
from assay.methods.attack.aim import Aim
from assay.methods.attack.attacked import Model
from assay.methods.attack.ball import Ball, Norm, Region, wide
from assay.methods.explain.gradcam import last_maps, named
from assay.methods.explain.softly import Softly
from assay.methods.explain.spoken import number

Live = Literal["gradient", "gradient-input", "integrated-gradients", "smoothgrad", "gradcam"]
ROWS = 64  # inputs in one pass


def _rounded(beta: float | None) -> AbstractContextManager[Any]:
    return nullcontext() if beta is None else Softly(beta, relative=True)


@dataclass(frozen=True, eq=False)
class LiveMap:
    """A map that can be differentiated once more. `samples` are the steps of the integral or SmoothGrad's copies.

    SmoothGrad's noise is drawn once, from `seed`: the attacker knows it. `beta` explains the network with its kinks
    rounded, softplus for ReLU, which is a defence where beta is small (Dombrowski et al., sec. 3).
    """

    method: Live = "gradient"
    layer: str | None = None
    baseline: float = 0.0
    samples: int = 8
    noise: float = 0.15
    beta: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.method not in get_args(Live):
            known = ", ".join(get_args(Live))
            raise AssayError(f"No attack differentiates the map {self.method!r}; choose one of {known}.")
        if self.samples < 1 or (self.beta is not None and self.beta <= 0):
            raise AssayError(f"LiveMap needs samples >= 1 and beta > 0, got {self.samples} and {self.beta}.")

    def heat(self, model: Model, x: Tensor, target: Tensor, *, beta: float | None = None) -> tuple[Tensor, Tensor]:
        """The heat map of the classes `target`, of length 1, and the logits: n *d, n -> n f, n c, both with a graph.

        Of a number `target` are its weights, n *o, and the answers come back as they are.

        The network's kinks are rounded by beta, unless it is None. A smaller beta of the map's own comes first in the
        map, and does not touch the logits.
        """
        if self.beta is None or (beta is not None and beta <= self.beta):
            with _rounded(beta):
                raw, y = self._raw(model, x, target)
        else:
            with _rounded(beta):
                y = model(x)
            with Softly(self.beta):
                raw, _ = self._raw(model, x, target)
        if raw.ndim == 4:
            raw = raw.abs().sum(1)
        elif raw.ndim == 3 and x.ndim == 3:
            raw = raw.abs().sum(2)
        flat = raw.abs().flatten(1)
        length = torch.linalg.vector_norm(flat, dim=1, keepdim=True)
        return flat / length.clamp_min(torch.finfo(flat.dtype).tiny), y

    def _raw(self, model: Model, x: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        if self.method == "gradcam":
            return self._gradcam(model, x, target)
        y: Tensor = model(x)
        if self.method in ("gradient", "gradient-input"):
            slope = _slope(y, x, target)
            return (slope * (x - self.baseline) if self.method == "gradient-input" else slope), y
        if self.method == "smoothgrad":
            rng = torch.Generator(x.device).manual_seed(self.seed)
            sigma = wide((x.flatten(1).amax(1) - x.flatten(1).amin(1)).detach(), x) * self.noise
            noise = torch.randn(self.samples, *x.shape[1:], generator=rng, device=x.device, dtype=x.dtype)
            copies = [(x + sigma * one, 1 / self.samples) for one in noise]
            return sum((w * _slope(model(at), at, target) for at, w in copies), torch.zeros_like(x)), y
        nodes, weights = np.polynomial.legendre.leggauss(self.samples)
        way = x - self.baseline
        path = [
            (self.baseline + (1 + a) / 2 * way, w / 2) for a, w in zip(nodes.tolist(), weights.tolist(), strict=True)
        ]
        return way * sum((w * _slope(model(at), at, target) for at, w in path), torch.zeros_like(x)), y

    def _gradcam(self, model: Model, x: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        if not isinstance(model, nn.Module):
            raise AssayError("GradCAM's map is made inside a CNN; give an nn.Module.")
        caught: list[Tensor] = []
        layer = self.layer or last_maps(model, x.detach())

        def catch(module: nn.Module, given: Any, out: Tensor) -> Tensor:
            caught.append(out)
            return out.clone()  # the next module may write in place

        handle = named(model, layer).register_forward_hook(catch)
        try:
            y: Tensor = model(x)
        finally:
            handle.remove()
        if len(caught) != 1 or caught[0].ndim != 4:
            raise AssayError(f"Module {layer!r} does not give maps n k h w once in a pass; name a convolutional layer.")
        alpha = _slope(y, caught[0], target).mean((2, 3))
        return torch.einsum("nk,nkhw->nhw", alpha, caught[0]).clamp_min(0), y


def _slope(y: Tensor, at: Tensor, target: Tensor) -> Tensor:
    if not y.requires_grad:
        raise SubjectError("No gradient leads from the answers to the inputs; the attack needs a differentiable model.")
    (slope,) = torch.autograd.grad(number(y, target).sum(), at, create_graph=True)
    return slope


class Numbers(NamedTuple):
    """What is explained and what must stay, where that is not the logit of a class: one row per input."""

    own: Tensor  # n *o: the weights of the number, of the inputs
    wished: Tensor  # n *o: of those whose maps are wished for
    aim: Aim | None  # n: what the answer must stay good enough for; None where it is a class all the same

    def take(self, rows: Tensor) -> Numbers:
        return Numbers(self.own[rows], self.wished[rows], None if self.aim is None else self.aim[rows])


class Chosen(NamedTuple):
    """What the attack leaves, one row per input. The class of `x` is that of the input it came from."""

    x: Tensor  # n *d, inside ball and box
    before: Tensor  # n: ||h(x) - h_t||
    after: Tensor  # n: ||h(x') - h_t||
    drift: Tensor  # n: ||h(x') - h(x)||
    answer: Tensor  # n: ||g(x') - g(x)||, how far the logits moved

    @property
    def taken(self) -> Tensor:
        """Whether the new map is nearer to the wish than to the map that was there: n bool."""
        return self.after < self.drift


def choose_map(
    model: Model,
    x: Tensor,
    wish: Tensor | None,
    *,
    explainer: LiveMap | None = None,
    numbers: Numbers | None = None,
    radius: float | Tensor,
    norm: Norm = "linf",
    bounds: tuple[float, float] = (0.0, 1.0),
    gamma: float = 0.1,
    steps: int = 50,
    step: float = 0.2,
    beta: tuple[float, float] | None = (10.0, 100.0),
    rng: torch.Generator | None = None,
    batch: int = ROWS,
) -> Chosen:
    """Inputs near `x` whose maps look like those of the inputs `wish`, with the class of x: n *d, n *d -> Chosen.

    The map of `wish` is that of its own likeliest class; `numbers` are given where answers are no classes. `wish=None`
    asks for any other map, the further from x's own the better: what is found bounds from below the largest
    ||h(x') - h(x)|| that the radius allows (`drift`; `before` and `after` are distances to x's own map then). Steps are
    Adam's, `step` of the radius long; `beta` rises from its first value to its second, None keeps the kinks. `rng=None`
    is seeded with 0, and only wish=None draws.
    """
    if steps < 1 or gamma < 0 or not 0 < step < np.inf or batch < 1 or (beta is not None and min(beta) <= 0):
        raise AssayError(
            "choose_map needs steps >= 1, gamma >= 0, step > 0, beta > 0 and batch >= 1, got "
            f"{steps}, {gamma}, {step}, {beta} and {batch}."
        )
    rng = rng or torch.Generator(x.device).manual_seed(0)
    ramp = [None] * steps if beta is None else np.geomspace(*beta, steps).tolist()

    def search(search: _Search) -> None:
        m, v = torch.zeros_like(search.x), torch.zeros_like(search.x)
        length = wide(search.region.radius, search.x) * step
        at = search.region.sample(rng) if wish is None else search.x
        for t, now in enumerate(ramp, start=1):
            slope = search.slope(at, now)
            m, v = 0.9 * m + 0.1 * slope, 0.999 * v + 0.001 * slope.square()
            way = (m / (1 - 0.9**t)) / ((v / (1 - 0.999**t)).sqrt() + torch.finfo(x.dtype).tiny)
            at = search.region.project(at - length * way)
            search.offer(at)

    return _searched(model, x, wish, explainer or LiveMap(), Ball(norm, radius, *bounds), gamma, batch, search, numbers)


def choose_map_at_once(
    model: Model,
    x: Tensor,
    wish: Tensor,
    *,
    explainer: LiveMap | None = None,
    numbers: Numbers | None = None,
    radius: float | Tensor,
    norm: Norm = "linf",
    bounds: tuple[float, float] = (0.0, 1.0),
    gamma: float = 0.1,
    beta: float | None = 20.0,
    batch: int = ROWS,
) -> Chosen:
    r"""The same in one step of full length, x' = P(x - radius sign grad_x L); x where that makes L no smaller."""
    if gamma < 0 or (beta is not None and beta <= 0):
        raise AssayError(f"choose_map_at_once needs gamma >= 0 and beta > 0, got {gamma} and {beta}.")

    def search(search: _Search) -> None:
        slope = search.slope(search.x, beta)
        way = search.region.steepest(slope, search.x, search.region.few(float(search.region.radius.max())))
        search.offer(search.region.project(search.x - wide(search.region.radius, way) * way))

    return _searched(model, x, wish, explainer or LiveMap(), Ball(norm, radius, *bounds), gamma, batch, search, numbers)


class _Search:
    """One batch under attack: L and its slope, and the best point met so far."""

    def __init__(
        self,
        model: Model,
        x: Tensor,
        wish: Tensor | None,
        explainer: LiveMap,
        region: Region,
        gamma: float,
        numbers: Numbers | None,
    ):
        self.model, self.x, self.explainer, self.region, self.gamma = model, x, explainer, region, gamma
        self.numbers = numbers
        with torch.no_grad():
            self.answer: Tensor = self.read(model(x))
            self.label = self.answer.argmax(1)
            if numbers is None:
                self.target, goal = self.label, self.label if wish is None else model(wish).argmax(1)
            else:
                self.target, goal = numbers.own, numbers.wished
            spread = self.answer.var(1, unbiased=False)
            self.spread = torch.where(spread > 0, spread, 1.0)  # n
        self.own = self.seen(x)[0]
        self.wish = self.own if wish is None else self.seen(wish, goal)[0]
        self.away = wish is None
        self.best, self.map, self.moved = x, self.own, torch.zeros_like(self.own[:, 0])
        self.height = self.loss(self.own, self.answer)

    def read(self, y: Tensor) -> Tensor:  # n *o -> n c
        """The logits whose largest must stay the same."""
        return y if self.numbers is None or self.numbers.aim is None else self.numbers.aim.read(y)

    def seen(self, at: Tensor, target: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Heat map and logits with the kinks in place: n *d -> n f, n c."""
        with torch.enable_grad():
            target = self.target if target is None else target
            heat, y = self.explainer.heat(self.model, at.detach().requires_grad_(), target)
        return heat.detach(), self.read(y.detach())

    def loss(self, heat: Tensor, y: Tensor) -> Tensor:  # n f, n c -> n
        apart = (heat - self.wish).square().sum(1)
        return (-apart if self.away else apart) + self.gamma * (y - self.answer).square().sum(1) / self.spread

    def slope(self, at: Tensor, beta: float | None) -> Tensor:
        with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH):  # the quick forms of attention have no second slope
            at = at.detach().requires_grad_()
            heat, y = self.explainer.heat(self.model, at, self.target, beta=beta)
            total = self.loss(heat, self.read(y)).sum()
            try:
                (slope,) = torch.autograd.grad(total, at)
            except RuntimeError as e:  # some functions have a first derivative only
                if "is not implemented" not in str(e):
                    raise
                why = str(e).splitlines()[0].rstrip(".")
                raise SubjectError(f"The map has no slope to follow: {why}; no attack can choose it.") from None
        return slope.nan_to_num(0.0, 0.0, 0.0)  # a map of zeros has no direction

    def offer(self, at: Tensor) -> None:
        heat, y = self.seen(at)
        height = self.loss(heat, y)
        better = (height < self.height) & (y.argmax(1) == self.label)
        self.height = torch.where(better, height, self.height)
        self.best = torch.where(wide(better, at), at, self.best)
        self.map = torch.where(better[:, None], heat, self.map)
        self.moved = torch.where(better, (y - self.answer).norm(dim=1), self.moved)


def _searched(
    model: Model,
    x: Tensor,
    wish: Tensor | None,
    explainer: LiveMap,
    ball: Ball,
    gamma: float,
    batch: int,
    search: Callable[[_Search], None],
    numbers: Numbers | None,
) -> Chosen:
    if wish is not None and wish.shape != x.shape:
        raise ShapeError(
            f"choose_map got wishes of shape {tuple(wish.shape)} for inputs {tuple(x.shape)}; give one example each."
        )
    if isinstance(model, nn.Module) and model.training:
        raise AssayError("The model is in training mode, where one input changes another's map; call model.eval().")
    if len(x) == 0:
        raise AssayError("choose_map got no inputs; give at least one.")
    whole, parts = ball.around(x.detach()), []
    for rows in torch.split(torch.arange(len(x), device=x.device), batch):
        wished, few = None if wish is None else wish[rows], None if numbers is None else numbers.take(rows)
        one = _Search(model, x[rows].detach(), wished, explainer, whole.take(rows), gamma, few)
        search(one)
        apart = [_apart(p, q) for p, q in ((one.own, one.wish), (one.map, one.wish), (one.map, one.own))]
        parts.append((one.best, *apart, one.moved))
    return Chosen(*(torch.cat(part) for part in zip(*parts, strict=True)))


def _apart(a: Tensor, b: Tensor) -> Tensor:
    length: Tensor = torch.linalg.vector_norm(a - b, dim=1)
    return length
