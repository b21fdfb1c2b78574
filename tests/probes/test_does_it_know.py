"""Does it know what it does not know: the numbers are those of the scores, and what is missing is said."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch import nn

from assay.data.arrays import Arrays
from assay.engine.local import ThisProcess
from assay.errors import AssayError
from assay.finding import Bars, Curve, Finding, Gallery, Matrix, finding_from_json, finding_to_json
from assay.methods.uncertainty import activation_clusters
from assay.methods.uncertainty.activations import Seen, look
from assay.methods.uncertainty.outliers import Mahalanobis
from assay.nn.members import Ensemble
from assay.nn.softrmax import SoftRmax
from assay.probe import configure, put
from assay.probes.sure import does_it_know
from assay.probes.sure.does_it_know import DoesItKnow
from assay.run import Budget, Run
from assay.standard import Standard, judge
from assay.subject import Subject

SCORES = ("energy", "Mahalanobis", "nearest neighbours", "ViM", "ODIN", "activation clusters", "deep k-NN")


def ask(subject: Subject, run: Run, radius: float = 8 / 255) -> Finding:
    answer = put(DoesItKnow(taught=300, outliers=40, radius=radius), subject, run)
    assert answer.finding is not None, answer.why
    return answer.finding


def kinds(finding: Finding) -> tuple[str, ...]:
    (bars,) = (v for v in finding.views if isinstance(v, Bars) and v.name == "kinds")
    return bars.labels


@pytest.fixture(autouse=True, scope="module")
def small() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(does_it_know, "ATTACKED", 8)
        patch.setattr(does_it_know, "CLUSTERED", 200)
        patch.setattr(does_it_know, "LAYERS", 2)
        patch.setattr(activation_clusters, "CLUSTERS", range(2, 6))
        yield


@pytest.fixture(scope="module")
def asked(digits_model: tuple[nn.Module, dict[str, tuple[np.ndarray, np.ndarray]]]) -> Finding:
    """The digits, asked once for all tests that only read the answer."""
    model, data = digits_model
    run = Run(engine=ThisProcess(), budget=Budget("tiny", samples=100, steps=5, restarts=1, shown=8))
    return ask(Subject.classifier(model, data, name="digits"), run)


@pytest.fixture
def noisy(digits: Subject) -> Subject:
    """With outliers of the user's own: constant grey."""
    x = np.random.default_rng(0).uniform(0.4, 0.6, (50, 1, 1, 1)).astype(np.float32) * np.ones((1, 1, 8, 8), np.float32)
    return replace(digits, data={**digits.data, "outliers": Arrays(x, np.zeros(50, dtype=np.int64))})


def test_every_score_meets_every_kind_and_the_numbers_are_right(noisy: Subject, run: Run) -> None:
    finding = ask(noisy, run, radius=0.2)
    names = [m.name for m in finding.measures]
    assert names[0] == "AUROC, near outliers"
    groups = ("near outliers", "far outliers", "your outliers")
    assert {f"AUROC, {g}, {s}" for g in groups for s in SCORES} <= set(names)
    assert {f"FPR at 95 %, {g}" for g in (*groups, "attacked inputs")} <= set(names)
    assert {"AUROC, held-out class", "AUROC, held-out class, Mahalanobis"} <= set(names)
    for m in finding.measures:
        assert m.value is not None
        assert m.low is not None
        assert m.high is not None
        assert 0 <= m.low <= m.value <= m.high <= 1
    # the split that the test can see, by scikit-learn and by hand
    test = noisy.data["test"]
    index = run.pick(test)
    with torch.no_grad():
        inside, outside = (
            noisy.model(data.take(rows)[0]).double().softmax(1).amax(1).numpy()
            for data, rows in ((test, index), (noisy.data["outliers"], np.arange(50)))
        )
    truth = roc_auc_score([1] * len(inside) + [0] * 50, [*inside, *outside])
    assert finding.measure("AUROC, your outliers").value == pytest.approx(truth, abs=1e-9)
    bar = np.sort(inside)[::-1][94]  # the lowest of the 95 % that pass
    assert finding.measure("FPR at 95 %, your outliers").value == pytest.approx((outside >= bar).mean())
    level = [
        data.take(rows)[0].flatten(1).mean(1).numpy()
        for data, rows in ((test, index), (noisy.data["outliers"], np.arange(50)))
    ]
    apart = [-np.abs(of - np.median(level[0])) for of in level]
    bare = roc_auc_score([1] * len(apart[0]) + [0] * 50, np.concatenate(apart))
    for name in ("AUROC, your outliers", "AUROC, your outliers, deep k-NN"):
        beside = {b.label: b.value for b in finding.measure(name).beside}
        assert beside == {"a coin": 0.5, "by the mean of its values alone": pytest.approx(bare, abs=0.01)}
    assert finding.samples is not None
    np.testing.assert_allclose(np.exp(finding.samples.columns["its confidence"]), inside, atol=1e-6)
    assert finding.samples.columns["flagged"].sum() == 5
    assert finding_from_json(finding_to_json(finding)).measures == finding.measures
    assert "digits" not in kinds(finding)  # they are what it is for


