r"""ARML: learn a Mahalanobis metric under which nearest neighbours are certified far.

    d_M(x, z) = (x - z)' M (x - z),   M = G'G

The smallest change of x in l2 after which x- is as near as x+ is the distance from x to a hyperplane. Signed, it is

    e(x+, x-, x; M) = (d_M(x, x-) - d_M(x, x+)) / (2 ||M (x+ - x-)||)
                    = <x - (x+ + x-)/2, u>,   u = w / ||w||,   w = M (x+ - x-)

and a K-nearest-neighbour classifier keeps the class of x up to (with k = (K+1)/2, the k-th max counted from above)

    kth min_{j: other class}  kth max_{i: same class}  e(x_i, x_j, x; M).

ARML minimises the mean over the training points of a falling loss of this bound, each point left out of its own
neighbours. The objective "exact" is that (eq. 3.47). "sampled" (eq. 3.48, the paper's own choice) puts in place of
the min and max one same-class and one other-class point, drawn anew at every step from the c nearest of either kind
under the present M; it has no K. No gradient goes through the choice, so that with q = (x - (x+ + x-)/2 - e u)/||w||

    grad_G l(e) = G (S + S'),   S = l'(e) (x+ - x-) q'.

Source: Wang, Liu, Yi, Jiang and Hsieh, "Provably Robust Metric Learning", NeurIPS 2020, arXiv:2006.07024; equations and
algorithm 7 as in the thesis "Building Trustworthy Machine Learning Models", sec. 3.2.2. Loss, optimiser and c are open
there; the defaults are those of the authors' public code: -e, Adam at 1e-3, all points in every step, 1000 epochs,
c = 10. Unlike that code there is no floor under ||w||, which would break e(cM) = e(M): where w is 0 the triplet says
nothing and e is 0. A class with fewer than c other points is drawn from as far as it goes.

Features are expected on one scale, such as [0, 1]. Where there are few points for the features, say 20 a class in 64
dimensions, the learned metric can be worse on new points than the Euclidean one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, get_args

import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from assay.errors import AssayError, ShapeError

Loss = Literal["negative", "hinge", "exponential", "logistic"]
Objective = Literal["sampled", "exact"]

LOSSES: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {  # l, l'
    "negative": (lambda e: -e, lambda e: -torch.ones_like(e)),
    "hinge": (lambda e: (1 - e).relu(), lambda e: -(e < 1).to(e.dtype)),
    "exponential": (lambda e: (-e).exp(), lambda e: -(-e).exp()),
    "logistic": (lambda e: F.softplus(-e), lambda e: -(-e).sigmoid()),
}
BETAS = (0.9, 0.999)  # Adam's (Kingma and Ba, ICLR 2015, arXiv:1412.6980), with its 1e-8
CELLS = 2**22  # numbers in the largest intermediate table
SPARE = 3  # candidates kept per neighbour that is drawn from
SEARCH_AGAIN = 0.05  # of the points in doubt, from which on all candidates are renewed
FEW_FEATURES = 64  # up to which candidates are kept: in more the bound on the change of metric is too weak


class Bound(NamedTuple):
    """The leave-one-out bound of each point, signed, and the triplet at which it is attained."""

    value: Tensor  # n
    same: Tensor  # n, index of x+
    other: Tensor  # n, index of x-


class Learned(NamedTuple):
    """What ARML returns."""

    factor: Tensor  # r d, G
    losses: tuple[float, ...]  # mean over the points of each epoch, each before its step

    @property
    def metric(self) -> Tensor:
        """M = G'G: d d, symmetric, positive semidefinite."""
        return self.factor.T @ self.factor

    @property
    def condition(self) -> float:
        """Largest eigenvalue of M over the smallest that is not zero by G's shape; large: M is nearly singular."""
        sizes = torch.linalg.svdvals(self.factor.double())
        return float((sizes[0] / sizes[-1]) ** 2)


