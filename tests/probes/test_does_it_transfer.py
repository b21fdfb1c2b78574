from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from assay.data.arrays import Arrays
from assay.engine.local import ThisProcess
from assay.errors import AssayError
from assay.finding import finding_from_json, finding_to_json
from assay.methods.attack import pgd
from assay.probe import judge_witnesses, put
from assay.probes.attacked.does_it_transfer import ITSELF, DoesItTransfer
from assay.run import Budget, Run
from assay.standard import Standard, judge
from assay.subject import Subject


class Steps(nn.Module):
    """The same answers, nearly, with logits in steps: the gradient is 0 everywhere."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return (4 * self.inner(x)).round() / 4


class Answers(nn.Module):
    """Answers only, as a model outside torch gives them."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return torch.from_numpy(self.inner(torch.from_numpy(x.numpy())).detach().numpy())


RUN = Run(engine=ThisProcess(), budget=Budget("tiny", samples=320, steps=5, restarts=1, shown=3), debug=True)


@pytest.fixture
def run():
    return RUN


def ask(probe, subject, run):
    answer = put(probe, subject, run)
    assert answer.status == "asked", answer.why
    return answer.finding


@pytest.fixture(scope="module")
def plain(digits_model):
    return ask(DoesItTransfer(radius=0.15), Subject.classifier(*digits_model, name="digits"), RUN)


def test_a_plain_model_is_hurt_most_by_its_own_examples(plain, digits, run):
    transfer, white = plain.measure(), plain.measure("white-box accuracy")
    assert transfer.n == 96
    beside = {b.label: b.value for b in transfer.beside}
    assert white.value < transfer.value < beside["clean accuracy"]
    assert transfer.value < beside["random noise of the same size"] - 0.1
    assert beside["the same attack on its own gradients"] == white.value
    assert 0 < plain.measure("affinity").value < 1
    assert plain.measure("substitute agreement").value > 0.8
    assert not plain.alarms


def test_the_numbers_are_what_the_table_and_the_witnesses_say(plain, digits, run):
    columns = plain.samples.columns
    both = columns["held substitute CNN"] & columns["held substitute MLP"]
    assert (columns["held transfer"] == both).all()
    assert plain.measure().value == pytest.approx(both.mean())
    strongest = min(("held substitute CNN", "held substitute MLP"), key=lambda c: columns[c].mean())
    lost = {name: columns["clean"].mean() - columns[name].mean() for name in (strongest, "held own")}
    assert plain.measure("affinity").value == pytest.approx(lost[strongest] / lost["held own"])
    x, y = digits.data["test"].take(columns["index"])
    assert (columns["clean"] == (digits.predict(x).argmax(1) == y).numpy()).all()
    assert set(plain.witnesses.index) == set(columns["index"][columns["clean"] & ~both])
    assert judge_witnesses(plain.witnesses, digits, run)[0].all()
    assert len(plain.views[2].exhibits) == 3
    again = finding_from_json(finding_to_json(plain))
    assert (again.measures, again.alarms, again.views) == (plain.measures, plain.alarms, plain.views)


def test_the_matrix_has_one_on_its_diagonal(plain):
    matrix = plain.views[0]
    assert matrix.rows == matrix.columns == (ITSELF, "substitute CNN", "substitute MLP")
    assert [matrix.values[i][i] for i in range(3)] == [1.0, 1.0, 1.0]


def test_dead_gradients_are_an_alarm_with_both_numbers_that_doubts_the_white_box(digits, run):
    masked = replace(digits, model=Steps(digits.model))
    finding = ask(DoesItTransfer(radius=0.15), masked, run)
    white, transfer = finding.measure("white-box accuracy"), finding.measure()
    assert white.value > transfer.value + 0.2
    alarm = finding.alarms[0]
    assert "mislead an attacker" in alarm.says
    assert f"{100 * white.value:.0f} %" in alarm.says
    assert alarm.doubts == ("white-box accuracy",)
    would_pass = Standard(measure="white-box accuracy", at_least=white.low - 0.01)
    assert judge(would_pass, finding).verdict == "cannot tell"


def test_a_model_without_gradients_is_asked_all_the_same(digits, run):
    answers = replace(digits, model=Answers(digits.model), differentiable=False)
    finding = ask(DoesItTransfer(radius=0.15), answers, run)
    assert finding.measure().value < 0.9
    assert finding.measure("affinity").value is None
    assert "was not attacked itself" in finding.alarms[0].says
    assert [m.name for m in finding.measures] == ["transfer accuracy", "affinity", "substitute agreement"]
    assert finding.views[0].rows == ("substitute CNN", "substitute MLP")


