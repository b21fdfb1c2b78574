"""What the remedies that train share: the subject's own data, the settings of a training, and its progress."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch.nn.functional as F
from torch import Generator, nn

from assay.methods.train.fit import Augment, Loss, fit
from assay.remedy import Cost, Remedy

if TYPE_CHECKING:
    from assay.run import Run
    from assay.subject import Subject


@dataclass(frozen=True)
class Retraining(Remedy):
    """A remedy with a training in it; the defaults are those with which the bundled subject was trained."""

    epochs: int = 10
    lr: float = 0.1
    weight_decay: float = 5e-4

    needs_train: ClassVar[bool] = True

    def cost(self) -> Cost | None:
        return Cost(1, 1)

    def train(
        self,
        model: nn.Module,
        subject: Subject,
        run: Run,
        rng: Generator,
        *,
        epochs: int | None = None,
        lr: float | None = None,
        about: str = "training",
        loss: Loss = F.cross_entropy,
        augment: Augment | None = None,
        after_backward: Callable[[], None] | None = None,
        after_step: Callable[[], None] | None = None,
    ) -> nn.Module:
        """Train `model` in place on the subject's training data; return it in eval mode."""
        epochs = self.epochs if epochs is None else epochs
        with run.progress(f"{about} for {epochs} epochs", epochs) as tick:
            fit(
                model,
                subject.data["train"],
                epochs=epochs,
                lr=self.lr if lr is None else lr,
                weight_decay=self.weight_decay,
                rng=rng,
                loss=loss,
                augment=augment,
                after_backward=after_backward,
                after_step=after_step,
                on_epoch=lambda epoch, loss: tick(1),
                device=run.device,
            )
        return model.eval()
