"""Distance to failure: exact on a linear model in every norm, honest about what it did not find."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from assay.data.arrays import Arrays
from assay.errors import AssayError
from assay.probe import judge_witnesses, put
from assay.probes.attacked.distance_to_failure import NORMS, DistanceToFailure


def ask(subject, run, **settings):
    answer = put(DistanceToFailure(**settings), subject, run)
    assert answer.finding is not None, answer.why
    return answer.finding


@pytest.fixture
def halfspace(digits):
    """Two classes, 40 inputs in the middle of the box: the distance to the boundary is |margin| / dual norm."""
    torch.manual_seed(0)
    linear = nn.Sequential(nn.Flatten(), nn.Linear(64, 2, bias=False))
    w = (linear[1].weight[0] - linear[1].weight[1]).detach()
    x = torch.full((40, 1, 8, 8), 0.5) + 0.02 * torch.randn(40, 1, 8, 8)
    wanted = torch.linspace(0.004, 0.06, 40) * torch.tensor([1, -1]).repeat(20)  # both sides, near and far
    x += ((wanted - x.flatten(1) @ w)[:, None] * w / w.square().sum()).reshape(x.shape)
    margin = x.flatten(1) @ w
    data = {"test": Arrays(x, (margin < 0).long())}
    subject = replace(digits, model=linear, task=type(digits.task)(("a", "b")), data=data, layers={})
    return subject, w, x.flatten(1), margin


def test_on_a_linear_model_the_distance_is_the_margin_over_the_dual_norm(halfspace, run):
    subject, w, x, margin = halfspace
    finding = ask(subject, run, steps=60, inputs=40)
    duals = {"linf": w.abs().sum(), "l2": w.norm(), "l1": w.abs().max()}
    for norm, dual in duals.items():
        truth = (margin.abs() / dual).numpy()
        reachable = truth < (0.3 if norm == "l1" else 1.0)  # in l1 one value may not have room for it all
        found = finding.samples.columns[f"smallest {norm}"]
        assert reachable.sum() > 10
        assert (found >= truth - 1e-6).all()
        np.testing.assert_allclose(found[reachable], truth[reachable], rtol=0.02 if norm != "l1" else 0.1)
        np.testing.assert_allclose(finding.samples.columns[f"first order {norm}"], truth, rtol=1e-4)
        assert finding.measure(f"rank correlation with first order, {norm}").value > 0.95
    # l0: the fewest values that use up the margin when each goes to its bound
    room = torch.where((w > 0) == (margin < 0)[:, None], 1 - x, x)
    gains = (room * w.abs()).sort(1, descending=True).values.cumsum(1)
    fewest = ((gains < margin.abs()[:, None]).sum(1) + 1).numpy()
    counted = finding.samples.columns["smallest l0"]
    assert (counted >= fewest).all()
    assert (counted == fewest).mean() > 0.7


def test_median_counts_wrong_inputs_as_zero_and_witnesses_hold(digits, run):
    finding = ask(digits, run, inputs=60, steps=10)
    assert [m.name for m in finding.measures[:4]] == [f"median smallest change, {n}" for n in NORMS]
    for norm in NORMS:
        size = finding.samples.columns[f"smallest {norm}"]
        assert finding.measure(f"median smallest change, {norm}").value == pytest.approx(np.sort(size)[29])
        m = finding.measure(f"median smallest change, {norm}")
        assert m.low <= m.value <= m.high
    assert len(finding.samples) == 60
    assert judge_witnesses(finding.witnesses, digits, run)[0].all()
    linf, l0 = (finding.samples.columns[f"smallest {n}"] for n in ("linf", "l0"))
    assert ((linf == 0) == (l0 == 0)).all()
    for curve in finding.views[:4]:
        assert all(a >= b for a, b in zip(curve.lines[0].y, curve.lines[0].y[1:], strict=False))


def test_without_gradients_labels_alone_are_asked_and_the_number_is_in_doubt(digits, run):
    blind = ask(replace(digits, differentiable=False), run, inputs=10, steps=20)
    seeing = ask(digits, run, inputs=10, steps=20)
    assert [v.name for v in blind.views[:2]] == ["linf", "l2"]
    both = np.isfinite(blind.samples.columns["smallest l2"])
    assert both.sum() >= 8
    assert (blind.samples.columns["smallest l2"] >= 0.9 * seeing.samples.columns["smallest l2"])[both].all()
    assert "no gradients" in blind.alarms[-1].says
    assert blind.measure().name in blind.alarms[-1].doubts


def test_what_cannot_be_broken_is_not_measured_and_says_so(digits, run):
    class Deaf(nn.Module):
        def forward(self, x):
            return nn.functional.one_hot(torch.zeros(len(x), dtype=torch.long), 10).float() + 0 * x.flatten(1).sum(
                1, True
            )

    x = digits.data["test"].take(np.arange(12))[0]
    subject = replace(digits, model=Deaf(), data={"test": Arrays(x, torch.zeros(12, dtype=torch.long))}, layers={})
    finding = ask(subject, run, steps=3)
    assert finding.measure().value is None
    assert "no linf change of any size" in finding.alarms[0].says
    assert finding.witnesses is None
    assert "no change was found" in finding.says


def test_bad_settings_are_refused():
    with pytest.raises(AssayError, match="steps=0 .* at least 1"):
        DistanceToFailure(steps=0)


def test_carlini_and_wagner_have_a_door_with_curves_over_c(digits, run):
    probe = DistanceToFailure(steps=10, inputs=8, attack="carlini-wagner", c=(0.0, 0.1, 10.0))
    answer = put(probe, digits, run)
    assert answer.finding is not None, answer.why
    views = {v.name: v for v in answer.finding.views}
    accuracy, distortion = views["c"].lines[0].y, views["c-distortion"].lines[0].y
    assert distortion[0] == pytest.approx(0, abs=1e-5)  # c = 0 leaves the input
    assert distortion[0] < distortion[1] < distortion[2]
    assert accuracy[0] > accuracy[2]
    ratio = answer.finding.samples.columns["ratio"]
    assert sum(views["ratio"].counts[0][1]) <= np.isfinite(ratio).sum()
    assert answer.finding.measure("median magnitude-margin ratio").value > 0
    with pytest.raises(AssayError, match="holds trade-offs"):
        DistanceToFailure(c=(-1.0,))


def test_a_model_that_is_always_wrong_has_a_distance_of_0_and_no_rank(digits, run):
    x = digits.data["test"].take(np.arange(12))[0]
    wrong = (digits.predict(x).argmax(1) + 1) % 10
    finding = ask(replace(digits, data={"test": Arrays(x, wrong)}), run, steps=3)
    assert [finding.measure(f"median smallest change, {norm}").value for norm in NORMS] == [0.0] * 4
    assert not any("rank" in m.name or "ratio" in m.name for m in finding.measures)
    (alarm,) = (a for a in finding.alarms if a.says.startswith("Left out"))
    assert "rank correlation with first order, linf (of 0)" in alarm.says
    assert "median magnitude-margin ratio (of 0)" in alarm.says
