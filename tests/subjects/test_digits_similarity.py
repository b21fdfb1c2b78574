from __future__ import annotations

import re
import sys
from importlib.resources import files

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from assay.data.digits import load_digits
from assay.data.pairs import Pairs
from assay.nn.siamese import Siamese
from assay.probe import put
from assay.run import Run
from assay.subject import Subject
from assay.subjects import Source, open_subject
from assay.tasks import Similarity


@pytest.fixture(scope="module")
def subject() -> Subject:
    return open_subject(Source("digits-similarity"))


def test_it_is_as_good_as_it_says(subject: Subject) -> None:
    stated = re.search(r"right on ([\d.]+) of 2,000 pairs of the 497 test images", subject.about)
    assert stated is not None
    assert {part: len(data) for part, data in subject.data.items()} == {"train": 2000, "test": 2000}
    x, same = subject.data["test"].take(np.arange(2000))
    right = float(subject.task.right(subject.predict(x), same).double().mean())
    assert right == pytest.approx(float(stated[1]), abs=0.0011)  # two pairs may lie on the border
    assert float(same.double().mean()) == 0.5
    assert (subject.inputs.shape, subject.inputs.low, subject.inputs.high) == ((2, 1, 8, 8), 0.0, 1.0)


def test_its_pairs_are_of_the_shared_split(subject: Subject) -> None:
    for part, digits in load_digits().items():
        pairs = subject.pairs[part]
        assert pairs.singles.fingerprint() == digits.fingerprint()
        assert (pairs.values == digits.labels).all()


def test_it_is_a_distance(subject: Subject) -> None:
    model = subject.model
    assert isinstance(model, Siamese)
    assert model.decoder is None
    x, _ = subject.data["test"].take(np.arange(300))
    with torch.no_grad():
        there, back, self = model(x), model(x.flip(1)), model(x[:, :1].repeat(1, 2, 1, 1, 1))
        e = model.encode(x.flatten(0, 1)).view(300, 2, -1)
    assert_close(there, back, rtol=0, atol=0)
    assert (there >= 0).all()
    assert (self == 0).all()
    assert_close(there, (e[:, 0] - e[:, 1]).square().sum(1).sqrt())
    assert e.shape[2] == 8


def test_the_threshold_was_chosen_on_training_pairs(subject: Subject) -> None:
    """On other pairs of training images hardly any threshold is right more often."""
    assert isinstance(subject.task, Similarity)
    digits = load_digits()["train"]
    pairs = Pairs.alike(digits, digits.labels, 4000, seed=7)
    x, same = pairs.take(np.arange(len(pairs)))
    with torch.no_grad():
        distance = subject.model(x)
    tried = torch.linspace(float(distance.min()), float(distance.max()), 300)
    right = ((distance < tried[:, None]) == same.bool()).double().mean(1)
    chosen = float(((distance < subject.task.threshold) == same.bool()).double().mean())
    assert chosen > float(right.max()) - 0.005
    assert float(((distance < 2 * subject.task.threshold) == same.bool()).double().mean()) < chosen - 0.05


def test_questions_for_pairs_can_be_asked(subject: Subject, run: Run) -> None:
    from assay.probes.right.accuracy import SHELVED as Accuracy

    finding = put(Accuracy(), subject, run).finding
    assert finding is not None
    assert finding.measures[0].value is not None
    assert finding.measures[0].value > 0.9


def test_it_is_small_and_needs_nothing_that_trained_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len((files("assay.data") / "bundled" / "digits_similarity.safetensors").read_bytes()) < 30_000
    monkeypatch.setitem(sys.modules, "pytorch_metric_learning", None)  # now an import of it raises
    assert open_subject(Source("digits-similarity")).task == Similarity(1.1607277393341064)
