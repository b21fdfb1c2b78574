r"""FGSM retraining: train on a batch as it is, or one step up its loss, by the toss of a coin.

    x'  =  x                                          with chance `clean`
           clip( x + r sign grad_x loss(f(x), y) )    else,   r ~ U(least, radius) for each batch

Source: the adversarial training (I) of Liu, "Building Trustworthy Machine Learning Models", UCLA 2021, sec. 2.1.6, on a
    network that was trained before, with r from 0.1 to 0.3 and a fair coin; after Goodfellow et al., ICLR 2015,
    arXiv:1412.6572, sec. 6, and Kurakin et al., ICLR 2017, arXiv:1611.01236. It helps against the one step that it
    trains on; that it does little against an attacker who goes on is what the source shows.
"""

from __future__ import annotations

import torch
from torch import Tensor

from assay.errors import AssayError
from assay.methods.train.adversary import Adversary, check_radius


class FgsmTraining:
    """The piece that `fit` takes beside the model: `fit(model, ..., augment=FgsmTraining(adversary).augment)`.

    The adversary's radius is the largest; shares of the range.
    """

    def __init__(self, adversary: Adversary, *, least: float = 0.0, clean: float = 0.5) -> None:
        check_radius(least)
        if least > adversary.radius:
            raise AssayError(
                f"least={least} is above radius={adversary.radius}; steps go from the first to the second."
            )
        if not 0 <= clean <= 1:
            raise AssayError(f"clean={clean} is no share of the batches; give one from 0 to 1, such as 0.5.")
        self.adversary, self.least, self.clean = adversary, least, clean

    def augment(self, x: Tensor, y: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:  # n *d, n -> n *d, n
        if self.adversary.radius == 0:
            return x, y
        coin, size = torch.rand(2, generator=rng, device=rng.device).tolist()
        if coin < self.clean:
            return x, y
        return self.adversary.one_step(x, y, self.least + size * (self.adversary.radius - self.least)), y
