r"""Attacks on random networks as the papers on randomised defences made them, beside the adaptive ones.

Printed: one draw of the noise at each step, a step that is fixed whatever the radius, the last point, and one answer
that is the mean of so many passes. Adaptive (pgd.py and carlini_wagner.py with `eot`, judged by chance.py): gradients
that are means over draws, the point that fresh answers call the worst, and its chance on answers drawn afterwards. What
lies between the two was never robustness, so a claim about such a defence shows both.

Source: Liu, UCLA 2021, sec. 2.1.6 and 2.2.3, with its public code (RSE and xuanqing94/BayesianDefense): l_inf PGD from
    the input with 20 steps of 0.007; l2 Carlini-Wagner at a fixed c, 300 steps of Adam at 0.001.
Departs from print: batch normalisation stays in eval mode, where the public Carlini-Wagner attacks a net in training
    mode, whose answer depends on the batch.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from assay.methods.attack.aim import Truth
from assay.methods.attack.attacked import Model
from assay.methods.attack.carlini_wagner import carlini_wagner
from assay.methods.attack.pgd import pgd
from assay.nn.members import passes

STEP, STEPS = 0.007, 20  # of PGD
ADAM_STEPS = 300  # of Carlini-Wagner


def pgd_as_printed(
    model: Model, x: Tensor, y: Truth, *, radius: float, steps: int = STEPS, step: float = STEP
) -> Tensor:  # n *d, n -> n *d
    """The last point of a climb from x in l_inf, along the gradient of one draw at each step."""
    return pgd(model, x, y, radius=radius, steps=steps, step=step, random_start=False, leave=False, as_published=True).x


def carlini_wagner_as_printed(
    model: Model, x: Tensor, y: Truth, *, c: float, steps: int = ADAM_STEPS
) -> Tensor:  # n *d, n -> n *d
    """The last point of a descent at this trade-off c, along the gradient of one draw at each step."""
    return carlini_wagner(model, x, y, c=c, steps=steps, as_published=True).x


@torch.no_grad()
def right_as_printed(
    model: nn.Module, x: Tensor, changed: Tensor, y: Tensor, *, draws: int
) -> Tensor:  # n *d, n *d, n -> n bool
    """Whether an answer, the mean of so many passes, is right at x and at the changed point: clean mistakes count."""
    clean, attacked = (passes(model, at, draws).softmax(-1).mean(0).argmax(1) == y for at in (x, changed))
    return clean & attacked
