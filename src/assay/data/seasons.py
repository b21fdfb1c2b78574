"""Series made by code: two channels with a season of PERIOD steps, a drift and noise that lingers.

Channel c at time t, with a phase f that both channels of a series share:

    y_c(t) = m_c + d_c t / T + a_c sin(2 pi (t + f) / P) + b_c sin(4 pi (t + f) / P) + r_c(t),
    r_c(t) = LINGERS r_c(t - 1) + noise

m, d, a, b are drawn anew for each series and channel. The second channel's season comes a quarter of a period later.
Values are cut to 0 .. 100 and rounded to 0.01.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from assay.errors import AssayError

CHANNELS = ("load", "heat")
PERIOD, PAST, HORIZON = 12, 36, 12
LOW, HIGH = 0.0, 100.0
LINGERS, NOISE = 0.6, 2.0


class Series(NamedTuple):
    past: NDArray[np.float32]  # n PAST 2
    future: NDArray[np.float32]  # n HORIZON 2


def make_series(n: int, rng: np.random.Generator) -> Series:
    """`n` series."""
    if n < 1:
        raise AssayError(f"make_series needs a count of at least 1, got {n}.")
    length, k = PAST + HORIZON, len(CHANNELS)
    middle, drift = rng.uniform(35, 65, (n, 1, k)), rng.uniform(-15, 15, (n, 1, k))
    large, small = rng.uniform(5, 20, (n, 1, k)), rng.uniform(-6, 6, (n, 1, k))
    phase = rng.uniform(0, PERIOD, (n, 1, 1)) - np.array([0, PERIOD / 4])
    t = np.arange(length)[None, :, None]
    turn = 2 * np.pi * (t + phase) / PERIOD  # n t k
    rest = rng.normal(0, NOISE, (n, length, k))
    for step in range(1, length):
        rest[:, step] += LINGERS * rest[:, step - 1]
    y = middle + drift * t / length + large * np.sin(turn) + small * np.sin(2 * turn) + rest
    y = y.clip(LOW, HIGH).round(2).astype(np.float32)
    return Series(y[:, :PAST], y[:, PAST:])


def load_series(*, train: int = 4000, test: int = 500, seed: int = 0) -> dict[str, Series]:
    """`train` and `test`."""
    rng = np.random.default_rng(seed)
    return {"train": make_series(train, rng), "test": make_series(test, rng)}