def test_a_held_out_class_is_in_neither_the_answers_nor_the_fit(digits: Subject, run: Run, asked: Finding) -> None:
    finding = asked
    x, y = digits.data["test"].take(run.pick(digits.data["test"]))
    seen = look(digits.model, x, "4", entering=True)
    taught = digits.data["train"].take(run.pick(digits.data["train"], 300))
    fitted = look(digits.model, taught[0], "4", entering=True)
    own, far = [], []
    for c in range(10):
        others = [k for k in range(10) if k != c]
        sure = seen.logits[:, others].double().softmax(1).amax(1)
        own.append(roc_auc_score(y != c, sure))
        rest = Mahalanobis.fit(Seen(*(part[taught[1] != c] for part in fitted)), taught[1][taught[1] != c])
        far.append(roc_auc_score(y != c, rest.score(seen)))
    assert finding.measure("AUROC, held-out class").value == pytest.approx(np.mean(own), abs=1e-6)
    assert finding.measure("AUROC, held-out class, Mahalanobis").value == pytest.approx(np.mean(far), abs=1e-3)


def test_the_same_seed_gives_the_same_numbers_and_the_subject_is_left_alone(
    digits: Subject, run: Run, asked: Finding
) -> None:
    before = {name: p.clone() for name, p in digits.model.state_dict().items()}
    assert asked.measures == ask(digits, run).measures
    assert asked.measures != ask(digits, replace(run, seed=1)).measures
    assert all(torch.equal(before[name], p) for name, p in digits.model.state_dict().items())
    assert all(not m._forward_hooks for m in digits.model.modules())


def test_curves_rise_and_the_published_rule_has_its_threshold(asked: Finding) -> None:
    finding = asked
    curves = [v for v in finding.views if isinstance(v, Curve)]
    assert [c.name for c in curves] == ["detection-near-outliers", "detection-far-outliers", "clusters"]
    for curve in curves:
        for line in curve.lines:
            assert (np.diff(line.x) >= 0).all()
            assert (np.diff(line.y) >= 0).all()
    assert {m.label: m.value for m in curves[-1].marks} == {"as published": 0.05, "1 / classes": 0.1}
    passing = next(v for v in finding.views if isinstance(v, Matrix))
    own = passing.values[passing.rows.index("its confidence")]
    assert own[0] == finding.measure("FPR at 95 %, near outliers").value


def test_the_surest_outliers_of_every_kind_are_shown(asked: Finding) -> None:
    (gallery,) = (v for v in asked.views if isinstance(v, Gallery))
    captions = [e.caption for e in gallery.exhibits]
    assert len(captions) == 8
    for kind in ("jigsaws", "chimeras", "photographs", "glyphs", "uniform noise", "gaussian noise"):
        assert any(kind in c for c in captions[:6])
    sure = [int(c.rsplit("with ", 1)[1].removesuffix(" %")) for c in captions[:6]]
    assert sure == sorted(sure, reverse=True)


def test_outliers_that_were_trained_on_raise_an_alarm_and_cannot_pass(noisy: Subject, run: Run) -> None:
    x, _ = noisy.data["outliers"].take(np.arange(40))
    seen = {split: noisy.data[split].take(np.arange(3))[0] for split in ("train", "test")}
    mixed = Arrays(torch.cat([x, seen["train"], seen["test"][:1]]), torch.zeros(44, dtype=torch.long))
    finding = ask(replace(noisy, data={**noisy.data, "outliers": mixed}), run)
    leaks = [a for a in finding.alarms if "stand in" in a.says]
    assert [a.says[:8] for a in leaks] == ["3 of 44 ", "1 of 44 "]
    assert "'train' too (for example input 40)" in leaks[0].says
    assert "'test' too (for example input 43)" in leaks[1].says
    doubted = Standard(measure="AUROC, your outliers, Mahalanobis", at_least=0.0)
    assert judge(doubted, finding).verdict == "cannot tell"
    assert judge(Standard(at_least=0.0), finding).verdict == "pass"  # the headline is not touched by it
    clean = ask(noisy, run)
    assert not any("stand in" in a.says for a in clean.alarms)
    assert judge(doubted, clean).verdict == "pass"


def test_few_outliers_raise_an_alarm(noisy: Subject, run: Run) -> None:
    few = Arrays(*noisy.data["outliers"].take(np.arange(9)))
    finding = ask(replace(noisy, data={**noisy.data, "outliers": few}), run)
    (alarm,) = (a for a in finding.alarms if "Only 9 your outliers" in a.says)
    assert "AUROC, your outliers" in alarm.doubts


