"""Cloud: points by 3, in a box. The changes and strengths are Assay's own.

The number of points stays: where points are lost, others that are left stand in for them, as models of clouds take a
fixed number and a point twice is the same shape. What a turn or a larger scale carries out of the box is cut off at it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Literal, get_args

import torch
from torch import Tensor

from assay.data.bounds import refuse_bounds
from assay.errors import AssayError, ShapeError
from assay.inputs.change import Change
from assay.inputs.features import Features
from assay.inputs.kind import Bounded, as_float
from assay.inputs.sensor import chosen, noisy, sign
from assay.inputs.show import Dots

Cut = Literal["clusters", "points"]
AXES = ("x", "y", "z")
LOST = (0.1, 0.2, 0.35, 0.5, 0.7)


@dataclass(frozen=True)
class Cloud(Bounded):
    """`points` points in the box; `up` is the vertical axis, 2 where z points up."""

    points: int
    box: tuple[tuple[float, float], tuple[float, float], tuple[float, float]] = ((-1.0, 1.0),) * 3
    up: int = 2

    def __post_init__(self) -> None:
        if self.points < 1:
            raise ShapeError(f"A cloud has at least 1 point, got {self.points}.")
        if self.up not in (0, 1, 2):
            raise AssayError(f"The vertical axis is 0, 1 or 2 (x, y, z), got {self.up}.")
        if len(self.box) != 3:
            raise ShapeError(f"A cloud's box has three ranges, got {len(self.box)}; give (low, high) of x, y and z.")
        for axis, (low, high) in zip(AXES, self.box, strict=True):
            refuse_bounds(low, high, f"the axis {axis}")

    @classmethod
    def of(cls, x: object, up: int = 2) -> Cloud:  # n p 3
        """Clouds like these, in the box around all of them."""
        given = as_float(x)
        if given.ndim != 3 or given.shape[2] != 3 or not given.numel():
            raise ShapeError(f"Cloud.of wants clouds n p 3, got shape {tuple(given.shape)}; three numbers a point.")
        low, high = given.double().flatten(0, 1).amin(0).tolist(), given.double().flatten(0, 1).amax(0).tolist()
        return cls(given.shape[1], ((low[0], high[0]), (low[1], high[1]), (low[2], high[2])), up)

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.points, 3)

    @property
    def ranges(self) -> tuple[tuple[float, float], ...]:
        return self.box * self.points

    def bounds(self) -> tuple[Tensor, Tensor]:  # -> p 3, p 3
        low, high = torch.tensor(self.box, dtype=torch.float64).T
        return low.expand(self.shape), high.expand(self.shape)

    def place(self, index: tuple[int, ...]) -> str:
        return f"{AXES[index[1]]} of point {index[0]}"

    def changes(self) -> Iterator[Change[Tensor]]:
        low, span = (edge[0] for edge in self.edges())  # 3, 3
        yield Change(
            "jitter",
            "Normal noise on every point; strength: its deviation, of the box.",
            partial(noisy, span=span),
            (0.005, 0.01, 0.02, 0.04, 0.07),
        )
        yield Change("dropped-points", "Points lost, others twice; strength: the share lost.", dropped, LOST)
        yield Change(
            "rotation",
            "A turn about the vertical through the middle of the cloud, either way; strength: degrees.",
            partial(turned, up=self.up),
            (5.0, 10.0, 20.0, 35.0, 60.0),
        )
        yield Change(
            "scale",
            "Larger or smaller about the middle of the cloud; strength: by which share.",
            scaled,
            (0.03, 0.07, 0.12, 0.2, 0.3),
        )
        yield Change(
            "outliers",
            "Points anywhere in the box; strength: the share of points.",
            partial(strayed, low=low, span=span),
            (0.01, 0.03, 0.06, 0.12, 0.2),
        )
        yield Change(
            "occlusion",
            "One side of the cloud is not seen, other points twice; strength: the share hidden.",
            occluded,
            LOST,
        )

    def features(self, x: Tensor, cut: Cut = "clusters", count: int = 16) -> Features:  # p 3
        """About `count` clusters around points that lie far apart; or every point."""
        if cut not in get_args(Cut):
            raise AssayError(f"A cloud is cut into {' or '.join(get_args(Cut))}, got {cut!r}.")
        label = torch.arange(self.points) if cut == "points" else _clusters(x.detach().cpu(), min(count, self.points))
        what = "point" if cut == "points" else "cluster"
        names = tuple(f"{what} {k}" for k in range(int(label.max()) + 1))
        return Features(names, label[:, None].expand(-1, 3).clone())

    def show(self, x: Tensor) -> Dots:  # p 3
        """The cloud from the side: the first level axis to the right, the vertical up."""
        across = next(axis for axis in range(3) if axis != self.up)
        right, upwards = (x[:, axis].detach().cpu().double().tolist() for axis in (across, self.up))
        return Dots(tuple(right), tuple(upwards), self.box[across], self.box[self.up], AXES[across], AXES[self.up])


def dropped(x: Tensor, share: float, rng: torch.Generator) -> Tensor:  # n p 3 -> n p 3
    """`share` of the points are lost; copies of others, drawn at random, stand in."""
    rank = torch.rand(x.shape[:2], generator=rng, device=x.device)
    return _without(x, rank, share, rng)


def occluded(x: Tensor, share: float, rng: torch.Generator) -> Tensor:  # n p 3 -> n p 3
    """The points farthest along a random direction are lost: what lies beyond a plane."""
    way = torch.randn(len(x), 3, 1, generator=rng, device=x.device, dtype=x.dtype)
    return _without(x, -(x @ way)[..., 0], share, rng)


def turned(x: Tensor, degrees: float, rng: torch.Generator, *, up: int) -> Tensor:  # n p 3 -> n p 3
    """Turn about the vertical through the mean point, either way round."""
    angle = math.radians(degrees) * sign((len(x), 1), rng, like=x)  # n 1
    first, second = (axis for axis in range(3) if axis != up)
    middle = x.mean(1, keepdim=True)
    a, b = (x - middle)[..., first], (x - middle)[..., second]  # n p
    around = (x - middle).clone()
    around[..., first], around[..., second] = angle.cos() * a - angle.sin() * b, angle.sin() * a + angle.cos() * b
    return around + middle


def scaled(x: Tensor, share: float, rng: torch.Generator) -> Tensor:  # n p 3 -> n p 3
    """m + (1 + sign share) (x - m), with m the mean point."""
    middle = x.mean(1, keepdim=True)
    return middle + (1 + share * sign((len(x), 1, 1), rng, like=x)) * (x - middle)


def strayed(x: Tensor, share: float, rng: torch.Generator, *, low: Tensor, span: Tensor) -> Tensor:  # n p 3 -> n p 3
    anywhere = low.to(x) + span.to(x) * torch.rand(x.shape, generator=rng, device=x.device, dtype=x.dtype)
    return torch.where(chosen(share, (*x.shape[:2], 1), rng, like=x), anywhere, x)


def _without(x: Tensor, rank: Tensor, share: float, rng: torch.Generator) -> Tensor:  # n p 3, n p -> n p 3
    """Points of the lowest rank replaced by copies of others, drawn at random; at least one point is left."""
    n, p = rank.shape
    lost = min(p - 1, max(1, round(share * p)))
    place = rank.argsort(1).argsort(1)  # n p, the lost ones below `lost`
    left = (place >= lost).to(torch.int8).argsort(dim=1, descending=True, stable=True)[:, : p - lost]  # n p-lost
    pick = (torch.rand(n, p, generator=rng, device=x.device) * (p - lost)).long()
    source = torch.where(place < lost, left.gather(1, pick), torch.arange(p, device=x.device))
    return x.gather(1, source[..., None].expand(n, p, 3))


def _clusters(x: Tensor, count: int) -> Tensor:  # p 3 -> p
    """Each point with the nearest of `count` centres, every next centre the point farthest from all before.

    Source: Gonzalez, "Clustering to minimize the maximum intercluster distance", 1985. The first is the point farthest
    from the mean; points that coincide may leave fewer.
    """
    centres = [int((x - x.mean(0)).norm(dim=1).argmax())]
    distance = (x - x[centres[0]]).norm(dim=1)
    while len(centres) < count and float(distance.max()) > 0:
        centres.append(int(distance.argmax()))
        distance = torch.minimum(distance, (x - x[centres[-1]]).norm(dim=1))
    return torch.cdist(x.double(), x[centres].double()).argmin(1)
