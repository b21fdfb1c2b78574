"""Stated spreads and conformal intervals, asked of small subjects whose truth is known."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from assay.engine.local import ThisProcess
from assay.errors import AssayError
from assay.finding import Curve, Finding, Histogram, finding_from_json, finding_to_json
from assay.probe import Answer, Probe, put
from assay.probes.sure.does_it_know_how_far_off import DoesItKnowHowFarOff
from assay.probes.sure.how_wide_must_it_be import HowWideMustItBe
from assay.run import BUDGETS, Run
from assay.standard import judge
from assay.subject import Subject
from assay.tasks import Classification, Forecast, Regression, Task

RUN = Run(engine=ThisProcess(), budget=dataclasses.replace(BUDGETS["standard"], samples=1500))
LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)


class Stated(nn.Module):
    """x_0 is the truth's mean and x_1 its standard deviation; what is said of it is `sure` times too narrow."""

    def __init__(self, how: str = "spread", sure: float = 1.0, off: float = 0.0, levels: tuple[float, ...] = LEVELS):
        super().__init__()
        self.how, self.sure, self.off = how, sure, off
        self.z = nn.Parameter(torch.special.ndtri(torch.tensor(levels, dtype=torch.float64)).float())

    def forward(self, x: Tensor) -> Tensor:
        mean, sd = x[:, :1] + self.off, x[:, 1:] / self.sure
        if self.how == "spread":
            return torch.stack([mean, sd], 1)
        return mean if self.how == "numbers" else mean[:, None] + self.z[:, None] * sd[:, None]


def subject(model: nn.Module, task: Task | None = None, n: int = 1500, seed: int = 0, noise: float = 1.0) -> Subject:
    rng = np.random.default_rng(seed)
    x = np.stack([rng.random(n), 0.02 + 0.2 * rng.random(n)], 1).astype(np.float32)
    y = x[:, 0] + noise * x[:, 1] * rng.normal(size=n)
    return Subject.of(model, (x, y), task or Regression(("y",), (0.1,), ("kg",), spread=True))


def found(probe: Probe, of: Subject) -> Finding:
    answer = put(probe, of, RUN)
    assert answer.status == "asked", answer.why
    assert answer.finding is not None
    assert finding_from_json(finding_to_json(answer.finding)).views == answer.finding.views
    return answer.finding


def refused(probe: Probe, of: Subject) -> Answer:
    return put(probe, of, RUN)


def value(finding: Finding, name: str | None = None) -> float:
    number = finding.measure(name).value
    assert number is not None
    return number


def test_over_seeds_a_calibrated_model_never_fails_and_a_sure_one_always_does():
    (standard,) = DoesItKnowHowFarOff.standards
    honest = [judge(standard, found(DoesItKnowHowFarOff(), subject(Stated(), seed=s))).verdict for s in range(5)]
    assert set(honest) <= {"pass", "cannot tell"}
    assert honest.count("pass") >= 4
    sure = [judge(standard, found(DoesItKnowHowFarOff(), subject(Stated(sure=2), seed=s))).verdict for s in range(3)]
    assert set(sure) == {"fail"}
    timid = judge(standard, found(DoesItKnowHowFarOff(), subject(Stated(sure=0.4))))
    assert timid.verdict == "fail"  # all that it says is true, and nothing is worth much


def test_the_numbers_of_a_normal_are_those_of_its_truth():
    finding = found(DoesItKnowHowFarOff(), subject(Stated()))
    for level in (50, 80, 90, 95):
        m = finding.measure(f"coverage at {level} %")
        assert m.value == pytest.approx(level / 100, abs=0.05)
        assert m.low is not None
        assert m.high is not None
        assert m.low < m.value < m.high
    floor, blank, point = finding.measure("CRPS").beside
    assert value(finding, "CRPS") == pytest.approx(floor.value, rel=0.06)
    assert floor.value == pytest.approx(0.12 / np.sqrt(np.pi), rel=0.05)
    assert value(finding, "CRPS") < point.value < blank.value
    assert value(finding, "width") == pytest.approx(2 * 1.645 * 0.12, rel=0.05)
    assert finding.measure("width").unit == "kg"
    assert value(finding, "relative width") == pytest.approx(
        value(finding, "width") / finding.measure("width").beside[0].value
    )
    assert finding.measure().beside[0].value == pytest.approx(np.sqrt(2 * 0.09 / np.pi / 1500), rel=0.02)


