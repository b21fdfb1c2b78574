"""Rates by group and their gaps: fairlearn's numbers, brute force, intervals that hold, a null that is one."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import ks_2samp, kstest, multivariate_hypergeom, norm

from assay.errors import AssayError, ShapeError
from assay.finding import wilson
from assay.methods.fair import groups as module
from assay.methods.fair.entropy import decomposed, generalised_entropy
from assay.methods.fair.groups import (
    Tally,
    _drawn,
    chance_gaps,
    counted,
    crossed,
    entropy_parts,
    lowest,
    p_value,
    rates,
    ratio,
    shuffled,
    spread,
    widest,
    widest_means,
    wilson_bounds,
)


def people(n=600, many=3, classes=2, seed=0, bias=0.1):
    rng = np.random.default_rng(seed)
    g, y = rng.integers(0, many, n), rng.integers(0, classes, n)
    said = np.where(rng.random(n) < 0.6 + bias * g / many, y, rng.integers(0, classes, n))
    return g, y, said


def test_a_table_counts_everyone_of_a_known_group_once():
    g, y, said = people(50)
    g[:7] = -1
    table = counted(g, y, said, sizes=(3, 2))
    for a in range(3):
        for b in range(2):
            for c in range(2):
                assert table[a, b, c] == sum((g == a) & (y == b) & (said == c))
    with pytest.raises(ShapeError, match="give one each"):
        counted(g, y[:3], said, sizes=(3, 2))


@pytest.mark.parametrize("groups", [2, 4])
def test_the_gaps_are_fairlearns(groups):
    metrics = pytest.importorskip("fairlearn.metrics")
    from sklearn.metrics import accuracy_score

    g, y, said = people(400, groups, seed=groups)
    seen = rates(counted(g, y, said, sizes=(groups, 2)), (1,))
    told = {"sensitive_features": g}
    frame = metrics.MetricFrame(
        metrics={
            "selection": metrics.selection_rate,
            "accuracy": accuracy_score,
            "true_positive": metrics.true_positive_rate,
            "false_positive": metrics.false_positive_rate,
        },
        y_true=y,
        y_pred=said,
        **told,
    )
    for name in ("selection", "accuracy", "true_positive", "false_positive"):
        np.testing.assert_allclose(getattr(seen, name).rate[0], frame.by_group[name].to_numpy(dtype=float))
    parity, odds = widest([seen.selection]), widest([seen.true_positive, seen.false_positive])
    fourths = ratio(seen.selection)
    assert parity is not None
    assert odds is not None
    assert fourths is not None
    assert parity.value == pytest.approx(metrics.demographic_parity_difference(y, said, **told))
    assert odds.value == pytest.approx(metrics.equalized_odds_difference(y, said, **told))
    assert fourths[0] == pytest.approx(metrics.demographic_parity_ratio(y, said, **told))
    assert spread(seen.selection, seen.selection.enough()) == pytest.approx(parity.value)


def test_of_several_classes_each_is_told_against_all_others():
    g, y, said = people(800, 3, classes=4)
    table = counted(g, y, said, sizes=(3, 4))
    every = rates(table, range(4))
    for c in range(4):
        alone = rates(counted(g, y == c, said == c, sizes=(3, 2)), (1,))
        for name in ("selection", "true_positive", "false_positive"):
            np.testing.assert_allclose(getattr(every, name).rate[c], getattr(alone, name).rate[0])
    assert every.accuracy.rate.shape == (1, 3)
    np.testing.assert_allclose(every.accuracy.rate[0], [(said == y)[g == k].mean() for k in range(3)])


def test_one_pair_has_newcombes_interval_and_many_have_a_wider_one():
    # Newcombe 1998, table II, (a) 56/70 - 48/80 by method 10: 0.0524 to 0.3339
    two = widest([Tally(np.array([[56.0, 48.0]]), np.array([[70.0, 80.0]]))])
    assert two is not None
    assert (two.low, two.high) == (pytest.approx(0.0524, abs=5e-5), pytest.approx(0.3339, abs=5e-5))
    assert (two.above, two.below) == (0, 1)
    turned = widest([Tally(np.array([[48.0, 56.0]]), np.array([[80.0, 70.0]]))])  # whoever comes first
    assert turned is not None
    assert (turned.low, turned.high) == (pytest.approx(two.low), pytest.approx(two.high))
    assert (turned.above, turned.below) == (1, 0)
    more = widest([Tally(np.array([[56.0, 48.0, 52.0]]), np.array([[70.0, 80.0, 80.0]]))])
    assert more is not None
    assert more.value == two.value
    assert more.low < two.low
    assert more.high > two.high
    for hits, n in ((0, 40), (7, 40), (40, 40)):
        np.testing.assert_allclose(wilson_bounds(hits, n, norm.ppf(0.975)), wilson(hits, n), atol=1e-12)


def test_the_interval_of_the_largest_gap_holds_where_the_naive_one_does_not():
    rng, truth, n = np.random.default_rng(0), 0.0, 200
    held = naive = 0
    for _ in range(200):
        tally = Tally(rng.binomial(n, 0.5, (1, 6)).astype(float), np.full((1, 6), float(n)))
        gap = widest([tally])
        assert gap is not None
        held += gap.low <= truth <= gap.high
        pair = [gap.above, gap.below]
        alone = widest([Tally(tally.hits[:, pair], tally.total[:, pair])])
        assert alone is not None
        naive += alone.low <= truth <= alone.high
    assert held >= 185  # 95 % of 200, less three standard deviations
    assert naive < 150  # chosen as the largest, a plain interval misses far too often


@pytest.mark.parametrize("true", [(0.5, 0.5, 0.7), (0.9, 0.95, 0.8)])
def test_intervals_of_the_largest_gap_the_ratio_and_the_worst_hold_where_there_is_bias(true):
    rng, p, n = np.random.default_rng(1), np.array(true), 300
    held = np.zeros(3)
    for _ in range(150):
        tally = Tally(rng.binomial(n, p)[None].astype(float), np.full((1, 3), float(n)))
        gap, least, worst = widest([tally]), ratio(tally), lowest(tally)
        assert gap is not None
        assert least is not None
        assert worst is not None
        held += [
            gap.low <= np.ptp(p) <= gap.high,
            least[1] <= p.min() / p.max() <= least[2],
            worst.low <= p.min() <= worst.high,
        ]
    assert (held >= 134).all()  # 95 % of 150, less three standard deviations


def test_the_ratio_and_the_worst_have_the_intervals_that_hold_for_all_groups_at_once():
    tally = Tally(np.array([[50.0, 20.0, 90.0]]), np.full((1, 3), 100.0))
    low, high = wilson_bounds(tally.hits[0], tally.total[0], norm.ppf(1 - 0.05 / 6))
    assert ratio(tally) == pytest.approx((2 / 9, low[1] / high[2], high[1] / low[2]))
    worst = lowest(tally)
    assert worst is not None
    assert (worst.group, *worst[1:]) == (1, *map(pytest.approx, (0.2, low[1], high[1])))


def test_small_groups_are_in_no_gap_and_one_that_lacks_a_class_has_no_rate():
    tally = Tally(np.array([[30.0, 10.0, 0.0]]), np.array([[60.0, 60.0, 29.0]]))
    gap, worst = widest([tally]), lowest(tally)
    assert gap is not None
    assert gap.value == pytest.approx(1 / 3)
    assert worst is not None
    assert worst.group == 1
    empty = Tally(np.array([[30.0, 0.0]]), np.array([[60.0, 0.0]]))
    assert widest([empty]) is None
    assert ratio(empty) is None
    assert np.isnan(empty.rate[0, 1])
    assert np.isnan(spread(empty, empty.enough()))
    assert lowest(Tally(np.zeros((1, 2)), np.full((1, 2), 29.0))) is None


def test_crossing_gives_each_combination_its_own_code():
    a, b = np.array([0, 1, 1, -1, 0]), np.array([2, 0, 2, 1, -1])
    assert crossed([a, b], [2, 3]).tolist() == [2, 3, 5, -1, -1]
    assert crossed([a], [2]).tolist() == a.tolist()
    with pytest.raises(ShapeError, match="one size for each"):
        crossed([a, b], [2])


def test_the_null_keeps_every_margin_and_is_the_law_of_a_permutation():
    g, y, said = people(90, 3, classes=3, seed=3)
    table, rng = counted(g, y, said, sizes=(3, 3)), np.random.default_rng(0)
    within, whole = (shuffled(table, 50, rng, within=w) for w in (True, False))
    np.testing.assert_array_equal(within.sum(3), np.broadcast_to(table.sum(2), (50, 3, 3)))  # group and label
    np.testing.assert_array_equal(within.sum(1), np.broadcast_to(table.sum(0), (50, 3, 3)))  # label and answer
    np.testing.assert_array_equal(whole.sum((2, 3)), np.broadcast_to(table.sum((1, 2)), (50, 3)))
    np.testing.assert_array_equal(whole.sum(1), np.broadcast_to(table.sum(0), (50, 3, 3)))
    small = np.zeros((3, 2, 2))
    small[:, 0, 0], small[:, 0, 1] = (3, 2, 1), (1, 1, 3)
    drawn = shuffled(small, 20_000, rng, within=True)[:, :, 0, 1].astype(int)
    law = multivariate_hypergeom(m=small.sum((1, 2)).astype(int), n=5)
    for cell in ((1, 1, 3), (2, 2, 1), (4, 1, 0)):
        seen = (drawn == cell).all(1).mean()
        assert seen == pytest.approx(law.pmf(cell), abs=4 * np.sqrt(law.pmf(cell) / 20_000))
    with pytest.raises(AssayError, match="at least 1"):
        shuffled(table, 0, rng, within=True)


def test_of_many_classes_rows_are_shuffled_to_the_same_law(monkeypatch):
    g, y, said = people(300, 3, classes=4, seed=5)
    table = counted(g, y, said, sizes=(3, 4))
    by_cells = chance_gaps(table, range(4), 1500, np.random.default_rng(0))
    monkeypatch.setattr(module, "FEW", 0)
    monkeypatch.setattr(module, "DEAR", np.inf)
    monkeypatch.setattr(module, "AT_ONCE", 300 * 400)  # in pieces
    by_rows = chance_gaps(table, range(4), 1500, np.random.default_rng(1))
    for cells, rows in zip(by_cells, by_rows, strict=True):
        assert rows.shape == (1500,)
        assert ks_2samp(cells, rows).pvalue > 0.01
    for within in (True, False):
        selection, true, false = next(_drawn(table, range(4), 7, np.random.default_rng(2), within=within))
        np.testing.assert_array_equal(selection.hits.sum(2), np.broadcast_to(table.sum((0, 1)), (7, 4)))
        np.testing.assert_array_equal(true.total.sum(2), np.broadcast_to(table.sum((0, 2)), (7, 4)))
        np.testing.assert_array_equal(true.hits + false.hits, selection.hits)
        assert within == bool((true.total == table.sum(2).T).all())


def test_the_null_of_many_classes_fits_in_memory():
    rng = np.random.default_rng(0)
    table = counted(rng.integers(0, 3, 500), rng.integers(0, 100, 500), rng.integers(0, 100, 500), sizes=(3, 100))
    tracemalloc.start()
    chance_gaps(table, range(100), 200, rng)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 2e7  # the tables would take 4.8e7


def test_without_bias_p_values_are_uniform_and_with_it_they_are_small():
    rng, found = np.random.default_rng(4), []
    for _ in range(200):
        g, y = rng.integers(0, 3, 600), rng.integers(0, 2, 600)
        said = (rng.random(600) < 0.3 + 0.4 * y).astype(int)  # hangs on the label alone
        table = counted(g, y, said, sizes=(3, 2))
        seen = rates(table, (1,))
        null = rates(shuffled(table, 99, rng, within=True), (1,))
        enough = seen.true_positive.enough()
        found.append(p_value(spread(null.true_positive, enough), float(spread(seen.true_positive, enough))))
    assert kstest(found, "uniform").pvalue > 0.01
    assert p_value(np.zeros(99), 0.5) == 0.01
    assert p_value([0.5, 0.5, 0.1], 0.5) == 0.75  # as much is not less


benefits = st.lists(st.tuples(st.floats(0, 1), st.booleans(), st.integers(0, 3)), min_size=2, max_size=40)


@settings(deadline=None, max_examples=60)
@given(benefits)
def test_the_weighted_parts_are_those_of_the_decomposition_and_add_up(rows):
    score, label, group = (np.array(part) for part in zip(*rows, strict=True))
    b = score - label + 1
    if b.sum() < 1e-3:
        return
    within, between = entropy_parts(b, group, np.ones((1, len(b))))
    parts = decomposed(torch.from_numpy(b), torch.from_numpy(group))
    np.testing.assert_allclose([within[0], between[0]], [float(p) for p in parts], atol=1e-6, rtol=1e-6)
    whole = float(generalised_entropy(torch.from_numpy(b)))
    np.testing.assert_allclose(within[0] + between[0], whole, atol=1e-6, rtol=1e-6)


def test_weights_are_rows_that_come_so_many_times_and_unknown_groups_are_left_out():
    rng = np.random.default_rng(0)
    b, group, weights = rng.random(30) + 0.5, rng.integers(0, 3, 30), rng.integers(0, 3, (5, 30)).astype(float)
    found = entropy_parts(b, group, weights)
    for i, w in enumerate(weights.astype(int)):
        again = entropy_parts(np.repeat(b, w), np.repeat(group, w), np.ones((1, w.sum())))
        np.testing.assert_allclose([part[i] for part in found], [part[0] for part in again], atol=1e-12)
    some = np.where(np.arange(30) < 10, -1, group)
    known = entropy_parts(b[10:], group[10:], np.ones((1, 20)))
    np.testing.assert_allclose(entropy_parts(b, some, np.ones((1, 30))), known)


def test_gaps_of_means_are_welchs_for_two_groups():
    rng = np.random.default_rng(5)
    v, g = rng.normal(size=200), np.repeat([0, 1], [120, 80])
    v[:120] += 1.0
    gap = widest_means([v], [g])
    assert gap is not None
    a, b = v[:120], v[120:]
    half = norm.ppf(0.975) * np.sqrt(a.var(ddof=1) / 120 + b.var(ddof=1) / 80)
    np.testing.assert_allclose([gap.value, gap.low, gap.high], (a.mean() - b.mean()) + np.array([0, -half, half]))
    assert (gap.above, gap.below) == (0, 1)
    third = np.repeat([0, 1, 2], [120, 40, 40])
    three = widest_means([v], [third])  # three pairs, and each interval wider for it
    assert three is not None
    pairs = [(v[third == i], v[third == j]) for i, j in ((0, 1), (0, 2), (1, 2))]
    spans = [norm.ppf(1 - 0.05 / 6) * np.sqrt(a.var(ddof=1) / len(a) + b.var(ddof=1) / len(b)) for a, b in pairs]
    gaps = [abs(a.mean() - b.mean()) for a, b in pairs]
    np.testing.assert_allclose([three.low, three.high], [np.subtract(gaps, spans).max(), np.add(gaps, spans).max()])
    assert widest_means([v], [np.where(np.arange(200) < 20, 1, 0)]) is None
