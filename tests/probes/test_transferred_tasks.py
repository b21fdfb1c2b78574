"""Attacks by way of a substitute, and whether attacks agree, of tasks that are no classes: closed forms and masks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from assay.finding import Finding
from assay.methods.attack.aim import Aim
from assay.methods.attack.masking import _elsewhere, examine
from assay.methods.attack.transfer import Units, answering_substitute, learn_substitute
from assay.probe import judge_witnesses, put
from assay.probes.attacked.does_it_transfer import DoesItTransfer
from assay.probes.attacked.is_the_number_real import IsTheNumberReal
from assay.run import Run
from assay.subject import Subject
from assay.tasks import Regression

RADIUS, TOLERANCE, FEATURES = 0.05, 0.3, 8
ERROR = torch.linspace(-0.36, 0.36, 40)


class Weighted(nn.Module):
    """A weighted sum; `masked` hides its gradient and nothing else."""

    def __init__(self, *, masked: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(FEATURES, 1, generator=torch.Generator().manual_seed(0)) / 3)
        self.masked = masked

    def forward(self, x: Tensor) -> Tensor:
        return (x.detach() + 0 * x if self.masked else x) @ self.weight


def subject(*, masked: bool = False) -> Subject:
    x = 0.3 + 0.4 * torch.rand(40, FEATURES, generator=torch.Generator().manual_seed(1))
    model = Weighted(masked=masked).eval()
    with torch.no_grad():
        y = model(x) - ERROR[:, None]
    data = {split: (x.numpy(), y.numpy()) for split in ("train", "test")}
    return Subject.of(model, data, Regression(("y",), (TOLERANCE,)), bounds=(0.0, 1.0))


def asked(probe: DoesItTransfer | IsTheNumberReal, of: Subject, run: Run) -> Finding:
    answer = put(probe, of, replace(run, debug=True))
    assert answer.finding is not None, answer.why
    return answer.finding


def holds() -> np.ndarray:
    """Of a linear model: the error and the largest change of the sum stay within the tolerance."""
    return (ERROR.abs() + RADIUS * Weighted().weight.detach().abs().sum() < TOLERANCE).numpy()


def test_a_linear_regression_falls_as_the_formula_says_to_its_own_gradients_and_to_a_substitute(run: Run) -> None:
    found = asked(DoesItTransfer(radius=RADIUS), subject(), run)
    assert found.samples is not None
    columns = found.samples.columns
    at = columns["index"]
    assert columns["held own"].tolist() == holds()[at].tolist()
    clean = (ERROR.abs() < TOLERANCE).numpy()[at]
    assert columns["clean"].tolist() == clean.tolist()
    assert (columns["held transfer"] >= columns["held own"]).all()  # nothing beats the true gradient of a linear model
    assert columns["held transfer"].mean() < clean.mean()  # and the substitute has learned its direction
    assert found.witnesses is not None
    assert judge_witnesses(found.witnesses, subject(), run)[0].all()


def test_attacks_agree_on_an_honest_model_and_a_hidden_gradient_is_found_out(run: Run) -> None:
    honest, masked = (asked(IsTheNumberReal(radius=RADIUS), subject(masked=m), run) for m in (False, True))
    assert honest.measures[0].value == 0
    assert honest.samples is not None
    assert honest.measure("accuracy, all attacks").value == holds()[honest.samples.columns["index"]].mean()
    assert not [a for a in honest.alarms if a.doubts]
    assert masked.measures[0].value > 0.1
    assert any("gradient of the margin is exactly 0" in a.says and a.doubts for a in masked.alarms)
    assert masked.witnesses is not None
    assert judge_witnesses(masked.witnesses, subject(masked=True), run)[0].all()


def test_what_no_other_input_would_spoil_need_not_break_at_any_size() -> None:
    task = Regression(("y",), (TOLERANCE,))
    x = torch.rand(6, FEATURES, generator=torch.Generator().manual_seed(0))

    def constant(x: Tensor) -> Tensor:
        return 0 * x[:, :1]

    def blind(x: Tensor) -> Tensor:
        """Ten where the first value is above a half, without a slope that leads there."""
        return 0 * x[:, :1] + 10.0 * (x[:, :1] > 0.5)

    x[:, 0] = torch.tensor([0.1, 0.2, 0.1, 0.9, 0.2, 0.8])
    for model, spoilt in ((constant, False), (blind, True)):
        aim = Aim(task.margin, model(x), task.average)
        assert _elsewhere(model, x, aim).tolist() == [spoilt] * 6
        rng = torch.Generator().manual_seed(0)
        found = examine(model, x, aim, radius=0.01, steps=2, queries=2, rng=rng)
        assert found.by.tolist() == [-1] * 6
        assert spoilt or not found.any_size.any()


@pytest.mark.parametrize("answer", [(), (3,), (2, 5), (4, 6, 6), (2, 6, 5)])
def test_a_substitute_answers_in_the_shape_that_it_is_taught(answer: tuple[int, ...]) -> None:
    rng = torch.Generator().manual_seed(0)
    side = answer[-1] if len(answer) == 3 else 6
    made = answering_substitute((1, 6, side), answer, rng=rng)
    assert made(torch.rand(3, 1, 6, side)).shape == (3, *answer)


def test_it_learns_answers_in_their_own_units() -> None:
    rng = torch.Generator().manual_seed(0)
    x = torch.rand(256, 4, generator=rng)

    def victim(x: Tensor) -> Tensor:
        return torch.stack([1000 + 50 * x.sum(1), 1e-3 * x[:, 0]], 1)

    student = answering_substitute((4,), (2,), rng=rng)
    learned = learn_substitute(victim, x, substitute=student, rounds=1, answers=True, rng=rng)
    assert learned.asked == 512
    error = (learned.model(x) - victim(x)).abs().mean(0) / victim(x).std(0)
    assert bool((error < 0.25).all()), error
    units = Units(victim(x))
    assert_close(units(units.of(victim(x))), victim(x), rtol=1e-5, atol=1e-6)
    assert_close(units.of(victim(x)).std(0, correction=0), torch.ones(2), rtol=1e-3, atol=1e-3)
