from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.optimize import linprog
from torch import Tensor, nn
from torch.testing import assert_close

from assay.errors import AssayError, ShapeError, SubjectError
from assay.methods.attack import pgd
from assay.methods.attack.square import square
from assay.methods.certify import relax
from assay.methods.certify.layers import layers
from assay.methods.certify.relax import Method, Norm, bounds, certified, certified_radius, margins, unstable

NORMS: tuple[Norm, ...] = ("linf", "l2", "l1")
METHODS: tuple[Method, ...] = ("crown", "interval")
ORDER = {"linf": math.inf, "l2": 2.0, "l1": 1.0}
DUAL = {"linf": 1.0, "l2": 2.0, "l1": math.inf}


def seeded(net: nn.Sequential, seed: int) -> nn.Sequential:
    """Weights of a size at which a radius of 0.1 leaves neurons undecided in every layer."""
    rng = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for module in net.modules():
            if isinstance(module, nn.Linear | nn.Conv2d):
                fan = module.weight[0].numel()
                module.weight.copy_(torch.randn(module.weight.shape, generator=rng) * math.sqrt(2 / fan))
                if module.bias is not None:
                    module.bias.copy_(torch.randn(module.bias.shape, generator=rng) * 0.2)
            if isinstance(module, nn.BatchNorm2d):
                assert module.running_mean is not None
                assert module.running_var is not None
                module.running_mean.copy_(torch.randn(module.num_features, generator=rng) * 0.3)
                module.running_var.copy_(torch.rand(module.num_features, generator=rng) + 0.5)
                module.weight.copy_(torch.randn(module.num_features, generator=rng))
    return net.double().eval().requires_grad_(False)


def mlp(seed: int, *widths: int) -> nn.Sequential:
    steps: list[nn.Module] = []
    for a, b in itertools.pairwise(widths):
        steps += [nn.Linear(a, b), nn.ReLU()]
    return seeded(nn.Sequential(*steps[:-1]), seed)


def conv_net(seed: int) -> nn.Sequential:
    net = nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1, bias=False),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Conv2d(4, 6, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(6, 6, (2, 1), padding=(1, 0), groups=2, dilation=(1, 2)),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(6 * 3 * 3, 8),
        nn.ReLU(),
        nn.Linear(8, 3),
    )
    return seeded(net, seed)


CONV_INPUT = (2, 9, 11)  # the pooling leaves a row and a column out


def conv_net_inputs(n: int, seed: int, shape: tuple[int, ...] = CONV_INPUT) -> Tensor:
    return torch.rand(n, *shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def row_by_row(seed: int) -> nn.Sequential:
    """Linear maps that are asked about each row of a table by itself."""
    return seeded(
        nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 4), nn.ReLU(), nn.Flatten(), nn.Linear(12, 3)), seed
    )


