"""What is fitted on and what is asked about never meet, whatever the seed."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.data.arrays import Arrays, Targets
from assay.data.held_out import Part, held_out, left_to_ask
from assay.errors import AssayError


def labelled(labels: list[int]) -> Arrays:
    return Arrays(np.arange(len(labels), dtype=np.float32)[:, None], np.array(labels), classes=("a", "b", "c"))


@settings(deadline=None, max_examples=25)
@given(labels=st.lists(st.integers(0, 2), min_size=2, max_size=60))
def test_halves_are_apart_whole_and_even_in_every_class(labels: list[int]) -> None:
    test = labelled(labels)
    part = held_out({"test": test})
    assert part.split == "test"
    assert sorted([*part.fit, *part.ask]) == list(range(len(labels)))
    for c in range(3):
        assert abs(int((test.labels[part.fit] == c).sum()) - int((test.labels[part.ask] == c).sum())) <= 1
    again = held_out({"test": test})
    assert np.array_equal(again.fit, part.fit)  # without a seed: a fitted model may be asked under any


def test_halves_are_drawn_at_random() -> None:
    part = held_out({"test": labelled([0] * 1000)})
    assert abs(float(part.fit.mean()) - 499.5) < 30
    assert abs(int((np.diff(part.fit) == 1).sum()) - 250) < 60  # neighbours are in the same half half of the time


@pytest.mark.parametrize("shape", [(400,), (400, 2)])
def test_numbers_are_halved_without_regard_to_their_size(shape: tuple[int, ...]) -> None:
    y = np.random.default_rng(0).normal(size=shape)
    part = held_out({"test": Targets(np.zeros((400, 1), dtype=np.float32), y)})
    assert sorted([*part.fit, *part.ask]) == list(range(400))
    fits = np.isin(np.argsort(y.reshape(400, -1)[:, 0]), part.fit)  # by their size
    assert 0.35 < (fits[::2] != fits[1::2]).mean() < 0.65  # cut by size, every two neighbours would be apart


def test_a_split_of_its_own_comes_first_and_then_all_of_test_is_asked_about() -> None:
    test, more, last = labelled([0, 1, 2]), labelled([0, 1]), labelled([2])
    part = held_out({"test": test, "validation": last, "calibration": more})
    assert (part.split, part.fit.tolist(), part.ask.tolist()) == ("calibration", [0, 1], [0, 1, 2])
    assert held_out({"test": test, "validation": last}).split == "validation"


def test_one_input_cannot_be_cut() -> None:
    with pytest.raises(AssayError, match="'test' has 1 input and cannot be cut in two.*split 'calibration'"):
        held_out({"test": labelled([1])})


def test_a_part_gives_its_rows_and_has_a_name_of_its_own() -> None:
    whole = labelled([0, 1, 2, 0, 1, 2])
    part = Part(whole, np.array([5, 0, 3]))
    x, y = part.take(np.array([2, 0]))
    assert x[:, 0].tolist() == [3.0, 5.0]
    assert y.tolist() == [0, 2]
    assert torch.equal(y, torch.from_numpy(part.labels[[2, 0]]))
    assert (len(part), part.classes) == (3, ("a", "b", "c"))
    inner = Part(part, np.array([0]))
    assert inner.take(np.array([0]))[0].item() == 5.0
    prints = {d.fingerprint() for d in (whole, part, Part(whole, np.array([5, 0, 4])), inner)}
    assert len(prints) == 4
    assert Part(labelled([0, 1, 2, 0, 1, 2]), np.array([5, 0, 3])).fingerprint() == part.fingerprint()


def test_what_was_fitted_on_leaves_every_split_that_holds_it():
    """A domain may be rows of 'test', as with --domain-column: half of it fitted, 'test' must lose that half too."""
    x = np.arange(12, dtype=np.float32).reshape(12, 1)
    test, other = Arrays(x, np.arange(12) % 2), Arrays(x, np.arange(12) % 2)
    domain = Part(test, np.array([2, 3, 4, 5, 6, 7]))
    splits = {"test": test, "a": domain, "b": Part(test, np.array([0, 1, 8])), "like": other}
    part = held_out(splits, "a")
    left, _ = left_to_ask(splits, part)
    fitted = set(domain.rows[part.fit])
    values = {name: set(data.take(np.arange(len(data)))[0].flatten().int().tolist()) for name, data in left.items()}
    assert values["test"] == set(range(12)) - fitted
    assert values["a"] == set(domain.rows[part.ask])
    assert values["b"] == {0, 1, 8}
    assert left["b"] is splits["b"]
    assert left["like"] is other
    assert sorted(np.asarray(left["test"].labels).tolist()) == sorted(i % 2 for i in values["test"])
