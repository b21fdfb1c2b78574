"""Train the same architecture so that its features have the same covariances in every domain: a control."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from assay.methods.train.coral import coral
from assay.remedies._across_domains import Aligning

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Coral(Aligning):
    """Trains it so that its features covary alike in all domains; a control for mk-mmd-adaptation and hir.

    `weight` is that of the distance in the loss; 0 is the plain training. `target` and `hold_out` are those of
    mk-mmd-adaptation.
    """

    weight: float = 100.0

    source: ClassVar[str] = "Sun & Saenko, ECCV 2016 workshops, arXiv:1607.01719"
    mends: ClassVar[tuple[str, ...]] = ("does-it-extrapolate", "how-far-is-it-from-home", "confidence-under-shift")

    def distance(self, a: Tensor, b: Tensor) -> Tensor:
        return coral(a, b)


SHELVED = Coral
