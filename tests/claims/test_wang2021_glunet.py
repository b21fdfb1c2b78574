"""The study of GLUNet: it runs on little, what its verdicts hang on, and print's figures held to arithmetic."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from assay.claims import wang2021_glunet as study
from assay.run import Run


@pytest.fixture(scope="module")
def small() -> Iterator[None]:
    patch = pytest.MonkeyPatch()
    for name, value in {
        "SEEDS": 2, "TRAINED": 4, "TESTED": 3, "EPOCHS": 1, "BATCH": 2, "WIDTH": 2, "LEVELS": 2, "LAYERS": 1,
        "GROWTH": 2,
    }.items():  # fmt: skip
        patch.setattr(study, name, value)
    yield
    patch.undo()
    study._seen.cache_clear()
    study._data.cache_clear()


@pytest.mark.usefixtures("small")
def test_the_studies_run_on_little_and_their_numbers_stand_beside_print(run: Run):
    for claim in study.SHELVED[:2]:
        evidence = claim.test(run)
        assert evidence.verdict == "cannot tell"
        names = [m.name for m in evidence.measures]
        assert len(set(names)) == len(names) > len(claim.published)
        assert all(m.value is not None and np.isfinite(m.value) for m in evidence.measures)
        assert names[: len(claim.published)] == [p.what for p in claim.published]


def made_up(**arms: tuple[float, float]) -> dict[str, list[study._Seen]]:
    """IoU and boundary F1 by arm, with a wobble of each seed."""
    return {
        name.replace("_", " "): [study._Seen(iou + w, line + w, line, 0.9) for w in (0.0, 0.001 * len(name), -0.001)]
        for name, (iou, line) in arms.items()
    }


@pytest.mark.parametrize(
    ("ledm", "gam", "both", "verdict"),
    [
        (0.82, 0.85, 0.9, "it holds."),
        (0.85, 0.82, 0.9, "it fails."),  # attention less than edges
        (0.82, 0.85, 0.75, "it fails."),
        (0.82, 0.85, 0.801, "nothing can be told either."),
    ],
)
def test_verdicts_of_the_parts(ledm, gam, both, verdict, monkeypatch: pytest.MonkeyPatch, run: Run):
    arms = made_up(backbone=(0.8, 0.8), LEDM=(ledm, 0.8), GAM=(gam, 0.8), GAM_and_LEDM=(both, 0.8))
    monkeypatch.setattr(study, "_all", lambda run: arms)
    assert study.parts_help(run).says.endswith(verdict)
    monkeypatch.setattr(study, "LEARNT", 0.95)
    assert study.parts_help(run).says.endswith("nothing can be told either.")


@pytest.mark.parametrize(
    ("iou", "outline", "verdict"),
    [(0.82, 0.9, "it holds."), (0.9, 0.82, "it fails."), (0.8, 0.75, "it fails."), (0.8, 0.801, "nothing can be told")],
)
def test_verdicts_of_the_outlines(iou, outline, verdict, monkeypatch: pytest.MonkeyPatch, run: Run):
    monkeypatch.setattr(study, "_all", lambda run: made_up(backbone=(0.8, 0.8), LEDM=(iou, outline)))
    assert verdict in study.outlines_gain_more(run).says


def test_printed_figures_below_the_limit_are_found_and_possible_ones_are_not(monkeypatch: pytest.MonkeyPatch, run: Run):
    evidence = study.impossible(run)
    assert evidence.verdict == "fails"
    of = {m.name: m.value for m in evidence.measures}
    assert of["rows with F1 below IoU"] == 2
    assert "U-Net on DSB2018, Attention UNet on DSB2018" in evidence.says
    assert of["rows that means over images could have"] == 24
    assert of["rows that pooled counts could have"] == 0
    assert of["F1 of pooled counts with an IoU of 0.8731"] == pytest.approx(0.932, abs=5e-4)
    possible = {"DSB2018": {"U-Net": (0.8731, 0.9323, 0.95, 0.92, 0.93)}}
    monkeypatch.setattr(study, "PRINTED", possible)
    evidence = study.impossible(run)
    assert evidence.verdict == "holds"
    assert [m.value for m in evidence.measures[2:]] == [0, 1, 1, 0]
