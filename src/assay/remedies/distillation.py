"""Teach a smaller network what this one says."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from torch import nn

from assay import shelf
from assay.errors import AssayError
from assay.methods.compress.distil import Taught, narrower, refuse_width
from assay.remedies._retraining import Retraining, anew
from assay.remedies._shipping import example, measured
from assay.remedy import Cost, Remedy

if TYPE_CHECKING:
    from assay.run import Run
    from assay.subject import Recipe, Subject


@dataclass(frozen=True)
class Student(Retraining):
    """A training of a smaller network: the same architecture at a share `width` of its channels, or `student`'s."""

    width: float = 0.5
    student: str = ""

    def network(self, subject: Subject) -> nn.Module | None:
        return None  # the student is another

    def small(self, subject: Subject) -> nn.Module:
        """The network that learns, untrained: it must answer as the subject does."""
        x = example(subject)
        if not self.student:
            return narrower(subject.model, self.width, x)
        recipe: Recipe = shelf.load("subjects", self.student)
        model = copy.deepcopy(recipe.build().model)
        try:
            said = tuple(model.eval()(x).shape)
        except Exception as e:  # somebody else's code
            raise AssayError(
                f"The network of {self.student!r} fails on inputs of shape {tuple(x.shape[1:])}; give a student that "
                "takes what the subject takes."
            ) from e
        if said != tuple(subject.predict(x).shape):
            raise AssayError(
                f"The network of {self.student!r} answers with shape {said[1:]}, the subject with "
                f"{tuple(subject.predict(x).shape[1:])}; give a student with as many classes."
            )
        return model

    def frame(self, subject: Subject) -> Subject:
        return subject.cured(self.small(subject).eval(), self.name())

    def cost(self) -> Cost | None:
        return Cost(self.trainings, 1 if self.student else self.width**2)  # inner layers lose on both sides

    trainings: ClassVar[float] = 1


@dataclass(frozen=True)
class PlainStudent(Student):
    """Trains the smaller network on the labels alone: what its teacher is worth is the difference."""

    source: ClassVar[str] = "the control of an experiment; the training is that of methods/train/fit.py"

    @classmethod
    def name(cls) -> str:
        return "plain-student"

    def control(self) -> Remedy | None:
        return None

    def apply(self, subject: Subject, run: Run) -> Subject:
        rng = run.rng()
        student = anew(self.small(subject), rng)
        return subject.cured(
            self.train(student, subject, run, rng, about="training the student plainly", resumes=True), self.name()
        )


@dataclass(frozen=True)
class KnowledgeDistillation(Student):
    """Trains a smaller network on what this one says at a temperature, mixed with the labels; smaller and faster.

    The student has a share `width` of the channels of every inner layer, or is the network of another reference
    subject, `student`. `mix` is the weight of the teacher. The control is the same student, trained on labels alone.
    """

    temperature: float = 4.0
    mix: float = 0.9

    source: ClassVar[str] = "Hinton, Vinyals & Dean 2015, arXiv:1503.02531"
    trainings: ClassVar[float] = 1 + 1 / 3  # the teacher's answers to each batch

    def __post_init__(self) -> None:
        super().__post_init__()
        Taught(self.temperature, nn.Identity(), self.mix)
        refuse_width(self.width)

    def control(self) -> Remedy | None:
        return PlainStudent(
            self.epochs, self.lr, self.weight_decay, self.optimiser, momentum=self.momentum, batch=self.batch,
            width=self.width, student=self.student,
        )  # fmt: skip

    def apply(self, subject: Subject, run: Run) -> Subject:
        rng = run.rng()
        teacher = copy.deepcopy(subject.model).eval().requires_grad_(False).to(run.device)
        taught = Taught(self.temperature, teacher, self.mix)
        student = anew(self.small(subject), rng)
        self.train(
            student, subject, run, rng, about="training the student", loss=taught.loss, augment=taught.augment,
            resumes=True,
        )  # fmt: skip
        return subject.cured(student, self.name())

    def beside(self, subject: Subject, cured: Subject, run: Run) -> tuple[str, ...]:
        return (measured(subject, cured, run),)


SHELVED = KnowledgeDistillation
