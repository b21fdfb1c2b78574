from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.errors import AssayError, ShapeError
from assay.methods.uncertainty import calibration_error, ece, nll
from assay.methods.uncertainty.above_floor import above_floor
from assay.methods.uncertainty.under_shift import drift, drift_above_floor
from assay.nn.members import log_mean


def drawn(n: int, m: int, *, over: float = 0.0, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Confidences, and answers that are right less often by `over`."""
    rng = np.random.default_rng(seed)
    sure = rng.uniform(0.3, 1.0, (n, m))
    return sure, rng.random((n, m)) < sure - over


@settings(deadline=None, max_examples=15)
@given(n=st.integers(20, 60), m=st.integers(1, 5), bins=st.integers(1, 20), seed=st.integers(0, 1000))
def test_each_condition_has_its_own_ece_in_any_order(n: int, m: int, bins: int, seed: int) -> None:
    sure, right = drawn(n, m, seed=seed)
    sure = np.where(np.random.default_rng(seed).random((n, m)) < 0.3, np.ceil(sure * bins) / bins, sure)  # on an edge
    weights = np.random.default_rng(seed).normal(size=(3, m))
    found = drift(sure, right, weights, bins=bins, draws=4)
    want = [ece(sure[:, j], right[:, j], bins=bins) for j in range(m)]
    np.testing.assert_allclose(found.each, want, atol=1e-12)
    np.testing.assert_allclose([c.value for c in found.combined], weights @ want, atol=1e-12)
    assert ((found.each >= 0) & (found.each <= 1)).all()
    order = np.random.default_rng(seed).permutation(n)
    np.testing.assert_allclose(drift(sure[order], right[order], weights, bins=bins, draws=4).each, want, atol=1e-12)
    assert all(c.low <= c.value <= c.high for c in found.combined)


def test_constant_confidence_is_off_by_what_it_misses_and_certain_truth_by_nothing() -> None:
    right = np.arange(100)[:, None] < [80, 30]
    found = drift(np.full((100, 2), 0.55), right, np.eye(2))
    np.testing.assert_allclose(found.each, [0.25, 0.25])
    certain = drift(np.ones((50, 1)), np.ones((50, 1)), np.ones((1, 1)))
    assert certain.each.tolist() == [0.0]
    assert certain.combined[0][:4] == (0.0, 0.0, 0.0, 0.0)
    hot = np.eye(4)[[0, 1, 2, 3]]
    assert nll(hot, np.arange(4)) == 0
    assert nll(np.full((7, 5), 0.2), np.arange(7) % 5) == pytest.approx(np.log(5))


def test_one_condition_agrees_with_calibration_error() -> None:
    sure, right = drawn(800, 1, over=0.15)
    ours = drift(sure, right, np.ones((1, 1)), draws=4000).combined[0]
    other = calibration_error(sure[:, 0], right[:, 0], draws=4000)
    assert ours.value == pytest.approx(other.value, abs=1e-12)
    for a, b in zip(ours[1:4], other[1:4], strict=True):
        assert a == pytest.approx(b, abs=4e-3)
    assert not ours.few
    assert drift(sure[:29], right[:29], np.ones((1, 1))).combined[0].few


def together(n: int, m: int, over: float, seed: int) -> tuple[np.ndarray, np.ndarray, float]:
    """Conditions that an input's answers share some of their luck in; and the mean error that is true of them."""
    rng = np.random.default_rng(seed)
    sure = rng.uniform(0.4, 1.0, (n, 1)) - np.linspace(0, 0.2, m) * rng.random((n, m))
    right = np.where(rng.random((n, m)) < 0.5, rng.random((n, 1)), rng.random((n, m))) < sure - over
    return sure, right, over


def test_above_the_floor_one_condition_is_what_above_floor_says() -> None:
    for over in (0.0, 0.05, 0.25):
        sure, right = drawn(400, 1, over=over, seed=3)
        (ours,) = drift_above_floor(sure, right, [[1.0]], draws=300)
        other = above_floor(sure[:, 0], right[:, 0], draws=300)
        assert ours[:6] == pytest.approx(other[:6], abs=0.006)
    twice = drift_above_floor(np.tile(sure, 2), np.tile(right, 2), [[1.0, 0.0], [0.5, 0.5]], draws=300)
    assert twice[0] == pytest.approx(twice[1], abs=1e-6)  # inputs are shared: no more is known of them
    assert twice[0][:6] == pytest.approx(ours[:6], abs=1e-6)


def test_above_the_floor_calibrated_conditions_are_near_nothing_and_the_interval_covers_the_truth() -> None:
    held = {0.0: 0, 0.1: 0, 0.3: 0}
    for over in held:
        for seed in range(25):
            sure, right, true = together(150, 3, over, seed)
            (found,) = drift_above_floor(sure, right, np.full((1, 3), 1 / 3), draws=20, seed=seed)
            held[over] += found.low <= true <= found.high
            assert found.low <= found.value <= found.high
    assert min(held.values()) >= 21  # of 25; 95 % are nominal
    assert sum(held.values()) >= 67  # of 75


def test_an_error_that_every_answer_shares_keeps_an_interval() -> None:
    sure = np.random.default_rng(0).beta(8, 4.5, (300, 2))
    for right in (np.ones_like(sure), np.zeros_like(sure)):
        (found,) = drift_above_floor(sure, right, [[0.5, 0.5]])
        assert found.value == pytest.approx(np.abs(right - sure).mean(), abs=0.01)
        assert 0.005 < found.value - found.low < 0.1


def test_the_error_of_calibrated_answers_falls_with_the_number_of_inputs_and_its_interval_holds_zero() -> None:
    means = []
    for n in (100, 1000, 10_000):
        sure, right = drawn(n, 4, seed=n)
        (all_of_them,) = drift(sure, right, np.full((1, 4), 0.25), draws=200).combined
        assert all_of_them.low == 0
        assert all_of_them.floor == pytest.approx(all_of_them.value, rel=0.6)
        means.append(all_of_them.value)
    assert means[0] > 2 * means[1] > 4 * means[2]


def test_conditions_share_their_inputs_in_the_interval() -> None:
    """Twice the same condition is as uncertain as once, and its rise over itself is 0 without doubt."""
    sure, right = drawn(500, 1, over=0.2)
    twice = drift(np.tile(sure, 2), np.tile(right, 2), [[1.0, 0.0], [0.5, 0.5], [-1.0, 1.0]])
    one, mean, rise = twice.combined
    np.testing.assert_allclose(one[:4], mean[:4], atol=1e-12)
    assert rise[:4] == (0.0, 0.0, 0.0, 0.0)


def test_the_interval_of_a_rise_covers_it() -> None:
    """Clean is calibrated, shifted is over-confident by 0.2, over 60 draws of 400 inputs."""
    held = 0
    for seed in range(60):
        clean, shifted = drawn(400, 1, seed=seed), drawn(400, 1, over=0.2, seed=1000 + seed)
        sure, right = (np.concatenate(pair, axis=1) for pair in zip(clean, shifted, strict=True))
        (rise,) = drift(sure, right, [[-1.0, 1.0]], draws=200, seed=seed).combined
        held += rise.low <= 0.2 <= rise.high
    assert held >= 50  # without the rule for errors that may be 0 it is 42


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 1000), members=st.integers(2, 6))
def test_an_ensemble_is_no_more_surprised_than_its_members_by_either_mean(seed: int, members: int) -> None:
    rng = torch.Generator().manual_seed(seed)
    z = 4 * torch.randn(members, 30, 5, generator=rng, dtype=torch.float64)
    y = torch.randint(0, 5, (30,), generator=rng)
    single = torch.stack([F.cross_entropy(member, y) for member in z]).mean()
    assert F.cross_entropy(log_mean(z), y) <= single + 1e-12
    assert F.cross_entropy(z.mean(0), y) <= single + 1e-12


