"""The bundled sample of Fashion-MNIST and the weights trained on it, so that Assay has something to test at once."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Literal

import numpy as np
from torch import Tensor

from assay.data.arrays import Arrays

CLASSES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)


def load_fashion() -> dict[str, Arrays]:
    """`train` (10,000) and `test` (2,000): grey images n 1 28 28, every class equally often, every ten rows all ten.

    Source: Xiao, Rasul and Vollgraf 2017, arXiv:1708.07747; MIT licence, see `bundled/LICENSE.fashion-mnist.txt`.
    `tools/train_bundled.py` drew the rows, with a stated seed, train from the train file and test from the test file.
    """
    return {part: read(part) for part in ("train", "test")}


@cache  # unpacking takes most of a second
def read(part: str) -> Arrays:
    with (files("assay.data") / "bundled" / "fashion.npz").open("rb") as file, np.load(file, allow_pickle=False) as npz:
        x, y = npz[f"x_{part}"][:, None], npz[f"y_{part}"]  # n 28 28 -> n 1 28 28
    x.setflags(write=False)  # every caller gets the same arrays
    return Arrays(x, y, CLASSES)


def fashion_weights(which: Literal["cnn", "robust"] = "cnn") -> dict[str, Tensor]:
    """The state of `assay.nn.small_cnn.SmallCNN` after training on `train` alone; accuracy on `test` 0.9095.

    `robust`: after adversarial training (`tools/train_robust.py`), 0.8685, and 0.7885 under changes of 8/255.
    """
    from safetensors.torch import load

    weights: dict[str, Tensor] = load((files("assay.data") / "bundled" / f"fashion_{which}.safetensors").read_bytes())
    return weights
