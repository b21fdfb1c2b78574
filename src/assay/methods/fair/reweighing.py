r"""Weights of training inputs under which the group says nothing of the label.

    w(g, y)  =  P(g) P(y) / P(g, y)

so that the weighted share of each label is the same in every group, and the weights have the mean 1.

Source: Kamiran & Calders, Knowl. Inf. Syst. 2012, 33:1, sec. 4.2, doi:10.1007/s10115-011-0463-8.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from assay.errors import ShapeError


def reweighing(groups: ArrayLike, labels: ArrayLike) -> NDArray[np.float64]:  # n, n -> n
    """One weight for each input; those of the unknown group -1 have 1, and no part in the shares."""
    g, y = np.asarray(groups, dtype=np.int64), np.asarray(labels, dtype=np.int64)
    if g.shape != y.shape or g.ndim != 1:
        raise ShapeError(f"reweighing got groups {g.shape} and labels {y.shape}; give one each, shape (n,).")
    known, weights = g >= 0, np.ones(len(g))
    if not known.any():
        return weights
    _, a = np.unique(g[known], return_inverse=True)
    _, b = np.unique(y[known], return_inverse=True)
    joint = np.zeros((a.max() + 1, b.max() + 1))
    np.add.at(joint, (a, b), 1.0)
    expected = joint.sum(1)[:, None] * joint.sum(0)[None] / joint.sum()
    weights[known] = expected[a, b] / joint[a, b]
    return weights
