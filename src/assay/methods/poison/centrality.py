r"""The labels that a graph calls important: what an enemy without mathematics would change.

    degree_i = sum_k S_ik,   rank = (1 - damping) / n + damping S D^{-1} rank

Source: baselines of Liu, 'Building Trustworthy Machine Learning Models', UCLA 2021, sec. 1.2.6; PageRank: Brin & Page,
    1998. How they become changes stands in an appendix that the thesis lacks. Read here as: the most central labels are
    flipped; targets move in proportion to centrality, with random signs.
"""

from __future__ import annotations

import numpy as np

from assay.errors import AssayError
from assay.methods.poison.flips import Ints
from assay.methods.poison.propagation import Array, Graph


def degree(graph: Graph) -> Array:  # n n -> n
    return np.asarray(graph.sum(1)).ravel()


def pagerank(graph: Graph, *, damping: float = 0.85, close: float = 1e-12, most: int = 1000) -> Array:  # n n -> n
    """By power iteration; a node without ties hands its share to all."""
    if not 0 <= damping < 1:
        raise AssayError(f"Got damping={damping:g}; PageRank wants it from 0 to below 1.")
    out = degree(graph)
    n, tied = len(out), out > 0
    share = np.where(tied, 1 / np.where(tied, out, 1), 0.0)
    rank = np.full(n, 1 / n)
    for _ in range(most):
        spread = np.asarray(graph.T @ (rank * share)).ravel() + rank[~tied].sum() / n
        new: Array = (1 - damping) / n + damping * spread
        rank, moved = new, float(np.abs(new - rank).sum())
        if moved <= close:
            break
    return rank


def most_central(scores: Array, labelled: int, most: int) -> Ints:  # n -> c
    """The labelled nodes, which come first, with the highest scores."""
    return np.argsort(-scores[:labelled], kind="stable")[:most]


def central_change(scores: Array, radius: float, rng: np.random.Generator) -> Array:  # l -> l
    """A change of targets in proportion to these scores, with random signs."""
    change = scores * rng.choice([-1.0, 1.0], len(scores))
    return np.asarray(radius * change / np.linalg.norm(change))


def random_change(labels: int, radius: float, rng: np.random.Generator) -> Array:  # -> l
    """A Gaussian direction."""
    change = rng.normal(size=labels)
    return np.asarray(radius * change / np.linalg.norm(change))