def test_every_source_is_attacked_alike_and_past_its_own_boundary(digits, run, monkeypatch):
    seen = []

    def spy(model, x, y, **settings):
        how = {name: value for name, value in settings.items() if name != "precision"}  # that of a copy is its own
        seen.append({**how, "rng": settings["rng"].initial_seed(), "inputs": x.sum().item()})
        return pgd(model, x, y, **settings)

    monkeypatch.setattr("assay.probes.attacked.does_it_transfer.pgd", spy)
    ask(DoesItTransfer(), digits, replace(run, budget=replace(run.budget, samples=80)))
    assert len(seen) == 3
    assert seen[0] == seen[1] == seen[2]
    assert seen[0]["leave"] is False
    assert seen[0]["radius"] == 8 / 255
    seen.clear()
    ask(DoesItTransfer(), replace(digits, draws=3), replace(run, budget=replace(run.budget, samples=80)))
    assert [s["eot"] for s in seen] == [3, 1, 1]  # only the subject is random


def test_without_training_data_half_of_the_test_sample_teaches(digits, run):
    finding = ask(DoesItTransfer(radius=0.1), replace(digits, data={"test": digits.data["test"]}), run)
    assert finding.measure().n == 48
    assert "96 labels" in finding.measure("substitute agreement").about
    lone = replace(digits, data={"test": Arrays(*digits.data["test"].take(np.arange(1)))})
    assert "give a train split" in put(DoesItTransfer(), lone, replace(run, debug=False)).why


def test_a_poor_substitute_doubts_the_headline(digits, run):
    few = Arrays(*digits.data["train"].take(np.arange(10)))
    finding = ask(DoesItTransfer(radius=0.1), replace(digits, data={**digits.data, "train": few}), run)
    assert finding.measure("substitute agreement").value < 0.7
    assert any("transfer accuracy" in a.doubts for a in finding.alarms)


def test_inputs_that_are_no_images_get_one_substitute(digits, run):
    def rows(split):
        x, y = digits.data[split].take(np.arange(len(digits.data[split])))
        return Arrays(x.flatten(1), y)

    model = nn.Sequential(nn.Unflatten(1, (1, 8, 8)), digits.model)
    subject = replace(
        digits, model=model, inputs=replace(digits.inputs, shape=(64,)), data={s: rows(s) for s in digits.data}
    )
    finding = ask(DoesItTransfer(radius=0.15), subject, run)
    assert finding.views[0].columns == (ITSELF, "substitute MLP")
    assert len(finding.views) == 2
    assert finding.measure().value < finding.measure().beside[1].value


def test_the_same_seed_gives_the_same_finding_and_the_subject_is_left_as_it_was(digits, run):
    before = {name: t.clone() for name, t in digits.model.state_dict().items()}
    small = replace(run, budget=replace(run.budget, samples=80))
    one, two = (ask(DoesItTransfer(), digits, small) for _ in range(2))
    assert one.measures == two.measures
    assert (one.samples.columns["held transfer"] == two.samples.columns["held transfer"]).all()
    assert all(torch.equal(t, before[name]) for name, t in digits.model.state_dict().items())
    assert all(p.requires_grad for p in digits.model.parameters())


def test_a_radius_of_nothing_is_the_clean_accuracy(digits, run):
    small = replace(run, budget=replace(run.budget, samples=80))
    finding = ask(DoesItTransfer(radius=0.0), digits, small)
    assert finding.measure().value == finding.measure().beside[1].value
    assert finding.measure("affinity").value is None
    assert any("cannot tell from 0" in a.says for a in finding.alarms)
    with pytest.raises(AssayError, match="radius=-1 .* at least 0"):
        DoesItTransfer(radius=-1)


# Further models of the user's, and NaN under attack.


def tiny(seed, hidden=12):
    """Two classes of 6 values, and a net that has learned them."""
    x = torch.rand(80, 6, generator=torch.Generator().manual_seed(9))
    y = (x[:, :3].sum(1) > x[:, 3:].sum(1)).long()
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(6, hidden), nn.ReLU(), nn.Linear(hidden, 2))
    optimiser = torch.optim.Adam(model.parameters(), lr=0.03)
    for _ in range(60):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimiser.step()
    return Subject.classifier(model.eval(), {"test": (x[:40], y[:40]), "train": (x[40:], y[40:])}, name=f"tiny {seed}")


SMALL = replace(RUN, budget=replace(RUN.budget, samples=120))


