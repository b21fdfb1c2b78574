"""Capacity penalties as a remedy."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.testing import assert_close

from assay import shelf
from assay.errors import AssayError
from assay.probe import configure
from assay.remedies._retraining import PlainRetraining
from assay.remedies.channel_capacity import ChannelCapacity
from assay.remedy import Cost
from assay.run import Run
from assay.subject import Subject


@pytest.fixture(scope="module")
def few() -> Subject:
    draw = torch.Generator().manual_seed(0)
    x = torch.rand(80, 1, 4, 4, generator=draw)
    y = (x[:, 0, 0, 0] > 0.5).long()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(8, 2))
    return Subject.classifier(model.eval(), {"train": (x[:40], y[:40]), "test": (x[40:], y[40:])}, name="few")


def said(subject: Subject) -> torch.Tensor:
    return subject.predict(subject.data["test"].take(np.arange(40))[0])


def test_it_stands_on_the_shelf_and_without_prices_it_is_its_control(few: Subject, run: Run) -> None:
    assert shelf.load("remedies", "channel-capacity") is ChannelCapacity
    assert configure(ChannelCapacity, {"eic": "0.1", "mic": "0.2"}) == ChannelCapacity(eic=0.1, mic=0.2)
    free = ChannelCapacity(eic=0, mic=0, epochs=2)
    control = free.control()
    assert isinstance(control, PlainRetraining)
    assert_close(said(free.apply(few, run)), said(control.apply(few, run)))
    assert free.cost() == Cost(1, 1)
    assert ChannelCapacity().cost() == ChannelCapacity(eic=0, mic=0.1).cost() == Cost(2, 1)
    assert ChannelCapacity(mic=0.1).cost() == Cost(3, 1)  # fake inputs of each price go through


@pytest.mark.parametrize("prices", [{"eic": 1.0, "mic": 0.0}, {"eic": 0.0, "mic": 1.0}])
def test_a_price_makes_its_weights_shorter(few: Subject, run: Run, prices: dict[str, float]) -> None:
    lengths = [
        float(sum(p.detach().square().sum() for p in made.apply(few, run).model.parameters() if p.ndim > 1))
        for made in (ChannelCapacity(epochs=30, **prices), PlainRetraining(epochs=30))
    ]
    assert lengths[0] < 0.7 * lengths[1]


class Inside(nn.Module):
    """Takes and gives float32, and reckons in another type."""

    def __init__(self, net: nn.Module, kind: torch.dtype) -> None:
        super().__init__()
        self.net, self.kind = copy.deepcopy(net).to(kind), kind

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.net(x.to(self.kind))
        return out.float()


def test_a_net_of_other_numbers_inside_is_priced_as_its_float32_twin(few: Subject, run: Run) -> None:
    remedy = ChannelCapacity(mic=0.1, epochs=2, start="weights")
    plain, double, half = (
        said(remedy.apply(replace(few, model=Inside(few.model, kind).eval()), run))
        for kind in (torch.float32, torch.float64, torch.bfloat16)
    )
    assert_close(double, plain, rtol=1e-3, atol=1e-4)
    assert_close(half, plain, rtol=0.1, atol=0.1)


def test_what_cannot_be_is_refused_in_one_line(few: Subject) -> None:
    with pytest.raises(AssayError, match="eic=-1 is no price"):
        ChannelCapacity(eic=-1)
    with pytest.raises(AssayError, match="mic=inf is no price"):
        ChannelCapacity(mic=float("inf"))
    bare = replace(few, model=nn.Sequential(nn.Flatten(), nn.LayerNorm(16)))
    assert (
        ChannelCapacity().why_not(bare)
        == "it prices convolutions and fully connected layers, and Sequential has neither"
    )
    assert "no split 'train'" in (ChannelCapacity().why_not(replace(few, data={"test": few.data["test"]})) or "")
    words = replace(few, tokens=True)
    assert "row of words by number" in (ChannelCapacity().why_not(words) or "")
