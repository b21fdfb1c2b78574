"""Video: frames of one image kind, f by c by h by w.

Everyday changes: each of the image's, the same on every frame (the same fog, the same turn, the same pattern of noise:
what changes from frame to frame is a question of its own), and what a line or a recorder does to frames. The image's
are those of Hendrycks & Dietterich (image.py); those of frames are Assay's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, get_args

import torch
from torch import Tensor

from assay.errors import AssayError, ShapeError
from assay.inputs.change import Change
from assay.inputs.features import Features
from assay.inputs.image import Image
from assay.inputs.kind import Bounded, as_float
from assay.inputs.show import Reel

Cut = Literal["frames", "patches"]
FRAMES = (0.05, 0.1, 0.2, 0.3, 0.45)
SHOWN = 6  # frames on show


@dataclass(frozen=True)
class Video(Bounded):
    """A number of frames, each an image."""

    frames: int
    image: Image

    def __post_init__(self) -> None:
        if self.frames < 1:
            raise AssayError(f"A video has at least 1 frame, got {self.frames}.")

    @classmethod
    def of(cls, x: object, low: float = 0.0, high: float = 1.0) -> Video:  # n f c h w
        """Videos like these."""
        given = as_float(x)
        if given.ndim != 5:
            raise ShapeError(f"Video.of wants videos n f c h w, got shape {tuple(given.shape)}; for grey ones c is 1.")
        _, f, c, h, w = given.shape
        made = cls(f, Image((c, h, w), low, high))
        made.check(given)
        return made

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.frames, *self.image.shape)

    @property
    def low(self) -> float:
        return self.image.low

    @property
    def high(self) -> float:
        return self.image.high

    def changes(self) -> Iterator[Change[Tensor]]:
        for change in self.image.changes():
            yield replace(change, function=partial(_on_every_frame, change=change.function))
        about = "strength: the share of frames, at least one."
        yield Change("dropped-frames", f"Frames lost, the last one held; {about}", dropped, FRAMES)
        yield Change("repeated-frames", f"Frames shown twice, the end is lost; {about}", repeated, FRAMES)
        yield Change("shuffled-frames", f"Neighbouring frames in the wrong order; {about}", shuffled, FRAMES)

    def features(self, x: Tensor, cut: Cut = "frames", count: int = 16) -> Features:  # f c h w
        """The frames; or patches, each the same place in all frames."""
        if cut not in get_args(Cut):
            raise AssayError(f"A video is cut into {' or '.join(get_args(Cut))}, got {cut!r}.")
        if cut == "patches":
            one = self.image.features(x[0], "patches", count)
            return Features(one.names, one.groups.expand(self.shape).clone())
        label = torch.arange(self.frames)[:, None, None, None].expand(self.shape).clone()
        return Features(tuple(f"frame {k}" for k in range(self.frames)), label)

    def show(self, x: Tensor) -> Reel:  # f c h w
        """A few frames, evenly spread."""
        places = torch.linspace(0, self.frames - 1, min(SHOWN, self.frames)).round().long().tolist()
        return Reel(tuple(self.image.show(x[k]) for k in places), tuple(places))


def _on_every_frame(
    x: Tensor, strength: float, rng: torch.Generator, *, change: Callable[[Tensor, float, torch.Generator], Tensor]
) -> Tensor:  # n f c h w -> n f c h w
    state = rng.get_state()
    frames = []
    for frame in x.unbind(1):
        rng.set_state(state)  # the same draws for each frame
        frames.append(change(frame, strength, rng))
    return torch.stack(frames, 1)


def dropped(x: Tensor, share: float, rng: torch.Generator) -> Tensor:  # n f c h w -> n f c h w
    """`share` of the frames are lost; the others move up, and the last of them is held."""
    f = x.shape[1]
    if f < 2:
        return x
    lost = _first_of_a_random_order(x, min(f - 1, max(1, round(share * f))), f, rng)  # n f
    order = lost.to(torch.int8).argsort(dim=1, stable=True)  # what is kept, in its order, then what is lost
    kept = (~lost).sum(1, keepdim=True)
    return _frames(x, order.gather(1, torch.arange(f, device=x.device).minimum(kept - 1)))


def repeated(x: Tensor, share: float, rng: torch.Generator) -> Tensor:  # n f c h w -> n f c h w
    """`share` of the frames are shown twice; all later ones come later, and the end is lost."""
    f = x.shape[1]
    if f < 2:
        return x
    again = _first_of_a_random_order(x, max(1, round(share * (f - 1))), f - 1, rng)  # n f-1
    late = torch.nn.functional.pad(again.long().cumsum(1), (1, 0))  # n f: how many repetitions came before
    return _frames(x, torch.arange(f, device=x.device) - late)


def shuffled(x: Tensor, share: float, rng: torch.Generator) -> Tensor:  # n f c h w -> n f c h w
    """`share` of the frames change places with their neighbour."""
    f = x.shape[1]
    if f < 2:
        return x
    swap = _first_of_a_random_order(x, min(f // 2, max(1, round(share * f / 2))), f // 2, rng)  # n f/2
    step = swap.repeat_interleave(2, 1).long() * torch.tensor([1, -1], device=x.device).repeat(f // 2)
    return _frames(x, torch.arange(f, device=x.device) + torch.nn.functional.pad(step, (0, f % 2)))


def _first_of_a_random_order(x: Tensor, count: int, among: int, rng: torch.Generator) -> Tensor:  # -> n among
    """`count` of so many places; with the same state of `rng`, a larger count keeps what a smaller one chose."""
    rank = torch.rand(len(x), among, generator=rng, device=x.device).argsort(1).argsort(1)
    return rank < count


def _frames(x: Tensor, index: Tensor) -> Tensor:  # n f c h w, n f -> n f c h w
    return x[torch.arange(len(x), device=x.device)[:, None], index]
