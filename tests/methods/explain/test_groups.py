from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from assay.errors import AssayError, ShapeError
from assay.methods.explain import groups as grouping
from assay.methods.explain.groups import NEVER, columns, gather, patches, pixels, spread, superpixels, words


@settings(deadline=None, max_examples=20)
@given(h=st.integers(1, 9), w=st.integers(1, 9), c=st.integers(1, 3), size=st.integers(1, 4))
def test_patches_are_squares_that_cover_the_image(h: int, w: int, c: int, size: int) -> None:
    size = min(size, max(h, w))
    label = patches((c, h, w), size)
    assert torch.equal(label, grouping.checked(label, (c, h, w)))
    assert grouping.count(label) == -(-h // size) * -(-w // size)
    for i in range(h):
        for j in range(w):
            assert (label[:, i, j] == i // size * -(-w // size) + j // size).all()


def test_pixels_have_all_their_channels() -> None:
    label = pixels((3, 4, 5))
    assert grouping.count(label) == 20
    assert torch.equal(label[0], label[2])


def test_columns_of_one_attribute_are_one_feature() -> None:
    assert columns(["age", "sex=f", "sex=m", "hours", "work=a", "work=b"]).tolist() == [0, 1, 1, 2, 3, 3]
    assert columns(["a", "b"]).tolist() == [0, 1]


def test_words_skip_padding() -> None:
    assert words(torch.tensor([True, False, True]), 2).tolist() == [[0, 0], [NEVER, NEVER], [1, 1]]


def test_superpixels_follow_the_colours() -> None:
    pytest.importorskip("skimage")
    image = torch.zeros(3, 16, 16)
    image[0, :, 8:] = 1
    label = superpixels(image, 8)
    assert torch.equal(label, grouping.checked(label, image.shape))
    assert 2 <= grouping.count(label) <= 16
    assert not set(torch.unique(label[0, :, :8]).tolist()) & set(torch.unique(label[0, :, 8:]).tolist())
    assert torch.equal(label[0], label[1])
    grey = superpixels(image[:1], 4)
    assert grey.shape == (1, 16, 16)


def test_spread_and_gather_are_transposes_and_never_touch_padding() -> None:
    label = torch.tensor([[0, 1, 1], [NEVER, 2, 0]])
    values = torch.tensor([[5.0, 6.0, 7.0]])
    assert spread(values, label).tolist() == [[[5, 6, 6], [0, 7, 5]]]
    assert spread(values > 5, label).tolist() == [[[False, True, True], [False, True, False]]]
    entries = torch.randn(4, 2, 3, generator=torch.Generator().manual_seed(0))
    assert_close((entries * spread(values, label)).sum((1, 2)), (gather(entries, label) * values).sum(1))


def test_words_of_the_errors() -> None:
    with pytest.raises(ShapeError, match=r"images of shape \(c, h, w\), got \(8, 8\)"):
        patches((8, 8), 2)
    with pytest.raises(AssayError, match="1 to 8 wide, got 9"):
        patches((1, 8, 8), 9)
    with pytest.raises(AssayError, match="without a gap.*got 0 to 3 with 3 values"):
        grouping.checked(torch.tensor([0, 1, 3]), (3,))
    with pytest.raises(AssayError, match="integer labels, got torch.float32"):
        grouping.checked(torch.zeros(3), (3,))
    with pytest.raises(ShapeError, match=r"grouping has shape \(3,\) but an input \(4,\)"):
        grouping.checked(torch.arange(3), (4,))
    with pytest.raises(AssayError, match="without a gap"):
        grouping.checked(torch.full((3,), NEVER), (3,))
    with pytest.raises(AssayError, match="count of at least 1"):
        superpixels(torch.zeros(1, 4, 4), 0)
