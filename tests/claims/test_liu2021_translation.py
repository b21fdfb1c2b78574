"""The study of seven ways to be unsure about images: it runs on little, and what its verdicts hang on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from assay.claims import liu2021_translation as study
from assay.run import Run


@pytest.fixture(scope="module")
def small() -> Iterator[None]:
    patch = pytest.MonkeyPatch()
    for name, value in {
        "SEEDS": 1, "TRAINED": 4, "TESTED": 3, "EPOCHS": 2, "BATCH": 2, "WIDTH": 2, "LEVELS": 2, "MEMBERS": 2,
        "DRAWS": 2,
    }.items():  # fmt: skip
        patch.setattr(study, name, value)
    yield
    patch.undo()
    for kept in (study._made, study._single, study._data):
        kept.cache_clear()


@pytest.mark.usefixtures("small")
def test_the_studies_run_on_little_and_their_numbers_stand_beside_print(run: Run) -> None:
    for claim in study.SHELVED[:2]:
        evidence = claim.test(run)
        assert evidence.verdict == "cannot tell"
        names = [m.name for m in evidence.measures]
        assert len(set(names)) == len(names) > len(claim.published)
        assert all(m.value is not None or m.about == "undefined in every seed" for m in evidence.measures)
        assert names[: len(claim.published)] == [p.what for p in claim.published]


def test_every_way_stands_on_the_shelf_and_is_trained_alike() -> None:
    for method in study.METHODS:
        remedy = study._remedy(method)
        assert remedy.needs == ("mean",)
        assert remedy.settings()["epochs"] == study.EPOCHS
        assert remedy.settings()["batch"] == study.BATCH


def seen(areas: dict[str, tuple[float, float]], home: float = 0.9) -> dict[tuple[str, str, str], list[study._Seen]]:
    """Partial areas on impurities and foreign cells by method, with a wobble of each seed."""
    found = {}
    for method in ("single", *study.METHODS, study.AS_SAVED):
        pair = areas.get(method, (0.05, 0.03))
        for place, area in (*zip(study.STRANGE, pair, strict=True), ("sparse", float("nan"))):
            wobbled = [area + w for w in (0.0, 0.0001, -0.0001)]
            found[method, "clean", place] = [study._Seen(home, 0, a, 0.01, 0.1) for a in wobbled]
    return found


FIRST = {"naive": (0.11, 0.08), "FastEnsemble": (0.10, 0.09), "snapshot": (0.015, 0.01)}


@pytest.mark.parametrize(
    ("areas", "home", "verdict"),
    [
        (FIRST, 0.9, "it holds."),
        (FIRST, 0.5, "nothing can be told either."),  # it did not learn
        (FIRST | {"naive": (0.04, 0.02)}, 0.9, "it fails."),
        (FIRST | {"naive": (0.11, 0.15)}, 0.9, "it fails."),  # foreign cells easier
        (FIRST | {"snapshot": (0.045, 0.025)}, 0.9, "it fails."),  # above chance
        (FIRST | {"FastEnsemble": (0.05, 0.03)}, 0.9, "nothing can be told either."),
    ],
)
def test_verdicts_of_the_areas(areas, home, verdict, monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    monkeypatch.setattr(study, "SEEDS", 3)
    monkeypatch.setattr(study, "_all", lambda *a: seen(areas, home))
    assert study.areas(run).says.endswith(verdict)


@pytest.mark.parametrize(
    ("lost_a", "naive", "verdict"),
    [(0.1, 0.0, "it holds."), (0.001, 0.0, "it fails."), (0.1, -0.05, "it fails.")],
)
def test_verdicts_of_the_densities(lost_a, naive, verdict, monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    rank = {"naive": 0.95, "FastEnsemble": 0.949}
    found = {}
    for method in ("single", *study.METHODS):
        for home, lost in (("model A", lost_a), ("model B", 0.01)):
            for k, place in enumerate(study.PLACES):  # from very dense to very sparse
                away = (3 - k if home == "model A" else k) / 3
                r = rank.get(method, 0.93) - lost * away + (naive if method == "naive" else 0.0)
                found[method, home, place] = [study._Seen(r + w, 0, 0.0, 0.0, 0.0) for w in (0.0, 1e-5, -1e-5)]
    monkeypatch.setattr(study, "SEEDS", 3)
    monkeypatch.setattr(study, "_all", lambda *a: found)
    assert study.density(run).says.endswith(verdict)


def test_the_printed_second_place_is_none_everywhere(run: Run) -> None:
    evidence = study.second_everywhere(run)
    assert evidence.verdict == "fails"
    assert "behind a second other method in model B, very dense" in evidence.says
    assert "tied: model A, very dense" in evidence.says
    assert "first in model B, very sparse" in evidence.says
