"""Universal adversarial training: its two steps by hand, its ball and box, and the plain training at radius 0."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.testing import assert_close

from assay.data.arrays import Arrays
from assay.errors import AssayError
from assay.methods.attack.universal import error_rate, universal
from assay.methods.train.fit import fit
from assay.methods.train.universal_adversarial_training import UniversalAdversary

RNG = torch.Generator()


def toy(seed: int = 0, n: int = 24, d: int = 6) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    x = torch.rand(n, d, generator=draw)
    return x, (x[:, 0] > x[:, 1]).long()


def dense(*, norm: bool = False) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        between: list[nn.Module] = [nn.BatchNorm1d(8), nn.Dropout(0.3)] if norm else []
        return nn.Sequential(nn.Linear(6, 8), *between, nn.ReLU(), nn.Linear(8, 2))


def test_each_batch_goes_down_for_the_weights_and_then_up_for_the_change() -> None:
    """Against plain loops: the weights descend on changed inputs, the change ascends at the new weights."""
    x, y = toy()
    net, lr, radius, step = dense(), 0.5, 0.3, 0.2
    twin = copy.deepcopy(net)
    against = UniversalAdversary(net, radius, step=step)
    fit(
        net,
        Arrays(x, y),
        epochs=5,
        lr=lr,
        momentum=0.0,
        schedule="constant",
        rng=RNG.manual_seed(0),
        batch=24,
        augment=against.augment,
        after_step=against.after_step,
    )
    delta = torch.zeros(6)
    for _ in range(5):
        loss = F.cross_entropy(twin((x + delta).clamp(0, 1)), y)
        slopes = torch.autograd.grad(loss, list(twin.parameters()))
        with torch.no_grad():
            for p, g in zip(twin.parameters(), slopes, strict=True):
                p -= lr * g
        total = torch.zeros(6)
        for row, label in zip(x, y, strict=True):
            at = (row + delta).clamp(0, 1).requires_grad_()
            (g,) = torch.autograd.grad(F.cross_entropy(twin(at), label), at)
            total += g
        delta = (delta + step * total.sign()).clamp(-radius, radius)
    assert against.delta is not None
    assert_close(against.delta, delta)
    for p, q in zip(net.parameters(), twin.parameters(), strict=True):
        assert_close(p, q)


def test_of_a_linear_model_the_change_is_the_sign_of_the_summed_gradient() -> None:
    """dCE/dx = W^T (softmax(Wx + b) - e_y), in closed form."""
    x, y = toy(n=200)
    net = nn.Linear(6, 2)
    pulls = ((net(x).softmax(1) - F.one_hot(y, 2)) @ net.weight).detach()  # n d
    against = UniversalAdversary(net, 0.1)
    against.augment(x, y, RNG)
    against.after_step()
    assert_close(against.delta, 0.1 * pulls.sum(0).sign())


def test_an_input_whose_loss_is_beyond_the_cap_does_not_pull() -> None:
    """Logits (0, 10 x): of class 0, x = 0.9 has loss 9 and slope 10; of class 1, x = 0.1 has loss 0.3 and -2.7."""
    net = nn.Linear(1, 2)
    with torch.no_grad():
        net.weight.copy_(torch.tensor([[0.0], [10.0]]))
        net.bias.zero_()
    x, y = torch.tensor([[0.9], [0.1]]), torch.tensor([0, 1])
    for cap, up in ((5.0, -1.0), (12.0, 1.0)):
        against = UniversalAdversary(net, 0.1, cap=cap)
        against.augment(x, y, RNG)
        against.after_step()
        assert_close(against.delta, torch.tensor([0.1 * up]))


@settings(deadline=None, max_examples=30)
@given(
    radius=st.floats(0.01, 0.5),
    step=st.floats(0.01, 2),
    low=st.floats(-50, 50),
    span=st.floats(0.1, 255),
    seed=st.integers(0, 99),
)
def test_the_change_stays_in_its_ball_and_the_inputs_in_their_range(
    radius: float, step: float, low: float, span: float, seed: int
) -> None:
    x, y = toy(seed)
    x = low + span * x
    against = UniversalAdversary(dense(), radius, step=step, low=low, span=span)
    for _ in range(4):
        seen, _ = against.augment(x, y, RNG)
        assert bool((seen >= low - 1e-4).all() & (seen <= low + span + 1e-4).all())
        assert float((seen - x).abs().max()) <= radius * span * (1 + 1e-5) + 1e-4
        against.after_step()
        assert against.delta is not None
        assert float(against.delta.abs().max()) <= radius * span * (1 + 1e-5)


def test_features_of_other_units_change_by_the_same_share_of_their_range() -> None:
    x, y = toy()
    net, low = dense(), torch.tensor([0.0, -3, 5, 0, 0, 1])
    span = torch.tensor([1.0, 10, 255, 1, 1, 0])  # the last never varies
    other = nn.Sequential(nn.Identity(), copy.deepcopy(net))
    with torch.no_grad():
        first = other[1][0]  # type: ignore[index]
        first.bias += first.weight[:, 5] * 1.0  # what the last feature, 1 in these units, is in the others
        first.weight[:, 5] = 0
    shares = UniversalAdversary(other, 0.1, step=0.07)
    natural = UniversalAdversary(nn.Sequential(Shares(low, span), other), 0.1, step=0.07, low=low, span=span)
    for _ in range(3):
        seen, _ = shares.augment(x, y, RNG)
        felt, _ = natural.augment(low + span * x, y, RNG)
        assert_close((felt - low)[:, :5] / span[:5], seen[:, :5], atol=1e-4, rtol=0)
        shares.after_step()
        natural.after_step()
    assert natural.delta is not None
    assert float(natural.delta[5]) == 0


class Shares(nn.Module):
    def __init__(self, low: Tensor, span: Tensor) -> None:
        super().__init__()
        self.low, self.span = low, span

    def forward(self, x: Tensor) -> Tensor:
        shares: Tensor = (x - self.low) / self.span.clamp_min(1e-9)
        return shares


def test_a_radius_of_zero_is_the_plain_training() -> None:
    """With batch normalisation and dropout too: the step up draws nothing and moves no running mean."""
    x, y = toy()
    data = Arrays(3 * x - 1, y)  # beyond the range that is told
    plain, none = dense(norm=True), dense(norm=True)
    against = UniversalAdversary(none, 0.0)
    fit(plain, data, epochs=3, lr=0.1, batch=8, rng=torch.Generator().manual_seed(3))
    fit(
        none,
        data,
        epochs=3,
        lr=0.1,
        batch=8,
        rng=torch.Generator().manual_seed(3),
        augment=against.augment,
        after_step=against.after_step,
    )
    assert_close(none.state_dict(), plain.state_dict())
    moving = UniversalAdversary(none.train(), 0.1)
    moving.augment(x, y, RNG)
    before, drawn = copy.deepcopy(none.state_dict()), torch.get_rng_state()
    moving.after_step()
    assert_close(none.state_dict(), before)
    assert torch.equal(torch.get_rng_state(), drawn)
    assert all(module.training for module in none.modules())
    assert all(p.grad is None for p in none.parameters())


class Downwards(UniversalAdversary):
    """The control: the change goes where the loss is low."""

    def _slope(self, x: Tensor, y: Tensor) -> Tensor:
        return -super()._slope(x, y)


class Anywhere(UniversalAdversary):
    """The control: the change goes where chance sends it."""

    def _slope(self, x: Tensor, y: Tensor) -> Tensor:
        self.rng = getattr(self, "rng", None) or torch.Generator().manual_seed(5)
        return torch.randn(x[0].shape, generator=self.rng)


def a_strong_and_many_weak_signs(seed: int, n: int) -> tuple[Tensor, Tensor]:
    """One feature tells the class in 95 % of cases by more than a change of 0.1 undoes; 100 others tell it together,
    each by less. Whoever relies on those falls to one change along them, and to hardly any other."""
    draw = torch.Generator().manual_seed(seed)
    y = torch.randint(2, (n,), generator=draw)
    side = (2 * y - 1).float()
    strong = 0.5 + 0.3 * side * torch.where(torch.rand(n, generator=draw) < 0.95, 1.0, -1.0)
    weak = 0.5 + 0.04 * side[:, None] + 0.1 * torch.randn(n, 100, generator=draw)
    return torch.cat([strong[:, None], weak], 1).clamp(0, 1), y


def test_the_gain_comes_from_the_ascent_and_not_from_any_change() -> None:
    """The error under the worse of two new changes was 0.05, at seeds 0 to 2; 0.49 to 0.50 after training downwards,
    0.48 to 0.50 after random directions, 0.27 to 0.44 after plain training."""
    x, y = a_strong_and_many_weak_signs(0, 600)
    new, truth = a_strong_and_many_weak_signs(100, 1000)
    worst = {}
    for kind in (UniversalAdversary, Downwards, Anywhere):
        with torch.random.fork_rng():
            torch.manual_seed(0)
            net = nn.Linear(101, 2)
        against = kind(net, 0.1, step=0.025)
        pieces = {"augment": against.augment, "after_step": against.after_step}
        fit(net, Arrays(x, y), epochs=40, lr=0.02, batch=50, rng=torch.Generator().manual_seed(0), **pieces)
        net.requires_grad_(False)
        made = [universal(net, x, y, radius=0.1, steps=40, target=c, rng=RNG.manual_seed(1)).delta for c in (0, 1)]
        worst[kind] = max(error_rate(net, new, truth, change) for change in made)
    assert worst[UniversalAdversary] < 0.15
    assert worst[Downwards] > 0.3
    assert worst[Anywhere] > 0.3


def test_bad_settings_are_refused() -> None:
    for radius in (-0.1, float("nan"), float("inf")):
        with pytest.raises(AssayError, match=f"radius={radius} is no size"):
            UniversalAdversary(dense(), radius)
    with pytest.raises(AssayError, match="step=0 does not move"):
        UniversalAdversary(dense(), 0.1, step=0)
    with pytest.raises(AssayError, match="cap=0 leaves no loss"):
        UniversalAdversary(dense(), 0.1, cap=0)
    with pytest.raises(AssayError, match="pass `augment`"):
        UniversalAdversary(dense(), 0.1).after_step()
