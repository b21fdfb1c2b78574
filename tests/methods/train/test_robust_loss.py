"""Losses that bear wrong labels: their limits, their gradients and their bounds."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from assay.errors import AssayError
from assay.methods.train.robust_loss import CLIPPED, generalised_cross_entropy, symmetric_cross_entropy


def drawn(n: int = 50, classes: int = 5, scale: float = 3.0) -> tuple[torch.Tensor, torch.Tensor]:
    rng = torch.Generator().manual_seed(0)
    logits = scale * torch.randn(n, classes, generator=rng, dtype=torch.float64)
    return logits, torch.randint(classes, (n,), generator=rng)


def test_its_ends_are_the_cross_entropy_and_half_the_absolute_error() -> None:
    logits, y = drawn()
    assert_close(generalised_cross_entropy(1e-9)(logits, y), F.cross_entropy(logits, y), rtol=1e-6, atol=0)
    absolute = (torch.softmax(logits, 1) - F.one_hot(y, 5)).abs().sum(1).mean()
    assert_close(generalised_cross_entropy(1.0)(logits, y), absolute / 2)


@given(q=st.floats(0.05, 1), scale=st.floats(0.1, 30))
@settings(deadline=None, max_examples=25)
def test_it_is_bounded_and_over_all_labels_nearly_constant(q: float, scale: float) -> None:
    """eq. 7 of the paper: c - c^(1-q) <= q sum over the labels of L_q <= c - 1."""
    logits, _ = drawn(5, 4, scale)
    loss = generalised_cross_entropy(q)
    for row in logits:
        each = torch.stack([loss(row[None], torch.tensor([c])) for c in range(4)])
        assert float(each.max()) <= 1 / q + 1e-9
        total = q * float(each.sum())
        assert 4 - 4 ** (1 - q) - 1e-9 <= total <= 3 + 1e-9


def test_a_label_that_it_does_not_believe_pulls_less() -> None:
    logits, y = drawn(1)
    logits.requires_grad_(True)
    (plain,) = torch.autograd.grad(F.cross_entropy(logits, y), logits)
    (ours,) = torch.autograd.grad(generalised_cross_entropy(0.7)(logits, y), logits)
    p = torch.softmax(logits, 1)[0, y[0]]
    assert_close(ours, p**0.7 * plain)


def test_the_symmetric_one_is_as_printed() -> None:
    logits, y = drawn(8)
    p = torch.softmax(logits, 1)
    clipped = torch.where(F.one_hot(y, 5) > 0, 0.0, CLIPPED)
    reverse = -(p * clipped).sum(1).mean()
    assert_close(symmetric_cross_entropy(0.1, 1.0)(logits, y), 0.1 * F.cross_entropy(logits, y) + reverse)
    assert_close(symmetric_cross_entropy(1.0, 0.0)(logits, y), F.cross_entropy(logits, y))


def test_settings_that_make_no_loss_are_refused() -> None:
    with pytest.raises(AssayError, match="q=0; give a number above 0"):
        generalised_cross_entropy(0.0)
    with pytest.raises(AssayError, match="a=0, b=0; give two numbers of 0 or more, not both 0"):
        symmetric_cross_entropy(0.0, 0.0)
