r"""Typicality: how far a training input is like many others of its own class, from a graph of who is like whom.

    i ~ j         iff  sim(x_i, x_j) >= the mean over all pairs;   or, with `nearest`, iff j is among the k nearest of i
    N(i)          the neighbours of i,   p(c, i) the share of class c among them,   c*(i) the commonest class
    degree            C_D  = |N(i)|                                          most first
    entropy           C_E  = -sum_c p ln p
    class-adjusted    C_A  = I / (C_E + 1),   I = -1 if c* = y_i, +1 if not      least first
    degree-adjusted   C_DE = |{j in N(i): y_j = y_i}| - C_A |N(i)|           most first

sim is the cosine of rows (`comparable`) whose features are brought to mean 0 and spread 1 (`unit_rows`). The degree
knows no labels; by the other two a wrongly labelled input stands last, which makes them finders of label noise.

Source: Krysinska, Morzy and Kajdanowicz, "Curriculum Learning Revisited: Incremental Batch Learning with Instance
    Typicality Ranking", ICANN 2021, sec. 3.
Departs from print, which `as_published=True` gives: I has the other sign there, by which a pure own neighbourhood has
    C_DE = 0 and a pure other one |N|, so that the most atypical come first, against the text around it; and the mean
    divides by n(n+1)/2, where there are n(n-1)/2 pairs. Not in print: sim, ties (here at random), an input without
    neighbours (C_E = 0 and I = 0: between those of its own class and those of another), and `nearest`, without which
    an input of ten classes has half of the data for neighbours.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from assay.errors import AssayError, ShapeError

Curriculum = Literal["degree", "entropy", "degree-adjusted"]
SIDE = 32  # pixels
BLOCK = 2**24  # similarities that are held at a time
ROUNDING = 1e-5  # a similarity this little below the mean is at it: duplicates share their neighbours


class Typicality(NamedTuple):
    """The centralities of each input: n each."""

    degree: Tensor
    entropy: Tensor
    class_adjusted: Tensor
    degree_adjusted: Tensor

    def score(self, by: Curriculum) -> Tensor:  # -> n
        """The more, the more typical."""
        return {"degree": self.degree, "entropy": -self.class_adjusted, "degree-adjusted": self.degree_adjusted}[by]

    def ranked(self, by: Curriculum, rng: torch.Generator) -> Tensor:  # -> n
        """The numbers of the inputs, the most typical first; ties stand in a random order."""
        mixed = torch.randperm(len(self.degree), generator=rng, device=rng.device).to(self.degree.device)
        return mixed[self.score(by)[mixed].sort(descending=True, stable=True).indices]


def comparable(x: Tensor, choices: Tensor | None = None) -> Tensor:  # n *d, *d -> n e
    """What inputs are compared by: pictures of at most 32 pixels a side, and a column for each code of a category.

    `choices` says how many codes a value has, 0 that it is a number.
    """
    if x.ndim == 4 and max(x.shape[2:]) > SIDE:
        x = F.adaptive_avg_pool2d(x, (min(x.shape[2], SIDE), min(x.shape[3], SIDE)))
    rows = x.flatten(1)
    if choices is None or not bool((choices > 0).any()):
        return rows
    parts = [
        rows[:, j : j + 1] if k == 0 else (rows[:, j : j + 1] == torch.arange(k, device=x.device)).to(x)
        for j, k in enumerate(choices.flatten().tolist())
    ]
    return torch.cat(parts, 1)


def unit_rows(x: Tensor) -> Tensor:  # n *d -> n d
    """Features of mean 0 and spread 1, then rows of length 1, whose products are cosines.

    What is not a number is the mean; a feature that never changes and a row at the mean are 0.
    """
    if len(x) < 2:
        raise ShapeError(f"Typicality is about how inputs are like each other, got {len(x)}; give at least two.")
    rows = x.flatten(1).float()
    known = rows.isfinite()
    changes = torch.where(known, rows, -torch.inf).amax(0) > torch.where(known, rows, torch.inf).amin(0)
    count = known.sum(0).clamp_min(1)
    rows = torch.where(known & changes, rows, 0)
    rows = torch.where(known & changes, rows - rows.sum(0) / count, 0)
    spread = (rows.square().sum(0) / count).sqrt()
    return F.normalize(torch.where(spread > 0, rows / spread, 0))


def mean_similarity(u: Tensor, *, as_published: bool = False) -> float:  # n d -> scalar
    """Of all pairs, without forming them: sum_{i<j} u_i u_j = (|sum_i u_i|^2 - sum_i |u_i|^2) / 2."""
    n = len(u)
    pairs = n * (n + 1) / 2 if as_published else n * (n - 1) / 2
    parts = u.tensor_split(math.ceil(u.numel() / BLOCK))
    own = math.fsum(float(part.double().square().sum()) for part in parts)
    return (float(u.sum(0, dtype=torch.float64).square().sum()) - own) / 2 / pairs


def nearest_rows(u: Tensor, nearest: int) -> Tensor:  # n d -> n m
    """The places of the rows that are most like each, its own left out."""
    n = len(u)
    if not 1 <= nearest < n:
        raise AssayError(f"nearest={nearest} of {n} inputs are none; give a number from 1 to {n - 1}.")
    return torch.cat([alike.topk(nearest, 1).indices for alike in _similarities(u)])


def counted(near: Tensor, labels: Tensor, classes: int) -> Tensor:  # n m, n -> n k
    """How many of each class are among the rows that `near` names."""
    seen = labels[near]
    return torch.zeros(len(near), classes, device=near.device).scatter_add_(1, seen, torch.ones_like(seen).float())


def _similarities(u: Tensor) -> Iterator[Tensor]:  # n d -> b n
    """Of some rows at a time with all; nobody is its own neighbour."""
    n = len(u)
    for rows in torch.arange(n, device=u.device).tensor_split(math.ceil(n * n / BLOCK)):
        alike = u[rows] @ u.T
        alike[torch.arange(len(rows), device=u.device), rows] = -torch.inf
        yield alike


def neighbours(
    u: Tensor, labels: Tensor, classes: int, *, nearest: int | None = None, as_published: bool = False
) -> Tensor:  # n d, n or r n -> n k or r n k
    """How many neighbours of each class each row has, under one labelling or under several at once."""
    n = len(u)
    if labels.shape[-1] != n or labels.ndim > 2:
        raise ShapeError(f"neighbours got labels of shape {tuple(labels.shape)} for {n} inputs; it wants one each.")
    several = labels.reshape(-1, n)
    if nearest is None:
        least = mean_similarity(u, as_published=as_published) - ROUNDING
        hot = F.one_hot(several, classes).to(u)  # r n k
        counts = torch.cat([(alike >= least).to(u) @ hot for alike in _similarities(u)], 1)
    else:
        near = nearest_rows(u, nearest)
        counts = torch.stack([counted(near, each, classes) for each in several])
    return counts if labels.ndim == 2 else counts[0]


def typicality(counts: Tensor, labels: Tensor, *, as_published: bool = False) -> Typicality:  # *r n k, *r n -> *r n
    """The centralities, from how many neighbours of each class there are (`neighbours`)."""
    degree = counts.sum(-1)
    share = counts / degree.clamp_min(1).unsqueeze(-1)
    entropy = -torch.special.xlogy(share, share).sum(-1)
    own = counts.gather(-1, labels.unsqueeze(-1)).squeeze(-1)
    # a tie with the own class is its majority: it is not similar to more of another
    side = torch.where(own >= counts.amax(-1), -1.0, 1.0) * (degree > 0)
    adjusted = (-side if as_published else side) / (entropy + 1)
    return Typicality(degree, entropy, adjusted, own - adjusted * degree)
