"""Every study of large networks, on a few images: it runs, stands beside print and knows that it is not print."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

import numpy as np
import pytest
from small_studies import STUDIES, forget, made_small

from assay.claim import Claim, judged
from assay.errors import AssayError
from assay.run import Run

BY_NAME = {study.__name__.rpartition(".")[2]: study for study in STUDIES}


@pytest.mark.parametrize("name", BY_NAME)
def test_without_data_it_says_how_to_have_it(name: str, monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    monkeypatch.delenv("ASSAY_DATA", raising=False)
    forget()
    gated = next(claim for claim in BY_NAME[name].SHELVED if claim.name not in STUDIES[BY_NAME[name]].ungated)
    with pytest.raises(AssayError, match="ASSAY_DATA is not set"):
        gated.test(run)


@pytest.fixture(scope="module")
def small(request: pytest.FixtureRequest) -> Iterator[ModuleType]:
    study = BY_NAME[request.param]
    with made_small(study):
        yield study


@pytest.mark.parametrize(
    ("small", "claim"),
    [pytest.param(name, c, id=f"{name}-{c.name}") for name, study in BY_NAME.items() for c in study.SHELVED],
    indirect=["small"],
)
def test_it_runs_and_knows_it_is_not_print(small: ModuleType, claim: Claim, run: Run) -> None:
    evidence = judged(claim, claim.test(run))
    if claim.name not in STUDIES[small].ungated:
        assert evidence.verdict == "cannot tell"
        assert any(gate.missed() for gate in evidence.gates) or "which are not print's" in evidence.says
    names = [m.name for m in evidence.measures]
    assert len(set(names)) == len(names) > 0
    assert all(m.value is not None and np.isfinite(m.value) for m in evidence.measures)
    units = {m.name: m.unit for m in evidence.measures}
    beside = [p.measured or p.what for p in claim.published]
    for printed, name in zip(claim.published, beside, strict=True):
        if name in units:  # fewer passes here, and an affinity that does not exist
            assert units[name] == printed.unit
        else:
            assert "passes" in name or "affinity" in name
    assert judged(claim, claim.test(run)) == evidence
