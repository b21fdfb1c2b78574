"""Put Student-t discriminant analysis in the place of the last linear layer."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from torch import nn

from assay.methods.uncertainty.activations import features
from assay.nn.student_lda import StudentLDA, fit_student_lda
from assay.remedy import Cost, Remedy

if TYPE_CHECKING:
    from assay.run import Run
    from assay.subject import Subject


@dataclass(frozen=True)
class StudentLda(Remedy):
    """Replaces the last linear layer by t densities fitted to its inputs, so that far from the data it is unsure.

    `nu` is the degrees of freedom: the smaller, the sooner every class is as likely. Nothing is trained. Near the data
    many features make it surer than it should be; scale it by temperature afterwards.
    """

    nu: float = 1.0

    needs_train: ClassVar[bool] = True
    source: ClassVar[str] = "Wang & Loog, CVPR 2022, arXiv:2203.12693; Wang, TU Delft 2024, sec. 5.3.1"
    mends: ClassVar[tuple[str, ...]] = ("is-it-sure-far-away",)

    def cost(self) -> Cost | None:
        return Cost(1 / 30, 1)  # one pass over the training inputs; ten epochs are about thirty

    def why_not(self, subject: Subject) -> str | None:
        head = subject.layers.get("head")
        last = dict(subject.model.named_modules()).get(head) if head else None
        if not isinstance(last, nn.Linear) or last.out_features != len(subject.task.classes):
            return "it replaces a last linear layer with an output for each class, and the model has none"
        return super().why_not(subject)

    def apply(self, subject: Subject, run: Run) -> Subject:
        data, head = subject.data["train"], subject.layers["head"]
        model = copy.deepcopy(subject.model).to(run.device).eval()
        parts = []
        with run.progress("looking at the training inputs", len(data)) as tick:
            for rows in np.array_split(np.arange(len(data)), max(1, len(data) // 1000)):
                x, y = data.take(rows)
                parts.append((features(model, x.to(run.device), head, entering=True), y.to(run.device)))
                tick(len(rows))
        seen, labels = (torch.cat(column) for column in zip(*parts, strict=True))
        lda = fit_student_lda(seen, labels, classes=len(subject.task.classes), nu=self.nu)
        return self._with(subject, lda)

    def frame(self, subject: Subject) -> Subject:
        last = subject.model.get_submodule(subject.layers["head"])
        assert isinstance(last, nn.Linear)  # why_not
        return self._with(subject, StudentLDA(last.out_features, last.in_features, nu=self.nu))

    def _with(self, subject: Subject, lda: StudentLDA) -> Subject:
        model = copy.deepcopy(subject.model)
        model.set_submodule(subject.layers["head"], lda)
        return subject.cured(model.eval(), self.name())


SHELVED = StudentLda
