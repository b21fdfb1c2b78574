"""How a cue is tied to labels: closed forms, no tie on average where there is none, and intervals that hold."""

from __future__ import annotations

import numpy as np
import pytest

from assay.methods.shift.cue import association, association_interval, crossed, speaks_for


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


@pytest.mark.parametrize("agreement", [0.5, 0.7, 0.95])
def test_the_interval_holds_the_truth(agreement: float) -> None:
    rng = np.random.default_rng(2)
    p = np.array([[agreement, 1 - agreement], [1 - agreement, agreement]]).ravel() / 2
    truth, held = abs(2 * agreement - 1), 0
    for i in range(150):
        low, high = association_interval(rng.multinomial(300, p).reshape(2, 2), seed=i, draws=200)
        held += low - 1e-9 <= truth <= high + 1e-9
    assert held >= 133  # of 150; 95 % is 142
