r"""Where an attacker may go from an input: a norm ball cut with the box of valid inputs.

    B(x0) = { x : ||x - x0||_p <= r,  low <= x <= high,  x_i = x0_i off the mask }

`Ball` is the budget as a value; `Ball.around(x0)` is the set itself, with what does not change over an attack
computed once. All projections land inside B in exact arithmetic: float rounding may cost the attacker a few 1e-8 of
budget and never gives any away.

Sources: the l1 projection with a box is Croce & Hein, ICML 2021, arXiv:2103.01208, sec. 3.1; the sparse l1 direction is
Tramer & Boneh, NeurIPS 2019, arXiv:1904.13000, sec. 4 (SLIDE). The l2 projection with a box is the KKT condition
x_i = clip(x0_i + t (z_i - x0_i)) with one t per input.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, get_args

import torch
from torch import Tensor

from assay.errors import AssayError, ShapeError

Norm = Literal["linf", "l2", "l1", "l0"]

SPARSE_SHARE = 0.01  # of the features one l1 step moves; SLIDE's 99th percentile
ROUNDS = 10  # of secants for the l2 factor, at most; half of them where asking whether they suffice is dear
FEW_FEATURES = 100  # beyond which half of them come within 1e-5, at radii of less than half of the box
TINY = 1e-30


def wide(values: Tensor, like: Tensor) -> Tensor:
    """One number per input, shaped to broadcast over its features."""
    return values.reshape(-1, *(1,) * (like.ndim - 1))  # n -> n 1 1 1


def norms(change: Tensor, norm: Norm) -> Tensor:
    flat = change.flatten(1)  # n *d -> n f
    if norm == "linf":
        return flat.abs().amax(1)
    if norm == "l0":
        return (flat != 0).sum(1).to(change.dtype)
    size: Tensor = torch.linalg.vector_norm(flat, ord=2 if norm == "l2" else 1, dim=1)
    return size


def distance(x: Tensor, x0: Tensor, norm: Norm) -> Tensor:
    """||x - x0|| per input, in float64: n *d, n *d -> n. l0 counts changed features."""
    return norms(x.double() - x0.double(), norm)


@dataclass(frozen=True, eq=False)
class Ball:
    """A budget: the norm, its radius (one number, or one per input), the bounds of an input, what may change."""

    norm: Norm
    radius: float | Tensor
    low: float = 0.0
    high: float = 1.0
    mask: Tensor | None = None  # *d or n *d, True where a feature may change

    def __post_init__(self) -> None:
        if self.norm not in get_args(Norm):
            raise AssayError(f"Unknown norm {self.norm!r}; choose one of {', '.join(get_args(Norm))}.")
        radius = torch.as_tensor(self.radius)
        if radius.ndim > 1:
            raise ShapeError(f"A radius is one number or one per input, got shape {tuple(radius.shape)}.")
        if not bool((torch.isfinite(radius) & (radius >= 0)).all()):
            raise AssayError(f"A radius must be finite and at least 0, got {self.radius}.")
        if not self.low < self.high:
            raise AssayError(f"Bounds must be (low, high) with low < high, got ({self.low}, {self.high}).")

    def around(self, x0: Tensor) -> Region:
        """The set of inputs that this budget reaches from each of x0: n *d."""
        radius = torch.as_tensor(self.radius, dtype=torch.float64, device=x0.device)
        if radius.ndim == 1 and len(radius) != len(x0):
            raise ShapeError(f"Got {len(radius)} radii for {len(x0)} inputs; pass one number or one radius per input.")
        radius = radius.expand(len(x0))
        low, high = (torch.full_like(x0, b) for b in (self.low, self.high))  # no views: clamping to them is slow
        if self.norm == "linf":
            r = wide(radius, x0)
            centre = x0.double()
            below, above = (centre - r).to(x0.dtype), (centre + r).to(x0.dtype)
            # The rounding of x0 -+ r may have gone outwards: then step one float back towards x0.
            below = torch.where(centre - below.double() > r, torch.nextafter(below, x0), below)
            above = torch.where(above.double() - centre > r, torch.nextafter(above, x0), above)
            low, high = torch.maximum(low, below), torch.minimum(high, above)
        fixed = None
        if self.mask is not None:
            try:
                fixed = ~self.mask.to(device=x0.device, dtype=torch.bool).expand_as(x0)
            except RuntimeError:
                raise ShapeError(
                    f"A mask of shape {tuple(self.mask.shape)} does not fit inputs of shape {tuple(x0.shape)}; "
                    "give it the shape of one input or of the batch."
                ) from None
            low, high = torch.where(fixed, x0, low), torch.where(fixed, x0, high)
        return Region(self.norm, radius.to(x0.dtype), x0, low, high, max(abs(self.low), abs(self.high)), fixed)

    def project(self, x: Tensor, x0: Tensor) -> Tensor:
        return self.around(x0).project(x)

    def sample(self, x0: Tensor, rng: torch.Generator) -> Tensor:
        return self.around(x0).sample(rng)


@dataclass(frozen=True, eq=False)
class Region:
    """A ball around each of n inputs. Loops build it once and narrow it with `take` as inputs leave."""

    norm: Norm
    radius: Tensor  # n
    centre: Tensor  # n *d
    low: Tensor  # n *d: bounds, l_inf radius and mask in one
    high: Tensor  # n *d
    scale: float  # the largest |feature|, which bounds the rounding of a sum
    fixed: Tensor | None = None  # n *d bool: off the mask

    def take(self, rows: Tensor) -> Region:
        return replace(
            self,
            radius=self.radius[rows],
            centre=self.centre[rows],
            low=self.low[rows],
            high=self.high[rows],
            fixed=None if self.fixed is None else self.fixed[rows],
        )

    def movable(self, gradient: Tensor) -> Tensor:
        """The gradient without what may not move, so that its length is that of what may: n *d -> n *d."""
        return gradient if self.fixed is None else gradient.masked_fill(self.fixed, 0)

    @cached_property
    def _room(self) -> tuple[Tensor, Tensor]:
        """How far each feature may go down and up: n *d <= 0, n *d >= 0."""
        return self.low - self.centre, self.high - self.centre

    def distance(self, x: Tensor) -> Tensor:
        return distance(x, self.centre, self.norm)

    def project(self, x: Tensor) -> Tensor:
        """The nearest point of the ball: n *d -> n *d. A point already inside comes back bit for bit."""
        if self.norm == "linf":
            return torch.clamp(x, self.low, self.high)
        change = (x - self.centre).flatten(1)  # n f
        below, above = (bound.flatten(1) for bound in self._room)
        within = torch.clamp(change, below, above)
        if self.norm == "l0":
            few = keep_largest(within, self.radius).reshape(x.shape) != 0
            return torch.where(few, torch.clamp(x, self.low, self.high), self.centre)
        inside = norms(within, self.norm) <= self.radius * (1 - 1e-6)  # covers the sum's own rounding
        reach = (self.radius * (1 - 2e-6)).masked_fill(inside, 0)[:, None]  # nothing to search where it is inside
        shorten = l2_shortened if self.norm == "l2" else l1_shortened
        # centre + change rounds by less than the slack in a feature: shorten by it first, so that none moves too far.
        shorter = shorten(change, below, above, reach, slack=self.scale * 2.0**-23)
        moved = torch.clamp(self.centre + shorter.reshape(x.shape), self.low, self.high)
        if x.device.type == "cpu" and not bool(inside.any()):  # on a GPU asking makes it wait
            return moved
        return torch.where(wide(inside, x), torch.clamp(x, self.low, self.high), moved)

    def sample(self, rng: torch.Generator) -> Tensor:
        """A random start: uniform in the ball (l0: uniform features on a random support), then into the box."""
        x0, free = self.centre, self.high > self.low

        def uniform() -> Tensor:
            return torch.rand(x0.shape, generator=rng, device=rng.device, dtype=x0.dtype).to(x0.device)

        if self.norm in ("linf", "l0"):
            inside = torch.clamp(self.low + uniform() * (self.high - self.low), self.low, self.high)
            if self.norm == "linf":
                return inside
            few = keep_largest(torch.where(free, uniform(), 0).flatten(1), self.radius).reshape(x0.shape) > 0
            return torch.where(few, inside, x0)
        way = torch.randn(x0.shape, generator=rng, device=rng.device, dtype=x0.dtype).to(x0.device)
        if self.norm == "l1":
            way = -torch.log1p(-uniform()) * way.sign()
        way = torch.where(free, way, 0)
        depth = torch.rand(len(x0), generator=rng, device=rng.device, dtype=x0.dtype).to(x0.device)
        count = free.flatten(1).sum(1).clamp_min(1)
        size = self.radius * depth ** (1 / count) / norms(way, self.norm).clamp_min(TINY)
        return self.project(x0 + way * wide(size, way))

    def steepest(self, gradient: Tensor, at: Tensor, few: int = 1) -> Tensor:
        """The unit step that climbs fastest: n *d -> n *d. l1 shares it among the `few` best features with room."""
        if self.norm == "linf":
            return gradient.sign()
        if self.norm == "l2":
            gradient = self.movable(gradient)
            return gradient / wide(norms(gradient, "l2").clamp_min(torch.finfo(gradient.dtype).tiny), gradient)
        if self.norm == "l1":
            return sparse_sign(gradient, at, self.low, self.high, few)
        raise AssayError("There is no steepest step in l0; minimal_norm searches it, pgd takes linf, l2 or l1.")

    def few(self, reach: float) -> int:
        """How many features an l1 step moves: as many as the reach can saturate, and at least 1 %."""
        features = self.centre[0].numel()
        return min(features, max(1, math.ceil(SPARSE_SHARE * features), math.ceil(reach / self.scale)))


def sparse_sign(gradient: Tensor, at: Tensor, low: Tensor, high: Tensor, few: int) -> Tensor:
    """Signs of the `few` largest slopes among features with room left, at l1 length 1: n *d -> n *d."""
    room = torch.where(gradient > 0, at < high, at > low)
    slope = torch.where(room, gradient, 0).flatten(1)  # n f
    top = slope.abs().topk(few, dim=1).indices
    signs = slope.gather(1, top).sign() / few
    return torch.zeros_like(slope).scatter_(1, top, signs).reshape(gradient.shape)


def keep_largest(change: Tensor, count: Tensor) -> Tensor:
    """Zero all but the `count` largest |entries| of each row: n f, n -> n f. Ties go to the lower index."""
    rank = change.abs().argsort(dim=1, descending=True, stable=True).argsort(1)
    return torch.where(rank < count.floor()[:, None], change, 0)


def l2_shortened(change: Tensor, below: Tensor, above: Tensor, reach: Tensor, slack: float) -> Tensor:
    """clip(t change, below, above) with the t that makes it `reach` long, less the slack: n f, n f, n f, n 1 -> n f.

    In u = t^2 its squared length is concave and piecewise linear: secants from below close in on the goal from below,
    and where rounding takes one too far, the next steps back. The last is brought to its length at the end.
    """
    reach = (reach - slack * math.sqrt(change.shape[1])).clamp_min(0)
    goal = reach.square()
    few = change.shape[1] <= FEW_FEATURES
    near = goal * (1e-7 if few else 5e-7)  # of few hardly any may be free: the last digit counts
    u = goal / torch.linalg.vector_norm(change, dim=1, keepdim=True).square().clamp_min(TINY)
    step, before, least = u, torch.zeros_like(u), goal.clamp_min(TINY)
    asks = change.device.type == "cpu"  # a GPU would have to wait for the answer
    left = ROUNDS if asks or few else ROUNDS // 2
    while True:
        shorter = torch.clamp(change * u.sqrt(), below, above)
        size = torch.linalg.vector_norm(shorter, dim=1, keepdim=True)
        square, left = size.square(), left - 1
        lacks = goal - square
        off = lacks.abs() > near
        if left == 0 or (asks and not bool(off.any())):
            return shorter.mul_((reach / size.clamp_min(TINY)).clamp_max(1))
        gained = square - before
        step = off * step * lacks / torch.where(gained == 0, least, gained)
        u, before = (u + step).clamp_min(0), square


def l1_shortened(change: Tensor, below: Tensor, above: Tensor, reach: Tensor, slack: float) -> Tensor:
    """The change at its l1 level, `reach` long, each feature less the slack: n f, n f, n f, n 1 -> n f."""
    length = change.abs()
    room = torch.where(change > 0, above, -below)
    shorter = torch.minimum((length - l1_level(length, room, reach)).clamp_min(0), room)
    shorter *= (reach / norms(shorter, "l1")[:, None].clamp_min(TINY)).clamp_max(1)
    return shorter.sub_(slack).clamp_min_(0).copysign_(change)


def l1_level(length: Tensor, room: Tensor, reach: Tensor) -> Tensor:
    """The level v >= 0 with sum_i min(max(length_i - v, 0), room_i) = reach: n f, n f, n 1 -> n 1.

    The sum is piecewise linear in v. Coming down from the top, its slope gains one at each length_i and loses one at
    length_i - room_i, where feature i meets its bound: sort these points, add up, and solve in the piece that holds it.
    """
    one = torch.ones_like(length)
    points, order = torch.cat([length, (length - room).clamp_min(0)], 1).sort(1, descending=True)  # n 2f
    slope = torch.cat([one, -one], 1).gather(1, order).cumsum(1)  # below points_k
    total = (slope * (points - torch.nn.functional.pad(points[:, 1:], (0, 1)))).cumsum(1)  # at points_{k+1}
    k = (total < reach).sum(1, keepdim=True).clamp_max(points.shape[1] - 1)
    above = torch.where(k > 0, total.gather(1, (k - 1).clamp_min(0)), 0)  # at points_k
    return (points.gather(1, k) - (reach - above) / slope.gather(1, k).clamp_min(1)).clamp_min(0)
