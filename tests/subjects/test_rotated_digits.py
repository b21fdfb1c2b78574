"""The subject with domains: what it says of itself, and that no digit stands in two places."""

from __future__ import annotations

import re

import numpy as np
import pytest

from assay.subjects import Source, open_subject
from assay.subjects.rotated_digits import load_rotated


@pytest.fixture(scope="module")
def subject():
    return open_subject(Source("rotated-digits"))


def accuracy(subject, data):
    x, y = data.take(np.arange(len(data)))
    return float((subject.predict(x).argmax(1) == y).double().mean())


def test_it_is_as_good_as_it_says_and_worse_at_both_ends(subject):
    stated = re.search(r"right on ([\d.]+) of the 250 test images, and on ([\d.]+) of the 300", subject.about)
    assert stated is not None
    here, upright = accuracy(subject, subject.data["test"]), accuracy(subject, subject.data["rotated-0"])
    assert here == pytest.approx(float(stated[1]), abs=0.0041)  # one input may lie on the border
    assert upright == pytest.approx(float(stated[2]), abs=0.0034)
    lying = accuracy(subject, load_rotated()["rotated-75"])  # whose labels the subject does not have
    assert max(upright, lying) < here - 0.1


def test_one_domain_has_labels_and_the_other_none(subject):
    told = {name: (d.labelled, len(d.data), d.at) for name, d in subject.domains().items()}
    assert told == {"rotated-0": (True, 300, 0.0), "rotated-75": (False, 247, 75.0)}
    assert {name: len(data) for name, data in subject.data.items()} == {"train": 1000, "test": 250, "rotated-0": 300}
    assert subject.home == "train"
    assert not np.asarray(subject.unlabelled["rotated-75"].labels).any()
    true = load_rotated()["rotated-75"]
    x = subject.unlabelled["rotated-75"].take(np.arange(247))[0]
    np.testing.assert_array_equal(x.numpy(), true.x)


def test_no_digit_stands_in_two_places():
    """Sizes add up to all digits that there are, and the upright ones are those that the others do not have."""
    from assay.data.digits import load_digits

    data, digits = load_rotated(), load_digits()
    assert sum(map(len, data.values())) == 1797
    np.testing.assert_allclose(data["rotated-0"].x, np.asarray(digits["train"].x)[:300], atol=6e-5)
    for split, part, held in (("train", "train", 300), ("test", "test", 247)):
        np.testing.assert_array_equal(data[split].labels, digits[part].labels[held:])
    np.testing.assert_array_equal(data["rotated-75"].labels, digits["test"].labels[:247])
