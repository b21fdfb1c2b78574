"""Kernels channels-last: the same answers, as they lay afterwards, and only where it was measured to pay."""

from __future__ import annotations

import platform
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.testing import assert_close

from assay.data.arrays import Arrays
from assay.engine.laid import laid, pays
from assay.jobs.audit import audit
from assay.subject import Subject


def net() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AvgPool2d(2), nn.Conv2d(8, 8, 3), nn.ReLU(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3),
        ).eval()  # fmt: skip


def test_inside_they_lie_channels_last_and_afterwards_where_they_lay() -> None:
    model, x = net(), torch.rand(5, 3, 12, 12, generator=torch.Generator().manual_seed(0))
    before, places = model(x), [p.data_ptr() for p in model.parameters()]
    with laid(model, True):
        assert model[0](x).is_contiguous(memory_format=torch.channels_last)
        assert_close(model(x), before)
    assert [p.data_ptr() for p in model.parameters()] == places
    assert all(p.is_contiguous() for p in model.parameters())
    assert torch.equal(model(x), before)
    with pytest.raises(RuntimeError), laid(model, True):
        model(x[0, 0])
    assert model[0].weight.is_contiguous()
    with laid(model, False):
        assert model[0](x).is_contiguous()


def test_what_was_learnt_meanwhile_stays_and_so_do_weights_that_were_put_in_their_place() -> None:
    model = net()
    first, last = model[0].weight, model[4].weight
    other = torch.full_like(last, 0.5)
    with laid(model, True):
        first.data += 1
        last.data = other
        learnt = first.detach().clone()
    assert first.is_contiguous()
    assert torch.equal(first, learnt)
    assert last.data_ptr() == other.data_ptr()


def test_weights_that_nobody_may_write_are_only_read(tmp_path: Path) -> None:
    """Of a file that is mapped into memory: whoever writes there is ended by the system. NaN is its own equal here."""
    model = net()
    model[0].weight.data[0, 0, 0, 0] = torch.nan
    model[0].weight.detach().numpy().tofile(tmp_path / "weights")
    held = np.memmap(tmp_path / "weights", dtype=np.float32, mode="r", shape=(8, 3, 3, 3))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch tells that they are not writable
        model[0].weight.data = torch.from_numpy(held)
    x = torch.rand(2, 3, 12, 12, generator=torch.Generator().manual_seed(0))
    with laid(model, True):
        inside = model[0](x)
    assert_close(inside, model[0](x), equal_nan=True)


@pytest.mark.parametrize(
    ("system", "vectors", "device", "so"),
    [
        ("x86_64", "AVX512", "cpu", True),
        ("x86_64", "AVX2", "cpu", False),
        ("aarch64", "DEFAULT", "cpu", False),
        ("x86_64", "AVX512", "cuda", False),
    ],
)
def test_it_is_done_where_it_was_measured(
    system: str, vectors: str, device: str, so: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: system)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: vectors)
    assert pays(device) is so


@pytest.mark.parametrize("reads", ["as it lies", "by strides"])
def test_an_audit_asks_so_where_it_finds_the_same(reads: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = torch.Generator().manual_seed(0)
    y = torch.arange(60) % 3
    data = {"test": Arrays(torch.rand(60, 3, 12, 12, generator=rng).numpy(), y.numpy())}
    seen: list[bool] = []

    class Watched(nn.Sequential):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if isinstance(x, torch.Tensor):  # and no tracer's
                seen.append(self[0].weight.is_contiguous())
            for part in self:
                x = part(x)
                if reads == "by strides" and x.ndim == 4:
                    rows = x[0, 0].numel()
                    x = x.as_strided(x.shape, (len(x[0]) * rows, rows, x.shape[3], 1))
            return x

    found: dict[bool, list[float | None]] = {}
    for so in (True, False):
        monkeypatch.setattr("assay.engine.laid.pays", lambda device, so=so: so)
        model = Watched(*net()).eval()
        seen.clear()
        done = audit(Subject.classifier(model, data, name="net"), probes=["accuracy", "everyday-change"])
        laid_so = so and reads == "as it lies"
        assert (seen.count(False) > len(seen) / 2) is laid_so  # that it can be asked so is tried in any case
        assert model[0].weight.is_contiguous()
        answers = [done.row(name).answer for name in ("accuracy", "everyday-change")]
        found[so] = [m.value for answer in answers if answer.finding for m in answer.finding.measures]
    assert len(found[True]) > 3
    assert found[True] == pytest.approx(found[False], abs=0.02)  # one of 60 may lie on a tie
