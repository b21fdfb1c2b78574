r"""Who was in the training set, told by how sure a model is; and how often whoever tells is right.

Of the logits z of an input with the label y, p = softmax(z); a higher score looks more like a member:

    loss               log p_y                                                     a small loss is a member's
    maximum            max_i p_i                                                   without the label
    entropy            sum_i p_i log p_i                                           without the label
    modified entropy   (1 - p_y) log p_y + sum_{i != y} p_i log(1 - p_i)           sure of a wrong class is no member's
    confidence         log p_y / (1 - p_y) = z_y - log sum_{i != y} exp z_i        what lira.py fits normals to

All are written by logits, so that a p that rounds to 0 or 1 still has its score.

The true-positive rate at a false-positive rate r is that of the lowest threshold which at most a share r of the
non-members is above. Its interval holds both what is not known: the threshold, by the ranks of m non-members (the j-th
highest has a share Beta(j, m - j + 1) above it), and the rate above it, by Clopper and Pearson. Each end gets a quarter
of what may go wrong for each, so that

    low  = CP's lower end at the j-th highest non-member, the largest j with P(Bin(m, r) <= j - 1) <= 1.25 %
    high = CP's upper end at the smallest j with P(Bin(m, r) >= j) <= 1.25 %

holds at least 95 of 100 times; low is 0 where even the highest non-member is not high enough to be sure of (at r =
0.1 % with fewer than 4,380 of them). Fewer than 1/r non-members say nothing of a rate r.

Source: Yeom et al., CSF 2018, arXiv:1709.01604 (loss); Salem et al., NDSS 2019, arXiv:1806.01246 (maximum, entropy);
    Song & Mittal, USENIX Security 2021, arXiv:2003.10595 (modified entropy); Carlini et al., S&P 2022,
    arXiv:2112.03570, sec. III (rates at few false positives) and IV (confidence); Clopper & Pearson 1934.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from assay.errors import AssayError, ShapeError

LEVEL = 0.95


def label_confidence(logits: Tensor, y: Tensor) -> Tensor:  # n k, n -> n
    """log p_y / (1 - p_y); of one class only there is none."""
    own = _of_label(logits, y)
    others = logits.double().scatter(1, y[:, None], -math.inf)
    return own - others.logsumexp(1)


def scores(logits: Tensor, y: Tensor) -> dict[str, Tensor]:  # n k, n -> n each, float64
    """Every score by its name; a higher one looks more like a member."""
    z = logits.double()
    _of_label(z, y)
    log_p = z.log_softmax(1)
    p = log_p.exp()
    own = log_p.gather(1, y[:, None])[:, 0]
    rest = _log_rest(z, log_p)
    mine = rest.gather(1, y[:, None])[:, 0]
    wrong = (p * rest).scatter(1, y[:, None], 0.0).sum(1)
    return {
        "loss": own,
        "maximum": log_p.amax(1).exp(),
        "entropy": (p * log_p).sum(1),
        "modified entropy": mine.exp() * own + wrong,
    }


def _log_rest(z: Tensor, log_p: Tensor) -> Tensor:  # n k, n k -> n k
    """log(1 - p_i) of every class; of the likeliest, whose 1 - p may round to 0, from the others."""
    top = z.argmax(1, keepdim=True)
    others = z.scatter(1, top, -math.inf).logsumexp(1, keepdim=True) - z.logsumexp(1, keepdim=True)
    return torch.log1p(-log_p.exp().scatter(1, top, 0.0)).scatter(1, top, others)


def _of_label(logits: Tensor, y: Tensor) -> Tensor:  # n k, n -> n
    if logits.ndim != 2 or logits.shape[1] < 2 or y.shape != logits.shape[:1]:
        raise ShapeError(
            f"Membership got logits of shape {tuple(logits.shape)} and labels of shape {tuple(y.shape)}; give logits "
            "of two or more classes and one label for each row."
        )
    return logits.double().gather(1, y[:, None])[:, 0]


class Rate(NamedTuple):
    """The true-positive rate at a false-positive rate, and the threshold that it was read at."""

    value: float
    low: float
    high: float
    threshold: float
    """Who scores above is taken for a member."""


def tpr_at_fpr(members: ArrayLike, others: ArrayLike, fpr: float, *, level: float = LEVEL) -> Rate | None:  # n, m
    """The share of members told where at most a share `fpr` of the others is; None with fewer than 1/fpr others."""
    from scipy.stats import binom

    if not 0 < fpr < 1:
        raise AssayError(f"tpr_at_fpr got fpr={fpr}; it wants a share between 0 and 1, such as 0.001.")
    ins = np.sort(_finite(members, "members"))
    outs = np.sort(_finite(others, "others"))[::-1]  # the highest first
    n, m, each = len(ins), len(outs), (1 - level) / 4
    if m * fpr < 1 - 1e-9:
        return None
    at = outs[math.floor(m * fpr + 1e-9)]
    ranks = np.arange(1, m + 1)
    surely = int((binom.cdf(ranks - 1, m, fpr) <= each).sum())  # both rise or fall with the rank
    at_most = m - int((binom.sf(ranks - 1, m, fpr) <= each).sum()) + 1
    low = 0.0 if surely == 0 else clopper_pearson(_above(ins, outs[surely - 1]), n, each)[0]
    most = n if at_most > m else n - int(np.searchsorted(ins, outs[at_most - 1], side="left"))  # ties could be above
    return Rate(_above(ins, at) / n, low, clopper_pearson(most, n, each)[1], float(at))


def clopper_pearson(hits: int, n: int, each: float = (1 - LEVEL) / 2) -> tuple[float, float]:
    """The exact interval of a proportion, wrong on either side with a chance of at most `each`."""
    from scipy.stats import beta

    low = 0.0 if hits == 0 else float(beta.ppf(each, hits, n - hits + 1))
    high = 1.0 if hits == n else float(beta.ppf(1 - each, hits + 1, n - hits))
    return low, high


def roc(members: ArrayLike, others: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:  # n, m -> t, t
    """False- and true-positive rates at every threshold, from none taken for a member to all."""
    ins, outs = np.sort(_finite(members, "members")), np.sort(_finite(others, "others"))
    cuts = np.unique(np.concatenate([ins, outs]))[::-1]
    rates = [1 - np.searchsorted(each, cuts, side="left") / len(each) for each in (outs, ins)]
    return np.concatenate([[0.0], rates[0]]), np.concatenate([[0.0], rates[1]])


def best_threshold(members: ArrayLike, others: ArrayLike) -> float:  # n, m
    """The threshold with the largest mean of true positives and true negatives, midway between two scores.

    Whoever uses it on the rows that it was taken from flatters the attacker.
    """
    ins, outs = np.sort(_finite(members, "members")), np.sort(_finite(others, "others"))
    cuts = np.unique(np.concatenate([ins, outs]))
    told = (len(ins) - np.searchsorted(ins, cuts, side="right")) / len(ins)
    spared = np.searchsorted(outs, cuts, side="right") / len(outs)
    best = int(np.argmax(told + spared))
    return float((cuts[best] + cuts[min(best + 1, len(cuts) - 1)]) / 2)


def _above(ordered: NDArray[np.float64], threshold: float) -> int:
    return len(ordered) - int(np.searchsorted(ordered, threshold, side="right"))


def _finite(scores: ArrayLike, name: str) -> NDArray[np.float64]:
    row = np.asarray(scores, dtype=np.float64)
    if row.ndim != 1 or len(row) == 0 or not np.isfinite(row).all():
        raise ShapeError(f"Got {name} of shape {row.shape}; give one finite number for each input, at least one.")
    return row
