from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.errors import AssayError
from assay.methods.uncertainty import calibration_error, reliability


def ece_as_printed(confidence, hit, bins):
    """Guo et al. 2017, sec. 2: one bin at a time, plain Python."""
    total = 0.0
    for b in range(bins):
        rows = [i for i, c in enumerate(confidence) if b / bins < c <= (b + 1) / bins or (b == 0 and c == 0)]
        total += abs(sum(hit[i] - confidence[i] for i in rows)) / len(hit)
    return total


scores = st.one_of(st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0]), st.floats(0, 1))


@given(pairs=st.lists(st.tuples(scores, st.booleans()), min_size=1, max_size=40), bins=st.sampled_from([1, 2, 4, 8]))
@settings(deadline=None, max_examples=60)
def test_it_is_the_printed_formula_edges_and_all(pairs, bins):
    confidence, hit = [c for c, _ in pairs], [int(h) for _, h in pairs]
    ours = calibration_error(confidence, hit, bins=bins, draws=2)
    assert ours.value == pytest.approx(ece_as_printed(confidence, hit, bins), abs=1e-9)


def test_a_score_of_one_belongs_to_the_last_bin():
    assert calibration_error([0.9, 1.0], [1, 0], bins=2, draws=2).value == pytest.approx(0.45)


def test_the_floor_is_what_a_calibrated_model_shows():
    rng = np.random.default_rng(0)
    score = rng.uniform(0.3, 1.0, 500)
    shown = [calibration_error(score, rng.random(500) < score, draws=2).value for _ in range(200)]
    floor = calibration_error(score, rng.random(500) < score).floor
    assert floor == pytest.approx(np.mean(shown), rel=0.05)
    more = np.tile(score, 16)
    assert calibration_error(more, rng.random(len(more)) < more, draws=200).floor == pytest.approx(floor / 4, rel=0.15)


def test_the_interval_covers_the_true_error_of_a_biased_model():
    rng = np.random.default_rng(1)
    covered = 0
    for seed in range(60):
        score = rng.uniform(0.6, 1.0, 800)
        hit = rng.random(800) < score - 0.1  # over-confident by 0.1 everywhere
        error = calibration_error(score, hit, seed=seed, draws=300)
        covered += error.low <= 0.1 <= error.high
    assert covered >= 51  # 95 % of 60, less three standard deviations


def test_reliability_bins_hold_their_means():
    curve = reliability([0.1, 0.2, 0.9], [0, 1, 1], bins=2)
    np.testing.assert_allclose(curve.confidence, [0.15, 0.9])
    np.testing.assert_allclose(curve.accuracy, [0.5, 1.0])
    assert curve.inputs.tolist() == [2, 1]


@pytest.mark.parametrize(
    ("confidence", "correct", "bins", "words"),
    [
        ([1.2], [1], 15, "score 1.2; scores are probabilities"),
        ([float("nan")], [1], 15, "score nan"),
        ([], [], 15, "at least one"),
        ([0.5], [1, 0], 15, r"shape \(1,\) and outcomes of shape \(2,\)"),
        ([0.5], [1], 0, "bins=0"),
    ],
)
def test_bad_scores_are_named(confidence, correct, bins, words):
    with pytest.raises(AssayError, match=words):
        calibration_error(confidence, correct, bins=bins)
