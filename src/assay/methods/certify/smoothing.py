r"""Randomised smoothing: a certified l2 radius for any classifier, from its answers under Gaussian noise.

    g(x) = argmax_c P( f(x + e) = c ),   e ~ N(0, sigma^2 I)
    P( f(x + e) = c_A ) >= p > 1/2   =>   g(x + d) = c_A  for all ||d||_2 < sigma Phi^-1(p)

n0 draws choose c_A; n fresh draws count how often f answers c_A, and p is the one-sided Clopper-Pearson bound

    p = BetaInv(alpha; k, n - k + 1)   for k hits of n,   p = 0 for k = 0.

Each radius holds with probability at least 1 - alpha over the draws, for each input by itself: among many inputs a
share of up to alpha may be wrong. It certifies the smoothed classifier g, not f.
The noisy inputs are not clipped to the input bounds: the theorem is about the classifier that sees x + e, and that is
what a model for smoothing is trained on. Clipping would be sound too, but as a part of f; put it into `model`.
The theorem is about real numbers; that x + e is rounded in floating point is not covered. It holds of a random f too,
for P( f(x) = c ) is a function of x like any other: P is then over e and over what f draws, one answer for each e. The
n answers about one input must not share what f draws. Where the rows of a batch do, as with one draw of the weights for
all of them, a batch has each input once at most.

Source: Cohen, Rosenfeld, Kolter, ICML 2019, arXiv:1902.02918, Theorem 1 with the upper bound 1 - p on every other class
(sec. 3.2.2) and Certify (appendix A).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from scipy.special import betaincinv, ndtri
from torch import Tensor

from assay.errors import AssayError, ShapeError, SubjectError

BLOCK = 64  # rows of noise drawn at once: fixed, so that the noise does not depend on `batch`
ABSTAINS = -1


class Smoothed(NamedTuple):
    label: Tensor  # n, the class c_A; -1 where smoothing abstains
    radius: Tensor  # n float64, certified in l2; 0 where it abstains
    hits: Tensor  # n, how many of the n draws fell on the class that was chosen
    chance: Tensor  # n float64, the lower bound p on the chance of that class


@torch.no_grad()
def smooth(
    model: Callable[[Tensor], Tensor],
    x: Tensor,
    *,
    sigma: float,
    draws: tuple[int, int] = (100, 100_000),
    alpha: float = 0.001,
    batch: int = 1024,
    rows_apart: bool = True,
    rng: torch.Generator,
) -> Smoothed:
    """Class and certified l2 radius of the smoothed classifier around each input: n *d -> Smoothed.

    `draws` is (n0, n); `model` (n *d -> n c) sees at most `batch` rows at a time, and no more noise than about that is
    held. The same `rng` state gives the same noise for every `batch`. `rows_apart=False` says of a random model that
    the rows of a batch share what it draws.
    """
    n0, n = draws
    if not sigma > 0:
        raise AssayError(f"smooth needs sigma > 0, the noise's standard deviation, got {sigma}.")
    if n0 < 1 or n < 1 or batch < 1:
        raise AssayError(f"smooth needs at least 1 draw to choose, 1 to count and batch >= 1; got {draws=}, {batch=}.")
    if not 0 < alpha < 1:
        raise AssayError(f"alpha is the chance of a wrong certificate, between 0 and 1, got {alpha}; 0.001 is usual.")
    if not x.is_floating_point():
        raise AssayError(f"smooth adds Gaussian noise and needs floating-point inputs, got {x.dtype}; pass x.float().")
    batch = batch if rows_apart else min(batch, len(x))
    chosen = _counts(model, x, sigma, n0, batch, rows_apart, rng).argmax(1)  # n
    hits = _counts(model, x, sigma, n, batch, rows_apart, rng).gather(1, chosen[:, None])[:, 0]  # n
    chance = lower_chance(hits, n, alpha=alpha)
    sure = chance > 0.5
    radius = sigma * torch.from_numpy(ndtri(chance.cpu().numpy())).to(x.device)
    return Smoothed(torch.where(sure, chosen, ABSTAINS), torch.where(sure, radius, 0.0), hits, chance)


def lower_chance(hits: Tensor, n: int, *, alpha: float) -> Tensor:  # n -> n float64
    """The one-sided Clopper-Pearson bound: a chance that lies below the true one with probability >= 1 - alpha."""
    k = hits.cpu().numpy().astype(float)
    low = torch.from_numpy(betaincinv(k.clip(min=1), n - k.clip(min=1) + 1, alpha)).to(hits.device)
    return torch.where(hits > 0, low, 0.0)


def _counts(
    model: Callable[[Tensor], Tensor],
    x: Tensor,
    sigma: float,
    draws: int,
    batch: int,
    rows_apart: bool,
    rng: torch.Generator,
) -> Tensor:
    """How often each class is the answer under noise, over `draws` draws per input: n *d -> n c.

    All of an input one after the other, or one of each input in turn, so that `batch` <= n has none of them twice.
    """
    rows, counts = len(x) * draws, x.new_zeros(len(x), 0, dtype=torch.long)
    if rows == 0:
        raise ShapeError(f"smooth got inputs of shape {tuple(x.shape)}; it wants at least one, as n *d.")
    held = max(1, batch // BLOCK) * BLOCK
    noise = torch.empty(held, *x.shape[1:], dtype=x.dtype, device=rng.device)
    for start in range(0, rows, held):
        owner = torch.arange(start, min(start + held, rows), device=x.device)
        owner = owner // draws if rows_apart else owner % len(x)  # row -> its input
        for block in torch.split(noise[: len(owner)], BLOCK):
            block.normal_(generator=rng)
        for who, e in zip(torch.split(owner, batch), torch.split(noise[: len(owner)].to(x.device), batch), strict=True):
            logits = model(torch.add(x[who], e, alpha=sigma))  # b c
            if logits.ndim != 2 or len(logits) != len(who):
                raise ShapeError(
                    f"The model gave shape {tuple(logits.shape)} for {len(who)} inputs; smooth wants logits, n classes."
                )
            if logits.isnan().any():
                raise SubjectError(
                    f"The model's output is NaN under noise of sigma {sigma}; mend the model or lower sigma."
                )
            classes = logits.shape[1]
            if counts.shape[1] == 0:
                counts = counts.new_zeros(len(x), classes)
            counts.view(-1).index_add_(0, who * classes + logits.argmax(1), torch.ones_like(who))
    return counts
