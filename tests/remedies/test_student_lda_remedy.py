from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import nn

from assay.nn.student_lda import StudentLDA
from assay.remedies.student_lda import StudentLda
from assay.run import Run
from assay.subject import Subject


def narrow(digits: Subject) -> Subject:
    """Its features are few: 512 a head is more than 1,200 inputs can tell of."""
    x, y = digits.data["train"].take(np.arange(1200))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
        steps = torch.optim.Adam(net.parameters(), lr=0.01)
        for _ in range(100):
            steps.zero_grad()
            torch.autograd.backward(nn.functional.cross_entropy(net(x), y))
            steps.step()
    return Subject.classifier(net.eval(), dict(digits.data), name="narrow")


def test_the_last_layer_becomes_densities_of_what_entered_it(digits: Subject, run: Run) -> None:
    subject = narrow(digits)
    before = {k: v.clone() for k, v in subject.model.state_dict().items()}
    cured = StudentLda().apply(subject, run)
    assert all(torch.equal(v, before[k]) for k, v in subject.model.state_dict().items())
    assert isinstance(cured.model[3], StudentLDA)  # type: ignore[index]
    assert torch.equal(cured.model[1].weight, subject.model[1].weight)  # type: ignore[index, arg-type]
    x, y = cured.data["test"].take(np.arange(400))
    assert float((cured.predict(x).argmax(1) == y).float().mean()) > 0.9
    assert float(cured.predict(1e6 * x).softmax(1).amax()) < 0.12
    assert float(subject.predict(1e6 * x).softmax(1).amax(1).mean()) > 0.99


def test_kept_densities_reload_into_the_frame(digits: Subject, run: Run) -> None:
    subject, remedy = narrow(digits), StudentLda(nu=3)
    cured, frame = remedy.apply(subject, run), remedy.frame(subject)
    frame.model.load_state_dict(cured.model.state_dict())
    assert frame.fingerprint() == cured.fingerprint()


def test_what_it_needs_and_what_it_costs(digits: Subject) -> None:
    cost = StudentLda().cost()
    assert cost is not None
    assert cost.training < 0.1
    assert cost.inference == 1
    assert StudentLda().why_not(digits) is None
    assert "last linear layer" in (StudentLda().why_not(replace(digits, layers={"last_conv": "0"})) or "")
    without = replace(digits, data={"test": digits.data["test"]})
    assert "no split 'train'" in (StudentLda().why_not(without) or "")
