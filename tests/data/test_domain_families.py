"""Rotated digits, coloured digits, textured places: what changes between domains is what is said, and nothing else."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.data.coloured_digits import colour, cues, palette
from assay.data.coloured_digits import domain as coloured
from assay.data.digits import load_digits
from assay.data.rotated_digits import ANGLES, domain, domains, rotate
from assay.data.textured_places import NEAR, STRAY, TEXTURES, background, city, outliers
from assay.data.textured_places import domain as places
from assay.errors import AssayError, ShapeError

X = np.random.default_rng(0).random((3, 2, 7, 7)).astype(np.float32)


# Rotated digits


def as_printed(image, degrees):  # h w -> h w
    """One pixel at a time, in plain Python."""
    h, w = image.shape
    a, out = math.radians(degrees), np.zeros((h, w))
    for i in range(h):
        for j in range(w):
            down, right = i - (h - 1) / 2, j - (w - 1) / 2
            r = down * math.cos(a) + right * math.sin(a) + (h - 1) / 2
            c = right * math.cos(a) - down * math.sin(a) + (w - 1) / 2
            for p in range(h):
                for q in range(w):
                    out[i, j] += image[p, q] * max(0.0, 1 - abs(r - p)) * max(0.0, 1 - abs(c - q))
    return out


@pytest.mark.parametrize("degrees", [15, -40, 75])
def test_a_turn_is_the_bilinear_one_written_out(degrees):
    np.testing.assert_allclose(rotate(X, degrees)[1, 1], as_printed(X[1, 1], degrees), atol=6e-5)


def test_quarters_land_on_pixels_and_go_anticlockwise():
    for quarter in range(-1, 5):
        turned = np.rot90(X, quarter, axes=(2, 3))
        np.testing.assert_allclose(rotate(X, 90 * quarter), turned, atol=6e-5)  # four digits are kept


@given(degrees=st.floats(-360, 360), value=st.floats(0, 1))
def test_no_turn_makes_anything_brighter_and_the_centre_stays(degrees, value):
    flat = np.full((1, 1, 5, 5), value, dtype=np.float32)
    turned = rotate(flat, degrees)
    assert turned.max() <= value + 6e-5
    assert turned.min() >= 0
    assert turned[0, 0, 2, 2] == pytest.approx(value, abs=6e-5)


def test_one_seed_draws_the_same_digits_at_every_angle():
    found = domains(3, 40)
    assert list(found) == [f"rotated-{angle}" for angle in ANGLES]
    assert len({data.labels.tobytes() for data in found.values()}) == 1
    assert found["rotated-15"].fingerprint() == domain(3, 40, 15).fingerprint()
    assert found["rotated-15"].fingerprint() != domain(4, 40, 15).fingerprint()
    known = {row.tobytes() for row in np.asarray(load_digits()["train"].x).round(4)}
    assert all(row.tobytes() in known for row in found["rotated-0"].x)
    np.testing.assert_allclose(found["rotated-30"].x, rotate(found["rotated-0"].x, 30), atol=1e-4)


def test_images_of_any_size_turn():
    mnist = np.random.default_rng(0).random((2, 1, 28, 28))
    assert rotate(mnist, 45).shape == (2, 1, 28, 28)
    with pytest.raises(ShapeError, match=r"shape \(2, 28, 28\); it wants n c h w"):
        rotate(mnist[:, 0], 45)
    with pytest.raises(AssayError, match="There are 497 digits to test on, not 498"):
        domain(0, 498, 15, part="test")


# Coloured digits


@pytest.mark.parametrize("classes", [2, 10])
@pytest.mark.parametrize("agreement", [0.0, 0.5, 0.95, 1.0])
def test_the_cue_agrees_as_often_as_it_is_told_to(classes, agreement):
    data = coloured(0, 200, agreement, classes=classes, part="test")
    assert data.agrees.sum() == 200 * agreement
    colours = palette(classes)
    brightest = data.x.max((2, 3))  # n c: one pixel of a digit is always bright
    np.testing.assert_allclose(brightest / brightest.max(1, keepdims=True), colours[data.cue], atol=1e-4)
    assert len(data.classes or ()) == classes


def test_shape_and_label_stay_while_the_colour_goes():
    true, wrong = (coloured(5, 100, agreement, classes=2, channels=2) for agreement in (1.0, 0.0))
    np.testing.assert_array_equal(true.labels, wrong.labels)
    np.testing.assert_array_equal(true.x.sum(1), wrong.x.sum(1))
    np.testing.assert_array_equal(true.x[:, 0], wrong.x[:, 1])
    assert true.x.shape == (100, 2, 8, 8)


def test_a_linear_model_takes_the_shortcut_and_falls_with_it():
    from sklearn.linear_model import LogisticRegression

    trained = coloured(0, 600, 0.95)
    model = LogisticRegression(max_iter=200).fit(trained.x.reshape(600, -1), trained.labels)

    def right(agreement):
        data = coloured(1, 400, agreement, part="test")
        return model.score(data.x.reshape(400, -1), data.labels)

    assert right(0.95) > 0.93
    assert right(0.0) < 0.65


def test_a_wrong_cue_speaks_for_every_other_class_alike():
    y = np.arange(9000) % 10
    cue = cues(y, 10, 0.0, seed=0)
    counts = np.bincount((cue - y) % 10, minlength=10)
    assert counts[0] == 0
    assert abs(counts[1:] - 1000).max() < 5 * math.sqrt(1000)


def test_colours_are_told_apart():
    for many in (2, 3, 10):
        found = palette(many)
        gaps = np.abs(found[:, None] - found[None]).sum(-1)[~np.eye(many, dtype=bool)]
        assert gaps.min() > 0.3
    with pytest.raises(AssayError, match="10 colours do not fit into 2 channels"):
        palette(10, 2)
    with pytest.raises(AssayError, match=r"a share 1.2 of the labels"):
        coloured(0, 10, 1.2)
    with pytest.raises(ShapeError, match="it wants grey ones"):
        colour(X, np.zeros(3, dtype=np.int64), palette(2))


# Textured places


def first(queries, gallery):
    """Whether the nearest in the gallery is of the same place."""
    apart = ((queries[0][:, None] - gallery[0][None]) ** 2).reshape(len(queries[0]), len(gallery[0]), -1).sum(-1)
    return float((gallery[1][apart.argmin(1)] == queries[1]).mean())


def test_the_object_tells_the_place_in_any_domain_and_the_whole_image_does_not():
    """By the object alone every place is found; by the whole image hardly one: the background is what is seen."""
    old, new = places(0, 200, "stripes"), places(1, 200, "checks")
    cut = [(d.x[:, 0][d.mask].reshape(200, 12, 12), d.labels) for d in (old, new)]
    assert first(cut[1], cut[0]) == 1.0
    assert first((new.x, new.labels), (old.x, old.labels)) < 0.3


def test_a_tag_is_near_the_tags_of_its_place_and_of_no_other():
    data = places(0, 120, "grain", places=30)
    apart = np.linalg.norm(data.geo[:, None] - data.geo[None], axis=-1)
    same = data.labels[:, None] == data.labels[None]
    assert apart[same].max() <= 2 * STRAY * math.sqrt(2) < NEAR
    assert apart[~same].min() > NEAR
    assert np.bincount(data.labels).tolist() == [4] * 30


@pytest.mark.parametrize("texture", TEXTURES)
def test_outside_the_object_there_is_background_alone(texture):
    data = places(7, 50, texture)
    alone = background(50, texture, np.random.default_rng((7, 4))).round(4).astype(np.float32)
    np.testing.assert_array_equal(data.x[:, 0][~data.mask], alone[~data.mask])
    assert (data.mask.sum((1, 2)) == 144).all()
    assert outliers(7, 50, texture).shape == (50, 1, 32, 32)
    assert 0 <= data.x.min() <= data.x.max() <= 1
    towns = city(20).objects
    for k in range(50):  # an object is that of its place, in some light
        seen = data.x[k, 0][data.mask[k]].reshape(12, 12)
        light = seen.max() / towns[data.labels[k]].max()
        np.testing.assert_allclose(seen, light * towns[data.labels[k]], atol=1e-3)


def test_places_are_the_same_on_any_day():
    assert places(1, 30, "checks").fingerprint() == places(1, 30, "checks").fingerprint()
    assert places(1, 30, "checks").fingerprint() != places(2, 30, "checks").fingerprint()
    np.testing.assert_array_equal(places(1, 30, "checks").labels, places(1, 30, "grain").labels)
    assert len(np.unique(city(40).objects.reshape(40, -1), axis=0)) == 40
    with pytest.raises(AssayError, match="There is no texture 'sand'; choose from stripes, checks, grain"):
        places(0, 10, "sand")  # type: ignore[arg-type]
