"""A training set as a nearest-neighbour classifier sees it, and the cells that an input can be moved into."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from assay.errors import AssayError, ShapeError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
PSD_TOLERANCE = 1e-9  # of the largest eigenvalue
ROUNDING = 1e-15  # of a squared length that was computed as |a|^2 - 2 ab + |b|^2
CHUNK = 2**23  # distances that are held at a time, 64 MiB


class Box(NamedTuple):
    """How far each feature of one input may go down (<= 0) and up (>= 0)."""

    low: Floats  # d
    high: Floats  # d


@dataclass(frozen=True)
class Radius:
    """Per input the size of the smallest change found, and where it leads."""

    radius: Floats  # n; 0: misclassified already, inf: nothing reached
    point: Floats  # n *d, the changed input; x itself where radius is 0 or inf
    neighbour: Ints  # n, the training point whose side `point` is on; -1 where there is none
    programs: Ints  # n, quadratic or linear programmes begun
    ended: NDArray[np.str_]  # n; "solved", "misclassified", "unreachable", "stalled": radius is an upper bound only


@dataclass(frozen=True)
class Query:
    """One input before the training set."""

    z: Floats  # d
    w: Floats  # r, Gz
    distance: Floats  # n, squared, to each training point
    c: int  # its class
    box: Box | None


@dataclass(frozen=True)
class Space:
    """Training points, sorted by class and centred, under ||G(x - x')||^2 = (x - x')' M (x - x')."""

    raw: Floats  # n d, as given: neither sorted nor centred
    x: Floats  # n d
    u: Floats  # n r, Gx
    v: Floats  # n d, Mx
    label: NDArray[Any]  # c, the classes in order
    edge: Ints  # c+1, class k lies in rows edge[k] to edge[k+1]
    order: Ints  # n, place of each row in the user's array
    centre: Floats  # d
    factor: Floats | None  # r d, G; None is the identity
    stretch: float  # the largest singular value of G

    def __len__(self) -> int:
        return len(self.x)

    @cached_property
    def square(self) -> Floats:
        """|u|^2: n."""
        return lengths(self.u)

    @cached_property
    def length(self) -> Floats:
        """|v|^2: n."""
        return lengths(self.v)

    @cached_property
    def widest(self) -> float:
        return float(self.square.max())

    @cached_property
    def longest(self) -> float:
        return float(np.sqrt(self.length.max()))

    def embed(self, z: Floats) -> Floats:  # m d -> m r
        return z if self.factor is None else z @ self.factor.T

    def distances(self, w: Floats) -> Floats:
        """Squared distances from embedded inputs to every training point: m r -> m n."""
        out = w @ self.u.T
        out *= -2
        out += self.square
        out += lengths(w)[:, None]
        return np.maximum(out, 0, out=out)

    def own(self, c: int) -> slice:
        """The rows of class c."""
        return slice(int(self.edge[c]), int(self.edge[c + 1]))

    def others(self, c: int) -> Ints:
        """The rows of every other class."""
        return np.concatenate([np.arange(self.edge[c]), np.arange(self.edge[c + 1], len(self))])

    def bisectors(self, j: Ints, i: Ints, w: Floats) -> tuple[Floats, Floats]:
        """The row a'd + b >= 0 of each pair, from differences of the numbers as given: close points lose no digits."""
        step = self.raw[self.order[j]] - self.raw[self.order[i]]  # m d
        middle = self.u[i] + self.u[j] - 2 * w  # m r
        if self.factor is None:
            return step, -np.einsum("md,md->m", step, middle) / 2
        seen = step @ self.factor.T
        return seen @ self.factor, -np.einsum("md,md->m", seen, middle) / 2

    def gaps(self, one: Ints, other: Ints | slice) -> Floats:
        """||v_a - v_b||_2 of every pair, never too small by rounding: a, b -> a b."""
        left, right = self.length[one][:, None], self.length[other]
        product = self.v[one] @ self.v[other].T
        product *= -2
        product += left
        product += right
        np.maximum(product, 0, out=product)
        product += ROUNDING * left  # a bound divides by this: err on the long side
        product += ROUNDING * right
        return np.sqrt(product, out=product)


def lengths(v: Floats) -> Floats:
    """Squared lengths of rows: n d -> n."""
    out: Floats = np.einsum("nd,nd->n", v, v)
    return out


def open_space(train_x: ArrayLike, train_y: ArrayLike, metric: ArrayLike | None, factor: ArrayLike | None) -> Space:
    """Check a training set and a metric, and sort the points by class."""
    raw, y = flat(train_x, "train_x"), np.asarray(train_y)
    if y.shape != (len(raw),):
        raise ShapeError(f"train_y has shape {y.shape} for {len(raw)} training points; it wants one label each.")
    label, code = np.unique(y, return_inverse=True)
    if len(label) < 2:
        raise AssayError(f"All {len(raw)} training points are of class {label.tolist()}; give points of two or more.")
    g, stretch = root_of(metric, factor, raw.shape[1])
    order = np.argsort(code, kind="stable").astype(np.int64)
    centre = raw.mean(0)
    x = raw[order]
    x -= centre  # squared lengths cancel less around the mean
    u = x if g is None else x @ g.T
    v = x if g is None else u @ g
    edge = np.searchsorted(code[order], np.arange(len(label) + 1)).astype(np.int64)
    return Space(raw, x, u, v, label, edge, order, centre, g, stretch)


