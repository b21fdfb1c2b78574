"""Copies are found, exact and moved a little; what merely lies close, or coincides, is none."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from assay.errors import ShapeError
from assay.methods.train.copies import copies, voices


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def sets(group: Tensor) -> set[frozenset[int]]:
    return {frozenset((group == g).nonzero()[:, 0].tolist()) for g in group.unique()}


@settings(deadline=None, max_examples=20)
@given(times=st.integers(1, 6), moved=st.sampled_from([0.0, 1e-6, 0.02]), seed=st.integers(0, 99))
def test_the_copies_of_an_input_are_one_group_in_whatever_order(times: int, moved: float, seed: int) -> None:
    """Against a list that knows which is whose: each is told by the first of its group."""
    whose = torch.arange(40).repeat(times)[torch.randperm(40 * times, generator=rng(seed))]
    x = torch.randn(40, 12, generator=rng(seed))[whose]
    x = x + moved * torch.randn(x.shape, generator=rng(seed + 1))
    group = copies(x, whose % 4)
    assert sets(group) == sets(whose)
    assert all(group[i] == min(same) for same in sets(whose) for i in same)


def test_inputs_that_merely_lie_close_are_none() -> None:
    for width in (6, 30):
        x = torch.randn(500, width, generator=rng())
        assert len(copies(x, torch.arange(500) % 2).unique()) > 495


def test_copies_with_several_labels_stay_by_themselves() -> None:
    x = torch.randn(30, 8, generator=rng()).repeat_interleave(3, 0)
    y = (torch.arange(30) % 2).repeat_interleave(3)
    y[1] = 1 - y[1]
    group = copies(x, y)
    assert len(group[:3].unique()) == 3
    assert len(group.unique()) == 29 + 3


def test_rows_of_few_values_coincide_and_are_none() -> None:
    """People of one sex, class and town are several people."""
    x = torch.randint(0, 3, (400, 4), generator=rng()).float()
    assert len(copies(x, torch.zeros(400).long()).unique()) == 400


def test_a_class_that_lies_far_from_the_others_is_no_group_of_copies() -> None:
    y = torch.arange(80) % 4
    x = 100 * torch.eye(4, 6)[y] + torch.randn(80, 6, generator=rng())
    assert len(copies(x, y).unique()) == 80
    again = copies(x.repeat(2, 1), y.repeat(2))  # and its exact copies are still copies
    assert sets(again) == {frozenset((i, i + 80)) for i in range(80)}


def test_the_same_input_everywhere_and_a_single_one_are_no_trouble() -> None:
    assert len(copies(torch.zeros(20, 5), torch.arange(20) % 2).unique()) == 20
    assert copies(torch.zeros(1, 5), torch.zeros(1).long()).tolist() == [0]


def test_labels_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ShapeError, match=r"labels of shape \(3,\) for 4 inputs"):
        copies(torch.zeros(4, 2), torch.zeros(3).long())


def test_copies_of_a_table_are_told_in_the_spreads_of_its_columns() -> None:
    """An income of thousands leaves no room for the other columns where distances are in its units."""
    whose = torch.arange(90) % 30
    x = torch.randn(30, 8, generator=rng()).double()[whose]
    x = (x + 0.002 * torch.randn(x.shape, generator=rng(1)).double()) * torch.tensor([1e4, *[1.0] * 7])
    found = voices(x, whose % 2, columns=True)
    assert found.first.tolist() == list(range(30))
    assert torch.equal(found.of, whose)
    assert len(voices(x, whose % 2, columns=False).first) != 30
