r"""Draw: some rows of many, by seed, with each class's share, so that a larger draw holds a smaller one.

Row i has the number h(seed, i), which is as good as drawn at random, and stands in the order of these numbers within
its class. The row at place k = 0, 1, ... of the n_c of class c has the key (k + U_c) / n_c, with one U_c in [0, 1) for
each class, and those of the smallest keys are taken: every row is as likely as any other, and every class has its share
but for rounding. Rows are looked at a part at a time, and only those are held whose number may be small enough: memory
follows the draw, and not the data.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

PART = 2**20  # rows that are looked at together
SURE = 8.0  # standard deviations by which more rows than are wanted pass the first sieve
WIDEST = 2**20  # numbers that labels may lie between to be counted by their place


def stratified(labels: NDArray[np.integer], wanted: int, seed: int) -> NDArray[np.int64]:  # n -> wanted
    """The places of `wanted` rows, ascending; of fewer where there are fewer."""
    n = len(labels)
    if wanted >= n:
        return np.arange(n)
    classes, counts = counted(labels)
    starts = np.random.default_rng((seed, len(classes))).random(len(classes))
    # of one class its share, and what the rounding of all the others may leave to it
    most = np.minimum(counts, np.ceil(wanted * counts / n + SURE * math.sqrt(len(classes))).astype(np.int64) + 1)
    sieve = np.minimum(1.0, (most + SURE * np.sqrt(most) + SURE**2) / counts)
    found: list[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]] = []
    for start in range(0, n, PART):
        which = np.searchsorted(classes, labels[start : start + PART])
        drawn = uniform(np.arange(start, start + len(which)), seed)
        held = np.flatnonzero(drawn <= sieve[which])
        found.append((held + start, which[held], drawn[held]))
    rows, which, drawn = (np.concatenate(part) for part in zip(*found, strict=True))
    order = np.lexsort((drawn, which))
    rows, which = rows[order], which[order]
    first = np.searchsorted(which, np.arange(len(classes)))
    keys = (np.arange(len(rows)) - first[which] + starts[which]) / counts[which]
    least = np.argsort(keys, kind="stable")[:wanted]
    return np.sort(rows[least])


def counted(labels: NDArray[np.integer]) -> tuple[NDArray[np.integer], NDArray[np.int64]]:  # n -> c, c
    """The classes that there are, ascending, and how many rows each has; without a sorted copy of them all."""
    if labels.dtype.kind == "b":
        labels = labels.view(np.uint8)
    low, high = int(labels.min()), int(labels.max())
    if high - low >= WIDEST:
        classes, counts = np.unique(labels, return_counts=True)
        return classes, counts.astype(np.int64)
    total = np.zeros(high - low + 1, dtype=np.int64)
    for start in range(0, len(labels), PART):
        part = labels[start : start + PART].astype(np.int64) - low
        total += np.bincount(part, minlength=len(total))
    there = np.flatnonzero(total)
    return there + low, total[there]


def uniform(index: NDArray[np.integer], seed: int) -> NDArray[np.float64]:  # k -> k
    """A number in [0, 1) for each index, the same by the same seed (SplitMix64: Steele et al., OOPSLA 2014)."""
    start = int(np.random.SeedSequence(seed).generate_state(1, np.uint64)[0])
    with np.errstate(over="ignore"):
        z = np.uint64(start) + (index.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z ^= z >> np.uint64(31)
    return (z >> np.uint64(11)).astype(np.float64) * math.ldexp(1.0, -53)
