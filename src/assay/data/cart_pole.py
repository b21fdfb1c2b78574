r"""A pole on a cart: push left or right, and it must not fall. An environment with gymnasium's interface, without it.

With x the cart's place, theta the pole's angle, F = +-10 N, l = 0.5 m half the pole's length, m = 0.1 kg its mass and
M = 1.1 kg the mass of both, one step of 0.02 s by Euler's rule of

    theta'' = (g sin theta - cos theta (F + m l theta'^2 sin theta) / M) / (l (4/3 - m cos^2 theta / M))
    x''     = (F + m l (theta'^2 sin theta - theta'' cos theta)) / M

An episode ends where |x| > 2.4 m or |theta| > 12 degrees, and after 500 steps; each step earns 1.

Source: Barto, Sutton and Anderson 1983, doi:10.1109/TSMC.1983.6313077, without friction, with gymnasium's constants.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.errors import AssayError

ACTIONS = ("left", "right")
OBSERVED = ("place", "speed", "angle", "turning")
FORCE, GRAVITY, HALF, POLE, BOTH, STEP = 10.0, 9.8, 0.5, 0.1, 1.1, 0.02
FAR, STEEP = 2.4, 12 * math.pi / 180
LONGEST = 500
BOUNDS = ((-FAR, FAR), (-3.0, 3.0), (-STEEP, STEEP), (-3.5, 3.5))
"""What an observation lies between; a policy that balances does not come near the speeds."""
GAINS = (0.3, 0.6, 6.0, 1.2)
"""Of the reference, which pushes right where their sum with the observation is above 0."""

Floats = NDArray[np.float64]
Policy = Callable[[Floats], NDArray[np.int64]]  # n 4 -> n


@dataclass(frozen=True)
class Discrete:
    """A choice of n, as gymnasium says it."""

    n: int


@dataclass(frozen=True)
class Box:
    """Numbers between bounds, as gymnasium says it."""

    low: tuple[float, ...]
    high: tuple[float, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.low),)


def moved(state: Floats, action: NDArray[np.integer]) -> Floats:  # n 4, n -> n 4
    """One step on."""
    _, speed, angle, turning = state.T
    force = FORCE * (2 * np.asarray(action, dtype=np.float64) - 1)
    sine, cosine = np.sin(angle), np.cos(angle)
    pushed = (force + POLE * HALF * turning**2 * sine) / BOTH
    twist = (GRAVITY * sine - cosine * pushed) / (HALF * (4 / 3 - POLE * cosine**2 / BOTH))
    drive = pushed - POLE * HALF * twist * cosine / BOTH
    return state + STEP * np.stack([speed, drive, turning, twist], 1)


def fallen(state: Floats) -> NDArray[np.bool_]:  # n 4 -> n
    return np.asarray((abs(state[:, 0]) > FAR) | (abs(state[:, 2]) > STEEP))


def starts(n: int, rng: np.random.Generator) -> Floats:  # -> n 4
    return rng.uniform(-0.05, 0.05, (n, 4))


def reference(state: NDArray[np.floating]) -> NDArray[np.int64]:  # n 4 -> n
    """A controller that balances: it pushes where cart and pole lean to."""
    lean: Floats = np.asarray(state, dtype=np.float64) @ np.array(GAINS)
    return (lean > 0).astype(np.int64)


class CartPole:
    """One pole on one cart: `reset`, then `step` until it ends."""

    action_space = Discrete(len(ACTIONS))
    observation_space = Box(tuple(low for low, _ in BOUNDS), tuple(high for _, high in BOUNDS))
    most = float(LONGEST)  # that an episode earns

    def __init__(self) -> None:
        self.state: Floats | None = None
        self.steps = 0
        self.rng = np.random.default_rng()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        if seed is not None:
            self.rng = np.random.default_rng(seed)
        self.state, self.steps = starts(1, self.rng), 0
        return self.state[0].astype(np.float32), {}

    def step(self, action: int) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Observation, reward, whether it fell, whether time is up, and nothing else."""
        if self.state is None:
            raise AssayError("This episode has not begun, or is over; call reset() first.")
        if int(action) not in (0, 1):
            raise AssayError(f"The action {action} is neither 0 (left) nor 1 (right); give one of them.")
        self.state, self.steps = moved(self.state, np.array([int(action)])), self.steps + 1
        seen, fell, over = self.state[0].astype(np.float32), bool(fallen(self.state)[0]), self.steps >= LONGEST
        if fell or over:
            self.state = None
        return seen, 1.0, fell, over, {}


def returns(policy: Policy, n: int, rng: np.random.Generator) -> NDArray[np.int64]:  # -> n
    """What `n` episodes earn, all at once."""
    state, earned, up = starts(n, rng), np.zeros(n, dtype=np.int64), np.ones(n, dtype=bool)
    for _ in range(LONGEST):
        state = np.where(up[:, None], moved(state, policy(state)), state)
        earned += up
        up &= ~fallen(state)
    return earned


def observations(
    n: int, rng: np.random.Generator, *, slips: float = 0.3, steps: int = 40
) -> NDArray[np.float32]:  # -> n 4
    """States on the way of the reference from a start anywhere near the middle, a share `slips` of its actions random.

    So there are states that are hard to mend, and those of one that balances; all lie inside BOUNDS.
    """
    low, high = np.array(BOUNDS).T
    found: list[Floats] = []
    count = 0
    while count < n:
        state = rng.uniform(-0.5, 0.5, (n, 4)) * high
        for _ in range(steps):
            action = np.where(rng.random(n) < slips, rng.integers(2, size=n), reference(state))
            state = moved(state, action)
        inside = state[((state > low) & (state < high)).all(1)]
        found.append(inside)
        count += len(inside)
    return np.concatenate(found)[:n].round(5).astype(np.float32)
