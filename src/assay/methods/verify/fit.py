"""Vectors and sides in, a verifier out; and which kernel and lambda, by cross-validation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from assay.errors import AssayError, ShapeError
from assay.methods.verify.machine import Array, Machine, refuse_equal
from assay.methods.verify.semi_hard_svm import l2_svm, semi_hard_svm
from assay.methods.verify.sphere import Margin, sphere
from assay.methods.verify.twin import RIDGE, twin
from assay.nn.kernel import Kernel
from assay.nn.verifier import Verifier

MachineName = Literal["sh-svm", "sh-twsvm", "sh-svdd", "l2-svm"]
MACHINES: tuple[MachineName, ...] = ("sh-svm", "sh-twsvm", "sh-svdd", "l2-svm")
FOLDS = 3


class Choice(NamedTuple):
    """A kernel and a lambda, with the rates that cross-validation saw."""

    kernel: Kernel
    lam: float
    far: float
    frr: float


def train(
    machine: MachineName, k: Array, y: Array, *, lam: float, margin: Margin = 1, ridge: float = RIDGE
) -> Machine:  # n n, n of +-1
    """The machine of this name on a kernel matrix; a twin has a ridge and no lambda."""
    if machine == "sh-svm":
        return semi_hard_svm(k, y, lam=lam)
    if machine == "sh-svdd":
        return sphere(k, y, lam=lam, margin=margin)
    if machine == "l2-svm":
        return l2_svm(k, y, lam=lam)
    if machine == "sh-twsvm":
        return twin(k, y, ridge=ridge)
    raise AssayError(f"There is no machine {machine!r}; it is one of {', '.join(MACHINES)}.")


def fit_verifier(
    x: Tensor,
    y: Tensor,
    *,
    machine: MachineName = "sh-svm",
    kernel: Kernel,
    lam: float,
    threshold: float = 0.0,
    margin: Margin = 1,
    ridge: float = RIDGE,
) -> Verifier:  # n d, n of +-1
    """Train on vectors, of which equal ones on both sides are refused."""
    if x.ndim != 2 or y.shape != x.shape[:1]:
        raise ShapeError(
            f"fit_verifier got vectors of shape {tuple(x.shape)} with sides of shape {tuple(y.shape)}; it wants (n, d) "
            "and (n,)."
        )
    if not math.isfinite(threshold) or not bool(x.isfinite().all()):
        raise AssayError(f"fit_verifier got threshold={threshold:g}, or vectors with NaN; give finite numbers.")
    rows, sign = x.detach().double().cpu(), y.detach().double().cpu().numpy()
    refuse_equal(rows.numpy(), sign)
    found = train(machine, kernel(rows, rows).numpy(), sign, lam=lam, margin=margin, ridge=ridge)
    return Verifier(rows, torch.from_numpy(found.weight), found.bias, kernel, own=found.own, threshold=threshold).to(
        x.device
    )


def choose(
    x: Array,
    y: Array,
    *,
    machine: MachineName,
    kernels: Sequence[Kernel],
    lams: Sequence[float],
    seed: int,
    threshold: float = 0.0,
    ridge: float = RIDGE,
    folds: int = FOLDS,
) -> Choice:  # n d, n of +-1
    """The kernel and lambda with the least FAR + FRR over `folds` parts that hold each side in proportion.

    Of equal ones the least FAR, then the first. Print selects by three folds for each person and does not say by what.
    A setting that cannot be solved is left out.
    """
    sign = np.asarray(y, dtype=np.float64)
    least = min(int((sign > 0).sum()), int((sign < 0).sum()))
    if least < folds or folds < 2:
        raise AssayError(
            f"{folds} folds want as many vectors of each side, and one has {least}; give more, or fewer folds."
        )
    if not kernels or not lams:
        raise AssayError("choose got no kernel or no lambda to choose from; give at least one of each.")
    rng, part = np.random.default_rng(seed), np.empty(len(sign), dtype=np.int64)
    for side in (1.0, -1.0):
        rows = rng.permutation(np.flatnonzero(sign == side))
        part[rows] = np.arange(len(rows)) % folds
    t, found = torch.as_tensor(np.asarray(x, dtype=np.float64)), []
    for kernel in kernels:
        k, own = kernel(t, t).numpy(), kernel.own(t).numpy()
        for lam in lams:
            d = np.empty(len(sign))
            try:
                for fold in range(folds):
                    new, old = part == fold, part != fold
                    one = train(machine, k[np.ix_(old, old)], sign[old], lam=lam, ridge=ridge)
                    d[new] = one.decide(k[np.ix_(new, old)], own[new])
            except AssayError:
                continue
            accepted = d > threshold
            found.append(Choice(kernel, lam, float(accepted[sign < 0].mean()), float((~accepted[sign > 0]).mean())))
    if not found:
        raise AssayError(f"No kernel and lambda of {len(kernels) * len(lams)} could be solved; give milder ones.")
    return min(found, key=lambda c: (c.far + c.frr, c.far))
