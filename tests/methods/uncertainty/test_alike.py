"""How alike members are: closed forms, the plain formula, and edges."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.errors import ShapeError
from assay.methods.uncertainty.alike import alike


def as_printed(logits: torch.Tensor, y: torch.Tensor) -> tuple[float, float]:
    """One pair and one input at a time, in plain Python."""
    p = logits.double().softmax(-1).tolist()
    m, n = len(p), len(y)
    pairs = [(i, j) for i in range(m) for j in range(i)]
    top = [[max(range(len(q)), key=q.__getitem__) for q in member] for member in p]
    apart = sum(top[i][k] != top[j][k] for i, j in pairs for k in range(n)) / (len(pairs) * n)
    single = sum(-math.log(p[i][k][int(y[k])]) for i in range(m) for k in range(n)) / (m * n)
    together = sum(-math.log(sum(p[i][k][int(y[k])] for i in range(m)) / m) for k in range(n)) / n
    return apart, 1 - together / single


@settings(deadline=None, max_examples=20)
@given(members=st.integers(2, 4), inputs=st.integers(1, 6), seed=st.integers(0, 99))
def test_it_is_the_formula_and_never_a_loss(members: int, inputs: int, seed: int) -> None:
    rng = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(members, inputs, 3, generator=rng)
    y = torch.randint(3, (inputs,), generator=rng)
    seen = alike(logits, y)
    assert (seen.disagreement, seen.gain) == pytest.approx(as_printed(logits, y), abs=1e-9)
    assert 0 <= seen.gain < 1


def test_copies_gain_nothing_and_opposites_much() -> None:
    one = torch.tensor([[2.0, 0.0], [0.0, 1.0]])
    y = torch.tensor([0, 0])
    clones = alike(one.expand(3, -1, -1), y)
    assert clones.are_clones
    assert (clones.disagreement, clones.gain) == pytest.approx((0, 0), abs=1e-12)
    opposite = alike(torch.stack([one, one.flip(-1)]), y)
    assert opposite.disagreement == 1
    assert not opposite.are_clones
    assert alike(one[None], y) == (1, 0.0, 0.0)


def test_shapes_are_told() -> None:
    with pytest.raises(ShapeError, match=r"\(2, 3\) and labels of shape \(3,\)"):
        alike(torch.zeros(2, 3), torch.zeros(3, dtype=torch.long))
    with pytest.raises(ShapeError, match="a label for each input"):
        alike(torch.zeros(2, 3, 2), torch.zeros(2, dtype=torch.long))
