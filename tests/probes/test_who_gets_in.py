from dataclasses import replace

import numpy as np
import pytest
import torch

from assay.engine.local import ThisProcess
from assay.errors import AssayError
from assay.probe import put
from assay.probes.right.who_gets_in import FAR, FRR, WhoGetsIn
from assay.remedies.semi_hard_verification import SemiHardVerification
from assay.run import BUDGETS, Run
from assay.subject import Subject
from assay.subjects.signatures import build


@pytest.fixture(scope="module")
def signatures():
    return build()


@pytest.fixture(scope="module")
def run():
    return Run(engine=ThisProcess(), budget=BUDGETS["quick"], seed=0)


@pytest.fixture(scope="module")
def answer(signatures, run):
    return put(WhoGetsIn(steps=5), signatures, run)


def test_rates_are_those_of_the_answers_and_strangers_stand_apart(signatures, answer):
    assert answer.status == "asked", answer.why
    found, data = answer.finding, signatures.data["test"]
    x, y = data.take(np.arange(len(data)))
    let = (signatures.predict(x).argmax(1) == 1).numpy()
    y = y.numpy()
    assert found.measure(FAR).value == pytest.approx(let[y == 0].mean())
    assert found.measure(FRR).value == pytest.approx((~let[y == 1]).mean())
    assert found.measure(f"{FAR}, unseen identities").n == 150
    assert found.measure(f"{FAR}, training impostors").n == 120
    assert found.measure(f"{FAR} under attack").value >= found.measure(FAR).value
    assert found.witnesses is not None
    assert (found.witnesses.said == 1).all()
    assert {v.name for v in found.views} == {"thresholds", "roc", "scores"}


def test_without_identities_it_says_that_strangers_cannot_be_told(signatures, run):
    found = put(WhoGetsIn(radius=0), replace(signatures, attributes={}), run).finding
    assert any("identity" in a.says for a in found.alarms)
    assert not any("unseen" in m.name for m in found.measures)


def test_zero_errors_come_with_the_rule_of_three(run):
    x = torch.linspace(0, 1, 40)[:, None]
    y = (x[:, 0] > 0.5).long()
    net = torch.nn.Linear(1, 2)
    with torch.no_grad():
        net.weight.copy_(torch.tensor([[-4.0], [4.0]]))
        net.bias.copy_(torch.tensor([2.0, -2.0]))
    subject = Subject.of(net, {"test": (x, y)}, classes=("impostor", "genuine"), bounds=(0.0, 1.0))
    found = put(WhoGetsIn(radius=0), subject, run).finding
    assert found.measure(FAR).value == 0
    assert found.measure(FAR).high == pytest.approx(1 - 0.025 ** (1 / 20))
    assert any("rule of three" in a.says for a in found.alarms)
    why = WhoGetsIn().why_not(replace(subject, task=type(subject.task)(("no", "yes"))))
    assert "--set genuine=CLASS, of no, yes" in why
    named = WhoGetsIn(genuine="maybe").why_not(subject)
    assert "no class 'maybe'" in named


@pytest.mark.parametrize("machine", ["sh-svm", "sh-svdd", "sh-twsvm"])
def test_the_remedy_lets_no_training_impostor_in_and_reloads(signatures, run, machine):
    remedy = SemiHardVerification(machine=machine, threshold=-0.5 if machine == "sh-twsvm" else 0.0)
    assert remedy.why_not(signatures) is None
    cured = remedy.apply(signatures, run)
    x, y = cured.data["train"].take(np.arange(125))
    assert not (cured.predict(x).argmax(1) == 1)[y == 0].any()
    assert (cured.predict(x).argmax(1) == 1)[y == 1].any()
    frame = remedy.frame(signatures)
    frame.model.load_state_dict(cured.model.state_dict())
    torch.testing.assert_close(frame.predict(x), cured.predict(x))
    assert frame.fingerprint() == cured.fingerprint()


def test_bad_settings_of_the_remedy_are_refused():
    for bad in (0.0, -1.0):
        with pytest.raises(AssayError, match="lam="):
            SemiHardVerification(lam=bad)
