from __future__ import annotations

import warnings
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import softmax

from assay.errors import AssayError
from assay.methods.uncertainty import (
    bin_weights,
    calibration,
    calibration_error,
    ece,
    reliability,
)
from assay.methods.uncertainty.calibration import ESTIMATORS, Rule

BINNED = ESTIMATORS[:4]


def ece_as_printed(confidence, hit, bins):
    """Guo et al. 2017, sec. 2: one bin at a time, plain Python."""
    total = 0.0
    for b in range(bins):
        rows = [i for i, c in enumerate(confidence) if b / bins < c <= (b + 1) / bins or (b == 0 and c == 0)]
        total += abs(sum(hit[i] - confidence[i] for i in rows)) / len(hit)
    return total


def weights_as_printed(score, estimator, bins, low=0.0, high=1.0, reverse=False):
    """Def. 4 and 5, one score and one bin at a time."""
    n, rank = len(score), sorted(score)
    edges = [low + (high - low) * j / bins for j in range(bins + 1)]
    if estimator.startswith("adaptive"):
        m = n // bins
        edges = [low, *((rank[j * m - 1] + rank[j * m]) / 2 for j in range(1, bins)), high]
    centre = [(a + b) / 2 for a, b in pairwise(edges)]
    table = np.zeros((n, bins))
    for i, s in enumerate(score):
        if not estimator.endswith("convex"):
            table[i, sum(t < s for t in edges[1:-1])] = 1
        elif s <= centre[0]:
            table[i, 0] = 1
        elif s >= centre[-1]:
            table[i, -1] = 1
        else:
            j = max(j for j in range(bins) if centre[j] <= s)
            part = (s - centre[j]) / (centre[j + 1] - centre[j])
            table[i, j : j + 2] = (part, 1 - part) if reverse else (1 - part, part)
    return table


def drawn(n, seed=0, bend=0.4):
    """Scores with P(o = 1 | s) = s - bend s (1 - s)."""
    rng = np.random.default_rng(seed)
    score = rng.beta(3, 1.5, n)
    truth = score - bend * score * (1 - score)
    return score, (rng.random(n) < truth).astype(float), truth


def table_of(n, k, seed=0, temperature=1.0):
    """Probabilities of k classes; the labels are right at temperature 1."""
    rng = np.random.default_rng(seed)
    logits = 2 * rng.normal(size=(n, k))
    right = softmax(logits, axis=1)
    label = (right.cumsum(1) > rng.random((n, 1))).argmax(1)
    return softmax(logits / temperature, axis=1), label, logits / temperature


scores = st.one_of(st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0]), st.floats(0, 1))
pairs_of = st.lists(st.tuples(scores, st.booleans()), min_size=8, max_size=40)


@given(pairs=pairs_of, bins=st.sampled_from([1, 2, 4, 8]))
@settings(deadline=None, max_examples=60)
def test_it_is_the_printed_formula_edges_and_all(pairs, bins):
    confidence, hit = [c for c, _ in pairs], [int(h) for _, h in pairs]
    ours = calibration_error(confidence, hit, bins=bins, draws=2)
    assert ours.value == pytest.approx(ece_as_printed(confidence, hit, bins), abs=1e-9)


def bin_in_rationals(score, bins):
    """( (b-1)/B, b/B ] in exact arithmetic; the nearest double and the nearest single to an edge are on it."""
    for j in range(max(1, int(score * bins) - 2), bins + 1):  # the bins below end well below the score
        edge = Fraction(j, bins)
        if Fraction(score) <= edge or score in (float(edge), float(np.float32(float(edge)))):
            return j - 1
    raise AssertionError(score)


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_scores_on_an_edge_and_beside_it_are_binned_as_in_exact_arithmetic(kind):
    for bins in (10, 15, 20, *range(25, 101, 5), 11, 29, 49, 93):
        edge = (np.arange(bins + 1) / bins).astype(kind)
        beside = [np.nextafter(edge, kind(towards)) for towards in (0, 1)]
        score = np.concatenate([edge, *beside]).astype(np.float64)
        wanted = [bin_in_rationals(s, bins) for s in score.tolist()]
        assert calibration.equal_bins(score, bins).tolist() == wanted, bins
        assert wanted[: bins + 1] == [0, *range(bins)]  # an edge belongs to the bin below it
        turned = calibration.equal_bins(np.tile(score, (2, 1)).T, bins)
        assert turned.T.tolist() == [wanted, wanted]  # whatever the layout
        on = bin_weights(edge, bins=bins)
        assert on.argmax(1).tolist() == wanted[: bins + 1]


