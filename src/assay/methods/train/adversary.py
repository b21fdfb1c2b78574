r"""The attacker inside a training: inputs as they are worst for the model at this step.

    x'  =  argmax_{||x' - x||_inf <= radius, x' in its range}  loss( f(x'; w), y )

searched by methods/attack/pgd.py or fgsm.py as published (the last point, the plain loss), at the weights of the step.
What is asked meanwhile is the model in eval mode: it draws nothing, moves no running mean, and is the function that an
attacker meets later. Its weights collect no gradient.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from assay.errors import AssayError
from assay.methods.attack.fgsm import fgsm
from assay.methods.attack.loss import Loss, LossName
from assay.methods.attack.pgd import pgd
from assay.methods.train.fit import swiftly


class Adversary:
    """Searches around inputs whose values begin at `low` and span `span`, one for all or one for each.

    `radius` and `step` are shares of that range; `step` left out is 2.5 radius / steps. `swift`: as in `fit`.
    """

    def __init__(
        self,
        model: nn.Module,
        radius: float,
        *,
        steps: int = 10,
        step: float | None = None,
        low: Tensor | float = 0.0,
        span: Tensor | float = 1.0,
        swift: bool = False,
    ) -> None:
        check_radius(radius)
        if steps < 1:
            raise AssayError(f"steps={steps} search nothing; give at least 1, such as 10.")
        if step is not None and not 0 < step < math.inf:
            raise AssayError(f"step={step} does not move an input; give a share of the range above 0, such as 2/255.")
        self.model, self.radius, self.steps, self.step = model, radius, steps, step
        self.range = Range(low, span)
        self._ask: Callable[[Tensor], Tensor] = swiftly(model) if swift else model

    def worst(self, x: Tensor, y: Tensor, rng: torch.Generator, loss: LossName | Loss = "ce") -> Tensor:
        """The last point of a climb from a random point of the ball: n *d, n -> n *d."""
        if self.radius == 0:
            return x
        with self.asked() as ask:
            found = pgd(
                ask,
                self.range.shares(x),
                y,
                radius=self.radius,
                steps=self.steps,
                step=self.step,
                loss=loss,
                rng=rng,
                as_published=True,
            )
        return self.range.natural(found.x)

    def one_step(self, x: Tensor, y: Tensor, radius: float) -> Tensor:
        """One step of full length up the cross-entropy, from the input itself: n *d, n -> n *d."""
        if radius == 0:
            return x
        with self.asked() as ask:
            return self.range.natural(fgsm(ask, self.range.shares(x), y, radius=radius, as_published=True).x)

    @contextmanager
    def asked(self) -> Iterator[Callable[[Tensor], Tensor]]:
        """The model in shares of the range, in eval mode, its weights held still; as `fit` has it again afterwards."""
        trained = [p for p in self.model.parameters() if p.requires_grad]
        self.model.eval()
        try:
            for p in trained:
                p.requires_grad_(False)
            yield self._ask if self.range.is_unit else lambda u: self._ask(self.range.natural(u))
        finally:
            for p in trained:
                p.requires_grad_(True)
            self.model.train()


class Range:
    """What values an input may take: from `low` on, `span` wide."""

    def __init__(self, low: Tensor | float, span: Tensor | float) -> None:
        self.low, self.span = torch.as_tensor(low), torch.as_tensor(span)
        self.is_unit = bool((self.low == 0).all()) and bool((self.span == 1).all())

    def shares(self, x: Tensor) -> Tensor:  # n *d -> n *d
        if self.is_unit:
            return x
        span = self.span.to(x)
        u = torch.where(span > 0, (x - self.low.to(x)) / torch.where(span > 0, span, 1), 0)
        # a value at its bound may round beyond it
        return torch.where((u > -1e-5) & (u < 1 + 1e-5), u.clamp(0, 1), u)

    def natural(self, u: Tensor) -> Tensor:  # n *d -> n *d
        return u if self.is_unit else self.low.to(u) + u * self.span.to(u)


def check_radius(radius: float) -> None:
    if not 0 <= radius <= 1:
        raise AssayError(f"radius={radius} is no share of a value's range; give one from 0 to 1, such as 8/255.")
