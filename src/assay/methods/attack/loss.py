r"""What an attacker climbs: losses on the logits, in forms that no rescaling of the logits can blunt.

With z the logits (n c), y the label, t a target, and pi_k the class with the k-th largest logit:

    margin          z_y - max_{i != y} z_i                              (positive while the answer is y)
    cross-entropy   -log softmax(K z / s)_y                             s = spread of the logits where the attack starts
    DLR             -(z_y - max_{i != y} z_i) / (z_pi1 - z_pi3)
    targeted DLR    -(z_y - z_t) / (z_pi1 - (z_pi3 + z_pi4) / 2)

Sources: cross-entropy, Madry et al., ICLR 2018, arXiv:1706.06083; margin, Carlini & Wagner, S&P 2017,
arXiv:1608.04644, sec. 5; DLR and its targeted form, Croce & Hein, ICML 2020, arXiv:2003.01690, sec. 4.

Departs from print (`as_published=True` gives the printed form):
- cross-entropy divides the logits by their spread s over the classes, measured per input where the attack starts, so
  that a model with its logits times 100 or times 0.01 is attacked along the same path. As printed, times 100 makes
  softmax(z)_y round to 1 and the gradient to 0: an attack that fails without a sign of it.
- it is evaluated as softplus(logsumexp_{i != y} z_i - z_y), which does not round to 0 for confident inputs;
- DLR with two classes has no third logit, and any scale-free ratio of two logits is constant: the margin takes its
  place. Targeted DLR with three classes divides by z_pi1 - z_pi3 held fixed: between first and last the ratio is -1
  everywhere, and its gradient 0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
from torch import Tensor

from assay.errors import AssayError, ShapeError
from assay.methods.attack.aim import Truth, label_of

Loss = Callable[[Tensor, Tensor], Tensor]  # (n c, n) -> n, larger is better for the attacker
LossName = Literal["ce", "margin", "dlr"]

SHARPNESS = 4.0  # K above. On four digits networks K = 4 to 8 gave accuracies within a point, K = 1 lost 3 to 9 points


def margin(z: Tensor, y: Tensor) -> Tensor:
    """z_y - max_{i != y} z_i: n c, n -> n."""
    return own(z, y) - others(z, y).amax(1)


def cross_entropy(z: Tensor, y: Tensor) -> Tensor:
    """-log softmax(z)_y, exact also where softmax(z)_y rounds to 1: n c, n -> n."""
    return torch.nn.functional.softplus(others(z, y).logsumexp(1) - own(z, y), threshold=50)


def cross_entropy_slope(z: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Cross-entropy and its gradient, in half of the time that autograd takes: n c, n -> n, n c.

    sigmoid(m - z_y) (softmax_{i != y}(z) - e_y) with m = logsumexp_{i != y} z_i.
    """
    rest = others(z, y)
    m = rest.logsumexp(1, keepdim=True)  # n 1
    lead = m - z.gather(1, y[:, None])
    slope = (rest - m).exp_().scatter_(1, y[:, None], -1) * lead.sigmoid()
    return torch.nn.functional.softplus(lead, threshold=50)[:, 0], slope


def dlr(z: Tensor, y: Tensor) -> Tensor:
    """Difference of logits ratio; with two classes minus the margin: n c, n -> n."""
    if z.shape[1] == 2:
        return -margin(z, y)
    top = z.topk(3, dim=1).values
    return -margin(z, y) / (top[:, 0] - top[:, 2]).clamp_min(torch.finfo(z.dtype).tiny)


def targeted_dlr(z: Tensor, y: Tensor, target: Tensor) -> Tensor:
    """Difference of logits ratio towards a target; with two classes minus the margin: n c, n, n -> n."""
    gain = own(z, target) - own(z, y)
    if z.shape[1] == 2:
        return gain
    top = z.topk(min(4, z.shape[1]), dim=1).values
    base = (top[:, 0] - top[:, 2:].mean(1)).clamp_min(torch.finfo(z.dtype).tiny)
    return gain / (base.detach() if z.shape[1] == 3 else base)


