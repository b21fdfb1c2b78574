"""Penalties: total variation as printed, a count that has a gradient, and the printed one that has none."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from assay.errors import AssayError, ShapeError
from assay.methods.rank.penalties import Penalties, total_variation


def variation_as_printed(change: Tensor) -> Tensor:
    """E 24, one pixel at a time."""
    n, channels, a, b = change.shape
    total = torch.zeros(n, dtype=change.dtype)
    for k in range(n):
        for ch in range(channels):
            for i in range(a - 1):
                for j in range(b - 1):
                    here = change[k, ch, i, j]
                    total[k] += abs(here - change[k, ch, i + 1, j]) + abs(here - change[k, ch, i, j + 1])
    return total


@settings(deadline=None, max_examples=15)
@given(seed=st.integers(0, 999), channels=st.sampled_from([1, 3]), a=st.integers(2, 5), b=st.integers(2, 5))
def test_total_variation_is_the_printed_sum(seed: int, channels: int, a: int, b: int) -> None:
    change = torch.randn(2, channels, a, b, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    assert_close(total_variation(change), variation_as_printed(change))


def test_total_variation_of_what_is_known_by_hand() -> None:
    assert total_variation(torch.full((1, 1, 6, 6), 0.7)).item() == 0
    spike = torch.zeros(3, 1, 6, 6)
    spike[0, 0, 2, 3] = 0.5  # inside: four neighbours
    spike[1, 0, 0, 0] = 0.5  # the first corner: two
    spike[2, 0, 5, 5] = 0.5  # the last corner lies outside of the printed range
    assert_close(total_variation(spike), torch.tensor([2.0, 1.0, 0.0]))


@pytest.mark.parametrize("form", ["smooth", "printed", "proximal"])
def test_no_penalty_has_a_slope_where_nothing_has_changed(form: str) -> None:
    still = torch.zeros(2, 1, 4, 4)
    penalties = Penalties(tv=3, sparse=5, sparse_form=form, close=2)  # type: ignore[arg-type]
    assert torch.equal(penalties.slope(still), still)


def test_weights_are_per_value_so_that_a_larger_image_of_the_same_kind_is_charged_the_same() -> None:
    small = torch.randn(3, 1, 4, 4)
    large = small.repeat(1, 3, 1, 1)  # three equal channels
    for penalties in (
        Penalties(tv=2),
        Penalties(sparse=2),
        Penalties(sparse=2, sparse_form="printed"),
        Penalties(close=2),
    ):
        assert_close(penalties.charge(large), penalties.charge(small))
    assert_close(Penalties(close=2).charge(small), 2 * small.flatten(1).square().mean(1))
    assert_close(Penalties().charge(small), torch.zeros(3))


def test_the_printed_count_counts_and_has_no_gradient() -> None:
    change = torch.tensor([[[[0.0, 1e-9], [0.3, 0.0]]]])
    printed = Penalties(sparse=4, sparse_form="printed")
    assert printed.charge(change).item() == 2  # 4 times half of the values
    assert torch.equal(printed.slope(change), torch.zeros_like(change))


def test_the_smooth_count_nears_the_printed_one_for_large_changes_and_pulls_at_small_ones() -> None:
    change = torch.tensor([[[[0.0, 3.0], [-2.0, 0.0]]]])
    assert Penalties(sparse=4).charge(change).item() == pytest.approx(2)
    slope = Penalties(sparse=4).slope(torch.full((1, 1, 2, 2), 0.01))
    assert_close(slope, torch.full_like(slope, 2 * 0.01 / 0.1**2 * torch.e ** (-0.01)))


@settings(deadline=None, max_examples=20)
@given(value=st.floats(-1, 1), pace=st.floats(0.01, 2), sparse=st.floats(0, 3))
def test_shrinking_solves_its_little_problem(value: float, pace: float, sparse: float) -> None:
    """argmin_d (d - value)^2 / 2 + pace sparse |d|, by brute force on a fine grid."""
    got = Penalties(sparse=sparse, sparse_form="proximal").shrink(torch.tensor([[value]]), torch.tensor([pace])).item()
    grid = torch.linspace(-1, 1, 20001, dtype=torch.float64)
    best = grid[((grid - value) ** 2 / 2 + pace * sparse * grid.abs()).argmin()].item()
    assert got == pytest.approx(best, abs=2e-4)


def test_only_the_proximal_form_shrinks() -> None:
    change = torch.randn(2, 5)
    for penalties in (Penalties(sparse=9), Penalties(sparse=9, sparse_form="printed"), Penalties(tv=1, close=1)):
        assert penalties.shrink(change, torch.ones(2)) is change


def test_bad_penalties_are_refused() -> None:
    with pytest.raises(AssayError, match="tv of at least 0, got -1"):
        Penalties(tv=-1)
    with pytest.raises(AssayError, match="no sparse form 'hard'; choose smooth, proximal, printed"):
        Penalties(sparse_form="hard")  # type: ignore[arg-type]
    with pytest.raises(ShapeError, match=r"for images, and these have shape \(4, 10\); leave tv at 0"):
        Penalties(tv=1).charge(torch.zeros(4, 10))
