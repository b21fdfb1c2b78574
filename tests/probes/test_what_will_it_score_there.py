"""What will it score there: predicted without labels, held against them where there are some, and never too sure."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from assay.data.arrays import Arrays, Targets
from assay.domain import Unlabelled
from assay.finding import Bars, Finding, Matrix
from assay.probe import put
from assay.probes.steady.what_will_it_score_there import MEASURED, WhatWillItScoreThere
from assay.run import Budget, Run
from assay.standard import judge
from assay.subject import Subject
from assay.tasks import Regression, Segmentation

CHANGES = ("gaussian-noise", "fog", "rotation", "contrast", "translation")


@pytest.fixture(scope="module")
def there(digits_model: tuple[nn.Module, dict[str, tuple[NDArray[np.float32], NDArray[np.int64]]]]) -> Subject:
    """Half of the test digits at home; the others darker, once with labels and once without."""
    model, data = digits_model
    x, y = data["test"]
    half = len(x) // 2
    darker = (0.35 * x[half:]).astype(np.float32)
    subject = Subject.of(
        model, {"test": (x[:half], y[:half]), "train": data["train"]},
        domains={"known": (darker, y[half:]), "unknown": darker},
    )  # fmt: skip
    return subject


@pytest.fixture
def run(run: Run, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Five of the everyday changes are enough."""
    every = Subject.everyday
    monkeypatch.setattr(Subject, "everyday", lambda s: {k: v for k, v in every(s).items() if k in CHANGES})
    return replace(run, budget=Budget("tiny", samples=150, steps=5, restarts=1, shown=3), debug=True)


def ask(subject: Subject, run: Run) -> Finding:
    answer = put(WhatWillItScoreThere(), subject, run)
    assert answer.finding is not None, answer.why
    return answer.finding


def numbers(finding: Finding, name: str) -> tuple[float, float, float]:
    m = finding.measure(f"predicted accuracy on {name}")
    assert m.value is not None
    assert m.low is not None
    assert m.high is not None
    assert 0 <= m.low <= m.value <= m.high <= 1
    return m.value, m.low, m.high


def beside(finding: Finding, name: str, label: str) -> float:
    (found,) = [b.value for b in finding.measure(f"predicted accuracy on {name}").beside if b.label == label]
    return found


def test_a_domain_is_predicted_alike_with_labels_and_without_and_held_against_them(there: Subject, run: Run) -> None:
    finding = ask(there, run)
    assert finding.measure().name == "predicted accuracy on unknown"  # what nobody has measured comes first
    index = run.pick(there.data["known"])
    logits, y = run.predict(there, "known", index, "")
    truth = float((logits.argmax(1) == y).mean())
    value, low, high = numbers(finding, "known")
    assert beside(finding, "known", "measured there") == pytest.approx(truth)
    assert low <= truth <= high
    assert not any(b.label == "measured there" for b in finding.measure().beside)
    assert finding.measure("error of the prediction").value == pytest.approx(abs(value - truth))
    assert numbers(finding, "unknown")[0] == pytest.approx(value, abs=0.1)  # other inputs are drawn: no label is seen
    assert "cannot be seen without labels" in finding.says
    (table,) = [v for v in finding.views if isinstance(v, Matrix)]
    assert table.rows == ("known", "unknown")
    assert table.columns[-1] == MEASURED
    assert table.values[1][-1] is None
    bars = [v for v in finding.views if isinstance(v, Bars)]
    assert [b.name for b in bars] == ["estimates on known", "estimates on unknown", "worth"]
    assert all(b.low is not None and b.high is not None for b in bars[:2])
    assert not any("conflict" in a.says for a in finding.alarms)