def arml(
    x: Tensor | NDArray[Any],
    y: Tensor | NDArray[Any],
    *,
    rng: torch.Generator,
    k: int = 1,
    objective: Objective = "sampled",
    neighbours: int = 10,
    loss: Loss = "negative",
    epochs: int = 1000,
    lr: float = 1e-3,
    batch: int | None = None,
    start: Tensor | None = None,
    on_epoch: Callable[[int, float], None] | None = None,
) -> Learned:  # x: n *d, y: n
    """Learn M = G'G from labelled points; the module's text has the formulas.

    `neighbours` is c. `k` is the classifier's K, which the objective "exact" alone depends on; that one looks at all
    triplets, n^2 / classes of them for each point, and is for a few thousand points. An epoch takes each point once as
    anchor, all in one step or in batches of `batch`; neighbours are always sought among all points. G begins as
    `start` (r d; r < d keeps M at rank r), by default the identity. After each epoch: `on_epoch(epochs done, mean
    loss)`. On the CPU a seed gives the same metric again.
    """
    points, labels = check_points(x, y)
    if objective not in get_args(Objective) or loss not in get_args(Loss):
        known = f"{' or '.join(get_args(Objective))}, and {', '.join(get_args(Loss))}"
        raise AssayError(f"arml got objective={objective!r}, loss={loss!r}; it knows {known}.")
    if epochs < 1 or neighbours < 1 or not 0 < lr < math.inf or (batch is not None and batch < 1):
        raise AssayError(
            f"arml got epochs={epochs}, neighbours={neighbours}, lr={lr}, batch={batch}; it wants at least 1 epoch, "
            "neighbour and point in a batch, and lr above 0."
        )
    check_votes(labels, k if objective == "exact" else 1)
    n, d = points.shape
    factor = torch.eye(d, dtype=points.dtype, device=points.device) if start is None else start.to(points).clone()
    if factor.ndim != 2 or factor.shape[1] != d or not bool(factor.isfinite().all()) or not bool(factor.any()):
        raise ShapeError(
            f"arml got a start of shape {tuple(factor.shape)} for points of {d} features; it wants finite numbers, "
            f"not all 0, of shape (r, {d}) such as torch.eye({d})."
        )

    near = _Near(points, labels, neighbours)
    first, second, steps = torch.zeros_like(factor), torch.zeros_like(factor), 0  # Adam's moments
    means: list[float] = []
    for epoch in range(epochs):
        total = 0.0
        order = torch.arange(n, device=points.device)
        if batch is not None and batch < n:
            order = torch.randperm(n, generator=rng, device=points.device)
        for rows in torch.split(order, batch or n):
            if objective == "exact":
                bound = leave_one_out(points, labels, factor, k=k, rows=rows)
                same, other = bound.same, bound.other
            else:
                same, other = near.draw(factor, rows, rng)
            value, gradient = descent(factor, points[rows], points[same], points[other], loss)
            steps += 1  # torch.optim.Adam takes the same steps, and seconds to load its compiler before the first
            first.lerp_(gradient, 1 - BETAS[0])
            second.lerp_(gradient.square(), 1 - BETAS[1])
            scale = (second / (1 - BETAS[1] ** steps)).sqrt() + 1e-8
            factor -= lr / (1 - BETAS[0] ** steps) * first / scale
            total += float(value) * len(rows)
            if not bool(factor.isfinite().all()):
                raise AssayError(f"The metric became NaN or inf in epoch {epoch + 1} of {epochs}; try lr={lr / 10:g}.")
        means.append(total / n)
        if on_epoch is not None:
            on_epoch(epoch + 1, means[-1])
    return Learned(factor, tuple(means))


def margin(x: Tensor, same: Tensor, other: Tensor, factor: Tensor) -> Tensor:
    """e(same, other, x; G'G), signed: n d, n d, n d, r d -> n. Its positive part is the smallest change of x."""
    w = (same - other) @ factor.T @ factor
    return ((x - (same + other) / 2) * F.normalize(w, dim=1, eps=torch.finfo(w.dtype).tiny)).sum(1)


def descent(
    factor: Tensor, x: Tensor, same: Tensor, other: Tensor, loss: Loss = "negative"
) -> tuple[Tensor, Tensor]:  # r d, n d, n d, n d -> scalar, r d
    """The mean loss of the triplets and its gradient by G."""
    cost, slope = LOSSES[loss]
    apart, off = same - other, x - (same + other) / 2  # n d
    w = apart @ factor.T @ factor
    size = w.norm(dim=1, keepdim=True)  # n 1
    inverse = torch.where(size > 0, 1 / size, 0)
    u = w * inverse
    e = (off * u).sum(1, keepdim=True)
    s = apart.T @ ((off - e * u) * inverse * slope(e)) / len(x)  # d d
    return cost(e).mean(), factor @ (s + s.T)


