"""Whole episodes: against the equations integrated one by one, and whatever an environment can do wrong."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from assay.data import cart_pole as pole
from assay.data import episodes
from assay.data.episodes import at_random, best_known, roll_out
from assay.errors import AssayError, SubjectError

POLE: dict[str, Any] = {"actions": 2, "shape": (4,)}


def constant(action):
    return lambda seen, rows: np.full(len(seen), action)


def clumsy(seen, rows):
    return (seen[:, 2] > 0).astype(np.int64)


def balancing(seen, rows):
    return pole.reference(seen)


def steps_to_fall(place, speed, angle, turning, action):
    """Newton's equations in plain Python, with one push for ever."""
    force, steps = 10.0 * (2 * action - 1), 0
    while abs(place) <= 2.4 and abs(angle) <= math.radians(12):
        sine, cosine = math.sin(angle), math.cos(angle)
        push = (force + 0.05 * turning * turning * sine) / 1.1
        twist = (9.8 * sine - cosine * push) / (0.5 * (4 / 3 - 0.1 * cosine * cosine / 1.1))
        drive = push - 0.05 * twist * cosine / 1.1
        place, speed = place + 0.02 * speed, speed + 0.02 * drive
        angle, turning = angle + 0.02 * turning, turning + 0.02 * twist
        steps += 1
    return steps


class World:
    """An environment that shows 0.5 twice, rewards with 1, and ends after `length` steps; None: never."""

    action_space: Any = SimpleNamespace(n=2)
    observation_space: Any = SimpleNamespace(shape=(2,))
    length: int | None = 3

    def __init__(self) -> None:
        self.taken: list[int] = []

    def reset(self, *, seed: int | None = None) -> Any:
        return np.full(2, 0.5), {}

    def step(self, action: int) -> Any:
        self.taken.append(action)
        return np.full(2, 0.5), 1.0, len(self.taken) == self.length, False, {}


@pytest.mark.parametrize("action", [0, 1])
def test_a_policy_that_never_changes_its_mind_falls_when_the_equations_say(action):
    seeds = np.arange(12)
    found = roll_out(pole.CartPole, constant(action), seeds, **POLE)
    starts = [pole.starts(1, np.random.default_rng(seed))[0] for seed in seeds.tolist()]
    assert found.steps.tolist() == [steps_to_fall(*start, action) for start in starts]
    assert len(set(found.steps.tolist())) > 1
    assert np.array_equal(found.earned, found.steps)
    assert found.ended.all()
    assert not found.cut.any()


def test_the_reference_lasts_until_the_time_is_up():
    found = roll_out(pole.CartPole, balancing, [1, 2], **POLE)
    assert found.steps.tolist() == [500, 500]
    assert not found.ended.any()
    assert not found.cut.any()


def test_a_policy_that_looks_at_nothing_earns_what_chance_does():
    found = roll_out(pole.CartPole, at_random(2, np.random.default_rng(0)), np.arange(100), **POLE)
    rng = np.random.default_rng(1)
    known = pole.returns(lambda s: rng.integers(2, size=len(s)), 1000, rng)
    error = math.hypot(known.std() / 1000**0.5, found.earned.std() / 10)
    assert abs(found.earned.mean() - known.mean()) < 4 * error
    assert error < 2


def test_seeds_repeat_and_many_at_once_are_as_one_by_one(monkeypatch):
    seeds = [5, 3, 9, 3, 7]
    together = roll_out(pole.CartPole, clumsy, seeds, **POLE)
    alone = [roll_out(pole.CartPole, clumsy, [seed], **POLE) for seed in seeds]
    monkeypatch.setattr(episodes, "AT_ONCE", 2)
    met: list[int] = []

    def noting(seen, rows):
        met.extend(rows.tolist())
        return clumsy(seen, rows)

    in_twos = roll_out(pole.CartPole, noting, seeds, **POLE)
    assert np.bincount(met).tolist() == in_twos.steps.tolist()  # each episode is told apart, and asked while it runs
    for found in (in_twos, [np.concatenate(column) for column in zip(*alone, strict=True)]):
        for mine, other in zip(together, found, strict=True):
            assert np.array_equal(mine, other)
    assert together.steps[1] == together.steps[3]
    assert len(set(together.steps.tolist())) > 2


def test_actions_that_do_not_count_from_zero_are_handed_over_as_the_space_says():
    world = World()
    world.action_space = SimpleNamespace(n=2, start=4)
    roll_out(lambda: world, constant(1), [0], actions=2, shape=(2,))
    assert world.taken == [5, 5, 5]


