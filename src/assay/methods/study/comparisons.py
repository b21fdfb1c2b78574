r"""Tests of a tuning study, each with the question that it answers.

    spearman         r = Pearson's correlation of the ranks;  t = r sqrt((n-2) / (1 - r^2))  ~  t, n - 2
    levene           W = F of a one-way analysis of variance of |x - median of its group|    ~  F, k - 1 and n - k
    mann_whitney     U = sum over pairs of [x > y] + [x = y] / 2;  U / (n m) is the chance that x is above y
    kruskal_wallis   H = 12 / (n (n+1)) sum_j R_j^2 / n_j - 3 (n+1), corrected for ties      ~  chi^2, k - 1

Levene's test compares spread. Add a constant to every value of one group and W stays as it is: it is no test of level,
and cannot show that experts score higher. Those of level are Mann and Whitney's, and Kruskal and Wallis's for several.

Of eight cases or fewer Spearman's p is that of all their orders: the t distribution would call three in a row certain.
Where a number does not exist (a constant has no rank correlation, no spread to compare) it is None, never 0.

Source: Spearman 1904; Levene 1960, about the median as Brown and Forsythe, JASA 1974; Mann and Whitney 1947; Kruskal
    and Wallis 1952; Holm, Scand. J. Statist. 1979; by scipy.stats. Used in Anand et al., BMVC 2020, sec. 7.3.1.
Departs from print: there Levene's test is read as a difference between groups in accuracy, and three tests are made
    at 0.05 each. Here each test says what it compares, and p values of several come with Holm's and Bonferroni's
    correction.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import permutations
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from assay.errors import ShapeError

Compares = Literal["order", "spread", "level"]
FEW = 8  # cases whose orders are all looked at: 40,320
ASKS: dict[Compares, str] = {
    "order": "Does the one go up with the other?",
    "spread": "Are the values of one group farther apart than those of the other? It says nothing of which is higher.",
    "level": "Are the values of one group higher than those of the other?",
}


class Tested(NamedTuple):
    """What a test found; `statistic` and `p` are None where they do not exist, and `why` says so."""

    name: str
    compares: Compares
    statistic: float | None
    p: float | None
    n: tuple[int, ...]
    effect: float | None = None
    """Of Spearman the correlation; of Mann and Whitney the chance that one of the second group is above one of the
    first; of others None."""
    why: str = ""

    @property
    def asks(self) -> str:
        return ASKS[self.compares]


def spearman(x: ArrayLike, y: ArrayLike) -> Tested:  # n, n
    """Whether y goes up with x, by ranks."""
    from scipy.stats import spearmanr

    a, b = _numbers(x), _numbers(y)
    if len(a) != len(b):
        raise ShapeError(f"spearman got {len(a)} and {len(b)} values; give one of each for every case.")
    why = _too_few(len(a), 3) or ("All are equal in one of the two." if _constant(a) or _constant(b) else "")
    if why:
        return Tested("Spearman", "order", None, None, (len(a),), None, why)
    found = spearmanr(a, b)
    r = float(found.statistic)
    return Tested("Spearman", "order", r, _of_all_orders(a, b) if len(a) <= FEW else float(found.pvalue), (len(a),), r)


def _of_all_orders(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    """The share of all orders of b that go with a at least as closely as this one."""
    from scipy.stats import rankdata

    first, second = (rankdata(v) - (len(a) + 1) / 2 for v in (a, b))
    orders = np.array(list(permutations(range(len(b)))))
    together = np.abs(second[orders] @ first)
    return float((together >= abs(float(second @ first)) - 1e-9).mean())


def permuted(x: ArrayLike, y: ArrayLike, rng: np.random.Generator, draws: int = 2000) -> NDArray[np.float64]:
    """Spearman's correlation of x with y dealt out anew, so often: what there is without any connection.  # -> draws"""
    from scipy.stats import rankdata

    a, b = rankdata(_numbers(x)), rankdata(_numbers(y))
    a, b = a - a.mean(), b - b.mean()
    size = float(np.linalg.norm(a) * np.linalg.norm(b))
    if size == 0:
        return np.zeros(0)
    dealt: NDArray[np.float64] = rng.permuted(np.tile(b, (draws, 1)), axis=1) @ a / size
    return dealt


