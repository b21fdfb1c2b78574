"""Train the same architecture on what a teacher says at a high temperature."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from assay.methods.train.distillation import Distillation
from assay.remedies._retraining import Hardening
from assay.remedy import Cost

if TYPE_CHECKING:
    from assay.run import Run
    from assay.subject import Subject


@dataclass(frozen=True)
class DefensiveDistillation(Hardening):
    """Trains a teacher and a student of it at a high temperature; hides the gradient of the loss, and little more.

    An old baseline that is known to be broken: an attack on cross-entropy as printed fails for want of a gradient, one
    on the margin does not. Believe worst-case-accuracy, and see is-the-number-real.
    """

    temperature: float = 40.0

    source: ClassVar[str] = "Papernot et al., S&P 2016, arXiv:1511.04508; broken by Carlini & Wagner, S&P 2017"
    mends: ClassVar[tuple[str, ...]] = ("worst-case-accuracy",)

    def __post_init__(self) -> None:
        super().__post_init__()
        Distillation(self.temperature)

    def cost(self) -> Cost | None:
        return Cost(2 + 1 / 3, 1)  # two trainings, and the teacher's answers in one of them

    def apply(self, subject: Subject, run: Run) -> Subject:
        rng = run.rng()
        teacher = self.begun(subject.model, rng)
        hot = Distillation(self.temperature)
        self.hardened(teacher, subject, run, rng, about="training the teacher", loss=hot.loss)
        student = self.begun(subject.model, rng)
        taught = Distillation(self.temperature, teacher.requires_grad_(False))
        self.hardened(
            student, subject, run, rng, about="training the student", loss=taught.loss, augment=taught.augment
        )
        return subject.cured(student, self.name())


SHELVED = DefensiveDistillation
