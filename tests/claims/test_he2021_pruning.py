from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from torch import nn

from assay.claims import he2021_pruning as study
from assay.run import Run

Made = Callable[..., None]


def test_r2_is_that_of_deviations_from_each_seeds_mean() -> None:
    rng = np.random.default_rng(0)
    before, end = rng.normal(size=(2, 3, 14))
    counts = np.ones((1, 14))
    apart = [v - v.mean(1, keepdims=True) for v in (before, end)]
    assert_allclose(study.explained(before, end, counts)[0], np.corrcoef(apart[0].ravel(), apart[1].ravel())[0, 1] ** 2)
    shifted = end + np.array([[0.0], [5.0], [-3.0]])
    assert_allclose(study.explained(before, shifted, counts), study.explained(before, end, counts))
    drawn = rng.multinomial(14, np.full(14, 1 / 14), size=2).astype(float)
    rows = [np.repeat(np.arange(14), c.astype(int)) for c in drawn]
    by_hand = [study.explained(before[:, r], end[:, r], np.ones((1, 14)))[0] for r in rows]
    assert_allclose(study.explained(before, end, drawn), by_hand)
    assert study.explained(before, np.zeros((3, 14)), counts)[0] == 0  # nothing to explain


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Made:
    """Studies of 400 test images, of which so many are right at each time by each way."""

    def put(at_once: Any, early: Any, end: Any, genes: int = 1) -> None:
        def shares(of: Any, way: str) -> np.ndarray:
            value = of[way] if isinstance(of, dict) else of
            return (np.arange(400) < 400 * value).astype(float)

        def seen(way: Any, seed: int, device: str) -> Any:
            return study._Seen(*(shares(of, way) for of in (at_once, early, end)), held_out=0.0, net=nn.Identity())

        monkeypatch.setattr(study, "SEEDS", 2)
        monkeypatch.setattr(study, "_seen", seen)
        monkeypatch.setattr(study, "_best_genes", lambda seed, device: (seen("blended", seed, device),) * genes)

    return put


def test_a_blend_must_be_ahead_of_every_single_criterion(made: Made, run: Run) -> None:
    ends = dict.fromkeys((*study.CRITERIA, "unpruned"), 0.7)
    for blended, said in ((0.8, "it holds"), (0.6, "it fails"), (0.7, "nothing can be told either")):
        made(0.1, 0.5, {**ends, "blended": blended})
        found = study.blended_over_single(run)
        assert found.verdict == "cannot tell"  # CIFAR-10 is not print's
        assert found.says.endswith(f"which are not print's, {said}.")
    made(0.1, 0.5, {**ends, "fpgm": 0.8, "blended": 0.75})
    found = study.blended_over_single(run)
    assert "-5.00 of the best of them on the test images, fpgm" in found.says
    assert "clearly ahead of 11 of them, clearly behind 1." in found.says


def test_unpruned_is_the_network_that_was_trained_on_as_long(made: Made, run: Run) -> None:
    made(0.1, 0.5, {**dict.fromkeys(study.WAYS, 0.7), "unpruned": 0.9})
    (told,) = (m for m in study.blended_over_single(run).measures if m.name == "accuracy, unpruned")
    assert told.value == pytest.approx(0.9)


def test_accuracy_after_two_epochs_must_explain_more_than_at_once(made: Made, run: Run) -> None:
    rng = np.random.default_rng(0)
    end = {way: float(v) for way, v in zip(study.WAYS, np.linspace(0.5, 0.9, 13), strict=True)}
    noise = {way: float(v) for way, v in zip(study.WAYS, rng.uniform(0.1, 0.3, 13), strict=True)}
    made(noise, end, end)
    found = study.early_accuracy(run)
    assert found.says.endswith("it holds.")
    first, later, gain = (m.value for m in found.measures)
    assert first is not None
    assert first < 0.5
    assert later == pytest.approx(1.0)
    assert gain == pytest.approx(1 - first)
    made(end, noise, end)
    assert study.early_accuracy(run).says.endswith("it fails.")


def test_random_filters_are_ranked_alike_by_four_and_not_by_beta(monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    monkeypatch.setattr(study, "FILTERS", (64, 128))
    monkeypatch.setattr(study, "TIMES", 6)
    found = study.on_random_filters(run)
    assert found.verdict == "holds"
    by_name = {m.name: m for m in found.measures}
    assert by_name["Spearman of l1 and l2, 128 filters"].value == pytest.approx(0.925, abs=0.025)
    assert 0.98 < (by_name["Spearman of l2 and fpgm, 128 filters"].value or 0) < 0.998
    assert by_name["Spearman of l1 and bn-beta, 128 filters"].value == pytest.approx(0, abs=0.15)
    monkeypatch.setattr(torch, "randn", lambda *shape, generator: 5 + torch.rand(*shape, generator=generator))
    assert study.on_random_filters(run).verdict == "fails"  # with a part in common, length and distance are two things
