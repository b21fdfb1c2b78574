r"""Whether one hypothesis on the features serves every domain: what they say of the class in it, and in the others.

    hypothesis invariance (HIR)    argmax_y P(y | z, D) = argmax_y P(y | z)      for all D, wherever D has z
    its strong version             P(y | z, D) = P(y | z)

What all domains say of z is a mixture of what each says. So both hold of all domains exactly if each domain agrees with
the others together, and that is what is asked: a posterior of all domains that holds the domain itself would agree with
it wherever the domain is dense, whatever the others say.

Posteriors are kernel ridge regressions (leave_one_out.py) on the domain, each input left out in turn, and on as many
inputs of each other one. Two that a few of the n inputs would make equal are a tie, not a disagreement.

Both posteriors are estimates. A class may be the largest of one while the largest is above it by no more than 1.96 of
the jackknife's standard errors, which fits again without each labelled input. The share of inputs that differ lies

    from  the share where no class may be the largest of both
    to    1 less the share where one class alone may be, the same of both

and whoever asks of more inputs than these widens both ends by what a share of n inputs is uncertain, in quadrature.
Measured with labels by a logistic curve of slope 1, 3 and 10 on [0, 1], gaps of 0 and .3 and n = 300: it held the gap
in 96 to 100 % of 24 samples of each. A bootstrap of the inputs under fixed posteriors held .3 in 0 to 37 %.

What chance makes two such estimates differ by is measured where nothing differs, between two halves of the domain. It
is taken off the share in quadrature, as of a threshold found twice the squares add: where a gap is large, chance moves
its ends to and fro and adds little. Where chance is of the size of what is asked, the share says little.

Only inputs that another domain holds too (support_overlap.py) say anything. Where the supports are disjoint every
representation is hypothesis invariant, and so is a constant one: read it with the overlap, and with the accuracy.

Source: Wang, Loog & van Gemert, ICPR 2020, arXiv:2010.07591, eq. 3.4 in Wang's dissertation, TU Delft 2024, sec. 3.3.3.
Departs from print: print trains towards it by the divergence of single posteriors and leaves the estimation of
    P(y | z, D) open.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from assay.errors import AssayError, ShapeError
from assay.methods.shift.leave_one_out import Told
from assay.methods.shift.support_overlap import held

LEAST, MOST = 20, 600  # inputs of a domain, and of all the others, as many of each: fits take their cube
SPLITS = 5  # into halves
TIE = 3.0  # inputs, of all of them: what leaving one out can move
SURE = 1.96  # standard errors


class HypothesisGap(NamedTuple):
    """Of one domain, for each of its inputs."""

    common: Tensor  # n: another domain has inputs there
    differs: Tensor  # n: the domain's own posterior has another largest class than that of the others
    surely: Tensor  # n: and no class may be the largest of both
    maybe: Tensor  # n: more than one class may be the largest of one of them, or they differ
    by_chance: Tensor  # n: how often halves of the domain differ so
    kl: Tensor  # n: KL of the domain's posterior from that of the others, in nats
    kl_by_chance: Tensor  # n


def hypothesis_gaps(
    z: Sequence[Tensor], y: Sequence[Tensor], classes: int, *, rng: torch.Generator
) -> list[HypothesisGap]:  # each n *d, n
    """The gap of every domain; features and labels of each, in one order."""
    if len(z) < 2 or len(z) != len(y) or any(len(a) != len(b) for a, b in zip(z, y, strict=True)):
        raise ShapeError(f"hypothesis_gaps got features of {len(z)} domains and labels of {len(y)}; give two or more.")
    sizes = [len(part) for part in z]
    if min(sizes) < LEAST:
        raise AssayError(f"hypothesis_gaps got domains of {sizes} inputs; give at least {LEAST} of each.")
    rows = [part.detach().flatten(1).double() for part in z]
    found = []
    for d, (mine, label) in enumerate(zip(rows, y, strict=True)):
        others = [e for e in range(len(rows)) if e != d]
        common = torch.stack([held(mine, rows[e]) for e in others]).any(0)
        alone = Told(mine, label, classes)
        each = max(LEAST, min(MOST // len(others), *(sizes[e] for e in others)))
        drawn = {e: torch.randperm(sizes[e], generator=rng, device=rng.device)[:each].to(mine.device) for e in others}
        taught, known = (torch.cat([part[e][drawn[e]] for e in others]) for part in (rows, y))
        every = Told(taught, known, classes)
        mean, means = alone.left_out, every.at(mine)
        may, might = _largest(mean, alone.parts(), alone.missed), _largest(means, every.parts(mine), every.missed)
        differs = _differ(mean, means)
        chance, kl_chance = torch.zeros(2, len(mine), dtype=torch.float64, device=mine.device)
        for _ in range(SPLITS):
            first = torch.randperm(len(mine), generator=rng, device=rng.device).to(mine.device) % 2 == 0
            one, two = (_from_half(mine, label, half, classes) for half in (first, ~first))
            chance += _differ(one, two) / SPLITS
            kl_chance += (_kl(one, two) + _kl(two, one)) / (2 * SPLITS)
        surely = differs & ~(may & might).any(1)
        maybe = differs | ((may | might).sum(1) > 1)
        found.append(HypothesisGap(common, differs, surely, maybe, chance, _kl(mean, means), kl_chance))
    return found


def _from_half(z: Tensor, y: Tensor, half: Tensor, classes: int) -> Tensor:  # n d, n, n -> n c
    """What one half says of all, of its own inputs without them."""
    told = Told(z[half], y[half], classes)
    answers = told.at(z)
    answers[half] = told.left_out
    return answers


def _largest(p: Tensor, parts: Tensor, missed: Tensor) -> Tensor:  # m c, m n, n c -> m c
    """Which classes may be the largest, by the jackknife's standard error of how far each is below that."""
    top = p.argmax(1)
    squared = parts.square()
    variance = torch.empty_like(p)
    for c in sorted(set(top.tolist())):  # of f_top - f_c
        rows = top == c
        variance[rows] = squared[rows] @ (missed[:, c, None] - missed).square()
    return p.gather(1, top[:, None]) - p <= SURE * variance.sqrt()


def _differ(p: Tensor, q: Tensor) -> Tensor:  # n c, n c -> n
    """Whether the largest classes differ, by more than a tie in both."""
    first, second = p.argmax(1, keepdim=True), q.argmax(1, keepdim=True)
    apart = torch.minimum(p.gather(1, first) - p.gather(1, second), q.gather(1, second) - q.gather(1, first))[:, 0]
    return apart > TIE / len(p)


def _kl(p: Tensor, q: Tensor) -> Tensor:  # n c, n c -> n
    """Of what they say as probabilities, none of them below a hundredth."""
    p, q = (part.clamp_min(0.01) / part.clamp_min(0.01).sum(1, keepdim=True) for part in (p, q))
    return (p * (p / q).log()).sum(1)
