"""Domains: which splits are one, what is told of them, and that labels nobody has are never read."""

from __future__ import annotations

from dataclasses import dataclass, replace
from hashlib import sha256
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import nn

from assay.audit import Described, describe
from assay.data.arrays import Arrays, Targets
from assay.data.held_out import Part
from assay.domain import Domain, Unlabelled, number_in
from assay.engine.local import ThisProcess
from assay.errors import AssayError
from assay.finding import Finding, Measure
from assay.fingerprint import of_model
from assay.probe import Probe, put
from assay.run import Run
from assay.subject import Subject, check
from assay.tasks import Labels

X = np.random.default_rng(0).random((40, 1, 8, 8)).astype(np.float32)
Y = np.arange(40) % 3
ALL = Arrays(X, Y)


@pytest.fixture(scope="module")
def subject():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
    data = dict.fromkeys(("rotated-15", "train", "test", "calibration", "outliers", "2009"), ALL)
    return replace(Subject.classifier(model, data), unlabelled={"far -3.5": ALL, "night": ALL}, at={"night": 23.0})


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("rotated-15", 15.0),
        ("2009", 2009.0),
        ("celsius=-5", -5.0),
        ("-5", -5.0),
        ("rotated--15", -15.0),
        ("zoom 1.5x", 1.5),
        ("zoom1.5x", None),
        ("camera2", None),
        ("v2-15", None),
        ("hospital", None),
        ("1e5", None),
        ("9" * 400, None),
    ],
)
def test_the_one_number_in_a_name_tells_where_a_domain_lies(name, number):
    assert number_in(name) == number


def test_every_split_without_a_part_of_its_own_is_a_domain(subject):
    told = [(d.name, d.labelled, d.at) for d in subject.domains().values()]
    assert told == [
        ("rotated-15", True, 15.0),
        ("2009", True, 2009.0),
        ("far -3.5", False, -3.5),
        ("night", False, 23.0),
    ]
    assert subject.domains()["2009"] == Domain("2009", ALL, True, 2009.0)
    assert subject.home == "train"
    assert replace(subject, data={"test": ALL}).home == "test"
    assert list(replace(subject, data={"test": ALL}, unlabelled={}).domains()) == []


def test_everywhere_holds_inputs_without_labels_and_never_a_label(subject):
    whole = subject.everywhere()
    assert list(whole.data) == [*subject.data, "far -3.5", "night"]
    assert whole.domains() == subject.domains()
    assert whole.everywhere().domains() == subject.domains()
    run = Run(engine=ThisProcess())
    rows = run.map(lambda s: {"y": s.y, "x": s.x.flatten(1)[:, 0]}, whole, "night", np.array([5, 2]), "inputs")
    np.testing.assert_array_equal(rows["x"], X[[5, 2], 0, 0, 0])
    assert rows["y"].tolist() == [0, 0]
    assert set(whole.data["night"].labels) == {0}
    assert whole.data["night"].classes is None


def test_shares_of_the_range_hold_for_domains_too(subject):
    wide = replace(subject, inputs=replace(subject.inputs, low=-1.0, high=1.0))
    for each in (wide.in_shares(), wide.everywhere().in_shares(), wide.in_shares().everywhere()):
        x, y = each.everywhere().data["night"].take(np.array([7]))
        torch.testing.assert_close(x, (torch.tensor(X[[7]]) + 1) / 2)
        assert y.tolist() == [0]
        assert [d.labelled for d in each.domains().values()] == [True, True, False, False]


