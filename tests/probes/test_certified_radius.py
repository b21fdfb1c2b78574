"""Certified radius: closed forms, sound beside an attack that it does not run, loud when it is contradicted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from assay.data.arrays import Arrays
from assay.errors import AssayError
from assay.methods.attack.pgd import pgd
from assay.methods.certify import relax
from assay.nn.members import Drawn
from assay.nn.nearest_neighbour import NearestNeighbour
from assay.probe import judge_witnesses, put
from assay.probes.proved import certified_radius
from assay.probes.proved.certified_radius import CHOOSING, DRAWS, NORMS, Bound, CertifiedRadius
from assay.run import Budget, Run
from assay.standard import judge
from assay.subject import Subject
from assay.subjects.digits_mlp import build as digits_mlp

Halfspace = tuple[Subject, dict[str, np.ndarray]]


def ask(subject: Subject, run: Run, **settings: Any) -> Any:  # a Finding, all of whose parts are there
    answer = put(CertifiedRadius(**settings), subject, run)
    assert answer.finding is not None, answer.why
    return answer.finding


@pytest.fixture
def halfspace(digits: Subject) -> Halfspace:
    """Two classes, 40 inputs in the middle of the box: the distance to the boundary is |margin| / dual norm."""
    torch.manual_seed(0)
    last = nn.Linear(64, 2, bias=False)
    w = (last.weight[0] - last.weight[1]).detach()
    x = torch.full((40, 1, 8, 8), 0.5) + 0.02 * torch.randn(40, 1, 8, 8)
    wanted = torch.linspace(0.01, 0.4, 40) * torch.tensor([1, -1]).repeat(20)
    x += ((wanted - x.flatten(1) @ w)[:, None] * w / w.square().sum()).reshape(x.shape)
    margin = x.flatten(1) @ w
    data = {"test": Arrays(x, (margin < 0).long())}
    subject = replace(
        digits, model=nn.Sequential(nn.Flatten(), last), task=type(digits.task)(("a", "b")), data=data, layers={}
    )
    truth = {"l2": (margin.abs() / w.norm()).numpy(), "linf": (margin.abs() / w.abs().sum()).numpy()}
    return subject, truth


class Unreadable(nn.Module):
    """Nothing of it is known but its answers."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.inner = model

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.inner(x)
        return logits


def test_of_a_linear_model_proof_and_attack_meet_at_the_margin_over_the_dual_norm(
    halfspace: Halfspace, run: Run
) -> None:
    subject, truth = halfspace
    patient = replace(run, budget=Budget("patient", samples=100, steps=20, restarts=1))
    finding = ask(subject, patient, radius=0.2, linf_radius=0.03)
    for norm, radius in (("l2", 0.2), ("linf", 0.03)):
        lower, upper = (finding.samples.columns[f"{side} {norm}"] for side in ("lower", "upper"))
        np.testing.assert_allclose(lower, truth[norm], rtol=0, atol=1e-3)
        np.testing.assert_allclose(upper, truth[norm], rtol=0, atol=1e-3)
        assert (lower <= truth[norm] + 1e-6).all()
        sure = finding.measure(f"certified accuracy, {norm}")
        assert 0 < sure.value < 1
        assert abs(sure.value - (truth[norm] >= radius).mean()) <= 1 / 40  # one may lie on the edge itself
    assert finding.views[-1].name == "linf"  # no ReLU can have blocked anything


def test_a_nearest_neighbour_has_an_exact_radius_under_any_metric_and_scaling(run: Run) -> None:
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, 3)).astype(np.float32)
    factor = rng.normal(size=(3, 3)).astype(np.float32)
    x = rng.normal(size=(20, 3)).astype(np.float32)
    g = factor.T.astype(float) @ factor @ (b - a)  # the one bisector: g'(x - (a + b) / 2) = 0
    gap = (x - (a + b) / 2) @ g
    truth = np.abs(gap) / 18  # in shares of the range
    model = NearestNeighbour(torch.tensor(np.stack([a, b])), torch.tensor([0, 1]), factor=torch.tensor(factor))
    subject = Subject.classifier(model, (x, (gap > 0).astype(int)), bounds=(-9.0, 9.0))
    finding = ask(subject, run)
    column = finding.samples.columns
    np.testing.assert_allclose(column["exact l2"], truth / np.linalg.norm(g), rtol=1e-5)
    np.testing.assert_allclose(column["exact linf"], truth / np.abs(g).sum(), rtol=1e-5)
    np.testing.assert_allclose(column["lower l2"], column["exact l2"], rtol=1e-5)  # one pair: the bound is tight
    assert (column["lower linf"] <= column["exact linf"] + 1e-9).all()
    for norm in ("l2", "linf"):
        assert (column[f"exact {norm}"] <= column[f"upper {norm}"] + 1e-6).all()
        assert finding.measure(f"undecided, {norm}").value == 0
    assert [line.label for line in finding.views[0].lines] == ["not certified", "exact", "broken by an attack"]
    assert finding.measure().value == pytest.approx((truth / np.linalg.norm(g) >= 0.25).mean())


