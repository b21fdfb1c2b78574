"""Is the number real: honest models pass, dressed-up ones do not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from torch import nn

from assay.data.arrays import Arrays
from assay.engine.local import ThisProcess
from assay.errors import AssayError
from assay.probe import judge_witnesses, put
from assay.probes.attacked.is_the_number_real import HEADLINE, IsTheNumberReal
from assay.run import Budget, Run
from assay.standard import judge
from assay.subject import Subject


def ask(subject, run, **settings):
    answer = put(IsTheNumberReal(**{"radius": 0.1, "steps": 10, "inputs": 60, **settings}), subject, run)
    assert answer.finding is not None, answer.why
    return answer.finding


@pytest.fixture(autouse=True)
def _small_copies(monkeypatch):
    monkeypatch.setattr("assay.probes.attacked.is_the_number_real.DISTILLED", 100)


@pytest.fixture(scope="module")
def plain(digits_model):
    """The digits, asked once for all tests that hold something against them."""
    model, data = digits_model
    run = Run(engine=ThisProcess(), budget=Budget("tiny", samples=100, steps=5, restarts=1, shown=3))
    return ask(Subject.classifier(model, data, name="digits"), run)


class Loud(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return 100 * self.inner(x)


class Rounded(Loud):
    def forward(self, x):
        return self.inner((x * 16).round() / 16)


def verdict(finding):
    return judge(IsTheNumberReal.standards[0], finding).verdict


def test_an_honest_model_shows_agreement(digits, run, plain):
    finding = plain
    usual, all_ = finding.measures[1].value, finding.measures[2].value
    assert 0 <= usual - all_ <= 0.1
    assert finding.measure().value == pytest.approx(usual - all_)
    assert not [a for a in finding.alarms if a.doubts]
    assert verdict(finding) != "fail"
    assert judge_witnesses(finding.witnesses, digits, run)[0].all()
    bars = finding.views[0]
    assert bars.values[-1] == min(bars.values) == pytest.approx(all_)


def test_logits_times_a_hundred_fail_and_the_doctor_finds_the_true_number(digits, run, plain):
    loud = ask(replace(digits, model=Loud(digits.model)), run)
    assert loud.measures[2].value == pytest.approx(plain.measures[2].value, abs=0.04)
    assert loud.measures[1].value > plain.measures[1].value + 0.15
    assert verdict(loud) == "fail"
    assert any("cross-entropy, as libraries run it" in a.says for a in loud.alarms)


def test_rounding_inside_the_model_cannot_pass(digits, run):
    finding = ask(replace(digits, model=Rounded(digits.model)), run, inputs=30, steps=5)
    doubted = [a.says for a in finding.alarms if HEADLINE in a.doubts]
    assert any("the model rounds them" in says for says in doubted)
    assert verdict(finding) != "pass"


def test_models_left_in_train_mode_give_the_same_numbers(digits, run, plain):
    left = digits.model.train()
    try:
        again = ask(digits, run)
    finally:
        left.eval()
    assert [m.value for m in again.measures] == [m.value for m in plain.measures]


def test_inputs_normalised_outside_get_the_same_number(digits, run):
    """A radius is a share of the range, so that what is done to the inputs before the model does not change it."""
    x, y = digits.data["test"].take(np.arange(80))
    mean, std = x.mean(), x.std()
    z = (x - mean) / std

    class Undone(Loud):
        def forward(self, x):
            return self.inner(x * std + mean)

    inputs = replace(digits.inputs, low=float(z.min()), high=float(z.max()))
    outside = replace(digits, model=Undone(digits.model), data={"test": Arrays(z, y)}, inputs=inputs)
    inside = replace(digits, data={"test": Arrays(x, y)})
    one, two = ask(inside, run), ask(outside, run)
    assert not [a for a in two.alarms if "standard deviations" in a.says]
    for a, b in zip(one.measures, two.measures, strict=True):
        assert a.value == pytest.approx(b.value, abs=0.05), a.name


def test_radius_zero_is_the_clean_accuracy(digits, run):
    finding = ask(digits, run, radius=0.0, inputs=20, steps=2)
    assert finding.measures[1].value == finding.measures[2].value
    assert not finding.alarms
    with pytest.raises(AssayError, match="radius=-1 .* at least 0"):
        IsTheNumberReal(radius=-1)


def test_without_gradients_it_does_not_apply(digits, run):
    answer = put(IsTheNumberReal(), replace(digits, differentiable=False), run)
    assert answer.status == "does not apply"


def test_a_class_without_inputs_leaves_out_the_class_means(digits, run):
    x, y = digits.data["test"].take(np.arange(80))
    few = replace(digits, data={"test": Arrays(x[y < 9], y[y < 9])})
    finding = ask(few, run, inputs=30)
    assert "average-sample" not in finding.views[0].labels
    assert "transfer" in finding.views[0].labels
