from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.testing import assert_close

from assay.errors import AssayError
from assay.methods.train.fit import fit
from assay.methods.train.sgld import sgld
from assay.nn.members import Ensemble


class Plain:
    """Rows of a tensor and their targets."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.x)

    def take(self, index: NDArray[Any]) -> tuple[Tensor, Tensor]:
        return self.x[index], self.y[index]


class Means(nn.Module):
    """So many unknown means, each a chain of its own."""

    def __init__(self, chains: int) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(chains))

    def forward(self, x: Tensor) -> Tensor:  # n 1 -> n k
        return self.w.expand(len(x), -1)


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def squared(out: Tensor, y: Tensor) -> Tensor:
    """-log of a Gaussian likelihood of variance 1 for each chain, up to a constant; chains are independent."""
    return (out - y).square().sum(1).mean() / 2


def gaussian(n: int = 10) -> Plain:
    return Plain(torch.zeros(n, 1), 0.7 + torch.randn(n, 1, generator=rng(1)))


def chains(lr: float, *, temperature: float = 1.0, weight_decay: float = 0.5, epochs: int = 80) -> Tensor:
    model = Means(10_000)
    sgld(
        model,
        gaussian(),
        samples=1,
        every=epochs,
        lr=lr,
        decay=0.0,
        temperature=temperature,
        weight_decay=weight_decay,
        batch=10,  # the whole set: no noise but Langevin's
        loss=squared,
        rng=rng(2),
    )
    return model.w.detach()


def test_the_variance_of_a_gaussian_posterior_is_approached_as_the_step_shrinks() -> None:
    n, decay = 10, 0.5
    precision = n * (1 + decay)
    errors = []
    for lr in (0.8, 0.3, 0.04):
        w = chains(lr, weight_decay=decay)
        assert float(w.mean()) == pytest.approx(float(gaussian().y.mean()) / (1 + decay), abs=0.01)
        # the linear recursion has the stationary variance 1 / (h (1 - e h / 4)), with e = 2 lr / n and h the precision
        exact = 1 / (precision * (1 - lr * (1 + decay) / 2))
        assert float(w.var()) == pytest.approx(exact, rel=0.05)
        errors.append(abs(float(w.var()) * precision - 1))
    assert errors[0] > errors[1] > errors[2]
    assert errors[2] < 0.08


def test_temperature_scales_the_variance() -> None:
    assert float(chains(0.1, temperature=0.25).var() / chains(0.1).var()) == pytest.approx(0.25, rel=0.05)


def classifier(seed: int = 0) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


def rows(n: int = 64) -> Plain:
    return Plain(torch.randn(n, 5, generator=rng()), torch.randint(3, (n,), generator=rng(1)))


def test_without_noise_it_is_sgd() -> None:
    cold, plain = classifier(), classifier()
    same: dict[str, Any] = {"lr": 0.1, "weight_decay": 0.01, "batch": 16}
    sgld(cold, rows(), samples=3, decay=0.0, temperature=0.0, rng=rng(), **same)
    fit(plain, rows(), epochs=3, momentum=0.0, schedule="constant", rng=rng(), **same)
    for ours, theirs in zip(cold.state_dict().values(), plain.state_dict().values(), strict=True):
        assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def test_steps_decrease_as_stated_and_the_priors_with_them() -> None:
    model, data = Means(3), gaussian()
    model.w.data = torch.tensor([1.0, -2.0, 0.5])
    w = model.w.detach().clone().double()
    sgld(model, data, samples=4, lr=0.2, decay=0.7, temperature=0.0, weight_decay=0.3, batch=5, loss=squared, rng=rng())
    shuffle = torch.Generator().manual_seed(int(torch.randint(2**62, (), generator=rng())))
    t = 0
    for _ in range(4):
        for index in torch.randperm(10, generator=shuffle).tensor_split(2):
            gradient = w - data.y[index].double().mean() + 0.3 * w
            w = w - 0.2 * (1 + t / 2) ** -0.7 * gradient  # two steps an epoch
            t += 1
    assert_close(model.w.detach().double(), w, rtol=1e-5, atol=1e-6)


def test_noise_has_the_size_of_its_step() -> None:
    model, still = Means(50_000), Plain(torch.zeros(10, 1), torch.zeros(10, 1))
    nets = sgld(model, still, samples=3, lr=0.05, decay=0.6, batch=10, loss=lambda out, y: 0 * out.sum(), rng=rng())
    walk = [torch.zeros(50_000)] + [net.get_parameter("w").detach() for net in nets.nets]
    for t in range(3):
        want = math.sqrt(2 * 0.05 / 10 * (1 + t) ** -0.6)
        assert float((walk[t + 1] - walk[t]).std()) == pytest.approx(want, rel=0.02)


def test_it_keeps_a_net_each_few_epochs_the_last_at_the_end() -> None:
    model, told = classifier(), []
    kept = sgld(
        model, rows(), samples=3, every=2, lr=0.05, batch=16, rng=rng(), on_epoch=lambda e, loss: told.append(e)
    )
    assert isinstance(kept, Ensemble)
    assert told == [1, 2, 3, 4, 5, 6]
    assert len(kept.nets) == 3
    assert not any(m.training for m in kept.modules())
    weights = [net.state_dict() for net in kept.nets]
    assert all(torch.equal(t, weights[2][name]) for name, t in model.state_dict().items())
    assert not torch.equal(weights[0]["0.weight"], weights[1]["0.weight"])
    assert not torch.equal(weights[0]["1.running_mean"], weights[1]["1.running_mean"])  # statistics of their moment


def test_a_seed_gives_the_same_nets_and_frozen_weights_stay() -> None:
    model = classifier()
    model.get_parameter("0.weight").requires_grad_(False)
    again = copy.deepcopy(model)
    before = model.get_parameter("0.weight").clone()
    first, second = (sgld(m, rows(), samples=2, lr=0.05, rng=rng(3)) for m in (model, again))
    assert torch.equal(model.get_parameter("0.weight"), before)
    x = rows().x
    assert torch.equal(first.members(x), second.members(x))
    assert float(first.members(x).std(0).mean()) > 0


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ({"samples": 0}, "samples=0"),
        ({"every": 0}, "every=0"),
        ({"temperature": -1.0}, "temperature=-1.0"),
        ({"decay": 2.0}, "decay=2.0"),
        ({"lr": 0.0}, "lr=0.0"),
    ],
)
def test_bad_settings_are_refused(bad: dict[str, Any], words: str) -> None:
    settings: dict[str, Any] = {"samples": 1, "lr": 0.1, **bad}
    with pytest.raises(AssayError, match=words):
        sgld(classifier(), rows(), rng=rng(), **settings)


def test_an_empty_set_is_refused() -> None:
    with pytest.raises(AssayError, match="0 inputs"):
        sgld(classifier(), Plain(torch.zeros(0, 5), torch.zeros(0)), samples=1, lr=0.1, rng=rng())
