"""Trainings lay kernels channels-last, which is faster; a model that views its activations cannot be asked that way.

A convolution answers in the order of its kernel, and `x.view(len(x), -1)` after it is an error where values of one
image do not lie channel by channel; `torch.as_strided` or an operation written for rows is none, and says something
else. Of such a model every convolution's answer is put into rows while it is trained; what it computes is the same.
(`methods/train/fit.py` lays the kernels: this belongs there once the records of claims that hang on that file are made
again.)
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.module import register_module_forward_hook

from assay.engine.laid import kernels, laid
from assay.errors import AssayError
from assay.subject import Subject, answer_once

FEW = 2  # inputs that tell
ROUNDING = 0.01  # of the largest answer: what is further off is no rounding


@contextmanager
def in_rows(needed: bool) -> Iterator[None]:
    """Inside, convolutions answer channel by channel, if that is needed."""
    if not needed:
        yield
        return
    hook: Any = _in_rows  # torch says that hooks return nothing, and takes what they return
    handle = register_module_forward_hook(hook)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=r"Using `torch\.compile\(module\)` when there are global hooks")
            yield
    finally:
        handle.remove()


def wants_rows(subject: Subject) -> bool:
    """Whether the model wants rows: it answers with its kernels as they lie, and not, or something else, channels-last.

    It is left as it was.
    """
    if not kernels(subject.model) or (rows := _answer(subject)) is None:
        return False
    with laid(subject.model, True):
        lay = _answer(subject)
    return lay is None or (subject.draws == 1 and not _alike(rows, lay))


def _answer(subject: Subject) -> Tensor | None:
    data = subject.data["test"]
    with torch.random.fork_rng(devices=[]):  # of a random model
        try:
            return answer_once(subject.model, torch.as_tensor(data.take(np.arange(min(FEW, len(data))))[0]))
        except AssayError:
            return None


def _alike(a: Tensor, b: Tensor) -> bool:
    """Whether two answers differ by rounding at most: one that reads memory by strides of its own says anything."""
    size = float(a.double().abs().nan_to_num(0, posinf=0).amax())
    return a.shape == b.shape and torch.allclose(a.double(), b.double(), rtol=0, atol=ROUNDING * size, equal_nan=True)


def _in_rows(module: nn.Module, given: object, out: object) -> Tensor | None:
    return out.contiguous() if isinstance(module, _ConvNd) and isinstance(out, Tensor) else None
