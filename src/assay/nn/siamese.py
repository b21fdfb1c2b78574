"""Two branches with the same weights and a tail that compares what they see; a decoder draws what they see.

Both published architectures are here: grey images of 28 x 28 and colour images of 112 x 112, and a smaller one for
8 x 8. The tail takes the two embeddings one after the other (2s numbers); the tables print s, the text says both.

Source: 'Perception visualizations for Siamese networks', MSc thesis, Politecnico di Milano, sec. 4.7 and tables 1 to 7.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from assay.errors import AssayError, ShapeError


class Siamese(nn.Module):
    """m(A, B) = tail(encoder(A), encoder(B)); `decoder` turns an embedding back into an input, or is None.

    The encoder may be any module n *d -> n ..., the tail any module that takes two embeddings n s and gives n or n 1.
    """

    def __init__(self, encoder: nn.Module, tail: nn.Module, decoder: nn.Module | None = None) -> None:
        super().__init__()
        self.encoder, self.tail, self.decoder = encoder, tail, decoder

    def forward(self, pair: Tensor) -> Tensor:  # n 2 *d -> n
        e = self.encode(pair.flatten(0, 1))
        return self.compare(e[::2], e[1::2])

    def encode(self, x: Tensor) -> Tensor:  # n *d -> n s
        e: Tensor = self.encoder(x)
        return e.flatten(1)

    def compare(self, e1: Tensor, e2: Tensor) -> Tensor:  # n s, n s -> n
        c: Tensor = self.tail(e1, e2)
        return c.reshape(len(e1))

    def decode(self, e: Tensor) -> Tensor:  # n s -> n *d
        if self.decoder is None:
            raise ShapeError("This model has no decoder; give one, or train one afterwards with fit_decoder.")
        out: Tensor = self.decoder(e)
        return out


class Comparison(nn.Module):
    """The published tail: both embeddings, a hidden layer and one neuron, each with a sigmoid. Tables 3 and 6.

    Nothing in it makes c(A, B) + c(B, A) = 1 or c(A, A) = 1/2; training has to.
    """

    def __init__(self, size: int, hidden: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2 * size, hidden), nn.Sigmoid(), nn.Linear(hidden, 1), nn.Sigmoid())

    def forward(self, e1: Tensor, e2: Tensor) -> Tensor:  # n s, n s -> n 1
        c: Tensor = self.layers(torch.cat([e1, e2], 1))
        return c


class Distance(nn.Module):
    """The Euclidean distance of two embeddings; where they are equal its gradient is 0, not NaN."""

    def forward(self, e1: Tensor, e2: Tensor) -> Tensor:  # n s, n s -> n
        d: Tensor = torch.linalg.vector_norm(e1 - e2, dim=1)  # torch's own gradient of a norm is 0 at 0
        return d


@dataclass(frozen=True)
class Architecture:
    """A ranker with decoder for images of one shape: call it with the size s of the embedding."""

    shape: tuple[int, int, int]
    build: Callable[[int], Siamese]

    def __call__(self, size: int) -> Siamese:
        if size < 1:
            raise AssayError(f"An embedding needs at least 1 number, got size {size}; the thesis uses 10 on digits.")
        return self.build(size)


def small_encoder(size: int) -> nn.Sequential:
    """n 1 8 8 -> n s 1 1: the grey encoder with half its filters, for a quarter of the side."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, stride=2, padding=1),  # -> n 16 4 4
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),  # -> n 32 2 2
        nn.ReLU(),
        nn.Conv2d(32, size, 2),
    )


def small_decoder(size: int) -> nn.Sequential:
    """n s -> n 1 8 8 in [0, 1]: the grey decoder with half its filters."""
    return _doubled_twice(size, width=64, side=2)


