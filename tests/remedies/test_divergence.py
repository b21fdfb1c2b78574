"""A training that leaves the numbers stops, says at which epoch, and leaves the last good weights; whichever it is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from assay import shelf
from assay.data.arrays import Arrays
from assay.errors import AssayError
from assay.jobs.cure import cure
from assay.methods.train.fit import Diverged
from assay.remedies._retraining import PlainRetraining, Retraining
from assay.run import Run
from assay.subject import Subject

NAMES = [
    name
    for name in shelf.names("remedies")
    if issubclass(shelf.load("remedies", name), Retraining) and name != "dp-training"  # counts steps, and says at which
]


@pytest.fixture(scope="module")
def few() -> Subject:
    draw = torch.Generator().manual_seed(0)
    x = torch.rand(80, 1, 4, 4, generator=draw)
    y = (3 * x[:, 0, 0, 0]).long()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(
            *(nn.Conv2d(1, 2, 3, padding=1), nn.BatchNorm2d(2), nn.ReLU(), nn.Conv2d(2, 2, 3, padding=1), nn.ReLU()),
            *(nn.Flatten(), nn.Linear(32, 4), nn.ReLU(), nn.Linear(4, 3)),
        )
    data = {"train": (x[:40], y[:40]), "test": (x[40:], y[40:]), "there": (x[40:].flip(3), y[40:])}
    side = {split: torch.arange(40) % 2 for split in ("train", "test")}
    return replace(
        Subject.classifier(model.eval(), data, name="few", attributes={"side": side}),
        unlabelled={"far": Arrays(x.flip(2), y)},
    )


@pytest.mark.parametrize("name", NAMES)
def test_every_remedy_that_trains_says_at_which_epoch_it_left_the_numbers(name: str, few: Subject, run: Run) -> None:
    more = {"rate": 0.5} if name == "slimming" else {}  # two channels are too few for half the multiply-adds
    remedy = shelf.load("remedies", name)(epochs=6, lr=1e30, **more)
    with pytest.raises(Diverged, match=r"epoch \d of \d.*try lr=") as caught:
        remedy.apply(few, run)
    assert all(p.isfinite().all() for p in caught.value.model.parameters())
    assert str(caught.value).endswith("again.")
    kept = caught.value.model.state_dict().keys()  # of use: of the whole, or of a member or what was to be made smaller
    assert kept in (remedy.frame(few).model.state_dict().keys(), few.model.state_dict().keys())


def test_a_cure_keeps_the_weights_of_the_last_good_epoch(few: Subject, tmp_path: Path, monkeypatch: Any) -> None:
    """The loss of the fourth epoch is no number."""
    from assay.remedies import _retraining

    real, after = _retraining.fit, {}

    def broken(model: nn.Module, data: Any, **settings: Any) -> Any:
        told, batches = settings.pop("on_epoch"), []

        def on_epoch(epoch: int, mean: float) -> None:
            batches.append(epoch)
            after[epoch] = {name: t.clone() for name, t in model.state_dict().items()}
            told(epoch, mean)

        def loss(out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return nn.functional.cross_entropy(out, y) * (torch.nan if len(batches) == 3 else 1)

        return real(model, data, **settings | {"loss": loss, "on_epoch": on_epoch})

    monkeypatch.setattr(_retraining, "fit", broken)
    with pytest.raises(AssayError, match=r"epoch 4 of 5.* It has the weights of epoch 3 again. They are kept in ") as e:
        cure("gaussian-training", few, settings={"epochs": 5}, probes=["accuracy"], out=tmp_path, control=False)
    (kept,) = tmp_path.glob("cure-*/last-good.safetensors")
    assert str(kept) in str(e.value)
    assert "\n" not in str(e.value)
    for name, tensor in load_file(kept).items():
        assert torch.equal(tensor, after[3][name])
    assert not list(tmp_path.glob("cure-*/weights.safetensors"))


def test_a_cure_that_diverges_at_once_keeps_nothing(few: Subject, tmp_path: Path, monkeypatch: Any) -> None:
    from assay.remedies import _retraining

    real = _retraining.fit
    none = lambda out, y: out.sum() * torch.nan  # noqa: E731
    monkeypatch.setattr(_retraining, "fit", lambda *a, **k: real(*a, **k | {"loss": none}))
    with pytest.raises(AssayError, match=r"epoch 1 of 3.*It has the weights it began with again.$"):
        cure("gaussian-training", few, settings={"epochs": 3}, probes=["accuracy"], out=tmp_path, control=False)
    assert not list(tmp_path.glob("cure-*/*.safetensors"))


def test_optimiser_settings_that_cannot_be_are_refused_in_one_line(few: Subject, run: Run) -> None:
    for settings, words in (
        ({"batch": 0}, "batch=0 holds no input"),
        ({"momentum": 1.0}, "momentum=1.0"),
        ({"weight_decay": -1.0}, "weight_decay=-1.0"),
        ({"lr": -1.0}, "lr=-1.0"),
        ({"epochs": 0}, "epochs=0"),
    ):
        with pytest.raises(AssayError, match=words):
            PlainRetraining(**settings).apply(few, run)  # type: ignore[arg-type]
