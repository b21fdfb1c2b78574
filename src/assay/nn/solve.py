r"""Stochastic differential equations with Gaussian and with jump noise, one step after the other.

    dh  =  f(h, t) dt  +  G(h, t) dB_t  +  J(h, t) * Z dN_t

B is Brownian motion, N a Poisson process of rate `rate`, Z is -1 with probability `drop` and else +1. One step of size
dt (Euler-Maruyama), with n ~ N(0, I) and dN ~ Bernoulli(rate dt):

    h <- h + f dt + G sqrt(dt) n + J * Z dN

    kind              G         J       drift    what it is where a step is a layer
    none              0         0       f        a residual layer (neural ODE)
    additive          sigma     0       f        h + f + sigma n
    multiplicative    sigma h   0       f        noise as large as the state
    gaussian-dropout  sigma f   0       f        h + f (1 + sigma n);  sigma = sqrt(p / (1 - p)) for a drop rate p
    dropout           0         f / 2   f / 2    h + f gamma, each gamma_i 0 or 1: Z is drawn for each feature
    stochastic-depth  0         f / 2   f / 2    h or h + f: one Z for all features of an input

The noise is diagonal: one Brownian motion for each feature. N is one clock for each input. With rate 1, steps of size 1
and hence a jump in each, `dropout` is f gamma with gamma = (1 + Z) / 2.

Milstein's scheme adds 1/2 G G' (dB^2 - dt), which needs G_i to depend on h_i alone: it is there for additive and
multiplicative noise, and not for that which is as large as f.

Source: Liu, 'Building Trustworthy Machine Learning Models', UCLA 2021, sec. 2.3, eq. 2.30-2.37 and Algorithm 4; Kloeden
    and Platen 1992 (Euler-Maruyama, strong order 1/2); Milstein 1975 (order 1).
Departs from print: eq. 2.31 and 2.32 give the jump the coefficient 2 and a Z of values -1 and +1. What stands before
    the last sign of equality is right: f gamma = f/2 + 2 f (gamma - 1/2)/2, but that Z is -1/4 or +1/4. Here it is 1/2
    times a Z of -1 or +1, the same numbers. `as_published=True` takes 2 times -1 or +1, which is no dropout.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
from torch import Tensor

from assay.errors import AssayError

Kind = Literal["none", "additive", "multiplicative", "gaussian-dropout", "dropout", "stochastic-depth"]
KINDS: tuple[Kind, ...] = get_args(Kind)
JUMPS: tuple[Kind, ...] = ("dropout", "stochastic-depth")
Scheme = Literal["euler", "milstein"]
Drift = Callable[[Tensor, float], Tensor]  # (n *d, t) -> n *d


@dataclass(frozen=True)
class DepthNoise:
    """What is random on the way through the depth: `sigma` of the Gaussian kinds, `drop` and `rate` of the jumps.

    Where it is not `on`, what is left is the mean step of the noisy one: f dt, or (1/2 + j rate (1 - 2 drop)) f dt with
    the coefficient j of the jumps, 1/2, or 2 as published.
    """

    kind: Kind = "none"
    sigma: float = 0.0
    drop: float = 0.5
    rate: float = 1.0
    as_published: bool = False
    on: bool = True

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise AssayError(f"There is no noise {self.kind!r} in depth; choose one of {', '.join(KINDS)}.")
        if not 0 <= self.sigma < math.inf:
            raise AssayError(f"The noise has sigma={self.sigma}; it is a standard deviation, finite and at least 0.")
        if not (0 <= self.drop <= 1 and 0 <= self.rate < math.inf):
            raise AssayError(
                f"The jumps have drop={self.drop}, rate={self.rate}; the first is from 0 to 1, the second at least 0."
            )

    @property
    def is_random(self) -> bool:
        strength = self.rate if self.kind in JUMPS else self.sigma
        return self.on and self.kind != "none" and strength > 0

    @property
    def _jump(self) -> float:
        return 2.0 if self.as_published else 0.5

    def quiet(self) -> DepthNoise:
        return replace(self, on=False)

    def draw(self, h: Tensor, dt: float) -> Tensor | None:  # n *d -> n *d, or n 1.. where features share it
        """dB, or Z dN; from torch's global generator, as in dropout, and anew for each row."""
        if not self.is_random:
            return None
        if self.kind not in JUMPS:
            return self._scaled(h, dt, None, 1.0, 0.0)
        alone = h.new_empty(h.shape[0], *(1,) * (h.ndim - 1))
        jumps = (torch.rand_like(alone) < self.rate * dt).to(h.dtype)
        up = torch.empty_like(alone if self.kind == "stochastic-depth" else h).bernoulli_(1 - self.drop)
        return torch.addcmul(
            -jumps, up, 2 * jumps
        )  # few passes over memory: a step may cost hardly more than the ODE's

    def step(self, h: Tensor, f: Tensor, dt: float, drawn: Tensor | None = None, scheme: Scheme = "euler") -> Tensor:
        """The state after a step of size dt, with what was drawn for it or with fresh noise: n *d -> n *d."""
        if not self.is_random:
            mean = 0.0 if self.on else self._jump * self.rate * (1 - 2 * self.drop)  # E Z = 1 - 2 drop
            pace = 0.5 + mean if self.kind in JUMPS else 1.0
            return torch.add(h, f, alpha=pace * dt)
        if self.kind in JUMPS or scheme == "milstein":
            drawn = self.draw(h, dt) if drawn is None else drawn
        if self.kind in JUMPS:
            assert drawn is not None  # it is random
            half = torch.full((), dt / 2, dtype=drawn.dtype, device=drawn.device)
            return torch.addcmul(h, f, torch.add(half, drawn, alpha=self._jump))
        if self.kind == "gaussian-dropout":
            return torch.addcmul(h, f, self._scaled(h, dt, drawn, self.sigma, dt))
        if self.kind == "additive":
            return torch.add(h, f, alpha=dt).add_(self._scaled(h, dt, drawn, self.sigma, 0.0))
        grown = self._scaled(h, dt, drawn, self.sigma, 1.0)
        if scheme == "milstein":
            assert drawn is not None
            grown = grown + (drawn.square() - dt) * (self.sigma**2 / 2)
        return torch.add(h * grown, f, alpha=dt)

    @staticmethod
    def _scaled(h: Tensor, dt: float, drawn: Tensor | None, scale: float, mean: float) -> Tensor:
        """scale dB + mean; where dB is fresh in one go, since a step may cost hardly more than the ODE's."""
        if drawn is None:
            return torch.empty_like(h).normal_(mean, scale * math.sqrt(dt))
        return drawn * scale + mean


