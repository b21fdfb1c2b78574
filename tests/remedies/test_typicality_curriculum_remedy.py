"""The curriculum as a remedy: its order, what it is compared with, what it refuses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.testing import assert_close

from assay.errors import AssayError
from assay.jobs.cure import cure
from assay.methods.train.curriculum import Schedule
from assay.methods.train.typicality import neighbours, typicality, unit_rows
from assay.probe import configure
from assay.remedies import _retraining
from assay.remedies import typicality_curriculum as remedy_of
from assay.remedies._retraining import Hardening, PlainRetraining
from assay.remedies.typicality_curriculum import EqualUpdates, TypicalityCurriculum
from assay.remedy import Cost
from assay.run import Run
from assay.subject import Subject


@pytest.fixture(scope="module")
def blobs() -> Subject:
    """Two blobs of 40 training inputs each, of which 4 have the other's label."""
    draw = torch.Generator().manual_seed(0)
    y = torch.arange(160) % 2
    x = torch.randn(160, 5, generator=draw) / 8 + 0.3 + 0.4 * y[:, None]
    shown = y.clone()
    shown[:4] = 1 - shown[:4]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Linear(5, 2)
    data = {"train": (x[:80], shown[:80]), "test": (x[80:], y[80:])}
    return Subject.classifier(model.eval(), data, name="blobs", bounds=(-1.0, 2.0))


def orders(remedy: Any, subject: Subject, run: Run, monkeypatch: pytest.MonkeyPatch) -> list[list[list[int]]]:
    """The batches of two epochs that fit is asked for."""
    seen: list[Any] = []
    with monkeypatch.context() as patch:
        patch.setattr(_retraining, "fit", lambda *a, order, **k: seen.append(order))
        remedy.apply(subject, run)
    draw = torch.Generator().manual_seed(0)
    return [[b.tolist() for b in seen[0](draw)] for _ in range(2)]


