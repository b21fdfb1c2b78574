"""The study of CupNet: networks side by side are single ones, and what its verdicts hang on."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import nn

from assay.claims import heese2021_cupnet as study
from assay.run import Run


@pytest.fixture(scope="module")
def small() -> Iterator[None]:
    patch = pytest.MonkeyPatch()
    for name, value in {
        "SEEDS": 2, "SIDE": 3, "TRAINED": 30, "TESTED": 10, "EPOCHS": 2, "BATCH": 16, "CELLS": ((1, 1.1), (2, 3.5)),
        "DEEP": 3,
    }.items():  # fmt: skip
        patch.setattr(study, name, value)
    yield
    patch.undo()
    for kept in (study._cup, study._ref, study._fields):
        kept.cache_clear()


@pytest.mark.usefixtures("small")
def test_the_studies_run_on_little_and_their_numbers_stand_beside_print(run: Run):
    for claim in study.SHELVED:
        evidence = claim.test(run)
        assert evidence.verdict == "cannot tell"
        names = [m.name for m in evidence.measures]
        assert len(set(names)) == len(names) > len(claim.published)
        assert all(m.value is not None and np.isfinite(m.value) for m in evidence.measures)
        assert claim.test(run) == evidence
    assert names[1] == study.SHELVED[1].published[1].what


@pytest.mark.usefixtures("small")
def test_networks_side_by_side_are_those_that_are_trained_alone():
    data = study._fields(3, 0, 2, "cpu")

    def build() -> nn.Module:
        return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 27))

    both = study.train_side_by_side(build, data, 0)
    assert both.shape == (2,)
    # the second of two, by itself: its batches are drawn after those of the first, so that all are taken at once
    whole = pytest.MonkeyPatch()
    whole.setattr(study, "BATCH", 30)
    together = study.train_side_by_side(build, data, 0)
    alone = study.train_side_by_side(build, study._Fields(*(part[1:] for part in data)), 1)
    whole.undo()
    assert together[1] == pytest.approx(alone[0], abs=1e-4)
    assert abs(together[0] - together[1]) > 1e-3


def test_r2_is_1_of_the_truth_and_0_of_the_mean(monkeypatch: pytest.MonkeyPatch):
    x = torch.randn(1, 20, 2, generator=torch.Generator().manual_seed(0))
    monkeypatch.setattr(study, "EPOCHS", 0)  # as it was built

    def says(weight: torch.Tensor) -> nn.Module:
        net = nn.Linear(2, 2)
        net.weight.data, net.bias.data = weight, torch.zeros(2)
        return net

    y = x - x.mean(1, keepdim=True)
    data = study._Fields(y, y, y, y)
    assert study.train_side_by_side(lambda: says(torch.eye(2)), data, 0)[0] == pytest.approx(1)
    assert study.train_side_by_side(lambda: says(torch.zeros(2, 2)), data, 0)[0] == pytest.approx(0, abs=1e-6)


def found_here(evidence: study.Evidence) -> str:
    told = evidence.says.rpartition("which are not print's, ")[2]
    return {"it holds.": "holds", "it fails.": "fails", "nothing can be told either.": "cannot tell"}[told]


WOBBLE = np.array([0.0, 0.01, -0.01, 0.005, -0.005])


@pytest.mark.parametrize(
    ("cup", "ref", "verdict"),
    [(0.9, 0.8, "holds"), (0.8, 0.9, "fails"), (0.8, 0.8, "cannot tell"), (0.4, 0.2, "cannot tell")],
)
def test_verdicts_of_the_comparison(cup, ref, verdict, monkeypatch: pytest.MonkeyPatch, run: Run):
    monkeypatch.setattr(study, "_cup", lambda *about: cup + WOBBLE)
    monkeypatch.setattr(study, "_ref", lambda *about: ref + WOBBLE[::-1])
    assert found_here(study.above_matched(run)) == verdict


@pytest.mark.parametrize(
    ("shallow", "deep", "verdict"),
    [
        (0.8, 0.03, "holds"),
        (0.8, 0.95, "fails"),
        (0.8, 0.7, "cannot tell"),
        (0.8, 0.1, "cannot tell"),
        (0.2, 0.0, "cannot tell"),
    ],
)
def test_verdicts_of_the_collapse(shallow, deep, verdict, monkeypatch: pytest.MonkeyPatch, run: Run):
    def made(hidden, reach, start, *about):
        return (deep if hidden == study.DEEP and start == "dense" else shallow) + WOBBLE

    monkeypatch.setattr(study, "_cup", made)
    monkeypatch.setattr(study, "_ref", lambda *about: 0.8 + WOBBLE)
    evidence = study.collapses(run)
    assert found_here(evidence) == verdict
    assert evidence.measures[3].value == pytest.approx(shallow - deep)