def flat_inputs(n: int, d: int, seed: int) -> Tensor:
    return torch.rand(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def sampled(x: Tensor, norm: Norm, radius: float, draws: int, seed: int) -> Tensor:
    """Points of the ball, most of them on its skin: n *d -> draws n *d."""
    rng = torch.Generator().manual_seed(seed)
    d = torch.randn(draws, len(x), x[0].numel(), generator=rng, dtype=x.dtype)
    if norm == "linf":
        d = d.sign()
    elif norm == "l1":
        d = d * (torch.rand(d.shape, generator=rng) < 2 / d.shape[-1])  # a few features take it all
    d = d / torch.linalg.vector_norm(d, ORDER[norm], -1, keepdim=True).clamp_min(1e-12)
    share = torch.rand(draws, 1, 1, generator=rng, dtype=x.dtype).clamp_min(0.1).sqrt()
    points: Tensor = x + (d * radius * share).reshape(draws, *x.shape)
    return points


Layer = tuple[NDArray[np.float64], NDArray[np.float64]]


def backward_as_printed(
    chain: list[Layer],
    known: list[Layer],
    k: int,
    row: NDArray[np.float64],
    x: NDArray[np.float64],
    norm: Norm,
    r: float,
) -> float:
    """Zhang et al. 2018, one row and one neuron at a time, over the bounds that are `known` of the layers before k."""
    w, b = chain[k]
    const, row = float(row @ b), row @ w
    for j in range(k - 1, -1, -1):
        low, high = known[j]
        out = np.zeros_like(row)
        for i, a in enumerate(row):
            if low[i] >= 0:
                out[i] = a
            elif high[i] > 0 and a > 0:
                out[i] = a if high[i] > -low[i] else 0.0
            elif high[i] > 0:
                out[i] = a * high[i] / (high[i] - low[i])
                const -= a * high[i] * low[i] / (high[i] - low[i])
        w, b = chain[j]
        const, row = const + float(out @ b), out @ w
    return const + float(row @ x) - r * float(np.linalg.norm(row, DUAL[norm]))


def lower_by_hand(chain: list[Layer], x: NDArray[np.float64], norm: Norm, r: float) -> NDArray[np.float64]:
    """Lower bounds of the logits of one input: the best of all four, the inner ones the better of two."""
    found = []
    for deep in (False, True):
        known: list[Layer] = []
        for k, (w, b) in enumerate(chain):
            if k == 0:
                reach = r * np.linalg.norm(w, DUAL[norm], axis=1)
                low, high = w @ x + b - reach, w @ x + b + reach
            else:
                before, after = (np.maximum(side, 0) for side in known[-1])
                up, down = np.maximum(w, 0), np.minimum(w, 0)
                low, high = up @ before + down @ after + b, up @ after + down @ before + b
            rows = np.eye(len(b))
            if k == len(chain) - 1:
                found += [low, np.array([backward_as_printed(chain, known, k, e, x, norm, r) for e in rows])]
            elif deep:
                for i in np.flatnonzero((low < 0) & (high > 0)):
                    low[i] = max(low[i], backward_as_printed(chain, known, k, rows[i], x, norm, r))
                    high[i] = min(high[i], -backward_as_printed(chain, known, k, -rows[i], x, norm, r))
            known.append((low, high))
    best: NDArray[np.float64] = np.max(np.stack(found), 0)
    return best


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("radius", [0.02, 0.15, 0.5])
def test_bounds_are_those_of_the_printed_recursion(norm: Norm, radius: float) -> None:
    net, x = mlp(1, 5, 9, 8, 7, 3), flat_inputs(3, 5, 1)
    chain = [(w.numpy(), b.numpy()) for w, b in (a.dense() for a in layers(net, (5,)))]
    by_hand = torch.tensor(np.stack([lower_by_hand(chain, row, norm, radius) for row in x.numpy()]))
    assert_close(bounds(net, x, norm=norm, radius=radius)[0], by_hand, rtol=0, atol=1e-12)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("method", METHODS)
def test_a_linear_network_is_exact(norm: Norm, method: Method) -> None:
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.AvgPool2d(2), nn.Conv2d(2, 3, 2), nn.Flatten(), nn.Linear(12, 4))
    seeded(net, 0)
    x = torch.rand(5, 1, 8, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    unit = torch.eye(64, dtype=torch.float64).reshape(64, 1, 8, 8)
    w = (net(unit) - net(0 * unit)).detach().T  # 4 64
    reach = 0.3 * torch.linalg.vector_norm(w, DUAL[norm], 1)
    low, high = bounds(net, x, norm=norm, radius=0.3, method=method)
    assert_close(low, net(x).detach() - reach, rtol=0, atol=1e-12)
    assert_close(high, net(x).detach() + reach, rtol=0, atol=1e-12)
    y = net(x).argmax(1)
    rows = margins(y, 4)
    exact = ((rows @ net(x)[:, :, None])[:, :, 0] / torch.linalg.vector_norm(rows @ w, DUAL[norm], 2)).amin(1).detach()
    found = certified_radius(net, x, y, norm=norm, high=exact * 1.5, method=method, steps=30)
    assert (found <= exact * (1 + 1e-9)).all()
    assert (found >= exact * 0.99).all()


def test_the_box_cuts_the_ball() -> None:
    net = nn.Sequential(nn.Linear(2, 1))
    net.load_state_dict({"0.weight": torch.tensor([[1.0, -2.0]]), "0.bias": torch.zeros(1)})
    x = torch.tensor([[0.1, 0.8]], dtype=torch.float64)
    highs: dict[Norm, float] = {"linf": 0.6 - 2 * 0.3, "l2": -1.5 + 0.5 * math.sqrt(5), "l1": -1.5 + 0.5 * 2}
    for norm, high in highs.items():  # the cube, cut to [0, .6] x [.3, 1], says [-2, 0] in every norm
        got = bounds(net, x, norm=norm, radius=0.5, box=(0, 1))
        assert got[0].item() == pytest.approx(-2, abs=1e-7)
        assert got[1].item() == pytest.approx(high, abs=1e-7)


@settings(deadline=None, max_examples=20)
@given(
    seed=st.integers(0, 10_000),
    norm=st.sampled_from(NORMS),
    radius=st.floats(0, 0.6),
    convolutional=st.booleans(),
    boxed=st.booleans(),
)
def test_no_sampled_point_leaves_the_bounds(
    seed: int, norm: Norm, radius: float, convolutional: bool, boxed: bool
) -> None:
    if convolutional:
        net, x = conv_net(seed), conv_net_inputs(2, seed)
    else:
        net, x = mlp(seed, 4, 10, 10, 8, 3), flat_inputs(3, 4, seed)
    box = (0.0, 1.0) if boxed else None
    loose = bounds(net, x, norm=norm, radius=radius, method="interval", box=box)
    tight = bounds(net, x, norm=norm, radius=radius, method="crown", box=box)
    assert (loose[0] <= tight[0]).all()
    assert (tight[1] <= loose[1]).all()
    points = sampled(x, norm, radius, 200, seed)
    points = points.clamp(0, 1) if boxed else points  # clamping towards a box that holds x leaves no ball
    z = net(points.flatten(0, 1)).reshape(200, len(x), -1)
    assert (z >= tight[0] - 1e-10).all()
    assert (z <= tight[1] + 1e-10).all()
    assert (unstable(net, x, norm=norm, radius=radius, box=box)
            <= unstable(net, x, norm=norm, radius=radius, method="interval", box=box)).all()  # fmt: skip


@settings(deadline=None, max_examples=5)
@given(seed=st.integers(0, 10_000), norm=st.sampled_from(NORMS), convolutional=st.booleans())
def test_no_attack_breaks_what_is_certified(seed: int, norm: Norm, convolutional: bool) -> None:
    if convolutional:
        net, x = conv_net(seed), conv_net_inputs(3, seed)
    else:
        net, x = mlp(seed, 4, 10, 10, 8, 3), flat_inputs(6, 4, seed)
    y = net(x).argmax(1)
    radius = certified_radius(net, x, y, norm=norm, high=3.0, steps=7, box=(0, 1))
    assert certified(net, x, y, norm=norm, radius=radius, box=(0, 1)).all()
    float32 = net.float()
    inside = (radius * 0.9999).float()
    assert not pgd(float32, x.float(), y, norm=norm, radius=inside, steps=15, restarts=2).success.any()
    if norm != "l1":
        assert not square(float32, x.float(), y, norm=norm, radius=inside, queries=60).success.any()


def exact_linf_radius(net: nn.Sequential, x: Tensor, y: int) -> float:
    """The nearest point of another class over all activation patterns, one LP for each: two hidden layers."""
    (w1, b1), (w2, b2), (w3, b3) = ((w.numpy(), b.numpy()) for w, b in (a.dense() for a in layers(net, (len(x),))))
    d, best = len(x), math.inf
    point = x.numpy()
    for pattern in itertools.product((0, 1), repeat=len(b1) + len(b2)):
        on1, on2 = np.array(pattern[: len(b1)]), np.array(pattern[len(b1) :])
        v2, c2 = w2 @ (on1[:, None] * w1), w2 @ (on1 * b1) + b2
        v3, c3 = w3 @ (on2[:, None] * v2), w3 @ (on2 * c2) + b3
        for j in range(len(b3)):
            if j != y:
                # variables: input, t; |input - x| <= t, signs of the pattern, z_j >= z_y
                rows = [-(2 * on1 - 1)[:, None] * w1, -(2 * on2 - 1)[:, None] * v2, (v3[y] - v3[j])[None]]
                right = [(2 * on1 - 1) * b1, (2 * on2 - 1) * c2, (c3[j] - c3[y])[None]]
                ball = np.block([[np.eye(d), -np.ones((d, 1))], [-np.eye(d), -np.ones((d, 1))]])
                a = np.vstack([np.hstack([np.vstack(rows), np.zeros((len(np.concatenate(right)), 1))]), ball])
                b = np.concatenate([*right, point, -point])
                found = linprog(np.eye(d + 1)[d], A_ub=a, b_ub=b, bounds=[(None, None)] * d + [(0, None)])
                best = min(best, found.fun if found.success else math.inf)
    return best


@pytest.mark.parametrize("seed", range(3))
def test_certified_is_below_the_exact_radius(seed: int) -> None:
    net, x = mlp(seed, 2, 3, 3, 2), flat_inputs(2, 2, seed)
    y = net(x).argmax(1)
    found = {m: certified_radius(net, x, y, high=4.0, method=m, steps=20) for m in METHODS}
    assert (found["interval"] <= found["crown"]).all()
    for i in range(len(x)):
        exact = exact_linf_radius(net, x[i], int(y[i]))
        assert found["crown"][i] <= min(exact, 4.0) + 1e-9
        assert found["crown"][i] >= 0.3 * min(exact, 4.0)  # and not by being useless


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("together", [3, 256])
@pytest.mark.parametrize(("made", "shape"), [(conv_net, CONV_INPUT), (row_by_row, (3, 4))])
def test_layers_give_what_their_matrices_give(
    made: Callable[[int], nn.Sequential],
    shape: tuple[int, ...],
    norm: Norm,
    method: Method,
    together: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also where a pass backward looks through a small window only."""
    monkeypatch.setattr(relax, "TOGETHER", together)
    net, x = made(3), conv_net_inputs(3, 3, shape)
    steps: list[nn.Module] = []
    for affine in layers(net, shape):
        w, b = affine.dense()
        dense = nn.Linear(w.shape[1], w.shape[0]).double()
        dense.weight.data, dense.bias.data = w, b
        steps += [dense, nn.ReLU()]
    flat = nn.Sequential(*steps[:-1])
    for ours, theirs in zip(
        bounds(net, x, norm=norm, radius=0.1, method=method),
        bounds(flat, x.flatten(1), norm=norm, radius=0.1, method=method),
        strict=True,
    ):
        assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


def test_radius_zero_is_certified_exactly_where_the_answer_is_right() -> None:
    net, x = mlp(1, 4, 10, 10, 3), flat_inputs(20, 4, 1)
    y = torch.arange(20) % 3
    right = net(x).argmax(1) == y
    assert 0 < right.sum() < 20
    for norm, method in itertools.product(NORMS, METHODS):
        assert torch.equal(certified(net, x, y, norm=norm, radius=0.0, method=method), right)
        assert torch.equal(certified_radius(net, x, y, norm=norm, high=1.0, method=method) > 0, right)


def test_the_radius_was_verified_and_a_little_more_was_not() -> None:
    net, x = mlp(2, 6, 20, 20, 3), flat_inputs(10, 6, 2)
    y = net(x).argmax(1)
    high = torch.linspace(0.001, 2, 10, dtype=torch.float64)
    for norm, method in itertools.product(NORMS, METHODS):
        found = certified_radius(net, x, y, norm=norm, high=high, method=method, steps=20)
        assert (found <= high).all()
        assert certified(net, x, y, norm=norm, radius=found, method=method).all()
        more = certified(net, x, y, norm=norm, radius=torch.minimum(found * 1.02, high), method=method)
        assert torch.equal(more, found == high)


def test_rows_bound_margins_better_than_logits_do() -> None:
    net, x = mlp(4, 5, 12, 12, 4), flat_inputs(6, 5, 4)
    y = net(x).argmax(1)
    rows = margins(y, 4)
    z = net(x).detach()
    by_hand = [[float(z[i, y[i]] - z[i, j]) for j in range(4) if j != y[i]] for i in range(6)]
    assert_close((rows @ z[..., None])[..., 0], torch.tensor(by_hand, dtype=torch.float64))
    low, high = bounds(net, x, radius=0.1, rows=rows)
    zl, zh = bounds(net, x, radius=0.1)
    apart = (rows.clamp_min(0) @ zl[..., None] + rows.clamp_max(0) @ zh[..., None])[..., 0]
    assert (low >= apart - 1e-12).all()
    assert (low <= high).all()
    shared = bounds(net, x, radius=0.1, rows=torch.eye(4))
    assert_close(shared[0], zl)


def test_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    net, x = conv_net(5), conv_net_inputs(4, 5)
    y = net(x).argmax(1)

    def all_of_it() -> list[Tensor]:
        return [
            *bounds(net, x, radius=0.1, box=(0, 1)),
            certified_radius(net, x, y, high=0.5, norm="l2", steps=4),
            unstable(net, x, radius=0.1),
        ]

    whole = all_of_it()
    monkeypatch.setattr(relax, "ROWS", 20_000)
    monkeypatch.setattr(relax, "NEURONS", 2000)
    for one, other in zip(all_of_it(), whole, strict=True):
        assert_close(one, other, rtol=1e-12, atol=1e-12)
    alone = [bounds(net, x[i : i + 1], radius=0.1, box=(0, 1))[0] for i in range(4)]
    assert_close(torch.cat(alone), whole[0], rtol=1e-12, atol=1e-12)


def test_unstable_counts_what_changes_sign() -> None:
    net, x = mlp(6, 2, 8, 8, 3), flat_inputs(3, 2, 6)
    counts = unstable(net, x, norm="linf", radius=0.4)
    assert counts.shape == (3, 2)
    assert unstable(net, x, radius=0.0).sum() == 0
    for i in range(3):
        z = net[0](sampled(x[i : i + 1], "linf", 0.4, 4000, 0)[:, 0])
        seen = ((z > 0).any(0) & (z < 0).any(0)).sum()
        assert counts[i, 0] == seen  # the first layer is exact, and 2-d samples reach the corners
    assert unstable(nn.Sequential(nn.Linear(2, 3)), x, radius=1.0).shape == (3, 0)


def test_inputs_that_are_decided_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    net, x = mlp(7, 4, 8, 3), flat_inputs(12, 4, 7)
    y = (net(x).argmax(1) + (torch.arange(12) < 5)) % 3
    right = 7
    sizes: list[int] = []
    lower = relax.Relaxed.lower

    def watched(self: relax.Relaxed, region: relax.Region, *rest: object) -> Tensor:
        sizes.append(len(region.x))
        return lower(self, region, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(relax.Relaxed, "lower", watched)
    certified_radius(net, x, y, high=1e-6)
    assert sizes == [12, right]  # the misclassified left, and then all others, verified at `high`


def test_bad_input_is_named() -> None:
    net, x = mlp(0, 3, 4, 2), flat_inputs(2, 3, 0)
    y = torch.zeros(2, dtype=torch.long)
    with pytest.raises(AssayError, match="linf, l2, l1, got 'l0'"):
        bounds(net, x, norm="l0", radius=0.1)  # type: ignore[arg-type]
    with pytest.raises(AssayError, match="crown, interval, got 'lp'"):
        bounds(net, x, method="lp", radius=0.1)  # type: ignore[arg-type]
    for radius in (-0.1, math.nan, math.inf, torch.ones(3)):
        with pytest.raises(AssayError, match="finite number >= 0"):
            bounds(net, x, radius=radius)
    with pytest.raises(AssayError, match=r"box \(0.5, 1.0\)"):
        bounds(net, x, radius=0.1, box=(0.5, 1.0))
    with pytest.raises(AssayError, match="box"):
        bounds(net, x, radius=0.1, box=(1.0, 0.0))
    with pytest.raises(AssayError, match="NaN"):
        bounds(net, x * math.nan, radius=0.1)
    with pytest.raises(ShapeError, match="2 logits of 2 inputs"):
        bounds(net, x, radius=0.1, rows=torch.eye(3))
    with pytest.raises(ShapeError, match="one class index from 0 to 1"):
        certified(net, x, y + 2, radius=0.1)
    with pytest.raises(AssayError, match="steps >= 1, got 0"):
        certified_radius(net, x, y, high=1.0, steps=0)
    with pytest.raises(SubjectError, match="Tanh"):
        bounds(nn.Sequential(nn.Linear(3, 3), nn.Tanh()), x, radius=0.1)
    with pytest.raises(ShapeError, match="one row of logits"):
        bounds(nn.Sequential(nn.Conv2d(1, 1, 1)), torch.rand(1, 1, 2, 2), radius=0.1)
