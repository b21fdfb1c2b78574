from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.testing import assert_close

from assay.errors import AssayError, ShapeError
from assay.nn.softrmax import SoftRmax, log_softrmax, nearest_distance, softrmax

rows = st.integers(2, 6).flatmap(lambda k: st.lists(st.floats(-50, 50, width=32), min_size=k, max_size=k))


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def as_printed(z: list[float], power: float = 1.0) -> list[float]:
    """Eq. 5.12 in plain Python."""
    k = len(z)
    d = [sum((z[j] - (j == i)) ** 2 for j in range(k)) for i in range(k)]
    return [(1 / d[i]) ** power / sum((1 / d[j]) ** power for j in range(k)) for i in range(k)]


@pytest.mark.parametrize("power", [0.5, 1.0, 3.0])
def test_it_is_the_printed_posterior(power: float) -> None:
    z = draw(50, 7) * torch.logspace(-2, 2, 50, dtype=torch.float64)[:, None]
    want = torch.tensor([as_printed(row, power) for row in z.tolist()], dtype=torch.float64)
    assert_close(softrmax(z, power=power), want, rtol=1e-11, atol=0)
    assert_close(softrmax(z.float(), power=power).double(), want, rtol=1e-5, atol=1e-7)
    assert_close(softrmax(z.reshape(5, 10, 7), power=power).reshape(50, 7), want)  # any leading shape
    assert_close(softrmax(z[3], power=power), want[3])


@settings(deadline=None, max_examples=60)
@given(row=rows, power=st.sampled_from([0.5, 1.0, 4.0]))
def test_it_is_a_posterior_with_the_argmax_of_z(row: list[float], power: float) -> None:
    z = torch.tensor(row, dtype=torch.float64)
    p = softrmax(z, power=power)
    assert_close(p.sum(), torch.ones_like(p[0]))
    assert p[z.argmax()] == p.max()
    log_p = log_softrmax(z, power=power)
    assert log_p[z.argsort()].diff().min() >= -1e-12  # the whole order


def test_gaussians_on_the_basis_vectors_give_softmax() -> None:
    z = 3 * draw(20, 5)
    density = torch.exp(-((z[:, None] - torch.eye(5, dtype=z.dtype)) ** 2).sum(-1) / 2)
    assert_close(density / density.sum(1, keepdim=True), z.softmax(1), rtol=1e-12, atol=1e-12)


def test_inversion_symmetry_on_the_ray_through_a_basis_vector() -> None:
    r = torch.logspace(-3, 3, 61, dtype=torch.float64)
    z = r[:, None] * torch.eye(4, dtype=torch.float64)[0]
    p = softrmax(z)[:, 0]
    assert_close(p, p.flip(0), rtol=1e-9, atol=0)  # r and 1/r
    assert p.argmax() == 30
    assert_close(p[30].item(), 1.0, rtol=0, atol=1e-7)
    third = softrmax(torch.tensor([[2.0, 0, 0], [0.5, 0, 0]]))[:, 0]
    assert_close(third, torch.full((2,), 5 / 7))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_at_a_basis_vector_it_is_one_hot_with_a_finite_gradient(dtype: torch.dtype) -> None:
    z = torch.eye(5, dtype=dtype).requires_grad_()
    assert_close(softrmax(z), torch.eye(5, dtype=dtype), rtol=0, atol=1e-7)
    for y in range(5):  # the label may be another class
        loss = F.cross_entropy(log_softrmax(z), torch.full((5,), y))
        assert loss.isfinite()
        (gradient,) = torch.autograd.grad(loss, z)
        assert gradient.isfinite().all()
        assert gradient[y].abs().max() < 1e-6


