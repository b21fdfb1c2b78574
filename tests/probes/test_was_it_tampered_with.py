"""Was it tampered with: an untouched network shows no sign, each of the four edits shows some."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from assay.errors import AssayError
from assay.methods.explain.twins import twins
from assay.probe import Probe, put
from assay.probes.explained.was_it_tampered_with import HEADLINE, WasItTamperedWith
from assay.run import Run
from assay.standard import judge
from assay.subject import Subject


def ask(subject: Subject, run: Run, **settings: Any) -> Any:
    answer = put(WasItTamperedWith(**settings), subject, run)
    assert answer.finding is not None, answer.why
    return answer.finding


def reason(probe: Probe, subject: Subject) -> str:
    return probe.why_not(subject) or "it applies"


@pytest.fixture
def edited(digits: Subject) -> dict[str, Subject]:
    x = digits.data["test"].take(np.arange(40))[0]
    made = twins(digits.model, "2", x, rng=torch.Generator().manual_seed(0))
    return {t.name: replace(digits, model=t.model, layers={}) for t in made}


def test_an_untouched_network_passes(digits: Subject, run: Run) -> None:
    finding = ask(digits, run, inputs=30)
    assert finding.measure().value == 0
    assert finding.alarms == ()
    assert judge(WasItTamperedWith.standards[0], finding).verdict == "pass"
    assert "None of 7 signs" in finding.says
    (gallery,) = (v for v in finding.views if hasattr(v, "exhibits"))
    assert all(e.caption == "GradCAM: no sign of tampering" for e in gallery.exhibits)


def test_each_edit_that_deceives_is_seen_and_the_harmless_ones_are_not(edited: dict[str, Subject], run: Run) -> None:
    for name, subject in edited.items():
        finding = ask(subject, run, inputs=30)
        if name.startswith("T"):
            assert finding.measure().value >= 1, name
            assert judge(WasItTamperedWith.standards[0], finding).verdict == "fail"
            assert len(finding.alarms) == finding.measure().value
        else:
            assert finding.measure().value == 0, name


def test_an_alarm_has_score_threshold_and_meaning(edited: dict[str, Subject], run: Run) -> None:
    finding = ask(edited["T1 flat map"], run, inputs=10)
    alarm = next(a.says for a in finding.alarms if a.says.startswith("constant channels"))
    assert "above 0.5" in alarm
    assert "the same for every input" in alarm
    assert finding.measure("constant channels").value == pytest.approx(1, abs=1e-3)
    assert finding.measure("constant channels").beside[0].value == 0.5
    assert "map 8 of '2'" in finding.says
    (bars,) = (v for v in finding.views if hasattr(v, "labels"))
    assert bars.values[bars.labels.index("constant channels")] == pytest.approx(2, abs=1e-2)
    assert max(bars.values) <= 2


def test_without_the_blamed_map_the_honest_one_is_back(digits: Subject, edited: dict[str, Subject], run: Run) -> None:
    def panels(finding: Any, label: str) -> list[bytes]:
        (gallery,) = (v for v in finding.views if hasattr(v, "exhibits"))
        return [p.png for e in gallery.exhibits for p in e.panels if p.label == label]

    honest, lying = ask(digits, run, inputs=4), ask(edited["T2 chosen map"], run, inputs=4)
    assert panels(lying, "without them") == panels(honest, "GradCAM")
    assert panels(lying, "GradCAM") != panels(honest, "GradCAM")
    (gallery,) = (v for v in lying.views if hasattr(v, "exhibits"))
    assert all("not to be believed" in e.caption for e in gallery.exhibits)


def test_without_gradients_it_does_not_apply(digits: Subject) -> None:
    assert "gradients" in reason(WasItTamperedWith(), replace(digits, differentiable=False))


MAPS = ("constant channels", "channel scale", "maps that do not vary")
ALL = {*MAPS, "outlying columns", "completeness", "logit against probability", "slope against step"}


class OverItsLength(nn.Module):
    """Divides each image by its length: at zeros it gives NaN."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(8 * x / x.flatten(1).norm(dim=1)[:, None, None, None])


class InFloat(nn.Module):
    """Multiplies by a constant that is no buffer: in float64 two types meet."""

    def __init__(self, net: nn.Sequential) -> None:
        super().__init__()
        self.net, self.mix = net, torch.eye(512)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net[-1](self.net[:-1](x) @ self.mix)


class Twice(nn.Module):
    """One convolution that runs two times, and one after it."""

    def __init__(self) -> None:
        super().__init__()
        self.same, self.last, self.out = nn.Conv2d(1, 1, 3, padding=1), nn.Conv2d(1, 4, 3), nn.Linear(144, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.last(self.same(self.same(x).relu())).relu().flatten(1))


