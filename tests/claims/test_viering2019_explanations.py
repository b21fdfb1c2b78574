from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from assay.claim import Claim
from assay.claims import viering2019_explanations as study
from assay.data import fashion
from assay.run import Run


@pytest.fixture(scope="module")
def tiny() -> Iterator[None]:
    """A few bundled images, small networks, and one training for all claims."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"SEEDS": 1, "EPOCHS": 2, "WIDTH": 4, "EXAMPLES": 8}.items():
            patch.setattr(study, name, value)
        patch.setattr(study, "HIDDEN", {1: (), 2: (24,), 3: (24, 16)})
        whole = fashion.load_fashion()
        rows = {"train": 600, "test": 24}
        small = {
            name: type(data)(data.x[: rows[name]], data.labels[: rows[name]], data.classes)
            for name, data in whole.items()
        }
        patch.setattr(fashion, "load_fashion", lambda: small)
        kept = (study._data, study._trained)
        for each in kept:
            each.cache_clear()
        yield
        for each in kept:
            each.cache_clear()


def claim(name: str) -> Claim:
    return next(c for c in study.SHELVED if c.name == name)


def values(name: str, run: Run) -> tuple[dict[str, float], str]:
    """The measures by name, and the verdict."""
    tested = claim(name)
    evidence = tested.test(run)
    assert evidence.verdict in ("holds", "fails", "cannot tell")
    assert [m.name for m in evidence.measures[: len(tested.published)]] == [p.what for p in tested.published]
    names = [m.name for m in evidence.measures]
    assert len(set(names)) == len(names)
    return {m.name: m.value for m in evidence.measures if m.value is not None}, evidence.verdict


def test_constant_maps(tiny: None, run: Run) -> None:
    seen, _ = values("constant-maps", run)
    assert seen["score change, T1"] < 1
    for name in ("T1", "T2"):
        assert seen[f"accuracy, {name}"] == pytest.approx(seen["accuracy, original"], abs=0.03)
        assert seen[f"score change, {name}, sign mended"] == 0
        assert seen[f"distance, {name}, sign mended"] < 0.05
        assert seen[f"score change, {name}, float64"] < 1e-8


def test_slopes(tiny: None, run: Run) -> None:
    seen, _ = values("slope-for-every-class", run)
    assert seen["all classes, 1 Linear"] == seen["top class, 1 Linear"] == 1
    assert seen["all classes, 3 Linears"] < 1
    assert seen["all classes, sign mended, 3 Linears"] == 1


def test_input_dependent_maps(tiny: None, run: Run) -> None:
    seen, verdict = values("input-dependent-maps", run)
    assert verdict == "holds"
    assert seen["accuracy, T3"] == seen["accuracy, T4"] == seen["accuracy, original"]
    assert seen["accuracy, T4, stickers"] == seen["accuracy, original, stickers"]
    assert seen["distance, T4"] < 1e-6
    assert seen["distance, T3"] < 0.01


def test_invariance(tiny: None, run: Run) -> None:
    seen, verdict = values("invariance", run)
    assert seen["P, T1 and T2"] < 1e-8
    assert seen["Q, GradCAM, T1"] > 0.3
    assert seen["Q, occlusion, T1"] < 1e-8
    assert verdict == "holds"


def test_dimming(tiny: None, run: Run) -> None:
    seen, verdict = values("dimmed-sticker", run)
    assert seen["set off, 0 % dimmer"] == 1
    assert seen["set off, 0.1 % dimmer"] == 0
    assert seen["set off, 1 % dimmer, wide margin"] == 1
    assert verdict == "holds"


def test_the_defence(tiny: None, run: Run) -> None:
    seen, verdict = values("centred-score", run)
    assert seen["distance, logit, float64"] > 0.05
    assert seen["distance, centred, float64"] < 1e-3
    assert seen["distance, softmax, float64"] < 1e-3
    assert verdict == "holds"


@pytest.mark.parametrize(
    ("far", "kept", "held"),
    [(0.01, 1.0, "holds"), (0.4, 1.0, "fails"), (0.01, 0.9, "fails"), (None, 1.0, "cannot tell")],
)
def test_the_verdict_on_constant_maps(
    monkeypatch: pytest.MonkeyPatch, run: Run, far: float | None, kept: float, held: str
) -> None:
    """Rows: right at first; right, moved, distance, four times; moved, twice. Without `far` the images disagree."""
    distance = np.where(np.arange(20) < 1, 1.0, 0.0) if far is None else np.full(20, far)
    form = [np.full(20, kept), np.full(20, 0.01), distance]
    rows = np.stack([np.ones(20), *form, *form, *form, *form, *np.zeros((2, 20))])
    monkeypatch.setattr(study, "_seen", lambda run, look: rows[None])
    assert study.constant_maps(run).verdict == held
