from __future__ import annotations

import functools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from sklearn.datasets import load_wine
from torch.testing import assert_close

from assay.errors import AssayError, ShapeError
from assay.methods.certify import nearest
from assay.methods.train import arml as module
from assay.methods.train.arml import LOSSES, Learned, arml, descent, leave_one_out, margin
from assay.nn.nearest_neighbour import NearestNeighbour

seeds = st.integers(0, 10**6)
quick = settings(deadline=None, max_examples=15)


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def triplets(seed, n=6, d=4):
    g = rng(seed)
    return *(torch.rand(n, d, generator=g).double() for _ in range(3)), torch.randn(d, d, generator=g).double()


def cloud(seed, n=18, d=3, classes=3):
    g = rng(seed)
    y = torch.arange(n) % classes
    x = torch.rand(n, d, generator=g).double() + 0.3 * y[:, None]
    return x, y, torch.randn(d, d, generator=g).double()


def away(a, b, m):
    return float((a - b) @ m @ (a - b))


def naive(x, y, m, k):
    """Eq. 3.47's inner min and max, one triplet at a time."""
    bounds = []
    for t in range(len(x)):
        per_other = []
        for j in range(len(x)):
            if y[j] == y[t]:
                continue
            ratios = []
            for i in range(len(x)):
                if i != t and y[i] == y[t]:
                    w = m @ (x[i] - x[j])
                    ratios.append((away(x[t], x[j], m) - away(x[t], x[i], m)) / (2 * float((w @ w) ** 0.5)))
            per_other.append(sorted(ratios, reverse=True)[(k + 1) // 2 - 1])
        bounds.append(sorted(per_other)[(k + 1) // 2 - 1])
    return torch.tensor(bounds, dtype=torch.float64)


@functools.cache
def toy(seed):
    """Six features of which the first alone decides; 200 points to learn from, 1000 to ask about."""
    x = torch.rand(1200, 6, generator=rng(seed))
    y = (x[:, 0] > 0.5).long()
    learned = arml(x[:200], y[:200], rng=rng(seed), epochs=300, lr=0.003)
    return x[:200], y[:200], x[200:], y[200:], learned


# the triplet


@quick
@given(seeds)
def test_the_triplet_is_the_ratio_of_the_print(seed):
    x, same, other, g = triplets(seed)
    m = g.T @ g
    for value, a, p, q in zip(margin(x, same, other, g), x, same, other, strict=True):
        w = m @ (p - q)
        assert float(value) == pytest.approx((away(a, q, m) - away(a, p, m)) / (2 * float((w @ w) ** 0.5)), abs=1e-9)


@quick
@given(seeds)
def test_at_its_end_the_two_distances_are_equal(seed):
    x, same, other, g = triplets(seed)
    m = g.T @ g
    a = (same - other) @ m
    end = x - margin(x, same, other, g)[:, None] * a / a.norm(dim=1, keepdim=True)
    for e, p, q in zip(end, same, other, strict=True):
        assert away(e, p, m) == pytest.approx(away(e, q, m), abs=1e-9)


@pytest.mark.parametrize("seed", range(3))
def test_its_positive_part_is_the_least_change_a_solver_finds(seed):
    x, same, other, g = (t.numpy() for t in triplets(seed, n=3))
    m = g.T @ g
    closed = margin(*(torch.tensor(t) for t in (x, same, other, g))).clamp_min(0)

    for value, a, p, q in zip(closed.tolist(), x, same, other, strict=True):

        def nearer(d, a=a, p=p, q=q):
            return (a + d - p) @ m @ (a + d - p) - (a + d - q) @ m @ (a + d - q)

        solved = minimize(
            lambda d: d @ d,
            q - a,
            jac=lambda d: 2 * d,
            constraints={"type": "ineq", "fun": nearer},
            method="SLSQP",
            options={"ftol": 1e-14, "maxiter": 300},
        )
        assert float(np.linalg.norm(solved.x)) == pytest.approx(value, abs=1e-5)


@quick
@given(seeds, st.floats(1e-4, 1e4))
def test_the_scale_of_the_metric_does_not_matter(seed, scale):
    x, same, other, g = triplets(seed)
    assert_close(margin(x, same, other, scale * g), margin(x, same, other, g), rtol=0, atol=1e-9)


def test_a_triplet_that_the_metric_cannot_see_is_worth_nothing():
    x, same, other, _ = triplets(0)
    blind = torch.diag(torch.tensor([0.0, 1, 1, 1])).double()
    other = same.clone()
    other[:, 0] += 0.5
    value, gradient = descent(blind, x, same, other)
    assert_close(margin(x, same, other, blind), torch.zeros(6).double())
    assert_close(value, torch.zeros(()).double())
    assert_close(gradient, torch.zeros(4, 4).double())


# the gradient


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("rank", [4, 2])
def test_the_gradient_is_that_of_autograd_and_of_small_differences(loss, rank):
    printed = {
        "negative": lambda e: -e,
        "hinge": lambda e: (1 - e).clamp_min(0),
        "exponential": lambda e: torch.exp(-e),
        "logistic": lambda e: torch.log(1 + torch.exp(-e)),
    }[loss]
    x, same, other, g = triplets(1, n=30)
    x[:5] *= 9  # some beyond the hinge
    free = g[:rank].clone().requires_grad_()
    mean = printed(margin(x, same, other, free)).mean()
    (wanted,) = torch.autograd.grad(mean, free)
    value, gradient = descent(g[:rank], x, same, other, loss)
    assert_close(value, mean.detach())
    assert_close(gradient, wanted)
    for row, column in ((0, 0), (1, 3)):
        up, down = g[:rank].clone(), g[:rank].clone()
        up[row, column] += 1e-6
        down[row, column] -= 1e-6
        slope = (descent(up, x, same, other, loss)[0] - descent(down, x, same, other, loss)[0]) / 2e-6
        assert float(gradient[row, column]) == pytest.approx(float(slope), rel=1e-4, abs=1e-7)


@quick
@given(seeds, st.sampled_from(sorted(LOSSES)))
def test_the_gradient_is_orthogonal_to_g(seed, loss):
    x, same, other, g = triplets(seed)
    gradient = descent(g, x, same, other, loss)[1]
    assert abs(float((gradient * g).sum())) <= 1e-9 * float(gradient.norm() * g.norm()) + 1e-12


# the bound


@settings(deadline=None, max_examples=6)
@given(seeds, st.sampled_from([1, 3, 5]), st.sampled_from([1, 40, 2**22]))
def test_the_bound_is_that_of_the_loop_in_whatever_pieces(seed, k, cells):
    x, y, g = cloud(seed)
    before = module.CELLS
    try:
        module.CELLS = cells
        bound = leave_one_out(x, y, g, k=k)
    finally:
        module.CELLS = before
    assert_close(bound.value, naive(x, y, g.T @ g, k))
    assert_close(margin(x, x[bound.same], x[bound.other], g), bound.value)
    assert (y[bound.same] == y).all()
    assert (y[bound.other] != y).all()
    assert (bound.same != torch.arange(len(x))).all()
    rows = torch.tensor([5, 0, 17])
    assert_close(leave_one_out(x, y, g, k=k, rows=rows).value, bound.value[rows])


@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("euclid", [True, False])
def test_it_is_the_certificate_with_the_point_left_out(k, euclid):
    x, y, g = cloud(3)
    bound = leave_one_out(x, y, torch.eye(3) if euclid else g, k=k).value.clamp_min(0).numpy()
    points, labels = x.numpy(), y.numpy()
    for t in range(0, 18, 4):
        rest = np.arange(18) != t
        about = (points[rest], labels[rest], points[t : t + 1], labels[t : t + 1])
        metric = None if euclid else (g.T @ g).numpy()
        assert nearest.certified_radius(*about, k=k, metric=metric)[0] == pytest.approx(bound[t], abs=1e-7)
        if k == 1:
            assert nearest.exact_radius(*about, metric=metric).radius[0] >= bound[t] - 1e-9


def test_points_that_coincide_across_classes_have_bound_zero():
    x, y, g = cloud(0)
    x[1] = x[0]
    bound = leave_one_out(x, y, g).value
    assert bound.isfinite().all()
    assert float(bound[0]) <= 1e-6


# the neighbours


def nearest_by_hand(x, y, g, t, c, same):
    z = x @ g.T
    kind = [i for i in range(len(x)) if i != t and bool(y[i] == y[t]) == same]
    return sorted(kind, key=lambda i: float((z[i] - z[t]).square().sum()))[:c]


@pytest.mark.parametrize("square", [True, False])
def test_draws_are_uniform_over_the_c_nearest_of_a_metric_that_moves(square, monkeypatch):
    monkeypatch.setattr(module, "SPARE", 1)  # no candidate to spare: a wrong bound shows
    x, y, g = cloud(1, n=30)
    y[:2] = 3  # a class of two: fewer than c
    g = torch.eye(3).double() if square else g[:2]
    near, draws = module._Near(x, y, 4), rng()
    everyone = torch.arange(30)
    for _ in range(8):
        same, other = near.draw(g, everyone, draws)
        for t in everyone[::2].tolist():
            assert int(same[t]) in nearest_by_hand(x, y, g, t, 4, same=True)
            assert int(other[t]) in nearest_by_hand(x, y, g, t, 4, same=False)
        g = (g + 0.03 * torch.randn(g.shape, generator=draws).double()) * torch.tensor([0.8, 1, 1])
    drawn = torch.stack([near.draw(g, everyone, draws)[1] for _ in range(400)])
    for t in (0, 7, 23):
        shares = [float((drawn[:, t] == i).float().mean()) for i in nearest_by_hand(x, y, g, t, 4, same=False)]
        assert min(shares) > 0.15
        assert sum(shares) == pytest.approx(1)


def test_kept_candidates_change_no_draw(monkeypatch):
    x, y, _ = cloud(5, n=150, d=4)  # no ties, which may fall either way
    searches = []
    search = module._Near._search
    monkeypatch.setattr(module._Near, "_search", lambda self, *a: (searches.append(len(a[1])), search(self, *a))[1])
    kept = arml(x, y, rng=rng(), epochs=80)
    assert sum(searches) < 0.3 * 80 * len(x)  # most are answered from what was kept
    monkeypatch.setattr(module, "FEW_FEATURES", 0)
    anew = arml(x, y, rng=rng(), epochs=80)
    assert_close(kept.factor, anew.factor)
    assert kept.losses == pytest.approx(anew.losses)


def test_the_steps_are_adams():
    x, y, _ = cloud(2)
    g = torch.eye(3).double()
    adam = torch.optim.Adam([g], lr=0.01)
    for _ in range(5):
        bound = leave_one_out(x, y, g)
        g.grad = descent(g, x, x[bound.same], x[bound.other])[1]
        adam.step()
    assert_close(arml(x, y, rng=rng(), objective="exact", epochs=5, lr=0.01).factor, g.detach())


# learning


@pytest.mark.parametrize("seed", [0, 1])
def test_on_the_toy_the_deciding_feature_gains_weight_and_the_radii_grow(seed):
    x, y, ask, label, learned = toy(seed)
    weights = learned.metric.diagonal()
    assert weights[0] > 2.5 * weights[1:].mean()
    plain, cured = (NearestNeighbour(x, y, factor=g)(ask).argmax(1) != label for g in (torch.eye(6), learned.factor))
    assert cured.float().mean() < 0.8 * plain.float().mean()
    plain, cured = (
        nearest.exact_radius(x, y, ask[:100], label[:100], factor=g.numpy()).radius
        for g in (torch.eye(6), learned.factor)
    )
    assert cured.mean() > 1.2 * plain.mean()
    for r in (0.05, 0.1, 0.2, 0.3):
        assert (cured <= r).mean() < (plain <= r).mean()


def test_the_metric_is_symmetric_and_positive_semidefinite_of_the_starts_rank():
    x, y, *_, learned = toy(0)
    m = learned.metric
    assert_close(m, m.T, rtol=0, atol=0)
    assert float(torch.linalg.eigvalsh(m)[0]) > -1e-6
    assert 1 < learned.condition < 1000
    low = arml(x, y, rng=rng(), epochs=20, start=torch.eye(2, 6))
    assert low.factor.shape == (2, 6)
    assert int(torch.linalg.matrix_rank(low.metric)) == 2
    assert low.condition < 10


@pytest.mark.parametrize("objective", ["sampled", "exact"])
@pytest.mark.parametrize("loss", LOSSES)
def test_training_lowers_its_objective(loss, objective):
    x, y, *_ = toy(0)
    x, y = x[:80], y[:80]
    learned = arml(x, y, rng=rng(), loss=loss, objective=objective, epochs=40, lr=0.01)
    cost = LOSSES[loss][0]
    first, last = (float(cost(leave_one_out(x, y, g).value).mean()) for g in (torch.eye(6), learned.factor))
    assert last < first
    if objective == "exact":
        assert learned.losses[0] == pytest.approx(first, abs=1e-5)
        assert (np.diff(learned.losses) <= 1e-3 * abs(first)).all()  # small steps: no rise to speak of


@pytest.mark.parametrize("seed", [0, 1])
def test_the_certified_error_on_wine_does_not_rise(seed):
    x, y = load_wine(return_X_y=True)
    x = ((x - x.min(0)) / np.ptp(x, axis=0)).astype(np.float32)
    order = np.random.default_rng(seed).permutation(len(x))
    train, test = order[:89], order[89:]
    learned = arml(x[train], y[train], rng=rng(), epochs=200)
    plain, cured = (
        nearest.exact_radius(x[train], y[train], x[test], y[test], factor=g).radius
        for g in (np.eye(13), learned.factor.numpy())
    )
    assert cured.mean() > 1.1 * plain.mean()
    for r in (0.0, 0.1, 0.2, 0.3, 0.4):
        assert (cured <= r).mean() <= (plain <= r).mean()


def test_with_itself_among_its_neighbours_a_point_learns_nothing():
    """Why points are left out: with x+ = x every training point is right, whatever the metric."""
    x, y, g = cloud(4)
    for factor in (torch.eye(3).double(), g):
        apart = (margin(x, x, x[leave_one_out(x, y, factor).other], factor) > 0).double().mean()
        assert float(apart) == 1.0
    assert (leave_one_out(x, y, torch.eye(3)).value < 0).any()


def test_batches_seeds_and_the_hook():
    x, y, *_ = toy(0)
    told = []
    once = arml(x, y, rng=rng(5), epochs=4, batch=64, on_epoch=lambda epoch, loss: told.append((epoch, loss)))
    assert told == [(i + 1, loss) for i, loss in enumerate(once.losses)]
    state = torch.random.get_rng_state()
    again = arml(x.reshape(200, 1, 2, 3).numpy(), y.numpy(), rng=rng(5), epochs=4, batch=64)
    assert torch.equal(state, torch.random.get_rng_state())
    assert_close(again.factor, once.factor, rtol=0, atol=0)
    assert not torch.equal(arml(x, y, rng=rng(6), epochs=4, batch=64).factor, once.factor)
    assert_close(arml(x, y, rng=rng(5), epochs=4, batch=500).factor, arml(x, y, rng=rng(5), epochs=4).factor)
    start = torch.eye(6)
    arml(x, y, rng=rng(), epochs=1, start=start)
    assert torch.equal(start, torch.eye(6))
    assert isinstance(once, Learned)


X, Y = torch.rand(8, 3, generator=rng()), torch.tensor([0, 1] * 4)


@pytest.mark.parametrize(
    ("change", "kind", "words"),
    [
        ({"k": 2, "objective": "exact"}, AssayError, "k=2 nearest neighbours can tie"),
        ({"k": 9, "objective": "exact"}, AssayError, "Class 0 has 4 points; leave-one-out with k=9 needs 6"),
        ({"y": torch.tensor([0, 1, 1, 1, 1, 1, 1, 1])}, AssayError, "Class 0 has 1 points"),
        ({"y": torch.zeros(8)}, AssayError, "All 8 points are of class 0.0"),
        ({"x": X.index_fill(0, torch.tensor(3), torch.nan)}, AssayError, "Point 3 holds NaN"),
        ({"y": Y[:5]}, ShapeError, r"points of shape \(8, 3\) with labels of shape \(5,\)"),
        ({"x": X[:, 0]}, ShapeError, r"points of shape \(8,\)"),
        ({"x": X[:0], "y": Y[:0]}, ShapeError, r"points of shape \(0, 3\)"),
        ({"loss": "square"}, AssayError, "loss='square'; it knows sampled or exact, and negative, hinge"),
        ({"objective": "ideal"}, AssayError, "objective='ideal'"),
        ({"epochs": 0}, AssayError, "epochs=0"),
        ({"neighbours": 0}, AssayError, "neighbours=0"),
        ({"lr": float("nan")}, AssayError, "lr=nan"),
        ({"batch": 0}, AssayError, "batch=0"),
        ({"start": torch.eye(4)}, ShapeError, r"start of shape \(4, 4\) for points of 3 features"),
        ({"start": torch.zeros(3, 3)}, ShapeError, "not all 0"),
        ({"lr": 1e38}, AssayError, "The metric became NaN or inf in epoch 1 of 3; try lr=1e[+]37"),
    ],
)
def test_errors(change, kind, words):
    given = {"x": X, "y": Y, "epochs": 3, "rng": rng()} | change
    with pytest.raises(kind, match=words) as caught:
        arml(given.pop("x"), given.pop("y"), **given)
    assert "\n" not in str(caught.value)
