from __future__ import annotations

import numpy as np
import pytest
import torch

from assay.errors import AssayError
from assay.nn.members import Ensemble
from assay.remedies.sgld import Sgld
from assay.remedy import Cost
from assay.run import Run
from assay.subject import Subject


def test_it_keeps_nets_on_its_way_and_leaves_the_old(digits: Subject, run: Run) -> None:
    before = {k: v.clone() for k, v in digits.model.state_dict().items()}
    cured, again = (Sgld(epochs=3, samples=3).apply(digits, run) for _ in range(2))
    assert all(torch.equal(v, before[k]) for k, v in digits.model.state_dict().items())
    assert cured.origin == ("sgld",)
    assert cured.draws == 1
    assert cured.fingerprint() == again.fingerprint()
    assert isinstance(cured.model, Ensemble)
    assert len(cured.model.nets) == 3
    assert not any(m.training for m in cured.model.modules())
    x, y = cured.data["test"].take(np.arange(300))
    with torch.no_grad():
        members = cured.model.members(x)
    assert float(members.std(0).mean()) > 0.02
    assert float((cured.predict(x).argmax(1) == y).float().mean()) > 0.9


def test_without_noise_its_nets_are_closer(digits: Subject, run: Run) -> None:
    x, _ = digits.data["test"].take(np.arange(100))
    cold, warm = (Sgld(epochs=1, samples=3, temperature=t).apply(digits, run).model for t in (0.0, 1.0))
    assert isinstance(cold, Ensemble)
    assert isinstance(warm, Ensemble)
    with torch.no_grad():
        assert float(cold.members(x).std(0).mean()) < float(warm.members(x).std(0).mean())


def test_kept_weights_go_into_its_frame(digits: Subject, run: Run) -> None:
    remedy = Sgld(epochs=1, samples=2)
    cured, frame = remedy.apply(digits, run), remedy.frame(digits)
    frame.model.load_state_dict(cured.model.state_dict())
    assert frame.fingerprint() == cured.fingerprint()


def test_it_states_its_price_and_refuses_no_samples(digits: Subject, run: Run) -> None:
    assert Sgld(epochs=10, samples=3, every=2).cost() == Cost(1.6, 3)
    with pytest.raises(AssayError, match="samples=0"):
        Sgld(epochs=1, samples=0).apply(digits, run)
