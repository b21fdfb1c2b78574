"""The tests of a study against scipy, against their formulas written out, and against what they must not see."""

from __future__ import annotations

import math
from itertools import combinations, permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from assay.errors import AssayError, ShapeError
from assay.methods.study.comparisons import (
    bonferroni,
    holm,
    kruskal_wallis,
    levene,
    mann_whitney,
    p_of_levene,
    permuted,
    spearman,
)
from assay.methods.study.effort import band, best_so_far, chance_not_above, expected_best, tries_to_reach
from assay.methods.study.experience import group
from assay.methods.study.person import person_share

values = st.lists(st.sampled_from([0.1, 0.2, 0.25, 0.4, 0.55, 0.7, 0.9]), min_size=9, max_size=20)


def levene_written_out(*groups):
    """One-way analysis of variance of |x - median of its group|, in plain Python."""
    far = [[abs(x - float(np.median(g))) for x in g] for g in groups]
    n, k = sum(map(len, far)), len(far)
    whole = sum(map(sum, far)) / n
    between = sum(len(f) * (sum(f) / len(f) - whole) ** 2 for f in far) / (k - 1)
    within = sum((x - sum(f) / len(f)) ** 2 for f in far for x in f) / (n - k)
    return between / within


def spearman_written_out(x, y):
    def ranks(v):
        return [sum(b < a for b in v) + (sum(b == a for b in v) + 1) / 2 for a in v]

    a, b = ranks(x), ranks(y)
    ma, mb = sum(a) / len(a), sum(b) / len(b)
    top = sum((p - ma) * (q - mb) for p, q in zip(a, b, strict=True))
    return top / math.sqrt(sum((p - ma) ** 2 for p in a) * sum((q - mb) ** 2 for q in b))


@settings(deadline=None, max_examples=40)
@given(values, values, st.randoms(use_true_random=False))
def test_the_four_tests_are_those_of_scipy(first, second, rnd):
    rng = np.random.default_rng(rnd.randrange(10**6))
    x, y = np.array(first) + 1e-3 * rng.random(len(first)), np.array(second) + 1e-3 * rng.random(len(second))
    found, wanted = levene(x, y), stats.levene(x, y)
    assert found.statistic == pytest.approx(wanted.statistic)
    assert found.p == pytest.approx(wanted.pvalue)
    assert found.statistic == pytest.approx(levene_written_out(list(x), list(y)))
    assert found.p == pytest.approx(p_of_levene(found.statistic, (len(x), len(y))))
    level = mann_whitney(x, y)
    assert level.p == pytest.approx(stats.mannwhitneyu(x, y, alternative="two-sided").pvalue)
    above = np.mean([(b > a) + (a == b) / 2 for a in x for b in y])
    assert level.effect == pytest.approx(above)
    several = kruskal_wallis(x, y, x[:3])
    assert several.p == pytest.approx(stats.kruskal(x, y, x[:3]).pvalue)
    n = min(len(x), len(y))
    order = spearman(x[:n], y[:n])
    assert order.effect == pytest.approx(spearman_written_out(list(x[:n]), list(y[:n])))
    assert order.p == pytest.approx(stats.spearmanr(x[:n], y[:n]).pvalue)


def test_of_few_cases_all_orders_are_looked_at():
    x, y = [1.0, 2, 3, 4, 5], [0.2, 0.1, 0.4, 0.3, 0.5]
    at_least = [
        abs(spearman_written_out(x, list(o))) >= abs(spearman_written_out(x, y)) - 1e-9 for o in permutations(y)
    ]
    assert spearman(x, y).p == pytest.approx(np.mean(at_least))
    assert spearman([1, 2, 3], [1, 2, 3]).p == pytest.approx(1 / 3)  # by the t distribution 0


