"""Gates as a remedy: each price is met, and what cannot be is one line."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from assay.errors import AssayError
from assay.methods.compress import bill as bills
from assay.methods.compress import price as prices
from assay.methods.compress.price import flops, memory, parameters
from assay.nn.resnet import Block
from assay.remedies import gator
from assay.remedies._shrinking import example
from assay.remedies.gator import Gator
from assay.run import Run
from assay.subject import Subject


@pytest.fixture(scope="module")
def few() -> Subject:
    draw = torch.Generator().manual_seed(0)
    x = torch.rand(80, 1, 6, 6, generator=draw)
    y = (3 * x[:, 0, 0, 0]).long()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(
            *(nn.Conv2d(1, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), Block(8, 8, 1)),
            *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3)),
        ).eval()
    return Subject.classifier(model, {"train": (x[:40], y[:40]), "test": (x[40:], y[40:])}, name="few")


@pytest.mark.parametrize("kind", ["flops", "memory", "parameters"])
def test_each_price_is_met_and_the_subject_stays(kind: str, few: Subject, run: Run) -> None:
    before = {name: t.clone() for name, t in few.model.state_dict().items()}
    remedy = Gator(epochs=4, batch=8, price=f"{kind}=0.5")
    x = example(few)
    count = {"flops": lambda m: flops(m, x), "memory": memory, "parameters": parameters}[kind]
    small = remedy.apply(few, run)
    assert count(small.model) <= 0.5 * count(few.model)
    assert not any(m._forward_pre_hooks for m in small.model.modules())
    assert small.origin[-1] == "gator"
    assert_close(dict(few.model.state_dict()), before)


def test_seconds_are_measured_and_believed(few: Subject, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a device that takes a microsecond for a weight."""
    pretended = lambda model, *a, **k: 1e-6 * memory(model)  # noqa: E731
    for module in (bills, prices):
        monkeypatch.setattr(module, "latency", pretended)
    small = Gator(epochs=2, batch=8, price="latency=0.6").apply(few, run)
    assert memory(small.model) <= 0.6 * memory(few.model)


def test_channels_come_in_multiples(few: Subject, run: Run) -> None:
    small = Gator(epochs=2, batch=8, multiple=4).apply(few, run).model
    wide = [m.out_channels for m in small.modules() if isinstance(m, nn.Conv2d)]
    assert all(each % 4 == 0 for each in wide)
    assert min(wide) < 8


def test_normalisations_are_measured_before_what_is_left_is_trained(
    few: Subject, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    real = gator.remeasure
    monkeypatch.setattr(gator, "remeasure", lambda *a: (order.append("measured"), real(*a)))
    trained = Gator.train
    monkeypatch.setattr(
        Gator, "train", lambda self, *a, **k: (order.append(k["about"][:13]), trained(self, *a, **k))[1]
    )
    Gator(epochs=4, batch=8).apply(few, run)
    assert [name for name, _ in itertools.groupby(order)] == ["training with", "measured", "training what"]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"gating": 1.0}, "gating=1 is no part of the epochs"),
        ({"alpha": 0.0}, "alpha=0 and rate=0.2 move no gate"),
        ({"rate": -1.0}, "rate=-1 move no gate"),
        ({"multiple": 0}, "multiple=0 is no count of channels"),
        ({"price": "watts=1"}, "of no known kind"),
    ],
)
def test_settings_that_cannot_be_are_one_line(given: dict[str, Any], says: str) -> None:
    with pytest.raises(AssayError, match=says):
        Gator(**given)


def test_a_price_that_cannot_be_met_is_said_before_anything_is_trained(
    few: Subject, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Gator, "train", lambda *a, **k: pytest.fail("it trains"))
    with pytest.raises(AssayError, match=r"cannot be met: with one channel of each edge .* ask for more than that"):
        Gator(price="flops=0.001").apply(few, run)


def test_no_batch_that_normalisations_are_measured_on_is_of_one_input(few: Subject, run: Run) -> None:
    sizes = [len(x) for x in Gator(batch=13)._batches(few, run, run.rng())]  # of 40
    assert sizes == [10] * 4
