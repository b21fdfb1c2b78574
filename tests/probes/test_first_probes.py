from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from assay.data.arrays import Arrays
from assay.errors import AssayError
from assay.probe import judge_witnesses, put
from assay.probes.attacked.worst_case_accuracy import SHARES, WorstCaseAccuracy
from assay.probes.right.accuracy import Accuracy
from assay.probes.steady.everyday_change import EverydayChange
from assay.probes.sure.confidence import Confidence


def ask(probe, subject, run):
    answer = put(probe, subject, replace(run, debug=True))
    assert answer.status == "asked", answer.why
    return answer.finding


def test_accuracy_is_the_share_of_right_answers_per_class_too(digits, run):
    finding = ask(Accuracy(), digits, run)
    index = finding.samples.columns["index"]
    x, y = digits.data["test"].take(index)
    said = digits.predict(x).argmax(1)
    assert finding.measure().value == pytest.approx(float((said == y).float().mean()))
    assert finding.measure().n == 100
    rates = [float((said[y == c] == c).float().mean()) for c in range(10)]
    assert finding.measure("weakest class").value == pytest.approx(min(rates))
    bars, confusion = finding.views[0], finding.views[1]
    assert bars.values == pytest.approx(rates)
    assert np.array(confusion.values).sum() == 100
    assert confusion.values[2][2] == (said[y == 2] == 2).sum()
    wrong = (said != y).sum()
    assert (len(finding.witnesses) if finding.witnesses else 0) == wrong


def test_test_inputs_in_the_training_data_are_an_alarm(digits, run):
    assert not ask(Accuracy(), digits, run).alarms
    x, y = digits.data["test"].take(np.arange(len(digits.data["test"])))
    leaky = replace(digits, data={**digits.data, "train": Arrays(x[::2], y[::2])})
    finding = ask(Accuracy(), leaky, run)
    assert "stand in the training data too" in finding.alarms[0].says
    assert finding.alarms[0].doubts == ("accuracy",)


def test_few_inputs_are_an_alarm(digits, run):
    few = replace(digits, data={"test": Arrays(*digits.data["test"].take(np.arange(12)))})
    assert any("Only 12 inputs" in a.says for a in ask(Accuracy(), few, run).alarms)
    assert any("Only 12 inputs" in a.says for a in ask(Confidence(), few, run).alarms)


def test_confidence_sees_overconfidence_that_does_not_change_the_answers(digits, run):
    class Loud(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, x):
            return 100 * self.inner(x)

    plain, loud = ask(Confidence(), digits, run), ask(Confidence(), replace(digits, model=Loud(digits.model)), run)
    accuracy = ask(Accuracy(), digits, run).measure().value
    assert loud.measure().value == pytest.approx(1 - accuracy, abs=0.02)  # all scores are 1
    assert loud.measure("over-confidence").value > plain.measure("over-confidence").value
    assert loud.measure("negative log-likelihood").value > plain.measure("negative log-likelihood").value
    assert loud.measure().beside[0].value < 0.01  # a calibrated model that sure is never wrong


def test_worst_case_accuracy_is_at_most_clean_and_falls_with_the_radius(digits, run):
    finding = ask(WorstCaseAccuracy(radius=0.1, l2_radius=0.5), digits, run)
    clean = ask(Accuracy(), digits, run).measure().value
    for curve in finding.views[:2]:
        assert curve.lines[0].y[0] == pytest.approx(clean)
        assert all(a >= b for a, b in zip(curve.lines[0].y, curve.lines[0].y[1:], strict=False))
        assert len(curve.lines[0].x) == len(SHARES) + 1
    assert finding.measure().value == pytest.approx(finding.views[0].lines[0].y[1 + SHARES.index(1.0)])
    assert finding.measure().value < clean
    assert len(finding.witnesses)
    assert judge_witnesses(finding.witnesses, digits, run)[0].all()
    held = finding.samples.columns["held linf"]
    broken = {
        int(i)
        for i, n, r in zip(finding.witnesses.index, finding.witnesses.norm, finding.witnesses.radius, strict=True)
        if n == "linf" and r <= 0.1
    }
    lost = set(finding.samples.columns["index"][finding.samples.columns["clean"] & ~held].tolist())
    assert broken == lost  # whoever is counted as broken is there as a witness