def root_of(metric: ArrayLike | None, factor: ArrayLike | None, d: int) -> tuple[Floats | None, float]:
    """G with M = G'G and its largest singular value, from M or from G itself."""
    if metric is None and factor is None:
        return None, 1.0
    if metric is not None and factor is not None:
        raise AssayError("Both metric (M) and factor (G, M = G'G) are given; give one of them.")
    if factor is not None:
        g = np.asarray(factor, dtype=np.float64)
        if g.ndim != 2 or g.shape[1] != d or not np.isfinite(g).all():
            raise ShapeError(f"factor has shape {g.shape}; it wants finite numbers, shape (r, {d}).")
        return g, float(np.linalg.norm(g, 2))
    m = np.asarray(metric, dtype=np.float64)
    if m.shape != (d, d) or not np.isfinite(m).all() or not np.allclose(m, m.T, atol=1e-8 * float(np.abs(m).max())):
        raise ShapeError(f"metric has shape {m.shape}; it wants a finite symmetric matrix, shape ({d}, {d}).")
    value, vector = np.linalg.eigh((m + m.T) / 2)
    if value[0] < -PSD_TOLERANCE * abs(value[-1]) or value[-1] <= 0:
        raise AssayError(
            f"metric is not positive semi-definite, or zero: its eigenvalues run from {value[0]:.3g} to "
            f"{value[-1]:.3g}; clip them at 0."
        )
    return np.sqrt(np.maximum(value, 0))[:, None] * vector.T, float(np.sqrt(value[-1]))


def open_inputs(space: Space, x: ArrayLike, y: ArrayLike) -> tuple[Floats, Ints]:
    """Inputs, centred as the training points are, and the index of each one's class: n *d, n -> n d, n."""
    z, y = flat(x, "x"), np.asarray(y)
    if z.shape[1] != space.x.shape[1]:
        raise ShapeError(f"x has {z.shape[1]} features and train_x {space.x.shape[1]}; they must agree.")
    if y.shape != (len(z),):
        raise ShapeError(f"y has shape {y.shape} for {len(z)} inputs; it wants one label each.")
    c = np.minimum(np.searchsorted(space.label, y), len(space.label) - 1)
    absent = np.unique(y[space.label[c] != y])
    if len(absent):
        raise AssayError(f"No training point is of class {absent.tolist()}; add some or leave those inputs out.")
    return z - space.centre, c.astype(np.int64)


def open_box(box: tuple[ArrayLike, ArrayLike] | None, x: ArrayLike) -> tuple[Floats, Floats] | None:
    """The room of each input below and above: n d, n d."""
    if box is None:
        return None
    z = flat(x, "x")
    low, high = (np.asarray(side, dtype=np.float64) for side in box)
    try:
        low, high = (np.broadcast_to(side if side.ndim == 0 else side.ravel(), z.shape[1:]) for side in (low, high))
    except ValueError:
        raise ShapeError(
            f"box sides have shapes {low.shape} and {high.shape}; give numbers or one per feature."
        ) from None
    if not (low <= high).all():
        raise AssayError(f"The box has lower {low.max():g} above upper {high.min():g} somewhere; swap the sides.")
    outside = np.flatnonzero(((z < low) | (z > high)).any(1))
    if len(outside):
        raise AssayError(f"Input {outside[0]} lies outside the box; clip the inputs or widen the box.")
    return low - z, high - z


def flat(x: ArrayLike, name: str) -> Floats:  # n *d -> n d
    out = np.asarray(x, dtype=np.float64)
    if out.ndim < 2 or not len(out):
        raise ShapeError(f"{name} has shape {out.shape}; it wants one row or more, shape (n, ...).")
    bad = np.flatnonzero(~np.isfinite(out.reshape(len(out), -1)).all(1))
    if len(bad):
        raise AssayError(f"{name} holds NaN or infinity in {len(bad)} rows, the first {bad[0]}; mend or drop them.")
    return out.reshape(len(out), -1)


def in_two_classes(train_x: ArrayLike, train_y: ArrayLike) -> str:  # n *d, n
    """One line on the training points that another class holds too, to the bit; empty where there are none.

    They are no error: 1-NN stands on its boundary there, and what is nearest to them has radius 0.
    """
    x, y = flat(train_x, "train_x"), np.unique(np.asarray(train_y), return_inverse=True)[1]
    place = np.unique(x, axis=0, return_inverse=True)[1].ravel()
    classes = np.bincount(np.unique(np.stack([place, y], 1), axis=0)[:, 0])
    shared = np.flatnonzero(classes[place] > 1)
    if not len(shared):
        return ""
    return (
        f"{len(shared)} of {len(x)} training points stand in two classes at once, the first at {shared[0]}: "
        "what is nearest to them has radius 0; clean their labels."
    )


