"""Verdicts of the studies of gates on made-up networks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from small_studies import ruled
from torch import nn

from assay.claims import passov2021_gator as study
from assay.run import Run

Left = Mapping[str, tuple[float, float, float]]  # of FLOPs, memory and seconds


def made_up(monkeypatch: pytest.MonkeyPatch, left: Left, right: Mapping[str, float], whole: float = 0.95) -> None:
    coin = np.random.default_rng(0).random((3, 4000))

    def all_(prices: Any, run: Run) -> dict[str, list[study._Small]]:
        return {
            p: [
                study._Small(
                    nn.Identity(),
                    (coin[s] < right.get(p, whole)).astype(float),
                    dict(zip(("flops", "memory", "latency"), np.array(left[p]) + 0.01 * s, strict=True)),
                )
                for s in range(3)
            ]
            for p in prices
        }

    monkeypatch.setattr(study, "_all", all_)
    monkeypatch.setattr(study, "_whole", lambda run: [(coin[s] < whole).astype(float) for s in range(3)])


PRINTED: Left = {"flops": (0.57, 0.66, 0.69), "memory": (0.67, 0.57, 0.8), "latency": (0.6, 0.7, 0.61)}


def test_as_printed_all_hold(monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    made_up(monkeypatch, PRINTED, {"flops": 0.948, "memory": 0.949})
    assert study.own_best(run).verdict == "holds"
    assert study.memory_stays(run).verdict == "holds"
    told = study.seconds_best(run)
    assert told.verdict == "cannot tell"  # whatever it finds: print's images are ImageNet's
    assert told.says.endswith("it holds.")


def test_the_other_way_round_they_fail(monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    turned = {"flops": PRINTED["memory"], "memory": PRINTED["flops"], "latency": (0.9, 0.9, 0.95)}
    made_up(monkeypatch, turned, {})
    assert study.own_best(run).verdict == "fails"
    assert study.memory_stays(run).verdict == "fails"
    assert study.seconds_best(run).says.endswith("it fails.")


def test_nothing_is_told_of_networks_that_are_not_as_accurate(monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    made_up(monkeypatch, PRINTED, {"memory": 0.9, "latency": 0.9})
    told = study.own_best(run)
    assert told.verdict == "cannot tell"
    assert "not nearly equal" in told.says
    assert study.memory_stays(run).verdict == "holds"  # which is about one network at a time
    assert "nothing can be told either" in study.seconds_best(run).says


def test_nor_where_it_cannot_be_told_whether_they_are(monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    made_up(monkeypatch, PRINTED, {"memory": 0.94, "latency": 0.94})  # a point behind, give or take
    for test in (study.own_best, study.seconds_best):
        told = test(run)
        assert told.verdict == "cannot tell"
        assert "Whether that is nearly equal cannot be told." in told.says
        assert not told.says.endswith("it holds.")


def test_nor_where_the_whole_network_is_not_prints(monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    made_up(monkeypatch, PRINTED, {}, whole=0.9)
    for name, test in (("own-price-best", study.own_best), ("memory-stays", study.memory_stays)):
        told = ruled(study, name, test(run))
        assert told.verdict == "cannot tell"
        assert "not those in print" in told.says
    told = study.seconds_best(run)
    assert "% in the seeds, not between 92 and 100 %" in told.says
    assert "nothing can be told either" in told.says
