"""Every remedy that trains anew has a control: the same training without it."""

from __future__ import annotations

import copy
import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.testing import assert_close

from assay import shelf
from assay.data.arrays import Arrays
from assay.jobs.cure import cure
from assay.methods.train import ensemble as together
from assay.methods.train import snapshot as cycles
from assay.remedies import _retraining
from assay.remedies._across_domains import AcrossDomains
from assay.remedies._retraining import EPOCHS, STEPS, PlainRetraining, Retraining
from assay.remedies._shrinking import Shrinking
from assay.remedies.jacobian_regularization import JacobianRegularization
from assay.remedies.weight_gradient_centralization import WeightGradientCentralization
from assay.remedy import Remedy
from assay.run import Run
from assay.subject import Subject

NAMES = [
    name
    for name in shelf.names("remedies")
    if issubclass(kind := shelf.load("remedies", name), Retraining)
    and not issubclass(kind, AcrossDomains)  # those need more domains than one: test_across_domains.py
    and not issubclass(kind, Shrinking)  # those train in parts, and layers of another size: test_shrinking.py
    and name != "dp-training"  # counts steps and refuses what is frozen: test_dp_training_remedy.py
    and name != "distillation"  # a smaller network, which its control trains too: test_shipping.py
]
OWN_CONTROLS = ("neural-sde", "typicality-curriculum", "label-cleaning", "robust-loss")
"""The same without the noise, without the order, and on the same labels, whichever were planted."""
SAME = ("epochs", "lr", "batch", "weight_decay", "optimiser", "schedule", "momentum")


@pytest.fixture(scope="module")
def few() -> Subject:
    """Three classes that one feature tells apart, 40 inputs of each kind of data; a net that every remedy can train."""
    draw = torch.Generator().manual_seed(0)
    x = torch.rand(80, 1, 4, 4, generator=draw)
    y = (3 * x[:, 0, 0, 0]).long()
    model = nn.Sequential(
        *(nn.Conv2d(1, 2, 3, padding=1), nn.BatchNorm2d(2), nn.ReLU(), nn.Conv2d(2, 3, 3, padding=1), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(48, 4), nn.ReLU(), nn.Linear(4, 3)),
    ).eval()
    data, side = {"train": (x[:40], y[:40]), "test": (x[40:], y[40:])}, np.arange(40) % 2
    return Subject.classifier(model, data, name="few", attributes={"side": {"train": side, "test": side}})


