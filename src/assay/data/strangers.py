"""Inputs that belong to no class, made of what is at hand, in the shape and the bounds of a subject's own.

Near outliers are made of the subject's inputs, so that every detail is familiar and the whole is not; far ones share
nothing with them. None needs a file beyond those that scikit-learn brings, and a seed gives the same ones again.

    near   jigsaws            an image rolled by half its height, half its width, or both: its quarters change places
           chimeras           the upper or left half of one input, the other half of an input of another class
           mixed values       where inputs are no images: each value from another input, so that only its own
                              distribution is kept
    far    digits             handwritten ones (Alpaydin and Kaynak 1998), enlarged
           photographs        patches of two photographs, of a temple and of a flower
           glyphs             two to four strokes between nine points, as letters have
           uniform noise      every value by itself, between the bounds
           gaussian noise     around the middle, a quarter of the range wide, clipped
"""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from assay.errors import AssayError, ShapeError

Bounds = tuple[float, float]
Shape = tuple[int, ...]

SIDE = 32  # pixels of a glyph before it is brought to size
DOTS = 12  # points that stand for a stroke
PEN = 0.05  # half the width of a stroke, where a glyph is 1 wide


def near_outliers(x: Tensor, y: Tensor, *, rng: torch.Generator) -> dict[str, Tensor]:  # n *d, n -> kind: n *d
    """As many outliers of each near kind as there are inputs; all values are values of `x`."""
    if len(x) < 2 or y.shape != x.shape[:1]:
        raise ShapeError(f"Got inputs of shape {tuple(x.shape)}, labels {tuple(y.shape)}; give two inputs or more.")
    if not is_image(x.shape[1:]):
        rows = torch.rand(len(x), x[0].numel(), generator=rng).argsort(0).to(x.device)  # of each value, a shuffle
        return {"mixed values": x.flatten(1).gather(0, rows).view_as(x)}
    return {"jigsaws": jigsaws(x, rng=rng), "chimeras": chimeras(x, y, rng=rng)}


def far_outliers(
    shape: Shape, count: int, *, bounds: Bounds = (0.0, 1.0), rng: torch.Generator
) -> dict[str, Tensor]:  # kind: n *d
    """`count` outliers of each far kind that this shape allows."""
    low, high = bounds
    if not low < high or count < 1:
        raise AssayError(f"Got bounds {low:g} to {high:g} and count={count}; want low below high, and at least one.")
    found: dict[str, Tensor] = {}
    if is_image(shape):
        c, h, w = shape
        found = {
            "digits": digits(c, h, w, count, rng=rng),
            "photographs": photographs(c, h, w, count, rng=rng),
            "glyphs": glyphs(c, h, w, count, rng=rng),
        }
    found["uniform noise"] = torch.rand(count, *shape, generator=rng)
    found["gaussian noise"] = (0.5 + 0.25 * torch.randn(count, *shape, generator=rng)).clamp(0, 1)
    return {kind: (low + (high - low) * x).clamp(low, high) for kind, x in found.items()}


def is_image(shape: Shape) -> bool:
    """One or three channels of at least two rows and columns."""
    return len(shape) == 3 and shape[0] in (1, 3) and min(shape[1:]) >= 2


def jigsaws(x: Tensor, *, rng: torch.Generator) -> Tensor:  # n c h w -> n c h w
    h, w = x.shape[2] // 2, x.shape[3] // 2
    which = torch.randint(3, (len(x), 1, 1, 1), generator=rng).to(x.device)
    down, aside = torch.roll(x, h, 2), torch.roll(x, w, 3)
    return torch.where(which == 0, down, torch.where(which == 1, aside, torch.roll(down, w, 3)))


