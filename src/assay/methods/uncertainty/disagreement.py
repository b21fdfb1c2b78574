r"""What several opinions on the same input say together, and how far they disagree.

    p        = (1/M) sum_m p_m,                     p_m = softmax(z_m)        mean probability
    spread_c = sqrt( (1/M) sum_m (p_mc - p_c)^2 )                             standard deviation over the members
    H(p)     = -sum_c p_c log p_c                                             predictive entropy
    E        = (1/M) sum_m H(p_m)                                             expected entropy
    I        = H(p) - E  =  (1/M) sum_m KL(p_m || p)                          mutual information of class and member

All in nats. The predictive entropy is the whole doubt; E is the part that every member has by itself (an ambiguous
input), I the part that is there because they disagree (an input unlike the training data). The spread divides by M, not
by M - 1, so that for any target t the squared errors split exactly (the ambiguity decomposition):

    ||p - t||^2 = (1/M) sum_m ||p_m - t||^2 - sum_c spread_c^2

Source: mean and standard deviation over members as in Liu, "Building Trustworthy Machine Learning Models", UCLA 2021,
    sec. 5.2; entropies: Depeweg et al., ICML 2018, arXiv:1710.07283, sec. 3; the decomposition: Krogh & Vedelsby, NIPS
    1994.
"""

from __future__ import annotations

import torch
from torch import Tensor

from assay.errors import AssayError, ShapeError


def mean_probability(logits: Tensor) -> Tensor:  # m n c -> n c
    """p, in float64 like everything here: differences of entropies lose what float32 has."""
    return _probabilities(logits).mean(0)


def spread(logits: Tensor) -> Tensor:  # m n c -> n c
    """The standard deviation of each class's probability over the members; 0 where there is only one."""
    return _probabilities(logits).std(0, correction=0)


def predictive_entropy(logits: Tensor) -> Tensor:  # m n c -> n
    """H(p), from 0 to log c."""
    return _entropy(_probabilities(logits).mean(0))


def expected_entropy(logits: Tensor) -> Tensor:  # m n c -> n
    """The mean entropy of the members."""
    return _entropy(_probabilities(logits)).mean(0)


def mutual_information(logits: Tensor) -> Tensor:  # m n c -> n
    """H(p) - E, from 0 to log m; never below 0, where only rounding could take it."""
    return (predictive_entropy(logits) - expected_entropy(logits)).clamp_min(0)


def _entropy(p: Tensor) -> Tensor:  # *n c -> *n
    entropy: Tensor = torch.special.entr(p).sum(-1)
    return entropy


def _probabilities(logits: Tensor) -> Tensor:  # m n c -> m n c in float64
    if logits.ndim != 3 or 0 in (logits.shape[0], logits.shape[2]):
        raise ShapeError(
            f"Got logits of shape {tuple(logits.shape)}; disagreement wants those of every member, (members, n, "
            "classes). For a single net pass logits[None]."
        )
    if not logits.is_floating_point():
        raise AssayError(f"Got {logits.dtype} where the logits of members are wanted; pass them before the argmax.")
    p: Tensor = logits.double().softmax(-1)
    broken = torch.nonzero(~p.isfinite().all(-1))
    if len(broken):
        member, row = broken[0].tolist()
        raise AssayError(f"Member {member} has NaN or infinite logits for input {row}; check its weights and inputs.")
    return p
