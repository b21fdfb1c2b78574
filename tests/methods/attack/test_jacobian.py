from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.testing import assert_close

from assay.errors import AssayError
from assay.methods.attack import jacobian as module
from assay.methods.attack.jacobian import (
    frobenius_estimate,
    jacobian,
    published_bound,
    right_similarity,
    similarity,
    stacked_frobenius,
    stacked_spectral,
)

from .conftest import Task


@pytest.fixture(scope="module")
def net() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 5), nn.Tanh()
        )
    return model.double().requires_grad_(False)


@pytest.fixture(scope="module")
def pictures() -> Tensor:
    return torch.rand(7, 2, 6, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def random_jacobians(n: int, seed: int = 0) -> Tensor:
    return torch.randn(n, 3, 2, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_jacobian_is_that_of_torch_func(net: nn.Module, pictures: Tensor) -> None:
    one_by_one = torch.stack([torch.func.jacrev(lambda t: net(t[None])[0])(x) for x in pictures])
    assert_close(jacobian(net, pictures), one_by_one)
    assert jacobian(net, pictures).shape == (7, 5, 2, 6, 6)


def test_parameters_collect_no_gradient(digits: Task) -> None:
    jacobian(digits.model, digits.x[:5])
    stacked_spectral(digits.model, digits.x[:5])
    assert all(p.grad is None for p in digits.model.parameters())


def test_the_estimate_is_unbiased_and_its_variance_falls_with_the_projections(digits: Task) -> None:
    """Many copies of one input are as many draws; the mean is the exact norm within 4 standard errors."""
    draws = 6000
    x = digits.x[:1].double().expand(draws, -1).clone().requires_grad_()
    model = copy.deepcopy(digits.model).double()
    exact = float(jacobian(model, x[:1]).square().sum())
    spread = {}
    for count in (1, 4):
        rng = torch.Generator().manual_seed(count)
        found = frobenius_estimate(model(x), x, projections=count, rng=rng).detach()
        assert abs(float(found.mean()) - exact) < 4 * float(found.std()) / draws**0.5
        spread[count] = float(found.var())
    assert spread[1] / spread[4] == pytest.approx(4, rel=0.15)
    assert spread[1] ** 0.5 > 0.2 * exact  # one projection is a real gamble: the test above could have failed


def test_the_estimate_can_be_differentiated_twice_over(rng: torch.Generator) -> None:
    """f(x) = W x: the estimate is c ||v'W||^2, and its mean gradient by W is that of ||W||_F^2, which is 2 W."""
    w = torch.randn(4, 6, generator=rng, dtype=torch.float64, requires_grad=True)
    x = torch.rand(20_000, 6, generator=rng, dtype=torch.float64, requires_grad=True)
    found = frobenius_estimate(x @ w.T, x, rng=rng).mean()
    (slope,) = torch.autograd.grad(found, w)
    assert found.item() == pytest.approx(w.square().sum().item(), rel=0.03)
    assert_close(slope, 2 * w.detach(), rtol=0, atol=0.15)


def test_all_that_is_known_of_a_linear_model(rng: torch.Generator) -> None:
    w = torch.randn(4, 6, generator=rng, dtype=torch.float64)
    x = torch.rand(9, 6, generator=rng, dtype=torch.float64)

    def model(t: Tensor) -> Tensor:
        return t @ w.T

    j = jacobian(model, x)
    assert_close(j, w.expand(9, 4, 6))
    assert_close(similarity(j, j), torch.ones(9, 9, dtype=torch.float64))
    assert_close(right_similarity(j, j), torch.ones(9, 9, dtype=torch.float64))
    assert stacked_frobenius(j) == pytest.approx(3 * float(torch.linalg.matrix_norm(w)))
    assert stacked_spectral(model, x).norm == pytest.approx(3 * float(torch.linalg.matrix_norm(w, 2)))
    # alike in everything, the printed expansion and the bound meet
    assert stacked_frobenius(j, as_published=True) == pytest.approx(published_bound(j))


def test_stacking_adds_squares_and_has_no_cross_terms(net: nn.Module, pictures: Tensor) -> None:
    j = jacobian(net, pictures)
    stacked = j.flatten(2).flatten(0, 1)  # n c x d, literally on top of each other
    assert stacked_frobenius(j) == pytest.approx(float(torch.linalg.matrix_norm(stacked)))
    assert stacked_frobenius(j) ** 2 == pytest.approx(sum(float(one.square().sum()) for one in j))
    pairs = sum(float((a * b).sum()) for a in j for b in j)
    assert stacked_frobenius(j, as_published=True) ** 2 == pytest.approx(pairs)
    assert abs(stacked_frobenius(j) - stacked_frobenius(j, as_published=True)) > 0.01


def test_no_change_moves_the_logits_further_than_the_spectral_norm(net: nn.Module, pictures: Tensor) -> None:
    j = jacobian(net, pictures)
    stacked = j.flatten(2).flatten(0, 1)
    norm, way = stacked_spectral(net, pictures, batch=3)
    assert norm == pytest.approx(float(torch.linalg.matrix_norm(stacked, 2)))
    assert float((stacked @ way.flatten()).norm()) == pytest.approx(norm)
    assert float(way.norm()) == pytest.approx(1)
    assert norm <= stacked_frobenius(j) <= published_bound(j)
    rng = torch.Generator().manual_seed(0)
    for _ in range(50):
        delta = torch.randn(72, generator=rng, dtype=torch.float64)
        moved = float((stacked @ delta).norm())
        assert moved <= norm * float(delta.norm()) * (1 + 1e-9)
        assert moved <= norm * 72**0.5 * float(delta.abs().max())  # in l_inf: the root of the number of features


def test_power_iteration_finds_the_same_and_never_more(
    net: nn.Module, pictures: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    exact = stacked_spectral(net, pictures)
    monkeypatch.setattr(module, "GRAM_FEATURES", 0)
    found = stacked_spectral(net, pictures, batch=3)
    assert found.norm == pytest.approx(exact.norm, rel=1e-4)
    assert found.norm <= exact.norm * (1 + 1e-9)
    assert abs(float((found.direction * exact.direction).sum())) > 0.99
    assert stacked_spectral(net, pictures, rounds=1).norm < exact.norm


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 1000), scale=st.floats(0.01, 100))
def test_similarities_are_cosines(seed: int, scale: float) -> None:
    a, b = random_jacobians(4, seed), random_jacobians(3, seed + 5000)
    for sim, lowest in ((similarity, -1), (right_similarity, 0)):
        s = sim(a, b)
        assert s.shape == (4, 3)
        assert ((s >= lowest) & (s <= 1)).all()
        assert_close(s, sim(b, a).T)
        assert_close(sim(a * scale, b), s)
        assert_close(sim(a, a).diagonal(), torch.ones(4, dtype=torch.float64))
    assert_close(similarity(-a, b), -similarity(a, b))
    assert_close(right_similarity(-a, b), right_similarity(a, b))


def test_similarities_are_those_of_the_equations() -> None:
    a, b = random_jacobians(4).flatten(2), random_jacobians(5, 1).flatten(2)
    for i in range(4):
        for k in range(5):
            cosine = (a[i] * b[k]).sum() / (a[i].norm() * b[k].norm())
            assert_close(similarity(a, b)[i, k], cosine)
            left, right = a[i].T @ a[i], b[k].T @ b[k]
            assert_close(
                right_similarity(a, b, batch=2)[i, k], torch.trace(left @ right) / (left.norm() * right.norm())
            )


def test_sharing_input_directions_and_nothing_else() -> None:
    """J_1 = u v', J_2 = w v' with u and w at right angles: one change moves both, and the paper's measure is 0."""
    v = torch.randn(6, generator=torch.Generator().manual_seed(0))
    u, w = torch.eye(3)[:2]
    first, second = (u[:, None] * v)[None], (w[:, None] * v)[None]
    assert float(similarity(first, second)) == 0
    assert float(right_similarity(first, second)) == pytest.approx(1)
    half = torch.linalg.qr(torch.randn(6, 6, generator=torch.Generator().manual_seed(1)))[0]
    assert float(right_similarity(half[None, :3], half[None, 3:])) == pytest.approx(0, abs=1e-6)


def test_a_flat_model_is_similar_to_nothing() -> None:
    flat = torch.zeros(1, 3, 4)
    other = torch.ones(1, 3, 4)
    assert float(similarity(flat, other)) == float(right_similarity(flat, other)) == 0


def test_what_cannot_be_done_is_refused_in_words(rng: torch.Generator) -> None:
    x = torch.rand(3, 4, requires_grad=True)
    with pytest.raises(AssayError, match="carry no gradient to the input"):
        jacobian(lambda t: t.detach()[:, :2], x)
    with pytest.raises(AssayError, match="projections >= 1, got 0"):
        frobenius_estimate(x[:, :2] * 1, x, projections=0, rng=rng)
    with pytest.raises(AssayError, match="got 0 inputs"):
        stacked_spectral(lambda t: t[:, :2], x[:0])
