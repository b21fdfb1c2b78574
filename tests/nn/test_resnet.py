from __future__ import annotations

import pytest
import torch

from assay.errors import AssayError
from assay.nn.resnet import MEAN, ResNet18


def test_the_published_network_has_eleven_million_weights_and_answers_in_logits():
    net = ResNet18().eval()
    assert sum(p.numel() for p in net.parameters()) == 11_173_962
    assert net(torch.rand(2, 3, 32, 32)).shape == (2, 10)
    assert net.stages(net.stem(torch.rand(1, 3, 32, 32))).shape == (1, 512, 4, 4)


def test_the_normalisation_is_inside():
    net = ResNet18(width=4).eval()
    seen = []
    net.stem.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    net(torch.tensor(MEAN).view(1, 3, 1, 1).expand(1, 3, 32, 32))
    torch.testing.assert_close(seen[0], torch.zeros(1, 3, 32, 32), atol=1e-6, rtol=0)
    with pytest.raises(AssayError, match="width >= 1, got 0"):
        ResNet18(width=0)
