"""Train the same architecture again with softRmax in place of softmax."""

from __future__ import annotations

import copy
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor, nn

from assay.methods.train.fit import reset
from assay.nn.softrmax import SoftRmax
from assay.remedies._retraining import Retraining

if TYPE_CHECKING:
    from assay.run import Run
    from assay.subject import Subject


LOOKED_AT = 256  # training inputs, to see how long z is at first


@dataclass(frozen=True)
class Softrmax(Retraining):
    """Trains it again from scratch with a polynomial head, which is unsure far from the data; free at inference.

    `power` is the published one at 1; larger ones are surer, and return to 1/k more slowly. On ordinary inputs it is
    less sure than it is right, the more so the shorter the training; a temperature T on its answers is the power 1/T.
    An attack on its own loss is misled: believe the margin attacks of an audit, not the gain under cross-entropy.
    """

    power: float = 1.0

    source: ClassVar[str] = "Wang & Loog, CVPR 2022, arXiv:2203.12693"

    def apply(self, subject: Subject, run: Run) -> Subject:
        rng = run.rng()
        model = reset(subject.model, rng)
        train = subject.data["train"]
        _shorten(model, subject.layers.get("head"), train.take(run.pick(train, LOOKED_AT))[0])
        headed = self._headed(model)
        self.train(headed, subject, run, rng)
        return subject.cured(headed, self.name())

    def frame(self, subject: Subject) -> Subject:
        return subject.cured(self._headed(copy.deepcopy(subject.model)).eval(), self.name())

    def _headed(self, model: nn.Module) -> nn.Module:
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
