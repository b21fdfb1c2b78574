"""Train the same architecture so that a second head cannot tell the domain from its features: a control."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch

from assay.methods.train.alignment import Beside
from assay.methods.train.gradient_reversal import GradientReversal as Method
from assay.methods.train.gradient_reversal import WithCritic
from assay.remedies._across_domains import Adapting, check_weight, why_no_features
from assay.remedies._retraining import kept_as

if TYPE_CHECKING:
    from assay.run import Run
    from assay.subject import Subject


@dataclass(frozen=True)
class GradientReversal(Adapting):
    """Trains it so that a second head cannot tell the domain from its features; a control for hir.

    `weight` is that of the turned gradient; 0 is the plain training. `target` and `hold_out` are those of
    mk-mmd-adaptation.
    """

    weight: float = 1.0

    source: ClassVar[str] = "Ganin & Lempitsky, ICML 2015, arXiv:1409.7495"
    mends: ClassVar[tuple[str, ...]] = ("does-it-extrapolate", "how-far-is-it-from-home", "confidence-under-shift")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_weight(self.weight, self.name())

    def why_not(self, subject: Subject) -> str | None:
        return super().why_not(subject) or why_no_features(subject)

    def apply(self, subject: Subject, run: Run) -> Subject:
        rng = run.rng()
        model = self.begun(subject.model, rng).to(run.device)
        sources, targets, *_ = self.roles(subject)
        each, domains = self.in_domain(subject), len(sources) + len(targets)
        about = "training for features that hide the domain"
        if self.weight == 0:
            self.trained(model, subject, run, rng, about=about)
            return self.cured(model, subject)
        x = subject.data["train"].take(np.arange(2))[0].to(run.device)
        own = torch.Generator(run.device).manual_seed(run.seed + 1)  # so that the batches are those of the control
        both = WithCritic(model, subject.layers["head"], domains, x, weight=self.weight, rng=own)
        loss = Method(classes=len(subject.task.classes), domains=domains, each=each).loss
        augment = Beside(list(targets.values()), each).augment if targets else None
        with kept_as(model):
            self.trained(both, subject, run, rng, about=about, loss=loss, augment=augment)
        both.close()
        return self.cured(model, subject)


SHELVED = GradientReversal
