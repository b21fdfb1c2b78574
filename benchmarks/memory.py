"""Peak memory of each question of a `full` audit on a set that is larger than memory should have to be.

    python benchmarks/memory.py                 # every question, 8,500 inputs of 3 x 224 x 224: 5.1 GB as float32
    python benchmarks/memory.py --inputs 800 accuracy everyday-change

The inputs are computed when they are taken, so that nothing is stored; the model is a small convolutional network. Each
question is put in a process of its own, with as few steps as it allows: steps cost time, not memory. Printed is what
the process held at most, in all and beyond what it held before the question.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import resource
import signal
import sys
import time
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is there: a process that has threads hangs after a fork

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from assay import shelf
from assay.engine.local import ThisProcess
from assay.probe import put
from assay.run import BUDGETS, Run
from assay.subject import Subject

SIDE, CLASSES = 224, 10
LIMIT = 2_000  # megabytes, of a whole process


class Made:
    """Inputs that are made when they are taken: a bright square on noise, in one of ten places."""

    classes: tuple[str, ...] | None = tuple(f"place {k}" for k in range(CLASSES))

    def __init__(self, count: int, seed: int) -> None:
        self.count, self.seed = count, seed
        self.labels: NDArray[np.int64] = np.arange(count, dtype=np.int64) % CLASSES

    def __len__(self) -> int:
        return self.count

    def take(self, indices: NDArray[np.integer]) -> tuple[Tensor, Tensor]:  # k -> k 3 s s, k
        rows = np.arange(self.count)[indices]
        x = torch.empty(len(rows), 3, SIDE, SIDE)
        for place, row in enumerate(rows):
            rng = torch.Generator().manual_seed(int(row) * 2 + self.seed)
            x[place] = torch.rand(1, SIDE, SIDE, generator=rng) * 0.5
            left = int(self.labels[row]) * SIDE // CLASSES
            x[place, :, :, left : left + SIDE // CLASSES] += 0.4
        return x, torch.from_numpy(self.labels[rows])

    def fingerprint(self) -> str:
        return f"Made {self.count} {self.seed}"


def made(count: int, train: int) -> Subject:
    """A network that sees where the square is well enough, without training: it compares brightness over columns."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 7, stride=4, padding=3), nn.ReLU(), nn.AdaptiveAvgPool2d((1, CLASSES)), nn.Flatten(),
        nn.Linear(8 * CLASSES, CLASSES),
    )  # fmt: skip
    with torch.no_grad():
        model[0].weight.abs_()
        model[4].weight.zero_()
        for k in range(CLASSES):
            model[4].weight[k, k::CLASSES] = 4.0
    return Subject.classifier(model.eval(), {"test": Made(count, 0), "train": Made(train, 1)}, name="made")


def asked(name: str, subject: Subject, steps: int, restarts: int) -> str:
    """Put the question with the `full` budget, but few steps where it has them."""
    budget = dataclasses.replace(BUDGETS["full"], restarts=restarts, **({"steps": steps} if steps else {}))
    run = Run(engine=ThisProcess(), budget=budget)
    answer = put(shelf.load("probes", name)(), subject, run)
    return answer.status if answer.status == "asked" else f"{answer.status}: {answer.why}"


def measured(
    name: str, subject: Subject, steps: int, seconds: int, restarts: int = 1
) -> tuple[str, float, float, float]:
    """What came of it, seconds, and megabytes at most: of the whole process, and beyond what it began with."""
    read, write = os.pipe()
    begun = time.monotonic()
    child = os.fork()
    if not child:
        signal.alarm(seconds)
        before = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
        os.write(write, f"{asked(name, subject, steps, restarts)[:2000]}\0{before}".encode())
        os._exit(0)
    os.close(write)
    _, status, usage = os.wait4(child, 0)
    said, _, before = os.read(read, 4096).decode().partition("\0")
    os.close(read)
    peak = usage.ru_maxrss * 1024
    told = said or (f"stopped after {seconds} s" if status == signal.SIGALRM else f"ended with {status}")
    return told, time.monotonic() - begun, peak / 1e6, (peak - int(before or 0)) / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("probes", nargs="*", help="names of questions; all that are for images, unless given")
    parser.add_argument("--inputs", type=int, default=8_500)
    parser.add_argument("--train", type=int, default=2_000)
    parser.add_argument("--steps", type=int, default=2, help="of each search; 0: those of the budget")
    parser.add_argument("--restarts", type=int, default=1, help="of each search; from 2 on networks are trained anew")
    parser.add_argument("--seconds", type=int, default=600, help="for each question")
    options = parser.parse_args()
    torch.set_num_threads(1)
    subject = made(options.inputs, options.train)
    size = options.inputs * 3 * SIDE * SIDE * 4 / 1e9
    print(f"{options.inputs:,} inputs of 3 x {SIDE} x {SIDE}: {size:.1f} GB; limit {LIMIT:,} MB")
    names = options.probes or shelf.names("probes")
    worst = 0.0
    for name in names:
        probe = shelf.load("probes", name)()
        why = probe.why_not(subject)
        if why is not None:
            print(f"{name:36} does not apply: {why:.60}")
            continue
        told, took, peak, beyond = measured(name, subject, options.steps, options.seconds, options.restarts)
        worst = max(worst, peak)
        print(f"{name:36} {peak:7,.0f} MB  (+{beyond:6,.0f})  {took:6.1f} s  {told:.70}", flush=True)
    print(f"most: {worst:,.0f} MB, {'below' if worst < LIMIT else 'ABOVE'} {LIMIT:,}")
    sys.exit(worst >= LIMIT)


if __name__ == "__main__":
    main()
