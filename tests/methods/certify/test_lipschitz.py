from __future__ import annotations

import math
import sys
from collections.abc import Callable
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.optimize import linprog
from torch import Tensor, nn

from assay.claims import bhowmick2021
from assay.claims.bhowmick2021 import sequential
from assay.errors import AssayError, ShapeError, SubjectError
from assay.methods.certify.layers import layers
from assay.methods.certify.lipschitz import certified_radius, lipschitz, norm_product, symbolic_bounds

Array = NDArray[np.float64]
NORMS = (1, 2, math.inf)
BOX = (0.0, 1.0)


def mlp(*params: tuple[list[list[float]], list[float]]) -> nn.Sequential:
    return sequential(params)


def random_net(*sizes: int, seed: int = 0) -> nn.Sequential:
    rng = np.random.default_rng(seed)
    return mlp(*((rng.normal(size=(o, i)).tolist(), (0.5 * rng.normal(size=o)).tolist()) for i, o in pairwise(sizes)))


IRIS = sequential(bhowmick2021.IRIS)


def matrices(net: nn.Sequential) -> list[tuple[Array, Array]]:
    return [
        (m.weight.detach().double().numpy(), m.bias.detach().double().numpy()) for m in net if isinstance(m, nn.Linear)
    ]


def every_jacobian(net: nn.Sequential, low: float | None, high: float | None) -> list[Array]:
    """The Jacobian of each linear region: every activation pattern, neuron after neuron, by a strict program."""
    parts = matrices(net)
    n = parts[0][0].shape[1]
    found: list[Array] = []

    def open_region(rows: list[Array], least: list[float]) -> bool:
        """Is there x with row x - t >= least for all rows, t > 0?  t is a length: rows have norm 1."""
        a = np.array([[*-r, 1.0] for r in rows])
        got = linprog([0.0] * n + [-1.0], a, -np.array(least), bounds=[(low, high)] * n + [(None, 1.0)])
        return bool(got.status == 0 and -got.fun > 1e-7)

    def visit(l: int, i: int, e: Array, d: Array, on: list[bool], rows: list[Array], least: list[float]) -> None:
        if l == len(parts) - 1:
            found.append(e)
            return
        if i == len(e):
            keep = np.array(on, dtype=float)
            w, b = parts[l + 1]
            visit(l + 1, 0, w @ (keep[:, None] * e), w @ (keep * d) + b, [], rows, least)
            return
        size = np.linalg.norm(e[i])
        if size < 1e-12:
            visit(l, i + 1, e, d, [*on, d[i] > 0], rows, least)
            return
        for sign in (1.0, -1.0):
            more, ends = [*rows, sign * e[i] / size], [*least, -sign * d[i] / size]
            if open_region(more, ends):
                visit(l, i + 1, e, d, [*on, sign > 0], more, ends)

    visit(0, 0, *parts[0], [], [], [])
    return found


def norm_at(net: nn.Module, x: Tensor, p: float) -> float:
    jacobian = torch.autograd.functional.jacobian(net, x)  # type: ignore[no-untyped-call]
    return float(np.linalg.norm(jacobian.detach().numpy(), p))


@pytest.mark.parametrize(
    ("p", "exact", "first", "everywhere"),
    [(1, 5.9580, 8.7759, 6.0873), (2, 6.7714, 8.8099, 6.9159), (math.inf, 12.6051, 14.6626, 12.9098)],
)
def test_the_iris_network_of_the_paper(p: float, exact: float, first: float, everywhere: float) -> None:
    local, whole = lipschitz(IRIS, BOX, p=p), lipschitz(IRIS, p=p)
    assert local.exact
    assert local.stopped == "gap"
    assert local.upper == pytest.approx(exact, abs=1e-3)
    assert local.first == pytest.approx(first, abs=1e-3)
    assert whole.exact
    assert whole.upper == pytest.approx(everywhere, abs=1e-3)


def test_a_leaf_has_signs() -> None:
    """The slip of taking |J| at a leaf leaves p = 1 and inf right; p = 2 gives it away."""
    jacobians = every_jacobian(IRIS, *BOX)
    unsigned, signed = (max(np.linalg.norm(f(j), 2) for j in jacobians) for f in (np.abs, np.asarray))
    assert unsigned == pytest.approx(6.829, abs=1e-3)
    assert lipschitz(IRIS, BOX, p=2).upper == pytest.approx(signed, rel=1e-9)


