"""Changed targets: the gradient's way is the eigenvectors' answer, and no other change of that norm does worse."""

from __future__ import annotations

from math import ceil, log

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from assay.errors import AssayError, ShapeError
from assay.methods.poison.label_attack import known_truth, rmse, squared, towards, unknown_truth, worst_targets
from assay.methods.poison.propagation import Array, Propagation, propagate
from assay.methods.poison.secular import lowest_in_ball
from assay.methods.poison.trust_region import Descent, descend, extremes

seeds = st.integers(0, 10**6)


def weights(seed: int, u: int = 60, l: int = 20) -> tuple[Array, Array, Array]:
    """Some K, targets and truth."""
    rng = np.random.default_rng(seed)
    K = rng.random((u, l))
    return K / K.sum(1, keepdims=True), rng.random(l), rng.random(u)


def toy(seed: int, labelled: int, gamma: float = 0.5) -> tuple[Propagation, Array, Array]:
    """Two Gaussians at (-2, 0) and (2, 0), 200 nodes, targets by their first feature."""
    rng = np.random.default_rng(seed)
    side = rng.permutation(np.where(np.arange(200) < 100, 1.0, -1.0))
    x = rng.normal(size=(200, 2)) + 2 * np.stack([side, 0 * side], 1)
    y = np.clip((x[:, 0] + 4) / 8 + 0.05 * rng.normal(size=200), 0, 1)
    return propagate(x[:labelled], x[labelled:], gamma), y[:labelled], y[labelled:]


def height(H: Array, g: Array, z: Array) -> float:
    return float(z @ H @ z / 2 + g @ z)


def random_quadratic(seed: int, n: int, kind: str) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    half = rng.normal(size=(n, n))
    H, g = half + half.T, rng.normal(size=n) * 10 ** rng.uniform(-2, 2)
    if kind == "hard":
        lowest = np.linalg.eigh(H)[1][:, 0]
        g = g - lowest * (lowest @ g)
    elif kind == "no slope":
        g = 0 * g
    elif kind == "bowl":
        H = half @ half.T / n + np.eye(n)
    elif kind == "negative":
        H = -half @ half.T
    return H, g


@given(seeds, st.integers(2, 6), st.sampled_from(["any", "hard", "no slope", "bowl", "negative"]))
@settings(max_examples=30, deadline=None)
def test_the_secular_answer_is_the_least(seed: int, n: int, kind: str) -> None:
    """Held to its conditions, which suffice for the global least, and to points that are drawn."""
    H, g = random_quadratic(seed, n, kind)
    for radius in (0.1, 1.0, 10.0):
        z, mu = lowest_in_ball(H, g, radius)
        scale = np.abs(np.linalg.eigvalsh(H)).max() * radius + np.linalg.norm(g)
        assert np.linalg.norm(z) <= radius * (1 + 1e-9)
        assert_allclose(H @ z + mu * z, -g, atol=1e-8 * scale)
        assert np.linalg.eigvalsh(H)[0] + mu >= -1e-9 * scale
        assert mu * (radius - np.linalg.norm(z)) <= 1e-7 * scale * radius
        drawn = np.random.default_rng(seed).normal(size=(200, n))
        drawn *= radius * np.random.default_rng(seed).random((200, 1)) / np.linalg.norm(drawn, axis=1, keepdims=True)
        heights = ((drawn @ H) * drawn).sum(1) / 2 + drawn @ g
        assert height(H, g, z) <= heights.min() + 1e-9 * scale * radius


@given(seeds, st.integers(2, 20), st.sampled_from(["any", "hard", "no slope", "bowl", "negative"]))
@settings(max_examples=30, deadline=None)
def test_descent_finds_the_secular_answer(seed: int, n: int, kind: str) -> None:
    H, g = random_quadratic(seed, n, kind)
    best, found = lowest_in_ball(H, g, 1.0), descend(H, g)
    assert np.linalg.norm(found.z) <= 1 + 1e-12
    assert height(H, g, found.z) <= height(H, g, best.z) + 1e-9 * abs(height(H, g, best.z)) + 1e-14


