from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from assay.data.arrays import Arrays
from assay.errors import AssayError
from assay.finding import finding_from_json, finding_to_json
from assay.probe import configure, judge_witnesses, put
from assay.probes.attacked import one_change_for_all
from assay.probes.attacked.one_change_for_all import HEADLINE, SHARES, OneChangeForAll
from assay.standard import judge
from assay.subject import Subject

WIDE = OneChangeForAll(radius=0.2, steps=10, batch=50)


def ask(probe, subject, run):
    answer = put(probe, subject, replace(run, debug=True))
    assert answer.status == "asked", answer.why
    return answer.finding


def view(finding, name):
    return next(v for v in finding.views if v.name == name)


def test_the_error_under_one_change_is_above_that_under_noise(digits, run):
    finding = ask(WIDE, digits, run)
    headline = finding.measure()
    assert headline.name == HEADLINE
    assert headline.better == "lower"
    beside = {b.label: b.value for b in headline.beside}
    assert headline.value > beside["random noise of the same size"] + 0.1 > beside["clean error"] + 0.1
    columns = finding.samples.columns
    assert headline.value == pytest.approx(columns["error"].mean())
    assert beside["random noise of the same size"] == pytest.approx(columns["noise error"].mean())
    x, y = digits.data["test"].take(columns["index"])
    assert beside["clean error"] == pytest.approx(float((digits.predict(x).argmax(1) != y).double().mean()))
    gap = finding.measure("beyond noise")
    assert gap.value == pytest.approx(columns["error"].mean() - columns["noise error"].mean())
    assert gap.low > 0
    assert not finding.alarms
    assert judge(WIDE.standards[0], finding).verdict in ("fail", "cannot tell")


def test_the_curve_rises_and_starts_at_the_clean_error(digits, run):
    finding = ask(WIDE, digits, run)
    change, noise = view(finding, "size").lines
    assert change.x == noise.x == (0.0, *(share * 0.2 for share in SHARES))
    assert change.y[0] == noise.y[0] == pytest.approx(finding.measure().beside[0].value)
    assert list(change.y) == sorted(change.y)
    assert change.y[1] == pytest.approx(finding.measure().value)
    assert all(c >= n for c, n in zip(change.y, noise.y, strict=True))
    assert all(low <= y <= high for low, y, high in zip(change.low, change.y, change.high, strict=True))


def test_every_witness_is_an_input_under_one_and_the_same_change(digits, run):
    finding = ask(WIDE, digits, run)
    w = finding.witnesses
    held, reasons = judge_witnesses(w, digits, run)
    assert held.all(), reasons
    assert set(w.radius) <= {share * 0.2 for share in SHARES}
    columns = finding.samples.columns
    broken = np.isfinite(columns["broke at"])
    assert w.index.tolist() == columns["index"][broken].tolist()
    assert not columns["clean error"][broken].any()
    mine = w.radius == 0.2  # changes differ only where the box cut them
    gaps = w.changed[mine] - w.clean[mine]
    free = (w.changed[mine] > 0) & (w.changed[mine] < 1)
    for pixel in np.ndindex(gaps.shape[1:]):
        seen = gaps[(slice(None), *pixel)][free[(slice(None), *pixel)]]
        assert np.ptp(seen) < 1e-6 if len(seen) else True


def test_changes_towards_a_class_send_inputs_there(digits, run):
    finding = ask(WIDE, digits, run)
    bars = view(finding, "targets")
    assert len(bars.values) == 10
    sent = finding.measure("sent to a chosen class")
    assert sent.value == pytest.approx(finding.samples.columns["sent"].mean())
    assert sent.value > sent.beside[0].value + 0.05
    # every class has as many inputs that are not of it, up to one or two, so the two means nearly meet
    assert sent.value == pytest.approx(np.mean(bars.values), abs=0.01)


def test_with_many_classes_none_is_aimed_at(digits, run, monkeypatch):
    monkeypatch.setattr(one_change_for_all, "MOST_CLASSES", 9)
    finding = ask(OneChangeForAll(steps=1), digits, run)
    assert [m.name for m in finding.measures] == [HEADLINE, "beyond noise"]
    assert [v.name for v in finding.views][:2] == ["size", "changes"]
    assert len(view(finding, "changes").exhibits) == len(SHARES)


def test_the_pictures_show_the_change_and_what_it_broke(digits, run):
    finding = ask(WIDE, digits, run)
    changes, broken = view(finding, "changes"), view(finding, "broken")
    assert [p.label for p in changes.exhibits[0].panels] == ["the change", "with it"]
    assert len(broken.exhibits) == run.budget.shown
    stored = finding_from_json(finding_to_json(finding), finding.samples, finding.witnesses)
    assert stored.views == finding.views


def test_without_training_data_one_half_makes_it_and_the_other_judges(digits, run):
    finding = ask(WIDE, replace(digits, data={"test": digits.data["test"]}), run)
    assert finding.measure().n == 50
    assert "made on 50 of the test inputs and judged on the other 50" in finding.alarms[0].says
    assert "made on 50 inputs only" in finding.alarms[1].says
    assert finding.alarms[1].doubts == (HEADLINE,)
    counts = np.bincount(finding.samples.columns["label"], minlength=10)
    assert counts.min() >= 4  # stratified, although rows with every class in turn would split by class
    assert finding.measure().value > finding.measure().beside[1].value


