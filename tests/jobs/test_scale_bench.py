"""The bench of audits with a time limit can fail: a miss of what it promises is seen, and told by its status."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from types import ModuleType

import pytest
from benches import bench_called

from assay.finding import Finding
from assay.jobs.audit import rounds


@pytest.fixture(scope="module")
def bench() -> Iterator[ModuleType]:
    with bench_called("scale") as module, pytest.MonkeyPatch.context() as patch:
        patch.setattr(rounds, "contention", rounds.contention)  # which it sets
        yield module


def half_of_one_look(finding: Finding, error: float) -> Finding:
    """Intervals that settle a third of all verdicts whose truth is the limit, at the first look."""
    measures = [
        replace(m, low=(m.low + m.value) / 2, high=(m.high + m.value) / 2)
        for m in finding.measures
        if m.value is not None and m.low is not None and m.high is not None
    ]
    return replace(finding, measures=tuple(measures))


def test_verdicts_by_chance_are_seen(
    bench: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench.by_chance(range(1), "30s")
    monkeypatch.setattr(rounds, "over_looks", half_of_one_look)
    assert not bench.by_chance(range(1), "30s")
    assert re.search(r"proportions .* MISSED", capsys.readouterr().out)


@pytest.mark.parametrize("kept", [True, False])
def test_a_limit_that_is_missed_is_told_by_the_status(
    bench: ModuleType, monkeypatch: pytest.MonkeyPatch, kept: bool
) -> None:
    asked: list[tuple[int, float]] = []
    monkeypatch.setattr(bench, "BUDGETS", {"quick": bench.BUDGETS["quick"]})
    monkeypatch.setattr(bench, "TIMES", ("30s",))
    monkeypatch.setattr(bench, "at_most", lambda *told: kept)
    monkeypatch.setattr(bench, "at_least", lambda *told: True)
    simulated = bench.Simulated

    def noted(seed: int, spread: float) -> object:
        asked.append((seed, spread))
        return simulated(seed, spread)

    monkeypatch.setattr(bench, "Simulated", noted)
    with pytest.raises(SystemExit) as ended:
        bench.main(["anytime", "--seeds", "1000", "1", "--spread", "0.2"])
    assert bool(ended.value.code) != kept
    assert set(asked) == {(1000, 0.2), (1000, 0.0)}
