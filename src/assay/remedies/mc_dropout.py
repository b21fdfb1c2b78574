"""Train the same architecture again with dropout that stays on when it answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from assay.errors import AssayError
from assay.nn.mc_dropout import with_dropout
from assay.nn.members import Drawn
from assay.remedies._retraining import Retraining, anew, how_alike
from assay.remedy import Cost, Tried

if TYPE_CHECKING:
    from assay.run import Run
    from assay.subject import Subject


@dataclass(frozen=True)
class McDropout(Retraining):
    """Trains it again with dropout before every weight layer and keeps it on; answers are averages of random passes.

    `rate` is the share that is dropped, where the model has no dropout layers of its own; `draws` passes are averaged.
    """

    rate: float = 0.05
    draws: int = 15

    needs: ClassVar[tuple[str, ...]] = ("mean",)
    source: ClassVar[str] = "Gal & Ghahramani, ICML 2016, arXiv:1506.02142; Liu, UCLA 2021, ch. 5"
    mends: ClassVar[tuple[str, ...]] = (
        "confidence-under-shift",
        "does-it-know",
        "does-it-know-where-it-is-wrong",
    )
    tried: ClassVar[tuple[Tried, ...]] = (
        Tried(
            probe="confidence-under-shift",
            says="ResNet-18 on CIFAR-10, trained as long as the single net: calibration error on corrupted "
            "images from 0.144 to 0.071, clean accuracy from 72.5 to 66.6 %",
            claim="liu2021-ensembles/closest-to-naive",
        ),
    )

    def cost(self) -> Cost | None:
        return Cost(1, self.draws)

    def apply(self, subject: Subject, run: Run) -> Subject:
        rng = run.rng()
        model = self.train(anew(self._random(subject), rng), subject, run, rng)
        return subject.cured(model, self.name(), draws=self.draws)

    def remarks(self, cured: Subject, run: Run) -> tuple[str, ...]:
        return how_alike(cured, run)

    def frame(self, subject: Subject) -> Subject:
        return subject.cured(self._random(subject).eval(), self.name(), draws=self.draws)

    def _random(self, subject: Subject) -> Drawn:
        if self.draws < 2:
            raise AssayError(f"The setting draws={self.draws} of {self.name()!r} must be at least 2; 15 is usual.")
        return with_dropout(subject.model, rate=self.rate, draws=self.draws)


SHELVED = McDropout