def own(z: Tensor, y: Tensor) -> Tensor:
    return z.gather(1, y[:, None])[:, 0]  # n c, n -> n


def others(z: Tensor, y: Tensor) -> Tensor:
    """The logits with that of y at minus infinity, so that max and logsumexp skip it: n c, n -> n c."""
    return z.scatter(1, y[:, None], -torch.inf)


def spread(z: Tensor) -> Tensor:
    """The standard deviation of the logits over the classes, 1 where they are all equal: n c -> n."""
    s = z.std(1, correction=0)
    return torch.where(s > 0, s, 1)


@dataclass(frozen=True, eq=False)
class Goal:
    """What the attacker wants of each input: leave the label y, or reach a target; and the loss that leads there."""

    y: Truth  # n
    target: Tensor | None = None  # n
    loss: LossName | Loss = "ce"
    as_published: bool = False
    any_other: bool = False  # the target only leads: any answer but y counts as reached
    scale: Tensor | None = None  # n: the spread of the logits where the attack started

    def __post_init__(self) -> None:
        if not callable(self.loss) and self.loss not in get_args(LossName):
            raise AssayError(
                f"Unknown loss {self.loss!r}; choose one of {', '.join(get_args(LossName))} "
                "or pass a function (logits, labels) -> one value per input."
            )

    @property
    def label(self) -> Tensor:
        """The class to leave: n."""
        return label_of(self.y)

    def take(self, rows: Tensor) -> Goal:
        return replace(
            self,
            y=self.y[rows],
            target=None if self.target is None else self.target[rows],
            scale=None if self.scale is None else self.scale[rows],
        )

    def started(self, z: Tensor) -> Goal:
        """The goal with its scale set by the logits at the start; a scale once set is kept."""
        return self if self.scale is not None else replace(self, scale=spread(z.detach()))

    def height(self, z: Tensor) -> Tensor:
        """The loss, larger is nearer to the goal: n c -> n."""
        y, t = self.label, self.target
        if callable(self.loss):
            value = self.loss(z, y)
            if value.shape != y.shape:
                raise ShapeError(
                    f"The loss returned shape {tuple(value.shape)} for {len(y)} inputs; it must give one value per "
                    f"input, shape ({len(y)},). Leave the mean to the attack."
                )
            return value
        if self.loss == "ce":
            if self.as_published:
                goal = torch.nn.functional.cross_entropy(z, y if t is None else t, reduction="none")
                return goal if t is None else -goal
            if self.scale is not None:
                z = z * (SHARPNESS / self.scale)[:, None]
            return cross_entropy(z, y) if t is None else -cross_entropy(z, t)
        if self.loss == "margin":
            return -margin(z, y) if t is None else margin(z, t)
        return dlr(z, y) if t is None else targeted_dlr(z, y, t)

    def slope(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """The height and its gradient with respect to the logits: n c -> n, n c."""
        if self.loss == "ce" and not self.as_published and self.scale is not None:
            sharp = (SHARPNESS / self.scale)[:, None]
            height, slope = cross_entropy_slope(z * sharp, self.label if self.target is None else self.target)
            return (height, slope * sharp) if self.target is None else (-height, slope * -sharp)
        with torch.enable_grad():
            z = z.detach().requires_grad_()
            height = self.height(z)
            (slope,) = torch.autograd.grad(height.sum(), z)
        return height.detach(), slope

    def reached(self, z: Tensor) -> Tensor:
        """Whether the answer is what the attacker wants: n c -> n bool. NaN is neither right nor a target."""
        answer, lost = z.argmax(1), z.isnan().any(1)
        if self.target is None or self.any_other:
            return (answer != self.label) | lost
        return (answer == self.target) & ~lost
