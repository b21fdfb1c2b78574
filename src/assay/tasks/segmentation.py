r"""A class for each pixel.

With A_c the pixels of which the answer says class c and T_c those of which it is true,

    score   mean over the classes c in the answer or the target of |A_c and T_c| / |A_c or T_c|     (mean IoU)
    margin  score - enough, with the gradient of
            mean over the classes of the target of the mean over its pixels of log(1 + exp(m_p)),

m_p the lead of pixel p's true class: pixels that are still right are pushed, wrong ones hardly, small classes as much
as large ones. Source of the score: Everingham et al. 2010, doi:10.1007/s11263-009-0275-4, section 4.3, for one image.
"""

from __future__ import annotations

import colorsys
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import softplus

from assay.tasks.places import Places
from assay.tasks.task import Focus, Trivial, above, through

GOLDEN = 0.618  # of the circle of hues between one class and the next: neighbours differ, however many there are
TOLD = 3  # classes in the words of an answer


@dataclass(frozen=True)
class Segmentation(Places):
    """The model returns logits for each class at each pixel; targets (n, h, w) are classes, -1 where none counts."""

    classes: tuple[str, ...]
    enough: float = 0.5

    headline: ClassVar[str] = "mean IoU"
    good: ClassVar[str] = "overlaps the target well enough"
    output: ClassVar[str] = "(n, k, h, w) logits, one for each class at each pixel"
    axes: ClassVar[int] = 4
    axis: ClassVar[int] = 1

    def counted(self, said: Tensor, true: Tensor, counts: Tensor) -> Tensor:
        kinds = torch.arange(len(self.classes), device=said.device)[:, None]
        a, t = ((c[:, None] == kinds) & counts[:, None] for c in (said, true))  # n k p
        both, either = (a & t).sum(2), (a | t).sum(2)
        return (both / either.clamp_min(1)).sum(1) / (either > 0).sum(1).clamp_min(1)

    def margin(self, out: Tensor, target: Tensor) -> Tensor:
        logits, true, counts = self.read(out, target)
        area = torch.zeros_like(logits[..., 0]).scatter_add_(1, true, counts.to(logits.dtype))  # n k
        weight = counts / area.gather(1, true).clamp_min(1) / (area > 0).sum(1, keepdim=True).clamp_min(1)  # n p
        return through(above(self.score(out, target), self.enough), (weight * softplus(self.lead(logits, true))).sum(1))

    def trivial(self, targets: NDArray[Any]) -> Trivial:
        return Trivial("always says the commonest class of each pixel", self.shares(targets))

    def focus(self, out: Tensor, which: int | None = None) -> Focus:
        """The mean logit of a class over the region that is said to be it: the largest one besides the first class."""
        _, said = self.said_most(out, which)
        kinds = torch.arange(len(self.classes), device=out.device)[:, None]
        there = (said[:, None] == kinds).to(out.dtype)  # n k p
        own = there.sum(2).argmax(1) if which is None else torch.full((len(out),), which, device=out.device)
        region = there * (own[:, None] == kinds[:, 0])[..., None]
        everywhere = (own[:, None] == kinds[:, 0])[..., None].to(out.dtype).expand_as(region)  # of a class never said
        region = torch.where(region.flatten(1).any(1).view(-1, 1, 1), region, everywhere)
        weight = self.placed(region / region.flatten(1).sum(1).view(-1, 1, 1), out)
        return Focus(weight, tuple(f"the mean logit of {self.classes[c]} over its region" for c in own.tolist()))

    def words(self, out: Tensor) -> str:
        return self.told(out.argmax(0))

    def told(self, target: Tensor) -> str:
        shown = target[target >= 0].long()
        share = torch.bincount(shown, minlength=len(self.classes)) / max(1, len(shown))
        most = [c for c in share.argsort(descending=True, stable=True).tolist()[:TOLD] if share[c] > 0]
        return ", ".join(f"{self.classes[c]} {100 * float(share[c]):.0f} %" for c in most) or "nothing"

    def picture(self, out: Tensor) -> NDArray[np.float32]:
        """Each class in a colour of its own, the first in black: k h w -> 3 h w."""
        hues = [(0.0, 0.0, 0.0), *(colorsys.hsv_to_rgb(c * GOLDEN % 1, 0.8, 1) for c in range(1, len(self.classes)))]
        return np.moveaxis(np.asarray(hues, dtype=np.float32)[out.argmax(0).cpu().numpy()], -1, 0)
