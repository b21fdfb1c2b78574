from __future__ import annotations

import numpy as np
import pytest
import torch

from assay.errors import AssayError, ShapeError
from assay.methods.shift.support_overlap import held


def test_held_as_defined_one_input_at_a_time() -> None:
    rng = np.random.default_rng(0)
    x, sample = rng.normal(size=(30, 3)) * 2, rng.normal(size=(40, 3))
    own = [sorted(np.linalg.norm(sample - s, axis=1))[3] for s in sample]  # itself is the first
    naive = [sorted(np.linalg.norm(sample - p, axis=1))[2] <= np.quantile(own, 0.95) for p in x]
    assert held(torch.as_tensor(x), torch.as_tensor(sample), neighbours=3).tolist() == naive
    assert 0 < sum(naive) < 30


def test_disjoint_domains_share_nothing_and_the_same_one_nearly_all() -> None:
    rng = torch.Generator().manual_seed(0)
    a, b = torch.randn(300, 2, generator=rng), torch.randn(300, 2, generator=rng)
    assert float(held(a, b).double().mean()) == pytest.approx(0.95, abs=0.04)
    assert not bool(held(a, b + 50).any())
    assert float((held(a * 1000, b * 1000) != held(a, b)).double().mean()) < 0.01  # but for rounding


def test_one_stray_input_widens_nothing() -> None:
    rng = torch.Generator().manual_seed(0)
    a, b = torch.randn(200, 2, generator=rng), torch.randn(200, 2, generator=rng) + 30
    stray = torch.cat([a, torch.tensor([[15.0, 15.0]])])
    assert not bool(held(b, stray).any())
    assert bool(held(torch.zeros(5, 2), torch.zeros(9, 2)).all())  # a constant sample holds what is equal


def test_bad_input_is_refused_in_one_line() -> None:
    with pytest.raises(AssayError, match="A sample of 4 has no neighbour 5"):
        held(torch.rand(3, 2), torch.rand(4, 2))
    with pytest.raises(ShapeError, match="features"):
        held(torch.rand(3, 2), torch.rand(9, 3))
