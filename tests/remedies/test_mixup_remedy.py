from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.testing import assert_close

from assay.errors import AssayError
from assay.methods.train.fit import fit, reset
from assay.methods.train.mixup import mixup
from assay.probe import configure
from assay.remedies.mixup import Mixup
from assay.run import Run
from assay.subject import Subject


def test_it_trains_on_mixtures_and_is_less_sure_than_its_control(digits: Subject, run: Run) -> None:
    dense = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)).eval()
    subject = replace(digits, model=dense)
    remedy = Mixup(a=1.0, epochs=10)
    control = remedy.control()
    assert control is not None
    cured, plain = remedy.apply(subject, run), control.apply(subject, run)
    x, y = digits.data["test"].take(np.arange(300))
    sure, unmixed = (float(s.predict(x).softmax(1).amax(1).mean()) for s in (cured, plain))
    assert sure < unmixed - 0.05
    assert float((cured.predict(x).argmax(1) == y).float().mean()) > 0.85
    assert cured.origin == ("mixup",)

    rng = run.rng()  # the same by hand
    by_hand = reset(dense, rng)
    fit(by_hand, subject.data["train"], epochs=10, lr=0.1, weight_decay=5e-4, rng=rng, augment=mixup(10, a=1.0))
    with torch.no_grad():
        assert_close(cured.predict(x), by_hand.eval()(x))


def test_its_setting_is_checked(digits: Subject, run: Run) -> None:
    assert configure(Mixup, {"a": "0.4"}) == Mixup(a=0.4)
    with pytest.raises(AssayError, match="mixup got a=-1"):
        Mixup(a=-1).apply(digits, run)