def test_only_a_subject_with_domains_has_another_fingerprint(subject):
    plain = replace(subject, unlabelled={}, at={})
    before = sha256(of_model(plain.model, []).lasting.encode())  # as it was when there were no domains
    before.update(repr((plain.task, plain.inputs, 1, True)).encode())
    for split in sorted(plain.data):
        before.update(f"{split} {ALL.fingerprint()}".encode())
    assert plain.fingerprint() == before.hexdigest()
    prints = [
        plain.fingerprint(),
        subject.fingerprint(),
        replace(subject, unlabelled={"night": ALL}).fingerprint(),
        replace(subject, at={}).fingerprint(),
        replace(subject, unlabelled={**subject.unlabelled, "night": Arrays(X[::-1], Y)}).fingerprint(),
        replace(plain, at={"2009": 1.0}).fingerprint(),
    ]
    assert len(set(prints)) == len(prints)
    assert subject.fingerprint() == replace(subject, unlabelled=dict(subject.unlabelled)).fingerprint()


def test_labels_that_nobody_has_are_not_checked_and_inputs_are(subject):
    strange = Arrays(X, Y + 7)  # no such class
    check(replace(subject, unlabelled={"far": strange}))
    with pytest.raises(AssayError, match="In 'far' label 7 of input 0 is outside"):
        check(replace(subject, data={**subject.data, "far": strange}))
    with pytest.raises(AssayError, match=r"Inputs of 'far' have shape \(1, 8, 7\), those of 'test' \(1, 8, 8\)"):
        check(replace(subject, unlabelled={"far": Arrays(X[..., :7], Y)}))
    with pytest.raises(AssayError, match=r"Inputs of 'far' have shape \(1, 8, 7\), those of 'test' \(1, 8, 8\)"):
        check(replace(subject, data={**subject.data, "far": Arrays(X[..., :7], Y)}))
    with pytest.raises(AssayError, match="of 'far' has the value 2.* outside the bounds"):
        check(replace(subject, unlabelled={"far": Arrays(255 * X, Y)}))
    with pytest.raises(AssayError, match="The domain 'far' has 29 inputs; give at least 30"):
        check(replace(subject, unlabelled={"far": Arrays(X[:29], Y[:29])}))


def test_zeros_are_no_targets_of_any_task(subject):
    """Where targets are rows of labels, a zero for each input would not pass for one."""
    rows = Targets(X, np.eye(3, dtype=np.int64)[Y])
    several = replace(subject, task=Labels(("a", "b", "c")), data={"test": rows}, unlabelled={"far": ALL})
    check(several)
    check(several.everywhere())


@pytest.mark.parametrize("name", ["train", "test", "calibration", "validation", "outliers"])
def test_a_domain_has_a_name_of_its_own(subject, name):
    with pytest.raises(AssayError, match=f"A domain cannot be named '{name}'"):
        replace(subject, unlabelled={name: ALL})


def test_what_comes_without_labels_as_a_split_is_a_domain_without(subject):
    """Nobody may read its zeros, and a probe reads the labels of every split."""
    data = {"test": ALL, "far": Unlabelled(ALL)}
    for each in (Subject.of(subject.model, data), Subject.of(subject.model, data, subject.task)):
        assert list(each.data) == ["test"]
        assert each.unlabelled == {"far": data["far"]}
        assert [d.labelled for d in each.domains().values()] == [False]
        assert list(each.everywhere().data) == ["test", "far"]
    with pytest.raises(AssayError, match="A domain cannot be named 'train'"):
        Subject.of(subject.model, {"test": ALL, "train": Unlabelled(ALL)})


@pytest.mark.parametrize(
    ("domains", "words"),
    [
        ({"a" * 81: ALL}, "of a domain has 81 letters; give one line of up to 80 letters"),
        ({"a\nb": ALL}, "of a domain is not one line"),
        ({"a\u2028b": ALL}, "of a domain is not one line"),
        ({"": ALL}, "The name '' of a domain is not one line"),
        ({"a": np.array(3.0)}, "The domain 'a': it is one number, no inputs"),
        ({"a": (torch.tensor(3.0), None)}, "The domain 'a': it is one number, no inputs"),
        ([ALL], "The domains are a list; give a mapping"),
        ({2009: ALL, "2009": ALL}, "The domain '2009' is given twice"),
    ],
)
def test_what_is_no_domain_is_refused_in_one_line(subject, domains, words):
    for model in (subject.model, lambda x: x.reshape(len(x), -1)[:, :3]):
        with pytest.raises(AssayError, match=words) as refused:
            Subject.of(model, ALL, domains=domains)
        assert "\n" not in str(refused.value)


