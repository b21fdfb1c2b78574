"""The one walk: change an input until a comparison answers what it should, and keep what had to change.

Whatever is nudged (an image, or its embedding) and wherever to (lower, higher, a tie), it is one descent on
(c - target)^2. Because c is a single number,

    d (c - target)^2 / dx = 2 (c - target) dc/dx,

so that the target fixes the sign and the length of a step, never its line. The map of one step is therefore the same
for every target, and it is the plain gradient's: no new kind of saliency map.

Source: 'Perception visualizations for Siamese networks', MSc thesis, Politecnico di Milano, sec. 4.2 to 4.5.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from assay.errors import AssayError, ShapeError
from assay.methods.rank.penalties import NO_PENALTIES, Penalties

Score = Callable[[Tensor], Tensor]
"""n *d -> n: how inputs compare, their partners held fast. It always gets all n; `Against` can let some of them go."""
Box = tuple[float, float]
GROWTH, TRIES, HALVINGS = 1.5, 20, 30  # of a bracket: from a quarter of the linear guess to 555 times it, then halves


@dataclass(frozen=True)
class Against:
    """A score that knows each input's partner (an embedding, say), so that inputs can leave the batch with theirs."""

    compare: Callable[[Tensor, Tensor], Tensor]  # n *d, n ... -> n
    partner: Tensor  # n ...

    def __call__(self, x: Tensor) -> Tensor:  # n *d -> n
        return self.compare(x, self.partner)

    def take(self, rows: Tensor) -> Against:
        return Against(self.compare, self.partner[rows])


@dataclass(frozen=True)
class Walk:
    """Where each input ended, and how it got there."""

    x: Tensor  # n *d
    c: Tensor  # n
    trace: Tensor  # steps+1 n: c before the first step and after each
    frames: Tensor  # k n *d
    frame_steps: tuple[int, ...]  # k: after how many steps each frame was taken
    length: Tensor  # n: of all steps together
    turned: Tensor  # n: degrees, the largest angle of any step with the first; a step back is turned round for it
    steps: Tensor  # n: how many were taken
    reached: Tensor  # n: |c - target| <= tolerance


class Tied(NamedTuple):
    """The nearest tie found along the first gradient."""

    x: Tensor  # n *d: as it was where none was found
    c: Tensor  # n
    distance: Tensor  # n: L2, infinity where none was found
    found: Tensor  # n
    slope: Tensor  # n: ||dc/dx|| at the start, so that |c - at| / slope is the distance to first order


def walk(
    score: Score,
    x: Tensor,
    *,
    target: float | Tensor,
    steps: int = 200,
    step: float | Tensor = 0.5,
    unit: bool = False,
    box: Box | None = None,
    mask: Tensor | None = None,
    tolerance: float = 0.0,
    penalties: Penalties = NO_PENALTIES,
    damping: float = 0.0,
    momentum: Literal["printed", "classic"] = "printed",
    frames: int = 0,
) -> Walk:
    r"""Walk every input downhill on (c - target)^2 plus penalties: n *d -> Walk.

        d     = d/dx_t [ (c - target)^2 + penalties(x_t - x_0) ]
        x_t+1 = x_t - step d + p_t          inside `mask` only, then cut to `box`
        p_t+1 = -damping d                  "printed": of the gradient, which `step` does not scale
                damping (x_t+1 - x_t)       "classic": of the last step, so that steps add up

    `unit` divides d by its length: every step is `step` long (before momentum), and near the target the walk goes to
    and fro. Without it, on a locally linear score, c - target shrinks by 1 - 2 step ||dc/dx||^2 a step: it goes to and
    fro above 1, and apart above 2. `target` and `step` may be one number each or n. An input within `tolerance` of its
    target stops, and leaves the batch where `score` is `Against` something. `frames` are kept at even intervals, the
    start and the end among them. Works in any space: in that of embeddings, `score` compares embeddings.

    Source: as above; Algorithms 1 and 2 of sec. 4.2, Algorithm 3 of sec. 4.3 (penalties, mask, momentum).
    Departs from print: the algorithms add lambda d, which climbs, and print the loss between image and target; they
        mean the descent and the comparison. They cut nothing to a range and have no stopping rule (`box` and
        `tolerance` here, off by default), and show the comparison of the last image but one; here it is the last's.
    """
    x = x.detach()
    goal, pace, allowed = _each(target, x, "target"), _each(step, x, "step"), _allowed(mask, x)
    if steps < 0 or frames < 0 or frames == 1 or tolerance < 0 or not 0 <= damping < float("inf"):
        raise AssayError(
            f"walk wants steps, tolerance and damping of at least 0, and frames 0 or at least 2; got {steps=}, "
            f"{tolerance=}, {damping=}, {frames=}."
        )
    if not bool((pace > 0).all()):
        raise AssayError(f"walk wants a step above 0, got {float(pace.min()):g}; it goes downhill by itself.")
    due = sorted(set(torch.linspace(0, steps, frames).round().int().tolist()))
    film = x.new_empty(len(due), *x.shape)
    trace = x.new_empty(steps + 1, len(x))
    length, turned, taken, c = (x.new_zeros(len(x)) for _ in range(4))
    at, first, carried, g, t = x, *(torch.zeros_like(x) for _ in range(3)), 0
    going = torch.ones_like(c, dtype=torch.bool)
    rows = going.nonzero()[:, 0]
    for t in range(steps):
        c[rows], g[rows] = _look(_thinned(score, rows), at[rows])
        trace[t:] = c
        if t in due:
            film[due.index(t)] = at
        going = going & ((c - goal).abs() > tolerance)
        if not bool(going.any()):
            break
        rows = going.nonzero()[:, 0] if isinstance(score, Against) else rows
        free = allowed & _wide(going, at)
        way = torch.where(free, 2 * _wide(c - goal, g) * g + penalties.slope(at - x), 0)
        stretch = 1 / _norm(way).clamp_min(torch.finfo(way.dtype).tiny) if unit else torch.ones_like(pace)
        way = _unit(way) if unit else way
        ahead = carried - _wide(pace, way) * way
        moved = at + ahead
        new = x + penalties.shrink(moved - x, pace * stretch) if penalties.sparse_form == "proximal" else moved
        new = new.clamp(*box) if box is not None else new
        new = torch.where(free, new, at)
        ahead = torch.where(
            free & (new == moved), ahead, new - at
        )  # new - at alone is all rounding once steps are short
        size = _norm(ahead)
        onward = ahead * _wide((c - goal).sign() * (trace[0] - goal).sign(), ahead)
        first = torch.where(_wide(length > 0, first), first, onward)
        turned = torch.where(size > 0, torch.maximum(turned, degrees(first, onward)), turned)
        length, taken = length + size, taken + going
        carried = damping * ahead if momentum == "classic" else -damping * way
        at = new
    else:
        c[rows], t = _answer(_thinned(score, rows), at[rows]), steps
        trace[steps] = c
    film[[k for k, when in enumerate(due) if when >= t]] = at
    return Walk(
        x=at,
        c=_finite(c),
        trace=trace,
        frames=film,
        frame_steps=tuple(due),
        length=length,
        turned=turned,
        steps=taken.long(),
        reached=(c - goal).abs() <= tolerance,
    )


