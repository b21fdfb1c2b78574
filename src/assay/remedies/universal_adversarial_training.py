"""Train the same architecture under one change of all inputs that is trained against it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from torch import nn

from assay.methods.train.adversary import check_radius
from assay.methods.train.universal_adversarial_training import UniversalAdversary
from assay.remedies._retraining import Hardening, _is_swift, kept_as, why_no_attack
from assay.remedy import Cost, Tried

if TYPE_CHECKING:
    from assay.run import Run
    from assay.subject import Subject


@dataclass(frozen=True)
class UniversalAdversarialTraining(Hardening):
    """Trains it under one change of all inputs that learns to break it meanwhile.

    `radius` is the largest change of a value and `step` how far the change moves with each batch (left out: the
    radius), both as shares of the range of a value, as in the question one-change-for-all. 0 is the plain training.
    What is fixed stays, whole numbers move in whole steps, and categories not at all.
    """

    radius: float = 0.1
    step: float | None = None

    source: ClassVar[str] = "Shafahi et al., AAAI 2020, arXiv:1811.11304; Co, Martinez Rego & Lupu, ICANN 2021"
    mends: ClassVar[tuple[str, ...]] = ("one-change-for-all",)
    tried: ClassVar[tuple[Tried, ...]] = (
        Tried(
            probe="one-change-for-all",
            says="LeNet on Fashion-MNIST, changes of 0.15: error under one change from 61.2 to 29.8 %, "
            "test error from 14.8 to 23.3 %",
            claim="co2021/sweep-fashion-mnist",
        ),
        Tried(
            probe="one-change-for-all",
            says="LeNet on MNIST, changes of 0.2: error under one change from 37.8 to 5.0 %, test error "
            "from 2.2 to 2.5 %",
            claim="co2021/sweep-mnist",
        ),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_radius(self.radius)
        UniversalAdversary(nn.Identity(), self.radius, step=self.step)

    def cost(self) -> Cost | None:
        return Cost(2 if self.radius else 1, 1)  # each batch goes through once more, for the change

    def why_not(self, subject: Subject) -> str | None:
        return super().why_not(subject) or (why_no_attack(subject) if self.radius else None)

    def apply(self, subject: Subject, run: Run) -> Subject:
        rng = run.rng()
        model = self.begun(subject.model, rng)
        low, span = subject.inputs.edges()
        against = UniversalAdversary(model, self.radius, step=self.step, low=low, span=span, reach=subject.reach)
        against.begin(torch.as_tensor(subject.data["train"].take(np.arange(1))[0]))
        with kept_as(model):
            self.train(  # the change is kept too: it is a buffer of what is trained
                against, subject, run, rng, about="training under one change", augment=against.augment,
                after_step=against.after_step, swift=_is_swift(subject.model, run), resumes=True,
            )  # fmt: skip
        return subject.cured(model, self.name())


SHELVED = UniversalAdversarialTraining
