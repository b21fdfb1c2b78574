"""One objective: each of its settings is the solver that it names, features move the graph, and nonsense is told."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

from assay.errors import AssayError
from assay.methods.poison.centrality import central_change, degree, pagerank, random_change
from assay.methods.poison.features import move
from assay.methods.poison.flips import exhaustive, greedy
from assay.methods.poison.label_attack import known_truth, rmse, towards, unknown_truth
from assay.methods.poison.propagation import Array, affinity, propagate, signs
from assay.methods.poison.unified import poison

GAMMA = 0.5


def draw() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.fixture(scope="module")
def toy() -> tuple[Array, Array, Array, Array]:
    """Labelled and unlabelled rows, and their classes."""
    rng = np.random.default_rng(0)
    y = rng.permutation(np.where(np.arange(60) < 30, 1.0, -1.0))
    x = rng.normal(size=(60, 2)) + 1.5 * np.stack([y, 0 * y], 1)
    return x[:12], x[12:], y[:12], y[12:]


def test_each_setting_is_its_solver(toy: tuple[Array, ...]) -> None:
    mine, others, labels, truth = toy
    victim = propagate(mine, others, GAMMA)
    K, score = victim.K, 0.1 * mine[:, 0]
    settings: Any = {"gamma": GAMMA, "rng": draw()}
    targets = {**settings, "learns": "targets", "radius": 0.7}
    blind = poison(mine, others, score, **targets)
    assert_allclose(blind.labels - score, unknown_truth(K, 0.7), atol=1e-12)
    assert_allclose(blind.after, K @ blind.labels, atol=1e-10)
    assert_allclose(blind.before, K @ score, atol=1e-10)
    known = poison(mine, others, score, truth=truth, **targets)
    assert_allclose(known.labels - score, known_truth(K, score, truth, 0.7), atol=1e-12)
    led = poison(mine, others, score, goal=truth, **targets)
    assert_allclose(led.labels - score, towards(K, score, truth, 0.7), atol=1e-12)
    assert rmse(led.after, truth) < rmse(led.before, truth) < rmse(known.after, truth)

    flips = {**settings, "learns": "classes", "most": 2}
    found = poison(mine, others, labels, truth=truth, **flips)
    assert_allclose(found.labels, greedy(K, labels, truth, 2).applied(labels.astype(int)))
    assert set(np.unique(found.after)) <= {-1.0, 1.0}
    blind = poison(mine, others, labels, method="exhaustive", **flips)
    assert_allclose(blind.labels, exhaustive(K, labels, signs(K @ labels), 2).applied(labels.astype(int)))
    soft = poison(mine, others, labels, method="relaxed", truth=truth, **flips)
    assert (soft.after != truth).sum() >= (found.after != truth).sum()
    goal = np.ones_like(truth)
    led = poison(mine, others, labels, goal=goal, **flips)
    assert (led.after == goal).sum() > (led.before == goal).sum()


@pytest.mark.parametrize(("learns", "rows"), [("targets", None), ("classes", None), ("classes", 2)])
def test_features_are_moved_within_their_bounds(toy: tuple[Array, ...], learns: Any, rows: int | None) -> None:
    mine, others, labels, truth = toy
    done: Any = {"gamma": GAMMA, "rng": draw(), "learns": learns, "features": True, "radius": 3.0, "most": rows}
    for given in ({"truth": truth}, {}) if rows is None else ({"truth": truth},):
        found = poison(mine, others, labels, **given, **done)
        change = found.features - mine
        assert np.linalg.norm(change) <= 3 + 1e-9
        assert (np.abs(change).sum(1) > 0).sum() <= (rows or 12)
        assert_allclose(found.labels, labels)
        again = propagate(found.features, others, GAMMA).predict(labels)
        assert_allclose(found.after, signs(again) if learns == "classes" else again, atol=1e-9)
        aim = given.get("truth", found.before)
        assert rmse(found.after, aim) > rmse(found.before, aim)
        drawn = np.random.default_rng(1).normal(size=(10, *change.shape))
        if rows:
            drawn[:, rows:] = 0
        drawn *= 3 / np.linalg.norm(drawn, axis=(1, 2), keepdims=True)
        chance = [propagate(mine + by, others, GAMMA).predict(labels) for by in drawn]
        drawn_errors = [rmse(signs(p) if learns == "classes" else p, aim) for p in chance]
        assert rmse(found.after, aim) >= (max if rows is None else np.median)(drawn_errors)
    led = poison(mine, others, labels, goal=-truth, **done)
    assert rmse(led.after, -truth) < rmse(led.before, -truth)


def test_what_an_enemy_cannot_do_is_told(toy: tuple[Array, ...]) -> None:
    mine, others, labels, truth = toy

    def told(match: str, labels: Array = labels, **given: Any) -> None:
        with pytest.raises(AssayError, match=match) as error:
            poison(mine, others, labels, gamma=given.pop("gamma", GAMMA), rng=draw(), **given)
        assert "\n" not in str(error.value)

    told("Got 0 among the labels; classes are -1", labels=(labels + 1) / 2, learns="classes", most=1)
    told("give one of them", learns="classes", most=1, truth=truth, goal=truth)
    told("without a radius", learns="targets", features=True)
    told("has no bound", learns="targets", most=2)
    told("by flips", learns="classes", radius=1.0)
    told("d_max=0", learns="targets", radius=0)
    told("d_max=-1", learns="targets", radius=-1, features=True)
    told("rows=0", learns="targets", radius=1, most=0, features=True)
    told("no way to a label at gamma=1000", learns="targets", radius=1, gamma=1000)
    told("greedy, relaxed or exhaustive", learns="classes", most=1, method="guess")


def test_a_change_that_cuts_nodes_off_is_not_believed() -> None:
    """One label, 30 widths of the kernel away if it moves: answers stay means of labels."""
    mine, others = np.array([[0.0], [0.5]]), np.array([[1.0], [1.2]])
    found = move(mine, others, np.array([1.0, -1.0]), np.array([1.0, 1.0]), 5.0, 30.0, rng=draw())
    assert (np.abs(found.answers) <= 1 + 1e-6).all()


def test_pagerank_is_the_stationary_law_of_its_walk() -> None:
    x = np.random.default_rng(1).normal(size=(12, 2))
    for graph in (affinity(x, 0.5), affinity(x, 0.5, neighbours=3)):
        ties = graph if isinstance(graph, np.ndarray) else graph.toarray()
        walk = 0.15 / 12 + 0.85 * ties / ties.sum(0)
        value, vector = np.linalg.eig(walk)
        law = np.real(vector[:, np.argmax(np.real(value))])
        assert_allclose(pagerank(graph), law / law.sum(), atol=1e-9)
        assert_allclose(degree(graph), ties.sum(1))
    alone = np.zeros((3, 3))
    alone[0, 1] = alone[1, 0] = 1
    assert_allclose(pagerank(alone).sum(), 1)
    with pytest.raises(AssayError, match="damping=1"):
        pagerank(alone, damping=1)


def test_baselines_spend_the_whole_radius() -> None:
    rng = np.random.default_rng(2)
    scores = rng.random(9)
    by_score, by_chance = central_change(scores, 2.0, rng), random_change(9, 2.0, rng)
    assert_allclose([np.linalg.norm(by_score), np.linalg.norm(by_chance)], 2)
    assert_allclose(np.abs(by_score) / scores, np.full(9, np.abs(by_score[0]) / scores[0]))