def test_a_copy_transfers_as_well_as_the_model_itself_and_another_net_less(run):
    subject, other = tiny(0), tiny(1, hidden=3)
    there = {"copy": tiny(0), "other": other}
    kept = {k: t.clone() for k, t in other.model.state_dict().items()}
    probe = DoesItTransfer(radius=0.15, others=("copy", "other"))
    finding = ask(probe, subject, replace(SMALL, open=there.__getitem__))
    (matrix,) = (v for v in finding.views if v.name == "transfer")
    assert matrix.rows == ("no change", ITSELF, "copy", "other")
    assert matrix.columns == (ITSELF, "copy", "other")
    error = dict(zip(matrix.rows, matrix.values, strict=True))
    white = 1 - finding.measure("white-box accuracy").value
    assert white > error["no change"][0] + 0.2
    for row in (ITSELF, "copy"):
        assert error[row][0] == pytest.approx(white)
        assert error[row][1] == pytest.approx(white)
    assert error["other"][2] > error["no change"][2]
    made = finding.measure("error, made on other")
    assert made.value == pytest.approx(error["other"][0])
    assert made.value == finding.samples.columns["error other"].mean()
    x, y = other.data["test"].take(finding.samples.columns["index"])
    assert error["no change"][2] == pytest.approx(float((other.predict(x).argmax(1) != y).double().mean()))
    alone = ask(DoesItTransfer(radius=0.15), subject, SMALL)
    assert alone.measure().value == finding.measure().value  # the headline does not hang on what else is given
    assert all(torch.equal(t, kept[k]) for k, t in other.model.state_dict().items())
    assert all(p.requires_grad for p in other.model.parameters())


def test_what_the_others_are_is_part_of_the_key_and_nobody_opens_them_unasked():
    subject, probe = tiny(0), DoesItTransfer(others=("b",))
    keys = [probe.key(subject.fingerprint(), replace(RUN, open=lambda name, m=m: tiny(m))) for m in (0, 1, 1)]
    assert keys[0] != keys[1] == keys[2]
    plain = DoesItTransfer()
    assert plain.key("f", RUN) == plain.key("f", replace(RUN, open=lambda name: tiny(0)))
    with pytest.raises(AssayError, match="'b' cannot be opened from here; name it on the command line"):
        probe.key(subject.fingerprint(), RUN)


def test_a_model_for_other_inputs_or_classes_is_refused_in_one_line(digits):
    subject = tiny(0)
    x, y = subject.data["test"].take(np.arange(40))
    wrong = {
        "named": (replace(subject, task=type(subject.task)(("a", "b"))), "'named' is for classes 2 .a, b"),
        "wide": (Subject.classifier(nn.Linear(6, 2), (4 * x, y), bounds=(0, 4)), "between 0 and 4, and 'tiny 0'"),
        "long": (Subject.classifier(nn.Linear(12, 2), (x.repeat(1, 2), y)), r"inputs \(12,\)"),
    }
    for name, (other, says) in wrong.items():
        probe = DoesItTransfer(others=(name,))
        why = put(probe, subject, replace(SMALL, debug=False, open=lambda _, other=other: other)).why
        assert re.search(says, why), why
        assert "\n" not in why


class Holed(nn.Module):
    """NaN where the first value is above 0.9: at some inputs, and near others."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return torch.where(x[:, :1] > 0.9, torch.nan, self.inner(x))


def test_nan_under_attack_costs_the_inputs_concerned_and_no_others():
    subject = tiny(0)
    whole = ask(DoesItTransfer(radius=0.05), subject, SMALL)
    holed = ask(DoesItTransfer(radius=0.05), replace(subject, model=Holed(subject.model)), SMALL)
    x, _ = subject.data["test"].take(whole.samples.columns["index"])
    inside, far = (x[:, 0] > 0.9).numpy(), (x[:, 0] < 0.84).numpy()
    assert inside.any()
    for column in ("clean", "held own", "held transfer"):
        assert not holed.samples.columns[column][inside].any()
    same = holed.samples.columns["held own"][far] == whole.samples.columns["held own"][far]
    assert same.mean() > 0.9  # the search starts elsewhere
    (alarm,) = (a for a in holed.alarms if "NaN" in a.says)
    assert "transfer accuracy" in alarm.doubts
    assert not any("NaN" in a.says for a in whole.alarms)


def test_a_model_that_gives_one_number_without_an_axis_is_asked():
    torch.manual_seed(0)
    x = torch.rand(60, 4)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1), nn.Flatten(0)).eval()
    y = model(x).detach() + 0.01 * torch.randn(60)
    parts = {"test": (x[:20].numpy(), y[:20].numpy()), "train": (x[20:].numpy(), y[20:].numpy())}
    finding = ask(DoesItTransfer(radius=0.15), Subject.of(model, parts), SMALL)
    assert finding.measure("white-box accuracy").value < 1
    assert not any("NaN" in a.says for a in finding.alarms)
