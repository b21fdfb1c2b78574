"""Is it fair: the planted bias is found with its sign, a model without it passes, and few people are no number."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from assay import Subject, shelf
from assay.attribute import Attribute, shown_in
from assay.data.hiring import make_applications, merit
from assay.engine.local import ThisProcess
from assay.errors import AssayError
from assay.inputs import Column, Row
from assay.methods.attack.attacked import Attacked
from assay.methods.fair.entropy import everyone_positive, from_error
from assay.methods.fair.groups import ALPHA, lowest
from assay.probe import put
from assay.probes.fair.is_it_fair import ODDS, IsItFair, _bars, _Looked, _Part, _worst
from assay.run import Budget, Run
from assay.standard import judge
from assay.subjects.hiring_mlp import subject_of
from assay.tasks import Classification

RUN = Run(engine=ThisProcess(), budget=Budget("quick", samples=500, steps=5, restarts=1, dear=120), debug=True)
ALL = Run(engine=ThisProcess(), budget=Budget("tiny", samples=None, steps=5, restarts=1), debug=True)


def asked(subject, run=RUN, **settings):
    finding = put(IsItFair(**settings), subject, run).finding
    assert finding is not None
    return finding


def verdict(finding):
    return judge(IsItFair.standards[0], finding).verdict


@pytest.fixture(scope="module")
def hiring():
    """The bundled subject, and the first of its test people again as a domain."""
    subject = shelf.load("subjects", "hiring-mlp").build()
    test = subject.data["test"]
    there = replace(subject, data={**subject.data, "later": type(test)(*test.take(np.arange(900)), test.classes)})
    codes = {name: {**each.codes, "later": each.codes["test"][:900]} for name, each in subject.attributes.items()}
    return there.with_attributes(
        {name: Attribute(name, subject.attributes[name].values, codes[name]) for name in codes}
    )


@pytest.fixture(scope="module")
def hired(hiring):
    return asked(hiring, hard=True)


class Skill(nn.Module):
    """Hires by skill alone."""

    def forward(self, x):
        odds = torch.from_numpy(merit(x.detach().numpy())).to(x.dtype)
        return torch.stack([torch.zeros_like(odds), odds], 1)


def test_the_planted_bias_is_found_and_against_whom(hired):
    finding = hired
    assert verdict(finding) == "fail"
    by = {m.name: m for m in finding.measures}
    sex = by["equalised odds difference, sex"]
    assert "sex=male above sex=female in true positives" in sex.about
    assert sex.low > 0.1
    assert "above origin=far" in by["demographic parity difference, origin"].about
    assert by["demographic parity ratio, sex"].high < 0.8
    assert by["answers that hang on origin"].low > 0.1  # sex is no column, origin is
    assert "answers that hang on sex" not in by
    assert sex.beside[0].value < sex.low
    assert "equalised odds difference, sex x origin" in by
    assert all(m.low <= m.value <= m.high for m in finding.measures if m.value is not None and m.low is not None)
    assert any("18 of female, far" in a.says for a in finding.alarms)
    assert len(finding.views) == 12


def test_the_entropies_stand_with_the_mean_error_and_are_the_squared_error_in_disguise(hired, hiring):
    finding = hired
    within, between, m = (finding.measure(n).value for n in ("individual unfairness", "group unfairness", "mean error"))
    label = finding.samples.columns["label"]
    x, _ = hiring.data["test"].take(finding.samples.columns["index"])
    error = hiring.predict(x).softmax(1)[:, 1].numpy().astype(float) - label
    assert m == pytest.approx(error.mean(), abs=1e-6)
    assert within + between == pytest.approx(from_error((error**2).mean(), error.mean()), rel=1e-5)
    (gamed,) = [a for a in finding.alarms if "to everyone" in a.says]
    assert f"{everyone_positive(label.mean()):.4f}" in gamed.says
    assert gamed.about("individual unfairness")


def test_skill_alone_on_fair_labels_passes_and_saying_yes_too_often_is_an_alarm():
    fair = {"test": make_applications(8000, np.random.default_rng(6), bias=0.0)}
    finding = asked(subject_of(Skill(), fair, "by-skill"), ALL, hard=False, favourable="hired")
    assert finding.measure("answers that hang on origin").value == 0
    assert not any("more often than is true" in a.says for a in finding.alarms)
    assert finding.measures[0].low == 0
    assert verdict(finding) == "pass"
    assert all(m.value < 0.05 for m in finding.measures if m.name.startswith("calibration error"))  # its law is theirs

    class Generous(Skill):
        def forward(self, x):
            return super().forward(x) + torch.tensor([0.0, 1.0])

    few = {"test": make_applications(600, np.random.default_rng(6), bias=0.0)}
    (too_often,) = [a for a in asked(subject_of(Generous(), few)).alarms if "more often than is true" in a.says]
    assert too_often.about("group unfairness")


def small(groups, y=None, classes=2, n=400):
    rng = np.random.default_rng(0)
    x = rng.random((n, 3), dtype=np.float32)
    y = rng.integers(0, classes, n) if y is None else y
    torch.manual_seed(0)
    return Subject.of(nn.Linear(3, classes), (x, y), attributes={"g": groups})


def test_a_group_of_few_is_not_told_and_one_that_lacks_a_class_leaves_no_odds():
    finding = asked(small(["few" if i < 20 else "many" if i < 200 else "most" for i in range(400)]))
    assert finding.measure("calibration error, g=few").value is None
    assert any("g=few (20)" in a.says for a in finding.alarms)
    y = np.random.default_rng(1).integers(0, 2, 400)
    y[:100] = 0
    finding = asked(small(["none" if i < 100 else "some" for i in range(400)], y))
    assert finding.measures[0].value is None
    assert verdict(finding) == "cannot tell"
    assert any("0 of g=none have the label" in a.says for a in finding.alarms)
    assert finding.measure("demographic parity difference, g").value is not None


def test_of_several_classes_each_is_looked_at_and_one_may_be_named():
    subject = small(np.arange(400) % 2, classes=3)
    every = asked(subject)
    one = asked(subject, favourable="1")
    assert (every.measures[0].value or 0) >= (one.measures[0].value or 0)
    assert "individual unfairness" not in {m.name for m in every.measures}
    assert "individual unfairness" in {m.name for m in one.measures}
    answer = put(IsItFair(favourable="yes"), subject, replace(RUN, debug=False))
    assert "favourable='yes'" in (answer.why or "")
    with pytest.raises(AssayError, match="from 1 to 5"):
        IsItFair(severity=6)


def test_an_attribute_of_which_nothing_is_told_leaves_the_headline_in_doubt():
    few = np.where(np.arange(400) < 20, "few", "most")
    known = small(np.arange(400) % 2)
    both = known.with_attributes({**known.attributes, "h": Attribute.of("h", few)})
    doubted = [
        [a for a in asked(each).alarms if a.about(ODDS) and a.says.startswith("Not measured")] for each in (known, both)
    ]
    assert [len(alarms) for alarms in doubted] == [0, 1]
    assert "equalised odds difference, h" in doubted[1][0].says


def test_an_answer_hangs_on_a_column_where_any_of_its_values_changes_it(hired, hiring):
    x, _ = hiring.data["test"].take(hired.samples.columns["index"])
    shown = shown_in(hiring.attributes["origin"], hiring.kind.columns)
    said = []
    for state in shown.states:
        x[:, list(shown.places)] = torch.tensor(state, dtype=x.dtype)
        said.append(hiring.predict(x).argmax(1))
    hang = (torch.stack(said) != torch.from_numpy(hired.samples.columns["said"])).any(0).double().mean()
    assert hired.measure("answers that hang on origin").value == pytest.approx(float(hang))


def test_numbers_are_compared_by_how_far_off_they_are():
    rng = np.random.default_rng(0)
    x = rng.random((300, 2), dtype=np.float32)
    who = np.arange(300) % 2
    y = x.sum(1) + 0.02 * rng.normal(size=300) + np.where(who, 1.0, 0.0)  # nobody told the model of this
    model = nn.Linear(2, 1)
    with torch.no_grad():
        model.weight.fill_(1.0)
        model.bias.fill_(0.0)
    subject = Subject.of(model, (x, y.astype(np.float32)), attributes={"who": who})
    finding = asked(subject)
    assert finding.measures[0].low > 0.5
    leaning = finding.measure("difference of leanings, who")
    assert "who=0 above who=1" in leaning.about
    answer = put(IsItFair(favourable="nonsense"), subject, replace(RUN, debug=False))
    assert "favourable='nonsense' of 'is-it-fair' names a class, and this task has none" in (answer.why or "")
    few = replace(
        subject, attributes={"who": Attribute("who", ("a", "b", "c"), {"test": np.where(x[:, 0] > 0.05, who, 2)})}
    )
    assert any(a.about("accuracy difference") for a in asked(few).alarms)


def test_a_random_model_is_not_said_to_hang_on_a_column_that_it_never_reads():
    class Random(Skill):
        def forward(self, x):
            return super().forward(x) + torch.randn(len(x), 2)

    people = {"test": make_applications(200, np.random.default_rng(6))}
    finding = asked(replace(subject_of(Random(), people), draws=4))
    assert not any("hang on" in m.name for m in finding.measures)


def test_under_attack_and_change_and_in_a_domain_groups_are_told_apart_too(hired):
    for name in (
        "equalised odds difference in later",
        "equalised odds difference under everyday change",
        "accuracy difference under attack",
        "worst group under attack",
    ):
        assert hired.measure(name).value is not None, name
    worst, clean = hired.measure("worst group under attack"), hired.measure("worst group, sex")
    assert worst.value < clean.value


class Denies(nn.Module):
    """Says what the second column says, but no to those of whom the first is 1, or to everybody."""

    def __init__(self, everybody=False):
        super().__init__()
        self.everybody = everybody

    def forward(self, x):
        odds = x[:, 1] - 0.5 - 9 * ((x[:, 0] == 1) | self.everybody)
        return torch.stack([torch.zeros_like(odds), odds], 1)


def denied(model, groups, name="g"):
    rng = np.random.default_rng(0)
    x = np.stack([np.array(groups) == "c", rng.integers(0, 2, 400)], 1).astype(np.float32)
    return Subject.of(model.eval(), (x, x[:, 1].astype(np.int64)), attributes={name: groups}, bounds=(0.0, 1.0))


AB = ["ab"[i % 2] for i in range(400)]


def test_a_group_too_small_to_tell_of_keeps_it_from_passing():
    assert verdict(asked(denied(Denies(), AB))) == "pass"
    finding = asked(denied(Denies(), ["c"] * 29 + AB[29:]))
    assert finding.measures[0].value == 0
    assert verdict(finding) == "cannot tell"


def test_no_to_everybody_has_no_gap_and_does_not_pass():
    finding = asked(denied(Denies(everybody=True), AB))
    assert finding.measures[0].high < 0.1
    assert verdict(finding) == "cannot tell"
    assert any("does not tell people apart" in a.says for a in finding.alarms)


def test_an_attribute_may_be_called_as_a_column_of_the_samples():
    columns = asked(denied(Denies(), AB, "index")).samples.columns
    assert columns["index"].tolist() == list(range(400))
    assert columns["group: index"].tolist() == [i % 2 for i in range(400)]


def test_the_worst_of_several_has_an_interval_that_holds_for_all_of_them():
    held = np.arange(400) % 10 > 0
    looked = []
    for name, size in (("a", 2), ("b", 4)):
        part = _Part(name, tuple(map(str, range(size))), np.arange(400) % size)
        looked.append(_Looked(part, part.tally(held)))
    (both,) = _worst("", looked, "", 0.9)
    (one,) = _worst("", looked[:1], "", 0.9)
    each = [lowest(of.tally, alpha=ALPHA / 2) for of in looked]
    assert (both.low, both.high) == (min(e.low for e in each), min(e.high for e in each))
    assert one.low == lowest(looked[0].tally, alpha=ALPHA).low
    assert both.low < min(lowest(of.tally, alpha=ALPHA).low for of in looked)


class Stepped(nn.Module):
    """Yes from the age of six on: no slope leads there."""

    def forward(self, x):
        odds = torch.where(x[:, 0] > 5.5, 4.0, -4.0) + 0 * x[:, 0]
        return torch.stack([torch.zeros_like(odds), odds], 1)


def test_whole_numbers_are_attacked_in_whole_steps(monkeypatch):
    """By a tenth of the range, a year: those of five can be moved to six, those of two to three."""
    age = np.where(np.arange(200) % 2 == 0, 5, 2)
    x = np.stack([age, np.full(200, 3)], 1).astype(np.float32)
    kind = Row((Column("age", "integer", 0, 10, 5), Column("score", "number", 0, 10, 5)))
    subject = Subject.of(
        Stepped().eval(), (x, np.zeros(200, dtype=np.int64)), Classification(("no", "yes")), kind=kind,
        bounds=([0.0, 0.0], [10.0, 10.0]), attributes={"old": np.where(age == 5, "yes", "no").tolist()},
    )  # fmt: skip

    def nothing(model, x, *_, **__):
        return Attacked(x, torch.zeros(len(x), dtype=torch.bool), torch.zeros(len(x)).double(), torch.zeros(1, len(x)))

    monkeypatch.setattr("assay.probes.fair.is_it_fair.worst_case", nothing)
    found = asked(subject, ALL, hard=True, radius=0.1)
    worst = found.measure("worst group under attack")
    assert (worst.value, found.measure("accuracy difference under attack").value) == (0, 1)
    assert "old=yes" in worst.about
    near = asked(subject, ALL, hard=True, radius=0.04)  # less than a year
    assert near.measure("worst group under attack").value == 1


def test_groups_that_are_not_drawn_are_counted():
    part = _Part("g", tuple(f"{i:02d}" for i in range(20)), np.arange(1000) % 20)
    (view,) = _bars(part, "How often", part.tally(np.arange(1000) % 3 == 0))
    assert len(view.labels) == 16
    assert "Of 20 groups the first 16 are drawn, 4 are not." in view.says
