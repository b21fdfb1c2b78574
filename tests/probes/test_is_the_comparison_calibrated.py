"""Is the comparison calibrated: the right one is, one that exaggerates is not, and 1/2 for all says nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from assay.errors import AssayError
from assay.nn.siamese import Siamese
from assay.probe import put
from assay.probes.compared.is_the_comparison_calibrated import ERROR, HEADLINE, LEAN, SHARP, IsTheComparisonCalibrated
from assay.run import Run
from assay.standard import judge
from assay.subject import Subject


class Tail(nn.Module):
    def __init__(self, rule: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.rule = rule

    def forward(self, e1: Tensor, e2: Tensor) -> Tensor:
        return self.rule((e1 - e2)[:, 0] / 2 + 0.5)


def ranker(rule: Callable[[Tensor], Tensor], noise: float = 0.0, n: int = 200) -> Subject:
    """Of images of one grey, whose value is that grey plus noise."""
    rng = torch.Generator().manual_seed(0)
    x = torch.rand(n, 1, 1, 1, generator=rng).expand(n, 1, 2, 2).clone()
    value = x[:, 0, 0, 0].double() + noise * torch.randn(n, generator=rng).double()
    model = Siamese(nn.Sequential(nn.Flatten(), nn.AvgPool1d(4)), Tail(rule)).eval()
    return Subject.ranker(model, (x, value.numpy()), low=-1, high=2, pairs=600, name="by hand")


def ask(subject: Subject, run: Run, **settings: Any) -> Any:  # a Finding; each test knows which views it has
    answer = put(IsTheComparisonCalibrated(**settings), subject, run)
    assert answer.finding is not None, answer.why
    return answer.finding


def third(c: Tensor) -> Tensor:
    """The right comparison: values have a range of 3, greys of 1."""
    return (c - 0.5) / 3 + 0.5


def test_the_right_comparison_is_calibrated(run: Run) -> None:
    finding = ask(ranker(third), run)
    for name in (HEADLINE, ERROR, LEAN):
        assert finding.measure(name).value == pytest.approx(0, abs=1e-6)
    assert finding.measure(SHARP).value == pytest.approx(finding.measure(SHARP).beside[0].value, abs=1e-6)
    assert finding.measure(ERROR).beside[0].value == pytest.approx(finding.measure(SHARP).value, abs=1e-6)
    assert judge(IsTheComparisonCalibrated.standards[0], finding).verdict == "pass"
    assert not finding.alarms
    line = finding.views[0].lines[0]
    assert line.y == pytest.approx(line.x, abs=1e-6)
    assert finding.views[0].diagonal


def test_noise_in_the_values_costs_error_and_no_calibration(run: Run) -> None:
    finding = ask(ranker(third, noise=0.1), run)
    gap = finding.measure()
    assert gap.low <= 0.01
    assert gap.value < 4 * gap.beside[0].value
    assert finding.measure(ERROR).value > 0.01


def test_one_that_exaggerates_is_found_out(run: Run) -> None:
    finding = ask(ranker(lambda c: c), run)
    columns = finding.samples.columns
    exact = np.abs(columns["comparison"] - columns["right comparison"]).mean()
    assert finding.measure().value == pytest.approx(exact, rel=0.02)  # all off to the same side in each bin but one
    assert finding.measure(LEAN).value == pytest.approx(exact, rel=1e-6)
    assert "larger than they are" in finding.says
    assert judge(IsTheComparisonCalibrated.standards[0], finding).verdict == "fail"
    timid = ask(ranker(lambda c: (c - 0.5) / 9 + 0.5), run)
    assert "smaller than they are" in timid.says


def test_always_half_is_calibrated_and_in_doubt(run: Run) -> None:
    finding = ask(ranker(lambda c: 0 * c + 0.5), run)
    assert finding.measure().value == pytest.approx(finding.measure().beside[1].value)
    assert finding.measure(SHARP).value == 0
    assert "than always saying 0.5" in finding.alarms[0].says
    assert judge(IsTheComparisonCalibrated.standards[0], finding).verdict == "cannot tell"


def test_few_pairs_are_not_trusted(run: Run) -> None:
    small = replace(run, budget=replace(run.budget, samples=20))
    finding = ask(ranker(third, noise=0.1), small)
    assert finding.alarms[0].says.startswith("Only 20 pairs")
    assert finding.alarms[0].doubts == (HEADLINE,)


def test_the_bundled_ranker(run: Run) -> None:
    from assay.subjects.digits_ranker import build

    finding = ask(build(), run)
    assert finding.measure().value < 0.06
    error = finding.measure(ERROR)
    assert error.low <= error.value <= error.high < 0.5 * error.beside[0].value
    assert not finding.alarms


def test_bad_settings_are_refused() -> None:
    with pytest.raises(AssayError, match="bins=0 .* at least 1"):
        IsTheComparisonCalibrated(bins=0)