def test_one_that_is_too_sure_scores_above_its_floor_and_heaps_at_both_ends():
    finding = found(DoesItKnowHowFarOff(), subject(Stated(sure=3)))
    assert value(finding, "CRPS") > 1.5 * finding.measure("CRPS").beside[0].value
    assert value(finding) == pytest.approx(0.9 - 0.4165, abs=0.04)  # P(|z| < 1.645 / 3) = 0.4165
    curve, levels, _ = finding.views
    assert isinstance(curve, Curve)
    assert isinstance(levels, Histogram)
    assert all(y < x for x, y in zip(curve.lines[0].x, curve.lines[0].y, strict=True))
    ((_, counts),) = levels.counts
    assert min(counts[0], counts[-1]) > 3 * max(counts[5:15])


def test_of_quantiles_the_levels_that_they_give_are_asked():
    task = Regression(("y",), (0.1,), quantiles=LEVELS)
    finding = found(DoesItKnowHowFarOff(), subject(Stated("quantiles"), task))
    assert value(finding) < 0.03
    assert [m.name for m in finding.measures if "coverage at" in m.name] == ["coverage at 50 %", "coverage at 90 %"]
    floor, blank, _ = finding.measure("CRPS").beside
    assert 0.8 * value(finding, "CRPS") < floor.value < value(finding, "CRPS")  # nothing is stated of the tails
    assert value(finding, "CRPS") < blank.value
    levels = finding.views[1]
    assert isinstance(levels, Histogram)
    assert max(levels.counts[0][1]) < 1.3 * min(levels.counts[0][1])
    other = Regression(("y",), (0.1,), quantiles=(0.1, 0.5, 0.9))
    model = Stated("quantiles", levels=(0.1, 0.5, 0.9))
    alarms = found(DoesItKnowHowFarOff(), subject(model, other)).alarms
    assert "the one of 80 % is judged" in alarms[0].says
    crossed = Stated("quantiles", levels=(0.9, 0.5, 0.1))
    finding = found(DoesItKnowHowFarOff(), subject(crossed, other))
    assert "cross in 1500 of 1500 (100 %) inputs" in finding.alarms[1].says
    assert value(finding, "coverage at 80 %") == 0


class Two(nn.Module):
    """Two numbers of one input, the second a hundred times the first; each `sure` times too narrow."""

    def __init__(self, *sure: float) -> None:
        super().__init__()
        self.sure = nn.Parameter(torch.tensor(sure, dtype=torch.float32))

    def forward(self, x: Tensor) -> Tensor:
        unit = torch.tensor([1.0, 100.0])
        return torch.stack([x[:, :1] * unit, x[:, 1:] * unit / self.sure], 1)


def test_of_two_numbers_one_does_not_make_up_for_the_other():
    rng = np.random.default_rng(0)
    x = np.stack([rng.random(1500), 0.02 + 0.2 * rng.random(1500)], 1).astype(np.float32)
    y = (x[:, :1] + x[:, 1:] * rng.normal(size=(1500, 2))) * [1, 100]
    task = Regression(("small", "large"), (0.1, 10.0), spread=True)
    fine = found(DoesItKnowHowFarOff(), Subject.of(Two(1, 1), (x, y), task))
    assert value(fine) < 0.03
    uneven = found(DoesItKnowHowFarOff(), Subject.of(Two(1.35, 0.4), (x, y), task))
    assert value(uneven, "coverage at 90 %") == pytest.approx(0.89, abs=0.02)
    assert value(uneven) == pytest.approx((0.123 + 0.1) / 2, abs=0.02)
    alike = found(HowWideMustItBe(), Subject.of(Two(1, 1), (x, y), task))
    assert value(alike, "coverage kept") == pytest.approx(0.9, abs=0.04)
    assert value(alike, "width") == pytest.approx(2 * 1.645 * 0.12 / 0.1, rel=0.1)


