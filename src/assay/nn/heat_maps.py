r"""Key points as heat maps: a bump around each point that is sure enough, and nothing for the others.

    m_q(r, c)  =  c_q  exp( - |(r, c) - point_q|^2 / (2 s^2) )     where c_q >= lambda, else 0

on a map of h' x w' over an image of h x w, s in pixels of the map.

Source: Yang et al., "Improved Occluded Person Re-Identification with Multi-feature Fusion", ICANN 2021, sec. 3.3
    (lambda = 0.2). Print gives no s; it is 1 pixel of the map here.
"""

from __future__ import annotations

import torch
from torch import Tensor

from assay.errors import ShapeError

SPREAD = 1.0


def heat_maps(
    points: Tensor,
    sure: Tensor,
    image: tuple[int, int],
    size: tuple[int, int],
    *,
    at_least: float = 0.0,
    spread: float = SPREAD,
) -> Tensor:  # n q 2, n q -> n q h' w'
    """Maps of points in pixels of the image (rows, columns), each as high as its confidence; `at_least` is lambda."""
    if points.shape[:2] != sure.shape or points.shape[2:] != (2,):
        raise ShapeError(
            f"heat_maps got points of shape {tuple(points.shape)} and confidences of shape {tuple(sure.shape)}; it "
            "wants n q 2 and n q."
        )
    scale = torch.tensor([s / i for s, i in zip(size, image, strict=True)], device=points.device)
    row, column = (
        torch.exp(-((torch.arange(s, device=points.device) + 0.5 - at[..., None]) ** 2) / (2 * spread**2))
        for s, at in zip(size, (points * scale).unbind(-1), strict=True)
    )  # n q h', n q w'
    kept = torch.where(sure >= at_least, sure, 0.0)
    return kept[..., None, None] * row[..., :, None] * column[..., None, :]
