r"""Maps of a change: where an attack, or what the model sees of it, has changed a picture.

    Ê(x, y) = || A(x, y) - A'(x, y) ||_2 over the channels,      E = (Ê - min Ê) / (max Ê - min Ê)

E knows the direction of the change up to its sign, and nothing of its length: E(A, A + s ε) = E(A, A + ε) for s ≠ 0. So
the map of a single step along the gradient is the plain gradient's, whatever the target: no new method.

Source: 'Perception visualizations for Siamese networks', MSc thesis, Politecnico di Milano, sec. 4.8.1 (the attack,
    equations 28 to 30) and 4.8.3 (what the model sees, equation 31).
Departs from print: where nothing or everything changed alike, the printed E is 0 / 0 and this one is 0. The sizes of
    the regions are not in print, nor the weight of the blend; a region's mean stands beside its maximum, which a single
    pixel decides, and 'viridis', whose steps look even, beside 'jet'.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from assay.errors import AssayError, ShapeError
from assay.methods.explain.groups import superpixels

Flavour = Literal["green-red", "red-blue"]
Reduce = Literal["max", "mean"]
Colours = Literal["jet", "viridis"]
COMPACT = {1: 0.1, 3: 10.0}  # SLIC weighs distance against a grey value up to 1, or a colour's lightness up to 100


def sizes(a: Tensor, b: Tensor) -> Tensor:
    """Ê, in the unit of the inputs: n c h w, n c h w -> n h w; of inputs that are no images, n *d -> n *d."""
    if a.shape != b.shape or a.ndim < 2:
        raise ShapeError(f"A map compares inputs of one shape, got {tuple(a.shape)} and {tuple(b.shape)}.")
    return (a - b).norm(dim=1) if a.ndim == 4 else (a - b).abs()


def grey(a: Tensor, b: Tensor) -> Tensor:
    """E, in [0, 1]: n c h w, n c h w -> n h w; of inputs that are no images, n *d -> n *d, each value by itself."""
    size = sizes(a, b)
    flat = size.flatten(1)
    low, high = flat.amin(1, keepdim=True), flat.amax(1, keepdim=True)
    span = high - low
    return torch.where(span > 0, (flat - low) / torch.where(span > 0, span, 1), 0).view_as(size)


def overlay(image: Tensor, heat: Tensor, flavour: Flavour = "green-red") -> Tensor:  # n c h w, n h w -> n 3 h w
    """The map in one colour over the picture's grey in another, nothing in the third; all within [0, 1].

    'red-blue' (a red map on a blue picture) is for readers who cannot tell green from red.
    """
    _fit(image, heat)
    if flavour not in get_args(Flavour):
        raise AssayError(f"There is no overlay {flavour!r}; choose {' or '.join(get_args(Flavour))}.")
    plain, none = image.mean(1), torch.zeros_like(heat)
    return torch.stack((plain, heat, none) if flavour == "green-red" else (heat, none, plain), 1)


def tessellate(
    image: Tensor, heat: Tensor, *, segments: int | Tensor = 20, reduce: Reduce = "max"
) -> Tensor:  # n c h w, n h w -> n h w
    """Each region of the picture at the largest (or mean) value of the map inside it.

    Regions are about `segments` superpixels of each picture (SLIC, `assay.methods.explain.groups`), or those of a label
    map h w that is given.
    """
    _fit(image, heat)
    if reduce not in get_args(Reduce):
        raise AssayError(f"A region cannot be reduced by {reduce!r}; choose {' or '.join(get_args(Reduce))}.")
    if isinstance(segments, Tensor):
        if segments.shape != heat.shape[1:]:
            raise ShapeError(f"Regions of shape {tuple(segments.shape)} do not fit maps {tuple(heat.shape[1:])}.")
        label = segments.to(heat.device).expand_as(heat)
    else:
        compact = COMPACT[image.shape[1]]
        cut = [superpixels(picture, segments, compactness=compact)[0] for picture in image]
        label = torch.stack(cut).to(heat.device)
    where, flat = label.flatten(1), heat.flatten(1)
    value = flat.new_zeros(len(flat), int(where.max()) + 1)
    how: Literal["amax", "mean"] = "amax" if reduce == "max" else "mean"
    value = value.scatter_reduce(1, where, flat, how, include_self=False)
    return value.gather(1, where).view_as(heat)


def blend(
    image: Tensor, heat: Tensor, *, colours: Colours = "jet", weight: float = 0.5
) -> Tensor:  # n c h w, n h w -> n 3 h w
    """The map in colours, laid with `weight` over the grey picture; how a tessellation is shown."""
    _fit(image, heat)
    if colours not in get_args(Colours):
        raise AssayError(f"There are no colours {colours!r}; choose {' or '.join(get_args(Colours))}.")
    if not 0 <= weight <= 1:
        raise AssayError(f"A blend takes a weight from 0 to 1, got {weight}.")
    from matplotlib import colormaps  # slow to import

    painted = torch.from_numpy(colormaps[colours](heat.detach().cpu().double().numpy())[..., :3])  # n h w 3
    return weight * painted.movedim(-1, 1).to(image) + (1 - weight) * image.mean(1, keepdim=True)


def ramp(colours: Colours, count: int = 9) -> tuple[str, ...]:
    """What 0 to 1 look like in these colours, as #rrggbb: for a scale beside a map."""
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    return tuple(to_hex(colormaps[colours](k / (count - 1))) for k in range(count))


def _fit(image: Tensor, heat: Tensor) -> None:
    if image.ndim != 4 or image.shape[1] not in COMPACT or heat.shape != (len(image), *image.shape[2:]):
        raise ShapeError(
            f"A map of shape {tuple(heat.shape)} does not lie on pictures of shape {tuple(image.shape)}; give n h w "
            "and n c h w, with one or three channels."
        )
