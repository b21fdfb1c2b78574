r"""Jacobian regularisation: train a classifier to answer with logits that change little with the input.

    L  =  CE  +  (lam / 2) (1/B) sum_i ||J(x_i)||_F^2,      J = d logits / d input

with ||J||_F^2 estimated from `projections` random output directions (methods/attack/jacobian.py), which costs one more
backward pass each and a second derivative.

Source: Co, Martinez Rego and Lupu, "Jacobian Regularization for Mitigating Universal Adversarial Perturbations", ICANN
2021, eq. 11; the algorithm is Hoffman, Roberts and Yaida 2019, arXiv:1908.02729.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from assay.errors import AssayError
from assay.methods.attack.jacobian import frobenius_estimate


class JacobianRegularizer:
    """The loss above in the two pieces that `fit` takes: `fit(..., augment=r.augment, loss=r.loss)`.

    `augment` watches the inputs of the step, and `loss`, called on the logits that came from them, differentiates by
    them. With `lam` 0 it is plain cross-entropy, at its price. With batch normalisation the Jacobian is that of
    training mode, in which the inputs of a batch act on each other.
    """

    def __init__(self, lam: float, *, projections: int = 1) -> None:
        if not (math.isfinite(lam) and lam >= 0):
            raise AssayError(f"lam={lam} is no weight for the Jacobian; give a number of at least 0, such as 0.05.")
        if projections < 1:
            raise AssayError(f"projections={projections} estimate nothing; give at least 1.")
        self.lam, self.projections = lam, projections
        self._watched: tuple[Tensor, torch.Generator] | None = None

    def augment(self, x: Tensor, y: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:  # n *d, n -> n *d, n
        if self.lam > 0:
            x = x.detach().requires_grad_()
            self._watched = (x, rng)
        return x, y

    def loss(self, logits: Tensor, y: Tensor) -> Tensor:  # n c, n -> scalar
        fit = F.cross_entropy(logits, y)
        if self.lam == 0:
            return fit
        if self._watched is None or len(self._watched[0]) != len(logits):
            raise AssayError(
                "The Jacobian needs the inputs of the step; pass `augment` of this regulariser to fit too."
            )
        (x, rng), self._watched = self._watched, None
        return fit + self.lam / 2 * frobenius_estimate(logits, x, projections=self.projections, rng=rng).mean()
