"""How fast is what Assay says about harm to people?

    python benchmarks/people.py poison      the exact change of targets on a graph of 8,000 nodes with 1,000 labels

Run it on a quiet machine with OMP_NUM_THREADS at the number of cores that are meant (limits are for two). What is
compared is measured in the same run, in turns, as the median of three. Each limit stands beside its line.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

RUNS = 3


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


def at_most(what: str, found: float, most: float, unit: str) -> None:
    print(f"{what:72s} {found:8.3f} {unit}, limit {most:g}: {'kept' if found <= most else 'MISSED'}")


def at_least(what: str, found: float, least: float, unit: str) -> None:
    print(f"{what:72s} {found:8.3f} {unit}, wanted {least:g}: {'kept' if found >= least else 'MISSED'}")


Array = NDArray[np.float64]
NODES, LABELS, WIDTH, GAMMA = 8000, 1000, 8, 1.0  # the size and the gamma of cadata
RADIUS = 0.1 * LABELS**0.5
STEPS, STEP = 2000, 1e-3  # of the authors' public solver


def poison() -> None:
    from assay.methods.poison.label_attack import known_truth
    from assay.methods.poison.propagation import propagate
    from assay.methods.poison.trust_region import Extreme, descend, extremes

    rng = np.random.default_rng(0)
    x = rng.normal(size=(NODES, WIDTH))
    y = 1 / (1 + np.exp(-x @ rng.normal(size=WIDTH) - np.sin(3 * x[:, 0]) - 0.3 * rng.normal(size=NODES)))
    labels, truth = y[:LABELS], y[LABELS:]

    def whole() -> None:
        known_truth(propagate(x[:LABELS], x[LABELS:], GAMMA).K, labels, truth, RADIUS)

    K = propagate(x[:LABELS], x[LABELS:], GAMMA).K
    bend, pull = K.T @ K, K.T @ (K @ labels - truth)  # what both solvers are given

    def exact() -> Array:
        r2, ends = RADIUS * RADIUS, extremes(-bend)
        ends = Extreme(r2 * ends.norm, r2 * ends.value, ends.vector)
        return np.asarray(RADIUS * descend(-r2 * bend, -RADIUS * pull, known=ends).z)

    def projected() -> Array:
        """Gradient steps of one length, each put back on the sphere, from the slope at rest."""
        delta: Array = RADIUS * pull / np.linalg.norm(pull)
        for _ in range(STEPS):
            delta = delta + STEP * (bend @ delta + pull)
            delta *= RADIUS / np.linalg.norm(delta)
        return delta

    def gained(delta: Array) -> float:
        return float(delta @ bend @ delta / 2 + pull @ delta)

    ours, theirs = gained(exact()), gained(projected())
    taken = seconds(whole=whole, exact=exact, projected=projected)
    print(f"The exact change of targets, {NODES:,} nodes with {LABELS:,} labels, {WIDTH} features")
    at_most("  graph, solve and attack", taken["whole"], 20, "s")
    print(f"{'  the attack alone, given K':72s} {taken['exact']:8.3f} s")
    print(f"{f'  {STEPS:,} projected-gradient steps, given K':72s} {taken['projected']:8.3f} s")
    at_least("  the attack over projected-gradient steps", taken["projected"] / taken["exact"], 5, "times as fast")
    at_least("  what it gains, as a share of what they gain", ours / theirs, 1 - 1e-9, "times it")


if __name__ == "__main__":
    known = {"poison": poison}
    if len(sys.argv) < 2 or sys.argv[1] not in known:
        sys.exit((__doc__ or "") + f"\nName one of {', '.join(known)}.")
    known[sys.argv[1]]()
