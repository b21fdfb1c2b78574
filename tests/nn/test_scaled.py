from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from assay.errors import ShapeError
from assay.nn.scaled import Scaled


def net() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Flatten(), nn.Linear(6, 4), nn.Dropout(0.5)).eval()


def test_it_starts_as_the_model_and_then_scales_and_shifts() -> None:
    model, x = net(), torch.rand(9, 2, 3)
    scaled = Scaled(model, 4)
    assert_close(scaled(x), model(x), rtol=0, atol=0)
    scale, shift = torch.tensor([0.5, 1, 2, 3]), torch.tensor([0.0, 1, 0, -1])
    scaled.set(scale, shift)
    assert_close(scaled(x), scale * model(x) + shift)


@pytest.mark.parametrize("temperature", [0.1, 1.7, 30.0])
def test_a_temperature_moves_confidence_and_no_answer(temperature: float) -> None:
    model, x = net(), torch.rand(200, 2, 3)
    scaled = Scaled(model, 4)
    scaled.set(torch.full((4,), 1 / temperature), torch.zeros(4))
    assert torch.equal(scaled(x).argmax(1), model(x).argmax(1))
    surer = scaled(x).softmax(1).amax(1) - model(x).softmax(1).amax(1)
    assert ((surer > 0) == (temperature < 1)).all()


def test_the_numbers_are_kept_with_the_weights_and_the_gradient_goes_through() -> None:
    scaled = Scaled(net(), 4)
    scaled.set(torch.full((4,), 0.25), torch.zeros(4))
    other = Scaled(net(), 4)
    other.load_state_dict(scaled.state_dict())
    x = torch.rand(3, 2, 3, requires_grad=True)
    assert torch.equal(other(x), scaled(x))
    (slope,) = torch.autograd.grad(scaled(x).sum(), x)
    assert_close(slope, torch.autograd.grad(0.25 * scaled.model(x).sum(), x)[0])
    assert not any(p is scaled.scale for p in scaled.parameters())


def test_the_mode_of_the_model_is_left_alone() -> None:
    model = net().train()
    model[1].eval()  # type: ignore[index]
    assert Scaled(model, 4).training
    assert [m.training for m in model.modules()] == [True, True, False, True]


def test_numbers_for_other_classes_are_refused() -> None:
    with pytest.raises(ShapeError, match=r"got \(3,\) for 4 classes"):
        Scaled(net(), 4).set(torch.ones(3), torch.zeros(4))
