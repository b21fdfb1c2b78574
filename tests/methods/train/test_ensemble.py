"""The naive ensemble: together or one after the other, every net is what `fit` makes of it."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.testing import assert_close

from assay.errors import AssayError
from assay.methods.train.ensemble import SideBySide, Stacked, fit_ensemble, is_faster_together
from assay.methods.train.fit import Optimiser, fit, reset


@dataclass(frozen=True)
class Held:
    x: Tensor
    y: Tensor

    def __len__(self) -> int:
        return len(self.x)

    def take(self, index: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        return self.x[index], self.y[index]


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def blobs(n: int = 60, seed: int = 0) -> Held:
    y = torch.arange(n) % 3
    return Held(torch.randn(n, 5, generator=rng(seed)) + 2 * F.one_hot(y, 5), y)


def images(n: int = 24) -> Held:
    return Held(torch.randn(n, 2, 6, 6, generator=rng(5)), torch.arange(n) % 3)


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3))


def cnn() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 4, 2), nn.Flatten(),
        nn.Linear(4, 3),
    )  # fmt: skip


@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
@pytest.mark.parametrize("kind", ["mlp", "cnn"])
def test_together_each_net_is_what_fit_makes_of_it_alone(kind: str, optimiser: Optimiser) -> None:
    """In float64, so that only rounding may differ; with batch normalisation, whose statistics each net keeps."""
    model, data = (mlp(), blobs()) if kind == "mlp" else (cnn(), images())
    model, data = model.double(), Held(data.x.double(), data.y)
    nets = fit_ensemble(
        model, data, members=3, epochs=3, lr=0.02, batch=7, weight_decay=0.01, optimiser=optimiser, rng=rng(),
        vectorised=True,
    )  # fmt: skip
    shared = rng()
    streams = [rng(int(torch.randint(2**62, (), generator=shared))) for _ in range(3)]
    for net, stream in zip(nets, streams, strict=True):
        alone = reset(model, stream)
        order = torch.randperm(len(data), generator=stream)
        again = torch.Generator()
        again.set_state(shared.get_state())
        fit(
            alone, Held(data.x[order], data.y[order]), epochs=3, lr=0.02, batch=7, weight_decay=0.01,
            optimiser=optimiser, rng=again,
        )  # fmt: skip
        assert_close(dict(net.state_dict()), dict(alone.state_dict()), rtol=1e-9, atol=1e-10)
        assert int(net.get_buffer("1.num_batches_tracked")) == 3 * -(-len(data) // 7)


@pytest.mark.parametrize("vectorised", [True, False])
def test_members_differ_a_seed_repeats_them_and_the_model_stays(vectorised: bool) -> None:
    model = mlp()
    before = copy.deepcopy(model.state_dict())
    state = torch.get_rng_state()

    def trained(seed: int) -> list[nn.Module]:
        return fit_ensemble(model, blobs(), members=3, epochs=2, lr=0.1, batch=16, rng=rng(seed), vectorised=vectorised)

    nets, again, other = trained(0), trained(0), trained(1)
    assert torch.equal(torch.get_rng_state(), state)
    assert_close(dict(model.state_dict()), dict(before), rtol=0, atol=0)
    first = [net.get_parameter("0.weight") for net in nets]
    assert min(float((first[i] - first[j]).detach().abs().max()) for i, j in ((0, 1), (0, 2), (1, 2))) > 0.05
    for one, two, three in zip(nets, again, other, strict=True):
        assert_close(dict(one.state_dict()), dict(two.state_dict()), rtol=0, atol=0)
        assert not torch.equal(one.get_parameter("0.weight"), three.get_parameter("0.weight"))
        assert all(p.grad is None for p in one.parameters())
        assert [p.shape for p in one.parameters()] == [p.shape for p in model.parameters()]
        assert [m.training for m in one.modules()] == [m.training for m in model.modules()]


def test_both_ways_learn_the_digits_equally_well() -> None:
    x, y = load_digits(return_X_y=True)
    whole = Held(torch.tensor(x / 16, dtype=torch.float32), torch.tensor(y))
    train, test = Held(whole.x[:1300], whole.y[:1300]), Held(whole.x[1300:], whole.y[1300:])
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    scores = []
    for vectorised in (True, False):
        nets = fit_ensemble(model, train, members=4, epochs=8, lr=0.1, batch=64, rng=rng(), vectorised=vectorised)
        with torch.no_grad():
            scores.append([float((net(test.x).argmax(1) == test.y).float().mean()) for net in nets])
    together, alone = np.mean(scores, axis=1)
    assert min(together, alone) > 0.9
    assert abs(together - alone) < 0.02


def test_every_member_sees_every_row_once_an_epoch_in_an_order_of_its_own() -> None:
    data = Held(torch.arange(20.0)[:, None], torch.arange(20))
    rows = SideBySide.of(data, [rng(1), rng(2)])
    x, y = rows.take(np.arange(20))
    assert x.shape == (20, 2, 1)
    assert torch.equal(x[..., 0].long(), y)
    for member in range(2):
        assert torch.equal(y[:, member].sort().values, torch.arange(20))
    assert not torch.equal(y[:, 0], y[:, 1])


@pytest.mark.parametrize("vectorised", [True, False])
def test_epochs_are_told_with_the_number_of_nets_and_their_mean_loss(vectorised: bool) -> None:
    told: list[tuple[int, float]] = []
    fit_ensemble(
        nn.Linear(5, 3), blobs(), members=2, epochs=3, lr=1e-6, rng=rng(), vectorised=vectorised,
        on_epoch=lambda nets, loss: told.append((nets, loss)),
    )  # fmt: skip
    assert [nets for nets, _ in told] == ([2] * 3 if vectorised else [1] * 6)
    assert all(0.5 < loss < 3 for _, loss in told)


def test_augment_and_loss_get_rows() -> None:
    shapes = set()

    def augment(x: Tensor, y: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        shapes.add(tuple(x.shape[1:]))
        return x + torch.rand(x.shape, generator=generator), F.one_hot(y, 3).float()

    def loss(out: Tensor, y: Tensor) -> Tensor:
        shapes.add(tuple(out.shape[1:]))
        return F.cross_entropy(out, y)

    fit_ensemble(mlp(), blobs(), members=4, epochs=1, lr=0.1, rng=rng(), loss=loss, augment=augment, vectorised=True)
    assert shapes == {(5,), (3,)}


def test_dropout_differs_between_the_members() -> None:
    """Two members with the same weights on the same rows: only their masks differ."""
    net = nn.Sequential(nn.Dropout(0.5), nn.Identity())
    net.register_parameter("unused", nn.Parameter(torch.zeros(1)))
    out = Stacked([net, copy.deepcopy(net)])(torch.ones(8, 2, 30))
    assert not torch.equal(out[:, 0], out[:, 1])


def test_in_a_gap_of_the_data_the_members_differ_more_than_on_it() -> None:
    x = torch.cat([torch.linspace(-2, -1, 40), torch.linspace(1, 2, 40)])[:, None]
    data = Held(x, torch.sin(3 * x))
    net = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 1))
    nets = fit_ensemble(
        net, data, members=8, epochs=100, lr=0.02, batch=20, optimiser="adam", loss=F.mse_loss, rng=rng()
    )
    with torch.no_grad():
        spread = torch.stack([each(torch.tensor([[0.0], [-1.5], [1.5]])) for each in nets]).std(0)[:, 0]
    assert float(spread[0]) > 3 * float(spread[1:].max())


class Looks(nn.Module):
    """Decides by its numbers, which no stack of nets can."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:  # n 5 -> n 3
        out: Tensor = self.line(x)
        return out if out.sum() > 0 else -out


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(5, 5), nn.Linear(5, 5)
        self.b.weight = self.a.weight

    def forward(self, x: Tensor) -> Tensor:  # n 5 -> n 5
        out: Tensor = self.b(self.a(x))
        return out


