"""Is it this person's signature? Tracks in the air made by code, and a linear machine on their slow waves."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import nn

from assay.attribute import Attribute
from assay.data.arrays import Arrays
from assay.data.signatures import CLASSES, STEPS, load_signatures
from assay.inputs import Channel, Series
from assay.methods.verify.fit import train
from assay.nn.cosines import Cosines
from assay.nn.kernel import Kernel
from assay.subject import Recipe, Subject

KEPT = 4  # waves of each axis
LAM = 100.0


class Verification(nn.Sequential):
    """Cosines of a track, and two logits of which the second is D / 2 and the first -D / 2: n 64 3 -> n 2."""

    def __init__(self) -> None:
        super().__init__(Cosines(STEPS, KEPT), nn.Linear(3 * KEPT, 2))


def build(person: int = 0) -> Subject:
    """An L2-SVM trained here, in milliseconds, on 5 signatures of a person and 120 of others."""
    splits = load_signatures(person)
    model = Verification().eval()
    waves, head = model[0], model[1]
    assert isinstance(head, nn.Linear)
    e, kernel = waves(torch.from_numpy(splits["train"].x)).double(), Kernel("linear")
    found = train("l2-svm", kernel(e, e).numpy(), np.where(splits["train"].y == 1, 1.0, -1.0), lam=LAM)
    w = torch.from_numpy(found.weight) @ e  # d
    with torch.no_grad():
        head.weight.copy_(torch.stack([-w, w]) / 2)
        head.bias.copy_(torch.tensor([-found.bias, found.bias]) / 2)
    who = {part: [f"person {i}" for i in each.identity] for part, each in splits.items()}
    subject = Subject.of(
        model,
        {part: Arrays(each.x, each.y, CLASSES) for part, each in splits.items()},
        name="signatures",
        classes=CLASSES,
        kind=Series(STEPS, tuple(Channel(axis, 0.0, 1.0) for axis in "xyz")),
        about=f"A linear L2-SVM on {3 * KEPT} slow waves of tracks made by code, for one person: trained on 5 genuine "
        "signatures and 120 of 12 others, tested on 25 and on 150 of 15 persons whom it never saw.",
    )
    # not with_attributes: identities are no groups to be compared, and it would say that each is too small
    return replace(subject, attributes={"identity": Attribute.of("identity", who)})


SHELVED = Recipe(
    says="Is it this person's signature? Tracks in the air made by code, 5 genuine and 120 of others to learn from",
    source="Made by assay.data.signatures, after the protocol of Yoshida & Kitamura, ICANN 2021",
    build=build,
)
