"""Whether a model without classes knows what it does not know, and what its confidence is worth: known answers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from assay.finding import Finding, Measure
from assay.probe import put
from assay.probes.sure.confidence import Confidence
from assay.probes.sure.does_it_know import DoesItKnow
from assay.probes.sure.is_it_sure_far_away import IsItSureFarAway
from assay.run import Run
from assay.subject import Subject
from assay.tasks import Classification, Detection, Labels, Regression, Retrieval, Segmentation, Tagging


class Says(nn.Module):
    """Rows that hold what is to be said of them; a linear layer in between, so that there are activations."""

    def __init__(self, shape: tuple[int, ...] | None = None, wide: int = 2) -> None:
        super().__init__()
        self.shape, self.same = shape, nn.Linear(wide, wide, bias=False)
        self.same.weight.data = torch.eye(wide)

    def forward(self, x: Tensor) -> Tensor:
        out = self.same(x)
        return out if self.shape is None else out.reshape(len(x), *self.shape)


def measures(found: Finding | None) -> dict[str, Measure]:
    assert found is not None
    return {m.name: m for m in found.measures}


def spread(stated: float, n: int = 400) -> Subject:
    """A mean of 0.5, a true standard deviation from 0.05 to 0.4, and `stated` times it said."""
    rng = np.random.default_rng(0)
    true = rng.uniform(0.05, 0.4, n)
    y = 0.5 + true * rng.standard_normal(n)
    x = np.stack([np.full(n, 0.5), stated * true], 1).astype(np.float32)
    data = {"train": (x, y[:, None].astype(np.float32)), "test": (x, y[:, None].astype(np.float32))}
    return Subject.of(Says((2, 1)), data, Regression(("y",), (0.2,), spread=True), bounds=(0.0, 1.0))


def test_a_stated_spread_is_held_to_how_often_the_number_is_near_enough(run: Run) -> None:
    wide = replace(run, budget=replace(run.budget, samples=None))
    true, narrow = (put(Confidence("legacy"), spread(stated), wide).finding for stated in (1.0, 0.25))
    assert true is not None
    assert narrow is not None
    assert true.measures[0].low == 0
    assert true.measures[0].value < 0.06
    assert narrow.measures[0].low > 0.1
    assert measures(narrow)["over-confidence"].low > 0.1
    # within 0.2 of a normal of standard deviation s: erf(0.2 / (s sqrt 2))
    s = np.random.default_rng(0).uniform(0.05, 0.4, 400)
    said = [torch.erf(torch.tensor(0.2 / v / 2**0.5)).item() for v in s]
    assert true.samples is not None
    np.testing.assert_allclose(np.sort(true.samples.columns["confidence"]), np.sort(said), atol=1e-5)


def labels(sharper: float) -> Subject:
    rng = np.random.default_rng(0)
    logit = rng.normal(0, 1.5, (500, 3)).clip(-4, 4)
    true = rng.random(logit.shape) < 1 / (1 + np.exp(-logit))
    x = (sharper * logit).astype(np.float32)
    return Subject.of(Says(wide=3), {"test": (x, true.astype(np.int64))}, Labels(("a", "b", "c")), bounds=(-16.0, 16.0))


def test_of_several_labels_all_together_and_the_worst_by_itself(run: Run) -> None:
    wide = replace(run, budget=replace(run.budget, samples=None))
    true, sharp = (measures(put(Confidence("legacy"), labels(sharper), wide).finding) for sharper in (1.0, 4.0))
    for name in ("calibration error", "calibration error of the worst label"):
        assert true[name].low == 0, name
        assert sharp[name].low > 0.05, name
    assert abs(true["over-confidence"].value) < 0.06 < 0.2 < sharp["over-confidence"].value


def test_of_places_only_those_that_count_are_held_to_what_is_said(run: Run) -> None:
    rng = np.random.default_rng(0)
    logit = rng.normal(0, 1.5, (300, 4, 2)).clip(-4, 4)
    chance = np.exp(logit) / np.exp(logit).sum(-1, keepdims=True)
    true = (rng.random((300, 4)) < chance[..., 1]).astype(np.int64)
    true[:, :2] = -1
    logit[:, :2] = [-4, 4]  # very sure of a class that is not there, and not counted
    x = logit.reshape(300, 8).astype(np.float32)
    subject = Subject.of(Says((4, 2), 8), {"test": (x, true)}, Tagging(("O", "X")), bounds=(-4.0, 4.0))
    found = measures(put(Confidence(), subject, run).finding)
    assert found["calibration error"].low == 0
    assert abs(found["over-confidence"].value) < 0.12


@pytest.mark.parametrize(
    ("task", "why"),
    [
        (Detection(("disc",)), "boxes says nothing of those it missed"),
        (Retrieval(("a", "b"), first=1), "similarities, which are no probabilities"),
        (Regression(("y",), (0.2,)), "without a standard deviation"),
    ],
)
def test_a_confidence_that_is_no_probability_is_refused_with_the_reason(task: object, why: str) -> None:
    reason = Confidence().why_not(replace(spread(1.0), task=task))  # type: ignore[arg-type]
    assert reason is not None
    assert why in reason


def test_a_spread_that_is_wide_where_it_is_wrong_knows_its_mistakes(run: Run) -> None:
    found = measures(put(DoesItKnow(), spread(1.0), run).finding)
    assert found["AUROC, its own mistakes"].low > 0.6
    area = found["area under the risk-coverage curve"]
    order, best = (b.value for b in area.beside)
    assert best < area.value < order


def test_the_area_is_the_mean_risk_of_the_surest_shares(run: Run) -> None:
    answer = put(DoesItKnow(), spread(1.0), run).finding
    assert answer is not None
    assert answer.samples is not None
    rows = sorted(zip(answer.samples.columns["its confidence"], answer.samples.columns["right"], strict=True))[::-1]
    risks = [sum(not right for _, right in rows[: i + 1]) / (i + 1) for i in range(len(rows))]
    assert measures(answer)["area under the risk-coverage curve"].value == pytest.approx(np.mean(risks))


def test_numbers_that_say_nothing_are_told_by_their_activations_and_what_reads_classes_is_left_out(run: Run) -> None:
    rng = np.random.default_rng(0)
    x = (0.5 + 0.4 * np.array([1, -1]) * rng.random((200, 1)) + 0.01 * rng.random((200, 2))).astype(
        np.float32
    )  # a line
    data = {split: (part, part.sum(1, keepdims=True)) for split, part in (("train", x[:100]), ("test", x[100:]))}
    subject = Subject.of(nn.Linear(2, 1), data, Regression(("y",), (0.2,)), bounds=(0.0, 1.0))
    told = put(DoesItKnow(), subject, run).finding
    assert told is not None
    assert "do not say how sure they are" in told.says
    assert any("Left out, energy, ODIN" in a.says and "task is Regression" in a.says for a in told.alarms)
    assert "by deep distances" in told.measures[0].about or "by nearest neighbours" in told.measures[0].about
    alone = replace(subject, data={"test": subject.data["test"]})
    reason = DoesItKnow().why_not(alone)
    assert reason is not None
    assert "without training data" in reason


def test_a_segmenter_that_is_flat_on_strangers_tells_them(run: Run) -> None:
    class Contrast(nn.Module):
        """Sure where a pixel is black or white: in stripes. Strangers are grey, or have no class to be sure of."""

        def __init__(self) -> None:
            super().__init__()
            self.look = nn.Conv2d(1, 2, 1)
            self.look.weight.data = torch.tensor([-20.0, 20.0]).view(2, 1, 1, 1)
            self.look.bias.data = torch.tensor([10.0, -10.0])

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.look(x)
            return out

    stripes = np.zeros((60, 1, 8, 8), dtype=np.float32)
    stripes[::2, :, ::2], stripes[1::2, :, 1::2] = 1, 1
    data = {split: (stripes, stripes[:, 0].astype(np.int64)) for split in ("train", "test")}
    subject = Subject.of(Contrast(), data, Segmentation(("dark", "light")), bounds=(0.0, 1.0))
    found = put(DoesItKnow(), subject, run).finding
    told = measures(found)
    assert told["AUROC, far outliers"].value > 0.95
    assert told["AUROC, its own mistakes"].value is None  # it makes none
    assert found is not None
    assert any("All 60 answers are good enough" in a.says for a in found.alarms)
    assert "label" not in found.samples.columns  # type: ignore[union-attr]


@pytest.mark.parametrize(("grows", "far"), [(1.0, 0.0), (0.0, 0.9545)])
def test_far_away_a_spread_that_grows_ends_at_nothing_and_one_that_does_not_stays(
    run: Run, grows: float, far: float
) -> None:
    class Widens(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.stack([x.mean(1), 0.1 + grows * (x - 0.5).abs().sum(1) / 1e3], 1)[..., None]

    x = np.random.default_rng(0).random((12, 3)).astype(np.float32)
    task = Regression(("y",), (0.2,), spread=True)
    subject = Subject.of(Widens(), (x, x.mean(1, keepdims=True)), task, bounds=(0.0, 1.0))
    found = put(IsItSureFarAway(inputs=8), subject, replace(run, debug=True)).finding
    told = measures(found)
    assert told["confidence far away"].value == pytest.approx(far, abs=0.15)
    assert told["confidence far away"].beside[0].value == 0  # chance
    assert told["confidence far away"].beside[1].value == pytest.approx(0.9545, abs=0.01)  # erf(sqrt 2)
    reason = IsItSureFarAway().why_not(replace(subject, task=Regression(("y",), (0.2,))))
    assert reason is not None
    assert "which does not say so" in reason


def test_an_answer_that_is_no_number_is_named_by_its_input(run: Run) -> None:
    x = np.random.default_rng(0).uniform(0.1, 0.9, (60, 2)).astype(np.float32)
    x[30, 0] = 1.0

    class Holed(Says):
        def forward(self, x: Tensor) -> Tensor:
            return torch.where(x[:, :1] > 0.95, torch.nan, super().forward(x) - 0.5)

    subject = Subject.of(Holed(), (x, (x > 0.5).astype(np.int64)), Labels(("a", "b")), bounds=(0.0, 1.0))
    answer = put(Confidence(), subject, replace(run, debug=False, budget=replace(run.budget, samples=None)))
    assert answer.why == "The model returned NaN or infinity for input 30; check its weights and scaling."


def test_one_number_is_the_last_layer_and_deep_distances_use_the_others(run: Run) -> None:
    x = np.random.default_rng(0).random((120, 2)).astype(np.float32)
    data = {split: (part, part.sum(1, keepdims=True)) for split, part in (("train", x[:80]), ("test", x[80:]))}
    net = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1))
    told = put(DoesItKnow(), Subject.of(net, data, Regression(("y",), (0.2,)), bounds=(0.0, 1.0)), run).finding
    assert told is not None
    assert not any("deep distances" in a.says for a in told.alarms)
    assert any("deep distances" in m.name + m.about for m in told.measures)


def test_a_strangers_task_is_held_to_what_it_promises(run: Run) -> None:
    """Nothing of the question is written for a task: one that says what its confidence is of is asked."""

    @dataclass(frozen=True)
    class Height(Regression):
        promise: ClassVar[str] = "the height is near"  # type: ignore[assignment]

        def confidence(self, out: Tensor) -> Tensor:
            return torch.full((len(out),), 0.75)

    subject = replace(spread(1.0), task=Height(("y",), (0.2,), spread=True))
    finding = put(Confidence(), subject, run).finding
    assert finding is not None
    assert finding.says.startswith("The probability that the height is near is off by ")
    assert finding.samples is not None
    assert finding.samples.columns["confidence"] == pytest.approx(0.75)


def test_of_no_answer_is_a_confidence_below_that_of_an_empty_one() -> None:
    for task, out in (
        (Classification(("a", "b", "c")), torch.zeros(1, 3)),
        (Labels(("a", "b")), torch.zeros(1, 2)),
        (Segmentation(("a", "b", "c", "d")), torch.zeros(1, 4, 3, 3)),
    ):
        assert task.confidence(out) is not None
        assert float(task.confidence(out)) == pytest.approx(task.chance)  # type: ignore[arg-type]
