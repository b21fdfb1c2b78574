"""How many wrong labels it takes: on blobs that are apart, on numbers, and on what cannot be asked."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from assay.data.arrays import Arrays, Targets
from assay.engine.local import ThisProcess
from assay.errors import AssayError
from assay.finding import Finding
from assay.probe import put
from assay.probes import _features
from assay.probes.poisoned.how_many_wrong_labels_would_it_take import (
    HEADLINES,
    HowManyWrongLabelsWouldItTake,
    _nothing_to_lose,
)
from assay.run import Run
from assay.standard import Standard, judge
from assay.subject import Subject
from assay.tasks import Regression


def blobs(seed: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    y = np.arange(n) % 2
    x = 0.5 + 0.2 * (2 * y - 1)[:, None] * np.array([1.0, 0.4, 0.0]) + 0.06 * rng.normal(size=(n, 3))
    return x.clip(0, 1).astype(np.float32), y


@pytest.fixture(scope="module")
def subject() -> Subject:
    model = nn.Sequential(nn.Linear(3, 3), nn.Identity(), nn.Linear(3, 2))
    with torch.no_grad():
        model[0].weight.copy_(torch.eye(3))
        model[0].bias.zero_()
        model[2].weight.copy_(torch.tensor([[-9.0, -3, 0], [9, 3, 0]]))
        model[2].bias.copy_(torch.tensor([6.0, -6.0]))
    return Subject.classifier(model.eval(), {"train": blobs(0, 60), "test": blobs(1, 120)}, name="blobs")


def asked(subject: Subject, probe: HowManyWrongLabelsWouldItTake | None = None) -> Finding:
    answer = put(probe or HowManyWrongLabelsWouldItTake(), subject, Run(engine=ThisProcess(), debug=True))
    assert answer.finding is not None, answer.why
    return answer.finding


@pytest.fixture(scope="module")
def finding(subject: Subject) -> Finding:
    return asked(subject)


FEW = HowManyWrongLabelsWouldItTake(flips=5, draws=2)


@pytest.fixture(scope="module")
def short(subject: Subject) -> Finding:
    return asked(subject, FEW)


def test_chance_does_nothing_where_an_enemy_does(finding: Finding) -> None:
    (curve,) = (v for v in finding.views if v.name == "accuracy-against-flips")
    lines = {line.label: line for line in curve.lines}
    random = lines["random"]
    assert random.low is not None
    assert random.high is not None
    assert random.low[1] <= random.y[0] <= random.high[1]  # one random flip: no drop is in the band
    assert random.y[0] == 1.0
    assert min(lines["influence"].y) < min(random.y)
    headline = finding.measure()
    assert headline.name == HEADLINES[0]
    assert headline.low is not None
    assert headline.low <= headline.value <= headline.high
    assert finding.measure("right answers of the layer learnt anew").value == 1.0
    assert not finding.alarms


def test_it_is_the_same_again(subject: Subject, short: Finding) -> None:
    again = asked(subject, FEW)
    assert [m.value for m in again.measures] == [m.value for m in short.measures]
    assert again.views[0] == short.views[0]


def test_no_enemy_sees_the_inputs_that_judge(subject: Subject, short: Finding) -> None:
    """Other inputs in their places: the same labels are chosen; in the places aimed at: others are."""
    from assay.probes._features import halves

    x, y = blobs(1, 120)
    aimed, judges = halves(y, 0)

    def chosen(rows: np.ndarray) -> np.ndarray:
        moved = x.copy()
        moved[rows] = np.random.default_rng(3).random(moved[rows].shape).astype(np.float32)
        changed = replace(subject, data={**subject.data, "test": Arrays(moved, y, subject.task.classes)})
        table = asked(changed, FEW).samples
        assert table is not None
        return np.stack([table.columns[f"rank by {name}"] for name in ("influence", "label propagation")])

    plain = short.samples
    assert plain is not None
    before = np.stack([plain.columns[f"rank by {name}"] for name in ("influence", "label propagation")])
    assert (chosen(judges) == before).all()
    assert (chosen(aimed) != before).any()


def test_the_labels_are_named_and_shown(finding: Finding) -> None:
    table = finding.samples
    assert table is not None
    assert table.split == "train"
    assert (table.columns["worst as"] != table.columns["label"]).all()
    ranks = table.columns["rank by influence"]
    assert sorted(ranks[ranks > 0].tolist()) == list(range(1, 13))  # a fifth of 60
    (gallery,) = (v for v in finding.views if v.name == "harmful")
    assert "says its label; most harmful as" in gallery.exhibits[0].caption


def test_an_enemy_may_know_what_is_right(subject: Subject) -> None:
    known = asked(subject, HowManyWrongLabelsWouldItTake(knows="true", flips=4))
    assert known.measure().value is not None


def test_a_layer_that_does_not_reach_the_model_says_so(subject: Subject) -> None:
    poor = asked(subject, HowManyWrongLabelsWouldItTake(ridge=1e9, flips=1, draws=1, gamma=1e9))
    told, one = " ".join(a.says for a in poor.alarms), HowManyWrongLabelsWouldItTake(flips=1, draws=1)
    assert "no graph" in told
    x, y = blobs(0, 60)
    few = replace(subject, data={**subject.data, "train": Arrays(x[:18], y[:18], subject.task.classes)})
    assert any("fewer than 10 training labels" in a.says for a in asked(few, one).alarms)
    turned = Arrays(x, 1 - y, subject.task.classes)
    worse = asked(replace(subject, data={**subject.data, "train": turned}), one)
    assert any("of that layer and not of the model" in a.says for a in worse.alarms)
    (useless,) = (a for a in worse.alarms if "have not surely 10 points to take" in a.says)
    assert "right on 0 % of the inputs that judge, the commonest class on 50 %" in useless.says
    assert judge(Standard(at_least=0.001), worse).verdict == "cannot tell"


def test_points_to_lose_are_those_beyond_the_commonest_class() -> None:
    commonest = np.arange(1000) % 2 == 0
    for right, doubts in ((950, 0), (620, 1), (500, 1)):  # of 620, 12 points beyond, but not surely 10
        assert len(_nothing_to_lose(np.arange(1000) < right, commonest)) == doubts


def test_what_was_not_tried_may_be_borne(short: Finding) -> None:
    """All five flips of 60 are borne: a limit of a tenth is neither met nor missed, nor would more judges settle it."""
    headline = short.measure()
    assert headline.value == pytest.approx(5 / 60)
    assert headline.high == 1.0
    verdict = judge(Standard(at_least=0.1), short)
    assert (verdict.verdict, verdict.more) == ("cannot tell", None)


def test_a_number_that_hangs_on_the_ridge_is_in_doubt() -> None:
    def rows(seed: int) -> Arrays:
        y = np.arange(80) % 2
        x = 0.5 + 0.12 * (2 * y - 1)[:, None] + 0.1 * np.random.default_rng(seed).normal(size=(80, 10))
        return Arrays(x.clip(0, 1).astype(np.float32), y)

    model = nn.Linear(10, 2).eval()
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[-1.0], [1.0]]).expand(2, 10))
        model.bias.copy_(torch.tensor([5.0, -5.0]))
    found = asked(
        Subject.classifier(model, {"train": rows(0), "test": rows(1)}, name="wide"),
        HowManyWrongLabelsWouldItTake(flips=3, draws=1, ridge=0.1),
    )
    (alarm,) = found.alarms
    assert "hangs on the ridge" in alarm.says
    assert "as right, on 100.0 %" in alarm.says
    assert judge(Standard(at_least=0.03), found).verdict == "cannot tell"


def test_no_more_are_aimed_at_than_a_graph_holds(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = _features.Seen.of(subject, Run(engine=ThisProcess()))
    monkeypatch.setattr(_features, "AIMED", 20)
    few = _features.Seen.of(subject, Run(engine=ThisProcess()))
    assert (len(whole.inputs.aimed), len(few.inputs.aimed)) == (60, 20)
    assert torch.equal(whole.inputs.judges, few.inputs.judges)
    kept = torch.cdist(few.inputs.aimed, whole.inputs.aimed).min(1)
    assert len(set(kept.indices.tolist())) == 20
    assert float(kept.values.max()) < 1e-6
    assert torch.equal(whole.inputs.aimed_y[kept.indices], few.inputs.aimed_y)


def test_few_judges_tell_nothing(subject: Subject) -> None:
    x, y = blobs(1, 40)
    few = asked(replace(subject, data={**subject.data, "test": Arrays(x, y, subject.task.classes)}), FEW)
    assert few.measure().value is None
    assert "Only 20 inputs judge" in few.says


def test_numbers_are_moved() -> None:
    rng = np.random.default_rng(0)
    x = rng.random((160, 3)).astype(np.float32)
    y = (x @ np.array([3.0, -2.0, 1.0]) + 0.3 * rng.normal(size=160)).astype(np.float32)[:, None]
    model = nn.Linear(3, 1).eval()
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[3.0, -2.0, 1.0]]))
        model.bias.zero_()
    subject = Subject.of(model, {"train": Targets(x[:80], y[:80]), "test": Targets(x[80:], y[80:])})
    found = asked(subject, HowManyWrongLabelsWouldItTake(knows="true"))
    assert found.measure().name == HEADLINES[2]
    growth = {m.name: m.value for m in found.measures if m.name.startswith("growth")}
    assert growth["growth of the error by the worst change"] > growth["growth of the error by a random change"]
    assert found.samples is not None
    moved = found.samples.columns["moved by"] / np.std(y[:80])
    assert np.sqrt(np.mean(moved**2)) == pytest.approx(0.03, rel=1e-3)


def test_an_error_of_next_to_nothing_may_grow_to_a_share_of_the_tolerance() -> None:
    """And of two targets, of which the second cannot be learnt, the layer is right as often as the model."""
    rng = np.random.default_rng(0)
    x = rng.random((400, 4)).astype(np.float32)
    y = np.stack([x.sum(1), rng.normal(size=400)], 1).astype(np.float32)
    model = nn.Linear(4, 2).eval()
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1.0] * 4, [0.0] * 4]))
        model.bias.zero_()
    data = {"train": Targets(x[:200], y[:200]), "test": Targets(x[200:], y[200:])}
    subject = Subject.of(model, data, Regression(("sum", "noise"), (0.2, 0.2)), bounds=(0.0, 1.0))
    found = asked(subject)
    value = found.measure().value
    assert value is not None
    assert value > 0.03
    assert "before the error comes to 0.15 of the tolerance" in found.says
    anew = found.measure("right answers of the layer learnt anew")
    assert anew.value == pytest.approx(anew.beside[0].value, abs=0.05)
    assert anew.beside[0].value < 0.3


def test_what_cannot_be_asked_is_told_in_a_line(subject: Subject) -> None:
    probe = HowManyWrongLabelsWouldItTake
    alone = replace(subject, data={"test": subject.data["test"]})
    assert "it needs the training data" in (probe().why_not(alone) or "")
    x, y = blobs(0, 60)
    one = replace(subject, data={**subject.data, "train": Arrays(x, 0 * y, subject.task.classes)})
    assert "all training labels are of one class" in (probe().why_not(one) or "")
    assert probe(flips=61).why_not(subject) == ("it is to change 61 training labels, and there are 60; set fewer flips")
    assert "random" in (probe().why_not(replace(subject, draws=4)) or "")
    with pytest.raises(AssayError, match="ridge=0 of 'how-many-wrong-labels-would-it-take' must be a number above 0"):
        probe(ridge=0)