def grey_encoder(size: int) -> nn.Sequential:
    """n 1 28 28 -> n s 1 1. Table 2; 50,186 parameters for s = 10."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, stride=2, padding=1),  # -> n 32 14 14
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, stride=2, padding=1),  # -> n 64 7 7
        nn.ReLU(),
        nn.Conv2d(64, size, 7),  # printed as "flatten"
    )


def pooled_encoder(size: int) -> nn.Sequential:
    """n 1 28 28 -> n s 1 1. Table 1, the branch that an autoencoder mirrors; 285,834 parameters for s = 10.

    The table prints 28 x 28 x 128 before the second pooling; 14 x 14 x 128 reaches it.
    """
    return nn.Sequential(
        nn.Conv2d(1, 64, 5, padding=2),  # -> n 64 28 28
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(64, 128, 3, padding=1),  # -> n 128 14 14
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(128, 128, 3, padding=1),  # -> n 128 7 7
        nn.ReLU(),
        nn.Conv2d(128, size, 7),
    )


def grey_decoder(size: int) -> nn.Sequential:
    """n s -> n 1 28 28 in [0, 1]. Tables 1 and 4; 129,025 parameters for s = 10."""
    return _doubled_twice(size, width=128, side=7)


def _doubled_twice(size: int, *, width: int, side: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Unflatten(1, (size, 1, 1)),
        nn.ConvTranspose2d(size, width, side),  # -> n width side side
        nn.ReLU(),
        nn.ConvTranspose2d(width, width, 2, stride=2),  # -> n width 2side 2side
        nn.ReLU(),
        nn.ConvTranspose2d(width, 1, 2, stride=2),
        nn.Hardtanh(0.0, 1.0),  # the clipped ReLU: clamp to [0, 1], no gradient outside
    )


def colour_encoder(size: int) -> nn.Sequential:
    """n 3 112 112 -> n s 1 1. Table 5, a batch normalisation after each ReLU; 1,493,984 parameters for s = 64."""
    widths = (3, 32, 64, 128, 256)
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):  # sides 56, 28, 14, 7
        layers += [nn.Conv2d(before, after, 4, stride=2, padding=1), nn.ReLU(), nn.BatchNorm2d(after)]
    return nn.Sequential(*layers, nn.Conv2d(256, size, 7))


def colour_decoder(size: int) -> nn.Sequential:
    """n s -> n 3 112 112 in [0, 1]. Table 7, which mirrors table 5; 1,493,923 parameters for s = 64."""
    widths = (256, 128, 64, 32)
    layers: list[nn.Module] = [nn.ConvTranspose2d(size, 256, 7), nn.ReLU(), nn.BatchNorm2d(256)]
    for before, after in pairwise(widths):  # sides 14, 28, 56
        layers += [nn.ConvTranspose2d(before, after, 4, stride=2, padding=1), nn.ReLU(), nn.BatchNorm2d(after)]
    return nn.Sequential(
        nn.Unflatten(1, (size, 1, 1)),
        *layers,
        nn.ConvTranspose2d(32, 3, 4, stride=2, padding=1),
        nn.Hardtanh(0.0, 1.0),
    )


def dense_decoder(size: int, shape: tuple[int, ...]) -> nn.Sequential:
    """n s -> n *shape in [0, 1], whatever the shape: for a model of the user's own that came without a decoder."""
    return nn.Sequential(
        nn.Linear(size, 256),
        nn.ReLU(),
        nn.Linear(256, math.prod(shape)),
        nn.Unflatten(1, shape),
        nn.Hardtanh(0.0, 1.0),
    )


ARCHITECTURES: dict[str, Architecture] = {
    "digits": Architecture((1, 8, 8), lambda s: Siamese(small_encoder(s), Comparison(s, 256), small_decoder(s))),
    "grey": Architecture((1, 28, 28), lambda s: Siamese(grey_encoder(s), Comparison(s, 4096), grey_decoder(s))),
    "colour": Architecture(
        (3, 112, 112), lambda s: Siamese(colour_encoder(s), Comparison(s, 2 * s), colour_decoder(s))
    ),
}