def fits(remedy: Remedy, subject: Subject, run: Run, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What `fit` is asked for, without its training."""
    calls: list[dict[str, Any]] = []

    def watched(model: nn.Module, data: Any, **settings: Any) -> None:
        calls.append({name: settings[name] for name in SAME if name in settings} | {"inputs": len(data)})

    with monkeypatch.context() as patch:
        for module in (_retraining, together, cycles):
            patch.setattr(module, "fit", watched)
        patch.setattr("assay.remedies.sgld.sgld", lambda model, *a, **k: model)
        remedy.apply(subject, run)
    return calls


@pytest.mark.parametrize("name", [name for name in NAMES if name != "neural-sde"])  # that one is another network
def test_what_is_frozen_stays_and_is_trained_only_where_all_is(
    name: str, few: Subject, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So does its control, whichever the remedy: else freezing would count as its effect."""
    half, stone = copy.deepcopy(few.model), copy.deepcopy(few.model).requires_grad_(False)
    half[0].requires_grad_(False)  # type: ignore[index]
    own = few.model[0].weight.detach()  # type: ignore[index,union-attr]
    begun: list[tuple[bool, bool]] = []  # whether it is trained, and has the subject's weights

    def watched(net: nn.Module, *a: Any, **k: Any) -> None:
        (first,) = [p for path, p in net.named_parameters() if p.shape[-4:] == own.shape and "rho" not in path]
        begun.append((first.requires_grad, bool((first == own).all())))

    for module in (_retraining, together, cycles):
        monkeypatch.setattr(module, "fit", watched)
    monkeypatch.setattr("assay.remedies.sgld.sgld", lambda model, *a, **k: model)
    remedy = shelf.load("remedies", name)()
    goes_on = getattr(remedy, "start", "scratch") == "weights"
    for model, wanted in ((half, (False, True)), (stone, (True, goes_on))):
        begun.clear()
        remedy.apply(replace(few, model=model), run)
        assert set(begun) == {wanted}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "given",
    [{}, {"epochs": 20, "lr": 0.03, "weight_decay": 0.1, "optimiser": "adam", "momentum": 0.5, "batch": 16}],
)
def test_a_control_has_the_very_schedule_of_its_remedy(
    name: str, given: dict[str, Any], few: Subject, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    remedy = shelf.load("remedies", name)(**given).settled(few)
    control = remedy.control()
    assert isinstance(control, Retraining)
    assert control.name() != name
    if name not in OWN_CONTROLS:
        assert isinstance(control, PlainRetraining)
    ours, (plain,) = fits(remedy, few, run, monkeypatch), fits(control, few, run, monkeypatch)
    whole = sum(call.pop("epochs") for call in ours) / (1 if name == "snapshot" else len(ours))
    assert whole == plain.pop("epochs") == (20 if given else STEPS // math.ceil(40 / remedy.batch))
    if name == "label-cleaning":  # leaves out what it takes for wrong
        assert all(call.pop("inputs") <= plain["inputs"] for call in ours)
        plain.pop("inputs")
    usual = {"batch": 128, "weight_decay": 0.0, "momentum": 0.9, "optimiser": "sgd", "schedule": "cosine"}
    assert all(usual | call == usual | plain for call in ours)
    if given:
        assert all(plain[name] == value for name, value in given.items() if name != "epochs")


def test_a_remedy_that_does_nothing_is_its_control(few: Subject, run: Run) -> None:
    for remedy in (
        WeightGradientCentralization(weights="leave", gradients=False, epochs=2),
        JacobianRegularization(lam=0, epochs=2),
    ):
        control = remedy.control()
        assert control is not None
        x, _ = few.data["test"].take(np.arange(40))
        assert_close(remedy.apply(few, run).predict(x), control.apply(few, run).predict(x))


@pytest.mark.parametrize(("inputs", "epochs"), [(1, STEPS), (1300, 91), (10_000, 13), (60_000, EPOCHS)])
def test_the_fewer_the_inputs_the_more_epochs_they_are_seen(few: Subject, inputs: int, epochs: int) -> None:
    x, y = few.data["train"].take(np.zeros(inputs, dtype=np.int64))
    subject = replace(few, data={**few.data, "train": Arrays(x, y)})
    assert PlainRetraining().epochs_on(subject) == epochs
    assert PlainRetraining(epochs=3).settled(subject).epochs == 3
    assert PlainRetraining().settled(subject) == PlainRetraining(epochs=epochs, lr=0.1)
    assert PlainRetraining(optimiser="adam").learning_rate == 3e-3


@pytest.mark.usefixtures("undrawn")
def test_what_a_remedy_did_is_its_difference_from_the_control(few: Subject, run: Run, tmp_path: Any) -> None:
    options: dict[str, Any] = {"settings": {"epochs": 1, "lr": 1e-6}, "probes": ["accuracy"]}
    known = replace(few, data={**few.data, "train": few.data["test"]})  # so few others do not teach it three classes
    right = WeightGradientCentralization(epochs=200, optimiser="adam", lr=0.01).apply(known, run)
    right = replace(right, name="right", origin=())
    done = cure("weight-gradient-centralization", right, out=tmp_path, **options)
    assert done.control is not None
    assert done.control.subject.name == "right+plain-retraining"
    assert {(c.probe, c.measure): c.before.value for c in done.changes} == {
        (row.answer.probe, m.name): m.value
        for row in done.control.rows
        for m in row.answer.finding.measures  # type: ignore[union-attr]
    }
    since = next(c for c in done.since_before if c.measure == "accuracy")
    assert since.verdict == "worse"
    assert next(c for c in done.changes if c.measure == "accuracy").verdict == "no clear change"
    assert any(note.startswith("The schedule undertrains") and "--set epochs=3" in note for note in done.notes)
    page = done.page.read_text(encoding="utf-8")
    for said in ("Plain retraining", "since before:", "The schedule undertrains", "epochs=1, lr=1e-06"):
        assert said in page
    stored = json.loads((done.folder / "cure.json").read_text())
    assert stored["compared_with"] == "control"
    assert stored["audits"]["control"]["subject"] == "right+plain-retraining"
    assert len(stored["changes"]) == len(done.changes) == len(stored["since_before"])

    without = cure("weight-gradient-centralization", right, out=tmp_path, control=False, **options)
    assert without.control is None
    assert without.changes == without.since_before == done.since_before
    # One training tells no remedy from luck, and a control that fell from what it was made of tells nothing.
    assert "came out worse in one training; another seed may turn this round" in without.notes[0]
    assert done.notes[0].startswith("What weight-gradient-centralization did cannot be told: the control undertrains (")
    assert "Clearly worse than before: accuracy (accuracy)" in done.notes[0]
    for each in (done, without):
        assert each.notes[1].startswith("Trained once, with seed 0: the intervals cover test inputs only")
        assert each.notes[1] in each.page.read_text(encoding="utf-8")
    assert any(note.startswith("No control was made") for note in without.notes)
    assert "Plain retraining" not in without.page.read_text(encoding="utf-8")


@pytest.mark.usefixtures("undrawn")
def test_remedies_with_one_control_train_it_once(few: Subject, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    trained = []
    real = PlainRetraining.apply
    monkeypatch.setattr(PlainRetraining, "apply", lambda self, *a: trained.append(self) or real(self, *a))
    for name in ("weight-gradient-centralization", "jacobian-regularization"):
        cure(name, few, settings={"epochs": 2}, probes=["accuracy"], out=tmp_path)
    assert [plain.epochs for plain in trained] == [2]
