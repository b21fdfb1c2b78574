"""Many numbers at once: where the points of a sheet go under a stamp, by a network that knows which are close."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from assay.data.digits import weights
from assay.data.fields import PARAMETERS, SIDE, load_fields, sheet
from assay.inputs import Column, Row
from assay.nn.cupnet import AXES, CupNet
from assay.subject import Recipe, Subject
from assay.tasks import Regression

TOLERANCE = 1.0  # mm; the stamp goes 10 deep
REACH = 1.5 / (SIDE - 1)  # the eight points around
HIDDEN = 2


class FieldsCupNet(nn.Module):
    """CupNet between the parameters, from 0 to 1, brought to mean 0 and variance 1, and millimetres: n 6 -> n 192."""

    mean: Tensor
    std: Tensor

    def __init__(self) -> None:
        super().__init__()
        d = AXES * SIDE**2
        self.register_buffer("mean", torch.zeros(d))
        self.register_buffer("std", torch.ones(d))
        self.net = CupNet(len(PARAMETERS), sheet(), hidden=HIDDEN, reach=REACH, dropout=0.0)

    def forward(self, x: Tensor) -> Tensor:  # n 6 -> n 192
        out: Tensor = self.net((x - 0.5) * 12**0.5) * self.std + self.mean
        return out


def task() -> Regression:
    names = tuple(
        f"{axis} {row},{column}"
        for axis in ("along", "across", "down")
        for row in range(SIDE)
        for column in range(SIDE)
    )
    return Regression(names, (TOLERANCE,) * len(names), ("mm",) * len(names))


def build() -> Subject:
    """The network with its weights and the fields that it was trained and is tested on."""
    model = FieldsCupNet()
    model.load_state_dict(weights("fields_cupnet"))
    return Subject.of(
        model.eval(),
        {part: tuple(fields) for part, fields in load_fields().items()},
        task(),
        name="fields-cupnet",
        kind=Row(tuple(Column(name, "number", 0.0, 1.0, 0.5) for name in PARAMETERS)),
        about="A CupNet of two layers on a mesh of 8 x 8 points, without dropout, trained on 3,000 fields; closeness "
        "0.8644 on the 500 test fields, where a millimetre off is worth nothing.",
    )


SHELVED = Recipe(
    says="A regression of 192 numbers: where the points of a sheet go under a stamp, in fields made by code",
    source="Heese et al., ICANN 2021 (CupNet), on fields made by assay.data.fields",
    build=build,
)
