"""What next: for each question that failed, the remedies that fit this model, or what a person could do instead.

Which remedies fit was worked out when the audit was made (`Audit.offers`): a report has no model to look at.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from assay.audit import Audit, Offer
from assay.report import words
from assay.store import slug

FIRST = 2  # remedies for one question that are shown; the others are folded
ALWAYS_ASKED = "accuracy"  # beside whatever is mended: what a remedy costs shows there first
MORE_DATA = "More training inputs of the kinds that its section shows it to get wrong are the plainest way."
ATTACKED = (
    "Training on attacked inputs (Madry et al., ICLR 2018, arXiv:1706.06083) is the defence that has held up best; the "
    "remedies pgd-training, trades and mart do it for a classifier that can be trained here."
)
HELD_OUT = "Take its confidence for an order and not for a chance, and set thresholds by what held-out inputs show."
MAPS = "Rest no decision on a map that fails here."
INSTEAD: dict[str, str] = {
    "what-did-it-forget": "Make it less small, or train the small one on for a few epochs, with more of the classes "
    "that its section shows to pay; until then keep the original for them.",
    "what-do-its-features-tell": "Keep features where they are made and give out answers alone; leave out inputs that "
    "tell of the attribute where the task does not need them. What is hidden from an attacker of before alone is not.",
    "who-was-in-the-training": "Fewer epochs, more data and more weight decay leave less to tell; only noise in the "
    "training promises anything.",
    "accuracy": MORE_DATA,
    "everyday-change": "Training on inputs that are changed in the ways that its section shows to cost most is the "
    "plainest way.",
    "does-an-error-grow": "Training on inputs with noise, or with the worst change, added makes errors die sooner.",
    "does-it-depend-on-its-company": "Put it into eval mode, and keep running statistics where it normalises over a "
    "batch; one that is made to answer for a batch should be shown the batches that it will meet.",
    "does-it-depend-on-where-it-stands": "Training on inputs that are moved about is the plainest way; until then show "
    "it things in the middle of the picture.",
    "how-bad-are-its-mistakes": "Where a mistake between groups is dear, turn inputs away that it is unsure of; more "
    "training data of the classes that it takes for one another are the plainest way.",
    "how-far-is-it-from-home": "A shift is no fault of the model: train on inputs from there, or ask the questions "
    "about that domain before it is used there.",
    "could-an-invariance-bridge-it": "Where labels conflict, or no inputs are shared, only labels from there help; "
    "else train on several domains at once.",
    "what-will-it-score-there": "Label some inputs from there: a hundred say more than any estimate without labels.",
    "does-it-extrapolate": "Train on domains from beyond, or keep it to what lies between those that it has seen.",
    "does-it-use-a-shortcut": "Train on inputs in which the cue says nothing of the label, or hide it; where the cue "
    "holds in use as well, whoever answers for the model decides.",
    "did-transfer-help": "Train on the new domain from weights drawn anew, and look for labels that conflict.",
    "what-do-its-defaults-cost": "Train it with the head that its section shows to be better, and ask again.",
    "does-it-find-them": "Training on what it takes for one another, the hardest first, is the plainest way.",
    "does-it-find-them-in-part": "Training on queries that are cut and covered as its section shows is the plainest "
    "way.",
    "how-many-wrong-labels-would-it-take": "Look twice at the labels that its section shows, and at who could have "
    "changed them; more labels, and a loss that bears wrong ones, are the plainest ways.",
    "who-gets-in": "Raise the threshold until as few impostors get in as you can bear, by impostors whom it was not "
    "trained on, and have another way in for the genuine whom it then keeps out.",
    "is-it-fair": "Look at how its labels came about before anything else: a model that copies wrong labels is as "
    "unfair as they are. More inputs of the group that it is wrong for are the plainest way.",
    "which-labels-look-wrong": "Look at the labels that its section shows, mend or drop the wrong ones, and train "
    "again.",
    "does-it-last": "Training on episodes with the noise and the changed readings that its section shows to cost most "
    "is the plainest way; until then let something simpler take over where an episode goes astray.",
    "worst-case-accuracy": ATTACKED,
    "distance-to-failure": ATTACKED,
    "does-it-transfer": ATTACKED,
    "how-far-to-a-tie": ATTACKED,
    "one-change-for-all": "Training on inputs with such a change added is the plainest way.",
    "can-a-few-words-break-it": "Folding capitals and letters that look alike before it reads takes the slips away; "
    "against other words, training on texts that are reworded as its section shows is the plainest way.",
    "is-the-number-real": "Do not rest on its robustness: what counts is the strongest attack in its section.",
    "certified-radius": "Training with the noise that smoothing adds makes more of it certifiable (Cohen et al., ICML "
    "2019, arXiv:1902.02918).",
    "how-steep": "Training with a penalty on its weights or on its gradient makes it less steep.",
    "confidence": HELD_OUT,
    "confidence-under-shift": f"{HELD_OUT} They must have shifted as its inputs will.",
    "which-estimator": "No estimate is close at so few inputs; more of them are the only way.",
    "how-often-is-the-set-right": "Fit the sets on inputs like those that it will meet; more of them hold the promise "
    "closer.",
    "does-it-know-how-far-off": "Do not take its spread at its word: stretch its intervals by what held-out inputs ask "
    "for, as how-wide-must-it-be does.",
    "how-wide-must-it-be": "Its intervals are as wide as its errors: only a model nearer the truth, or one that says "
    "where it is far off, has narrower ones.",
    "does-it-know-where-it-is-wrong": "Have a person look at every image until its spread is worth more; members that "
    "were trained each from a start of its own tell most.",
    "does-it-hold-when-density-changes": "Train on images of every density that it will meet, or keep it to those that "
    "it has seen.",
    "does-it-know": "Where another score in its section tells outliers better, turn inputs away by that one.",
    "is-it-sure-far-away": "Let no input reach it that lies outside the range of the training data.",
    "does-the-metric-hold": "Let several neighbours decide and not the nearest alone; training that keeps unlike "
    "inputs further apart is the plainest way.",
    "is-it-a-consistent-order": "Ask it both ways round and take the mean; an order of many needs one score for each.",
    "is-the-comparison-calibrated": "Take its comparisons for an order, and not for how far apart two inputs are.",
    "was-it-tampered-with": "Get the model again from whoever trained it, and compare the two files.",
    "where-does-it-look": MAPS,
    "can-the-map-be-chosen": MAPS,
    "does-the-map-survive": MAPS,
    "does-the-map-need-the-model": MAPS,
    "does-the-pair-map-need-the-model": MAPS,
    "is-the-map-faithful": MAPS,
    "may-one-map-stand-in": MAPS,
    "what-would-change-its-mind": MAPS,
    "does-it-agree-with-itself": MAPS,
}
"""What a person could do where no remedy fits, for each probe on Assay's shelf; a third party's has none."""


@dataclass(frozen=True)
class Fitting:
    """A remedy for a question that failed."""

    remedy: str
    promise: str
    cost: str
    gained: tuple[str, ...]
    command: tuple[str, ...]


@dataclass(frozen=True)
class Next:
    id: str
    question: str
    remedies: tuple[Fitting, ...]
    instead: str

    @property
    def first(self) -> tuple[Fitting, ...]:
        return self.remedies[:FIRST]

    @property
    def others(self) -> tuple[Fitting, ...]:
        return self.remedies[FIRST:]


def what_next(audit: Audit) -> list[Next]:
    """One entry for each question that failed; the cheap come first, and of two as cheap the tried one.

    The name of a remedy goes into a command that people copy: one that is not a plain word is not offered.
    """
    failed = [row.answer for row in audit.rows if row.verdict == "fail"]
    asked = {row.answer.probe for row in audit.rows}
    told = []
    for answer in failed:
        fitting = [o for o in audit.offers or () if answer.probe in o.mends and slug(o.remedy) == o.remedy]
        probes = list(dict.fromkeys([answer.probe, *({ALWAYS_ASKED} & asked)]))
        told.append(
            Next(
                slug(answer.probe),
                answer.question,
                tuple(
                    Fitting(
                        o.remedy,
                        o.promise,
                        words.cost(o.training, o.inference),
                        tuple(_gained(o, answer.probe)),
                        words.cure_command(audit, o.remedy, probes),
                    )
                    for o in sorted(fitting, key=lambda o: _dearness(o, answer.probe))
                ),
                INSTEAD.get(answer.probe, ""),
            )
        )
    return told


def _gained(offer: Offer, probe: str) -> Iterator[str]:
    for tried in offer.tried:
        if tried.probe == probe:
            yield f"{tried.says} ({tried.claim})"


def _dearness(offer: Offer, probe: str) -> tuple[float, float, bool, str]:
    untried = not any(tried.probe == probe for tried in offer.tried)
    dear = float("inf")
    return (
        dear if offer.training is None else offer.training,
        dear if offer.inference is None else offer.inference,
        untried,
        offer.remedy,
    )