@pytest.mark.parametrize("bounded", [True, False])
@pytest.mark.parametrize("sizes", [(2, 5, 5, 2), (2, 9, 3), (3, 3, 2, 2, 1), (3, 5, 2), (1, 6, 4, 2)])
def test_all_patterns_by_brute_force(sizes: tuple[int, ...], bounded: bool) -> None:
    net = random_net(*sizes, seed=sum(sizes))
    jacobians = every_jacobian(net, *((-1.0, 1.0) if bounded else (None, None)))
    for p in NORMS:
        found = lipschitz(net, (-1.0, 1.0) if bounded else None, p=p)
        assert found.exact
        assert found.nodes <= 2 * len(jacobians) - 1
        assert found.upper == pytest.approx(max(float(np.linalg.norm(j, p)) for j in jacobians), rel=1e-6)


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 10**6), p=st.sampled_from(NORMS), axis=st.integers(0, 2), at=st.floats(-0.9, 0.9))
def test_a_box_is_as_steep_as_its_steeper_part(seed: int, p: float, axis: int, at: float) -> None:
    net = random_net(3, 4, 4, 2, seed=seed)
    low, high = -np.ones(3), np.ones(3)
    middle_high, middle_low = high.copy(), low.copy()
    middle_high[axis] = middle_low[axis] = at
    whole, left, right = (lipschitz(net, box, p=p) for box in ((low, high), (low, middle_high), (middle_low, high)))
    assert whole.upper == pytest.approx(max(left.upper, right.upper), rel=1e-7)
    assert whole.upper <= lipschitz(net, p=p).upper * (1 + 1e-9)
    assert whole.upper <= min(whole.first, norm_product(net, p)) * (1 + 1e-9)


