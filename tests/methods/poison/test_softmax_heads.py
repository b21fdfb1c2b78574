"""Last layers learnt anew: the minimum of a convex loss, many at once, against scikit-learn and one at a time."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch.testing import assert_close

from assay.errors import AssayError, ShapeError
from assay.methods.poison.head import Scaling, fit_heads, hessian_solve


def drawn(n: int, d: int, classes: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(n, d, generator=rng, dtype=torch.float64)
    return x, (x[:, :classes] + 0.5 * torch.randn(n, classes, generator=rng, dtype=torch.float64)).argmax(1)


def loss(w: torch.Tensor, x: torch.Tensor, y: torch.Tensor, ridge: float) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(x @ w, y) + ridge / 2 * w.square().sum()


@pytest.mark.parametrize("classes", [2, 4])
def test_each_layer_is_the_minimum_of_its_loss(classes: int) -> None:
    x, y = drawn(60, 5, classes)
    several = torch.stack([y, y.roll(1), (y + 1) % classes])
    found = fit_heads(x, several, classes, ridge=0.01)
    for w, labels in zip(found, several, strict=True):
        w.requires_grad_(True)
        (slope,) = torch.autograd.grad(loss(w, x, labels, 0.01), w)
        assert float(slope.norm()) < 1e-7


def test_it_is_the_layer_that_scikit_learn_finds() -> None:
    x, y = drawn(80, 4, 3)
    ours = fit_heads(x, y[None], 3, ridge=0.02)[0]
    theirs = LogisticRegression(C=1 / (0.02 * 80), fit_intercept=False, tol=1e-10, max_iter=5000).fit(x, y)
    assert_close(ours, torch.from_numpy(theirs.coef_.T.copy()), rtol=0, atol=1e-5)


def test_many_together_are_each_alone_wherever_they_start() -> None:
    x, y = drawn(50, 6, 3, seed=1)
    several = torch.stack([y, y.flip(0)])
    together = fit_heads(x, several, 3, ridge=1e-3, start=together_start(x, y))
    alone = torch.cat([fit_heads(x, each[None], 3, ridge=1e-3) for each in several])
    assert_close(together, alone, rtol=0, atol=1e-4)


def together_start(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return fit_heads(x, y[None], 3, ridge=1.0)[0]


def test_the_hessian_is_solved_with() -> None:
    x, y = drawn(40, 4, 3, seed=2)
    w = fit_heads(x, y[None], 3, ridge=0.01)[0]
    hessian = torch.autograd.functional.hessian(lambda v: loss(v, x, y, 0.01), w).reshape(12, 12)
    right = torch.randn(4, 3, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    right -= right.mean(1, keepdim=True)
    expected = torch.linalg.solve(hessian, right.flatten()).reshape(4, 3)
    assert_close(hessian_solve(x, w, right, ridge=0.01), expected, rtol=1e-7, atol=1e-9)


def test_features_that_never_change_and_scales_do_not_matter() -> None:
    x, _ = drawn(30, 3, 2)
    wide = torch.cat([x, torch.full((30, 1), 7.0, dtype=torch.float64)], 1)
    scaled = Scaling.of(wide)(wide)
    assert_close(scaled.mean(0), torch.tensor([0.0, 0, 0, 0, 1]).double(), rtol=0, atol=1e-12)
    assert_close(scaled[:, :3].square().mean(0), torch.full((3,), 0.25).double())
    assert float(scaled[:, 3].abs().max()) == 0
    assert_close(Scaling.of(1000 * wide - 5)(1000 * wide - 5), scaled, rtol=1e-9, atol=1e-9)


def test_what_is_no_labelling_is_refused() -> None:
    x, y = drawn(10, 3, 2)
    with pytest.raises(ShapeError, match=r"shape \(10,\) for 10 inputs; it wants one labelling or more, \(r, 10\)"):
        fit_heads(x, y, 2, ridge=0.1)
    with pytest.raises(AssayError, match="ridge=0; give a number above 0"):
        fit_heads(x, y[None], 2, ridge=0)


def test_separable_inputs_have_a_layer_too() -> None:
    x = torch.tensor(np.linspace(-1, 1, 20)).reshape(-1, 1)
    y = (x[:, 0] > 0).long()
    w = fit_heads(x, y[None], 2, ridge=1e-6)[0]
    assert bool(((x @ w).argmax(1) == y).all())
