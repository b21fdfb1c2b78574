"""A policy in its environment: an exact toy, the pole on the cart, and environments that do not serve."""

from __future__ import annotations

import dataclasses
import re
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from assay import shelf
from assay.data.cart_pole import CartPole
from assay.engine.local import ThisProcess
from assay.errors import AssayError
from assay.finding import Curve, Finding, finding_from_json, finding_to_json
from assay.inputs import Channel, Observation
from assay.probe import put
from assay.probes.steady.does_it_last import ATTACKED, EARNED, NOISY, REACHED, WELL, DoesItLast
from assay.run import BUDGETS, Run
from assay.standard import judge
from assay.subject import Subject
from assay.tasks import Control

RUN = Run(engine=ThisProcess(), budget=BUDGETS["quick"], seed=3)
LENGTH, N = 20, 15


class Lamp:
    """Shows a number from 2 to 6; whoever answers 1 where it is above 4, and else 0, earns 1."""

    action_space: Any = SimpleNamespace(n=2)
    observation_space: Any = SimpleNamespace(shape=(1,))
    most: Any = float(LENGTH)
    length: int | None = LENGTH

    def reset(self, *, seed: int | None = None) -> Any:
        self.rng, self.steps = np.random.default_rng(seed), 0
        return self._shown(), {}

    def step(self, action: int) -> Any:
        earned, self.steps = float(action == (self.light > 4)), self.steps + 1
        return self._shown(), earned, self.steps == self.length, False, {}

    def _shown(self) -> Any:
        self.light = float(np.float32(self.rng.uniform(2, 6)))
        return np.array([self.light])


