r"""The future of a series: numbers for each step ahead and each channel, with or without quantiles.

With y (horizon h, channels c) what came, y^ the answer and s_c the mean absolute error of the naive forecast, which
says that the next value is the last one,

    e_c     mean over the steps of |y^ - y| / s_c                     (MASE)
    score   mean over the channels of max(0, 1 - e_c)
    margin  min over the channels of 1 - e_c

so that an answer may be relied on where it is nearer than a naive step in every channel. Quantiles do not move the
answer, which is the middle one; they are learnt through the loss. Source: Hyndman and Koehler 2006,
doi:10.1016/j.ijforecast.2006.03.001, with s over all series given in place of each one's own past.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from assay.errors import AssayError, SubjectError
from assay.tasks.regression import Regression, check_levels, middle, pinball
from assay.tasks.task import Focus, Task, Trivial, apart, not_finite, slope_of

TOLD = 4  # steps in the words of an answer


@dataclass(frozen=True)
class Forecast(Task):
    """The model returns (n, horizon, channels), as quantiles (n, q, horizon, channels).

    `scale` of each channel: the mean absolute error of a naive step, which an answer must be nearer than.
    """

    channels: tuple[str, ...]
    horizon: int
    scale: tuple[float, ...]
    quantiles: tuple[float, ...] = ()

    headline: ClassVar[str] = "closeness"
    good: ClassVar[str] = "is nearer than a naive step"
    output: ClassVar[str] = "(n, horizon, channels) numbers, (n, q, horizon, channels) as quantiles"

    def __post_init__(self) -> None:
        if not self.channels or self.horizon < 1:
            raise AssayError(
                f"Forecast of {len(self.channels)} channels, {self.horizon} steps; give at least 1 of each."
            )
        if len(self.channels) != len(self.scale):
            raise AssayError(
                f"Forecast of {len(self.channels)} channels has {len(self.scale)} scales; give one for each."
            )
        strange = [s for s in self.scale if not 0 < s < float("inf")]
        if strange:
            raise AssayError(f"A scale of {strange[0]:g} is no error of a naive step; give a number above 0.")
        check_levels(self.quantiles)

    @classmethod
    def of(cls, series: NDArray[Any], horizon: int, *, season: int = 1, **told: Any) -> Forecast:  # n t c
        """The task of series like these: the naive forecast repeats the value of `season` steps before."""
        if series.ndim != 3 or series.shape[1] <= season:
            raise AssayError(
                f"Series of shape {series.shape} show no naive step of {season}; give longer ones, (n, time, channels)."
            )
        names = tuple(told.pop("channels", None) or (f"channel {c}" for c in range(series.shape[2])))
        y = np.asarray(series, dtype=np.float64)
        scale = np.abs(y[:, season:] - y[:, :-season]).mean((0, 1))
        flat = np.flatnonzero(~(scale > 0))
        if len(flat):
            raise AssayError(f"The channel {names[flat[0]]!r} repeats itself exactly; there is nothing to forecast.")
        return cls(names, horizon, tuple(scale.tolist()), **told)

    @classmethod
    def told_by(cls, x: Tensor, target: NDArray[Any], out: Tensor, classes: tuple[str, ...] | None) -> Task:
        """As many steps as the targets have; what a naive step errs by is read off the series, or their future."""
        if target.ndim != 3:
            raise SubjectError(f"Targets of shape {target.shape} are no future of series; give (n, steps, channels).")
        past = x.ndim == 3 and x.shape[1] > 1 and x.shape[2] == target.shape[2]
        return cls.of(x.numpy() if past else target, target.shape[1])

    @property
    def _shape(self) -> tuple[int, int]:
        return self.horizon, len(self.channels)

    @property
    def gives(self) -> tuple[str, ...]:
        """Numbers, and their spread where there are quantiles on both sides."""
        return self.numbers().gives

    @property
    def no_promise(self) -> str:
        return self.numbers().no_promise

    def numbers(self) -> Regression:
        """The same answers as numbers side by side, each step of each channel one, with the naive step as tolerance."""
        names = tuple(f"{channel}, step {step}" for step in range(1, self.horizon + 1) for channel in self.channels)
        return Regression(names, self.scale * self.horizon, quantiles=self.quantiles)

    def wrong_output(self, out: Any, n: int) -> str | None:
        if not isinstance(out, Tensor):
            return f"it returned {type(out).__name__}, not a tensor"
        levels = (len(self.quantiles),) if self.quantiles else ()
        if tuple(out.shape) != (n, *levels, *self._shape):
            return (
                f"it returned shape {tuple(out.shape)} for {n} series, {self.horizon} steps, {self._shape[1]} channels"
            )
        return not_finite(out)

    def wrong_targets(self, targets: NDArray[Any]) -> str | None:
        if targets.dtype.kind not in "fiu" or targets.shape[1:] != self._shape:
            return f"targets have shape {targets.shape} and dtype {targets.dtype}; give numbers, {self._shape} each"
        bad = np.argwhere(~np.isfinite(targets))
        return f"a value of target {bad[0][0]} is {targets[tuple(bad[0])]}" if len(bad) else None

    def answer(self, out: Tensor) -> Tensor:  # n *o -> n h c
        """The numbers themselves."""
        return middle(out, self.quantiles) if self.quantiles else out

    def _off(self, out: Tensor, target: Tensor) -> Tensor:  # n *o, n h c -> n c
        answer = self.answer(out)
        return apart(answer, target.to(answer)).mean(1) / answer.new_tensor(self.scale)

    def score(self, out: Tensor, target: Tensor) -> Tensor:
        return (1 - self._off(out, target)).clamp_min(0).mean(1)

    def margin(self, out: Tensor, target: Tensor) -> Tensor:
        return (1 - self._off(out, target)).amin(1)

    def loss(self, out: Tensor, target: Tensor) -> Tensor:
        if self.quantiles:
            return (pinball(out, target.to(out), self.quantiles) / out.new_tensor(self.scale)).flatten(1).mean(1)
        return ((out - target.to(out)) / out.new_tensor(self.scale)).square().flatten(1).mean(1)

    def trivial(self, targets: NDArray[Any]) -> Trivial:
        y = np.asarray(targets, dtype=np.float64)
        if self.quantiles:
            levels = torch.from_numpy(np.quantile(y, self.quantiles, axis=0)).float()
            return Trivial("always says the same quantiles of each step", levels)
        return Trivial("always says the median of each step", torch.from_numpy(np.median(y, axis=0)).float())

    def words(self, out: Tensor) -> str:
        return self.told(self.answer(out[None])[0])

    @property
    def named(self) -> tuple[str, ...]:
        return self.channels

    def focus(self, out: Tensor, which: int | None = None) -> Focus:
        """The mean over the steps of the first channel: channels may have different units."""
        channel = which or 0
        weight = slope_of(lambda at: self.answer(at)[..., channel].mean(1), out)
        return Focus(weight, (f"{self.channels[channel]}, the mean of {self.horizon} steps",) * len(out))

    def told(self, target: Tensor) -> str:
        more = ", ..." if self.horizon > TOLD else ""
        series = [", ".join(f"{v:.4g}" for v in column.tolist()[:TOLD]) + more for column in target.T]
        return "; ".join(s if len(series) == 1 else f"{c} {s}" for c, s in zip(self.channels, series, strict=True))
