from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from assay.remedies.weight_gradient_centralization import WeightGradientCentralization


def test_it_trains_a_new_model_with_centred_filters_and_leaves_the_old(digits, run):
    before = {k: v.clone() for k, v in digits.model.state_dict().items()}
    cured = WeightGradientCentralization(epochs=4).apply(digits, run)
    assert all(torch.equal(v, before[k]) for k, v in digits.model.state_dict().items())
    assert cured.origin == ("weight-gradient-centralization",)
    assert float(cured.model[0].weight.detach().mean((1, 2, 3)).abs().max()) < 1e-6
    assert float(cured.model[4].weight.detach().mean(1).abs().max()) > 1e-4  # never the output layer
    x, y = cured.data["test"].take(np.arange(300))
    assert float((cured.predict(x).argmax(1) == y).float().mean()) > 0.9
    again = WeightGradientCentralization(epochs=4).apply(digits, run)
    assert torch.equal(again.model[0].weight, cured.model[0].weight)


def test_it_needs_training_data(digits):
    from dataclasses import replace

    without = replace(digits, data={"test": digits.data["test"]})
    assert "no split 'train'" in (WeightGradientCentralization().why_not(without) or "")
    assert WeightGradientCentralization().why_not(digits) is None


@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
def test_weights_may_be_normalised_or_standardised_instead(digits, run, optimiser):
    x, y = digits.data["test"].take(np.arange(300))
    for weights in ("normalise", "standardise"):
        remedy = WeightGradientCentralization(weights=weights, epochs=3, optimiser=optimiser)
        cured = remedy.apply(digits, run)
        filters = cured.model[0].weight.detach().flatten(1)
        if weights == "normalise":
            assert_close(filters.norm(dim=1), torch.ones(len(filters)))
        else:
            assert_close(filters.mean(1), torch.zeros(len(filters)), atol=1e-6, rtol=0)
            assert_close(filters.std(1, correction=0), torch.ones(len(filters)))
        assert float((cured.predict(x).argmax(1) == y).float().mean()) > 0.85
        frame = remedy.frame(digits)
        frame.model.load_state_dict(cured.model.state_dict())
        assert frame.fingerprint() == cured.fingerprint()


def test_centred_errors_train_another_net_and_leave_no_hook(digits, run):
    """Behind the convolution is a batch normalisation, whose own errors have mean 0 in each channel already."""
    nets = [
        WeightGradientCentralization(errors=errors, epochs=1).apply(digits, run)
        for errors in ("leave", "channel", "sample")
    ]
    plain, channel, sample = (net.model[0].weight.detach() for net in nets)
    assert_close(plain, channel, atol=1e-4, rtol=0)
    assert (plain - sample).abs().max() > 1e-3
    assert not any(m._forward_hooks for net in nets for m in net.model.modules())
