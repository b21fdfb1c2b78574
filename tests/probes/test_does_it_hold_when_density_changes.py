"""Correlation with the truth by domain: known answers, what is undefined, and what it is not asked of."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from assay.data.arrays import Targets
from assay.finding import Finding
from assay.nn.members import Ensemble
from assay.probe import put
from assay.probes.steady.does_it_hold_when_density_changes import HOME, LOST, DoesItHoldWhenDensityChanges
from assay.run import Run
from assay.subject import Subject
from assay.tasks import ImageToImage


class Times(nn.Module):
    """a x + b, which follows any truth that is x itself, whatever a > 0 and b are."""

    def __init__(self, a: float, b: float = 0.0) -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(torch.tensor(a)), b

    def forward(self, x: Tensor) -> Tensor:
        return self.a * x + self.b


def sets(even: int = 0) -> dict[str, tuple[np.ndarray, np.ndarray]]:  # type: ignore[type-arg]
    """Truth is the image, at `far` with so much noise that r is about 0.7; the first `even` truths there are even."""
    rng = np.random.default_rng(0)
    x = rng.random((3, 40, 1, 8, 8), dtype=np.float32)
    far = 0.5 * x[2] + 0.5 * rng.random(x[2].shape, dtype=np.float32)
    far[:even] = 0.25
    return {"test": (x[0], x[0]), "near": (x[1], x[1]), "far": (x[2], far)}


def subject(model: nn.Module, even: int = 0) -> Subject:
    data = sets(even)
    return Subject.of(
        model.eval(), {"test": data["test"]}, ImageToImage((1, 8, 8), 0.2),
        domains={name: data[name] for name in ("near", "far")}, at={"near": 3.0, "far": 45.0},
    )  # fmt: skip


def asked(of: Subject, run: Run) -> Finding:
    answer = put(DoesItHoldWhenDensityChanges(), of, replace(run, debug=True))
    assert answer.finding is not None, answer.why
    return answer.finding


def test_it_is_the_mean_correlation_and_does_not_see_scale_or_shift(run: Run) -> None:
    plain, scaled = asked(subject(Times(1.0)), run), asked(subject(Times(0.3, 0.4)), run)
    x, y = (each.reshape(40, -1) for each in sets()["far"])
    by_hand = np.mean([np.corrcoef(a, b)[0, 1] for a, b in zip(x, y, strict=True)])
    for found in (plain, scaled):
        assert found.measure(HOME).value == pytest.approx(1)
        assert found.measure("correlation on far").value == pytest.approx(by_hand, abs=1e-6)
        lost = found.measure(LOST)
        assert lost.value == pytest.approx(1 - by_hand, abs=1e-6)
        assert lost.low is not None
        assert lost.high is not None
        assert lost.low < lost.value < lost.high
        assert lost.about.endswith("far")
        assert [view.name for view in found.views] == ["domains", "along"]
        assert found.alarms == ()


def test_what_is_undefined_is_told_and_not_counted_as_0(run: Run) -> None:
    found = asked(subject(Times(1.0), even=15), run)
    far = found.measure("correlation on far")
    assert far.n == 25
    assert far.value is not None
    assert far.value > 0.6  # 15 zeros would make it 0.44
    assert any("undefined for 15 of 40 images" in alarm.says for alarm in found.alarms)


def test_even_answers_have_no_correlation_at_all(run: Run) -> None:
    found = asked(subject(Times(0.0, 0.5)), run)
    assert found.measure(HOME).value is None
    assert found.measure(LOST).value is None
    assert found.measure().name == LOST
    assert "follow nothing" in found.says
    assert found.views == ()


def test_members_also_tell_whether_spread_goes_with_the_error(run: Run) -> None:
    found = asked(subject(Ensemble([Times(0.5), Times(1.0)], average="answers")), run)
    goes = found.measure("spread goes with the error")
    assert goes.value == pytest.approx(1)  # both grow with the pixel


def test_it_is_not_asked_without_truth_elsewhere() -> None:
    probe, data = DoesItHoldWhenDensityChanges(), sets()
    alone = Subject.of(Times(1.0), {"test": data["test"]}, ImageToImage((1, 8, 8), 0.2))
    assert "a domain beside train and test" in (probe.why_not(alone) or "")
    blind = replace(alone, unlabelled={"there": Targets(*data["far"])})
    assert "whose true images are known" in (probe.why_not(blind) or "")
    x, y = data["test"]
    labelled = (x, y[:, 0, 0, 0] > 0.5)
    chosen = Subject.classifier(nn.Sequential(nn.Flatten(), nn.Linear(64, 2)), labelled, domains={"there": labelled})
    assert "answer an image with an image" in (probe.why_not(chosen) or "")
