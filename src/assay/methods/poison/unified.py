r"""One objective for all that an enemy may want of label propagation, and the solver that each setting has.

    max_{delta in R_1, Delta in R_2} |g(K'(y_l + delta)) - h|^2,   K' of the rows X_l + Delta

g: the identity (regression) or the sign (classes). h: the truth where the enemy knows it, the answers before where not;
with a `goal`, min instead of max, and h is the goal. R_1: an l2 ball for targets, at most c flips for classes. R_2: an
l2 ball, of which at most c rows may move. Labels or features change, not both.

Source: Liu, 'Building Trustworthy Machine Learning Models', UCLA 2021, sec. 1.2.3, eq. 1.2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from assay.errors import AssayError
from assay.methods.poison.features import move
from assay.methods.poison.flips import Flips, Labels, exhaustive, greedy
from assay.methods.poison.label_attack import known_truth, towards, unknown_truth
from assay.methods.poison.propagation import Array, propagate, signs
from assay.methods.poison.relaxation import relaxed

Method = Literal["greedy", "relaxed", "exhaustive"]
Learns = Literal["targets", "classes"]


@dataclass(frozen=True)
class Poisoned:
    """Labels and features as the enemy leaves them, and what the learner says before and after."""

    labels: Array  # l
    features: Array  # l d
    before: Array  # u
    after: Array  # u


def poison(
    labelled: Array, unlabelled: Array, labels: Array, *, gamma: float, learns: Learns,
    radius: float | None = None, most: int | None = None, features: bool = False,
    truth: Array | None = None, goal: Array | None = None, method: Method = "greedy", rng: torch.Generator,
) -> Poisoned:  # l d, u d, l, u, u  # fmt: skip
    """The worst that an enemy can do within `radius` (targets, features) and `most` (flips, or rows that move)."""
    labels = np.asarray(labels, np.float64)
    if truth is not None and goal is not None:
        raise AssayError("Got a truth and a goal; an enemy with a goal has no use for the truth: give one of them.")
    if learns == "classes" and (np.abs(labels) != 1).any():
        odd = labels[np.abs(labels) != 1][0]
        raise AssayError(f"Got {odd:g} among the labels; classes are -1 and +1 (2 * y - 1 makes them of 0 and 1).")
    if features and radius is None:
        raise AssayError("A change of features has no bound without a radius; give one.")
    if not features and learns == "targets" and (radius is None or most is not None):
        raise AssayError("Targets change within a radius (a few of them by any amount has no bound); give it alone.")
    if not features and learns == "classes" and (most is None or radius is not None):
        raise AssayError("Classes change by flips; give how many at `most`, and no radius.")
    victim = propagate(labelled, unlabelled, gamma)
    scores = victim.predict(labels)
    before = signs(scores).astype(np.float64) if learns == "classes" else scores
    aim = np.asarray(next(given for given in (goal, truth, before) if given is not None), np.float64)
    if features:
        found = move(
            labelled, unlabelled, labels, aim, gamma, float(radius or 0), rng=rng, rows=most,
            classes=learns == "classes", nearer=goal is not None,
        )  # fmt: skip
        after = signs(found.answers).astype(np.float64) if learns == "classes" else found.answers
        return Poisoned(labels, labelled + found.change, before, after)
    if learns == "targets":
        size = float(radius or 0)
        if goal is not None:
            delta = towards(victim.K, labels, goal, size)
        else:
            delta = unknown_truth(victim.K, size) if truth is None else known_truth(victim.K, labels, truth, size)
        return Poisoned(labels + delta, labelled, before, victim.predict(labels + delta))
    # What is right by the other class is wrong by the goal, so that errors against it are answers as wanted.
    wrong_by = signs(-aim) if goal is not None else aim
    flips = by_method(method, victim.K, labels, wrong_by, int(most or 0), rng)
    changed = flips.applied(labels.astype(np.int64)).astype(np.float64)
    return Poisoned(changed, labelled, before, signs(victim.predict(changed)).astype(np.float64))


def by_method(method: Method, K: Array, labels: Labels, target: Labels, most: int, rng: torch.Generator) -> Flips:
    """At most so many flips of labels that are -1 or +1, found in this way."""
    if method == "relaxed":
        return relaxed(K, labels, target, most, rng=rng)
    solvers = {"greedy": greedy, "exhaustive": exhaustive}
    if method not in solvers:
        raise AssayError(f"Got method={method!r}; flips are found by greedy, relaxed or exhaustive.")
    return solvers[method](K, labels, target, most)
