"""Partial queries: how much of the picture is left, where, and that the rest is gone."""

from __future__ import annotations

import pytest
import torch

from assay.errors import AssayError
from assay.methods.retrieve.parts import covered, cropped

RNG = torch.Generator().manual_seed(0)
X = torch.rand(3, 1, 20, 12, generator=RNG)


def test_a_whole_picture_stays():
    where = torch.tensor([0.0, 0.3, 1.0])
    torch.testing.assert_close(cropped(X, 1.0, where), X)
    assert torch.equal(covered(X, 1.0, where[:, None].expand(3, 2), 0.5), X)


@pytest.mark.parametrize("visible", [0.4, 0.5, 0.6])
def test_a_crop_shows_its_band_and_nothing_else(visible):
    rows = round(visible * 20)
    for where, top in ((0.0, 0), (1.0, 20 - rows), (0.5, round((20 - rows) / 2))):
        shown = torch.zeros_like(X)
        shown[:, :, top : top + rows] = 1  # only what lies in the band is seen
        at = torch.full((3,), where)
        assert float(cropped(shown, visible, at).min()) == 1
        assert float(cropped(1 - shown, visible, at).max()) == 0
    out = cropped(X, visible, torch.zeros(3))
    assert out.shape == X.shape
    torch.testing.assert_close(out[:, :, 0], X[:, :, 0])  # the band's ends stay its ends
    torch.testing.assert_close(out[:, :, -1], X[:, :, rows - 1])


@pytest.mark.parametrize("visible", [0.5, 0.7, 0.9])
def test_a_block_covers_the_rest_inside_the_picture_and_touches_nothing_else(visible):
    for where in ((0.0, 0.0), (1.0, 1.0), (0.2, 0.9)):
        out = covered(X, visible, torch.tensor([where] * 3), -1.0)
        gone = out == -1
        assert torch.equal(out[~gone], X[~gone])
        area = gone.float().mean()
        assert abs(float(area) - (1 - visible)) < 0.5 * (1 / 20 + 1 / 12)
        tall, wide = gone[0, 0].any(1).sum(), gone[0, 0].any(0).sum()
        assert int(gone[0].sum()) == int(tall * wide)  # one rectangle
    corner = covered(X, visible, torch.zeros(3, 2), -1.0)
    assert bool((corner[:, :, 0, 0] == -1).all())


def test_no_part_is_refused():
    with pytest.raises(AssayError, match="visible share of 0;"):
        cropped(X, 0.0, torch.zeros(3))
    with pytest.raises(AssayError, match=r"visible share of 1\.5"):
        covered(X, 1.5, torch.zeros(3, 2), 0.0)
