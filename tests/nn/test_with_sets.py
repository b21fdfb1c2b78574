from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from assay.errors import AssayError
from assay.nn.with_sets import WithSets


class Logits(nn.Module):
    """Inputs are logits; in eval mode too it adds noise, if there is any."""

    def __init__(self, noise: float = 0.0) -> None:
        super().__init__()
        self.noise = noise

    def forward(self, x: Tensor) -> Tensor:
        return x + self.noise * torch.randn_like(x)


def unlikely(p: Tensor, u: Tensor) -> Tensor:
    return 1 - p.double()


def lucky(p: Tensor, u: Tensor) -> Tensor:
    return 1 - p.double() + u[:, None]


X = torch.tensor([[0.7, 0.2, 0.1], [0.4, 0.35, 0.25], [0.98, 0.01, 0.01]]).log()


def test_sets_hold_the_classes_below_the_threshold_and_every_class_before_a_fit() -> None:
    model = WithSets(Logits(), unlikely, alpha=0.1, rule="lac")
    assert torch.equal(model(X), X)
    assert model.sets(X).all()
    model.threshold.fill_(0.7)
    assert model.sets(X).tolist() == [[True, False, False], [True, True, False], [True, False, False]]
    model.threshold.fill_(0.01)
    assert not model.sets(X).any()  # empty ones are possible


def test_the_threshold_is_kept_with_the_weights_in_full() -> None:
    model, other = (WithSets(Logits(), unlikely, alpha=0.1, rule="lac") for _ in range(2))
    model.threshold.fill_(0.1 + 1e-12)
    other.load_state_dict(model.state_dict())
    assert float(other.threshold) == 0.1 + 1e-12


def test_without_a_generator_the_sets_hold_those_of_every_draw() -> None:
    model = WithSets(Logits(), lucky, alpha=0.1, rule="lucky")
    model.threshold.fill_(1.0)
    largest = model.sets(X)
    several = [model.sets(X, rng=torch.Generator().manual_seed(s)) for s in range(20)]
    assert all((s <= largest).all() for s in several)
    assert any(not torch.equal(s, several[0]) for s in several)
    assert torch.equal(model.sets(X, rng=torch.Generator().manual_seed(3)), several[3])


def test_a_random_model_is_asked_several_times() -> None:
    x = X[1:2].expand(400, 3)
    spread = []
    for draws in (1, 50):
        model = WithSets(Logits(noise=1.0), unlikely, alpha=0.1, rule="lac", draws=draws)
        model.threshold.fill_(0.66)
        torch.manual_seed(0)
        spread.append(model.sets(x).double().var(0).sum())
    assert spread[1] < 0.7 * spread[0]


def test_a_promise_lies_between_nothing_and_everything() -> None:
    with pytest.raises(AssayError, match="alpha=1"):
        WithSets(Logits(), unlikely, alpha=1, rule="lac")
