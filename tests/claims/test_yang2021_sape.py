"""The study of three branches: small and whole, and its verdicts on made-up finds."""

from __future__ import annotations

import numpy as np
import pytest

from assay.claims import yang2021_sape as study
from assay.run import Run


def test_the_study_runs_on_a_few_figures(monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    for name, value in {
        "SEEDS": 2, "PEOPLE": 4, "IMAGES": 2, "QUERIES": 2, "WIDTHS": (4, 4), "REDUCTION": 2, "STEPS": 2,
    }.items():  # fmt: skip
        monkeypatch.setattr(study, name, value)
    study._found.cache_clear()
    claim = study.SHELVED[0]
    try:
        evidence = claim.test(run)
        assert study._found("equal weights", run.seed, run.device)[0].shape == (2, 8)
    finally:
        study._found.cache_clear()
    assert evidence.verdict == "cannot tell"
    assert "which are not print's" in evidence.says
    names = [m.name for m in evidence.measures]
    assert len(set(names)) == len(names)
    for printed, measure in zip(claim.published, evidence.measures, strict=False):
        assert (measure.name, measure.unit) == (printed.what, printed.unit)


@pytest.mark.parametrize(
    ("learned", "whole", "here"),
    [
        (0.7, 0.9, "it holds"),
        (0.5, 0.9, "it fails"),
        (0.6, 0.9, "nothing can be told either"),
        (0.7, 0.3, "nothing can be told either"),
    ],
)
def test_verdicts(monkeypatch: pytest.MonkeyPatch, run: Run, learned: float, whole: float, here: str) -> None:
    coin = np.random.default_rng(0).random((3, 300))

    def found(arm: str, seed: int, device: str) -> tuple[np.ndarray, ...]:
        share = learned if arm == "learned weights" else 0.6
        return (coin < share).astype(float), (coin < whole).astype(float), np.full((3, 3), 0.5)

    monkeypatch.setattr(study, "_found", found)
    evidence = study.learned(run)
    assert evidence.verdict == "cannot tell"
    assert evidence.says.endswith(f"which are not print's, {here}.")
    assert ("under equal weights is" in evidence.says) == (whole == 0.3)
