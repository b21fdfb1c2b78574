from dataclasses import replace

import numpy as np
import pytest
import torch

from assay.data.arrays import Arrays
from assay.engine.local import ThisProcess
from assay.errors import AssayError
from assay.finding import Curve
from assay.jobs.verify import _follows
from assay.methods.verify.rates import equal_error_interval, equal_error_rate
from assay.probe import put
from assay.probes.right.who_gets_in import FAR, FRR, WhoGetsIn
from assay.remedies import semi_hard_verification
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
    assert found.measure(FAR).n == 150
    assert found.measure(f"{FAR}, training impostors").n == 120
    assert found.measure(f"{FAR} under attack").value >= found.measure(FAR).value
    assert found.witnesses is not None
    assert (found.witnesses.said == 1).all()
    assert not let[found.witnesses.index].any()  # who gets in as he is was not moved
    assert {v.name for v in found.views} == {"thresholds", "roc", "scores"}
    for line in (line for view in found.views if isinstance(view, Curve) for line in view.lines):
        assert (np.array(line.low) <= np.array(line.y) + 1e-9).all()
        assert (np.array(line.y) <= np.array(line.high) + 1e-9).all()
    assert found.measure("equal error rate").value is None  # of 25 genuine inputs none is worth telling
    assert found.measure(f"{FRR} under everyday change").value > found.measure(FRR).value
    assert any("a rate of 0 in training is no promise" in a.says for a in found.alarms)


def test_who_is_not_known_is_no_stranger_and_who_was_seen_neither(signatures, run):
    who = signatures.attributes["identity"]
    impostors = np.flatnonzero(signatures.data["test"].labels == 0)
    seen = who.codes["train"][np.flatnonzero(signatures.data["train"].labels == 0)[0]]
    for code, left in ((-1, len(impostors) - 40), (seen, len(impostors) - 40)):
        codes = who.codes["test"].copy()
        codes[impostors[:40]] = code
        known = replace(signatures, attributes={"identity": replace(who, codes={**who.codes, "test": codes})})
        found = put(WhoGetsIn(radius=0), known, run).finding
        assert found.measure(FAR).n == left
        assert (found.samples.columns["kind"] == "impostor, unseen").sum() == left
    assert found.measure(f"{FAR}, identities seen in training").n == 40
    codes[impostors] = np.resize(np.setdiff1d(who.codes["train"], codes[signatures.data["test"].labels == 1])[:2], 150)
    known = replace(signatures, attributes={"identity": replace(who, codes={**who.codes, "test": codes})})
    found = put(WhoGetsIn(radius=0), known, run).finding
    assert any("nothing is known of strangers" in a.says and a.about(FAR) for a in found.alarms)


def test_a_score_above_0_is_whoever_is_let_in_of_three_classes_too(run):
    x = torch.rand(60, 2, generator=torch.Generator().manual_seed(0))
    net = torch.nn.Linear(2, 3)
    with torch.no_grad():
        net.weight.copy_(torch.tensor([[3.0, 0.0], [0.0, 3.0], [-3.0, -3.0]]))
        net.bias.copy_(torch.tensor([0.0, 0.0, 3.0]))
    subject = Subject.of(net, {"test": (x, torch.arange(60) % 3)}, classes=("a", "b", "c"), bounds=(0.0, 1.0))
    columns = put(WhoGetsIn(genuine="b", radius=0), subject, run).finding.samples.columns
    np.testing.assert_array_equal(columns["score"] > 0, columns["accepted"])
    assert 0 < columns["accepted"].sum() < 60
    alike = replace(subject, data={"test": Arrays(x.numpy(), np.ones(60, dtype=np.int64), subject.task.classes)})
    assert "of 60 test inputs 60 are genuine" in str(WhoGetsIn(genuine="b").why_not(alike))
    for bad in ({"radius": -0.1}, {"radius": 2.0}, {"steps": 0}):
        with pytest.raises(AssayError, match=next(iter(bad))):
            WhoGetsIn(**bad)


