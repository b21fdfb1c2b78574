"""A policy with its environment: found by name, its spaces checked at opening, its observations met by acting."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from assay.data.episodes import collected
from assay.errors import AssayError, SubjectError
from assay.inputs import Observation
from assay.jobs.audit.job import Job
from assay.probes.steady.does_it_last import DoesItLast
from assay.subject import Subject
from assay.subjects import Source, open_subject
from assay.subjects._assembly import adjusted
from assay.tasks import Control

WORLDS = """
from beside import LENGTH


class Box:
    shape, low, high = (2,), [-1.0, -3.4e38], [1.0, float("inf")]


class Line:
    class action_space:
        n = 2

    observation_space = Box

    def reset(self, *, seed=None):
        self.at, self.t = seed / 100, 0
        return [self.at, 5.0], {}

    def step(self, action):
        self.t += 1
        self.at += 0.1 if action else -0.1
        return [self.at, 5.0 + self.t], 1.0, LENGTH is not None and self.t >= LENGTH, False, {}


class Endless(Line):
    def step(self, action):
        return [0.0, 5.0], 1.0, False, False, {}


class Three(Line):
    class action_space:
        n = 3


class Wide(Line):
    class observation_space:
        shape = (6,)

    def reset(self, *, seed=None):
        return [0.0] * 6, {}


class Unlike:
    pass


class Falls(Line):
    def step(self, action):
        raise ValueError("two\\nlines")


class Leaves(Line):
    def reset(self, seed=None, options=None):
        raise SystemExit("bye")


def broken():
    raise RuntimeError("no such track")


number = 3
"""


POLICY = """
import torch
from torch import nn


class Homeward(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("weights", torch.tensor([[1.0, -1.0], [0.0, 0.0]]))

    def forward(self, x):
        return x @ self.weights


build = Homeward
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("policy")
    (folder / "world.py").write_text(WORLDS)
    (folder / "beside.py").write_text("LENGTH = 8\n")
    (folder / "policy.py").write_text(POLICY)
    return folder


def source(place: Path, world: str, **told) -> Source:
    return Source(f"{place / 'policy.py'}:build", environment=f"{place / 'world.py'}:{world}", **told)


def test_a_policy_is_asked_about_what_it_meets(place):
    subject = open_subject(source(place, "Line", task="control"))
    assert isinstance(subject.task, Control)
    x, y = subject.data["test"].take(np.arange(len(subject.data["test"])))
    assert x.shape == (20 * 8, 2)
    assert y.tolist() == (x[:, 0] < 0).long().tolist()
    assert isinstance(subject.kind, Observation)
    # The place has the ends that its space says; the clock has none, and lies between what was seen.
    assert subject.inputs.ranges == ((-1.0, 1.0), (5.0, 12.0))
    assert DoesItLast().why_not(subject) is None
    assert subject.environment is not None
    assert subject.environment() is not subject.environment()
    assert "what the policy does itself, on 160 observations of 20 episodes" in subject.notes[-1]
    assert subject.fingerprint() == open_subject(source(place, "Line")).fingerprint()  # so that answers are kept


def test_data_of_a_reference_stand_in_for_its_own(place):
    x = np.array([[0.5, 6.0], [-0.5, 7.0], [0.2, 8.0]], dtype=np.float32)
    np.savez(place / "seen.npz", x=x, y=[0, 1, 1])
    subject = open_subject(source(place, "Line", data=str(place / "seen.npz")))
    assert subject.data["test"].labels.tolist() == [0, 1, 1]
    assert float(subject.task.score(subject.predict(torch.from_numpy(x)), torch.tensor([0, 1, 1])).mean()) < 1
    assert not any("does itself" in note for note in subject.notes)


def test_readings_lie_between_what_all_rows_have(place):
    late = np.stack([np.zeros(600), np.linspace(0, 3, 600)], 1).astype(np.float32)
    np.savez(place / "late.npz", x=late, y=np.zeros(600, dtype=np.int64))
    subject = open_subject(source(place, "Line", data=str(place / "late.npz")))
    assert subject.inputs.ranges == ((-1.0, 1.0), (0.0, 3.0))
    np.savez(place / "wide.npz", x=np.zeros((3, 5), dtype=np.float32), y=[0, 1, 1])
    with pytest.raises(SubjectError, match=r"wide.npz holds observations of shape \(5,\), and .* shows \(2,\)"):
        open_subject(source(place, "Line", data=str(place / "wide.npz")))


@pytest.mark.parametrize(
    ("world", "says"),
    [
        ("Three", "Three has 3 actions, and the policy chooses one of 2"),
        (
            "Wide",
            r"Homeward does not take what .*:Wide shows, observations of shape \(6,\); give the environment that",
        ),
        ("Endless", "The episode of seed 0 still ran after 50 steps; give the environment a clock"),
        ("Unlike", "The environment Unlike has no reset and no step and no action_space"),
        ("Falls", "world.py:Falls raised ValueError: two lines; mend it there"),
        ("Leaves", "world.py:Leaves raised SystemExit: bye; mend it there"),
        ("broken", "world.py:broken raised RuntimeError: no such track; mend it there"),
        ("nothing", "There is no function 'nothing' in .*world.py"),
        ("number", "There is no function 'number' in .*world.py"),
    ],
)
def test_what_does_not_fit_is_told_in_one_line(place, world, says, monkeypatch):
    monkeypatch.setattr("assay.subjects.doors.environment.LONGEST", 50)
    with pytest.raises(AssayError, match=says) as error:
        open_subject(source(place, world))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("told", "says"),
    [
        ({"environment": "world"}, "is not FILE.py:FUNCTION, MODULE:FUNCTION or an id"),
        ({"environment": "nowhere.py:Line"}, "There is no file 'nowhere.py' for --environment"),
        ({"environment": "no_such_module:Line"}, "no_such_module:Line raised ModuleNotFoundError"),
        ({"environment": "math:pi"}, "math:pi is a float; name what makes a fresh one"),
        ({"environment": "math:tau", "task": "regression"}, "for policies, whose task is control, not 'regression'"),
        ({"task": "control"}, "--task control is for a policy; say what it acts in: --environment"),
    ],
)
def test_words_that_cannot_be_meant(place, told, says):
    with pytest.raises(AssayError, match=says):
        open_subject(Source(f"{place / 'policy.py'}:build", **told))


