r"""Numbers for each input, with or without what the model says of their spread.

With y the target (d numbers), y^ the answer and tau the tolerance of each number,

    score   mean over the numbers of max(0, 1 - |y^ - y| / tau)
    margin  min over the numbers of 1 - |y^ - y| / tau

so that an answer is good enough where every number is within its tolerance. A predicted spread sigma or quantiles q
do not move the answer: the answer is the mean, or the middle quantile. They are judged by the questions on confidence,
and learnt through the loss: with z = (y - y^) / sigma, in units of tau and averaged over the numbers,

    loss    |y^ - y|^2                                                  of the number alone
            sigma (z (2 Phi(z) - 1) + 2 phi(z) - 1 / sqrt(pi))          with a spread: the CRPS of a normal
            2 mean over the levels a of max(a (y - q_a), (a - 1) (y - q_a))    of quantiles: the pinball loss

Source: Gneiting and Raftery 2007, doi:10.1198/016214506000001437, section 4.2; Koenker and Bassett 1978,
doi:10.2307/1913643.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from assay.errors import AssayError
from assay.tasks.task import Focus, Task, Trivial, apart, not_finite, slope_of

TOLERATED = 0.5  # of the targets' standard deviation, where nobody says what error is small enough
TOLD = 6  # numbers in the words of an answer that has more
NO_SPREAD = (
    "its numbers come without a standard deviation, so that no probability of being near enough is said; quantiles are "
    "held to what they say by does-it-know-how-far-off"
)


@dataclass(frozen=True)
class Regression(Task):
    """The model returns numbers: (n, d); with a spread (n, 2, d), mean and standard deviation; or (n, q, d) quantiles.

    `names` of the d numbers, `tolerance` of each: an answer whose error is below it may be relied on.
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
        if not self.names:
            raise AssayError("Regression needs at least one number; name each.")
        for what, given in (("tolerances", self.tolerance), ("units", self.units or self.names)):
            if len(given) != len(self.names):
                raise AssayError(f"Regression of {len(self.names)} numbers has {len(given)} {what}; give one for each.")
        strange = [t for t in self.tolerance if not 0 < t < float("inf")]
        if strange:
            raise AssayError(f"A tolerance of {strange[0]:g} is no error to allow; give a number above 0.")
        if self.spread and self.quantiles:
            raise AssayError("Regression with a spread and quantiles has two answers to one question; give one.")
        check_levels(self.quantiles)

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

    @classmethod
    def told_by(cls, x: Tensor, target: NDArray[Any], out: Tensor, classes: tuple[str, ...] | None) -> Task:
        """With the numbers of the targets, and a spread beside each where an output has one."""
        return cls.of(target, spread=out.ndim == 3 and out.shape[1] == 2)

    @property
    def gives(self) -> tuple[str, ...]:
        """Numbers, and their spread where the model states one."""
        return ("numbers", "spread") if self.spread or self.shares else ("numbers",)

    @property
    def shares(self) -> tuple[float, ...]:
        """What probabilities two of its quantiles are the ends of, rising: those that `between` knows of."""
        return tuple(
            sorted(
                round(1 - 2 * q, 9)
                for q in self.quantiles
                if q < 0.5 and any(abs(1 - q - p) < 1e-9 for p in self.quantiles)
            )
        )

    def numbers(self) -> Regression:
        """The task of its numbers: itself."""
        return self

    def wrong_output(self, out: Any, n: int) -> str | None:
        if not isinstance(out, Tensor):
            return f"it returned {type(out).__name__}, not a tensor"
        d = len(self.names)
        shape = (n, d) if self.wide is None else (n, self.wide, d)
        if tuple(out.shape) != shape and not (d == 1 and tuple(out.shape) == shape[:-1]):
            return f"it returned shape {tuple(out.shape)} for {n} inputs and {d} numbers"
        if self.spread and bool((out[:, 1] < 0).any()):
            return f"its spread, the second row, goes down to {float(out[:, 1].min()):g}, and no spread is negative"
        return not_finite(out)

    def wrong_targets(self, targets: NDArray[Any]) -> str | None:
        if targets.dtype.kind not in "fiu":
            return f"targets have dtype {targets.dtype}; give numbers"
        if targets.shape[1:] not in ((len(self.names),), () if len(self.names) == 1 else (len(self.names),)):
            return f"targets have shape {targets.shape}; give {len(self.names)} for each input"
        y = targets.reshape(len(targets), len(self.names))
        bad = np.argwhere(~np.isfinite(y))
        return f"the target {self.names[bad[0, 1]]!r} of input {bad[0, 0]} is {y[tuple(bad[0])]}" if len(bad) else None

    def answer(self, out: Tensor) -> Tensor:  # n *o -> n d
        """The numbers themselves."""
        out = self._rows(out)
        return middle(out, self.quantiles) if self.quantiles else out[:, 0]

    def _rows(self, out: Tensor) -> Tensor:  # n *o -> n w d
        return out.reshape(len(out), self.wide or 1, len(self.names))

    def between(self, out: Tensor, share: float) -> tuple[Tensor, Tensor] | None:  # n *o -> n d, n d
        """What the model says the target lies between with this probability, where it says so."""
        if self.spread:
            out = self._rows(out)
            reach = float(torch.special.ndtri(torch.tensor((1 + share) / 2, dtype=torch.float64)))
            return out[:, 0] - reach * out[:, 1], out[:, 0] + reach * out[:, 1]
        sides = ((1 - share) / 2, (1 + share) / 2)
        if self.quantiles and all(any(abs(q - s) < 1e-9 for q in self.quantiles) for s in sides):
            out = self._rows(out)
            low, high = (min(range(len(self.quantiles)), key=lambda i: abs(self.quantiles[i] - s)) for s in sides)
            return out[:, low], out[:, high]
        return None

    def _off(self, out: Tensor, target: Tensor) -> Tensor:  # n *o, n *t -> n d
        answer = self.answer(out)
        return apart(answer, target.reshape(answer.shape).to(answer)) / answer.new_tensor(self.tolerance)

    def score(self, out: Tensor, target: Tensor) -> Tensor:
        return (1 - self._off(out, target)).clamp_min(0).mean(1)

    def margin(self, out: Tensor, target: Tensor) -> Tensor:
        return (1 - self._off(out, target)).amin(1)

    def loss(self, out: Tensor, target: Tensor) -> Tensor:
        rows, unit = self._rows(out), out.new_tensor(self.tolerance)
        y = target.reshape(rows[:, 0].shape).to(rows)
        if self.quantiles:
            return (pinball(rows, y, self.quantiles) / unit).mean(1)
        if not self.spread:
            return ((rows[:, 0] - y) / unit).square().mean(1)
        sigma = rows[:, 1].clamp_min(1e-6 * unit)  # n d
        z = (y - rows[:, 0]) / sigma
        at, density = torch.special.ndtr(z), torch.exp(-z.square() / 2) / (2 * torch.pi) ** 0.5
        crps: Tensor = sigma * (z * (2 * at - 1) + 2 * density - torch.pi**-0.5)
        return (crps / unit).mean(1)

    def confidence(self, out: Tensor) -> Tensor | None:
        """The probability that every number is within its tolerance, by the spread that the model states."""
        if not self.spread:
            return None
        ratio = out.new_tensor(self.tolerance) / self._rows(out)[:, 1].clamp_min(1e-30)
        return torch.erf(ratio / 2**0.5).prod(1)

    @property
    def promise(self) -> str | None:
        return "the answer is within its tolerance" if self.spread else None

    @property
    def no_promise(self) -> str:
        return NO_SPREAD

    @property
    def chance(self) -> float | None:
        return 0.0 if self.spread else None

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
        return _joined(told)

    @property
    def named(self) -> tuple[str, ...]:
        return self.names

    def focus(self, out: Tensor, which: int | None = None) -> Focus:
        """The first number, without its spread."""
        place = which or 0
        unit = f" in {self.units[place]}" if self.units and self.units[place] else ""
        weight = slope_of(lambda at: self.answer(at)[:, place], out)
        return Focus(weight, (f"{self.names[place]}{unit}",) * len(out))

    def told(self, target: Tensor) -> str:
        units = self.units or ("",) * len(self.names)
        return _joined(
            [
                f"{value:.4g}{' ' if unit else ''}{unit}"
                if len(self.names) == 1
                else f"{name} {value:.4g}{' ' if unit else ''}{unit}"
                for name, value, unit in zip(self.names, target.reshape(-1).tolist(), units, strict=True)
            ]
        )


