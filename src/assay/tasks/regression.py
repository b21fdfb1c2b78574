r"""Numbers for each input, with or without what the model says of their spread.

With y the target (d numbers), y^ the answer and tau the tolerance of each number,

    score   mean over the numbers of max(0, 1 - |y^ - y| / tau)
    margin  min over the numbers of 1 - |y^ - y| / tau

so that an answer is good enough where every number is within its tolerance. A predicted spread sigma or quantiles q
do not move the answer: the answer is the mean, or the middle quantile. They are judged by the questions on confidence.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import erf
from torch import Tensor

from assay.errors import AssayError
from assay.tasks.task import Task, Trivial, not_finite

TOLERATED = 0.5  # of the targets' standard deviation, where nobody says what error is small enough


@dataclass(frozen=True)
class Regression(Task):
    """The model returns numbers: (n, d); with a spread (n, 2, d), mean and standard deviation; or (n, q, d) quantiles.

    `names` of the d numbers, `tolerance` of each: the error up to which an answer may be relied on.
    """

    names: tuple[str, ...]
    tolerance: tuple[float, ...]
    units: tuple[str, ...] = ()
    spread: bool = False
    quantiles: tuple[float, ...] = ()

    headline: ClassVar[str] = "closeness"
    good: ClassVar[str] = "is within the tolerance"
    output: ClassVar[str] = "(n, d) numbers, (n, 2, d) with a spread, (n, q, d) as quantiles"

    def __post_init__(self) -> None:
        if len(self.names) != len(self.tolerance):
            raise AssayError(
                f"Regression of {len(self.names)} numbers has {len(self.tolerance)} tolerances; give one for each."
            )
        strange = [t for t in self.tolerance if not 0 < t < float("inf")]
        if strange:
            raise AssayError(f"A tolerance of {strange[0]:g} is no error to allow; give a number above 0.")
        if self.spread and self.quantiles:
            raise AssayError("Regression with a spread and quantiles has two answers to one question; give one.")
        if self.quantiles and (
            list(self.quantiles) != sorted(set(self.quantiles)) or not 0 < self.quantiles[0] <= self.quantiles[-1] < 1
        ):
            raise AssayError(f"Quantiles {self.quantiles} must rise between 0 and 1; for example 0.1, 0.5, 0.9.")

    @classmethod
    def of(cls, targets: NDArray[Any], **told: Any) -> Regression:  # n d
        """The task of these targets; where no tolerance is told, half of their standard deviation."""
        y = np.asarray(targets, dtype=np.float64).reshape(len(targets), -1)
        names = tuple(
            told.pop("names", None) or ([f"number {i}" for i in range(y.shape[1])] if y.shape[1] > 1 else ["value"])
        )
        tolerance = told.pop("tolerance", None)
        if tolerance is None:
            spread = y.std(0)
            flat = np.flatnonzero(~(spread > 0))
            if len(flat):
                raise AssayError(
                    f"The target {names[flat[0]]!r} is the same for every input; there is nothing to predict."
                )
            tolerance = TOLERATED * spread
        widths = np.broadcast_to(np.asarray(tolerance, dtype=np.float64), (y.shape[1],))
        return cls(names, tuple(widths.tolist()), **told)

    @property
    def wide(self) -> int | None:
        """How many numbers the model gives for one: 2 with a spread, q as quantiles, None for the number alone."""
        return 2 if self.spread else len(self.quantiles) or None

    def wrong_output(self, out: Any, n: int) -> str | None:
        if not isinstance(out, Tensor):
            return f"it returned {type(out).__name__}, not a tensor"
        d = len(self.names)
        shape = (n, d) if self.wide is None else (n, self.wide, d)
        if tuple(out.shape) != shape and not (d == 1 and tuple(out.shape) == shape[:-1]):
            return f"it returned shape {tuple(out.shape)} for {n} inputs and {d} numbers"
        if self.spread and bool((out[:, 1] < 0).any()):
            return "its spread, the second row, is negative for some inputs"
        return not_finite(out)

    def wrong_targets(self, targets: NDArray[Any]) -> str | None:
        if targets.dtype.kind not in "fiu":
            return f"targets have dtype {targets.dtype}; give numbers"
        if targets.shape[1:] not in ((len(self.names),), () if len(self.names) == 1 else (len(self.names),)):
            return f"targets have shape {targets.shape}; give {len(self.names)} for each input"
        bad = np.flatnonzero(~np.isfinite(targets.reshape(len(targets), -1)).all(1))
        return f"the target of input {bad[0]} is not a number" if len(bad) else None

    def answer(self, out: Tensor) -> Tensor:  # n *o -> n d
        """The numbers themselves."""
        if self.wide is None:
            return out.reshape(len(out), -1)
        out = out.reshape(len(out), self.wide, -1)
        if self.spread:
            return out[:, 0]
        below = sum(q < 0.5 for q in self.quantiles)
        if below < len(self.quantiles) and self.quantiles[below] == 0.5:
            return out[:, below]
        return out[:, max(0, below - 1) : below + 1].mean(1)

    def between(self, out: Tensor, share: float) -> tuple[Tensor, Tensor] | None:  # n *o -> n d, n d
        """What the model says the target lies between with this probability, where it says so."""
        if self.spread:
            out = out.reshape(len(out), 2, -1)
            reach = float(torch.special.ndtri(torch.tensor((1 + share) / 2, dtype=torch.float64)))
            return out[:, 0] - reach * out[:, 1], out[:, 0] + reach * out[:, 1]
        sides = ((1 - share) / 2, (1 + share) / 2)
        if self.quantiles and all(any(abs(q - s) < 1e-9 for q in self.quantiles) for s in sides):
            out = out.reshape(len(out), len(self.quantiles), -1)
            low, high = (min(range(len(self.quantiles)), key=lambda i: abs(self.quantiles[i] - s)) for s in sides)
            return out[:, low], out[:, high]
        return None

    def _off(self, out: Tensor, target: Tensor) -> Tensor:  # n *o, n *t -> n d
        answer = self.answer(out)
        return (answer - target.reshape(len(target), -1).to(answer)).abs() / answer.new_tensor(self.tolerance)

    def score(self, out: Tensor, target: Tensor) -> Tensor:
        return (1 - self._off(out, target)).clamp_min(0).mean(1)

    def margin(self, out: Tensor, target: Tensor) -> Tensor:
        return (1 - self._off(out, target)).amin(1)

    def loss(self, out: Tensor, target: Tensor) -> Tensor:
        return self._off(out, target).square().mean(1)

    def confidence(self, out: Tensor) -> Tensor | None:
        """The probability that every number is within its tolerance, by the spread that the model states."""
        if not self.spread:
            return None
        ratio = out.new_tensor(self.tolerance) / out.reshape(len(out), 2, -1)[:, 1].clamp_min(1e-30)
        return torch.from_numpy(np.asarray(erf((ratio / 2**0.5).double().cpu().numpy()))).prod(1).to(out)

    def trivial(self, targets: NDArray[Any]) -> Trivial:
        y = np.asarray(targets, dtype=np.float64).reshape(len(targets), -1)
        middle = torch.from_numpy(np.median(y, axis=0)).float()
        if self.spread:
            return Trivial("always says the median", torch.stack([middle, torch.from_numpy(y.std(0)).float()]))
        if self.quantiles:
            return Trivial(
                "always says the same quantiles", torch.from_numpy(np.quantile(y, self.quantiles, axis=0)).float()
            )
        return Trivial("always says the median", middle)

    def words(self, out: Tensor) -> str:
        values = self.answer(out[None])[0].tolist()
        units = self.units or ("",) * len(values)
        between = self.between(out[None], 0.9) if self.wide is not None else None
        told = []
        for i, (name, value, unit) in enumerate(zip(self.names, values, units, strict=True)):
            text = f"{value:.4g}{' ' if unit else ''}{unit}"
            if between is not None:
                text += f", {float(between[0][0, i]):.4g} to {float(between[1][0, i]):.4g}"
            told.append(text if len(values) == 1 else f"{name} {text}")
        return "; ".join(told)

    def told(self, target: Tensor) -> str:
        units = self.units or ("",) * len(self.names)
        return "; ".join(
            f"{value:.4g}{' ' if unit else ''}{unit}"
            if len(self.names) == 1
            else f"{name} {value:.4g}{' ' if unit else ''}{unit}"
            for name, value, unit in zip(self.names, target.reshape(-1).tolist(), units, strict=True)
        )
