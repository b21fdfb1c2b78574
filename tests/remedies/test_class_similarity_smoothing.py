from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from assay.errors import AssayError
from assay.methods.train.class_similarity import class_distances, similarity_labels, uniform_labels
from assay.probe import configure
from assay.remedies.class_similarity_smoothing import ClassSimilaritySmoothing, Similarity
from assay.run import Run
from assay.subject import Subject


def test_it_trains_a_net_that_is_right_and_less_sure(digits: Subject, run: Run) -> None:
    before = {k: v.clone() for k, v in digits.model.state_dict().items()}
    plain, cured = (ClassSimilaritySmoothing(epochs=6, alpha=a).apply(digits, run) for a in (0.0, 0.2))
    assert all(torch.equal(v, before[k]) for k, v in digits.model.state_dict().items())
    assert cured.origin == ("class-similarity-smoothing",)
    x, y = cured.data["test"].take(np.arange(400))
    sure, less = (s.predict(x).softmax(1).amax(1).mean() for s in (plain, cured))
    assert float((cured.predict(x).argmax(1) == y).float().mean()) > 0.93
    assert sure > 0.95
    assert less < sure - 0.1
    frame = ClassSimilaritySmoothing(epochs=6, alpha=0.2).frame(digits)
    frame.model.load_state_dict(cured.model.state_dict())
    assert frame.fingerprint() == cured.fingerprint()


@pytest.mark.parametrize("similarity", ["l1", "l2", "codes", "features"])
def test_labels_are_those_of_the_named_distances(digits: Subject, run: Run, similarity: Similarity) -> None:
    remedy = configure(ClassSimilaritySmoothing, {"similarity": similarity, "epochs": "3", "beta": "1.5"})
    labels = remedy.labels(digits, run, run.rng())
    assert_close(labels.sum(1), torch.ones(10, dtype=torch.float64))
    assert_close(labels.diagonal(), torch.full((10,), 0.9, dtype=torch.float64))
    assert labels[~torch.eye(10, dtype=torch.bool)].std() > 0.003
    x, y = digits.data["train"].take(np.arange(1200))
    if similarity in ("l1", "l2"):
        want = similarity_labels(class_distances(x, y, classes=10, norm=similarity), beta=1.5)  # type: ignore[arg-type]
        assert_close(labels, want)
    if similarity == "features":
        inner = digits.model[:4](x)  # type: ignore[index]
        assert_close(labels, similarity_labels(class_distances(inner, y, classes=10), beta=1.5))


def test_uniform_is_there_to_compare_with(digits: Subject, run: Run) -> None:
    labels = ClassSimilaritySmoothing(similarity="uniform", alpha=0.3).labels(digits, run, run.rng())
    assert torch.equal(labels, uniform_labels(10, alpha=0.3))


def test_words_come_from_a_file(digits: Subject, run: Run, tmp_path: Path) -> None:
    file = tmp_path / "vectors.txt"
    file.write_text("".join(f"{c} {c} 1\n" for c in digits.task.classes), encoding="utf-8")  # 0 is near 1, far from 9
    remedy = ClassSimilaritySmoothing(similarity="words", vectors=str(file))
    labels = remedy.labels(digits, run, run.rng())
    assert (labels[0, 1:].diff() < 0).all()
    assert remedy.why_not(digits) is None
    assert "vectors=PATH" in (replace(remedy, vectors="").why_not(digits) or "")
    with pytest.raises(AssayError, match="Cannot read word vectors"):
        replace(remedy, vectors=str(tmp_path / "none")).labels(digits, run, run.rng())


def test_what_it_needs_and_what_it_costs(digits: Subject) -> None:
    assert ClassSimilaritySmoothing().cost() == (1, 1)
    headless = replace(digits, layers={"last_conv": "0"})
    assert "take l2" in (ClassSimilaritySmoothing(similarity="features").why_not(headless) or "")
    without = replace(digits, data={"test": digits.data["test"]})
    assert "no split 'train'" in (ClassSimilaritySmoothing().why_not(without) or "")
    with pytest.raises(AssayError, match="similarity='far'"):
        configure(ClassSimilaritySmoothing, {"similarity": "far"})
