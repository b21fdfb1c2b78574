"""Confidence: the numbers are those of the methods, and every part says when it cannot be trusted."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from assay.data.arrays import Arrays
from assay.errors import AssayError
from assay.finding import Gallery, finding_from_json, finding_to_json
from assay.methods.uncertainty import brier, calibration_error, ece, nll, risk_coverage, sharpness
from assay.methods.uncertainty.above_floor import above_floor
from assay.methods.uncertainty.debiased import debiased_ece
from assay.methods.uncertainty.estimator_bench import called, choose
from assay.methods.uncertainty.maximum import maximum_error
from assay.probe import put
from assay.probes.sure.confidence import Confidence
from assay.standard import Standard, judge


class Table(nn.Module):
    """The logits of input i are row i, found by the first pixel."""

    def __init__(self, logits: torch.Tensor) -> None:
        super().__init__()
        self.logits = nn.Parameter(logits)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = (x.flatten(1)[:, 0] * len(self.logits)).round().long()
        return self.logits[rows]


@pytest.fixture
def known(digits):
    """Of 400 inputs and three classes, labels drawn by the model's own probabilities, or at another temperature."""

    def make(n=400, temperature=1.0, seed=0):
        rng = torch.Generator().manual_seed(seed)
        logits = 2 * torch.randn(n, 3, generator=rng)
        label = torch.multinomial((logits / temperature).softmax(1), 1, generator=rng)[:, 0]
        x = torch.rand(n, 1, 8, 8, generator=rng)
        x[:, 0, 0, 0] = torch.arange(n) / n
        data = {"test": Arrays(x, label)}
        subject = replace(digits, model=Table(logits), task=type(digits.task)(("a", "b", "c")), data=data, layers={})
        return subject, logits.double().softmax(1).numpy(), label.numpy()

    return make


@pytest.fixture
def whole(run):
    return replace(run, budget=replace(run.budget, samples=None))


def ask(subject, run, **settings):
    answer = put(Confidence(**settings), subject, replace(run, debug=True))
    return answer.finding


def test_the_numbers_are_those_of_the_methods(known, whole):
    subject, chance, label = known()
    finding = ask(subject, whole)
    chosen = choose(chance, seed=whole.seed)[0].rule
    error = above_floor(chance, label, estimator=chosen.estimator, seed=whole.seed)
    headline = finding.measure()
    assert headline.name == "calibration error"
    assert (headline.value, headline.low, headline.high) == pytest.approx(error[:3], abs=1e-5)
    sure, right = chance.max(1), chance.argmax(1) == label
    beside = [error.calibrated, error.estimate, error.floor, debiased_ece(sure, right)]
    assert [b.value for b in headline.beside] == pytest.approx(beside, abs=1e-5)
    assert f"by {called(chosen)}, the best of five" in finding.says
    wanted = {
        "maximum calibration error": maximum_error(sure, right).value,
        "over-confidence": sure.mean() - right.mean(),
        "Brier score": brier(chance, label).value,
        "negative log-likelihood": nll(chance, label),
        "sharpness": sharpness(chance),
        "risk-coverage area": risk_coverage(sure, right).area(),
        "answerable at 1 % error": risk_coverage(sure, right).answerable(0.01),
        "answerable at 5 % error": risk_coverage(sure, right).answerable(0.05),
        "sure mistakes": ((sure >= 0.9) & ~right).mean(),
        "class-wise calibration error": calibration_error(
            chance, label, kind="class-wise", estimator="adaptive-convex", bins=10
        ).value,
        "top-label calibration error": calibration_error(
            chance, label, kind="top-label", estimator="adaptive-convex", bins="sqrt"
        ).value,
    }
    for name, value in wanted.items():
        measure = finding.measure(name)
        assert measure.value == pytest.approx(value, abs=1e-6), name
        assert measure.low <= measure.value <= measure.high, name
    assert len(finding.measures) == 1 + len(wanted)
    assert not finding.alarms
    assert finding.samples.columns["brier"].mean() == pytest.approx(finding.measure("Brier score").value)


def test_a_calibrated_model_is_near_its_floor_and_a_loud_one_is_not(known, whole):
    plain, loud = ask(known()[0], whole), ask(known(temperature=3.0)[0], whole)  # the labels are less sure than it is
    for name in ("calibration error", "class-wise calibration error", "top-label calibration error"):
        assert plain.measure(name).low < plain.measure(name).beside[0].value, name
        assert loud.measure(name).low > loud.measure(name).beside[0].value, name
    assert loud.measure("over-confidence").low > 0.05
    assert "surer than it should be" in loud.says
    sure = loud.measure("sure mistakes")
    assert sure.low > sure.beside[0].value
    area = loud.measure("risk-coverage area")
    assert area.beside[0].value < area.value < area.beside[1].value  # between the best and a random order
    for m in loud.measures[-2:]:
        assert m.beside[0].value <= m.value  # what can be promised is less