class Sevens(Unlabelled):
    """Other labels where nobody may read any."""

    def take(self, indices: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        return super().take(indices)[0], torch.full((len(indices),), 7)


def test_labels_of_a_domain_without_any_are_not_read(there: Subject, run: Run) -> None:
    hidden = there.unlabelled["unknown"]
    other = replace(there, unlabelled={"unknown": Sevens(hidden)})
    assert numbers(ask(other, run), "unknown") == pytest.approx(numbers(ask(there, run), "unknown"))


def test_other_labels_for_like_inputs_are_an_alarm_that_doubts(there: Subject, run: Run) -> None:
    rows = np.arange(len(there.data["test"]))
    x, y = (part.numpy() for part in there.data["test"].take(rows))
    swapped = np.where(y < 5, (y + 1) % 5, y)
    odd = replace(there, data={**there.data, "other labels": Arrays(x + 0, swapped, None)})
    finding = ask(odd, replace(run, budget=replace(run.budget, samples=None)))
    (alarm,) = [a for a in finding.alarms if "a label conflict" in a.says]
    assert alarm.doubts == ("predicted accuracy on other labels",)
    assert numbers(finding, "other labels")[1] > beside(finding, "other labels", "measured there")
    assert finding.measure("error of the prediction").n == 1  # only of what does not conflict
    assert judge(WhatWillItScoreThere.standards[0], finding).measure == "predicted accuracy on unknown"


@pytest.mark.parametrize(
    ("other", "unheard", "says"),
    [
        ([0, 7, 2, 3, 4, 5, 6, 1, 8, 9], "_by_inputs", "as surely as at home, and of those labelled"),
        ([0, 7, 2, 3, 4, 5, 6, 7, 8, 9], "_by_inputs", "and nothing is labelled '1' there"),
        ([1, 2, 3, 4, 0, 5, 6, 7, 8, 9], "_by_answers", "Like inputs have other labels"),
    ],
)
def test_a_conflict_is_seen_by_its_answers_and_by_the_inputs_alone(
    there: Subject, run: Run, monkeypatch: pytest.MonkeyPatch, other: list[int], unheard: str, says: str
) -> None:
    monkeypatch.setattr(f"assay.probes.steady.what_will_it_score_there.{unheard}", lambda *_: "")
    x, y = (part.numpy() for part in there.data["train"].take(np.arange(450)))
    odd = replace(there, data={**there.data, "other labels": Arrays(x, np.array(other)[y], None)}, unlabelled={})
    finding = ask(odd, replace(run, budget=replace(run.budget, samples=None)))
    (alarm,) = [a for a in finding.alarms if "a label conflict" in a.says]
    assert says in alarm.says
    assert "on 'other labels'" in alarm.says


class Same(nn.Module):
    """The same logits for every input."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.arange(10.0).expand(len(x), 10)


def test_a_model_that_says_the_same_to_all_gets_no_number(there: Subject, run: Run) -> None:
    finding = ask(replace(there, model=Same(), layers={}), run)
    assert finding.measure().value is None
    assert any("does not differ between inputs" in a.says for a in finding.alarms)
    assert judge(WhatWillItScoreThere.standards[0], finding).verdict == "cannot tell"


class Loud(nn.Module):
    """Logits times a factor, of pixels in other units."""

    def __init__(self, model: nn.Module, factor: float = 1.0, unit: float = 1.0) -> None:
        super().__init__()
        self.model, self.factor, self.unit = model, factor, unit

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.factor * self.model(x / self.unit)
        return out


def test_other_units_change_nothing_and_logits_times_1000_little(there: Subject, run: Run) -> None:
    plain = ask(there, run)
    large = {s: Arrays(255 * d.take(np.arange(len(d)))[0].numpy(), np.asarray(d.labels), None)
             for s, d in {**there.data, **there.unlabelled}.items()}  # fmt: skip
    unlabelled = {"unknown": Unlabelled(large.pop("unknown"))}
    space = replace(there.inputs, high=255.0)
    units = replace(
        there, model=Loud(there.model, unit=255.0), inputs=space, data=large, unlabelled=unlabelled, layers={}
    )
    assert numbers(ask(units, run), "unknown") == pytest.approx(numbers(plain, "unknown"), abs=0.02)
    loud = ask(replace(there, model=Loud(there.model, 1000.0), layers={}), run)
    value, low, high = numbers(loud, "known")
    assert low <= beside(loud, "known", "measured there") <= high
    assert beside(loud, "known", "measured there") == beside(plain, "known", "measured there")
    assert value < 0.99


def test_a_small_domain_is_told_and_gets_no_number(there: Subject, run: Run) -> None:
    x, y = (part.numpy() for part in there.data["known"].take(np.arange(20)))
    finding = ask(replace(there, data={**there.data, "few": Arrays(x, y, None)}), run)
    assert any("Fewer than 30 inputs in few" in a.says for a in finding.alarms)
    assert not any("few" in m.name for m in finding.measures)


class Spread(nn.Module):
    """A number and its standard deviation, which grows with the input."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([x.sum(1), 0.2 + x.abs().sum(1)], 1)


def test_a_number_with_a_spread_is_predicted_and_doubted_where_nobody_knows_its_changes(run: Run) -> None:
    rng = np.random.default_rng(0)
    x = rng.random((400, 2)).astype(np.float32)
    y = (x.sum(1) + (0.2 + x.sum(1)) * rng.normal(size=400)).astype(np.float32)[:, None]
    task = Regression(("y",), (1.0,), spread=True)
    subject = Subject.of(
        Spread(), {"test": (x[:200], y[:200])}, task, domains={"small": (0.3 * x[200:], y[200:]), "new": 0.3 * x[200:]}
    )
    finding = ask(subject, run)
    assert numbers(finding, "new")[0] > float(finding.samples.columns["right"].mean())  # type: ignore[union-attr]
    (alarm,) = [a for a in finding.alarms if "Nobody says what happens" in a.says]
    assert "predicted accuracy on new" in alarm.doubts
    assert judge(WhatWillItScoreThere.standards[0], finding).verdict != "pass"


def test_where_it_does_not_apply_it_says_why(there: Subject, digits: Subject) -> None:
    assert "needs a domain beside train and test" in str(WhatWillItScoreThere().why_not(digits))
    x = np.random.default_rng(0).random((40, 2)).astype(np.float32)
    plain = Subject.of(nn.Linear(2, 1), {"test": Targets(x, x[:, :1])}, Regression(("y",), (1.0,)), domains={"new": x})
    assert "without a standard deviation" in str(WhatWillItScoreThere().why_not(plain))
    masks = replace(there, task=Segmentation(("a", "b"), 0.5))
    assert "one place of many" in str(WhatWillItScoreThere().why_not(masks))
    assert WhatWillItScoreThere().why_not(there) is None


class Sick(nn.Module):
    """NaN after every change: whatever is brighter than it was."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.model(x)
        return out * torch.where(x.flatten(1).amin(1) > 0, torch.nan, 1.0)[:, None]


def test_a_model_that_returns_nan_breaks_the_question_in_one_line(there: Subject, run: Run) -> None:
    answer = put(WhatWillItScoreThere(), replace(there, model=Sick(there.model), layers={}), replace(run, debug=False))
    assert answer.status == "failed"
    assert "NaN or infinity for an input after" in answer.why
