"""Fields of cells: a scene is a seed, boxes hold what is strange, and the stain follows the shape."""

from __future__ import annotations

import numpy as np
import pytest

from assay.data.marked import Marked, in_boxes
from assay.data.stained_cells import DENSITIES, load_fields, make_fields
from assay.errors import AssayError


def test_a_scene_is_its_seed_whatever_stands_beside_it() -> None:
    several, alone = make_fields([3, 7, 11], holds="foreign"), make_fields([7], holds="foreign")
    for whole, one in zip(several, alone, strict=True):
        assert np.array_equal(whole[1:2], one)
    assert not np.array_equal(several.x[0], several.x[1])


def test_what_is_strange_lies_in_its_boxes_and_nowhere_else() -> None:
    seeds = range(12)
    clean = make_fields(seeds)
    assert (clean.boxes == -1).all()
    for holds in ("foreign", "impurities"):
        dirty = make_fields(seeds, holds=holds, share=1.0)  # type: ignore[arg-type]
        inside = in_boxes(dirty.boxes, 64, 64)
        assert (dirty.boxes[:, 0] >= 0).all()
        changed = (dirty.x != clean.x)[:, 0] | (dirty.stain != clean.stain)[:, 0]
        assert changed.any((1, 2)).all()
        gap = np.abs(dirty.x[:, 0].astype(int) - clean.x[:, 0])
        assert gap[~inside].max() <= 2  # the halo of a round cell, as good as gone
        assert gap[inside].max() > 50
        assert (dirty.stain[:, 0] == clean.stain[:, 0])[~inside].all()
    some = make_fields(range(200), holds="impurities")
    assert 0.15 < (some.boxes[:, 0, 0] >= 0).mean() < 0.35  # a quarter of the images, as in print


def test_denser_fields_hold_more_stain_and_those_of_the_same_seed_the_same_cells() -> None:
    means = [make_fields(range(6), cells=cells).stain.mean() for cells in DENSITIES.values()]
    assert means == sorted(means)
    few, many = make_fields([5], cells=3), make_fields([5], cells=8)
    assert (many.stain >= few.stain).all()
    empty = make_fields([5], cells=0)
    assert (empty.stain == 0).all()


def test_what_is_loaded_has_the_sets_of_the_benchmark() -> None:
    sets = load_fields(train=2, test=2, elsewhere=2)
    assert list(sets) == ["train", "test", "foreign", "impurities", *DENSITIES]
    assert sets["foreign"].marked().inside(np.arange(2)).any((1, 2)).all()
    for wrong in ({"seeds": []}, {"seeds": [-1]}, {"seeds": [0], "cells": -1}, {"seeds": [0], "holds": "dust"}):
        with pytest.raises(AssayError, match="make_fields got"):
            make_fields(**wrong)  # type: ignore[arg-type]


def test_boxes_are_looked_at_and_told_apart() -> None:
    fields = make_fields([0, 1], holds="foreign")
    data = fields.marked()
    x, y = data.take(np.array([1]))
    assert (x.shape, y.shape) == ((1, 1, 64, 64), (1, 1, 64, 64))
    moved = Marked(fields.x, y.new_zeros(2, 1, 64, 64), np.roll(fields.boxes, 1, 0))
    assert moved.fingerprint() != data.fingerprint()
    by_hand = np.zeros((64, 64), dtype=bool)
    for left, top, right, bottom in fields.boxes[0]:
        if left >= 0:
            by_hand[top:bottom, left:right] = True
    assert np.array_equal(data.inside(np.array([0]))[0], by_hand)
    for boxes, words in (
        (np.zeros((2, 4), dtype=int), "left, top, right, bottom"),
        (np.array([[[5, 5, 5, 9]]] * 2), "Box 0 of image 0"),
        (np.array([[[0, 0, 65, 9]]] * 2), "64 x 64"),
    ):
        with pytest.raises(AssayError, match=words):
            Marked(fields.x, fields.stain / 255.0, boxes)
