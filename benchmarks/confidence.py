"""How fast is what Assay says about confidence?

    python benchmarks/confidence.py calibration        calibration errors beside their limits and their peers

Each line has its limit beside it: the legacy estimate in multiples of the cost of the maximum of each row, the others
in seconds. Peers are run if they are importable (torchmetrics, netcal) and left out otherwise. Run it on a quiet
machine; what is compared is measured in the same run, in turns, as the median of seven.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np
import torch
from clock import at_most, seconds
from named import named
from numpy.typing import NDArray

from assay.methods.uncertainty import calibration_error, ece
from assay.methods.uncertainty.calibration import ESTIMATORS

RUNS = 7


def have(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def answers(n: int, k: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    rng = np.random.default_rng(0)
    table = np.exp(2 * rng.normal(size=(n, k)))
    table /= table.sum(1, keepdims=True)
    label = np.minimum((table.cumsum(1) < rng.random((n, 1))).sum(1), k - 1)
    return table.astype(np.float32), label


def legacy(table: NDArray[Any], label: NDArray[np.int64]) -> None:
    """The legacy estimate, as a multiple of the cost of the maximum of each row."""
    work: dict[str, Callable[[], Any]] = {"maximum": partial(table.max, 1), "assay": partial(ece, table, label)}
    if have("torchmetrics"):
        theirs = import_module("torchmetrics.functional.classification").multiclass_calibration_error
        tensors = torch.from_numpy(table), torch.from_numpy(label)
        work["torchmetrics"] = partial(theirs, *tensors, num_classes=10, n_bins=15)
    if have("netcal"):
        work["netcal"] = partial(import_module("netcal.metrics").ECE(15).measure, table, label)
    taken = seconds(RUNS, **work)
    ratio = {name: spent / taken["maximum"] for name, spent in taken.items()}
    row = f"legacy, 1e6 x 10 {table.dtype}, row maximum {taken['maximum']:.4f} s"
    at_most(row, ratio.pop("assay"), 1.5, "times it")
    del ratio["maximum"]
    for peer, times in ratio.items():
        print(f"  {peer:56s} {times:6.3f} times it")


def bootstraps(score: NDArray[np.float64], right: NDArray[np.bool_]) -> float:
    """Seconds for 1,000 bootstraps with interval and floor, all five estimators."""
    total = 0.0
    for estimator in ESTIMATORS:
        start = time.perf_counter()
        calibration_error(score, right, estimator=estimator, bins="sqrt")
        spent = time.perf_counter() - start
        total += spent
        print(f"  1,000 bootstraps of {len(score):,} inputs, {estimator:16s} {spent:6.3f} s")
    return total


def looped(score: NDArray[np.float64], right: NDArray[np.bool_]) -> None:
    """What the peers take for the same bootstraps of the legacy estimate one by one: 20 of them, times 50."""
    rng, rows = np.random.default_rng(0), np.arange(len(score))
    peers: dict[str, Callable[[NDArray[np.intp]], Any]] = {}
    if have("torchmetrics"):
        theirs = import_module("torchmetrics.functional.classification").binary_calibration_error
        pair = torch.from_numpy(score), torch.from_numpy(right.astype(int))
        peers["torchmetrics"] = lambda at: theirs(pair[0][at], pair[1][at], n_bins=15)
    if have("netcal"):
        measure = import_module("netcal.metrics").ECE(15).measure
        peers["netcal"] = lambda at: measure(score[at], right[at].astype(int))
    for peer, work in peers.items():
        start = time.perf_counter()
        for _ in range(20):
            work(rng.choice(rows, len(rows)))
        print(f"  {peer}, legacy alone, one by one {50 * (time.perf_counter() - start):6.2f} s")


def calibration() -> None:
    table, label = answers(1_000_000, 10)
    double = table.astype(np.float64)
    double /= double.sum(1, keepdims=True)
    legacy(table, label)
    legacy(double, label)
    score, right = double.max(1), double.argmax(1) == label
    density = seconds(RUNS, density=lambda: ece(score, right, estimator="kde"))["density"]
    at_most("kernel density, 1e6 scores", density, 0.15, "s")
    few = slice(0, 10_000)
    at_most("1,000 bootstraps of 10,000, all five", bootstraps(score[few], right[few]), 5, "s")
    looped(score[few], right[few])
    print(f"1,000 bootstraps of 1,000,000 inputs, all five {bootstraps(score, right):.2f} s")


if __name__ == "__main__":
    named(__doc__, {"calibration": calibration})()