def test_a_normalised_nearest_neighbour_is_measured_in_shares_of_the_range_of_the_input(run: Run) -> None:
    rng = np.random.default_rng(1)
    mean, std = np.array([0.3, -0.2]), np.array([0.5, 2.0])
    a, b = rng.normal(size=(2, 2))
    x = rng.normal(size=(20, 2)).astype(np.float32)
    g = (b - a) / std**2  # scaled channels are another metric
    gap = (x - (a + b) / 2) @ g
    points = torch.tensor((np.stack([a, b]) - mean) / std, dtype=torch.float32).reshape(2, 2, 1, 1)
    subject = Subject.classifier(
        NearestNeighbour(points, torch.tensor([0, 1])),
        (x.reshape(20, 2, 1, 1), (gap > 0).astype(int)),
        bounds=(-9.0, 9.0),
        mean=(0.3, -0.2),
        std=(0.5, 2.0),
    )
    column = ask(subject, run).samples.columns
    truth = np.abs(gap) / 18  # in shares of the range
    np.testing.assert_allclose(column["exact l2"], truth / np.linalg.norm(g), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(column["exact linf"], truth / np.abs(g).sum(), rtol=1e-4, atol=1e-6)


def test_a_training_point_that_stands_in_two_classes_is_told(run: Run) -> None:
    model = NearestNeighbour(torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 0.0]]), torch.tensor([0, 1, 1]))
    finding = ask(Subject.classifier(model, (np.float32([[0.1, 0.0]]), np.array([0])), bounds=(-2.0, 2.0)), run)
    assert finding.samples.columns["exact l2"].tolist() == [0.0]
    assert any(alarm.says.startswith("2 of 3 training points stand in two classes") for alarm in finding.alarms)


def test_what_is_known_exactly_is_decided_whatever_the_attack_found() -> None:
    known = Bound(
        index=np.arange(4),
        label=np.zeros(4, dtype=np.int64),
        right=np.array([True, True, True, False]),
        lower=np.array([0.0, 0.1, 0.1, 0.0]),
        exact=np.array([0.2, 0.4, np.nan, 0.0]),
        upper=np.array([0.5, 0.5, 0.5, 0.0]),
    )
    assert known.holds(0.3).tolist() == [False, True, False, False]
    assert known.undecided(0.3).tolist() == [False, False, True, False]
    rough = replace(known, exact=None)
    assert rough.undecided(0.3).tolist() == [True, True, True, False]
    assert rough.holds(0).tolist() == [True, True, True, False]  # right, although nothing beyond it was proved


def test_the_shipped_network_is_bounded_from_both_sides(run: Run) -> None:
    subject = digits_mlp()
    finding = ask(subject, run, radius=0.45)
    column = finding.samples.columns
    for norm, radius in zip(NORMS, (0.45, 2 / 255), strict=True):
        lower, upper = column[f"lower {norm}"], column[f"upper {norm}"]
        assert len(lower) == 25
        assert (lower <= upper).all()
        wrong = ~column["right"]
        assert (lower[wrong] == 0).all()
        assert (upper[wrong] == 0).all()
        held, broke = column[f"certified {norm}"], (upper <= radius) | wrong
        np.testing.assert_array_equal(column[f"undecided {norm}"], ~held & ~broke)
        assert finding.measure(f"certified accuracy, {norm}").value == held.mean() > 0.1
        # an attack that the probe does not run, inside each certified radius
        x, y = subject.data["test"].take(column["index"][lower > 0])
        size = torch.tensor(lower[lower > 0], dtype=torch.float32) * 0.9999
        got = pgd(subject.model, x, y, norm=norm, radius=size, steps=20, rng=torch.Generator().manual_seed(0))
        assert (subject.predict(got.x).argmax(1) == y).all()
        proved, found = finding.views[0 if norm == "l2" else 1].lines
        assert all(p >= f for p, f in zip(proved.y, found.y, strict=True))
    assert judge_witnesses(finding.witnesses, subject, run)[0].all()
    assert set(finding.witnesses.norm) == {"l2", "linf"}
    blocked = finding.views[2]
    assert blocked.labels == ("layer 1 (32)", "layer 2 (32)")
    assert f"over {min(5, column['undecided l2'].sum())} undecided" in blocked.says
    assert finding.alarms == ()


