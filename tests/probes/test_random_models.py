"""One protocol for random models: what the probes say is what fresh draws give."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from assay.data.arrays import Arrays
from assay.door import admit
from assay.probe import judge_witnesses, put
from assay.probes.attacked.distance_to_failure import DistanceToFailure
from assay.probes.attacked.does_it_transfer import DoesItTransfer
from assay.probes.attacked.one_change_for_all import OneChangeForAll
from assay.probes.attacked.worst_case_accuracy import WorstCaseAccuracy
from assay.probes.right.accuracy import Accuracy
from assay.probes.steady.everyday_change import EverydayChange
from assay.subject import DRAWS, Subject, settled


class Noisy(nn.Module):
    def __init__(self, net, sigma):
        super().__init__()
        self.net, self.sigma = net, sigma

    def forward(self, x):
        return self.net(x + self.sigma * torch.randn_like(x))


class Coin(nn.Module):
    """Says the first or the second class, whatever it sees."""

    def forward(self, x):
        out = torch.zeros(len(x), 10)
        out[range(len(x)), torch.randint(2, (len(x),))] = 5
        return out + 0 * x.flatten(1).sum(1, keepdim=True)


def ask(probe, subject, run):
    answer = put(probe, subject, replace(run, debug=True))
    assert answer.status == "asked", answer.why
    return answer.finding


@pytest.fixture
def small(run):
    return replace(run, budget=replace(run.budget, samples=16, steps=3))


def fresh(subject, x, y, times=200):
    """The mean chance of a right answer on fresh draws."""
    torch.manual_seed(77)
    return np.mean([(subject.predict(x).argmax(1) == y).float().mean().item() for _ in range(times // subject.draws)])


def worst_points(subject, finding, radius):
    index = finding.samples.columns["index"]
    x, y = subject.data["test"].take(index)
    w = finding.witnesses
    for i in range(len(w)):
        if w.norm[i] == "linf" and w.radius[i] <= radius * (1 + 1e-6):
            x[np.flatnonzero(index == w.index[i])[0]] = torch.as_tensor(w.changed[i])
    return x, y


@pytest.fixture
def noisy(digits):
    return replace(digits, model=Noisy(digits.model, 0.3), draws=2, layers={})


def test_the_number_is_what_fresh_draws_give_and_no_witness_is_refuted(noisy, small):
    finding = ask(WorstCaseAccuracy(radius=0.1, l2_radius=0.5), noisy, small)
    number = finding.measure()
    assert not [a for a in finding.alarms if "judged afresh" in a.says]
    assert judge_witnesses(finding.witnesses, noisy, small)[0].all()
    columns = finding.samples.columns
    assert number.value == pytest.approx(columns["held linf"].mean())
    x, y = worst_points(noisy, finding, 0.1)
    listed = set(finding.witnesses.index[[n == "linf" for n in finding.witnesses.norm]].tolist())
    told = np.array([i in listed for i in columns["index"]]) | ~(columns["chance wrong"] > 0.5)
    assert told[columns["clean"] > 0.5].all()  # whoever is mostly wrong under attack is there as a witness
    # witnesses alone: where most answers were right the point is not kept, so compare on those that are listed
    rows = np.flatnonzero(np.isin(columns["index"], list(listed)) & (columns["chance wrong"] > 0.5))
    assert len(rows) > 3
    again = fresh(noisy, x[rows], y[rows], 400)
    assert again == pytest.approx(columns["held linf"][rows].mean(), abs=4 * np.sqrt(0.25 / (len(rows) * 64)) + 0.02)
    single = finding.measure("worst-case accuracy, a single draw").value
    asked = finding.measure("worst-case accuracy, asked 10 times").value
    assert asked < number.value
    assert single <= number.value + 0.1
    low, chance, high = (columns[f"chance wrong{end}"] for end in (", low", "", ", high"))
    assert ((low <= chance) & (chance <= high)).all()
    curve = next(v for v in finding.views if v.name == "draws").lines[0]
    assert curve.x[0] == 1
    assert curve.y[0] == pytest.approx(single)
    assert curve.y[curve.x.index(2.0)] == pytest.approx(number.value, abs=1e-9)


def test_without_noise_draws_change_nothing(digits, small):
    probe = WorstCaseAccuracy(radius=0.1, l2_radius=0.5)
    one, many = ask(probe, digits, small), ask(probe, replace(digits, draws=3), small)
    for a, b in zip(one.measures, many.measures[:2], strict=True):
        assert (b.value, b.low, b.high) == pytest.approx((a.value, a.low, a.high), abs=1.5 / len(one.samples))
    for name, budget in (("held linf", 0), ("held l2", 0), ("smallest linf", 0.1), ("smallest l2", 0.5)):
        a, b = (found.samples.columns[name].astype(float) for found in (one, many))
        # within the budget they meet other attacks, none of which looks for the smallest change
        a, b = (np.where(each > 0, np.where(each <= budget * (1 + 1e-6), budget, each), each) for each in (a, b))
        assert (~np.isclose(a, b, rtol=1e-3, equal_nan=True)).sum() <= 1  # a slope of rounding alone may turn a sign


def test_a_coin_is_right_half_of_the_time_and_nobody_is_accused_for_it(digits, small):
    y = np.asarray(digits.data["test"].labels)
    keep = np.flatnonzero(y < 2)[:30]
    x, y = digits.data["test"].take(keep)
    coin = replace(digits, model=Coin(), data={"test": Arrays(x, y)}, layers={})
    finding = ask(WorstCaseAccuracy(radius=0.1), replace(coin, draws=2), small)
    held = finding.measure("worst-case accuracy, a single draw")
    assert held.low - 0.05 <= 0.5 <= held.high + 0.05
    assert finding.measure("worst-case accuracy, asked 10 times").value < 0.05


def test_a_random_model_that_does_not_say_so_gets_draws(digits, small):
    secret = replace(digits, model=Noisy(digits.model, 0.3), layers={})
    x, _ = digits.data["test"].take(np.arange(8))
    assert settled(digits, x) is digits
    assert settled(secret, x).draws == DRAWS
    assert settled(replace(secret, draws=3), x).draws == 3
    admitted = admit(secret)
    assert admitted.subject.draws == DRAWS
    assert f"means of {DRAWS} passes" in admitted.alarms[0].says
    assert admit(admitted.subject).alarms == admitted.alarms
    assert admit(digits).alarms == ()


def test_mistakes_that_nobody_searched_for_do_not_put_the_accuracy_in_doubt(digits, small):
    loud = replace(digits, model=Noisy(digits.model, 0.6), draws=2, layers={})
    small = replace(small, budget=replace(small.budget, samples=200))
    finding = ask(Accuracy(), loud, small)
    left = [a for a in finding.alarms if "random model; they leave" in a.says]
    assert left
    assert not left[0].doubts
    x, y = loud.data["test"].take(finding.samples.columns["index"])
    number = finding.measure()
    assert number.low - 0.05 <= fresh(loud, x, y, 100) <= number.high + 0.05


def test_nan_under_attack_is_counted_as_wrong_and_the_others_keep_their_number(digits, small):
    class Fragile(nn.Module):
        """NaN where the first value of some inputs is pushed up: 0 / 0."""

        def __init__(self, net):
            super().__init__()
            self.net = net

        def forward(self, x):
            bad = (x[:, 0, 4, 4] > 0.97) & (x[:, 0, 4, 4] < 0.999)
            return torch.where(bad[:, None], torch.nan, self.net(x))

    probe = WorstCaseAccuracy(radius=0.05, l2_radius=0.2)
    finding, plain = (
        ask(probe, replace(digits, model=Fragile(digits.model), layers={}), small),
        ask(probe, digits, small),
    )
    assert finding.measure().value <= plain.measure().value
    assert judge_witnesses(finding.witnesses, replace(digits, model=Fragile(digits.model), layers={}), small)[0].all()


class Softmaxed(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x):
        return self.net(x).softmax(1)


def test_a_random_model_that_returns_probabilities_gets_the_numbers_of_its_logits(digits, small):
    """Its answers are means of its probabilities, and not of the softmax of these, which is nearly flat."""
    sharp = nn.Sequential(digits.model, Times(0.3))
    twin = replace(digits, model=Noisy(sharp, 0.3), draws=2)
    raw = replace(twin, model=Softmaxed(twin.model))
    mended = admit(raw).subject
    x, _ = digits.data["test"].take(np.arange(200))
    torch.manual_seed(0)
    wanted = twin.predict(x).softmax(1)
    torch.manual_seed(0)
    got = mended.predict(x).softmax(1)
    torch.testing.assert_close(got, wanted, rtol=1e-3, atol=1e-5)
    torch.manual_seed(0)
    assert (raw.predict(x).softmax(1) - wanted).abs().max() > 0.3
    probe, small = WorstCaseAccuracy(radius=0.05, steps=2), replace(small, budget=replace(small.budget, samples=8))
    for a, b in zip(ask(probe, twin, small).measures, ask(probe, mended, small).measures, strict=True):
        assert a.low <= b.value <= a.high, a.name
        assert b.low <= a.value <= b.high, a.name


class Times(nn.Module):
    def __init__(self, by):
        super().__init__()
        self.by = by

    def forward(self, z):
        return self.by * z


class Slips(nn.Module):
    """Right about bright and dark pictures, but for a slip in 15 of 100 passes, whatever it sees.

    A slip is surer than what it takes the place of: of two passes one is enough to make the answer wrong.
    """

    def forward(self, x):
        z = 10 * (x.flatten(1).mean(1) - 0.5)
        z = torch.where(torch.rand(len(x)) < 0.15, -2 * z, z)
        return torch.stack([-z, z], 1)


WRONG = 1 - 0.85**2  # of an answer, the mean of two passes
ALL_RIGHT = (1 - WRONG) ** 10


@pytest.fixture(scope="module")
def slips():
    rng = torch.Generator().manual_seed(0)
    y = torch.arange(80) % 2
    x = 0.25 + 0.4 * y[:, None, None, None] + 0.1 * torch.rand(80, 1, 6, 6, generator=rng)
    return Subject.classifier(Slips(), {"train": (x[:40], y[:40]), "test": (x[40:], y[40:])}, draws=2)


def threats(finding, name):
    """One try, and ten."""
    one, ten = finding.measure(name), finding.measure(f"{name}, asked 10 times")
    assert one.low <= one.value <= one.high
    assert ten.low <= ten.value <= ten.high
    return one.value, ten.value


def test_every_attack_states_both_threats_and_both_are_those_of_closed_form(slips, small):
    """No attack finds anything here: what is left are the slips, of which the first threat meets one answer's."""
    small = replace(small, budget=replace(small.budget, samples=100))
    found = {p: ask(p, slips, small) for p in (WorstCaseAccuracy(), OneChangeForAll(), DoesItTransfer())}
    worst, change, transfer = found.values()
    assert threats(worst, "worst-case accuracy") == pytest.approx((1 - WRONG, ALL_RIGHT), abs=0.03)
    assert threats(change, "error under one change") == pytest.approx((WRONG, 1 - ALL_RIGHT), abs=0.03)
    # the example of the one substitute or the other: to be wrong about either is not one try
    assert threats(transfer, "transfer accuracy") == pytest.approx((1 - WRONG, ALL_RIGHT), abs=0.03)
    assert threats(transfer, "white-box accuracy") == pytest.approx((1 - WRONG, ALL_RIGHT), abs=0.03)
    assert change.witnesses is transfer.witnesses is None  # nothing is wrong in most answers
    for finding in found.values():
        (ten,) = [m for m in finding.measures[1:] if m.name == f"{finding.measure().name}, asked 10 times"]
        (clean,) = [b.value for b in ten.beside if b.label == "clean inputs, asked 10 times"]
        assert clean == pytest.approx(ten.value, abs=0.04)
        assert finding.samples.columns[ten.column].mean() == pytest.approx(ten.value)


