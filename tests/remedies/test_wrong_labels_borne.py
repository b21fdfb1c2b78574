"""Remedies against wrong labels, where some were planted: what they find, what they train on, what they refuse."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from assay.data.arrays import Arrays
from assay.engine.local import ThisProcess
from assay.errors import AssayError
from assay.methods.train.label_cleaning import suspects
from assay.methods.train.typicality import unit_rows
from assay.remedies import _retraining
from assay.remedies.label_cleaning import LabelCleaning
from assay.remedies.robust_loss import RobustLoss
from assay.run import Run
from assay.subject import Subject


def blobs(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    y = np.arange(n) % 2
    x = 0.5 + 0.2 * (2 * y - 1)[:, None] * np.ones(6) + 0.1 * rng.normal(size=(n, 6))
    return x.clip(0, 1).astype(np.float32), y


@pytest.fixture(scope="module")
def subject() -> Subject:
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2)).eval()
    return Subject.classifier(model, {"train": blobs(200), "test": blobs(200, 1)}, name="blobs", classes=("a", "b"))


def run() -> Run:
    return Run(engine=ThisProcess())


def test_planted_flips_are_found_and_others_are_left() -> None:
    x, y = (torch.from_numpy(part) for part in blobs(200))
    given = y.clone()
    given[:10] = 1 - given[:10]
    found = suspects(unit_rows(x), given, 2, nearest=10, find=0.9, rng=torch.Generator().manual_seed(0))
    assert int(found.wrong[:10].sum()) >= 8
    assert int(found.wrong[10:].sum()) <= 4
    assert bool((found.instead[:10] == y[:10]).all())


@pytest.mark.parametrize("way", ["remove", "relabel"])
def test_cleaning_undoes_what_was_planted_and_says_how_much(subject: Subject, way: str) -> None:
    remedy = LabelCleaning(epochs=20, planted=0.1, way=way, find=0.9)  # type: ignore[arg-type]
    cured = remedy.apply(subject, run())
    assert cured.origin == ("label-cleaning",)
    x, y = cured.data["test"].take(np.arange(200))
    assert float((cured.predict(x).argmax(1) == y).double().mean()) > 0.95
    assert cured.data["train"].fingerprint() == subject.data["train"].fingerprint()  # what was planted stays nowhere
    (remark,) = remedy.remarks(cured, run())
    assert "are planted" in remark
    assert f"looked wrong and were {way}{'led' if way == 'relabel' else 'd'}: " in remark
    assert "of 20" in remark  # a tenth of 200
    plain = LabelCleaning(find=0.9).remarks(cured, run())
    assert "how many of them are wrong nobody knows" in plain[0]


@pytest.mark.parametrize("way", ["remove", "relabel"])
@pytest.mark.parametrize("moved", [0.0, 0.002])
def test_copies_do_not_vouch_for_each_others_wrong_label(
    subject: Subject, moved: float, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of inputs that stand there 12 times, as after oversampling, the nearest were their own copies: none was found."""
    x, true = blobs(200)
    given = true.copy()
    given[:20] = 1 - given[:20]
    twelve = np.repeat(np.arange(200), 12)
    x = x[twelve] + moved * np.random.default_rng(1).normal(size=(2400, 6)).astype(np.float32)
    often = replace(subject, data={**subject.data, "train": Arrays(x, given[twelve], ("a", "b"))})
    learnt: list[Any] = []
    monkeypatch.setattr(LabelCleaning, "train", lambda self, model, *_, rows, **__: learnt.append(rows) or model)
    remedy = LabelCleaning(way=way)  # type: ignore[arg-type]
    cured = remedy.apply(often, run())
    left, labels = learnt[0].take(np.arange(len(learnt[0])))
    there = {row.tobytes(): i for i, row in enumerate(x)}
    place = np.array([there[row.tobytes()] // 12 for row in left.numpy()])
    wrong = labels.numpy() != true[place]
    assert wrong.sum() <= 24  # of 240
    assert len(left) == 2400 if way == "relabel" else (place >= 20).sum() == 2160  # and no right one is lost
    assert "2200 of 2400 (92 %) are copies of others" in remedy.remarks(cured, run())[0]
    assert "copies" not in remedy.remarks(subject, run())[0]


def test_a_remedy_and_its_control_learn_from_the_same_labels(subject: Subject) -> None:
    remedy = RobustLoss(planted=0.2, epochs=1)
    control = remedy.control()
    assert control is not None
    assert control.name() == "plain-retraining"
    assert control.control() is None
    first, second = remedy.rows(subject, run()), control.rows(subject, run())  # type: ignore[attr-defined]
    assert first is not None
    labels = [rows.take(np.arange(200))[1] for rows in (first, second)]
    assert torch.equal(*labels)
    assert int((labels[0] != torch.from_numpy(blobs(200)[1])).sum()) == 40
    assert RobustLoss().rows(subject, run()) is None


@pytest.mark.parametrize(
    ("settings", "most"),
    [
        ({"loss": "generalised", "q": 0.7}, 1 / 0.7),  # (1 - 0^q) / q
        ({"loss": "generalised", "q": 0.2}, 5.0),
        ({"loss": "symmetric", "alpha": 0.0, "beta": 2.0}, 2 * 4.0),  # of print's A = -4 for the logarithm of 0
    ],
)
def test_it_is_trained_by_a_loss_that_a_wrong_label_cannot_drive_far(
    settings: dict[str, Any], most: float, subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[Any] = []
    monkeypatch.setattr(_retraining, "fit", lambda model, data, *, loss, **_: used.append(loss))
    RobustLoss(**settings).apply(subject, run())
    (loss,) = used
    sure = torch.tensor([[50.0, -50.0]])
    assert float(loss(sure, torch.tensor([1]))) == pytest.approx(most, rel=1e-3)  # the cross entropy would be 100
    assert float(loss(sure, torch.tensor([0]))) == pytest.approx(0, abs=1e-3)


@pytest.mark.parametrize("loss", ["generalised", "symmetric"])
def test_a_bounded_loss_learns(subject: Subject, loss: str) -> None:
    cured = RobustLoss(epochs=30, planted=0.1, loss=loss).apply(subject, run())  # type: ignore[arg-type]
    x, y = cured.data["test"].take(np.arange(200))
    assert float((cured.predict(x).argmax(1) == y).double().mean()) > 0.95


def test_what_cannot_be_cured_is_told_in_a_line(subject: Subject) -> None:
    x, y = blobs(40)
    one = replace(subject, data={**subject.data, "train": Arrays(x, 0 * y, ("a", "b"))})
    assert "all training labels are of one class" in (RobustLoss().why_not(one) or "")
    alone = replace(subject, data={"test": subject.data["test"]})
    assert "no split 'train'" in (LabelCleaning().why_not(alone) or "")
    with pytest.raises(AssayError, match=r"planted=0.7 is no share of labels to flip; give one from 0 to 0.5"):
        RobustLoss(planted=0.7)
    with pytest.raises(AssayError, match="q=2; give a number above 0"):
        RobustLoss(q=2.0)
    with pytest.raises(AssayError, match="nearest=0, find=0.7; give at least 1"):
        LabelCleaning(nearest=0)
