"""A training against an attacker: who attacks, what is averaged, and which epoch is given."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from assay.data.whole import Whole
from assay.methods.attack import pgd
from assay.methods.train import robust
from assay.methods.train.adversary import Adversary
from assay.methods.train.robust import RobustRecipe, robustly_trained

FEW = RobustRecipe(epochs=2, batch=16, lr=0.1, steps=2, shift=0, average=0.5)


def data(n: int = 48, seed: int = 0) -> Whole:
    """Bright or dark pictures of 6 x 6, and one pixel that tells them apart by very little."""
    rng = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % 2
    x = 0.5 + 0.2 * torch.rand(n, 1, 6, 6, generator=rng) * (2 * y.float() - 1).view(-1, 1, 1, 1)
    x[:, 0, 2:4, 2:4] = 0.5 + 0.01 * (1 - 2 * y.float()).view(-1, 1, 1)
    return Whole(x, y)


def net(seed: int = 0) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 2))


def weights(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def test_it_is_given_in_eval_mode_and_the_seed_repeats_it() -> None:
    first, again, other = (robustly_trained(net(), data(), FEW, seed=s) for s in (0, 0, 1))
    assert not first.training
    assert not any(p.requires_grad for p in first.parameters())
    assert torch.equal(weights(first), weights(again))
    assert not torch.equal(weights(first), weights(other))


def test_the_average_is_that_of_the_equation() -> None:
    """One step: the weights after it. Two: average m_1 + (1 - average) w_2, where w_2 is the average of 0."""
    one = replace(FEW, epochs=1, batch=48)
    for average in (0.0, 0.9):
        model = net()
        given = robustly_trained(model, data(), replace(one, average=average), seed=0)
        assert torch.equal(weights(given), weights(model))
    two = replace(FEW, epochs=1, batch=24)
    last = robustly_trained(net(), data(), replace(two, average=0.0), seed=0)
    kept = robustly_trained(net(), data(), replace(two, average=1.0), seed=0)  # the weights after the first step
    mean = robustly_trained(net(), data(), replace(two, average=0.75), seed=0)
    torch.testing.assert_close(weights(mean), 0.75 * weights(kept) + 0.25 * weights(last))


def test_the_attacker_takes_fewer_steps_in_the_first_half(monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[int] = []
    true = Adversary.worst

    def worst(self: Adversary, *given: object, **more: object) -> torch.Tensor:
        steps.append(self.steps)
        return true(self, *given, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(Adversary, "worst", worst)
    robustly_trained(net(), data(), replace(FEW, epochs=4, batch=48, steps=3, early=1), seed=0)
    assert steps == [1, 1, 3, 3]


def test_of_the_last_third_the_best_epoch_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[torch.Tensor] = []
    seen = iter([0.9, 0.2, 0.6, 0.5, 0.99, 0.4])  # clean and under attack, of three epochs: what holds decides

    def accuracy(model: nn.Module, rows: Whole) -> float:
        looked.append(weights(model))
        return next(seen)

    monkeypatch.setattr(robust, "accuracy", accuracy)
    given = robustly_trained(net(), data(), replace(FEW, epochs=9), seed=0, watch=data(20, seed=1))
    assert len(looked) == 6
    assert torch.equal(weights(given), looked[2])
    assert not torch.equal(weights(given), looked[4])


def test_it_loses_less_under_attack_than_a_plain_training() -> None:
    rows = data(96)
    long = replace(FEW, epochs=20, batch=32, radius=0.08, steps=3)
    lost = {}
    for radius in (0.08, 1e-6):
        model = robustly_trained(net(), rows, replace(long, radius=radius), seed=0)
        assert robust.accuracy(model, rows) > 0.95
        at = pgd(model, rows.x, rows.y, radius=0.08, steps=10, rng=torch.Generator().manual_seed(0)).x
        lost[radius] = float(nn.functional.cross_entropy(model(at), rows.y))
    assert lost[0.08] < lost[1e-6]


def test_moved_images_are_shifted_and_mirrored_ones() -> None:
    x = torch.arange(36.0).view(1, 1, 6, 6).expand(200, -1, -1, -1)
    out = robust.moved(x, 1, torch.Generator().manual_seed(0))
    wide = torch.nn.functional.pad(torch.stack([x[0], x[0].flip(-1)]), (1, 1, 1, 1))
    known = {tuple(w[0, a : a + 6, b : b + 6].flatten().tolist()) for w in wide for a in range(3) for b in range(3)}
    assert {tuple(o.flatten().tolist()) for o in out} == known  # all of the 18, and nothing else


def test_a_rate_that_falls_late_is_constant_before(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, str]] = []
    plain = robust.fit

    def watched(*args: Any, epochs: int, schedule: str, **kwargs: Any) -> Any:
        seen.append((epochs, schedule))
        return plain(*args, epochs=epochs, schedule=schedule, **kwargs)

    monkeypatch.setattr(robust, "fit", watched)
    told: list[str] = []
    robustly_trained(net(), data(), replace(FEW, epochs=4, fall=1), seed=0, watch=data(seed=1), told=told.append)
    assert seen == [(3, "constant"), (1, "cosine")]
    assert [line.split(":")[0] for line in told if line.startswith("epoch")] == [f"epoch {k}" for k in (1, 2, 3, 4)]
    assert sum("held out" in line for line in told) == 2  # those of the last third
    seen.clear()
    robustly_trained(net(), data(), FEW, seed=0)
    assert seen == [(2, "one-cycle")]