@given(score=st.floats(0, 1), bins=st.integers(1, 2000), single=st.booleans())
@settings(deadline=None, max_examples=100)
def test_any_score_is_binned_as_in_exact_arithmetic(score, bins, single):
    score = float(np.float32(score)) if single else score
    assert calibration.equal_bins(np.array([score]), bins)[0] == bin_in_rationals(score, bins)


@pytest.mark.parametrize("bins", [25, 50, 100])
def test_scores_of_whole_percents_have_the_error_of_exact_arithmetic(bins):
    rng = np.random.default_rng(bins)
    score = rng.integers(0, bins + 1, 500) / bins
    hit = rng.random(500) < score
    gaps = [Fraction(0)] * bins
    for s, h in zip(score.tolist(), hit.tolist(), strict=True):
        gaps[bin_in_rationals(s, bins)] += int(h) - Fraction(s)
    wanted = float(sum(map(abs, gaps)) / 500)
    assert ece(score, hit, bins=bins) == pytest.approx(wanted, abs=1e-9)
    assert ece(score.astype(np.float32), hit, bins=bins) == pytest.approx(wanted, abs=1e-6)


def test_a_score_of_one_belongs_to_the_last_bin():
    assert calibration_error([0.9, 1.0], [1, 0], bins=2, draws=2).value == pytest.approx(0.45)


@given(pairs=pairs_of, bins=st.integers(1, 8), estimator=st.sampled_from(BINNED), reverse=st.booleans())
@settings(deadline=None, max_examples=100)
def test_weights_are_those_of_the_definitions_and_rows_sum_to_one(pairs, bins, estimator, reverse):
    score, hit = np.array([c for c, _ in pairs]), np.array([float(h) for _, h in pairs])
    table = bin_weights(score, estimator=estimator, bins=bins, as_published=reverse)
    assert table.shape == (len(score), bins)
    assert (table >= 0).all()
    np.testing.assert_allclose(table.sum(1), 1)
    value = ece(score, hit, estimator=estimator, bins=bins, as_published=reverse)
    assert value == pytest.approx(np.abs(table.T @ (hit - score)).sum() / len(score), abs=1e-12)
    assert value >= abs(hit.mean() - score.mean()) - 1e-12  # the triangle inequality
    if bins == 1:
        assert value == pytest.approx(abs(hit.mean() - score.mean()), abs=1e-12)


@pytest.mark.parametrize("estimator", BINNED)
@pytest.mark.parametrize("bins", [1, 3, 10, 31])
@pytest.mark.parametrize("reverse", [False, True])
def test_weights_of_scores_without_ties_are_the_printed_ones(estimator, bins, reverse):
    score = drawn(97)[0]
    ours = bin_weights(score, estimator=estimator, bins=bins, as_published=reverse)
    np.testing.assert_allclose(ours, weights_as_printed(score, estimator, bins, reverse=reverse), atol=1e-9)
    inside = bin_weights(0.2 + 0.8 * score, estimator=estimator, bins=bins, support=(0.2, 1.0), as_published=reverse)
    low = 0.0 if estimator == "legacy" else 0.2  # legacy bins are those of [0, 1] whatever the support
    there = weights_as_printed(0.2 + 0.8 * score, estimator, bins, low, 1.0, reverse)
    np.testing.assert_allclose(inside, there, atol=1e-9)


