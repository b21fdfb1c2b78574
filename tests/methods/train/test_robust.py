"""A training against an attacker: who attacks, what is averaged, and which epoch is given."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from assay.data.whole import Whole
from assay.errors import AssayError
from assay.methods.attack import pgd
from assay.methods.train import robust
from assay.methods.train.adversary import Adversary
from assay.methods.train.helper import Helpers
from assay.methods.train.robust import RobustRecipe, robustly_trained

FEW = RobustRecipe(epochs=2, batch=16, lr=0.1, steps=2, shift=0, average=0.5)


def data(n: int = 48, seed: int = 0) -> Whole:
    """Bright or dark pictures of 6 x 6, and one pixel that tells them apart by very little."""
    rng = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % 2
    x = 0.5 + 0.2 * torch.rand(n, 1, 6, 6, generator=rng) * (2 * y.float() - 1).view(-1, 1, 1, 1)
    x[:, 0, 2:4, 2:4] = 0.5 + 0.01 * (1 - 2 * y.float()).view(-1, 1, 1)
    return Whole(x, y)


def net(seed: int = 0) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 2))


def weights(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def test_it_is_given_in_eval_mode_and_the_seed_repeats_it() -> None:
    first, again, other = (robustly_trained(net(), data(), FEW, seed=s) for s in (0, 0, 1))
    assert not first.training
    assert not any(p.requires_grad for p in first.parameters())
    assert torch.equal(weights(first), weights(again))
    assert not torch.equal(weights(first), weights(other))


def test_the_average_is_that_of_the_equation() -> None:
    """The rate of the first of three steps is 0, w_1 = w_0, so that m_3 = a^2 w_0 + a (1 - a) w_2 + (1 - a) w_3: w_2
    as one average tells it gives the others."""
    three = replace(FEW, epochs=1, batch=16)

    def given(average: float) -> torch.Tensor:
        return weights(robustly_trained(net(), data(), replace(three, average=average), seed=0))

    first, last = weights(net()), given(0.0)
    assert torch.equal(given(1.0), first)
    middle = (given(0.5) - 0.25 * first - 0.5 * last) / 0.25
    assert not torch.allclose(middle, first)
    torch.testing.assert_close(given(0.75), 0.5625 * first + 0.1875 * middle + 0.25 * last)


def test_the_search_is_that_of_the_attacker_of_the_remedies() -> None:
    """From the same random points to the same last ones, inside ball and box."""
    rows, model = data(), net().eval()
    recipe = replace(FEW, steps=4, radius=0.45)  # beyond the box for many pixels
    adversary = Adversary(model, recipe.radius, steps=recipe.steps, step=recipe.step)
    there = adversary.worst(rows.x, rows.y, torch.Generator().manual_seed(1))
    with adversary.asked() as ask:
        here = robust.climbed(ask, rows.x, rows.y, recipe, torch.Generator().manual_seed(1))
    assert (here == 1).any()
    torch.testing.assert_close(here, there)


def test_the_radius_grows_to_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """No image lies further away than its epoch allows, and some lie as far."""
    seen: list[float] = []
    climbed = robust.climbed

    def watch(ask: nn.Module, x: torch.Tensor, *rest: object) -> torch.Tensor:
        found = climbed(ask, x, *rest)  # type: ignore[arg-type]
        seen.append(float((found - x).abs().max()))
        return found

    monkeypatch.setattr(robust, "climbed", watch)
    robustly_trained(net(), data(), replace(FEW, epochs=5, batch=48, radius=0.08, rise=3), seed=0)
    assert seen == pytest.approx([0.02, 0.04, 0.06, 0.08, 0.08])


@pytest.mark.parametrize("watched", [False, True])
def test_shown_twice_it_is_given_as_it_was_built(monkeypatch: pytest.MonkeyPatch, watched: bool) -> None:
    """Each image and a varied one of its label are attacked side by side; what is given has one norm of each."""
    colours = data()
    colours = Whole(colours.x.expand(-1, 3, -1, -1).contiguous(), colours.y)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 2))
    seen: list[tuple[torch.Tensor, torch.Tensor]] = []
    climbed = robust.climbed

    def watch(ask: nn.Module, x: torch.Tensor, y: torch.Tensor, *rest: object) -> torch.Tensor:
        seen.append((x, y))
        return climbed(ask, x, y, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(robust, "climbed", watch)
    keys = model.state_dict().keys()
    recipe = replace(FEW, epochs=3, twice=True)
    given = robustly_trained(model, colours, recipe, seed=0, watch=colours if watched else None)
    assert given.state_dict().keys() == keys
    assert not given.training
    assert len(seen) == 9
    for x, y in seen:
        assert len(x) == 32
        assert torch.equal(y[:16], y[16:])
        assert not torch.allclose(x[:16], x[16:])
        # no order and no move changes the brightness of a picture that is shown as it is
        assert all(any(torch.isclose(row.mean(), one.mean()) for one in colours.x) for row in x[:16])


def test_what_is_shown_again_is_the_same_image_varied_anew_in_each_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    colours = data()
    colours = Whole(colours.x.expand(-1, 3, -1, -1).contiguous(), colours.y)
    seen: list[torch.Tensor] = []
    drawn: list[float] = []
    climbed = robust.climbed

    def watch(ask: nn.Module, x: torch.Tensor, *rest: object) -> torch.Tensor:
        seen.append(x.mean((1, 2, 3)))
        return climbed(ask, x, *rest)  # type: ignore[arg-type]

    def darker(x: torch.Tensor, rng: torch.Generator) -> torch.Tensor:
        drawn.append(float(torch.rand(1, generator=rng)))
        return x * drawn[-1]

    monkeypatch.setattr(robust, "climbed", watch)
    monkeypatch.setattr(robust, "varied", darker)
    monkeypatch.setattr(robust, "VARIED", 20)  # of 48 images: the last part is smaller
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 2))
    before = torch.get_rng_state()
    robustly_trained(model, colours, replace(FEW, epochs=2, twice=True), seed=0)
    assert torch.equal(torch.get_rng_state(), before)  # whoever asks keeps their draws
    assert len(set(drawn)) == len(drawn) == 9  # three parts before each epoch, and once in vain
    for epoch, parts in enumerate((drawn[:3], drawn[3:6])):
        shares = torch.cat([brightness[16:] / brightness[:16] for brightness in seen[3 * epoch : 3 * epoch + 3]])
        each = torch.tensor([share for share, n in zip(parts, (20, 20, 8), strict=True) for _ in range(n)])
        torch.testing.assert_close(shares.sort().values, each.sort().values, rtol=1e-4, atol=1e-5)


def test_helpers_and_images_that_are_shown_twice_do_not_go_together() -> None:
    with pytest.raises(AssayError, match="leave one out"):
        robustly_trained(net(), data(), replace(FEW, twice=True), seed=0, helpers=Helpers(net(), beta=1, gamma=0.5))


def test_seven_steps_are_a_quarter_of_the_radius_each_and_fewer_go_as_far() -> None:
    assert RobustRecipe(epochs=1, batch=1, lr=1, radius=0.4).step == pytest.approx(0.1)
    assert RobustRecipe(epochs=1, batch=1, lr=1, radius=0.4, steps=5).step * 5 == pytest.approx(0.7)


@pytest.mark.parametrize(
    ("held", "chosen"),
    [
        ((0.2, 0.5, 0.45), 2),  # within one standard error of the best, 0.11 of 20 images: the last
        ((0.2, 0.5, 0.35), 1),  # it fell
        ((0.9, 0.5, 0.85), 2),
        ((0.0, 0.0, 0.0), 2),
    ],
)
def test_of_the_last_third_the_last_epoch_is_given_that_holds_as_much_as_the_best(
    monkeypatch: pytest.MonkeyPatch, held: tuple[float, ...], chosen: int
) -> None:
    looked: list[torch.Tensor] = []
    seen = iter([0.9, held[0], 0.6, held[1], 0.99, held[2]])  # clean and under attack, of three epochs

    def accuracy(model: nn.Module, rows: Whole) -> float:
        looked.append(weights(model))
        return next(seen)

    monkeypatch.setattr(robust, "accuracy", accuracy)
    told: list[str] = []
    nine = replace(FEW, epochs=9)
    given = robustly_trained(net(), data(), nine, seed=0, watch=data(20, seed=1), told=told.append)
    assert len(looked) == 6
    assert torch.equal(weights(given), looked[2 * chosen])
    assert not any(torch.equal(weights(given), looked[2 * k]) for k in range(3) if k != chosen)
    assert [line.split(":")[0] for line in told if line.startswith("epoch")] == [f"epoch {k}" for k in range(1, 10)]


def test_perturbed_weights_are_given_back() -> None:
    """Watched or not, the weights that are given are the training's own: a perturbation of all their length is gone."""
    rows = data()
    for watch in (None, data(20, seed=1)):
        tiny, far = (
            weights(robustly_trained(net(), rows, replace(FEW, lr=1e-6, perturb=by), seed=0, watch=watch))
            for by in (0.0, 1.0)
        )
        torch.testing.assert_close(tiny, far, rtol=1e-4, atol=1e-4)


def test_it_loses_less_under_attack_than_a_plain_training() -> None:
    rows = data(96)
    long = replace(FEW, epochs=20, batch=32, radius=0.08, steps=3)
    lost = {}
    for radius in (0.08, 1e-6):
        model = robustly_trained(net(), rows, replace(long, radius=radius), seed=0)
        assert robust.accuracy(model, rows) > 0.95
        at = pgd(model, rows.x, rows.y, radius=0.08, steps=10, rng=torch.Generator().manual_seed(0)).x
        lost[radius] = float(nn.functional.cross_entropy(model(at), rows.y))
    assert lost[0.08] < lost[1e-6]


def test_moved_images_are_shifted_and_mirrored_ones() -> None:
    x = torch.arange(36.0).view(1, 1, 6, 6).expand(200, -1, -1, -1)
    out = robust.moved(x, 1, torch.Generator().manual_seed(0))
    wide = torch.nn.functional.pad(torch.stack([x[0], x[0].flip(-1)]), (1, 1, 1, 1))
    known = {tuple(w[0, a : a + 6, b : b + 6].flatten().tolist()) for w in wide for a in range(3) for b in range(3)}
    assert {tuple(o.flatten().tolist()) for o in out} == known  # all of the 18, and nothing else
