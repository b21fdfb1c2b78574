"""What did it forget: two models of which every answer is known, by class, by group, and by what they promise."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from assay.errors import AssayError
from assay.finding import Bars, Finding, Gallery
from assay.probe import put
from assay.probes.deployed.what_did_it_forget import NO_HARM, SHARES, WhatDidItForget, score_gained
from assay.run import Run
from assay.subject import Subject
from assay.tasks import Regression

N = 200


class Says(nn.Module):
    """The first pixel, times 255, is an input's number; the model looks its class up, and how sure it is of it."""

    def __init__(self, said: np.ndarray, odds: float = 2.0) -> None:
        super().__init__()
        self.register_buffer("said", torch.as_tensor(said))
        self.odds = odds

    def forward(self, x: Tensor) -> Tensor:  # n 1 2 2 -> n 3
        at = (255 * x[:, 0, 0, 0]).round().long()
        return self.odds * nn.functional.one_hot(self.said[at], 3).to(x)


@pytest.fixture(scope="module")
def known() -> Subject:
    """60 inputs of class a, 120 of b, 20 of c. Before all were right but 5 of b; now 12 of a and 4 of b are wrong."""
    label = np.repeat([0, 1, 2], [60, 120, 20])
    before, after = label.copy(), label.copy()
    before[60:65] = 2
    after[:12] = 1
    after[60:64] = 2  # four of the five as before: one was learnt
    after[100:103] = 0
    x = (torch.arange(N) / 255)[:, None, None, None].expand(-1, 1, 2, 2).clone()
    group = np.where(np.arange(N) < 40, "north", "south")
    group[-3:] = ""
    made = Subject.classifier(
        Says(before),
        (x, label),
        name="big",
        classes=("a", "b", "c"),
        attributes={"region": {"test": group}, "half": {"test": np.arange(N) >= 100}},
    )
    return made.cured(Says(after, odds=3.0), "shrunk")


def found(subject: Subject, run: Run) -> Finding:
    answer = put(WhatDidItForget(), subject, run)
    assert answer.finding is not None, answer.why
    return answer.finding


@pytest.fixture
def whole(run: Run) -> Run:
    return replace(run, budget=replace(run.budget, samples=None, inputs=None))


def test_the_names_that_limits_go_by_are_all_that_it_measures(known: Subject, whole: Run) -> None:
    told = found(known, whole).measures
    assert {m.name for m in told} == {*SHARES, *NO_HARM}
    assert {m.unit for m in told if m.name in SHARES} == {"%"}


def test_what_changed_is_counted_with_exact_intervals(known: Subject, whole: Run) -> None:
    told = found(known, whole)
    churn, forgotten, learnt = (told.measure(name) for name in ("churn", "forgotten", "learnt"))
    assert (churn.value, forgotten.value, learnt.value) == pytest.approx((16 / N, 15 / N, 1 / N))
    assert learnt.low == pytest.approx(1 - 0.975 ** (1 / N))  # of one hit: the quantile in closed form
    gained = told.measure("accuracy gained")
    assert gained.value == pytest.approx(-14 / N)
    assert gained.high is not None
    assert gained.high < 0
    assert told.measure("p of McNemar's test").value == pytest.approx(2 * (1 + 16) / 2**16)
    assert "15 that were right are wrong now, 1 the other way round" in told.says


def test_the_class_and_the_group_that_pay_are_named_and_small_ones_are_not_told(known: Subject, whole: Run) -> None:
    told = found(known, whole)
    worst, loss = told.measure("worst class churn"), told.measure("worst class loss")
    assert (worst.value, worst.n) == (pytest.approx(12 / 60), 60)
    assert loss.value == pytest.approx(12 / 60)
    assert worst.about.endswith(": a")
    group = told.measure("worst group churn")
    assert (group.value, group.n) == (pytest.approx(12 / 40), 40)
    assert group.about.endswith("region north")
    assert any("under 30 inputs: c (20)" in alarm.says for alarm in told.alarms)
    bars = {view.name: view for view in told.views if isinstance(view, Bars)}
    assert bars["churn by class"].labels == ("a", "b")
    assert bars["churn by group"].labels == ("region north", "region south", "half false", "half true")
    assert bars["churn by group"].values == pytest.approx((12 / 40, 4 / 157, 13 / 100, 3 / 100))


def test_where_every_class_is_small_the_worst_is_not_measured(known: Subject, whole: Run) -> None:
    few = replace(whole, budget=replace(whole.budget, inputs=40))
    told = found(known, few)
    assert told.measure("worst class churn").value is None
    assert any("worst class loss" in alarm.doubts for alarm in told.alarms)


def test_confidence_and_calibration_are_compared_in_pairs(known: Subject, whole: Run) -> None:
    told = found(known, whole)
    p, q = (float(np.exp(o) / (np.exp(o) + 2)) for o in (2.0, 3.0))
    assert told.measure("confidence gained").value == pytest.approx(q - p, abs=1e-6)
    expected = abs(181 / N - q) - abs(195 / N - p)  # all inputs of each lie in one bin
    gained = told.measure("calibration error gained")
    assert gained.value == pytest.approx(expected, abs=1e-6)
    assert gained.low is not None
    assert gained.high is not None
    assert gained.low <= expected <= gained.high


def test_the_forgotten_are_shown_with_both_answers(known: Subject, whole: Run) -> None:
    (gallery,) = (view for view in found(known, whole).views if isinstance(view, Gallery))
    assert {e.index for e in gallery.exhibits} <= {*range(12), 100, 101, 102}
    assert gallery.exhibits[0].caption == "a: said a, 79 %; now says b, 91 %"