class Walk(nn.Module):
    """Quantiles of a walk of which the last value is shown: (n, q, 3 steps, 1 channel)."""

    def __init__(self) -> None:
        super().__init__()
        self.z = nn.Parameter(torch.special.ndtri(torch.tensor([0.05, 0.5, 0.95])))

    def forward(self, x: Tensor) -> Tensor:
        steps = torch.arange(1, 4).sqrt() * 0.1
        return (x[:, -1:, :] + (self.z[:, None] * steps)[None].flatten(1)[..., None]).reshape(len(x), 3, 3, 1)


def test_a_forecast_is_asked_where_it_has_quantiles():
    rng = np.random.default_rng(0)
    walks = np.cumsum(0.1 * rng.normal(size=(800, 8)), 1)[..., None].astype(np.float32)
    task = Forecast(("level",), 3, (0.1,), (0.05, 0.5, 0.95))
    of = Subject.of(Walk(), (walks[:, :5], walks[:, 5:]), task, bounds=(-5.0, 5.0))
    finding = found(DoesItKnowHowFarOff(), of)
    assert value(finding) < 0.04
    assert value(finding, "width") == pytest.approx(2 * 1.645 * np.sqrt([1, 2, 3]).mean(), rel=0.02)
    assert value(found(HowWideMustItBe(), of), "coverage kept") == pytest.approx(0.9, abs=0.05)
    plain = Forecast(("level",), 3, (0.1,))
    assert plain.gives == ("numbers",)
    assert task.gives == ("numbers", "spread")


def test_whom_it_is_not_asked():
    bare = subject(Stated("numbers"), Regression(("y",), (0.1,)))
    answer = refused(DoesItKnowHowFarOff(), bare)
    assert answer.status == "does not apply"
    assert answer.why.startswith("it needs what it says of the spread of its numbers (a standard deviation, or quant")
    assert Regression(("y",), (0.1,), quantiles=(0.5,)).gives == ("numbers",)
    assert Regression(("y",), (0.1,), quantiles=(0.1, 0.5)).gives == ("numbers",)
    x = np.random.default_rng(0).random((20, 2)).astype(np.float32)
    classes = Subject.of(nn.Linear(2, 2), (x, np.arange(20) % 2), Classification(("a", "b")))
    assert refused(HowWideMustItBe(), classes).why == "it needs numbers, and the subject's task is Classification"
    for probe, says in ((DoesItKnowHowFarOff, "level"), (HowWideMustItBe, "alpha")):
        with pytest.raises(AssayError, match=f"{says}=1 .*between 0 and 1"):
            probe(**{says: 1.0})


def test_conformal_intervals_keep_what_they_promise_however_wrong_the_spread():
    plain = found(HowWideMustItBe(), subject(Stated("numbers", off=0.1), Regression(("y",), (0.1,))))
    assert value(plain, "coverage kept") == pytest.approx(0.9, abs=0.04)
    sure = found(HowWideMustItBe(), subject(Stated(sure=5)))
    assert value(sure, "coverage kept") == pytest.approx(0.9, abs=0.04)
    assert value(sure, "coverage kept, absolute residuals") == pytest.approx(0.9, abs=0.04)
    assert value(sure) < value(sure, "relative width, absolute residuals")
    assert value(sure, "width") == pytest.approx(2 * 1.645 * 0.12, rel=0.12)  # what it says of size is not believed
    quantiles = Regression(("y",), (0.1,), quantiles=LEVELS)
    cqr = found(HowWideMustItBe(), subject(Stated("quantiles"), quantiles))
    assert value(cqr, "width") == pytest.approx(2 * 1.645 * 0.12, rel=0.12)
    assert value(cqr) < value(cqr, "relative width, absolute residuals")


