"""Ones and sevens of scikit-learn's 8 x 8 digits: a hundred with labels, and the rest to be told by them."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from assay.data.arrays import Arrays
from assay.data.digits import load_digits, weights

CLASSES = ("1", "7")
LABELLED = 100


def load_digits_1_7() -> dict[str, Arrays]:
    """`train` (100) and `test` (261): grey images n 1 8 8 in [0, 1], drawn by a fixed seed.

    As few labels as the published study of label flips has, so that one of them counts; see `load_digits` for the
    source of the images.
    """
    parts = load_digits().values()
    x = np.concatenate([np.asarray(part.x) for part in parts])
    y = np.concatenate([np.asarray(part.labels) for part in parts])
    rows = np.random.default_rng(17).permutation(np.flatnonzero(np.isin(y, (1, 7))))
    split = {"train": rows[:LABELLED], "test": rows[LABELLED:]}
    return {part: Arrays(x[chosen], (y[chosen] == 7).astype(np.int64), CLASSES) for part, chosen in split.items()}


def digits_1_7_weights() -> dict[str, Tensor]:
    """The state of `assay.subjects.digits_1_7.network` after `tools/train_digits_1_7.py`."""
    return weights("digits_1_7")
