"""The study of hiding who looked: it runs on little, and its verdicts hang on what was read after retraining."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from assay.claims import _kept
from assay.claims import fuhl2021_gaze as study
from assay.run import Run

LITTLE = study.Size(
    seeds=2, side=16, each=2, widths=(1, 2, 2, 2), iterations=1, epochs=1, steps=2, lessons=1, runs=2, pixel_eps=(1.0,),
    raw_eps=(100.0,), copies=2,
)  # fmt: skip


@pytest.fixture
def little(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setattr(study, "SIZE", LITTLE)
    monkeypatch.setattr(_kept, "_folder", lambda: tmp_path / "kept")
    monkeypatch.setattr(_kept, "WORTH", 0.0)
    study._one.cache_clear()
    yield
    study._one.cache_clear()


@pytest.mark.usefixtures("little")
def test_the_studies_run_on_little_and_their_numbers_stand_in_the_order_of_print(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    for claim in study.SHELVED:
        evidence = claim.test(run)
        assert evidence.verdict == "cannot tell"
        assert len(evidence.measures) >= len(claim.published)
        for printed, measure in zip(claim.published, evidence.measures, strict=False):
            assert printed.unit == measure.unit
    found = study._studied(run)
    assert found.agent.shape == (2, 3, 4)
    assert set(found.others) == {"GAN", "random masks", "noise on pixels", "noise on coordinates"}
    study._one.cache_clear()  # as after a stop: the games that were played are not played again
    monkeypatch.setattr(study, "_played", None)
    again = study._studied(run)
    assert (again.agent == found.agent).all()
    assert list(again.others) == list(found.others)
    assert all((again.others[name] == each).all() for name, each in found.others.items())


def planted(who_before: float, who_after: float, who_last: float, what_last: float, other: float) -> study.Study:
    wiggle = np.array([-0.01, 0.0, 0.01])[:, None, None]
    rows = [[0.95, 0.9, 0.95, 0.9], [0.95, 0.5, 0.95, 0.9], [0.9, who_before, 0.9, who_after]]
    rows += [[0.9, 0.1, what_last, who_last]]
    controls = {"GAN": np.array([[0.0, 0.0, other, 0.2]]) + wiggle[:, 0]}
    return study.Study(np.array([rows]) + wiggle * np.array([1, -1, 1, -1]), controls)


def told(claim: str, found: study.Study, monkeypatch: pytest.MonkeyPatch, run: Run) -> str:
    monkeypatch.setattr(study, "_studied", lambda run: found)
    (chosen,) = [each for each in study.SHELVED if each.name == claim]
    return chosen.test(run).says.rpartition("which are not print's, ")[2]


@pytest.mark.parametrize(
    ("claim", "holds", "fails"),
    [
        ("apparent-privacy", (0.13, 0.93, 0.15, 0.83, 0.5), (0.13, 0.15, 0.15, 0.83, 0.5)),
        ("hides-over-iterations", (0.13, 0.93, 0.15, 0.83, 0.5), (0.13, 0.93, 0.98, 0.83, 0.5)),
        ("hides-over-iterations", (0.13, 0.93, 0.15, 0.83, 0.5), (0.13, 0.93, 0.15, 0.3, 0.5)),
        ("ahead-of-controls", (0.13, 0.93, 0.15, 0.83, 0.5), (0.13, 0.93, 0.15, 0.83, 0.99)),
    ],
)
def test_a_verdict_follows_what_retrained_attackers_read(
    claim: str, holds: tuple[float, ...], fails: tuple[float, ...], monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    assert told(claim, planted(*holds), monkeypatch, run) == "it holds."
    assert told(claim, planted(*fails), monkeypatch, run) == "it fails."


def test_where_nothing_was_hidden_nothing_is_apparent(monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    assert "it holds" not in told("apparent-privacy", planted(0.9, 0.95, 0.15, 0.83, 0.5), monkeypatch, run)