@pytest.mark.parametrize("radius", [0.5, 3.0])
@pytest.mark.parametrize("seed", range(4))
def test_the_attack_equals_the_secular_solution(seed: int, radius: float) -> None:
    K, labels, truth = weights(seed)
    delta = known_truth(K, labels, truth, radius)
    H, g = -K.T @ K, K.T @ (truth - K @ labels)
    best = lowest_in_ball(H, g, radius).z
    assert_allclose(height(H, g, delta), height(H, g, best), rtol=1e-9)
    assert_allclose(delta, best, atol=1e-9 * radius)
    assert_allclose(np.linalg.norm(delta), radius, rtol=1e-12)


@given(seeds, st.floats(0.01, 30))
@settings(max_examples=15, deadline=None)
def test_the_first_phase_ends_as_early_as_lemma_1_says(seed: int, radius: float) -> None:
    K, labels, truth = weights(seed)
    H, g = -(radius**2) * K.T @ K, radius * K.T @ (truth - K @ labels)
    found, (norm, lowest, vector) = descend(H, g), extremes(H)
    eta, length = 0.99 / norm, float(np.linalg.norm(g))
    along = float(vector @ g)
    start = -min(0.5, 0.99 * length**3 / abs(g @ H @ g)) * along / length
    bound = log(1 / (eta * abs(along)) - 1 / (eta * lowest)) - log(-start / (eta * along) - 1 / (eta * lowest))
    assert 1 <= found.inside <= ceil(bound / log(1 - eta * lowest))  # steps are whole
    assert found.around > 0


def test_without_the_cap_on_the_start_and_in_the_hard_case_print_misses_the_least() -> None:
    """g has no part along the lowest eigenvector, so that the listing never leaves its complement."""
    H, g = np.diag([-4.0, -1.0, 0.5]), np.array([0.0, 0.3, -0.2])
    ours, listed = descend(H, g), descend(H, g, as_published=True)
    assert_allclose(height(H, g, ours.z), height(H, g, lowest_in_ball(H, g, 1.0).z), rtol=1e-9)
    assert height(H, g, listed.z) > height(H, g, ours.z) + 1
    assert ours.multiplier >= 4 - 1e-9 > listed.multiplier  # which tells a saddle from the least


def test_a_least_within_the_ball_ends_the_first_phase() -> None:
    H, g = np.diag([1.0, 2.0]), np.array([0.1, 0.2])
    found = descend(H, g)
    assert_allclose(found.z, [-0.1, -0.1], atol=1e-10)
    assert (found.around, found.multiplier) == (0, 0.0)
    few = descend(H, g, steps=2)
    assert few.inside == 2  # and it is capped
    assert isinstance(few, Descent)


def test_an_enemy_without_the_truth_takes_the_top_singular_vector() -> None:
    victim, labels, truth = toy(0, 20)
    K = victim.K
    top = np.linalg.svd(K)[1][0]
    for radius in (0.5, 2.0):
        delta = unknown_truth(K, radius)
        assert_allclose(np.linalg.norm(K @ delta), radius * top, rtol=1e-10)
        assert delta.sum() > 0
        drawn = np.random.default_rng(0).normal(size=(20, 500))
        drawn *= radius / np.linalg.norm(drawn, axis=0)
        assert np.linalg.norm(K @ delta) > 1.2 * np.linalg.norm(K @ drawn, axis=0).max()
        known = known_truth(K, labels, truth, radius)
        errors = [rmse(K @ (labels + change), truth) for change in (known, delta, -delta, 0 * delta)]
        assert errors[0] >= max(errors[1:]) - 1e-12
        assert max(errors[1:3]) > errors[3]  # one of the two signs


def test_more_labels_resist_better() -> None:
    """Error gained by a change of norm 1: 0.322, 0.234, 0.159, 0.105 in another draw of this toy."""
    gains = []
    for labelled, printed in ((10, 0.322), (20, 0.234), (50, 0.159), (100, 0.105)):
        victim, _, _ = toy(1, labelled)
        gains.append(np.linalg.norm(victim.K @ unknown_truth(victim.K, 1.0)) / np.sqrt(200 - labelled))
        assert_allclose(gains[-1], printed, rtol=0.25)
    assert (np.diff(gains) < 0).all()


