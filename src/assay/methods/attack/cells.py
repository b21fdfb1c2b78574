r"""Cells: the worst case of inputs of which some values move in steps and some are codes, as in a table.

What an attacker may do, in shares of the range (`assay.inputs.reach`):

    numbers           any value within the ball
    whole numbers     the same in whole steps from the value that they have
    categories        codes have no distance: at most `codes` of them take any of their codes, whatever the radius;
                      in l0 a category is one changed value, as any other is
    what is fixed     nothing

The ball is that of the numbers and whole numbers. Cells that move in steps are searched by a beam, cell after cell:

    S_0 = {start},   S_j = the B highest of S_{j-1} and { s with v in cell j : s in S_{j-1}, v in values_j },

heights are the negative margin, and all of S_j keeps to the budget. Where B holds every setting there is, nothing is
left out and the answer is exact; B is what the questions pay for. From the highest settings the numbers are then moved
by a search for the smallest change, along gradients or with Square, with what the budget has left. One start is the
input, one the point that PGD reaches where whole numbers move by any amount, cut back to whole steps.

The search is Assay's own. The threat is that of tables: Ballet et al. 2019, arXiv:1911.03274 (what is fixed, ranges);
Cartella et al. 2021, arXiv:2101.08030 (types of columns).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from assay.methods.attack.aim import Truth
from assay.methods.attack.attacked import Attacked, Model, Slope, check
from assay.methods.attack.ball import Norm, norms, wide
from assay.methods.attack.chance import TALLY
from assay.methods.attack.loss import Goal
from assay.methods.attack.minimal_norm import minimal_norm
from assay.methods.attack.pgd import pgd
from assay.methods.attack.square import HEAD_ROWS, head_of, square

if TYPE_CHECKING:
    from assay.inputs.reach import Reach
    from assay.methods.attack.ensemble import WorstCase

VALUES = 17  # of a whole number that are tried, spread evenly where it has more
TRIED = 3  # settings from which the numbers are moved
HALVINGS = 8  # of the gap between a radius that holds and one that breaks
ROOM = 2**23  # values of trial points at a time
AT_ONCE = 2048  # trial points that are asked together


class Settings(NamedTuple):
    """What a beam found: the highest settings, and the smallest change among all that break the input."""

    x: Tensor  # n k *d
    height: Tensor  # n k, -inf where there are fewer
    near: Tensor  # n *d, the input where nothing breaks it
    size: Tensor  # n float64, inf where nothing does


def size(x: Tensor, x0: Tensor, norm: Norm, coded: Tensor) -> Tensor:  # n *d, n *d, *d -> n
    """How far x0 has moved, in float64. Codes have no distance; in l0 each counts."""
    change = x.double() - x0.double()
    return norms(change if norm == "l0" else change.masked_fill(coded, 0), norm)


def left(norm: Norm, radius: Tensor, used: Tensor) -> Tensor:  # n, n -> n
    """The radius of what may still move, where others have moved by `used`."""
    if norm == "linf":
        return radius
    return (radius.square() - used.square()).clamp_min(0).sqrt() if norm == "l2" else (radius - used).clamp_min(0)


def stepping(reach: Reach, norm: Norm, codes: int) -> Tensor:
    """The cells that move in steps, or to another code where some may: *d, or n *d."""
    return reach.free & (reach.step > 0) & (~reach.coded | (codes > 0 or norm == "l0"))


def masked(reach: Reach | None, rows: Tensor) -> Tensor | None:  # k
    """What a gradient may move of these inputs; None where that is all of it."""
    return None if reach is None else reach.take(rows).mask


def settled(
    reach: Reach | None, rows: Tensor, found: Attacked | WorstCase, x: Tensor, norm: Norm
) -> tuple[Tensor, Tensor]:  # k, of k inputs, k *d -> k *d, k
    """What an attack that took steps of any length comes to, and how far that is from these inputs."""
    if reach is None:
        return found.x, found.distance
    at = reach.take(rows).settled(found.x, x)
    return at, size(at, x, norm, reach.coded)


def in_range(reach: Reach, rows: Tensor, at: Tensor, x: Tensor) -> Tensor:  # k, k *d, k *d -> k *d
    """Numbers that moved, held to their own range where that is narrower than the bounds of the inputs."""
    low, high = reach.low, reach.low + reach.span
    held = torch.minimum(torch.maximum(at.double(), low), high).to(at.dtype)
    return torch.where(reach.take(rows).smooth & (at != x), held, at)


def cells(
    model: Model,
    x: Tensor,
    y: Truth,
    *,
    reach: Reach,
    norm: Norm = "linf",
    radius: float | Tensor,
    codes: int = 0,
    steps: int = 50,
    queries: int = 500,
    gradients: bool = True,
    eot: int = 1,
    bounds: tuple[float, float] = (0.0, 1.0),
    rng: torch.Generator | None = None,
) -> Attacked:
    """Break inputs within the budget and their reach, n *d, n -> Attacked; where none is found, the worst setting met.

    `distance` is that of the values that have one (`size`). `queries` pay for a beam, which asks for each value of
    each cell at least twice; `steps` for each search with numbers.
    """
    check(x, y, bounds=bounds)
    x, rng = x.detach(), rng or torch.Generator().manual_seed(0)
    limit = torch.as_tensor(radius, dtype=torch.float64, device=x.device).expand(len(x)) * (1 + 1e-6)
    smooth = reach.smooth.expand(x.shape)
    best, far = x.clone(), torch.full_like(limit, torch.inf)

    def numbers(rows: Tensor, base: Tensor) -> Attacked:
        """What is left of the budget for the numbers, from a setting of the others."""
        rest, free = left(norm, limit[rows], size(base, x[rows], norm, reach.coded)).to(x.dtype), smooth[rows]
        if gradients:
            return minimal_norm(
                model, base, y[rows], norm=norm, radius=rest, steps=steps, mask=free, eot=eot, bounds=bounds
            )
        return square(
            model, base, y[rows], norm="linf" if norm == "linf" else "l2", radius=rest, queries=max(2, queries),
            mask=free, eot=eot, bounds=bounds, rng=rng,
        )  # fmt: skip

    def offer(rows: Tensor, at: Tensor, won: Tensor) -> None:
        d = size(at, x[rows], norm, reach.coded)
        nearer = won & (d <= limit[rows]) & (d < far[rows])
        best[rows[nearer]], far[rows[nearer]] = at[nearer], d[nearer]

    everyone = torch.arange(len(x), device=x.device)
    starts = [x]
    still = not bool((limit > 0).any())  # then only codes change
    if gradients and norm != "l0" and not still and bool((reach.free & (reach.step > 0) & ~reach.coded).any()):
        ordered = (reach.free & ~reach.coded).expand(x.shape)
        relaxed = pgd(
            model, x, y, norm=norm, radius=limit.to(x.dtype), steps=steps, loss="margin", random_start=False,
            mask=ordered, eot=eot, bounds=bounds, rng=rng,
        )  # fmt: skip
        starts.append(reach.settled(relaxed.x, x))
    met = [
        settings(
            model, x, y, reach=reach, norm=norm, radius=limit, codes=codes, start=start, queries=queries, eot=eot,
            bounds=bounds,
        )
        for start in starts
    ]  # fmt: skip
    for found in met:
        offer(everyone, found.near, found.size < torch.inf)
    at, height = torch.cat([found.x for found in met], 1), torch.cat([found.height for found in met], 1)  # n k *d, n k
    worst = at[everyone, height.argmax(1)]
    if bool(smooth.any()) and not still and (gradients or norm in ("linf", "l2")):
        rows, which = (torch.isinf(far)[:, None] & (height > -torch.inf)).nonzero().unbind(1)
        if len(rows):  # all settings of all inputs at once
            got = numbers(rows, torch.where(smooth[rows], x[rows], at[rows, which]))
            moved = in_range(reach, rows, got.x, x[rows])
            broken, cut = got.success.clone(), (moved != got.x).flatten(1).any(1)
            if bool(cut.any()):  # what was cut back may break it no longer
                broken[cut] &= _slope(model, x, y, eot).take(rows[cut]).look(moved[cut])[1]
            for k in torch.unique(which).tolist():  # of one input only one is the nearest
                mine = which == k
                offer(rows[mine], moved[mine], broken[mine])
    hopes = far < torch.inf
    at = torch.where(wide(hopes, x), best, worst)
    hits = _slope(model, x, y, eot).tally(at)[1]
    won = hits > (TALLY // 2 if eot > 1 else 0)
    return Attacked(at, hopes & won, size(at, x, norm, reach.coded), x.new_zeros(0, len(x)))


def smallest(
    model: Model,
    x: Tensor,
    y: Truth,
    *,
    reach: Reach,
    norm: Norm,
    codes: int = 0,
    steps: int = 50,
    queries: int = 500,
    gradients: bool = True,
    eot: int = 1,
    bounds: tuple[float, float] = (0.0, 1.0),
    rng: torch.Generator | None = None,
) -> Attacked:
    """The smallest change that `cells` finds, by halving the radius between what holds and what breaks: n *d, n.

    It is found to 1 part in 256 of the first that was, in l0 to one value.
    """

    def within(rows: Tensor, radius: Tensor) -> Attacked:
        return cells(
            model, x[rows], y[rows], reach=reach.take(rows), norm=norm, radius=radius, codes=codes, steps=steps,
            queries=queries, gradients=gradients, eot=eot, bounds=bounds, rng=rng,
        )  # fmt: skip

    features = x[0].numel()
    everything = {"linf": 1.0, "l2": features**0.5, "l1": float(features), "l0": float(features)}[norm]
    whole = torch.full((len(x),), everything * (bounds[1] - bounds[0] if norm != "l0" else 1), dtype=torch.float64)
    found = within(torch.arange(len(x), device=x.device), whole.to(x.device))
    at, high, low = found.x, torch.where(found.success, found.distance, torch.inf), torch.zeros_like(found.distance)
    for _ in range(HALVINGS):
        middle = ((low + high) / 2).floor() if norm == "l0" else (low + high) / 2
        rows = (torch.isfinite(high) & (middle > low) & (middle < high)).nonzero()[:, 0]
        if not len(rows):
            break
        got = within(rows, middle[rows])
        won = got.success
        at[rows[won]], high[rows[won]] = got.x[won], got.distance[won]
        low[rows[~won]] = middle[rows[~won]]
    success = torch.isfinite(high)
    return Attacked(torch.where(wide(success, x), at, x), success, torch.where(success, high, 0.0), found.loss)


@torch.no_grad()
def settings(
    model: Model,
    x: Tensor,
    y: Truth,
    *,
    reach: Reach,
    norm: Norm = "linf",
    radius: Tensor,
    codes: int = 0,
    start: Tensor | None = None,
    queries: int = 500,
    eot: int = 1,
    bounds: tuple[float, float] = (0.0, 1.0),
) -> Settings:
    """The highest settings of the cells that move in steps: n *d, n -> Settings. Numbers stay as `start` has them."""
    places = stepping(reach, norm, codes)
    places = places if places.ndim == x.ndim - 1 else places.any(0)
    columns = places.flatten().nonzero()[:, 0].tolist()
    most = min(VALUES, max(3, queries // max(1, len(columns))))
    choices = reach.choices.flatten().tolist()
    total = sum(choices[j] or most for j in columns)
    width = max(1, queries // max(1, total))
    each = max(1, ROOM // (width * max([choices[j] or most for j in columns], default=1) * x[0].numel()))
    start = x if start is None else start
    parts = [
        _beam(model, x[rows], y[rows], start[rows], reach.take(rows), norm, radius[rows], codes, columns, most, width,
              eot, bounds)
        for rows in torch.split(torch.arange(len(x), device=x.device), each)
    ]  # fmt: skip
    count = max(part.x.shape[1] for part in parts)
    assert all(part.x.shape[1] == count for part in parts)  # the columns and the width are the same for all
    return Settings(*(torch.cat([part[i] for part in parts]) for i in range(4)))


def _beam(
    model: Model,
    x: Tensor,
    y: Truth,
    start: Tensor,
    reach: Reach,
    norm: Norm,
    radius: Tensor,
    codes: int,
    columns: list[int],
    most: int,
    width: int,
    eot: int,
    bounds: tuple[float, float],
) -> Settings:
    n, home, slope = len(x), x.flatten(1), _slope(model, x, y, eot)
    coded = reach.coded.flatten()
    may = stepping(reach, norm, codes).expand(x.shape).flatten(1)  # n f
    near, nearest = x.clone(), torch.full_like(radius, torch.inf)

    def ask(at: Tensor, rows: Tensor) -> Tensor:  # k f, k -> k
        """Heights; whatever breaks its input is kept where it is the nearest so far."""
        heights = [radius[:0]]
        for point, row in () if not len(at) else zip(torch.split(at, AT_ONCE), torch.split(rows, AT_ONCE), strict=True):
            height, reached = slope.take(row).look(point.view(-1, *x.shape[1:]))
            heights.append(height.nan_to_num(nan=torch.inf))  # NaN is no right answer
            far = torch.where(reached, size(point.view(-1, *x.shape[1:]), x[row], norm, reach.coded), torch.inf)
            least = torch.full_like(nearest, torch.inf).scatter_reduce(0, row, far, "amin")
            here = ((far == least[row]) & (far < nearest[row])).nonzero()[:, 0]
            near[row[here]], nearest[row[here]] = point[here].view(-1, *x.shape[1:]), far[here]
        return torch.cat(heights)

    def trials(at: Tensor, height: Tensor, j: int) -> tuple[Tensor, Tensor]:  # n b f, n b -> n b m f, n b m
        """Every value of a cell in every setting, with its height: -inf beyond the budget, or where it is no other."""
        values, unit = _values(home[:, j], j, reach, norm, radius, most, bounds)  # n m
        at = at[:, :, None].repeat(1, 1, values.shape[1], 1)
        fine = ((values[:, None] - at[..., j]).abs() > unit / 4) & may[:, j, None, None]  # NaN is none
        fine &= (height > -torch.inf)[..., None]
        at[..., j] = values[:, None]
        where = fine.nonzero()
        moved = at[fine]  # k f
        inside = size(moved, home[where[:, 0]], norm, coded) <= radius[where[:, 0]]
        if norm != "l0":
            inside &= ((moved != home[where[:, 0]]) & coded).sum(1) <= codes
        tall = torch.full(fine.shape, -torch.inf, dtype=torch.float64, device=x.device)
        where = where[inside]
        tall[tuple(where.T)] = ask(moved[inside], where[:, 0])
        return at, tall

    at, height = start.flatten(1)[:, None], ask(start.flatten(1), torch.arange(n, device=x.device))[:, None]
    gains = {j: float((trials(at, height, j)[1].amax((1, 2)) - height[:, 0]).clamp_min(0).sum()) for j in columns}
    for j in sorted(columns, key=lambda j: -gains[j]):
        tried, tall = trials(at, height, j)
        at, height = torch.cat([at, tried.flatten(1, 2)], 1), torch.cat([height, tall.flatten(1)], 1)
        height, kept = height.topk(min(width, height.shape[1]), dim=1)
        at = at.gather(1, kept[..., None].expand(-1, -1, at.shape[2]))
    height, at = height[:, :TRIED], at[:, :TRIED]
    return Settings(at.reshape(n, -1, *x.shape[1:]), height, near, nearest)


def _values(
    x: Tensor, j: int, reach: Reach, norm: Norm, radius: Tensor, most: int, bounds: tuple[float, float]
) -> tuple[Tensor, float]:  # n -> n m
    """What one cell may hold, NaN where there is less, and how far apart values are."""
    low, span, step, choices = (float(each.flatten()[j]) for each in (reach.low, reach.span, reach.step, reach.choices))
    if choices:
        unit = step / max(1.0, choices - 1)
        values = low + unit * torch.arange(int(choices), dtype=torch.float64, device=x.device).expand(len(x), -1)
    else:
        unit, slack = step, 1e-6
        reached = torch.full_like(radius, torch.inf) if norm == "l0" else radius / step
        down = torch.maximum((low - x.double()) / step - slack, -reached - slack).ceil()
        up = torch.minimum((low + span - x.double()) / step + slack, reached + slack).floor()
        share = torch.linspace(0, 1, most, dtype=torch.float64, device=x.device)
        k = (down[:, None] + share * (up - down)[:, None]).round()  # all of them where there are no more than `most`
        k[:, 1:] = torch.where(k[:, 1:] == k[:, :-1], torch.nan, k[:, 1:])
        values = torch.cat([x.double()[:, None] + step * k, x.double()[:, None]], 1)
        values[:, :-1] = torch.where(k == 0, torch.nan, values[:, :-1])  # its own value is there once, to the bit
    edge = 1e-6 * unit
    values = torch.where((values >= bounds[0] - edge) & (values <= bounds[1] + edge), values, torch.nan)
    return values.clamp(*bounds).to(x.dtype), unit


def _slope(model: Model, x: Tensor, y: Truth, eot: int) -> Slope:
    goal = Goal(y, None, "margin")
    with torch.no_grad():
        return Slope(model, goal, eot=eot, head=head_of(model, x[:HEAD_ROWS], goal))
