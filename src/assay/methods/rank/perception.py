r"""What a model believes it sees, before and after a change; and a reader from outside who says what that is.

    P = p(e(A)),    P' = p(e(A'))            e the encoder, p the decoder, A' the input after an attack

A map says where, the pair (P, P') says what: features that differ between the two matter to the comparison. Whether P'
looks as the attack meant is judged by a `Reader`, fitted on the training inputs and their values, which never meets the
model. With s = +1 where the attack aims up and -1 where it aims down,

    coherent      s (r(P') - r(P)) > 0                                   the picture that is seen moved as was meant
    gap           s (r(P') - r(P)) - s (r(A') - r(A))                    > 0: it moved further than the input itself did

    gate          of what the reader knows about inputs, beyond a constant, how much it still knows of what is seen.
                  Below KEPT of it, P is a picture that nobody can read, and no explanation.

Source: 'Perception visualizations for Siamese networks', MSc thesis, Politecnico di Milano, sec. 4.2 and 4.8.2 (the
    pair), 4.8.3 (its map), 5.3.3 (read by eye). The reader and its three numbers are not in print: there one looks.
A decoder may invent: P shows what the decoder makes of the embedding, so `error` stands beside it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from assay.errors import AssayError, ShapeError
from assay.methods.rank.maps import grey

Reader = Callable[[Tensor], Tensor]  # n *d -> n values
KEPT = 0.8


class Sees(Protocol):
    """Both halves of an autoencoder, as `assay.nn.siamese.Siamese` has them."""

    def encode(self, x: Tensor) -> Tensor: ...  # n *d -> n s

    def decode(self, e: Tensor) -> Tensor: ...  # n s -> n *d


class Perception(NamedTuple):
    """What the model sees of an input before and after a change."""

    before: Tensor  # n *d
    after: Tensor  # n *d
    map: Tensor  # n h w (n *d where inputs are no images), as `grey` makes it
    error: Tensor  # n, mean squared difference of `before` and the input

    @property
    def change(self) -> Tensor:  # n *d
        """With its sign, which the map has lost."""
        return self.after - self.before


class Reading(NamedTuple):
    """What a reader reads from an input and from what the model sees of it; how far both moved as the attack meant."""

    toward: Tensor  # n: +1, -1 or 0
    image: tuple[Tensor, Tensor]  # n, before and after
    perception: tuple[Tensor, Tensor]  # n, before and after

    @property
    def image_moved(self) -> Tensor:  # n, below 0 where away
        return self.toward * (self.image[1] - self.image[0])

    @property
    def perception_moved(self) -> Tensor:  # n
        return self.toward * (self.perception[1] - self.perception[0])

    @property
    def coherent(self) -> Tensor:  # n
        return self.perception_moved > 0

    @property
    def gap(self) -> Tensor:  # n
        return self.perception_moved - self.image_moved


class Gate(NamedTuple):
    """Mean absolute errors of the reader, and what it keeps of its knowledge when it reads what the model sees."""

    image: float
    perception: float
    constant: float  # of answering the median
    kept: float | None  # (constant - perception) / (constant - image); None where it cannot even read inputs

    @property
    def passes(self) -> bool:
        return self.kept is not None and self.kept >= KEPT


@torch.no_grad()
def perceive(model: Sees, before: Tensor, after: Tensor) -> Perception:
    """What `model` sees of inputs before and after: n *d, n *d -> Perception."""
    if before.shape != after.shape:
        raise ShapeError(f"Inputs have shape {tuple(before.shape)} before and {tuple(after.shape)} after; give both.")
    p, changed = (model.decode(model.encode(x)) for x in (before, after))
    if p.shape != before.shape:
        raise ShapeError(
            f"The decoder draws {tuple(p.shape)} for inputs of {tuple(before.shape)}; it has to draw an input."
        )
    return Perception(p, changed, grey(p, changed), (p - before).square().flatten(1).mean(1))


def read(reader: Reader, before: Tensor, after: Tensor, seen: Perception, *, toward: Tensor) -> Reading:
    """Read inputs and what is seen of them, before and after an attack that aims up where `toward` is above 0."""
    return Reading(toward.sign(), (reader(before), reader(after)), (reader(seen.before), reader(seen.after)))


def gate(images: Tensor, pictures: Tensor, values: Tensor) -> Gate:  # n, n, n
    """Whether a reader reads unchanged inputs as well from what the model sees of them (`pictures`) as by themselves.

    `images` and `pictures` are what it read, `values` the truth.
    """
    image, perception = (float((read - values).abs().mean()) for read in (images, pictures))
    constant = float((values - values.quantile(0.5)).abs().mean())
    kept = (constant - perception) / (constant - image) if image < constant else None
    return Gate(image, perception, constant, kept)


def nearest_reader(x: Tensor, values: Tensor, *, k: int = 5) -> Reader:  # n *d, n
    """Reads an input as the mean value of the `k` nearest known ones, each weighed by one over its distance.

    The sum starts at the value of the nearest one: where all k agree, that very number comes out, and a reading that
    stays can be told from one that moves.
    """
    if len(x) != len(values) or len(x) < k:
        raise AssayError(
            f"A reader of the {k} nearest needs {k} inputs with a value each, got {len(x)}, {len(values)}."
        )
    known, value = x.flatten(1).double(), values.double()

    def reader(images: Tensor) -> Tensor:  # n *d -> n
        distance, near = torch.cdist(images.flatten(1).to(known), known).topk(k, largest=False)
        weight = 1 / distance.clamp_min(1e-12)
        first = value[near[:, 0]]
        return first + (weight * (value[near] - first[:, None])).sum(1) / weight.sum(1)

    return reader


def random_change(
    x: Tensor,
    length: Tensor,
    *,
    rng: torch.Generator,
    box: tuple[float, float] | None = None,
    mask: Tensor | None = None,
) -> Tensor:  # n *d, n -> n *d
    """Inputs moved by that L2 length in a direction drawn at random (inside `mask`); in a box, as far as it lets them.

    Clipping shortens a change, so that the step is lengthened (bisection: the clipped length grows with the step).
    """
    direction = torch.randn(x.shape, generator=rng, device=x.device, dtype=x.dtype)
    if mask is not None:
        direction = direction * mask
    direction /= direction.flatten(1).norm(dim=1).clamp_min(1e-30).view(-1, *[1] * (x.ndim - 1))
    if box is None:
        return x + _wide(length, x) * direction

    def moved(step: Tensor) -> Tensor:  # n -> n *d
        return (x + _wide(step, x) * direction).clamp(*box)

    low, high = length, length * 2.0**20  # clipping never lengthens
    for _ in range(60):
        middle = (low + high) / 2
        short = (moved(middle) - x).flatten(1).norm(dim=1) < length
        low, high = torch.where(short, middle, low), torch.where(short, high, middle)
    return moved(low)


def _wide(row: Tensor, x: Tensor) -> Tensor:  # n -> n 1 1 ...
    return row.to(x).view(-1, *[1] * (x.ndim - 1))
