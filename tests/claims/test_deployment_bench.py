"""What the benchmark of half the FLOPs tells, and in which order; with made-up seconds and nothing trained."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest
import torch
from benches import bench_called
from small_studies import made_small
from torch import Tensor, nn

from assay.claims import passov2021_gator
from assay.methods.compress.bill import bill
from assay.methods.compress.price import parameters

SMALL = ["half", "--gating", "1", "--again", "1", "--multiple", "1"]


@pytest.fixture(scope="module")
def bench() -> Iterator[ModuleType]:
    with bench_called("deployment") as module, made_small(passov2021_gator):
        yield module


@pytest.fixture
def run_half(
    bench: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[[float], tuple[Any, str]]:
    """What it ends with and prints where starting a network takes so much of the time of the whole one."""

    def run(starting: float) -> tuple[Any, str]:
        layouts: set[bool] = set()

        def in_turns(nets: dict[str, nn.Module], x: Tensor, device: str, **how: Any) -> dict[str, float]:
            for net in nets.values():
                layouts.update(p.is_contiguous(memory_format=torch.channels_last) for p in net.parameters()
                               if p.dim() == 4)  # fmt: skip
            most = parameters(nets["whole"])
            return {name: starting + (1 - starting) * parameters(net) / most for name, net in nets.items()}

        monkeypatch.setattr(bench, "in_turns", in_turns)
        monkeypatch.setattr(bench, "seconds", lambda net, found, x, place: bill(net, found, x[:1], "memory"))
        monkeypatch.setattr(passov2021_gator, "gate", lambda *a, **k: None)
        monkeypatch.setattr(passov2021_gator, "tuned", lambda net, *a, **k: bench.channels_last(net.eval()))
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        threads = torch.get_num_threads()
        try:
            bench.main(SMALL)
            ended: Any = 0
        except SystemExit as stop:
            ended = stop.code
        finally:
            torch.set_num_threads(threads)
        assert layouts == {True}  # networks are timed as they lie after a training
        return ended, capsys.readouterr().out

    return run


def test_half_of_the_flops_first_and_no_smaller_one_where_that_is_fast(run_half: Any) -> None:
    ended, out = run_half(0.0)
    assert ended == 1  # sixty images make no network of 90 %
    assert out.index("0.5 of the FLOPs") < out.index("times as fast")
    assert out.count("right after") == 1
    assert "Smaller" not in out


def test_then_the_smaller_network_that_is_fast_enough(run_half: Any) -> None:
    ended, out = run_half(0.4)
    assert ended == 1
    first, smaller = out.split("Smaller, seconds on cpu priced:")
    assert "1.5: MISSED" in first
    assert "1.5: kept" in smaller
    left = [float(part.split("FLOPs left")[1].split(",")[0]) for part in (first, smaller)]
    assert 0 < left[1] < left[0] <= 0.5


def test_a_price_that_cannot_be_met_is_one_line(run_half: Any) -> None:
    ended, out = run_half(0.9)
    assert "The price cannot be met" in ended
    assert "\n" not in ended
    assert "1.5: MISSED" in out  # what half of the FLOPs gave is told before
