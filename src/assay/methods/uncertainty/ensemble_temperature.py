r"""Ensemble temperature scaling: a mixture of the scaled, the given and the uniform probabilities.

    p = w_1 softmax(z / T) + w_2 softmax(z) + w_3 / c,     w >= 0, sum w = 1

T is that of temperature scaling; then w minimises the mean negative log-likelihood of the held-out labels. Every part
keeps the order of the classes, so that the answers stay. In w the likelihood is concave over the simplex, and the EM
steps w_k <- mean_i w_k p_ik / sum_l w_l p_il raise it at each step, to its maximum.

Source: Zhang, Kailkhura & Han, "Mix-n-Match", ICML 2020, arXiv:2003.07329, sec. 4.1, eq. 6-7 (ETS).
Departs from print: EM in the place of SLSQP; print fits the squared error or the likelihood, here the likelihood.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from assay.methods.uncertainty.scaling import check_held_out, fit_temperature

STEPS = 20_000
CLOSE = 1e-10  # of the likelihood: an EM step that gains less was the last


class EnsembleTemperature(NamedTuple):
    """The mixture; `weights` are those of the scaled, the given and the uniform probabilities."""

    temperature: float
    weights: tuple[float, float, float]

    def apply(self, logits: Tensor) -> Tensor:  # *n c -> *n c
        """Probabilities."""
        parts = _parts(logits, self.temperature)
        return (parts * torch.tensor(self.weights).to(parts)).sum(-1)


def fit_ensemble_temperature(logits: Tensor, labels: Tensor) -> EnsembleTemperature:  # n c, n
    """T and w of least held-out negative log-likelihood, T first."""
    z, y = check_held_out(logits, labels)
    temperature = fit_temperature(logits, labels).temperature
    own = _parts(z, temperature).gather(1, y[:, None, None].expand(-1, 1, 3))[:, 0]  # n 3: each part's p_y
    w = own.new_full((3,), 1 / 3)
    before = -float("inf")
    for _ in range(STEPS):
        mixed = own * w  # n 3
        total = mixed.sum(1, keepdim=True)
        w = (mixed / total).mean(0)
        height = float(total.log().mean())
        if height - before < CLOSE * (1 + abs(height)):
            break
        before = height
    first, second, third = w.tolist()
    return EnsembleTemperature(temperature, (first, second, third))


def _parts(logits: Tensor, temperature: float) -> Tensor:  # *n c -> *n c 3
    p = logits.softmax(-1)
    return torch.stack(((logits / temperature).softmax(-1), p, torch.full_like(p, 1 / p.shape[-1])), -1)
