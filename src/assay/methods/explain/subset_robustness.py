r"""How far an input must move before the answer changes, if only some of its features may move.

    g(f, x, S)   = min ||delta||_p  s.t.  f(x + delta) != y,  delta_i = 0 for i not in S,  y = f(x)          (7.1)
    g_t(f, x, S) = min ||delta||_p  s.t.  f(x + delta)  = t,  delta_i = 0 for i not in S                     (7.2)

Source: Liu, "Building Trustworthy Machine Learning Models", UCLA 2021 (dissertation), sec. 7.1 (there p = 2). A minimum
over points that an attack has met is an upper bound of g; every one of them was judged by a fresh pass.

Departs from print: in place of a search over the radius around PGD on the logit of y, the minimum-norm attack, which
walks along the boundary and finds the radius on its way, towards one rival class at a time, because
g(S) = min_t g_t(S). The rivals are those nearest to first order on this very subset,

    (z_y - z_t) / ||grad_S (z_y - z_t)||_dual,

which on a linear model is g_t(S) itself. A point found on S serves every set that holds S, so that the answers for
the subsets of one call never contradict each other: S in T gives g(S) >= g(T).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from assay.errors import AssayError, ShapeError
from assay.methods.attack.attacked import Model, are_probabilities, check, checked, read
from assay.methods.attack.ball import distance, wide
from assay.methods.attack.jacobian import jacobian
from assay.methods.attack.loss import own
from assay.methods.attack.minimal_norm import minimal_norm
from assay.methods.explain import groups as grouping

Norm = Literal["l2", "linf"]
PAIRS = 2**24  # of subsets compared at once
ENTRIES = 2**26  # of subsets weighed at once
MOVED = 2**23  # entries of inputs that are moved at once; a search holds some twenty times as much
FURTHER = (1.02, 1.1, 1.3, 2.0, 4.0)  # than where an attack ended
CAP = 10.0  # times g(U): from where on a change counts as none


@dataclass(frozen=True)
class Search:
    """How g is looked for: the norm, steps of the attack towards each of so many rivals, and where inputs live."""

    norm: Norm = "l2"
    steps: int = 20
    step: float = 1.0  # the first stride, times the range of the bounds
    rivals: int = 2  # the nearest to first order; 0 is all
    halvings: int = 4  # of the way back to the input, once a point is found
    bounds: tuple[float, float] = (0.0, 1.0)
    batch: int = 1024  # rows that the model sees at once, at most

    def __post_init__(self) -> None:
        if self.norm not in get_args(Norm):
            raise AssayError(f"Subset robustness is measured in {' or '.join(get_args(Norm))}, got {self.norm!r}.")
        if self.steps < 1 or self.rivals < 0 or self.halvings < 0 or self.batch < 1:
            raise AssayError(
                f"Search needs steps >= 1, rivals >= 0, halvings >= 0 and batch >= 1, got {self.steps}, "
                f"{self.rivals}, {self.halvings} and {self.batch}."
            )

    def rows(self, x: Tensor) -> int:  # n *d
        """How many inputs like these are moved at once: fewer than `batch` where they are large."""
        return max(1, min(self.batch, MOVED // max(1, x[:1].numel())))


class Reached(NamedTuple):
    x: Tensor  # n *d, the nearest point found; the input itself where there is none
    success: Tensor  # n bool
    distance: Tensor  # n float64, infinity where there is none


class Robustness(NamedTuple):
    value: Tensor  # n m float64: the length of the smallest change found, infinity where there is none
    capped: Tensor  # n m bool: where `value` is the cap, for lack of a change shorter than it


def subset_robustness(
    model: Model,
    x: Tensor,
    subsets: Tensor,
    *,
    groups: Tensor | None = None,
    target: int | Tensor | None = None,
    search: Search | None = None,
) -> Tensor:
    """g(f, x_i, S_j), or g_t with a target, for all inputs and subsets in one batch: n *d, m k or n m k -> n m float64.

    `subsets` says which of the k features of `groups` may change (every entry is one where there are no groups).
    Infinity where no change was found: on an empty subset always, else the features do not reach (up to the search).
    """
    search = search or Search()
    x, sets, groups = _aligned(x, subsets, groups)
    y, rivals = nearest_rivals(model, x, sets, groups, target=target, search=search)
    able = sets.any(2).nonzero()  # pairs of input and subset
    value = torch.full(sets.shape[:2], torch.inf, dtype=torch.float64, device=x.device)
    for pairs in torch.split(able, search.rows(x)) if len(able) else ():
        i, j = pairs.unbind(1)
        free = grouping.spread(sets[i, j], groups)
        found = masked_minimal(model, x[i], y[i], free, rivals[i, j], search=search)
        value[i, j] = torch.where(found.success, found.distance, torch.inf)
    return _shared(value, sets)


def usual_cap(x: Tensor, whole: Tensor, search: Search) -> Tensor:
    """From where on a change counts as none: CAP times g(f, x, U), or where that lies beyond, the farthest corner of
    the box: n *d, n -> n.

    Source: the thesis names no cap; its public code takes ||x||_2, and only for attacks that fail.
    """
    low, high = search.bounds
    corner = x.double() + torch.where(high - x > x - low, high - x, low - x).double()
    return torch.minimum(CAP * whole, distance(corner, x, search.norm))


def capped(value: Tensor, cap: Tensor) -> Robustness:
    """g where it lies below the cap, else the cap, which keeps S in T => g(S) >= g(T): n m, n -> Robustness."""
    most = cap.to(value)[:, None]
    return Robustness(torch.minimum(value, most), ~(value < most))


def masked_minimal(
    model: Model, x: Tensor, y: Tensor, free: Tensor, rivals: Tensor, *, search: Search | None = None
) -> Reached:
    """The nearest point found where a rival (n r) answers, moving only what is `free`: n *d, n, n *d, n r -> Reached.

    Entries that are not free come back bit for bit.
    """
    search = search or Search()
    best = Reached(x, torch.zeros_like(y, dtype=torch.bool), torch.full((len(x),), torch.inf).to(x.device).double())
    for rival in rivals.unbind(1):
        found = minimal_norm(
            model, x, y, norm=search.norm, steps=search.steps, step=search.step, target=rival, mask=free,
            bounds=search.bounds,
        )  # fmt: skip
        at, success = _on_the_way(model, x, found.x, found.success, rival, search)
        size = torch.where(success, distance(at, x, search.norm), torch.inf)
        better = size < best.distance
        best = Reached(
            torch.where(wide(better, x), at, best.x), best.success | better, torch.where(better, size, best.distance)
        )
    return best


def _on_the_way(
    model: Model, x: Tensor, at: Tensor, success: Tensor, rival: Tensor, search: Search
) -> tuple[Tensor, Tensor]:
    """The nearest point on the line from x through `at` where the rival answers, and whether there is one: n *d, n.

    The attack comes to a curved boundary from this side, by ever shorter steps: where it did not cross, go on a bit.
    Where it did, halve the way back.
    """

    def there(share: Tensor) -> Tensor:
        return torch.clamp(x + wide(share, x) * (at - x), *search.bounds)

    share, low = torch.ones_like(x.flatten(1)[:, 0]), torch.zeros_like(x.flatten(1)[:, 0])
    with torch.no_grad():
        for further in FURTHER:
            lost = (~success).nonzero()[:, 0]
            if len(lost) == 0:
                break
            share[lost] = further
            success = success.index_put((lost,), model(there(share)[lost]).argmax(1) == rival[lost])
        for _ in range(search.halvings):
            middle = (low + share) / 2
            held = success & (model(there(middle)).argmax(1) == rival)
            low, share = torch.where(held, low, middle), torch.where(held, middle, share)
        return torch.where(wide(share == 1, x), at, there(share)), success


def _aligned(x: Tensor, subsets: Tensor, groups: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs, one list of subsets per input and the grouping, all on one device: n *d, n m k, *d."""
    groups = grouping.checked(groups, x.shape[1:]).to(x.device)
    k = grouping.count(groups)
    sets = subsets.to(x.device).bool()
    sets = sets.expand(len(x), *sets.shape) if sets.ndim == 2 else sets
    if sets.ndim != 3 or len(sets) != len(x) or sets.shape[2] != k:
        raise ShapeError(
            f"Subsets have shape {tuple(subsets.shape)}; give one row of {k} features per subset, for all inputs alike "
            f"(m, {k}) or for each ({len(x)}, m, {k})."
        )
    return x.detach(), sets, groups


