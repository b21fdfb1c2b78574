"""QP-verify: a radius within which no change flips a K-nearest-neighbour classifier, in closed form."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from assay.errors import AssayError
from assay.methods.certify.nearest_cell import Floats, Query, Space, open_inputs, open_space, pair, queries, smallest

BLOCK = 1024  # wrong points that are bounded at a time
EXTRA = 24  # same-class points for the first, rough bound, beside the s that it needs


def certified_radius(
    train_x: ArrayLike,
    train_y: ArrayLike,
    x: ArrayLike,
    y: ArrayLike,
    k: int = 3,
    *,
    metric: ArrayLike | None = None,
    factor: ArrayLike | None = None,
    among: int | None = None,
) -> Floats:
    r"""An l2 radius within which each input keeps its label under K-NN, for odd K: n *d, n -> n.

        eps* >= s-th smallest over j of ( s-th largest over i of e_ij ),   s = (K + 1) / 2

    i over the training points of the input's label y, j over all others, e_ij the distance to the bisector (`pair`).
    Below it at least s of the K neighbours carry y, whatever the rule for ties. 0 for a misclassified input, and also
    where y wins with fewer than s votes. `among` takes only that many i, those nearest to z: sound and looser.
    `metric` is M, or `factor` is G with M = G'G; the radius is in the plain l2 norm of the input.

    Source: Lemma 3 (eq. 3.12, 3.18), Theorem 3 (eq. 3.46) for metrics; see `nearest`.
    Departs from print: j that a few of the i, or the triangle inequality, put beyond the s-th smallest so far are not
        bounded with all i, so that few of the n^2 pairs are looked at. The answer is the same.
    """
    check_votes(k)
    if among is not None and among < 1:
        raise AssayError(f"among must be 1 or more, got {among}.")
    space = open_space(train_x, train_y, metric, factor)
    check_size(k, space)
    z, c = open_inputs(space, x, y)
    return np.array([bound_of(space, query, (k + 1) // 2, among) for _, query in queries(space, z, c)])


def check_votes(k: int) -> None:
    if k < 1 or k % 2 == 0:
        raise AssayError(f"K must be odd, so that two classes cannot tie; got {k}. Take {max(k - 1, 1)} or {k + 1}.")


def check_size(k: int, space: Space) -> None:
    if k > len(space):
        raise AssayError(f"K is {k} and there are {len(space)} training points; take K of at most that many.")


def bound_of(space: Space, query: Query, s: int, among: int | None) -> float:
    own, distance = space.own(query.c), query.distance
    wrong = space.others(query.c)
    if len(wrong) < s:
        return np.inf  # others can never have s votes
    line = own.start + smallest(distance[own], own.stop - own.start if among is None else among)
    if len(line) < s:
        return 0.0

    def sth_largest(table: Floats) -> Floats:  # j i -> j
        return np.partition(table, table.shape[1] - s, axis=1)[:, table.shape[1] - s]

    wrong = wrong[np.argsort(distance[wrong])]
    lowest = np.sort(sth_largest(pair(space, distance, wrong[:s], line)))  # s
    root = np.sqrt(distance[wrong])
    # The s points next to z alone put each j at (root_j - root_i) / (2 ||G||) or beyond.
    base = float(np.sqrt(distance[line[s - 1]])) + 1e-9 * float(root[-1])
    for start in range(s, len(wrong), BLOCK):
        if root[start] >= base + 2 * space.stretch * lowest[-1]:
            break
        block = wrong[start : start + BLOCK]
        rough = sth_largest(pair(space, distance, block, line[: s + EXTRA]))
        block = block[rough < lowest[-1]]
        if len(block):
            lowest = np.sort(np.concatenate([lowest, sth_largest(pair(space, distance, block, line))]))[:s]
    return float(lowest[-1])
