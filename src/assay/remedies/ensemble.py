"""Train the same architecture several times, from other starts, and let the nets answer together."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Literal

from assay.methods.train.ensemble import Stacked, fit_ensemble
from assay.methods.train.fit import Diverged
from assay.nn.members import Ensemble
from assay.remedies._retraining import Retraining, averaged, how_alike, loss_of
from assay.remedy import Cost, Tried

if TYPE_CHECKING:
    from assay.run import Run
    from assay.subject import Subject


@dataclass(frozen=True)
class NaiveEnsemble(Retraining):
    """Trains several nets from scratch, each from its own start, that answer with their mean.

    The dearest of the ensembles and mostly the best. The subject's own weights are not among them. `average` says of
    what the mean is: of their probabilities, or of their logits, which is surer where they agree. Answers that are no
    classes, such as images, have their own mean.
    """

    members: int = 5
    average: Literal["probabilities", "logits"] = "probabilities"

    needs: ClassVar[tuple[str, ...]] = ("mean",)
    source: ClassVar[str] = "Lakshminarayanan, Pritzel & Blundell, NeurIPS 2017, arXiv:1612.01474"
    mends: ClassVar[tuple[str, ...]] = (
        "accuracy",
        "everyday-change",
        "confidence-under-shift",
        "does-it-know",
        "does-it-know-where-it-is-wrong",
    )
    tried: ClassVar[tuple[Tried, ...]] = (
        Tried(
            probe="accuracy",
            says="ResNet-18 on CIFAR-10: accuracy from 72.5 to 75.2 %",
            claim="liu2021-ensembles/closest-to-naive",
        ),
        Tried(
            probe="everyday-change",
            says="ResNet-18 on CIFAR-10: accuracy on corrupted images from 51.5 to 54.8 %",
            claim="liu2021-ensembles/closest-to-naive",
        ),
        Tried(
            probe="confidence-under-shift",
            says="ResNet-18 on CIFAR-10: calibration error on corrupted images from 0.144 to 0.071, on "
            "clean ones from 0.011 to 0.052",
            claim="liu2021-ensembles/closest-to-naive",
        ),
    )

    def cost(self) -> Cost | None:
        return Cost(self.members, self.members)

    def apply(self, subject: Subject, run: Run) -> Subject:
        epochs = self.epochs_on(subject)
        with (
            self._kept_apart(subject),
            run.progress(f"training {self.members} nets for {epochs} epochs", self.members * epochs) as tick,
        ):
            nets = fit_ensemble(
                subject.model,
                subject.data["train"],
                members=self.members,
                epochs=epochs,
                lr=self.learning_rate,
                batch=self.batch,
                momentum=self.momentum,
                weight_decay=self.weight_decay,
                optimiser=self.optimiser,
                loss=loss_of(subject),
                rng=run.rng(),
                on_epoch=lambda nets, loss: tick(nets),
                device=run.device,
                apart=partial(run.each, about=f"training {self.members} nets side by side")
                if run.engine.apart
                else None,
            )
        return subject.cured(Ensemble(nets, average=averaged(subject, self.average)).eval(), self.name())

    @contextmanager
    def _kept_apart(self, subject: Subject) -> Iterator[None]:
        """After a divergence of members that were trained as one, what is kept fits the frame."""
        try:
            yield
        except Diverged as e:
            if isinstance(e.model, Stacked):
                whole, stacked = self.frame(subject).model, e.model
                assert isinstance(whole, Ensemble)
                stacked.give_back(list(whole.nets))
                e.model = whole
            raise

    def remarks(self, cured: Subject, run: Run) -> tuple[str, ...]:
        return how_alike(cured, run)

    def frame(self, subject: Subject) -> Subject:
        nets = [copy.deepcopy(subject.model) for _ in range(self.members)]
        return subject.cured(Ensemble(nets, average=averaged(subject, self.average)).eval(), self.name())


SHELVED = NaiveEnsemble
