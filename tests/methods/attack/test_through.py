"""Attacks that go through: planted defences break as far as what they hide, and honest nets have no gap."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.testing import assert_close

from assay.methods.attack import through
from assay.methods.attack.masking import ATTACKS, go_through
from assay.methods.attack.pgd import pgd
from assay.methods.attack.through import (
    THROUGH,
    Still,
    StraightThrough,
    carries_gradient,
    class_axis,
    fitted,
    straight_through,
    ways_through,
)
from assay.nn.detached import Detached
from assay.nn.members import Drawn
from assay.nn.noisy import Noise
from assay.tasks import Classification, Labels, Regression, Segmentation, Tagging

RADIUS = 0.1


class Behind(nn.Module):
    """A net behind a defence: a module, or a function in its forward."""

    def __init__(self, net, defence):
        super().__init__()
        self.net, self.defence = net, defence

    def forward(self, x: Tensor) -> Tensor:
        return self.net(self.defence(x))


class Rounds(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return (x * 16).round() / 16


class Steep(nn.Module):
    """Sixteen steep sigmoids, one on top of the other: stairs whose gradient is 0 or huge."""

    def forward(self, x: Tensor) -> Tensor:
        edges = (torch.arange(16) + 0.5) / 16
        return torch.sigmoid(1000 * 16 * (x[..., None] - edges)).mean(-1)


class Median(nn.Module):
    """A median over three neighbours in a row, computed where no gradient is kept."""

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        return F.pad(x, (1, 1)).unfold(1, 3, 1).median(-1).values


class Thermometer(nn.Module):
    """Each value as sixteen zeros and ones, which the net behind it sums up again."""

    def forward(self, x: Tensor) -> Tensor:
        return (x[:, :, None] > (torch.arange(16) + 0.5) / 16).to(x).flatten(1)


class Summed(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.first = nn.Linear(64 * 16, 64, bias=False)
        with torch.no_grad():
            self.first.weight.copy_(torch.eye(64).repeat_interleave(16, 1) / 16)
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        return self.net(self.first(x))


class Backwards(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return -grad


class SaysNaN(torch.autograd.Function):
    """x itself; on the way back NaN, be it asked with 0."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad * torch.nan


class SaysNoise(torch.autograd.Function):
    """x itself; on the way back large noise, be it asked with 0."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return 1e3 * torch.randn_like(grad)


class Root(nn.Module):
    """x itself, by a road whose gradient is NaN at 0."""

    def forward(self, x: Tensor) -> Tensor:
        return x + 0 * (0 * x).sqrt()


def rounds(x: Tensor) -> Tensor:
    return (x * 16).round() / 16


def cut_off(x: Tensor) -> Tensor:
    return Rounds()(x.detach())


DEFENCES = {
    "a layer that rounds": Rounds(),
    "a function that rounds": rounds,
    "a step that is steep": Steep(),
    "a function that cuts the gradient off": cut_off,
    "a gradient that points backwards": Backwards.apply,
    "a gradient that is NaN": Root(),
    "a way back that says NaN": SaysNaN.apply,
    "a way back that says noise": SaysNoise.apply,
}


def accuracy(model, x, y):
    with torch.no_grad():
        return float((model(x).argmax(1) == y).double().mean())


def attacked(model, x, y, by=None):
    rng = torch.Generator().manual_seed(0)
    return accuracy(model, pgd(by or model, x, y, radius=RADIUS, steps=20, loss="margin", rng=rng).x, y)


@pytest.fixture(scope="module")
def bare(digits):
    return attacked(digits.model, digits.x[:100], digits.y[:100])


@pytest.mark.parametrize("name", DEFENCES)
def test_a_planted_defence_falls_to_what_it_hides(digits, bare, name):
    x, y = digits.x[:100], digits.y[:100]
    model = Behind(digits.model, DEFENCES[name]).eval()
    bridged = straight_through(model, digits.train_x, radius=RADIUS)
    assert bridged is not None
    assert len(bridged.gaps) == 1
    assert torch.equal(bridged(x), model(x))  # it answers as the model does
    if "NaN" not in name and carries_gradient(model, x[:2]):
        assert attacked(model, x, y) > bare + 0.1  # it did look sturdy
    assert attacked(model, x, y, bridged) <= bare + 0.05


@pytest.mark.parametrize("defence", [SaysNaN.apply, SaysNoise.apply, Backwards.apply])
def test_behind_a_stand_in_nothing_is_left_of_the_way_back_that_it_replaces(digits, defence):
    """What stands in is the identity, in front of the net: its gradient is the net's own to the bit."""
    bridged = straight_through(Behind(digits.model, defence).eval(), digits.train_x, radius=RADIUS)
    assert bridged is not None
    assert [gap.stand_in.kind for gap in bridged.gaps] == ["identity"]
    slopes = []
    for net in (bridged, digits.model):
        at = digits.x[:20].clone().requires_grad_()
        slopes += torch.autograd.grad(net(at)[:, 3].sum(), at)
    assert torch.equal(*slopes)


