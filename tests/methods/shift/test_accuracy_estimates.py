"""Accuracy without labels: exact at home, slopes and errors as by hand, intervals that hold, and what says nothing."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from assay.errors import AssayError, ShapeError
from assay.finding import wilson
from assay.methods.shift.accuracy_estimates import (
    ATC,
    ATC_ENTROPY,
    AVERAGE,
    DIFFERENCE,
    DISPERSITY,
    GAUGES,
    GROWTH,
    Answers,
    Estimator,
    Home,
    Shift,
    above,
    atc_threshold,
    dispersity,
    other_shares,
    weighted_accuracy,
)

K = 4
Made = tuple[Answers, NDArray[np.bool_], NDArray[np.int64]]


def answers(
    rng: np.random.Generator, n: int, noise: float, pull: float = 0.0, shares: list[float] | None = None
) -> Made:
    """A classifier whose logits are the label's unit vector with noise; a `pull` drives all to the first class."""
    y = rng.choice(K, size=n, p=shares)
    z = 3 * np.eye(K)[y] + noise * rng.normal(size=(n, K)) + pull * np.eye(K)[0]
    p = np.exp(z) / np.exp(z).sum(1, keepdims=True)
    return Answers.of(p.max(1), p), z.argmax(1) == y, y


CHANGES = {"noise": (1.0, 0), "more noise": (0.6, 0), "pull": (0, 1.0), "half a pull": (0, 0.5), "both": (0.5, 0.7)}


@pytest.fixture(scope="module")
def fitted() -> Estimator:
    rng = np.random.default_rng(0)
    said, right, _ = answers(rng, 2000, 1.2)
    home = Home(said, right)
    shifts = []
    for change, (noise, pull) in CHANGES.items():
        for severity in (1, 2, 3):
            there, hits, y = answers(rng, 2000, 1.2 + severity * noise, severity * pull)
            shifts += [home.shift(change, there, hits), home.shift(change, there, hits, other_shares(y, rng))]
    return Estimator(home, shifts)


def test_average_confidence_of_a_calibrated_model_is_its_accuracy_in_expectation() -> None:
    rng = np.random.default_rng(1)
    p = rng.dirichlet(np.ones(K), size=40_000)
    y = (p.cumsum(1) < rng.random((len(p), 1))).sum(1)
    right = p.argmax(1) == y
    home = Home(Answers.of(p.max(1), p), right)
    assert home.reading[GAUGES.index(AVERAGE)] == pytest.approx(p.max(1).mean(), rel=1e-12)
    assert abs(p.max(1).mean() - right.mean()) < 4 * np.sqrt(0.25 / len(p))
    assert Estimator(home, ()).estimate(home.answers)[AVERAGE].value == pytest.approx(right.mean(), abs=0.01)


@given(st.lists(st.tuples(st.sampled_from([0.2, 0.3, 0.5, 0.50001, 0.9, 1.0]), st.booleans()), min_size=1, max_size=40))
def test_the_threshold_gives_homes_accuracy_exactly_also_where_scores_are_equal(rows: list[tuple[float, bool]]) -> None:
    score, right = (np.array(each) for each in zip(*rows, strict=True))
    assert above(score, atc_threshold(score, right.astype(bool))) == pytest.approx(right.mean(), abs=1e-12)


def test_home_is_estimated_exactly_by_all_but_average_confidence(fitted: Estimator) -> None:
    made = fitted.estimate(fitted.home.answers)
    for name in (DIFFERENCE, ATC, ATC_ENTROPY, DISPERSITY):
        assert made[name].value == pytest.approx(fitted.home.accuracy, abs=1e-12)
        assert made[name].low < made[name].value < made[name].high


def test_weights_of_equal_samples_are_1_and_the_accuracy_is_the_plain_one(fitted: Estimator) -> None:
    weights = fitted.home.weights(fitted.home.answers)
    assert weights is not None
    np.testing.assert_allclose(weights, 1.0, atol=1e-6)
    found = weighted_accuracy(fitted.home.right, weights)
    assert found.value == pytest.approx(fitted.home.accuracy, abs=1e-6)
    assert found.effective == pytest.approx(len(fitted.home.right), rel=1e-6)
    assert found[1:3] == pytest.approx(wilson(int(fitted.home.right.sum()), len(weights)), abs=1e-6)


def test_a_weighted_accuracy_is_that_of_inputs_repeated_as_often() -> None:
    right, weight = np.array([True, False, True, False]), np.array([3.0, 1.0, 0.0, 2.0])
    found = weighted_accuracy(right, weight)
    assert found.value == pytest.approx(np.repeat(right, weight.astype(int)).mean())
    assert found.effective == pytest.approx(36 / 14)


