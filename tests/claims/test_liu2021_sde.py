from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from small_studies import ruled

from assay.claims import liu2021_sde as study
from assay.data.corruptions import CORRUPTIONS
from assay.nn.continuous import ContinuousNet
from assay.run import Run


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

    return lambda run: {arm: [one(arm, seed) for seed in range(5)] for arm in study.ARMS}


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
    name = "sde-on-corrupted" if test is study.on_corrupted else "sde-on-clean"
    evidence = ruled(study, name, test(None))
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
