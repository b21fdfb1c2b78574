from __future__ import annotations

import math
from typing import get_args

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import beta, binomtest
from torch import Tensor
from torch.testing import assert_close

from assay.errors import AssayError
from assay.methods.uncertainty.conformal import (
    ScoreName,
    class_quantiles,
    conformal_quantile,
    coverage,
    fit_conformal,
    inputs_needed,
    scores,
    worst_interval,
)

RULES: list[tuple[ScoreName, bool]] = [("lac", False), ("aps", True), ("aps", False), ("raps", True), ("raps", False)]


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def drawn(n: int, c: int = 5, *, seed: int = 0, sharp: float = 2.0) -> tuple[Tensor, Tensor]:
    """Probabilities of a model that is too sure, and labels."""
    rng = seeded(seed)
    z = torch.randn(n, c, generator=rng, dtype=torch.float64)
    return (sharp * z).softmax(1), torch.multinomial(z.softmax(1), 1, generator=rng)[:, 0]


def score_as_printed(p: list[float], c: int, u: float, rule: ScoreName, penalty: float, free: int) -> float:
    if rule == "lac":
        return 1 - p[c]
    above = [j for j in range(len(p)) if p[j] > p[c]]
    s = sum(p[j] for j in above) + u * p[c]
    return s + (penalty * max(0, len(above) + 1 - free) if rule == "raps" else 0)


@settings(deadline=None, max_examples=10)
@given(seed=st.integers(0, 10_000), rule=st.sampled_from(get_args(ScoreName)), free=st.integers(0, 3))
def test_scores_are_those_of_print(seed: int, rule: ScoreName, free: int) -> None:
    p, _ = drawn(6, seed=seed)
    u = torch.rand(6, generator=seeded(seed), dtype=torch.float64)
    want = [[score_as_printed(r, c, v, rule, 0.1, free) for c in range(5)] for r, v in zip(p.tolist(), u, strict=True)]
    assert_close(scores(p, u, rule, 0.1, free), torch.tensor(want, dtype=torch.float64), rtol=0, atol=1e-12)


def test_the_quantile_is_the_corrected_rank() -> None:
    held = torch.arange(19.0)[torch.randperm(19, generator=seeded())]
    assert conformal_quantile(held, 0.1) == 17  # the 18th of 19: ceil(20 * 0.9)
    assert conformal_quantile(torch.arange(9.0), 0.1) == 8  # the largest of 9, the fewest that can promise 0.9
    for n in range(1, 400):  # no rank is lost to rounding
        if n >= 9:
            assert conformal_quantile(torch.arange(float(n)), 0.1) == math.ceil((n + 1) * 9 / 10) - 1
        if n >= 3:
            assert conformal_quantile(torch.arange(float(n)), 0.3) == math.ceil((n + 1) * 7 / 10) - 1


def test_the_plain_quantile_covers_86_percent_at_19_where_the_corrected_covers_90() -> None:
    rng = np.random.default_rng(0)
    held = rng.random((4_000, 19))  # any continuous score is uniform after its own distribution function
    plain = np.quantile(held, 0.9, axis=1).mean()  # uniform: the chance that a new score is at or below q is q
    ours = np.mean([conformal_quantile(row, 0.1) for row in torch.tensor(held)])
    assert plain == pytest.approx(0.86, abs=4e-3)  # (0.9 * 18 + 1) / 20 = 0.86 exactly
    assert ours == pytest.approx(0.90, abs=4e-3)  # 18 / 20


@pytest.mark.parametrize(("rule", "randomised"), RULES)
def test_coverage_is_exact_over_many_draws(rule: ScoreName, randomised: bool) -> None:
    rng, n, hits, draws = seeded(1), 24, 0, 250
    p, y = drawn(draws * (n + 1), seed=2)
    p, y = p.view(draws, n + 1, 5), y.view(draws, n + 1)
    for cal, labels in zip(p, y, strict=True):  # a fresh calibration set and one new input each time: independent
        fitted = fit_conformal(cal[:n], labels[:n], alpha=0.2, score=rule, randomised=randomised, rng=rng)
        hits += bool(fitted.sets(cal[n:], rng=rng)[0, labels[n]])
    exact = 20 / 25  # ceil(25 * 0.8) / 25
    at_least = randomised is False and rule != "lac"  # these tie, and ties cover more
    test = binomtest(hits, draws, exact, alternative="less" if at_least else "two-sided")
    assert test.pvalue > 1e-3, hits / draws


