"""What inputs the model in a file takes, and how a batch of any length is brought to it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from assay.errors import SubjectError


@dataclass(frozen=True)
class Intake:
    """The form that a file fixed when it was exported: many are exported for one input, or for exactly n."""

    file: str
    shape: tuple[int | None, ...]
    """Of one input; None where any length goes."""
    fewest: int = 1
    most: int | None = None
    nhwc: bool = False
    """Whether channels stand last in the file; `shape` has them first."""

    @property
    def channels(self) -> int | None:
        return self.shape[0] if len(self.shape) == 3 else None

    def feed(self, answer: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:  # n *d -> n k
        """Answers to a batch of any length: cut to the most that the model takes, and filled up to the fewest.

        What fills up is zeros, whose answers are dropped; the model answers row by row, so the others do not see them.
        """
        self.check(tuple(x.shape[1:]))
        if self.fewest <= len(x) <= (self.most or len(x)):
            return answer(x)
        answers = []
        for part in torch.split(x, self.most or max(len(x), 1)):
            fill = part.new_zeros(max(0, self.fewest - len(part)), *part.shape[1:])
            answers.append(answer(torch.cat([part, fill]))[: len(part)])
        return torch.cat(answers)

    def check(self, shape: tuple[int, ...]) -> None:
        """Refuse inputs of another shape than the file was exported for."""
        if self._fits(shape):
            return
        wanted = " x ".join("any" if w is None else str(w) for w in self.shape)
        side = self.shape[-1] if len(self.shape) == len(shape) == 3 and self.shape[1] == self.shape[2] else None
        mend = f"give --size {side}" if side and shape[0] == self.shape[0] else "bring the data to that shape"
        if not self.nhwc and len(shape) == 3 and self._fits((shape[1], shape[2], shape[0])):
            mend = "give --layout nhwc if its channels stand last"
        raise SubjectError(
            f"{self.file} takes inputs of shape {wanted}, and the data has {' x '.join(map(str, shape))}; {mend}."
        )

    def _fits(self, shape: tuple[int, ...]) -> bool:
        return len(shape) == len(self.shape) and all(w in (None, s) for s, w in zip(shape, self.shape, strict=True))
