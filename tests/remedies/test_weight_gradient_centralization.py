from __future__ import annotations

import numpy as np
import torch

from assay.remedies.weight_gradient_centralization import WeightGradientCentralization


def test_it_trains_a_new_model_with_centred_filters_and_leaves_the_old(digits, run):
    before = {k: v.clone() for k, v in digits.model.state_dict().items()}
    cured = WeightGradientCentralization(epochs=4).apply(digits, run)
    assert all(torch.equal(v, before[k]) for k, v in digits.model.state_dict().items())
    assert cured.origin == ("weight-gradient-centralization",)
    assert float(cured.model[0].weight.mean((1, 2, 3)).abs().max()) < 1e-6
    assert float(cured.model[4].weight.mean(1).abs().max()) > 1e-4  # never the output layer
    x, y = cured.data["test"].take(np.arange(300))
    assert float((cured.predict(x).argmax(1) == y).float().mean()) > 0.9
    again = WeightGradientCentralization(epochs=4).apply(digits, run)
    assert torch.equal(again.model[0].weight, cured.model[0].weight)


def test_it_needs_training_data(digits):
    from dataclasses import replace

    without = replace(digits, data={"test": digits.data["test"]})
    assert "no split 'train'" in (WeightGradientCentralization().why_not(without) or "")
    assert WeightGradientCentralization().why_not(digits) is None
