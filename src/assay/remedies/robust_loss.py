"""Train the same architecture again with a loss that wrong labels cannot drive far."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from assay.methods.train.fit import Loss
from assay.methods.train.robust_loss import generalised_cross_entropy, symmetric_cross_entropy
from assay.remedies._retraining import OnPlanted, anew

if TYPE_CHECKING:
    from assay.run import Run
    from assay.subject import Subject


@dataclass(frozen=True)
class RobustLoss(OnPlanted):
    """Trains it again from scratch with a bounded loss, so that a wrong label pulls little; it learns slower.

    The generalised cross entropy with `q`, near 0 the cross entropy and at 1 the absolute error; or the symmetric one,
    `alpha` cross entropy and `beta` reversed. `planted` is a share of the labels that are flipped at random before, in
    this training and in the one that it is compared with, to see what it is worth where labels are known to be wrong.
    """

    loss: Literal["generalised", "symmetric"] = "generalised"
    q: float = 0.7
    alpha: float = 0.1
    beta: float = 1.0

    source: ClassVar[str] = "Zhang & Sabuncu, NeurIPS 2018, arXiv:1805.07836; Wang et al., ICCV 2019, arXiv:1908.06112"
    mends: ClassVar[tuple[str, ...]] = ("how-many-wrong-labels-would-it-take", "which-labels-look-wrong")

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.bounded  # settings that make no loss are refused before anything is trained

    @property
    def bounded(self) -> Loss:
        if self.loss == "generalised":
            return generalised_cross_entropy(self.q)
        return symmetric_cross_entropy(self.alpha, self.beta)

    def apply(self, subject: Subject, run: Run) -> Subject:
        rng = run.rng()
        rows = self.rows(subject, run)
        model = self.train(anew(subject.model, rng), subject, run, rng, loss=self.bounded, rows=rows)
        return subject.cured(model, self.name())


SHELVED = RobustLoss