def test_coverage_given_the_held_out_set_is_beta() -> None:
    p, y = drawn(200, seed=3)
    new, truth = drawn(40_000, seed=4)
    found = coverage(fit_conformal(p, y, alpha=0.1).sets(new), truth).coverage
    k = math.ceil(201 * 0.9)
    assert beta.ppf(1e-4, k, 201 - k) < found < beta.ppf(1 - 1e-4, k, 201 - k)


@pytest.mark.parametrize(("rule", "randomised"), RULES)
def test_a_stricter_promise_nests_the_sets(rule: ScoreName, randomised: bool) -> None:
    p, y = drawn(500)
    new, _ = drawn(300, seed=1)
    sets = []
    for alpha in (0.3, 0.1, 0.02):
        fitted = fit_conformal(p, y, alpha=alpha, score=rule, randomised=randomised, rng=seeded())
        sets.append(fitted.sets(new, rng=seeded(7)))  # the same u
    assert (sets[0] <= sets[1]).all()
    assert (sets[1] <= sets[2]).all()
    assert sets[0].sum() < sets[2].sum()


def test_what_tells_the_rules_apart() -> None:
    rng = seeded()
    truth = torch.randint(0, 50, (4000,), generator=rng)
    z = torch.randn(4000, 50, generator=rng) + 2.5 * torch.nn.functional.one_hot(truth, 50)  # a long noisy tail
    p, new = torch.split(z.softmax(1), 2000)
    y, truth = torch.split(truth, 2000)
    found = {}
    for rule, randomised in RULES:
        fitted = fit_conformal(p, y, score=rule, randomised=randomised, penalty=0.05, free=2, rng=seeded())
        sets = fitted.sets(new, rng=seeded(1))
        found[rule, randomised] = coverage(sets, truth)
        assert 0.87 < found[rule, randomised].coverage < 0.93
        if rule != "lac" and not randomised:
            assert found[rule, randomised].empty == 0  # never empty
            ranked = sets.gather(1, new.argsort(1, descending=True)).int()
            assert (ranked.diff(dim=1) <= 0).all()  # the likeliest classes, without a gap
    assert found["lac", False].size < found["aps", True].size
    assert found["raps", True].size < found["aps", True].size


def test_without_randomness_and_with_high_accuracy_every_set_is_the_answer() -> None:
    p, y = drawn(300, sharp=40.0)
    right = p.argmax(1)
    y = torch.where(torch.arange(300) < 10, (right + 1) % 5, right)  # 97 % right
    sets = fit_conformal(p, y, score="aps", randomised=False).sets(p)
    assert (sets.sum(1) == 1).all()
    assert (sets.int().argmax(1) == right).all()


def test_coverage_counts_by_class() -> None:
    sets = torch.tensor([[1, 0, 0], [1, 1, 0], [0, 0, 0], [0, 1, 1]], dtype=torch.bool)
    found = coverage(sets, torch.tensor([0, 0, 2, 2]))
    assert (found.coverage, found.size, found.empty) == (0.75, 1.25, 0.25)
    assert found.classes.tolist() == [0, 2]  # class 1 does not occur, and gets no made-up number
    assert found.class_inputs.tolist() == [2, 2]
    assert found.class_coverage.tolist() == [1.0, 0.5]
    assert found.class_size.tolist() == [1.5, 1.0]
    assert coverage(sets, torch.zeros(4, dtype=torch.long)).coverage == 0.5  # one class only can be evaluated


def test_cutting_into_pieces_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    p, y = drawn(101)
    whole = fit_conformal(p, y, score="raps", rng=seeded())
    monkeypatch.setattr("assay.methods.uncertainty.conformal.CELLS", 35)
    cut = fit_conformal(p, y, score="raps", rng=seeded())
    assert whole == cut
    pieces = cut.sets(p, rng=seeded(1))
    monkeypatch.undo()
    assert (whole.sets(p, rng=seeded(1)) == pieces).all()
    assert not (whole.sets(p, rng=seeded(1)) == whole.sets(p, rng=seeded(2))).all()


