r"""Dirichlet calibration: a linear map of the logarithms of the probabilities, held near a scaling of each class.

    p = softmax( W log softmax(z) + b )

minimises the mean negative log-likelihood of the held-out labels plus ODIR, the penalty on what is off the diagonal

    lam / (c (c-1)) sum_{i != j} W_ij^2  +  mu / c sum_j b_j^2

It is what follows if the probabilities of each class's inputs are Dirichlet distributed. W = I, b = 0 changes nothing;
W = I/T is temperature scaling, a diagonal W vector scaling. The problem is convex, and L-BFGS in float64 from W = I
finds its minimum. The answers may change.

Source: Kull et al., "Beyond temperature scaling", NeurIPS 2019, arXiv:1910.12656, sec. 3-4 (Dirichlet with ODIR).
Departs from print: lam and mu are given, where print searches them by cross-validation; `lam` = `mu` = 0.01 stands near
    the middle of its range. Without a penalty, or for labels that a linear map tells apart, there may be no minimum.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from assay.errors import AssayError
from assay.methods.uncertainty.scaling import check_held_out

STEPS = 500


class Dirichlet(NamedTuple):
    """softmax(W log p + b)."""

    weight: Tensor  # c c
    shift: Tensor  # c

    def apply(self, logits: Tensor) -> Tensor:  # *n c -> *n c
        """Probabilities."""
        return (logits.log_softmax(-1) @ self.weight.to(logits).T + self.shift.to(logits)).softmax(-1)


def fit_dirichlet(logits: Tensor, labels: Tensor, *, lam: float = 0.01, mu: float = 0.01) -> Dirichlet:  # n c, n
    """The W and b of least penalised held-out negative log-likelihood."""
    if not (lam > 0 and mu > 0):
        raise AssayError(f"Dirichlet calibration got lam={lam} and mu={mu}; both must be above 0, such as 0.01.")
    z, y = check_held_out(logits, labels)
    c = z.shape[1]
    u = z.log_softmax(1)
    weight = torch.eye(c, dtype=u.dtype, device=u.device, requires_grad=True)
    shift = torch.zeros(c, dtype=u.dtype, device=u.device, requires_grad=True)
    search = torch.optim.LBFGS(
        (weight, shift),
        max_iter=STEPS,
        tolerance_grad=1e-9,
        tolerance_change=1e-14,
        history_size=20,
        line_search_fn="strong_wolfe",
    )

    def closure() -> Tensor:
        search.zero_grad()
        loss = F.cross_entropy(u @ weight.T + shift, y) + penalty(weight, shift, lam, mu)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    with torch.enable_grad():
        search.step(closure)  # type: ignore[no-untyped-call]
    return Dirichlet(weight.detach(), shift.detach())


def penalty(weight: Tensor, shift: Tensor, lam: float, mu: float) -> Tensor:  # c c, c -> ()
    """ODIR."""
    c = len(shift)
    off = weight - torch.diag(weight.diagonal())
    return lam / (c * (c - 1)) * off.square().sum() + mu / c * shift.square().sum()
