r"""CM: who is near the genuine mean gets in, nearness being what the genuine vectors vary by.

    d(x)^2 = (x - m)' S^-1 (x - m),     D(x) = t - d(x),     t = the smallest d of a training impostor

with m and S the mean and covariance of the genuine vectors. They are few, so S is drawn towards a multiple of the
identity by as much as Ledoit and Wolf (J. Multivariate Anal. 2004) find best. No training impostor is accepted.

Source: Yoshida & Kitamura, ICANN 2021, sec. 3 (the baseline CM); Rippel, Mertens & Merhof, arXiv:2005.14140 (the
    distance, with that shrinkage).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from assay.errors import AssayError
from assay.methods.verify.machine import Array


class Mahalanobis(NamedTuple):
    mean: Array  # d
    precision: Array  # d d
    threshold: float

    def decide(self, x: Array) -> Array:  # m d -> m
        off = np.asarray(x, dtype=np.float64) - self.mean
        away: Array = np.sqrt(np.einsum("md,de,me->m", off, self.precision, off).clip(0))
        return self.threshold - away


def mahalanobis(x: Array, y: Array) -> Mahalanobis:  # n d, n of +-1
    """Fit to vectors and sides."""
    from sklearn.covariance import ledoit_wolf

    x = np.asarray(x, dtype=np.float64)
    genuine, others = x[np.asarray(y) > 0], x[np.asarray(y) < 0]
    if len(genuine) < 2 or not len(others):
        raise AssayError(
            f"A Mahalanobis distance wants at least 2 genuine vectors and an impostor, and got {len(genuine)} and "
            f"{len(others)}; give more."
        )
    covariance, _ = ledoit_wolf(genuine)
    if not np.trace(covariance) > 0:
        raise AssayError(
            "The genuine vectors are all equal: no distance can be told in what they vary by; give others."
        )
    found = Mahalanobis(genuine.mean(0), np.linalg.inv(covariance), 0.0)
    return found._replace(threshold=float(-found.decide(others).max()))