def test_wrong_answers_have_radius_zero_and_radius_zero_asks_for_the_accuracy(digits: Subject, run: Run) -> None:
    x, y = digits.data["test"].take(np.arange(30))
    mislabelled = torch.where(torch.arange(30) % 3 == 0, (y + 1) % 10, y)
    right = (digits.predict(x).argmax(1) == mislabelled).numpy()
    subject = replace(digits_mlp(), model=digits.model, data={"test": Arrays(x, mislabelled)}, layers={})
    finding = ask(subject, run, radius=0, linf_radius=0, inputs=30)
    assert 5 < right.sum() < 25
    for norm in ("l2", "linf"):
        assert (finding.samples.columns[f"lower {norm}"][~right] == 0).all()
        assert (finding.samples.columns[f"upper {norm}"][~right] == 0).all()
        assert finding.measure(f"certified accuracy, {norm}").value == right.mean()
        assert finding.measure(f"undecided, {norm}").value == 0


def test_too_many_neurons_get_intervals_and_are_told_so(run: Run) -> None:
    torch.manual_seed(0)
    wide = nn.Sequential(nn.Flatten(), nn.Linear(64, 2000), nn.ReLU(), nn.Linear(2000, 10))
    subject = replace(digits_mlp(), model=wide, layers={})
    finding = ask(subject, run)
    assert "Interval bounds" in finding.alarms[0].says
    assert "each of 2,000 ReLUs" in finding.alarms[0].says
    assert "5,000 in all. Ask about 2 inputs or fewer" in finding.alarms[0].says
    assert len(finding.samples) == 5
    assert ask(subject, run, inputs=2).alarms == ()  # that many, the budget pays for


def test_what_is_undecided_widens_the_interval_and_cannot_fail(run: Run) -> None:
    loose = ask(digits_mlp(), replace(run, budget=replace(run.budget, steps=1)), inputs=40, radius=0.5)
    measure, undecided = loose.measure(), loose.measure("undecided, l2")
    assert undecided.value > 0.2
    may_hold = measure.value + undecided.value
    assert measure.low <= measure.value <= may_hold <= measure.high
    strict = replace(CertifiedRadius.standards[0], at_least=(measure.value + may_hold) / 2)
    assert judge(strict, loose).verdict == "cannot tell"


def test_what_cannot_be_read_is_smoothed_and_the_layer_is_named(digits: Subject, run: Run) -> None:
    soft = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Softplus(), nn.Linear(16, 10))
    finding = ask(replace(digits, model=soft, layers={}), run, sigma=0.5)
    assert finding.measure().name == "certified accuracy of the smoothed model, l2"
    assert "Layer '2' (Softplus)" in finding.alarms[0].says
    assert "the model itself has no certificate" in finding.alarms[0].says
    assert "The model itself cannot be certified" in finding.says
    assert not any("linf" in m.name for m in finding.measures)


def test_smoothing_stays_below_the_distance_and_below_what_its_draws_allow(halfspace: Halfspace, run: Run) -> None:
    linear, truth = halfspace
    subject = replace(linear, model=Unreadable(linear.model), layers={})
    finding = ask(subject, run, sigma=0.5, inputs=40, radius=0.2)
    lower = finding.samples.columns["lower l2 of the smoothed model"]
    most = 0.5 * 1.9  # Phi^-1(0.001^(1/250)) = 1.92
    assert (lower <= truth["l2"]).all()  # a half-space smoothed is the same half-space
    assert lower.max() < most + 0.02
    assert (lower[20:] > 0.25 * truth["l2"][20:]).all()
    assert "With 250 draws no l2 radius above 0.96" in finding.alarms[1].says
    abstained = finding.samples.columns["abstained"]
    assert abstained.any()  # the nearest are at 0.02 sigma
    assert f"abstained on {abstained.sum()} of 40" in finding.alarms[2].says
    assert finding.measure("abstentions of the smoothed model").value == abstained.mean()
    assert finding.measure().value == (lower >= 0.2).mean() > 0
    assert judge(CertifiedRadius.standards[0], finding).verdict == "cannot tell"  # never a pass for another model
    beyond = ask(subject, run, sigma=0.05, inputs=10, radius=0.2)
    assert beyond.measure().value == 0
    assert "0.2 is beyond that: raise sigma" in beyond.alarms[1].says