def test_whoever_may_ask_again_needs_no_change_of_what_slips_by_itself(slips, small):
    finding = ask(DistanceToFailure(inputs=6), slips, small)
    assert finding.measure("median smallest change, linf, asked 10 times").value == 0
    one = finding.samples.columns["smallest linf"]
    assert np.nanmin(np.r_[one, 1.0]) > 0.02  # at the first try it is not broken as it is
    for norm in ("linf", "l2", "l1", "l0"):
        assert not finding.samples.columns[f"smallest {norm}, asked again"].any()


def test_the_change_for_an_attacker_who_may_ask_again_is_smaller_and_does_what_it_says(digits, small):
    noisy = replace(digits, model=Noisy(digits.model, 0.15), draws=2, layers={})
    finding = ask(DistanceToFailure(steps=10, inputs=8), noisy, small)
    columns = finding.samples.columns
    for norm in ("linf", "l2", "l1", "l0"):
        one, ten = columns[f"smallest {norm}"], columns[f"smallest {norm}, asked again"]
        known = np.isfinite(one)
        assert (ten[known] <= one[known] * (1 + 1e-6)).all()
        if norm != "l0":
            assert (ten[known] < 0.9 * one[known]).mean() > 0.5
    assert finding.measure("median smallest change, linf").value == finding.measure().value
    assert not [a for a in finding.alarms if "judged afresh" in a.says]


