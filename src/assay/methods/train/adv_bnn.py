r"""Adversarial training of a net of Gaussian weights: variational inference on inputs as they are worst for it.

    max_q  sum_i  min_{||x' - x_i||_inf <= radius} E_{w ~ q} log p(y_i | x', w)  -  KL(q || prior)

For each batch a search for x' by PGD, with weights drawn afresh at each of its steps, then one step down, under weights
drawn anew, on

    L = (1/B) sum_batch -log p(y | x', w)  +  (alpha / n) KL(q || prior),    0 <= alpha <= 1

The layers are those of nn/variational.py, sigma = exp(s), batch normalisation among them; L is `negative_elbo` on other
inputs. With radius 0 it is Bayes by backprop. A smaller alpha costs less clean accuracy.

Source: Liu, Li, Wu and Hsieh, "Adv-BNN", ICLR 2019, arXiv:1810.01279; in Liu, UCLA 2021, sec. 2.2, eq. 2.17 to 2.22
    and Alg. 3.
Departs from print: the minimum is over the expectation, and the listing's search climbs the loss of one draw a step;
    here `eot` draws a step can be averaged. The search starts at a random point of the ball with steps of 2.5 radius /
    steps, so that the ball is crossed whatever its radius. `as_published=True` is the public code: one draw, from the
    input itself, steps of 0.007. There and here the search asks the model in eval mode.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from assay.errors import AssayError
from assay.methods.attack.pgd import pgd
from assay.methods.train.adversary import Adversary, Reaches
from assay.methods.train.fit import Augment, Loss
from assay.methods.train.variational import negative_elbo
from assay.nn.members import passes
from assay.nn.variational import Variational

PRINTED_STEP = 0.007


class RobustElbo(NamedTuple):
    """The two pieces that `fit` takes beside the model: `fit(model, ..., augment=r.augment, loss=r.loss)`."""

    augment: Augment
    loss: Loss


def check_alpha(alpha: float) -> None:
    if not 0 <= alpha <= 1:
        raise AssayError(f"alpha={alpha} is no price on leaving the prior; give one from 0 to 1, such as 0.02.")


def robust_elbo(
    model: Variational,
    n: int,
    *,
    radius: float,
    alpha: float = 0.02,
    steps: int = 10,
    eot: int = 1,
    low: Tensor | float = 0.0,
    span: Tensor | float = 1.0,
    reach: Reaches | None = None,
    as_published: bool = False,
) -> RobustElbo:
    """`n` is the number of training inputs; the rest is the search's, see `worst_inputs`."""
    check_alpha(alpha)
    search = worst_inputs(
        model, radius=radius, steps=steps, eot=eot, low=low, span=span, reach=reach, as_published=as_published
    )
    return RobustElbo(search, negative_elbo(model.kl, n, beta=alpha))


def worst_inputs(
    model: nn.Module,
    *,
    radius: float,
    steps: int = 10,
    eot: int = 1,
    low: Tensor | float = 0.0,
    span: Tensor | float = 1.0,
    reach: Reaches | None = None,
    as_published: bool = False,
) -> Augment:
    """The inputs of a batch as they are worst for a random net in the mean of `eot` draws a step.

    `radius` is a share of the range of a value, which begins at `low` and is `span` wide, one for all or one for each;
    `reach` says of inputs what may change of them.
    """
    if eot < 1:
        raise AssayError(f"eot={eot} draws a step search nothing; give at least 1.")
    step = PRINTED_STEP if as_published else None
    attacker = Adversary(model, radius, steps=steps, step=step, low=low, span=span, reach=reach)
    draws = 1 if as_published else eot

    def augment(x: Tensor, y: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:  # n *d, n -> n *d, n
        if radius == 0:
            return x, y

        def said(at: Tensor) -> Tensor:  # n *d -> n c
            """The mean over draws of log p: what the search makes small at y."""
            return passes(model, attacker.range.natural(at), draws).log_softmax(-1).mean(0)

        reach = attacker.reach(x)
        with attacker.asked():
            found = pgd(
                said,
                attacker.range.shares(x),
                y,
                radius=radius,
                steps=steps,
                step=attacker.step,
                random_start=not as_published,
                loss=lambda z, y: F.nll_loss(z, y, reduction="none"),
                mask=None if reach is None else reach.mask,
                rng=rng,
                as_published=True,  # the last point: of a random net the best of several is the luckiest
            )
        return attacker.settled(found.x, x, reach), y

    return augment
