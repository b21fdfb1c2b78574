"""The study of the baselines: which net is which, on a few images, and what its verdicts hang on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from small_studies import ruled

from assay.claims import _over_seeds as over
from assay.claims import liu2021_baselines as study
from assay.claims import liu2021_random
from assay.nn.bounded_relu import BoundedReLU
from assay.run import Run


def test_each_arm_is_the_net_that_it_says(tiny: None) -> None:
    arms: tuple[study.Arm, ...] = (*study.ARMS, "plain retraining")
    nets = {arm: study._trained(arm, 0, "cpu") for arm in arms}
    bounded = {arm: sum(isinstance(m, BoundedReLU) for m in net.modules()) for arm, net in nets.items()}
    assert bounded == {"none": 0, "FGSM retraining": 0, "distillation": 0, "bounded ReLU": 3, "plain retraining": 0}
    for net in nets.values():
        assert not net.training
        assert not any(p.requires_grad for p in net.parameters())
    own = [net.head.weight for net in nets.values()]  # type: ignore[union-attr]
    assert all(not torch.equal(a, b) for i, a in enumerate(own) for b in own[:i])  # type: ignore[arg-type]


def test_a_step_is_kept_by_a_coin_and_is_that_of_fgsm(tiny: None) -> None:
    from assay.methods.attack.fgsm import fgsm

    net, data = study._trained("none", 0, "cpu"), liu2021_random._data("cpu")["train"]
    x, y = data.x[:20], data.y[:20]
    rng, kept = torch.Generator().manual_seed(0), []
    for _ in range(20):
        before = rng.get_state()
        moved, _ = study._stepped(net, x, y, rng)
        net.eval()
        coin, size = torch.rand(2, generator=torch.Generator().set_state(before)).tolist()
        radius = study.LEAST + size * (study.LARGEST - study.LEAST)
        step = fgsm(net, x, y, radius=radius, as_published=True).x
        kept.append(coin < 0.5)
        torch.testing.assert_close(moved, x if kept[-1] else step)
    assert 0 < sum(kept) < 20


def test_single_steps_are_compared_with_as_long_a_plain_training(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = set()

    def under(arm: str, *rest: Any) -> Any:
        asked.add(arm)
        return np.full(400, 0.5)

    monkeypatch.setattr(study, "_under", under)
    monkeypatch.setattr(study, "_trained", lambda *a: None)
    usual(monkeypatch, 1.0)
    study.single_steps_fail(run)
    assert asked == {"FGSM retraining", "plain retraining"}


def usual(monkeypatch: pytest.MonkeyPatch, clean: float) -> None:
    """The undefended net has this accuracy on clean images."""
    gate = over.gate("The clean accuracy of the undefended net", [np.full(400, clean)] * 5, None, study.USUAL)
    monkeypatch.setattr(study, "_usual", lambda run: gate)


def made_up(**right: Any) -> Any:
    def under(arm: str, way: str, radius: float, seed: int, device: str) -> Any:
        wobble = 1e-3 * np.sin(np.arange(400.0) + len(arm))
        defended = arm not in ("none", "plain retraining")
        return np.full(400, right[way.replace(" ", "_").replace("-", "_")][defended]) + wobble

    return under


@pytest.mark.parametrize(
    ("weak", "strong", "verdict"),
    [
        ((0.1, 0.7), (0.0, 0.01), "holds"),
        ((0.1, 0.7), (0.0, 0.3), "cannot tell"),  # some of it stays: how much is little, print does not say
        ((0.1, 0.7), (0.0, 0.7), "fails"),  # nothing is taken
        ((0.1, 0.05), (0.0, 0.01), "fails"),  # there is nothing to take
        ((0.1, 0.15), (0.0, 0.01), "cannot tell"),  # nothing was gained that could be lost
    ],
)
def test_verdicts_of_what_a_stronger_attack_leaves(
    weak: Any, strong: Any, verdict: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(study, "_under", made_up(one_step=weak, cross_entropy=weak, margin=strong))
    monkeypatch.setattr(study, "_trained", lambda *a: None)
    usual(monkeypatch, 1.0)
    assert study.single_steps_fail(run).verdict == verdict
    assert study.distillation_fails(run).verdict == verdict
    usual(monkeypatch, 0.5)
    assert ruled(study, "single-steps-fail", study.single_steps_fail(run)).verdict == "cannot tell"


@pytest.mark.parametrize(("left", "verdict"), [(0.1, "holds"), (0.3, "cannot tell"), (0.5, "fails")])
def test_verdicts_against_c(left: float, verdict: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wobble = 1e-3 * np.sin(np.arange(400.0))

    def found(arms: Any, run: Any) -> Any:
        one = study._Swept(np.full(400, 0.9), (wobble,) * 3, (0.6 + wobble, 0.6 + wobble, left + wobble))
        return {arm: [one] * 5 for arm in arms}

    monkeypatch.setattr(study, "_all", found)
    usual(monkeypatch, 0.9)
    assert study.against_c(None).verdict == verdict  # type: ignore[arg-type]
