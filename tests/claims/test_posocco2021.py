from __future__ import annotations

import numpy as np
import pytest

from assay.claims import posocco2021
from assay.methods.uncertainty.calibration import Rule
from assay.methods.uncertainty.estimator_bench import RULES, Trust, called


@pytest.fixture
def tiny(monkeypatch):
    for name, value in {
        "CLASSES": (2,),
        "DIMS": (2,),
        "INPUTS": 2000,
        "SIZES": {"confidence": (30, 60), "class-wise": (30, 120)},
        "SETS": {"confidence": 10, "class-wise": 5},
        "POINTS": 50_000,
        "BINS": 200,
        "CALIBRATED": 2000,
        "ALL_REPEATS": 1,
        "ALL_TRAININGS": 2,
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
        assert [p.what for p in claim.published] == [m.name for m in evidence.measures][: len(claim.published)]
    assert posocco2021._laws.cache_info().misses == 1  # all are about the same models
    assert posocco2021._benched.cache_info().misses == 2  # and sets, of either kind


def test_print_is_refuted_where_it_contradicts_itself(tiny, run):
    values = {m.name: m.value for m in posocco2021.linear_binning(run).measures}
    assert values["weight at the centre, printed"] == pytest.approx(0, abs=1e-6)
    assert values["weight at the centre, linear binning"] == pytest.approx(1, abs=1e-6)
    evidence = posocco2021.reference_floor(run)
    floor, theory, _ = (m.value for m in evidence.measures)
    assert evidence.verdict == "fails"
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
        ("ten_percent", {"kde_None": 0.1}, "holds"),
        ("ten_percent", {}, "fails"),
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


def test_laws_asked_one_at_a_time_are_all_there(tiny, run):
    found = posocco2021._benched_by_law(run)
    for n in (30, 60):
        assert {t.rule for t in found[n]} == set(RULES)
        assert all(
            t.absolute.shape == t.truth.shape == (8,) for t in found[n]
        )  # one mixture, two trainings, four models
        assert [np.median(t.absolute) for t in found[n]] == sorted(np.median(t.absolute) for t in found[n])
