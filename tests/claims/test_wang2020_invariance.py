from __future__ import annotations

import numpy as np
import pytest

from assay.claims import wang2020_invariance as claims
from assay.run import Run


def found(evidence: claims.Evidence) -> dict[str, float]:
    return {m.name: m.value for m in evidence.measures if m.value is not None}


def test_gaps_of_two_domains_by_hand() -> None:
    """Two values of z: in one domain each class has its own, in the other the classes are half turned round."""
    joint = np.array([[[0.5, 0.0], [0.0, 0.5]], [[0.0, 0.2], [0.6, 0.2]]])
    gaps = claims._gaps(joint)
    assert gaps.agnostic == pytest.approx(0.05)  # P(z = 0): 0.5 and 0.6, together 0.55
    assert gaps.conditional == pytest.approx(5 / 7)  # P(z = 0 | y = 0): 1 and 0, together 5/7
    assert gaps.prior == pytest.approx(0.15)  # P(y = 0): 0.5 and 0.2, together 0.35
    assert gaps.hypothesis == pytest.approx(0.5)  # all say 1 at both; the first domain says 0 at 0
    assert gaps.insufficient == pytest.approx(0.2)


def test_what_print_says_holds_on_exact_distributions(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "FAMILIES", 20)
    for study in (claims.sufficient, claims.not_needed, claims.under_prior_shift, claims.zeros):
        assert study(run).verdict == "holds"
    numbers = found(claims.not_needed(run))
    assert numbers["hypothesis gap, uniform"] == 0
    assert numbers["class-agnostic gap, uniform"] > 0.5 < numbers["class-conditional gap, uniform"] + 0.01
    assert numbers["hypothesis gap, Gaussian"] == pytest.approx(0.0031, abs=2e-4)  # half of P(Z < -2.5)


def test_errors_under_one_distribution_sum_to_the_distance_of_the_priors_at_least() -> None:
    for prior in ((0.5, 0.9), (0.2, 0.3), (0.7, 0.1), (0.4, 0.4)):
        assert claims._aligned(prior) == pytest.approx(abs(prior[0] - prior[1]), abs=1e-9)


def test_prior_shift_costs_what_alignment_takes(run: Run) -> None:
    numbers = found(claims.under_prior_shift(run))
    assert numbers["class-conditional gap, priors .5 and .9"] < 1e-9
    assert numbers["class-agnostic gap, priors .5 and .9"] > 0.1
    assert numbers["sum of errors, brought to one P(z)"] >= 0.4 > numbers["sum of errors, left alone"]


def test_verdicts_can_fail(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "FAMILIES", 3)
    monkeypatch.setattr(claims, "PRIORS", (0.5, 0.5))
    assert claims.under_prior_shift(run).verdict == "fails"  # without prior shift there is nothing to see
    monkeypatch.setattr(claims, "WIDE", 2.5)  # classes of one domain where another has the other class
    assert claims.not_needed(run).verdict == "fails"
    monkeypatch.setattr(claims, "SHAPES", ((-1.0, 1.0),) * 3)
    assert claims.not_needed(run).verdict == "fails"  # the domains are the same
    monkeypatch.setattr(claims, "CLOSE", -1.0)
    assert claims.sufficient(run).verdict == "fails"
    assert claims.zeros(run).verdict == "fails"
