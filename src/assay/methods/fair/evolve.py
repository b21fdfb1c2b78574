r"""Evolve networks for error, individual and group unfairness at once, and keep what nothing else is better than.

    train M_1 .. M_p a little; judge them on other data
    again and again:
        parents    p tournaments of two among M: the lower front wins, in one front the less crowded
        offspring  each parent with N(0, noise^2) on every weight, trained a little, judged
        M          the p survivors of both

Survivors are those of NSGA-II: front by front, where front 0 holds what nothing dominates (nothing else is as good in
every objective and better in one), front 1 what only front 0 dominates, and so on; of the front that does not fit, the
least crowded. The crowding distance of a point adds over objectives the gap between its neighbours in its front,
divided by that front's range; the ends of a front have infinity.

All of this is batched over runs, so that trials and variants of the objectives evolve together. An objective that a run
does not care for is given as a constant: it then decides nothing.

Source: Zhang et al., "Fairer Machine Learning Through Multi-objective Evolutionary Learning", ICANN 2021, algorithm 1
    and sec. 3.2; NSGA-II: Deb, Pratap, Agarwal and Meyarivan, IEEE Trans. Evol. Comput. 6(2), 2002, sec. III.
Where print is open: parents are chosen by NSGA-II's own tournaments.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Generator, Tensor

from assay.errors import AssayError, ShapeError
from assay.methods.fair.entropy import benefit, decomposed
from assay.methods.fair.population import Population, drawn

OBJECTIVES = ("squared error", "individual unfairness", "group unfairness")
SIZE, NOISE = 50, 0.01


class People(NamedTuple):
    """What r runs are trained on or judged by. Groups are codes from 0."""

    x: Tensor  # r n d
    y: Tensor  # r n, 0 or 1
    groups: Tensor  # r n


class Evolved(NamedTuple):
    """Who is left, best front first, with their objectives on the people that they were judged by."""

    population: Population
    objectives: Tensor  # r p 3


def judged(population: Population, people: People) -> Tensor:  # -> r p 3
    """Squared error, unfairness within groups and between them, of each network."""
    scores = population.scores(people.x)  # r p n
    each = benefit(scores, people.y[:, None])
    within, between = decomposed(each, people.groups[:, None].expand_as(scores))
    return torch.stack([(each - 1).square().mean(-1), within, between], -1)


def evolve(
    train: People,
    judge: People,
    *,
    hidden: int,
    generations: int,
    rng: Generator,
    care: Tensor | None = None,
    size: int = SIZE,
    noise: float = NOISE,
    epochs: int = 1,
    lr: float = 0.01,
    batch: int = 500,
    after: Callable[[int, Evolved], None] = lambda generation, evolved: None,
) -> Evolved:  # care: r 3
    """Networks evolved on `train` and judged by `judge`; `care` says which objectives each run has, all by default."""
    if generations < 0 or noise < 0:
        raise AssayError(f"An evolution got {generations} generations with noise {noise:g}; give at least 0 of both.")
    runs, _, features = train.x.shape
    care = torch.ones(runs, len(OBJECTIVES), dtype=torch.bool) if care is None else care
    if care.shape != (runs, len(OBJECTIVES)) or not bool(care.any(-1).all()):
        raise ShapeError(f"An evolution of {runs} runs got cares of shape {tuple(care.shape)}; give 3 each, one true.")
    matter = care.to(train.x.device)[:, None]

    def raised(young: Population) -> Evolved:
        grown = young.trained(train.x, train.y, epochs=epochs, lr=lr, batch=batch, rng=rng)
        return Evolved(grown, judged(grown, judge))

    def kept(of: Evolved) -> Evolved:
        which = survive(torch.where(matter, of.objectives, 0.0), size)
        return Evolved(of.population.take(which), of.objectives.take_along_dim(which[..., None], 1))

    here = kept(raised(drawn(runs, size, features, hidden, rng)))
    after(0, here)
    for generation in range(1, generations + 1):
        # Who is left stands in order, so that the winner of two is the one that stands before.
        parents = torch.randint(size, (runs, size, 2), generator=rng, device=rng.device).amin(-1)
        young = raised(here.population.take(parents).varied(noise, rng))
        both = torch.cat([here.objectives, young.objectives], 1)
        here = kept(Evolved(here.population.joined(young.population), both))
        after(generation, here)
    return here


def survive(objectives: Tensor, keep: int) -> Tensor:  # *r n k -> *r keep
    """The places of those who survive, in order: lower fronts first, in one front the least crowded first."""
    if not 0 < keep <= objectives.shape[-2]:
        raise AssayError(f"{keep} cannot survive of {objectives.shape[-2]}; keep at least 1 and at most all.")
    front = fronts(objectives, keep)
    apart = crowding(objectives, front)
    order = apart.argsort(dim=-1, descending=True, stable=True)
    order = order.take_along_dim(front.take_along_dim(order, -1).argsort(dim=-1, stable=True), -1)
    return order[..., :keep]


def fronts(objectives: Tensor, enough: int | None = None) -> Tensor:  # *r n k -> *r n
    """The front of each, from 0; those beyond the first `enough` may stay together in the last."""
    n = objectives.shape[-2]
    as_good, better = torch.ones(n, n).bool().to(objectives.device), torch.zeros(n, n).bool().to(objectives.device)
    for value in objectives.unbind(-1):
        as_good = as_good & (value.unsqueeze(-1) <= value.unsqueeze(-2))
        better = better | (value.unsqueeze(-1) < value.unsqueeze(-2))
    dominates = as_good & better  # *r n n: the row dominates the column
    front = torch.full(objectives.shape[:-1], n, device=objectives.device)
    for rank in range(n):
        left = front == n
        if int((~left).sum(-1).min()) >= (n if enough is None else enough):
            break
        front[left & ~(dominates & left.unsqueeze(-1)).any(-2)] = rank
    return front


def crowding(objectives: Tensor, front: Tensor) -> Tensor:  # *r n k, *r n -> *r n
    """How far each stands from its neighbours in its front; an objective that is constant there adds nothing."""
    n, total = front.shape[-1], torch.zeros_like(objectives[..., 0])
    for value in objectives.unbind(-1):
        order = value.argsort(dim=-1, stable=True)
        order = order.take_along_dim(front.take_along_dim(order, -1).argsort(dim=-1, stable=True), -1)
        sorted_, of = value.take_along_dim(order, -1), front.take_along_dim(order, -1)
        alike = of[..., 1:] == of[..., :-1]
        inside = torch.zeros_like(of, dtype=torch.bool)
        inside[..., 1:-1] = alike[..., 1:] & alike[..., :-1]
        gap = torch.full_like(sorted_, torch.inf)
        gap[..., 1:-1] = sorted_[..., 2:] - sorted_[..., :-2]
        blank = torch.zeros(*front.shape[:-1], n + 1, dtype=value.dtype, device=value.device)
        low, high = (blank.scatter_reduce(-1, front, value, how, include_self=False) for how in ("amin", "amax"))
        span = (high - low).take_along_dim(of, -1)
        gap = torch.where(inside, gap, torch.inf) / torch.where(span > 0, span, 1.0)
        total = total.scatter_add(-1, order, torch.where(span > 0, gap, 0.0))
    return total
