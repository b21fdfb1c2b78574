from __future__ import annotations

import pytest

from assay.claims import wang2022_weights as claims
from assay.run import Run


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "SEEDS", 30)
    monkeypatch.setattr(claims, "FAMILIES", {"Gaussian": float("inf"), "t, nu 1": 1.0})


def test_gaussian_weights_are_extreme_and_t_weights_about_one(run: Run) -> None:
    evidence = claims.weights(run)
    numbers = {m.name: m.value or 0 for m in evidence.measures}
    assert evidence.verdict == "holds"
    assert numbers["log10 of the largest outlier weight, 90 % quantile, Gaussian"] > 5
    assert abs(numbers["log10 of the largest outlier weight, 90 % quantile, t, nu 1"]) < 0.2
    assert numbers["effective sample size, median, Gaussian"] < 15 < numbers["effective sample size, median, t, nu 1"]


def test_the_line_is_bent_in_some_draws_and_not_in_most(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "POWERS", (1.0,))
    evidence = claims.line(run)
    bell, tail = evidence.measures[:2]
    assert evidence.verdict == "cannot tell"  # how far a line must go to follow, print does not say
    assert 0.1 < (bell.value or 0) < 0.5
    assert tail.value == 0


def test_verdicts_can_turn(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "EXTREME", 1e30)  # none is
    assert claims.weights(run).verdict == "cannot tell"  # what is extreme, print does not say
    monkeypatch.setattr(claims, "POWERS", (1.0,))
    monkeypatch.setattr(claims, "RUINED", -0.2)  # every draw counts
    assert claims.line(run).verdict == "cannot tell"  # t densities too, then
    monkeypatch.setattr(claims, "FAMILIES", {"Gaussian": float("inf"), "t, nu 1": float("inf")})
    monkeypatch.setattr(claims, "EXTREME", 1e30)
    assert claims.weights(run).verdict == "fails"
