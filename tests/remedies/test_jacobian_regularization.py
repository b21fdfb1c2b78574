from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from assay.errors import AssayError
from assay.methods.attack.jacobian import jacobian
from assay.probe import configure
from assay.remedies.jacobian_regularization import JacobianRegularization


def test_it_trains_a_flatter_model_and_leaves_the_old(digits, run):
    before = {k: v.clone() for k, v in digits.model.state_dict().items()}
    cured, plain, again = (JacobianRegularization(epochs=4, lam=lam).apply(digits, run) for lam in (0.05, 0.0, 0.05))
    assert all(torch.equal(v, before[k]) for k, v in digits.model.state_dict().items())
    assert cured.origin == ("jacobian-regularization",)
    x, y = cured.data["test"].take(np.arange(300))
    size, unpriced = (float(jacobian(s.model, x[:60]).square().sum((1, 2, 3, 4)).mean()) for s in (cured, plain))
    assert size < 0.6 * unpriced
    assert float((cured.predict(x).argmax(1) == y).float().mean()) > 0.9
    assert torch.equal(again.model[0].weight, cured.model[0].weight)
    assert not cured.model.training


def test_it_needs_training_data_and_a_sensible_price(digits, run):
    without = replace(digits, data={"test": digits.data["test"]})
    assert "no split 'train'" in (JacobianRegularization().why_not(without) or "")
    assert JacobianRegularization().why_not(digits) is None
    assert configure(JacobianRegularization, {"lam": "0.1", "epochs": "3"}) == JacobianRegularization(lam=0.1, epochs=3)
    with pytest.raises(AssayError, match="lam=-1.0 is no weight"):
        JacobianRegularization(lam=-1.0).apply(digits, run)