@pytest.mark.parametrize("power", [1.0, 2.0])
def test_far_away_it_is_one_kth_at_the_printed_rate(power: float) -> None:
    k = 6
    u = draw(k)
    u = u / u.norm()
    want = 2 * power * (u - u.mean()) / k
    for r in (1e3, 1e4, 1e5):
        assert_close((softrmax(r * u, power=power) - 1 / k) * r, want, rtol=0, atol=10 / r)
    off = [(softrmax(r * u.float(), power=power).double() - 1 / k).abs().max() for r in (1e3, 2e3)]
    assert_close(off[0] / off[1], torch.tensor(2.0, dtype=torch.float64), rtol=1e-2, atol=0)
    # a larger power is sharper at e_i and slower to return to 1/k, against sec. 8.2
    assert softrmax(1.2 * torch.eye(k)[0], power=2 * power)[0] > softrmax(1.2 * torch.eye(k)[0], power=power)[0]


@pytest.mark.parametrize("r", [1.0, 1e2, 1e4, 1e8, 1e15])
def test_float32_keeps_the_digits_of_value_and_gradient_at_any_length(r: float) -> None:
    exact = (r * F.normalize(draw(8, 10), dim=1)).float().double().requires_grad_()
    single = exact.detach().float().requires_grad_()
    y = torch.arange(8)
    slopes = [torch.autograd.grad(F.nll_loss(log_softrmax(z), y), z)[0].double() for z in (exact, single)]
    assert_close(log_softrmax(single).double(), log_softrmax(exact), rtol=0, atol=1e-6)
    assert_close(slopes[1], slopes[0], rtol=1e-4, atol=1e-6 * float(slopes[0].abs().max()))


@pytest.mark.parametrize("r", [1e20, 1e30, 3e38])
def test_nothing_overflows(r: float) -> None:
    z = torch.tensor([[r, -r, 0.0], [r, r, r]], requires_grad=True)
    p = softrmax(z)
    assert_close(p, torch.full((2, 3), 1 / 3))
    (gradient,) = torch.autograd.grad(p[:, 0].log().sum(), z)
    assert gradient.isfinite().all()


def test_the_gradient_is_that_of_finite_differences() -> None:
    z = torch.cat([draw(6, 4), torch.eye(4, dtype=torch.float64) + 1e-2 * draw(4, 4, seed=1)]).requires_grad_()
    for power in (1.0, 2.5):
        assert torch.autograd.gradcheck(lambda t, q=power: log_softrmax(t, power=q), (z,))
        # across the switch from one form to the other, a = 0.75
        edge = torch.tensor([[0.4514, 0.0], [0.4515, 0.0], [2.2152, 0.0], [2.2153, 0.0]], dtype=torch.float64)
        assert torch.autograd.gradcheck(lambda t, q=power: log_softrmax(t, power=q), (edge.requires_grad_(),))


def test_cross_entropy_on_it_is_the_published_loss() -> None:
    z, y = draw(30, 5), torch.arange(30) % 5
    d = ((z[:, None] - torch.eye(5, dtype=z.dtype)) ** 2).sum(-1)
    own = d.gather(1, y[:, None])[:, 0]
    want = torch.log1p(own * ((1 / d).sum(1) - 1 / own))
    head = SoftRmax()
    assert_close(F.cross_entropy(head(z), y, reduction="none"), want)
    assert_close(head(z).softmax(1), softrmax(z))  # log p are logits
    near = torch.eye(5, dtype=z.dtype)[y] + 1e-3 * F.normalize(z, dim=1)
    ratio = F.cross_entropy(head(near), y, reduction="none") / (2 * 1e-6)  # (k - 1) / 2 ||z - e_y||^2
    assert_close(ratio, torch.ones_like(ratio), rtol=5e-3, atol=0)


