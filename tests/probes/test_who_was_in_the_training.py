"""Members that a model has by heart are told, those of a model that knows nothing are not, and a shift is no secret."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from assay.data.arrays import Arrays
from assay.engine.local import ThisProcess
from assay.errors import AssayError
from assay.finding import Finding, Gallery
from assay.methods.private.shadows import Pool, Recipe, Shadows, trained
from assay.probe import configure, put
from assay.probes.private.who_was_in_the_training import (
    HEADLINE,
    WhoWasInTheTraining,
    _area,
    _Asked,
    _Attack,
    _told,
    _unlike,
)
from assay.run import BUDGETS, Run
from assay.standard import judge
from assay.subject import Subject

N = 1200
AT_1, AT_01 = (f"members told at {r} % false alarms" for r in ("1", "0.1"))


def rows(n: int, seed: int, low: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return (low + (1 - low) * rng.random((n, 5))).astype(np.float32), rng.integers(0, 2, n)


class ByHeart(nn.Module):
    """Sure of what it holds, whatever else it is asked it has no opinion."""

    held: Tensor

    def __init__(self, x: np.ndarray, y: np.ndarray) -> None:
        super().__init__()
        self.register_buffer("held", torch.as_tensor(x))
        self.register_buffer("sure", torch.eye(2)[torch.as_tensor(y)] * 10)
        self.linear = nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        gap, at = torch.cdist(x, self.held, compute_mode="donot_use_mm_for_euclid_dist").min(1)
        return torch.where((gap < 1e-6)[:, None], self.sure[at], 0.1 * self.linear(x))


def subject(model: nn.Module | None = None, *, n: int = N, low: float = 0.0) -> Subject:
    train = rows(n, 0)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = ByHeart(*train) if model is None else model
    return Subject.classifier(model.eval(), {"train": Arrays(*train), "test": Arrays(*rows(n, 1, low))})


def asked(of: Subject, budget: str = "quick", **settings: object) -> Finding:
    run = Run(engine=ThisProcess(), debug=True, budget=BUDGETS[budget])
    answer = put(configure(WhoWasInTheTraining, settings), of, run)
    assert answer.finding is not None, answer.why
    return answer.finding


def test_what_is_known_by_heart_is_told_to_the_last_member():
    found = asked(subject())
    assert found.measure(AT_1).value == 1
    assert found.measure(AT_1).low > 0.99
    assert found.measure(AT_01).value == 1
    assert found.measure("balanced accuracy").value == 1
    assert found.measure("members told from others").value == 1
    assert found.samples.columns["told"].all()
    (gallery,) = (view for view in found.views if isinstance(view, Gallery))
    assert "says its label" in gallery.exhibits[0].caption
    assert "no other scores as high" in gallery.exhibits[0].caption


def test_a_model_that_saw_nobody_tells_of_nobody():
    with torch.random.fork_rng():
        torch.manual_seed(1)
        found = asked(subject(nn.Linear(5, 2)))
    for name, chance in ((AT_1, 0.01), (AT_01, 0.001), ("members told from others", 0.5), ("balanced accuracy", 0.5)):
        measure = found.measure(name)
        assert measure.low <= chance <= measure.high, name
    blind = found.measure("told from others without the model")
    assert blind.low <= 0.5 <= blind.high
    assert [a.says for a in found.alarms if "by confidence alone" in a.says]
    assert not [a for a in found.alarms if "differ" in a.says]


def test_a_shift_between_train_and_test_is_told_and_doubted():
    found = asked(subject(nn.Linear(5, 2), low=0.3))
    (alarm,) = (a for a in found.alarms if "never saw the model" in a.says)
    assert alarm.about(AT_1)
    assert alarm.says in found.says
    assert not found.samples.columns["told"].any()
    assert found.measure("told from others without the model").low > 0.6


def test_classes_that_are_not_as_common_are_told_and_doubted():
    of = subject(nn.Linear(5, 2))
    x, _ = rows(N, 1)
    rare = replace(of, data={**of.data, "test": Arrays(x, (np.arange(N) % 5 == 0).astype(np.int64))})
    found = asked(rare)
    (alarm,) = (a for a in found.alarms if "as common" in a.says)
    assert alarm.about(AT_1)
    assert found.measure(AT_1).value is None


def test_where_a_shift_could_tell_members_no_rate_is_told_and_none_fails():
    found = asked(subject(low=0.3))
    for name in HEADLINE:
        assert (found.measure(name).value, found.measure(name).low, found.measure(name).high) == (None, None, None)
    assert judge(WhoWasInTheTraining.standards[0], found).verdict == "cannot tell"
    assert found.measure(f"{AT_1}, loss").value == 1  # what was seen stays to be looked at


def test_poor_shadows_buy_no_privacy():
    """They hold all members by heart, whoever they were trained on, and so tell nothing apart."""
    found = asked(subject(n=700), shadows=4, epochs=1)
    assert found.measure(f"{AT_1}, LiRA").high < 0.5
    assert found.measure(AT_1).low > 0.99
    assert "by its loss" in found.measure(AT_1).about
    assert judge(WhoWasInTheTraining.standards[0], found).verdict == "fail"


def test_the_largest_of_many_attacks_is_less_sure_from_below():
    rng = np.random.default_rng(0)
    attack = _Attack("loss", rng.normal(1, 1, N), rng.normal(0, 1, N))
    weak = _Attack("entropy", rng.normal(0, 1, N), attack.others)
    for of in (lambda each: _told(each, 0.01), _area):
        alone, worse, both = of([attack]), of([weak]), of([attack, weak])
        assert worse.high < alone.low
        assert (both.value, both.high) == (alone.value, alone.high)
        assert worse.high < both.low < alone.low


@pytest.mark.parametrize(("learnt", "says"), [(100, []), (70, ["know less by heart"])])
def test_shadows_that_know_less_by_heart_are_doubted(learnt: int, says: list[str]) -> None:
    """A model right on all members and half of the others; shadows right on half of what they have not learnt."""
    member, y = np.arange(200) < 100, np.zeros(200, dtype=np.int64)
    said = np.where(member, 0, np.arange(200) % 2)
    none = np.zeros(200)
    model = _Asked({}, y, said, member, none, {}, 0)
    inside = torch.stack([torch.as_tensor(member), torch.as_tensor(~member)])
    right = torch.stack([torch.arange(200) % 100 < learnt, torch.arange(200) % 100 < learnt])
    right = torch.where(inside, right, torch.arange(200) % 2 == 0)
    alarms = _unlike(model, inside, Shadows(torch.zeros(2, 200), right))
    assert [a.says for a in alarms if not any(words in a.says for words in says)] == []
    assert len(alarms) == len(says)
    assert all(a.about(AT_1) for a in alarms)


def test_test_inputs_that_stand_in_the_training_are_no_others():
    of = subject()
    x, y = rows(N, 1)
    x[:100], y[:100] = of.data["train"].take(np.arange(100))
    found = asked(replace(of, data={**of.data, "test": Arrays(x, y)}))
    assert found.measure(AT_01).value == 1  # one of them would be a false alarm
    assert any("100 of 1200" in a.says for a in found.alarms)


def test_few_others_leave_rare_false_alarms_unmeasured():
    found = asked(subject(n=300))
    assert found.measure(AT_01).value is None
    assert found.measure(AT_1).value == 1
    assert any("at least 1,000 inputs" in a.says for a in found.alarms)


def test_shadow_models_tell_what_confidence_alone_does_not():
    """A network that learnt random labels by heart; its shadows learn halves of the pool with the same recipe."""
    n, recipe = 60, Recipe(epochs=60, lr=3e-2, batch=60)
    x, y = rows(n, 0)
    with torch.random.fork_rng():
        torch.manual_seed(2)
        start = nn.Sequential(nn.Linear(5, 64), nn.ReLU(), nn.Linear(64, 2))
    model = trained(start, Pool(torch.as_tensor(x), torch.as_tensor(y)), recipe, seed=3)
    found = asked(subject(model, n=n), shadows=8, epochs=60, lr=3e-2, batch=60)
    area = found.measure("members told from others")
    assert area.low > 0.6
    assert "by shadow models" in area.about
    assert found.measure("members told from others, loss").value is not None
    assert found.measure("members told from others, LiRA, offline").value > 0.6
    assert not [a for a in found.alarms if "by confidence alone" in a.says]


def test_a_shadow_budget_that_does_not_fit_says_how_long_it_would_take():
    found = asked(subject(nn.Linear(5, 2)), shadows=64, minutes=1e-4)
    (alarm,) = (a for a in found.alarms if "by confidence alone" in a.says)
    assert "64 shadow models would take about" in alarm.says
    assert "--set minutes=" in alarm.says
    assert alarm.about(AT_1)


def test_what_cannot_be_trained_has_no_shadows_and_says_why():
    found = asked(replace(subject(nn.Linear(5, 2)), differentiable=False), shadows=4)
    assert any("gives answers only" in a.says for a in found.alarms)


@pytest.mark.parametrize(
    ("settings", "says"),
    [({"shadows": 3}, "shadows=3"), ({"shadows": 2}, "at least 4"), ({"lr": 2}, "lr=2"), ({"epochs": 0}, "epochs=0")],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, float], says: str) -> None:
    with pytest.raises(AssayError, match=says):
        WhoWasInTheTraining(**settings)


def test_without_training_data_or_with_too_few_it_says_why_not():
    of = subject(nn.Linear(5, 2))
    assert "needs the training data" in str(WhoWasInTheTraining().why_not(replace(of, data={"test": of.data["test"]})))
    few = replace(of, data={**of.data, "train": Arrays(*rows(20, 0))})
    assert "there are 20 training" in str(WhoWasInTheTraining().why_not(few))
    run = Run(engine=ThisProcess(), budget=BUDGETS["quick"])
    again = put(WhoWasInTheTraining(), replace(of, data={**of.data, "test": of.data["train"]}), run)
    assert "0 are left who were not in it" in str(again.why)


def test_a_training_takes_as_many_epochs_as_told_or_about_a_thousand_steps():
    assert Recipe(7).epochs_of(50) == 7
    assert Recipe(batch=10).epochs_of(95) == 100  # ten steps an epoch
    assert Recipe(batch=10).epochs_of(10_000) == 10
