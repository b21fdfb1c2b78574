"""What the benchmarks share: times taken in turns, and limits beside what was found."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch


def now(device: str = "cpu") -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def seconds(turns: int, device: str = "cpu", **work: Callable[[], object]) -> dict[str, float]:
    """Medians, measured in turns, so that a change of the machine's mood falls on all."""
    taken: dict[str, list[float]] = {name: [] for name in work}
    for turn in range(turns + 1):
        for name, task in work.items():
            start = now(device)
            task()
            if turn:  # the first is for warming up
                taken[name].append(now(device) - start)
    return {name: statistics.median(each) for name, each in taken.items()}


def at_most(what: str, found: float, most: float, unit: str = "") -> bool:
    return told(what, found, unit, f"limit {most:,g}", found <= most)


def at_least(what: str, found: float, least: float, unit: str = "") -> bool:
    return told(what, found, unit, f"wanted {least:,g}", found >= least)


def told(what: str, found: float, unit: str, aim: str, kept: bool) -> bool:
    print(f"{what:72s} {found:12,.3f}{' ' if unit else ''}{unit}, {aim}: {'kept' if kept else 'MISSED'}", flush=True)
    return kept