def test_without_training_data_the_scores_that_need_none_remain(digits: Subject, run: Run) -> None:
    finding = ask(replace(digits, data={"test": digits.data["test"]}), run)
    names = {m.name for m in finding.measures}
    assert {"AUROC, near outliers, energy", "AUROC, near outliers, ODIN", "AUROC, held-out class"} <= names
    assert not any("Mahalanobis" in name or "clusters" in name for name in names)
    assert any("no training data" in a.says for a in finding.alarms)


def test_a_model_without_gradients_or_layers_is_asked_what_it_can_answer(digits: Subject, run: Run) -> None:
    class Mean(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 5 * x.flatten(1)[:, 20:30]

    bare = replace(digits, model=Mean(), layers={"x": "y"}, differentiable=False)
    finding = ask(bare, run)
    assert {m.name for m in finding.measures if ", near outliers, " in m.name} == {"AUROC, near outliers, energy"}
    said = " ".join(a.says for a in finding.alarms)
    for words in ("no gradients", "no linear layer", "no layers"):
        assert words in said


def test_softrmax_has_its_tail_and_its_causes(digits: Subject, run: Run) -> None:
    body = digits.model
    shrink = nn.Linear(10, 10, bias=False)
    nn.init.eye_(shrink.weight).data.mul_(0.1)
    subject = replace(digits, model=nn.Sequential(body, shrink, SoftRmax()), layers={})
    finding = ask(subject, run)
    assert any(m.name == "AUROC, far outliers, softRmax tail" for m in finding.measures)
    assert any("Left out, energy" in a.says for a in finding.alarms)  # the answers are log-probabilities
    causes = next(v for v in finding.views if v.name == "causes")
    assert isinstance(causes, Matrix)
    for row in causes.values:
        assert sum(v or 0.0 for v in row) == pytest.approx(1)
    assert (causes.values[0][0] or 0) > 0.8  # ordinary inputs are sure


def test_members_disagree_more_about_outliers(digits: Subject, run: Run) -> None:
    nets = []
    for seed in range(3):
        torch.manual_seed(seed)
        net = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
        x, y = digits.data["train"].take(np.arange(600))
        adam = torch.optim.Adam(net.parameters(), 0.02)
        for _ in range(40):
            adam.zero_grad()
            torch.autograd.backward(nn.functional.cross_entropy(net(x), y))
            adam.step()
        nets.append(net.eval())
    finding = ask(replace(digits, model=Ensemble(nets), layers={}), run)
    for score in ("mutual information", "spread"):
        assert (finding.measure(f"AUROC, near outliers, {score}").value or 0) > 0.6


def test_values_that_are_no_images_are_asked_about_too(run: Run) -> None:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 400)
    x = (0.5 + 0.1 * rng.normal(size=(400, 6)) + 0.15 * np.eye(3, 6)[y]).clip(0, 1).astype(np.float32)
    net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    subject = Subject.classifier(net.eval(), {"train": (x[:300], y[:300]), "test": (x[300:], y[300:])})
    finding = ask(subject, run)
    assert kinds(finding)[:3] == ("mixed values", "uniform noise", "gaussian noise")
    assert not any(isinstance(v, Gallery) for v in finding.views)


def test_projection_and_clustering_are_settings_and_a_missing_package_is_said(
    digits: Subject, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(activation_clusters, "import_module", absent)
    probe = configure(DoesItKnow, {"taught": 100, "outliers": 30, "projection": "umap"})
    without = put(probe, digits, run).finding
    assert without is not None
    assert any("Left out, activation clusters" in a.says and "assay[clusters]" in a.says for a in without.alarms)
    assert without.measure("AUROC, near outliers, deep k-NN").value is not None
    dense = put(replace(probe, projection="pca", clustering="dbscan"), digits, run).finding
    assert dense is not None
    assert dense.measure("AUROC, near outliers, activation clusters").value is not None
    with pytest.raises(AssayError, match="projection='som'"):
        configure(DoesItKnow, {"projection": "som"})


def test_bad_settings_are_refused() -> None:
    with pytest.raises(AssayError, match="outliers=1 .* at least 2"):
        DoesItKnow(outliers=1)


def test_a_head_that_runs_twice_is_left_out_and_said(digits: Subject, run: Run) -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mix, self.out = nn.Linear(64, 64), nn.Linear(64, 64)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            wide: torch.Tensor = self.out(torch.relu(self.out(self.mix(x.flatten(1)))))
            return wide[:, :10]

    finding = ask(replace(digits, model=Twice().eval(), layers={}), run)
    assert any("scores of features: Module 'out' ran 2 times" in a.says for a in finding.alarms)
    assert not any("ViM" in m.name for m in finding.measures)
    assert finding.measure().value is not None