def test_the_gradient_is_twice_that_of_softmax_at_zero_and_vanishes_far_out() -> None:
    k = 10
    zero = torch.zeros(1, k, requires_grad=True)
    y = torch.tensor([3])
    (ours,) = torch.autograd.grad(F.cross_entropy(log_softrmax(zero), y), zero)
    (theirs,) = torch.autograd.grad(F.cross_entropy(zero, y), zero)
    assert_close(ours, 2 * theirs)
    r = 10 * math.sqrt(k)
    far = (r * F.normalize(draw(50, k), dim=1)).requires_grad_()
    (slope,) = torch.autograd.grad(F.nll_loss(log_softrmax(far), y.expand(50), reduction="sum"), far)
    size = slope.norm(dim=1)  # 2 sqrt(1 - 1/k) / r^2 in the limit: about 2e-3 here, where softmax has about 1
    assert_close(size, torch.full_like(size, 2 * math.sqrt(1 - 1 / k) / r**2), rtol=0.15, atol=0)


def test_along_a_direction_that_moves_z_it_gets_unsure_and_in_the_null_space_it_does_not() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        body = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3))
        linear = nn.Linear(6, 3)
    x = draw(6).float()
    for net in (body, linear):
        far = net(x + 1e7 * torch.ones(6))
        assert far.norm() > 1e5
        assert_close(SoftRmax()(far).exp(), torch.full((3,), 1 / 3), rtol=0, atol=1e-4)
        assert far.softmax(-1).max() > 0.999
    blind = torch.linalg.svd(linear.weight.detach())[2][-1]  # a direction that the layer does not see
    assert_close(softrmax(linear(x + 100 * blind)), softrmax(linear(x)), rtol=0, atol=1e-4)


def test_the_distance_parts_the_ambiguous_from_the_unfamiliar() -> None:
    between, far = torch.tensor([0.5, 0.5]), torch.tensor([1e3, 1e3])
    assert_close(softrmax(between), softrmax(far))
    assert_close(nearest_distance(torch.stack([between, far])), torch.tensor([0.5, 999.0**2 + 1e6]))
    z = draw(4, 5, 3)
    every = ((z[..., None, :] - torch.eye(3, dtype=z.dtype)) ** 2).sum(-1)
    assert_close(nearest_distance(z), every.amin(-1))


def test_as_a_module_it_ends_a_network_and_trains() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 2), SoftRmax())
    assert not list(net[-1].parameters())
    assert str(net[-1]) == "SoftRmax(power=1)"
    x = draw(200, 2).float()
    y = (x[:, 0] > 0).long()
    x[:, 0] += 2 * y - 1
    steps = torch.optim.Adam(net.parameters(), lr=0.02)
    for _ in range(100):
        steps.zero_grad()
        torch.autograd.backward(F.cross_entropy(net(x), y))
        steps.step()
    assert (net(x).argmax(1) == y).float().mean() > 0.99
    assert net[:-1](x).norm(dim=1).median() < 1.5  # z is drawn to the basis vectors
    assert net(1e4 * x).exp().max() < 0.6


def test_a_temperature_is_a_power() -> None:
    z = 2 * draw(20, 5)
    assert_close((log_softrmax(z) / 0.4).softmax(1), softrmax(z, power=2.5))


def test_what_it_refuses() -> None:
    with pytest.raises(ShapeError, match="at least two classes"):
        log_softrmax(torch.zeros(3, 1))
    with pytest.raises(ShapeError, match="int64"):
        softrmax(torch.zeros(3, 2, dtype=torch.int64))
    for power in (0.0, -1.0, math.nan):
        with pytest.raises(AssayError, match="power > 0"):
            SoftRmax(power)
        with pytest.raises(AssayError, match="power > 0"):
            log_softrmax(torch.zeros(2), power=power)


@pytest.fixture(scope="module")
def heads() -> tuple[dict[str, nn.Module], Tensor, Tensor]:
    """The same network with either head on scikit-learn's digits, and the images that it did not see."""
    from sklearn.datasets import load_digits

    from assay.data.arrays import Arrays
    from assay.methods.train.fit import fit

    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(x))
    x, y = (x[order] / 16).astype(np.float32), y[order]
    trained: dict[str, nn.Module] = {}
    for name in ("softmax", "softRmax"):
        with torch.random.fork_rng():
            torch.manual_seed(0)
            net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10))
        model = nn.Sequential(net, SoftRmax()) if name == "softRmax" else nn.Sequential(net)
        fit(model, Arrays(x[:1200], y[:1200]), epochs=30, lr=2e-3, batch=64, optimiser="adam", schedule="constant",
            rng=torch.Generator().manual_seed(0))  # fmt: skip
        trained[name] = model.eval().requires_grad_(False)
    return trained, torch.as_tensor(x[1200:]), torch.as_tensor(y[1200:])


