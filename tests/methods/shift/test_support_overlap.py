from __future__ import annotations

import numpy as np
import pytest
import torch

from assay.errors import AssayError, ShapeError
from assay.methods.shift.support_overlap import held, held_by_itself


def test_held_as_defined_one_input_at_a_time() -> None:
    rng = np.random.default_rng(0)
    x, sample = torch.as_tensor(rng.normal(size=(30, 3)) * 2), torch.as_tensor(rng.normal(size=(40, 3)))
    apart = torch.cdist(sample, sample).sort(1).values[:, 3]
    naive = [any(float((p - s).norm()) <= float(r) for s, r in zip(sample, apart, strict=True)) for p in x]
    assert held(x, sample, neighbours=3).tolist() == naive
    assert 0 < sum(naive) < 30


def test_an_input_of_the_sample_is_asked_as_if_it_were_new() -> None:
    sample = torch.as_tensor(np.random.default_rng(1).normal(size=(40, 2)))
    naive = [bool(held(sample[i : i + 1], torch.cat([sample[:i], sample[i + 1 :]]))) for i in range(40)]
    assert held_by_itself(sample).tolist() == naive


def test_disjoint_domains_share_nothing_and_the_same_one_nearly_all() -> None:
    rng = torch.Generator().manual_seed(0)
    a, b = torch.randn(300, 2, generator=rng), torch.randn(300, 2, generator=rng)
    assert float(held(a, b).double().mean()) > 0.9
    assert float(held_by_itself(a).double().mean()) > 0.9
    assert not bool(held(a, b + 50).any())
    assert held(a * 1000, b * 1000).tolist() == held(a, b).tolist()


def test_bad_input_is_refused_in_one_line() -> None:
    with pytest.raises(AssayError, match="A sample of 4 has no neighbour 5"):
        held(torch.rand(3, 2), torch.rand(4, 2))
    with pytest.raises(ShapeError, match="features"):
        held(torch.rand(3, 2), torch.rand(9, 3))