def test_where_most_gradients_are_nan_a_mean_of_them_is_no_way(digits, monkeypatch):
    monkeypatch.setattr(through, "straight_through", lambda *_, **__: None)
    names = {}
    for defence in (SaysNaN.apply, Backwards.apply):
        before = torch.random.get_rng_state()
        ways = ways_through(
            Behind(digits.model, defence), digits.x, radius=RADIUS, misled=True, teach=lambda: digits.model
        )
        assert torch.equal(before, torch.random.get_rng_state())
        names[defence] = [way.name for way in ways]
    assert names == {SaysNaN.apply: ["distilled copy"], Backwards.apply: ["distilled copy", "EOT"]}


class Offset(nn.Module):
    """A net and a little of a linear one; to all of its answers alike a multiple of the sum of the input is added."""

    def __init__(self, net, size: float) -> None:
        super().__init__()
        self.net, self.size = net, size
        self.slope = 1e-4 * torch.randn(64, 10, generator=torch.Generator().manual_seed(5))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.net(x) + x @ self.slope + self.size * x.sum(1, keepdim=True)
        return out


@pytest.mark.parametrize("layers", ["all are found", "none", "one that does it all"])
def test_what_is_added_to_all_scores_alike_hides_no_gap(digits, layers):
    """It changes no answer and no loss, and the scores look linear: the same gap is bridged, and as much falls."""
    x, y = digits.x[:100], digits.y[:100]
    net = Behind(digits.model, lambda u: (8 * u).round() / 8)
    found = {}
    for size in (0.0, 20.0):
        model = Offset(net if layers == "all are found" else lambda u: net(u), size)
        model = (nn.Sequential(model) if layers == "one that does it all" else model).eval()
        bridged = straight_through(model, digits.train_x, radius=RADIUS)
        assert bridged is not None
        assert torch.equal(bridged(x), model(x))
        found[size] = attacked(model, x, y, bridged)
        assert found[size] < attacked(model, x, y) - 0.1
        assert len(bridged.gaps) == 1
        found[bridged.told()] = True
    assert len(found) == 3  # two numbers, and one gap
    assert found[20.0] == pytest.approx(found[0.0], abs=0.03)


