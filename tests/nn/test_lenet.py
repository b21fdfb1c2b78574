from __future__ import annotations

import pytest
import torch

from assay.errors import AssayError
from assay.nn.lenet import LeNet


def test_it_is_the_lenet_that_everyone_counts():
    model = LeNet()
    assert sum(p.numel() for p in model.parameters()) == 61_706
    assert model(torch.rand(3, 1, 28, 28)).shape == (3, 10)
    assert LeNet(2)(torch.rand(1, 1, 28, 28)).shape == (1, 2)


def test_one_class_is_refused():
    with pytest.raises(AssayError, match="at least 2 classes, got 1"):
        LeNet(1)
