r"""Flips by a smooth stand-in: every label is flipped with some probability, and the probabilities are learned.

    min_alpha  -1/2 E_z |tanh(s K (y_l * z)) - t|^2 + lambda/2 |alpha|^2
    z = 2 / (1 + exp((log(alpha / (1 - alpha)) + G_1 - G_2) / tau)) - 1 in (-1, 1),   G_1, G_2 ~ Gumbel(0, 1)

G_1 - G_2 is logistic, so that P[z < 0] = alpha at every tau, and z goes to -1 (flipped) or 1 as tau goes to 0. Flipped
are the labels with the highest alpha. Print leaves lambda to the reader; it stands for the number of flips that are
allowed: too small and every alpha goes to 1, where their order says nothing. So many are tried side by side, each is
rounded now and then on its way, the true errors of its first flips are counted, and the best is kept.

Source: Liu, 'Building Trustworthy Machine Learning Models', UCLA 2021, sec. 1.2.5, eq. 1.7 to 1.10; Liu et al., NeurIPS
    2019. The slope s of tanh is 1 in print and 10 in the authors' code.
Departs from print: the sweep, and greedy flips are returned where they are better. `as_published=True` is the authors'
    code: lambda = 0.01, tau = 0.2, 1500 steps of 1e-6 down the slope from alpha = 1/2, flips where alpha > 1/2 alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from assay.methods.poison.flips import Flips, Ints, Labels, check_signs, greedy, in_order
from assay.methods.poison.propagation import Array

LAMBDAS = tuple(float(value) for value in np.geomspace(1, 300, 12))
NODES = 180  # unlabelled nodes for which these are meant; the errors that they are weighed against grow with the nodes
SLOPE, TAU = 10.0, 0.2
STEPS, LR, LOOKS = 300, 0.1, 6
LIMIT = 7.0  # of a logit: alpha from 0.001 to 0.999


def relaxed(
    K: Array, labels: Labels, target: Labels, most: int, *, rng: torch.Generator, as_published: bool = False
) -> Flips:  # u l, l, u
    """At most so many flips of labels that are -1 or +1; never worse than greedy ones."""
    labels, target = check_signs(K, labels, target, most)
    if as_published:
        alpha = _slowly(K, labels, target, rng)
        order = np.argsort(-alpha, kind="stable")[:most]
        return in_order(K, labels, target, order[alpha[order] > 0.5])
    tried = [greedy(K, labels, target, most), *sweep(K, labels, target, most, rng=rng)]
    return max((best_prefix(flips) for flips in tried), key=lambda flips: flips.errors[-1] if len(flips.errors) else -1)


def best_prefix(flips: Flips) -> Flips:
    """Only as many of them as err most."""
    if not len(flips.errors) or flips.errors.max() <= flips.clean:
        return Flips(flips.order[:0], flips.errors[:0], flips.clean, flips.to[:0])
    end = int(flips.errors.argmax()) + 1
    return Flips(flips.order[:end], flips.errors[:end], flips.clean, flips.to[:end])


def sweep(
    K: Array, labels: Ints, target: Ints, most: int, *, rng: torch.Generator,
    lambdas: Sequence[float] = LAMBDAS, steps: int = STEPS, looks: int = LOOKS,
) -> list[Flips]:  # u l, l, u  # fmt: skip
    """The `most` labels with the highest alpha, for each lambda at each look; computed where `rng` lives."""
    looked = _climb(K, labels, target, rng, lambdas, steps, looks)
    orders = {tuple(np.argsort(-alpha, kind="stable")[:most].tolist()) for alphas in looked for alpha in alphas}
    return [in_order(K, labels, target, np.array(order, np.int64)) for order in sorted(orders)]


def probabilities(
    K: Array, labels: Ints, target: Ints, *, rng: torch.Generator, lambdas: Sequence[float], steps: int = STEPS
) -> Array:  # u l, l, u -> m l
    """alpha at the end, one row for each lambda."""
    return _climb(K, labels, target, rng, lambdas, steps, 1)[-1]


def flip_signs(logits: Tensor, noise: Tensor, tau: float) -> Tensor:  # any shape
    """z of logits and a difference of two Gumbels: 2 / (1 + exp(a / tau)) - 1 = -tanh(a / (2 tau))."""
    return -torch.tanh((logits + noise) / (2 * tau))


def logistic(shape: Sequence[int], rng: torch.Generator) -> Tensor:
    """The difference of two Gumbels."""
    return torch.logit(torch.rand(*shape, generator=rng, device=rng.device), eps=1e-6)


def _climb(
    K: Array, labels: Ints, target: Ints, rng: torch.Generator, lambdas: Sequence[float], steps: int, looks: int
) -> list[Array]:  # u l, l, u -> each m l
    """Adam on the logits of alpha, all lambdas side by side, each with its own draws."""
    weights, truth = _on(K, labels, target, rng)
    price = torch.tensor(lambdas, device=rng.device)[:, None] * len(target) / NODES
    logits = torch.zeros(len(lambdas), len(labels), device=rng.device)
    mean, square = torch.zeros_like(logits), torch.zeros_like(logits)
    seen = []
    for step in range(1, steps + 1):
        alpha = logits.sigmoid()
        slope = _slope(logits, logistic(logits.shape, rng), weights, truth)
        slope = (slope + price * alpha * alpha * (1 - alpha)) / len(target)
        mean.lerp_(slope, 0.1)
        square.lerp_(slope * slope, 0.001)
        logits.addcdiv_(mean, (square / (1 - 0.999**step)).sqrt_().add_(1e-12), value=-LR / (1 - 0.9**step))
        logits.clamp_(-LIMIT, LIMIT)
        if step % max(1, steps // looks) == 0:
            seen.append(logits.sigmoid().double().cpu().numpy())
    return seen


def _slope(logits: Tensor, noise: Tensor, weights: Tensor, truth: Tensor) -> Tensor:  # m l, m l, l u, u -> m l
    """Of -1/2 |tanh(s K (y_l * z)) - t|^2 in the logits, for one draw; by hand, as autograd is slower than the sums."""
    z = flip_signs(logits, noise, TAU)
    told = torch.tanh(SLOPE * z @ weights)  # m u
    by_score = (truth - told) * (1 - told * told) * SLOPE
    return (by_score @ weights.T) * (z * z - 1) / (2 * TAU)


def _slowly(K: Array, labels: Ints, target: Ints, rng: torch.Generator) -> Array:  # u l, l, u -> l
    """alpha as the authors' code finds it: by plain steps of alpha itself."""
    weights, truth = _on(K, labels, target, rng)
    alpha = torch.full((1, len(labels)), 0.5, device=rng.device)
    for _ in range(1500):
        slope = _slope(torch.logit(alpha), logistic(alpha.shape, rng), weights, truth) / (alpha * (1 - alpha))
        alpha = (alpha - 1e-6 * (slope + 0.01 * alpha)).clamp(1e-3, 1 - 1e-3)
    return alpha[0].double().cpu().numpy()


def _on(K: Array, labels: Ints, target: Ints, rng: torch.Generator) -> tuple[Tensor, Tensor]:  # l u, u
    weights = torch.as_tensor((K * labels).T.copy(), dtype=torch.float32, device=rng.device)
    return weights, torch.as_tensor(target, dtype=torch.float32, device=rng.device)
