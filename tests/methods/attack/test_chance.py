"""Chances on fresh answers: closed forms, luck that does not count, and nothing paid where nothing is random."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest

from assay.errors import AssayError
from assay.methods.attack.attacked import Slope, sparing
from assay.methods.attack.chance import (
    ASKED,
    SURE,
    answers,
    chance,
    interval,
    mostly,
    nearer,
    right_every_time,
    sizes,
    threats,
)
from assay.methods.attack.loss import Goal
from assay.methods.attack.masking import examine, read
from assay.methods.attack.minimal_norm import minimal_norm
from assay.methods.attack.pgd import pgd

from .conftest import Task


class Coin:
    """Two classes; wrong with a known chance, whatever it is shown. Counts its passes."""

    def __init__(self, chance: float) -> None:
        self.chance, self.passes, self.rng = chance, 0, torch.Generator().manual_seed(3)

    def __call__(self, x):
        self.passes += 1
        wrong = (torch.rand(len(x), generator=self.rng) < self.chance).float()
        return torch.stack([1 - wrong, wrong], 1) * 8 + 0 * x.sum(1, keepdim=True)


X, Y = torch.full((40, 3), 0.5), torch.zeros(40, dtype=torch.long)


def test_a_model_that_is_not_random_is_asked_once():
    coin = Coin(0.0)
    got = chance(coin, X, Y, draws=1)
    assert coin.passes == answers(1) == 1
    assert sizes(1) == ()
    assert not got.wrong.any()
    assert (chance(Coin(1.0), X, Y, draws=1).said == 1).all()


@pytest.mark.parametrize("p", [0.0, 0.2, 0.5, 1.0])
def test_the_chance_of_a_coin_is_found(p):
    got = chance(Coin(p), X, Y, draws=2)
    r = answers(2)
    ties_lost = p * p  # of two passes that differ the mean ties, and argmax takes the first class
    assert float(got.wrong.double().mean() / r) == pytest.approx(ties_lost, abs=0.05)
    assert float(got.by_size[:, 0].double().mean() / (2 * r)) == pytest.approx(p, abs=0.05)
    low, high = interval(got.wrong.numpy(), r)
    assert ((low <= ties_lost) & (ties_lost <= high)).mean() > 0.8


def test_nan_is_no_right_answer():
    got = chance(lambda x: torch.full((len(x), 2), torch.nan), X, Y, draws=3, count=4)
    assert (got.wrong == 4).all()
    assert got.sick.all()
    assert (got.said == 1).all()


@given(wrong=st.integers(0, 20), count=st.integers(20, 40))
@settings(deadline=None, max_examples=30)
def test_the_interval_is_that_of_clopper_and_pearson(wrong, count):
    low, high = interval(np.array([wrong]), count)
    exact = binomtest(wrong, count).proportion_ci(0.95, "exact")
    assert (low[0], high[0]) == pytest.approx((exact.low, exact.high))


def test_asked_again_is_the_share_of_all_ways_to_ask():
    said = [0, 1, 0, 0, 1, 0, 0]
    by_hand = np.mean([not any(said[i] for i in ways) for ways in combinations(range(7), 3)])
    assert right_every_time(np.array([2]), 7, 3)[0] == pytest.approx(by_hand)
    assert right_every_time(np.array([0, 7]), 7, 7).tolist() == [1, 0]
    with pytest.raises(AssayError, match="9 questions cannot be judged on 7 answers"):
        right_every_time(np.array([0]), 7, 9)


def test_one_lucky_answer_lets_nobody_leave():
    slope = Slope(Coin(0.5), Goal(Y, loss="margin"), eot=2)
    hopes = torch.ones(40, dtype=torch.bool)
    assert slope.sure(X, hopes, 1).any()
    assert slope.sure(X, hopes).sum() <= 2  # luck does it once in 4^8 times
    still = Coin(0.5)
    assert Slope(still, Goal(Y)).sure(X, hopes).all()
    assert still.passes == 0
    assert SURE >= 8


def test_a_coin_has_no_point_that_breaks_it_more_often_than_not():
    """Every point is wrong one time in four: a search that believes one lucky answer breaks them all."""
    torch.manual_seed(0)
    got = pgd(Coin(0.5), X, Y, radius=0.1, steps=12, eot=2)
    assert got.success.double().mean() < 0.3
    near = minimal_norm(Coin(0.5), X, Y, steps=12, eot=2)
    assert near.success.double().mean() < 0.3
    assert pgd(Coin(1.0), X, Y, radius=0.1, steps=3, eot=2).success.all()


def test_an_input_whose_nan_stops_the_attack_is_left_out_and_the_others_are_not():
    sick = torch.zeros(40, dtype=torch.bool)
    x = X.clone()
    x[17, 0] = 0.0

    def rooted(z):
        return torch.stack([z.sum(1), 0.9 - z[:, 1]], 1) + 0 * z[:, :1].sqrt()

    def attack(rows):
        return pgd(rooted, x[rows], Y[rows], radius=0.3, random_start=False)

    met = torch.cat([rows[got.success] for rows, got in sparing(attack, torch.arange(40), sick)])
    assert sick.nonzero().tolist() == [[17]]
    assert 17 not in met.tolist()
    assert len(met) == 39


def noisy(model, sigma):
    return lambda x: model(x + sigma * torch.randn_like(x))


def signs(model, task, **more):
    torch.manual_seed(0)
    rng = torch.Generator().manual_seed(0)
    found = examine(model, task.x[:30], task.y[:30], radius=0.1, steps=8, queries=40, draws=2, rng=rng, **more)
    columns = {name: column.numpy() for name, column in found.columns.items()}
    return found, {s.name: s for s in read(found.by.numpy(), found.any_size.numpy(), columns, steps=8, draws=2)}


def test_an_honest_noisy_model_is_not_accused(digits: Task) -> None:
    found, seen = signs(noisy(digits.model, 0.25), digits, ladder=(3,), eots=(4,))
    assert not [s for s in seen.values() if s.open and s.name != "any size"]
    assert found.held.mean() < found.columns["held none"].mean()
    assert {"held 3 steps", "held 4 draws"} <= set(found.columns)


def test_a_noisy_model_with_masked_gradients_still_is(digits: Task) -> None:
    inner = noisy(digits.model, 0.05)

    def masked(x):
        return inner((x * 16).round() / 16 + 0 * x)

    assert any(s.open for s in signs(masked, digits)[1].values())


def test_both_threats_have_their_closed_forms():
    wrong = np.arange(17)
    one, ten = threats(wrong, 16)
    np.testing.assert_allclose(one.right, 1 - wrong / 16)
    np.testing.assert_allclose(ten.right, right_every_time(wrong, 16, ASKED))
    assert (one.asked, one.name, ten.asked, ten.name) == (1, "", ASKED, f", asked {ASKED} times")
    assert mostly(torch.as_tensor(wrong), 16, 1).tolist() == (2 * wrong > 16).tolist()
    assert mostly(torch.tensor([0, 3, 4]), 64, ASKED).tolist() == [False, False, True]  # 1 - 2^(-1/10) = 0.067


class Rising:
    """Wrong in a pass with the chance that its first value says; of two passes that differ the mean is right."""

    def __init__(self) -> None:
        self.rng = torch.Generator().manual_seed(5)

    def __call__(self, x):
        wrong = (torch.rand(len(x), generator=self.rng) < x[:, 0]).float()
        return torch.stack([1 - wrong, wrong], 1) * 8


def test_the_way_back_ends_where_one_who_may_ask_again_still_wins():
    x, far = torch.zeros(60, 3), torch.ones(60, 3)
    got, won = nearer(Rising(), x, far, Y.repeat(2)[:60], draws=2, asked=ASKED)
    assert won.all()
    share = got[:, 0]
    assert ((share > 0) & (share < 0.75)).double().mean() > 0.95
    wins = 1 - (1 - share.double() ** 2) ** ASKED  # an answer is wrong with the square of a pass's chance
    assert float(wins.mean()) > 0.6
    assert ((wins > 0.4).double().mean()) > 0.9  # three of four are sought, and one of two is what it must be
    torch.testing.assert_close(got, share[:, None].expand(-1, 3))


def test_there_is_no_way_back_from_what_never_breaks():
    far = torch.zeros(60, 3)
    got, won = nearer(Rising(), far, far, Y.repeat(2)[:60], draws=2, asked=ASKED)
    assert not won.any()
    assert torch.equal(got, far)
