from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from assay.errors import AssayError
from assay.nn.softrmax import SoftRmax, log_softrmax
from assay.nn.student_head import StudentHead
from assay.probe import configure
from assay.remedies.softrmax import Softrmax
from assay.run import Run
from assay.subject import Subject


def test_it_trains_a_net_that_is_right_and_unsure_far_away(digits: Subject, run: Run) -> None:
    before = {k: v.clone() for k, v in digits.model.state_dict().items()}
    remedy = Softrmax(epochs=6)
    cured = remedy.apply(digits, run)
    assert all(torch.equal(v, before[k]) for k, v in digits.model.state_dict().items())
    assert cured.origin == ("softrmax",)
    x, y = cured.data["test"].take(np.arange(400))
    answers = cured.predict(x)
    assert float((answers.argmax(1) == y).float().mean()) > 0.93
    assert torch.allclose(answers.exp().sum(1), torch.ones(400), atol=1e-5)
    assert float(answers.exp().amax(1).mean()) > 0.5
    assert float(cured.predict(1e5 * x).exp().amax()) < 0.15
    assert float(digits.predict(1e5 * x).softmax(1).amax(1).mean()) > 0.99
    again = remedy.apply(digits, run)
    assert again.fingerprint() == cured.fingerprint()


def test_the_inner_points_are_found_behind_the_new_head(digits: Subject, run: Run) -> None:
    cured = Softrmax(epochs=1).apply(digits, run)
    assert cured.layers == {"last_conv": "net.0", "head": "net.4"}
    assert isinstance(cured.model.get_submodule(cured.layers["head"]), nn.Linear)


def test_kept_weights_reload_into_the_frame(digits: Subject, run: Run) -> None:
    remedy = configure(Softrmax, {"epochs": "1", "power": "2"})
    cured = remedy.apply(digits, run)
    frame = remedy.frame(digits)
    assert frame.fingerprint() != cured.fingerprint()
    frame.model.load_state_dict(cured.model.state_dict())
    assert frame.fingerprint() == cured.fingerprint()
    head = cured.model.get_submodule("softrmax")
    assert isinstance(head, SoftRmax)
    assert head.power == 2
    x, _ = digits.data["test"].take(np.arange(5))
    z = cured.model.get_submodule("net")(x)
    torch.testing.assert_close(cured.model(x), log_softrmax(z, power=2))


def test_a_t_density_is_asked_for_by_its_degrees_of_freedom(digits: Subject, run: Run) -> None:
    remedy = configure(Softrmax, {"epochs": "4", "nu": "1"})
    cured = remedy.apply(digits, run)
    x, y = cured.data["test"].take(np.arange(400))
    assert float((cured.predict(x).argmax(1) == y).float().mean()) > 0.85
    assert float(cured.predict(1e5 * x).exp().amax()) < 0.15
    head = cured.model.get_submodule("student")
    assert isinstance(head, StudentHead)
    assert head.nu == 1
    frame = remedy.frame(digits)
    frame.model.load_state_dict(cured.model.state_dict())
    assert frame.fingerprint() == cured.fingerprint()
    for wrong in ({"nu": 0.0}, {"power": -1.0}):
        with pytest.raises(AssayError, match="needs"):
            Softrmax(**wrong)


def test_a_net_that_starts_with_long_logits_learns_all_the_same(digits: Subject, run: Run) -> None:
    """A head that starts a hundred times too large: z is long, the gradient 1 / ||z||^2 of what it should be."""

    class Loud(nn.Linear):
        def reset_parameters(self) -> None:
            super().reset_parameters()
            with torch.no_grad():
                self.weight.mul_(300)

    body = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), Loud(32, 10)).eval()
    loud = Subject.classifier(body, dict(digits.data), name="loud")
    x, y = loud.data["test"].take(np.arange(400))
    cured = Softrmax(epochs=6).apply(loud, run)
    assert float((cured.predict(x).argmax(1) == y).float().mean()) > 0.85


def test_it_says_what_it_costs_and_what_it_needs(digits: Subject) -> None:
    assert Softrmax().cost() == (1, 1)
    from dataclasses import replace

    without = replace(digits, data={"test": digits.data["test"]})
    assert "no split 'train'" in (Softrmax().why_not(without) or "")