def test_levene_is_no_test_of_level_and_mann_whitney_is_none_of_spread():
    rng = np.random.default_rng(0)
    low = rng.normal(0.5, 0.05, 40)
    assert levene(low, low + 0.3).statistic == pytest.approx(0.0, abs=1e-20)
    assert levene(low, low + 0.3).p == pytest.approx(1.0)
    assert mann_whitney(low, low + 0.3).p < 1e-6
    assert mann_whitney(low, low + 0.3).effect > 0.95
    wide = 0.5 + 4 * (low - 0.5)  # the same middle, four times as far apart
    assert levene(low, wide).p < 1e-6
    assert mann_whitney(low, wide).p > 0.5
    assert "nothing of which is higher" in levene(low, wide).asks
    assert (levene(low, wide).compares, mann_whitney(low, wide).compares) == ("spread", "level")


@settings(deadline=None, max_examples=30)
@given(values, values, st.floats(-3, 3, allow_nan=False))
def test_a_shift_of_one_group_leaves_levene_as_it_is(first, second, shift):
    here, there = levene(first, second), levene(first, np.array(second) + shift)
    if here.statistic is None or there.statistic is None:
        assert here.statistic == there.statistic
    else:
        assert there.statistic == pytest.approx(here.statistic, rel=1e-6, abs=1e-9)


def test_printed_statistics_and_p_values_belong_together():
    printed = {(8, 12): (8.40, 0.01), (8, 11): (14.338, 0.001), (12, 11): (5.52, 0.029)}
    found = [p_of_levene(w, sizes) for sizes, (w, _) in printed.items()]
    assert np.allclose(found, [p for _, p in printed.values()], atol=6e-4)
    assert bonferroni(found)[2] > 0.05  # medium and expert
    assert holm(found)[2] < 0.05


@settings(deadline=None)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_corrections_are_ordered_and_holm_is_what_it_is_by_definition(p):
    plain, strict = holm(p), bonferroni(p)
    assert all(a <= h <= b + 1e-12 for a, h, b in zip(p, plain, strict, strict=True))
    order = sorted(range(len(p)), key=lambda i: p[i])
    for at, i in enumerate(order):
        wanted = max(min(1.0, (len(p) - j) * p[order[j]]) for j in range(at + 1))
        assert plain[i] == pytest.approx(wanted)


def test_what_does_not_exist_is_none_and_is_not_counted():
    assert spearman([0, 0, 0], [1, 2, 3]).p is None
    assert "equal" in spearman([0, 0, 0], [1, 2, 3]).why
    assert spearman([1], [1]).why == "1 value is too few; it takes 3."
    assert levene([0.5, 0.5], [0.5, 0.5, 0.5]).p is None
    assert levene([0.1, 0.9], [0.2, 0.4]).statistic is None  # two lie equally far from their median: F divides by 0
    assert levene([0.1], [0.2, 0.4]).p is None
    assert mann_whitney([0.5], [0.5, 0.5]).effect == 0.5
    assert mann_whitney([], [0.5]).p is None
    assert kruskal_wallis([0.5], [0.5], [0.5]).p is None
    assert bonferroni([None, 0.01, 0.02]) == [None, 0.02, 0.04]
    assert holm([None, 0.01, 0.02]) == [None, 0.02, 0.02]


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        (lambda: spearman([1, 2], [1]), "2 and 1 values"),
        (lambda: levene([1.0, math.nan], [1.0]), "no numbers"),
        (lambda: levene([1.0, 2.0]), "got 1; give two"),
        (lambda: expected_best([0.1, 0.2], 3), "best of 3 cannot be taken from 2"),
        (lambda: expected_best([0.1, math.nan], 1), "no number"),
        (lambda: person_share([[0.5]]), "two or more seeds"),
        (lambda: group(-1), "-1 months"),
        (lambda: group(math.nan), "nan months"),
    ],
)
def test_what_is_wrong_is_said(broken, says):
    with pytest.raises((AssayError, ShapeError), match=says):
        broken()


def test_labels_dealt_out_anew_have_no_correlation():
    rng = np.random.default_rng(1)
    months, heights = np.arange(30.0), np.sort(rng.random(30))
    assert spearman(months, heights).effect == pytest.approx(1.0)
    dealt = permuted(months, heights, rng, 4000)
    assert abs(dealt.mean()) < 0.02
    assert dealt.std() == pytest.approx(1 / math.sqrt(29), rel=0.05)  # of ranks without ties
    assert len(permuted([1, 1, 1], [1, 2, 3], rng)) == 0


