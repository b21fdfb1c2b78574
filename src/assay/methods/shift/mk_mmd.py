r"""MK-MMD: how far apart two samples are, by five Gaussian kernels at once; a loss to train on, and a test.

    k(x, y)  =  1/5 sum_u exp( -|x - y|^2 / (2 s_u^2) ),   s_u^2 = {1/4, 1/2, 1, 2, 4} times the median of |x - y|^2
    MMD^2    =  mean_{i,i'} k(a_i, a_i') + mean_{j,j'} k(b_j, b_j') - 2 mean_{i,j} k(a_i, b_j)
    witness  f(x) = mean_i k(x, a_i) - mean_j k(x, b_j)

The biased estimate counts i = i' and is never below 0; the unbiased one leaves it out. Bandwidths double, so that one
exponential, squared four times, gives all five kernels.

The test pools both samples and deals them anew: p = (1 + number dealt at least as far apart) / (1 + number of deals),
which is at most alpha with a chance of at most alpha where there is no shift, at every sample size. The kernel matrix is
made once, a block at a time and only above its diagonal, and all deals are one product with it.

The interval of MMD^2 is normal. Its variance is 4 Var f(a) / m + 4 Var f(b) / n, the first term of the variance of a
U-statistic, which is all there is where the samples are far apart, and that of the deals, which is all there is where
they are alike.

Source: Gretton et al., "A Kernel Two-Sample Test", JMLR 2012, 13:723, eq. 3 and 5 (estimates), sec. 2.3 (witness);
    Long et al., ICML 2015, arXiv:1502.02791, sec. 3.2 (several kernels, as a loss); Wang, dissertation, TU Delft 2024,
    sec. 2.3.3 (five kernels of equal weight). Print writes no square over the distance of the means and names no
    bandwidths; those here are the usual ones.
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import NamedTuple

import torch
from torch import Tensor

from assay.errors import AssayError, ShapeError

WIDEST = 4.0  # of the five bandwidths, as a multiple of the median; the others are its halves
KERNELS = 5
MOST = 1000  # rows that the median is taken of: half a million distances
BLOCK = 1024  # rows and columns of the kernel matrix at a time
TIE = 1e-8  # deals that differ by rounding alone count as equally far apart
POWER = 0.8


class Shift(NamedTuple):
    """How far apart two samples are, and what deals of the same rows show where nothing tells them apart."""

    squared: float  # unbiased MMD^2
    low: float  # of its interval
    high: float
    biased: float
    p_value: float
    dealt: Tensor  # p: unbiased MMD^2 of each deal
    witness: tuple[Tensor, Tensor]  # m, n: low where a row is like `b` and unlike `a`; a row is not compared to itself
    scale: float  # the median squared distance

    def least(self, alpha: float = 0.05) -> float:
        """The smallest MMD^2 that a test of this size would have seen 8 times in 10."""
        spread = float(self.dealt.std())
        return float(self.dealt.quantile(1 - alpha)) + NormalDist().inv_cdf(POWER) * spread


def mk_mmd(a: Tensor, b: Tensor, *, biased: bool = True, scale: float | Tensor | None = None) -> Tensor:  # m d, n d -> ()
    """MMD^2 between two samples, with its gradient; `scale` stands in the place of the median squared distance."""
    check_samples(a, b, least=1 if biased else 2)
    m, n = len(a), len(b)
    pool = torch.cat([a, b]).flatten(1)
    if scale is None:
        scale = median_distance(pool)
    pool = pool - pool.detach().mean(0)  # distances stay, and their rounding shrinks
    square = (pool * pool).sum(1)
    apart = (square[:, None] + square - 2 * pool @ pool.T).clamp_min(0)
    kernel = _kernels(-apart / (2 * WIDEST * scale))
    within_a, within_b = kernel[:m, :m], kernel[m:, m:]
    across = kernel[:m, m:].mean()
    if biased:
        return within_a.mean() + within_b.mean() - 2 * across
    return _off_diagonal(within_a) + _off_diagonal(within_b) - 2 * across


def mmd_test(
    a: Tensor, b: Tensor, *, rng: torch.Generator, deals: int = 500, scale: float | None = None, level: float = 0.95
) -> Shift:  # m d, n d
    """MMD^2 with its interval, the p-value of `deals` permutations, and the witness function at every row."""
    check_samples(a, b, least=2)
    if deals < 1:
        raise AssayError(f"mmd_test got deals={deals}; it wants at least 1, and 19 or more for a p-value of 0.05.")
    m, n = len(a), len(b)
    pool = torch.cat([a, b]).detach().flatten(1)
    if scale is None:
        scale = float(median_distance(pool))
    exact = len(pool) <= BLOCK  # costs nothing, and ties stay ties
    pool = (pool - pool[_some(len(pool))].median(0).values).to(torch.float64 if exact else torch.float32)
    pool = pool / math.sqrt(2 * WIDEST * scale)
    dealt = torch.rand(deals, m + n, generator=rng, dtype=torch.float64, device=rng.device).argsort(1)[:, :m]
    picked = torch.zeros(deals, m + n, dtype=pool.dtype, device=rng.device).scatter_(1, dealt, 1).T  # m+n p
    mine = torch.arange(m + n, device=pool.device) < m
    inside, total = _sums(pool, picked.to(pool.device).contiguous(), mine)
    to_mine, to_all = total.unbind(1)  # for each row the sum of k over the other rows of a, and over all others

    def squared(in_a: Tensor, with_a: Tensor) -> Tensor:
        """Unbiased MMD^2 by sums of k: within one side, and of that side with all rows."""
        across = with_a - in_a
        in_b = to_all.sum() - 2 * with_a + in_a
        return in_a / (m * (m - 1)) + in_b / (n * (n - 1)) - 2 * across / (m * n)

    chance = squared(inside, picked.to(pool.device).double().T @ to_all)
    in_a, with_a = to_mine[mine].sum(), to_all[mine].sum()
    in_b, across = to_all.sum() - 2 * with_a + in_a, with_a - in_a
    value = float(squared(in_a, with_a))
    count = torch.where(mine, m - 1, m).double(), torch.where(mine, n, n - 1).double()
    witness = to_mine / count[0] - (to_all - to_mine) / count[1]  # m+n
    spread = 4 * witness[mine].var() / m + 4 * witness[~mine].var() / n + (chance.var() if deals > 1 else 0)
    half = NormalDist().inv_cdf((1 + level) / 2) * math.sqrt(float(spread))
    return Shift(
        squared=value,
        low=value - half,
        high=value + half,
        biased=float((in_a + m) / m**2 + (in_b + n) / n**2 - 2 * across / (m * n)),
        p_value=(1 + int((chance >= value - TIE).sum())) / (1 + deals),
        dealt=chance.cpu(),
        witness=(witness[mine].cpu(), witness[~mine].cpu()),
        scale=scale,
    )


def median_distance(pool: Tensor) -> Tensor:  # n d -> ()
    """The median squared distance between two rows, of at most MOST rows that are drawn whatever sample they are of.

    The mean where half of all pairs are equal, and 1 where all are: then every kernel is 1.
    """
    with torch.no_grad():
        some = pool.detach().flatten(1)[_some(len(pool))]
        apart = torch.nn.functional.pdist(some.double() if some.device.type == "cpu" else some) ** 2
        middle = apart.median()
        if not middle > 0:
            middle = apart.mean()
        return (middle if middle > 0 else torch.ones_like(middle)).to(pool.dtype)


def check_samples(a: Tensor, b: Tensor, *, least: int) -> None:
    """Two samples of rows as long as each other, of finite numbers, or a line that says what is wrong."""
    if a.ndim < 2 or a.shape[1:] != b.shape[1:]:
        raise ShapeError(
            f"Got samples of shapes {tuple(a.shape)} and {tuple(b.shape)}; give rows of the same length for both."
        )
    if min(len(a), len(b)) < least:
        raise AssayError(f"Got samples of {len(a)} and {len(b)} rows; give at least {least} of each.")
    for name, rows in (("first", a), ("second", b)):
        broken = torch.nonzero(~rows.detach().flatten(1).isfinite().all(1))
        if len(broken):
            raise AssayError(f"Row {int(broken[0])} of the {name} sample holds NaN or inf; leave that row out.")


def _some(n: int) -> Tensor:
    """At most MOST of n rows: drawn, so that they hang on no label, and always the same."""
    return torch.randperm(n, generator=torch.Generator().manual_seed(0))[:MOST]


def _kernels(minus_apart: Tensor) -> Tensor:
    """The mean of the five kernels, from minus the squared distance over twice the widest bandwidth."""
    widest = minus_apart.exp()
    total = widest
    for _ in range(KERNELS - 1):
        widest = widest * widest
        total = total + widest
    return total / KERNELS


def _off_diagonal(kernel: Tensor) -> Tensor:  # n n -> ()
    return (kernel.sum() - kernel.diagonal().sum()) / (len(kernel) * (len(kernel) - 1))


def _sums(pool: Tensor, picked: Tensor, mine: Tensor) -> tuple[Tensor, Tensor]:  # N d, N p, N -> p, N 2
    """Sums of the kernel off its diagonal: within each deal, and of each row with those of `mine` and with all."""
    square = (pool * pool).sum(1, keepdim=True)
    one = torch.ones_like(square)
    left, right = torch.cat([2 * pool, -square, -one], 1), torch.cat([pool, one, square], 1)  # left right' = -|x - y|^2
    both = torch.stack([mine.to(pool.dtype), one[:, 0]], 1)
    inside = torch.zeros(picked.shape[1], dtype=torch.float64, device=pool.device)
    total = torch.zeros(len(pool), 2, dtype=torch.float64, device=pool.device)
    starts = range(0, len(pool), BLOCK)
    for i in starts:
        rows = slice(i, i + BLOCK)
        for j in starts:
            if j < i:
                continue
            columns = slice(j, j + BLOCK)
            kernel = left[rows] @ right[columns].T
            kernel.clamp_(max=0).exp_()
            widest = kernel.clone()
            for _ in range(KERNELS - 1):
                widest.mul_(widest)
                kernel.add_(widest)
            if i == j:
                kernel.fill_diagonal_(0)
            twice = 1 if i == j else 2
            inside += twice * (picked[rows] * (kernel @ picked[columns])).sum(0, dtype=torch.float64)
            total[rows] += kernel @ both[columns]
            if i != j:
                total[columns] += kernel.T @ both[rows]
    return inside / KERNELS, total / KERNELS