def nearest_rivals(
    model: Model, x: Tensor, sets: Tensor, groups: Tensor, *, target: int | Tensor | None = None, search: Search
) -> tuple[Tensor, Tensor]:
    """The answers y = f(x), and for each subset the classes to try: n *d, n m k, *d -> n, n m r.

    The target alone, all other classes, or so many as the `search` says that are nearest to first order.
    """

    def logits(at: Tensor) -> Tensor:
        out = checked(model(at), at)
        return read(out, "probabilities" if are_probabilities(out.detach()) else "logits")

    with torch.no_grad():
        z = torch.cat([logits(part) for part in torch.split(x, search.rows(x))]).double()
    (n, c), y = z.shape, z.argmax(1)
    goal = None if target is None else torch.as_tensor(target, device=x.device).expand(n)
    if goal is not None and not 0 <= int(goal.min()) <= int(goal.max()) < c:
        raise AssayError(f"There is no class {target}; the model has {c}, 0 to {c - 1}.")
    check(x, y, bounds=search.bounds, target=goal)
    if goal is not None:
        return y, goal[:, None, None].expand(n, sets.shape[1], 1)
    r = min(search.rivals or c - 1, c - 1)
    if r == c - 1:
        every = torch.arange(1, c, device=x.device)
        return y, ((y[:, None] + every) % c)[:, None].expand(-1, sets.shape[1], -1)
    near = []
    few = max(1, min(search.batch // c, ENTRIES // sets[0].numel()))  # a Jacobian is c times an input
    for rows in torch.split(torch.arange(n, device=x.device), few):
        slope = jacobian(logits, x[rows])  # n c *d
        slope = slope - slope[torch.arange(len(rows), device=x.device), y[rows]][:, None]
        away = _first_order(own(z[rows], y[rows])[:, None] - z[rows], slope, y[rows], sets[rows], groups, search.norm)
        near.append(away.topk(r, dim=2, largest=False).indices)
    return y, torch.cat(near)


def _first_order(room: Tensor, slope: Tensor, y: Tensor, sets: Tensor, groups: Tensor, norm: Norm) -> Tensor:
    """room_t / ||slope_t on S||_dual, infinity for t = y: n c, n c *d, n, n m k -> n m c."""
    n, c = room.shape
    power = 2 if norm == "l2" else 1
    energy = grouping.gather(slope.double().flatten(0, 1).abs() ** power, groups).view(n, c, -1)  # n c k
    size = torch.einsum("nmk,nck->nmc", sets.double(), energy) ** (1 / power)
    away = room[:, None] / size.clamp_min(1e-150)  # far, and nearer than y itself, where there is no slope
    return away.scatter(2, y[:, None, None].expand(-1, sets.shape[1], 1), torch.inf)


def _shared(value: Tensor, sets: Tensor) -> Tensor:
    """The least value over all subsets of each set: n m, n m k -> n m."""
    n, m = value.shape
    rows = max(1, PAIRS // max(m, 1))
    least = torch.empty_like(value)
    for i in range(n):
        inside = sets[i].float()
        for start in range(0, m, rows):
            outside = inside @ (1 - inside[start : start + rows]).T  # m rows: members of S_j that S_i lacks
            least[i, start : start + rows] = torch.where(outside == 0, value[i][:, None], torch.inf).amin(0)
    return least
