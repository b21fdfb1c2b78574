"""A reference subject for each task: as good as it says, and better than a model that saw no input."""

from __future__ import annotations

import copy
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import assay.data
from assay import shelf
from assay.data import cart_pole as pole
from assay.data.credit import load_loans
from assay.subject import Subject
from assay.tasks import Classification, Control, Regression, Task

BUNDLED = Path(assay.data.__file__).parent / "bundled"
NAMES = (
    "cart-pole",
    "credit-logit",
    "diabetes-mlp",
    "digits-denoiser",
    "digits-retrieval",
    "fields-cupnet",
    "hiring-mlp",
    "scenes-detector",
    "scenes-labels",
    "scenes-segmenter",
    "seasons-forecaster",
    "sentences-tagger",
    "vessels-glunet",
)


@pytest.fixture(scope="module", params=NAMES)
def subject(request: pytest.FixtureRequest) -> Subject:
    built: Subject = shelf.load("subjects", request.param).build()
    return built


def answers(subject: Subject) -> tuple[Task, torch.Tensor, torch.Tensor]:
    x, target = subject.data["test"].take(np.arange(len(subject.data["test"])))
    return subject.task, subject.predict(x), target


def test_it_is_as_good_as_it_says(subject: Subject):
    task, out, target = answers(subject)
    said = re.search(r"(?:closeness|right on|labels|IoU|boxes|spans|five|it on) (\d\.\d{4})", subject.about)
    assert said is not None
    # rounding differs between machines: a few inputs on the border may turn
    assert float(task.score(out, target).mean()) == pytest.approx(float(said[1]), abs=0.004)


def test_it_knows_more_than_one_that_saw_no_input(subject: Subject):
    task, out, target = answers(subject)
    plain = task.trivial(np.asarray(subject.data["train"].labels)).out
    nothing = task.score(plain.expand(len(out), *plain.shape), target)
    gain = task.score(out, target) - nothing
    assert float(gain.mean()) > 0.1
    assert float(gain.mean()) > 3 * float(gain.std()) / len(gain) ** 0.5


def test_its_weights_are_small(subject: Subject):
    file = BUNDLED / f"{subject.name.replace('-', '_')}.safetensors"
    assert 0 < file.stat().st_size < 300_000


def test_it_is_the_same_twice(subject: Subject):
    again: Subject = shelf.load("subjects", subject.name).build()
    assert again.fingerprint() == subject.fingerprint()


def test_gradients_are_there_where_it_says_so(subject: Subject):
    x, target = subject.data["test"].take(np.arange(8))
    x.requires_grad_()
    margin = subject.task.margin(subject.model(x), target).sum()
    assert margin.requires_grad
    (slope,) = torch.autograd.grad(margin, x, allow_unused=True)
    assert (slope is not None) == subject.differentiable
    if slope is not None:
        assert slope.isfinite().all()
        assert slope.flatten(1).any(1).all()


def test_every_task_but_pairs_has_a_subject():
    tasks = {type(shelf.load("subjects", name).build().task) for name in NAMES}
    from assay.tasks import OURS

    assert tasks == {task for name, task in OURS.items() if name not in ("ranking", "similarity")}


def test_the_policy_balances():
    policy = shelf.load("subjects", "cart-pole").build()
    assert isinstance(policy.task, Control)
    earned = pole.returns(policy.model.act, 50, np.random.default_rng(0))
    said = re.search(r"balances for (\d+) of 500", policy.about)
    assert said is not None
    assert earned.mean() == pytest.approx(float(said[1]), abs=5)


def test_the_loans_are_judged_nearly_as_well_as_they_can_be():
    loans = shelf.load("subjects", "credit-logit").build()
    assert isinstance(loans.task, Classification)
    task, out, target = answers(loans)
    chance = load_loans()["test"].chance
    best = float(((chance > 0.5) == target.numpy()).mean())
    assert float(task.score(out, target).mean()) > best - 0.03
    said = task.confidence(out)
    assert said is not None
    assert np.abs(out.softmax(1)[:, 1].numpy() - chance).mean() < 0.08


def test_the_spread_of_the_regression_means_something():
    patients = shelf.load("subjects", "diabetes-mlp").build()
    assert isinstance(patients.task, Regression)
    _, out, target = answers(patients)
    low, high = patients.task.between(out, 0.8)
    inside = ((low <= target) & (target <= high)).double().mean()
    assert 0.65 < float(inside) < 0.92


def test_a_network_of_narrow_maps_lies_with_channels_last_and_is_the_same_subject():
    """Its 43 convolutions of 4 to 12 channels take a fifth longer otherwise, and a quick audit is made of them."""
    built: Subject = shelf.load("subjects", "vessels-glunet").build()
    wide = [p for p in built.model.parameters() if p.ndim == 4 and p.shape[1] > 1 and p.shape[2] > 1]
    assert all(p.is_contiguous(memory_format=torch.channels_last) for p in wide)
    plain = replace(built, model=copy.deepcopy(built.model).to(memory_format=torch.contiguous_format))
    assert plain.fingerprint() == built.fingerprint()
