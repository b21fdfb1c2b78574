r"""HIR: train for the same answer to a class in every domain, and leave the features where they are.

    P_i  =  softmax f(x_i),        L  =  mean_i  -log P_i[y_i]  +  alpha L_h,
    L_h  =  sum_c  sum_{i<j, y_i = y_j = c}  KL( P_i || P_j ),
    KL( P_i || P_j )  =  sum_k  P_i[k] ( log P_i[k] - log P_j[k] )

All pairs of a class in the batch count, whatever their domains; each once, in one direction, so that neither answer is
the reference and both move. No domain enters the loss: domains only make the batches (balanced.py). It is therefore
close to a penalty on classes that are not answered alike within one domain; `invariance` of cells (domain and class)
in the place of classes is that penalty by itself.

Source: Wang, Loog and van Gemert, "Respecting Domain Relations: Hypothesis Invariance for Domain Generalization", ICPR
    2020, arXiv:2010.07591; also Wang, dissertation, TU Delft 2024, ch. 3, eq. 3.6. L_h is a sum: with batches of 5
    domains x 10 classes x 5 inputs it has 3,000 terms, and the printed alpha of 1e-3 gives their mean a weight of 3.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from assay.errors import AssayError, ShapeError

WEIGHT = 3.0  # of the mean over the pairs of a batch, in print


def invariance(logits: Tensor, same: Tensor, *, symmetric: bool = False) -> Tensor:  # *s n k, *s n -> *s
    """L_h: over all pairs of inputs with the same class, or the same of whatever `same` holds.

    `symmetric` takes the mean of both directions, which does not hang on the order of the inputs.
    """
    if logits.shape[:-1] != same.shape or logits.ndim < 2:
        raise ShapeError(
            f"invariance got logits of shape {tuple(logits.shape)} and classes of shape {tuple(same.shape)}; it wants "
            "(n, k) and (n,)."
        )
    log_p = logits.log_softmax(-1)
    p = log_p.exp()
    apart = (p * log_p).sum(-1)[..., None] - p @ log_p.transpose(-1, -2)  # *s n n
    if symmetric:
        apart = (apart + apart.transpose(-1, -2)) / 2
    alike = (same[..., :, None] == same[..., None, :]).triu(1)
    return (apart * alike).sum((-1, -2))


def pairs(cells: int, each: int) -> int:
    """How many terms L_h has, where each of these cells has so many inputs in a batch."""
    return cells * math.comb(each, 2)


class Hir:
    """The loss for `fit(model, ..., loss=hir.loss)`; with `alpha` 0 it is the plain training.

    `domains` is how many domains a batch of balanced.py holds, one after the other, where pairs of two domains are to
    be left out: the ablation that tells whether they matter.
    """

    def __init__(self, alpha: float, *, domains: int | None = None) -> None:
        if not 0 <= alpha < math.inf:
            raise AssayError(f"alpha={alpha} is no weight for L_h; give a number of at least 0, such as 1e-3.")
        self.alpha, self.domains = alpha, domains

    def loss(self, logits: Tensor, y: Tensor) -> Tensor:  # n k, n -> scalar
        right = F.cross_entropy(logits, y)
        if self.alpha == 0:
            return right
        same = y
        if self.domains is not None:
            if len(y) % self.domains:
                raise ShapeError(f"A batch of {len(y)} inputs does not hold {self.domains} domains in equal parts.")
            domain = torch.arange(self.domains, device=y.device).repeat_interleave(len(y) // self.domains)
            same = y + logits.shape[1] * domain
        return right + self.alpha * invariance(logits, same)
