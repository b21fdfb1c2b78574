r"""Which mixture of source domains a target is, without its labels: D_t = sum_i alpha_i D_i, alpha by EM.

    alpha_i <- mean over target inputs of  (alpha_i / pi_i) P(i | x) / sum_j (alpha_j / pi_j) P(j | x)

P(i | x) are posteriors of the sources, from a classifier that was taught domains in the shares pi. EM climbs the
likelihood of the target, which is concave in alpha. It finds the best mixture even of a target that is none: whether
the sources have inputs where the target has them is asked by support_overlap.py.

Source: Wang, dissertation, TU Delft 2024, eq. 8.1 (the assumption; how to find alpha is left open there). EM: Saerens,
    Latinne & Decaestecker, Neural Computation 2002.
"""

from __future__ import annotations

import torch
from torch import Tensor

from assay.errors import AssayError, ShapeError

STEPS = 2000
CLOSE = 1e-7  # of alpha, between two steps


def mixture_weights(posteriors: Tensor, priors: Tensor, counts: Tensor | None = None) -> Tensor:
    """alpha, float64: n d, d -> d; with `counts` of each input, t n, one alpha for each row of them: -> t d."""
    if posteriors.ndim != 2 or priors.shape != posteriors.shape[1:] or len(posteriors) == 0:
        raise ShapeError(
            f"mixture_weights got posteriors of shape {tuple(posteriors.shape)} and priors of {tuple(priors.shape)}; "
            "it wants a row for each target input and a column for each source."
        )
    p, pi = posteriors.detach().double(), priors.detach().double()
    if not bool((p >= 0).all()) or not bool((p.sum(1) > 0).all()) or not bool((pi > 0).all()):
        raise AssayError("mixture_weights wants posteriors of 0 or more, not all 0 for an input, and priors above 0.")
    ratio = p / pi  # n d, the densities up to a factor for each input
    ratio = ratio / ratio.sum(1, keepdim=True)
    weight = torch.ones(1, len(p), dtype=p.dtype, device=p.device) if counts is None else counts.to(p)
    weight = weight / weight.sum(1, keepdim=True)  # t n
    alpha = torch.full((len(weight), len(pi)), 1 / len(pi), dtype=p.dtype, device=p.device)
    for _ in range(STEPS):
        mixed = (alpha @ ratio.T).clamp_min(1e-300)  # t n
        now = alpha * ((weight / mixed) @ ratio)
        moved = float((now - alpha).abs().max())
        alpha = now / now.sum(1, keepdim=True)
        if moved < CLOSE:
            break
    return alpha[0] if counts is None else alpha
