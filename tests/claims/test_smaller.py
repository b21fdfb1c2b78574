"""How studies of smaller networks are judged: what counts as the same, as worse, and as not print's network."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from torch import nn

from assay.claim import judged
from assay.claims import _over_seeds as over
from assay.claims import _smaller as smaller
from assay.claims import qiu2021_fading as fading
from assay.claims import zhang2021_slimming as slimming
from assay.finding import Measure
from assay.run import Run


def gap(value: float, seeds: tuple[float, ...] | None = None, half: float = 0.001) -> over.Gap:
    measure = Measure(name="gap", value=value, low=value - half, high=value + half, better="higher", n=9)
    return over.Gap(measure, np.array(seeds or (value,) * 3))


def test_the_same_is_within_a_margin_in_every_seed() -> None:
    assert smaller.same(0.005, gap(0.001), gap(-0.002)) == "holds"
    assert smaller.same(0.005, gap(0.001), gap(0.0045)) == "cannot tell"  # its interval leaves the margin
    assert smaller.same(0.005, gap(0.001, (0.001, -0.004, 0.006))) == "cannot tell"
    assert smaller.same(0.005, gap(0.0), gap(-0.02)) == smaller.same(0.005, gap(0.02)) == "fails"
    assert smaller.same(0.005, gap(0.02, (0.05, 0.006, 0.004))) == "cannot tell"


def test_trust_is_lost_where_one_of_three_is_clearly_worse() -> None:
    assert smaller.no_worse(smaller.Kept(gap(0.0), gap(0.01), gap(-0.0005))) == "holds"
    assert smaller.no_worse(smaller.Kept(gap(0.0), gap(-0.002), gap(0.1))) == "fails"
    assert smaller.no_worse(smaller.Kept(gap(0.0, half=0.02), gap(0.0), gap(0.0))) == "cannot tell"


def answers(share: float, seed: int) -> Any:
    return (np.random.default_rng(seed).permutation(1000) < 1000 * share).astype(np.float64)


def small(share: float, seed: int) -> fading._Small:
    return fading._Small(nn.Identity(), answers(share, seed), np.full(4, share), share)


@pytest.mark.parametrize(
    ("highest", "whole", "verdict"), [(0.91, 0.93, "holds"), (0.6, 0.93, "fails"), (0.91, 0.9, "cannot tell")]
)
def test_a_choice_that_costs_points_matters_and_a_weak_network_tells_nothing(
    highest: float, whole: float, verdict: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    shares = {"last": 0.91, "lowest-l1": 0.91, "highest-l1": highest}
    monkeypatch.setattr(
        fading, "_all", lambda arms, run: {arm: [small(shares[arm], seed) for seed in range(3)] for arm in arms}
    )
    monkeypatch.setattr(fading, "_whole", lambda run: [answers(whole, seed) for seed in range(3)])
    claim = next(c for c in fading.SHELVED if c.name == "choice-does-not-matter")
    evidence = judged(claim, fading.choice(run))
    assert evidence.verdict == verdict
    assert ("The networks are not those in print" in evidence.says) == (whole < fading.LEAST)
    assert [m.name for m in evidence.measures[:2]] == ["accuracy, whole", "accuracy, last"]


@pytest.mark.parametrize(("faded", "once", "verdict"), [(0.8, 0.9, "holds"), (0.9, 0.8, "fails"), (1.1, 1.2, "fails")])
def test_filters_come_nearer_only_where_they_do_so_more_than_without_a_teacher(
    faded: float, once: float, verdict: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {"last": [small(faded, s) for s in range(3)], "at once": [small(once, s) for s in range(3)]}
    monkeypatch.setattr(fading, "_all", lambda arms, run: {arm: found[arm] for arm in arms})
    monkeypatch.setattr(fading, "_whole", lambda run: [answers(0.93, 0)])
    assert fading.transfer(run).verdict == verdict


@pytest.fixture
def slimmed(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Each step is ahead, the more the later the round; the arms' FLOPs in the last are as given."""

    def put(flops: Sequence[int] = (22, 22, 22, 22)) -> None:
        def rounds(arm: slimming.Arm, seed: int) -> slimming._Rounds:
            place = slimming.ARMS.index(arm)
            rights = [answers(0.93 - 0.1 * at + 0.05 * at * place, seed) for at in range(4)]
            sizes: dict[slimming.Size, list[int]] = {
                "channels": [100, 61, 37, 25], "parameters": [100, 40, 20, 10], "FLOPs": [100, 60, 36, flops[place]],
            }  # fmt: skip
            return slimming._Rounds(rights, [], sizes, {"gamma": 0.5, "sum": 0.3, "mean": 0.4}, 0.1)

        monkeypatch.setattr(
            slimming, "_all", lambda arms, run: {arm: [rounds(arm, s) for s in range(3)] for arm in arms}
        )

    monkeypatch.setattr(smaller, "base", lambda *a: None)
    monkeypatch.setattr(smaller, "right", lambda net, device: answers(0.93, 0))
    return put


def test_other_data_than_prints_give_no_verdict_on_slimming(
    slimmed: Callable[..., None], run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    slimmed()
    for test in (slimming.one_by_one, slimming.grows, slimming.flatter):
        evidence = test(run)
        assert evidence.verdict == "cannot tell"
        assert evidence.says.endswith("which are not print's, it holds.")
    assert "of the channels, slimming 25.0 %, +R 25.0 %" in slimming.one_by_one(run).says  # counted, not 0.6 ** 3
    monkeypatch.setattr(smaller, "right", lambda net, device: answers(0.9, 0))
    assert slimming.grows(run).says.endswith("nothing can be told either.")


def test_a_larger_network_is_not_ahead_by_its_score(slimmed: Callable[..., None], run: Run) -> None:
    slimmed((25, 26, 26, 27))  # neighbours within 5 %, the ends 8 % apart
    assert slimming.one_by_one(run).says.endswith("it holds.")
    told = slimming.grows(run).says
    assert "The arms are not of one size: in a seed +R+S+C and slimming by 8 % of FLOPs after round 3." in told
    assert told.endswith("nothing can be told either.")
    slimmed((30, 22, 22, 22))  # the smaller one is ahead: that it is smaller is no reason either
    assert "+R and slimming by 36 % of FLOPs" in slimming.one_by_one(run).says


def test_arms_differ_by_one_thing_at_a_time() -> None:
    assert [slimming._how(arm) for arm in slimming.ARMS] == [
        ("gamma", 1.0, "off"), ("sum", 1.0, "off"), ("sum", 1.0, "paper"), ("sum", 0.0, "paper"),
    ]  # fmt: skip
