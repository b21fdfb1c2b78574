from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.testing import assert_close

from assay.data.arrays import Arrays
from assay.errors import AssayError
from assay.methods.attack.jacobian import jacobian
from assay.methods.attack.universal import error_rate, universal
from assay.methods.train.fit import fit
from assay.methods.train.jacobian_regularization import JacobianRegularizer


@pytest.fixture(scope="module")
def data() -> dict[str, Arrays]:
    x, y = load_digits(return_X_y=True)
    x = (x / 16).astype(np.float32)
    order = np.random.default_rng(0).permutation(len(x))
    return {"train": Arrays(x[order[:1200]], y[order[:1200]]), "test": Arrays(x[order[1200:]], y[order[1200:]])}


def mlp() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 10))


def trained(data: dict[str, Arrays], lam: float, epochs: int = 15) -> nn.Module:
    model, priced = mlp(), JacobianRegularizer(lam)
    rng = torch.Generator().manual_seed(0)
    fit(model, data["train"], epochs=epochs, lr=0.1, rng=rng, loss=priced.loss, augment=priced.augment)
    return model.eval().requires_grad_(False)


def test_the_loss_is_the_printed_sum() -> None:
    """Written naively: the same directions from the same seed, Jacobians by torch.func, one input at a time."""
    model = mlp().double()
    x, y = torch.rand(6, 64, dtype=torch.float64), torch.arange(6)
    priced = JacobianRegularizer(0.3, projections=2)
    watched, same_y = priced.augment(x, y, torch.Generator().manual_seed(4))
    got = priced.loss(model(watched), same_y)
    rng, penalty = torch.Generator().manual_seed(4), 0.0
    exact = [torch.func.jacrev(model)(one) for one in x]  # 10 64 each
    for _ in range(2):
        v = torch.randn(6, 10, generator=rng, dtype=torch.float64)
        for i in range(6):
            penalty += 10 * (v[i] / v[i].norm() @ exact[i]).square().sum().item() / 2 / 6
    assert got.item() == pytest.approx(F.cross_entropy(model(x), y).item() + 0.3 / 2 * penalty)


def test_on_a_linear_model_it_is_plain_weight_decay() -> None:
    w = torch.randn(3, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64, requires_grad=True)
    x = torch.rand(30_000, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    y = torch.zeros(len(x), dtype=torch.long)
    slopes = []
    for lam in (0.0, 0.4):
        priced = JacobianRegularizer(lam)
        at, _ = priced.augment(x, y, torch.Generator().manual_seed(2))
        slopes.append(torch.autograd.grad(priced.loss(at @ w.T, y), w)[0])
    assert_close(slopes[1] - slopes[0], 0.4 * w.detach(), rtol=0, atol=0.02)


def test_without_weight_it_is_plain_training(data: dict[str, Arrays]) -> None:
    plain = mlp()
    fit(plain, data["train"], epochs=2, lr=0.1, rng=torch.Generator().manual_seed(0))
    priced = trained(data, 0.0, epochs=2)
    assert_close(list(priced.parameters()), list(plain.parameters()), rtol=1e-4, atol=1e-5)


def test_more_of_it_flattens_the_model_and_blunts_the_universal_change(data: dict[str, Arrays]) -> None:
    """Up to a point: on 8 x 8 pixels a tenth of the paper's weight does what it says, ten times it only costs."""
    x, y = data["train"].take(np.arange(1200))
    test_x, test_y = data["test"].take(np.arange(597))
    sizes, clean, broken = [], [], []
    for lam in (0.0, 0.005, 0.02, 0.5):
        model = trained(data, lam)
        sizes.append(float(jacobian(model, test_x[:100]).square().sum((1, 2)).mean()))
        clean.append(error_rate(model, test_x, test_y, torch.zeros(64)))
        delta = universal(model, x, y, radius=0.2, steps=30, batch=100).delta
        broken.append(error_rate(model, test_x, test_y, delta))
    assert sizes[0] > 2 * sizes[1] > 4 * sizes[2] > 8 * sizes[3]
    assert broken[0] > broken[1] > broken[2] + 0.05
    assert clean[2] < clean[0] + 0.04
    assert clean[3] > clean[0] + 0.08


def test_it_goes_through_batch_normalisation_and_convolutions() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
                              nn.Linear(36, 3))  # fmt: skip
    before = copy.deepcopy(model.state_dict())
    rng, priced = torch.Generator().manual_seed(0), JacobianRegularizer(0.1)
    x = torch.rand(40, 1, 8, 8, generator=rng)
    curve = fit(
        model, Arrays(x, torch.arange(40) % 3), epochs=3, lr=0.05, rng=rng, loss=priced.loss, augment=priced.augment
    )
    assert all(np.isfinite(curve.epochs))
    assert any(not torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())


def test_what_cannot_be_done_is_refused_in_words(data: dict[str, Arrays]) -> None:
    with pytest.raises(AssayError, match="lam=-1 is no weight"):
        JacobianRegularizer(-1)
    with pytest.raises(AssayError, match="projections=0 estimate nothing"):
        JacobianRegularizer(0.1, projections=0)
    with pytest.raises(AssayError, match="pass `augment` of this regulariser to fit too"):
        fit(mlp(), data["train"], epochs=1, lr=0.1, rng=torch.Generator(), loss=JacobianRegularizer(0.1).loss)
