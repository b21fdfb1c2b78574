"""Applications made by code: a table with people behind its rows, in which it is known who was wronged and how.

Skill decides: an application is hired with the chance 1 / (1 + exp(-s)) of its `merit`, and skill is the same in every
group. Those who labelled the past took `PENALTY` off s for women and `DISTANCE` off for applicants from far away, and
nine in ten men and one in twenty women are members of a club, which says nothing of skill: a proxy. Sex is in no
column that a model is shown, and origin is one of them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from assay.errors import AssayError

SEX = ("female", "male")
ORIGIN = ("here", "near", "far")
CLASSES = ("rejected", "hired")
COLUMNS: dict[str, tuple[float, float]] = {  # what each lies between; of a category its numbers
    "test": (0.0, 100.0),  # points
    "years": (0.0, 20.0),  # of experience
    "grade": (1.0, 6.0),  # of the last degree, more is better
    "references": (0.0, 5.0),
    "club": (0.0, 1.0),
    "origin": (0.0, len(ORIGIN) - 1.0),
}
PENALTY = 2.6  # log-odds that labels take from women
DISTANCE = 1.8  # log-odds that labels take from applicants from far away
CLUB = (0.05, 0.9)  # the share of members, by sex


class Applications(NamedTuple):
    x: NDArray[np.float32]  # n 6, in the units of COLUMNS
    hired: NDArray[np.int64]  # n, as it was decided
    deserved: NDArray[np.int64]  # n, as skill alone would have decided, by the same luck
    sex: NDArray[np.int64]  # n, a place in SEX
    origin: NDArray[np.int64]  # n, a place in ORIGIN


def merit(x: NDArray[np.generic]) -> NDArray[np.float64]:  # n 6 -> n
    """The log-odds of being hired that skill gives; club and origin have no part in it."""
    test, years, grade, references, _, _ = np.asarray(x, dtype=np.float64).T
    odds: NDArray[np.float64] = 0.07 * (test - 50) + 0.15 * (years - 8) + 0.5 * (grade - 3.5) + 0.3 * (references - 2)
    return odds + 0.7


def make_applications(n: int, rng: np.random.Generator, *, bias: float = 1.0) -> Applications:
    """`n` applications; the labels and the club are biased by so much of what stands above, 0 for not at all."""
    if n < 1:
        raise AssayError(f"make_applications needs a count of at least 1, got {n}.")
    sex = (rng.random(n) < 0.55).astype(np.int64)
    origin = rng.choice(len(ORIGIN), n, p=[0.6, 0.2, 0.2])
    middle = sum(CLUB) / 2
    x = np.stack(
        [
            np.clip(rng.normal(50, 18, n), 0, 100).round(1),
            np.clip(rng.gamma(2.0, 4.0, n), 0, 20).round(),
            rng.integers(1, 7, n).astype(np.float64),
            rng.integers(0, 6, n).astype(np.float64),
            (rng.random(n) < middle + bias * (np.array(CLUB)[sex] - middle)).astype(np.float64),
            origin.astype(np.float64),
        ],
        1,
    )
    odds, luck = merit(x), rng.random(n)
    wronged = bias * (PENALTY * (sex == SEX.index("female")) + DISTANCE * (origin == ORIGIN.index("far")))
    hired, deserved = (luck < 1 / (1 + np.exp(-s)) for s in (odds - wronged, odds))
    return Applications(
        x.astype(np.float32), hired.astype(np.int64), deserved.astype(np.int64), sex, origin.astype(np.int64)
    )


def load_applications(*, train: int = 4000, test: int = 3000, seed: int = 0) -> dict[str, Applications]:
    """`train` and `test`."""
    rng = np.random.default_rng(seed)
    return {"train": make_applications(train, rng), "test": make_applications(test, rng)}
