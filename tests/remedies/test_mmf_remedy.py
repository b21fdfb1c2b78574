from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.testing import assert_close

from assay import shelf
from assay.data.arrays import Arrays
from assay.errors import AssayError
from assay.jobs.cure import cure
from assay.methods.train.fit import Diverged
from assay.methods.uncertainty.activations import features
from assay.nn.members import Drawn
from assay.probe import configure
from assay.remedies import mmf
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


def test_what_diverges_hands_back_the_network_without_its_heads(
    few: Subject, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def diverges(self: Mmf, model: nn.Module, *rest: Any, **more: Any) -> None:
        raise Diverged("It diverged.", model, 1)

    monkeypatch.setattr(Mmf, "hardened", diverges)
    with pytest.raises(Diverged) as caught:
        Mmf(trees=(TREE,)).apply(few, run)
    assert list(caught.value.model.state_dict()) == list(few.model.state_dict())


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


class OneStage(nn.Module):
    """One convolution, and nothing else with maps that is a module."""

    def __init__(self, kind: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.kind = kind
        self.conv, self.fc = nn.Conv2d(1, 4, 3, padding=1, dtype=kind), nn.Linear(64, 4, dtype=kind)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        maps = nn.functional.max_pool2d(torch.relu(self.conv(x.to(self.kind))), 2)
        out: torch.Tensor = self.fc(maps.flatten(1))
        return out.float()


@pytest.mark.parametrize("kind", [torch.float32, torch.float64, torch.bfloat16])
def test_of_a_net_with_one_stage_the_heads_read_its_convolution_in_any_type(
    kind: torch.dtype, few: Subject, run: Run
) -> None:
    pairs = {split: few.data[split].take(np.arange(40)) for split in ("train", "test")}
    one = Subject.classifier(OneStage(kind).eval(), pairs, name="one", classes=("0", "1", "2", "3"))
    remedy = Mmf(epochs=1, trees=(TREE,), start="weights")
    assert remedy.why_not(one) is None
    default, named = (made.apply(one, run).model.state_dict() for made in (remedy, replace(remedy, stage="conv")))
    assert_close(default, named, rtol=0, atol=0)
    assert default["conv.weight"].dtype == kind


def test_where_no_head_can_read_it_is_told_at_the_door(few: Subject) -> None:
    class Inner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(64, 4), nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.flatten(1) @ self.a.weight.T @ self.b.weight.T  # no module is called

    why = Mmf(trees=(TREE,)).why_not(replace(few, model=Inner().eval(), layers={}))
    assert why == "Inner has no module inside it that a head could read; name one with stage="


def test_a_tree_of_features_of_a_net_that_draws_is_that_of_the_seed(few: Subject, run: Run) -> None:
    random = Drawn(nn.Sequential(AlwaysDropped(0.5), *few.model.children()), 2).eval()  # type: ignore[arg-type]
    subject = replace(few, model=random, layers={"head": "net.7"}, draws=2)
    spreads = []
    for seed in (1, 2):
        with torch.random.fork_rng(), pytest.MonkeyPatch.context() as patch:
            torch.manual_seed(seed)
            before = torch.get_rng_state()
            patch.setattr(mmf, "trees_from", lambda *given, **_: spreads.append(random_features(*given)) or [])
            Mmf(groups=2)._trees(subject, run)
            assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(*spreads)


def random_features(_: Any, __: Any, model: nn.Module, head: str, inputs: Any) -> torch.Tensor:
    return features(model, inputs()[0], head, entering=True)


class AlwaysDropped(nn.Dropout):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(x, self.p, training=True)


def test_what_cannot_be_is_refused_in_one_line_before_any_training(few: Subject, run: Run, tmp_path: Path) -> None:
    for settings, says in (
        ({"trees": ()}, "'mmf' wants a label tree"),
        ({"trees": ("there.json",)}, "Cannot read a label tree from 'there.json'"),
        ({"weights": (0.1, 0.2)}, "got 2 weights for 1 trees"),
        ({"weights": (-0.1,)}, "weights=-0.1 are no shares"),
        ({"weights": (1.0,)}, "leave nothing of the loss"),
        ({"weights": (float("nan"),)}, "weights=nan are no shares"),
    ):
        with pytest.raises(AssayError, match=says):
            Mmf(**settings)
    with pytest.raises(AssayError, match="lacks '3' of the model's 4 classes"):
        cure(Mmf(trees=('{"a": ["0", "1"], "b": ["2"]}',)), few, out=tmp_path)
    for groups in (1, 4):
        with pytest.raises(AssayError, match=f"groups={groups}; give a number from 2 to 3"):
            Mmf(groups=groups).why_not(few)
    assert Mmf(groups=4, trees=(TREE,)).why_not(few) is None  # no tree is to be found
    assert "no module '9' for stage=; did you mean" in str(Mmf(trees=(TREE,), stage="9").why_not(few))
    alone = replace(few, model=nn.Sequential(nn.Flatten(), nn.Linear(64, 4)).eval()[1])
    assert "Linear has no module inside it" in str(Mmf(trees=(TREE,)).why_not(alone))
    x, y = few.data["train"].take(np.arange(200))
    lacking = replace(few, data={**few.data, "train": Arrays(x[y != 2], y[y != 2])})
    assert "none is of class '2'" in str(Mmf().why_not(lacking))
    assert Mmf(trees=(TREE,)).why_not(lacking) is None
    assert "no split 'train'" in str(Mmf().why_not(replace(few, data={"test": few.data["test"]})))
    two = replace(few, task=type(few.task)(("0", "1")))
    assert "only two classes" in str(Mmf().why_not(two))
    headless = replace(few, layers={"last_conv": "3"})
    assert "the model has none; name a file" in str(Mmf().why_not(headless))
    assert Mmf(trees=(TREE,)).why_not(headless) is None
