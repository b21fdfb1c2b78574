"""The subject that looks for persons seen in part: as good as it says, and nobody is sought whom it was taught."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import assay.data
from assay.subject import Subject
from assay.subjects import Source, open_subject
from assay.subjects.parts_retrieval import ASKED, COVERED, GREY, load_parts
from assay.tasks import Search


@pytest.fixture(scope="module")
def subject() -> Subject:
    return open_subject(Source("parts-retrieval"))


def test_it_is_as_good_as_it_says_and_better_on_whom_it_knows_whole(subject: Subject) -> None:
    stated = re.search(r"first for ([\d.]+), precision of the first five ([\d.]+\d)", subject.about)
    assert stated is not None
    means = {}
    for split in ("train", "test"):
        x, target = subject.data[split].take(np.arange(len(subject.data[split])))
        out = subject.predict(x)
        first = (subject.task.margin(out, target) > 0).double().mean().item()
        means[split] = first, subject.task.score(out, target).double().mean().item()
    assert means["test"] == pytest.approx((float(stated[1]), float(stated[2])), abs=0.012)  # four queries may turn
    assert means["train"][0] > means["test"][0] + 0.3


def test_nobody_is_sought_who_was_taught_and_each_has_two_images_to_be_found_by(subject: Subject) -> None:
    scene = load_parts()
    assert not set(scene.taught.labels) & set(scene.queries.labels)
    assert np.bincount(scene.gallery.labels).tolist() == [2] * 120
    assert isinstance(subject.task, Search)
    assert subject.task.gallery.size == 240
    assert {split: len(data) for split, data in subject.data.items()} == {"train": 720, "test": 360}


def test_half_of_the_queries_are_cropped_and_half_behind_a_block() -> None:
    scene = load_parts()
    grey = (scene.queries.x == GREY).all(1).mean((1, 2))  # n, the share of pixels of that one value
    cropped = np.arange(360) % ASKED < ASKED // 2
    assert grey[cropped].max() < 0.01
    np.testing.assert_allclose(grey[~cropped], 1 - COVERED, atol=0.02)


def test_the_weights_are_small() -> None:
    weights = Path(assay.data.__file__).parent / "bundled" / "parts_retrieval.safetensors"
    assert weights.stat().st_size < 200_000