@pytest.mark.parametrize("by", ["degree", "entropy", "degree-adjusted"])
def test_it_trains_in_the_order_of_typicality_every_epoch(
    by: Any, blobs: Subject, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = orders(
        TypicalityCurriculum(curriculum=by, scheduler="mini-batch", batch=8), blobs, run, monkeypatch
    )
    assert first == second
    x, y = (torch.as_tensor(part) for part in blobs.data["train"].take(np.arange(80)))
    score = typicality(neighbours(unit_rows(x), y, 2), y).score(by)
    flat = [i for batch in first for i in batch]
    assert sorted(flat) == list(range(80))
    assert_close(score[flat], score.sort(descending=True).values)
    assert ({0, 1, 2, 3} <= set(flat[-6:])) == (by != "degree")  # the four that are labelled wrongly


def test_nearest_and_the_printed_sign_are_those_of_the_method(
    blobs: Subject, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = (torch.as_tensor(part) for part in blobs.data["train"].take(np.arange(80)))
    for settings in ({"nearest": 7}, {"as_published": True}):
        remedy = configure(TypicalityCurriculum, {**settings, "scheduler": "mini-batch", "batch": 8})
        flat = [i for batch in orders(remedy, blobs, run, monkeypatch)[0] for i in batch]
        printed = bool(settings.get("as_published", False))
        counts = neighbours(unit_rows(x), y, 2, nearest=settings.get("nearest"), as_published=printed)
        score = typicality(counts, y, as_published=printed).score("degree-adjusted")
        assert_close(score[flat], score.sort(descending=True).values)
        assert ({0, 1, 2, 3} <= set(flat[:6])) == printed  # the four that are labelled wrongly: first, as printed
        assert ({0, 1, 2, 3} <= set(flat[-6:])) == (not printed)
    assert configure(TypicalityCurriculum, {"nearest": "none"}) == TypicalityCurriculum()


def test_its_control_has_as_many_updates_in_random_order_and_is_compared_with_a_plain_training(
    blobs: Subject, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    for scheduler, updates in (
        ("ordered", 80),
        ("mini-batch", 10),
        ("batch-repetition", 30),
        ("repeat-until-remember", 25),
    ):
        remedy = TypicalityCurriculum(scheduler=scheduler, batch=8, times=3, more=3, epochs=2, momentum=0.5)  # type: ignore[arg-type]
        control = remedy.control()
        assert isinstance(control, EqualUpdates)
        ours, _ = orders(remedy, blobs, run, monkeypatch)
        first, second = orders(control, blobs, run, monkeypatch)
        assert len(ours) == len(first) == updates
        assert sorted(map(len, ours)) == sorted(map(len, first))
        assert first != second
        assert control.control() == PlainRetraining(2, 1e-3, 0.0, "adam", momentum=0.5, batch=8)


def test_every_scheduler_trains_and_the_updates_are_told(blobs: Subject, run: Run) -> None:
    for scheduler in ("ordered", "mini-batch", "batch-repetition", "repeat-until-remember"):
        epochs = 2 if scheduler == "ordered" else 20
        remedy = TypicalityCurriculum(scheduler=scheduler, epochs=epochs, lr=0.1)  # type: ignore[arg-type]
        cured = remedy.apply(blobs, run)
        x, y = blobs.data["test"].take(np.arange(80))
        assert float((cured.predict(x).argmax(1) == torch.as_tensor(y)).float().mean()) > 0.8
        (told,) = remedy.remarks(cured, run)
        assert f"{Schedule(scheduler).updates(80)} updates, one of a plain retraining 3" in told  # type: ignore[arg-type]
        assert ("from the order;" in told) == (scheduler == "mini-batch")


def test_a_cure_tells_what_updates_alone_do(blobs: Subject, tmp_path: Any, undrawn: None) -> None:
    done = cure("typicality-curriculum", blobs, settings={"epochs": 2, "lr": 0.01}, probes=["accuracy"], out=tmp_path)
    assert done.control is not None
    assert done.control.subject.name == "blobs+shuffled-retraining"
    (between,) = [note for note in done.notes if note.startswith("A plain retraining is right on")]
    assert "what a shuffled retraining does by itself, and no merit of the remedy" in between
    assert any("The control is a shuffled retraining" in note for note in done.notes)
    page = done.page.read_text(encoding="utf-8")
    assert "Shuffled retraining" in page
    assert "against a shuffled retraining with the same schedule" in page
    assert {path.name.split("-")[0] for path in tmp_path.iterdir()} >= {"cure", "control"}
    assert len(list(tmp_path.glob("control-*/weights.safetensors"))) == 2


def test_costs_and_settings() -> None:
    assert TypicalityCurriculum().cost() == Cost(4, 1)
    assert TypicalityCurriculum(scheduler="mini-batch").cost() == Cost(1, 1)
    assert TypicalityCurriculum(scheduler="repeat-until-remember").cost() is None
    typed = {"scheduler": "ordered", "curriculum": "entropy", "batch": "16", "more": "8"}
    assert configure(TypicalityCurriculum, typed) == TypicalityCurriculum(
        scheduler="ordered", curriculum="entropy", batch=16, more=8
    )


def test_its_rate_is_prints_of_adam_and_a_tenth_from_trained_weights() -> None:
    assert TypicalityCurriculum().learning_rate == 1e-3
    assert TypicalityCurriculum(start="weights").learning_rate == pytest.approx(1e-4)
    assert TypicalityCurriculum(optimiser="sgd").learning_rate == 0.1
    assert TypicalityCurriculum(lr=0.5, start="weights").learning_rate == 0.5
    for one in (TypicalityCurriculum(start="weights"), EqualUpdates(start="weights")):
        control = one.control()
        assert isinstance(control, Hardening)
        assert control.learning_rate == one.learning_rate


def test_what_cannot_be_is_refused_in_one_line(blobs: Subject, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AssayError, match="times=0 makes no batches"):
        TypicalityCurriculum(times=0)
    with pytest.raises(AssayError, match="scheduler='all'"):
        configure(TypicalityCurriculum, {"scheduler": "all"})
    remedy = TypicalityCurriculum()
    assert "no split 'train'" in (remedy.why_not(replace(blobs, data={"test": blobs.data["test"]})) or "")
    assert "a row of words by number" in (remedy.why_not(replace(blobs, tokens=True)) or "")
    normal = replace(blobs, model=nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).eval())
    assert "batches of one input are too few" in (replace(remedy, scheduler="ordered").why_not(normal) or "")
    assert remedy.why_not(normal) is None
    monkeypatch.setattr(remedy_of, "AT_ONCE", 399)
    growing = replace(remedy, scheduler="repeat-until-remember")
    told = "all 80 training inputs in one batch, and for 5 values each at most 79 fit; set another scheduler"
    assert told in (growing.why_not(blobs) or "")
    assert told in (EqualUpdates(scheduler="repeat-until-remember").why_not(blobs) or "")
    assert remedy.why_not(blobs) is None
    monkeypatch.setattr(remedy_of, "AT_ONCE", 400)
    assert growing.why_not(blobs) is None
    monkeypatch.setattr(remedy_of, "MOST_BYTES", 400)
    told = "80 training inputs of 5 values are too many to compare with each other; at most 20 can be"
    assert remedy.why_not(blobs) == told  # before the first audit
    with pytest.raises(AssayError, match=told):
        remedy.apply(blobs, run)
    for nearest in (0, 80):
        why = TypicalityCurriculum(nearest=nearest).why_not(blobs)
        assert why == f"nearest={nearest} of 80 training inputs are none; give a number from 1 to 79"
