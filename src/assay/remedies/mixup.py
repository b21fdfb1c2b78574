"""Train the same architecture again on mixtures of two inputs, with the same mixture of their labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from assay.methods.train.mixup import mixup
from assay.remedies._retraining import Retraining, anew

if TYPE_CHECKING:
    from assay.run import Run
    from assay.subject import Subject


@dataclass(frozen=True)
class Mixup(Retraining):
    """Trains it again from scratch on mixtures of two inputs and their labels, so that it is less sure; else free.

    The share of either input is drawn from Beta(a, a): the smaller `a`, the less is mixed.
    """

    a: float = 0.2

    source: ClassVar[str] = "Zhang et al., ICLR 2018, arXiv:1710.09412; Thulasidasan et al., NeurIPS 2019"
    mends: ClassVar[tuple[str, ...]] = ("confidence",)

    def apply(self, subject: Subject, run: Run) -> Subject:
        rng = run.rng()
        mixed = mixup(len(subject.task.classes), a=self.a)
        model = self.train(anew(subject.model, rng), subject, run, rng, augment=mixed)
        return subject.cured(model, self.name())


SHELVED = Mixup
