from __future__ import annotations

import pytest
import torch

from assay.errors import AssayError
from assay.methods.train.mixup import mixup


def test_a_mixture_of_inputs_has_the_same_mixture_of_labels():
    """Inputs that are their own labels stay so."""
    y = torch.arange(50) % 5
    x = torch.nn.functional.one_hot(y, 5).float()
    shares = []
    for seed in range(40):
        mixed, label = mixup(5, a=1.0)(x, y, torch.Generator().manual_seed(seed))
        torch.testing.assert_close(mixed, label)
        torch.testing.assert_close(label.sum(1), torch.ones(50))
        assert ((label > 0).sum(1) <= 2).all()
        shares.append(label[torch.arange(50), y].min().item())
    assert 0 < min(shares) < 0.3  # with a = 1 every share is as likely
    assert max(shares) > 0.7


def test_a_generator_gives_the_same_mixture_and_a_small_a_mixes_little():
    x, y = torch.rand(8, 1, 4, 4), torch.arange(8) % 2
    first, again = (mixup(2)(x, y, torch.Generator().manual_seed(3)) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    tops = [mixup(2, a=0.01)(x, y, torch.Generator().manual_seed(s))[1].max(1).values.min() for s in range(30)]
    assert sum(float(t) > 0.99 for t in tops) >= 25
    with pytest.raises(AssayError, match="a=0 for 2 classes"):
        mixup(2, a=0)
