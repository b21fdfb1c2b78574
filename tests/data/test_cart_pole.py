"""The pole on the cart: its equations, its episodes, and a controller that holds it."""

from __future__ import annotations

import numpy as np
import pytest

from assay.data import cart_pole as pole
from assay.errors import AssayError

RNG = np.random.default_rng(0)


def test_a_step_solves_the_equations_of_motion():
    """As two linear equations in the accelerations, which the closed form eliminates."""
    state, action = RNG.uniform(-1, 1, (50, 4)), RNG.integers(2, size=50)
    after = pole.moved(state, action)
    for (place, speed, angle, turning), push, end in zip(state, action, after, strict=True):
        ml = pole.POLE * pole.HALF
        mass = np.array([[pole.BOTH, ml * np.cos(angle)], [ml * np.cos(angle), 4 / 3 * ml * pole.HALF]])
        force = [
            (2 * push - 1) * pole.FORCE + ml * turning**2 * np.sin(angle),
            ml * pole.GRAVITY * np.sin(angle),
        ]
        drive, twist = np.linalg.solve(mass, force)
        expected = np.array([place, speed, angle, turning]) + pole.STEP * np.array([speed, drive, turning, twist])
        np.testing.assert_allclose(end, expected, rtol=1e-9, atol=1e-12)


def test_left_and_right_are_alike():
    state, action = RNG.uniform(-1, 1, (50, 4)), RNG.integers(2, size=50)
    np.testing.assert_allclose(pole.moved(-state, 1 - action), -pole.moved(state, action), rtol=1e-9)


def test_an_episode_ends_where_it_falls_or_after_500_steps():
    env = pole.CartPole()
    seen, _ = env.reset(seed=3)
    again, _ = pole.CartPole().reset(seed=3)
    assert np.array_equal(seen, again)
    assert seen.shape == env.observation_space.shape
    assert env.action_space.n == len(pole.ACTIONS)
    steps = 0
    fell = over = False
    while not (fell or over):
        seen, reward, fell, over, _ = env.step(1)
        steps += 1
        assert reward == 1.0
    assert fell
    assert steps < 20
    assert pole.fallen(seen[None].astype(float)).all()
    with pytest.raises(AssayError, match="reset"):
        env.step(0)
    seen, _ = env.reset(seed=3)
    steps, over = 0, False
    while not (fell or over) or steps == 0:
        seen, _, fell, over, _ = env.step(int(pole.reference(seen[None])[0]))
        steps += 1
    assert (steps, fell, over) == (500, False, True)


@pytest.mark.parametrize("action", [2, -1])
def test_an_action_that_is_none_is_told(action):
    env = pole.CartPole()
    env.reset(seed=0)
    with pytest.raises(AssayError, match=f"action {action}"):
        env.step(action)


def test_many_episodes_at_once_are_the_same_as_one_by_one():
    def clumsy(state):
        return (state[:, 2] > 0).astype(np.int64)

    earned = pole.returns(clumsy, 8, np.random.default_rng(5))
    begin = pole.starts(8, np.random.default_rng(5))
    for i in range(8):
        env = pole.CartPole()
        env.reset()
        env.state = begin[i : i + 1]
        steps, over = 0, False
        while not over:
            _, _, fell, late, _ = env.step(int(clumsy(env.state)[0]))
            steps, over = steps + 1, fell or late
        assert steps == earned[i]
    assert earned.max() < 500


def test_the_reference_balances_and_chance_does_not():
    assert pole.returns(pole.reference, 50, np.random.default_rng(0)).min() == 500
    rng = np.random.default_rng(1)
    assert pole.returns(lambda s: rng.integers(2, size=len(s)), 50, rng).mean() < 40


def test_observations_lie_in_their_bounds_and_call_for_both_actions():
    x = pole.observations(500, np.random.default_rng(0))
    low, high = np.array(pole.BOUNDS).T
    assert x.shape == (500, 4)
    assert ((x > low) & (x < high)).all()
    assert 0.4 < pole.reference(x).mean() < 0.6
    assert np.array_equal(x, pole.observations(500, np.random.default_rng(0)))