def test_on_digits_it_is_as_right_and_unsure_where_softmax_is_not(
    heads: tuple[dict[str, nn.Module], Tensor, Tensor],
) -> None:
    from assay.methods.attack import fgsm
    from assay.methods.attack.magnitude_margin import magnitude_margin
    from assay.methods.uncertainty.detection import auroc

    trained, x, y = heads
    told: dict[str, tuple[float, ...]] = {}
    noise = torch.rand(500, 64, generator=torch.Generator().manual_seed(1))
    for name, model in trained.items():
        near = fgsm(model, x, y, radius=0.3, bounds=(-1e3, 1e3), as_published=True).x
        wrong = model(near).argmax(1) != y
        told[name] = (
            float((model(x).argmax(1) == y).float().mean()),
            float(model(near).softmax(1).amax(1)[wrong].mean()),
            float(model(1000 * x).softmax(1).amax(1).mean()),
            auroc(model(x).softmax(1).amax(1), model(noise).softmax(1).amax(1)),
            float(magnitude_margin(model[0], x, y).ratio.median()),  # type: ignore[index]
        )
    (clean, sure, far, known, ratio), (clean_r, sure_r, far_r, known_r, ratio_r) = told["softmax"], told["softRmax"]
    assert clean_r >= clean - 0.01 > 0.94
    assert sure > 0.85 > 0.55 > sure_r  # confidence where an attack made it wrong
    assert far > 0.99 > 0.2 > far_r  # a thousand times too bright
    assert known_r > 0.95 > known
    assert ratio_r < 0.8 * ratio


def test_on_digits_its_robustness_is_mostly_its_own_loss_misleading_the_attack(
    heads: tuple[dict[str, nn.Module], Tensor, Tensor],
) -> None:
    from assay.methods.attack import fgsm, pgd

    trained, x, y = heads
    wide = (-1e3, 1e3)  # no clipping

    def right(model: nn.Module, at: Tensor) -> float:
        return float((model(at).argmax(1) == y).float().mean())

    held: dict[str, dict[str, float]] = {}
    for name, model in trained.items():
        net = model[0]  # type: ignore[index]
        bim = {
            f"own {r:g} {t}": pgd(model, x, y, radius=r, steps=t, step=r / t, random_start=False, bounds=wide,
                                  as_published=True).x
            for r, t in ((0.1, 10), (0.3, 10), (0.3, 50))
        }  # fmt: skip
        adaptive = {
            f"margin {r:g}": pgd(net, x, y, radius=r, steps=20, step=r / 10, random_start=False, bounds=wide,
                                 loss="margin").x
            for r in (0.05, 0.1, 0.2, 0.3)
        }  # fmt: skip
        one = {"fgsm": fgsm(model, x, y, radius=0.1, bounds=wide, as_published=True).x}
        held[name] = {key: right(model, at) for key, at in {**bim, **adaptive, **one}.items()}
    soft, ours = held["softmax"], held["softRmax"]
    assert ours["fgsm"] > soft["fgsm"] + 0.2
    assert ours["own 0.1 10"] > soft["own 0.1 10"] + 0.15
    assert ours["own 0.3 10"] > soft["own 0.3 10"] + 0.2
    assert ours["own 0.3 50"] > ours["own 0.3 10"] - 0.1  # a plateau in the number of steps
    assert ours["margin 0.3"] < 0.05  # which another loss takes away
    assert ours["margin 0.2"] < 0.1
    assert ours["margin 0.05"] > soft["margin 0.05"] - 0.02  # at small radii some margin is gained, not lost
