"""Generalised entropy and its parts: the decomposition, closed forms, the tie to the error, and gaming."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from assay.errors import AssayError, ShapeError
from assay.methods.fair.entropy import (
    benefit,
    decomposed,
    everyone_positive,
    from_error,
    gaming,
    generalised_entropy,
    mean_error_behind,
)

ALPHAS = [2.0, 3.0, 0.5, -1.0]


def people(seed: int, n: int = 60, *lead: int) -> tuple[Tensor, Tensor, Tensor]:
    rng = torch.Generator().manual_seed(seed)
    scores = torch.rand(*lead, n, generator=rng, dtype=torch.float64) * 0.98 + 0.01
    labels = (torch.rand(n, generator=rng) < 0.4).long()
    return scores, labels, torch.randint(0, 4, (n,), generator=rng)


def entropy_as_printed(b: list[float], alpha: float, mu: float | None = None) -> float:
    mu = sum(b) / len(b) if mu is None else mu
    return sum((v / mu) ** alpha - 1 for v in b) / (len(b) * alpha * (alpha - 1))


def parts_as_printed(b: list[float], groups: list[int], alpha: float, printed: bool) -> tuple[float, float]:
    """One group after another in plain Python."""
    mu, within, between = sum(b) / len(b), 0.0, 0.0
    for g in set(groups):
        own = [v for v, of in zip(b, groups, strict=True) if of == g]
        mean = sum(own) / len(own)
        inner = entropy_as_printed(own, alpha, mu if printed else None)
        within += len(own) / len(b) * (mean / mu) ** alpha * inner
        between += len(own) * ((mean / mu) ** alpha - 1) / (len(b) * alpha * (alpha - 1))
    return within, between


@pytest.mark.parametrize("alpha", ALPHAS)
def test_within_and_between_add_up_to_the_whole(alpha):
    scores, labels, groups = people(0, 60, 7)
    b = benefit(scores, labels)
    within, between = decomposed(b, groups, alpha)
    assert within.shape == between.shape == (7,)
    assert_close(within + between, generalised_entropy(b, alpha), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("printed", [False, True])
def test_parts_are_those_of_the_equations(alpha, printed):
    scores, labels, groups = people(1)
    b = benefit(scores, labels)
    assert_close(generalised_entropy(b, alpha).item(), entropy_as_printed(b.tolist(), alpha), rtol=1e-9, atol=0)
    wanted = parts_as_printed(b.tolist(), groups.tolist(), alpha, printed)
    got = decomposed(b, groups, alpha, as_published=printed)
    assert_close(torch.stack(got), torch.tensor(wanted, dtype=torch.float64), rtol=1e-9, atol=1e-12)


def test_the_printed_mean_does_not_add_up():
    scores, labels, groups = people(2)
    b = benefit(scores, labels) * torch.where(groups == 0, 0.5, 1.0)
    within, between = decomposed(b, groups, as_published=True)
    assert (within + between - generalised_entropy(b)).abs() > 1e-3


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 10_000), st.integers(2, 40))
def test_closed_forms_at_two(seed, n):
    scores, labels, groups = people(seed, n)
    b = benefit(scores, labels)
    mu, n_g = b.mean(), torch.bincount(groups, minlength=4)
    means = torch.stack([b[groups == g].mean() if n_g[g] else mu for g in range(4)])
    within, between = decomposed(b, groups)
    assert_close(within, (b - means[groups]).square().mean() / (2 * mu**2), rtol=1e-9, atol=1e-13)
    assert_close(between, (means[groups] - mu).square().mean() / (2 * mu**2), rtol=1e-9, atol=1e-13)
    error = (scores - labels).mean().item()
    mse = (scores - labels).square().mean().item()
    assert_close((within + between).item(), from_error(mse, error), rtol=1e-9, atol=1e-13)


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 10_000), st.sampled_from(ALPHAS))
def test_merging_never_raises_between_and_splitting_never_raises_within(seed, alpha):
    scores, labels, groups = people(seed, 40)
    b = benefit(scores, labels)
    within, between = decomposed(b, groups, alpha)
    merged_within, merged_between = decomposed(b, groups // 2, alpha)
    assert merged_between <= between + 1e-12
    assert within <= merged_within + 1e-12


def test_what_is_zero():
    _, _, groups = people(3)
    assert_close(torch.stack(decomposed(torch.full((60,), 0.7), groups)), torch.zeros(2, dtype=torch.float64))
    scores, labels, _ = people(3)
    b = benefit(scores, labels)
    assert abs(decomposed(b, torch.zeros(60, dtype=torch.long))[1]) < 1e-12
    twice = torch.cat([b, b])  # two groups with the same mean
    within, between = decomposed(twice, torch.arange(120) // 60)
    assert abs(between) < 1e-12
    assert_close(within, generalised_entropy(b))
    each = decomposed(b, torch.arange(60))[0]  # everybody a group of their own
    assert abs(each) < 1e-12


def test_no_mean_error_is_half_the_squared_error():
    scores, labels, _ = people(4)
    scores = scores / 2 + 0.25
    scores = scores - (scores - labels).mean()
    b = benefit(scores, labels)
    assert (b >= 0).all()
    assert_close(generalised_entropy(b), (scores - labels).square().mean() / 2)
    # German, best squared error in print: .16380, .08071 + .00115
    assert abs(mean_error_behind(0.16380, 0.08186)) < 5e-4


def test_mean_errors_that_print_implies():
    """Zhang et al. 2021, table 2: best f_I and best MSE on Adult and COMPAS, from averages over 15 runs."""
    assert abs(mean_error_behind(0.13163, 0.05396 + 0.00065) - 0.07) < 0.005
    assert abs(mean_error_behind(0.12565, 0.05738 + 0.00057) - 0.036) < 0.002
    assert abs(mean_error_behind(0.22585, 0.10203 + 0.00297) - 0.034) < 0.002
    assert abs(mean_error_behind(0.22268, 0.10575 + 0.00290) - 0.012) < 0.002
    assert_close(mean_error_behind(0.2, from_error(0.2, 0.1)), 0.1)


def test_a_constant_on_every_score_buys_fairness():
    scores, labels, groups = people(5)
    b = benefit(scores, labels)
    before, after = torch.stack(decomposed(b, groups)), torch.stack(decomposed(b + 0.3, groups))
    assert_close(after, before * gaming(b.mean().item(), 0.3))
    assert (after < before).all()


@pytest.mark.parametrize("positives", [1, 10, 25, 40])
def test_everyone_positive(positives):
    labels = (torch.arange(40) < positives).long()
    wanted = everyone_positive(positives / 40)
    assert_close(generalised_entropy(benefit(torch.ones(40), labels)).item(), wanted)
    assert abs(everyone_positive(0.25) - 0.031) < 5e-4


def test_many_networks_and_many_groupings_at_once():
    scores, labels, _ = people(6, 60, 3)
    b = benefit(scores, labels)
    groups = torch.stack([people(s)[2] for s in (6, 7, 8)])
    groups[0] = groups[0].clamp_max(1)  # groups 2 and 3 are empty there
    together = torch.stack(decomposed(b, groups, 3.0), -1)
    for row, mine, codes in zip(together, b, groups, strict=True):
        assert_close(row, torch.stack(decomposed(mine, codes, 3.0)), rtol=1e-9, atol=1e-13)


@pytest.mark.parametrize(
    ("b", "groups", "alpha", "words"),
    [
        ([1.0, 1.0], [0, 1], 1.0, "alpha 1, where the formula divides by 0"),
        ([1.0, -0.5], [0, 1], 2.0, "benefit of -0.5"),
        ([1.0, float("nan")], [0, 1], 2.0, "benefit of nan"),
        ([1.0, 0.0], [0, 1], -1.0, "benefit of 0, which alpha -1"),
        ([0.0, 0.0], [0, 1], 2.0, "all 0"),
        ([1.0, 1.0], [0, -1], 2.0, "group -1"),
    ],
)
def test_bad_input_is_one_line(b, groups, alpha, words):
    with pytest.raises(AssayError, match=words) as e:
        decomposed(torch.tensor(b), torch.tensor(groups), alpha)
    assert "\n" not in str(e.value)


def test_bad_shapes_are_one_line():
    with pytest.raises(ShapeError, match=r"groups of shape \(3,\) for \(2,\) benefits"):
        decomposed(torch.ones(2), torch.zeros(3, dtype=torch.long))
    with pytest.raises(ShapeError, match=r"shape \(0,\)"):
        generalised_entropy(torch.ones(0))
