"""Train the same architecture again, then go on with noise and keep the nets on the way."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from assay.methods.train.sgld import sgld
from assay.nn.members import Ensemble
from assay.remedies._retraining import EPOCHS, Retraining, anew, averaged, how_alike, loss_of
from assay.remedy import Cost

if TYPE_CHECKING:
    from assay.run import Run
    from assay.subject import Subject


@dataclass(frozen=True)
class Sgld(Retraining):
    """Trains it again, then walks on through the posterior and keeps a net now and then; answers are their mean.

    `epochs` are the burn-in, without noise; then `samples` nets are kept, one each `every` epochs, with steps of at
    most `step`. `temperature` 1 is the posterior itself, less stays closer to what training found.
    """

    samples: int = 5
    every: int = 1
    step: float = 0.01
    temperature: float = 1.0

    needs: ClassVar[tuple[str, ...]] = ("mean",)
    source: ClassVar[str] = "Welling & Teh, ICML 2011; Liu, UCLA 2021, ch. 5"
    mends: ClassVar[tuple[str, ...]] = (
        "confidence-under-shift",
        "does-it-know",
        "does-it-know-where-it-is-wrong",
    )

    def cost(self) -> Cost | None:
        return Cost(1 + self.samples * self.every / (self.epochs or EPOCHS), self.samples)

    def apply(self, subject: Subject, run: Run) -> Subject:
        rng = run.rng()
        model = self.train(anew(subject.model, rng), subject, run, rng, about="burn-in")
        epochs = self.samples * self.every
        with run.progress(f"sampling for {epochs} epochs", epochs) as tick:
            kept = sgld(
                model,
                subject.data["train"],
                samples=self.samples,
                every=self.every,
                lr=self.step,
                batch=self.batch,
                temperature=self.temperature,
                weight_decay=self.weight_decay,
                loss=loss_of(subject),
                rng=rng,
                on_epoch=lambda epoch, loss: tick(1),
                average=averaged(subject),
                device=run.device,
            )
        return subject.cured(kept, self.name())

    def remarks(self, cured: Subject, run: Run) -> tuple[str, ...]:
        return how_alike(cured, run)

    def frame(self, subject: Subject) -> Subject:
        nets = [copy.deepcopy(subject.model) for _ in range(self.samples)]
        return subject.cured(Ensemble(nets, average=averaged(subject)).eval(), self.name())


SHELVED = Sgld
