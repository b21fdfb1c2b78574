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

from functools import cache, partial
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from assay.data.beside_sklearn import file, table
from assay.data.held_out import Labelled
from assay.data.rows_at import rows_at
from assay.errors import AssayError, ShapeError

Bounds = tuple[float, float]
Shape = tuple[int, ...]


class Far(Protocol):
    def __call__(self, count: int, *, rng: torch.Generator) -> Tensor: ...  # -> n *d


class Making(Protocol):
    def __call__(self, rows: NDArray[np.int64], *, rng: torch.Generator) -> Tensor: ...  # n -> n *d


SIDE = 32  # pixels of a glyph before it is brought to size
DOTS = 12  # points that stand for a stroke
PEN = 0.05  # half the width of a stroke, where a glyph is 1 wide


def near_kinds(parents: Labelled, shape: Shape) -> dict[str, Making]:
    """How the near outliers of some rows of the parents are made, of each kind that this shape allows.

    All values are values of parents.
    """
    if len(parents) < 2:
        raise ShapeError(f"Got {len(parents)} input to make near outliers of; give two inputs or more.")

    def jigsaw(rows: NDArray[np.int64], *, rng: torch.Generator) -> Tensor:
        return jigsaws(parents.take(rows)[0], rng=rng)

    def chimera(rows: NDArray[np.int64], *, rng: torch.Generator) -> Tensor:
        x, y = parents.take(rows)
        return halves(x, parents.take(partners(y, torch.as_tensor(parents.labels), rng=rng).numpy())[0], rng=rng)

    def mixed(rows: NDArray[np.int64], *, rng: torch.Generator) -> Tensor:
        return mixed_values(parents.take(rows)[0], rng=rng)

    return {"jigsaws": jigsaw, "chimeras": chimera} if is_image(shape) else {"mixed values": mixed}


def far_outliers(
    shape: Shape, count: int, *, bounds: Bounds = (0.0, 1.0), rng: torch.Generator
) -> dict[str, Tensor]:  # kind: n *d
    """`count` outliers of each far kind that this shape allows."""
    if count < 1:
        raise AssayError(f"Got count={count}; want at least one outlier of a kind.")
    return {kind: make(count, rng=rng) for kind, make in far_kinds(shape, bounds=bounds).items()}


def far_kinds(shape: Shape, *, bounds: Bounds = (0.0, 1.0)) -> dict[str, Far]:
    """How any number of far outliers of each kind that this shape allows are made."""
    low, high = bounds
    if not low < high:
        raise AssayError(f"Got bounds {low:g} to {high:g}; want low below high.")
    kinds = [digits, photographs, glyphs] if is_image(shape) else []
    plain: dict[str, Far] = {kind.__name__: partial(kind, *shape) for kind in kinds}
    plain["uniform noise"] = lambda count, *, rng: torch.rand(count, *shape, generator=rng)
    plain["gaussian noise"] = lambda count, *, rng: (0.5 + 0.25 * torch.randn(count, *shape, generator=rng)).clamp(0, 1)

    def within(make: Far, count: int, *, rng: torch.Generator) -> Tensor:
        return (low + (high - low) * make(count, rng=rng)).clamp(low, high)

    return {kind: partial(within, make) for kind, make in plain.items()}


