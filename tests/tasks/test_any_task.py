"""A subject of any task: opened, asked, stored, verified."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import assay
from assay.engine.local import ThisProcess
from assay.errors import AssayError, SubjectError
from assay.jobs.verify import verify
from assay.probe import put
from assay.probes.right.accuracy import Accuracy
from assay.run import BUDGETS, Run
from assay.subject import Subject
from assay.tasks import Classification, Labels, Regression

RNG = np.random.default_rng(0)
X = RNG.random((200, 4)).astype(np.float32)
TRUTH = X @ np.array([1.0, -2.0, 0.5, 3.0]) + 1


class Affine(nn.Module):
    """w x + b, off by what is told."""

    def __init__(self, off: float = 0.0, spread: float | None = None) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor([1.0, -2.0, 0.5, 3.0]))
        self.b, self.spread = nn.Parameter(torch.tensor(1.0 + off)), spread

    def forward(self, x: Tensor) -> Tensor:
        y = (x @ self.w + self.b)[:, None]
        return y if self.spread is None else torch.stack([y, torch.full_like(y, self.spread)], 1)


def run() -> Run:
    return Run(engine=ThisProcess())


def test_numbers_as_targets_make_a_regression_whose_tolerance_is_told():
    subject = Subject.of(Affine(), (X, TRUTH))
    assert isinstance(subject.task, Regression)
    assert subject.task.tolerance == (pytest.approx(0.5 * TRUTH.std()),)
    assert isinstance(Subject.of(Affine(), (X, TRUTH), Regression(("y",), (0.1,))).task, Regression)


def test_zeros_and_ones_in_rows_are_labels_and_one_hot_rows_are_classes():
    labels = (X[:, :3] > 0.5).astype(int)
    subject = Subject.of(nn.Linear(4, 3), (X, labels))
    assert isinstance(subject.task, Labels)
    assert isinstance(Subject.of(nn.Linear(4, 3), (X, X[:, :3].argmax(1))).task, Classification)


@pytest.mark.parametrize("off", [0.0, 0.25, 0.6])
def test_accuracy_is_the_share_within_the_tolerance(off):
    noise = RNG.normal(0, 0.3, len(X))
    subject = Subject.of(Affine(off), (X, TRUTH + noise), Regression(("y",), (0.5,)))
    answer = put(Accuracy(), subject, dataclasses.replace(run(), budget=BUDGETS["full"]))
    assert answer.finding is not None
    first, second = answer.finding.measures
    error = np.abs(off - noise)
    assert first.name == "accuracy"
    assert first.value == pytest.approx((error < 0.5).mean(), abs=0.006)  # one input may sit on the edge
    assert second.value == pytest.approx(np.maximum(0, 1 - error / 0.5).mean(), abs=1e-5)
    (blind,) = second.beside
    away = np.abs(np.median(TRUTH + noise) - TRUTH - noise)
    assert blind.value == pytest.approx(np.maximum(0, 1 - away / 0.5).mean(), abs=1e-5)
    assert answer.finding.witnesses is not None
    assert len(answer.finding.witnesses) == round(len(X) * (1 - first.value))


def test_questions_about_classes_say_what_they_need():
    asked = ["accuracy", "which-estimator", "confidence", "how-far-to-a-tie"]
    audit = assay.audit(Subject.of(Affine(), (X, TRUTH)), probes=asked)
    why = {row.answer.probe: row.answer.why for row in audit.rows}
    assert why["which-estimator"] == "it needs a score for each class, and the subject's task is Regression"
    assert why["confidence"].startswith("its numbers come without a standard deviation")
    assert why["how-far-to-a-tie"] == "it needs a comparison of two inputs, and the subject's task is Regression"


def test_an_audit_of_numbers_is_stored_and_verified(tmp_path):
    subject = Subject.of(Affine(0.3), (X, TRUTH), Regression(("y",), (0.2,)), name="affine")
    audit = assay.audit(subject, probes=["accuracy"], out=tmp_path)
    assert audit.folder is not None
    kept = assay.open_audit(audit.folder, whole=True).row("accuracy").answer.finding
    assert kept is not None
    assert kept.witnesses is not None
    np.testing.assert_allclose(kept.witnesses.label, TRUTH[kept.witnesses.index], rtol=1e-6)
    assert verify(audit.folder, lambda: (subject, ()), run()).status == 0
    other = Subject.of(Affine(0.3), (X, TRUTH + 1), subject.task, name="affine")
    assert verify(audit.folder, lambda: (other, ()), run()).status == 1


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Subject.of(nn.Linear(4, 2), (X, TRUTH)), r"taken to be Regression.*returned shape \(4, 2\) for 4"),
        (lambda: Subject.of(Affine(), (X, np.full(200, 3.0))), "'value' is the same for every input"),
        (lambda: Subject.of(Affine(), (X, TRUTH[:7])), r"Targets have shape \(7,\) for 200 inputs"),
        (lambda: Subject.of(Affine(), (X, np.where(X[:, 0] > 0.9, np.nan, TRUTH)), Regression(("y",), (1.0,))),
         r"In 'test' the target 'y' of input \d+ is nan"),
        (lambda: Subject.of(Affine(spread=-1.0), (X, TRUTH), Regression(("y",), (1.0,), spread=True)), "is negative"),
        (lambda: Subject.of(Affine(), (X, TRUTH), classes=["a"]) , "classes belong to classifiers"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_told_in_one_line(make, says):
    with pytest.raises((AssayError, SubjectError), match=says) as told:
        make()
    assert "\n" not in str(told.value)
