"""A tiny trained-looking network in each form that a user may bring, made once: exports take seconds."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn


class Tiny(nn.Module):
    """Convolution, batch norm, dropout and a constant: what an export must carry over. n 1 8 8 -> n 3."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.drop, self.head = nn.Dropout(0.5), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        z = nn.functional.adaptive_avg_pool2d(self.norm(self.conv(x)).relu(), 2).flatten(1)
        out: Tensor = self.head(self.drop(z)) + torch.tensor([0.5, 0.0, -0.5])
        return out


@dataclass(frozen=True)
class Forms:
    """The network itself, inputs, and paths of its exports: for batches of any length, and of exactly four."""

    model: nn.Module
    x: Tensor  # 10 1 8 8
    npz: Path
    pt2: Path
    pt2_of_four: Path
    onnx: Path
    onnx_of_four: Path


@pytest.fixture(scope="session")
def forms(tmp_path_factory: pytest.TempPathFactory) -> Forms:
    folder = tmp_path_factory.mktemp("forms")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model, x = Tiny(), torch.rand(10, 1, 8, 8)
        with torch.no_grad():
            model(x)  # running statistics that are not 0 and 1
    model.eval()
    made = Forms(model, x, *(folder / name for name in ("data.npz", "any.pt2", "four.pt2", "any.onnx", "four.onnx")))
    np.savez(made.npz, x=x.numpy(), y=np.arange(10) % 3)
    batch = torch.export.Dim("batch")
    torch.export.save(torch.export.export(model, (x[:2],), dynamic_shapes=({0: batch},)), made.pt2)
    torch.export.save(torch.export.export(model, (x[:4],)), made.pt2_of_four)
    pytest.importorskip("onnx")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the older exporter, said to be deprecated, is forty times as fast
        torch.onnx.export(
            model, (x[:2],), made.onnx, dynamo=False, input_names=["image"], dynamic_axes={"image": {0: "batch"}}
        )
        torch.onnx.export(model, (x[:4],), made.onnx_of_four, dynamo=False)
    return made