def test_the_choice_of_the_estimator_does_not_see_the_labels(known, whole):
    subject, _, label = known(n=120)
    x = subject.data["test"].take(np.arange(120))[0]
    other = ask(replace(subject, data={"test": Arrays(x, torch.from_numpy(np.roll(label, 1)))}), whole)
    about = [f.measure().about for f in (ask(subject, whole), other)]
    assert about[0] == about[1]


def test_the_views_show_what_the_numbers_say(known, whole):
    subject, chance, label = known(temperature=3.0)
    finding = ask(subject, whole, bins=8)
    reliability, scores, risk, estimators, parts, gallery = finding.views
    band = reliability.lines[0]
    assert all(a <= b <= c for a, b, c in zip(band.low, band.y, band.high, strict=True))
    middle = np.interp(0.8, band.x, band.y)
    assert middle < 0.7  # over-confident: below the diagonal
    assert sum(c for _, counts in scores.counts for c in counts) == len(label)
    assert risk.lines[0].y[-1] == pytest.approx((chance.argmax(1) != label).mean())
    assert all(a <= b + 1e-12 for a, b in zip(risk.lines[1].y, risk.lines[0].y, strict=True))  # no order is better
    assert estimators.rows == ("legacy", "adaptive", "convex", "adaptive-convex", "kde")
    values = np.array(estimators.values)
    each = [100 * ece(chance, label, estimator=e, bins=8) for e in estimators.rows]
    assert values[:, 0] == pytest.approx(each, abs=1e-3)
    shown = next(b.value for b in finding.measure().beside if b.label == "with what chance adds")
    assert np.abs(values[:, 0] - 100 * shown).min() < 1e-3
    assert parts.values[0] == pytest.approx(parts.values[1] - parts.values[2] + parts.values[3] + parts.values[4])
    assert isinstance(gallery, Gallery)
    exhibits = [e.index for e in gallery.exhibits]
    wrong = np.flatnonzero((chance.argmax(1) != label) & (chance.max(1) >= 0.9))
    assert exhibits == wrong[np.argsort(-chance.max(1)[wrong], kind="stable")][: whole.budget.shown].tolist()
    again = finding_from_json(finding_to_json(finding))
    assert again.measures == finding.measures
    assert again.views == finding.views


def test_few_inputs_answer_with_an_alarm_that_keeps_them_from_passing(known, whole):
    finding = ask(known(n=29)[0], whole)
    assert finding.measure().value is not None
    assert "Only 29 inputs" in finding.alarms[0].says
    assert "calibration error" in finding.alarms[0].doubts
    assert judge(Standard(at_most=1.0), finding).verdict == "cannot tell"
    assert not ask(known(n=30)[0], whole).alarms
    assert ask(known(n=2)[0], whole).measure().value is not None


def test_inputs_of_one_label_have_no_class_wise_error_and_say_so(known, whole):
    subject, _, _ = known(n=60)
    x = subject.data["test"].take(np.arange(60))[0]
    finding = ask(replace(subject, data={"test": Arrays(x, torch.ones(60, dtype=torch.long))}), whole)
    assert finding.measure("class-wise calibration error").value is None
    assert finding.measure("top-label calibration error").value is not None
    assert "one label" in finding.alarms[0].says


def test_settings_choose_the_estimator_and_bad_ones_are_refused(known, whole):
    subject, chance, label = known(n=100)
    by_bins = ask(subject, whole, estimator="legacy", bins=5)
    assert by_bins.measure().value == pytest.approx(above_floor(chance, label, bins=5).value, abs=1e-5)
    assert "legacy, 5 bins, as was asked" in by_bins.says
    assert "density, Silverman, as was asked" in ask(subject, whole, estimator="kde").says
    assert ask(subject, whole, bins=500).measure().value is not None  # more bins than inputs: one for each
    assert ask(subject, whole, sure=0.5).measure("sure mistakes").value > by_bins.measure("sure mistakes").value
    with pytest.raises(AssayError, match="bins=0 .* at least 1"):
        Confidence(bins=0)
    with pytest.raises(AssayError, match="sure=1.5 .* between 0 and 1"):
        Confidence(sure=1.5)


def test_a_model_that_is_certain_has_the_error_of_its_mistakes(known, whole):
    subject, chance, label = known()
    certain = replace(subject, model=Table(1e4 * torch.tensor(chance, dtype=torch.float32)))
    finding = ask(certain, whole)
    wrong = (chance.argmax(1) != label).mean()
    assert finding.measure().value == pytest.approx(wrong, abs=0.005)
    assert finding.measure("answerable at 5 % error").value == 0  # all are equally sure: all or nothing
    assert finding.measure("risk-coverage area").value == pytest.approx(wrong, abs=0.005)
