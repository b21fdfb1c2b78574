from __future__ import annotations

import numpy as np
import pytest
import torch

from assay.errors import AssayError
from assay.nn.members import Members
from assay.remedies.batch_ensemble import BatchEnsemble
from assay.remedy import Cost
from assay.run import Run
from assay.subject import Subject


def test_it_trains_members_that_share_weights_and_leaves_the_old(digits: Subject, run: Run) -> None:
    before = {k: v.clone() for k, v in digits.model.state_dict().items()}
    cured, again = (BatchEnsemble(epochs=5).apply(digits, run) for _ in range(2))
    assert all(torch.equal(v, before[k]) for k, v in digits.model.state_dict().items())
    assert cured.origin == ("batch-ensemble",)
    assert cured.draws == 1
    assert cured.fingerprint() == again.fingerprint()
    assert isinstance(cured.model, Members)
    assert not any(m.training for m in cured.model.modules())
    x, y = cured.data["test"].take(np.arange(300))
    with torch.no_grad():
        members = cured.model.members(x)
    assert members.shape == (4, 300, 10)
    assert float(members.std(0).mean()) > 0.05
    assert all(float((z.argmax(1) == y).float().mean()) > 0.85 for z in members)
    assert float((cured.predict(x).argmax(1) == y).float().mean()) > 0.9


def test_kept_weights_go_into_its_frame(digits: Subject, run: Run) -> None:
    remedy = BatchEnsemble(epochs=1, members=3)
    cured, frame = remedy.apply(digits, run), remedy.frame(digits)
    frame.model.load_state_dict(cured.model.state_dict())
    assert frame.fingerprint() == cured.fingerprint()
    assert not frame.model.training


def test_it_states_its_price_and_refuses_no_members(digits: Subject, run: Run) -> None:
    assert BatchEnsemble(members=6).cost() == Cost(1, 6)
    with pytest.raises(AssayError, match="at least one member, got 0"):
        BatchEnsemble(members=0).apply(digits, run)