class Made:
    """Outliers that are made when they are taken, in blocks, where all of them would be too many to hold.

    `make(rows, rng=...)` gives those of some rows. All in one block are made at once and held. Each of several blocks
    has a seed of its own, drawn at the start, and the block that was last taken is held.
    """

    classes: tuple[str, ...] | None = None

    def __init__(self, make: Making, count: int, *, block: int, rng: torch.Generator) -> None:
        blocks = -(-count // block)
        self.make, self.block = make, -(-count // blocks)  # none is left with a row or two
        self.labels = np.zeros(count, dtype=np.int64)
        self.seeds = torch.randint(2**62, (blocks,), generator=rng).tolist() if blocks > 1 else [0]
        self.held = (0, self._made(0, rng if blocks == 1 else None))

    def _made(self, block: int, rng: torch.Generator | None = None) -> Tensor:
        rows = np.arange(len(self))[block * self.block : (block + 1) * self.block]
        return self.make(rows, rng=rng or torch.Generator().manual_seed(self.seeds[block])).contiguous()

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, indices: NDArray[np.integer]) -> tuple[Tensor, Tensor]:  # k -> k *d, k
        rows = rows_at(indices, len(self))
        x = torch.empty(len(rows), *self.held[1].shape[1:])
        for block in np.unique(rows // self.block).tolist():
            if block != self.held[0]:
                self.held = (block, self._made(block))
            here = rows // self.block == block
            x[torch.from_numpy(here)] = self.held[1][torch.from_numpy(rows[here] - block * self.block)]
        return x, torch.zeros(len(rows), dtype=torch.int64)

    def fingerprint(self) -> str:
        return f"made {len(self)} {self.block} {self.seeds}"


def is_image(shape: Shape) -> bool:
    """One or three channels of at least two rows and columns."""
    return len(shape) == 3 and shape[0] in (1, 3) and min(shape[1:]) >= 2


def mixed_values(x: Tensor, *, rng: torch.Generator) -> Tensor:  # n *d -> n *d
    rows = torch.rand(len(x), x[0].numel(), generator=rng).argsort(0).to(x.device)  # of each value, a shuffle
    return x.flatten(1).gather(0, rows).view_as(x)


def jigsaws(x: Tensor, *, rng: torch.Generator) -> Tensor:  # n c h w -> n c h w
    h, w = x.shape[2] // 2, x.shape[3] // 2
    which = torch.randint(3, (len(x), 1, 1, 1), generator=rng).to(x.device)
    down, aside = torch.roll(x, h, 2), torch.roll(x, w, 3)
    return torch.where(which == 0, down, torch.where(which == 1, aside, torch.roll(down, w, 3)))


def chimeras(x: Tensor, y: Tensor, *, rng: torch.Generator) -> Tensor:  # n c h w, n -> n c h w
    """Each input with half of another; of the inputs of other classes every one is as likely."""
    return halves(x, x[partners(y, y, rng=rng).to(x.device)], rng=rng)


def partners(y: Tensor, among: Tensor, *, rng: torch.Generator) -> Tensor:  # n, m -> n
    """For each label one of another class."""
    apart = (y[:, None] != among).float().cpu()  # n m
    if not bool(apart.any(1).all()):
        raise AssayError(f"All {len(among)} inputs are of class {int(among[0])}; a chimera wants two classes.")
    return torch.multinomial(apart, 1, generator=rng)[:, 0]


def halves(x: Tensor, other: Tensor, *, rng: torch.Generator) -> Tensor:  # n c h w, n c h w -> n c h w
    """The left or the upper half of each, and the other half of the other."""
    beside = torch.cat([x[..., : x.shape[3] // 2], other[..., x.shape[3] // 2 :]], 3)
    above = torch.cat([x[:, :, : x.shape[2] // 2], other[:, :, x.shape[2] // 2 :]], 2)
    return torch.where(torch.randint(2, (len(x), 1, 1, 1), generator=rng).to(x.device) == 0, beside, above)


def digits(c: int, h: int, w: int, count: int, *, rng: torch.Generator) -> Tensor:  # -> n c h w in [0, 1]
    held = table("digits.csv.gz")[:, :-1].reshape(-1, 1, 8, 8)
    pixels = torch.as_tensor(held / 16, dtype=torch.float32)  # 1797 1 8 8
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
    from PIL import Image

    images = [np.asarray(Image.open(file(f"images/{name}.jpg"))) for name in ("china", "flower")]
    return tuple((image.transpose(2, 0, 1) / 255).astype(np.float32) for image in images)


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
