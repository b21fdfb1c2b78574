"""Scikit-learn's 8 x 8 digits, split once for all subjects on them, and the weights trained on them."""

from __future__ import annotations

from importlib.resources import files

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from assay.data.arrays import Arrays
from assay.data.beside_sklearn import table

CLASSES = tuple("0123456789")
TESTED = 497  # so that 1,300 are left to learn from
NOISE = 0.25  # the standard deviation of what is put on `noisy_digits`


def load_digits() -> dict[str, Arrays]:
    """`train` (1,300) and `test` (497): grey images n 1 8 8 in [0, 1], drawn by a fixed seed.

    Source: Alpaydin and Kaynak 1998, Optical Recognition of Handwritten Digits (UCI), doi:10.24432/C50P49; the copy of
    its test part that comes with scikit-learn.
    """
    held = table("digits.csv.gz")  # 1797 65: sixteenths, and the digit
    x, y = (held[:, :-1] / 16).astype(np.float32).reshape(-1, 1, 8, 8), held[:, -1].astype(int)
    order = np.random.default_rng(0).permutation(len(x))
    rows = {"train": order[TESTED:], "test": order[:TESTED]}
    return {part: Arrays(x[chosen], y[chosen], CLASSES) for part, chosen in rows.items()}


def noisy_digits() -> dict[str, tuple[NDArray[np.float32], NDArray[np.float32]]]:
    """The same split as images with noise of a fixed seed on them, and as they are: n 1 8 8 each, in [0, 1]."""
    rng = np.random.default_rng(1)
    made = {}
    for part, data in load_digits().items():
        clean = np.asarray(data.x, dtype=np.float32)
        noisy = (clean + rng.normal(0, NOISE, clean.shape)).clip(0, 1).round(4).astype(np.float32)
        made[part] = (noisy, clean)
    return made


def digits_weights() -> dict[str, Tensor]:
    """The state of `assay.subjects.digits_mlp.network` after `tools/train_digits.py`."""
    return weights("digits_mlp")


def ranker_weights() -> dict[str, Tensor]:
    """The state of `assay.nn.siamese.ARCHITECTURES["digits"](10)` after `tools/train_ranker.py`."""
    return weights("digits_ranker")


def weights(name: str) -> dict[str, Tensor]:
    """The weights in a bundled file."""
    from safetensors.torch import load

    held: dict[str, Tensor] = load((files("assay.data") / "bundled" / f"{name}.safetensors").read_bytes())
    return held
