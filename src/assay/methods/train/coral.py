r"""CORAL: the same covariances of the features in both domains.

    L  =  || C_a - C_b ||_F^2 / (4 d^2),        C  =  (F - mean F)^T (F - mean F) / (n - 1),     d features

Source: Sun and Saenko, "Deep CORAL", ECCV 2016 workshops, arXiv:1607.01719, eq. 1 to 3.
"""

from __future__ import annotations

from torch import Tensor

from assay.errors import AssayError, ShapeError


def coral(a: Tensor, b: Tensor) -> Tensor:  # m d, n d -> ()
    """How far apart the covariances of two samples are."""
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[1]:
        raise ShapeError(f"coral got samples of shapes {tuple(a.shape)} and {tuple(b.shape)}; give (m, d) and (n, d).")
    if min(len(a), len(b)) < 2:
        raise AssayError(f"coral got samples of {len(a)} and {len(b)} rows; a covariance wants at least 2.")
    return (_covariance(a) - _covariance(b)).square().sum() / (4 * a.shape[1] ** 2)


def _covariance(rows: Tensor) -> Tensor:  # n d -> d d
    centred = rows - rows.mean(0)
    return centred.T @ centred / (len(rows) - 1)