def test_without_identities_it_says_that_strangers_cannot_be_told(signatures, run):
    found = put(WhoGetsIn(radius=0), replace(signatures, attributes={}), run).finding
    assert any("identity" in a.says for a in found.alarms)
    assert not any("identities" in m.name for m in found.measures)


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
    remedy = SemiHardVerification(machine=machine)
    assert remedy.why_not(signatures) is None
    cured = remedy.apply(signatures, run)
    x, y = cured.data["train"].take(np.arange(125))
    assert not (cured.predict(x).argmax(1) == 1)[y == 0].any()
    assert (cured.predict(x).argmax(1) == 1)[y == 1].sum() >= 3
    assert remedy.remarks(cured, run) == ("None of 120 training impostors gets in. Nothing follows for others.",)
    frame = remedy.frame(signatures)
    frame.model.load_state_dict(cured.model.state_dict())
    torch.testing.assert_close(frame.predict(x), cured.predict(x))
    assert frame.fingerprint() == cured.fingerprint()


def test_equal_genuine_and_impostor_inputs_are_refused_by_the_remedy(signatures, run):
    x, y = signatures.data["train"].take(np.arange(125))
    x[int((y == 0).nonzero()[0])] = x[int((y == 1).nonzero()[0])]
    twice = replace(
        signatures, data={**signatures.data, "train": Arrays(x.numpy(), y.numpy(), signatures.task.classes)},
        attributes={},
    )  # fmt: skip
    with pytest.raises(AssayError, match=r"\(impostor\) are equal"):
        SemiHardVerification().apply(twice, run)


def test_bad_settings_of_the_remedy_are_refused():
    for bad in (0.0, -1.0):
        with pytest.raises(AssayError, match="lam="):
            SemiHardVerification(lam=bad)


def who(codes):
    """Twelve identities; those of training are the even ones."""
    from assay.attribute import Attribute

    trained = np.arange(0, 12, 2).repeat(20)
    return {"identity": Attribute("identity", tuple("abcdefghijkl"), {"train": trained, "test": np.asarray(codes)})}


@pytest.fixture(scope="module")
def gate():
    """100 impostors of whom the last 40 get in, then 40 genuine of whom the last 10 are kept out."""
    score = torch.cat([-torch.ones(60), torch.ones(40), torch.ones(30), -torch.ones(10)])
    net = torch.nn.Linear(1, 2)
    with torch.no_grad():
        net.weight.copy_(torch.tensor([[0.0], [1.0]]))
        net.bias.zero_()
    y = torch.cat([torch.zeros(100), torch.ones(40)]).long()
    train = (-torch.ones(120, 1), torch.zeros(120).long())
    data = {"test": (score[:, None], y), "train": train}
    return Subject.of(net, data, classes=("impostor", "genuine"), bounds=(-1.0, 1.0))


def test_false_acceptance_is_judged_on_strangers_and_doubted_where_nobody_says_who(gate, run):
    ask = lambda codes: WhoGetsIn(radius=0).ask(replace(gate, attributes=who(codes)), run)  # noqa: E731
    genuine = np.zeros(40, dtype=np.int64)
    found = ask(np.concatenate([np.zeros(60, dtype=np.int64), np.ones(40, dtype=np.int64), genuine]))
    assert (found.measure(FAR).value, found.measure(FAR).n) == (1.0, 40)
    assert found.measure(f"{FAR}, all test impostors").value == 0.4
    assert not any(a.about(FAR) for a in found.alarms)
    few = ask(np.concatenate([np.zeros(80, dtype=np.int64), np.ones(20, dtype=np.int64), genuine]))
    assert few.measure(FAR).value is None
    assert any("20 are known to be strangers, fewer than 30" in a.says for a in few.alarms)
    nobody = WhoGetsIn(radius=0).ask(gate, run)
    assert any(a.about(FAR) and "identity@train=PATH" in a.says for a in nobody.alarms)