@pytest.mark.parametrize(
    ("net", "why"), [(Looks(), "cannot be trained together"), (Twice(), "share a parameter cannot be stacked")]
)
def test_nets_that_cannot_be_stacked_are_trained_one_after_the_other(net: nn.Module, why: str) -> None:
    nets = fit_ensemble(net, blobs(), members=2, epochs=1, lr=0.1, rng=rng())
    assert len(nets) == 2
    with pytest.raises(AssayError, match=f"{why}.*vectorised=False"):
        fit_ensemble(net, blobs(), members=2, epochs=1, lr=0.1, rng=rng(), vectorised=True)


def test_which_nets_are_worth_training_together() -> None:
    """Products are counted, whatever the layers are called."""
    assert is_faster_together(mlp(), blobs().x[:1])
    assert is_faster_together(cnn(), images().x[:1])
    wide = nn.Conv2d(2, 50, 3, bias=False)
    for side, few in ((16, True), (17, False)):  # 50 x 18 products in (side - 2)^2 places
        assert is_faster_together(wide, torch.zeros(1, 2, side, side)) is few


def test_no_member_and_no_data_are_refused() -> None:
    with pytest.raises(AssayError, match="0 inputs"):
        fit_ensemble(mlp(), blobs(0), members=2, epochs=1, lr=0.1, rng=rng())
    with pytest.raises(AssayError, match="members=0; it wants at least 1"):
        fit_ensemble(mlp(), blobs(), members=0, epochs=1, lr=0.1, rng=rng())