def one_step(
    score: Score,
    x: Tensor,
    *,
    target: float | Tensor,
    length: float | Tensor,
    box: Box | None = None,
    mask: Tensor | None = None,
) -> Walk:
    r"""One step of L2 length `length` (one number or n) from the clean input towards the target: n *d -> Walk.

        x_1 = x - length sign(c - target) g / ||g||,   g = dc/dx inside `mask`

    Nothing moves where c is the target already or g is 0. A `box` may cut the step short. Targets on the same side of c
    give the same x_1, those on both sides opposite steps.

    Source: as above, sec. 4.5 and 5.3.4.
    """
    x = x.detach()
    goal, size = _each(target, x, "target"), _each(length, x, "length")
    c, g = _look(score, x)
    way = _unit(torch.where(_allowed(mask, x), g, 0)) * _wide(-(c - goal).sign(), x)
    new = x + _wide(size, x) * way
    new = new.clamp(*box) if box is not None else new
    new = torch.where(way == 0, x, new)
    after = _finite(_answer(score, new))
    return Walk(
        x=new,
        c=after,
        trace=torch.stack([c, after]),
        frames=x.new_empty(0, *x.shape),
        frame_steps=(),
        length=_norm(new - x),
        turned=torch.zeros_like(c),
        steps=(way != 0).flatten(1).any(1).long(),
        reached=after == goal,
    )


def to_tie(
    score: Score, x: Tensor, *, at: float | Tensor = 0.5, box: Box | None = None, mask: Tensor | None = None
) -> Tied:
    r"""The shortest way along the first gradient to where the answer turns: n *d -> Tied.

        u = -sign(c - at) g / ||g||,   the smallest q met with  sign(c(x + q u) - at) != sign(c - at)

    found by growing q from a quarter of |c - at| / ||g|| (half as long again each time, so that a second crossing is
    rarely jumped) and then by halving down to rounding. The end on the far side is returned: the answer has
    turned there. Where the score flattens out before it crosses, there is none. An input at the tie stays where it is.

    Source: as above, sec. 4.4 and 4.5 (the one-step mid-point attack: "we would need to search for the correct step").
    """
    x = x.detach()
    tie, allowed = _each(at, x, "at"), _allowed(mask, x)
    c, g = _look(score, x)
    g = torch.where(allowed, g, 0)
    slope, side = _norm(g), (_finite(c) - tie).sign()
    way = _unit(g) * _wide(-side, x)

    def put(q: Tensor) -> Tensor:  # n -> n *d
        new = x + _wide(q, x) * way
        return torch.where(way == 0, x, new.clamp(*box) if box is not None else new)

    def crossed(q: Tensor) -> Tensor:  # n -> n
        return (_answer(score, put(q)) - tie).sign() != side

    found = side == 0
    near, far = torch.zeros_like(c), torch.zeros_like(c)
    q = torch.where(found | (slope == 0), 0, (c - tie).abs() / slope.clamp_min(torch.finfo(c.dtype).tiny) / 4)
    for _ in range(TRIES):
        now = crossed(q) & ~found
        far, found = torch.where(now, q, far), found | now
        if bool(found.all()):
            break
        q = q * GROWTH
    for _ in range(HALVINGS):
        middle = (near + far) / 2
        if bool(((middle == near) | (middle == far)).all()):
            break
        beyond = crossed(middle)
        near, far = torch.where(beyond, near, middle), torch.where(beyond, middle, far)
    new = put(torch.where(found, far, 0))
    return Tied(new, _finite(_answer(score, new)), torch.where(found, _norm(new - x), torch.inf), found, slope)


