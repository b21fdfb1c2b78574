r"""Universal adversarial training: train on inputs under one change that is trained against the model meanwhile.

    min_w  max_{||delta||_inf <= radius}  mean_i loss( f(clip(x_i + delta); w), y_i )

For each mini-batch, one step down for the weights and then, at the new weights, one step up for the change:

    w     <- w - lr mean_i grad_w loss( f(clip(x_i + delta); w), y_i )
    delta <- clip( delta + step sign sum_i grad_x min(loss, cap)( f(clip(x_i + delta); w), y_i ), +-radius )

The change is never begun anew: what one batch teaches it meets the next. `cap` keeps an input that is lost already from
pulling; the gradient is that at the clipped input, so that a value at its bound can come back, as in
methods/attack/universal.py. The step up asks the model in eval mode: it draws nothing, and moves no running mean.

Source: Shafahi, Najibi, Xu, Dickerson, Davis and Goldstein, "Universal Adversarial Training", AAAI 2020,
    arXiv:1811.11304: the alternating algorithm, with the capped loss of their attack; the cap of 12 is that of the
    public code of Co, Martinez Rego and Lupu, ICANN 2021, whose table 1 compares Jacobian regularisation with it.
Departs from print: inputs are clipped to their bounds.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from assay.errors import AssayError
from assay.methods.train.adversary import Reaches, all_of_it
from assay.methods.train.fit import into_training

CAP = 12.0


class UniversalAdversary(nn.Module):
    """The two pieces that `fit` takes beside `model`: `fit(model, ..., augment=u.augment, after_step=u.after_step)`.

    As a module it answers as `model` does, and the change is one of its buffers: where it is what `fit` trains, a
    training that was stopped goes on under the change that it had, once `begin` has said how an input looks.

    `radius` and `step` (left out: the radius) are shares of the range of a value, which begins at `low` and is `span`
    wide, one for all or one for each; `reach` says of inputs what may change of them. `delta` is the change as it
    stands, in the inputs' units, None before any batch; where values have steps an input moves by the whole ones in it.
    """

    def __init__(
        self,
        model: nn.Module,
        radius: float,
        *,
        step: float | None = None,
        cap: float = CAP,
        low: Tensor | float = 0.0,
        span: Tensor | float = 1.0,
        reach: Reaches | None = None,
    ) -> None:
        super().__init__()
        if not 0 <= radius < math.inf:
            raise AssayError(f"radius={radius} is no size of a change; give a share of the range, such as 0.1.")
        if step is not None and not 0 < step < math.inf:
            raise AssayError(f"step={step} does not move the change; give a share of the range above 0, such as 0.1.")
        if not cap > 0:
            raise AssayError(f"cap={cap} leaves no loss to raise; give a number above 0, such as {CAP:g}.")
        self.model, self.radius, self.step, self.cap = model, radius, radius if step is None else step, cap
        self.low, self.span = torch.as_tensor(low), torch.as_tensor(span)
        self.reach = reach or all_of_it
        self.delta: Tensor | None  # *d
        self.register_buffer("delta", None)
        self._batch: tuple[Tensor, Tensor] | None = None

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.model(x)
        return out

    def begin(self, x: Tensor) -> None:  # n *d
        """No change yet, of inputs such as these."""
        self.delta = torch.zeros_like(x[0])

    def augment(self, x: Tensor, y: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:  # n *d, n -> n *d, n
        if self.delta is None:
            self.begin(x)
        self.low, self.span = self.low.to(x), self.span.to(x)
        self._batch = (x, y)
        return self._under(x), y

    def after_step(self) -> None:
        """One step up, on the batch that the weights have just gone down on."""
        if self._batch is None or self.delta is None:
            raise AssayError("The change needs the inputs of the step; pass `augment` of this adversary to fit too.")
        (x, y), self._batch = self._batch, None
        if self.radius == 0:
            return
        up = self._slope(x, y).sign()
        edge = self.radius * self.span
        self.delta = torch.clamp(self.delta + self.step * self.span * up, -edge, edge)

    def _under(self, x: Tensor) -> Tensor:  # n *d -> n *d
        assert self.delta is not None
        if self.radius == 0:
            return x  # as it is, also where it lies outside of its range
        reach, at = self.reach(x), torch.clamp(x + self.delta, self.low, self.low + self.span)
        return at if reach is None else reach.settled(at, x)

    def _slope(self, x: Tensor, y: Tensor) -> Tensor:  # n *d, n -> *d
        """The gradient of the capped loss by the change, summed over the batch."""
        self.model.eval()
        try:
            seen = self._under(x).requires_grad_()
            height = F.cross_entropy(self.model(seen), y, reduction="none").clamp(max=self.cap)  # n
            (slope,) = torch.autograd.grad(height.sum(), seen)
        finally:
            into_training(self.model)  # as fit has it
        reach = self.reach(x)
        mask = None if reach is None else reach.mask
        total: Tensor = (slope if mask is None else slope * mask).sum(0)
        return total
