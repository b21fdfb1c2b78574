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

Source: LAC, Sadinle, Lei & Wasserman, JASA 2019, arXiv:1609.00451; APS, Romano, Sesia & Candes, NeurIPS 2020,
    arXiv:2006.02544; RAPS, Angelopoulos et al., ICLR 2021, arXiv:2009.14193; quantile, Vovk et al. 2005.
Departs from print: RAPS of print chooses penalty and free on more held-out data; here they are given.
"""

from __future__ import annotations

import math
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
    quantile: float  # q
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
        return torch.cat([scores(p, v, self.score, self.penalty, self.free) <= self.quantile for p, v in parts])


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
    rng: torch.Generator | None = None,
) -> Conformal:  # n c, n
    """Find q on held-out probabilities and labels; `penalty` and `free` are for RAPS, `rng` for a randomised score."""
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
    return Conformal(score, alpha, conformal_quantile(own, alpha), len(y), randomised, penalty, free)


def conformal_quantile(held_out: Tensor, alpha: float) -> float:  # n
    """The k-th smallest score, k = ceil((n + 1)(1 - alpha))."""
    if not 0 < alpha < 1:
        raise AssayError(f"conformal got alpha={alpha}; it is the share of misses allowed, between 0 and 1.")
    miss = Fraction(alpha).limit_denominator(10**6)  # 0.1 in floats is a little more, which would cost a rank
    n, needed = len(held_out), math.ceil((1 - miss) / miss)
    if n < needed:
        raise AssayError(
            f"{n} held-out inputs are too few to promise {1 - alpha:.4g} coverage; it takes at least {needed}, or a "
            f"larger alpha."
        )
    return float(held_out.kthvalue(math.ceil((n + 1) * (1 - miss))).values)


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
