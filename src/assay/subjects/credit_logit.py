"""One logit on a table with categories: will a loan fail? The table is made by code, so what matters is known."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from assay.data.arrays import Arrays
from assay.data.column import ColumnType
from assay.data.credit import CATEGORIES, CLASSES, COLUMNS, load_loans
from assay.data.digits import weights
from assay.inputs import Column, Row
from assay.subject import Recipe, Subject


class CreditLogit(nn.Module):
    """Numbers as shares of their range and categories one by one, then 13 - 24 - 24 - 1 with ReLUs; in natural units.

    A category is its number, rounded: between two numbers its column has no gradient.
    """

    def __init__(self) -> None:
        super().__init__()
        self.columns = tuple(COLUMNS)
        self.low: Tensor
        self.span: Tensor
        self.numbers = len(COLUMNS) - len(CATEGORIES)  # which come first
        low, high = torch.tensor(list(COLUMNS.values())[: self.numbers]).T
        self.register_buffer("low", low, persistent=False)
        self.register_buffer("span", high - low, persistent=False)
        wide = self.numbers + sum(map(len, CATEGORIES.values()))
        self.model = nn.Sequential(nn.Linear(wide, 24), nn.ReLU(), nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, 1))

    def forward(self, x: Tensor) -> Tensor:  # n 8 -> n 1
        parts = [(x[:, : self.numbers] - self.low) / self.span]
        for place, names in enumerate(CATEGORIES.values(), self.numbers):
            number = x[:, place].round().long().clamp(0, len(names) - 1)
            parts.append(one_hot(number, len(names)).to(x.dtype))
        logit: Tensor = self.model(torch.cat(parts, 1))
        return logit


def _column(name: str) -> Column:
    (low, high), words = COLUMNS[name], CATEGORIES.get(name, ())
    kind: ColumnType = "category" if words else "number" if name in ("income", "amount") else "integer"
    return Column(name, kind, low, high, 0.0 if words else (low + high) // 2, categories=words)


def build() -> Subject:
    """The network with its weights and the loans that it was trained and is tested on."""
    model = CreditLogit()
    model.load_state_dict(weights("credit_logit"))
    return Subject.of(
        model.eval(),
        {part: Arrays(loans.x, loans.failed, CLASSES) for part, loans in load_loans().items()},
        name="credit-logit",
        kind=Row(tuple(_column(name) for name in COLUMNS)),
        classes=CLASSES,
        bounds=([low for low, _ in COLUMNS.values()], [high for _, high in COLUMNS.values()]),
        about="One logit on a table with two categories, trained on 4,000 loans made by code; right on 0.8250 of the "
        "1,000 test loans, where whoever knows the true chances is right on 0.8370.",
    )


SHELVED = Recipe(
    says="One logit on a table with categories: loans made by code, in which it is known what makes one fail",
    source="Made by assay.data.credit",
    build=build,
)