class Reads(nn.Module):
    """Answers by where the light is."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([4 - x[:, 0], x[:, 0] - 4], 1)


class Guesses(nn.Module):
    """Answers by digits of the light that mean nothing."""

    def forward(self, x: Tensor) -> Tensor:
        odds = torch.sin(1e4 * x[:, 0])
        return torch.stack([-odds, odds], 1)


def policy(model: nn.Module | None = None, environment: Any = Lamp, actions: int = 2, **told: Any) -> Subject:
    x = np.linspace(2, 6, 8, dtype=np.float32)[:, None]
    task = Control(tuple(map(str, range(actions))))
    made = model or Reads()
    return Subject.of(made, (x, x[:, 0] > 4), task, bounds=([2.0], [6.0]), environment=environment, **told)


def found(probe: DoesItLast, of: Subject, run: Run = RUN) -> Finding:
    answer = put(probe, of, run)
    assert answer.status == "asked", answer.why
    assert answer.theme == "steady"
    assert answer.finding is not None
    stored = finding_from_json(finding_to_json(answer.finding))
    assert (stored.views, stored.measures) == (answer.finding.views, answer.finding.measures)
    return answer.finding


def curve(finding: Finding, name: str) -> Curve:
    (view,) = [v for v in finding.views if v.name == name]
    assert isinstance(view, Curve)
    return view


def test_an_attacker_wins_exactly_the_steps_that_lie_within_reach():
    """The light is misread just where it is nearer to 4 than the radius, of a range of 4."""
    finding = found(DoesItLast(episodes=N, radius=0.1), policy())
    seeds = np.random.default_rng(RUN.seed).integers(2**31, size=N)
    lights = np.stack([np.random.default_rng(s).uniform(2, 6, LENGTH) for s in seeds])
    floor = finding.measure(EARNED).beside[0].value
    for x, y in zip(curve(finding, "attack").lines[0].x, curve(finding, "attack").lines[0].y, strict=True):
        earned = (abs(lights - 4) > 4 * x).sum(1).mean()
        assert y == pytest.approx((earned - floor) / (LENGTH - floor), abs=1e-9)
    assert curve(finding, "attack").lines[0].x == (0.0, 0.05, 0.1, 0.2)
    assert finding.measure(ATTACKED).value == curve(finding, "attack").lines[0].y[2]
    assert finding.measure(ATTACKED).value < 0.75


def test_a_policy_that_does_all_right_is_told_so_with_chance_beside():
    finding = found(DoesItLast(episodes=N), policy())
    assert (finding.measure().name, finding.measure().value) == (REACHED, 1.0)
    assert finding.measure(EARNED).value == LENGTH
    random, best = finding.measure(EARNED).beside
    assert random.value == pytest.approx(LENGTH / 2, abs=4 * (LENGTH / 4 / N) ** 0.5)
    assert (best.label, best.value) == ("the most that an episode can earn", LENGTH)
    well = finding.measure(WELL)
    assert (well.value, well.n, well.beside[0].value) == (1.0, N, 0.0)
    assert well.low is not None
    assert 0.7 < well.low < 1
    assert [a.says for a in finding.alarms] == [
        "Nobody says what happens to such observations every day: noise was not tried."
    ]
    assert NOISY not in {m.name for m in finding.measures}
    assert judge(DoesItLast.standards[0], finding).verdict == "pass"


def test_a_policy_that_guesses_is_near_the_random_one():
    finding = found(DoesItLast(episodes=100), policy(Guesses()))
    error = 2 * (LENGTH / 4 / 100) ** 0.5 / (LENGTH / 2)  # of either mean, in shares, and a little more
    assert abs(finding.measure().value or 1.0) < 4 * error
    assert judge(DoesItLast.standards[0], finding).verdict == "fail"


def test_the_same_seed_asks_the_same_and_another_one_does_not():
    numbers = [
        [m.value for m in found(DoesItLast(episodes=N), policy(), dataclasses.replace(RUN, seed=seed)).measures]
        for seed in (3, 3, 4)
    ]
    assert numbers[0] == numbers[1] != numbers[2]


class ShortPole(CartPole):
    """Its time is up after 80 steps."""

    most = 80.0

    def step(self, action: int) -> Any:
        seen, reward, fell, over, info = super().step(action)
        return seen, reward, fell, over or self.steps >= 80, info


def test_noise_costs_what_it_misreads():
    """At severity 5, with s the deviation: normal noise misreads E|s z| / 4 of the lights that lie evenly over a range
    of 4, an offset half of those within it, a dead sensor half of those that are dropped, and four levels none."""
    finding = found(DoesItLast(episodes=150), policy(kind=Observation((Channel("light", 2.0, 6.0),))))
    line = curve(finding, "noise").lines[0]
    misread = np.mean([2 * 0.6 * (2 / np.pi) ** 0.5 / 2 / 4, 2 * 0.6 / 4 / 2, 0.5 / 2, 0.0])
    floor = finding.measure(EARNED).beside[0].value
    expected = (LENGTH * (1 - misread) - floor) / (LENGTH - floor)
    assert line.y[5] == pytest.approx(expected, abs=0.05)
    assert line.y[0] == 1.0
    assert line.y[1] > line.y[3] > line.y[5]
    assert finding.measure(NOISY).value == pytest.approx(np.mean(line.y[1:]))


def test_the_pole_falls_in_noise_and_at_once_under_attack():
    balances = shelf.load("subjects", "cart-pole").build()
    assert balances.environment is CartPole
    finding = found(DoesItLast(episodes=8), dataclasses.replace(balances, environment=ShortPole))
    noise, attack = (curve(finding, name).lines[0] for name in ("noise", "attack"))
    assert finding.measure().value == 1.0
    assert noise.x == (0.0, 1.0, 2.0, 3.0, 4.0, 5.0)
    assert noise.y[0] == 1.0
    assert noise.y[5] < noise.y[1]
    assert attack.y[1] > attack.y[3] + 0.5
    assert attack.y[3] < 0.1
    assert not finding.alarms
    assert "noisy sensors leave" in finding.says


class Endless(Lamp):
    length = None


def test_episodes_that_never_end_are_cut_and_nothing_passes():
    finding = found(DoesItLast(episodes=N, longest=LENGTH), policy(environment=Endless))
    (cut,) = [a for a in finding.alarms if "cut" in a.says]
    assert cut.says.startswith(f"{5 * N} of {5 * N} (100 %) of the episodes had not ended after {LENGTH} steps")
    assert finding.measure().value == 1.0
    assert judge(DoesItLast.standards[0], finding).verdict == "cannot tell"


class Untold(Lamp):
    most = None


def test_without_a_best_that_is_known_the_best_met_stands_in_and_nothing_passes():
    finding = found(DoesItLast(episodes=N), policy(environment=Untold))
    (alarm,) = [a for a in finding.alarms if "best=" in a.says]
    assert alarm.about(REACHED)
    assert not alarm.about(EARNED)
    assert judge(DoesItLast.standards[0], finding).verdict == "cannot tell"
    given = found(DoesItLast(episodes=N, best=2 * LENGTH), policy(environment=Untold))
    assert not any("best=" in a.says for a in given.alarms)
    assert 0.2 < (given.measure().value or 0) < 0.5


def test_without_gradients_nobody_attacks_and_that_is_told():
    finding = found(DoesItLast(episodes=N), policy(differentiable=False))
    assert ATTACKED not in {m.name for m in finding.measures}
    assert any("no gradients" in a.says for a in finding.alarms)


class Blind(Lamp):
    def _shown(self) -> Any:
        super()._shown()
        return np.array([np.nan if self.steps == 4 else self.light])


@pytest.mark.parametrize(
    ("of", "probe", "says"),
    [
        (lambda: policy(environment=CartPole), DoesItLast(), r"shape \(4,\), and the policy takes \(1,\)"),
        (lambda: policy(environment=Blind), DoesItLast(), "value nan after 4 steps"),
        (lambda: policy(environment=object), DoesItLast(), "object has no reset"),
        (lambda: policy(), DoesItLast(best=1.0), "nothing lies between them"),
    ],
)
def test_what_does_not_fit_is_told_in_one_line(of, probe, says):
    answer = put(probe, of(), RUN)
    assert answer.status == "failed"
    assert "\n" not in answer.why
    assert re.search(says, answer.why)


def test_without_an_environment_it_does_not_apply():
    answer = put(DoesItLast(), policy(environment=None), RUN)
    assert (answer.status, "needs an environment" in answer.why) == ("does not apply", True)
    with pytest.raises(AssayError, match="a Lamp; give what makes a fresh one"):
        policy(environment=Lamp())


@pytest.mark.parametrize("settings", [{"radius": 2}, {"episodes": 0}, {"longest": 0}, {"best": float("inf")}])
def test_settings_that_mean_nothing_are_refused(settings):
    with pytest.raises(AssayError, match=next(iter(settings))):
        DoesItLast(**settings)


def test_the_environment_counts_for_who_a_subject_is():
    plain, lamp = policy(environment=None), policy()
    prints = [s.fingerprint() for s in (plain, lamp, policy(environment=Endless), policy(), policy(environment=None))]
    assert prints[0] == prints[4]
    assert prints[1] == prints[3]
    assert len(set(prints)) == 3
    assert lamp.cured(Guesses(), "guessing").environment is Lamp
