"""Pad zeros early in each run of convolutions, and train on from the weights it has."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from assay.errors import AssayError
from assay.nn.riap import why_not, with_riap
from assay.remedies._retraining import Hardening, Start, why_scripted
from assay.remedy import Cost

if TYPE_CHECKING:
    from assay.remedy import Remedy
    from assay.run import Run
    from assay.subject import Subject


@dataclass(frozen=True)
class RiapPadding(Hardening):
    """Pads zeros early in runs of convolutions, so that pixels at the border count as inner ones do; adds no weights.

    `start="weights"` goes on from the subject's own weights, "scratch" trains anew. `epochs=0` pads and does not train:
    that also serves tasks other than one class of several, and is compared with the subject as it was.
    """

    start: Start = "weights"

    source: ClassVar[str] = "Li, Poon & Yang, ICANN 2021"
    mends: ClassVar[tuple[str, ...]] = ("does-it-depend-on-where-it-stands",)

    def __post_init__(self) -> None:
        if self.epochs != 0:
            super().__post_init__()
            return
        replace(self, epochs=None)  # refuses what a training would be refused
        if self.start == "scratch":
            raise AssayError("epochs=0 trains nothing, and start='scratch' would leave weights that know nothing.")

    def cost(self) -> Cost | None:
        return Cost(0 if self.epochs == 0 else 1.1, 1.1)  # 9 to 11 % more in print; more where maps are small

    def why_not(self, subject: Subject) -> str | None:
        missing = why_scripted(subject.model) or why_not(subject.model)
        if missing is not None or self.epochs == 0:
            return missing
        lacks = super().why_not(subject)
        return None if lacks is None else f"{lacks}; epochs=0 pads otherwise and trains nothing"

    def settled(self, subject: Subject) -> RiapPadding:
        return self if self.epochs == 0 else super().settled(subject)

    def control(self) -> Remedy | None:
        return None if self.epochs == 0 else super().control()

    def apply(self, subject: Subject, run: Run) -> Subject:
        if self.epochs == 0:
            return self.frame(subject)
        rng = run.rng()
        model = with_riap(self.begun(subject.model, rng))
        self.hardened(model, subject, run, rng, about="training with zeros padded early")
        return subject.cured(model, self.name())

    def frame(self, subject: Subject) -> Subject:
        return subject.cured(with_riap(subject.model).eval(), self.name())


SHELVED = RiapPadding
