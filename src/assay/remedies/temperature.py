"""Divide the logits by one number, fitted on inputs that the model has not seen."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal

import torch

from assay.data.held_out import held_out, left_to_ask
from assay.domain import not_to_fit_on
from assay.methods.uncertainty.scaling import fit_temperature, fit_vector
from assay.nn.scaled import Scaled
from assay.probe import undisturbed
from assay.remedy import Cost, Remedy

if TYPE_CHECKING:
    from assay.run import Run
    from assay.subject import Subject


@dataclass(frozen=True)
class Temperature(Remedy):
    """Scales the confidence to what held-out answers are worth; the answers stay, and no training is needed.

    It is fitted on the split 'calibration', else 'validation', else on a fixed half of 'test', because on the training
    data a model is right too often. What it was fitted on leaves the cured subject's data, so that nothing is judged by
    it; `assay cure` then asks the old subject again about the inputs that are left, so that before and after pair.
    With `domain` it is fitted on a fixed half of that domain, for use there, and the other half stays to ask about.
    `kind` "vector" fits a factor and a summand for each class, which may change
    answers.
    """

    kind: Literal["temperature", "vector"] = "temperature"
    domain: str | None = None

    source: ClassVar[str] = "Guo et al., ICML 2017, arXiv:1706.04599, sec. 4.2"
    mends: ClassVar[tuple[str, ...]] = ("confidence",)

    def why_not(self, subject: Subject) -> str | None:
        if (reason := super().why_not(subject)) is not None:
            return reason
        if subject.draws > 1:
            return f"it scales single answers, and this subject's are means of {subject.draws} random ones"
        return None if self.domain is None else not_to_fit_on(self.domain, subject.domains())

    def cost(self) -> Cost:
        return Cost(training=0, inference=1)

    def frame(self, subject: Subject) -> Subject:
        part = held_out(subject.data, self.domain)
        data, left = left_to_ask(subject.data, part)
        about = f"{subject.about} Its logits are scaled ({self.kind}), fitted on {len(part.fit):,} inputs: {left}."
        cured = subject.cured(Scaled(subject.model, len(subject.task.classes)), self.name())
        return replace(cured, data=data, about=about.strip())

    def apply(self, subject: Subject, run: Run) -> Subject:
        cured, part = self.frame(subject), held_out(subject.data, self.domain)
        with undisturbed(subject.model, run):
            given, truth = run.predict(subject, part.split, part.fit, "held-out inputs")
        logits, labels = torch.from_numpy(given), torch.from_numpy(truth)
        if self.kind == "vector":
            scale, shift = fit_vector(logits, labels)
        else:
            found = fit_temperature(logits, labels).temperature
            scale, shift = torch.full((logits.shape[1],), 1 / found), torch.zeros(logits.shape[1])
        assert isinstance(cured.model, Scaled)  # frame
        cured.model.set(scale, shift)
        return cured


SHELVED = Temperature