def test_a_width_that_is_the_same_for_all_is_still_not_known_exactly():
    m = found(HowWideMustItBe(), subject(Stated("numbers"), Regression(("y",), (0.1,)))).measure("width")
    assert m.low is not None
    assert m.high is not None
    assert m.value is not None
    assert m.low < 0.98 * m.value
    assert m.high > 1.02 * m.value
    few = found(HowWideMustItBe(), subject(Stated("numbers"), Regression(("y",), (0.1,)), n=40))
    assert few.measure().high is None
    assert judge(HowWideMustItBe.standards[0], few).verdict == "cannot tell"
    assert "nothing tells how wide" in few.alarms[0].says


def test_one_that_is_worth_nothing_needs_more_than_knowing_nothing():
    (standard,) = HowWideMustItBe.standards
    finding = found(HowWideMustItBe(), subject(Backwards(), Regression(("y",), (0.1,))))
    assert judge(standard, finding).verdict == "fail"
    good = found(HowWideMustItBe(), subject(Stated("numbers"), Regression(("y",), (0.1,))))
    assert judge(standard, good).verdict == "pass"


class Backwards(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return 1 - x[:, :1]


def test_a_split_for_calibration_is_fitted_on_and_all_of_test_is_asked():
    def drawn(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
        rng = np.random.default_rng(seed)
        x = np.stack([rng.random(n), 0.02 + 0.2 * rng.random(n)], 1).astype(np.float32)
        return x, x[:, 0] + x[:, 1] * rng.normal(size=n)

    task = Regression(("y",), (0.1,))
    both = Subject.of(Stated("numbers"), {"test": drawn(200, 0), "calibration": drawn(300, 1)}, task)
    finding = found(HowWideMustItBe(), both)
    assert finding.measure().n == 200
    assert "fitted on 300 inputs of 'calibration'" in finding.measure().about
    alone = found(HowWideMustItBe(), Subject.of(Stated("numbers"), drawn(200, 0), task))
    assert alone.measure().n == 100
    few = refused(HowWideMustItBe(), Subject.of(Stated("numbers"), drawn(12, 0), task))
    assert few.status == "failed"
    assert "6 held-out inputs of 'test' are too few to promise 90 %; hold out at least 9" in few.why


def test_nothing_is_fitted_on_what_is_asked_about():
    of = subject(Stated("numbers"), Regression(("y",), (0.1,)), n=200)
    before = found(HowWideMustItBe(), of)
    assert before.samples is not None
    asked = before.samples.columns["index"]
    x, y = (part.numpy() for part in of.data["test"].take(np.arange(200)))
    y[asked] += 100
    after = found(HowWideMustItBe(), Subject.of(Stated("numbers"), (x, y), of.task))
    assert after.samples is not None
    assert after.samples.columns["index"].tolist() == asked.tolist()
    assert value(after, "width") == pytest.approx(value(before, "width"), rel=1e-5)
    assert value(after, "coverage kept") == 0


def test_one_input_no_spread_and_no_numbers():
    x, y = np.array([[0.5, 0.1]], np.float32), np.array([0.5], np.float32)
    spread = Regression(("y",), (0.1,), spread=True)
    finding = found(DoesItKnowHowFarOff(), Subject.of(Stated(), (x, y), spread))
    assert finding.measure("relative width").value is None
    assert any("as good as constant" in a.says for a in finding.alarms)
    assert judge(DoesItKnowHowFarOff.standards[0], finding).verdict == "cannot tell"
    still = found(DoesItKnowHowFarOff(), subject(Stated(sure=float("inf"))))
    assert value(still) == pytest.approx(0.9)
    assert value(still, "CRPS") == pytest.approx(still.measure("CRPS").beside[2].value)
    assert "a spread of 0 for 1500 of 1500" in still.alarms[0].says
    endless = found(HowWideMustItBe(), subject(Stated(sure=float("inf"))))
    assert endless.measure().value is None
    assert "are endless" in endless.alarms[-1].says
    assert value(endless, "coverage kept") == 1
    assert value(endless, "coverage kept, absolute residuals") == pytest.approx(0.9, abs=0.04)
    sick = subject(Stated())
    sick.model.off = float("nan")
    for probe in (DoesItKnowHowFarOff(), HowWideMustItBe()):
        answer = refused(probe, sick)
        assert answer.status == "failed"
        assert "NaN or infinity" in answer.why
