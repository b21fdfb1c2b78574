from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.testing import assert_close

from assay import shelf
from assay.errors import AssayError
from assay.jobs.cure import cure
from assay.probe import configure
from assay.remedies._retraining import PlainRetraining
from assay.remedies.mmf import Mmf
from assay.remedy import Cost
from assay.run import Run
from assay.subject import Subject

TREE = '{"even": ["0", "2"], "odd": ["1", "3"]}'


@pytest.fixture(scope="module")
def few() -> Subject:
    """Four classes in four corners, 200 inputs to train on: more than one batch."""
    draw = torch.Generator().manual_seed(0)
    y = torch.arange(260) % 4
    x = 0.6 * torch.rand(260, 1, 8, 8, generator=draw)
    for i, c in enumerate(y.tolist()):
        x[i, 0, 4 * (c // 2) : 4 * (c // 2) + 4, 4 * (c % 2) : 4 * (c % 2) + 4] += 0.4
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 4, 3, padding=1), nn.ReLU(),
            nn.Flatten(), nn.Linear(64, 4),
        )  # fmt: skip
    return Subject.classifier(
        model.eval(), {"train": (x[60:], y[60:]), "test": (x[:60], y[:60])}, name="few", classes=("0", "1", "2", "3")
    )


def said(subject: Subject) -> torch.Tensor:
    return subject.predict(subject.data["test"].take(np.arange(60))[0])


def test_weight_0_is_its_control_and_more_is_not(few: Subject, run: Run) -> None:
    assert shelf.load("remedies", "mmf") is Mmf
    before = copy.deepcopy(few.model.state_dict())
    plain = PlainRetraining(2).apply(few, run)
    nothing = Mmf(epochs=2, trees=(TREE,), weights=(0.0,))
    assert nothing.settled(few).control() == PlainRetraining(2, 0.1, may_be_swift=True)
    assert_close(said(nothing.apply(few, run)), said(plain))
    cured = Mmf(epochs=2, trees=(TREE, "features", "inputs"), weights=(0.1,), groups=2).apply(few, run)
    assert not torch.allclose(said(cured), said(plain), atol=1e-3)
    assert said(cured).shape == (60, 4)
    assert [name for name, _ in cured.model.named_parameters()] == [name for name, _ in few.model.named_parameters()]
    assert not any(module._forward_hooks for module in cured.model.modules())
    assert_close(few.model.state_dict(), before)
    assert Mmf().cost() == Cost(1, 1)


def test_trees_come_from_files_whose_text_is_kept(few: Subject, run: Run, tmp_path: Path) -> None:
    file = tmp_path / "tree.json"
    file.write_text(TREE)
    remedy = configure(Mmf, {"trees": f"{file},features", "weights": "0.2,1/10", "stage": "1"})
    assert remedy.trees == (TREE, "features")
    assert remedy.weights == (0.2, 0.1)
    file.unlink()
    assert configure(Mmf, remedy.settings()) == remedy
    assert remedy.why_not(few) is None
    assert Mmf(trees=(TREE, TREE)).weights == (0.1, 0.1)


def test_what_cannot_be_is_refused_in_one_line_before_any_training(few: Subject, run: Run, tmp_path: Path) -> None:
    for settings, says in (
        ({"trees": ()}, "'mmf' wants a label tree"),
        ({"trees": ("there.json",)}, "Cannot read a label tree from 'there.json'"),
        ({"weights": (0.1, 0.2)}, "got 2 weights for 1 trees"),
        ({"weights": (-0.1,)}, "weights=-0.1 are no shares"),
        ({"weights": (1.0,)}, "leave nothing of the loss"),
    ):
        with pytest.raises(AssayError, match=says):
            Mmf(**settings)
    with pytest.raises(AssayError, match="lacks '3' of the model's 4 classes"):
        cure(Mmf(trees=('{"a": ["0", "1"], "b": ["2"]}',)), few, out=tmp_path)
    with pytest.raises(AssayError, match="groups=4; give a number from 2 to 3"):
        Mmf(groups=4, epochs=1).apply(few, run)
    with pytest.raises(AssayError, match="no module '9'"):
        Mmf(trees=(TREE,), stage="9", epochs=1).apply(few, run)
    assert "no split 'train'" in str(Mmf().why_not(replace(few, data={"test": few.data["test"]})))
    two = replace(few, task=type(few.task)(("0", "1")))
    assert "only two classes" in str(Mmf().why_not(two))
    headless = replace(few, layers={"last_conv": "3"})
    assert "the model has none; name a file" in str(Mmf().why_not(headless))
    assert Mmf(trees=(TREE,)).why_not(headless) is None