class OneMore(nn.Module):
    """A net with one class more, which is never said."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.net(x)
        return torch.cat([out, torch.full_like(out[:, :1], -torch.inf)], 1)


def test_a_score_that_is_infinite_hides_no_gap_either(digits):
    model = OneMore(Offset(Behind(digits.model, rounds), 20.0)).eval()
    assert straight_through(model, digits.train_x, radius=RADIUS) is not None


def test_an_offset_counts_where_the_highest_score_does_not_win(digits):
    """Numbers that move as they say are no defence, whatever is rounded beside them."""
    model = Offset(Behind(digits.model, rounds), 20.0).eval()
    assert straight_through(model, digits.train_x, radius=RADIUS, classes=None) is None
    one = nn.Sequential(Behind(digits.model, rounds), nn.Linear(10, 1)).eval()  # has no others to lie apart from
    assert straight_through(one, digits.train_x, radius=RADIUS) is not None
    scored = [class_axis(kind(("a", "b"))) for kind in (Classification, Segmentation, Tagging, Labels)]
    assert scored == [1, 1, -1, None]
    assert class_axis(Regression(("a", "b"), (1.0, 1.0))) is None


def test_a_median_that_keeps_no_gradient_falls_as_one_that_does(digits):
    x, y = digits.x[:100], digits.y[:100]
    model = Behind(digits.model, Median()).eval()

    class Honest(Median):
        def forward(self, x: Tensor) -> Tensor:
            return F.pad(x, (1, 1)).unfold(1, 3, 1).median(-1).values

    open_ = attacked(Behind(digits.model, Honest()).eval(), x, y)
    bridged = straight_through(model, digits.train_x, radius=RADIUS)
    assert bridged is not None
    assert bridged.gaps[0].why == "none"
    assert not carries_gradient(model, x[:2])
    assert attacked(Still(model), x, y) > open_ + 0.1
    assert attacked(model, x, y, bridged) <= open_ + 0.1


def test_a_thermometer_is_read_in_either_order(digits, bare):
    x, y = digits.x[:100], digits.y[:100]
    model = nn.Sequential(Thermometer(), Summed(digits.model)).eval()
    assert not carries_gradient(model, x[:2])
    bridged = straight_through(model, digits.train_x, radius=RADIUS)
    assert bridged is not None
    assert bridged.gaps[0].stand_in.kind == "cubic"
    assert attacked(model, x, y, bridged) <= bare + 0.05
    u = torch.rand(50, 8)
    for flat in (
        u[:, :, None] > 0.5,
        (u[:, None, :] > 0.5),
    ):  # levels of one value side by side, or one after the other
        v = flat.expand(50, *((8, 4) if flat.shape[2] == 1 else (4, 8))).flatten(1).float()
        stand_in = fitted(u, v)
        assert stand_in is not None
        assert float((stand_in(u, v) - v).square().mean()) < 0.06


def test_straight_through_rounding_is_the_plain_attack_where_the_gradient_is_the_same_everywhere():
    """Of a linear net with two classes the gradient at round(x) is that at x: the same path, to x + radius sign(w)."""
    rng = torch.Generator().manual_seed(3)
    net = nn.Linear(20, 2)
    x, y = torch.rand(40, 20, generator=rng), torch.randint(2, (40,), generator=rng)
    model = Behind(net, rounds)
    bridged = straight_through(model, x, radius=RADIUS)
    assert bridged is not None
    assert [g.stand_in.kind for g in bridged.gaps] == ["identity"]
    plain, through, stuck = (
        pgd(by, x, y, radius=RADIUS, steps=7, loss="margin", random_start=False, as_published=True).x
        for by in (net, bridged, model)
    )
    torch.testing.assert_close(through, plain)
    torch.testing.assert_close(through, (x + RADIUS * (net.weight[1 - y] - net.weight[y]).sign()).clamp(0, 1))
    assert torch.equal(stuck, x)


def test_honest_nets_have_no_gap_and_nothing_is_left_on_them(digits):
    before = torch.random.get_rng_state()
    assert straight_through(digits.model, digits.x, radius=RADIUS) is None
    assert ways_through(digits.model, digits.x, radius=RADIUS) == ()
    assert torch.equal(before, torch.random.get_rng_state())
    deep = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.ReLU(inplace=True)) for _ in range(6)), nn.Linear(64, 4))
    assert straight_through(deep, digits.x, radius=RADIUS) is None
    rounded = Behind(digits.model, Rounds())
    assert straight_through(rounded, digits.x, radius=RADIUS) is not None
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in rounded.modules())


def test_noise_is_no_gap_and_its_ways_are_the_mean_and_more_draws(digits):
    noisy = Drawn(nn.Sequential(Noise(0.2), digits.model), 4, rows_apart=True).eval()
    assert straight_through(noisy, digits.x, radius=RADIUS) is None
    ways = ways_through(noisy, digits.x, radius=RADIUS, draws=4)
    assert [way.name for way in ways] == ["mean network", "EOT"]
    assert ways[1].draws == 16
    torch.testing.assert_close(ways[0].model(digits.x[:5]), digits.model(digits.x[:5]))


def test_the_way_that_broke_an_input_is_named_and_judged_on_the_model_itself(digits, bare):
    x, y = digits.x[:60], digits.y[:60]
    model = Behind(digits.model, Rounds()).eval()
    ways = ways_through(model, digits.train_x, radius=RADIUS, misled=True, teach=lambda: digits.model)
    assert [way.name for way in ways] == ["straight-through", "distilled copy", "EOT"]
    assert "defence" in ways[0].about
    found = go_through(model, x, y, ways=ways, radius=RADIUS, steps=10, rng=torch.Generator().manual_seed(0))
    fell = found.via > 0
    assert {ATTACKS[int(k)] for k in found.via[fell]} <= set(THROUGH)
    assert torch.equal(found.held, model(found.worst).argmax(1) == y)
    assert not found.held[fell].any()
    assert float(found.held.double().mean()) <= bare + 0.1
    assert ((found.worst - x).abs().amax(1) <= RADIUS + 1e-6).all()
    for way in ways:  # each alone is no lower than all together
        assert found.columns[f"held {way.name}"].double().mean() >= found.held.double().mean()
    assert isinstance(ways[0].model, StraightThrough)


def sharp(digits, layer: type[nn.Module], gain: float) -> nn.Module:
    """A trained net whose weights are so many times as large: its layers saturate."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(64, 64), layer(), nn.Linear(64, 64), layer(), nn.Linear(64, 10))
    step = torch.optim.Adam(net.parameters(), 3e-3)
    for _ in range(200):
        loss = F.cross_entropy(net(digits.train_x), digits.train_y)
        step.zero_grad()
        loss.backward()
        step.step()
    for part in net:
        for p in part.parameters():
            p.detach().mul_(gain)
    return net.eval().requires_grad_(False)