def test_halves_share_no_input(digits, run):
    alone = replace(digits, data={"test": digits.data["test"]})
    split, makers, judges = WIDE._halves(alone, run)
    assert split == "test"
    assert not set(makers) & set(judges)
    assert set(makers) | set(judges) == set(run.pick(digits.data["test"]))
    one = Arrays(*digits.data["test"].take(np.arange(1)))
    with pytest.raises(AssayError, match="One test input cannot serve both"):
        WIDE._halves(replace(digits, data={"test": one}), run)


def test_radius_zero_is_no_change(digits, run):
    finding = ask(OneChangeForAll(radius=0, steps=2, batch=60), digits, run)
    assert finding.measure().value == finding.measure().beside[0].value
    assert finding.measure("beyond noise").value == 0
    assert finding.witnesses is None
    assert not [a for a in finding.alarms if a.doubts]


class Deaf(nn.Module):
    """Its gradients are too small by far and point nowhere; its answers are the inner model's."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        z: Tensor = self.inner(x.detach())
        return z + 1e-6 * torch.cos(1e4 * x).flatten(1).sum(1, keepdim=True) * torch.linspace(-1, 1, z.shape[1])


def test_a_search_that_does_no_more_than_noise_is_an_alarm(digits, run):
    finding = ask(OneChangeForAll(radius=0.05), replace(digits, model=Deaf(digits.model)), run)
    assert any("does no more than random noise" in a.says and a.doubts == (HEADLINE,) for a in finding.alarms)
    assert judge(OneChangeForAll.standards[0], finding).verdict == "cannot tell"


def test_inputs_that_are_no_images_and_two_classes(run):
    rng = torch.Generator().manual_seed(0)
    x = torch.rand(300, 6, generator=rng)
    y = (x[:, 0] > 0.5).long()

    class First(nn.Module):
        def forward(self, t: Tensor) -> Tensor:
            gap = 8 * (t[:, :1] - 0.5)
            return torch.cat([-gap, gap], 1)

    subject = Subject.classifier(First(), {"train": (x[:200], y[:200]), "test": (x[200:], y[200:])})
    finding = ask(OneChangeForAll(radius=0.3, steps=10, batch=50), subject, run)
    # one change moves the threshold one way: it breaks what lies within 0.3 on one side, and no more
    reach = ((x[200:, 0] - 0.5).abs() < 0.3).double()
    best = max(float((reach * (y[200:] == c)).mean()) for c in (0, 1))
    assert finding.measure().value == pytest.approx(best, abs=0.1)
    assert not [v for v in finding.views if v.name in ("changes", "broken")]


def test_settings_are_read_and_refused_in_words():
    assert configure(OneChangeForAll, {"radius": "16/255", "steps": "7"}) == OneChangeForAll(radius=16 / 255, steps=7)
    with pytest.raises(AssayError, match="radius=-1 .* at least 0"):
        OneChangeForAll(radius=-1)
    with pytest.raises(AssayError, match="batch=0 .* at least 1"):
        OneChangeForAll(batch=0)


class Holed(nn.Module):
    """NaN where the first value is above 0.9: at some inputs, and near others."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return torch.where(x[:, :1] > 0.9, torch.nan, self.inner(x))


def test_nan_costs_the_inputs_concerned_and_no_others(run):
    x = torch.rand(120, 6, generator=torch.Generator().manual_seed(0))
    y = (x[:, :3].sum(1) > x[:, 3:].sum(1)).long()
    halves = nn.Linear(6, 2)
    halves.weight.data = torch.tensor([[-1.0] * 3 + [1.0] * 3, [1.0] * 3 + [-1.0] * 3])
    halves.bias.data.zero_()
    data = {"test": (x[:60], y[:60]), "train": (x[60:], y[60:])}
    whole = ask(OneChangeForAll(radius=0.02), Subject.classifier(halves, data), run)
    holed = ask(OneChangeForAll(radius=0.02), replace(Subject.classifier(halves, data), model=Holed(halves)), run)
    index = holed.samples.columns["index"]
    inside, far = (x[index, 0] > 0.92).numpy(), (x[index, 0] < 0.8).numpy()
    assert inside.any()
    assert holed.samples.columns["error"][inside].all()
    assert holed.samples.columns["clean error"][inside].all()
    assert (holed.samples.columns["clean error"][far] == whole.samples.columns["clean error"][far]).all()
    same = holed.samples.columns["error"][far] == whole.samples.columns["error"][far]
    assert same.mean() > 0.9  # made on fewer inputs the change is another one
    told = [a for a in holed.alarms if "NaN" in a.says]
    assert ["made on" in a.says for a in told] == [True, False]
    assert all("error under one change" in a.doubts for a in told)
    assert not any("NaN" in a.says for a in whole.alarms)
