r"""Split-conformal sets: a set of classes for every input that holds the true one with a promised frequency.

With a score s(x, c), high where class c is unlikely, and n held-out inputs with labels,

    C(x) = { c : s(x, c) <= q },   q = the k-th smallest of s(x_i, y_i),   k = ceil((n + 1)(1 - alpha))

holds the true class of a new input with probability at least 1 - alpha, whatever the model, if held-out and new inputs
are exchangeable; and at most 1 - alpha + 1/(n + 1) where the scores do not tie. The promise is over the draw of both
and over all classes together: a single class, or shifted inputs, may be covered less. The plain (1 - alpha) quantile of
the n scores lacks the n + 1; interpolated, it covers 86 % for a promised 90 % at n = 19.

With p sorted downwards, r(c) the rank of c from 1, rho(c) the sum of the p ranked above c, and u uniform in [0, 1),
one for each input,

    LAC    s = 1 - p_c                                                     smallest sets on average
    APS    s = rho(c) + u p_c                                              sets that grow on hard inputs
    RAPS   s = rho(c) + u p_c + penalty * max(0, r(c) - free)              APS without its long tails

`randomised=False` has u = 0: the sets of APS then hold the class at which the sum passes q (Romano et al., eq. 2-4), so
that none is empty. Scores then tie and cover more than was promised: with an accuracy above 1 - alpha, q is 0 and
every set is the single most likely class. LAC has no u.

Per class there is a threshold for each class, of the held-out inputs of that class alone:

    C(x) = { c : s(x, c) <= q_c },   q_c = the ceil((n_c + 1)(1 - alpha))-th smallest of s(x_i, c) with y_i = c

so that the promise holds for the inputs of each class by themselves, mostly with larger sets. A class with fewer
than (1 - alpha)/alpha held-out inputs has q_c infinite: nothing less than being in every set keeps its promise.

Source: LAC, Sadinle, Lei & Wasserman, JASA 2019, arXiv:1609.00451; APS, Romano, Sesia & Candes, NeurIPS 2020,
    arXiv:2006.02544; RAPS, Angelopoulos et al., ICLR 2021, arXiv:2009.14193; quantile, Vovk et al. 2005;
    per class, Vovk, "Conditional validity of inductive conformal predictors", ACML 2012, arXiv:1209.2673.
Departs from print: RAPS of print chooses penalty and free on more held-out data; here they are given.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from assay.errors import AssayError
from assay.methods.uncertainty.scaling import check_held_out, check_labelled

ScoreName = Literal["lac", "aps", "raps"]

CELLS = 2**22  # probabilities sorted at a time
SUM = 1e-3  # rows of probabilities in half precision sum to one this closely


class Conformal(NamedTuple):
    """A fitted rule; `sets` applies it."""

    score: ScoreName
    alpha: float
    quantile: Tensor  # () for q, or c for q_c
    held_out: int  # n
    randomised: bool
    penalty: float
    free: int

    def sets(self, probabilities: Tensor, *, rng: torch.Generator | None = None) -> Tensor:  # n c -> n c of bool
        """Which classes are in the set of each input; u is drawn from `rng`."""
        check_probabilities(probabilities)
        u = draw(probabilities, self.randomised, rng)
        rows = max(1, CELLS // probabilities.shape[1])
        parts = zip(torch.split(probabilities, rows), torch.split(u, rows), strict=True)
        most = self.quantile.to(u.device)
        return torch.cat([scores(p, v, self.score, self.penalty, self.free) <= most for p, v in parts])


class Coverage(NamedTuple):
    """What sets are worth on labelled inputs; the rows for single classes are those of the classes that occur."""

    coverage: float  # share of sets with the true class
    size: float  # mean number of classes in a set
    empty: float  # share of sets with none
    classes: Tensor  # k, indices
    class_inputs: Tensor  # k, how many
    class_coverage: Tensor  # k
    class_size: Tensor  # k


def fit_conformal(
    probabilities: Tensor,
    labels: Tensor,
    *,
    alpha: float = 0.1,
    score: ScoreName = "lac",
    randomised: bool = True,
    penalty: float = 0.01,
    free: int = 1,
    per_class: bool = False,
    rng: torch.Generator | None = None,
) -> Conformal:  # n c, n
    """Find q, or each q_c, on held-out probabilities and labels.

    `penalty` and `free` are for RAPS, `rng` is for a randomised score.
    """
    if score not in get_args(ScoreName):
        raise AssayError(f"There is no conformal score {score!r}; choose one of {', '.join(get_args(ScoreName))}.")
    if penalty < 0 or free < 0:
        raise AssayError(f"RAPS got penalty={penalty} and free={free}; neither may be negative.")
    check_probabilities(probabilities)
    _, y = check_held_out(probabilities, labels)
    randomised = randomised and score != "lac"
    u = draw(probabilities, randomised, rng)
    rows = max(1, CELLS // probabilities.shape[1])
    parts = zip(*(torch.split(t, rows) for t in (probabilities, y, u)), strict=True)
    own = torch.cat([scores(p, v, score, penalty, free).gather(1, t[:, None])[:, 0] for p, t, v in parts])
    if per_class:
        quantile = class_quantiles(own, y, alpha, classes=probabilities.shape[1])
    else:
        quantile = torch.tensor(conformal_quantile(own, alpha), dtype=torch.float64)
    return Conformal(score, alpha, quantile, len(y), randomised, penalty, free)


def conformal_quantile(held_out: Tensor, alpha: float) -> float:  # n
    """The k-th smallest score, k = ceil((n + 1)(1 - alpha))."""
    n, needed, miss = len(held_out), inputs_needed(alpha), _exact(alpha)
    if n < needed:
        raise AssayError(
            f"{n} held-out inputs are too few to promise {1 - alpha:.4g} coverage; it takes at least {needed}, or a "
            f"larger alpha."
        )
    return float(held_out.kthvalue(math.ceil((n + 1) * (1 - miss))).values)


def class_quantiles(held_out: Tensor, labels: Tensor, alpha: float, *, classes: int) -> Tensor:  # n, n -> c
    """The same for the inputs of each class; infinite where there are too few to promise anything less."""
    needed = inputs_needed(alpha)
    each = [held_out[labels == c] for c in range(classes)]
    found = [conformal_quantile(own, alpha) if len(own) >= needed else math.inf for own in each]
    return torch.tensor(found, dtype=torch.float64)


def inputs_needed(alpha: float) -> int:
    """The fewest held-out inputs that promise 1 - alpha with less than every class: (1 - alpha) / alpha, rounded up."""
    if not 0 < alpha < 1:
        raise AssayError(f"conformal got alpha={alpha}; it is the share of misses allowed, between 0 and 1.")
    miss = _exact(alpha)
    return math.ceil((1 - miss) / miss)


def _exact(alpha: float) -> Fraction:
    return Fraction(alpha).limit_denominator(10**6)  # 0.1 in floats is a little more, which would cost a rank


def worst_interval(hits: Sequence[int], inputs: Sequence[int], *, level: float = 0.95) -> tuple[float, float]:  # k, k
    """An interval for the least of k proportions, whichever it is.

    The k exact intervals (Clopper & Pearson 1934) of level 1 - (1 - level)/k all hold at once with probability `level`
    (Bonferroni), and then the least proportion lies between the least lower end and the least upper end. The interval
    of the lowest observed one alone would be too low: the lowest of many is low by chance.
    """
    from scipy.special import betaincinv  # the quantiles of beta laws; scipy.stats is slow to import

    if (
        len(hits) == 0
        or len(hits) != len(inputs)
        or any(not 0 <= h <= n or n < 1 for h, n in zip(hits, inputs, strict=True))
    ):
        raise AssayError(f"worst_interval got hits {list(hits)} of {list(inputs)}; give 0 to n hits of n >= 1 inputs.")
    tail = (1 - level) / len(hits) / 2
    low = [betaincinv(h, n - h + 1, tail) if h else 0.0 for h, n in zip(hits, inputs, strict=True)]
    high = [betaincinv(h + 1, n - h, 1 - tail) if h < n else 1.0 for h, n in zip(hits, inputs, strict=True)]
    return float(min(low)), float(min(high))


def coverage(sets: Tensor, labels: Tensor) -> Coverage:  # n c of bool, n
    """How often the sets hold the true class and how large they are, over all and for each class."""
    check_labelled(sets, labels)
    y = labels.long().to(sets.device)
    hit, size = sets.gather(1, y[:, None])[:, 0].double(), sets.sum(1).double()  # n, n
    classes, member, inputs = torch.unique(y, return_inverse=True, return_counts=True)
    per_class = torch.zeros(2, len(classes), dtype=torch.float64, device=sets.device)
    per_class.index_add_(1, member, torch.stack((hit, size)))
    of_class = per_class / inputs
    empty = float((size == 0).double().mean())
    return Coverage(float(hit.mean()), float(size.mean()), empty, classes, inputs, of_class[0], of_class[1])


def scores(p: Tensor, u: Tensor, score: ScoreName, penalty: float, free: int) -> Tensor:  # n c, n -> n c in float64
    """s(x, c) of every class."""
    p = p.double()
    if score == "lac":
        return 1 - p
    ordered, order = p.sort(stable=True, dim=1, descending=True)
    s = ordered.cumsum(1) - ordered + u[:, None] * ordered  # n c, by rank
    if score == "raps":
        rank = torch.arange(1, p.shape[1] + 1).to(p)
        s += penalty * (rank - free).clamp_min(0)
    return torch.empty_like(s).scatter_(1, order, s)


def draw(p: Tensor, randomised: bool, rng: torch.Generator | None) -> Tensor:  # n c -> n
    if not randomised:
        return p.new_zeros(len(p), dtype=torch.float64)
    if rng is None:
        raise AssayError("Randomised conformal sets need rng, a torch.Generator; or take randomised=False.")
    return torch.rand(len(p), generator=rng, device=rng.device, dtype=torch.float64).to(p.device)


def check_probabilities(p: Tensor) -> None:  # n c
    """Are the rows probabilities? If not, a line says which is not."""
    if p.ndim != 2 or not p.is_floating_point():
        raise AssayError(f"Got {p.dtype} of shape {tuple(p.shape)}; conformal sets want probabilities (n, classes).")
    total = p.double().sum(1)
    broken = torch.nonzero(~((total - 1).abs() <= SUM) | ~(p >= 0).all(1))  # NaN is on neither side
    if len(broken):
        row = int(broken[0])
        raise AssayError(
            f"Row {row} holds no probabilities: sum {float(total[row]):.4g}, least {float(p[row].min()):.4g}; "
            "if these are logits, pass logits.softmax(1)."
        )
