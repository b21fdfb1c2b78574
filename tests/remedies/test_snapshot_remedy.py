from __future__ import annotations

import numpy as np
import pytest
import torch

from assay.errors import AssayError
from assay.nn.members import Ensemble
from assay.remedies.snapshot import SnapshotEnsemble
from assay.remedy import Cost
from assay.run import Run
from assay.subject import Subject


def test_it_keeps_the_ends_of_the_cycles_and_leaves_the_old(digits: Subject, run: Run) -> None:
    before = {k: v.clone() for k, v in digits.model.state_dict().items()}
    cured = SnapshotEnsemble(epochs=6, members=3).apply(digits, run)
    assert all(torch.equal(v, before[k]) for k, v in digits.model.state_dict().items())
    assert cured.origin == ("snapshot",)
    assert isinstance(cured.model, Ensemble)
    assert not any(net.training for net in cured.model.nets)
    x, y = cured.data["test"].take(np.arange(300))
    each = (cured.model.members(x).argmax(-1) == y).float().mean(1)
    assert each.shape == (3,)
    assert float(each.min()) > 0.85  # every one was trained, the first too
    assert float((cured.predict(x).argmax(1) == y).float().mean()) > 0.9


def test_its_cost_is_one_training() -> None:
    assert SnapshotEnsemble(members=4).cost() == Cost(1, 4)


def test_too_many_cycles_are_refused(digits: Subject, run: Run) -> None:
    with pytest.raises(AssayError, match="2 epochs have no room for 3 cycles"):
        SnapshotEnsemble(epochs=2, members=3).apply(digits, run)


def test_kept_weights_fit_its_frame(digits: Subject, run: Run) -> None:
    remedy = SnapshotEnsemble(epochs=2, members=2)
    cured, frame = remedy.apply(digits, run), remedy.frame(digits)
    frame.model.load_state_dict(cured.model.state_dict())
    assert frame.fingerprint() == cured.fingerprint()
    assert frame.name == cured.name