def test_two_models_that_admit_different_proofs_are_asked_the_same_by_smoothing(digits: Subject, run: Run) -> None:
    readable, unreadable = digits, replace(digits, model=Unreadable(digits.model))
    found = [ask(each, run, by="smoothing") for each in (readable, unreadable)]
    assert [m.name for m in found[0].measures] == [m.name for m in found[1].measures]
    assert found[0].measures[0].name == "certified accuracy of the smoothed model, l2"
    assert found[0].measures[0].value == pytest.approx(found[1].measures[0].value)
    assert ask(readable, run).measures[0].name != found[0].measures[0].name


def test_a_random_model_is_smoothed(digits: Subject, run: Run) -> None:
    finding = ask(replace(digits, draws=2), run, inputs=3)
    assert "answers are random" in finding.alarms[0].says
    assert "by vote of single passes" in finding.alarms[0].says


@pytest.mark.parametrize("apart", [True, False])
def test_each_vote_of_a_random_model_is_one_pass_and_shares_no_draw_with_another_of_its_input(
    digits: Subject, run: Run, apart: bool
) -> None:
    """A mean of many passes would be one vote at the price of many, and votes that share a draw are not counted so."""
    asked: list[Tensor] = []

    class Watched(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = digits.model

        def forward(self, x: Tensor) -> Tensor:
            if not torch.is_grad_enabled():
                asked.append(x.detach().clone())
            out: Tensor = self.net(x)
            return out + 0.01 * torch.randn(1)

    model = Drawn(Watched(), 6, rows_apart=apart).eval()
    ask(replace(digits, model=model, draws=6, differentiable=False), run, inputs=3)
    votes = 3 * (CHOOSING + DRAWS * run.budget.steps)
    assert votes <= sum(map(len, asked)) < votes + 100
    most = max(map(len, asked))
    assert most > 3 if apart else most == 3


def test_a_certificate_that_an_attack_contradicts_is_shouted(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def boasts(net: nn.Module, x: Tensor, y: Tensor, *, high: Tensor, **settings: Any) -> Tensor:
        return high.clone()

    monkeypatch.setattr(relax, "certified_radius", boasts)
    answer = put(CertifiedRadius(inputs=4), digits_mlp(), run)
    assert answer.status == "failed"
    assert "of 'test' is certified to l2" in answer.why
    assert "an attack breaks it at" in answer.why


def test_without_gradients_there_is_a_proof_and_no_attack(run: Run) -> None:
    finding = ask(replace(digits_mlp(), differentiable=False), run, inputs=5)
    assert np.isnan(finding.samples.columns["upper l2"]).all() or finding.samples.columns["right"].sum() < 5
    assert finding.measure().value > 0
    assert finding.witnesses is None
    assert "no attack was run" in finding.alarms[-1].says
    assert [line.label for line in finding.views[0].lines] == ["not certified"]


def test_linear_programmes_that_cost_too_much_are_left_out_and_said(
    digits: Subject, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = digits.data["train"].take(np.arange(100))
    subject = Subject.classifier(NearestNeighbour(x, y, classes=10), {"test": digits.data["test"]})
    monkeypatch.setitem(certified_radius.CELLS, "linf", 3 * 6400 // 5 + 1)
    finding = ask(subject, run, inputs=8)
    assert "found for 3 of the 8 inputs" in finding.alarms[0].says
    assert finding.measure("certified accuracy, linf").n == 3
    assert np.isfinite(finding.samples.columns["exact linf"]).sum() == 3
    assert "certified linf" not in finding.samples.columns
    monkeypatch.setitem(certified_radius.CELLS, "linf", 0)
    assert not any("linf" in m.name for m in ask(subject, run, inputs=8).measures)


def test_bad_settings_are_refused() -> None:
    with pytest.raises(AssayError, match="radius=-1 .* at least 0"):
        CertifiedRadius(radius=-1)
    with pytest.raises(AssayError, match="linf_radius=nan .* at least 0"):
        CertifiedRadius(linf_radius=float("nan"))
    with pytest.raises(AssayError, match="sigma=0 .* at least 0.0001"):
        CertifiedRadius(sigma=0)
    with pytest.raises(AssayError, match="inputs=0 .* at least 1"):
        CertifiedRadius(inputs=0)