def test_a_radius_of_nothing_is_the_clean_accuracy(digits, run):
    finding = ask(WorstCaseAccuracy(radius=0.0, l2_radius=0.0), digits, run)
    assert finding.measure().value == pytest.approx(ask(Accuracy(), digits, run).measure().value)
    with pytest.raises(AssayError, match="radius=-1 .* at least 0"):
        WorstCaseAccuracy(radius=-1)


def test_a_linear_model_breaks_exactly_at_its_margin(digits, run):
    torch.manual_seed(0)
    linear = nn.Sequential(nn.Flatten(), nn.Linear(64, 2, bias=False))
    w = (linear[1].weight[0] - linear[1].weight[1]).detach()
    x = torch.full((40, 1, 8, 8), 0.5) + 0.05 * torch.randn(40, 1, 8, 8)
    margin = x.flatten(1) @ w
    y = (margin < 0).long()
    subject = replace(digits, model=linear, task=type(digits.task)(("a", "b")), data={"test": Arrays(x, y)}, layers={})
    finding = ask(WorstCaseAccuracy(radius=0.02, l2_radius=0.2, steps=40), subject, run)
    for norm, dual in (("linf", w.abs().sum()), ("l2", w.norm())):
        distance = (margin.abs() / dual).numpy()
        budget = 0.02 if norm == "linf" else 0.2
        clear = np.abs(distance - budget) > 1e-3 * budget
        held = finding.samples.columns[f"held {norm}"]
        assert (held[clear] == (distance > budget)[clear]).all()


def test_without_gradients_square_alone_attacks_and_a_pass_is_in_doubt(digits, run):
    run = replace(run, budget=replace(run.budget, samples=40))
    blind = ask(WorstCaseAccuracy(radius=0.15, l2_radius=0.5, steps=10), replace(digits, differentiable=False), run)
    seeing = ask(WorstCaseAccuracy(radius=0.15, l2_radius=0.5, steps=10), digits, run)
    assert seeing.measure().value <= blind.measure().value < 0.9
    assert {"square"} == set(blind.witnesses.how)
    assert judge_witnesses(blind.witnesses, digits, run)[0].all()
    assert blind.measure().name in blind.alarms[0].doubts
    assert "no gradients" in blind.alarms[0].says
    assert "linf" not in {v.name for v in blind.views}  # nothing was tried at other radii


def test_worst_case_accuracy_is_shown_for_each_class(digits, run):
    finding = ask(WorstCaseAccuracy(radius=0.1), digits, run)
    bars = next(v for v in finding.views if v.name == "by-class")
    label, held = finding.samples.columns["label"], finding.samples.columns["held linf"]
    assert bars.values == pytest.approx([held[label == c].mean() for c in range(10)])


def test_everyday_change_counts_every_corruption_at_every_severity(digits, run):
    finding = ask(EverydayChange(corruptions=("brightness", "gaussian-noise")), digits, run)
    matrix = next(v for v in finding.views if v.name == "corruptions")
    assert matrix.rows == ("brightness", "gaussian noise")
    assert finding.measure().value == pytest.approx(np.mean(matrix.values))
    assert finding.measure("mean corruption error").value == pytest.approx(1 - finding.measure().value)
    clean = ask(Accuracy(), digits, run).measure().value
    assert finding.measure("accuracy lost").value == pytest.approx(clean - finding.measure().value)
    assert finding.measure("worst corruption").value == pytest.approx(min(np.mean(r) for r in matrix.values))
    if finding.witnesses is not None:
        assert judge_witnesses(finding.witnesses, digits, run)[0].all()


def test_everyday_change_hurts_more_when_it_is_more_severe(digits, run):
    curve = ask(EverydayChange(corruptions=("gaussian-noise", "occlusion")), digits, run).views[0].lines[0]
    assert curve.y[0] > curve.y[3] > curve.y[5]


def test_tables_are_not_pictures(digits, run):
    flat = replace(digits, inputs=replace(digits.inputs, shape=(64,)))
    assert put(EverydayChange(), flat, run).status == "does not apply"


def test_the_same_seed_gives_the_same_measures(digits, run):
    run = replace(run, budget=replace(run.budget, samples=40))
    for probe in (WorstCaseAccuracy(radius=0.05), EverydayChange(corruptions=("fog", "shot-noise")), Confidence()):
        assert ask(probe, digits, run).measures == ask(probe, digits, run).measures