def test_a_score_at_a_centre_belongs_to_that_bin_and_as_published_not_at_all():
    centre = (np.arange(8) + 0.5) / 8
    np.testing.assert_array_equal(bin_weights(centre, estimator="convex", bins=8), np.eye(8))
    near = centre[1:-1] + 1e-9
    np.testing.assert_allclose(bin_weights(near, estimator="convex", bins=6, as_published=True).sum(1), 1)
    reverse = bin_weights(np.concatenate([near, [0.0, 1.0]]), estimator="convex", bins=8, as_published=True)
    assert np.diagonal(reverse[:6, 1:7]).max() < 1e-7
    assert reverse[6, 0] == reverse[7, -1] == 1  # beyond the outer centres nothing is reversed


def test_adaptive_bins_hold_equal_counts_and_ties_stay_together():
    score = drawn(103)[0]
    held = bin_weights(score, estimator="adaptive", bins=10).sum(0)
    assert held.tolist() == [10] * 9 + [13]
    tied = np.repeat([0.2, 0.9], [15, 5])
    table = bin_weights(tied, estimator="adaptive", bins=4)
    assert (table[:15] == table[0]).all()
    assert (table[15:] == table[15]).all()
    for estimator in ESTIMATORS:  # half the scores equal: no interquartile range, no width of a bin
        assert np.isfinite(calibration_error(tied, tied > 0.5, estimator=estimator, bins=4, draws=5)).all()


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_it_converges_to_the_known_error_and_to_zero_when_calibrated(estimator):
    score, hit, truth = drawn(200_000)
    assert ece(score, hit, estimator=estimator) == pytest.approx(np.abs(truth - score).mean(), abs=0.004)
    crossing = np.clip(0.5 + 0.6 * (score - 0.5), 0, 1)  # too low below 1/2, too high above
    came = np.random.default_rng(1).random(len(score)) < crossing
    assert ece(score, came, estimator=estimator) == pytest.approx(np.abs(crossing - score).mean(), abs=0.006)
    shown = [
        np.mean([ece(*drawn(n, seed, bend=0.0)[:2], estimator=estimator) for seed in range(10)])
        for n in (100, 1000, 10_000)
    ]
    assert shown[0] > 1.8 * shown[1] > 1.8**2 * shown[2] > 0


def test_the_bias_of_the_legacy_estimator_is_the_known_one():
    score = np.random.default_rng(0).uniform(0.2, 0.9, 2000)
    at = np.ceil(score * 10).astype(int)
    expected = sum(np.sqrt(2 / np.pi * (score[at == j] * (1 - score[at == j])).sum()) for j in range(11)) / 2000
    assert calibration_error(score, np.ones(2000), bins=10).floor == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_the_order_of_the_inputs_changes_nothing(estimator):
    score, hit, _ = drawn(300)
    order = np.random.default_rng(0).permutation(300)
    assert ece(score[order], hit[order], estimator=estimator) == pytest.approx(ece(score, hit, estimator=estimator))


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("kind", ["confidence", "class-wise", "top-label"])
def test_sharpening_calibrated_logits_raises_the_error(estimator, kind):
    values = [ece(*table_of(4000, 4, temperature=t)[:2], estimator=estimator, kind=kind) for t in (1.0, 0.7, 0.4)]
    assert values[0] < values[1] < values[2]
    _, label, logits = table_of(4000, 4)
    assert ece(logits, label, estimator=estimator, kind=kind, logits=True) == pytest.approx(values[0], abs=1e-12)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_the_kinds_are_what_their_definitions_say(estimator):
    table, label, _ = table_of(400, 3)
    top, answer = table.max(1), table.argmax(1)
    setting = {"estimator": estimator, "bins": "sqrt"}
    assert ece(table, label, **setting) == pytest.approx(ece(top, answer == label, support=(1 / 3, 1), **setting))
    each = [ece(table[:, c], label == c, **setting) for c in range(3)]
    assert ece(table, label, kind="class-wise", **setting) == pytest.approx(np.mean(each))
    within = sum(
        (answer == c).mean() * ece(top[answer == c], label[answer == c] == c, support=(1 / 3, 1), **setting)
        for c in range(3)
    )
    assert ece(table, label, kind="top-label", **setting) == pytest.approx(within)
    assert calibration_error(table, label, kind="top-label", draws=5, **setting).value == pytest.approx(within)


