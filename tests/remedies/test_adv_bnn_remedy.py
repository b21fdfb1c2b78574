from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from assay.errors import AssayError
from assay.jobs.cure import cure
from assay.nn.variational import MeanField, Variational
from assay.probe import configure, undisturbed
from assay.remedies._retraining import PlainRetraining
from assay.remedies.adv_bnn import AdvBnn
from assay.remedy import Cost
from assay.run import Run
from assay.subject import Subject


def test_it_trains_gaussian_weights_under_attack_and_leaves_the_old(digits: Subject, run: Run) -> None:
    before = {k: v.clone() for k, v in digits.model.state_dict().items()}
    remedy = AdvBnn(epochs=4, steps=2, draws=6, radius=0.05)
    cured = remedy.apply(digits, run)
    assert all(torch.equal(v, before[k]) for k, v in digits.model.state_dict().items())
    assert (cured.origin, cured.draws) == (("adv-bnn",), 6)
    assert isinstance(cured.model, Variational)
    assert not any(m.training for m in cured.model.modules())
    gaussian = [type(m.layer) for m in cured.model.modules() if isinstance(m, MeanField)]
    assert gaussian == [nn.Conv2d, nn.BatchNorm2d, nn.Linear]
    x, y = cured.data["test"].take(np.arange(300))
    with undisturbed(cured.model, run):
        said = cured.predict(x)
        assert float((said.argmax(1) == y).float().mean()) > 0.85
        assert float(cured.model.members(x).std(0).mean()) > 0.05
    with undisturbed(cured.model, run):
        assert torch.equal(cured.predict(x), said)
    frame = remedy.frame(digits)
    frame.model.load_state_dict(cured.model.state_dict())
    assert frame.fingerprint() == cured.fingerprint()


def test_fine_tuning_goes_on_from_the_subjects_own_weights(digits: Subject, run: Run) -> None:
    tuned = AdvBnn(epochs=1, lr=1e-9, start="weights", steps=1, sigma=1e-9).apply(digits, run)
    weight = next(m.layer.weight for m in tuned.model.modules() if isinstance(m, MeanField))
    assert torch.allclose(weight, digits.model[0].weight, atol=1e-6)  # type: ignore[index,arg-type]
    for start, lr in (("scratch", 3e-3), ("weights", 3e-4)):
        control = AdvBnn(epochs=4, start=start).control()  # type: ignore[arg-type]
        assert isinstance(control, PlainRetraining)
        assert (control.epochs, control.optimiser, control.weight_decay, control.start) == (4, "adam", 0.0, start)
        assert control.learning_rate == AdvBnn(start=start).learning_rate == pytest.approx(lr)  # type: ignore[arg-type]


def test_it_states_its_price_and_refuses_in_a_line_what_it_cannot_do(digits: Subject, run: Run) -> None:
    assert AdvBnn(steps=7, draws=9).cost() == Cost(8, 9)
    assert AdvBnn(steps=7, eot=3, draws=9).cost() == Cost(22, 9)
    assert AdvBnn(steps=7, draws=9, as_published=True).cost() == Cost(8, 9)
    with pytest.raises(AssayError, match="as_published takes one draw a step.*leave eot=3 out"):
        AdvBnn(eot=3, as_published=True)
    assert configure(AdvBnn, {"radius": "0.1", "alpha": "1"}) == AdvBnn(radius=0.1, alpha=1.0)
    for bad, says in (
        (AdvBnn(draws=1), "draws=1 of 'adv-bnn' must be at least 2"),
        (AdvBnn(sigma=0.0), "sigma=0.0"),
        (AdvBnn(prior=float("inf")), "prior=inf"),
    ):
        with pytest.raises(AssayError, match=says):
            bad.apply(digits, run)
    for settings, says in (({"radius": 2.0}, "radius=2.0"), ({"alpha": -1.0}, "alpha=-1.0"), ({"steps": 0}, "steps=0")):
        with pytest.raises(AssayError, match=says):
            AdvBnn(**settings)  # type: ignore[arg-type]
    assert AdvBnn(radius=0, draws=9).cost() == Cost(1, 9)  # nothing is searched for
    with pytest.raises(AssayError, match="no split 'train'"):
        cure("adv-bnn", replace(digits, data={"test": digits.data["test"]}))
