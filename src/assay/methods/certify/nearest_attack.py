"""Attacks on K-nearest-neighbour classifiers: QP-greedy and the baselines it was published with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from assay.errors import AssayError
from assay.methods.certify.nearest_bound import check_size, check_votes
from assay.methods.certify.nearest_cell import (
    CHUNK,
    Box,
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
    queries,
    smallest,
)
from assay.methods.certify.nearest_exact import TOLERANCE, Found, exact_radius
from assay.methods.certify.nearest_qp import least_l2

Method = Literal["greedy", "naive", "mean", "substitute"]
MARGIN = 1e-9  # by which K > 1 neighbours must be nearer, over the distance to the pivot: rounding must not decide
PATIENCE = 500  # pivots that greedy tries before it gives up
HALVINGS = 30  # of a line: more would leave the point to rounding
STEP, STEPS = 0.1, 1000  # of substitute


def attack(
    train_x: ArrayLike,
    train_y: ArrayLike,
    x: ArrayLike,
    y: ArrayLike,
    k: int = 1,
    *,
    method: Method = "greedy",
    top: int = 10,
    metric: ArrayLike | None = None,
    factor: ArrayLike | None = None,
    box: tuple[ArrayLike, ArrayLike] | None = None,
) -> Radius:
    r"""A small l2 change of each input that breaks K-NN: n *d, n -> Radius. With s = (K + 1) / 2:

    - `greedy` (QP-top-m for K = 1): for each of the `top` wrong points x_j nearest to z, and on until one is feasible,
      the shortest d that brings the s points of j's class next to x_j (J) no farther than every point of other classes
      but the s - 1 nearest to z (I):  min ||d||  s.t.  d_M(z + d, x_j) <= d_M(z + d, x_i), j in J, i not in I.
    - `naive`: bisect on the line to each of the `top` nearest wrong points (K > 1: to the mean of J).
    - `mean`: bisect on the line to the nearest mean of another class.
    - `substitute` (K = 1): normalised steps of 0.1 up the loss of the softmax of -d_M(z, x_i), summed over each class.

    An input is broken when another label has strictly more votes, so under every rule for ties. For K = 1 `greedy`
    gives a point on the boundary itself, as `exact_radius` does.

    Source: Algorithm 6 (eq. 3.17) and the methods compared in sec. 3.1.5; see `nearest`.
    Departs from print: where K > 1, J has to be nearer by a hair, and the vote is taken anew before a change counts.
        The gradient of substitute is written as (1 - p_y) times the difference of two softmax means, without which it
        underflows.
    """
    check_votes(k)
    if top < 1:
        raise AssayError(f"top must be 1 or more, got {top}.")
    if method not in ("greedy", "naive", "mean", "substitute"):
        raise AssayError(f"There is no method {method!r}; choose greedy, naive, mean or substitute.")
    if method == "substitute" and k != 1:
        raise AssayError(f"substitute attacks K = 1 only, got K = {k}; choose greedy, naive or mean.")
    if method == "greedy" and k == 1:
        return exact_radius(train_x, train_y, x, y, metric=metric, factor=factor, box=box, top=top)
    space = open_space(train_x, train_y, metric, factor)
    check_size(k, space)
    z, c = open_inputs(space, x, y)
    means = np.stack([space.x[space.own(one)].mean(0) for one in range(len(space.label))])
    work: dict[Method, Callable[[Query], Found]] = {
        "greedy": lambda query: greedy(space, query, k, top),
        "naive": lambda query: naive(space, query, k, top),
        "mean": lambda query: towards(space, query, k, *nearest_mean(space, query, means)),
    }
    room = open_box(box, x)
    found: dict[int, Found] = {}
    waiting = []
    for n, query in queries(space, z, c, room):
        if is_wrong(space, query) if k == 1 else is_broken(space, query.distance, query.c, k):
            continue
        if method == "substitute":
            waiting.append(n)
        else:
            found[n] = work[method](query)
    size = max(1, CHUNK // (4 * len(space)))
    for start in range(0, len(waiting), size):
        part = np.array(waiting[start : start + size])
        walls = None if room is None else Box(room[0][part], room[1][part])
        found.update(zip(part.tolist(), substitute(space, z[part], c[part], walls), strict=True))
    radius, point, neighbour = np.zeros(len(z)), z.copy(), np.full(len(z), -1)
    programs, ended = np.zeros(len(z), dtype=np.int64), np.full(len(z), "misclassified")
    for n, one in found.items():
        radius[n], programs[n] = one.size, one.count
        ended[n] = "stalled" if one.stalled else "unreachable" if one.d is None else "solved"
        if one.d is not None:
            point[n], neighbour[n] = z[n] + one.d, -1 if one.j < 0 else space.order[one.j]
    return Radius(radius, (point + space.centre).reshape(np.shape(x)), neighbour, programs, ended)


def is_broken(space: Space, distance: Floats, c: int, k: int) -> bool:
    """Has another label strictly more of the k votes than label c? n -> bool."""
    voters = np.argpartition(distance, k - 1)[:k]
    votes = np.bincount(np.searchsorted(space.edge, voters, side="right") - 1, minlength=len(space.label))
    return bool(np.delete(votes, c).max() > votes[c])


def around(space: Space, j: int, s: int) -> tuple[Ints, slice]:
    """The s points of j's class that are nearest to it, itself the first, and the rows of that class."""
    kin = space.own(int(np.searchsorted(space.edge, j, side="right")) - 1)
    away = space.square[kin] - 2 * space.u[kin] @ space.u[j]  # less |u_j|^2
    return kin.start + smallest(away, s), kin


