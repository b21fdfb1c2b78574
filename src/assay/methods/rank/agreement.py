r"""When may one map stand in for another? Four attacks from one input, and how far they agree.

    b   boundary, many steps: a walk to an end of the range          s    boundary, one step, as long as b's change
    m   mid-point, many steps: a walk to the tie                     m'   mid-point, one step, along the same line

The theory speaks of m', the cheap and strong one is b. The argument: s and m' lie on one line from the input, so their
maps are the same; m lies on the way to b, which is nearly straight; the angle of b and s is small; so the map of b is
nearly that of m'. Here each link is measured, for every input:

    angle          of two changes, in degrees
    spearman       rank correlation of their maps; blind to length and sign, and hard on the many pixels near 0:
                   an angle of 14 degrees (cosine .97) came with .75 in print
    straightness   || b - a || / sum of the steps' lengths, in (0, 1], and `turned`: the largest angle of a step with
                   the first
    drawn          mean squared difference of what a decoder draws: length matters there, so that mid-points resemble
                   one another and boundaries do

    gate           where angle(b, s) is above LOCAL, the walk to the boundary tells of inputs that are not this one, and
                   its map may not be called local

Source: 'Perception visualizations for Siamese networks', MSc thesis, Politecnico di Milano, sec. 5.3.4 and 5.3.6 (over
    20 pairs of faces and target 0, angle 14 degrees and rank correlation .75 for b and s; no numbers for the others).
    The gate is not in print.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

import torch
from torch import Tensor

from assay.errors import ShapeError
from assay.methods.explain.twins import map_distance
from assay.methods.rank.maps import grey
from assay.methods.rank.walk import Score, degrees, one_step, to_tie, walk

Way = Literal["b", "s", "m", "m'"]
WAYS: tuple[Way, ...] = ("b", "s", "m", "m'")
PAIRS: tuple[tuple[Way, Way], ...] = tuple(combinations(WAYS, 2))
LOCAL = 30.0  # degrees
NEAR = 1e-4  # of the tie, where a walk to it ends


@dataclass(frozen=True)
class Agreement:
    """Four changes of each input and how they agree; NaN where one of the two has no direction or does not exist."""

    ends: Mapping[Way, Tensor]  # n *d
    c: Mapping[Way, Tensor]  # n, what was reached
    length: Mapping[Way, Tensor]  # n, L2
    angle: Mapping[tuple[Way, Way], Tensor]  # n, degrees
    spearman: Mapping[tuple[Way, Way], Tensor]  # n
    drawn: Mapping[tuple[Way, Way], Tensor]  # n; empty without a decoder
    straightness: Mapping[Literal["b", "m"], Tensor]  # n
    turned: Mapping[Literal["b", "m"], Tensor]  # n, degrees
    found: Tensor  # n, whether there is an m': elsewhere the gradient's line never meets the tie

    def local(self, limit: float = LOCAL) -> Tensor:  # n
        """Whether the map of b may be called local; false where that cannot be told."""
        return self.angle["b", "s"] <= limit


def agreement(
    score: Score,
    x: Tensor,
    *,
    target: float | Tensor,
    tie: float = 0.5,
    steps: int = 200,
    step: float = 0.5,
    box: tuple[float, float] | None = None,
    mask: Tensor | None = None,
    draw: Callable[[Tensor], Tensor] | None = None,
) -> Agreement:
    """Attack each input in four ways and compare: n *d -> Agreement. `draw` shows what the model sees, n *d -> n *d.

    b and m go the same way only where the tie lies between c and `target`; elsewhere their angle is near 180 degrees.
    """
    x = x.detach()
    far = walk(score, x, target=target, steps=steps, step=step, box=box, mask=mask)
    mid = walk(score, x, target=tie, steps=steps, step=step, box=box, mask=mask, tolerance=NEAR)
    once = one_step(score, x, target=target, length=(far.x - x).flatten(1).norm(dim=1), box=box, mask=mask)
    tied = to_tie(score, x, at=tie, box=box, mask=mask)
    ends: dict[Way, Tensor] = {"b": far.x, "s": once.x, "m": mid.x, "m'": tied.x}
    length = {way: (end - x).flatten(1).norm(dim=1) for way, end in ends.items()}
    heat = {way: grey(x, end) for way, end in ends.items()}
    seen = {way: draw(end) for way, end in ends.items()} if draw is not None else {}
    return Agreement(
        ends=ends,
        c={"b": far.c, "s": once.c, "m": mid.c, "m'": tied.c},
        length=length,
        angle={(p, q): angle(ends[p] - x, ends[q] - x) for p, q in PAIRS},
        spearman={
            (p, q): _where_both_moved(length[p], length[q], rank_correlation(heat[p], heat[q])) for p, q in PAIRS
        },
        drawn={(p, q): (seen[p] - seen[q]).square().flatten(1).mean(1) for p, q in PAIRS} if seen else {},
        straightness={"b": _share(length["b"], far.length), "m": _share(length["m"], mid.length)},
        turned={"b": far.turned, "m": mid.turned},
        found=tied.found,
    )


def angle(a: Tensor, b: Tensor) -> Tensor:  # n *d, n *d -> n
    """The angle of two changes in degrees; NaN where one of them is none."""
    return _where_both_moved(a.flatten(1).abs().amax(1), b.flatten(1).abs().amax(1), degrees(a, b))


def cosine(a: Tensor, b: Tensor) -> Tensor:  # n *d, n *d -> n
    """The cosine of the angle of two changes; NaN where one of them is none."""
    return torch.deg2rad(angle(a, b)).cos()


def rank_correlation(a: Tensor, b: Tensor) -> Tensor:  # n *d, n *d -> n
    """Spearman's, of two maps of each input."""
    if a.shape != b.shape or a.ndim < 2:
        raise ShapeError(f"Maps of shape {tuple(a.shape)} and {tuple(b.shape)} cannot be compared; give n *d twice.")
    return 1 - map_distance(a.flatten(1)[:, None], b.flatten(1)[:, None], "spearman")


def _share(part: Tensor, whole: Tensor) -> Tensor:  # n, n -> n
    """In (0, 1]: a sum of many steps, each rounded, may come out shorter than the way itself."""
    return torch.where(whole > 0, (part / torch.where(whole > 0, whole, 1)).clamp_max(1), torch.nan)


def _where_both_moved(p: Tensor, q: Tensor, value: Tensor) -> Tensor:  # n, n, n -> n
    return torch.where((p > 0) & (q > 0), value, torch.nan)
