r"""One class at each of many places: the pixels of an image, the words of a sentence.

With z_p the logits at place p and y_p its class, places with y_p = -1 are not counted, and a place leads by

    m_p = z_p[y_p] - max_{i != y_p} z_p[i]

`Segmentation` and `Tagging` differ in how they count; what they read is the same.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from assay.errors import AssayError, ShapeError, SubjectError
from assay.tasks.task import Task, check_enough, misshapen, numbered_names

NOT_COUNTED = -1
DRAWN = 16  # places of an input


class Places(Task):
    """What segmentation and tagging share. Subclasses are frozen dataclasses with the fields below."""

    classes: tuple[str, ...]
    enough: float
    """The score from which an answer may be relied on."""

    axes: ClassVar[int]
    """Of an output, with the one for the inputs."""
    axis: ClassVar[int]
    """The one of the classes."""
    promise: ClassVar[str] = "a place drawn at random is right"

    @property
    def chance(self) -> float:
        return 1 / len(self.classes)

    def __post_init__(self) -> None:
        if len(self.classes) < 2:
            raise AssayError(f"{self.name()} needs at least 2 classes, got {len(self.classes)}; name each class.")
        check_enough(self.enough, self.name())

    @classmethod
    def told_by(cls, x: Tensor, target: NDArray[Any], out: Tensor, classes: tuple[str, ...] | None) -> Task:
        """With as many classes as an output has."""
        if out.ndim != cls.axes:
            raise SubjectError(f"A task {cls.name()} has outputs {cls.output}, and the model gave {tuple(out.shape)}.")
        return cls(classes or numbered_names(out.shape[cls.axis]))  # type: ignore[call-arg]

    @abstractmethod
    def counted(self, said: Tensor, true: Tensor, counts: Tensor) -> Tensor:  # n p, n p, n p bool -> n in [0, 1]
        """How good the classes said are against the true ones, at the places that count."""

    def wrong_output(self, out: Any, n: int) -> str | None:
        return misshapen(out, n, len(self.classes), "classes", axes=self.axes, axis=self.axis % self.axes)

    def wrong_targets(self, targets: NDArray[Any]) -> str | None:
        if targets.ndim != self.axes - 1 or targets.dtype.kind not in "iu":
            return f"targets have shape {targets.shape} and dtype {targets.dtype}; give a class index for each place"
        strange = np.argwhere((targets < NOT_COUNTED) | (targets >= len(self.classes)))
        if len(strange):
            value = targets[tuple(strange[0])]
            return (
                f"class {value} of input {strange[0][0]} is outside 0..{len(self.classes) - 1}, and not "
                f"{NOT_COUNTED}, which is not counted"
            )
        empty = np.flatnonzero((targets == NOT_COUNTED).reshape(len(targets), -1).all(1))
        return f"every place of input {empty[0]} is {NOT_COUNTED}; nothing is left to count" if len(empty) else None

    def read(self, out: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:  # n *o, n *t -> n k p, n p, n p bool
        """Logits, classes (0 where none counts) and which places count."""
        logits = out.movedim(self.axis, 1).flatten(2)
        true = target.flatten(1).long()
        if logits.shape[2] != true.shape[1]:
            raise ShapeError(
                f"{self.name()} got answers of shape {tuple(out.shape)} for targets of shape {tuple(target.shape)}; "
                "let the model answer at each place of the target."
            )
        return logits, true.clamp_min(0), true != NOT_COUNTED

    def lead(self, logits: Tensor, true: Tensor) -> Tensor:  # n k p, n p -> n p
        """By how much the true class leads; of equal logits the first is the answer."""
        own = true[:, None]
        lead = logits.gather(1, own)[:, 0] - logits.scatter(1, own, -torch.inf).amax(1)
        return lead + ((lead == 0) & (logits.argmax(1) == true)) * torch.finfo(lead.dtype).tiny

    def score(self, out: Tensor, target: Tensor) -> Tensor:
        logits, true, counts = self.read(out, target)
        return self.counted(logits.argmax(1), true, counts).to(out.dtype)

    def loss(self, out: Tensor, target: Tensor) -> Tensor:
        logits, true, counts = self.read(out, target)
        each = torch.nn.functional.cross_entropy(logits, true, reduction="none")
        return (each * counts).sum(1) / counts.sum(1).clamp_min(1)

    def confidence(self, out: Tensor) -> Tensor:
        """The largest probability, averaged over all places: an answer does not know which of them count."""
        return out.softmax(self.axis).amax(self.axis).flatten(1).mean(1)

    def kept(self, out: Tensor, target: Tensor, rng: torch.Generator) -> dict[str, Tensor]:
        """Of a place drawn among those that count, and of DRAWN such places."""
        logits, true, counts = self.read(out, target)  # n k p, n p, n p
        top, said = logits.softmax(1).max(1)
        at = torch.multinomial(counts.float(), DRAWN, replacement=True, generator=rng)  # n drawn
        sure, right = (each.gather(1, at) for each in (top, said == true))
        return {"sure": sure[:, 0], "right": right[:, 0], "places sure": sure, "places right": right}

    def average(self, outs: Tensor) -> Tensor:
        return outs.softmax(self.axis % self.axes + 1).mean(0).clamp_min(1e-38).log()

    def said_most(self, out: Tensor, which: int | None = None) -> tuple[Tensor, Tensor]:  # n *o -> n k p, n p
        """Logits, and the class that each place says; -1 for those that are not `which`, or else say the first class
        where another is said: it is the ground, or no tag, and every answer is full of it."""
        logits = out.movedim(self.axis, 1).flatten(2)
        said = logits.argmax(1)
        plain = said != which if which is not None else (said == 0) & (said > 0).any(1, keepdim=True)
        return logits, said.masked_fill(plain, NOT_COUNTED)

    def placed(self, weight: Tensor, out: Tensor) -> Tensor:  # n k p, n *o -> n *o
        """Weights of logits at places, in the shape of an answer."""
        return weight.view_as(out.movedim(self.axis, 1)).movedim(1, self.axis)

    def shares(self, targets: NDArray[Any]) -> Tensor:  # n *t -> k *t
        """The log of how often each class is at each place."""
        often = np.stack([(targets == c).sum(0) for c in range(len(self.classes))])
        return torch.from_numpy(often / often.sum(0).clip(1)).clamp_min(1e-9).log().float()
