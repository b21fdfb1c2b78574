"""Give a nearest-neighbour classifier a metric under which its answers are certified further."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor, nn

from assay.methods.train.arml import Loss, arml
from assay.nn.nearest_neighbour import NearestNeighbour
from assay.remedy import Remedy, Tried
from assay.subject import Normalised

if TYPE_CHECKING:
    from assay.run import Run
    from assay.subject import Subject


@dataclass(frozen=True)
class Arml(Remedy):
    """Learns a new metric for a nearest-neighbour classifier, so that no small change of an input flips its answer.

    It learns from the points that the classifier holds, in the units of the subject's inputs. `neighbours`: how many
    of the nearest points of either kind a step draws from. `batch`: points in a step, 0 for all of them.
    """

    epochs: int = 1000
    lr: float = 1e-3
    neighbours: int = 10
    loss: Loss = "negative"
    batch: int = 0

    source: ClassVar[str] = "Wang, Liu, Yi, Jiang & Hsieh, NeurIPS 2020, arXiv:2006.07024"
    mends: ClassVar[tuple[str, ...]] = ("certified-radius", "distance-to-failure")
    tried: ClassVar[tuple[Tried, ...]] = (
        Tried(
            probe="certified-radius",
            says="1-NN on Fashion-MNIST: certified l2 error at radius 1 from 63.1 to 58.3 %, clean error "
            "from 15.0 to 13.6 %, means of five trainings",
            claim="wang2020/certified-error-fashion-mnist",
        ),
        Tried(
            probe="certified-radius",
            says="1-NN on MNIST: certified l2 error at radius 1 from 32.8 to 25.1 %, clean error from 5.0 to 3.0 %",
            claim="wang2020/certified-error-mnist",
        ),
    )

    def why_not(self, subject: Subject) -> str | None:
        model = subject.model.model if isinstance(subject.model, Normalised) else subject.model
        if not isinstance(model, NearestNeighbour):
            return (
                f"it learns a metric for a nearest-neighbour classifier, and the model is a {type(model).__name__}; "
                "put the training points into assay.nn.nearest_neighbour.NearestNeighbour"
            )
        return super().why_not(subject)

    def apply(self, subject: Subject, run: Run) -> Subject:
        outer = subject.model
        inner = outer.model if isinstance(outer, Normalised) else outer
        assert isinstance(inner, NearestNeighbour)  # why_not
        scale = _unit(outer, inner.train_x)  # f: natural units per unit of the points
        with run.progress(f"learning a metric for {self.epochs} epochs", self.epochs) as tick:
            learned = arml(
                inner.train_x.flatten(1).to(run.device) * scale.to(run.device),
                inner.train_y.to(run.device),
                rng=run.rng(),
                epochs=self.epochs,
                lr=self.lr,
                neighbours=self.neighbours,
                loss=self.loss,
                batch=self.batch or None,
                on_epoch=lambda epoch, loss: tick(1),
            )
        cured: nn.Module = inner.with_factor(learned.factor.to(scale.device) * scale)
        if isinstance(outer, Normalised):
            cured = Normalised(cured, tuple(outer.mean.flatten().tolist()), tuple(outer.std.flatten().tolist()))
        return subject.cured(cured.eval(), self.name())


def _unit(model: nn.Module, points: Tensor) -> Tensor:  # n *d -> f
    one = torch.ones_like(points[0])
    return (one * model.std if isinstance(model, Normalised) else one).flatten()


SHELVED = Arml
