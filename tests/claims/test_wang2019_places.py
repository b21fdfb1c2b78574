from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from assay.claim import Claim
from assay.claims import wang2019_places as study
from assay.data import textured_places
from assay.run import Run

SMALL = {
    "SEEDS": 2, "SEEN": 20, "SEEN_PLACES": 4, "SEEN_EPOCHS": 1, "LEARNT": 48, "LEARNT_PLACES": 12, "GALLERY": 30,
    "QUERIES": 20, "ASKED_PLACES": 10, "STEPS": 2, "TUPLES": 2, "DRAWS": 50,
}  # fmt: skip


def claim(name: str) -> Claim:
    return next(c for c in study.SHELVED if c.name == name)


def forget() -> None:
    for kept in (study._encoder, study._trained, study._found):
        kept.cache_clear()


@pytest.fixture(scope="module")
def tiny() -> Iterator[None]:
    patch = pytest.MonkeyPatch()
    for name, value in SMALL.items():
        patch.setattr(study, name, value)
    forget()
    yield
    patch.undo()
    forget()


@pytest.mark.parametrize("name", [c.name for c in study.SHELVED])
def test_the_study_runs_and_knows_its_data_are_not_print(tiny: None, run: Run, name: str) -> None:
    evidence = claim(name).test(run)
    assert evidence.verdict == "cannot tell"
    assert "which are not print's" in evidence.says
    names = [m.name for m in evidence.measures]
    assert len(set(names)) == len(names) >= len(claim(name).published)
    assert all(m.value is not None and np.isfinite(m.value) and m.low <= m.value <= m.high for m in evidence.measures)
    for printed, measure in zip(claim(name).published, evidence.measures, strict=False):
        assert (measure.name, measure.unit) == (printed.what, printed.unit)


def test_variants_of_a_seed_begin_alike_and_each_seed_has_its_own_city(tiny: None, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(study, "LR", 1e-12)  # as they begin
    study._trained.cache_clear()
    study._found.cache_clear()
    ranks = {v: study._found(v, False, 0, "cpu").rank["S->S"] for v in study.VARIANTS}
    np.testing.assert_array_equal(ranks["vlad"], ranks["a1"])
    np.testing.assert_array_equal(ranks["vlad"], ranks["ours"])
    assert (ranks["vlad"] != study._found("vlad", False, 1, "cpu").rank["S->S"]).any()
    assert ranks["vlad"].min() >= 1
    assert ranks["vlad"].max() <= 28  # three of the gallery are of the place
    study._trained.cache_clear()
    study._found.cache_clear()


def test_attention_on_the_object_is_that_over_elsewhere() -> None:
    mask = torch.zeros(2, 8, 8, dtype=torch.bool)
    mask[0, :4, :4] = True  # the first of four places of the map
    mask[1, :2, :] = True  # half of two of them
    weight = torch.tensor([[[6.0, 1.0], [2.0, 3.0]], [[4.0, 2.0], [1.0, 1.0]]])
    np.testing.assert_allclose(study._on_object(weight, mask), [3.0, 3.0])


def made_up(recall: dict[tuple[str, bool, str], float]) -> dict[tuple[str, bool], list[study.Found]]:
    """Three seeds of 300 queries, found first as often as said, else at rank 30; attention lies on objects."""
    draw = np.random.default_rng(0)
    coins = draw.random((3, 300))
    ones = np.full(300, 1.0)
    return {
        (variant, adapted): [
            study.Found(
                {task: np.where(coin < recall[variant, adapted, task], 1, 30) for task in study.TASKS},
                {task: 2 * ones.copy() for task in study.TASKS},
                {"places": 3 * ones, "backgrounds": 2 * ones},
            )
            for coin in coins
        ]
        for variant in study.VARIANTS
        for adapted in (False, True)
    }


def shares(vlad: float, a1: float, ours: float, across: float, gain: float) -> dict[tuple[str, bool, str], float]:
    each = {"vlad": vlad, "a1": a1, "ours": ours}
    return {
        (v, adapted, task): each[v] - (across if task == "S->T" else 0) + (gain if adapted else 0)
        for v in study.VARIANTS
        for adapted in (False, True)
        for task in study.TASKS
    }


@pytest.mark.parametrize(
    ("given", "held"),
    [
        ((0.5, 0.6, 0.8, 0.2, 0.1), {"attention-in-both-streams": "holds", "adaptation": "holds"}),
        ((0.8, 0.6, 0.5, 0.2, -0.1), {"attention-in-both-streams": "fails", "adaptation": "fails"}),
        ((0.5, 0.6, 0.6, -0.2, 0.0), {"attention-in-both-streams": "nothing", "harder-across-domains": "fails"}),
        ((0.5, 0.6, 0.8, 0.2, 0.0), {"harder-across-domains": "holds", "looks-at-places": "holds"}),
    ],
)
def test_what_is_told_follows_the_recalls(given, held, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    found = made_up(shares(*given))
    monkeypatch.setattr(study, "DRAWS", 100)
    monkeypatch.setattr(study, "_all", lambda run: found)
    for name, verdict in held.items():
        evidence = claim(name).test(run)
        assert evidence.verdict == "cannot tell"
        told = "nothing can be told either" if verdict == "nothing" else f"print's, it {verdict}."
        assert told in evidence.says, (name, evidence.says)
    measures = {m.name: m for m in claim("attention-in-both-streams").test(run).measures}
    assert measures["recall at 1, ours, S->S"].value == pytest.approx(given[2], abs=0.05)


def test_attention_elsewhere_fails(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    found = made_up(shares(0.5, 0.5, 0.5, 0.0, 0.0))
    for net in found["ours", False]:
        net.on["S->T"][:] = 0.5
    monkeypatch.setattr(study, "_all", lambda run: found)
    monkeypatch.setattr(study, "DRAWS", 100)
    assert "it fails." in claim("looks-at-places").test(run).says


def test_the_interval_holds_seeds_and_queries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where seeds differ and queries do not, it is theirs; where queries do, it is that of a mean of all."""
    monkeypatch.setattr(study, "DRAWS", 1000)
    by_seed = study._mean("m", np.repeat([[0.0], [1.0], [0.0], [1.0]], 50, 1), seed=0)
    assert (by_seed.low, by_seed.high) == (0.0, 1.0)
    coins = (np.arange(4000) % 2).astype(float).reshape(4, 1000)
    by_query = study._mean("m", coins, seed=0)
    half = 1.96 * 0.5 / 4000**0.5
    assert by_query.high - by_query.low == pytest.approx(2 * half, rel=0.15)


def test_no_image_and_no_city_is_used_twice_but_the_one_that_is_asked_about(
    tiny: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn, real = [], textured_places.domain

    def recorded(seed: int, n: int, texture: textured_places.Texture, *, places: int, of: int) -> Any:
        drawn.append((seed, texture, of))
        return real(seed, n, texture, places=places, of=of)

    monkeypatch.setattr(textured_places, "domain", recorded)
    forget()
    for seed in (0, 1):
        study._found("vlad", True, seed, "cpu")
    forget()
    assert len({seed for seed, _, _ in drawn}) == len(drawn) == 12
    assert [texture for _, texture, _ in drawn[:6]].count("checks") == 2
    cities = [sorted(of for _, _, of in part) for part in (drawn[:6], drawn[6:])]
    assert [len(set(each)) for each in cities] == [3, 3]  # to see, to learn from, to be asked about
    assert not set(cities[0]) & set(cities[1])