@pytest.mark.parametrize("p", NORMS)
def test_sampled_points_are_below_and_any_stop_holds_the_constant(p: float) -> None:
    net, box = random_net(4, 7, 6, 3, seed=3), (-1.0, 1.0)
    exact = lipschitz(net, box, p=p)
    assert exact.exact
    points = torch.rand(100, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 2 - 1
    assert max(norm_at(net, x, p) for x in points) <= exact.upper * (1 + 1e-9)
    path = [lipschitz(net, box, p=p, nodes=n) for n in (1, 3, 9, 31, 101)]
    assert path[0].nodes == 1
    assert path[0].stopped == "nodes"
    assert all(a.upper >= b.upper and a.lower <= b.lower for a, b in pairwise(path))
    loose = lipschitz(net, box, p=p, gap=1.5)
    assert loose.upper <= 1.5 * loose.lower * (1 + 1e-8)
    assert loose.nodes < exact.nodes
    for found in (*path, loose, lipschitz(net, box, p=p, seconds=0)):
        assert 0 < found.lower <= exact.upper * (1 + 1e-9)
        assert exact.upper * (1 - 1e-9) <= found.upper <= found.first
    assert lipschitz(net, box, p=p, seconds=0).stopped == "seconds"


def test_a_clock_that_runs_out_between_two_looks_does_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    """However the time falls, an interval comes back, and it holds the constant."""
    exact = lipschitz(IRIS, BOX).upper
    for late in range(2, 12):
        ticks = iter(range(1000))
        monkeypatch.setattr("time.monotonic", lambda ticks=ticks: float(next(ticks)))
        found = lipschitz(IRIS, BOX, seconds=late - 0.5)
        monkeypatch.undo()
        assert found.lower <= exact * (1 + 1e-9) <= found.upper * (1 + 2e-9)


def steepest_piece(net: nn.Sequential, low: float, high: float) -> float:
    """The largest slope of one input's one-layer net, with kinks and pieces in exact arithmetic."""
    (w1, b1), (w2, _) = matrices(net)
    pairs = [(Fraction(float(w)), Fraction(float(b))) for w, b in zip(w1[:, 0], b1, strict=True)]
    kinks = sorted({Fraction(low), Fraction(high), *(k for k in (-b / w for w, b in pairs) if low < k < high)})
    slopes = []
    for left, right in pairwise(kinks):
        at = (left + right) / 2
        on = np.array([w * at + b > 0 for w, b in pairs], dtype=float)
        slopes.append(float(np.linalg.norm((w2 * on) @ w1, 2)))
    return max(slopes)


@settings(max_examples=40, deadline=None)
@given(
    at=st.lists(st.floats(-0.9, 0.9), min_size=2, max_size=3),
    apart=st.lists(st.integers(-17, -1), min_size=2, max_size=3),
    seed=st.integers(0, 100),
)
def test_a_region_too_thin_to_be_seen_is_counted_and_not_called_exact(
    at: list[float], apart: list[int], seed: int
) -> None:
    kinks = [k for a, e in zip(at, apart, strict=False) for k in (a, a + 10.0**e)]
    rng = np.random.default_rng(seed)
    size = rng.uniform(0.5, 2, len(kinks)) * rng.choice([-1, 1], len(kinks))
    last = rng.normal(size=(2, len(kinks))) * rng.choice([1, 100], len(kinks))
    net = mlp((size[:, None].tolist(), (-size * kinks).tolist()), (last.tolist(), [0.0, 0.0]))
    truth, found = steepest_piece(net, -1.0, 1.0), lipschitz(net, (-1.0, 1.0))
    assert found.lower <= truth * (1 + 1e-9)
    assert found.upper >= truth * (1 - 1e-9)
    assert found.upper <= found.first * (1 + 1e-9)
    if found.exact:
        assert found.upper == pytest.approx(truth, rel=1e-8)


def slab(width: float, *, deep: bool = False, tall: float = 10.0) -> nn.Sequential:
    """Flat but for a step of slope `tall` between two hyperplanes that are `width` apart."""
    step = ([[tall, 0.1 - tall], [0.0, 0.0]], [0.0, 0.0])
    if not deep:
        return mlp(([[1.0, 0.0], [1.0, 0.0]], [0.0, -width]), step)
    return mlp(([[1.0, 0.0], [-1.0, 0.0]], [0.0, 0.0]), ([[1.0, -1.0], [1.0, -1.0]], [0.0, -width]), step)


@pytest.mark.parametrize("p", NORMS)
@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize("box", [(-1.0, 1.0), None])
def test_the_bound_before_any_cut_stands_for_what_is_too_thin(
    p: float, deep: bool, box: tuple[float, float] | None
) -> None:
    wide, thin, none = (lipschitz(slab(w, deep=deep), box, p=p) for w in (1e-4, 1e-9, 0.0))
    assert wide.exact
    assert wide.upper == pytest.approx(10)
    assert not thin.exact
    assert thin.stopped == "thin"
    assert thin.lower == pytest.approx(0.1, rel=1e-4)
    assert thin.upper >= 10 - 1e-9
    assert none.exact  # a copy of a neuron leaves nothing between the two
    assert none.upper == pytest.approx(0.1, rel=1e-4)


def test_what_is_certified_holds_on_both_sides_of_a_step_that_cannot_be_seen() -> None:
    net = slab(1e-9, tall=1e9)  # the first logit is 1 higher beyond the step
    with torch.no_grad():
        net[2].bias.copy_(torch.tensor([-0.5, 0.0]))
    x = torch.tensor([-0.01, 0.0], dtype=torch.float64)
    assert net(x).argmax() != net(-x).argmax()
    assert certified_radius(net, x, reach=1.0) < 0.01


def test_without_undecided_neurons_one_node_is_exact() -> None:
    net = mlp(([[1.0, -2.0], [0.5, 1.0]], [5.0, 5.0]), ([[1.0, -1.0], [1.0, 2.0]], [0.0, 0.0]))
    found = lipschitz(net, BOX, p=2)
    assert found.nodes == 1
    assert found.lower == found.upper
    assert found.first == pytest.approx(found.upper)
    assert found.upper == pytest.approx(np.linalg.norm([[0.5, -3.0], [2.0, 0.0]], 2))
    assert found.upper < 0.99 * norm_product(net, 2)


@pytest.mark.parametrize("p", NORMS)
def test_scaling_the_last_layer_scales_the_constant(p: float) -> None:
    net, scaled = random_net(3, 8, 6, 2, seed=5), random_net(3, 8, 6, 2, seed=5)
    with torch.no_grad():
        next(scaled[-1].parameters()).mul_(-3)
    assert lipschitz(scaled, BOX, p=p).upper == pytest.approx(3 * lipschitz(net, BOX, p=p).upper)


@pytest.mark.parametrize("p", NORMS)
def test_rows_look_at_margins(p: float) -> None:
    net = random_net(3, 8, 3, seed=6)
    (w1, b1), (w2, b2) = matrices(net)
    rows = np.array([[1.0, -1.0, 0.0]])
    by_hand = mlp((w1.tolist(), b1.tolist()), ((rows @ w2).tolist(), (rows @ b2).tolist()))
    assert lipschitz(net, BOX, p=p, rows=rows).upper == pytest.approx(lipschitz(by_hand, BOX, p=p).upper)


def test_a_neuron_that_is_always_zero_is_inactive() -> None:
    net = mlp(([[1.0, 1.0], [0.0, 0.0]], [0.0, 0.0]), ([[1.0, 50.0], [0.0, 50.0]], [0.0, 0.0]), ([[1.0, 1.0]], [0.0]))
    for box in ((-1.0, 1.0), None):
        assert lipschitz(net, box, p=math.inf).upper == pytest.approx(2.0)


def test_an_input_that_the_box_fixes_does_not_count() -> None:
    net = random_net(3, 7, 2, seed=7)
    (w1, b1), (w2, b2) = matrices(net)
    low, high = np.array([-1.0, 0.4, -1.0]), np.array([1.0, 0.4, 1.0])
    without = mlp((w1[:, [0, 2]].tolist(), (b1 + 0.4 * w1[:, 1]).tolist()), (w2.tolist(), b2.tolist()))
    assert lipschitz(net, (low, high)).upper == pytest.approx(lipschitz(without, (-1.0, 1.0)).upper)
    still = lipschitz(net, (low, low))
    assert (still.lower, still.upper) == (0.0, 0.0)


def test_a_convolution_is_the_matrix_it_stands_for() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 2, 2, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3)).double()
    first, last = layers(net, (1, 4, 4))
    (w1, b1), (w2, b2) = ([t.tolist() for t in a.dense()] for a in (first, last))
    low, high = np.zeros((1, 4, 4)), np.ones((1, 4, 4))
    ours = lipschitz(net, (low, high), nodes=21)
    by_hand = lipschitz(mlp((w1, b1), (w2, b2)), BOX, nodes=21)
    assert (ours.lower, ours.upper) == pytest.approx((by_hand.lower, by_hand.upper))
    assert lipschitz(net, BOX, nodes=21, shape=(1, 4, 4)) == ours


