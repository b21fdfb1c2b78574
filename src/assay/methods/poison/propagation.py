r"""Label propagation: the learner whose labels an enemy changes.

    S_ij = exp(-gamma |x_i - x_j|^2),   D = diag(sum_k S_ik)
    y_u = K y_l,   K = (D_uu - S_uu)^{-1} S_ul

The answers of unlabelled nodes (u) that minimise sum_ij S_ij (y_i - y_j)^2 with the labels (l) held. No entry of K is
below 0 and every row sums to 1, so that an answer is a mean of labels.

Source: Zhu, Ghahramani & Lafferty, ICML 2003; as the victim of poisoning: Liu, 'Building Trustworthy Machine Learning
    Models', UCLA 2021, sec. 1.2.1 and eq. 1.1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import linalg, sparse
from scipy.sparse import csgraph
from scipy.sparse.linalg import LinearOperator, splu

from assay.errors import AssayError, ShapeError

Array = NDArray[np.float64]
Graph = Any  # an array, or a csr_array of scipy, which has no types
UNSURE = 1e-6  # a row of K that misses 1 by more was lost to rounding
BLOCK = 1024  # rows whose distances to all others are held at once


@dataclass(frozen=True)
class Propagation:
    """What label propagation makes of labels on one graph, whose labelled nodes come first."""

    graph: Graph  # S: n n
    solve: Callable[[Array], Array]  # (D_uu - S_uu)^{-1} b
    labelled: int

    @property
    def across(self) -> Graph:  # u l
        """S_ul."""
        return self.graph[self.labelled :, : self.labelled]

    @cached_property
    def K(self) -> Array:  # u l
        """The whole matrix; where its products serve, `matmul` and `rmatmul` need not form it."""
        across = self.across
        return self.solve(across.toarray() if sparse.issparse(across) else across)

    def matmul(self, labels: Array) -> Array:  # l, or l k -> u, or u k
        """K times these."""
        return self.solve(self.across @ labels)

    def rmatmul(self, weights: Array) -> Array:  # u, or u k -> l, or l k
        """K transposed times these."""
        return np.asarray(self.across.T @ self.solve(weights))

    @property
    def operator(self) -> LinearOperator:
        """K by its products alone."""
        shape = (self.graph.shape[0] - self.labelled, self.labelled)
        return LinearOperator(
            shape, self.matmul, self.rmatmul, matmat=self.matmul, rmatmat=self.rmatmul, dtype=np.dtype(np.float64)
        )

    def predict(self, labels: Array) -> Array:  # l, or l k -> u, or u k
        """The answers, which are means of labels; `signs` reads classes out of them."""
        return self.matmul(np.asarray(labels, np.float64))


def propagate(
    labelled: Array, unlabelled: Array, gamma: float, *, neighbours: int | None = None
) -> Propagation:  # l d, u d
    """The graph of these rows and what it makes of labels.

    With `neighbours`, each row is tied to so many nearest ones alone, and all is sparse.
    """
    if not len(labelled) or not len(unlabelled):
        raise AssayError(f"Got {len(labelled)} labelled and {len(unlabelled)} unlabelled rows; give at least one each.")
    labelled, unlabelled = (np.asarray(rows, np.float64).reshape(len(rows), -1) for rows in (labelled, unlabelled))
    if labelled.shape[1] != unlabelled.shape[1]:
        raise ShapeError(
            f"Got labelled rows of {labelled.shape[1]} features and unlabelled ones of {unlabelled.shape[1]}; "
            "give the same features for both."
        )
    rows = np.concatenate([labelled, unlabelled])
    told = f"gamma={gamma:g}" + (f" with {neighbours} neighbours" if neighbours else "")
    return on_graph(affinity(rows, gamma, neighbours=neighbours), len(labelled), told=told)


def affinity(rows: Array, gamma: float, *, neighbours: int | None = None) -> Graph:  # n d -> n n
    """S: the Gaussian kernel of all pairs, or of each row and its nearest ones (tied if either counts the other).

    Departs from print: no node is tied to itself. That tie cancels in D - S, but would drown weak ones in rounding.
    """
    if not gamma > 0:
        raise AssayError(f"Got gamma={gamma:g}; the width of the Gaussian kernel wants gamma > 0.")
    rows = np.asarray(rows, np.float64)
    broken = np.flatnonzero(~np.isfinite(rows).all(1))
    if len(broken):
        raise AssayError(f"Row {broken[0]} holds NaN or inf; leave that row out.")
    if neighbours is None:
        apart = squared_distances(rows, rows)
        apart *= -gamma
        np.exp(apart, out=apart)
        np.fill_diagonal(apart, 0)
        return apart
    if not 1 <= neighbours < len(rows):
        raise AssayError(f"Got neighbours={neighbours} for {len(rows)} rows; it wants 1 to {len(rows) - 1}.")
    apart, near = _nearest(rows, neighbours)
    ends = np.arange(0, near.size + 1, neighbours)
    one_way = sparse.csr_array((np.exp(-gamma * apart.ravel()), near.ravel(), ends), shape=(len(rows), len(rows)))
    return sparse.csr_array(one_way.maximum(one_way.T))


def on_graph(graph: Graph, labelled: int, *, told: str = "these weights") -> Propagation:
    """Label propagation on a graph whose first nodes are labelled; one line if some node has no way to a label."""
    inner, across = graph[labelled:, labelled:], graph[labelled:, :labelled]
    degree, given = np.asarray(inner.sum(1) + across.sum(1)), np.asarray(across.sum(1))
    _no_island(np.flatnonzero(degree == 0), told)
    # Scaled to a diagonal of 1, so that nodes whose ties are all weak are as exact as the rest.
    scale = 1 / np.sqrt(degree)
    try:
        inverse = (_sparse if sparse.issparse(graph) else _dense)(inner, scale)
    except (linalg.LinAlgError, RuntimeError):
        ties = sparse.csr_array(inner > np.finfo(float).eps * degree[:, None])
        _no_island(_unreached(ties, given > np.finfo(float).eps * degree), told)
        raise AssayError(
            f"Label propagation at {told} is lost to rounding: some unlabelled nodes hang on labels by ties that are "
            "too weak to be told from none; take a smaller gamma."
        ) from None

    def solve(b: Array) -> Array:
        wide = scale if b.ndim == 1 else scale[:, None]
        return np.asarray(wide * inverse(wide * b))

    _no_island(np.flatnonzero(~(np.abs(solve(given) - 1) < UNSURE)), told)
    return Propagation(graph, solve, labelled)


class Reduced(NamedTuple):
    """A graph on its first nodes alone, whose answers there are those of the whole; the rest follow by `carry`."""

    graph: Array  # k k
    carry: Array  # n-k k

    def propagated(self, labelled: NDArray[np.int64]) -> tuple[Array, NDArray[np.int64]]:  # l -> n-l l, n-l
        """K of the whole graph for these labelled nodes, and which node each row is: kept ones first, then the rest."""
        kept = np.arange(len(self.graph))
        others = np.setdiff1d(kept, labelled)
        order = np.concatenate([labelled, others])
        if len(others):
            among = on_graph(self.graph[np.ix_(order, order)], len(labelled)).K
        else:
            among = np.zeros((0, len(labelled)))
        rest = self.carry[:, labelled] + self.carry[:, others] @ among
        return np.concatenate([among, rest]), np.concatenate([others, len(kept) + np.arange(len(rest))])


def reduced(graph: Graph, kept: int, *, told: str = "these weights") -> Reduced:  # n n
    """All nodes but the first `kept` eliminated, once for every choice of labels among these (Kron reduction)."""
    whole = on_graph(graph, kept, told=told)
    ties = whole.across.T @ whole.K  # sums of what is not negative: nothing cancels
    ties += graph[:kept, :kept]
    ties = (ties + ties.T) / 2
    np.fill_diagonal(ties, 0)
    return Reduced(ties, whole.K)


def signs(scores: Array) -> NDArray[np.int64]:
    """+1 or -1; a score of exactly 0 counts as +1."""
    return np.where(scores >= 0, 1, -1)


def undecided(scores: Array) -> int:
    """How many scores are exactly 0, and were called +1 for want of anything else."""
    return int((scores == 0).sum())


def squared_distances(a: Array, b: Array) -> Array:  # m d, n d -> m n
    """By one product; the rows are centred, so that little is lost to rounding."""
    centre = b.mean(0)
    same, a, b = a is b, a - centre, b - centre
    b = a if same else b  # a product with itself is symmetric to the bit
    apart = a @ b.T
    apart *= -2
    apart += (a * a).sum(1)[:, None]
    apart += (b * b).sum(1)
    return np.maximum(apart, 0, out=apart)


def _nearest(rows: Array, count: int) -> tuple[Array, NDArray[np.int64]]:  # n k, n k
    """Squared distances to the nearest other rows, and which these are."""
    if rows.shape[1] <= 16:  # a tree is faster in few dimensions alone
        from scipy.spatial import cKDTree

        apart, near = cKDTree(rows).query(rows, count + 1)
        others = _without_self(near)
        return apart[others].reshape(-1, count) ** 2, near[others].reshape(-1, count)
    blocks = []
    for start in range(0, len(rows), BLOCK):
        apart = squared_distances(rows[start : start + BLOCK], rows)
        apart[np.arange(len(apart)), start + np.arange(len(apart))] = np.inf
        near = np.argpartition(apart, count - 1, axis=1)[:, :count]
        blocks.append((np.take_along_axis(apart, near, 1), near))
    apart, near = (np.concatenate(each) for each in zip(*blocks, strict=True))
    return apart, near


def _without_self(near: NDArray[np.int64]) -> NDArray[np.bool_]:  # n k+1
    """All but the row itself; of rows with many equals, which crowd it out, all but the last."""
    mine = near == np.arange(len(near))[:, None]
    mine[~mine.any(1), -1] = True
    return np.asarray(~mine)


def _dense(inner: Array, scale: Array) -> Callable[[Array], Array]:
    system = -inner
    system *= scale
    system *= scale[:, None]
    np.fill_diagonal(system, 1)
    factor = linalg.cho_factor(system.T, lower=True, overwrite_a=True, check_finite=False)
    return lambda b: linalg.cho_solve(factor, b, overwrite_b=True, check_finite=False)


def _sparse(inner: sparse.csr_array, scale: Array) -> Callable[[Array], Array]:
    by = sparse.diags_array(scale)
    system = sparse.eye_array(len(scale)) - by @ inner @ by
    factor = splu(system.tocsc(), permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0.0, options={"SymmetricMode": True})
    return lambda b: np.asarray(factor.solve(b))


def _unreached(ties: sparse.csr_array, given: NDArray[np.bool_]) -> NDArray[np.int64]:  # u u, u
    """Nodes of the parts of the graph in which no node is tied to a label."""
    _, part = csgraph.connected_components(ties, directed=False)
    return np.flatnonzero(~np.isin(part, part[given]))


def _no_island(nodes: NDArray[np.int64], told: str) -> None:
    if len(nodes):
        first = ", ".join(str(node) for node in nodes[:5]) + (", ..." if len(nodes) > 5 else "")
        what = "1 unlabelled node has" if len(nodes) == 1 else f"{len(nodes)} unlabelled nodes have"
        raise AssayError(
            f"{what} no way to a label at {told} (rows {first} of the unlabelled); "
            "take a smaller gamma, or leave them out."
        )