def test_dispersity_has_its_closed_forms() -> None:
    evenly = np.eye(K)[np.arange(40) % K]
    assert dispersity(evenly) == pytest.approx(1.0)
    assert dispersity(np.eye(K)[np.zeros(40, dtype=int)]) == pytest.approx(1 / np.sqrt(K))
    assert dispersity(np.full((40, K), 1 / K)) == pytest.approx(1 / K)
    rng = np.random.default_rng(2)
    p = rng.dirichlet(np.ones(K), size=30)
    for rows in (p, p[:3]):  # by products of rows, and by their singular values where classes are more
        assert dispersity(rows) == pytest.approx(np.linalg.svd(rows)[1].sum() / np.sqrt(rows.size))
    times = rng.integers(0, 4, size=30)
    assert dispersity(p, times.astype(float)) == pytest.approx(dispersity(np.repeat(p, times, axis=0)))


def test_slopes_and_errors_are_those_of_fits_that_leave_a_change_out() -> None:
    rng = np.random.default_rng(3)
    said, right, _ = answers(rng, 500, 1.2)
    home = Home(said, right)
    names = np.repeat(["a", "b", "c", "d"], 3)
    moved, lost = -rng.random(12) * 0.2, -rng.random(12) * 0.3
    start = home.reading
    shifts = [Shift(c, start + m, home.accuracy + y) for c, m, y in zip(names.tolist(), moved, lost, strict=True)]
    found = Estimator(home, shifts)
    assert found.slope[DIFFERENCE] == pytest.approx((moved * lost).sum() / (moved**2).sum())
    off = []
    for c, m, y in zip(names, moved, lost, strict=True):
        rest = names != c
        slope = np.linalg.lstsq(moved[rest, None], lost[rest], rcond=None)[0][0]
        off.append(home.accuracy + y - min(max(home.accuracy + slope * m, 0), 1))
    assert found.error[DIFFERENCE] == pytest.approx(np.abs(off).mean())
    assert found.error[ATC] == pytest.approx(np.abs(lost - np.maximum(moved, -home.accuracy)).mean())
    assert found.chosen == min(found.error, key=found.error.__getitem__)
    told = np.array([home.accuracy + y - o for y, o in zip(lost, off, strict=True)])
    score = np.array(off) / (GROWTH + np.abs(told - home.accuracy))  # 12 of them: the quantiles are the ends
    assert found.spread[DIFFERENCE] == pytest.approx((min(0, score.min()), max(0, score.max())))


def test_a_loss_in_proportion_to_confidence_is_found_to_the_digit() -> None:
    rng = np.random.default_rng(4)
    said, right, _ = answers(rng, 500, 1.2)
    home = Home(said, right)
    shifts = [
        Shift(c, home.reading - d, home.accuracy - 2 * d) for c, d in zip("abcd", (0.02, 0.05, 0.1, 0.2), strict=True)
    ]
    found = Estimator(home, shifts)
    assert found.slope[DIFFERENCE] == pytest.approx(2.0)
    assert found.error[DIFFERENCE] == pytest.approx(0.0, abs=1e-12)
    assert found.chosen in (DIFFERENCE, DISPERSITY)
    assert found.error[ATC] > 0.05


def test_intervals_hold_the_truth_where_shifts_differ_as_the_changes_do(fitted: Estimator) -> None:
    rng = np.random.default_rng(5)
    off: dict[str, list[float]] = {name: [] for name in (DIFFERENCE, ATC, ATC_ENTROPY)}
    held, head = [], []
    assert fitted.chosen is not None
    for _ in range(80):
        there, right, _ = answers(rng, 400, 1.2 + 2 * rng.random(), 2.5 * rng.random())
        made = fitted.estimate(there)
        told = made[fitted.chosen]
        held.append(told.low <= right.mean() <= told.high)
        head.append(abs(told.value - right.mean()))
        for name, errors in off.items():
            errors.append(abs(made[name].value - right.mean()))
    assert np.mean(held) >= 0.9
    assert np.mean(head) <= min(np.mean(errors) for errors in off.values())


def test_a_domain_without_one_class_stays_inside_the_interval(fitted: Estimator) -> None:
    there, right, _ = answers(np.random.default_rng(6), 1000, 1.2, shares=[0.0, 1 / 3, 1 / 3, 1 / 3])
    assert fitted.chosen is not None
    told = fitted.estimate(there)[fitted.chosen]
    assert told.low <= right.mean() <= told.high


def test_a_random_model_is_told_to_be_right_one_time_in_k() -> None:
    rng = np.random.default_rng(7)
    p = rng.dirichlet(np.ones(K) / 2, size=4000)  # sure of itself, and of nothing
    right = p.argmax(1) == rng.integers(0, K, len(p))
    home = Home(Answers.of(p[:2000].max(1), p[:2000]), right[:2000])
    made = Estimator(home, ()).estimate(Answers.of(p[2000:].max(1), p[2000:]))
    assert made[AVERAGE].value > 0.6
    for name in (ATC, ATC_ENTROPY):
        assert made[name].value == pytest.approx(1 / K, abs=0.04)
        assert made[name].low <= right[2000:].mean() <= made[name].high


