r"""How bad a mistake is under label trees: precision, recall and F of paths, distance in the tree, common ancestor.

With A(c) the nodes on the way from the root to class c, the root and c with them, a class s said for t costs

    P = |A(s) & A(t)| / |A(s)|,    R = |A(s) & A(t)| / |A(t)|,    TIE = |A(s)| + |A(t)| - 2 |A(s) & A(t)|,
    LCA = the height of the lowest node in A(s) & A(t)

each averaged over the trees and then over the inputs; F = 2 P R / (P + R) of the averages.

On trees of three levels (every class two steps below the root) these are one number: with acc the share of right
classes, and of right groups,

    TIE = 2 LCA,    P = R = F = 1 - LCA / 3,    LCA = 2 - acc_class - acc_group

so that printing all three says nothing more than the two accuracies. On deeper or uneven trees they differ.

Source: Li, Zhou, Zhou and Wang, "MMF: Multi-task Multi-structure Fusion for Hierarchical Image Classification", ICANN
    2021, sec. 3.4, eq. 3-6. Its tables need the root in A; without it F would be 1 - LCA / 2. 56 of its 57 rows keep
    the identity (Car196, VGG16, the tree of types prints F 91.34, where its LCA of .2672 gives 91.09). They score
    models under the trees that each was trained with: compare models under the same trees alone.
Where print is open: the height of a node of an uneven tree is its longest way down to a class.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from assay.data.label_tree import LabelTree
from assay.errors import AssayError, ShapeError


class TreeMeasures(NamedTuple):
    """Of each input, averaged over the trees."""

    precision: NDArray[np.float64]  # n
    recall: NDArray[np.float64]  # n
    tie: NDArray[np.float64]  # n
    lca: NDArray[np.float64]  # n
    group: NDArray[np.float64]  # n: share of the trees in which the group just below the root is wrong

    @property
    def f(self) -> float:
        p, r = float(self.precision.mean()), float(self.recall.mean())
        return 2 * p * r / (p + r)


def tree_measures(trees: Sequence[LabelTree], said: NDArray[np.int64], true: NDArray[np.int64]) -> TreeMeasures:  # n, n
    """What the classes that were said cost against the true ones."""
    if not trees:
        raise AssayError("tree_measures got no tree; give at least one.")
    k = len(trees[0].paths)
    if said.shape != true.shape or said.ndim != 1 or not len(said):
        raise ShapeError(f"tree_measures got classes of shapes {said.shape} and {true.shape}; give n of each, n > 0.")
    if (
        any(len(tree.paths) != k for tree in trees)
        or min(said.min(), true.min()) < 0
        or max(said.max(), true.max()) >= k
    ):
        sizes = [len(tree.paths) for tree in trees]
        raise AssayError(f"tree_measures got trees of {sizes} classes and classes outside them; give trees of all.")
    return TreeMeasures(*(table[said, true] for table in _averaged(trees)))


def random_mistakes(
    trees: Sequence[LabelTree], true: NDArray[np.int64], said: NDArray[np.int64] | None = None
) -> TreeMeasures:  # n, m
    """What a wrong class costs on average that is drawn from all but the true one, for each input.

    It is drawn evenly, or as often as it is `said`: from one's own answers, shuffled. A model that always says one
    class costs just that, though under uneven groups its mistakes are milder than those drawn evenly.
    """
    k = len(trees[0].paths)
    often = np.ones(k) if said is None else np.bincount(said, minlength=k).astype(np.float64)
    others = np.maximum(often.sum() - often, 1.0)  # 0 for a class that alone is said: it has no mistake
    means = [(often @ table - often * table.diagonal()) / others for table in _averaged(trees)]  # of each true class
    return TreeMeasures(*(mean[true] for mean in means))


def _averaged(trees: Sequence[LabelTree]) -> list[NDArray[np.float64]]:
    """Precision, recall, TIE, LCA and wrong group of each class said (a row) for each true one (a column): k k each."""
    return [np.mean(tables, axis=0) for tables in zip(*map(_tables, trees), strict=True)]


def _tables(tree: LabelTree) -> tuple[NDArray[np.float64], ...]:
    shared, nodes, group = tree.shared().astype(np.float64), tree.lengths().astype(np.float64), tree.group_of()
    apart = (group[:, None] != group).astype(np.float64)
    return (
        shared / nodes[:, None],
        shared / nodes[None, :],
        nodes[:, None] + nodes[None, :] - 2 * shared,
        tree.heights().astype(np.float64),
        apart,
    )
