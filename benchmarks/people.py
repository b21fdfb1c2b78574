"""How fast is what Assay says about harm to people?

    python benchmarks/people.py membership  membership inference for 10,000 inputs, in passes of the model

Run it on a quiet machine with OMP_NUM_THREADS at the number of cores that are meant (limits are for two). What is
compared is measured in the same run, in turns, as the median of three. Each limit stands beside its line.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

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


INPUTS, SHADOWS = 10_000, 4


def membership() -> None:
    import torch

    from assay.data.fashion import load_fashion
    from assay.methods.private.lira import confidences, halves, lira
    from assay.nn.small_cnn import SmallCNN

    rng = torch.Generator().manual_seed(0)
    data = load_fashion()["train"]
    x, y = data.take(torch.arange(INPUTS).numpy())
    models = [SmallCNN().eval() for _ in range(1 + SHADOWS)]  # weights that are drawn take as long as trained ones
    inside = halves(INPUTS, SHADOWS, rng)

    def plain() -> None:
        with torch.no_grad():
            for model in models:
                for part in torch.split(x, 512):
                    model(part)

    def whole() -> None:
        observed, *shadows = (confidences(model, x, y) for model in models)
        lira(observed, torch.stack(shadows), inside)

    taken = seconds(plain=plain, whole=whole)
    print(f"Membership of {INPUTS:,} inputs, with {SHADOWS} shadows and the model: a pass over each")
    print(f"{'  plain passes over the same inputs':72s} {taken['plain']:8.3f} s")
    print(f"{'  confidences and both likelihood ratios':72s} {taken['whole']:8.3f} s")
    at_most("  in plain passes over each", taken["whole"] / taken["plain"], 1.1, "passes")


if __name__ == "__main__":
    known = {"membership": membership}
    if len(sys.argv) < 2 or sys.argv[1] not in known:
        sys.exit((__doc__ or "") + f"\nName one of {', '.join(known)}.")
    known[sys.argv[1]]()
