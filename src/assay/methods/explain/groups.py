"""What counts as one feature of an input: a pixel, a patch, a superpixel, a column of a table, a word.

A grouping is an integer label map in the shape of one input: entries with the same label are one feature, labels run
from 0 to k - 1, and NEVER marks what belongs to no feature (padding): it never changes and is never picked.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import torch
from torch import Tensor

from assay.errors import AssayError, MissingExtra, ShapeError

NEVER = -1
Parts = Literal["patches", "pixels", "superpixels", "columns", "words"]
SUPERPIXELS = 16


def pixels(shape: Sequence[int]) -> Tensor:
    """Each pixel of an image, all its channels together: (c h w) -> c h w."""
    return patches(shape, 1)


def patches(shape: Sequence[int], size: int) -> Tensor:
    """Squares of `size` pixels from the upper left corner, row by row, smaller at the far edges: (c h w) -> c h w."""
    if len(shape) != 3:
        raise ShapeError(f"Patches are cut from images of shape (c, h, w), got {tuple(shape)}.")
    c, h, w = shape
    if not 1 <= size <= max(h, w):
        raise AssayError(f"Patches of an image of {h} x {w} pixels are 1 to {max(h, w)} wide, got {size}.")
    across = -(-w // size)
    label = torch.arange(h)[:, None] // size * across + torch.arange(w) // size  # h w
    return label.expand(c, h, w).clone()


def columns(names: Sequence[str]) -> Tensor:
    """The columns of a table; those named `attribute=value` are one feature for each attribute: d names -> d."""
    number = {name: k for k, name in enumerate(dict.fromkeys(name.split("=")[0] for name in names))}
    return torch.tensor([number[name.split("=")[0]] for name in names])


def words(shown: Tensor, width: int) -> Tensor:
    """The rows of an embedded text, without those where `shown` is False (padding): L -> L m."""
    label = torch.where(shown.bool(), shown.bool().cumsum(0) - 1, NEVER)
    return label[:, None].expand(-1, width).clone()


def superpixels(image: Tensor, count: int, *, compactness: float = 0.1) -> Tensor:
    """About `count` connected regions of like colour: c h w in [0, 1] -> c h w.

    Source: SLIC, Achanta et al., TPAMI 2012, as scikit-image has it. A large `compactness` gives squares.
    """
    if image.ndim != 3:
        raise ShapeError(f"Superpixels are regions of an image of shape (c, h, w), got {tuple(image.shape)}.")
    if count < 1:
        raise AssayError(f"superpixels needs a count of at least 1, got {count}.")
    try:
        from skimage.segmentation import slic
    except ImportError:
        raise MissingExtra.of("A cut into superpixels", "scikit-image", "explain") from None
    plain = image.detach().cpu().double().movedim(0, -1).numpy()  # h w c
    found = slic(plain, n_segments=count, compactness=compactness, start_label=0, convert2lab=len(image) == 3)
    label: Tensor = torch.unique(torch.from_numpy(found), return_inverse=True)[1]  # no label is left empty
    return label.expand(len(image), -1, -1).clone()


def misfit(parts: Parts, shape: Sequence[int]) -> str | None:
    """Why inputs of this shape have no such parts; None where they do."""
    fits = {3: ("patches", "pixels", "superpixels"), 2: ("words",), 1: ("columns",)}.get(len(shape), ())
    if parts in fits:
        return None
    return f"an input of shape {tuple(shape)} has no {parts}; it has {' or '.join(fits) or 'none'}"


def cut(x: Tensor, parts: Parts, *, count: int = SUPERPIXELS, low: float = 0.0, high: float = 1.0) -> Tensor:
    """One input cut into such parts, about `count` of them where that can be chosen: *d -> *d.

    Superpixels are the input's own; every other cut is the same for all inputs of a shape. `low` and `high` are the
    bounds of the input.
    """
    if parts not in get_args(Parts):
        raise AssayError(f"An input is cut into {', '.join(get_args(Parts))}, got {parts!r}.")
    if why := misfit(parts, x.shape):
        raise AssayError(f"{why[0].upper()}{why[1:]}.")
    if parts == "superpixels":
        return superpixels((x - low) / (high - low), count)
    if parts == "patches":
        return patches(x.shape, max(1, round(max(x.shape[1:]) / count**0.5)))
    if parts == "pixels":
        return pixels(x.shape)
    return checked(None, x.shape) if parts == "columns" else words(torch.ones(len(x)), x.shape[1])


def checked(groups: Tensor | None, shape: Sequence[int]) -> Tensor:
    """The grouping of inputs of this shape, every entry a feature of its own where none is given: *d -> *d."""
    if groups is None:
        return torch.arange(torch.Size(shape).numel()).reshape(tuple(shape))
    if groups.shape != torch.Size(shape):
        raise ShapeError(
            f"The grouping has shape {tuple(groups.shape)} but an input {tuple(shape)}; give one label per entry."
        )
    if groups.dtype.is_floating_point or groups.dtype == torch.bool:
        raise AssayError(f"A grouping holds integer labels, got {groups.dtype}.")
    k = int(groups.max()) + 1
    if int(groups.min()) < NEVER or k < 1 or len(torch.unique(groups[groups >= 0])) != k:
        raise AssayError(
            f"Labels of a grouping run from 0 to k - 1 without a gap ({NEVER} where nothing may change), "
            f"got {int(groups.min())} to {int(groups.max())} with {len(torch.unique(groups[groups >= 0]))} values."
        )
    return groups


def count(groups: Tensor) -> int:
    """How many features a grouping has: *d -> k."""
    return int(groups.max()) + 1


def spread(values: Tensor, groups: Tensor) -> Tensor:
    """What is known per feature, written on every entry of it, and 0 or False elsewhere: m k, *d -> m *d."""
    padded = torch.cat([values, torch.zeros_like(values[:, :1])], 1)  # NEVER reads the last column
    return padded[:, groups.to(values.device)]


def gather(entries: Tensor, groups: Tensor) -> Tensor:
    """The sum over the entries of each feature: n *d, *d -> n k."""
    label = groups.to(entries.device).flatten()
    shown = label >= 0
    total = entries.new_zeros(len(entries), count(groups))
    return total.index_add_(1, label[shown], entries.flatten(1)[:, shown])
