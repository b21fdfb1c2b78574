from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import log_softmax, softmax

from assay.errors import AssayError
from assay.methods.uncertainty import brier, nll, sharpness


def table_of(n, k, seed=0, temperature=1.0):
    """Probabilities of k classes; the labels are right at temperature 1."""
    rng = np.random.default_rng(seed)
    logits = 2 * rng.normal(size=(n, k))
    right = softmax(logits, axis=1)
    label = (right.cumsum(1) > rng.random((n, 1))).argmax(1)
    return softmax(logits / temperature, axis=1), label, logits / temperature


scores = st.one_of(st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0]), st.floats(0, 1))
pairs_of = st.lists(st.tuples(scores, st.booleans()), min_size=8, max_size=40)


@given(pairs=pairs_of, bins=st.integers(1, 8))
@settings(deadline=None, max_examples=60)
def test_the_parts_of_the_brier_score_add_up(pairs, bins):
    score, hit = np.array([c for c, _ in pairs]), np.array([float(h) for _, h in pairs])
    parts = brier(score, hit, bins=bins)
    assert parts.value == pytest.approx(((score - hit) ** 2).mean())
    whole = parts.reliability - parts.resolution + parts.uncertainty + parts.within
    assert whole == pytest.approx(parts.value, abs=1e-12)
    assert min(parts.reliability, parts.resolution, parts.uncertainty) >= 0
    coarse = np.round(score * 4) / 4
    assert brier(coarse, hit, bins=4).within == pytest.approx(0, abs=1e-12) or (coarse == 0).any()


def test_brier_nll_and_sharpness_on_classes():
    table, label, logits = table_of(500, 4)
    sklearn = pytest.importorskip("sklearn.metrics")
    parts = brier(table, label)
    one_hot = np.eye(4)[label]
    assert parts.value == pytest.approx(((table - one_hot) ** 2).sum(1).mean(), abs=1e-12)
    assert parts.value == pytest.approx(parts.reliability - parts.resolution + parts.uncertainty + parts.within)
    assert brier(table[:, 1], label == 1).value == pytest.approx(
        sklearn.brier_score_loss(label == 1, table[:, 1]), abs=1e-6
    )
    assert brier(logits, label, logits=True).value == pytest.approx(parts.value)
    assert nll(table, label) == pytest.approx(sklearn.log_loss(label, table), abs=1e-6)
    assert nll(logits, label, logits=True) == pytest.approx(-log_softmax(logits, axis=1)[range(500), label].mean())
    assert nll(np.eye(2), [0, 0]) == np.inf
    assert sharpness(np.full((9, 3), 1 / 3)) == pytest.approx(0, abs=1e-15)
    assert sharpness(np.eye(2)) == pytest.approx(0.5)
    assert sharpness([0.0, 1.0]) == pytest.approx(0.25)
    assert sharpness(table_of(500, 4, temperature=0.5)[0]) > sharpness(table)


def test_the_parts_are_those_of_the_bins_by_hand():
    score = np.array([0.1, 0.2, 0.2, 0.6, 0.9, 0.9])
    hit = np.array([0, 1, 0, 1, 1, 0])
    parts = brier(score, hit, bins=2)
    low, high = score < 0.5, score > 0.5
    reliability = sum(b.mean() * (score[b].mean() - hit[b].mean()) ** 2 for b in (low, high))
    resolution = sum(b.mean() * (hit[b].mean() - hit.mean()) ** 2 for b in (low, high))
    assert parts.reliability == pytest.approx(reliability)
    assert parts.resolution == pytest.approx(resolution)
    assert parts.uncertainty == pytest.approx(0.25)


def test_recalibration_takes_off_the_reliability_and_nothing_else():
    """Where all scores of a bin are equal, each replaced by the bin's frequency is calibrated."""
    rng = np.random.default_rng(0)
    score = rng.choice([0.15, 0.45, 0.85], 3000)
    hit = (rng.random(3000) < score**2).astype(float)
    before = brier(score, hit, bins=10)
    after = brier(
        np.select([score == s for s in (0.15, 0.45, 0.85)], [hit[score == s].mean() for s in (0.15, 0.45, 0.85)]), hit
    )
    assert before.value - before.reliability == pytest.approx(after.value)
    assert after.reliability == pytest.approx(0, abs=1e-12)


def test_honest_probabilities_have_the_least_scores():
    _, label, _ = table_of(20_000, 3)
    values = {t: table_of(20_000, 3, temperature=t)[0] for t in (0.6, 1.0, 1.6)}
    assert brier(values[1.0], label).value < min(brier(values[t], label).value for t in (0.6, 1.6))
    assert nll(values[1.0], label) < min(nll(values[t], label) for t in (0.6, 1.6))


@pytest.mark.parametrize(
    ("work", "words"),
    [
        (lambda: brier([0.5, 1.2], [0, 1]), "score 1.2; scores are probabilities"),
        (lambda: brier([0.5, 0.2], [0, 1], bins=0), "bins=0"),
        (lambda: brier([[0.5, 0.3]], [0]), "sum to 0.8 for an input"),
        (lambda: brier([[np.nan, 0.3]], [0], logits=True), "Got nan among the scores"),
        (lambda: nll([[2.0, -1.0]], [0]), "if these are logits, pass logits=True"),
        (lambda: nll([[np.inf, -1.0]], [0], logits=True), "Got inf among the scores"),
        (lambda: nll([[0.5, 0.5]], [2]), "label 2; with 2 classes"),
        (lambda: nll([0.5, 0.5], [1, 0]), r"shape \(2,\) and labels"),
        (lambda: sharpness([[0.5, 0.6]]), "sum to 1.1"),
        (lambda: sharpness([float("nan")]), "Got nan among the scores"),
    ],
)
def test_bad_input_is_named_in_one_line(work, words):
    with pytest.raises(AssayError, match=words) as caught:
        work()
    assert "\n" not in str(caught.value)
