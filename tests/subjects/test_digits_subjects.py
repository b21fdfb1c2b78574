"""The subjects on scikit-learn's digits: what they say of themselves, and what certificates need of them."""

from __future__ import annotations

import re

import numpy as np
import pytest

from assay.methods.certify.layers import layers
from assay.nn.nearest_neighbour import NearestNeighbour
from assay.subjects import Source, open_subject


@pytest.mark.parametrize("name", ["digits-mlp", "digits-nearest"])
def test_it_is_as_good_as_it_says(name: str) -> None:
    subject = open_subject(Source(name))
    stated = re.search(r"right on ([\d.]+) of the 497 test images", subject.about)
    assert stated is not None
    x, y = subject.data["test"].take(np.arange(497))
    accuracy = float((subject.predict(x).argmax(1) == y).double().mean())
    assert accuracy == pytest.approx(float(stated[1]), abs=0.0021)  # one input may lie on the border
    assert {part: len(data) for part, data in subject.data.items()} == {"train": 1300, "test": 497}
    assert (subject.inputs.shape, subject.inputs.low, subject.inputs.high) == ((1, 8, 8), 0.0, 1.0)
    assert subject.task.classes == tuple("0123456789")
    assert float(x.min()) == 0.0
    assert float(x.max()) == 1.0


def test_both_are_tested_on_the_same_images_and_trained_on_none_of_them() -> None:
    mlp, nearest = (open_subject(Source(name)) for name in ("digits-mlp", "digits-nearest"))
    assert mlp.data["test"].fingerprint() == nearest.data["test"].fingerprint()
    assert isinstance(nearest.model, NearestNeighbour)
    x, _ = mlp.data["test"].take(np.arange(497))
    held = {row.tobytes() for row in nearest.model.train_x.numpy()}
    assert len(held) > 1290  # hardly any image comes twice
    assert sum(row.tobytes() in held for row in x.numpy()) == 0


def test_the_network_can_be_read() -> None:
    subject = open_subject(Source("digits-mlp"))
    assert [a.out_shape for a in layers(subject.model, subject.inputs.shape)] == [(32,), (32,), (10,)]


def test_ones_and_sevens_are_told_apart_from_a_hundred_labels() -> None:
    subject = open_subject(Source("digits-1-7"))
    assert "right on all 261 test images" in subject.about
    (x, y), (learnt, given) = (subject.data[part].take(np.arange(n)) for part, n in (("test", 261), ("train", 100)))
    assert int((subject.predict(x).argmax(1) != y).sum()) <= 1  # one input may lie on the border
    assert {part: len(data) for part, data in subject.data.items()} == {"train": 100, "test": 261}
    assert 40 <= int(given.sum()) <= 60
    assert not {row.tobytes() for row in x.numpy()} & {row.tobytes() for row in learnt.numpy()}
