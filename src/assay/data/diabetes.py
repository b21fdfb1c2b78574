"""Ten measurements of a patient, and how far a disease has gone a year later: scikit-learn's regression."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from assay.data.beside_sklearn import table

COLUMNS: dict[str, tuple[float, float]] = {  # what each lies between, as recorded, rounded outwards
    "age": (19.0, 79.0),
    "sex": (1.0, 2.0),
    "body mass index": (18.0, 42.5),
    "blood pressure": (62.0, 133.0),
    "total cholesterol": (97.0, 301.0),
    "LDL": (41.0, 243.0),
    "HDL": (22.0, 99.0),
    "cholesterol over HDL": (2.0, 9.1),
    "log triglycerides": (3.2, 6.2),
    "glucose": (58.0, 124.0),
}
TESTED = 142  # so that 300 are left to learn from


class Patients(NamedTuple):
    x: NDArray[np.float32]  # n 10, each column as its share of the range in COLUMNS
    progression: NDArray[np.float32]  # n 1


def load_diabetes() -> dict[str, Patients]:
    """`train` (300) and `test` (142), by a fixed seed.

    Source: Efron et al. 2004, doi:10.1214/009053604000000067; the copy that comes with scikit-learn.
    """
    measured, gone = table("diabetes_data_raw.csv.gz", delimiter=None), table("diabetes_target.csv.gz")
    low, high = np.array(list(COLUMNS.values())).T
    x, y = ((measured - low) / (high - low)).astype(np.float32), gone.astype(np.float32)[:, None]
    order = np.random.default_rng(0).permutation(len(x))
    rows = {"train": order[TESTED:], "test": order[:TESTED]}
    return {part: Patients(x[chosen], y[chosen]) for part, chosen in rows.items()}