def test_impostors_of_whom_nobody_says_who_are_no_ones_seen_in_training(gate, run):
    codes = np.concatenate([np.zeros(60, dtype=np.int64), np.full(40, -1), np.zeros(40, dtype=np.int64)])
    found = WhoGetsIn(radius=0).ask(replace(gate, attributes=who(codes)), run)
    assert not any("Every test impostor" in a.says for a in found.alarms)
    assert any("of 40 nobody says who" in a.says for a in found.alarms)
    assert found.measure(f"{FAR}, identities unknown").value == 1.0
    assert found.measure(f"{FAR}, identities seen in training").n == 60


def test_rates_have_their_inputs_so_that_a_cure_compares_pairs(answer):
    found = answer.finding
    for name in (FAR, FRR, f"{FAR} under attack", f"{FRR} under everyday change"):
        m = found.measure(name)
        values = np.asarray(found.samples.columns[m.column], dtype=float)
        values = values[~np.isnan(values)]
        assert (len(values), values.mean()) == (m.n, pytest.approx(m.value))
    exact = found.measure(FAR)
    stored = type("Stored", (), {"seed": 0})
    assert _follows(exact, found.samples, stored, answer) == ("", True)


def test_an_everyday_change_is_not_asked_of_the_first_rows_alone(signatures, run):
    dear = replace(run, budget=replace(run.budget, dear=10))
    found = WhoGetsIn(radius=0).ask(signatures, dear)
    places = np.flatnonzero(~np.isnan(found.samples.columns["kept out every day"]))
    genuine = np.flatnonzero(found.samples.columns["genuine"])
    assert len(places) == 10
    assert set(places) <= set(genuine)
    assert not np.array_equal(places, genuine[:10])


def test_sides_that_do_not_overlap_leave_room_for_an_equal_error_and_few_tell_none(answer):
    low, high = equal_error_interval(np.arange(50.0), np.arange(-80.0, 0.0))
    assert (low, high) == (0.0, pytest.approx(1 - 0.025 ** (1 / 50)))
    rng = np.random.default_rng(0)
    mixed = rng.normal(1, 1, 200), rng.normal(0, 1, 300)
    low, high = equal_error_interval(*mixed)
    assert low < equal_error_rate(*mixed) < high < low + 0.16
    equal = answer.finding.measure("equal error rate")  # 25 are genuine
    assert equal.value is None
    assert any(a.about("equal error rate") and "25 genuine" in a.says for a in answer.finding.alarms)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"machine": "sh-twsvm", "lam": 1.0}, "lam=1.0 is not read by the machine sh-twsvm"),
        ({"margin": 0}, "margin=0 is not read by the machine sh-svm"),
        ({"degree": 2}, "degree=2 is not read by the kernel rbf"),
        ({"kernel": "linear", "gamma": 2.0}, "gamma=2.0 is not read by the kernel linear"),
        ({"machine": "foo"}, "no machine 'foo'"),
        ({"machine": "sh-svdd", "margin": 2}, "margin=2"),
        ({"threshold": float("nan")}, "threshold=nan"),
    ],
)
def test_a_setting_that_is_not_read_is_refused(settings, says):
    with pytest.raises(AssayError, match=says):
        SemiHardVerification(**settings)


def test_impostors_beyond_the_first_ones_are_added_until_none_gets_in(signatures, run, monkeypatch):
    monkeypatch.setattr(semi_hard_verification, "MOST", 40)
    monkeypatch.setattr(semi_hard_verification, "MORE", 50)
    remedy = SemiHardVerification(kernel="linear")
    monkeypatch.setattr(semi_hard_verification, "ROUNDS", 0)
    few = remedy.remarks(remedy.apply(signatures, run), run)[0]
    assert "get in: the machine is fitted to at most 90" in few
    monkeypatch.setattr(semi_hard_verification, "ROUNDS", 5)
    cured = remedy.apply(signatures, run)
    assert "None of 120" in remedy.remarks(cured, run)[0]
    frame = remedy.frame(signatures)
    frame.model.load_state_dict(cured.model.state_dict())
    x, _ = cured.data["train"].take(np.arange(125))
    torch.testing.assert_close(frame.predict(x), cured.predict(x))