def test_it_is_told_where_domains_lie(subject):
    domains = {2009: ALL, "night": X, "day": ALL}
    for model in (subject.model, lambda x: x.reshape(len(x), -1)[:, :3]):
        told = Subject.of(model, ALL, domains=domains, at={"night": 23, "day": np.float32(12.5)})
        assert {n: d.at for n, d in told.domains().items()} == {"2009": 2009.0, "day": 12.5, "night": 23.0}
        for at, words in (
            ({"noon": 12.0}, "There is no domain 'noon' to lie at 12.0, only"),
            ({"day": "noon"}, "The domain 'day' cannot lie at 'noon'; give a number"),
            ({"day": float("inf")}, "The domain 'day' cannot lie at inf"),
        ):
            with pytest.raises(AssayError, match=words):
                Subject.of(model, ALL, domains=domains, at=at)
    assert Subject.of(subject.model, {"test": ALL, "far": ALL}, subject.task, at={"far": 1}).domains()["far"].at == 1.0


def test_a_domain_is_compared_with_what_is_not_its_own(subject):
    rows = np.arange(3, 33)
    part = Part(ALL, rows)
    apart = [0, 1, 2, *range(33, 40)]
    cut = replace(
        subject, data={"test": ALL, "far": part, "other": Arrays(X, Y)}, unlabelled={"near": Part(part, rows[:9])}
    )
    for each in (cut, replace(cut, inputs=replace(cut.inputs, low=-1.0)).in_shares()):
        assert each.home_rows("far").tolist() == apart
        assert each.home_rows("near").tolist() == sorted({*range(40)} - {*rows[rows[:9]].tolist()})
        assert each.home_rows("other").tolist() == list(range(40))
    within = replace(cut, data={**cut.data, "test": Part(ALL, np.arange(30, 40))})
    assert within.home_rows("far").tolist() == list(range(3, 10))


def test_a_domain_has_labels_or_none(subject):
    with pytest.raises(AssayError, match="The domain '2009' is given twice, with labels and without"):
        replace(subject, unlabelled={"2009": ALL})


@dataclass(frozen=True)
class NeedsDomains(Probe):
    """Is it somewhere else?"""

    needs: ClassVar = ("domains",)
    source: ClassVar[str] = "here"

    def ask(self, subject, run):
        return Finding(says="yes", measures=(Measure.proportion("seen", np.ones(40, dtype=bool), better="higher"),))


def test_a_question_about_domains_is_asked_where_there_are_some(subject):
    run = Run(engine=ThisProcess())
    alone = replace(subject, data={"test": ALL, "train": ALL}, unlabelled={})
    answer = put(NeedsDomains(), alone, run)
    assert (answer.status, answer.why) == (
        "does not apply",
        "it needs a domain beside train and test (--domain NAME=PATH), and the subject has only ['test', 'train']",
    )
    assert put(NeedsDomains(), replace(alone, unlabelled={"far": ALL}), run).status == "asked"
    assert put(NeedsDomains(), replace(alone, data={**alone.data, "far": ALL}), run).status == "asked"


def test_a_record_names_domains(subject):
    told = describe(subject, "f")
    assert told.splits["night"] == 40
    assert told.data["night"] == Unlabelled(ALL).fingerprint() != ALL.fingerprint()
    assert told.unlabelled == ("far -3.5", "night")
    before = {k: v for k, v in vars(told).items() if k != "unlabelled"}
    assert Described.from_json(before).unlabelled == ()  # of an audit made before there were any
