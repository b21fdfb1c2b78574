"""The study of poisoned labels: it runs on little, and what its verdicts hang on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from assay.claims import liu2021_poison as study
from assay.methods.poison.flips import Flips
from assay.run import Run

GOOD = {"known": 0.5, "unknown": 0.5, "by_degree": 0.98, "by_rank": 0.98, "by_chance": 0.98}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def blobs() -> tuple[Any, Any]:
        rng = np.random.default_rng(0)
        y = np.where(np.arange(200) % 2, 1, -1)
        return rng.normal(size=(200, 2)) + 2 * np.stack([y, 0 * y], 1), y

    monkeypatch.setattr(study, "digits", blobs)
    for name, value in {"DRAWS": 3, "FEW": 10, "LABELS": 20, "MANY": 40, "SIZE": 150, "TARGETS": 30}.items():
        monkeypatch.setattr(study, name, value)
    monkeypatch.setattr(study, "WIDTH", 2)
    caches = (study._studied, study._moved)
    for cached in caches:
        cached.cache_clear()
    yield
    for cached in caches:
        cached.cache_clear()


@pytest.mark.usefixtures("small")
def test_the_studies_run_on_little_and_their_numbers_stand_in_the_order_of_print(run: Run) -> None:
    for claim in study.SHELVED:
        evidence = claim.test(run)
        for printed, measure in zip(claim.published, evidence.measures, strict=False):
            assert printed.unit == measure.unit
        assert evidence.measures
    found = study._studied(run.seed, run.device).labels[20]
    assert found.known.shape == (3, study.FLIPS + 1)
    assert (np.diff(found.known, axis=1) <= 0).all()  # greedy flips never help
    assert found.known[:, -1].mean() < found.by_chance[:, -1].mean()
    moved = study._moved(run.seed)
    assert (moved.known >= np.stack(moved[2:]).max(0) - 1e-9).all()  # the exact attack is the worst
    assert (moved.known > moved.clean).all()


def test_a_curve_stays_where_flips_end() -> None:
    flips = Flips(np.array([3, 1]), np.array([4, 6]), 2, np.array([1, 1]))
    assert study._curve(flips, 20, 4).tolist() == pytest.approx([0.9, 0.8, 0.7, 0.7, 0.7])


def made_up(clean: float, by_labels: dict[int, float] | None = None, **after: float) -> Any:
    """Accuracies after any flip, with a wobble of each draw."""
    wobble = 1e-4 * np.sin(np.arange(10.0))[:, None]

    def curve(level: float) -> Any:
        return np.concatenate([np.full((10, 1), clean), np.full((10, study.FLIPS), level)], 1) + wobble

    def attacked(count: int) -> study.Attacked:
        levels = {**after, "known": (by_labels or {}).get(count, after["known"])}
        same = np.full(10, levels["unknown"] == levels["known"])
        return study.Attacked(**{name: curve(level) for name, level in levels.items()}, same=same)

    arms = {count: attacked(count) for count in (study.FEW, study.LABELS, study.MANY)}
    more = np.full((10, study.MORE + 1), 0.5) + wobble
    return lambda seed, device: study.Studied(arms, more, more - 0.1 - wobble, 100)


@pytest.mark.parametrize(
    ("test", "clean", "change", "verdict"),
    [
        (study.three_flips, 0.985, {}, "holds"),
        (study.three_flips, 0.985, {"known": 0.7}, "fails"),
        (study.three_flips, 0.9, {"known": 0.7}, "cannot tell"),  # the learner is not print's
        (study.three_flips, 0.9, {}, "cannot tell"),
        (study.three_flips, 0.985, {"by_labels": {study.FEW: 0.5, study.LABELS: 0.7}}, "cannot tell"),
        (study.unknown_costs_nothing, 0.985, {}, "holds"),
        (study.unknown_costs_nothing, 0.985, {"unknown": 0.6}, "fails"),
        (study.unknown_costs_nothing, 0.985, {"unknown": 0.505}, "fails"),  # other labels, though they cost as much
        (study.centrality, 0.985, {}, "holds"),
        (study.centrality, 0.985, {"by_rank": 0.8}, "cannot tell"),  # how much is much, print does not say
        (study.centrality, 0.985, {"by_rank": 0.45}, "fails"),  # as much as greedy flips
        (study.more_labels, 0.985, {"by_labels": {study.FEW: 0.4, study.LABELS: 0.5, study.MANY: 0.6}}, "holds"),
        (study.more_labels, 0.985, {"by_labels": {study.FEW: 0.6, study.LABELS: 0.5, study.MANY: 0.6}}, "fails"),
        (study.relaxation, 0.985, {}, "cannot tell"),  # whatever is found, as print has other data
    ],
)
def test_verdicts(
    test: Any, clean: float, change: dict[str, Any], verdict: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(study, "_studied", made_up(clean, **{**GOOD, **change}))
    assert test(run).verdict == verdict
    if test is study.relaxation:
        assert "it holds" in test(run).says


@pytest.mark.parametrize(("grown", "word"), [(1.6, "it holds"), (1.4, "it fails"), (1.5, "nothing can be told")])
def test_verdicts_of_targets(grown: float, word: str, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    clean, wobble = np.full(10, 0.2), 1e-3 * np.where(np.arange(10) % 2, 1, -1)
    known = grown * clean + wobble
    smaller, larger = clean + 0.9 * (known - clean), clean + 0.3 * (known - clean)
    monkeypatch.setattr(study, "_moved", lambda seed: study.Moved(clean, known, known, smaller, larger, clean, clean))
    assert word in study.targets(run).says
    assert "it holds" in study.smaller_gamma(run).says
    monkeypatch.setattr(study, "_moved", lambda seed: study.Moved(clean, known, known, larger, smaller, clean, clean))
    assert "it fails" in study.smaller_gamma(run).says
