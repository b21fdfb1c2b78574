"""QP-exact: the distance from an input to the decision boundary of a 1-nearest-neighbour classifier."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from assay.errors import AssayError
from assay.methods.certify.nearest_cell import (
    Cell,
    Floats,
    Ints,
    Query,
    Radius,
    Space,
    is_wrong,
    open_box,
    open_inputs,
    open_space,
    pair,
    queries,
    smallest,
)
from assay.methods.certify.nearest_linear import least_linear
from assay.methods.certify.nearest_qp import Solved, least_l2

TOLERANCE = {2: 1e-11, 1: 1e-9, np.inf: 1e-9}  # violation of a unit row, over the distance to the wrong point
BLOCK = 1024  # wrong points that are bounded at a time


def exact_radius(
    train_x: ArrayLike,
    train_y: ArrayLike,
    x: ArrayLike,
    y: ArrayLike,
    norm: float = 2,
    *,
    metric: ArrayLike | None = None,
    factor: ArrayLike | None = None,
    box: tuple[ArrayLike, ArrayLike] | None = None,
    screen: int = 8,
    top: int | None = None,
) -> Radius:
    r"""The distance from each input to the nearest cell of another class under 1-NN: n *d, n -> Radius.

        eps* = min_j ||d_j||,   d_j = argmin_d ||d||  s.t.  d_M(z + d, x_j) <= d_M(z + d, x_i)  for all i with y_i = y

    over the training points j of other classes: the exact attack and the exact certificate at once, in norm 2, inf or
    1. `point` lies on the boundary; to flip the answer, step from it towards the training point `neighbour`. Each j is
    a programme in d; nearly all are screened away by the bound `pair` with the `screen` same-class points next to z,
    and one ends early when its dual passes the smallest norm so far. `screen=0` solves every programme to its end.
    `metric` is M, or `factor` is G with M = G'G. `box`: two sides that the changed input stays between. `top`: only
    that many j, those nearest to z (QP-top-m, an upper bound).

    Source: Algorithm 5 (eq. 3.3 to 3.16), eq. 3.20 and 3.21, Algorithm 8 for metrics; see `nearest`.
    Departs from print: after the nearest j, j are taken by lower bound within blocks by distance, and those farther
        than ||G(z - x_i)|| + 2 eps ||G|| not at all, by the triangle inequality. Rows are made when they are violated,
        where the print holds all and drops those of Lemma 2. Neither changes the answer.
    """
    if norm not in TOLERANCE:
        raise AssayError(f"There is no norm {norm!r} here; choose 2, 1 or inf.")
    if screen < 0 or (top is not None and top < 1):
        raise AssayError(f"screen must be 0 or more and top 1 or more; got {screen=}, {top=}.")
    space = open_space(train_x, train_y, metric, factor)
    z, c = open_inputs(space, x, y)
    radius, point, neighbour = np.zeros(len(z)), z.copy(), np.full(len(z), -1)
    programs, ended = np.zeros(len(z), dtype=np.int64), np.full(len(z), "misclassified")
    for k, query in queries(space, z, c, open_box(box, x)):
        if is_wrong(space, query):
            continue
        found = Found()
        nearest_cell(space, query, norm, screen, top, found)
        programs[k], radius[k] = found.count, found.size
        ended[k] = "stalled" if found.stalled else "unreachable" if found.d is None else "solved"
        if found.d is not None:
            point[k], neighbour[k] = z[k] + found.d, space.order[found.j]
    return Radius(radius, (point + space.centre).reshape(np.shape(x)), neighbour, programs, ended)


class Found:
    """The best of the programmes that were solved."""

    def __init__(self) -> None:
        self.size, self.j, self.count, self.stalled = np.inf, -1, 0, False
        self.d: Floats | None = None

    def add(self, j: int, solved: Solved) -> None:
        self.count += 1
        self.stalled |= not solved.finished
        if solved.d is not None and solved.bound < self.size:
            self.size, self.d, self.j = solved.bound, solved.d, j


def nearest_cell(space: Space, query: Query, norm: float, screen: int, top: int | None, found: Found) -> None:
    """Search the cells of one input."""
    own, distance = space.own(query.c), query.distance
    wrong = space.others(query.c)
    if top is not None:
        wrong = wrong[smallest(distance[wrong], top)]
    if not screen:
        for j in wrong:
            found.add(int(j), reach(space, query, int(j), norm, np.inf))
        return
    first = int(wrong[distance[wrong].argmin()])
    found.add(first, reach(space, query, first, norm, np.inf))
    near = own.start + smallest(distance[own], screen)
    # ||a||_q <= stretch ||G(x_j - x_i)||, so that a pair's bound is at least (root_j - root_i) / (2 stretch).
    stretch = space.stretch * (np.sqrt(len(query.z)) if norm == np.inf else 1.0)
    root = np.sqrt(distance[wrong])
    base = float(np.sqrt(distance[near[0]])) + 1e-9 * float(root.max())
    wrong = within(wrong, root, base + 2 * stretch * found.size)
    wrong = wrong[np.argsort(distance[wrong])]
    for block in np.split(wrong, range(BLOCK, len(wrong), BLOCK)):
        block = within(block, np.sqrt(distance[block]), base + 2 * stretch * found.size)
        bound = pair(space, distance, block, near, norm).max(1)
        for k in np.argsort(bound):
            if bound[k] >= found.size:
                break
            if (j := int(block[k])) != first:
                found.add(j, reach(space, query, j, norm, found.size))


def within(rows: Ints, root: Floats, radius: float) -> Ints:
    return rows[root < radius]


def reach(space: Space, query: Query, j: int, norm: float, limit: float) -> Solved:
    """The smallest change into the cell of point j, unless it is larger than `limit`."""
    tolerance = TOLERANCE[norm] * float(np.linalg.norm(space.x[j] - query.z))
    near, own, dims = np.array([j]), space.own(query.c), len(query.z)
    if norm == 2:
        return least_l2(Cell(space, query, near, own, walls=query.box), dims, limit=limit, tolerance=tolerance)
    cell = Cell(space, query, near, own)
    return least_linear(cell, dims, norm, limit=limit, tolerance=tolerance, box=query.box)
