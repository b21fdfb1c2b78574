from __future__ import annotations

import numpy as np
import pytest
import torch

from assay.errors import AssayError
from assay.nn.variational import MeanField
from assay.nn.variational import Variational as Net
from assay.probe import undisturbed
from assay.remedies.variational import Variational
from assay.remedy import Cost
from assay.run import Run
from assay.subject import Subject


def test_it_trains_gaussian_weights_and_leaves_the_old(digits: Subject, run: Run) -> None:
    before = {k: v.clone() for k, v in digits.model.state_dict().items()}
    cured, again = (Variational(epochs=5, draws=8).apply(digits, run) for _ in range(2))
    assert all(torch.equal(v, before[k]) for k, v in digits.model.state_dict().items())
    assert cured.origin == ("variational",)
    assert cured.draws == 8
    assert cured.fingerprint() == again.fingerprint()
    assert isinstance(cured.model, Net)
    assert not any(m.training for m in cured.model.modules())
    sigma = torch.cat([m.sigma("weight").flatten() for m in cured.model.modules() if isinstance(m, MeanField)])
    assert float((sigma.detach() / 0.004).log().abs().mean()) > 0.005  # they have learned, from 0.004
    x, y = cured.data["test"].take(np.arange(300))
    with undisturbed(cured.model, run):
        said = cured.predict(x)
        assert float((said.argmax(1) == y).float().mean()) > 0.9
        assert float(cured.model.members(x).std(0).mean()) > 0.02
    with undisturbed(cured.model, run):
        assert torch.equal(cured.predict(x), said)


def test_a_higher_price_keeps_it_nearer_to_the_prior(digits: Subject, run: Run) -> None:
    dear, cheap = (Variational(epochs=2, beta=beta).apply(digits, run).model for beta in (3.0, 0.01))
    assert isinstance(dear, Net)
    assert isinstance(cheap, Net)
    assert float(dear.kl().detach()) < float(cheap.kl().detach())


def test_kept_weights_go_into_its_frame(digits: Subject, run: Run) -> None:
    remedy = Variational(epochs=1, draws=3)
    cured, frame = remedy.apply(digits, run), remedy.frame(digits)
    frame.model.load_state_dict(cured.model.state_dict())
    assert frame.fingerprint() == cured.fingerprint()
    assert not frame.model.training


def test_it_states_its_price_and_refuses_what_is_no_average(digits: Subject, run: Run) -> None:
    assert Variational(draws=9).cost() == Cost(1, 9)
    with pytest.raises(AssayError, match="draws=1 of 'variational' must be at least 2"):
        Variational(draws=1).apply(digits, run)
    with pytest.raises(AssayError, match="sigma=0"):
        Variational(sigma=0.0).apply(digits, run)
    with pytest.raises(AssayError, match="beta=-1"):
        Variational(beta=-1.0).apply(digits, run)
