"""A policy that balances a pole on a cart; a target is what the reference controller would do."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from assay.data.cart_pole import ACTIONS, BOUNDS, CartPole, observations, reference
from assay.data.digits import weights
from assay.inputs import Channel, Observation
from assay.subject import Recipe, Subject
from assay.tasks import Control

TRAIN, TEST = 4000, 1000
OBSERVED = ("place", "speed", "angle", "turn")


class Policy(nn.Module):
    """4 - 16 - 16 - 2 with tanh, behind each observation as a share of its bound; in natural units."""

    def __init__(self) -> None:
        super().__init__()
        self.bound: Tensor
        self.register_buffer("bound", torch.tensor([high for _, high in BOUNDS]), persistent=False)
        self.model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 2))

    def forward(self, x: Tensor) -> Tensor:  # n 4 -> n 2
        logits: Tensor = self.model(x / self.bound)
        return logits

    @torch.no_grad()
    def act(self, state: NDArray[np.float64]) -> NDArray[np.int64]:  # n 4 -> n
        """The actions it takes."""
        return np.asarray(self(torch.from_numpy(state.astype(np.float32))).argmax(1).numpy())


def task() -> Control:
    return Control(ACTIONS)


def observed() -> dict[str, tuple[NDArray[np.float32], NDArray[np.int64]]]:
    """States on the way of the reference, and what it does there."""
    rng = np.random.default_rng(0)
    x = {"train": observations(TRAIN, rng), "test": observations(TEST, rng)}
    return {part: (states, reference(states)) for part, states in x.items()}


def build() -> Subject:
    """The policy with its weights and the observations that it was trained and is tested on."""
    model = Policy()
    model.load_state_dict(weights("cart_pole"))
    return Subject.of(
        model.eval(),
        observed(),
        task(),
        name="cart-pole",
        kind=Observation(tuple(Channel(name, *ends) for name, ends in zip(OBSERVED, BOUNDS, strict=True))),
        bounds=([low for low, _ in BOUNDS], [high for _, high in BOUNDS]),
        environment=CartPole,
        about="A policy of 32 tanh units that learnt from a linear controller on 4,000 observations; it acts like it "
        "on 1.0000 of the 1,000 test observations, and balances for 500 of 500 steps where a random one does 22.",
    )


SHELVED = Recipe(
    says="A policy that balances a pole on a cart, taught by a linear controller",
    source="Barto, Sutton and Anderson 1983, doi:10.1109/TSMC.1983.6313077",
    build=build,
)
