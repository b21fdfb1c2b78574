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
from assay.probes.was_it_tampered_with import HEADLINE, WasItTamperedWith
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


def test_where_it_does_not_apply_it_says_why(digits: Subject, run: Run) -> None:
    flat = replace(digits, model=nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), layers={})
    assert "no convolutional layer" in reason(WasItTamperedWith(), flat)
    assert "gradients" in reason(WasItTamperedWith(), replace(digits, differentiable=False))
    assert "random" in reason(WasItTamperedWith(), replace(digits, draws=3))
    headless = nn.Sequential(nn.Conv2d(1, 10, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten()).eval()
    answer = put(WasItTamperedWith(inputs=4), replace(digits, model=headless, layers={}), run)
    assert answer.status == "failed"
    assert "No Linear runs after" in answer.why


def test_bad_settings_are_refused() -> None:
    with pytest.raises(AssayError, match="inputs=1 .* at least 2"):
        WasItTamperedWith(inputs=1)
    assert WasItTamperedWith.question() == "Was the model tampered with?"
    assert HEADLINE == "signs of tampering"