def test_of_equal_top_scores_the_first_class_is_the_answer():
    table, label = np.full((6, 3), 1 / 3), np.array([0, 1, 1, 2, 2, 2])
    assert ece(table, label) == pytest.approx(1 / 3 - 1 / 6)
    assert ece(torch.tensor(table, dtype=torch.float32), torch.tensor(label)) == pytest.approx(1 / 3 - 1 / 6)


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_ties_go_to_the_first_class_wherever_they_stand(kind):
    quarters = np.random.default_rng(0).dirichlet([1, 1, 1, 1], 3000)
    table = (np.round(quarters * 4) / 4).astype(kind)
    table = table[table.sum(1) == 1]  # halves and quarters: many rows tie
    label = np.arange(len(table)) % 4
    wanted = ece(table.max(1).astype(float), table.argmax(1) == label, support=(0.25, 1.0))
    assert ece(table, label) == pytest.approx(wanted, abs=1e-12)
    assert ((table == table.max(1, keepdims=True)).sum(1) > 1).mean() > 0.1


def test_blocks_and_the_layout_of_the_table_make_no_difference():
    table, label, _ = table_of(20_000, 3)
    wanted = ece(table.max(1), table.argmax(1) == label)
    locked = table.copy()
    locked.flags.writeable = False
    for same in (table, np.asfortranarray(table), locked, np.repeat(table, 2, axis=0)[::2]):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert ece(same, label) == pytest.approx(wanted)
    assert ece(table[::-1], label[::-1]) == pytest.approx(wanted)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_rows_estimated_together_are_those_estimated_apart(estimator):
    rows = [drawn(150, seed) for seed in range(4)]
    score, hit = np.array([r[0] for r in rows]), np.array([r[1] for r in rows])
    together = calibration.estimate(score, hit, Rule(estimator, "sqrt"), (0.0, 1.0))
    apart = [ece(s, h, estimator=estimator, bins="sqrt") for s, h in zip(score, hit, strict=True)]
    np.testing.assert_allclose(together, apart, atol=1e-9)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_a_draw_is_the_estimate_on_the_inputs_drawn(estimator):
    """Counts and matrices against a loop: at fixed edges and bandwidth, the inputs that came are the sample."""
    score, hit, _ = drawn(120)
    rule = Rule(estimator, bins=6, bandwidth=0.07)
    cells = calibration.Cells.of(calibration.Group(score, hit, (0.0, 1.0)), rule, whole=True)
    count = calibration._counts(120, 5, np.random.default_rng(3))
    assert count.sum(0).tolist() == [120.0] * 5
    at = np.repeat(np.tile(np.arange(120), (5, 1)).ravel(), count.T.ravel().astype(int)).reshape(5, 120)
    if estimator == "kde":
        apart = calibration.estimate(score[at], hit[at], rule, (0.0, 1.0))
    else:
        table = bin_weights(score, estimator=estimator, bins=6)
        apart = [np.abs(table[row].T @ (hit[row] - score[row])).sum() / 120 for row in at]
    np.testing.assert_allclose(cells.resampled(count) / 120, apart, atol=1e-5)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_cells_of_many_inputs_give_the_interval_of_the_inputs(estimator, monkeypatch):
    score, hit, _ = drawn(12_000)
    whole = calibration_error(score, hit, estimator=estimator, draws=200)
    monkeypatch.setattr(calibration, "WHOLE", 1000)
    cells = calibration_error(score, hit, estimator=estimator, draws=200)
    assert cells.value == pytest.approx(whole.value, rel=1e-9)
    assert cells.high - cells.low == pytest.approx(whole.high - whole.low, rel=0.3)
    assert cells.floor == pytest.approx(whole.floor, rel=0.1)


