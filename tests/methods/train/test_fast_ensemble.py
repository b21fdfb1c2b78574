"""FastEnsemble: the gradient of its penalty, what moves and what stays, and the trend that it promises."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.testing import assert_close

from assay.errors import AssayError
from assay.methods.train import fast_ensemble as module
from assay.methods.train.fast_ensemble import fast_ensemble, penalty_gradient
from assay.methods.train.fit import fit, reset
from assay.nn.members import Ensemble


@dataclass(frozen=True)
class Held:
    x: Tensor
    y: Tensor
    asked: list[int] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.x)

    def take(self, index: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        self.asked.append(len(index))
        return self.x[index], self.y[index]


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def toy(n: int = 40) -> Held:
    y = torch.arange(n) % 3
    return Held(torch.randn(n, 4, generator=rng(1)) + F.one_hot(y, 4), y)


def toy_net() -> nn.Module:
    return reset(nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3)), rng())


def flat(net: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in net.parameters()])


@pytest.mark.parametrize("as_published", [False, True])
def test_the_gradient_is_that_of_the_printed_penalty(as_published: bool) -> None:
    lam, shapes = 3.0, ((2, 3), (4,))
    weights = [torch.randn(s, generator=rng(i), dtype=torch.float64, requires_grad=True) for i, s in enumerate(shapes)]
    anchors = [[torch.randn(s, generator=rng(9 + i + 5 * k), dtype=torch.float64) for i, s in enumerate(shapes)]
               for k in range(3)]  # fmt: skip
    distance = torch.stack([(w - a).abs().sum() for each in anchors for w, a in zip(weights, each, strict=True)]).sum()
    size = 1 if as_published else 10
    wanted = torch.autograd.grad(-lam / 3 * distance / size, weights)
    assert_close(tuple(penalty_gradient(weights, anchors, lam, as_published=as_published)), wanted)
    at = [[w.detach() for w in weights]]
    assert all(not g.any() for g in penalty_gradient(weights, at, lam))  # exactly 0 at an anchor


def test_the_first_step_goes_by_the_data_alone() -> None:
    seed, data = toy_net(), toy()
    far, near = (fast_ensemble(seed, data, members=2, escape=1, settle=1, lam=lam, rng=rng()) for lam in (1e4, 0.0))
    assert_close(flat(far[1]), flat(near[1]), rtol=0, atol=0)
    more = [fast_ensemble(seed, data, members=2, escape=2, settle=1, lam=lam, rng=rng())[1] for lam in (1e4, 0.0)]
    assert not torch.equal(flat(more[0]), flat(more[1]))


def test_one_member_is_the_seed_and_the_seed_is_never_touched() -> None:
    seed = toy_net()
    before = copy.deepcopy(seed.state_dict())
    (only,) = fast_ensemble(seed, toy(), members=1, escape=5, settle=5, rng=rng())
    assert_close(dict(only.state_dict()), dict(before), rtol=0, atol=0)
    nets = fast_ensemble(seed, toy(), members=3, escape=5, settle=5, lam=100.0, rng=rng())
    assert_close(dict(seed.state_dict()), dict(before), rtol=0, atol=0)
    assert_close(dict(nets[0].state_dict()), dict(before), rtol=0, atol=0)
    assert all(p.grad is None for net in (seed, *nets) for p in net.parameters())
    assert len({tuple(flat(net).tolist()) for net in nets}) == 3
    assert len({net.get_buffer("1.running_mean")[0].item() for net in nets}) == 3  # each has its own statistics
    again = fast_ensemble(seed, toy(), members=3, escape=5, settle=5, lam=100.0, rng=rng())
    assert_close(flat(again[2]), flat(nets[2]), rtol=0, atol=0)


@pytest.mark.parametrize("batch", [16, 100])  # fewer and more than there are inputs
def test_steps_are_counted(batch: int) -> None:
    data, said = toy(), []
    fast_ensemble(
        toy_net(), data, members=4, escape=7, settle=3, batch=batch, rng=rng(), on_member=lambda n: said.append(n)
    )
    assert data.asked == [min(batch, 40)] * (3 * (7 + 3))
    assert said == [2, 3, 4]


def test_where_members_start_and_what_they_keep_away_from(monkeypatch: pytest.MonkeyPatch) -> None:
    starts: list[Tensor] = []
    anchors: list[list[Tensor]] = []
    plain = module._Push.__init__

    def watched(self: module._Push, net: nn.Module, held: list[nn.Module], *rest: object) -> None:
        starts.append(flat(net))
        anchors.append([flat(each) for each in held])
        plain(self, net, held, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(module._Push, "__init__", watched)
    for chain in (False, True):
        starts.clear()
        anchors.clear()
        nets = fast_ensemble(toy_net(), toy(), members=4, escape=2, settle=2, chain=chain, rng=rng())
        found = [flat(net) for net in nets]
        for n in range(3):
            assert torch.equal(starts[n], found[n] if chain else found[0])
            kept = found[n : n + 1] if chain else found[: n + 1]
            assert len(anchors[n]) == len(kept)
            assert all(torch.equal(a, b) for a, b in zip(anchors[n], kept, strict=True))


def test_the_guard_ends_the_escape_and_is_off_unless_asked() -> None:
    def far(guard: float | None) -> float:
        nets = fast_ensemble(
            toy_net(), toy(), members=2, escape=60, settle=1, lam=1e3, lr=0.05, batch=40, guard=guard, rng=rng()
        )
        return float((flat(nets[1]) - flat(nets[0])).abs().mean())

    assert far(1.5) < 0.7 * far(None)
    assert far(1e9) == far(None)
    without = fast_ensemble(toy_net(), toy(), members=2, escape=60, settle=1, lam=0, lr=0.05, batch=40, rng=rng())
    assert far(0.0) == pytest.approx(float((flat(without[1]) - flat(without[0])).abs().mean()))


def test_the_printed_sum_is_the_mean_times_the_number_of_weights() -> None:
    size = sum(p.numel() for p in toy_net().parameters())
    ours, printed = (
        fast_ensemble(toy_net(), toy(), members=2, escape=5, settle=1, lam=lam, as_published=as_published, rng=rng())[1]
        for lam, as_published in ((50.0, False), (50.0 / size, True))
    )
    assert_close(flat(ours), flat(printed))


def test_frozen_weights_stay_and_do_not_count() -> None:
    net = toy_net()
    net.get_submodule("0").requires_grad_(False)
    nets = fast_ensemble(net, toy(), members=2, escape=5, settle=5, lam=100.0, rng=rng())
    assert torch.equal(nets[0].get_parameter("0.weight"), nets[1].get_parameter("0.weight"))
    assert not torch.equal(nets[0].get_parameter("3.weight"), nets[1].get_parameter("3.weight"))


@cache
def clouds() -> tuple[Held, Held, nn.Module]:
    """Five overlapping clouds in ten dimensions: training and test points, and a net that was trained on them."""
    draw = np.random.default_rng(0)
    centres = draw.normal(size=(5, 10)) * 0.9

    def some(n: int) -> Held:
        y = np.arange(n) % 5
        x = centres[y] + draw.normal(size=(n, 10))
        return Held(torch.tensor(x, dtype=torch.float32), torch.tensor(y))

    train, test = some(600), some(2000)
    net = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 5))
    seed = reset(net, rng())
    fit(seed, train, epochs=60, lr=2e-3, batch=64, optimiser="adam", rng=rng())
    return train, test, seed


@cache
def walked(lam: float) -> tuple[float, float, float, float]:
    """NLL together, disagreement, mean L1 distance from the seed, and accuracy of a member right after the escape."""
    train, test, seed = clouds()
    escaped: list[float] = []
    plain = fit

    def watched(net: nn.Module, *args: object, after_backward: Callable[[], None] | None, **rest: object) -> None:
        plain(net, *args, after_backward=after_backward, **rest)  # type: ignore[arg-type]
        if after_backward is not None:
            escaped.append(accuracy(net, test))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "fit", watched)
        nets = fast_ensemble(seed, train, members=4, escape=40, settle=40, lam=lam, lr=2e-3, batch=64, rng=rng())
    ensemble = Ensemble(nets).eval()
    with torch.no_grad():
        nll = float(F.cross_entropy(ensemble(test.x), test.y))
        spread = float(ensemble.members(test.x).softmax(-1).std(0, correction=0).mean())
    far = float(torch.stack([(flat(net) - flat(seed)).abs().mean() for net in nets[1:]]).mean())
    return nll, spread, far, float(np.mean(escaped))


def accuracy(net: nn.Module, data: Held) -> float:
    with torch.no_grad():
        return float((net(data.x).argmax(1) == data.y).float().mean())


def test_more_lambda_makes_members_that_differ_more_and_together_know_more() -> None:
    _, test, seed = clouds()
    with torch.no_grad():
        alone = float(F.cross_entropy(seed(test.x), test.y))
    none, some, much = (walked(lam) for lam in (0.0, 50.0, 500.0))
    assert much[0] < some[0]
    assert much[0] < 0.95 * alone
    assert none[0] > much[0] + 0.5 * (alone - much[0])  # lambda 0 is more training, and no gain to speak of
    assert none[1] < some[1] < much[1]
    assert none[2] < some[2] < much[2]


def test_the_escape_costs_accuracy_and_settling_brings_it_back() -> None:
    train, test, seed = clouds()
    nets = fast_ensemble(seed, train, members=3, escape=40, settle=40, lam=500.0, lr=2e-3, batch=64, rng=rng())
    after = np.mean([accuracy(net, test) for net in nets[1:]])
    assert walked(500.0)[3] < walked(0.0)[3] - 0.02
    assert after > walked(500.0)[3] + 0.01


def test_no_weight_moves_further_than_the_rate_allows() -> None:
    """Adam's steps are about as long as its rate, so that the distance saturates near rate times steps."""
    train, _, seed = clouds()
    far = fast_ensemble(seed, train, members=2, escape=30, settle=1, lam=1e6, lr=1e-3, batch=64, rng=rng())[1]
    assert float((flat(far) - flat(seed)).abs().max()) < 2 * 31 * 1e-3
    assert float((flat(far) - flat(seed)).abs().mean()) > 0.5 * 30 * 1e-3


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"members": 0}, "members=0, escape=1, settle=1; it wants at least 1"),
        ({"escape": 0}, "escape=0"),
        ({"settle": -1}, "settle=-1"),
        ({"lam": -1.0}, "lam=-1.0 is no weight"),
        ({"lam": float("nan")}, "lam=nan"),
    ],
)
def test_bad_settings_are_refused(change: dict[str, float], words: str) -> None:
    given = {"members": 2, "escape": 1, "settle": 1, **change}
    with pytest.raises(AssayError, match=words):
        fast_ensemble(toy_net(), toy(), rng=rng(), **given)  # type: ignore[arg-type]
    with pytest.raises(AssayError, match="0 inputs"):
        fast_ensemble(toy_net(), toy(0), members=2, escape=1, settle=1, rng=rng())