def test_logits_times_1000_leave_classes_alone_to_tell_by() -> None:
    rng = np.random.default_rng(8)
    home, shifts = None, []
    for change in ("", *CHANGES):
        noise, pull = CHANGES.get(change, (0, 0))
        for severity in (1, 2):
            said, right, _ = answers(rng, 500, 1.2 + severity * noise, severity * pull)
            assert said.chance is not None
            hard = np.eye(K)[said.chance.argmax(1)]
            sharp = Answers.of(hard.max(1), hard)
            home = home or Home(sharp, right)
            shifts.append(home.shift(change or "none", sharp, right))
    assert home is not None
    assert set(home.still) == {AVERAGE, DIFFERENCE, ATC, ATC_ENTROPY}
    found = Estimator(home, shifts)
    assert found.chosen == DISPERSITY
    assert set(found.estimate(home.answers)) == {DISPERSITY}


def test_a_model_that_says_the_same_to_all_tells_nothing() -> None:
    p = np.tile([0.4, 0.3, 0.2, 0.1], (50, 1))
    home = Home(Answers.of(p.max(1), p), np.arange(50) % K == 0)
    assert set(home.still) == {AVERAGE, DIFFERENCE, ATC, ATC_ENTROPY, DISPERSITY}
    found = Estimator(home, [home.shift(c, home.answers, home.right) for c in "abc"])
    assert found.chosen is None
    assert found.estimate(home.answers) == {}


def test_a_confidence_alone_is_enough_for_three_estimates(fitted: Estimator) -> None:
    sure, right = fitted.home.answers.sure, fitted.home.right
    home = Home(Answers.of(sure), right)
    found = Estimator(
        home, [home.shift(c, Answers.of(sure * d), right) for c, d in zip("abc", (0.9, 0.8, 0.7), strict=True)]
    )
    assert set(found.estimate(Answers.of(sure))) == {AVERAGE, DIFFERENCE, ATC}
    assert found.home.weights(Answers.of(sure)) is not None
    with pytest.raises(AssayError, match="given for one"):
        home.read(fitted.home.answers)


def test_other_shares_keep_classes_together_and_have_the_mean_1() -> None:
    y = np.random.default_rng(9).integers(0, 3, 100)
    w = other_shares(y, np.random.default_rng(0))
    assert w.mean() == pytest.approx(1.0)
    assert len(np.unique(w)) == 3
    assert all(len(np.unique(w[y == c])) == 1 for c in range(3))


def test_what_is_no_answer_is_refused_in_one_line() -> None:
    with pytest.raises(AssayError, match=r"Got the confidence 1\.5"):
        Answers.of([0.5, 1.5])
    with pytest.raises(AssayError, match="Got the confidence nan"):
        Answers.of([0.5, np.nan])
    with pytest.raises(AssayError, match="Got the probability -1"):
        Answers.of([0.5], [[-1.0, 2.0]])
    with pytest.raises(ShapeError, match=r"shape \(0,\)"):
        Answers.of([])
    with pytest.raises(ShapeError, match="give n x k"):
        Answers.of([0.5, 0.5], [[0.5, 0.5]])
    with pytest.raises(ShapeError, match="2 answers"):
        Home(Answers.of([0.5, 0.6]), [True])


def test_weights_of_too_few_answers_or_of_one_are_none(fitted: Estimator) -> None:
    few = Answers(fitted.home.answers.sure[:3], fitted.home.answers.chance[:3])  # type: ignore[index]
    assert fitted.home.weights(few) is None
    p = np.tile([0.4, 0.3, 0.2, 0.1], (50, 1))
    same = Answers.of(p.max(1), p)
    assert Home(same, np.arange(50) % K == 0).weights(same) is None


def test_the_interval_of_a_weighted_accuracy_holds_what_unequal_weights_cost() -> None:
    rng = np.random.default_rng(10)
    made = [weighted_accuracy(rng.random(300) < 0.7, rng.exponential(size=300)) for _ in range(400)]
    held = np.mean([each.low <= 0.7 <= each.high for each in made])
    assert 0.91 <= held <= 0.98
    assert np.mean([each.effective for each in made]) == pytest.approx(150, rel=0.05)


@pytest.mark.parametrize("accuracy", [0.0, 1.0])
def test_one_that_is_always_right_or_never_at_home_is_not_known_to_be_so_there(accuracy: float) -> None:
    weight = np.random.default_rng(0).random(40)
    found = weighted_accuracy(np.full(40, bool(accuracy)), weight)
    assert found.value == pytest.approx(accuracy)
    rest = 1.959964**2 / (found.effective + 1.959964**2)  # Wilson's interval of none of so many
    assert found.high - found.low == pytest.approx(rest)
    assert (found.low, found.high)[int(accuracy)] == pytest.approx(accuracy)


def test_wrong_answers_of_unequal_weight_widen_the_interval_more_than_the_weights_are_worth() -> None:
    rng, n = np.random.default_rng(11), 400
    held = []
    for _ in range(400):
        right = rng.random(n) < 0.9
        found = weighted_accuracy(right, np.where(right, 1.0, rng.exponential(size=n)))
        held.append(found.low <= 0.9 <= found.high)
    assert 0.91 <= np.mean(held) <= 0.99  # the mean weight is 1 of both, and so the accuracy is what it was