def chimeras(x: Tensor, y: Tensor, *, rng: torch.Generator) -> Tensor:  # n c h w, n -> n c h w
    """Each input with half of another; of the inputs of other classes every one is as likely."""
    apart = (y[:, None] != y).float().cpu()  # n n
    if not bool(apart.any(1).all()):
        raise AssayError(f"All {len(y)} inputs are of class {int(y[0])}; a chimera wants two classes.")
    other = x[torch.multinomial(apart, 1, generator=rng)[:, 0].to(x.device)]
    beside = torch.cat([x[..., : x.shape[3] // 2], other[..., x.shape[3] // 2 :]], 3)
    above = torch.cat([x[:, :, : x.shape[2] // 2], other[:, :, x.shape[2] // 2 :]], 2)
    return torch.where(torch.randint(2, (len(x), 1, 1, 1), generator=rng).to(x.device) == 0, beside, above)


def digits(c: int, h: int, w: int, count: int, *, rng: torch.Generator) -> Tensor:  # -> n c h w in [0, 1]
    from sklearn.datasets import load_digits  # slow to import

    pixels = torch.as_tensor(load_digits().images / 16, dtype=torch.float32)[:, None]  # 1797 1 8 8
    return resize(pixels[torch.randint(len(pixels), (count,), generator=rng)], h, w).expand(-1, c, -1, -1)


def photographs(c: int, h: int, w: int, count: int, *, rng: torch.Generator) -> Tensor:  # -> n c h w in [0, 1]
    """Patches of the subject's proportions, from a quarter of the largest that fits to all of it."""
    found = []
    for which, size, top, left in torch.rand(count, 4, generator=rng).tolist():
        photo = torch.as_tensor(sample_photographs()[int(2 * which)])  # 3 427 640
        room = min(photo.shape[1] / h, photo.shape[2] / w) * (0.25 + 0.75 * size)
        tall, wide = max(1, int(room * h)), max(1, int(room * w))
        i, j = int(top * (photo.shape[1] - tall + 1)), int(left * (photo.shape[2] - wide + 1))
        found.append(resize(photo[None, :, i : i + tall, j : j + wide], h, w))
    x = torch.cat(found)
    return x if c == 3 else x.mean(1, keepdim=True)


@cache
def sample_photographs() -> tuple[NDArray[np.float32], ...]:  # each 3 h w in [0, 1]
    from sklearn.datasets import load_sample_images  # slow to import

    return tuple((image.transpose(2, 0, 1) / 255).astype(np.float32) for image in load_sample_images().images)


def glyphs(c: int, h: int, w: int, count: int, *, rng: torch.Generator) -> Tensor:  # -> n c h w in [0, 1]
    """Strokes between the nine points of a lattice, straight or bent; white on black, in colour of any two colours."""
    ends = torch.rand(4 * count, 9, generator=rng).argsort(1)[:, :2]  # 4n 2, never twice the same point
    lattice = torch.cartesian_prod(*2 * (torch.tensor([0.2, 0.5, 0.8]),))  # 9 2
    a, b = lattice[ends[:, 0]], lattice[ends[:, 1]]
    bend = 0.4 * torch.randint(-1, 2, (4 * count, 1), generator=rng)  # to either side, or not at all
    middle = (a + b) / 2 + bend * (b - a).flip(1) * torch.tensor([1.0, -1.0])
    t = torch.linspace(0, 1, DOTS)[:, None, None]
    curve = (1 - t) ** 2 * a + 2 * t * (1 - t) * middle + t**2 * b  # dots 4n 2: quadratic Bezier curves
    strokes = curve.view(DOTS, count, 4, 2).transpose(0, 1)  # n dots 4 2
    drawn = torch.arange(4) < torch.randint(2, 5, (count, 1), generator=rng)  # n 4
    strokes = strokes.where(drawn[:, None, :, None], torch.tensor(9.0))  # far outside the picture
    grid = (torch.arange(SIDE) + 0.5) / SIDE
    places = torch.cartesian_prod(grid, grid)  # pixels 2
    away = torch.cat([torch.cdist(places, s.flatten(1, 2)).amin(2) for s in torch.split(strokes, 100)])  # n pixels
    ink = (1.5 - away / PEN).clamp(0, 1).view(count, 1, SIDE, SIDE)  # soft at the edge
    x = resize(ink, h, w)
    if c == 1:
        return x
    colours = torch.rand(2, count, c, 1, 1, generator=rng)
    return torch.lerp(colours[0], colours[1], x)


def resize(x: Tensor, h: int, w: int) -> Tensor:  # n c i j -> n c h w
    return F.interpolate(x, (h, w), mode="bilinear", antialias=True, align_corners=False).clamp(0, 1)
