"""How fast is what Assay says about confidence?

    python benchmarks/confidence.py calibration        calibration errors beside their limits and their peers

Legacy: the limit is the cost of the maximum of each row. Peers are run if they are importable (torchmetrics, netcal)
and left out otherwise. Run it on a quiet machine; everything that is compared is measured in the same run, in turns, as
the median of seven.
"""

from __future__ import annotations

import importlib.util
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.methods.uncertainty import calibration_error, ece
from assay.methods.uncertainty.calibration import ESTIMATORS

RUNS = 7


def have(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def seconds(**work: Callable[[], Any]) -> dict[str, float]:
    """Medians, measured in turns, so that a change of the machine's mood falls on all."""
    taken: dict[str, list[float]] = {name: [] for name in work}
    for turn in range(RUNS + 1):
        for name, task in work.items():
            start = time.perf_counter()
            task()
            if turn:  # the first is for warming up
                taken[name].append(time.perf_counter() - start)
    return {name: statistics.median(each) for name, each in taken.items()}


def answers(n: int, k: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    rng = np.random.default_rng(0)
    table = np.exp(2 * rng.normal(size=(n, k)))
    table /= table.sum(1, keepdims=True)
    label = np.minimum((table.cumsum(1) < rng.random((n, 1))).sum(1), k - 1)
    return table.astype(np.float32), label


def calibration() -> None:
    table, label = answers(1_000_000, 10)
    double = table.astype(np.float64)
    double /= double.sum(1, keepdims=True)
    for name, given in (("float32", table), ("float64", double)):
        work: dict[str, Callable[[], Any]] = {"limit": partial(given.max, 1), "assay": partial(ece, given, label)}
        if have("torchmetrics"):
            import torch
            from torchmetrics.functional.classification import multiclass_calibration_error

            tensors = torch.from_numpy(given), torch.from_numpy(label)
            work["torchmetrics"] = partial(multiclass_calibration_error, *tensors, num_classes=10, n_bins=15)
        if have("netcal"):
            from netcal.metrics import ECE

            work["netcal"] = partial(ECE(15).measure, given, label)
        taken = seconds(**work)
        print(f"legacy, 1e6 x 10 {name}; the maximum of each row takes {taken['limit']:.4f} s")
        for peer in list(work)[1:]:
            print(f"  {peer:14s} {taken[peer] / taken['limit']:5.2f} times that")

    score, right = double.max(1), double.argmax(1) == label
    taken = seconds(kde=lambda: ece(score, right, estimator="kde"))
    print(f"kernel density, 1e6 scores  {taken['kde']:.3f} s")

    some, hits = score[:10_000], right[:10_000]
    total = 0.0
    for estimator in ESTIMATORS:
        start = time.perf_counter()
        calibration_error(some, hits, estimator=estimator, bins="sqrt")
        spent = time.perf_counter() - start
        total += spent
        print(f"1,000 bootstraps of 10,000 inputs, {estimator:16s} {spent:.2f} s")
    print(f"all five {total:.2f} s")
    start = time.perf_counter()
    for estimator in ESTIMATORS:
        calibration_error(score, right, estimator=estimator)
    print(f"1,000 bootstraps of 1,000,000 inputs, all five {time.perf_counter() - start:.2f} s")


if __name__ == "__main__":
    known = {"calibration": calibration}
    if len(sys.argv) != 2 or sys.argv[1] not in known:
        sys.exit((__doc__ or "") + f"\nName one of {', '.join(known)}.")
    known[sys.argv[1]]()
