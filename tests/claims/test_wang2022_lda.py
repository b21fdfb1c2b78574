from __future__ import annotations

import pytest

from assay.claims import wang2022_lda
from assay.run import Run


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wang2022_lda, "REPEATS", 3)
    monkeypatch.setattr(wang2022_lda, "INPUTS", 200)


def test_the_tails_are_as_printed(run: Run) -> None:
    evidence = wang2022_lda.returns_to_chance(run)
    assert evidence.verdict == "holds"
    bell, tail = evidence.measures[:3], evidence.measures[3:]
    assert all((m.value or 0) > 0.999 for m in bell)
    assert [m.value for m in tail] == pytest.approx([0.995, 0.645, 0.5], abs=0.01)


def test_the_verdict_on_tails_can_fail(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wang2022_lda, "FAR", -10.0)  # not yet far
    assert wang2022_lda.returns_to_chance(run).verdict == "fails"


def test_equal_powers_are_not_enough_unless_the_classes_are_as_wide(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    evidence = wang2022_lda.equal_powers_suffice(run)
    own, _, shared, _ = (m.value or 0 for m in evidence.measures)
    assert evidence.verdict == "fails"
    assert own == pytest.approx(1 / 5, abs=0.02)  # Cauchy scales go with the widths, 1 to 4
    assert shared == pytest.approx(0.5, abs=1e-3)
    monkeypatch.setattr(wang2022_lda, "WIDE", 1.0)
    assert wang2022_lda.equal_powers_suffice(run).verdict == "holds"
