from __future__ import annotations

import pytest
import torch
from torch import nn

from assay.errors import AssayError
from assay.nn.vgg import Vgg16


def test_it_has_thirteen_convolutions_and_the_usual_size() -> None:
    with torch.device("meta"):
        net = Vgg16()
    assert sum(isinstance(m, nn.Conv2d) for m in net.modules()) == 13
    assert sum(p.numel() for p in net.parameters()) == 14_728_266 - 4_224  # the usual one has a bias for each channel
    small = Vgg16(7, width=1).eval()
    with torch.no_grad():
        assert small(torch.rand(2, 3, 32, 32)).shape == (2, 7)
        assert small(torch.rand(2, 3, 9, 9)).shape == (2, 7)


def test_too_few_classes_are_refused() -> None:
    with pytest.raises(AssayError, match="classes=1"):
        Vgg16(1)
