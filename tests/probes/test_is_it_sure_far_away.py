"""Is it sure far away: chance, certainty and everything that is ignored, where the truth is known."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from assay.errors import AssayError
from assay.finding import Curve, Finding
from assay.nn.softrmax import SoftRmax
from assay.probe import put
from assay.probes.sure.is_it_sure_far_away import AWAY, HEADLINE, LEAST, IsItSureFarAway
from assay.run import Run
from assay.subject import Subject


def ask(subject: Subject, run: Run, **settings: Any) -> Finding:
    answer = put(IsItSureFarAway(**{"inputs": 6, **settings}), subject, run)
    assert answer.finding is not None, answer.why
    return answer.finding


def value(finding: Finding, name: str = HEADLINE) -> float:
    found = finding.measure(name).value
    assert found is not None
    return found


def table(*head: nn.Module, scale: float = 1.0, seed: int = 0) -> Subject:
    """Five values of which the last is ignored."""
    torch.manual_seed(seed)
    first, last = nn.Linear(5, 16), nn.Linear(16, 3)
    with torch.no_grad():
        first.weight[:, 4] = 0
        first.weight.div_(scale)
    x = scale * torch.rand(20, 5, generator=torch.Generator().manual_seed(1))
    model = nn.Sequential(first, nn.ReLU(), last, *head).eval()
    return Subject.classifier(model, (x, model(x).argmax(1)), bounds=(0.0, scale), classes=("a", "b", "c"))


def test_softmax_ends_at_certainty_and_softrmax_at_chance(run: Run) -> None:
    plain, polynomial = ask(table(), run), ask(table(SoftRmax()), run)
    assert value(plain) > 0.95
    assert value(plain, "ways that end in certainty") > 0.8
    assert value(plain, "ways that end at chance") == 0
    assert value(polynomial) == pytest.approx(1 / 3, abs=0.02)
    assert value(polynomial, "surest end") < 0.4
    assert value(polynomial, "ways that end at chance") == 1
    assert {b.label: b.value for b in plain.measure().beside}["chance"] == pytest.approx(1 / 3)
    for finding in (plain, polynomial):  # what the network ignores, neither head can tell
        assert finding.samples is not None
        columns = finding.samples.columns
        np.testing.assert_allclose(columns[LEAST], columns["confidence"], atol=1e-4)
        assert finding.alarms == ()


def test_other_units_give_the_same_answer(run: Run) -> None:
    one, many = (ask(table(scale=s), run) for s in (1.0, 255.0))
    for m in one.measures:
        assert value(many, m.name) == pytest.approx(m.value, abs=1e-3), m.name


def test_the_numbers_are_those_of_the_ways(run: Run) -> None:
    finding = ask(table(), run, ways=3, reach=4.0)
    (curve,) = (v for v in finding.views if isinstance(v, Curve))
    lines = {line.label: line for line in curve.lines}
    assert 10 ** lines["chance"].x[-1] == pytest.approx(4)
    assert lines["random ways, mean"].y[-1] == pytest.approx(value(finding))
    assert lines["the one that ends surest"].y[-1] == pytest.approx(value(finding, "surest end"))
    assert lines["the surest of them at each distance"].y[-1] == pytest.approx(value(finding, "surest end"))
    subject = table()
    x = subject.data["test"].take(run.pick(subject.data["test"], 6))[0]
    away = x - x.mean(0)
    out = x + 4 * 5**0.5 * away / away.norm(dim=1, keepdim=True)
    assert finding.samples is not None
    np.testing.assert_allclose(
        finding.samples.columns[AWAY], subject.predict(out).softmax(1).amax(1).numpy(), atol=1e-5
    )
    assert finding.measures == ask(table(), run, ways=3, reach=4.0).measures
    assert finding.measures != ask(table(), replace(run, seed=1), ways=3, reach=4.0).measures


def test_images_random_models_and_blind_ones_are_asked_too(digits: Subject, run: Run) -> None:
    finding = ask(digits, run, inputs=4)
    assert value(finding) > 0.9
    assert LEAST in " ".join(m.name for m in finding.measures)

    class Noisy(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return digits.model(x + 0.1 * torch.randn_like(x))

    for subject, why in (
        (replace(digits, model=Noisy(), layers={"a": "b"}, draws=3), "random"),
        (replace(digits, differentiable=False), "no gradients"),
    ):
        (alarm,) = ask(subject, run, inputs=2).alarms
        assert why in alarm.says


def test_an_answer_that_is_no_number_counts_as_certain_and_is_doubted(run: Run) -> None:
    class Overflows(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.stack([x.sum(1), -x.sum(1)], 1) + 0 * x.square().square().square().square().sum(1)[:, None]

    x = torch.rand(10, 4)
    subject = Subject.classifier(Overflows(), (x, torch.zeros(10, dtype=torch.long)), classes=("a", "b"))
    finding = ask(subject, run, reach=1e6)
    assert value(finding) == 1
    assert HEADLINE in next(a for a in finding.alarms if "NaN or infinite" in a.says).doubts


def test_an_input_in_the_middle_and_bad_settings(run: Run) -> None:
    x = torch.full((3, 4), 0.5)
    torch.manual_seed(0)
    subject = Subject.classifier(nn.Linear(4, 2).eval(), (x, torch.tensor([0, 1, 0])), classes=("a", "b"))
    assert np.isfinite(value(ask(subject, run)))
    with pytest.raises(AssayError, match="reach=0.5 .* at least 1"):
        IsItSureFarAway(reach=0.5)
    assert IsItSureFarAway.question() == "Is it sure where no data are?"
