"""Outliers of every kind: in shape and bounds, the same by seed, and what their names say."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from assay.data.arrays import Arrays
from assay.data.strangers import Made, Making, chimeras, far_kinds, far_outliers, glyphs, jigsaws, near_kinds, resize
from assay.errors import AssayError


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def near_outliers(x: Tensor, y: Tensor, rng: torch.Generator) -> dict[str, Tensor]:
    kinds = near_kinds(Arrays(x, y), tuple(x.shape[1:]))
    return {kind: make(np.arange(len(x)), rng=rng) for kind, make in kinds.items()}


def pictures(n: int, *shape: int, low: float = 0.0, high: float = 1.0) -> Tensor:
    return low + (high - low) * torch.rand(n, *shape, generator=seeded(7))


@settings(deadline=None, max_examples=12)
@given(
    shape=st.sampled_from([(1, 28, 28), (3, 32, 32), (1, 8, 8), (3, 7, 11), (1, 2, 2), (5,), (2, 9), (4, 6, 6)]),
    bounds=st.sampled_from([(0.0, 1.0), (-1.0, 1.0), (0.0, 255.0), (3.0, 3.5)]),
    seed=st.integers(0, 100),
)
def test_all_are_in_shape_and_bounds_and_the_same_by_seed(
    shape: tuple[int, ...], bounds: tuple[float, float], seed: int
) -> None:
    x, y = pictures(12, *shape, low=bounds[0], high=bounds[1]), torch.arange(12) % 3
    near = near_outliers(x, y, rng=seeded(seed))
    far = far_outliers(shape, 6, bounds=bounds, rng=seeded(seed))
    image = len(shape) == 3 and shape[0] in (1, 3)
    assert list(near) == (["jigsaws", "chimeras"] if image else ["mixed values"])
    assert list(far) == [*(["digits", "photographs", "glyphs"] if image else []), "uniform noise", "gaussian noise"]
    for kind, made in {**near, **far}.items():
        assert made.shape == (12 if kind in near else 6, *shape)
        assert made.dtype == torch.float32
        assert bounds[0] <= float(made.min())
        assert float(made.max()) <= bounds[1]
        if made[0].numel() > 4:
            assert float(made.std()) > 0.01 * (bounds[1] - bounds[0])
    again = {**near_outliers(x, y, rng=seeded(seed)), **far_outliers(shape, 6, bounds=bounds, rng=seeded(seed))}
    assert all(torch.equal(again[kind], made) for kind, made in {**near, **far}.items())
    others = far_outliers(shape, 6, bounds=bounds, rng=seeded(seed + 1))
    assert not any(torch.equal(others[kind], far[kind]) for kind in far)


def test_a_jigsaw_moves_every_pixel_and_loses_none() -> None:
    x = torch.arange(60 * 24, dtype=torch.float32).view(60, 1, 4, 6)
    made = jigsaws(x, rng=seeded())
    assert torch.equal(made.flatten(1).sort(1).values, x.flatten(1))
    assert (made != x).all()
    moved = {tuple((made[i] - x[i]).flatten().tolist()) for i in range(60)}
    assert len(moved) == 3  # down, aside, both
    quarters = {(i, j): x[0, 0, 2 * i : 2 * i + 2, 3 * j : 3 * j + 3] for i in (0, 1) for j in (0, 1)}
    corner = made[:, 0, :2, :3] - x[:, :1, 0, :1]
    for picture in corner:  # a whole quarter has come to the first corner, and not the first
        assert any(torch.equal(picture, q - x[0, 0, 0, 0]) for place, q in quarters.items() if place != (0, 0))


def test_a_chimera_is_half_of_one_input_and_half_of_one_of_another_class() -> None:
    y = torch.arange(40) % 4
    x = y.float().view(-1, 1, 1, 1).expand(-1, 1, 6, 6)
    made = chimeras(x, y, rng=seeded())
    assert torch.equal(made[:, 0, 0, 0], y.float())
    for picture, own in zip(made[:, 0], y, strict=True):
        values, counts = picture.unique(return_counts=True)
        assert counts.tolist() == [18, 18]
        assert int(own) in values.tolist()
    assert {bool((p[:3] == p[0, 0]).all()) for p in made[:, 0]} == {True, False}  # above, and beside
    with pytest.raises(AssayError, match="All 40 inputs are of class 1; a chimera wants two classes"):
        chimeras(x, torch.ones(40, dtype=torch.long), rng=seeded())


def test_mixed_values_keep_each_values_own_distribution_and_nothing_between_them() -> None:
    base = torch.randn(400, 1, generator=seeded())
    x = torch.cat([base, base, 5 + base], 1)
    made = near_outliers(x, torch.zeros(400, dtype=torch.int64), rng=seeded())["mixed values"]
    assert torch.equal(made.sort(0).values, x.sort(0).values)
    assert abs(float(torch.corrcoef(made.T)[0, 1])) < 0.2
    assert float(torch.corrcoef(x.T)[0, 1]) == pytest.approx(1)


def test_glyphs_are_thin_strokes_and_differ() -> None:
    x = glyphs(1, 28, 28, 200, rng=seeded())
    dark, bright = (x < 0.1).float().mean((1, 2, 3)), (x > 0.6).float().mean((1, 2, 3))
    assert (dark > 0.4).all()  # most of the paper is left
    assert (bright > 0.02).all()
    apart = torch.cdist(x.flatten(1), x.flatten(1)) + 99 * torch.eye(200)
    assert float((apart.amin(1) > 1).float().mean()) > 0.95


def test_digits_are_scikit_learns_and_photographs_are_smooth() -> None:
    from sklearn.datasets import load_digits

    made = far_outliers((1, 8, 8), 40, rng=seeded())
    real = {tuple(image.flatten()) for image in load_digits().images}
    assert all(tuple((image * 16).round().flatten().double().tolist()) in real for image in made["digits"])
    wide = far_outliers((3, 32, 32), 40, rng=seeded())
    assert torch.equal(wide["digits"][:, 0], wide["digits"][:, 2])
    roughness = {kind: float(x.diff(dim=3).abs().mean() / x.std()) for kind, x in wide.items()}
    assert roughness["photographs"] < 0.5 * roughness["uniform noise"]
    assert not torch.equal(wide["photographs"][:, 0], wide["photographs"][:, 2])  # in colour


def test_resizing_keeps_a_constant_picture() -> None:
    assert torch.allclose(resize(torch.full((1, 1, 8, 8), 0.25), 13, 5), torch.tensor(0.25))


def test_bad_input_gets_one_line() -> None:
    with pytest.raises(AssayError, match="Got 1 input to make near outliers of; give two inputs or more"):
        near_outliers(torch.rand(1, 4), torch.zeros(1, dtype=torch.int64), rng=seeded())
    with pytest.raises(AssayError, match="count=0; want at least one"):
        far_outliers((4,), 0, rng=seeded())
    with pytest.raises(AssayError, match="Got bounds 1 to 0"):
        far_outliers((4,), 3, bounds=(1.0, 0.0), rng=seeded())


def test_one_block_is_what_is_made_at_once_and_several_are_the_same_whenever_they_are_taken() -> None:
    x, y = pictures(30, 1, 6, 6), torch.arange(30) // 29  # all but one of a class
    sizes: list[int] = []
    for kind, make in near_kinds(Arrays(x, y), (1, 6, 6)).items():
        whole = Made(make, 30, block=30, rng=seeded(3))
        assert torch.equal(whole.take(np.arange(30))[0], make(np.arange(30), rng=seeded(3))), kind

        def noted(rows: NDArray[np.int64], *, rng: torch.Generator, make: Making = make) -> Tensor:
            sizes.append(len(rows))
            return make(rows, rng=rng)

        parts, again = (Made(noted, 30, block=7, rng=seeded(3)) for _ in range(2))
        all_at_once = parts.take(np.arange(30))[0]
        backwards = torch.cat([again.take(np.array([i]))[0] for i in range(29, -1, -1)]).flip(0)
        assert torch.equal(all_at_once, backwards)
        assert len(all_at_once.flatten(1).unique(dim=0)) == 30
    assert set(sizes) == {6}  # five blocks, none of them a rest
    make_far = far_kinds((1, 6, 6))["uniform noise"]
    far = Made(lambda rows, *, rng: make_far(len(rows), rng=rng), 30, block=7, rng=seeded())
    assert len(far.take(np.arange(30))[0].flatten(1).unique(dim=0)) == 30
