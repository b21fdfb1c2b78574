"""Confidence under shift: the three numbers of every condition, the user's own shifts, and what is no shift."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from assay.data.arrays import Arrays
from assay.errors import AssayError
from assay.finding import Bars, Boxes, Finding, Matrix
from assay.methods.uncertainty import ece, nll
from assay.nn.members import Ensemble
from assay.nn.scaled import Scaled
from assay.probe import put
from assay.probes.sure.confidence_under_shift import ConfidenceUnderShift
from assay.run import Run
from assay.standard import judge
from assay.subject import Subject

Model = tuple[nn.Module, dict[str, tuple[NDArray[np.float32], NDArray[np.int64]]]]
QUICK = ("gaussian-noise", "contrast")


def ask(
    subject: Subject, run: Run, *, corruptions: tuple[str, ...] = QUICK, bins: int = 15, inputs: int = 100
) -> Finding:
    answer = put(ConfidenceUnderShift(corruptions=corruptions, bins=bins, inputs=inputs), subject, run)
    assert answer.finding is not None, answer.why
    return answer.finding


def value(finding: Finding, name: str) -> float:
    found = finding.measure(name)
    assert found.value is not None
    assert found.low is not None
    assert found.high is not None
    assert found.low <= found.value <= found.high
    return found.value


def raw(finding: Finding, name: str) -> float:
    """The estimate, with what chance adds to it."""
    (found,) = [b.value for b in finding.measure(name).beside if b.label == "with what chance adds"]
    return found


def boxes(finding: Finding, name: str) -> tuple[tuple[float, ...], ...]:
    (view,) = [v for v in finding.views if v.name == name]
    assert isinstance(view, Boxes)
    assert view.labels == ("clean", "1", "2", "3", "4", "5")
    return view.values


def column(finding: Finding, name: str) -> NDArray[np.float64]:
    assert finding.samples is not None
    return np.asarray(finding.samples.columns[name])


def spoil(x: Tensor, kind: str, severity: int, *, rng: object, low: float, high: float) -> Tensor:
    """A corruption that is easy to do again."""
    return (x * (1 - 0.15 * severity) if kind == "fog" else x + 0.1 * severity).clamp(low, high)


def test_every_condition_is_measured_as_printed_and_put_in_its_place(
    digits: Subject, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("assay.probes.sure.confidence_under_shift.corrupt", spoil)
    finding = ask(digits, run, corruptions=("fog", "jpeg"), bins=10)
    index = run.pick(digits.data["test"])
    assert np.array_equal(column(finding, "index"), index)
    x, y = digits.data["test"].take(index)
    error, right, lost = np.zeros((2, 5)), np.zeros((2, 5, len(y))), np.zeros((2, 5, len(y)))
    for c, kind in enumerate(("fog", "jpeg")):
        for s in range(5):
            p = digits.predict(spoil(x, kind, s + 1, rng=None, low=0, high=1)).double().softmax(1)
            right[c, s] = p.argmax(1) == y
            lost[c, s] = -p[torch.arange(len(y)), y].log()
            error[c, s] = ece(p.amax(1), right[c, s], bins=10)
            assert lost[c, s].mean() == pytest.approx(nll(p, y))
    p = digits.predict(x).double().softmax(1)
    clean = ece(p.amax(1), p.argmax(1) == y, bins=10)
    assert finding.measure().name == "calibration error under shift"
    assert raw(finding, "calibration error under shift") == pytest.approx(error.mean())
    assert raw(finding, "calibration error, clean") == pytest.approx(clean)
    assert value(finding, "calibration error under shift") < error.mean()
    assert value(finding, "rise over clean") == pytest.approx(error.mean() - clean)
    assert value(finding, "accuracy under shift") == pytest.approx(right.mean())
    assert value(finding, "negative log-likelihood under shift") == pytest.approx(lost.mean(), rel=1e-5)
    for s in range(5):
        assert raw(finding, f"calibration error, severity {s + 1}") == pytest.approx(error[:, s].mean())
    (table,) = [v for v in finding.views if isinstance(v, Matrix)]
    np.testing.assert_allclose(np.array(table.values, dtype=float), error)
    np.testing.assert_allclose(boxes(finding, "error")[1:], error.T)
    np.testing.assert_allclose(boxes(finding, "accuracy")[1:], right.mean(2).T)
    np.testing.assert_allclose(boxes(finding, "surprise")[1:], lost.mean(2).T, rtol=1e-5)
    assert boxes(finding, "error")[0] == pytest.approx((clean,))
    for name in ("accuracy under shift", "negative log-likelihood under shift", "over-confidence under shift"):
        mean_of = finding.measure(name).column  # what a paired comparison needs
        assert mean_of is not None
        assert column(finding, mean_of).mean() == pytest.approx(value(finding, name))
    assert all("10 equal bins" in m.about for m in finding.measures if "calibration error" in m.name)


class Told(nn.Module):
    """Two classes: the first value of an input is what it says of the second, made surer by a factor."""

    def __init__(self, surer: float = 1.0) -> None:
        super().__init__()
        self.surer = surer

    def forward(self, x: Tensor) -> Tensor:
        z = x[:, 0, 0, 0].clamp(0.001, 0.999)
        return self.surer * torch.stack([(1 - z).log(), z.log()], 1)


def forget(x: Tensor, kind: str, severity: int, *, rng: object, low: float, high: float) -> Tensor:
    """Of more inputs at each severity the first value says nothing any longer: calibrated as before, and less sure."""
    out = x.clone()
    out[:, 0, 0, 0] = torch.where(x[:, 0, 0, 1] < severity / 25, 0.5, x[:, 0, 0, 0])
    return out


def verdicts(surer: float, monkeypatch: pytest.MonkeyPatch, run: Run, *, inputs: int) -> list[tuple[str, float, float]]:
    """Ten drawn test sets whose second class comes with exactly its first value as its chance."""
    monkeypatch.setattr("assay.probes.sure.confidence_under_shift.corrupt", forget)
    found = []
    for seed in range(10):
        rng = torch.Generator().manual_seed(seed)
        x = torch.rand(inputs, 1, 2, 2, generator=rng)
        y = (torch.rand(inputs, generator=rng) < x[:, 0, 0, 0]).long()
        finding = ask(Subject.classifier(Told(surer), (x, y)), replace(run, seed=seed), inputs=inputs)
        m = finding.measure()
        (standard,) = ConfidenceUnderShift.standards
        found.append((judge(standard, finding).verdict, value(finding, m.name), raw(finding, m.name)))
    return found


def test_a_calibrated_model_does_not_fail_by_what_chance_adds_and_an_over_confident_one_does(
    monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    calm = verdicts(1.0, monkeypatch, run, inputs=40)
    assert np.mean([estimate for *_, estimate in calm]) > 0.1  # as it was judged once, above the limit
    assert np.mean([error for _, error, _ in calm]) < 0.06
    assert not [v for v, *_ in calm if v == "fail"]
    loud = verdicts(8.0, monkeypatch, run, inputs=300)
    assert [v for v, *_ in loud].count("fail") >= 9


def test_the_harder_the_shift_the_lower_the_accuracy_and_the_higher_the_error(digits: Subject, run: Run) -> None:
    finding = ask(digits, run, corruptions=("gaussian-noise", "impulse-noise", "contrast", "translation"))
    accuracy = [np.mean(box) for box in boxes(finding, "accuracy")]
    error = [np.mean(box) for box in boxes(finding, "error")]
    assert accuracy[0] > accuracy[3] > accuracy[5]
    assert error[0] < error[3] < error[5]
    assert (finding.measure("rise over clean").low or 0) > 0
    assert value(finding, "over-confidence under shift") > 0


def test_the_budget_is_shared_by_81_questions_about_each_input(digits: Subject, run: Run) -> None:
    answer = put(ConfidenceUnderShift(corruptions=QUICK), digits, run)
    assert answer.finding is not None
    assert answer.finding.measure().n == 35  # of 100


@pytest.fixture(scope="module")
def nets(digits_model: Model) -> list[nn.Module]:
    """Four small nets from four starts."""
    _, data = digits_model
    x, y = (torch.as_tensor(v) for v in data["train"])
    made: list[nn.Module] = []
    for seed in range(4):
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            net = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
            optimiser = torch.optim.Adam(net.parameters(), lr=0.01)
            for _ in range(150):
                rows = torch.randint(0, len(x), (128,))
                loss = nn.functional.cross_entropy(net(x[rows]), y[rows])
                optimiser.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimiser.step()
        made.append(net.eval())
    return made


def test_an_ensemble_is_less_surprised_at_every_severity_and_its_lead_grows(
    digits: Subject, run: Run, nets: list[nn.Module]
) -> None:
    alone = [ask(replace(digits, model=net, layers={}), run) for net in nets]
    together = ask(replace(digits, model=Ensemble(nets), layers={}), run)

    def mean(name: str, severity: int) -> NDArray[np.float64]:
        return np.asarray(np.mean([boxes(f, name)[severity] for f in alone], axis=0))

    lead = []
    for severity in range(6):
        single, joint = mean("surprise", severity), np.array(boxes(together, "surprise")[severity])
        assert (joint <= single + 1e-9).all()
        lead.append(float((single - joint).mean()))
    assert lead[5] > lead[0]
    assert np.mean(boxes(together, "error")[5]) < np.mean(mean("error", 5))


def test_a_temperature_leaves_the_accuracy_and_moves_the_other_two(digits: Subject, run: Run) -> None:
    scaled = Scaled(digits.model, 10)
    scaled.set(torch.full((10,), 0.2), torch.zeros(10))
    before, after = ask(digits, run), ask(replace(digits, model=scaled, layers={}), run)
    assert value(before, "accuracy under shift") == value(after, "accuracy under shift")
    for name in ("calibration error under shift", "negative log-likelihood under shift"):
        assert abs(value(before, name) - value(after, name)) > 0.01


def test_named_splits_are_shifts_and_some_names_are_not(digits: Subject, run: Run) -> None:
    x, y = digits.data["test"].take(np.arange(200))
    told = {
        **digits.data,
        "upside down": Arrays(x.flip(2), y),
        "calibration": Arrays(x, y),
        "outliers": Arrays(torch.rand(x.shape), torch.zeros(200, dtype=torch.long)),
    }
    finding = ask(replace(digits, data=told), run)
    names = [m.name for m in finding.measures]
    assert value(finding, "accuracy on upside down") < 0.7
    shifted = value(finding, "calibration error on upside down")
    assert shifted > value(finding, "calibration error, clean") + 0.1
    assert value(finding, "negative log-likelihood on upside down") > 0.5
    assert not any("calibration error on" in n and "upside down" not in n for n in names)
    assert 0.1 < value(finding, "confidence on outliers") < 1
    assert "On 'upside down' it is off by" in finding.says
    (bars,) = [v for v in finding.views if isinstance(v, Bars)]
    assert bars.labels == ("test", "upside down")
    assert bars.values[1] == shifted


def test_inputs_that_are_no_pictures_need_a_shift_of_their_own(run: Run) -> None:
    rng = torch.Generator().manual_seed(0)
    x, y = torch.rand(80, 5, generator=rng), torch.randint(0, 3, (80,), generator=rng)
    model = nn.Linear(5, 3)
    assert "it corrupts images" in put(ConfidenceUnderShift(), Subject.classifier(model, (x, y)), run).why
    finding = ask(Subject.classifier(model, {"test": (x, y), "later": (x.flip(1), y)}), run)
    assert finding.measure().name == "calibration error on later"
    assert finding.measure("calibration error, clean").n == 80
    assert not any("under shift" in m.name for m in finding.measures)


def test_few_inputs_are_answered_with_an_alarm(digits: Subject, run: Run) -> None:
    x, y = digits.data["test"].take(np.arange(12))
    finding = ask(replace(digits, data={"test": Arrays(x, y)}), run)
    assert "Fewer than 30" in finding.alarms[0].says
    assert finding.measure().name in finding.alarms[0].doubts
    assert not ask(digits, run).alarms


def test_what_cannot_be_asked_is_told_in_one_line(digits: Subject, run: Run) -> None:
    class Overflows(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            spread = x.flatten(1).std(1, correction=0, keepdim=True)
            return torch.where(spread < 0.2, torch.inf, 1.0).expand(-1, 10)

    answer = put(ConfidenceUnderShift(corruptions=("contrast",)), replace(digits, model=Overflows(), layers={}), run)
    assert answer.status == "failed"
    assert "NaN or infinity for an input with contrast" in answer.why
    with pytest.raises(AssayError, match="'rain' are not known"):
        ConfidenceUnderShift(corruptions=("rain",))
    with pytest.raises(AssayError, match="bins=0"):
        ConfidenceUnderShift(bins=0)


def test_the_same_seed_gives_the_same_numbers(digits: Subject, run: Run) -> None:
    first, again = (ask(digits, run) for _ in range(2))
    assert first.measures == again.measures
    assert first.measures != ask(digits, replace(run, seed=1)).measures
