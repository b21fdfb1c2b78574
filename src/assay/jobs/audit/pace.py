"""Pace: how fast a model answers, and how fast its inputs are read, tried on some of them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

if TYPE_CHECKING:
    from torch import Tensor

    from assay.subject import Subject

TRIED = 100  # inputs
BATCHES = (8, 32, 128, 512, 1024)
"""Inputs that are tried together, one after the other; a CPU is filled by those of the third, as an audit asks it."""
ENOUGH = 0.5  # seconds, of which the fastest pass tells the speed: a busy machine is no slower model


class Tried(NamedTuple):
    """Some inputs' targets, what the model answered, and the seconds that one took, with all draws of a random one."""

    y: Tensor  # n *t
    out: Tensor  # n *o
    seconds: float


def tried(subject: Subject, device: str) -> Tried:
    """Ask for the answers to a hundred inputs, and how long one takes; the model is left as it was."""
    with _asked(subject, device):
        x, y = (each.to(device) for each in _some(subject, TRIED))
        begun = time.perf_counter()
        out = subject.predict(x)
        _wait(device)
        slow = (time.perf_counter() - begun) / len(x)
        return Tried(y, out, min(slow, _fastest(subject, device)))


def pace(subject: Subject, device: str) -> float:
    """The seconds that the model takes for an input, in the batches in which it is fastest; it is left as it was."""
    with _asked(subject, device):
        return _fastest(subject, device)


def reading(subject: Subject) -> float:
    """The seconds that it takes to read an input: nothing where they lie in memory, more than a pass where they are
    decoded."""
    took = []
    for count in (1, *BATCHES[:2]):
        before = time.perf_counter()
        _some(subject, count)
        took.append((time.perf_counter() - before) / min(count, len(subject.data["test"])))
        if took[-1] * count > ENOUGH:
            break
    return took[-1]


def _fastest(subject: Subject, device: str) -> float:
    """Larger and larger batches, each a few times, until there is no time left for another, or one is too large."""
    begun, fastest = time.perf_counter(), float("inf")
    for count in BATCHES if device.startswith("cuda") else BATCHES[:3]:
        x = _some(subject, count)[0].to(device)
        for _ in range(3):
            _wait(device)
            before = time.perf_counter()
            try:
                subject.predict(x)
            except Exception:  # what it cannot do the questions tell; how fast it is without is all that is asked here
                if fastest == float("inf"):
                    raise
                return fastest
            _wait(device)
            now = time.perf_counter()
            fastest = min(fastest, (now - before) / len(x))
            if now - begun > ENOUGH:
                return fastest
    return fastest


def _some(subject: Subject, count: int) -> tuple[Tensor, Tensor]:  # -> n *d, n *t
    """Inputs drawn from all, as far as there are any."""
    data = subject.data["test"]
    rows = np.random.default_rng(0).choice(len(data), min(count, len(data)), replace=False)
    return data.take(np.sort(rows))


@contextmanager
def _asked(subject: Subject, device: str) -> Iterator[None]:
    """The model in eval mode on the device; outside as it was."""
    place = next((t.device for t in subject.model.state_dict().values()), torch.device("cpu"))
    modes = [(m, m.training) for m in subject.model.modules()]
    try:
        subject.model.eval().to(device)
        yield
    finally:
        subject.model.to(place)
        for m, mode in modes:
            m.training = mode


def _wait(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)
