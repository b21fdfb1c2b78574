"""The snapshot ensemble: its rate, and which weights it keeps."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.testing import assert_close

from assay.errors import AssayError
from assay.methods.train.fit import fit, reset
from assay.methods.train.snapshot import fit_snapshots


@dataclass(frozen=True)
class Held:
    x: Tensor
    y: Tensor

    def __len__(self) -> int:
        return len(self.x)

    def take(self, index: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        return self.x[index], self.y[index]


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


ONES = Held(torch.ones(12, 1, dtype=torch.float64), torch.zeros(12, dtype=torch.int64))


def test_the_rate_is_the_printed_one_and_each_cycle_ends_in_a_member() -> None:
    """On the loss -w every step is exactly as long as the rate."""
    at: list[float] = []

    def loss(out: Tensor, y: Tensor) -> Tensor:
        at.append(out[0].item())
        return -out.mean()

    line = nn.Linear(1, 1, bias=False).double()
    lr, epochs, batches, members = 0.3, 6, 4, 3
    nets = fit_snapshots(line, ONES, members=members, epochs=epochs, lr=lr, batch=3, momentum=0, loss=loss, rng=rng())
    total = epochs * batches
    cycle = math.ceil(total / members)
    rates = [lr / 2 * (math.cos(math.pi * ((t - 1) % cycle) / cycle) + 1) for t in range(1, total + 1)]
    walked = np.append(at, nets[-1].get_parameter("weight").item())
    assert_close(torch.tensor(np.diff(walked)), torch.tensor(rates, dtype=torch.float64))
    assert rates[0] == rates[cycle] == lr
    assert rates[cycle - 1] < 0.05 * lr
    ends = [net.get_parameter("weight").item() for net in nets]
    assert ends == pytest.approx([walked[cycle], walked[2 * cycle], walked[3 * cycle]])
    assert len(at) == total


def test_epochs_that_do_not_divide_go_to_the_first_cycles() -> None:
    said: list[int] = []
    nets = fit_snapshots(
        nn.Linear(1, 2).double(), ONES, members=3, epochs=7, lr=0.1, rng=rng(),
        on_epoch=lambda epoch, loss: said.append(epoch),
    )  # fmt: skip
    assert said == [1, 2, 3, 1, 2, 1, 2]
    assert len(nets) == 3


def test_one_snapshot_is_a_plain_training_and_the_model_stays() -> None:
    model = nn.Sequential(nn.Linear(1, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).double()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    data = Held(torch.randn(20, 1, generator=rng(1), dtype=torch.float64), torch.arange(20) % 2)
    (net,) = fit_snapshots(model, data, members=1, epochs=3, lr=0.1, batch=5, rng=rng())
    stream = rng()
    plain = reset(model, stream)
    fit(plain, data, epochs=3, lr=0.1, batch=5, rng=stream)
    assert_close(dict(net.state_dict()), dict(plain.state_dict()), rtol=0, atol=0)
    assert_close(dict(model.state_dict()), before, rtol=0, atol=0)


def test_too_few_epochs_and_no_member_are_refused() -> None:
    with pytest.raises(AssayError, match="2 epochs have no room for 3 cycles; train for at least 3"):
        fit_snapshots(nn.Linear(1, 2), ONES, members=3, epochs=2, lr=0.1, rng=rng())
    with pytest.raises(AssayError, match="members=0"):
        fit_snapshots(nn.Linear(1, 2), ONES, members=0, epochs=2, lr=0.1, rng=rng())
