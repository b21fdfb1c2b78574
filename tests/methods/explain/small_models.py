"""Small models that the explanation tests share; trained once per session, in about a second each."""

from __future__ import annotations

from functools import cache

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from assay.data.arrays import Arrays
from assay.methods.train.fit import fit

SEGMENTS = {  # name -> rows and columns of a 9 x 5 picture
    "top": (slice(0, 1), slice(1, 4)),
    "upper left": (slice(1, 4), slice(0, 1)),
    "upper right": (slice(1, 4), slice(4, 5)),
    "middle": (slice(4, 5), slice(1, 4)),
    "lower left": (slice(5, 8), slice(0, 1)),
    "lower right": (slice(5, 8), slice(4, 5)),
    "bottom": (slice(8, 9), slice(1, 4)),
}
LIT = {  # digit -> segments, in the order above
    0: "1110111", 1: "0010010", 2: "1011101", 3: "1011011", 4: "0111010", 5: "1101011", 6: "1101111", 7: "1010010",
    8: "1111111", 9: "1111011",
}  # fmt: skip


def segment_pixels(*names: str) -> set[int]:
    """Places of the segments' pixels in a flat 9 x 5 picture."""
    plane = torch.zeros(9, 5)
    for name in names:
        plane[SEGMENTS[name]] = 1
    return set(plane.flatten().nonzero()[:, 0].tolist())


def digit(k: int) -> Tensor:
    """A seven-segment digit: 1 9 5, lit pixels 1."""
    plane = torch.zeros(1, 9, 5)
    for name, lit in zip(SEGMENTS, LIT[k], strict=True):
        plane[0][SEGMENTS[name]] = float(lit)
    return plane


@cache
def segment_net() -> nn.Module:
    """Reads seven-segment digits, learnt from noisy ones."""
    rng = torch.Generator().manual_seed(0)
    clean = torch.stack([digit(k) for k in range(10)])
    y = torch.randint(10, (2000,), generator=rng)
    x = (clean[y] + 0.4 * torch.randn(2000, 1, 9, 5, generator=rng)).clamp(0, 1)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Flatten(), nn.Linear(45, 32), nn.ReLU(), nn.Linear(32, 10))
    fit(model, Arrays(x, y), epochs=8, lr=0.01, optimiser="adam", rng=rng)
    assert bool((model(clean).argmax(1) == torch.arange(10)).all())
    return model.eval().requires_grad_(False)


def digits() -> tuple[Tensor, Tensor]:
    x, y = load_digits(return_X_y=True)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    return torch.tensor(x / 16, dtype=torch.float32).reshape(-1, 1, 8, 8)[order], torch.tensor(y)[order]


@cache
def digit_net() -> nn.Module:
    """A small network on scikit-learn's 8 x 8 digits."""
    x, y = digits()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(
            *(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Flatten(), nn.Linear(128, 32), nn.ReLU(), nn.Linear(32, 10)),
        )
    fit(model, Arrays(x[:1200], y[:1200]), epochs=8, lr=0.005, optimiser="adam", rng=torch.Generator().manual_seed(0))
    return model.eval().requires_grad_(False)


def digit_inputs() -> Tensor:
    """Twelve digits that it has not seen: 12 1 8 8."""
    return digits()[0][1200:1212]