def test_symbolic_bounds_lie_inside_interval_bounds_and_hold_samples() -> None:
    net = random_net(4, 10, 10, 3, seed=8)
    low, high = symbolic_bounds(net, (0.0, 0.05))
    x = 0.05 * torch.rand(2000, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    z = net(x).detach().numpy()
    assert (z >= low).all()
    assert (z <= high).all()
    centre, radius = np.full(4, 0.025), np.full(4, 0.025)
    for l, (w, b) in enumerate(matrices(net)):
        if l:
            ends = np.maximum(centre - radius, 0), np.maximum(centre + radius, 0)
            centre, radius = (ends[1] + ends[0]) / 2, (ends[1] - ends[0]) / 2
        centre, radius = w @ centre + b, np.abs(w) @ radius
    assert (low >= centre - radius - 1e-12).all()
    assert (high <= centre + radius + 1e-12).all()
    assert (high - low).sum() < 0.9 * 2 * radius.sum()


def flips(net: nn.Module, x: Tensor, radius: float, p: float) -> bool:
    """A few starts of steepest ascent on each rival's margin inside the ball."""
    y = int(net(x).argmax())
    rng = torch.Generator().manual_seed(0)
    for j in range(len(net(x))):
        if j == y:
            continue
        delta = torch.randn(20, len(x), dtype=torch.float64, generator=rng)
        for step in range(30):
            delta = delta * (radius / torch.linalg.vector_norm(delta, p, dim=1, keepdim=True)).clamp(max=1.0)
            at = (x + delta).requires_grad_()
            z = net(at)
            if bool((z[:, j] > z[:, y] + 1e-9).any()):
                return True
            g = torch.autograd.grad((z[:, j] - z[:, y]).sum(), at)[0]
            delta = (at - x).detach() + radius / (step + 1) * (
                g.sign() if p == math.inf else g / g.norm(dim=1)[:, None]
            )
    return False


@pytest.mark.parametrize("p", NORMS)
def test_no_attack_flips_an_answer_inside_its_certified_radius(p: float) -> None:
    net = random_net(3, 8, 3, seed=9)
    radii = []
    for x in torch.rand(3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1)):
        radius = certified_radius(net, x, reach=0.5, p=p)
        radii.append(radius)
        assert 0 < radius <= 0.5
        assert not flips(net, x, radius, p)
        assert certified_radius(net, x, reach=0.5, p=p, nodes=1) <= radius * (1 + 1e-9)
    assert min(radii) < 0.5