def test_the_floor_is_what_a_calibrated_model_shows():
    rng = np.random.default_rng(0)
    score = rng.uniform(0.3, 1.0, 500)
    for estimator in ESTIMATORS:
        shown = [ece(score, rng.random(500) < score, estimator=estimator) for _ in range(100)]
        floor = calibration_error(score, rng.random(500) < score, estimator=estimator).floor
        assert floor == pytest.approx(np.mean(shown), rel=0.08)
    floor, more = calibration_error(score, score > 0.5).floor, np.tile(score, 16)
    assert calibration_error(more, rng.random(len(more)) < more, draws=200).floor == pytest.approx(floor / 4, rel=0.15)


@pytest.mark.parametrize(("estimator", "repeats"), [("legacy", 60), ("convex", 60), ("kde", 20)])
def test_the_interval_covers_the_true_error_of_a_biased_model(estimator, repeats):
    """95 % are nominal; the bound is three deviations below."""
    rng = np.random.default_rng(1)
    covered = 0
    for seed in range(repeats):
        score = rng.uniform(0.6, 1.0, 800)
        hit = rng.random(800) < score - 0.1  # over-confident by 0.1 everywhere
        error = calibration_error(score, hit, seed=seed, draws=80, estimator=estimator, support=(0.6, 1.0))
        assert error.low <= error.value <= error.high
        covered += error.low <= 0.1 <= error.high
    assert covered >= 0.95 * repeats - 3 * (0.95 * 0.05 * repeats) ** 0.5


@pytest.mark.parametrize("estimator", ["legacy", "adaptive", "convex", "adaptive-convex"])
def test_the_interval_of_a_calibrated_model_holds_zero(estimator):
    rng = np.random.default_rng(2)
    score = rng.uniform(0.6, 1.0, 400)
    found = [
        calibration_error(score, rng.random(400) < score, estimator=estimator, bins="sqrt", draws=120)
        for _ in range(60)
    ]
    assert sum(e.low == 0 for e in found) >= 53  # 97.5 % of 60, less three standard deviations and the draws' noise
    assert calibration_error(score, rng.random(400) < score - 0.3, estimator=estimator, draws=120).low > 0.1


def test_the_same_seed_gives_the_same_interval_and_few_inputs_are_flagged():
    score, hit, _ = drawn(60)
    assert calibration_error(score, hit, seed=3, draws=50) == calibration_error(score, hit, seed=3, draws=50)
    assert calibration_error(score, hit, seed=3, draws=50) != calibration_error(score, hit, seed=4, draws=50)
    assert not calibration_error(score[:30], hit[:30], draws=5).few
    for estimator in ESTIMATORS:
        assert calibration_error(score[:29], hit[:29], estimator=estimator, draws=5).few
        assert np.isfinite(calibration_error([0.4], [1], estimator=estimator, draws=5)).all()


def test_reliability_bins_hold_their_means():
    curve = reliability([0.1, 0.2, 0.9], [0, 1, 1], bins=2)
    np.testing.assert_allclose(curve.confidence, [0.15, 0.9])
    np.testing.assert_allclose(curve.accuracy, [0.5, 1.0])
    assert curve.inputs.tolist() == [2, 1]


def test_legacy_is_that_of_torchmetrics():
    theirs = pytest.importorskip("torchmetrics.functional.classification")
    table, label, _ = table_of(2000, 5)
    for bins in (10, 15, 30):
        wanted = theirs.multiclass_calibration_error(torch.tensor(table), torch.tensor(label), 5, n_bins=bins)
        assert ece(table, label, bins=bins) == pytest.approx(float(wanted), abs=1e-6)


GOOD = np.array([[0.7, 0.3], [0.2, 0.8], [0.6, 0.4]])


