from __future__ import annotations

import numpy as np
import pytest
import torch

from assay.errors import AssayError
from assay.nn.members import Drawn
from assay.probe import configure, undisturbed
from assay.remedies.mc_dropout import McDropout
from assay.remedy import Cost
from assay.run import Run
from assay.subject import Subject


def test_it_trains_a_random_model_and_leaves_the_old(digits: Subject, run: Run) -> None:
    before = {k: v.clone() for k, v in digits.model.state_dict().items()}
    cured, again = (McDropout(epochs=4, draws=8).apply(digits, run) for _ in range(2))
    assert all(torch.equal(v, before[k]) for k, v in digits.model.state_dict().items())
    assert cured.origin == ("mc-dropout",)
    assert cured.draws == 8
    assert isinstance(cured.model, Drawn)
    assert not any(m.training for m in cured.model.modules())
    assert cured.fingerprint() == again.fingerprint()
    x, y = cured.data["test"].take(np.arange(300))
    with undisturbed(cured.model, run):
        said = cured.predict(x)
        assert float((said.argmax(1) == y).float().mean()) > 0.9
        assert float(cured.model.members(x).std(0).mean()) > 0.05
    with undisturbed(cured.model, run):
        assert torch.equal(cured.predict(x), said)  # random, and the same for the same seed


def test_kept_weights_go_into_its_frame(digits: Subject, run: Run) -> None:
    remedy = McDropout(epochs=1, rate=0.2, draws=3)
    cured, frame = remedy.apply(digits, run), remedy.frame(digits)
    frame.model.load_state_dict(cured.model.state_dict())
    assert frame.fingerprint() == cured.fingerprint()
    assert not frame.model.training
    other = McDropout(epochs=1, rate=0.3, draws=3).frame(digits)
    other.model.load_state_dict(cured.model.state_dict())
    assert other.fingerprint() != cured.fingerprint()  # the rate is part of what the model is


def test_it_states_its_price_and_refuses_what_is_no_average(digits: Subject, run: Run) -> None:
    assert McDropout(draws=7).cost() == Cost(1, 7)
    assert configure(McDropout, {"rate": "0.25", "draws": "4"}) == McDropout(rate=0.25, draws=4)
    with pytest.raises(AssayError, match="draws=1 of 'mc-dropout' must be at least 2"):
        McDropout(draws=1).apply(digits, run)
    with pytest.raises(AssayError, match="rate=1.0"):
        McDropout(rate=1.0).apply(digits, run)
