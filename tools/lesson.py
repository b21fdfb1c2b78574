"""What the scripts that train small reference subjects share: where weights go, what is held back, how it is scored."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from assay.data.arrays import Arrays

BUNDLED = Path(__file__).parents[1] / "src" / "assay" / "data" / "bundled"


class Lesson(NamedTuple):
    learn: Arrays
    score: Arrays
    final: bool  # on all of the training data, so that the weights are kept


def lesson(doc: str | None, data: Mapping[str, Arrays]) -> Lesson:
    """The parts that the command line asks for; in one thread and from one seed, so that weights come out the same."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--holdout", type=int, default=0, help="train on all but the first so many; score on those")
    k = parser.parse_args().holdout
    torch.set_num_threads(1)
    torch.manual_seed(0)  # the initial weights
    if not k:
        return Lesson(data["train"], data["test"], True)
    x, y = data["train"].take(np.arange(len(data["train"])))
    return Lesson(Arrays(x[k:], y[k:]), Arrays(x[:k], y[:k]), False)


@torch.no_grad()
def accuracy(model: nn.Module, data: Arrays) -> float:
    x, y = data.take(np.arange(len(data)))
    return float((model(x).argmax(1) == y).double().mean())