@pytest.mark.parametrize(
    ("confidence", "correct", "setting", "words"),
    [
        ([1.2], [1], {}, r"score 1.2; scores are probabilities in \[0, 1\]. Of logits give all n x k with logits=True"),
        ([float("nan")], [1], {}, "Got nan among the scores; leave such inputs out"),
        ([], [], {}, "at least one"),
        ([0.5], [1, 0], {}, r"shape \(1,\) and outcomes in the shape \(2,\)"),
        ([0.5], [1], {"bins": 0}, "bins=0"),
        ([0.5, 0.6], [1, 0], {"bins": 3}, "bins=3 for 2 inputs; it wants at most one bin per input"),
        ([0.5, 0.6], [1, 2], {}, "the outcome 2; outcomes are 0 or 1"),
        ([0.5, 0.6], [1, 0], {"estimator": "platt"}, "no estimator 'platt'; name one of"),
        ([0.5, 0.6], [1, 0], {"estimator": "kde", "bandwidth": 0}, "bandwidth=0; it wants a number above 0"),
        ([0.5, 0.6], [1, 0], {"support": (0.55, 1.0)}, r"support=\(0.55, 1\) for scores from 0.5 to 0.6"),
        ([0.5, 0.6], [1, 0], {"kind": "class-wise"}, "n x k probabilities"),
        ([0.5, 0.6], [1, 0], {"logits": True}, "give all n x k logits"),
        ([0.5, 0.6], [1, 0], {"draws": 0}, "draws=0"),
        (GOOD * 0.9, [0, 1, 0], {}, "probabilities that sum to 0.9 for an input; divide them"),
        (GOOD * 0.9, [0, 1, 0], {"kind": "class-wise"}, "probabilities that sum to 0.9"),
        (GOOD * 10 - 3, [0, 1, 0], {}, "if these are logits, pass logits=True"),
        (GOOD * 5, [0, 1, 0], {}, "Got 4 among the probabilities; if these are logits"),
        (GOOD[:, :1], [0, 0, 0], {}, "one class only"),
        (GOOD, [1, 1, 1], {"kind": "class-wise"}, "labels of one class only"),
        (GOOD, [0, 1, 2], {}, "the label 2; with 2 classes labels are 0 to 1"),
        (GOOD, [0, 1, 0.5], {}, "the label 0.5"),
        (GOOD, [0, 1, float("nan")], {}, "the label nan"),
        (GOOD, [0, 1, 0], {"bins": 4, "estimator": "adaptive"}, "bins=4 for 3 inputs"),
        (GOOD, [0, 1, 0], {"bins": 4, "kind": "class-wise"}, "bins=4 for 3 inputs"),
        (GOOD, [0, 1, 0], {"bins": "many"}, "bins='many'; it wants at least 1, or 'sqrt'"),
        (GOOD, [0, 1], {}, r"shape \(3, 2\) and labels in the shape \(2,\)"),
        (GOOD, [0, 1, 0], {"kind": "top"}, "no kind 'top'"),
        (np.where(GOOD == 0.8, np.nan, GOOD), [0, 1, 0], {}, "Got nan among the scores"),
        (np.where(GOOD == 0.8, np.inf, GOOD), [0, 1, 0], {"logits": True}, "Got inf among the scores"),
        (GOOD[None], [0], {}, r"shape \(1, 3, 2\)"),
    ],
)
def test_bad_input_is_named_in_one_line(confidence, correct, setting, words):
    with pytest.raises(AssayError, match=words) as caught:
        calibration_error(confidence, correct, **setting)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", ["confidence", "class-wise", "top-label"])
def test_rounding_of_half_precision_is_no_error(kind):
    table = np.array([[1.0004, 0.0], [0.3, 0.7002], [0.4, 0.6], [0.0, 1.0004]])
    assert 0 <= ece(table, [0, 1, 1, 1], kind=kind) <= 1
    half = torch.softmax(torch.randn(50, 4, generator=torch.Generator().manual_seed(0)), 1).half()
    assert 0 <= ece(half, np.arange(50) % 4, kind=kind) <= 1
