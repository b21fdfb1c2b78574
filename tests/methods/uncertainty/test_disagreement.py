from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from assay.errors import AssayError, ShapeError
from assay.methods.uncertainty.disagreement import (
    expected_entropy,
    mean_probability,
    mutual_information,
    predictive_entropy,
    spread,
)

ALL = (mean_probability, spread, predictive_entropy, expected_entropy, mutual_information)
sizes = st.tuples(st.integers(1, 6), st.integers(1, 5), st.integers(2, 6), st.floats(0.1, 20), st.integers(0, 99))


def drawn(m: int, n: int, c: int, scale: float = 2.0, seed: int = 0) -> Tensor:
    return scale * torch.randn(m, n, c, generator=torch.Generator().manual_seed(seed))


def as_printed(logits: Tensor, row: int) -> tuple[list[float], list[float], float, float, float]:
    """The five numbers of one input, in plain Python."""
    members = [[math.exp(z) for z in member[row].double().tolist()] for member in logits]
    p = [[e / sum(each) for e in each] for each in members]
    m, classes = len(p), range(len(p[0]))
    mean = [sum(each[c] for each in p) / m for c in classes]
    deviation = [math.sqrt(sum((each[c] - mean[c]) ** 2 for each in p) / m) for c in classes]

    def entropy(q: list[float]) -> float:
        return -sum(v * math.log(v) for v in q if v > 0)

    kl = sum(sum(each[c] * math.log(each[c] / mean[c]) for c in classes) for each in p) / m
    return mean, deviation, entropy(mean), sum(map(entropy, p)) / m, kl


def test_the_numbers_are_those_of_the_equations() -> None:
    z = drawn(4, 6, 3)
    for row in range(6):
        for function, want in zip(ALL, as_printed(z, row), strict=True):
            assert_close(function(z)[row], torch.tensor(want, dtype=torch.float64), rtol=1e-9, atol=1e-9)


@settings(deadline=None, max_examples=40)
@given(sizes)
def test_entropies_stay_in_their_bounds_and_the_order_of_members_is_nothing(
    size: tuple[int, int, int, float, int],
) -> None:
    z = drawn(*size)
    m, _, c = z.shape
    total, own, shared = predictive_entropy(z), expected_entropy(z), mutual_information(z)
    assert (own <= total + 1e-12).all()
    assert (total <= math.log(c) + 1e-12).all()
    assert ((shared >= 0) & (shared <= math.log(m) + 1e-12)).all()
    other = z[torch.randperm(m, generator=torch.Generator().manual_seed(1))]
    for function in ALL:
        assert_close(function(other), function(z), rtol=1e-9, atol=1e-12)


def test_one_member_has_no_spread_at_all_and_equal_ones_have_none_to_speak_of() -> None:
    one = drawn(1, 50, 4)
    assert torch.equal(spread(one), torch.zeros(50, 4, dtype=torch.float64))
    assert torch.equal(mutual_information(one), torch.zeros(50, dtype=torch.float64))
    assert_close(mean_probability(one), one[0].double().softmax(-1))
    same = one.expand(7, -1, -1)
    assert float(spread(same).max()) < 1e-14
    assert float(mutual_information(same).max()) < 1e-14


def test_members_that_are_sure_of_different_classes_share_all_that_they_could() -> None:
    z = torch.full((3, 1, 3), -torch.inf)
    for member in range(3):
        z[member, 0, member] = 0.0
    assert mutual_information(z).item() == pytest.approx(math.log(3))
    assert expected_entropy(z).item() == 0
    assert_close(spread(z), torch.full((1, 3), math.sqrt(2) / 3, dtype=torch.float64))


@settings(deadline=None, max_examples=40)
@given(sizes)
def test_the_mean_is_never_more_surprised_than_the_members_on_average(size: tuple[int, int, int, float, int]) -> None:
    """Jensen, for the mean of probabilities and for that of logits."""
    z = drawn(*size).double()
    y = torch.arange(z.shape[1]) % z.shape[2]
    rows = torch.arange(len(y))
    alone = -z.log_softmax(-1)[:, rows, y].mean(0)
    assert (-mean_probability(z)[rows, y].log() <= alone + 1e-9).all()
    assert (-z.mean(0).log_softmax(-1)[rows, y] <= alone + 1e-9).all()


@settings(deadline=None, max_examples=40)
@given(sizes)
def test_the_gap_in_squared_error_is_the_variance_of_the_members(size: tuple[int, int, int, float, int]) -> None:
    """Krogh and Vedelsby's ambiguity decomposition, exactly."""
    z = drawn(*size).double()
    target = torch.eye(z.shape[2], dtype=torch.float64)[torch.arange(z.shape[1]) % z.shape[2]]
    alone = (z.softmax(-1) - target).square().sum(-1).mean(0)
    together = (mean_probability(z) - target).square().sum(-1)
    assert_close(alone - together, spread(z).square().sum(-1), rtol=1e-9, atol=1e-12)


def test_what_cannot_be_meant_is_refused() -> None:
    with pytest.raises(ShapeError, match=r"shape \(5, 3\).*pass logits\[None\]"):
        spread(torch.zeros(5, 3))
    with pytest.raises(ShapeError, match=r"shape \(0, 5, 3\)"):
        mean_probability(torch.zeros(0, 5, 3))
    with pytest.raises(AssayError, match=r"torch\.int64 .*before the argmax"):
        predictive_entropy(torch.zeros(2, 5, 3, dtype=torch.int64))
    z = drawn(3, 5, 2)
    z[1, 4, 0] = torch.nan
    with pytest.raises(AssayError, match="Member 1 has NaN or infinite logits for input 4"):
        mutual_information(z)