def test_an_episode_that_never_ends_is_cut_and_told():
    world = World()
    world.length = None
    found = roll_out(lambda: world, constant(0), [0], actions=2, shape=(2,), longest=7)
    assert (found.cut.tolist(), found.steps.tolist(), found.earned.tolist()) == ([True], [7], [7.0])
    assert not found.ended.any()


def test_environments_are_closed_also_when_one_breaks():
    closed = []

    class Breaks(World):
        def close(self) -> None:
            closed.append(self)

        def step(self, action: int) -> Any:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        roll_out(Breaks, constant(0), [0, 1, 2], actions=2, shape=(2,))
    assert len(closed) == 3


class Reset(World):
    """Shows something else at first."""

    shown: Any = None

    def reset(self, *, seed: int | None = None) -> Any:
        return self.shown


class Step(World):
    """Answers something else at the second step."""

    given: Any = None

    def step(self, action: int) -> Any:
        self.taken.append(action)
        return self.given if len(self.taken) == 2 else (np.zeros(2), 0.0, False, False, {})


WRONG: dict[str, tuple[type, dict[str, Any], str]] = {
    "no interface": (World, {"step": None}, "World has no step; give one with gymnasium"),
    "more actions": (World, {"action_space": SimpleNamespace(n=3)}, "has 3 actions, and the policy chooses one of 2"),
    "no choice": (World, {"action_space": SimpleNamespace(shape=(1,))}, "action space namespace.*one of 2 actions"),
    "wider": (World, {"observation_space": SimpleNamespace(shape=(3,))}, r"shape \(3,\), and the policy takes \(2,\)"),
    "a dict": (World, {"observation_space": SimpleNamespace()}, "observations of shape None"),
    "old reset": (Reset, {"shown": np.zeros(2)}, "gave a ndarray; gymnasium's gives 2 things"),
    "no seed": (World, {"reset": lambda self: (np.zeros(2), {})}, "could not be reset with seed=8"),
    "lies": (Reset, {"shown": (np.zeros(5), {})}, r"shape \(5,\) after 0 steps of seed 8, and its space says \(2,\)"),
    "words": (Reset, {"shown": (["a", "b"], {})}, "showed a list after 0 steps of seed 8, which is no array"),
    "old step": (Step, {"given": (np.zeros(2), 0.0, False, {})}, "gave 4 things; gymnasium's gives 5 things"),
    "NaN": (Step, {"given": (np.array([0, np.nan]), 0.0, False, False, {})}, "value nan after 2 steps of seed 8"),
    "infinite": (Step, {"given": (np.array([0, np.inf]), 0.0, True, False, {})}, "value inf after 2 steps of seed 8"),
    "reward": (Step, {"given": (np.zeros(2), float("nan"), True, False, {})}, "reward nan at step 2 of seed 8"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_an_environment_does_wrong_is_told_in_one_line(case):
    base, parts, says = WRONG[case]
    with pytest.raises(SubjectError, match=says) as told:
        roll_out(type(base.__name__, (base,), parts), constant(0), [8, 9], actions=2, shape=(2,))
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("given", [np.array([2, 0]), np.array([-1, 0]), np.array([0.0, 1.0]), np.array([0])])
def test_a_policy_that_gives_no_actions_is_told(given):
    with pytest.raises(AssayError, match="one action from 0 to 1"):
        roll_out(World, lambda seen, rows: given, [0, 1], actions=2, shape=(2,))


@pytest.mark.parametrize(("seeds", "longest"), [([], 5), ([1], 0)])
def test_no_episode_and_no_step_are_refused(seeds, longest):
    with pytest.raises(AssayError, match="at least one seed and one step"):
        roll_out(World, constant(0), seeds, actions=2, shape=(2,), longest=longest)


def test_what_an_episode_can_earn_is_the_environments_word():
    assert best_known(World) is None
    known = best_known(pole.CartPole)
    assert known is not None
    assert known.earned == pole.LONGEST


def test_an_environment_of_gymnasium_is_taken_as_it_is():
    gymnasium = pytest.importorskip("gymnasium")

    def make():
        return gymnasium.make("CartPole-v1")

    found = roll_out(make, constant(1), [0, 1, 2], **POLE)
    world, expected = make(), []
    for seed in range(3):
        world.reset(seed=seed)
        expected.append(steps_to_fall(*map(float, world.unwrapped.state), 1))
    assert found.steps.tolist() == expected
    assert roll_out(make, balancing, [0], **POLE).steps.tolist() == [500]
    known = best_known(make)
    assert known is not None
    assert (known.earned, known.says) == (475.0, "what its environment calls solved")
    with pytest.raises(SubjectError, match="one of 2 actions"):
        roll_out(lambda: gymnasium.make("MountainCar-v0"), constant(1), [0], **POLE)
