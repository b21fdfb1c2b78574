"""Pace: how fast a model answers, tried on some of its inputs."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

if TYPE_CHECKING:
    from torch import Tensor

    from assay.subject import Subject

TRIED = 100  # inputs
REPEATS = 3  # of which the fastest tells the speed: the first may warm up, and a busy machine is no slower model


class Tried(NamedTuple):
    """Some inputs' targets, what the model answered, and the seconds that one took, with all draws of a random one."""

    y: Tensor  # n *t
    out: Tensor  # n *o
    seconds: float


def tried(subject: Subject, device: str) -> Tried:
    """Ask for the answers to a hundred inputs, a few times; the model is left as it was."""
    data = subject.data["test"]
    x, y = data.take(np.sort(np.random.default_rng(0).permutation(len(data))[:TRIED]))
    place = next((t.device for t in subject.model.state_dict().values()), torch.device("cpu"))
    modes = [(m, m.training) for m in subject.model.modules()]
    try:
        subject.model.eval().to(device)
        x, y = x.to(device), y.to(device)
        out, taken = subject.predict(x), float("inf")
        for _ in range(REPEATS):
            _wait(device)
            begun = time.perf_counter()
            out = subject.predict(x)
            _wait(device)
            taken = min(taken, (time.perf_counter() - begun) / len(x))
    finally:
        subject.model.to(place)
        for m, mode in modes:
            m.training = mode
    return Tried(y, out, taken)


def _wait(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)
