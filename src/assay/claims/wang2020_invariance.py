"""Wang, Loog & van Gemert 2020: which invariance implies which, on domains whose distributions are known exactly."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog
from scipy.stats import norm

from assay.claim import Claim, Evidence, Published
from assay.finding import Measure

if TYPE_CHECKING:
    from assay.run import Run

SOURCE = (
    "Wang, Loog & van Gemert, 'Respecting Domain Relations: Hypothesis Invariance for Domain Generalization', ICPR "
    "2020, arXiv:2010.07591 (numbered as in Wang's dissertation, TU Delft 2024, ch. 3)"
)
FAMILIES = 200
CLOSE = 1e-9  # gaps of exact distributions below this are rounding
SHAPES = ((-3.0, 1.0), (-2.0, 2.0), (-1.0, 3.0))  # the means of two classes in three domains, as figure 3.2 has them
WIDE, ROUND = 0.9, 0.4  # half the width of a uniform class, and the deviation of a Gaussian one
PRIORS = (0.5, 0.9)
APART = 1.0  # the means of two classes from 0, each with the deviation 1
GRID = np.linspace(-8, 8, 16_001)
Array = NDArray[np.float64]


class _Gaps(NamedTuple):
    """Largest over domains; each from 0 to 1."""

    agnostic: float  # total variation of P(z | D) from P(z)
    conditional: float  # of P(z | y, D) from P(z | y), the largest over classes
    prior: float  # of P(y | D) from P(y)
    hypothesis: float  # mass of a domain where argmax P(y | z, D) is not argmax P(y | z)
    strong: float  # mean total variation of P(y | z, D) from P(y | z)
    insufficient: float  # error of the best answer that z allows, each domain with its own


def _gaps(joint: Array) -> _Gaps:  # d c z: P(z, y | D), a sum of 1 for each domain
    """Of discrete distributions, domains equally likely; nothing is estimated."""
    every = joint.mean(0)  # c z
    prior, all_prior = joint.sum(2), every.sum(1)
    z, all_z = joint.sum(1), every.sum(0)
    told = joint / np.maximum(z, 1e-300)[:, None]
    all_told = every / np.maximum(all_z, 1e-300)
    # what two classes are equally likely at is no disagreement
    own = np.take_along_axis(told, all_told.argmax(0)[None, None], 1)[:, 0]
    differs = told.max(1) > own + 1e-12
    within = joint / np.maximum(prior, 1e-300)[:, :, None]
    all_within = every / np.maximum(all_prior, 1e-300)[:, None]
    return _Gaps(
        agnostic=float(np.abs(z - all_z).sum(1).max() / 2),
        conditional=float((np.abs(within - all_within).sum(2) / 2 * (prior > 0)).max()),
        prior=float(np.abs(prior - all_prior).sum(1).max() / 2),
        hypothesis=float((z * differs).sum(1).max()),
        strong=float((z * np.abs(told - all_told).sum(1) / 2).sum(1).max()),
        insufficient=float(1 - joint.max(1).sum(1).min()),
    )


def _measures(gaps: _Gaps, of: str) -> tuple[Measure, ...]:
    names = {
        "hypothesis": "hypothesis gap",
        "agnostic": "class-agnostic gap",
        "conditional": "class-conditional gap",
        "prior": "prior gap",
        "strong": "gap of the posteriors",
        "insufficient": "error of the best answer on z",
    }
    return tuple(
        Measure(name=f"{name}, {of}", value=getattr(gaps, field), better="neither", unit="%")
        for field, name in names.items()
    )


def sufficient(run: Run) -> Evidence:
    """Random distributions with what is domain-free made so, and one condition broken at a time."""
    rng = np.random.default_rng(run.seed)
    whole, agnostic, shifted = [], [], []
    for _ in range(FAMILIES):
        d, c, k = (int(rng.integers(low, high)) for low, high in ((2, 6), (2, 6), (4, 20)))
        within, prior = rng.dirichlet(np.ones(k), c), rng.dirichlet(np.ones(c))  # c k, c
        whole.append(_gaps(np.repeat((prior[:, None] * within)[None], d, 0)))
        other = rng.dirichlet(np.ones(c), d)
        shifted.append(_gaps(other[:, :, None] * within))
        marginal, posterior = rng.dirichlet(np.ones(k)), rng.dirichlet(np.ones(c), (d, k))
        agnostic.append(_gaps(np.swapaxes(posterior, 1, 2) * marginal))  # P(z | D) alone is domain-free
    worst = max(max(g.hypothesis, g.strong) for g in whole)
    broken = np.mean([g.hypothesis for g in agnostic]), np.mean([g.hypothesis for g in shifted])
    return Evidence(
        verdict="holds" if worst <= CLOSE else "fails",
        says=f"Over {FAMILIES} random families with both kinds of invariance and no prior shift, posteriors differ by "
        f"at most {worst:.1g}. Each condition counts: with P(z | D) alone domain-free the largest hypothesis gap is "
        f"{100 * broken[0]:.0f} % on average, and with P(z | y, D) alone, while priors shift, {100 * broken[1]:.0f} %.",
        measures=(
            Measure(name="largest gap of the posteriors, both kinds, no prior shift", value=worst, better="neither"),
            *(
                Measure.mean(
                    f"largest hypothesis gap, {name}",
                    [g.hypothesis for g in of],
                    better="neither",
                    seed=run.seed,
                    unit="%",
                )
                for name, of in (("class-agnostic invariance alone", agnostic), ("under prior shift", shifted))
            ),
        ),
    )


def _drawn(densities: list[list[Array]], priors: Array | None = None) -> Array:  # each of d c: z; d c -> d c z
    raw = np.array(densities)
    raw = raw / raw.sum(2, keepdims=True)
    weight = np.full(raw.shape[:2], 1 / raw.shape[1]) if priors is None else priors
    return np.asarray(weight[:, :, None] * raw)


def not_needed(run: Run) -> Evidence:
    flat = _gaps(_drawn([[(np.abs(GRID - m) <= WIDE).astype(float) for m in of] for of in SHAPES]))
    bell = _gaps(_drawn([[norm.pdf(GRID, m, ROUND) for m in of] for of in SHAPES]))
    wrong = max(float(norm.cdf(-abs(m) / ROUND)) for of in SHAPES for m in of) / 2
    far = min(flat.agnostic, flat.conditional) > 0.1
    return Evidence(
        verdict="holds" if far and flat.hypothesis <= CLOSE else "fails",
        says=f"Uniform classes about the means {', '.join(map(str, SHAPES))}: the hypothesis gap is "
        f"{flat.hypothesis:.1g} while P(z | D) is {100 * flat.agnostic:.0f} % off P(z) and P(z | y, D) "
        f"{100 * flat.conditional:.0f} % off P(z | y). With Gaussians (deviation {ROUND:g}) tails reach over: the "
        f"gap is {100 * bell.hypothesis:.2f} %, and the one threshold 0 is wrong on at most {100 * wrong:.2f} % of a "
        "domain.",
        measures=(*_measures(flat, "uniform"), *_measures(bell, "Gaussian")),
    )


def _aligned(prior: tuple[float, float]) -> float:
    """The least sum of errors in two domains of any z that has one distribution in both: a linear program.

    z is 0 or 1 and is the answer, without loss: answers of any hypothesis on z are such a z. The unknowns are
    P(z = 1 | y, D) for y = 0, 1 and D = 0, 1.
    """
    cost = [1 - prior[0], -prior[0], 1 - prior[1], -prior[1]]
    equal = [1 - prior[0], prior[0], -(1 - prior[1]), -prior[1]]
    best = linprog(cost, A_eq=[equal], b_eq=[0], bounds=[(0, 1)] * 4)
    return float(best.fun + sum(prior))


def under_prior_shift(run: Run) -> Evidence:
    conditionals = [norm.pdf(GRID, m, 1.0) for m in (-APART, APART)]
    priors = np.array([[1 - p, p] for p in PRIORS])
    joint = _drawn([conditionals] * 2, priors)
    gaps = _gaps(joint)
    thresholds = [float(np.log((1 - p) / p) / (2 * APART)) for p in PRIORS]
    bound = abs(PRIORS[0] - PRIORS[1])
    least = _aligned(PRIORS)
    free, mapped = float(2 - joint.max(1).sum()), _mapped(joint)
    invariant = gaps.conditional <= CLOSE < gaps.hypothesis
    dearer = abs(least - bound) <= CLOSE and mapped >= bound - CLOSE and mapped > free
    return Evidence(
        verdict="holds" if invariant and dearer else "fails",
        says=f"With one P(z | y) and priors of {PRIORS[0]:g} and {PRIORS[1]:g} the class-conditional gap is "
        f"{gaps.conditional:.1g}, and Bayes' thresholds are {thresholds[0]:.2f} and {thresholds[1]:.2f}: the "
        f"hypothesis gap is {100 * gaps.hypothesis:.0f} %. Any z with one P(z) has errors that sum to at least "
        f"{least:.3f}, the total variation of the priors; brought to one P(z) by their quantiles these domains have "
        f"{mapped:.3f}, where left alone they have {free:.3f}.",
        measures=(
            *_measures(gaps, "priors .5 and .9"),
            Measure(name="least sum of errors with one P(z)", value=least, better="neither"),
            Measure(name="total variation of the priors", value=bound, better="neither"),
            Measure(name="sum of errors, brought to one P(z)", value=mapped, better="neither"),
            Measure(name="sum of errors, left alone", value=free, better="neither"),
        ),
    )


def _mapped(joint: Array) -> float:  # d c z
    """The least sum of errors of one answer for each z where every domain was moved to one P(z) by its quantiles."""
    level = np.linspace(0, 1, 2001)
    moved = []
    for of in joint:  # c z; mass of each class below each quantile of the domain
        below = np.concatenate([[0], of.sum(0).cumsum()])
        moved.append([np.diff(np.interp(level, below, np.concatenate([[0], row.cumsum()]))) for row in of])
    every = np.array(moved)  # d c levels
    says = every.sum(0).argmax(0)
    return float(len(joint) - np.take_along_axis(every, says[None, None], 1).sum())


def zeros(run: Run) -> Evidence:
    joint = _drawn([[norm.pdf(GRID, m, ROUND) for m in of] for of in SHAPES])
    none, some = _gaps(joint.sum(2, keepdims=True)), _gaps(joint)
    free = max(none.agnostic, none.conditional, none.hypothesis, none.strong)
    chance = 1 - 1 / joint.shape[1]
    return Evidence(
        verdict="holds" if free <= CLOSE and abs(none.insufficient - chance) <= CLOSE else "fails",
        says=f"A representation that is 0 for every input has no gap of any kind (at most {free:.1g}) and the error "
        f"{100 * none.insufficient:.0f} %, that of a guess; with z as it is the best answer errs on "
        f"{100 * some.insufficient:.2f} %.",
        measures=(*_measures(none, "all zeros"), *_measures(some, "z as it is")),
    )


SHELVED = (
    Claim(
        name="sufficient",
        source=SOURCE,
        says="Without prior shift, domain-invariant representations are hypothesis invariant.",
        published=(),
        here=f"sec. 3.3.4, eq. 3.5, where both kinds of invariance are asked for: {FAMILIES} random families of 2 to 5 "
        "discrete domains with 2 to 5 classes, computed without estimates; beside it families in which one of the "
        "conditions is broken",
        minutes=0.1,
        test=sufficient,
    ),
    Claim(
        name="not-needed",
        source=SOURCE,
        says="A representation may be hypothesis invariant and neither class-agnostic nor class-conditional invariant.",
        published=(
            Published("hypothesis gap of the three domains", 0.0, "figure 3.2", "%", "hypothesis gap, uniform"),
        ),
        here="figure 3.2 as three domains on a line of which print gives no numbers: two classes each, uniform (which "
        "is exact) and Gaussian, computed on a grid without estimates",
        minutes=0.1,
        test=not_needed,
    ),
    Claim(
        name="prior-shift",
        source=SOURCE,
        says="Learning domain-invariant representations cannot tackle prior shift.",
        published=(),
        here=f"sec. 3.3.4: two Gaussian classes, priors of {PRIORS[0]:g} and {PRIORS[1]:g}, computed on a grid; the "
        "least error of any representation with one P(z) by a linear program, and that of one by quantiles",
        minutes=0.1,
        test=under_prior_shift,
    ),
    Claim(
        name="zeros",
        source=SOURCE,
        says="A vector of zeros is invariant to all domains and hypotheses, and not sufficient for the task.",
        published=(),
        here="sec. 3.3.3: the three domains of figure 3.2 with Gaussian classes, computed on a grid",
        minutes=0.1,
        test=zeros,
    ),
)
