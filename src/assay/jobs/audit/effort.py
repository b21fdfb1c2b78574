"""Effort: about how long a question takes, from the speed of the model and what was counted of each question.

One table for every probe on the shelf: `assay check` tells the time of an audit by it, and an audit with a time limit
makes its plan by it. What counts is what goes through the model; a pass with its gradient counts as three. Needs
no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

from assay.run import BUDGETS, Budget

QUICK = BUDGETS["quick"]


class Effort(NamedTuple):
    """What a question takes with the steps of a quick audit: counted on bundled subjects, or estimated."""

    of: Literal["samples", "dear", "steps"]
    """What of the budget its number of inputs follows."""
    share: float
    """How many inputs it looks at, as a multiple of that."""
    passes: float
    """To each input, those with a gradient three times."""
    once: float = 0.0
    """However many inputs."""
    longer: float = 0.0
    """The power of the steps by which the passes grow: 1 where each step is a pass."""
    own: float = 1.0
    """Seconds beside the model, however many inputs, with what is imported for it: scikit-learn takes two."""
    own_each: float = 0.0
    """Seconds beside the model for each input, which grow as the passes do."""
    votes: float = 0.0
    """More passes to each input, of which a random model makes one where it makes all its draws of the others."""


EFFORTS: Mapping[str, Effort] = {
    "accuracy": Effort("samples", 1, 1, own=0.3),
    "can-a-few-words-break-it": Effort("dear", 1, 300, longer=1),
    "can-the-map-be-chosen": Effort("steps", 0.5, 560, longer=1),
    "certified-radius": Effort("steps", 1, 70, longer=1, own=0.5, own_each=0.15, votes=1100),
    "confidence": Effort("samples", 1, 1, own=1.5, own_each=0.005),
    "confidence-under-shift": Effort("samples", 0.35, 81, own_each=0.02),
    "did-transfer-help": Effort("samples", 0, 0, once=3.7e5, own=1.0),
    "could-an-invariance-bridge-it": Effort("samples", 1, 2, own=3.0),
    "distance-to-failure": Effort("steps", 3, 250, longer=1, own=0.5, own_each=0.02),
    "does-an-error-grow": Effort("steps", 3, 64, once=190, longer=1, own=0.5),
    "does-it-agree-with-itself": Effort("steps", 5, 60, longer=1, own_each=0.03),
    "does-it-depend-on-where-it-stands": Effort("dear", 1, 25, once=830, own=0.5),
    "does-it-depend-on-its-company": Effort("dear", 1, 13, own=0.3, own_each=0.005),
    "does-it-extrapolate": Effort("samples", 3, 1, own=0.3),
    "does-it-find-them": Effort("samples", 1, 1, own=0.3, own_each=0.001),
    "does-it-find-them-in-part": Effort("samples", 1, 7, own=0.3, own_each=0.001),
    "does-it-know": Effort("samples", 1, 15, once=4300, longer=0.5, own=3.0, own_each=0.005),
    "does-it-know-where-it-is-wrong": Effort("dear", 3, 1, own=1.5, own_each=0.005),
    "does-it-hold-when-density-changes": Effort("dear", 7, 1, own=0.5, own_each=0.003),
    "does-it-know-how-far-off": Effort("samples", 1, 1, own=0.5),
    "does-it-last": Effort("dear", 1, 410, own_each=0.1),
    "does-it-transfer": Effort("samples", 0.3, 90, longer=0.7, own=0.5, own_each=0.06),
    "does-it-use-a-shortcut": Effort("samples", 2, 1, own=0.3),
    "does-the-map-need-the-model": Effort("steps", 0.4, 980, longer=1),
    "does-the-map-survive": Effort("steps", 1, 400, longer=1),
    "does-the-metric-hold": Effort("steps", 10, 1, once=1300, own_each=0.01),
    "does-the-pair-map-need-the-model": Effort("steps", 1.5, 300, once=2e4, longer=1, own=60.0),
    "everyday-change": Effort("dear", 1, 82, own=0.3, own_each=0.005),
    "how-bad-are-its-mistakes": Effort("samples", 1, 1, own=2.5),
    "how-far-is-it-from-home": Effort("samples", 1, 5, own=3.0, own_each=0.005),
    "how-far-to-a-tie": Effort("steps", 6, 40, longer=1, own=0.5, own_each=0.02),
    "how-many-wrong-labels-would-it-take": Effort("samples", 4, 1.25, own=2.0, own_each=0.004),
    "how-often-is-the-set-right": Effort("samples", 0.5, 7, own=0.5),
    "how-steep": Effort("steps", 1, 200, longer=1, own_each=0.1),
    "how-wide-must-it-be": Effort("samples", 0.5, 2, own=0.5),
    "is-it-fair": Effort("samples", 4, 4, own=1.2),
    "is-it-a-consistent-order": Effort("samples", 1, 2),
    "is-it-sure-far-away": Effort("steps", 2, 151, own=0.3),
    "is-the-comparison-calibrated": Effort("samples", 1, 1),
    "is-the-map-faithful": Effort("steps", 0.4, 1950, longer=0.8, own=0.5),
    "is-the-number-real": Effort("steps", 3, 750, longer=1, own=0.5, own_each=0.05),
    "may-one-map-stand-in": Effort("steps", 2, 100, longer=1, own=2.0, own_each=0.2),
    "one-change-for-all": Effort("samples", 1, 17, once=10400, longer=1),
    "was-it-tampered-with": Effort("steps", 1.5, 6, once=1400, own=0.2),
    "what-do-its-features-tell": Effort("samples", 4, 1, own=6.0, own_each=0.003),
    "what-will-it-score-there": Effort("samples", 1, 50, own=2.0, own_each=0.01),
    "what-did-it-forget": Effort("samples", 5, 2, own=0.5),
    "what-do-its-defaults-cost": Effort("dear", 5, 65, once=8000, longer=1, own=2.0),
    "what-would-change-its-mind": Effort("steps", 5, 100, longer=1, own_each=0.1),
    "where-does-it-look": Effort("steps", 0.5, 1200, longer=0.5, own=0.5),
    "which-estimator": Effort("samples", 1, 1, own=8.0),
    "which-labels-look-wrong": Effort("samples", 4, 1, own=0.5, own_each=0.001),
    "who-gets-in": Effort("dear", 1, 250, longer=0.9, own=1.0, own_each=0.02),
    "who-was-in-the-training": Effort("samples", 8, 1, own=2.0),
    "worst-case-accuracy": Effort("dear", 1, 470, longer=0.9, own=0.5, own_each=0.03),
}
OTHERWISE = Effort("samples", 1, 60, longer=1)
"""Of a third party's question."""


def inputs_of(probe: str, budget: Budget, there: int) -> int:
    """How many inputs a question looks at, of so many that there are."""
    effort = EFFORTS.get(probe, OTHERWISE)
    samples = there if budget.samples is None else budget.samples
    of = {"samples": samples, "dear": budget.dear or samples, "steps": budget.few(budget.steps)}[effort.of]
    wanted = max(1, round(effort.share * of))
    return min(wanted, there, there if budget.inputs is None else budget.inputs)


def seconds_of(probe: str, budget: Budget, pace: float, there: int, draws: int = 1) -> float:
    """About how long it takes where a pass takes `pace` seconds an input, all `draws` of a random model included."""
    effort, n = EFFORTS.get(probe, OTHERWISE), inputs_of(probe, budget, there)
    longer = float((budget.steps / QUICK.steps) ** effort.longer)
    passes = effort.passes + effort.votes / draws
    return effort.own + (effort.own_each * n + (passes * n + effort.once) * pace) * longer
