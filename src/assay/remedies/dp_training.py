"""Train the same architecture again with clipped gradients and noise: a promise about every input of the training."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from torch import nn

from assay.errors import AssayError
from assay.methods.private.dp_sgd import dp_fit, epsilon_of, noise_for, refuse_mixing, without_batch_norm
from assay.remedies._retraining import Retraining, anew, epochs_on
from assay.remedy import Cost

if TYPE_CHECKING:
    from assay.run import Run
    from assay.subject import Data, Subject

EPSILON = 8.0
BATCH = 256
NAMED = 5  # buffers, in a remark
LITTLE = 50.0  # of epsilon: from here on hardly anything is promised, and the exact accountant needs too much memory


@dataclass(frozen=True)
class DpTraining(Retraining):
    """Trains it again so that no one input weighs much (differential privacy); costs right answers, more for few data.

    Each input's gradient is clipped to the length `clip`, and noise is added: `noise` times the clip, or as much as
    keeps the promise `epsilon` (8 where neither is given) at `delta` (1e-5, or a tenth of one in as many as there
    are training inputs where that is less). The noise does not come from the seed: no two trainings give the same
    weights. Batch normalisations, which mix inputs, become group normalisations. Larger batches and more data cost
    less.
    """

    epsilon: float | None = None
    noise: float | None = None
    clip: float = 1.0
    delta: float | None = None
    batch: int = field(default=BATCH, kw_only=True)

    source: ClassVar[str] = "Abadi et al., CCS 2016, arXiv:1607.00133; opacus, Yousefpour et al. 2021, arXiv:2109.12298"
    mends: ClassVar[tuple[str, ...]] = ("who-was-in-the-training",)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.epsilon is not None and self.noise is not None:
            raise AssayError(
                f"Both epsilon={self.epsilon:g} and noise={self.noise:g} are given; each makes the other, so give one."
            )
        for name in ("epsilon", "noise", "clip"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise AssayError(f"dp-training got {name}={value:g}; give a number above 0, such as {_SUCH[name]}.")
        if self.delta is not None and not 0 < self.delta < 1:
            raise AssayError(f"dp-training got delta={self.delta:g}; give a chance between 0 and 1, such as 1e-5.")

    def cost(self) -> Cost | None:
        return Cost(3, 1)

    def apply(self, subject: Subject, run: Run) -> Subject:
        rng, data = run.rng(), subject.data["train"]
        _refuse_frozen(subject.model)
        begun, _ = without_batch_norm(subject.model)
        model = anew(begun, rng)
        refuse_mixing(model)
        steps, batch, noise = self._steps(data), self._batch(data), self._noise(data)
        with run.progress(f"training privately for {steps:,} steps", steps) as tick:
            dp_fit(
                model, data, steps=steps, lr=self.learning_rate, batch=batch, noise=noise, clip=self.clip,
                momentum=self.momentum, weight_decay=self.weight_decay, optimiser=self.optimiser, device=run.device,
                after_step=lambda loss: tick(1),
            )  # fmt: skip
        return subject.cured(model, self.name())

    def frame(self, subject: Subject) -> Subject:
        return subject.cured(without_batch_norm(subject.model)[0], self.name())

    def remarks(self, cured: Subject, run: Run) -> tuple[str, ...]:
        data = cured.data["train"]
        n, steps, delta, noise = len(data), self._steps(data), self._delta(data), self._noise(data)
        rate = self._batch(data) / n
        bound = epsilon_of(noise, rate, steps, delta)
        near = f"; {epsilon_of(noise, rate, steps, delta, 'prv'):.2f} by PRV" if bound < LITTLE else ""
        groups = sum(isinstance(m, nn.GroupNorm) for m in cured.model.modules())
        told = [
            f"It spent epsilon {bound:.2f} at delta {delta:.2g} (RDP, an upper bound{near}): "
            f"{steps:,} steps that take each of {n:,} inputs with the chance {rate:.3g}, a noise of {noise:.3g} times "
            f"the clip of {self.clip:g}.",
            "The promise is about one training input more or less. It does not cover choices that were made by looking "
            "at the data, such as scaling. The noise was drawn from what the machine holds random, not from the seed: "
            "the same seed gives other weights each time.",
        ]
        if bound >= LITTLE:
            told.append("An epsilon as large as that promises next to nothing: add noise, or train for fewer epochs.")
        if delta >= 1 / n:
            told.append(
                f"A delta of {delta:.2g} is no less than one in {n:,}: whoever publishes one input whole keeps such a "
                f"promise; give at most {_safe_delta(n):.2g}."
            )
        if held := [name for name, _ in cured.model.named_buffers()]:
            more = f" and {len(held) - NAMED} more" if len(held) > NAMED else ""
            told.append(
                f"Buffers are no part of the promise, whatever they hold of the data: {', '.join(held[:NAMED])}{more}."
            )
        if groups:
            told.append(f"{groups} normalisations are over groups of channels; batch normalisations would mix inputs.")
        return tuple(told)

    def _batch(self, data: Data) -> int:
        return min(self.batch, len(data))

    def _steps(self, data: Data) -> int:
        return epochs_on(data, self.epochs, self.batch) * math.ceil(len(data) / self.batch)

    def _delta(self, data: Data) -> float:
        return _safe_delta(len(data)) if self.delta is None else self.delta

    def _noise(self, data: Data) -> float:
        if self.noise is not None:
            return self.noise
        rate = self._batch(data) / len(data)
        return noise_for(self.epsilon or EPSILON, rate, self._steps(data), self._delta(data))


def _safe_delta(n: int) -> float:
    return min(1e-5, 1 / (10 * n))


def _refuse_frozen(model: nn.Module) -> None:
    """What is frozen in part would stay as it was learnt, without noise."""
    still = [name for name, p in model.named_parameters() if not p.requires_grad]
    if still and len(still) < len(list(model.parameters())):
        raise AssayError(
            f"The parameter {still[0]!r} is frozen ({len(still)} are) and would keep what it learnt without noise, "
            "which no epsilon covers; call model.requires_grad_(True) to train it privately too."
        )


_SUCH = {"epsilon": 8, "noise": 1, "clip": 1}
SHELVED = DpTraining
