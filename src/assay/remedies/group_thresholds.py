"""Thresholds for each group, fitted on inputs that the model has not seen."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from scipy.special import softmax

from assay.attribute import Attribute, Shown, shown_in
from assay.data.held_out import held_out, left_to_ask
from assay.inputs import Row
from assay.methods.fair.groups import LEAST
from assay.methods.fair.thresholds import Goal, thresholds
from assay.nn.by_group import ByGroup
from assay.probe import undisturbed
from assay.remedy import Cost, Remedy

if TYPE_CHECKING:
    from assay.run import Run
    from assay.subject import Subject


@dataclass(frozen=True)
class GroupThresholds(Remedy):
    """Gives each group thresholds of its own, so that the odds, or the shares that are told yes, are the same.

    It reads the `attribute` off its column in each input, and so needs it whenever it answers: whether that may be is
    for whoever uses it to say. For "odds" some answers hang on a coin, which is tossed by the input itself: the same
    input always gets the same answer. It is fitted on 'calibration', 'validation' or a fixed half of 'test', which
    leaves the cured subject's data. The second of the two classes is yes.
    """

    attribute: str | None = None
    goal: Goal = "odds"

    source: ClassVar[str] = "Hardt, Price & Srebro, NeurIPS 2016, arXiv:1610.02413"
    mends: ClassVar[tuple[str, ...]] = ("is-it-fair",)

    def why_not(self, subject: Subject) -> str | None:
        if (reason := super().why_not(subject)) is not None:
            return reason
        if len(subject.task.classes) != 2 or subject.draws > 1:
            return "it sets thresholds of one score, and is for two classes and answers that are the same each time"
        found = self._found(subject)
        if found is None:
            what = "an attribute" if self.attribute is None else f"the attribute {self.attribute!r}"
            return f"it reads {what} off a column of the input when it answers, and no input here shows it"
        attribute, _ = found
        part = held_out(subject.data)
        codes, y = attribute.codes.get(part.split), np.asarray(subject.data[part.split].labels)
        if codes is None:
            return f"{attribute.name!r} is not known of {part.split!r}, on which it is fitted"
        for k, value in enumerate(attribute.values):
            rows = codes[part.fit] == k
            few = min(int((rows & (y[part.fit] == c)).sum()) for c in (0, 1))
            if few < LEAST:
                return f"{few} of {attribute.name}={value} have one of the labels to fit on; it wants at least {LEAST}"
        return None

    def cost(self) -> Cost:
        return Cost(training=0, inference=1)

    def frame(self, subject: Subject) -> Subject:
        found = self._found(subject)
        assert found is not None  # why_not
        attribute, shown = found
        part = held_out(subject.data)
        data, left = left_to_ask(subject.data, part)
        about = (
            f"{subject.about} It has a threshold for each {attribute.name}, fitted on {len(part.fit):,} inputs: {left}."
        )
        model = ByGroup(subject.model, shown.places, shown.states, *subject.inputs.edges())
        cured = subject.cured(model, self.name())
        return replace(cured, data=data, about=about.strip())

    def apply(self, subject: Subject, run: Run) -> Subject:
        cured, part, found = self.frame(subject), held_out(subject.data), self._found(subject)
        assert found is not None
        assert isinstance(cured.model, ByGroup)
        attribute, _ = found
        with undisturbed(subject.model, run):
            logits, label = run.predict(subject, part.split, part.fit, "held-out inputs")
        codes = attribute.codes[part.split][part.fit]
        known = codes >= 0
        score = softmax(logits.astype(np.float64), 1)[known, 1]
        fitted = thresholds(score, label[known], codes[known], goal=self.goal, count=len(attribute.values))
        cured.model.set(*(torch.from_numpy(np.asarray(each)) for each in fitted))
        return cured

    def remarks(self, cured: Subject, run: Run) -> tuple[str, ...]:
        found = self._found(cured)
        name = "the attribute" if found is None else repr(found[0].name)
        return (
            f"It reads {name} off each input and treats groups differently on purpose; the law may forbid that.",
            "Some answers are a coin's, tossed by the values of the input: two people who are nearly alike may get "
            "different answers, for no reason that anyone could name, and two who are the same never do.",
        )

    def _found(self, subject: Subject) -> tuple[Attribute, Shown] | None:
        if not isinstance(subject.kind, Row):
            return None
        for name, attribute in subject.attributes.items():
            shown = shown_in(attribute, subject.kind.columns) if self.attribute in (None, name) else None
            if shown is not None:
                return attribute, shown
        return None


SHELVED = GroupThresholds
