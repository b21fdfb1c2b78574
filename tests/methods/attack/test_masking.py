"""The masking audit: known ways to look robust are seen, an honest model raises nothing that stays open."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from assay.inputs import Column, Row
from assay.methods.attack.average_sample import class_means
from assay.methods.attack.masking import ATTACKS, GAP, MANY, VITAL, Examined, examine, read, read_vitals, vital_signs

from .conftest import apart

RADIUS = 0.1


def look(model, task, *, n=60, radius=RADIUS, steps=10, substitute=None, draws=1, bounds=(0.0, 1.0)) -> Examined:
    return examine(
        model,
        task.x[:n],
        task.y[:n],
        radius=radius,
        steps=steps,
        queries=100,
        means=class_means([(task.train_x, task.train_y)], classes=10),
        substitute=substitute,
        draws=draws,
        bounds=bounds,
        rng=torch.Generator().manual_seed(0),
    )


def signs(found: Examined, steps: int = 10):
    columns = {name: column.numpy() for name, column in found.columns.items()}
    return {s.name: s for s in read(found.by.numpy(), found.any_size.numpy(), columns, steps=steps)}


class Wrapped(nn.Module):
    def __init__(self, inner, before=lambda x: x, after=lambda z: z):
        super().__init__()
        self.inner, self.before, self.after = inner, before, after

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.inner(self.before(x)))


@pytest.fixture(scope="module")
def plain(digits):
    return look(digits.model, digits)


def held(found: Examined) -> float:
    return float((found.by == -1).double().mean())


def test_an_honest_model_raises_no_sign_that_stays_open(plain):
    assert not [s for s in signs(plain).values() if s.open]
    assert 0.05 < held(plain) < 0.9  # the audit has something to say about it


def test_what_is_broken_is_broken_by_a_point_in_the_ball_and_the_box(digits, plain):
    fell = plain.by > 0
    x, y = digits.x[:60], digits.y[:60]
    assert fell.any()
    assert (digits.model(plain.worst).argmax(1) != y)[fell].all()
    assert ((plain.worst - x).abs().amax(1) <= RADIUS + 1e-6).all()
    assert plain.worst.min() >= 0
    assert plain.worst.max() <= 1
    assert torch.equal(plain.worst[~fell], x[~fell])
    assert torch.equal(plain.by == 0, digits.model(x).argmax(1) != y)
    for name in ATTACKS[1:]:  # whoever an attack broke first does not hold against it
        if f"held {name}" in plain.columns:
            assert not plain.columns[f"held {name}"][plain.by == ATTACKS.index(name)].any()


@pytest.mark.parametrize("head", [lambda z: 100 * z, lambda z: (100 * z).softmax(1)], ids=["times 100", "softmax"])
def test_logits_times_a_hundred_fool_the_usual_attack_and_not_the_doctor(digits, plain, head):
    loud = look(Wrapped(digits.model, after=head), digits)
    seen = signs(loud)
    assert held(loud) == pytest.approx(held(plain), abs=0.02)
    assert "loss" in seen
    assert not seen["loss"].open
    assert seen["loss"].seen > held(plain) + 0.1
    assert seen["loss"].expected < seen["loss"].seen - 0.1
    assert "saturated" in seen


class Straight(torch.autograd.Function):
    """Rounds to 17 levels, with the gradient that autograd gives rounding: none."""

    @staticmethod
    def forward(ctx, x):
        return (x * 16).round() / 16

    @staticmethod
    def backward(ctx, grad):
        return torch.zeros_like(grad)


def test_rounded_inputs_are_seen_and_stay_open(digits):
    seen = signs(look(Wrapped(digits.model, before=Straight.apply), digits))
    assert seen["stairs"].open
    assert seen["flat"].open
    assert seen["flat"].seen == 1
    assert seen["square beats gradients"].open  # the blind attack finds what the others cannot


@pytest.mark.parametrize("added", [1.0, 5.0])
def test_what_is_added_to_all_scores_alike_hides_no_stairs_and_makes_none(digits, added):
    """It moves every score with the input and changes no answer: compared to the bit, nothing was ever still."""
    x, y = digits.x[:40], digits.y[:40]
    coarse = Wrapped(digits.model, before=Straight.apply)
    for model, seen in ((coarse, 1.0), (digits.model, 0.0)):
        alike = vital_signs(lambda at, m=model: m(at) + added * at.flatten(1).sum(1, keepdim=True), x, y)
        assert float(vital_signs(model, x, y)["stairs"].double().mean()) == seen
        assert abs(float(alike["stairs"].double().mean()) - seen) < 0.3
        assert not alike["company"].any()


@pytest.mark.parametrize("where", ["inputs", "scores"])
def test_noise_in_the_last_place_hides_no_stairs(digits, where):
    """As where a rounding leaves some of what it took away: far less than any slope would make of a tiny change."""
    x, y = digits.x[:40], digits.y[:40]

    def wave(at):
        return 1e-7 * torch.sin(1e7 * at)

    def coarse(at):
        if where == "inputs":
            return digits.model(Straight.apply(at) + wave(at))
        return digits.model(Straight.apply(at)) * (1 + wave(at.flatten(1).mean(1, keepdim=True)))

    found = [vital_signs(model, x, y)["stairs"] for model in (coarse, digits.model)]
    assert found[0].all()
    assert not found[1].any()


def test_an_answer_that_saturates_is_not_called_a_rounding_of_inputs(digits):
    """No small change shows in either; which of the two it is, nobody has looked."""
    full = Wrapped(digits.model, after=lambda z: torch.tanh(200 * z))
    vitals = vital_signs(full, digits.x[:40], digits.y[:40])
    (says,) = (s.says for s in read_vitals({k: v.numpy() for k, v in vitals.items()}) if s.name == "stairs")
    assert "the model rounds them or its answer saturates" in says


def test_a_model_that_rolls_dice_is_seen_unless_it_says_so(digits, monkeypatch):
    monkeypatch.setattr("assay.methods.attack.chance.MOST", 16)  # fresh answers, for 64
    noisy = Wrapped(digits.model, before=lambda x: x + 0.1 * torch.randn_like(x))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        assert signs(look(noisy, digits, n=8, steps=3))["dice"].open
        assert "dice" not in signs(look(noisy, digits, n=8, steps=3, draws=2))


def test_batch_statistics_in_use_are_seen(digits):
    mixed = Wrapped(digits.model, before=lambda x: F.batch_norm(x, None, None, training=True))
    vitals = vital_signs(mixed, digits.x[:40], digits.y[:40])
    assert vitals["company"].all()
    assert not vitals["dice"].any()
    honest = vital_signs(digits.model, digits.x[:40], digits.y[:40])
    assert not any(honest[name].any() for name in VITAL)
    assert not any(s.any() for s in vital_signs(digits.model, digits.x[:1], digits.y[:1]).values())


def test_inputs_normalised_before_the_model_are_seen(digits):
    mean, std = digits.x.mean(), digits.x.std()
    outside = digits._replace(x=(digits.x - mean) / std)
    bounds = (float(outside.x.min()), float(outside.x.max()))
    inside = Wrapped(digits.model, before=lambda x: x * std + mean)
    assert vital_signs(inside, outside.x[:40], outside.y[:40], bounds=bounds)["standardised"].all()


def test_a_gradient_that_points_the_wrong_way_is_caught_by_the_blind(digits):
    class Liar(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            return -grad

    found = look(Wrapped(digits.model, before=Liar.apply), digits, substitute=digits.model)
    seen = signs(found)
    assert seen["transfer beats gradients"].open or seen["square beats gradients"].open
    assert "average-sample" in seen
    assert seen["average-sample"].seen > seen["average-sample"].expected
    assert "any size" not in seen  # Square finds its way over the whole box


def test_an_input_that_nothing_can_break_is_reported(digits):
    class Deaf(nn.Module):
        def forward(self, x):
            return F.one_hot(torch.zeros(len(x), dtype=torch.long), 10).float() + 0 * x.sum(1, keepdim=True)

    task = digits._replace(y=torch.zeros_like(digits.y))
    seen = signs(look(Deaf(), task, n=20))
    assert seen["any size"].open
    assert seen["any size"].seen == 1


def test_with_nothing_right_there_is_nothing_to_break(digits):
    wrong = digits._replace(y=(digits.model(digits.x).argmax(1) + 1) % 10)
    found = look(digits.model, wrong, n=10)
    assert (found.by == 0).all()
    assert not found.any_size.any()


def reading(**accuracies: float):
    """A table of 100 inputs on which each attack leaves the given number right, and nothing was broken after margin."""
    columns = {name: np.zeros(100, dtype=bool) for name in VITAL}
    names = ("none", "usual", "1 step", "few steps", "margin", "average-sample", "transfer")
    columns |= {f"held {n}": np.arange(100) < accuracies.get(n.replace(" ", "_").replace("-", "_"), 40) for n in names}
    by = np.where(np.arange(100) < accuracies.get("margin", 40), -1, ATTACKS.index("margin"))
    return by, np.zeros(100, dtype=bool), columns


def test_signs_are_read_from_pairs_of_numbers():
    assert read(*reading(), steps=20) == ()
    (one,) = read(*reading(usual=60), steps=20)[:1]
    assert (one.name, one.seen, one.expected, one.open) == ("loss", 0.6, 0.4, False)
    assert "60.0 %" in one.says
    assert "40.0 %" in one.says
    weaker = read(*reading(few_steps=30, **{"1_step": 80}), steps=20)
    assert [s.name for s in weaker] == ["steps"]
    assert weaker[0].open
    astray = read(*reading(average_sample=30), steps=20)
    assert [(s.name, s.open) for s in astray] == [("average-sample", False)]


def test_an_attack_that_has_not_levelled_off_is_open_only_if_new_starts_still_gain():
    by, free, columns = reading(margin=40)
    by[:5] = ATTACKS.index("more steps")
    (level,) = read(by, free, columns, steps=20)
    assert level.name == "more steps"
    assert not level.open
    assert level.expected == pytest.approx(0.35)
    by[5:6] = ATTACKS.index("restarts")
    (rough,) = read(by, free, columns, steps=20)
    assert rough.open
    by[:] = np.where(by == -1, -1, ATTACKS.index("margin"))
    by[: int(100 * GAP)] = ATTACKS.index("more steps")
    assert read(by, free, columns, steps=20) == ()  # a gap within the tolerance is none


def test_averaging_over_passes_changes_nothing_on_a_deterministic_model(digits):
    one, many = (look(digits.model, digits, n=20, steps=4, draws=draws) for draws in (1, 3))
    assert (one.by != many.by).sum() <= 1  # a sign may turn where a slope is rounding alone
    assert apart(one.worst, many.worst) <= 0.05


def test_two_inputs_that_are_compared_and_pushed_alike_are_not_rounded():
    """a - b stands still while both move the same way: that is no rounding. Rounding is seen all the same."""
    rng = torch.Generator().manual_seed(0)
    weight, pairs = torch.randn(16, generator=rng), torch.rand(200, 2, 16, generator=rng)

    def compare(pair):
        z = torch.sigmoid((pair @ weight).diff(dim=1))
        return torch.cat([z, 1 - z], 1)

    def coarse(pair):
        return compare((8 * pair).round() / 8)

    y = compare(pairs).argmax(1)
    assert vital_signs(compare, pairs, y)["stairs"].double().mean() < MANY
    assert vital_signs(coarse, pairs, y)["stairs"].double().mean() > 0.9


def test_whole_numbers_are_no_rounding_inside_the_model() -> None:
    x, y = torch.eye(2), torch.tensor([0, 1])

    def model(x: Tensor) -> Tensor:
        stairs = (20 * x[:, 0]).round() / 20
        return torch.stack([stairs, 1 - stairs], 1)

    whole = Row((Column("a", "integer", 0, 1, 0), Column("b", "number", 0.0, 1.0, 0.5))).reach
    assert vital_signs(model, x, y)["stairs"].any()
    assert not vital_signs(model, x, y, reach=whole)["stairs"].any()


def test_what_stays_right_at_any_size_is_told_by_what_may_change() -> None:
    by, holds = np.array([-1, -1]), np.array([True, True])
    columns = {name: np.zeros(2, dtype=bool) for name in VITAL} | {
        f"held {name}": np.ones(2, dtype=bool) for name in ("usual", "1 step", "few steps", "margin")
    }
    for limited in (False, True):
        (sign,) = [s for s in read(by, holds, columns, steps=4, limited=limited) if s.name == "any size"]
        assert sign.open
        assert ("every value at will" in sign.says) == (not limited)
