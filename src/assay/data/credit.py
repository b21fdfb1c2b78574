"""Loans made by code: a table with categories and whole numbers, in which it is known what makes a loan fail.

A loan fails with the chance 1 / (1 + exp(-s)), s a sum of terms of single columns and one of two columns together
(`risk`); the column `postcode` has no part in it. Values are rounded as such a table has them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from assay.errors import AssayError

HOUSING = ("own", "rent", "family")
PURPOSE = ("car", "home", "study", "business")
CLASSES = ("repaid", "failed")
COLUMNS: dict[str, tuple[float, float]] = {  # what each lies between; of a category its numbers
    "income": (8.0, 120.0),  # thousands a year
    "amount": (1.0, 60.0),  # thousands
    "years": (1.0, 10.0),  # to pay it back
    "age": (18.0, 80.0),
    "late": (0.0, 9.0),  # payments that were late before
    "postcode": (0.0, 99.0),
    "housing": (0.0, len(HOUSING) - 1.0),
    "purpose": (0.0, len(PURPOSE) - 1.0),
}
CATEGORIES: dict[str, tuple[str, ...]] = {"housing": HOUSING, "purpose": PURPOSE}


class Loans(NamedTuple):
    x: NDArray[np.float32]  # n 8, in the units of COLUMNS
    failed: NDArray[np.int64]  # n
    chance: NDArray[np.float64]  # n, of failing


def risk(x: NDArray[np.generic]) -> NDArray[np.float64]:  # n 8 -> n
    """The log-odds of failing."""
    income, amount, years, age, late, _, housing, purpose = np.asarray(x, dtype=np.float64).T
    burden = amount / years / income  # of a year's income
    odds: NDArray[np.float64] = (
        np.minimum(14 * burden, 5)
        + 0.9 * late
        - 0.03 * (age - 40)
        + np.array([-0.8, 0.4, 0.0])[housing.astype(int)]
        + np.array([0.0, -0.6, 0.3, 0.9])[purpose.astype(int)]
        + 1.5 * (purpose == PURPOSE.index("business")) * (years > 6)
        - 3.2
    )
    return odds


def make_loans(n: int, rng: np.random.Generator) -> Loans:
    """`n` loans."""
    if n < 1:
        raise AssayError(f"make_loans needs a count of at least 1, got {n}.")
    low, high = np.array(list(COLUMNS.values())).T
    share = rng.random((n, len(COLUMNS)))
    share[:, 0], share[:, 1] = share[:, 0] ** 2, share[:, 1] ** 2  # many small ones
    share[:, 4] = share[:, 4] ** 4
    x = low + share * (high - low)
    x[:, :2] = x[:, :2].round(1)
    x[:, 2:6] = x[:, 2:6].round()
    x[:, 6], x[:, 7] = rng.choice(len(HOUSING), n, p=[0.4, 0.45, 0.15]), rng.integers(len(PURPOSE), size=n)
    chance = 1 / (1 + np.exp(-risk(x)))
    return Loans(x.astype(np.float32), (rng.random(n) < chance).astype(np.int64), chance)


def load_loans(*, train: int = 4000, test: int = 1000, seed: int = 0) -> dict[str, Loans]:
    """`train` and `test`."""
    rng = np.random.default_rng(seed)
    return {"train": make_loans(train, rng), "test": make_loans(test, rng)}
