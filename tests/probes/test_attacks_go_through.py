"""Attacks that go through, as the probes run them: a number that was not real falls, and what broke it is named."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from assay.engine.local import ThisProcess
from assay.methods.attack import masking
from assay.methods.attack.through import ways_through
from assay.nn.members import Drawn
from assay.nn.noisy import Noise
from assay.probe import judge_witnesses, put
from assay.probes.attacked.is_the_number_real import HEADLINE, IsTheNumberReal
from assay.probes.attacked.worst_case_accuracy import WorstCaseAccuracy
from assay.run import Budget, Run
from assay.subject import Subject
from assay.subjects.fashion_robust import SHELVED as FASHION_ROBUST
from assay.tasks import Regression

RADIUS = 0.1
TEN = Budget("ten", samples=10, steps=3, restarts=1, shown=1)


def ask(probe, subject, run):
    answer = put(probe, subject, replace(run, debug=True))
    assert answer.status == "asked", answer.why
    return answer.finding


def real(subject, run, **settings):
    return ask(IsTheNumberReal(**{"radius": RADIUS, "steps": 5, "inputs": 40, **settings}), subject, run)


def worst(subject, run):
    run = replace(run, budget=replace(run.budget, samples=24))
    return ask(WorstCaseAccuracy(radius=RADIUS, l2_radius=0.3, steps=5), subject, run)


@pytest.fixture(autouse=True)
def _small_copies(monkeypatch):
    monkeypatch.setattr("assay.probes.attacked.is_the_number_real.DISTILLED", 100)
    monkeypatch.setattr("assay.methods.attack.chance.MOST", 16)  # fresh answers of a random model, for 64


class Behind(nn.Module):
    def __init__(self, net, defence):
        super().__init__()
        self.net, self.defence = net, defence

    def forward(self, x):
        return self.net(self.defence(x))


class Rounds(nn.Module):
    def forward(self, x):
        return (x * 16).round() / 16


def purified(x):
    with torch.no_grad():
        return (x * 16).round() / 16


@pytest.fixture(scope="module")
def bare(digits_model):
    """What the number is with nothing in front."""
    model, data = digits_model
    run = Run(engine=ThisProcess(), budget=Budget("tiny", samples=100, steps=5, restarts=1, shown=3))
    finding = real(Subject.classifier(model, data, name="digits"), run)
    assert "held straight-through" not in finding.samples.columns  # few steps leave signs, but nothing to bridge
    return finding.measure("accuracy, all attacks").value


@pytest.mark.parametrize(("defence", "said"), [(Rounds(), "'defence'"), (purified, "no gradient")])
def test_what_rounds_or_purifies_is_broken_by_name(digits, bare, run, defence, said):
    hidden = replace(digits, model=Behind(digits.model, defence), layers={})
    finding = real(hidden, run)
    assert finding.measure("accuracy, all attacks").value <= bare + 0.04
    assert finding.measure("accuracy, the usual attack").value > bare + 0.1
    assert finding.measure(HEADLINE).value > 0.1
    (gap,) = [a for a in finding.alarms if a.says.startswith("Gradients mislead here")]
    assert said in gap.says
    held = finding.samples.columns
    assert held["held straight-through"].mean() <= bare + 0.1
    assert "straight-through" in set(held["broken by"]) | set(finding.witnesses.how)
    assert judge_witnesses(finding.witnesses, hidden, run)[0].all()
    labels = next(v for v in finding.views if v.name == "side-by-side").labels
    assert {"straight-through", "distilled copy", "EOT"} <= set(labels)


def test_worst_case_accuracy_learns_of_it(digits, run):
    plain = worst(digits, run)
    finding = worst(replace(digits, model=Behind(digits.model, purified), layers={}), run)
    for number in ("worst-case accuracy", "worst-case accuracy, l2"):
        assert finding.measure(number).value <= plain.measure(number).value + 0.09
    (gap,) = [a.says for a in finding.alarms if "stand-ins" in a.says]
    found = finding.witnesses
    assert found.left_out == 0
    by = [(r, n) for r, n, how in zip(found.radius, found.norm, found.how, strict=True) if how == "straight-through"]
    inside, larger = sum(n == "linf" and r <= RADIUS for r, n in by), sum(n == "linf" and r > RADIUS for r, n in by)
    assert larger > 0
    assert f"by which {inside} of 24 " in gap  # of those that larger changes break the number says nothing
    assert inside <= 24 * (1 - finding.measure("worst-case accuracy").value)


class Sums(nn.Module):
    """The sum of the input, more or less, and a little of what a net says behind rounding."""

    def __init__(self, net):
        super().__init__()
        self.net = Behind(net, Rounds())

    def forward(self, x):
        return self.net(x) + 20 * x.flatten(1).sum(1, keepdim=True)


@pytest.mark.parametrize("probe", [WorstCaseAccuracy(radius=RADIUS), IsTheNumberReal(radius=RADIUS)])
def test_what_is_added_to_all_scores_is_seen_through_and_what_is_added_to_numbers_counts(digits, run, probe):
    x, _ = digits.data["test"].take(np.arange(24))
    y = np.zeros((24, 10), dtype=np.float32)
    scores = replace(digits, model=Sums(digits.model), layers={})
    numbers = Subject.of(
        Sums(digits.model), {"test": (x.numpy(), y)}, Regression(tuple("abcdefghij"), (1.0,) * 10), name="sums"
    )
    found = []
    for subject in (scores, numbers):
        if isinstance(probe, IsTheNumberReal):
            ways = probe._ways(subject, run, x, misled=False)
        else:
            ways = probe._ways(subject, run, np.arange(24))[1]
        found.append("straight-through" in [way.name for way in ways])
    assert found == [True, False]


def test_an_honest_robust_net_is_not_accused_and_its_number_does_not_move(run, monkeypatch):
    subject = FASHION_ROBUST.build()
    x, _ = subject.data["test"].take(np.arange(32))
    assert ways_through(subject.model, x, radius=8 / 255) == ()
    monkeypatch.setattr(masking, "go_through", None)  # it is not gone through
    finding = real(subject, run, radius=8 / 255, inputs=4, steps=2)
    assert not [a for a in finding.alarms if "mislead" in a.says or "go through" in a.says]
    assert not [name for name in finding.samples.columns if name in ("held straight-through", "held EOT")]


def test_a_random_model_shows_the_printed_attack_beside_and_falls_to_no_less(digits, run):
    noisy = replace(
        digits, model=Drawn(nn.Sequential(Noise(0.3), digits.model), 3, rows_apart=True).eval(), draws=3, layers={}
    )
    finding = real(noisy, run, inputs=20, steps=3)
    printed = finding.measure("accuracy, the attack as printed").value
    assert printed >= finding.measure("accuracy, all attacks").value - 0.05
    columns = finding.samples.columns
    assert {"held as printed", "held mean network", "held EOT", "held distilled copy"} <= set(columns)
    assert "held straight-through" not in columns
    labels = next(v for v in finding.views if v.name == "side-by-side").labels
    assert {"as printed", "mean network"} <= set(labels)
    assert not [a for a in finding.alarms if a.says.startswith("Gradients mislead")]


def test_the_net_without_its_noise_is_one_more_attack_on_a_random_model(digits, run):
    noisy = replace(
        digits, model=Drawn(nn.Sequential(Noise(0.1), digits.model), 3, rows_apart=True).eval(), draws=3, layers={}
    )
    finding = ask(WorstCaseAccuracy(radius=RADIUS, l2_radius=0.3, steps=3), noisy, replace(run, budget=TEN))
    assert "mean network" in finding.witnesses.how