@pytest.mark.parametrize("p", NORMS)
def test_the_certified_radius_is_the_smallest_margin_over_its_constant(p: float) -> None:
    net, x = random_net(3, 10, 3, seed=9), torch.tensor([0.5, 0.2, 0.9], dtype=torch.float64)
    z = net(x).detach().numpy()
    y = int(z.argmax())
    box = (x.numpy() - 0.3, x.numpy() + 0.3)
    ratios = [
        (z[y] - z[j]) / lipschitz(net, box, p=p, rows=np.eye(3)[[y]] - np.eye(3)[[j]]).upper for j in range(3) if j != y
    ]
    assert certified_radius(net, x, reach=0.3, p=p) == pytest.approx(min(0.3, *ratios))
    inside = certified_radius(net, x, reach=0.3, p=p, bounds=(0.0, 1.0))
    assert inside >= certified_radius(net, x, reach=0.3, p=p)  # fewer inputs to be wrong about


def test_a_linear_classifier_has_its_distance_as_radius() -> None:
    net = mlp(([[3.0, 4.0], [0.0, 0.0]], [1.0, 0.0]))
    x = torch.tensor([0.2, 0.1], dtype=torch.float64)  # margin 2.0, gradient (3, 4)
    assert certified_radius(net, x, reach=5.0, p=2) == pytest.approx(2.0 / 5)
    assert certified_radius(net, x, reach=5.0, p=math.inf) == pytest.approx(2.0 / 7)
    assert certified_radius(net, x, reach=5.0, p=1) == pytest.approx(2.0 / 4)
    assert certified_radius(net, x, reach=0.1, p=2) == 0.1


def test_norm_product_is_the_product() -> None:
    for p in NORMS:
        assert norm_product(IRIS, p) == pytest.approx(math.prod(np.linalg.norm(w, p) for w, _ in matrices(IRIS)))
    assert norm_product(IRIS, 2) == pytest.approx(7.676, abs=1e-3)
    assert lipschitz(IRIS, BOX, p=2, nodes=1).upper <= 7.6761  # below the first bound, 8.81


@pytest.mark.parametrize("box", [BOX, None])
def test_scipy_serves_where_highspy_is_missing(
    monkeypatch: pytest.MonkeyPatch, box: tuple[float, float] | None
) -> None:
    there = lipschitz(IRIS, box)
    monkeypatch.setitem(sys.modules, "highspy", None)
    without = lipschitz(IRIS, box)
    assert without.exact
    assert without.upper == pytest.approx(there.upper, rel=1e-9)


def test_the_model_stays_as_it_is_and_float32_is_welcome() -> None:
    net = random_net(3, 6, 2, seed=1).float()
    before = [p.clone() for p in net.parameters()]
    assert lipschitz(net, BOX).exact
    assert all(torch.equal(a, b) and b.grad is None for a, b in zip(before, net.parameters(), strict=True))


@pytest.mark.parametrize(
    ("call", "kind", "words"),
    [
        (lambda: lipschitz(IRIS, BOX, p=3), AssayError, r"got p=3; it knows 1, 2 and math.inf"),
        (lambda: lipschitz(IRIS, BOX, gap=0.5), AssayError, r"got gap=0.5; 1.0 is exact"),
        (lambda: lipschitz(IRIS, BOX, nodes=0), AssayError, r"got nodes=0"),
        (
            lambda: lipschitz(IRIS, (np.array([0, 0, 2.5, 0]), 1.0)),
            AssayError,
            r"low 2.5 above high 1 at index \(2,\); swap them",
        ),
        (
            lambda: lipschitz(IRIS, (np.zeros(4), np.ones(5))),
            ShapeError,
            r"high of shape \(5,\) for inputs of \(4,\)",
        ),
        (lambda: lipschitz(IRIS, (0.0, math.nan)), AssayError, r"high with nan; give finite ends"),
        (lambda: lipschitz(IRIS, BOX, rows=[[1.0, -1.0]]), ShapeError, r"rows has shape \(1, 2\) for 3 outputs"),
        (lambda: lipschitz(nn.Sequential(nn.Linear(2, 2), nn.Tanh()), BOX), SubjectError, r"Layer '1' \(Tanh\)"),
        (lambda: lipschitz(mlp(([[math.nan]], [0.0])), BOX), SubjectError, r"has the weight nan at \(0, 0\)"),
        (lambda: certified_radius(IRIS, torch.zeros(4), reach=0), AssayError, r"got reach=0"),
        (
            lambda: certified_radius(IRIS, torch.full((4,), 2.0), reach=1, bounds=(0, 1)),
            AssayError,
            r"spans 2 to 2, outside bounds=\(0, 1\)",
        ),
    ],
)
def test_errors_say_what_to_do(call: Callable[[], object], kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words) as caught:
        call()
    assert "\n" not in str(caught.value)
