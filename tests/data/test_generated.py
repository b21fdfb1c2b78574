"""Data made by code: the same for a seed, and true to what it says of itself."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from assay.data import credit, diabetes, digits, fields, scenes, seasons, sentences, vessels
from assay.errors import AssayError
from assay.tasks import Detection, Segmentation

MADE = (
    (scenes.make_scenes, scenes.load_scenes),
    (credit.make_loans, credit.load_loans),
    (seasons.make_series, seasons.load_series),
    (sentences.make_sentences, sentences.load_sentences),
    (fields.make_fields, fields.load_fields),
    (vessels.make_vessels, vessels.load_vessels),
)
MAKERS, LOADERS = zip(*MADE, strict=True)


@pytest.mark.parametrize("make", MAKERS)
def test_a_seed_makes_the_same_again(make):
    one, again, other = (make(20, np.random.default_rng(seed)) for seed in (3, 3, 4))
    assert all(np.array_equal(a, b) for a, b in zip(one, again, strict=True))
    assert not np.array_equal(one[0], other[0])
    with pytest.raises(AssayError, match="got 0"):
        make(0, np.random.default_rng(0))


@pytest.mark.parametrize("load", LOADERS)
def test_nothing_is_in_both_splits(load):
    parts = load(train=200, test=100)
    train, test = (part[0].reshape(len(part[0]), -1) for part in (parts["train"], parts["test"]))
    assert (len(train), len(test)) == (200, 100)
    rows = {row.tobytes() for row in train}
    assert sum(row.tobytes() in rows for row in test) <= (5 if load is sentences.load_sentences else 0)


class TestScenes:
    made = scenes.make_scenes(300, np.random.default_rng(0))

    def test_boxes_hold_their_things_tightly(self):
        _, kind, boxes, _ = self.made
        seen = np.zeros(kind.shape, dtype=bool)
        for i, each in enumerate(boxes):
            for which, *box in each[each[:, 0] >= 0]:
                left, top, right, bottom = (int(v * scenes.SIDE) for v in box)
                inside = kind[i, top:bottom, left:right] == 1 + which
                assert inside[[0, -1]].any(1).all()  # touches each side
                assert inside[:, [0, -1]].any(0).all()
                assert scenes.SIDE * min(right - left, bottom - top) > 0
                seen[i, top:bottom, left:right] |= inside
        assert np.array_equal(seen, kind > 0)  # nothing lies outside the boxes, nor across two

    def test_labels_say_what_the_pixels_say(self):
        _, kind, boxes, holds = self.made
        for k in range(len(scenes.KINDS)):
            assert np.array_equal(holds[:, k], (kind == k + 1).any((1, 2)))
            assert np.array_equal(holds[:, k], (boxes[..., 0] == k).any(1))
        assert (holds.sum(1) == 0).any()
        assert (holds.sum(1) == 3).any()

    def test_kinds_have_their_areas(self):
        _, kind, boxes, _ = self.made
        disc = np.mean([np.pi * r**2 / (2 * r + 1) ** 2 for r in range(scenes.RADII[0], scenes.RADII[1] + 1)])
        for k, share in enumerate((disc, 1.0, 0.5)):
            row, place = np.argwhere(boxes[..., 0] == k).T
            box = boxes[row, place, 1:] * scenes.SIDE
            filled = [
                (kind[i, int(t) : int(b), int(left) : int(r)] == k + 1).mean()
                for i, (left, t, r, b) in zip(row, box, strict=True)
            ]
            assert np.mean(filled) == pytest.approx(share, abs=0.07)

    def test_things_are_brighter_than_the_ground(self):
        x, kind, *_ = self.made
        assert x.dtype == np.uint8
        assert x[:, 0][kind > 0].mean() > 2 * x[:, 0][kind == 0].mean()

    def test_targets_suit_their_tasks(self):
        _, kind, boxes, _ = self.made
        assert Detection(scenes.KINDS).wrong_targets(boxes) is None
        assert Segmentation((scenes.GROUND, *scenes.KINDS)).wrong_targets(kind) is None
        real = torch.from_numpy(boxes[..., 0] >= 0).float()[..., None]
        hot = torch.nn.functional.one_hot(torch.from_numpy(boxes[..., 0]).long().clamp_min(0), 3)
        out = torch.cat([torch.from_numpy(boxes[..., 1:]), 8 * real - 4, hot], 2)
        assert Detection(scenes.KINDS).score(out, torch.from_numpy(boxes)).min() == 1


class TestLoans:
    made = credit.make_loans(20_000, np.random.default_rng(0))

    def test_values_are_what_the_columns_say(self):
        x = self.made.x
        low, high = np.array(list(credit.COLUMNS.values())).T
        assert x.shape[1] == len(credit.COLUMNS)
        assert (x >= low - 1e-4).all()
        assert (x <= high + 1e-4).all()
        assert np.array_equal(x[:, 2:], x[:, 2:].round())
        for place, names in enumerate(credit.CATEGORIES.values(), len(credit.COLUMNS) - len(credit.CATEGORIES)):
            assert set(x[:, place]) == set(range(len(names)))

    def test_as_many_fail_as_their_chance(self):
        _, failed, chance = self.made
        for low in np.arange(0, 1, 0.1):
            here = (chance >= low) & (chance < low + 0.1)
            assert failed[here].mean() == pytest.approx(chance[here].mean(), abs=4 * 0.5 / np.sqrt(here.sum()))

    def test_what_matters_and_what_does_not(self):
        x = self.made.x[:2000]
        for name, matters in (("postcode", False), ("late", True), ("purpose", True), ("income", True)):
            other = x.copy()
            place = list(credit.COLUMNS).index(name)
            other[:, place] = other[::-1, place]
            assert (np.abs(credit.risk(other) - credit.risk(x)).max() > 0.5) == matters
        business, long = x.copy(), x.copy()
        business[:, 7], long[:, 7], business[:, 2] = 3, 0, 6
        short, later = credit.risk(business), business.copy()
        later[:, 2], later[:, 1] = 7, business[:, 1] * 7 / 6  # the same burden
        np.testing.assert_allclose(credit.risk(later) - short, 1.5, atol=1e-3)


class TestVessels:
    made = vessels.make_vessels(100, np.random.default_rng(0))

    def test_each_image_has_a_vessel_from_side_to_side_and_most_a_blob(self):
        kind = self.made.kind
        thin = kind == 2
        across, down = thin.any(1).all(1), thin.any(2).all(1)  # in every column, or every row
        assert (across | down).all()
        assert (kind == 1).any((1, 2)).mean() > 0.95
        assert 0.08 < (kind == 1).mean() < 0.3
        assert 0.05 < thin.mean() < 0.2

    def test_vessels_are_thin_and_blobs_are_not(self):
        def inner(mask):  # pixels whose eight neighbours are of the same kind
            core = mask[:, 1:-1, 1:-1].copy()
            for i in range(3):
                for j in range(3):
                    core &= mask[:, i : mask.shape[1] - 2 + i, j : mask.shape[2] - 2 + j]
            return core.sum() / mask.sum()

        assert inner(self.made.kind == 1) > 0.4
        assert inner(self.made.kind == 2) < 0.2

    def test_things_are_brighter_than_the_ground_and_suit_the_task(self):
        x, kind = self.made
        light = [x[:, 0][kind == c].mean() for c in range(3)]
        assert light[0] + 20 < light[1] < light[2]
        assert x.dtype == np.uint8
        assert Segmentation(vessels.CLASSES).wrong_targets(kind) is None


class TestFields:
    def test_the_sheet_sinks_most_under_the_stamp_and_is_drawn_towards_it(self):
        x = np.array([[0.5, 0.5, 1.0, 0.5, 1.0, 0.0]], dtype=np.float32)
        along, across, down = fields.fields_of(x, side=9).reshape(3, 9, 9)
        assert np.unravel_index(down.argmin(), down.shape) == (4, 4)
        assert down.min() == pytest.approx(-fields.DEPTH, abs=1e-3)
        assert (along[:4] > 0).all() and (along[5:] < 0).all()  # noqa: PT018
        np.testing.assert_allclose(along, across.T, atol=1e-3)
        np.testing.assert_allclose(down, down[::-1], atol=1e-3)

    def test_each_parameter_does_something_and_no_force_and_no_hold_does_nothing(self):
        x = np.full((1, len(fields.PARAMETERS)), 0.5, dtype=np.float32)
        for place in range(x.shape[1]):
            other = x.copy()
            other[:, place] = 0.9
            assert np.abs(fields.fields_of(other) - fields.fields_of(x)).max() > 0.1
        x[:, [2, 5]] = 0
        assert not fields.fields_of(x).any()
        with pytest.raises(AssayError, match="got 1"):
            fields.sheet(1)


def test_patients_lie_in_their_columns():
    parts = diabetes.load_diabetes()
    x, y = (np.concatenate([part[i] for part in parts.values()]) for i in (0, 1))
    assert x.shape == (442, len(diabetes.COLUMNS))
    assert y.shape == (442, 1)
    assert 0 <= x.min() <= x.max() <= 1
    assert len({row.tobytes() for row in x}) == 442
    assert np.corrcoef(x[:, 2], y[:, 0])[0, 1] == pytest.approx(0.586, abs=0.01)  # body mass index, as published


def test_series_have_their_season():
    past, future = seasons.make_series(400, np.random.default_rng(0))
    y = np.concatenate([past, future], 1).astype(np.float64)
    assert y.shape[1:] == (seasons.PAST + seasons.HORIZON, len(seasons.CHANNELS))
    assert seasons.LOW <= y.min() < y.max() <= seasons.HIGH
    gap = {lag: np.abs(y[:, lag:] - y[:, :-lag]).mean() for lag in (seasons.PERIOD // 2, seasons.PERIOD)}
    assert gap[seasons.PERIOD] < gap[seasons.PERIOD // 2] / 2
    quarter = seasons.PERIOD // 4
    load, heat = (y - y.mean(1, keepdims=True)).transpose(2, 0, 1)
    assert (load[:, :-quarter] * heat[:, quarter:]).mean() > 4 * abs((load * heat).mean())


def test_names_are_called_for_by_the_word_before():
    tokens, tags = sentences.make_sentences(500, np.random.default_rng(0))
    assert np.array_equal(tokens == sentences.NONE, tags == sentences.NO_TAG)
    vague: list[bool] = []
    used: dict[str, set[str]] = {tag: set() for tag in sentences.TAGS}
    for row, marks in zip(tokens, tags, strict=True):
        words = sentences.decode(row)
        assert sentences.SHORTEST <= len(words) <= sentences.LONGEST
        named = [sentences.TAGS[k] for k in marks[: len(words)]]
        for i, (word, tag) in enumerate(zip(words, named, strict=True)):
            used[tag].add(word)
            if tag.startswith("B-"):
                calls = sentences.BEFORE_PERSON if tag == "B-person" else sentences.BEFORE_PLACE
                vague.append(words[i - 1] in sentences.BEFORE_EITHER)
                assert vague[-1] or words[i - 1] in calls
            if tag.startswith("I-"):
                assert named[i - 1] == f"B-{tag[2:]}"
    assert np.mean(vague) == pytest.approx(sentences.VAGUE, abs=0.05)
    assert used["B-person"] == {*sentences.PEOPLE, *sentences.EITHER}
    assert used["B-place"] == {*sentences.PLACES, *sentences.EITHER}
    assert used["I-person"] == set(sentences.FAMILY)
    assert used["I-place"] == set(sentences.SECOND)
    assert not used["O"] & {*sentences.PEOPLE, *sentences.PLACES, *sentences.EITHER}


def test_noise_is_on_the_digits():
    clean = digits.load_digits()
    for part, (noisy, target) in digits.noisy_digits().items():
        assert np.array_equal(target, clean[part].x)
        assert 0 <= noisy.min() < noisy.max() <= 1
        between = (target > 0.4) & (target < 0.6)  # where little is cut off
        assert (noisy - target)[between].std() == pytest.approx(digits.NOISE, rel=0.1)
    assert np.array_equal(digits.noisy_digits()["test"][0], digits.noisy_digits()["test"][0])