def test_curves_grow_with_the_radius_and_beat_chance() -> None:
    victim, labels, truth = toy(2, 20)
    radii = np.linspace(0, 2, 6)
    curves = [worst_targets(victim.K, labels, truth, radii, known=known) for known in (True, False)]
    both = worst_targets(victim.K, labels, truth, radii, known=False, as_published=True)
    assert (np.diff(curves[0].rmse) > 0).all()
    assert (curves[0].rmse >= both.rmse - 1e-12).all()
    assert (both.rmse >= curves[1].rmse - 1e-12).all()
    for curve in (*curves, both):
        assert curve.rmse[0] == curve.clean
        assert_allclose(np.linalg.norm(curve.targets - labels, axis=1), radii, atol=1e-12)
        for targets, error in zip(curve.targets, curve.rmse, strict=True):
            assert_allclose(rmse(victim.predict(targets), truth), error, rtol=1e-9)
    for mirrored in (False, True):  # one of the two signs is the worse, and after a mirror the other
        y, t = (1 - labels, 1 - truth) if mirrored else (labels, truth)
        worse = worst_targets(victim.K, y, t, [1.0], known=False, as_published=True)
        either = [rmse(victim.K @ (y + sign * unknown_truth(victim.K, 1.0)), t) for sign in (1, -1)]
        assert_allclose(worse.rmse, max(either), rtol=1e-9)
    drawn = np.random.default_rng(0).normal(size=20)
    chance = [rmse(victim.predict(labels + r * drawn / np.linalg.norm(drawn)), truth) for r in radii]
    assert (curves[0].rmse >= np.array(chance) - 1e-12).all()


def test_a_wrong_gamma_costs_the_enemy() -> None:
    victim, labels, truth = toy(3, 20)
    right = rmse(victim.predict(labels + known_truth(victim.K, labels, truth, 1.0)), truth)
    for factor in (1 / 8, 4):
        guess, _, _ = toy(3, 20, gamma=0.5 * factor)
        wrong = rmse(victim.predict(labels + known_truth(guess.K, labels, truth, 1.0)), truth)
        assert rmse(victim.predict(labels), truth) < wrong <= right + 1e-12


def test_products_serve_where_k_is_not_formed() -> None:
    victim, labels, truth = toy(4, 80)
    by_matrix = worst_targets(victim.K, labels, truth, [0.5, 1.0])
    by_products = worst_targets(victim.operator, labels, truth, [0.5, 1.0])
    assert_allclose(by_products.targets, by_matrix.targets, atol=1e-8)
    assert_allclose(squared(victim.operator) @ labels, squared(victim.K) @ labels, atol=1e-9)


def test_answers_are_led_to_a_goal() -> None:
    victim, labels, truth = toy(5, 20)
    goal = victim.predict(1 - labels)
    for radius in (0.3, 1.0, 100.0):
        delta = towards(victim.K, labels, goal, radius)
        assert np.linalg.norm(delta) <= radius * (1 + 1e-9)
        for change in (0 * delta, known_truth(victim.K, labels, truth, radius), (1 - 2 * labels) * 0.01):
            if np.linalg.norm(change) <= radius:
                assert rmse(victim.predict(labels + delta), goal) <= rmse(victim.predict(labels + change), goal) + 1e-9
    assert_allclose(victim.predict(labels + delta), goal, atol=1e-5)  # it can be reached


def test_what_is_wrong_is_told() -> None:
    K, labels, truth = weights(0)
    for attack in (lambda r: known_truth(K, labels, truth, r), lambda r: unknown_truth(K, r)):
        for radius in (0, -1):
            with pytest.raises(AssayError, match=f"d_max={radius}; .* above 0"):
                attack(radius)
    with pytest.raises(AssayError, match="radius of -1"):
        worst_targets(K, labels, truth, [0, -1])
    with pytest.raises(AssayError, match="radius=0"):
        lowest_in_ball(np.eye(2), np.ones(2), 0)
    with pytest.raises(ShapeError, match="one a column"):
        known_truth(K, truth, truth, 1.0)
