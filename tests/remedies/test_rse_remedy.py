from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from assay.errors import AssayError
from assay.jobs.cure import cure
from assay.nn.members import Drawn
from assay.nn.noisy import Noise
from assay.probe import configure, put, undisturbed
from assay.probes.attacked.worst_case_accuracy import WorstCaseAccuracy
from assay.remedies._retraining import PlainRetraining
from assay.remedies.rse import Rse
from assay.remedy import Cost
from assay.run import Run
from assay.subject import Subject


def test_it_trains_a_noisy_model_and_leaves_the_old(digits: Subject, run: Run) -> None:
    before = {k: v.clone() for k, v in digits.model.state_dict().items()}
    cured, again = (Rse(epochs=3, draws=8).apply(digits, run) for _ in range(2))
    assert all(torch.equal(v, before[k]) for k, v in digits.model.state_dict().items())
    assert (cured.origin, cured.draws) == (("rse",), 8)
    assert isinstance(cured.model, Drawn)
    assert cured.model.rows_apart
    assert not any(m.training for m in cured.model.modules())
    assert cured.fingerprint() == again.fingerprint()
    assert [float(m.std) for m in cured.model.modules() if isinstance(m, Noise)] == pytest.approx([0.2, 0.0])
    x, y = cured.data["test"].take(np.arange(300))
    with undisturbed(cured.model, run):
        said = cured.predict(x)
        assert float((said.argmax(1) == y).float().mean()) > 0.9
        assert float(cured.model.members(x).std(0).mean()) > 0.05
    with undisturbed(cured.model, run):
        assert torch.equal(cured.predict(x), said)  # random, and the same for the same seed


def test_clean_accuracy_is_there_with_ten_draws(digits: Subject, run: Run) -> None:
    cured = Rse(epochs=3, draws=10).apply(digits, run)
    x, y = cured.data["test"].take(np.arange(500))
    with undisturbed(cured.model, run):
        ten, fifty = (float((replace(cured, draws=d).predict(x).argmax(1) == y).float().mean()) for d in (10, 50))
    assert ten == pytest.approx(fifty, abs=0.012)


def test_it_goes_through_the_protocol_for_random_models(digits: Subject, run: Run) -> None:
    cured = Rse(epochs=2, draws=2).apply(digits, run)
    few = replace(run, budget=replace(run.budget, samples=4, steps=1), debug=True)
    answer = put(WorstCaseAccuracy(), cured, few)
    assert answer.status == "asked", answer.why
    assert any("asked 10 times" in measure.name for measure in answer.finding.measures)  # type: ignore[union-attr]


def test_fine_tuning_goes_on_from_the_subjects_own_weights(digits: Subject, run: Run) -> None:
    tuned = Rse(epochs=1, lr=1e-9, start="weights", first=0.0, inner=0.0).apply(digits, run)
    assert torch.allclose(tuned.model.net[1][0][1].weight, digits.model[0].weight, atol=1e-6)  # type: ignore[index,union-attr]
    assert Rse(start="weights").learning_rate == pytest.approx(Rse().learning_rate / 10)
    assert Rse(start="weights", lr=0.05).learning_rate == 0.05
    for remedy in (Rse(epochs=4), Rse(epochs=4, start="weights")):
        control = remedy.control()
        assert isinstance(control, PlainRetraining)
        assert (control.start, control.learning_rate) == (remedy.start, remedy.learning_rate)


def test_kept_weights_go_into_its_frame(digits: Subject, run: Run) -> None:
    remedy = Rse(epochs=1, draws=3)
    cured, frame = remedy.apply(digits, run), remedy.frame(digits)
    frame.model.load_state_dict(cured.model.state_dict())
    assert frame.fingerprint() == cured.fingerprint()
    assert not frame.model.training


def test_it_states_its_price_and_refuses_in_a_line_what_it_cannot_do(digits: Subject, run: Run) -> None:
    assert Rse(draws=7).cost() == Cost(1, 7)
    assert configure(Rse, {"first": "0.1", "start": "weights"}) == Rse(first=0.1, start="weights")
    with pytest.raises(AssayError, match="draws=1 of 'rse' must be at least 2"):
        Rse(draws=1).apply(digits, run)
    with pytest.raises(AssayError, match=r"first=-0\.1"):
        Rse(first=-0.1).apply(digits, run)
    with pytest.raises(AssayError, match="inner=nan"):
        Rse(inner=float("nan")).apply(digits, run)
    with pytest.raises(AssayError, match="no split 'train'"):
        cure("rse", replace(digits, data={"test": digits.data["test"]}))
    flat = replace(digits, model=nn.Sequential(nn.Flatten(), nn.Linear(64, 10)).eval())
    with pytest.raises(AssayError, match="noise in front of convolutions, and the model has none"):
        cure("rse", flat)