@pytest.mark.parametrize("n", [1, 2, 3, 5, 6])
def test_the_expected_best_is_the_mean_over_all_choices(n):
    tried = [0.1, 0.5, 0.5, 0.2, 0.9, 0.3]
    best = [max(few) for few in combinations(tried, n)]
    assert expected_best(tried, n) == pytest.approx(np.mean(best))
    for height in (0.0, 0.3, 0.5, 0.9):
        assert chance_not_above(tried, height, n) == pytest.approx(np.mean([b <= height for b in best]))


def test_the_expected_best_of_uniform_draws_is_known_and_takes_many():
    even = (np.arange(2000) + 0.5) / 2000
    assert expected_best(even, 1) == pytest.approx(0.5)
    assert expected_best(even, 9) == pytest.approx(9 / 10, abs=1e-3)  # n / (n + 1)
    assert expected_best(even, 1500) == pytest.approx(1500 / 1501, abs=1e-3)


def test_best_so_far_keeps_what_was_reached_and_a_stopped_try_reaches_nothing():
    assert best_so_far([None, 0.2, 0.1, None, 0.6]).tolist()[1:] == [0.2, 0.2, 0.2, 0.6]
    assert math.isnan(best_so_far([None, 0.2])[0])
    assert len(best_so_far([])) == 0
    assert tries_to_reach([None, 0.2, 0.5], 0.5) == 3
    assert tries_to_reach([0.1], 0.5) is None


def test_a_band_is_over_everybody_and_as_published_over_those_who_went_on():
    people = [[0.8], [0.2, 0.4, 0.6]]
    whole = band(people)
    assert whole.mean.tolist() == pytest.approx([0.5, 0.6, 0.7])
    assert whole.n.tolist() == [2, 2, 2]
    assert whole.error[0] == pytest.approx(np.std([0.8, 0.2], ddof=1) / math.sqrt(2))
    assert (np.diff(whole.mean) >= 0).all()
    printed = band(people, as_published=True)
    assert printed.mean.tolist() == pytest.approx([0.5, 0.4, 0.6])  # falls, though nobody's best does
    assert printed.n.tolist() == [2, 1, 1]
    assert np.isnan(printed.error[1:]).all()
    assert len(band([]).mean) == 0


def test_exactly_nine_months_are_an_expert_and_as_published_nobody():
    assert [group(m) for m in (0, 0.5, 8.99, 9, 60)] == ["novice", "medium", "medium", "expert", "expert"]
    assert group(9, as_published=True) is None
    assert group(12, cut=24) == "medium"


def test_the_share_of_the_person_is_what_it_was_made_of():
    rng = np.random.default_rng(0)
    for share in (0.0, 0.5, 0.9):
        person = rng.normal(0, math.sqrt(share), (400, 1))
        results = person + rng.normal(0, math.sqrt(1 - share), (400, 10))
        found = person_share(results)
        assert found.low < share < found.high
        assert found.value == pytest.approx(share, abs=0.06)
        again = person_share(70 - 3 * results)  # other units, turned round
        assert again.value == pytest.approx(found.value)
        assert again.within == pytest.approx(3 * found.within)


def test_the_share_at_its_ends():
    assert person_share([[0.5, 0.5], [0.5, 0.5]]).value is None
    assert person_share([[0.5, 0.5], [0.7, 0.7]]).value == 1.0
    assert person_share([[0.4, 0.6], [0.6, 0.4]]).value == pytest.approx(-1.0)


def test_the_share_is_the_intraclass_correlation_by_its_sums():
    x = [[0.9, 0.8, 0.85], [0.5, 0.6, 0.4], [0.7, 0.75, 0.9]]
    means, whole = [sum(r) / 3 for r in x], sum(map(sum, x)) / 9
    msb = 3 * sum((m - whole) ** 2 for m in means) / 2
    msw = sum((v - m) ** 2 for r, m in zip(x, means, strict=True) for v in r) / 6
    assert person_share(x).value == pytest.approx((msb - msw) / (msb + 2 * msw))