def queries(space: Space, z: Floats, c: Ints, room: tuple[Floats, Floats] | None = None) -> Iterator[tuple[int, Query]]:
    """Each input with its distances to the training points, which are computed a chunk of inputs at a time."""
    for start in range(0, len(z), size := max(1, CHUNK // len(space))):
        w = space.embed(z[start : start + size])
        for k, (one, row) in enumerate(zip(w, space.distances(w), strict=True), start):
            yield k, Query(z[k], one, row, int(c[k]), None if room is None else Box(room[0][k], room[1][k]))


def is_wrong(space: Space, query: Query) -> bool:
    """Is a point of another class as near as any of its own?"""
    own = space.own(query.c)
    i = own.start + int(query.distance[own].argmin())
    rest = query.distance.copy()
    rest[own] = np.inf
    j = int(rest.argmin())
    _, b = space.bisectors(np.array([j]), np.array([i]), query.w)
    return bool(b[0] >= 0)


def smallest(values: Floats, count: int) -> Ints:
    """Indices of the `count` smallest values, in order."""
    at = np.argpartition(values, count - 1)[:count] if 0 < count < len(values) else np.arange(len(values))[:count]
    return at[np.argsort(values[at], kind="stable")]


class Cell:
    r"""Where z + d is no farther from each x_j of `near` than from each x_i of `far`, a row a_ij'd + b_ij >= 0 a pair.

        a_ij = M(x_j - x_i),   b_ij = (d_M(z, x_i) - d_M(z, x_j)) / 2

    The rows are never held: `cut` makes the most violated ones at a point, of unit length, from one product with the
    training points. `margin` asks for that much more than a tie; `but` takes points out of `far`.
    """

    def __init__(
        self,
        space: Space,
        query: Query,
        near: Ints,
        far: slice,
        *,
        but: Ints | None = None,
        walls: Box | None = None,
        margin: float = 0.0,
    ) -> None:
        self.space, self.query, self.near, self.far = space, query, near, far
        self.but, self.walls, self.margin = but, walls, margin
        # a row's slack, before it is scaled, may be above 0 by rounding or by the margin and still be violated
        self.slop = 10 * ROUNDING * space.widest + 2 * margin * space.longest

    def cut(self, d: Floats, most: int, tolerance: float) -> tuple[Floats, Floats]:
        """Up to `most` rows (and as many walls) that d violates by more than the tolerance: d -> m d, m."""
        distance, v = self.query.distance, self.space.v
        nearness = v[self.far] @ d - distance[self.far] / 2  # grows as z + d comes closer
        if self.but is not None:
            nearness[self.but] = -np.inf
        closest = smallest(-nearness, max(1, most // len(self.near)))
        threat = nearness[closest] > (v[self.near] @ d - distance[self.near] / 2).min() - self.slop
        closest = self.far.start + closest[threat]
        j, i = (side.ravel() for side in np.meshgrid(self.near, closest, indexing="ij"))
        a, b = self.rows(j, i)
        bad = a @ d + b < -tolerance
        if self.walls is None:
            return a[bad], b[bad]
        wall, side = self.wall(d, most, tolerance)
        return np.concatenate([a[bad], wall]), np.concatenate([b[bad], side])

    def rows(self, j: Ints, i: Ints) -> tuple[Floats, Floats]:
        """Rows of unit length; those of length 0 are vacuous."""
        a, b = self.space.bisectors(j, i, self.query.w)
        length = np.linalg.norm(a, axis=1)
        real = length > 0
        return a[real] / length[real, None], b[real] / length[real] - self.margin

    def wall(self, d: Floats, most: int, tolerance: float) -> tuple[Floats, Floats]:
        """The sides of the box that d is beyond: d_k - low_k >= 0 and high_k - d_k >= 0."""
        assert self.walls is not None
        slack = np.concatenate([d - self.walls.low, self.walls.high - d])  # 2d
        at = smallest(slack, most)
        side, k = np.divmod(at[slack[at] < -tolerance], len(d))
        a = np.zeros((len(k), len(d)))
        a[np.arange(len(k)), k] = np.where(side == 0, 1.0, -1.0)
        return a, np.where(side == 0, -self.walls.low[k], self.walls.high[k])


def pair(space: Space, distance: Floats, j: Ints, i: Ints, norm: float = 2) -> Floats:
    r"""Distance from z to the bisector of each pair, rounded down: j, i -> j i.

        e_ij = max(d_M(z, x_j) - d_M(z, x_i), 0) / (2 ||M(x_j - x_i)||_q),   q dual to the norm

    Source: eq. 3.11 and 3.44 for l2; the others by the same argument. A pair with Mx_j = Mx_i gives 0.
    """

    from scipy.spatial.distance import cdist

    ahead = distance[j][:, None] - distance[i]
    ahead -= ROUNDING * (space.square[j][:, None] + space.square[i])
    if norm == 2:
        length = space.gaps(j, i)
    else:
        length = cdist(space.v[j], space.v[i], "cityblock" if norm == np.inf else "chebyshev")
    return np.divide(np.maximum(ahead, 0), 2 * length, out=np.zeros_like(length), where=length > 0)
