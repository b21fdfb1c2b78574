r"""One class of several, or several labels at once.

With z the logits and y the label, one class of k:

    score   1 where argmax z = y, else 0
    margin  z_y - max_{i != y} z_i

and of k labels that may hold together, with y in {0, 1}^k:

    score   |said and true| / |said or true|, 1 where both are empty          (Jaccard)
    margin  min_i (2 y_i - 1) z_i                                             (every label is right)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from assay.errors import AssayError
from assay.tasks.task import Focus, Task, Trivial, misshapen, numbered_names, one_of

LET_IN = ("genuine", "accept", "accepted", "same")


def admitted(classes: tuple[str, ...], named: str | None, setting: str) -> int | str:
    """The place of the class that is let in: the one `named`, else one of LET_IN; or a sentence why there is none."""
    if named is not None and named in classes:
        return classes.index(named)
    found = [i for i, name in enumerate(classes) if name.lower() in LET_IN]
    if named is None and len(found) == 1:
        return found[0]
    known = ", ".join(classes[:10]) + (", ..." if len(classes) > 10 else "")
    asked = "nobody says which class is let in" if named is None else f"there is no class {named!r}"
    return f"{asked}; name one with --set {setting}=CLASS, of {known}"


@dataclass(frozen=True)
class Classification(Task):
    """The model returns one logit per class."""

    classes: tuple[str, ...]

    headline: ClassVar[str] = "accuracy"
    good: ClassVar[str] = "is the label"
    output: ClassVar[str] = "(n, k) logits, one for each class"
    gives: ClassVar[tuple[str, ...]] = ("classes", "mean")
    promise: ClassVar[str] = "the class it says is right"

    @property
    def chance(self) -> float:
        return 1 / len(self.classes)

    def __post_init__(self) -> None:
        if len(self.classes) < 2:
            raise AssayError(f"Classification needs at least 2 classes, got {len(self.classes)}; name each class.")

    def wrong_output(self, out: Any, n: int) -> str | None:
        return misshapen(out, n, len(self.classes), "classes")

    def wrong_targets(self, targets: NDArray[Any]) -> str | None:
        if targets.ndim != 1 or targets.dtype.kind not in "iu":
            return f"labels have shape {targets.shape} and dtype {targets.dtype}; give one class index each"
        strange = np.flatnonzero((targets < 0) | (targets >= len(self.classes)))
        if len(strange):
            k = len(self.classes)
            return f"label {targets[strange[0]]} of input {strange[0]} is outside 0..{k - 1} for {k} classes"
        return None

    def score(self, out: Tensor, target: Tensor) -> Tensor:
        return self.right(out, target).to(out.dtype)

    def margin(self, out: Tensor, target: Tensor) -> Tensor:
        own = target.long()[:, None]
        return out.gather(1, own)[:, 0] - out.scatter(1, own, -torch.inf).amax(1)

    def right(self, out: Tensor, target: Tensor) -> Tensor:
        return (out.argmax(1) == target) & ~out.isnan().any(1)  # of equal logits the first is the answer

    def loss(self, out: Tensor, target: Tensor) -> Tensor:
        return torch.nn.functional.cross_entropy(out, target.long(), reduction="none")

    def confidence(self, out: Tensor) -> Tensor:
        return out.softmax(1).amax(1)

    def average(self, outs: Tensor) -> Tensor:
        return outs.softmax(-1).mean(0).clamp_min(1e-38).log()

    def trivial(self, targets: NDArray[Any]) -> Trivial:
        counts = np.bincount(np.asarray(targets, dtype=np.int64), minlength=len(self.classes))
        return Trivial(
            "always says the commonest class", torch.from_numpy(counts / counts.sum()).clamp_min(1e-9).log().float()
        )

    def words(self, out: Tensor) -> str:
        likely = out.softmax(0)
        return f"{self.classes[int(likely.argmax())]}, {100 * float(likely.max()):.0f} %"

    def told(self, target: Tensor) -> str:
        return self.classes[int(target)]

    def focus(self, out: Tensor, which: int | None = None) -> Focus:
        """The logit of the class that it chose."""
        own = out.argmax(1) if which is None else torch.full((len(out),), which, device=out.device)
        return Focus(one_of(out, own), tuple(f"the logit of {self.classes[c]}" for c in own.tolist()))

    def strata(self, targets: NDArray[Any]) -> NDArray[np.int64]:
        return np.asarray(targets, dtype=np.int64)


@dataclass(frozen=True)
class Labels(Task):
    """The model returns one logit per label, and several labels may hold at once: above 0 the label is said."""

    classes: tuple[str, ...]

    headline: ClassVar[str] = "overlap of labels"
    good: ClassVar[str] = "has every label right"
    output: ClassVar[str] = "(n, k) logits, one for each label"
    promise: ClassVar[str] = "every label is right"

    @property
    def chance(self) -> float:
        return float(0.5 ** len(self.classes))

    def __post_init__(self) -> None:
        if not self.classes:
            raise AssayError("Labels needs at least one label; name each.")

    @classmethod
    def told_by(cls, x: Tensor, target: NDArray[Any], out: Tensor, classes: tuple[str, ...] | None) -> Task:
        """With as many labels as an output has."""
        return cls(classes or numbered_names(out.shape[-1]))

    def wrong_output(self, out: Any, n: int) -> str | None:
        return misshapen(out, n, len(self.classes), "labels")

    def wrong_targets(self, targets: NDArray[Any]) -> str | None:
        if targets.ndim != 2 or targets.shape[1] != len(self.classes):
            return (
                f"targets have shape {targets.shape}; give a row of {len(self.classes)} zeros and ones for each input"
            )
        strange = np.argwhere(~np.isin(targets, (0, 1)))
        if not len(strange):
            return None
        row, label = strange[0]
        return f"the label {self.classes[label]!r} of input {row} is {targets[row, label]}, not 0 or 1"

    def score(self, out: Tensor, target: Tensor) -> Tensor:
        said, true = out > 0, target.bool()
        either = (said | true).sum(1)
        return torch.where(either > 0, (said & true).sum(1) / either.clamp_min(1), 1.0).to(out.dtype)

    def margin(self, out: Tensor, target: Tensor) -> Tensor:
        signed = (2 * target.to(out.dtype) - 1) * out
        # a logit of 0 says "no": it is right where the label does not hold
        edge = (out == 0) & ~target.bool()
        return (signed + edge * torch.finfo(out.dtype).tiny).amin(1)

    def loss(self, out: Tensor, target: Tensor) -> Tensor:
        return torch.nn.functional.binary_cross_entropy_with_logits(out, target.to(out.dtype), reduction="none").mean(1)

    def confidence(self, out: Tensor) -> Tensor:
        """The probability that every label is right, were they independent."""
        return torch.sigmoid(out.abs()).prod(1)

    def kept(self, out: Tensor, target: Tensor, rng: torch.Generator) -> dict[str, Tensor]:
        """Of each label, too: that what is said of it, that it holds or that it does not, is right."""
        each = {"each sure": out.abs().sigmoid(), "each right": (out > 0) == target.bool()}
        return super().kept(out, target, rng) | each

    def average(self, outs: Tensor) -> Tensor:
        return torch.logit(outs.sigmoid().mean(0), eps=1e-7)

    def trivial(self, targets: NDArray[Any]) -> Trivial:
        often = np.asarray(targets, dtype=np.float64).mean(0)
        out = torch.from_numpy(np.where(often > 0.5, 1.0, -1.0)).float()
        return Trivial("always says the labels that hold more often than not", out)

    def words(self, out: Tensor) -> str:
        return self._listed(out > 0)

    def told(self, target: Tensor) -> str:
        return self._listed(target.bool())

    def focus(self, out: Tensor, which: int | None = None) -> Focus:
        """The logit of the surest label that it says; where it says none, of the one that is surest not to hold."""
        sure = torch.where((out > 0).any(1, keepdim=True), out, -out).argmax(1)
        own = sure if which is None else torch.full_like(sure, which)
        return Focus(one_of(out, own), tuple(f"the logit of {self.classes[c]}" for c in own.tolist()))

    def _listed(self, holds: Tensor) -> str:  # k
        return ", ".join(name for name, held in zip(self.classes, holds.tolist(), strict=True) if held) or "no label"

    def strata(self, targets: NDArray[Any]) -> NDArray[np.int64]:
        """By the rarest label that holds, so that a sample does not lose it."""
        y = np.asarray(targets, dtype=np.int64)
        rarity = np.argsort(np.argsort(y.sum(0), kind="stable"), kind="stable")
        return np.where(y.any(1), np.where(y > 0, rarity, len(rarity)).min(1), len(rarity))
