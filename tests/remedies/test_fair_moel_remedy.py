"""The front as a remedy: one member answers, another can be chosen without training, and bad input is one line."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch.testing import assert_close

from assay.data.hiring import load_applications
from assay.engine.local import ThisProcess
from assay.errors import AssayError
from assay.methods.fair.entropy import from_error
from assay.methods.fair.front import hypervolume
from assay.remedies.fair_moel import FairMoel
from assay.run import Run, budget
from assay.subjects.hiring_mlp import HiringMLP, subject_of

SMALL = {"hidden": 6, "generations": 3, "size": 12, "batch": 300}


@pytest.fixture(scope="module")
def run():
    return Run(engine=ThisProcess(), budget=budget("quick"))


@pytest.fixture(scope="module")
def subject():
    return subject_of(HiringMLP(), load_applications(train=2800, test=200))


@pytest.fixture(scope="module")
def cured(subject, run):
    return FairMoel(**SMALL).apply(subject, run)


def test_it_answers_as_the_member_that_was_chosen(cured, subject):
    model, (x, _) = cured.model, subject.data["test"].take(np.arange(50))
    said = model(x)
    rows, at = model.encoded(x), int(model.chosen)
    hidden = (rows @ model.inner[:-1, at] + model.inner[-1, at]).relu()
    assert_close(said[:, 1] - said[:, 0], hidden @ model.outer[at] + model.shift[at])
    assert rows.shape[1] == 5 + 3  # origin is a category of three


def test_the_front_lies_by_squared_error_and_objectives_are_tied(cured):
    model = cured.model
    many = int(model.on_front.sum())
    assert many > 1
    assert model.on_front[:many].all()
    assert (model.objectives[:many, 0].diff() >= 0).all()
    for mse, within, between, mean in (*model.objectives.tolist(), model.plain.tolist()):
        assert within + between == pytest.approx(from_error(mse, mean), rel=1e-4)


@pytest.mark.parametrize(("choose", "column"), [("best-mse", 0), ("best-individual", 1), ("best-group", 2)])
def test_another_is_chosen_without_training(choose, column, cured, subject, run, tmp_path, monkeypatch):
    path = tmp_path / "weights.safetensors"
    save_file(cured.model.state_dict(), path)
    monkeypatch.setattr("assay.remedies.fair_moel.evolve", None)  # a training would fail
    other = FairMoel(**SMALL, choose=choose, front=str(path)).apply(subject, run)
    front = other.model.objectives[other.model.on_front]
    assert int(other.model.chosen) == int(front[:, column].argmin())


def test_the_plain_network_of_the_figure_is_the_control(cured, subject, run):
    control = FairMoel(**SMALL).control()
    plain = control.apply(subject, run)
    x, y, _ = FairMoel(**SMALL).rows(subject, run.seed)
    held = round(0.25 * len(x))
    error = plain.model(x[:held]).softmax(1)[:, 1].detach() - y[:held]
    assert float(error.square().mean()) == pytest.approx(float(cured.model.plain[0]), rel=1e-3)
    assert float(error.mean()) == pytest.approx(float(cured.model.plain[3]), abs=1e-4)


def test_frame_takes_the_kept_weights(cured, subject):
    frame = FairMoel(**SMALL).frame(subject)
    frame.model.load_state_dict(cured.model.state_dict())
    x, _ = subject.data["test"].take(np.arange(20))
    assert_close(frame.model(x), cured.model(x))


def test_figures_and_remarks(cured, run):
    remedy = FairMoel(**SMALL)
    figures = remedy.figures(cured, run)
    assert [(f.x_label, f.y_label) for f in figures][-1] == ("mean error", "individual unfairness")
    assert len(figures) == 4
    assert {line.label for line in figures[0].lines} >= {"the front", "a plain network"}
    told = remedy.remarks(cured, run)
    assert "the plain network was not: this comparison flatters the front" in told[1]
    share = cured.model.objectives[cured.model.on_front][:, :3] / (1.1 * cured.model.plain[:3])
    said = float(told[3].partition("hypervolume ")[2].split()[0])
    assert said == pytest.approx(hypervolume(share.double().numpy(), np.ones(3)), abs=2e-4)
    assert all("by rising squared error, from 0" in figure.says for figure in figures[:3])
    assert "tied to the error" in told[-1]


def test_why_not_is_one_line(subject):
    assert "no attribute 'age', only ['sex', 'origin']" in FairMoel(attributes=("age",)).why_not(subject)
    assert "people behind the training inputs" in FairMoel().why_not(replace(subject, attributes={}))
    three = replace(subject, task=replace(subject.task, classes=("a", "b", "c")))
    assert "this task has 3" in FairMoel().why_not(three)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"choose": "fairest"}, "none of knee"),
        ({"held": 1.0}, "no part of the training data"),
        ({"choose": "50"}, "choose=50 is no member of a front of at most 50"),
        ({"size": 1}, "size=1 is too few"),
        ({"hidden": 0}, "hidden=0 is too few"),
    ],
)
def test_bad_settings_are_one_line(settings, words):
    with pytest.raises(AssayError, match=words):
        FairMoel(**settings)


def test_bad_fronts_are_one_line(subject, run, cured, tmp_path):
    with pytest.raises(AssayError, match="There is no file"):
        FairMoel(**SMALL, front=str(tmp_path / "none")).apply(subject, run)
    path = tmp_path / "w.safetensors"
    save_file({"a": torch.ones(1)}, path)
    with pytest.raises(AssayError, match="is no front of 12 networks"):
        FairMoel(**SMALL, front=str(path)).apply(subject, run)
    state = {name: each.clone() for name, each in cured.model.state_dict().items()}
    state["encoded.middle"] += 1
    save_file(state, path)
    with pytest.raises(AssayError, match="made from other data"):
        FairMoel(**SMALL, front=str(path)).apply(subject, run)
    save_file(cured.model.state_dict(), path)
    with pytest.raises(AssayError, match="judged by other people than those of sex with"):
        FairMoel(**SMALL, attributes=("sex",), front=str(path)).apply(subject, run)
    state = {name: each.clone() for name, each in cured.model.state_dict().items()}
    state["on_front"][:] = False
    save_file(state, path)
    with pytest.raises(AssayError, match="has 0 networks on its front"):
        FairMoel(**SMALL, front=str(path)).apply(subject, run)
    with pytest.raises(AssayError, match="There is no member 12 on the front"):
        cured.model.choose(12)


def test_a_group_too_small_to_judge_by_is_one_line(subject, run):
    with pytest.raises(AssayError, match=r"of the 56 training inputs that are held for judging, fewer than 30"):
        FairMoel(**SMALL, held=0.02).apply(subject, run)