def leave_one_out(x: Tensor, y: Tensor, factor: Tensor, *, k: int = 1, rows: Tensor | None = None) -> Bound:
    """The bound of the points `rows` (default: all), each left out of its own neighbours; in float64.

    x: n d, y: n, factor: r d. Costs n^2 / classes triplets per point; memory stays below a few tables of CELLS.
    """
    check_votes(y, k)
    votes = (k + 1) // 2
    rows = torch.arange(len(x), device=x.device) if rows is None else rows
    x, factor = x.double(), factor.double()
    z, w = x @ factor.T, x @ factor.T @ factor  # n r, n d
    value = x.new_empty(len(rows))
    same, other = (torch.empty(len(rows), dtype=torch.long, device=x.device) for _ in range(2))
    for kind in torch.unique(y[rows]):
        i, j = torch.nonzero(y == kind)[:, 0], torch.nonzero(y != kind)[:, 0]
        twice = 2 * torch.cdist(w[i], w[j])  # i j
        twice.clamp_min_(1e-12 * float(twice.max()) or 1.0)  # there d_M(x, x+) = d_M(x, x-): the triplet is worth 0
        width = max(1, CELLS // len(i))
        here = torch.nonzero(y[rows] == kind)[:, 0]
        for part in torch.split(here, max(1, CELLS // (len(i) * min(width, len(j))))):
            to_same, to_other = (torch.cdist(z[rows[part]], z[s]).square() for s in (i, j))  # t i, t j
            to_same[rows[part][:, None] == i] = torch.inf
            best = [
                ((b[:, None, :] - to_same[:, :, None]) / scale).topk(votes, dim=1)  # t votes j
                for b, scale in zip(torch.split(to_other, width, 1), torch.split(twice, width, 1), strict=True)
            ]
            kth = torch.cat([b.values[:, -1] for b in best], 1)  # t j
            who = torch.cat([b.indices[:, -1] for b in best], 1)  # t j
            lowest = kth.topk(votes, dim=1, largest=False)
            place = lowest.indices[:, -1:]  # t 1
            value[part] = lowest.values[:, -1]
            same[part], other[part] = i[who.gather(1, place)[:, 0]], j[place[:, 0]]
    return Bound(value, same, other)


def check_points(x: Tensor | NDArray[Any], y: Tensor | NDArray[Any]) -> tuple[Tensor, Tensor]:  # n *d, n -> n f, n
    """Points as rows of floats with their classes, or a line that says what is wrong with them."""
    points = torch.as_tensor(x)
    labels = torch.as_tensor(y, device=points.device)
    if points.ndim < 2 or len(points) < 1 or labels.shape != points.shape[:1]:
        raise ShapeError(
            f"Got points of shape {tuple(points.shape)} with labels of shape {tuple(labels.shape)}; give n points of "
            "at least one feature and n labels."
        )
    points = points.flatten(1)
    points = points if points.is_floating_point() else points.float()
    broken = torch.nonzero(~points.isfinite().all(1))
    if len(broken):
        raise AssayError(f"Point {int(broken[0])} holds NaN or inf; remove it or fill it in.")
    return points.detach(), labels


def check_votes(y: Tensor, k: int) -> None:
    """Is K odd, are there two classes, and has each point k = (K+1)/2 others of either kind?"""
    if k < 1 or k % 2 == 0:
        raise AssayError(f"k={k} nearest neighbours can tie or are none; give an odd number of at least 1.")
    votes = (k + 1) // 2
    kinds, sizes = torch.unique(y, return_counts=True)
    if len(kinds) < 2:
        raise AssayError(f"All {len(y)} points are of class {kinds.tolist()[0]}; a metric needs at least 2 classes.")
    small = int(sizes.argmin())
    if int(sizes[small]) < votes + 1:
        raise AssayError(
            f"Class {kinds.tolist()[small]} has {int(sizes[small])} points; leave-one-out with k={k} needs {votes + 1} "
            "in each class: add points or drop the class."
        )
    if len(y) - int(sizes.max()) < votes:
        kind = kinds.tolist()[int(sizes.argmax())]
        raise AssayError(f"Only {len(y) - int(sizes.max())} points are not of class {kind}; k={k} needs {votes}.")


class _Kept(NamedTuple):
    """Candidates of one kind for every point, under the metric of the last search."""

    ids: Tensor  # n spare, nearest first
    unfit: Tensor  # n spare, True where the class has no more points
    reach: Tensor  # n 1, distance that every point not kept has at least


class _Near:
    """Draws one of the c nearest same-class and other-class points of any point, under whatever metric.

    The metric moves little from step to step, so `SPARE` c candidates of each kind are kept from the last search, with
    `reach`, the distance under the G_0 of then that every other point has at least. Under G every other point is then
    at least sigma_min(G G_0^-1) reach away; where the c-th best candidate is nearer than that, the candidates hold the
    c nearest, and where it is not they are sought again among all. The draw is the same as with no candidates kept.
    """

    def __init__(self, x: Tensor, y: Tensor, c: int) -> None:
        self.x, self.y, self.c = x, y, min(c, len(x) - 1)
        _, kind, sizes = torch.unique(y, return_inverse=True, return_counts=True)
        size = sizes[kind][:, None]
        self.limits = ((size - 1).clamp(max=self.c), (len(x) - size).clamp(max=self.c))  # n 1, n 1
        self.inverse: Tensor | None = None  # of G_0
        self.kept: tuple[_Kept, ...] = ()

    def draw(self, factor: Tensor, rows: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:  # t -> t, t
        z = self.x @ factor.T
        square = factor.shape[0] == factor.shape[1] <= FEW_FEATURES
        nearest = self._nearest(z, factor, rows) if square else [ids for _, ids in self._search(z, rows, self.c)]
        same, other = (
            ids.gather(1, (torch.rand(len(rows), 1, generator=rng, device=z.device) * limit[rows]).long())[:, 0]
            for ids, limit in zip(nearest, self.limits, strict=True)
        )
        return same, other

    def _nearest(self, z: Tensor, factor: Tensor, rows: Tensor) -> list[Tensor]:  # -> t c, t c
        nearest, doubtful = self._among_kept(z, factor, rows)
        if len(doubtful) > SEARCH_AGAIN * len(rows):
            inverse, singular = torch.linalg.inv_ex(factor)
            self.inverse = None if int(singular) else inverse
            everyone = torch.arange(len(z), device=z.device)
            self.kept = tuple(
                _Kept(ids, away.isinf(), away[:, -1:].clamp_min(0).sqrt())
                for away, ids in self._search(z, everyone, min(SPARE * self.c, len(z) - 1))
            )
            return [kept.ids[rows, : self.c] for kept in self.kept]
        if len(doubtful):
            for ids, (_, found) in zip(nearest, self._search(z, rows[doubtful], self.c), strict=True):
                ids[doubtful] = found
        return nearest

    def _among_kept(self, z: Tensor, factor: Tensor, rows: Tensor) -> tuple[list[Tensor], Tensor]:
        """The c nearest among the candidates of either kind, and the places in `rows` where others may be nearer."""
        if not self.kept or self.inverse is None:
            return [], torch.arange(len(rows), device=z.device)
        shrink = torch.linalg.svdvals(factor @ self.inverse)[-1]
        sure = torch.ones(len(rows), 1, dtype=torch.bool, device=z.device)
        nearest = []
        for kept, limit in zip(self.kept, self.limits, strict=True):
            ids, unfit, reach = (t.index_select(0, rows) for t in kept)  # a third of the time of t[rows] (measured)
            there = z.index_select(0, ids.flatten()).view(*ids.shape, -1)  # t spare r
            away = there.sub_(z.index_select(0, rows)[:, None]).square_().sum(2).masked_fill_(unfit, torch.inf)
            best = away.topk(self.c, largest=False)
            sure &= best.values.gather(1, limit[rows] - 1) <= (shrink * reach).square()
            nearest.append(ids.gather(1, best.indices))
        return nearest, torch.nonzero(~sure[:, 0])[:, 0]

    def _search(self, z: Tensor, rows: Tensor, count: int) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """For either kind the squared distances of the `count` nearest, in order, and which they are: t count each."""
        to = torch.cat((-2 * z, z.square().sum(1, keepdim=True)), 1).T.contiguous()  # r+1 n
        tables: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []
        for part in torch.split(rows, max(1, CELLS // len(z))):
            here = z[part]
            away = torch.cat((here, torch.ones_like(here[:, :1])), 1) @ to  # t n, less |here|^2
            same = self.y[part, None] == self.y
            other = away.masked_fill(same, torch.inf).topk(count, largest=False)
            away.masked_fill_(~same, torch.inf).scatter_(1, part[:, None], torch.inf)
            own, like = here.square().sum(1, keepdim=True), away.topk(count, largest=False)
            tables.append((like.values + own, like.indices, other.values + own, other.indices))
        a, b, c, d = (torch.cat(column) for column in zip(*tables, strict=True))
        return (a, b), (c, d)
