"""The ranker that comes with Assay: as good as it says, and the same whenever it is opened."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from safetensors.torch import load, save

from assay.data.digits import load_digits, ranker_weights
from assay.data.pairs import Pairs
from assay.methods.train.ranker import embed, likeness
from assay.nn.siamese import ARCHITECTURES, Siamese
from assay.subject import Subject
from assay.subjects import Source, open_subject
from assay.tasks import Ranking


@pytest.fixture(scope="module")
def subject() -> Subject:
    return open_subject(Source("digits-ranker"))


@pytest.fixture(scope="module")
def model(subject: Subject) -> Siamese:
    assert isinstance(subject.model, Siamese)
    return subject.model


@torch.no_grad()
def compare(model: Siamese, pairs: Pairs) -> np.ndarray:
    x, _ = pairs.take(np.arange(len(pairs)))
    return np.asarray(model(x).double())


def test_it_compares_far_better_than_a_constant(subject: Subject, model: Siamese) -> None:
    task, pairs = subject.task, subject.pairs["test"]
    assert isinstance(task, Ranking)
    c, target = compare(model, pairs), task.target(pairs.gaps)
    error, constant = np.abs(c - target).mean(), np.abs(0.5 - target).mean()
    order = ((c >= task.tie) == pairs.labels)[: pairs.untied].mean()
    assert 0.17 < constant < 0.19
    assert error <= 0.06
    assert order >= 0.93
    stated = re.search(r"off by ([\d.]+) \(a constant by ([\d.]+)\) and right in order on ([\d.]+)", subject.about)
    assert stated is not None
    assert [error, constant, order] == pytest.approx([float(s) for s in stated.groups()], abs=2e-3)


def test_its_pictures_show_most_of_what_differs(subject: Subject, model: Siamese) -> None:
    singles = subject.pairs["test"].singles
    x, _ = singles.take(np.arange(len(singles)))
    assert model.decoder is not None
    drawn = likeness(model.decoder, embed(model.encoder, x), x)
    assert drawn.share < 0.2
    stated = re.search(r"miss ([\d.]+) of the variance", subject.about)
    assert stated is not None
    assert drawn.share == pytest.approx(float(stated[1]), abs=2e-3)


def test_pairs_are_drawn_from_the_digits_of_each_split_and_most_have_an_order(subject: Subject) -> None:
    digits = load_digits()
    assert {split: len(pairs) for split, pairs in subject.pairs.items()} == {"train": 2000, "test": 2000}
    for split, pairs in subject.pairs.items():
        assert pairs.singles.fingerprint() == digits[split].fingerprint()
        assert (pairs.values == digits[split].labels).all()
        assert 0.85 < pairs.untied / len(pairs) < 0.95  # one pair in ten is of the same digit
    assert len(np.unique(subject.pairs["test"].pairs)) > 480
    assert subject.inputs.shape == (2, 1, 8, 8)


def test_its_weights_come_back_to_the_bit(subject: Subject, model: Siamese) -> None:
    weights = ranker_weights()
    assert {t.dtype for t in weights.values()} == {torch.float32}
    other = ARCHITECTURES["digits"](10).eval()
    other.load_state_dict(load(save(weights)))
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), other.state_dict().values(), strict=True))
    assert (compare(model, subject.pairs["test"]) == compare(other, subject.pairs["test"])).all()
    assert open_subject(Source("digits-ranker")).fingerprint() == subject.fingerprint()