def test_pieces_make_no_difference_to_the_value_and_a_seed_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    sure, right = drawn(200, 3, over=0.1)
    whole = drift(sure, right, np.eye(3), draws=500, seed=1)
    assert whole.combined == drift(sure, right, np.eye(3), draws=500, seed=1).combined
    assert whole.combined != drift(sure, right, np.eye(3), draws=500, seed=2).combined
    monkeypatch.setattr("assay.methods.uncertainty.under_shift.CELLS", 200 * 70)
    cut = drift(sure, right, np.eye(3), draws=500, seed=1)
    np.testing.assert_allclose(cut.each, whole.each, rtol=1e-12)
    np.testing.assert_allclose([c[:4] for c in cut.combined], [c[:4] for c in whole.combined], atol=0.02)


def test_bad_input_is_named_in_one_line() -> None:
    sure, right = drawn(10, 2)
    with pytest.raises(ShapeError, match=r"weights \(1, 3\)"):
        drift(sure, right, np.ones((1, 3)), bins=5)
    with pytest.raises(AssayError, match="confidences from 0.* to 1.5"):
        drift(np.where(sure == sure.max(), 1.5, sure), right, np.eye(2), bins=5)
    with pytest.raises(AssayError, match=r"must lie in \[0, 1\]"):
        drift(np.where(sure == sure.max(), np.nan, sure), right, np.eye(2), bins=5)
    with pytest.raises(AssayError, match="neither right"):
        drift(sure, sure, np.eye(2), bins=5)
    with pytest.raises(AssayError, match="bins=0"):
        drift(sure, right, np.eye(2), bins=0)
    with pytest.raises(AssayError, match="bins=11 .* 10 inputs"):
        drift(sure, right, np.eye(2), bins=11)
    with pytest.raises(AssayError, match="a weight of -1"):
        drift_above_floor(sure, right, [[-1.0, 1.0]], bins=5)
