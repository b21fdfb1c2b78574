"""A table with people behind its rows: who is hired? Made by code, so that it is known who was wronged and how."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from assay.attribute import Attribute
from assay.data.arrays import Arrays
from assay.data.column import ColumnType
from assay.data.digits import weights
from assay.data.hiring import CLASSES, COLUMNS, ORIGIN, SEX, Applications, load_applications
from assay.inputs import Column, Row
from assay.subject import Recipe, Subject


class HiringMLP(nn.Module):
    """Numbers as shares of their range and the origin one by one, then 8 - 16 - 16 - 2 with ReLUs; in natural units."""

    def __init__(self) -> None:
        super().__init__()
        self.columns = tuple(COLUMNS)
        self.low: Tensor
        self.span: Tensor
        low, high = torch.tensor([COLUMNS[name] for name in self.columns[:-1]]).T
        self.register_buffer("low", low, persistent=False)
        self.register_buffer("span", high - low, persistent=False)
        wide = len(COLUMNS) - 1 + len(ORIGIN)
        self.model = nn.Sequential(nn.Linear(wide, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 2))

    def forward(self, x: Tensor) -> Tensor:  # n 6 -> n 2
        origin = one_hot(x[:, -1].round().long().clamp(0, len(ORIGIN) - 1), len(ORIGIN))
        logits: Tensor = self.model(torch.cat([(x[:, :-1] - self.low) / self.span, origin.to(x.dtype)], 1))
        return logits


def _column(name: str) -> Column:
    low, high = COLUMNS[name]
    if name == "origin":
        return Column(name, "category", low, high, 0.0, categories=ORIGIN)
    kind: ColumnType = "number" if name == "test" else "boolean" if name == "club" else "integer"
    return Column(name, kind, low, high, (low + high) // 2)


def subject_of(model: nn.Module, splits: dict[str, Applications], name: str = "hiring-mlp", about: str = "") -> Subject:
    """Any model of such applications, with its people."""
    return Subject.of(
        model.eval(),
        {part: Arrays(each.x, each.hired, CLASSES) for part, each in splits.items()},
        name=name,
        kind=Row(tuple(_column(column) for column in COLUMNS)),
        classes=CLASSES,
        bounds=([low for low, _ in COLUMNS.values()], [high for _, high in COLUMNS.values()]),
        about=about,
        attributes={
            "sex": Attribute("sex", SEX, {part: each.sex for part, each in splits.items()}),
            "origin": Attribute("origin", ORIGIN, {part: each.origin for part, each in splits.items()}),
        },
    )


def build() -> Subject:
    """The network with its weights and the applications that it was trained and is tested on."""
    model = HiringMLP()
    model.load_state_dict(weights("hiring_mlp"))
    return subject_of(
        model,
        load_applications(),
        about="A dense network with 32 ReLUs, trained on 4,000 applications made by code whose labels wrong women and "
        "whoever comes from far away; right on 0.7947 of the 3,000 test applications.",
    )


SHELVED = Recipe(
    says="Who is hired: applications made by code, with sex and origin of the people and a bias that is known",
    source="Made by assay.data.hiring",
    build=build,
)
