r"""Training targets that are numbers, moved by an enemy, and what a last layer with a ridge makes of them.

    answers = A y,     A = Z (X'X / n + ridge I)^-1 X' / n          Z: the features of other inputs

is linear in the targets y, as label propagation is with its K, so that the exact worst change of a given norm
(label_attack.py) is had of either. By A it is the influence of all targets at once, without a first order. Targets are
in units of their standard deviation; a change of size s has the norm s sqrt(n), and is s of it for each in root mean
square.

Source: Hoerl and Kennard, Technometrics 1970 (ridge); Liu, 'Building Trustworthy Machine Learning Models', UCLA 2021,
    sec. 1.2.3.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from assay.errors import AssayError
from assay.methods.poison.centrality import central_change, degree, random_change
from assay.methods.poison.label_attack import worst_targets
from assay.methods.poison.most_harmful import on_features

Array = NDArray[np.float64]


class Moves(NamedTuple):
    """By enemy, what is added to the targets at each size: r n; and why one is missing, or ""."""

    chosen: dict[str, Array]
    by_chance: list[Array]
    missing: str


def ridge_matrix(x: Tensor, others: Tensor, ridge: float) -> Array:  # n d, m d -> m n
    """A."""
    squared = x.T @ x / len(x) + ridge * torch.eye(x.shape[1]).to(x)
    return np.asarray((others @ torch.linalg.solve(squared, x.T) / len(x)).cpu().numpy())


def moves(
    x: Tensor, targets: Array, aimed: Tensor, truth: Array, sizes: Sequence[float], *,
    known: bool, ridge: float, gamma: float | None, draws: int, rng: np.random.Generator,
) -> Moves:  # n d, n, m d, m  # fmt: skip
    """What each enemy would add; `known` says whether it sees the truth of the aimed inputs."""
    root = np.sqrt(len(targets))
    radii = root * np.asarray(sizes)

    def worst(k: Array) -> Array:
        return worst_targets(k, targets, truth, radii, known=known).targets - targets

    found, missing = {"influence": worst(ridge_matrix(x, aimed, ridge))}, ""
    try:
        graph = on_features(x[:, :-1], aimed[:, :-1], gamma)
        found["label propagation"] = worst(graph.K)
        ways = degree(graph.graph)[: len(targets)]
        found["degree"] = np.asarray(sizes)[:, None] * central_change(ways, root, rng)
    except AssayError as e:
        missing = str(e)
    chance = [np.asarray(sizes)[:, None] * random_change(len(targets), root, rng) for _ in range(draws)]
    return Moves(found, chance, missing)
