"""Hiding an attribute: what it refuses, what it leaves behind, and that kept weights still tell how it went."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from assay.attribute import Attribute
from assay.data.arrays import Arrays
from assay.data.scan_paths import (
    PEOPLE,
    STIMULI,
    ScanPaths,
    draw,
    halves,
    load_scan_paths,
    make_paths,
)
from assay.errors import AssayError
from assay.finding import Curve, Gallery
from assay.methods.private.adaptive_attack import Lesson
from assay.nn.hidden import Hidden
from assay.nn.masked import StackClassifier
from assay.remedies.hide_attribute import HideAttribute
from assay.run import Run
from assay.subject import Subject
from assay.subjects.scan_paths import subject_of

LITTLE = {"runs": 2, "steps": 2, "epochs": 1, "width": 1, "copies": 2}


@pytest.fixture(scope="module")
def subject() -> Subject:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = StackClassifier((3, 16, 16), STIMULI, (1, 2, 2, 2), (3, 3, 3, 3), hidden=4)
    return subject_of(model, load_scan_paths(each=16, size=16))


def test_paths_are_balanced_and_the_two_factors_independent() -> None:
    train, test = halves(make_paths(3, np.random.default_rng(0)), np.random.default_rng(1))
    for part in (train, test):
        assert np.bincount(part.who * STIMULI + part.what).tolist() == [1] * (PEOPLE * STIMULI)
    assert not {p.tobytes() for p in train.points} & {p.tobytes() for p in test.points}


def test_a_drawing_has_points_their_time_and_lines() -> None:
    path = np.array([[[0.1, 0.1], [0.9, 0.1], [0.9, 0.9], [5.0, 5.0]]])
    red, green, blue = draw(path, 10)[0]
    assert np.argwhere(red).tolist() == [[1, 1], [1, 9], [9, 9]]  # rows run down; what lies off is not drawn
    assert_close(green[red > 0], np.array([0.25, 0.5, 0.75], dtype=np.float32))
    assert blue[1, 1:].all()
    assert blue[1:, 9].all()
    assert not blue[5, 5]
    with pytest.raises(AssayError, match=r"shape \(n, t, 2\)"):
        draw(path[0], 10)


@pytest.mark.parametrize("way", ["agent", "gan", "random-masks", "laplace-image", "laplace-raw"])
def test_each_way_runs_and_says_what_attackers_read(
    way: str, subject: Subject, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("assay.methods.private.attacker.STEPS", 3)
    monkeypatch.setattr(HideAttribute, "_lesson", lambda self: Lesson(steps=2, most=1))
    eps = 3.0 if way.startswith("laplace") else None
    remedy = HideAttribute("who", 1, way, eps=eps, **LITTLE)  # type: ignore[arg-type]
    assert remedy.why_not(subject) is None
    cured = remedy.apply(subject, run)
    model = cured.model
    assert isinstance(model, Hidden)
    assert model.hits.shape == (3 if way == "agent" else 2, 4)
    assert int(model.asked) == run.budget.samples
    assert bool((model.hits <= model.asked).all())
    assert (model.hits[0, :2] == model.hits[0, 2:]).all()  # of images as they are nobody has to adapt
    assert cured.attributes["who"].codes["test"].tolist() == subject.attributes["who"].codes["test"].tolist()
    said = " ".join(remedy.remarks(cured, run))
    assert f"Of {int(model.asked):,} test inputs an attacker who retrains reads who off" in said
    assert ("which is no privacy budget" in said) == way.startswith("laplace")
    assert "of an image" not in said
    curve, gallery = remedy.figures(cured, run)
    assert isinstance(curve, Curve)
    assert isinstance(gallery, Gallery)
    assert curve.lines[3].y[-1] == int(model.hits[-1, 3]) / int(model.asked)
    assert len(gallery.exhibits) == PEOPLE
    again = remedy.frame(subject).model
    again.load_state_dict(model.state_dict())  # as kept weights are
    if way == "laplace-raw":
        assert cured.data["test"].fingerprint() != subject.data["test"].fingerprint()
    elif way != "laplace-image":
        x, _ = subject.data["test"].take(np.arange(4))
        assert_close(again(x), model(x))
    if way == "random-masks":
        assert int((model.manipulation.mask == 0).sum()) == round(0.5 * model.manipulation.mask.numel())  # type: ignore[union-attr,operator,arg-type]


def test_the_control_switches_nothing_off(subject: Subject, run: Run) -> None:
    plain = HideAttribute("who", 3, "agent", **LITTLE).control()  # type: ignore[arg-type]
    assert plain is not None
    assert (plain.name(), plain.control()) == ("plain-autoencoder", None)
    assert {k: plain.settings()[k] for k in ("steps", "epochs", "width")} == {"steps": 2, "epochs": 1, "width": 1}
    assert plain.settings()["way"] == "nothing"


def test_what_it_refuses(subject: Subject) -> None:
    nobody = replace(subject, attributes={})
    assert "--groups NAME=PATH" in str(HideAttribute().why_not(nobody))
    assert "only who" in str(HideAttribute("sex").why_not(subject))
    both = replace(subject, attributes={**subject.attributes, "eye": subject.attributes["who"]})
    assert "--set attribute=who" in str(HideAttribute().why_not(both))
    images = {split: Arrays(d.x, d.labels, d.classes) for split, d in subject.data.items() if isinstance(d, ScanPaths)}
    plain = replace(subject, data=images, attributes=dict(subject.attributes))
    assert "use laplace-image" in str(HideAttribute(way="laplace-raw").why_not(plain))
    few = subject.attributes["who"].codes["test"].copy()
    few[20:] = -1
    rare = Attribute("who", subject.attributes["who"].values, {**subject.attributes["who"].codes, "test": few})
    assert "too few to tell" in str(HideAttribute().why_not(replace(subject, attributes={"who": rare})))
    for settings, words in (
        ({"eps": 0.0}, "scale of noise"),
        ({"zeros": 1.0}, "share"),
        ({"steps": 0}, "at least 1"),
        ({"way": "foo"}, "no way 'foo'"),
    ):
        with pytest.raises(AssayError, match=words):
            HideAttribute(**settings)  # type: ignore[arg-type]


def test_an_attribute_has_two_values_of_enough_rows_and_rows_are_picked_among_the_known(
    subject: Subject, run: Run
) -> None:
    who = subject.attributes["who"]
    alone = {split: np.where(codes == 0, 0, -1) for split, codes in who.codes.items()}
    said = str(HideAttribute().why_not(replace(subject, attributes={"who": Attribute("who", who.values, alone)})))
    assert "two values of who with at least 30 inputs in train" in said
    half = {split: np.where(codes < 4, codes, -1) for split, codes in who.codes.items()}
    some = replace(subject, attributes={"who": Attribute("who", who.values, half)})
    assert HideAttribute().why_not(some) is None
    rows = HideAttribute()._rows(some, "test", run)
    assert len(rows.x) == run.budget.samples == 100  # not those of 100 that happen to be known
    assert set(rows.a.tolist()) == {0, 1, 2, 3}