def pivots(space: Space, query: Query, count: int) -> Ints:
    """The wrong points nearest to the input, in order."""
    wrong = space.others(query.c)
    return wrong[smallest(query.distance[wrong], count)]


def greedy(space: Space, query: Query, k: int, top: int) -> Found:
    found, s = Found(), (k + 1) // 2
    for turn, j in enumerate(pivots(space, query, max(top, PATIENCE))):
        if turn >= top and found.d is not None:
            break
        near, kin = around(space, int(j), s)
        if len(near) < s:
            continue
        distance = query.distance.copy()
        distance[kin] = np.inf
        spared = np.concatenate([np.arange(kin.start, kin.stop), smallest(distance, s - 1)])
        scale = float(np.linalg.norm(space.x[j] - query.z))
        cell = Cell(space, query, near, slice(0, len(space)), but=spared, walls=query.box, margin=MARGIN * scale)
        solved = least_l2(cell, len(query.z), limit=found.size, tolerance=TOLERANCE[2] * scale)
        if solved.d is not None:
            seen = space.distances(space.embed(query.z + solved.d)[None])[0]
            if not is_broken(space, seen, query.c, k):
                solved = solved._replace(d=None)
        found.add(int(j), solved)
    return found


def naive(space: Space, query: Query, k: int, top: int) -> Found:
    j = pivots(space, query, top)
    if k == 1:
        return towards(space, query, k, space.x[j], j)
    s = (k + 1) // 2
    return towards(space, query, k, np.stack([space.x[around(space, int(one), s)[0]].mean(0) for one in j]), j)


def nearest_mean(space: Space, query: Query, means: Floats) -> tuple[Floats, Ints]:
    """The mean of another class that is nearest to the input: 1 d, and -1 for its place."""
    away = ((space.embed(means) - query.w) ** 2).sum(1)
    away[query.c] = np.inf
    return means[away.argmin()][None], np.array([-1])


def towards(space: Space, query: Query, k: int, ends: Floats, j: Ints) -> Found:
    """Bisect on the lines from the input to some ends, m d, for the point where the vote breaks."""
    found = Found()
    w = space.embed(ends) - query.w  # m r
    slope = 2 * (w @ space.u.T - (w @ query.w)[:, None])  # m n; squared distances at t, up to a constant: D - t slope
    for end, lean, one in zip(ends, slope, j, strict=True):
        d = end - query.z
        if query.box is not None and ((d < query.box.low) | (d > query.box.high)).any():
            continue
        low, high = 0.0, 1.0
        if not is_broken(space, query.distance - lean, query.c, k):
            continue
        for _ in range(HALVINGS):
            mid = (low + high) / 2
            if is_broken(space, query.distance - mid * lean, query.c, k):
                high = mid
            else:
                low = mid
        if (size := high * float(np.linalg.norm(d))) < found.size:
            found.size, found.d, found.j = size, high * d, int(one)
    return found


def substitute(space: Space, z: Floats, c: Ints, walls: Box | None) -> list[Found]:
    """Climb the loss of the softmax for several inputs at once, m d, until each is broken."""
    found = [Found() for _ in z]
    code = np.repeat(np.arange(len(space.label)), np.diff(space.edge))  # n
    d, at = np.zeros_like(z), np.arange(len(z))  # `at` are those that stand
    for _ in range(STEPS):
        logit = -space.distances(space.embed(z[at] + d[at]))  # m n
        held = code[logit.argmax(1)] == c[at]
        for row, best in zip(at[~held], logit.argmax(1)[~held], strict=True):
            found[row].size, found[row].d, found[row].j = float(np.linalg.norm(d[row])), d[row], int(best)
        at, logit = at[held], logit[held]
        if not len(at):
            break
        own = code == c[at, None]  # m n
        for side in (own, ~own):
            logit -= np.where(side, np.where(side, logit, -np.inf).max(1, keepdims=True), 0)
        weight = np.exp(logit)
        for side in (own, ~own):
            weight /= np.where(side, (weight * side).sum(1, keepdims=True), 1)
        way = np.where(own, -weight, weight) @ space.v  # m d, the gradient over 2 (1 - p_y)
        d[at] += STEP * way / np.maximum(np.linalg.norm(way, axis=1, keepdims=True), 1e-300)
        if walls is not None:
            d[at] = np.clip(d[at], walls.low[at], walls.high[at])
    return found
