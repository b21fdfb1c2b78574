"""A quilt keeps every tile at its place and whole, and uses each once."""

from __future__ import annotations

import torch
from torch.testing import assert_close

from assay.data.quilts import TILES, quilts


def test_every_tile_is_one_images_and_every_image_gives_it_once() -> None:
    side = 2 * TILES
    x = torch.arange(6.0)[:, None, None, None].expand(-1, 3, side, side) + torch.linspace(0, 0.5, side)
    made = quilts(x, rng=torch.Generator().manual_seed(0))
    of = (made - torch.linspace(0, 0.5, side)).round()  # whose pixel it is
    tiles = of.reshape(6, 3, TILES, 2, TILES, 2)
    assert_close(tiles, tiles[:, :1, :, :1, :, :1].expand_as(tiles))
    assert_close(tiles[:, 0, :, 0, :, 0].sort(0).values, torch.arange(6.0)[:, None, None].expand(6, TILES, TILES))
    assert len(tiles[:, 0, :, 0, :, 0].flatten(1).unique(dim=1).T) > 2 * TILES  # each tile is shuffled by itself
    assert all(len(image.unique()) > 1 for image in of)
    assert_close(made - of, (made - of)[:1].expand_as(made))  # what depends on the place stays there


def test_sides_that_tiles_do_not_divide_are_covered() -> None:
    made = quilts(torch.rand(5, 1, 7, 3), rng=torch.Generator().manual_seed(0))
    assert made.shape == (5, 1, 7, 3)