def levene(*groups: ArrayLike) -> Tested:
    """Whether the groups differ in spread: the Brown-Forsythe form, about the median."""
    from scipy.stats import levene as by_scipy

    few = [_numbers(g) for g in groups]
    why = _too_small(few, 2) or ("Nothing varies in any group." if all(_constant(g) for g in few) else "")
    if not why:
        # Where |x - median| is one number in every group, such as in groups of two, F divides by 0.
        far = [np.abs(g - np.median(g)) for g in few]
        why = "Within each group all lie equally far from its median." if all(_constant(f) for f in far) else ""
    if why:
        return Tested("Levene", "spread", None, None, tuple(map(len, few)), None, why)
    found = by_scipy(*few, center="median")
    return Tested("Levene", "spread", float(found.statistic), float(found.pvalue), tuple(map(len, few)))


def mann_whitney(low: ArrayLike, high: ArrayLike) -> Tested:
    """Whether the second group is higher or lower than the first, two-sided."""
    from scipy.stats import mannwhitneyu

    few = [_numbers(low), _numbers(high)]
    sizes = tuple(map(len, few))
    if why := _too_small(few, 1):
        return Tested("Mann-Whitney", "level", None, None, sizes, None, why)
    if _constant(np.concatenate(few)):
        return Tested("Mann-Whitney", "level", None, None, sizes, 0.5, "All values are equal.")
    found = mannwhitneyu(few[1], few[0], alternative="two-sided")
    u = float(found.statistic)
    return Tested("Mann-Whitney", "level", u, float(found.pvalue), sizes, u / (len(few[0]) * len(few[1])))


def kruskal_wallis(*groups: ArrayLike) -> Tested:
    """Whether the groups differ in level at all."""
    from scipy.stats import kruskal

    few = [_numbers(g) for g in groups]
    why = _too_small(few, 1) or ("All values are equal." if _constant(np.concatenate(few)) else "")
    if why:
        return Tested("Kruskal-Wallis", "level", None, None, tuple(map(len, few)), None, why)
    found = kruskal(*few)
    return Tested("Kruskal-Wallis", "level", float(found.statistic), float(found.pvalue), tuple(map(len, few)))


def p_of_levene(statistic: float, sizes: Sequence[int]) -> float:
    """The p value that belongs to a printed W of groups of these sizes."""
    from scipy.stats import f

    return float(f.sf(statistic, len(sizes) - 1, sum(sizes) - len(sizes)))


def bonferroni(p: Sequence[float | None]) -> list[float | None]:
    """Each p value times how many there are, at most 1; those that do not exist are not counted."""
    m = sum(each is not None for each in p)
    return [None if each is None else min(1.0, m * each) for each in p]


def holm(p: Sequence[float | None]) -> list[float | None]:
    """Holm's: the smallest times m, the next times m - 1, ..., none below one before it. Never above Bonferroni's."""
    known = sorted((each, i) for i, each in enumerate(p) if each is not None)
    found: list[float | None] = [None] * len(p)
    last = 0.0
    for at, (each, i) in enumerate(known):
        last = max(last, min(1.0, (len(known) - at) * each))
        found[i] = last
    return found


def _numbers(values: ArrayLike) -> NDArray[np.float64]:
    found = np.asarray(values, dtype=np.float64)
    if found.ndim != 1 or not np.isfinite(found).all():
        raise ShapeError(f"A test got values of shape {found.shape}, or some that are no numbers; give a list of them.")
    return found


def _constant(values: NDArray[np.float64]) -> bool:
    return len(values) == 0 or math.isclose(float(np.ptp(values)), 0.0, abs_tol=1e-12)


def _too_few(n: int, least: int) -> str:
    return f"{n} {'value is' if n == 1 else 'values are'} too few; it takes {least}." if n < least else ""


def _too_small(groups: Sequence[NDArray[np.float64]], least: int) -> str:
    if len(groups) < 2:
        raise ShapeError(f"A test of groups got {len(groups)}; give two or more.")
    return next((why for g in groups if (why := _too_few(len(g), least))), "")