@pytest.mark.parametrize(
    "probe", [OneChangeForAll(radius=0.15), DoesItTransfer(radius=0.2), DistanceToFailure(inputs=6)]
)
def test_a_model_that_is_not_random_has_no_second_threat_and_draws_add_it(probe, digits, small):
    small = replace(small, budget=replace(small.budget, samples=40))
    one, many = ask(probe, digits, small), ask(probe, replace(digits, draws=2), small)
    assert not [m.name for m in one.measures if "asked" in m.name]
    more = [m.name for m in many.measures if m.name not in [each.name for each in one.measures]]
    assert more
    assert all(name.endswith(", asked 10 times") for name in more)
    for name in more:  # without noise there is nothing to gain by asking again
        again, once = many.measure(name), many.measure(name.removesuffix(", asked 10 times"))
        if once.value is not None:
            assert again.value == pytest.approx(once.value, abs=0.03 * max(1.0, once.value) + 1e-3)


@pytest.mark.parametrize("probe", [OneChangeForAll(radius=0.2), DoesItTransfer(radius=0.3), EverydayChange()])
def test_no_witness_of_a_random_model_is_refuted(probe, noisy, small):
    small = replace(small, budget=replace(small.budget, samples=60))
    finding = ask(probe, noisy, small)
    assert len(finding.witnesses) > 2
    assert judge_witnesses(finding.witnesses, noisy, small)[0].all()
    assert not [a for a in finding.alarms if "judged afresh" in a.says or "fresh answers" in a.says]
