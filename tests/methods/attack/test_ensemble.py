from __future__ import annotations

import pytest
import torch
from torch import nn

from assay.errors import AssayError
from assay.methods.attack.apgd import apgd
from assay.methods.attack.ensemble import ATTACKS, worst_case
from assay.methods.attack.minimal_norm import minimal_norm
from assay.methods.attack.pgd import pgd


class Counted(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model, self.images = model, 0

    def forward(self, x):
        self.images += len(x)
        return self.model(x)


@pytest.fixture
def linear():
    """A linear model of three classes and inputs far from the box: the exact l_inf distance of each is known."""
    torch.manual_seed(0)
    model = nn.Linear(20, 3)
    x = 0.5 + 0.05 * torch.randn(60, 20)
    z = model(x).detach()
    y = z.argmax(1)
    w = model.weight.detach()
    gaps = torch.stack([(z[range(60), y] - z[:, j]) / (w[y] - w[j]).abs().sum(1).clamp_min(1e-12) for j in range(3)], 1)
    gaps[range(60), y] = torch.inf
    return model, x, y, gaps.amin(1)


def test_it_breaks_exactly_what_can_be_broken(linear):
    model, x, y, exact = linear
    radius = float(exact.median())
    found = worst_case(model, x, y, radius=radius, steps=20, targets=2, queries=50)
    clear = (exact - radius).abs() > 1e-4
    assert torch.equal(found.success[clear], (exact < radius)[clear])
    assert (found.distance <= radius * (1 + 1e-6)).all()
    assert torch.equal(model(found.x).argmax(1) != y, found.success)
    assert (found.by[found.success] > 0).all()
    assert (found.by[~found.success] == -1).all()


def test_what_was_wrong_before_is_counted_as_nobodys(linear):
    model, x, y, _ = linear
    found = worst_case(model, x, (y + 1) % 3, radius=0.01, steps=5)
    assert found.success.all()
    assert (found.by == ATTACKS.index("none")).all()
    assert torch.equal(found.x, x)


def test_a_radius_of_nothing_changes_nothing(linear):
    model, x, y, _ = linear
    found = worst_case(model, x, y, radius=0.0)
    assert torch.equal(found.x, x)
    assert not found.success.any()


def test_it_is_never_weaker_than_pgd_alone(digits):
    model, x, y = digits.model, digits.x[:80], digits.y[:80]
    alone = pgd(model, x, y, radius=0.1, steps=20, loss="margin").success
    assert worst_case(model, x, y, radius=0.1, steps=20, targets=3, queries=50).success.sum() >= alone.sum()
    with pytest.raises(AssayError, match="Square knows linf and l2, not l1"):
        worst_case(model, x, y, norm="l1", radius=1.0, gradients=False)


def test_broken_inputs_leave(linear):
    model, x, y, _ = linear
    easy, hard = Counted(model), Counted(model)
    worst_case(easy, x, y, radius=0.5, steps=20, targets=2, queries=50)
    worst_case(hard, x, y, radius=0.001, steps=20, targets=2, queries=50)
    assert easy.images < 12 * len(x)
    assert easy.images < hard.images / 3


@pytest.mark.parametrize(("norm", "radius"), [("linf", 0.08), ("l2", 0.6)])
def test_what_withstood_the_minimal_norm_attack_need_not_meet_it_again(digits, norm, radius):
    y = digits.y[:80]
    alone = minimal_norm(digits.model, digits.x[:80], y, norm=norm, steps=10)
    held = ~(alone.success & (alone.distance <= radius))
    x, y = digits.x[:80][held], y[held]
    twice, once = Counted(digits.model), Counted(digits.model)
    settings = {"norm": norm, "radius": radius, "steps": 10, "targets": 3, "queries": 50}
    before, after = worst_case(twice, x, y, **settings), worst_case(once, x, y, **settings, shrunk=True)
    assert len(x) > 10
    assert (before.success == after.success).all()
    assert (before.by == after.by).all()
    assert ATTACKS.index("minimal-norm") not in before.by.tolist()
    assert once.images < twice.images


def test_without_gradients_only_square_is_run(linear):
    class Blind(nn.Module):
        def forward(self, x):
            return model(x.detach())

    model, x, y, exact = linear
    found = worst_case(Blind(), x, y, radius=float(exact.quantile(0.9)), queries=300, gradients=False)
    assert found.success.any()
    assert set(found.by[found.success].tolist()) == {ATTACKS.index("square")}


def test_masked_gradients_do_not_save_an_input(linear):
    """Quantised inputs kill every gradient; the blind attack still gets through, and says so."""

    class Steps(nn.Module):
        def forward(self, x):
            return model((x * 50).round() / 50 + 0 * x)

    model, x, y, exact = linear
    y = Steps()(x).argmax(1)
    found = worst_case(Steps(), x, y, radius=float(exact.quantile(0.9)), steps=10, targets=2, queries=300)
    assert found.success.sum() > 10
    assert ATTACKS.index("square") in found.by.tolist()


def test_who_comes_near_gets_more_and_who_stands_at_the_brink_most(linear):
    """A linear model's margin falls to 1 - radius / distance of the clean one, whatever the attack."""
    model, x, y, exact = linear
    asked = torch.zeros(60)

    class Named(nn.Module):
        """The first feature is no evidence: it says who asks."""

        def forward(self, x):
            asked.index_add_(0, (x[:, 0].detach() * 100).round().long(), torch.ones(len(x)))
            return model(x[:, 1:])

    share = torch.tensor([0.5] * 40 + [0.8] * 10 + [0.97] * 10)
    names = torch.arange(60)[:, None] / 100
    free = torch.arange(21) > 0
    found = worst_case(
        Named(), torch.cat([names, x], 1), y, radius=share * exact, steps=20, targets=2, queries=0, mask=free
    )  # fmt: skip
    assert not found.success.any()
    far, near, brink = asked[:40], asked[40:50], asked[50:]
    everything = far > far.median() * 1.5
    assert 4 <= everything.sum() <= 16  # the few of the far that get what the near get
    assert far[~everything].max() < near.min()
    # one round more, as it breaks nobody: 20 steps of APGD-CE and twice 20 to targets, and a look or two at each end
    assert brink.min() - near.max() >= 60
    assert brink.max() - near.min() <= 70


def test_the_brink_is_tried_again_while_it_pays(linear, monkeypatch):
    """Of the attacks in full, those that break one of two inputs at the brink are followed by another round."""
    from assay.methods.attack import ensemble

    model, x, y, exact = linear
    rounds = []

    def stubborn(model, x, y, *, loss, steps, **rest):
        found = apgd(model, x, y, loss=loss, steps=steps, **rest)
        if steps == 20 and loss == "ce":
            rounds.append(len(x))
            lucky = torch.zeros_like(found.success)
            lucky[0] = len(rounds) == 2  # the first of the second round in full
            return found._replace(success=lucky)
        return found._replace(success=torch.zeros_like(found.success))

    monkeypatch.setattr(ensemble, "apgd", stubborn)
    found = worst_case(model, x[:3], y[:3], radius=0.97 * exact[:3], steps=20, targets=2, queries=0, shrunk=True)
    assert rounds == [3, 3, 2]  # to the near, to the brink, and to what the brink left
    assert found.success.sum() == 1
