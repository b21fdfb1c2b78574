r"""Boxes around things, and what the things are, out of a fixed number of proposals.

A proposal says a box where its objectness is above 0; its confidence is sigmoid(objectness) times its largest class
probability. In order of confidence, a box that overlaps a kept one of its class by more than `overlap` (intersection
over union) is dropped; then each kept box finds the free target of its class that it overlaps most, if by at least
`overlap`.

    score   2 found / (kept boxes + targets), 1 where there are none                                 (F1)
    margin  score - enough, with the gradient of -loss
    loss    1 / max(1, m) times the sum of
            over the m targets: log(1 + exp(-o)) - log p(class) + 5 |box - target|_1 + 1 - overlap, of the proposal
                whose box is nearest in |.|_1
            over the proposals that are nearest to no target and overlap none by `overlap`: log(1 + exp(o))

Source of the loss: after Carion et al. 2020, arXiv:2005.12872, eq. 2, with the nearest proposal in place of an optimal
assignment; of the matching: Everingham et al. 2010, doi:10.1007/s11263-009-0275-4, section 4.2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import softplus

from assay.errors import AssayError
from assay.tasks.task import Focus, Task, Trivial, above, check_enough, misshapen, numbered_names, one_of, through

BOX, OBJECT = slice(0, 4), 4  # what the entries of a proposal are; classes from 5 on
REACH = (-1.0, 2.0)  # an untrained box may leave the image; one in pixels is told
TOLD = 5  # boxes in the words of an answer


class Said(NamedTuple):
    """The boxes of an answer, in order of confidence."""

    box: Tensor  # n q 4
    kind: Tensor  # n q
    confidence: Tensor  # n q
    kept: Tensor  # n q bool


@dataclass(frozen=True)
class Detection(Task):
    """The model returns q proposals: left, top, right, bottom in shares of the image, objectness, a logit per class.

    Targets (n, m, 5) are class, left, top, right, bottom; rows of -1 are no target.
    """

    classes: tuple[str, ...]
    overlap: float = 0.5
    enough: float = 0.5

    headline: ClassVar[str] = "F1 of the boxes"
    good: ClassVar[str] = "has enough of the boxes right"
    output: ClassVar[str] = "(n, q, 4 + 1 + k) proposals: a box in shares of the image, an objectness, class logits"

    def __post_init__(self) -> None:
        if not self.classes:
            raise AssayError("Detection needs at least one class; name each.")
        if not 0 < self.overlap < 1:
            raise AssayError(f"Detection with overlap={self.overlap:g}; give a share between 0 and 1.")
        check_enough(self.enough, "Detection")

    @classmethod
    def told_by(cls, x: Tensor, target: NDArray[Any], out: Tensor, classes: tuple[str, ...] | None) -> Task:
        """With as many classes as an output has logits for, behind a box and its objectness."""
        return cls(classes or numbered_names(max(1, out.shape[-1] - 5)))

    def wrong_output(self, out: Any, n: int) -> str | None:
        k = len(self.classes)
        wrong = misshapen(out, n, 5 + k, f"entries of a proposal, 5 and {k} classes", axes=3, axis=2)
        if wrong is not None or not n:
            return wrong
        low, high = float(out[..., BOX].min()), float(out[..., BOX].max())
        if low < REACH[0] or high > REACH[1]:
            return f"its boxes reach from {low:g} to {high:g}, and shares of the image go from 0 to 1"
        return None

    def wrong_targets(self, targets: NDArray[Any]) -> str | None:
        if targets.ndim != 3 or targets.shape[1] < 1 or targets.shape[2] != 5 or targets.dtype.kind not in "fiu":
            return f"targets have shape {targets.shape} and dtype {targets.dtype}; give (n, m, 5): class and box"
        real = targets[..., 0] != -1
        kind, box = targets[..., 0], targets[..., 1:]
        strange = np.argwhere(real & ~np.isin(kind, np.arange(len(self.classes))))
        if len(strange):
            return (
                f"class {kind[tuple(strange[0])]:g} of input {strange[0][0]} is not one of 0..{len(self.classes) - 1}"
            )
        inside = (box >= 0).all(-1) & (box <= 1).all(-1) & (box[..., 2] > box[..., 0]) & (box[..., 3] > box[..., 1])
        strange = np.argwhere(real & ~inside)
        if len(strange):
            told = ", ".join(f"{v:g}" for v in box[tuple(strange[0])])
            return f"the box {told} of input {strange[0][0]} is not left, top, right, bottom between 0 and 1"
        return None

    def said(self, out: Tensor) -> Said:  # n q 5+k
        """What an answer says, overlapping boxes of one class dropped."""
        sure, kind = out[..., 5:].softmax(2).max(2)
        says = out[..., OBJECT] > 0
        confidence = out[..., OBJECT].sigmoid() * sure
        order = confidence.masked_fill(~says, -1).argsort(dim=1, descending=True, stable=True)
        order = order[:, : int(says.sum(1).amax()) if len(out) else 0]
        box = out[..., BOX].gather(1, order[..., None].expand(-1, -1, 4))
        kind, confidence, kept = (each.gather(1, order) for each in (kind, confidence, says))
        near = (overlap(box, box) > self.overlap) & (kind[:, :, None] == kind[:, None])
        near &= torch.ones(near.shape[1:], dtype=torch.bool, device=out.device).triu(1)  # the less sure one is dropped
        for i in range(order.shape[1]):
            kept = kept & ~(kept[:, i, None] & near[:, i])
        return Said(box, kind, confidence, kept)

    def score(self, out: Tensor, target: Tensor) -> Tensor:
        box, kind, _, kept = self.said(out.detach())
        target = target.to(out)
        free = real = target[..., 0] >= 0  # n m
        fits = overlap(box, target[..., 1:]).masked_fill(kind[:, :, None] != target[:, None, :, 0], -1)  # n q m
        found = torch.zeros(len(out), device=out.device)
        for i in range(box.shape[1]):
            best, which = fits[:, i].masked_fill(~free, -1).max(1)
            hit = kept[:, i] & (best >= self.overlap)
            free = free.scatter(1, which[:, None], free.gather(1, which[:, None]) & ~hit[:, None])
            found = found + hit
        total = kept.sum(1) + real.sum(1)
        return torch.where(total > 0, 2 * found / total.clamp_min(1), 1.0).to(out.dtype)

    def margin(self, out: Tensor, target: Tensor) -> Tensor:
        value = above(self.score(out, target), self.enough)
        return through(value, -self.loss(out, target))

    def loss(self, out: Tensor, target: Tensor) -> Tensor:
        target = target.to(out)
        real, kind, boxes = target[..., 0] >= 0, target[..., 0].long().clamp_min(0), target[..., 1:]
        off = (out[:, :, None, BOX] - boxes[:, None]).abs().sum(3)  # n q m
        nearest = off.argmin(1)  # n m
        own = out.gather(1, nearest[..., None].expand(-1, -1, out.shape[2]))  # n m 5+k
        alike = overlap(own[..., BOX], boxes).diagonal(dim1=1, dim2=2)  # n m
        missed = softplus(-own[..., OBJECT]) - own[..., 5:].log_softmax(2).gather(2, kind[..., None])[..., 0]
        missed = missed + 5 * (own[..., BOX] - boxes).abs().sum(2) + 1 - alike
        with torch.no_grad():
            near = (overlap(out[..., BOX], boxes) >= self.overlap) & real[:, None]
            near |= torch.zeros_like(near).scatter(1, nearest[:, None], real[:, None])
        false = softplus(out[..., OBJECT]) * ~near.any(2)
        return ((missed * real).sum(1) + false.sum(1)) / real.sum(1).clamp_min(1)

    def confidence(self, out: Tensor) -> Tensor:
        """The mean confidence of its boxes; where it has none, the chance that even the likeliest proposal is none."""
        _, _, confidence, kept = self.said(out)
        mean = (confidence * kept).sum(1) / kept.sum(1).clamp_min(1)
        return torch.where(kept.any(1), mean, torch.sigmoid(-out[..., OBJECT].amax(1)))

    @property
    def no_promise(self) -> str:
        return "the confidence of its boxes says nothing of those it missed, and so not how likely the answer will do"

    def average(self, outs: Tensor) -> Tensor:
        there = torch.logit(outs[..., OBJECT, None].sigmoid().mean(0), eps=1e-7)
        kinds = outs[..., 5:].softmax(-1).mean(0).clamp_min(1e-38).log()
        return torch.cat([outs[..., BOX].mean(0), there, kinds], -1)

    def trivial(self, targets: NDArray[Any]) -> Trivial:
        rows = np.asarray(targets, dtype=np.float64).reshape(-1, 5)
        rows = rows[rows[:, 0] >= 0]
        k = len(self.classes)
        if not len(rows):
            return Trivial("always says that there is nothing", torch.tensor([[0.0, 0, 1, 1, -1] + [0.0] * k]))
        commonest = np.bincount(rows[:, 0].astype(np.int64), minlength=k).argmax()
        box = np.median(rows[rows[:, 0] == commonest, 1:], axis=0)
        out = np.concatenate([box, [1.0], np.eye(k)[commonest]])
        return Trivial("always says the commonest class in its median box", torch.from_numpy(out).float()[None])

    def focus(self, out: Tensor, which: int | None = None) -> Focus:
        """The objectness and the class logit of its surest box; of its likeliest proposal where it says no box."""
        k, says = len(self.classes), out[..., OBJECT] > 0
        sure = out[..., OBJECT, None].sigmoid() * out[..., 5:].softmax(2)  # n q k
        if which is not None:
            sure = sure.masked_fill(torch.arange(k, device=out.device) != which, -1)
        place = sure.masked_fill((~says & says.any(1, keepdim=True))[..., None], -1).flatten(1).argmax(1)
        box, kind = place // k, place % k
        weight = one_of(out, box * (5 + k) + OBJECT) + one_of(out, box * (5 + k) + 5 + kind)
        return Focus(weight, tuple(f"the score of its surest {self.classes[c]}, a logit" for c in kind.tolist()))

    def words(self, out: Tensor) -> str:
        said = self.said(out[None])
        rows = zip(said.kind[0].tolist(), said.confidence[0].tolist(), said.kept[0].tolist(), strict=True)
        return self._listed([f"{self.classes[kind]} {100 * sure:.0f} %" for kind, sure, kept in rows if kept])

    def told(self, target: Tensor) -> str:
        return self._listed([self.classes[int(kind)] for kind in target[:, 0] if kind >= 0])

    def _listed(self, things: list[str]) -> str:
        return ", ".join(things[:TOLD]) + (", ..." if len(things) > TOLD else "") or "nothing"


def overlap(a: Tensor, b: Tensor) -> Tensor:  # n q 4, n m 4 -> n q m
    """Intersection over union; 0 for boxes without an inside."""
    low = torch.maximum(a[:, :, None, :2], b[:, None, :, :2])
    high = torch.minimum(a[:, :, None, 2:], b[:, None, :, 2:])
    both = (high - low).clamp_min(0).prod(3)
    area, other = ((each[..., 2:] - each[..., :2]).clamp_min(0).prod(2) for each in (a, b))
    return both / (area[:, :, None] + other[:, None] - both).clamp_min(1e-9)