def test_what_it_is_surest_of_is_shown_first(known: Subject, whole: Run) -> None:
    class Growing(Says):
        """The surer, the higher an input's number."""

        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * (1 + x[:, 0, 0, :1])

    assert isinstance(known.model, Says)
    (gallery,) = (
        view
        for view in found(replace(known, model=Growing(known.model.said.numpy())), whole).views
        if isinstance(view, Gallery)
    )
    assert [e.index for e in gallery.exhibits] == [102, 101, 100]


def test_the_same_model_forgot_nothing(known: Subject, whole: Run) -> None:
    assert known.original is not None
    told = found(known.original.cured(known.original.model, "copied"), whole)
    assert told.measure("churn").value == 0
    assert told.measure("churn").high == pytest.approx(1 - 0.025 ** (1 / N))
    assert told.measure("p of McNemar's test").value == 1
    assert not any(isinstance(view, Gallery) for view in told.views)


def test_each_model_is_asked_once_about_each_input(known: Subject, whole: Run) -> None:
    asked = {"big": 0, "small": 0}

    def counting(subject: Subject, name: str) -> None:
        subject.model.register_forward_pre_hook(lambda _, x: asked.__setitem__(name, asked[name] + len(x[0])))

    small = replace(known, data=known.data)
    assert small.original is not None
    counting(small, "small")
    counting(small.original, "big")
    told = found(small, whole)
    shown = sum(len(view.exhibits) for view in told.views if isinstance(view, Gallery))
    assert asked == {"big": N + shown, "small": N + shown}


def test_numbers_are_compared_by_their_scores(whole: Run) -> None:
    """Right within 0.5: one input of ten leaves that, and the score of all sinks."""
    x = torch.linspace(0, 1, 40)[:, None]
    subject = Subject.of(nn.Identity(), (x, x.numpy()), Regression(("y",), (0.5,)))
    off = nn.Linear(1, 1)
    with torch.no_grad():
        off.weight.fill_(0.4)
        off.bias.fill_(0.0)
    told = found(subject.cured(off, "shrunk"), whole)
    forgotten = float((0.6 * x > 0.5).float().mean())
    assert told.measure("forgotten").value == pytest.approx(forgotten)
    assert told.measure("churn").value == pytest.approx(forgotten)
    gained = told.measure(score_gained(subject.task.headline))
    assert gained.value is not None
    assert gained.value < 0


def test_without_classes_it_speaks_of_what_is_good_enough_and_not_of_what_is_sure(whole: Run) -> None:
    """Every answer of pictures differs, by 0.3 to 0.6; right within 0.5."""
    x = torch.linspace(0, 1, 40)[:, None, None, None].expand(-1, 1, 2, 2).clone()
    read = nn.Sequential(nn.Flatten(), nn.Linear(4, 1))
    off = nn.Sequential(nn.Flatten(), nn.Linear(4, 1))
    with torch.no_grad():
        for model, weight, bias in ((read, 0.25, 0.0), (off, 0.325, 0.31)):
            model[1].weight.fill_(weight)  # type: ignore[operator]
            model[1].bias.fill_(bias)  # type: ignore[operator]
    subject = Subject.of(read, (x, x[:, 0, 0, :1].numpy()), Regression(("y",), (0.5,)), name="big")
    told = found(subject.cured(off, "shrunk"), whole)
    lost = int((0.31 + 0.3 * x[:, 0, 0, 0] > 0.5).sum())  # none is 0.5 off
    assert told.says.startswith(f"Of {lost} of ")
    assert "it or 'big' alone gives an answer that is good enough" in told.says
    assert "otherwise" not in told.says
    (gallery,) = (view for view in told.views if isinstance(view, Gallery))
    assert gallery.says.endswith("those with the lowest score come first.")


def test_without_an_original_it_says_how_to_give_one(known: Subject, whole: Run) -> None:
    assert known.original is not None
    assert "--original MODEL" in put(WhatDidItForget(), known.original, whole).why
    other = replace(known, original=replace(known.original, task=Regression(("y",), (0.5,))))
    assert "is for Regression" in put(WhatDidItForget(), other, whole).why


def test_the_fingerprint_knows_what_it_is_held_against(known: Subject) -> None:
    alone, otherwise = replace(known, original=None), replace(known, original=known)
    assert len({each.fingerprint() for each in (known, alone, otherwise)}) == 3
    assert known.original is not None
    cut = replace(known.original, data={"test": known.data["test"]}, attributes={})
    assert replace(known, original=cut).fingerprint() == known.fingerprint()  # its data are not looked at


def test_the_original_is_named_on_the_command_line(tmp_path: Path) -> None:
    from assay.subjects import Source, open_subject

    built = tmp_path / "two.py"
    built.write_text(
        "import numpy as np, torch\nfrom torch import nn\nfrom assay.subject import Subject\n"
        "def made(k, classes=2):\n"
        "    model = nn.Linear(2, classes)\n"
        "    nn.init.constant_(model.weight, k)\n"
        "    data = torch.rand(8, 2), np.arange(8) % classes\n"
        "    return Subject.classifier(model, data, name=f'net {k}')\n"
        "def big(): return made(1.0)\n"
        "def small(): return made(2.0)\n"
        "def wide(): return made(1.0, 3)\n"
    )
    source = Source(f"{built}:small", original=f"{built}:big")
    subject = open_subject(source)
    assert subject.original is not None
    assert subject.original.name == "net 1.0"
    assert source.words()[-2:] == ("--original", f"{built}:big")
    with pytest.raises(AssayError, match="has 3 classes, and 'net 2.0' 2; name the model"):
        open_subject(Source(f"{built}:small", original=f"{built}:wide"))
    with pytest.raises(AssayError, match="There is no file"):
        open_subject(Source(f"{built}:small", original="gone.onnx"))