class Noisy(nn.Module):
    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x + 0.05 * torch.randn_like(x))


def headless() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 10, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())


def odd() -> nn.Module:
    """Behind the maps a convolution, so that no column of the Linear belongs to a map of the ReLU before."""
    torch.manual_seed(0)
    parts = (nn.Conv2d(1, 5, 3), nn.ReLU(), nn.Conv2d(5, 3, 6), nn.Flatten(), nn.Linear(3, 10))
    return nn.Sequential(*parts)


CASES = {
    "no Linear": (lambda net: headless(), {"outlying columns": "No Linear runs after"}),
    "columns of no map": (lambda net: odd(), {"outlying columns": "takes 3 numbers"}),
    "softmax": (
        lambda net: nn.Sequential(net, nn.Softmax(1)),
        {"logit against probability": "the answers are probabilities"},
    ),
    "NaN at zeros": (OverItsLength, {"completeness": "begins at zeros, where the network gives NaN"}),
    "float32 alone": (InFloat, {}),
    "a convolution twice": (lambda net: Twice(), {}),
    "random": (Noisy, {"completeness": "answers are random", "slope against step": "answers are random"}),
    "no maps": (
        lambda net: nn.Sequential(nn.Flatten(), nn.Linear(64, 10)),
        dict.fromkeys(ALL - {"completeness"}, "no convolution"),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_sign_that_does_not_apply_takes_nothing_from_the_others(digits: Subject, run: Run, case: str) -> None:
    build, unread = CASES[case]
    draws = 4 if case == "random" else 1
    finding = ask(replace(digits, model=build(digits.model).eval(), layers={}, draws=draws), run, inputs=6)
    assert {m.name for m in finding.measures if m.value is not None} == {HEADLINE, *ALL} - set(unread)
    said = " ".join(a.says for a in finding.alarms)
    for name, words in unread.items():
        assert f"Not read, {name}: " in said
        assert words in finding.measure(name).about
    assert said.count("Not read") == len(unread)
    (bars,) = (v for v in finding.views if hasattr(v, "labels"))
    assert set(bars.labels) == ALL - set(unread)
    trained = case not in ("no Linear", "columns of no map", "a convolution twice")
    assert not trained or finding.measure().value == 0
    verdict = judge(WasItTamperedWith.standards[0], finding).verdict
    if case == "no maps":
        assert verdict == "cannot tell"  # one sign of seven clears nothing
    elif trained:
        assert verdict == "pass"


def test_a_saturated_softmax_is_no_sign_and_an_edit_behind_it_still_shows(
    digits: Subject, edited: dict[str, Subject], run: Run
) -> None:
    class Sharp(nn.Module):
        def __init__(self, net: nn.Module) -> None:
            super().__init__()
            self.net = net

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (100 * self.net(x)).softmax(1)

    finding = ask(replace(digits, model=Sharp(digits.model), layers={}), run, inputs=6)
    assert finding.measure("slope against step").value is None
    assert "saturated" in finding.measure("slope against step").about
    assert finding.measure().value == 0
    lying = replace(digits, model=nn.Sequential(edited["T1 flat map"].model, nn.Softmax(1)), layers={})
    assert ask(lying, run, inputs=6).measure("channel scale").value is not None


def test_tables_and_texts_are_asked_what_they_can_answer(run: Run) -> None:
    from assay.nn.text_classifier import TextClassifier

    torch.manual_seed(0)
    table = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3)).eval()
    x = 255 * torch.rand(20, 5)
    finding = ask(Subject.classifier(table, (x, table(x).argmax(1)), bounds=(0, 255)), run, inputs=6)
    assert (finding.measure("completeness").value or 0.0) < 1
    assert "Only 1 of 7" in finding.alarms[-1].says
    assert finding.alarms[-1].doubts == (HEADLINE,)
    words = torch.randint(1, 9, (20, 6)).float()
    texts = TextClassifier(9, 3).eval()
    answer = put(WasItTamperedWith(), Subject.classifier(texts, (words, texts(words).argmax(1)), bounds=(0, 9)), run)
    assert answer.status == "does not apply"  # a look-up carries no gradient to the numbers of words
    assert "it needs gradients" in answer.why


def test_bad_settings_are_refused() -> None:
    with pytest.raises(AssayError, match="inputs=1 .* at least 2"):
        WasItTamperedWith(inputs=1)
    assert WasItTamperedWith.question() == "Was the model tampered with?"
    assert HEADLINE == "signs of tampering"
