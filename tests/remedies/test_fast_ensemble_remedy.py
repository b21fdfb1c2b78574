from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from assay.errors import AssayError
from assay.jobs.cure import cure
from assay.methods.train.fit import reset
from assay.nn.members import Ensemble
from assay.probe import configure
from assay.remedies import fast_ensemble as module
from assay.remedies.fast_ensemble import FastEnsemble
from assay.run import Run
from assay.subject import Subject


def test_its_first_member_is_the_subject_s_own_net(digits: Subject, run: Run) -> None:
    before = {k: v.clone() for k, v in digits.model.state_dict().items()}
    cured, again = (FastEnsemble(members=3).apply(digits, run) for _ in range(2))
    assert all(torch.equal(v, before[k]) for k, v in digits.model.state_dict().items())
    assert cured.origin == ("fast-ensemble",)
    assert isinstance(cured.model, Ensemble)
    assert not any(net.training for net in cured.model.nets)
    x, y = cured.data["test"].take(np.arange(300))
    each = cured.model.members(x)
    torch.testing.assert_close(each[0], digits.predict(x))
    assert not torch.equal(each[1], each[2])
    assert torch.equal(cured.predict(x), again.predict(x))
    assert float((each.argmax(-1) == y).float().mean(1).min()) > 0.85


def test_near_clones_are_told(digits: Subject, run: Run) -> None:
    still = FastEnsemble(members=3, epochs=1, lr=1e-7)
    cured = still.apply(digits, run)
    (told,) = still.remarks(cured, run)
    assert "On 100 inputs two of its 3 members answer differently in 0.0 % of cases" in told
    assert told.endswith("They are near-clones: what one gets wrong they all get wrong.")
    apart = replace(digits, model=Ensemble([digits.model, reset(digits.model, run.rng())]))
    assert "near-clones" not in still.remarks(apart, run)[0]
    (alone,) = still.remarks(replace(digits, model=Ensemble([digits.model])), run)
    assert "one member" in alone


def test_chain_and_guard_reach_the_method(digits: Subject, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[object, object]] = []

    def watched(seed: torch.nn.Module, data: object, **given: object) -> list[torch.nn.Module]:
        seen.append((given["chain"], given["guard"]))
        return [seed]

    monkeypatch.setattr(module, "fast_ensemble", watched)
    for remedy in (FastEnsemble(), configure(FastEnsemble, {"chain": "true", "guard": "2.5"})):
        remedy.apply(digits, run)
    assert seen == [(False, None), (True, 2.5)]
    for guard in (-1.0, float("nan")):
        with pytest.raises(AssayError, match=f"guard={guard} is no loss"):
            FastEnsemble(guard=guard).apply(digits, run)


@pytest.mark.parametrize(("share", "members"), [(0.06, 5), (0.04, 3)])
def test_its_cost_is_that_of_the_steps_it_takes(
    digits: Subject, run: Run, monkeypatch: pytest.MonkeyPatch, share: float, members: int
) -> None:
    seen: dict[str, int] = {}

    def watched(seed: torch.nn.Module, data: object, *, members: int, escape: int, settle: int, **rest: object) -> list:  # type: ignore[type-arg]
        seen.update(members=members, escape=escape, settle=settle)
        return [seed] * members

    monkeypatch.setattr(module, "fast_ensemble", watched)
    remedy = FastEnsemble(share=share, members=members, epochs=100)
    remedy.apply(digits, run)
    whole = 100 * 10  # 1,200 inputs in batches of 128
    cost = remedy.cost()
    assert cost is not None
    assert cost.inference == members
    assert cost.training == pytest.approx((members - 1) * share)
    assert (seen["members"] - 1) * (seen["escape"] + seen["settle"]) / whole == pytest.approx(cost.training, rel=0.02)


def test_a_member_that_costs_a_training_or_nothing_is_refused(digits: Subject, run: Run) -> None:
    for share in (0.0, -0.1, 3.0):
        with pytest.raises(AssayError, match=f"share={share} of a training"):
            FastEnsemble(share=share).apply(digits, run)
    without = replace(digits, data={"test": digits.data["test"]})
    assert "no split 'train'" in (FastEnsemble().why_not(without) or "")


@pytest.mark.usefixtures("undrawn")
def test_a_cure_is_kept_and_reloads_without_training(
    digits: Subject, tmp_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = cure("fast-ensemble", digits, settings={"members": 2, "epochs": 10}, probes=["accuracy"], out=tmp_path)
    assert "0.1 times the plain training and 2 times the plain answer" in first.price
    monkeypatch.setattr(FastEnsemble, "apply", None)  # not called again: the weights were kept
    again = cure("fast-ensemble", digits, settings={"members": 2, "epochs": 10}, probes=["accuracy"], out=tmp_path)
    assert again.after.subject.fingerprint == first.after.subject.fingerprint
