"""Images, videos and pairs of them: the corruptions that images always had, on every frame and on both of a pair."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from assay.data.corruptions import CORRUPTIONS, corrupt
from assay.errors import AssayError, ShapeError
from assay.inputs import SEVERITIES, Both, Channel, Image, Observation, Pair, Text, Video
from assay.inputs.reach import WordReach
from assay.inputs.show import Picture, Reel, SideBySide
from assay.inputs.video import dropped, repeated, shuffled
from assay.methods.explain import groups as grouping


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def random_images(*shape: int) -> Tensor:
    return torch.rand(*shape, generator=seeded(6))


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_the_numbers_of_images_are_those_of_the_corruptions(name: str):
    """The same code in the same order: to the bit, so that no stored number of an image moves."""
    for kind, x in (
        (Image((3, 10, 12)), random_images(4, 3, 10, 12)),
        (Image((1, 9, 9), 0.0, 255.0), 255 * random_images(3, 1, 9, 9)),
    ):
        for severity in SEVERITIES:
            ours = kind.everyday()[name](x, severity, seeded(severity))
            theirs = corrupt(x, name, severity, rng=seeded(severity), low=kind.low, high=kind.high)
            assert torch.equal(ours, theirs)
    assert "Hendrycks & Dietterich" in Image((3, 10, 12)).everyday()[name].source


def test_both_of_a_pair_are_corrupted_each_by_itself_as_they_always_were():
    x = random_images(3, 2, 1, 8, 8)
    for name in CORRUPTIONS:
        ours = Pair(Image((1, 8, 8))).everyday()[name](x, 3, seeded())
        assert torch.equal(ours, corrupt(x.flatten(0, -4), name, 3, rng=seeded()).view_as(x))


def test_what_is_a_picture():
    assert Image((3, 8, 8)).is_image
    assert Image((3, 8, 8)).is_picture
    assert not Image((4, 8, 8)).is_image
    assert Pair(Image((1, 8, 8))).is_picture
    assert not Pair(Image((1, 8, 8))).is_image
    assert not Video(2, Image((3, 8, 8))).is_picture  # two frames are no pair
    assert not Text().is_picture


def test_images_too_small_for_corruptions_have_none():
    assert dict(Image((1, 7, 20)).everyday()) == {}


def test_bad_images_are_told():
    with pytest.raises(ShapeError, match="n c h w, got shape"):
        Image.of(torch.zeros(3, 8, 8))
    with pytest.raises(AssayError, match=r"has the value 255 .* outside the bounds \[0, 1\]"):
        Image.of(torch.full((2, 1, 8, 8), 255.0))
    with pytest.raises(AssayError, match="low < high"):
        Image((1, 8, 8), 1.0, 1.0)
    with pytest.raises(AssayError, match="low <= high"):
        Image((1, 8, 8), 1.0, 0.0)
    with pytest.raises(AssayError, match="no numbers of one shape"):
        Image.of([[1.0], ["a"]])
    assert Image.of(torch.zeros(2, 1, 8, 9), 0.0, 255.0) == Image((1, 8, 9), 0.0, 255.0)


def test_parts_of_an_image_are_those_that_explanations_cut():
    x = random_images(3, 12, 16)
    kind = Image((3, 12, 16))
    assert torch.equal(kind.features(x).groups, grouping.patches(x.shape, 4))
    assert torch.equal(kind.features(x, "pixels").groups, grouping.pixels(x.shape))
    assert kind.features(x).names[:5] == ("patch 0, 0", "patch 0, 1", "patch 0, 2", "patch 0, 3", "patch 1, 0")
    with pytest.raises(AssayError, match="cut into patches, superpixels, pixels, got 'words'"):
        kind.features(x, "words")  # type: ignore[arg-type]
    pytest.importorskip("skimage")
    assert torch.equal(kind.features(x, "superpixels", 6).groups, grouping.superpixels(x, 6))


def test_how_an_image_is_shown():
    x = random_images(3, 8, 8)
    shown = Image((3, 8, 8), 0.0, 2.0).show(x)
    assert isinstance(shown, Picture)
    assert (shown.low, shown.high) == (0.0, 2.0)
    assert_close(torch.from_numpy(shown.pixels), x)
    many = Image((5, 8, 8)).show(random_images(5, 8, 8))
    assert many.pixels.shape == (1, 8, 8)


def test_every_frame_of_a_video_gets_the_same_change():
    frame = random_images(2, 3, 8, 8)
    kind = Video(4, Image((3, 8, 8)))
    x = frame[:, None].repeat(1, 4, 1, 1, 1)
    for name in CORRUPTIONS:
        changed = kind.everyday()[name](x, 4, seeded())
        assert torch.equal(changed, changed[:, :1].expand_as(changed)), name
        assert torch.equal(changed[:, 0], corrupt(frame, name, 4, rng=seeded())), name


def numbered(n: int, f: int) -> Tensor:
    return torch.arange(f, dtype=torch.float32)[None, :, None, None, None].expand(n, f, 1, 1, 1).clone()


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 20), st.floats(0.01, 0.6), st.integers(0, 99))
def test_frames_are_lost_held_and_exchanged_as_said(f: int, share: float, seed: int):
    x = numbered(5, f)
    lost, held, mixed = (change(x, share, seeded(seed)).flatten(1) for change in (dropped, repeated, shuffled))
    if f == 1:
        assert all(torch.equal(one, x.flatten(1)) for one in (lost, held, mixed))
        return
    count = min(f - 1, max(1, round(share * f)))
    for row in lost.tolist():
        kept = row[: f - count]
        assert kept == sorted(set(kept))  # in their order, none twice
        assert row[f - count :] == kept[-1:] * count
    twice = max(1, round(share * (f - 1)))
    assert (held[:, 0] == 0).all()
    assert set(held.diff(dim=1).flatten().tolist()) <= {0.0, 1.0}
    assert ((held.diff(dim=1) == 0).sum(1) == twice).all()
    swaps = min(f // 2, max(1, round(share * f / 2)))
    assert_close(mixed.sort(1).values, x.flatten(1), rtol=0, atol=0)
    assert ((mixed - x.flatten(1)).abs().sum(1) == 2 * swaps).all()


def test_parts_and_looks_of_a_video():
    kind = Video(9, Image((1, 8, 8)))
    x = random_images(9, 1, 8, 8)
    assert kind.features(x).names[8] == "frame 8"
    tubes = kind.features(x, "patches", 4)
    assert len(tubes) == 4
    assert torch.equal(tubes.groups[0], tubes.groups[8])
    shown = kind.show(x)
    assert isinstance(shown, Reel)
    assert shown.places == (0, 2, 3, 5, 6, 8)
    assert_close(torch.from_numpy(shown.frames[1].pixels), x[2])
    assert Video.of(x[None]) == kind
    with pytest.raises(ShapeError, match="n f c h w"):
        Video.of(x)
    with pytest.raises(AssayError, match="cut into frames or patches"):
        kind.features(x, "pixels")  # type: ignore[arg-type]


def test_pairs_of_two_kinds():
    kind = Both(Observation((Channel("a", 0.0, 1.0),)), Text())
    assert {"first-bias", "first-dropout", "second-typos", "second-casing"} <= set(kind.everyday())
    x = (torch.rand(2, 1, generator=seeded()), ["some words here", "other words there"])
    seen, said = kind.everyday()["second-typos"](x, 3, seeded())
    assert torch.equal(seen, x[0])
    assert said == Text().everyday()["typos"](x[1], 3, seeded())
    assert kind.reach.second == WordReach()
    assert kind.reach.norms == ()
    assert not kind.reach.gradient
    assert kind.features((x[0][0], x[1][0])).names == ("first: a", "second: some", "second: words", "second: here")
    assert isinstance(kind.show((x[0][0], x[1][0])), SideBySide)
    with pytest.raises(ShapeError, match="a tuple of two batches"):
        kind.check((x[0], ["one"]))
    both = Both(Text(), Text())
    a, b = both.everyday()["typos"]((["some words"], ["other words"]), 5, seeded())
    assert (a, b) != (["some words"], ["other words"])
