r"""An image for each image: denoisers, translators, restorers.

With e the root of the mean squared error over the channels and pixels of an image, and tau the tolerance,

    score   max(0, 1 - e / tau)
    margin  1 - e / tau
    loss    (e / tau)^2

In decibels e is a peak signal-to-noise ratio of 20 log10((high - low) / e): the score is told in the image's own units,
since decibels have no upper end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from assay.errors import AssayError
from assay.tasks.regression import TOLERATED
from assay.tasks.task import Focus, Task, Trivial, misshapen

NO_ERROR = 1e-30  # of a mean square: the root of 0 has no gradient


@dataclass(frozen=True)
class ImageToImage(Task):
    """The model returns an image (c, h, w); an answer whose error is below the tolerance may be relied on.

    Values lie between `low` and `high`: that is how an answer is drawn.
    """

    shape: tuple[int, int, int]
    tolerance: float
    low: float = 0.0
    high: float = 1.0

    headline: ClassVar[str] = "closeness"
    good: ClassVar[str] = "is within the tolerance"
    output: ClassVar[str] = "(n, c, h, w) images of the shape of the targets"
    gives: ClassVar[tuple[str, ...]] = ("mean",)

    def __post_init__(self) -> None:
        if len(self.shape) != 3 or min(self.shape) < 1:
            raise AssayError(f"ImageToImage wants the shape (c, h, w) of an image, got {self.shape}; mend it.")
        if not 0 < self.tolerance < float("inf"):
            raise AssayError(f"A tolerance of {self.tolerance:g} is no error to allow; give a number above 0.")
        if not self.low < self.high:
            raise AssayError(
                f"Values must have low < high, got {self.low:g} and {self.high:g}; images are usually 0 1."
            )

    @classmethod
    def of(cls, targets: NDArray[Any], **told: Any) -> ImageToImage:  # n c h w
        """The task of these targets; where no tolerance is told, half of their pixels' standard deviation.

        Each pixel's own, over the images: always answering their mean image is then twice too far off.
        """
        if "tolerance" not in told:
            told["tolerance"] = float(TOLERATED * np.sqrt(np.asarray(targets, dtype=np.float64).var(0).mean()))
        return cls((targets.shape[1], targets.shape[2], targets.shape[3]), **told)

    @classmethod
    def told_by(cls, x: Tensor, target: NDArray[Any], out: Tensor, classes: tuple[str, ...] | None) -> Task:
        """Images of the shape of the targets, between what these have."""
        low, high = (min(0.0, float(target.min())), max(1.0, float(target.max()))) if target.size else (0.0, 1.0)
        return cls.of(target, low=low, high=high)

    def wrong_output(self, out: Any, n: int) -> str | None:
        if isinstance(out, Tensor) and out.shape != (n, *self.shape):
            return f"it returned shape {tuple(out.shape)} for {n} images of shape {self.shape}"
        return misshapen(out, n, self.shape[0], "channels", axes=4)

    def wrong_targets(self, targets: NDArray[Any]) -> str | None:
        if targets.dtype.kind != "f" or targets.shape[1:] != self.shape:
            return f"targets have shape {targets.shape} and dtype {targets.dtype}; give images {self.shape} of floats"
        bad = np.argwhere(~np.isfinite(targets))
        return f"a pixel of target {bad[0][0]} is {targets[tuple(bad[0])]}" if len(bad) else None

    def _square(self, out: Tensor, target: Tensor) -> Tensor:  # n c h w, n c h w -> n
        return (out - target.to(out)).square().flatten(1).mean(1) / self.tolerance**2

    def score(self, out: Tensor, target: Tensor) -> Tensor:
        return self.margin(out, target).clamp_min(0)

    def margin(self, out: Tensor, target: Tensor) -> Tensor:
        return 1 - self._square(out, target).clamp_min(NO_ERROR).sqrt()

    def loss(self, out: Tensor, target: Tensor) -> Tensor:
        return self._square(out, target)

    def trivial(self, targets: NDArray[Any]) -> Trivial:
        return Trivial("always says the mean image", torch.from_numpy(targets.mean(0, dtype=np.float64)).float())

    def words(self, out: Tensor) -> str:
        return f"an image of mean {float(out.mean()):.3g}, from {float(out.min()):.3g} to {float(out.max()):.3g}"

    def focus(self, out: Tensor, which: int | None = None) -> Focus:
        r"""How much of the answer's own contrast a changed answer still has, of the change of the output that counts.

            <out, a - mean a> / |a - mean a|^2        with a the answer as it is: 1 there, and 0 for an even image

        Of an answer that is even itself it is the mean.
        """
        own = out - out.flatten(1).mean(1).view(-1, 1, 1, 1)
        size = own.square().flatten(1).sum(1).view(-1, 1, 1, 1)
        plain = torch.full_like(out, 1 / out[0].numel()) if len(out) else out
        even = size <= NO_ERROR
        weight = torch.where(even, plain, own / size.clamp_min(NO_ERROR))
        told = ("the mean of its answer", "the share of its answer's contrast that is there")
        return Focus(weight, tuple(told[int(not flat)] for flat in even.flatten().tolist()))

    def picture(self, out: Tensor) -> NDArray[np.float32] | None:
        """The answer where it is grey or has three colours, else its mean over the channels: c h w."""
        shown = out if out.shape[0] in (1, 3) else out.mean(0, keepdim=True)
        return ((shown.float() - self.low) / (self.high - self.low)).clamp(0, 1).cpu().numpy()