def test_bad_input_gets_one_line() -> None:
    p, y = drawn(8)
    with pytest.raises(AssayError, match="8 held-out inputs are too few to promise 0.9 coverage; it takes at least 9"):
        fit_conformal(p, y, alpha=0.1)
    with pytest.raises(AssayError, match="at least 99"):
        fit_conformal(p, y, alpha=0.01)
    with pytest.raises(AssayError, match="Row 0 holds no probabilities: sum .*softmax"):
        fit_conformal(p.log(), y)
    with pytest.raises(AssayError, match="Row 3 holds no probabilities: sum nan"):
        fit_conformal(p.index_fill(0, torch.tensor(3), math.nan), y)
    with pytest.raises(AssayError, match="All 8 held-out labels are of class 0"):
        fit_conformal(p, 0 * y, alpha=0.3)
    with pytest.raises(AssayError, match="alpha=90"):
        fit_conformal(p, y, alpha=90)
    with pytest.raises(AssayError, match="need rng"):
        fit_conformal(p, y, alpha=0.3, score="aps")
    with pytest.raises(AssayError, match="no conformal score 'thr'"):
        fit_conformal(p, y, score="thr")  # type: ignore[arg-type]
    with pytest.raises(AssayError, match="penalty=-1"):
        fit_conformal(p, y, score="raps", penalty=-1)


def test_per_class_each_threshold_is_the_corrected_rank_of_its_own_class() -> None:
    p, y = drawn(300)
    rule = fit_conformal(p, y, alpha=0.2, per_class=True)
    for c in range(5):
        own = sorted(1 - p[i, c].item() for i in range(300) if y[i] == c)
        assert float(rule.quantile[c]) == pytest.approx(own[math.ceil((len(own) + 1) * 8 / 10) - 1])
    sets = rule.sets(p)
    assert torch.equal(sets, 1 - p <= rule.quantile)
    assert (coverage(sets, y).class_coverage >= 0.8).all()  # on what it was fitted on, exactly


@pytest.mark.parametrize(("score", "randomised"), RULES)
def test_per_class_the_promise_is_kept_in_each_class_where_one_threshold_breaks_it(
    score: ScoreName, randomised: bool
) -> None:
    def uneven(n: int, seed: int) -> tuple[Tensor, Tensor]:
        rng = seeded(seed)
        y = torch.randint(0, 3, (n,), generator=rng)
        z = 2.0 * torch.nn.functional.one_hot(y, 3) + torch.randn(n, 3, generator=rng)
        z[y == 2, 2] -= 2.0  # class 2 is the hard one
        return (2 * z.double()).softmax(1), y

    p, y = uneven(3000, 0)
    q, truth = uneven(6000, 1)
    one, each = (
        coverage(
            fit_conformal(p, y, score=score, randomised=randomised, per_class=per_class, rng=seeded()).sets(
                q, rng=seeded(2)
            ),
            truth,
        )
        for per_class in (False, True)
    )
    assert one.class_coverage.min() < 0.85
    assert (each.class_coverage > 0.87).all()
    if randomised or score == "lac":
        assert (each.class_coverage < 0.93).all()


def test_a_class_with_too_few_inputs_is_in_every_set() -> None:
    assert [inputs_needed(a) for a in (0.1, 0.05, 0.3, 0.5)] == [9, 19, 3, 1]
    own, y = torch.linspace(0, 1, 20), torch.tensor([0] * 9 + [1] * 8 + [2] * 3)
    q = class_quantiles(own, y, 0.1, classes=4)
    assert q.tolist() == [pytest.approx(float(own[8])), math.inf, math.inf, math.inf]


def test_the_interval_of_the_worst_of_many_holds_the_least_and_that_of_one_is_exact() -> None:
    low, high = worst_interval([45], [50])
    exact = binomtest(45, 50).proportion_ci(method="exact")
    assert (low, high) == pytest.approx((exact.low, exact.high))
    rng, held, naive = np.random.default_rng(0), 0, 0
    for _ in range(150):
        hits = rng.binomial(40, 0.9, size=20)
        low, high = worst_interval(hits.tolist(), [40] * 20)
        held += low <= 0.9 <= high
        worst = binomtest(int(hits.min()), 40).proportion_ci(method="exact")
        naive += worst.low <= 0.9 <= worst.high
        assert low <= hits.min() / 40 <= high
    assert held >= 142
    assert naive < 142  # the interval of the lowest alone is too low
    assert worst_interval([0, 5], [5, 5])[0] == 0
    with pytest.raises(AssayError, match="give 0 to n hits"):
        worst_interval([6], [5])
