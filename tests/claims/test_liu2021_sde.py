from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from assay.claim import Claim
from assay.claims import liu2021_sde as study
from assay.data import beyond, fashion
from assay.data.corruptions import CORRUPTIONS
from assay.errors import AssayError
from assay.nn.continuous import ContinuousNet
from assay.run import Run

CACHED = (study._data, study._trained, study._seen, study._grown)


def claim(name: str) -> Claim:
    return next(c for c in study.SHELVED if c.name == name)


def test_without_data_it_says_how_to_have_it(monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    monkeypatch.delenv("ASSAY_DATA", raising=False)
    for each in CACHED:
        each.cache_clear()
    with pytest.raises(AssayError, match="ASSAY_DATA is not set"):
        claim("sde-on-corrupted").test(run)


@pytest.fixture(scope="module")
def tiny() -> Iterator[None]:
    """CIFAR-10 is a few images of the bundled sample in three equal colours, and every effort is small."""
    patch = pytest.MonkeyPatch()
    for name, value in {
        "SEEDS": 1, "WIDTH": 2, "GRID": 0.5, "EPOCHS": 1, "BATCH": 30, "DRAWS": 2, "CLEAN": 20, "CORRUPTED": 5,
        "TYPES": study.TYPES[:2], "TRACED": 6, "STEPS": 2, "EOT": 2, "PATHS": 2,
    }.items():  # fmt: skip
        patch.setattr(study, name, value)
    small = {
        name: type(data)(np.repeat(data.x[:60, :, ::3, ::3], 3, axis=1), data.labels[:60], data.classes)
        for name, data in fashion.load_fashion().items()
    }
    patch.setattr(beyond, "cifar10", lambda: small)
    for each in CACHED:
        each.cache_clear()
    yield
    patch.undo()
    for each in CACHED:
        each.cache_clear()


@pytest.mark.parametrize("name", [c.name for c in study.SHELVED])
def test_the_study_runs_on_a_few_images_and_knows_it_is_not_print(tiny: None, run: Run, name: str) -> None:
    evidence = claim(name).test(run)
    assert evidence.verdict == "cannot tell"
    assert "The networks are not those in print" in evidence.says
    names = [m.name for m in evidence.measures]
    assert len(set(names)) == len(names)
    assert all(np.isfinite(m.value or np.nan) or m.value == 0 for m in evidence.measures)
    for printed, measured in zip(claim(name).published, evidence.measures, strict=False):
        assert measured.name == printed.what
        assert measured.unit == printed.unit
    assert claim(name).test(run) == evidence


def test_each_arm_is_the_same_net_with_its_own_noise(tiny: None) -> None:
    nets = {arm: study._trained(arm, 0, "cpu") for arm in study.ARMS}
    for arm, net in nets.items():
        assert isinstance(net, ContinuousNet)
        assert (net.depth.noise.kind, net.depth.noise.sigma) == (arm, study.SIGMA[arm])
        assert not net.training
        assert not any(p.requires_grad for p in net.parameters())
    shapes = {tuple((n, tuple(t.shape)) for n, t in net.state_dict().items()) for net in nets.values()}
    assert len(shapes) == 1
    one, other = (nets[arm].depth.drift.convs[0].weight for arm in ("none", "multiplicative"))
    assert not torch.equal(one, other)
    seen = study._seen("none", 0, "cpu")
    assert np.array_equal(seen.clean, seen.clean_noisy)  # without noise there is nothing to turn off
    assert seen.corrupted.shape == (5, 5)
    assert set(study.TYPES) <= set(CORRUPTIONS)


def made_up(ode: float, noisy: float, ttn: float) -> Any:
    """Networks of these accuracies on clean images, 0.1 less on corrupted ones, with a wobble over 400 images."""

    def one(arm: str, seed: int) -> study._Seen:
        wobble = 1e-3 * np.sin(np.arange(400.0) + seed + len(arm))
        still, loud = (ode, ode) if arm == "none" else (noisy, ttn)
        return study._Seen(
            still + wobble, loud + wobble / 2, np.tile(still - 0.1 + wobble, (5, 1)), np.tile(loud - 0.1, (5, 400))
        )

    return lambda run: {arm: [one(arm, seed) for seed in range(3)] for arm in study.ARMS}


@pytest.mark.parametrize("test", [study.on_corrupted, study.on_clean])
@pytest.mark.parametrize(
    ("right", "verdict"),
    [
        ((0.88, 0.90, 0.92), "holds"),
        ((0.88, 0.86, 0.92), "fails"),  # noise in training costs accuracy
        ((0.88, 0.90, 0.89), "fails"),  # noise at test time does
        ((0.88, 0.88, 0.92), "cannot tell"),
        ((0.65, 0.87, 0.89), "cannot tell"),  # trained too little
    ],
)
def test_verdicts(monkeypatch: pytest.MonkeyPatch, test: Any, right: tuple[float, ...], verdict: str) -> None:
    monkeypatch.setattr(study, "_all", made_up(*right))
    evidence = test(None)
    assert evidence.verdict == verdict
    assert ("not those in print" in evidence.says) == (right[0] < study.LEAST)


@pytest.mark.parametrize(("ours", "verdict"), [(0.3, "holds"), (0.9, "fails"), (0.5, "cannot tell")])
def test_verdicts_of_the_error(monkeypatch: pytest.MonkeyPatch, run: Run, ours: float, verdict: str) -> None:
    def grown(arm: str, noisy: bool, seed: int, device: str) -> study._Grown:
        wobble = 0.01 * np.sin(np.arange(50.0) + 3 * seed + 2 * noisy)
        return study._Grown(*((0.5 if arm == "none" else ours) + wobble for _ in range(2)))

    seen = study._Seen(np.ones(4), np.ones(4), np.ones((5, 4)), np.ones((5, 4)))
    monkeypatch.setattr(study, "_grown", grown)
    monkeypatch.setattr(study, "_seen", lambda arm, seed, device: seen)
    assert study.error_growth(run).verdict == verdict