def sensitive(score: Score, x: Tensor) -> Tensor:  # n *d -> n *d
    """Where dc/dx is not 0. At a tie, any of these values turns the answer by itself if it moves the right way.

    The thesis takes them for the set that a counterexample needs (sec. 4.4). It is a heuristic: the set is not the
    smallest, and a value with gradient 0 may still turn the answer if it moves far.
    """
    return _look(score, x.detach())[1] != 0


def degrees(a: Tensor, b: Tensor) -> Tensor:  # n *d, n *d -> n
    """The angle between two changes; 2 atan2(|u - v|, |u + v|) is exact where the arc cosine is blind, near 0."""
    u, v = _unit(a), _unit(b)
    return torch.rad2deg(2 * torch.atan2(_norm(u - v), _norm(u + v)))


def relative_move(before: Tensor, after: Tensor) -> Tensor:  # n *d, n *d -> n
    """||after - before|| / ||before||: nothing limits how far a walk of embeddings goes. NaN of a start at 0."""
    length = _norm(before)
    return torch.where(length > 0, _norm(after - before) / torch.where(length > 0, length, 1), torch.nan)


def interpolate(e1: Tensor, e2: Tensor, frames: int) -> Tensor:  # n s, n s -> frames n s
    """(1 - a) e1 + a e2 at even a from 0 to 1: the straight line that a walk of embeddings is compared with."""
    if frames < 2:
        raise AssayError(f"A line from one embedding to the other takes at least 2 frames, got {frames}.")
    return torch.stack([torch.lerp(e1, e2, float(a)) for a in torch.linspace(0, 1, frames)])


def _thinned(score: Score, rows: Tensor) -> Score:
    return score.take(rows) if isinstance(score, Against) else score


def _look(score: Score, at: Tensor) -> tuple[Tensor, Tensor]:  # n *d -> n, n *d
    """c and dc/dx."""
    with torch.enable_grad():
        at = at.detach().requires_grad_()
        c = _row_each(score(at), at)
        if not c.requires_grad:
            raise AssayError(
                "The score has no gradient with respect to its input; compute it in torch, with gradients."
            )
        (g,) = torch.autograd.grad(c.sum(), at)
    return c.detach(), g


def _answer(score: Score, at: Tensor) -> Tensor:  # n *d -> n
    with torch.no_grad():
        return _row_each(score(at), at)


def _row_each(c: Tensor, at: Tensor) -> Tensor:
    if c.shape != at.shape[:1]:
        raise ShapeError(
            f"The score gave {tuple(c.shape)} for {len(at)} inputs; it wants one number each, ({len(at)},)."
        )
    return c


def _finite(c: Tensor) -> Tensor:
    broken = (~c.isfinite()).nonzero()
    if len(broken):
        raise AssayError(
            f"The score of pair {int(broken[0])} became {c[broken[0, 0]]:g}; check the model, or take a smaller step."
        )
    return c


def _each(value: float | Tensor, x: Tensor, name: str) -> Tensor:  # 1 or n -> n
    each = torch.as_tensor(value, dtype=x.dtype, device=x.device)
    if each.dim() > 1 or each.numel() not in (1, len(x)):
        raise ShapeError(f"{name} has shape {tuple(each.shape)} for {len(x)} inputs; give one number, or one each.")
    return each.expand(len(x))


def _allowed(mask: Tensor | None, x: Tensor) -> Tensor:  # *d or n *d -> n *d
    if mask is None:
        return torch.ones_like(x, dtype=torch.bool)
    try:
        return mask.to(x.device).bool().expand(x.shape)
    except RuntimeError:
        shapes = f"{tuple(mask.shape)} for inputs {tuple(x.shape)}"
        raise ShapeError(f"The mask has shape {shapes}; give one value for each of an input.") from None


def _wide(each: Tensor, like: Tensor) -> Tensor:  # n -> n 1 ... 1
    return each.view(-1, *[1] * (like.dim() - 1))


def _norm(x: Tensor) -> Tensor:  # n *d -> n
    norm: Tensor = torch.linalg.vector_norm(x.flatten(1), dim=1)
    return norm


def _unit(x: Tensor) -> Tensor:  # n *d -> n *d
    """Divided by the largest value first: squares of a saturated model's gradients would underflow. 0 stays 0."""
    tiny = torch.finfo(x.dtype).tiny
    x = x / _wide(x.flatten(1).abs().amax(1).clamp_min(tiny), x)
    return x / _wide(_norm(x).clamp_min(tiny), x)