def _joined(told: list[str]) -> str:
    """Some hundred numbers are no words: the first few, and how many there are besides."""
    return "; ".join(told if len(told) <= TOLD else [*told[:TOLD], f"and {len(told) - TOLD} more"])


def check_levels(quantiles: tuple[float, ...]) -> None:
    """Refuse levels that are no quantiles."""
    if quantiles and (list(quantiles) != sorted(set(quantiles)) or not 0 < quantiles[0] <= quantiles[-1] < 1):
        raise AssayError(f"Quantiles {quantiles} must rise between 0 and 1; for example 0.1, 0.5, 0.9.")


def middle(out: Tensor, quantiles: tuple[float, ...]) -> Tensor:  # n q *d -> n *d
    """The median, or the mean of the two levels around it."""
    below = sum(q < 0.5 for q in quantiles)
    if below < len(quantiles) and quantiles[below] == 0.5:
        return out[:, below]
    return out[:, max(0, below - 1) : below + 1].mean(1)


def pinball(out: Tensor, y: Tensor, quantiles: tuple[float, ...]) -> Tensor:  # n q *d, n *d -> n *d
    """Twice the pinball loss, averaged over the levels: of the median alone it is the absolute error."""
    level = out.new_tensor(quantiles).view(-1, *[1] * (y.ndim - 1))  # q *1
    over = y[:, None] - out
    return 2 * torch.maximum(level * over, (level - 1) * over).mean(1)