def test_a_whole_subject_names_its_own_environment():
    with pytest.raises(AssayError, match=r"cart-pole is a whole subject, .* Subject.of\(..., environment=...\)"):
        open_subject(Source("cart-pole", environment="assay.data.cart_pole:CartPole"))


def test_a_whole_subject_has_its_task(place):
    subject = Subject.of(torch.nn.Linear(2, 2), (np.eye(2, dtype=np.float32), np.arange(2)))
    with pytest.raises(AssayError, match="m is a whole subject with the task Classification, so --task foo does not"):
        adjusted(subject, Source("m", data=str(place / "seen.npz"), task="foo"))


def test_an_id_of_gymnasiums(place, monkeypatch):
    pytest.importorskip("gymnasium")
    with pytest.raises(AssayError, match=r"Homeward does not take what CartPole-v1 shows, .* \(4,\)"):
        open_subject(Source(f"{place / 'policy.py'}:build", environment="CartPole-v1"))
    with pytest.raises(AssayError, match="Nope-v3 raised NameNotFound: .*; mend it there"):
        open_subject(Source(f"{place / 'policy.py'}:build", environment="Nope-v3"))
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    with pytest.raises(AssayError, match="CartPole-v1 is an id of gymnasium's: pip install gymnasium, or give"):
        open_subject(Source(f"{place / 'policy.py'}:build", environment="CartPole-v1"))


def test_the_words_of_a_source_and_what_its_process_may_read(place):
    told = source(place, "Line", task="control")
    assert told.words()[1:] == ("--task", "control", "--environment", f"{place / 'world.py'}:Line")
    job = Job(source=Source("digits-mlp", environment=told.environment))
    assert place.resolve() in job.reads()
    assert Job.from_json(json.loads(json.dumps(job.to_json()))).source == job.source


def test_observations_are_spread_over_all_episodes():
    class Count:
        class action_space:
            n = 1

        class observation_space:
            shape = (1,)

        def reset(self, *, seed):
            self.seed, self.t = seed, 0
            return [100.0 * seed], {}

        def step(self, action):
            self.t += 1
            return [100.0 * self.seed + self.t], 0.0, self.t == 10, False, {}

    told = {"actions": 1, "shape": (1,), "longest": 10}
    x, y = collected(Count, lambda seen, rows: np.zeros(len(seen), dtype=int), [0, 1, 2], most=30, **told)
    assert sorted(x[:, 0]) == [100.0 * seed + t for seed in range(3) for t in range(10)]
    assert len(y) == 30
    few, _ = collected(Count, lambda seen, rows: np.zeros(len(seen), dtype=int), [0, 1, 2], most=4, **told)
    assert few[:, 0].tolist() == [0.0, 103.0, 106.0, 209.0]  # rows 0, 10, 19 and 29 of three episodes side by side
    with pytest.raises(SubjectError, match="seed 0 still ran after 9 steps"):
        collected(Count, lambda seen, rows: np.zeros(len(seen), dtype=int), [0], most=4, **{**told, "longest": 9})