@pytest.mark.parametrize(("layer", "gain"), [(nn.Tanh, 8.0), (nn.Sigmoid, 16.0)])
def test_a_steep_net_whose_gradients_lead_is_not_accused(digits, layer, gain):
    """Over such a radius it is far from linear; its own gradients break it all the same."""
    net, x, y = sharp(digits, layer, gain), digits.x[:100], digits.y[:100]
    push = (2 * torch.randint(2, x[:8].shape, generator=torch.Generator().manual_seed(0)) - 1).to(x)
    away = [(x[:8] + 2 * RADIUS * push).clamp(0, 1)]
    assert through._is_suspect(net, x[:8], away, 1, torch.Generator().manual_seed(0))
    assert straight_through(net, x, radius=2 * RADIUS) is None
    assert ways_through(net, x, radius=2 * RADIUS) == ()
    found = pgd(net, x, y, radius=2 * RADIUS, steps=20, loss="margin", rng=torch.Generator().manual_seed(0)).x
    assert accuracy(net, x, y) > 0.9
    assert accuracy(net, found, y) < 0.15


def test_layers_that_are_flat_are_bridged(digits):
    net, x, y = sharp(digits, nn.Hardtanh, 20.0), digits.x[:100], digits.y[:100]
    bridged = straight_through(net, x, radius=RADIUS)
    assert bridged is not None
    assert attacked(net, x, y, bridged) < attacked(net, x, y) - 0.2


@pytest.mark.parametrize(("height", "times"), [(0.02, 100), (0.03, 200), (0.05, 60), (0.005, 2000)])
def test_a_ripple_is_bridged_be_it_fine_or_coarse(digits, height, times):
    """Its slopes are true nearby, and lead nowhere."""
    x, y = digits.x[:100], digits.y[:100]
    model = Behind(digits.model, lambda u: u + height * torch.sin(times * u)).eval()
    bridged = straight_through(model, digits.train_x, radius=RADIUS)
    assert bridged is not None
    assert attacked(model, x, y, bridged) < attacked(model, x, y) - 0.1


def test_stand_ins_that_lead_no_further_are_not_kept(digits, monkeypatch):
    model = Behind(digits.model, Rounds()).eval()
    assert straight_through(model, digits.train_x, radius=RADIUS) is not None
    led = iter([1.0, 1.0, 1.0])  # noise, the net's own gradients, the stand-ins'
    monkeypatch.setattr(through, "_led", lambda by, net, x, *rest: torch.full((len(x),), next(led)))
    assert straight_through(model, digits.train_x, radius=RADIUS) is None
    led = iter([1.0, 0.0, 1.0])
    assert straight_through(model, digits.train_x, radius=RADIUS) is not None
    led = iter([1.0, 6.0])  # its own lead: no layer is looked at
    assert straight_through(model, digits.train_x, radius=RADIUS) is None


class Scaled(nn.Module):
    """A temperature in a layer of its own: a value without rows."""

    def __init__(self, rounds: bool) -> None:
        super().__init__()
        self.rounds, self.linear, self.scale = rounds, nn.Linear(16, 3), Temperature()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear((x * 8).round() / 8 if self.rounds else x) * self.scale(x)
        return out


class Temperature(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.t = nn.Parameter(torch.tensor(0.5))

    def forward(self, x: Tensor) -> Tensor:
        return self.t.exp()


def test_a_net_whose_way_back_fails_has_none_to_bridge() -> None:
    """Asked without gradients it looks as if one layer cut them off; the next that was written over is behind it."""
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.ReLU(inplace=True), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3),
    ).eval()  # fmt: skip
    x = torch.rand(32, 3, 16, 16)
    with pytest.raises(RuntimeError, match="inplace"):
        torch.autograd.grad(net(x.requires_grad_()).sum(), x)
    assert ways_through(Detached(net), x, radius=0.05) == ()


def test_a_value_without_rows_is_no_gap_and_hides_none() -> None:
    torch.manual_seed(0)
    x = torch.rand(32, 16)
    assert straight_through(Scaled(rounds=False), x, radius=0.05) is None
    bridged = straight_through(Scaled(rounds=True), x, radius=0.05)
    assert bridged is not None
    at = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(bridged(at).sum(), at)
    assert bool(slope.any())
    assert_close(bridged(x), bridged.net(x), rtol=0, atol=0)


def test_layers_are_looked_at_only_where_the_answers_give_cause() -> None:
    """A look at every layer takes passes that grow with the square of the depth."""
    torch.manual_seed(0)
    deep = nn.Sequential(*(nn.Sequential(nn.Linear(16, 16), nn.ReLU()) for _ in range(30)), nn.Linear(16, 3))
    for layer in deep[:-1]:
        nn.init.eye_(layer[0].weight)  # so that what goes in still shows in what comes out
    passes = 0

    def count(*_: object) -> None:
        nonlocal passes
        passes += 1

    deep.register_forward_hook(count)
    assert straight_through(deep, torch.rand(32, 16), radius=0.01) is None
    assert passes <= 4
