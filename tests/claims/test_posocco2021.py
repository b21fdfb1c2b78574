from __future__ import annotations

import numpy as np
import pytest

from assay.claims import posocco2021
from assay.methods.uncertainty.calibration import Rule
from assay.methods.uncertainty.estimator_bench import RULES, Trust, bench, called, mixtures


@pytest.fixture
def tiny(monkeypatch):
    for name, value in {
        "CLASSES": (2, 3),
        "MODELS": ("logistic", "naive bayes"),
        "DIMS": (2,),
        "INPUTS": 1000,
        "SIZES": {"confidence": (30, 60), "class-wise": (30, 120)},
        "SETS": {"confidence": 10, "class-wise": 5},
        "POINTS": 50_000,
        "BINS": 200,
        "CALIBRATED": 2000,
        "REPEATS": 1,
        "ALL_TRAININGS": 1,
        "ALL_SIZES": (30, 60),
    }.items():
        monkeypatch.setattr(posocco2021, name, value)
    posocco2021._laws.cache_clear()
    posocco2021._benched.cache_clear()
    yield
    posocco2021._laws.cache_clear()
    posocco2021._benched.cache_clear()


def test_every_study_runs_small_and_says_what_it_measured(tiny, run):
    for claim in posocco2021.SHELVED:
        evidence = claim.test(run)
        assert evidence.verdict in ("holds", "fails", "cannot tell")
        assert evidence.says.endswith(".")
        names = {m.name: m for m in evidence.measures}
        assert len(names) == len(evidence.measures)
        assert all(names[p.measured].unit == p.unit for p in claim.published)
        assert all(m.low <= m.value <= m.high for m in evidence.measures if "weight" not in m.name)
    assert posocco2021._laws.cache_info().misses == 1  # all are about the same models
    assert posocco2021._benched.cache_info().misses == 2  # and sets, of either kind


def test_print_is_refuted_where_it_contradicts_itself(tiny, run):
    values = {m.name: m.value for m in posocco2021.linear_binning(run).measures}
    assert values["weight at the centre, printed"] == pytest.approx(0, abs=1e-6)
    assert values["weight at the centre, linear binning"] == pytest.approx(1, abs=1e-6)
    evidence = posocco2021.reference_floor(run)
    floor, theory, _ = (m.value for m in evidence.measures)
    assert evidence.verdict == "cannot tell"  # how near the truth it is, print does not say
    assert floor == pytest.approx(theory, rel=0.1)


def made(**factors):
    """Trusts on 40 laws in which each rule's error is the law's own times a factor, 2 if none is named."""
    law = np.random.default_rng(0).uniform(0.05, 0.1, 40)
    wobble = np.random.default_rng(1).uniform(0.99, 1.01, (len(RULES), 40))
    trusts = []
    for rule, noise in zip(RULES, wobble, strict=True):
        error = law * noise * factors.get(f"{rule.estimator}_{rule.bins}".replace("-", "_"), 2.0)
        trusts.append(Trust(rule, law, error, error / law, error))
    return tuple(sorted(trusts, key=lambda t: np.median(t.absolute)))


@pytest.mark.parametrize(
    ("study", "factors", "verdict"),
    [
        ("density_is_best", {"kde_None": 1.0}, "holds"),
        ("density_is_best", {"kde_None": 1.0, "convex_sqrt": 1.01}, "holds"),
        ("density_is_best", {"convex_sqrt": 0.5}, "fails"),
        ("convex_helps", {"convex_sqrt": 1.0, "adaptive_convex_sqrt": 1.5, "adaptive_sqrt": 3.0}, "holds"),
        ("convex_helps", {"convex_sqrt": 3.0, "adaptive_convex_sqrt": 1.5, "adaptive_sqrt": 3.0}, "fails"),
        ("convex_helps", {"convex_sqrt": 1.0, "adaptive_convex_sqrt": 1.5}, "cannot tell"),
        ("class_wise_choice", {"adaptive_convex_sqrt": 1.0, "adaptive_convex_10": 1.0}, "holds"),
        ("class_wise_choice", {"kde_None": 1.0}, "fails"),
        ("class_wise_choice", {"adaptive_convex_10": 1.0}, "fails"),  # best of many inputs, and not of few
        ("class_wise_choice", {"adaptive_convex_sqrt": 1.0, "adaptive_convex_10": 1.05}, "cannot tell"),
        ("ten_percent", {}, "holds"),
        ("ten_percent", {"kde_None": 0.3}, "cannot tell"),
        ("ten_percent", {"adaptive_30": 4.0}, "cannot tell"),  # how near is around, print does not say
    ],
)
def test_the_verdict_follows_the_errors(monkeypatch, run, study, factors, verdict):
    monkeypatch.setattr(
        posocco2021, "_benched", lambda kind, seed: dict.fromkeys(posocco2021.SIZES[kind], made(**factors))
    )
    assert getattr(posocco2021, study)(run).verdict == verdict


def test_rules_have_names_that_tell_them_apart():
    reverse = Rule("convex", "sqrt", as_published=True)
    assert len({called(r) for r in (*RULES, reverse)}) == 16
    assert called(Rule()) == "legacy, 15 bins"


def test_laws_asked_side_by_side_are_those_one_after_the_other(tiny, run):
    found = posocco2021._benched_by_law(run)
    laws = mixtures(classes=(2, 3), dims=(2,), models=posocco2021.MODELS, inputs=1000, seed=run.seed)
    for at, law in enumerate(laws):
        for trust in bench([law], 60, sets=10, seed=run.seed + at):
            side = posocco2021._of(found[60], trust.rule)
            for one, other in zip(trust[1:], side[1:], strict=True):
                np.testing.assert_array_equal(one[0], other[at])
    for n in (30, 60):
        assert {t.rule for t in found[n]} == set(RULES)
        assert all(t.absolute.shape == t.truth.shape == (4,) for t in found[n])  # two mixtures, two models
        assert [np.median(t.absolute) for t in found[n]] == sorted(np.median(t.absolute) for t in found[n])


def test_intervals_are_over_mixtures_and_not_over_models():
    """Laws of one mixture that are all alike say no more than one law of each."""
    mixture = np.random.default_rng(0).uniform(1, 2, 12)
    alike, one = (posocco2021._median("m", np.repeat(mixture, k), k, 0) for k in (4, 1))
    assert (alike.low, alike.value, alike.high) == pytest.approx((one.low, one.value, one.high))
    apart = posocco2021._median("m", np.repeat(mixture, 4), 1, 0)
    assert apart.high - apart.low < 0.8 * (alike.high - alike.low)


def test_the_best_other_is_chosen_on_other_mixtures():
    """Of two rules the first has the lower median on all laws, by one of two mixtures alone."""
    errors = np.array([[1.0, 1.0, 2.1, 2.1], [2.0, 2.0, 2.0, 2.0]])
    assert posocco2021._best_elsewhere(errors, 2).tolist() == [1, 1, 0, 0]
    assert posocco2021._best_elsewhere(errors[:, :2], 2).tolist() == [0, 0]  # of one mixture there is no other
