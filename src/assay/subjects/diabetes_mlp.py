"""Regression with a spread: a dense network says how far a disease will go, and how far off it may be."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from assay.data.diabetes import COLUMNS, load_diabetes
from assay.data.digits import weights
from assay.inputs import Column, Row
from assay.subject import Recipe, Subject
from assay.tasks import Regression

TOLERANCE = 60.0  # of a scale that goes from 25 to 346


class DiabetesMLP(nn.Module):
    """10 - 16 - 16 - 2 with ReLUs: a mean and a standard deviation, behind (x - mean) / std of the columns."""

    def __init__(self) -> None:
        super().__init__()
        self.columns = tuple(COLUMNS)
        self.mean: Tensor
        self.std: Tensor
        self.unit: Tensor
        self.register_buffer("mean", torch.zeros(len(COLUMNS)))
        self.register_buffer("std", torch.ones(len(COLUMNS)))
        self.register_buffer("unit", torch.tensor([0.0, 1.0]))  # mean and standard deviation of the targets
        self.model = nn.Sequential(
            nn.Linear(len(COLUMNS), 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 2)
        )

    def forward(self, x: Tensor) -> Tensor:  # n 10 -> n 2 1
        value, width = self.model((x - self.mean) / self.std).unbind(1)
        return (torch.stack([value, softplus(width)], 1) * self.unit[1] + self.unit * torch.eye(2)[0])[..., None]


def task() -> Regression:
    return Regression(("progression",), (TOLERANCE,), spread=True)


def build() -> Subject:
    """The network with its weights and the patients that it was trained and is tested on."""
    model = DiabetesMLP()
    model.load_state_dict(weights("diabetes_mlp"))
    return Subject.of(
        model.eval(),
        {part: tuple(rows) for part, rows in load_diabetes().items()},
        task(),
        name="diabetes-mlp",
        kind=Row(tuple(Column(name, "number", 0.0, 1.0, 0.5) for name in COLUMNS)),
        about="A dense network with 32 ReLUs that says a mean and a spread, trained on 300 patients; closeness "
        "0.3915 on the 142 test patients, where 60 points of progression off is worth nothing. A column's values are "
        "shares of its range.",
    )


SHELVED = Recipe(
    says="A regression with a spread on a table: ten measurements of 442 patients, and how far the disease went",
    source="Efron et al. 2004, doi:10.1214/009053604000000067",
    build=build,
)
