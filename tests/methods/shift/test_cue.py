"""How a cue is tied to labels: closed forms, no tie on average where there is none, and intervals that hold."""

from __future__ import annotations

import numpy as np
import pytest

from assay.methods.shift.cue import association, association_interval, crossed, speaks_for, spoken_for_at_home


def test_counts_are_those_of_a_loop() -> None:
    rng = np.random.default_rng(0)
    cue, label = rng.integers(0, 3, 50), rng.integers(0, 4, 50)
    wanted = np.zeros((3, 4), dtype=int)
    for c, y in zip(cue, label, strict=True):
        wanted[c, y] += 1
    assert (crossed(cue, label, 3, 4) == wanted).all()


def test_a_cue_speaks_for_its_commonest_label_and_one_unseen_for_none() -> None:
    assert speaks_for(np.array([[1, 5, 2], [0, 0, 0], [4, 0, 4]])).tolist() == [1, -1, 0]


def test_a_cue_that_tells_the_label_is_tied_by_one_and_a_constant_by_nothing() -> None:
    assert association(np.diag([40, 30, 30])) == pytest.approx(1)
    assert association(np.array([[50, 50]])) == 0
    assert association(np.array([[50, 0], [50, 0]])) == 0
    assert association(np.array([[25, 25], [25, 25]])) == 0


def test_two_by_two_agrees_with_the_closed_form() -> None:
    a, b, c, d = 45, 15, 10, 30
    n = a + b + c + d
    phi = (a * d - b * c) ** 2 / ((a + b) * (c + d) * (a + c) * (b + d)) - 1 / (n - 1)
    assert association(np.array([[a, b], [c, d]])) == pytest.approx(np.sqrt(phi / (2 - 1 / (n - 1) - 1)))


def test_without_a_tie_nothing_is_added_by_chance() -> None:
    """chi^2 / n alone would be (r - 1)(c - 1) / (n - 1) on average; its square root is far from 0 here."""
    rng = np.random.default_rng(1)
    drawn = rng.multinomial(60, np.full(25, 1 / 25), size=2000).reshape(2000, 5, 5)
    assert float((association(drawn) ** 2).mean()) < 0.02
    assert float(np.sqrt(16 / 59 / 4)) > 0.25  # what an uncorrected V would show


@pytest.mark.parametrize("n", [12, 100, 300])
@pytest.mark.parametrize("tie", [0, 0.1, 0.2, 0.4, 0.9, 1])
def test_the_interval_holds_the_truth_and_has_a_width(tie: float, n: int) -> None:
    """A bootstrap of V cut at 0 missed 0.1 in half of all tables of 100, and gave 0 to 0 and 1 to 1 of any size."""
    p = np.array([1 + tie, 1 - tie, 1 - tie, 1 + tie]) / 4
    drawn = np.random.default_rng(2).multinomial(n, p, size=30).reshape(30, 2, 2)
    ends = np.array([association_interval(table) for table in drawn])
    assert ((ends[:, 0] - 1e-9 <= tie) & (tie <= ends[:, 1] + 1e-9)).sum() >= 26  # of 30; 95 % is 28.5
    assert (ends[:, 1] - ends[:, 0] > 1 / np.sqrt(n)).all()
    assert ((ends >= 0) & (ends <= 1)).all()


def test_the_interval_holds_where_few_inputs_decide() -> None:
    """A rare label that its cue tells half of the time: the noncentral chi^2 alone misses a third of the time."""
    p = np.diag([0.9, 0.07, 0.03]) * 0.4 + np.outer([0.9, 0.07, 0.03], [0.9, 0.07, 0.03]) * 0.6
    drawn = np.random.default_rng(3).multinomial(1000, p.ravel(), size=40).reshape(40, 3, 3)
    ends = np.array([association_interval(table) for table in drawn])
    assert ((ends[:, 0] <= 0.4) & (ends[:, 1] >= 0.4)).sum() >= 34  # of 40; 95 % is 38


def test_the_ends_are_the_ties_under_which_this_chi_would_be_rare() -> None:
    table = np.array([[30, 20], [20, 30]])  # chi^2 = 4
    low, high = association_interval(table)
    root = np.sqrt(4)
    assert high * 10 == pytest.approx(root + 1.96, abs=0.02)  # a chi^2 of one degree is a squared normal
    assert low == 0
    low, _ = association_interval(np.array([[40, 10], [10, 40]]))  # chi^2 = 36
    assert low * 10 == pytest.approx(6 - 1.96, abs=0.02)


def test_a_table_of_one_cue_or_one_label_says_nothing() -> None:
    assert association_interval(np.array([[50, 50], [0, 0]])) == (0, 1)
    assert association_interval(np.array([[50, 0], [50, 0]])) == (0, 1)


def test_the_share_at_home_is_judged_by_inputs_that_did_not_make_the_mapping() -> None:
    """Of a hundred cues that say nothing, each is commonest with some label; on the inputs themselves it looks tied."""
    rng = np.random.default_rng(4)
    cue, label = rng.integers(0, 100, 1000), rng.integers(0, 2, 1000)
    own = speaks_for(crossed(cue, label, 100, 2))[cue] == label
    assert own.mean() > 0.58
    assert 0.46 < spoken_for_at_home(cue, label, 100, 2, seed=0).mean() < 0.54


def test_the_share_at_home_of_a_cue_that_tells_the_label_is_one() -> None:
    cue = np.arange(60) % 3
    assert spoken_for_at_home(cue, 2 - cue, 3, 3, seed=0).all()
