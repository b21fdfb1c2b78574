"""Digital: what displays, scalers and file formats do to an image.

Source: Hendrycks & Dietterich, ICLR 2019, arXiv:1903.12261, sec. 3 (contrast, pixelate, JPEG). Gamma is not in it
    and stands in for its extra corruption "saturate", which a grey image cannot show. Its elastic transform is left
    out. JPEG: ITU-T T.81 (1992), annex A.3 (transform, quantiser) and K.1 (tables); JFIF 1.02 (colour).
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from assay.data.corruptions.corruption import Corruption

LUMINANCE = (
    (16, 11, 10, 16, 24, 40, 51, 61),
    (12, 12, 14, 19, 26, 58, 60, 55),
    (14, 13, 16, 24, 40, 57, 69, 56),
    (14, 17, 22, 29, 51, 87, 80, 62),
    (18, 22, 37, 56, 68, 109, 103, 77),
    (24, 35, 55, 64, 81, 104, 113, 92),
    (49, 64, 78, 87, 103, 121, 120, 101),
    (72, 92, 95, 98, 112, 100, 103, 99),
)
CHROMINANCE = (
    (17, 18, 24, 47, 99, 99, 99, 99),
    (18, 21, 26, 66, 99, 99, 99, 99),
    (24, 26, 56, 99, 99, 99, 99, 99),
    (47, 66, 99, 99, 99, 99, 99, 99),
    (99, 99, 99, 99, 99, 99, 99, 99),
    (99, 99, 99, 99, 99, 99, 99, 99),
    (99, 99, 99, 99, 99, 99, 99, 99),
    (99, 99, 99, 99, 99, 99, 99, 99),
)


def contrast(x: Tensor, keep: float, _rng: torch.Generator | None = None) -> Tensor:  # n c h w -> n c h w
    """m + keep (x - m), with m the mean of each channel of each image."""
    mean = x.mean((-2, -1), keepdim=True)  # n c 1 1
    return mean + keep * (x - mean)


def gamma(x: Tensor, exponent: float, _rng: torch.Generator | None = None) -> Tensor:  # n c h w -> n c h w
    """x^exponent: a display with the wrong transfer curve; black and white stay, the middle sinks."""
    return x**exponent


def pixelate(x: Tensor, coarseness: float, _rng: torch.Generator | None = None) -> Tensor:  # n c h w -> n c h w
    """Average over the cells of a coarser grid; each pixel then shows the cell that its centre lies in.

    Departs from print: a cell is about 1 + coarseness (side / 32)^(1/2) pixels wide, for the shorter side; the authors'
        cells are up to 1.5 pixels at side 32 and up to 4 at 224. The grid has a whole number of cells, so that below
        a side of 16 two severities may share one.
    """
    h, w = x.shape[-2:]
    cell = 1 + coarseness * (min(h, w) / 32) ** 0.5
    return _through_cells(h, cell, like=x) @ x @ _through_cells(w, cell, like=x).T


def _through_cells(size: int, cell: float, *, like: Tensor) -> Tensor:  # -> size size: mean per cell, and back
    count = round(size / cell)
    cell = size / count
    cells = torch.arange(count, device=like.device, dtype=like.dtype)[:, None] * cell
    pixels = torch.arange(size, device=like.device, dtype=like.dtype)
    overlap = (torch.minimum(cells + cell, pixels + 1) - torch.maximum(cells, pixels)).relu()  # cells size
    means = overlap / overlap.sum(1, keepdim=True)
    return means[((pixels + 0.5) / cell).long()]


def jpeg(x: Tensor, quality: float, _rng: torch.Generator | None = None) -> Tensor:  # n c h w -> n c h w
    r"""Through a baseline JPEG file and back, without the lossless part, which changes nothing.

        8-bit samples -> Y Cb Cr -> 8x8 blocks -> B = D (s - 128) D^T -> round(B / Q) Q -> back, rounded and clipped
        Q = floor((T S + 50) / 100) in 1..255,   S = floor(5000 / quality) below 50, else 200 - 2 quality

    with T the standard tables and S the scaling rule of the Independent JPEG Group's codec, which most encoders follow.
    Rounding is that codec's too, as ties are common among whole samples: coefficients are kept to an eighth, and halves
    go away from zero. Margins are filled up to whole blocks with the last row and column. Three channels are taken as
    RGB; any other number is coded plane by plane, as luminance.

    Departs from print: the colour planes are not subsampled (4:4:4); the paper goes through Pillow, which halves them.
    """
    h, w = x.shape[-2:]
    colour = x.shape[1] == 3
    samples = (x * 255).round()
    planes = _luma_chroma(samples) if colour else samples
    planes = F.pad(planes, (0, -w % 8, 0, -h % 8), mode="replicate") - 128

    blocks = planes.unfold(2, 8, 8).unfold(3, 8, 8)  # n c h/8 w/8 8 8
    transform, table = _cosines(x), quantisers(quality, like=x)  # 8 8, 2 8 8
    table = table[[0, 1, 1]] if colour else table[:1]
    table = table[:, None, None]  # c 1 1 8 8
    eighths = (8 * (transform @ blocks @ transform.T)).round()
    coefficients = eighths.sign() * ((eighths.abs() + 4 * table) / (8 * table)).floor() * table  # ties away from zero
    blocks = (transform.T @ coefficients @ transform).round()

    planes = (blocks.transpose(3, 4).flatten(4, 5).flatten(2, 3)[..., :h, :w] + 128).clamp(0, 255)
    samples = _red_green_blue(planes) if colour else planes
    return samples / 255


def quantisers(quality: float, *, like: Tensor) -> Tensor:  # -> 2 8 8: luminance, chrominance
    """The standard tables at a quality from 1 to 100."""
    scale = 5000 // quality if quality < 50 else 200 - 2 * quality
    tables = torch.tensor((LUMINANCE, CHROMINANCE), device=like.device, dtype=like.dtype)
    return ((tables * scale + 50) / 100).floor().clamp(1, 255)


def _cosines(like: Tensor) -> Tensor:  # -> 8 8, orthogonal; row u is the u-th cosine
    u = torch.arange(8, device=like.device, dtype=like.dtype)
    rows = torch.cos(math.pi / 16 * u[:, None] * (2 * u + 1)) / 2
    rows[0] = math.sqrt(1 / 8)
    return rows


def _luma_chroma(rgb: Tensor) -> Tensor:  # n 3 h w -> n 3 h w, whole numbers in 0..255
    r, g, b = rgb.unbind(1)
    y = 0.299 * r + 0.587 * g + 0.114 * b
    return torch.stack((y, 128 + (b - y) / 1.772, 128 + (r - y) / 1.402), 1).round().clamp(0, 255)


def _red_green_blue(ycc: Tensor) -> Tensor:  # n 3 h w -> n 3 h w, whole numbers in 0..255
    y, cb, cr = ycc.unbind(1)
    r, b = y + 1.402 * (cr - 128), y + 1.772 * (cb - 128)
    g = (y - 0.299 * r - 0.114 * b) / 0.587
    return torch.stack((r, g, b), 1).round().clamp(0, 255)


DIGITAL = (
    Corruption(
        "contrast",
        "digital",
        "Everything drawn towards the image's mean; strength: what is left of the contrast.",
        contrast,
        (0.7, 0.5, 0.35, 0.22, 0.12),
    ),
    Corruption(
        "gamma",
        "digital",
        "A wrong transfer curve that darkens the middle; strength: the exponent.",
        gamma,
        (1.25, 1.6, 2.0, 2.6, 3.4),
    ),
    Corruption(
        "pixelate",
        "digital",
        "A coarser grid of pixels; strength: what a cell has over one pixel, at side 32.",
        pixelate,
        (0.25, 0.5, 0.8, 1.2, 1.8),
    ),
    Corruption(
        "jpeg",
        "digital",
        "Lossy compression as in a JPEG file; strength: the quality, 1 to 100.",
        jpeg,
        (60.0, 35.0, 20.0, 12.0, 7.0),
    ),
)
