"""Train the same architecture again without the training labels that look wrong, or with others in their place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
import torch

from assay.data.arrays import Arrays
from assay.errors import AssayError
from assay.finding import share
from assay.inputs.reach import Reach
from assay.methods.train.copies import voices
from assay.methods.train.label_cleaning import Suspects, suspects
from assay.methods.train.typicality import comparable, unit_rows
from assay.remedies._retraining import OnPlanted, anew

if TYPE_CHECKING:
    from torch import Tensor

    from assay.run import Run
    from assay.subject import Subject

MOST_BYTES = 2**31  # of inputs that are compared with each other


@dataclass(frozen=True)
class LabelCleaning(OnPlanted):
    """Trains it again without the labels that look wrong, or with the class of their neighbours in their place.

    A label looks wrong as which-labels-look-wrong has it: by its `nearest` inputs, with a limit that finds the share
    `find` of flips on purpose; copies of an input have one voice. Hard inputs look wrong too, and are lost with the
    others. `planted` is a share of the labels that are flipped at random before, in this training and in the one that
    it is compared with, to see what it is worth where labels are known to be wrong.
    """

    way: Literal["remove", "relabel"] = "remove"
    nearest: int = 10
    find: float = 0.7

    source: ClassVar[str] = "Krysinska, Morzy & Kajdanowicz, ICANN 2021 (typicality as a finder of wrong labels)"
    mends: ClassVar[tuple[str, ...]] = ("which-labels-look-wrong", "how-many-wrong-labels-would-it-take")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.nearest < 1 or not 0.05 <= self.find <= 0.99:
            raise AssayError(
                f"label-cleaning got nearest={self.nearest}, find={self.find:g}; give at least 1, and a share from "
                "0.05 to 0.99."
            )

    def why_not(self, subject: Subject) -> str | None:
        reason = super().why_not(subject)
        if reason is None and subject.tokens:
            return "it compares inputs by their values, and an input here is a row of words by number"
        return reason

    def apply(self, subject: Subject, run: Run) -> Subject:
        x, y, found, _ = self._found(subject, run)
        kept = ~found.wrong if self.way == "remove" else torch.ones_like(found.wrong)
        given = torch.where(found.wrong, found.instead, y) if self.way == "relabel" else y
        lost = sorted(set(y.tolist()) - set(given[kept].tolist()))
        if lost:
            raise AssayError(
                f"Every label of class {subject.task.classes[lost[0]]!r} looks wrong, and none would be left; set a "
                f"smaller find than {self.find:g}."
            )
        rng = run.rng()
        rows = Arrays(x[kept], given[kept].numpy())
        model = self.train(anew(subject.model, rng), subject, run, rng, about="training on what is left", rows=rows)
        return subject.cured(model, self.name())

    def remarks(self, cured: Subject, run: Run) -> tuple[str, ...]:
        _, y, found, copied = self._found(cured, run)
        wrong = found.wrong.numpy()
        done = {"remove": "removed", "relabel": "relabelled"}[self.way]
        told = f"{share(int(wrong.sum()), len(y))} of the training labels looked wrong and were {done}"
        if copied:
            told += f" ({share(copied, len(y))} are copies of others, and have one voice with them)"
        if not self.planted:
            return (f"{told}; how many of them are wrong nobody knows here, with planted=0.05 it would.",)
        flipped = y.numpy() != np.asarray(cured.data["train"].labels)
        both = int((wrong & flipped).sum())
        return (
            f"{told}: {share(both, int(wrong.sum()))} of those are planted, and {share(both, int(flipped.sum()))} of "
            "the planted ones were found. Others may have been wrong before, or be hard.",
        )

    def _found(self, subject: Subject, run: Run) -> tuple[Tensor, Tensor, Suspects, int]:
        """Training inputs, their labels with what was planted, which look wrong, and how many are copies of others."""
        data = self.rows(subject, run) or subject.data["train"]
        reach = subject.kind.reach if subject.kind is not None else None
        x, y = (torch.as_tensor(part) for part in data.take(np.arange(len(data))))
        seen = comparable(x, reach.choices if isinstance(reach, Reach) else None)
        if 4 * seen.numel() > MOST_BYTES:
            raise AssayError(
                f"{len(y):,} training inputs of {seen.shape[1]:,} values are too many to compare with each other; at "
                f"most {MOST_BYTES // (4 * seen.shape[1]):,} can be."
            )
        picture = subject.inputs.is_picture
        first, of = voices(seen if picture else x, y, columns=not picture)
        rng = torch.Generator().manual_seed(run.seed)
        count = len(subject.task.classes)
        found = suspects(unit_rows(seen[first]), y[first], count, nearest=self.nearest, find=self.find, rng=rng)
        return x, y, Suspects(found.wrong[of], found.instead[of]), len(y) - len(first)


SHELVED = LabelCleaning
