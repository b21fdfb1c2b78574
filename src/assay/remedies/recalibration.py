"""Send the probabilities through a map that is fitted on inputs that the model has not seen."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal

import torch

from assay.data.held_out import held_out, left_to_ask
from assay.domain import not_to_fit_on
from assay.methods.uncertainty.dirichlet import fit_dirichlet
from assay.methods.uncertainty.ensemble_temperature import fit_ensemble_temperature
from assay.nn.recalibrated import Mixed, Remapped
from assay.probe import undisturbed
from assay.remedy import Cost, Remedy

if TYPE_CHECKING:
    from assay.run import Run
    from assay.subject import Subject


@dataclass(frozen=True)
class Recalibration(Remedy):
    """Fits its probabilities to held-out answers by more than one number; no training is needed.

    `kind` "ets" mixes the temperature-scaled, the given and the uniform probabilities, and keeps the answers;
    "dirichlet" maps the logarithms of all probabilities linearly, may change answers and wants more inputs; `lam` holds
    it near a scaling of each class. It is fitted on the split 'calibration', else 'validation', else on a fixed
    half of 'test'; what it was fitted on leaves the cured subject's data. With `domain` it is fitted on a fixed half of
    that domain, for use there, and the other half stays to ask about.
    """

    kind: Literal["ets", "dirichlet"] = "ets"
    lam: float = 0.01
    domain: str | None = None

    source: ClassVar[str] = (
        "Zhang, Kailkhura & Han, ICML 2020, arXiv:2003.07329 (ets); Kull et al., NeurIPS 2019, "
        "arXiv:1910.12656 (dirichlet)"
    )
    mends: ClassVar[tuple[str, ...]] = ("confidence",)

    def why_not(self, subject: Subject) -> str | None:
        if (reason := super().why_not(subject)) is not None:
            return reason
        if subject.draws > 1:
            return f"it maps single answers, and this subject's are means of {subject.draws} random ones"
        return None if self.domain is None else not_to_fit_on(self.domain, subject.domains())

    def cost(self) -> Cost:
        return Cost(training=0, inference=1)

    def frame(self, subject: Subject) -> Subject:
        part = held_out(subject.data, self.domain)
        data, left = left_to_ask(subject.data, part)
        classes = len(subject.task.classes)
        model = Mixed(subject.model) if self.kind == "ets" else Remapped(subject.model, classes)
        about = (
            f"{subject.about} Its probabilities are mapped ({self.kind}), fitted on {len(part.fit):,} inputs: {left}."
        )
        return replace(subject.cured(model, self.name()), data=data, about=about.strip())

    def apply(self, subject: Subject, run: Run) -> Subject:
        cured, part = self.frame(subject), held_out(subject.data, self.domain)
        with undisturbed(subject.model, run):
            given, truth = run.predict(subject, part.split, part.fit, "held-out inputs")
        logits, labels = torch.from_numpy(given), torch.from_numpy(truth)
        if isinstance(cured.model, Mixed):
            mixture = fit_ensemble_temperature(logits, labels)
            cured.model.temperature.fill_(mixture.temperature)
            cured.model.weights.copy_(torch.tensor(mixture.weights))
        else:
            assert isinstance(cured.model, Remapped)  # frame
            weight, shift = fit_dirichlet(logits, labels, lam=self.lam, mu=self.lam)
            cured.model.weight.copy_(weight)
            cured.model.shift.copy_(shift)
        return cured


SHELVED = Recalibration
