r"""Which training labels to drop or to change, by typicality, with a limit that flips on purpose set.

    looks wrong    C_DE <= the limit under which a share `find` of labels lies that were flipped at random, in copies of
                   the labels of which no input is in two (label_noise.py)
    would be       the commonest other class among its nearest inputs

Source: Krysinska, Morzy and Kajdanowicz, ICANN 2021 (typicality.py); the limit as in the probe which-labels-look-wrong.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from assay.methods.train.label_noise import plant
from assay.methods.train.typicality import counted, nearest_rows, typicality

COPIES, SHARE = 10, 0.05


class Suspects(NamedTuple):
    """Of each label whether it looks wrong, and what it would be instead: n each."""

    wrong: Tensor
    instead: Tensor


def suspects(
    u: Tensor, labels: Tensor, classes: int, *, nearest: int, find: float, rng: torch.Generator
) -> Suspects:  # n d, n
    """`u` are rows of length 1 (`unit_rows`)."""
    n = len(labels)
    near = nearest_rows(u, min(nearest, n - 1))
    counts = counted(near, labels, classes)
    copies = max(1, min(COPIES, n // max(1, round(SHARE * n))))
    planted = plant(labels, copies, SHARE, rng)
    scores = torch.cat(
        [
            typicality(counted(near, given, classes), given).degree_adjusted[flipped]
            for given, flipped in zip(planted.labels, planted.flipped, strict=True)
        ]
    )
    limit = scores.sort().values[math.ceil(find * len(scores)) - 1]
    wrong = typicality(counts, labels).degree_adjusted <= limit
    return Suspects(wrong, counts.scatter(1, labels[:, None], -1).argmax(1))