def check(noise: DepthNoise, *, steps: int, span: float = 1.0, scheme: Scheme = "euler") -> None:
    """Refuse what `solve` cannot walk through."""
    if steps < 1 or not 0 < span < math.inf:
        raise AssayError(f"solve got steps={steps}, span={span}; it wants at least 1 step and a finite depth above 0.")
    dt = span / steps
    if noise.kind in JUMPS and noise.rate * dt > 1:
        raise AssayError(
            f"{noise.rate:g} jumps for each unit of depth are {noise.rate * dt:g} in a step of {dt:g}, and there is "
            "one at most; take more steps."
        )
    if scheme not in get_args(Scheme):
        raise AssayError(f"There is no scheme {scheme!r}; choose one of {', '.join(get_args(Scheme))}.")
    if scheme == "milstein" and noise.kind in ("gaussian-dropout", *JUMPS):
        raise AssayError(
            f"Milstein's scheme needs noise at a feature that depends on that feature alone, and {noise.kind} depends "
            "on all of them through f; use 'euler'."
        )


def solve(
    drift: Drift,
    h: Tensor,
    noise: DepthNoise,
    *,
    steps: int,
    span: float = 1.0,
    scheme: Scheme = "euler",
    driven_by: Sequence[Tensor] | Tensor | None = None,
    passing: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:  # n *d -> n *d
    """The state at depth `span`, from `h` at 0, in `steps` steps of one size.

    `driven_by` are the increments of each step, dB or Z dN, instead of fresh ones: two paths with the same are driven
    by the same noise, and an increment of shape n 1 is one that all features share. `passing` is handed every state
    from the first to the last, and what it gives goes on.
    """
    check(noise, steps=steps, span=span, scheme=scheme)
    dt = span / steps
    if driven_by is not None and len(driven_by) != steps:
        raise AssayError(f"solve got {len(driven_by)} increments for {steps} steps; give one for each.")
    h = h if passing is None else passing(h)
    for k in range(steps):
        h = noise.step(h, drift(h, k * dt), dt, None if driven_by is None else driven_by[k], scheme)
        h = h if passing is None else passing(h)
    return h
