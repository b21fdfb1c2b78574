"""A setting that is a share of a value's range means the same whatever that range is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from assay import shelf
from assay.data.column import Column
from assay.inputs.row import Row
from assay.remedies.mmf import Mmf
from assay.run import Run
from assay.subject import Subject

# what is large enough to move the weights of one short epoch
REMEDIES: dict[str, dict[str, Any]] = {
    "rse": {"draws": 2}, "adv-bnn": {"steps": 2, "draws": 2}, "neural-sde": {"width": 4, "grid": 1.0, "draws": 2},
    "pgd-training": {"steps": 2}, "fgsm-training": {"clean": 0.0}, "trades": {"steps": 2}, "mart": {"steps": 2},
    "universal-adversarial-training": {}, "gaussian-training": {}, "defensive-distillation": {}, "bounded-relu": {},
    "localnorm": {"groups": 2, "mode": "batch"}, "channel-capacity": {"mic": 0.05}, "typicality-curriculum": {},
    "riap-padding": {}, "mmf": {"trees": ('{"a": ["0"], "b": ["1", "2"]}',)},
}  # fmt: skip


class Scaled(nn.Module):
    """The same net for inputs that lie from `low` on in a range so wide."""

    def __init__(self, low: float, span: float) -> None:
        super().__init__()
        self.low, self.span = low, span
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.net = nn.Sequential(
                nn.Conv2d(1, 2, 3, padding=1), nn.BatchNorm2d(2), nn.ReLU(), nn.Conv2d(2, 2, 3, padding=1), nn.ReLU(),
                nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8, 3),
            )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.net((x - self.low) / self.span)
        return out


def subject_in(low: float, span: float) -> Subject:
    y = torch.arange(48) % 3
    x = torch.rand(48, 1, 4, 4, generator=torch.Generator().manual_seed(0)) / 2 + y.view(-1, 1, 1, 1) / 6
    x = low + span * x
    return Subject.classifier(
        Scaled(low, span).eval(), {"train": (x[:24], y[:24]), "test": (x[24:], y[24:])}, bounds=(low, low + span),
        classes=("0", "1", "2"), name="few",
    )  # fmt: skip


@pytest.mark.parametrize("name", REMEDIES)
def test_a_training_ends_at_the_same_weights_in_any_range(name: str, run: Run) -> None:
    """256 is a power of two, so that nothing but what mistakes the range tells the trainings apart."""
    remedy = shelf.load("remedies", name)(epochs=1, batch=12, lr=0.01, **REMEDIES[name])
    weights = []
    below = 0.0 if name == "typicality-curriculum" else -128.0  # it compares inputs by their angle, seen from 0
    for low, span in ((0.0, 1.0), (below, 256.0)):
        subject = subject_in(low, span)
        assert remedy.why_not(subject) is None
        weights.append(dict(remedy.apply(subject, run).model.named_parameters()))
    for key, value in weights[0].items():
        assert_close(weights[1][key], value, rtol=1e-4, atol=1e-5, msg=lambda says, key=key: f"{key}: {says}")


def test_a_tree_of_inputs_compares_them_in_shares_of_each_columns_range(run: Run) -> None:
    """Classes 0 and 1 are alike in three columns; the fourth, once a thousand times as wide, likens 1 to 2."""
    y = torch.arange(60) % 3
    draw = torch.Generator().manual_seed(0)
    x = torch.cat([(y == 2).float()[:, None].expand(-1, 3), (y == 0).float()[:, None] / 2], 1)
    x = 0.1 + 0.6 * x + 0.05 * torch.rand(60, 4, generator=draw)
    found = []
    for wide in (1.0, 1000.0):
        span = torch.tensor([1.0, 1.0, 1.0, wide])
        kind = Row(tuple(Column(f"c{i}", "number", 0.0, float(s), float(s) / 2) for i, s in enumerate(span)))
        data = {"train": (x * span, y), "test": (x * span, y)}
        bounds = [0.0] * 4, span.tolist()
        subject = replace(Subject.classifier(nn.Linear(4, 3).eval(), data, bounds=bounds, name="rows"), kind=kind)
        remedy = Mmf(trees=("inputs",), groups=2)
        (tree,) = remedy._trees(subject, run)
        found.append(tree.group_of().tolist())
    assert found[0] == found[1]
    assert found[0][0] == found[0][1] != found[0][2]
