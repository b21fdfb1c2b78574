from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from assay.errors import AssayError, ShapeError
from assay.nn.text_classifier import PAD, TextClassifier


def model(**settings: int) -> TextClassifier:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return TextClassifier(20, 3, **settings).eval()


def test_its_halves_are_the_whole_and_padding_changes_nothing() -> None:
    net = model(width=4, kernels=5)
    tokens = torch.tensor([[3, 7, 1, 9, PAD, PAD], [2, 2, 5, 6, 8, 4]])
    assert_close(net(tokens), net.classify(net.embed(tokens), tokens != PAD))
    assert_close(net(tokens[:1]), net(tokens[:1, :4]), rtol=0, atol=1e-6)
    assert_close(net(tokens[:1, :4]), net.classify(net.embed(tokens[:1, :4])))
    assert_close(net(tokens.float()), net(tokens), rtol=0, atol=0)
    noisy = net.embed(tokens) + torch.randn(2, 6, 4) * (tokens == PAD)[:, :, None]
    assert_close(net.classify(noisy, tokens != PAD), net(tokens), rtol=0, atol=1e-6)


def test_the_order_of_words_matters() -> None:
    net = model()
    assert (net(torch.tensor([[3, 4, 5, 6]])) - net(torch.tensor([[6, 5, 4, 3]]))).abs().max() > 1e-3


def test_words_of_the_errors() -> None:
    net = model(longest=4)
    with pytest.raises(ShapeError, match="A text of 5 words is longer than the 4 that this model takes"):
        net(torch.ones(1, 5))
    with pytest.raises(AssayError, match="between 0 and 19, got 3 to 20"):
        net(torch.tensor([[3, 20]]))
    with pytest.raises(ShapeError, match=r"\(n, words\), got shape \(3,\)"):
        net(torch.ones(3))
    with pytest.raises(AssayError, match="classes=1"):
        TextClassifier(5, 1)
