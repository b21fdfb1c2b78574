"""Make the depth of a network continuous, with noise on the way that stays on."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, ClassVar, Literal, Self

import numpy as np
import torch
from torch import Tensor, nn

from assay.errors import AssayError
from assay.methods.train.fit import Diverged
from assay.nn.continuous import (
    STEPS,
    WIDTH,
    Continuous,
    ContinuousNet,
    as_continuous,
    blocks,
    quiet,
    vanishes,
    with_draws,
)
from assay.nn.members import Drawn
from assay.nn.solve import JUMPS, DepthNoise, Kind, Scheme, check
from assay.probe import undisturbed
from assay.remedies._retraining import Hardening, how_alike
from assay.remedy import Remedy

if TYPE_CHECKING:
    from assay.run import Run
    from assay.subject import Subject

REWRITTEN, SMALL = 1.0, 0.25  # the grid where none is given
OF_NOISE = (  # settings that do nothing where there is none
    "noise", "sigma", "drop", "rate", "scheme", "as_published", "test_noise", "draws", "against",
)  # fmt: skip


@dataclass(frozen=True)
class NeuralSde(Hardening):
    """Makes its depth continuous with noise on the way, and keeps the noise; answers are averages of noisy passes.

    Each residual block of the model becomes the drift of an equation over a depth of 1, in steps of `grid` (1 unless
    given: the network itself with noise at each block). A model of images without such blocks is replaced by a small
    continuous one of `width` channels (a grid of 0.25 unless given), and the page says so. `sigma` is that of the
    Gaussian kinds of `noise`; `drop` is the drop rate of the jumps, `rate` how many there are on the whole way on
    average, and `as_published` makes them four times as large, as print has them. `scheme=milstein` follows additive
    and multiplicative noise more closely. `test_noise=false` has the noise in training alone, and one pass answers. It
    is compared with the same net trained without noise (a neural ODE), or with `against=plain` with the model's own
    architecture trained again.
    """

    noise: Kind = "gaussian-dropout"
    sigma: float = 0.5
    drop: float = 0.5
    rate: float = 1.0
    scheme: Scheme = "euler"
    as_published: bool = False
    test_noise: bool = True
    draws: int = 10
    grid: float | None = None
    width: int = WIDTH
    against: Literal["ode", "plain"] = "ode"

    source: ClassVar[str] = "Liu, Xiao, Si, Cao, Kumar & Hsieh 2019, arXiv:1906.02355; Liu, UCLA 2021, sec. 2.3"
    mends: ClassVar[tuple[str, ...]] = ("everyday-change", "does-an-error-grow")

    def __post_init__(self) -> None:
        super().__post_init__()
        noise = self._noise()
        if self.as_published and self.noise not in JUMPS:
            raise AssayError(f"as_published prints other jumps, and noise={self.noise} has none; leave it out.")
        if self.draws < 2 and self._answers_at_random:
            raise AssayError(f"The setting draws={self.draws} of {self.name()!r} must be at least 2; 10 is usual.")
        if self.grid is not None and not 0 < self.grid <= 1:
            raise AssayError(f"The setting grid={self.grid} of {self.name()!r} is a share of the depth, above 0 to 1.")
        if self.grid is not None and self.grid * STEPS < 1:
            raise AssayError(
                f"The setting grid={self.grid} of {self.name()!r} makes more than {STEPS} steps; {SMALL} is usual."
            )
        if self.width < 1:
            raise AssayError(f"The setting width={self.width} of {self.name()!r} must be at least 1; {WIDTH} is usual.")
        steps = STEPS if self.grid is None else math.ceil(1 / self.grid - 1e-9)  # as Continuous has them
        if self.noise in JUMPS and self.rate > steps:
            raise AssayError(
                f"rate={self.rate:g} of {self.name()!r} is more jumps than there are steps, {steps}, and each has one "
                f"at most; set grid={1 / math.ceil(self.rate):.3g} or finer, or a lower rate."
            )
        check(noise, steps=steps, scheme=self.scheme)

    def cost(self) -> None:
        """Of the steps and the model's own blocks, which only a measurement knows."""

    def control(self) -> Remedy | None:
        if self.against == "plain":
            return super().control()
        kept = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in OF_NOISE}
        return NeuralOde(**kept, noise="none")

    def network(self, subject: Subject) -> nn.Module | None:
        return subject.model if self._blocks(subject) else None  # else a small one stands in its place

    def why_not(self, subject: Subject) -> str | None:
        reason = super().why_not(subject)
        if reason is not None or self._blocks(subject):
            return reason
        if not subject.inputs.is_image:
            return (
                "its model has no residual block that can be made continuous, and the small net that would be trained "
                f"in its place is for images; an input here has shape {subject.inputs.shape}"
            )
        if vanishes(subject.inputs.shape):
            return (
                "its model has no residual block that can be made continuous, and the small net that would be trained "
                f"in its place halves images until they are small; one of shape {subject.inputs.shape} vanishes so"
            )
        if self.start == "scratch":
            return None
        return (
            "its model has no residual block that can be made continuous: a small net is trained in its place, which "
            "has no weights to go on from; leave start=weights out"
        )

    def settled(self, subject: Subject) -> Self:
        grid = self.grid or (REWRITTEN if self._blocks(subject) else SMALL)
        return replace(super().settled(subject), grid=grid)

    def apply(self, subject: Subject, run: Run) -> Subject:
        rng = run.rng()
        net = self.begun(self._net(subject), rng)
        try:
            self.hardened(net, subject, run, rng, about=f"training with {_told(self.noise)} in its depth")
        except Diverged as e:
            e.model = self._cured(net, subject).model  # so that what is kept fits the frame
            raise
        return self._cured(net, subject)

    def frame(self, subject: Subject) -> Subject:
        return self._cured(self._net(subject).eval(), subject)

    def remarks(self, cured: Subject, run: Run) -> tuple[str, ...]:
        inner = cured.model.net if isinstance(cured.model, Drawn) else cured.model
        parts = [module for module in inner.modules() if isinstance(module, Continuous)]
        steps = f"{parts[0].steps} step{'s' if parts[0].steps > 1 else ''}"
        if isinstance(inner, ContinuousNet):
            count = sum(p.numel() for p in inner.parameters())
            made = (
                f"The model has no residual block, so that a small continuous net ({count:,} parameters, {steps}) "
                "stands in its place: what differs from before is the architecture as well as the noise."
            )
        else:
            made = f"{len(parts)} of its blocks are continuous now, in {steps} each."
        if not self._answers_at_random:
            without = f"Noise was there in training alone ({self.noise}): one pass answers, without it."
            return (made, without) if self._noise().is_random else (made,)
        return (made, self._without(cured, inner, run), *how_alike(cured, run))

    def _without(self, cured: Subject, inner: nn.Module, run: Run) -> str:
        """How often it is right with and without noise at test time."""
        index, right = run.pick(cured.data["test"]), list[float]()
        for each in (cured, replace(cured, model=quiet(inner), draws=1)):
            with undisturbed(each.model, run):
                said, y = run.predict(each, "test", index, "answers with and without noise")
            right.append(100 * float((said.argmax(1) == y).mean()))
        return (
            f"With noise at test time, {self.draws} passes averaged, it is right on {right[0]:.1f} % of "
            f"{len(index):,} inputs, with the noise turned off on {right[1]:.1f} %."
        )

    def _noise(self) -> DepthNoise:
        return DepthNoise(self.noise, sigma=self.sigma, drop=self.drop, rate=self.rate, as_published=self.as_published)

    @property
    def _answers_at_random(self) -> bool:
        return self.test_noise and self._noise().is_random

    def _blocks(self, subject: Subject) -> list[str]:
        if not subject.differentiable or any(isinstance(m, torch.jit.ScriptModule) for m in subject.model.modules()):
            return []
        try:
            return blocks(subject.model, _few(subject))
        except Exception:  # a model that cannot be copied, or not asked for two inputs, cannot be rewritten either
            return []

    def _net(self, subject: Subject) -> nn.Module:
        noise = self._noise()
        if self._blocks(subject):
            net = as_continuous(subject.model, _few(subject), noise, grid=self.grid or REWRITTEN)
            for part in net.modules():
                if isinstance(part, Continuous):
                    part.scheme = self.scheme
            return net
        low, span = subject.inputs.edges()
        with torch.random.fork_rng(devices=[]):  # its first weights are drawn on the CPU
            small = ContinuousNet(
                subject.inputs.shape,
                len(subject.task.classes),
                noise,
                grid=self.grid or SMALL,
                width=self.width,
                low=low,
                span=span,
                scheme=self.scheme,
            )
        return small.to(_few(subject).device)

    def _cured(self, net: nn.Module, subject: Subject) -> Subject:
        if not self._answers_at_random:
            still = quiet(net).eval() if self._noise().is_random else net
            return subject.cured(still, self.name(), draws=1 if isinstance(net, ContinuousNet) else None)
        x = _few(subject).to(next(p.device for p in net.parameters()))
        return subject.cured(with_draws(net, x, self.draws).eval(), self.name(), draws=self.draws)


@dataclass(frozen=True)
class NeuralOde(NeuralSde):
    """Trains the same continuous network without noise: what noise in depth is compared with."""

    @classmethod
    def name(cls) -> str:
        return "neural-ode"

    def control(self) -> Remedy | None:
        return None


def _few(subject: Subject) -> Tensor:  # 2 *d
    x, _ = subject.data["test"].take(np.arange(min(2, len(subject.data["test"]))))
    return x.to(next((p.device for p in subject.model.parameters()), x.device))


def _told(noise: Kind) -> str:
    return "no noise" if noise == "none" else f"{noise} noise"


SHELVED = NeuralSde
