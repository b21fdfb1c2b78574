"""Train the same architecture with weights under which the group says nothing of the label."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch

from assay.methods.fair.groups import crossed
from assay.methods.fair.reweighing import reweighing
from assay.methods.train.importance_weighted import Weighted, weighted_loss
from assay.remedies._retraining import Retraining, anew

if TYPE_CHECKING:
    from torch import Tensor

    from assay.run import Run
    from assay.subject import Subject


@dataclass(frozen=True)
class Reweighing(Retraining):
    """Trains it again from scratch with weights under which groups have the same share of each label.

    `attribute` names what the groups are; all that is known of the training inputs, crossed, unless given. It needs the
    groups in training alone, and nobody's when it answers. It mends labels that favour a group as a whole, and no proxy
    that tells the group apart within a label.
    """

    attribute: str | None = None

    source: ClassVar[str] = "Kamiran & Calders, Knowl. Inf. Syst. 2012, doi:10.1007/s10115-011-0463-8"
    mends: ClassVar[tuple[str, ...]] = ("is-it-fair",)

    def why_not(self, subject: Subject) -> str | None:
        if (reason := super().why_not(subject)) is not None:
            return reason
        known = [name for name, each in subject.attributes.items() if "train" in each.codes]
        if not known:
            return (
                "it weighs groups of the training inputs, and none are known; give --sensitive with --train, or "
                "--groups NAME@train=PATH"
            )
        if self.attribute is not None and self.attribute not in known:
            return f"attribute={self.attribute!r} is not known of the training inputs; known are {', '.join(known)}"
        return None

    def apply(self, subject: Subject, run: Run) -> Subject:
        rng = run.rng()
        rows = Weighted(subject.data["train"], self._weights(subject))
        model = self.train(
            anew(subject.model, rng), subject, run, rng, about="training with weights", loss=weighted_loss, rows=rows
        )
        return subject.cured(model, self.name())

    def remarks(self, cured: Subject, run: Run) -> tuple[str, ...]:
        weights = self._weights(cured)
        return (f"The weights of {len(weights):,} training inputs go from {weights.min():.2f} to {weights.max():.2f}.",)

    def _weights(self, subject: Subject) -> Tensor:  # -> n
        known = [each for each in subject.attributes.values() if "train" in each.codes]
        some = [each for each in known if self.attribute in (None, each.name)]
        groups = crossed([each.codes["train"] for each in some], [len(each.values) for each in some])
        return torch.from_numpy(reweighing(groups, np.asarray(subject.data["train"].labels)))


SHELVED = Reweighing
