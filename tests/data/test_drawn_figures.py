"""Drawn persons: the number tells the looks, the seed all else, and key points lie on what was drawn."""

from __future__ import annotations

import numpy as np
import pytest

from assay.data.figures import HEIGHT, LEFT, POINTS, RIGHT, WIDTH, figures
from assay.errors import AssayError


def test_a_seed_draws_the_same_and_a_person_keeps_its_clothes() -> None:
    one, again, other = figures((3, 8), 20, seed=0), figures((3, 8), 20, seed=0), figures((3, 8), 20, seed=1)
    assert one.x.shape == (40, 3, HEIGHT, WIDTH)
    assert one.fingerprint() == again.fingerprint() != other.fingerprint()
    assert one.labels.tolist() == [3] * 20 + [8] * 20
    assert one.x.min() >= 0
    assert one.x.max() <= 1
    middle = figures((8,), 1, seed=0)  # the same looks whoever else is drawn

    def hue(data: np.ndarray, points: np.ndarray) -> np.ndarray:
        """Shares of the channels at the left knee, where the trousers are."""
        at = np.floor(points[:, POINTS.index("left knee")]).astype(int)
        seen = data[np.arange(len(data)), :, at[:, 0].clip(0, HEIGHT - 1), at[:, 1].clip(0, WIDTH - 1)]
        return np.median(seen / seen.sum(1, keepdims=True), axis=0)

    same = np.abs(hue(one.x[20:], one.points[20:]) - hue(other.x[20:], other.points[20:])).max()
    apart = np.abs(hue(one.x[20:], one.points[20:]) - hue(one.x[:20], one.points[:20])).max()
    assert same < 0.1 < apart
    assert np.abs(hue(middle.x, middle.points) - hue(one.x[20:], one.points[20:])).max() < 0.15


def test_points_lie_in_the_picture_and_sides_are_sides() -> None:
    data = figures(range(30), 4, seed=0)
    assert data.points.shape == (120, 14, 2)
    inside = (data.points >= 0) & (data.points <= (HEIGHT, WIDTH))
    assert inside.mean() > 0.97  # a hand may be beyond the edge
    for left, right in zip(LEFT, RIGHT, strict=True):
        assert POINTS[left].removeprefix("left") == POINTS[right].removeprefix("right")
    assert (data.points[:, 2, 1] < data.points[:, 3, 1]).all()
    rows = data.points[..., 0]
    assert (rows[:, 0] < rows[:, 1]).all()
    assert (rows[:, 8] < rows[:, 10]).all()
    assert (rows[:, 10] < rows[:, 12]).all()


def test_nobody_is_told() -> None:
    with pytest.raises(AssayError, match="0 people"):
        figures((), 2, seed=0)
