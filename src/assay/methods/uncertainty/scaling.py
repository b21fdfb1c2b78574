r"""Make a trained classifier's probabilities fit held-out labels: temperature, vector and isotonic scaling.

    temperature   p = softmax(z / T)                one number, argmax unchanged
    vector        p = softmax(w * z + b)            w, b in R^c; the argmax may change
    isotonic      p_c ~ g_c(softmax(z)_c)           g_c a rising step-like function per class, rows divided by their sum

The first two minimise the mean negative log-likelihood of n held-out labels. It is convex in 1/T and in (w, b), so that
Newton's method in float64 finds the minimum: to the last digits, not to the tolerance of a descent.

Source: Guo et al., ICML 2017, arXiv:1706.04599, sec. 4.2 (temperature, vector); Zadrozny & Elkan, KDD 2002 (isotonic,
    one class against the rest, divided by the sum).
Beyond print: where there is no minimum (T falls to 0 because every held-out answer is right, T grows without end
    because the logits are no better than chance, w or b run off because a class is absent or cut off) a line says so.
    Between two held-out scores g_c is linear, as in scikit-learn. A row that every g_c sends to 0 becomes uniform.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from assay.errors import AssayError, ShapeError

STEPS = 30  # Newton needs about 10; with no minimum the steps stay as long, and curvature falls by e with each
CLOSE = 1e-7  # of the weights: a Newton step shorter than this was the last one needed
RANK = 1e-14  # of the largest: curvature below is rounding, above e^-STEPS it would hide that there is no minimum


class Temperature(NamedTuple):
    """softmax(z / T)."""

    temperature: float

    def apply(self, logits: Tensor) -> Tensor:  # *n c -> *n c
        """Probabilities."""
        return (logits / self.temperature).softmax(-1)


class VectorScaling(NamedTuple):
    """softmax(w * z + b)."""

    scale: Tensor  # c
    shift: Tensor  # c

    def apply(self, logits: Tensor) -> Tensor:  # *n c -> *n c
        """Probabilities."""
        return (logits * self.scale.to(logits) + self.shift.to(logits)).softmax(-1)


class Isotonic(NamedTuple):
    """One rising function per class, by its corners."""

    scores: tuple[NDArray[np.float64], ...]  # c of k_c, rising
    values: tuple[NDArray[np.float64], ...]  # c of k_c, rising, in [0, 1]

    def apply(self, logits: Tensor) -> Tensor:  # *n c -> *n c
        """Probabilities; some can be exactly 0, whose log-likelihood is then infinite."""
        p = logits.detach().double().softmax(-1).cpu().numpy()
        pairs = enumerate(zip(self.scores, self.values, strict=True))
        raw = np.stack([np.interp(p[..., c], at, value) for c, (at, value) in pairs], -1)
        total = raw.sum(-1, keepdims=True)
        fit = np.where(total > 0, raw / np.where(total > 0, total, 1), 1 / raw.shape[-1])
        return torch.as_tensor(fit).to(logits)


def fit_temperature(logits: Tensor, labels: Tensor) -> Temperature:  # n c, n
    """The T of least held-out negative log-likelihood.

    With beta = 1/T its slope is mean(E_p z - z_y), rising in beta from mean(mean_c z - z_y) at beta = 0 to
    mean(max_c z - z_y) at infinity, so that a minimum exists iff the first is negative and the second positive.
    """
    z, y = check_held_out(logits, labels)
    z = z - z.gather(1, y[:, None])  # n c: 0 at the label
    size = float(z.abs().amax())
    if size == 0 or float(z.mean(1).mean()) >= 0:
        raise AssayError(
            f"These logits fit the {len(y)} held-out labels no better than chance, so the best temperature is "
            "infinite; check that logits and labels belong together."
        )
    if float(z.amax(1).max()) == 0:
        raise AssayError(
            f"All {len(y)} held-out answers are right, so the likelihood grows without end as the temperature falls to "
            "0; hold out more inputs, so that some are wrong."
        )
    z = z / size

    def slope(beta: float) -> tuple[float, float]:
        p = (beta * z).softmax(1)
        mean = (p * z).sum(1)
        return float(mean.mean()), float(((p * z.square()).sum(1) - mean.square()).mean())

    low, high = 0.0, 1.0
    while slope(high)[0] < 0:
        low, high = high, 2 * high
    beta = (low + high) / 2
    for _ in range(100):  # Newton, and halving wherever Newton would leave the bracket
        first, second = slope(beta)
        low, high = (beta, high) if first < 0 else (low, beta)
        step = beta - first / second if second > 0 else low
        following = step if low < step < high else (low + high) / 2
        if abs(following - beta) <= 1e-15 * beta:
            break
        beta = following
    return Temperature(size / beta)


def fit_vector(logits: Tensor, labels: Tensor) -> VectorScaling:  # n c, n
    """The w and b of least held-out negative log-likelihood, b with mean 0 (a constant added to b changes nothing)."""
    z, y = check_held_out(logits, labels)
    n, c = z.shape
    counts = torch.bincount(y, minlength=c)
    if not bool(counts.all()):
        raise AssayError(
            f"No held-out label is of class {int(counts.argmin())}, so vector scaling would drive its probability to "
            "0; hold out some of every class, or use temperature scaling."
        )
    size = z.abs().amax().clamp_min(torch.finfo(z.dtype).tiny)
    u = z / size  # n c
    hot = torch.nn.functional.one_hot(y, c).to(u)  # n c
    at = u.new_zeros(2 * c)  # w * size, then b; from 0, where the curvature is largest

    def height(at: Tensor) -> float:
        return float(torch.nn.functional.cross_entropy(at[:c] * u + at[c:], y))

    for _ in range(STEPS):
        p = (at[:c] * u + at[c:]).softmax(1)  # n c
        up, gap = u * p, p - hot
        slope = torch.cat(((gap * u).mean(0), gap.mean(0)))  # 2c
        ww, wb, bb = (up * u).mean(0).diag(), up.mean(0).diag(), p.mean(0).diag()
        ww, wb, bb = ww - up.T @ up / n, wb - up.T @ p / n, bb - p.T @ p / n
        sizes, axes = torch.linalg.eigh(torch.cat((torch.cat((ww, wb), 1), torch.cat((wb.T, bb), 1))))  # of 2c 2c
        flat = sizes <= RANK * sizes[-1]  # directions that change nothing: b + constant, a column that never varies
        step = -axes @ ((axes.T @ slope) / sizes).masked_fill(flat, 0)
        now, length = height(at), 1.0
        while length > 1e-6 and height(at + length * step) > now + 1e-15 * abs(now):
            length /= 2
        at = at + length * step
        if float(step.abs().max()) <= CLOSE * float(at.abs().max()):
            return VectorScaling(at[:c] / size, at[c:] - at[c:].mean())
    raise AssayError(
        f"Vector scaling has no best weights on these {n} held-out inputs: some class is told apart without error; "
        "hold out more inputs, or use temperature scaling."
    )


def fit_isotonic(logits: Tensor, labels: Tensor) -> Isotonic:  # n c, n
    """For each class the rising function of its softmax probability that is nearest to the 0/1 outcomes."""
    from sklearn.isotonic import IsotonicRegression  # slow to import

    z, y = check_held_out(logits, labels)
    p, truth = z.softmax(1).cpu().numpy(), y.cpu().numpy()
    fits = [IsotonicRegression(out_of_bounds="clip").fit(p[:, c], truth == c) for c in range(p.shape[1])]
    return Isotonic(tuple(f.X_thresholds_ for f in fits), tuple(f.y_thresholds_ for f in fits))


def check_held_out(outputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:  # n c, n -> n c in float64, n
    """As `check_labelled`, and the labels are of at least two classes: with one there is nothing to fit."""
    check_labelled(outputs, labels)
    y = labels.long().to(outputs.device)
    if bool((y == y[0]).all()):
        raise AssayError(f"All {len(y)} held-out labels are of class {int(y[0])}; hold out inputs of several classes.")
    return outputs.detach().double(), y


def check_labelled(outputs: Tensor, labels: Tensor) -> None:  # n c, n
    """Are these outputs of a classifier with a label each? If not, a line says what is wrong with them."""
    if outputs.ndim != 2 or len(outputs) == 0 or labels.shape != outputs.shape[:1]:
        raise ShapeError(
            f"Got outputs of shape {tuple(outputs.shape)} and labels of shape {tuple(labels.shape)}; give (n, classes) "
            "and one class index each, (n,)."
        )
    if outputs.shape[1] < 2:
        raise ShapeError(
            "Got outputs of 1 class; with one class only there is nothing to be unsure of: give 2 or more."
        )
    broken = torch.nonzero(~outputs.isfinite().all(1))
    if len(broken):
        raise AssayError(f"Row {int(broken[0])} of the outputs holds NaN or inf; leave that input out.")
    if labels.is_floating_point() or labels.dtype == torch.bool:
        raise AssayError(f"Labels are class indices, got {labels.dtype}; pass labels.long().")
    wrong = torch.nonzero((labels < 0) | (labels >= outputs.shape[1]))
    if len(wrong):
        raise AssayError(
            f"Label {int(labels[wrong[0, 0]])} at row {int(wrong[0])} is not a class; there are {outputs.shape[1]}, "
            "numbered from 0."
        )
