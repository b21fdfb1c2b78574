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
from assay.nn.riap import with_riap
from assay.nn.unet import UNet
from assay.remedies._retraining import PlainRetraining
from assay.remedies.riap_padding import RiapPadding
from assay.remedy import Cost
from assay.run import Run
from assay.subject import Subject
from assay.tasks import Segmentation


@pytest.fixture(scope="module")
def few() -> Subject:
    """Two classes that one pixel tells apart, 40 inputs of each kind of data, and two convolutions in a row."""
    draw = torch.Generator().manual_seed(0)
    x = torch.rand(80, 1, 6, 6, generator=draw)
    y = (x[:, 0, 0, 0] > 0.5).long()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Conv2d(1, 3, 3, padding=1), nn.ReLU(), nn.Conv2d(3, 2, 3, padding=1), nn.Flatten(), nn.Linear(72, 2)
        )
    return Subject.classifier(model.eval(), {"train": (x[:40], y[:40]), "test": (x[40:], y[40:])}, name="few")


def said(subject: Subject) -> torch.Tensor:
    return subject.predict(subject.data["test"].take(np.arange(40))[0])


def pads(model: nn.Module) -> list[object]:
    return [module.padding for module in model.modules() if isinstance(module, nn.Conv2d)]


def test_it_pads_early_and_trains_on_or_anew_or_not_at_all(few: Subject, run: Run) -> None:
    assert shelf.load("remedies", "riap-padding") is RiapPadding
    before = copy.deepcopy(few.model.state_dict())
    made = {
        name: RiapPadding(**settings).apply(few, run).model
        for name, settings in {
            "on": {"epochs": 1, "lr": 1e-9},
            "anew": {"epochs": 1, "lr": 1e-9, "start": "scratch"},
            "not": {"epochs": 0},
        }.items()
    }
    for model in made.values():
        assert pads(model) == [(2, 2), (0, 0)]
        assert not model.training
    assert pads(few.model) == [(1, 1), (1, 1)]
    assert_close(few.model.state_dict(), before)
    assert_close(made["not"].state_dict(), before)
    assert_close(made["on"].state_dict(), before, rtol=0, atol=1e-6)
    assert not torch.allclose(made["anew"].state_dict()["0.weight"], before["0.weight"])
    trained = RiapPadding(epochs=2).apply(few, run)
    assert not torch.allclose(said(trained), said(few))
    assert trained.name == "few+riap-padding"
    assert_close(
        said(RiapPadding(epochs=0).apply(few, run)), with_riap(few.model)(few.data["test"].take(np.arange(40))[0])
    )


def test_it_is_compared_with_the_same_training_or_with_what_was_there(few: Subject) -> None:
    on = RiapPadding(epochs=3).settled(few)
    assert on.lr == pytest.approx(0.01)
    assert on.control() == PlainRetraining(3, on.lr, start="weights", may_be_swift=True)
    assert RiapPadding(start="scratch").settled(few).lr == 0.1
    without = replace(few, data={"test": few.data["test"]})
    still = RiapPadding(epochs=0).settled(without)
    assert (still.control(), still.why_not(without)) == (None, None)
    assert "no split 'train'" in str(RiapPadding().why_not(without))


def test_other_tasks_are_padded_and_not_trained(run: Run) -> None:
    draw = np.random.default_rng(0)
    data = (draw.random((6, 1, 8, 8), dtype=np.float32), draw.integers(2, size=(6, 8, 8)))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        scenes = Subject.of(UNet(1, 2, width=4, levels=2).eval(), data, Segmentation(("ground", "thing")))
    assert str(RiapPadding().why_not(scenes)).endswith("Segmentation; epochs=0 pads otherwise and trains nothing")
    padded = RiapPadding(epochs=0).apply(scenes, run)
    x = scenes.data["test"].take(np.arange(6))[0]
    assert padded.predict(x).shape == scenes.predict(x).shape
    assert not torch.allclose(padded.predict(x), scenes.predict(x))


def test_kept_weights_go_into_its_frame_and_what_has_no_run_is_refused(few: Subject, run: Run, tmp_path: Path) -> None:
    trained, frame = RiapPadding(epochs=1).apply(few, run), RiapPadding(epochs=1).frame(few)
    frame.model.load_state_dict(trained.model.state_dict())
    assert frame.fingerprint() == trained.fingerprint()
    flat = replace(few, model=nn.Sequential(nn.Flatten(), nn.Linear(36, 2)).eval())
    with pytest.raises(AssayError, match="'riap-padding' cannot be applied to 'few': it has no convolution."):
        cure("riap-padding", flat, out=tmp_path)


def test_padding_alone_refuses_what_a_training_would_and_costs_none() -> None:
    assert RiapPadding(epochs=0).cost() == Cost(0, 1.1)
    for settings, says in (
        ({"lr": -5.0}, "lr=-5.0 is no length of a step"),
        ({"batch": -3}, "batch"),
        ({"start": "scratch"}, "epochs=0 trains nothing, and start='scratch'"),
    ):
        with pytest.raises(AssayError, match=says):
            RiapPadding(**{"epochs": 0, **settings})  # type: ignore[arg-type]
