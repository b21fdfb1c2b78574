"""Sets of classes: their coverage is counted on inputs that no threshold was fitted on."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from assay.data.arrays import Arrays
from assay.data.held_out import held_out
from assay.errors import AssayError
from assay.finding import Bars, Finding, Histogram, Matrix
from assay.nn.with_sets import WithSets
from assay.probe import put
from assay.probes.sure.how_often_is_the_set_right import HowOftenIsTheSetRight
from assay.run import Budget, Run
from assay.subject import Subject


def ask(subject: Subject, run: Run, *, alpha: float = 0.1, severity: int = 3) -> Finding:
    answer = put(HowOftenIsTheSetRight(alpha=alpha, severity=severity), subject, run)
    assert answer.finding is not None, answer.why
    return answer.finding


def value(finding: Finding, name: str = "coverage") -> float:
    found = finding.measure(name).value
    assert found is not None
    return found


def column(finding: Finding, name: str) -> NDArray[np.generic]:
    assert finding.samples is not None
    return finding.samples.columns[name]


class Sharp(nn.Module):
    """Inputs in [0, 1] are logits, ten times too sharp."""

    def forward(self, x: Tensor) -> Tensor:
        return 40 * (x - 0.5)


def noisy(n: int, k: int = 4, seed: int = 0) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(seed)
    x = torch.rand(n, k, generator=rng)
    return x, torch.multinomial((4 * x).softmax(1), 1, generator=rng)[:, 0]


@pytest.fixture
def unsure() -> Subject:
    return Subject.classifier(Sharp(), noisy(1200), name="sharp")


@pytest.fixture
def large(run: Run) -> Run:
    return replace(run, budget=Budget("whole", samples=None, steps=5, restarts=1))


def test_plain_sets_of_an_overconfident_model_break_their_promise_and_conformal_ones_keep_theirs(
    unsure: Subject, large: Run
) -> None:
    finding = ask(unsure, large)
    part = held_out(unsure.data)
    assert np.array_equal(column(finding, "index"), part.ask)
    x, y = unsure.data["test"].take(part.ask)
    held, size = [], []
    for row, truth in zip(Sharp()(x).double().softmax(1).tolist(), y.tolist(), strict=True):
        chosen, mass = [], 0.0
        for c in sorted(range(4), key=lambda c: -row[c]):  # the likeliest until they sum to 0.9
            chosen.append(c)
            mass += row[c]
            if mass >= 0.9:
                break
        held.append(truth in chosen)
        size.append(len(chosen))
    assert column(finding, "held").tolist() == held
    assert column(finding, "size").tolist() == size
    assert value(finding) == pytest.approx(np.mean(held))
    assert value(finding, "mean set size") == pytest.approx(np.mean(size))
    assert (finding.measure().high or 1) < 0.8
    assert value(finding, "promise missed by") == pytest.approx(0.9 - np.mean(held))
    assert finding.measure("promise missed by").low == pytest.approx(0.9 - (finding.measure().high or 0))
    for score in ("LAC", "APS", "RAPS"):
        assert value(finding, f"coverage, {score}") == pytest.approx(0.9, abs=0.04)
        assert value(finding, f"mean set size, {score}") > np.mean(size)
    assert not finding.alarms


def test_a_threshold_is_the_corrected_quantile_of_the_held_out_half(unsure: Subject, large: Run) -> None:
    finding = ask(unsure, large, alpha=0.2)
    part = held_out(unsure.data)
    x, y = unsure.data["test"].take(part.fit)
    p = Sharp()(x).double().softmax(1)
    own = sorted((1 - p[torch.arange(len(y)), y]).tolist())
    threshold = own[math.ceil((len(own) + 1) * 0.8) - 1]
    x, y = unsure.data["test"].take(part.ask)
    q = Sharp()(x).double().softmax(1)
    assert np.array_equal(column(finding, "size LAC"), (1 - q <= threshold).sum(1).numpy())
    assert "80 %" in finding.measure("coverage, LAC").about


def test_a_fitted_model_is_judged_by_its_own_sets(unsure: Subject, large: Run) -> None:
    def unlikely(p: Tensor, u: Tensor) -> Tensor:
        return 1 - p.double()

    model = WithSets(Sharp(), unlikely, alpha=0.3, rule="lac")
    model.threshold.fill_(0.98)
    finding = ask(replace(unsure, model=model), large)
    x, y = unsure.data["test"].take(held_out(unsure.data).ask)
    sets = 1 - Sharp()(x).double().softmax(1) <= 0.98
    assert np.array_equal(column(finding, "held"), sets[torch.arange(len(y)), y].numpy())
    assert "lac" in finding.measure().about
    assert value(finding, "promise missed by") == pytest.approx(max(0.0, 0.7 - value(finding)))
    (alarm,) = finding.alarms
    assert "promise 70 %" in alarm.says
    assert "alpha=0.3" in alarm.says
    assert not ask(replace(unsure, model=model), large, alpha=0.3).alarms


def test_a_class_that_is_covered_less_is_named_and_chance_is_told_beside(unsure: Subject, large: Run) -> None:
    x, y = noisy(1200)
    hard = y == 2
    x[hard] = x[hard][:, torch.tensor([2, 1, 0, 3])]  # class 2 looks like class 0, and the other way round
    subject = Subject.classifier(Sharp(), (x, y), classes=("a", "b", "c", "d"))
    finding = ask(subject, large)
    worst = finding.measure("coverage of the worst class")
    rows = column(finding, "label") == 2
    assert "'c'" in worst.about
    assert value(finding, worst.name) == pytest.approx(column(finding, "held")[rows].mean())
    assert worst.n == rows.sum()
    assert (worst.high or 1) < worst.beside[0].value < value(finding)  # even coverage has a lowest class too
    bars, each = [v for v in finding.views if isinstance(v, Bars)]
    assert bars.values[2] == worst.value
    # One threshold for all breaks the promise in class c; one for each class keeps it there.
    one, many = (finding.measure(f"coverage of the worst class, {rule}") for rule in ("LAC", "LAC per class"))
    assert value(finding, "coverage, LAC") == pytest.approx(0.9, abs=0.04)
    assert (one.high or 1) < 0.85
    assert (many.low or 0) < 0.9 < (many.high or 0)
    assert value(finding, "coverage, LAC per class") == pytest.approx(0.9, abs=0.04)
    assert min(each.values) == many.value
    table, sizes = (v for v in finding.views if isinstance(v, Matrix) and v.name.startswith("class-"))
    assert table.values[table.rows.index("LAC per class")] == pytest.approx(each.values)
    assert sizes.values[4][2] == pytest.approx(column(finding, "size LAC per class")[rows].mean())


def test_a_class_with_few_held_out_inputs_is_in_every_set_and_that_is_said(large: Run) -> None:
    x, y = noisy(1200)
    keep = torch.cat([torch.nonzero(y != 3)[:, 0], torch.nonzero(y == 3)[:10, 0]])  # 5 to fit on: 9 promise 90 %
    finding = ask(Subject.classifier(Sharp(), (x[keep], y[keep]), classes=("a", "b", "c", "d")), large)
    assert "Fewer than 9 held-out inputs of d: per class" in finding.alarms[0].says
    assert column(finding, "held LAC per class")[column(finding, "label") == 3].all()
    assert (column(finding, "size LAC per class") >= 1).all()


def test_shifted_pictures_are_covered_less(digits: Subject, run: Run) -> None:
    x, y = digits.data["test"].take(np.arange(300))
    later = Arrays(x.flip(2), y)
    finding = ask(replace(digits, data={**digits.data, "later": later}), run, severity=5)
    shifted = value(finding, "coverage under shift")
    assert (finding.measure("coverage under shift").high or 1) < value(finding)
    assert column(finding, "held under shift").mean() == pytest.approx(shifted)
    assert value(finding, "coverage on later") < (finding.measure().low or 0)
    (table,) = [v for v in finding.views if isinstance(v, Matrix) and v.name == "coverage"]
    assert table.rows[:5] == ("plain", "LAC", "APS", "RAPS", "LAC per class")
    assert table.columns[0] == "as it is"
    assert table.columns[-1] == "later"
    plain = np.array(table.values, dtype=float)[0]
    assert plain[0] == pytest.approx(value(finding))
    assert plain[1:-1].mean() == pytest.approx(shifted)
    assert plain[-1] == pytest.approx(value(finding, "coverage on later"))
    (histogram,) = [v for v in finding.views if isinstance(v, Histogram)]
    assert [sum(counts) for _, counts in histogram.counts] == [100.0] * 7


def test_a_split_for_calibration_leaves_all_of_test_to_ask_about(unsure: Subject, large: Run) -> None:
    finding = ask(replace(unsure, data={**unsure.data, "calibration": Arrays(*noisy(400, seed=1))}), large)
    assert len(column(finding, "index")) == 1200
    assert "fitted on 400 inputs of 'calibration'" in finding.measure("coverage, LAC").about
    assert value(finding, "coverage, LAC") == pytest.approx(0.9, abs=0.04)
    assert not any("coverage on" in m.name for m in finding.measures)


def test_a_random_model_is_asked_through_its_draws(unsure: Subject, large: Run) -> None:
    class Trembles(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return 40 * (x + 0.2 * torch.randn_like(x) - 0.5)

    finding = ask(replace(unsure, model=Trembles(), draws=20), large)
    assert value(finding, "coverage, LAC") == pytest.approx(0.9, abs=0.04)
    assert value(finding, "mean set size") > value(ask(unsure, large), "mean set size")


def test_too_few_inputs_and_bad_settings_get_one_line(unsure: Subject, large: Run) -> None:
    tiny = replace(unsure, data={"test": Arrays(*noisy(12))})
    assert "6 held-out inputs are too few to promise 0.9 coverage" in put(HowOftenIsTheSetRight(), tiny, large).why
    few = ask(replace(unsure, data={"test": Arrays(*noisy(40))}), large)
    assert ["Only 20 inputs" in a.says for a in few.alarms if "per class" not in a.says] == [True, True]
    with pytest.raises(AssayError, match="alpha=90"):
        HowOftenIsTheSetRight(alpha=90)
    with pytest.raises(AssayError, match="'rain' are not known"):
        HowOftenIsTheSetRight(corruptions=("rain",))
    with pytest.raises(AssayError, match="severity=6"):
        HowOftenIsTheSetRight(severity=6)


def test_an_alarm_names_a_few_of_many_rare_classes() -> None:
    names = [f"class {k}" for k in range(200)]
    (alarm, *_) = HowOftenIsTheSetRight()._alarms(None, 1000, 1000, names)
    assert f"inputs of {', '.join(names[:8])} and 192 more: per class" in alarm.says
