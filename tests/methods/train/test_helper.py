"""Helper examples: the loss by hand, who labels them, and that a training takes them."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from assay.data.whole import Whole
from assay.errors import AssayError
from assay.methods.train import robust
from assay.methods.train.helper import Helpers
from assay.methods.train.robust import RobustRecipe, robustly_trained


class Bright(nn.Module):
    """The plain network: class 1 where an image is bright on average."""

    def forward(self, x: Tensor) -> Tensor:
        mean = x.flatten(1).mean(1)
        return torch.stack([0.5 - mean, mean - 0.5], 1)


def small() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 2))


@given(beta=st.floats(0, 9), gamma=st.floats(0, 9), seed=st.integers(0, 99))
def test_the_loss_is_that_of_the_equation(beta: float, gamma: float, seed: int) -> None:
    rng = torch.Generator().manual_seed(seed)
    out = torch.randn(6, 3, generator=rng, dtype=torch.float64)
    y, helped = torch.randint(3, (2, 2), generator=rng)
    p = out.softmax(1)
    by_hand = 0.0
    for i in range(2):
        by_hand -= math.log(p[i, y[i]])
        by_hand += beta * sum(float(a) * math.log(a / b) for a, b in zip(p[i], p[2 + i], strict=True))
        by_hand -= gamma * math.log(p[4 + i, helped[i]])
    told = Helpers(Bright(), beta=beta, gamma=gamma).loss(out, torch.cat([y, helped]))
    assert float(told) == pytest.approx(by_hand / 2)


def test_without_weights_it_is_the_plain_loss() -> None:
    out, aims = torch.randn(9, 4, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 3, 1, 2, 2, 2])
    none = Helpers(Bright(), beta=0, gamma=0)
    torch.testing.assert_close(none.loss(out, aims, 0.2), F.cross_entropy(out[:3], aims[:3], label_smoothing=0.2))


def test_helpers_lie_as_far_again_and_the_plain_network_labels_the_attacked_inputs() -> None:
    x = torch.full((2, 1, 2, 2), 0.5)
    worst = x + torch.tensor([0.1, -0.1]).view(-1, 1, 1, 1)
    helpers = Helpers(Bright())
    shown = helpers.shown(x, worst)
    assert shown.flatten(1)[:, 0].tolist() == pytest.approx([0.5, 0.5, 0.6, 0.4, 0.7, 0.3])
    assert helpers.aims(torch.tensor([0, 0]), worst).tolist() == [0, 0, 1, 0]


def test_the_attacker_climbs_away_from_the_answer_and_not_from_the_label() -> None:
    """At the input itself the divergence is 0 whatever the label; it grows on the way, and stays in the ball."""
    model, rng = small().eval(), torch.Generator().manual_seed(0)
    x = torch.rand(8, 1, 6, 6, generator=rng)
    recipe = RobustRecipe(epochs=1, batch=8, lr=0.1, radius=0.1, steps=5)
    away = Helpers(Bright()).away(model, x)
    one, other = (
        robust.climbed(model, x, torch.full((8,), y), recipe, torch.Generator().manual_seed(1), away) for y in (0, 1)
    )
    torch.testing.assert_close(one, other)
    assert float((one - x).abs().max()) <= 0.1 + 1e-6
    nowhere = torch.zeros(8, dtype=torch.int64)
    assert away(model(x), nowhere).abs().max() < 1e-6
    assert (away(model(one), nowhere) > 1e-4).all()


def test_a_training_with_helpers_learns_and_gives_other_weights_than_one_without() -> None:
    rng = torch.Generator().manual_seed(0)
    y = torch.arange(96) % 2
    x = (0.5 + 0.4 * torch.rand(96, 1, 6, 6, generator=rng) * (2 * y.float() - 1).view(-1, 1, 1, 1)).clamp(0, 1)
    recipe = RobustRecipe(epochs=15, batch=32, lr=0.1, radius=0.05, steps=2, shift=0, average=0.5, perturb=0.01)
    data, watch = Whole(x, y), Whole(x[:20], y[:20])
    models = [
        robustly_trained(small(), data, recipe, seed=0, watch=watch, helpers=h) for h in (Helpers(Bright()), None)
    ]
    assert robust.accuracy(models[0], data) > 0.95
    apart = [(a - b).abs().max() for a, b in zip(*(m.parameters() for m in models), strict=True)]
    assert max(apart) > 1e-3


@pytest.mark.parametrize(("name", "value"), [("beta", -1.0), ("gamma", math.inf), ("far", 0.5), ("beta", math.nan)])
def test_weights_that_are_none_are_refused_with_their_value(name: str, value: float) -> None:
    with pytest.raises(AssayError, match=rf"^{name}={value} "):
        Helpers(Bright(), **{name: value})
