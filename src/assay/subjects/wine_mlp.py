"""A dense network on the rows of a table: thirteen measurements of a wine say which cultivar it was made from."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files

import numpy as np
import torch
from torch import Tensor, nn

from assay.data.arrays import Arrays
from assay.data.beside_sklearn import table
from assay.errors import ShapeError
from assay.subject import Recipe, Subject

CLASSES = ("cultivar 1", "cultivar 2", "cultivar 3")
COLUMNS: dict[str, tuple[float, float]] = {  # what each lies between, as recorded, rounded outwards
    "alcohol": (11.0, 15.0),
    "malic acid": (0.7, 5.8),
    "ash": (1.3, 3.3),
    "alcalinity of ash": (10.0, 30.0),
    "magnesium": (70.0, 165.0),
    "total phenols": (0.9, 3.9),
    "flavanoids": (0.3, 5.1),
    "nonflavanoid phenols": (0.1, 0.7),
    "proanthocyanins": (0.4, 3.6),
    "colour intensity": (1.2, 13.0),
    "hue": (0.4, 1.8),
    "OD280/OD315": (1.2, 4.0),
    "proline": (270.0, 1680.0),
}
TESTED = 60  # so that 118 are left to learn from


class WineMLP(nn.Module):
    """13 - 16 - 16 - 3 with ReLUs, behind (x - mean) / std; x is each column's share of its range, 0 to 1."""

    def __init__(self) -> None:
        super().__init__()
        self.columns = tuple(COLUMNS)
        self.lows = tuple(low for low, _ in COLUMNS.values())
        self.highs = tuple(high for _, high in COLUMNS.values())
        self.mean: Tensor
        self.std: Tensor
        self.register_buffer("mean", torch.zeros(len(COLUMNS)))
        self.register_buffer("std", torch.ones(len(COLUMNS)))
        self.model = nn.Sequential(
            nn.Linear(len(COLUMNS), 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, len(CLASSES))
        )

    def forward(self, x: Tensor) -> Tensor:  # n 13 -> n 3
        logits: Tensor = self.model((x - self.mean) / self.std)
        return logits

    def in_units(self, row: Tensor) -> tuple[float, ...]:  # 13 -> 13
        """The values of a row as they were recorded."""
        shares = row.double().tolist()
        return tuple(low + share * (high - low) for share, low, high in zip(shares, self.lows, self.highs, strict=True))

    def from_units(self, values: Sequence[float]) -> Tensor:  # 13 -> 13
        """A row from values as they are recorded."""
        if len(values) != len(self.columns):
            raise ShapeError(
                f"A row of {len(values)} values; this model reads {len(self.columns)}: {', '.join(self.columns)}."
            )
        low, high = torch.tensor(self.lows, dtype=torch.float64), torch.tensor(self.highs, dtype=torch.float64)
        return ((torch.tensor(values, dtype=torch.float64) - low) / (high - low)).float()


def load_wine() -> dict[str, Arrays]:
    """`train` (118) and `test` (60): rows n 13, each column as its share of the range in COLUMNS, by a fixed seed.

    Source: Aeberhard and Forina 1992, Wine (UCI), doi:10.24432/C5PC7J; the copy that comes with scikit-learn.
    """
    held = table("wine_data.csv", skip=1)  # 178 14: the measurements, and the cultivar
    x, y = held[:, :-1], held[:, -1].astype(int)
    low, high = np.array(list(COLUMNS.values())).T
    x = ((x - low) / (high - low)).astype(np.float32)
    order = np.random.default_rng(0).permutation(len(x))
    rows = {"train": order[TESTED:], "test": order[:TESTED]}
    return {part: Arrays(x[chosen], y[chosen], CLASSES) for part, chosen in rows.items()}


def build() -> Subject:
    """The network with its weights and the rows that it was trained and is tested on."""
    from safetensors.torch import load

    model = WineMLP()
    model.load_state_dict(load((files("assay.data") / "bundled" / "wine_mlp.safetensors").read_bytes()))
    return Subject.classifier(
        model.eval(),
        load_wine(),
        name="wine-mlp",
        classes=CLASSES,
        about="A dense network with 32 ReLUs trained on 118 wines, 13 measurements each; right on 0.9833 of the 60 "
        "test wines. A column's values are shares of its range, so that 0.1 is a tenth of what is usual for it.",
    )


SHELVED = Recipe(
    says="A dense ReLU network on a table: 13 measurements of 178 wines from three cultivars",
    source="Aeberhard and Forina 1992, doi:10.24432/C5PC7J",
    build=build,
)
