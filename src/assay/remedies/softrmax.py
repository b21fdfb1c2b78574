"""Train the same architecture again with softRmax in place of softmax."""

from __future__ import annotations

import copy
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor, nn

from assay.nn.softrmax import SoftRmax
from assay.nn.student_head import StudentHead
from assay.remedies._retraining import Retraining, anew
from assay.remedy import Tried

if TYPE_CHECKING:
    from assay.run import Run
    from assay.subject import Subject


LONGEST = 1.0  # gradient: a sharp head throws z far out in one step, where nothing brings it back
LOOKED_AT = 256  # training inputs, to see how long z is at first


@dataclass(frozen=True)
class Softrmax(Retraining):
    """Trains it again from scratch with a polynomial head, which is unsure far from the data; free at inference.

    `power` is the published one at 1; larger ones are surer, and return to 1/k more slowly. On ordinary inputs it is
    less sure than it is right, the more so the shorter the training; a temperature T on its answers is the power 1/T.
    `nu` gives Student-t densities of that many degrees of freedom in its place, which have a finite peak: the smaller,
    the sooner they are unsure.
    An attack on its own loss is misled: believe the margin attacks of an audit, not the gain under cross-entropy.
    """

    power: float = 1.0
    nu: float | None = None

    source: ClassVar[str] = "Wang & Loog, CVPR 2022, arXiv:2203.12693; other tails: Wang, TU Delft 2024, sec. 8.2"
    mends: ClassVar[tuple[str, ...]] = ("is-it-sure-far-away", "does-it-know", "worst-case-accuracy")
    tried: ClassVar[tuple[Tried, ...]] = (
        Tried(
            probe="is-it-sure-far-away",
            says="a small CNN on nine digits of MNIST, 1,000 away from an image: largest posterior from "
            "0.99 to 0.11, a ninth",
            claim="wang2024-outliers/far-away",
        ),
        Tried(
            probe="does-it-know",
            says="a small CNN on nine digits of MNIST: AUROC of its confidence from 0.93 to 0.96 against "
            "the tenth digit, from 0.87 to 0.96 against glyphs",
            claim="wang2024-outliers/no-extra-measure",
        ),
        Tried(
            probe="worst-case-accuracy",
            says="a small CNN on MNIST under an attack on the margin: accuracy at radius 0.1 from 39.5 to "
            "58.3 %, at 0.3 no gain, from 0 to 0.02 %",
            claim="wang2022/own-loss",
        ),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self._headed(nn.Identity())  # a head that cannot be is refused before anything is trained

    def apply(self, subject: Subject, run: Run) -> Subject:
        rng = run.rng()
        model = anew(subject.model, rng)
        train = subject.data["train"]
        _shorten(model, subject.layers.get("head"), train.take(run.pick(train, LOOKED_AT))[0])
        headed = self._headed(model)

        def clip() -> None:
            nn.utils.clip_grad_norm_(headed.parameters(), LONGEST)

        self.train(headed, subject, run, rng, after_backward=clip)
        return subject.cured(headed, self.name())

    def frame(self, subject: Subject) -> Subject:
        return subject.cured(self._headed(copy.deepcopy(subject.model)).eval(), self.name())

    def _headed(self, model: nn.Module) -> nn.Module:
        if self.nu is not None:
            return nn.Sequential(OrderedDict(net=model, student=StudentHead(self.nu)))
        return nn.Sequential(OrderedDict(net=model, softrmax=SoftRmax(self.power)))


def _shorten(model: nn.Module, head: str | None, x: Tensor) -> None:  # n *d
    """Scale the last layer so that z is about as long as e_y at first, if it is longer.

    Where z is long the gradient vanishes as 1 / ||z||^2, and the network never learns. Starting at 0 is no better: all
    first steps then point the same way, and z overshoots.
    """
    last = model.get_submodule(head) if head else None
    if not isinstance(last, nn.Linear):
        return
    with torch.no_grad():
        z = model.eval()(x.to(last.weight.device))
        if z.shape[1] == last.out_features:
            shrink = 1 / z.norm(dim=1).median().clamp_min(1)
            last.weight.mul_(shrink)
            if last.bias is not None:
                last.bias.mul_(shrink)


SHELVED = Softrmax
