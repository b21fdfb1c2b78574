"""Stochastic gradient Langevin dynamics: training steps with so much noise that weights become samples."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from assay.errors import AssayError
from assay.methods.train.fit import Loss, Rows, fit
from assay.nn.members import Average, Ensemble


def sgld(
    model: nn.Module,
    data: Rows,
    *,
    samples: int,
    lr: float,
    rng: torch.Generator,
    every: int = 1,
    decay: float = 0.55,
    temperature: float = 1.0,
    weight_decay: float = 0.0,
    batch: int = 128,
    loss: Loss = F.cross_entropy,
    average: Average = "probabilities",
    on_epoch: Callable[[int, float], None] | None = None,
    device: torch.device | str = "cpu",
) -> Ensemble:
    r"""Draw `samples` nets from the posterior, one each `every` epochs; `model` is where the chain starts and ends.

        w <- w - (e_t / 2) grad U(w) + sqrt(temperature e_t) N(0, I),
        U(w) = n ( loss(w) + weight_decay ||w||^2 / 2 ),   e_t = (2 lr / n) (1 + t / T)^-decay

    with the mean loss of a batch for that of the n inputs, and T the steps of an epoch. So `lr` is the rate of an SGD
    step on the mean loss, and weight decay is a prior N(0, 1 / (n weight_decay)). With `temperature` 0 it is SGD.

    Source: Welling and Teh, ICML 2011, eq. 4, and the steps a (b + t)^-gamma with gamma in (0.5, 1] of sec. 3. Beyond
        print: `temperature`, 1 there; below it the posterior to that power is drawn, which is closer to its mode.

    Burn-in has the noise off, and so is plain training: call `fit` before. Batch normalisation follows the chain with
    its running statistics, and a net keeps those of its moment. Returned are copies in eval mode.
    """
    if samples < 1 or every < 1:
        raise AssayError(f"sgld got samples={samples}, every={every}; both are counts of at least 1.")
    if not 0 <= temperature < math.inf or not 0 <= decay <= 1:
        raise AssayError(
            f"sgld got temperature={temperature}, decay={decay}; temperature is at least 0 (1 is the posterior) and "
            "decay between 0 (equal steps) and 1."
        )
    chain = _Langevin(
        [p for p in model.parameters() if p.requires_grad],
        n=len(data),
        epoch=math.ceil(len(data) / batch),
        lr=lr,
        decay=decay,
        temperature=temperature,
        weight_decay=weight_decay,
        rng=rng,
    )
    drawn: list[dict[str, Tensor]] = []

    def keep(epoch: int, mean: float) -> None:
        if epoch % every == 0:
            drawn.append({name: t.detach().clone() for name, t in model.state_dict().items()})
        if on_epoch is not None:
            on_epoch(epoch, mean)

    fit(
        model,
        data,
        epochs=samples * every,
        lr=lr,
        rng=rng,
        batch=batch,
        momentum=0.0,
        schedule="constant",
        loss=loss,
        after_backward=chain.after_backward,
        after_step=chain.after_step,
        on_epoch=keep,
        device=device,
    )
    nets = [copy.deepcopy(model) for _ in drawn]
    for net, state in zip(nets, drawn, strict=True):
        net.load_state_dict(state)
    return Ensemble(nets, average=average).eval()


class _Langevin:
    """What turns an SGD step of the rate `lr` into a Langevin one: the prior and the smaller step before, noise after.

    The prior's gradient is added here and not by the optimiser, because it takes the smaller step too.
    """

    def __init__(
        self,
        weights: list[nn.Parameter],
        *,
        n: int,
        epoch: int,
        lr: float,
        decay: float,
        temperature: float,
        weight_decay: float,
        rng: torch.Generator,
    ) -> None:
        self.weights, self.n, self.epoch, self.rng = weights, n, epoch, rng
        self.lr, self.decay, self.temperature, self.weight_decay = lr, decay, temperature, weight_decay
        self.step = 0

    @torch.no_grad()
    def after_backward(self) -> None:
        for w in self.weights:
            if w.grad is not None:
                w.grad.add_(w, alpha=self.weight_decay).mul_(self._share())

    @torch.no_grad()
    def after_step(self) -> None:
        scale = math.sqrt(self.temperature * 2 * self.lr * self._share() / self.n)
        if scale > 0:
            for w in (w for w in self.weights if w.grad is not None):
                w.add_(torch.randn(w.shape, generator=self.rng, device=self.rng.device).to(w), alpha=scale)
        self.step += 1

    def _share(self) -> float:
        """e_t / e_0"""
        return float((1 + self.step / self.epoch) ** -self.decay)
