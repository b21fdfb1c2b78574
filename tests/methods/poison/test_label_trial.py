"""What layers learnt from changed labels get right: counted by hand, and who is the worst by what an enemy believes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from assay.methods.poison.head import fit_heads
from assay.methods.poison.most_harmful import by_chance
from assay.methods.poison.most_harmful import enemies as choices
from assay.methods.poison.moved_targets import ridge_matrix
from assay.methods.poison.rounds import Chosen
from assay.methods.poison.trial import Inputs, Trial, borne, first_over

N, RIDGE = 20, 1e-3


def rows(n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    rng, y = torch.Generator().manual_seed(seed), torch.arange(n) % 2
    x = (2 * y - 1).double() + 0.3 * torch.randn(n, generator=rng, dtype=torch.float64)
    return torch.stack([x, torch.ones_like(x)], 1), y


@pytest.fixture(scope="module")
def inputs() -> Inputs:
    return Inputs(*rows(N, 0), *rows(12, 1), *rows(16, 2))


@pytest.fixture(scope="module")
def enemies(inputs: Inputs) -> dict[str, Chosen]:
    """One that changes nothing, and one that turns every label."""
    return {"idle": Chosen(torch.arange(N), inputs.y), "all": Chosen(torch.arange(N), 1 - inputs.y)}


def tried(inputs: Inputs, enemies: dict[str, Chosen], believed: torch.Tensor) -> Trial:
    layer = fit_heads(inputs.x, inputs.y[None], 2, ridge=RIDGE)[0]
    trial = Trial(inputs, 2, layer, believed, ridge=RIDGE)
    for name, each in enemies.items():
        trial.learn(name, each, [1, 4, N])
    return trial


def test_what_is_lost_is_what_was_right_before_and_is_not_now(inputs: Inputs, enemies: dict[str, Chosen]) -> None:
    trial = tried(inputs, enemies, inputs.aimed_y)
    assert trial.clean.all()
    assert trial.lost("all", N).tolist() == [1] * 16  # all labels turned, all answers are
    assert not trial.lost("idle", N).any()
    turned = inputs.y.clone()
    turned[:4] = 1 - turned[:4]
    layer = fit_heads(inputs.x, turned[None], 2, ridge=RIDGE)[0]
    assert trial.right["all", 4].tolist() == ((inputs.judges @ layer).argmax(1) == inputs.judges_y).tolist()
    assert trial.aimed["all", 4].tolist() == ((inputs.aimed @ layer).argmax(1) == inputs.aimed_y).tolist()
    counts, lost = trial.by_the_worst(enemies)
    assert (counts, lost.shape) == ([1, 4, N], (3, 16))
    assert lost[-1].mean() == 1


def test_the_worst_is_who_fools_the_aimed_inputs_as_an_enemy_believes_them(
    inputs: Inputs, enemies: dict[str, Chosen]
) -> None:
    assert tried(inputs, enemies, inputs.aimed_y).worst(enemies, N) == "all"
    mistaken = tried(inputs, enemies, 1 - inputs.aimed_y)
    assert mistaken.worst(enemies, N) == "idle"
    assert not mistaken.by_the_worst(enemies)[1][-1].any()  # though the other does harm


def test_it_looks_closer_where_the_limit_is_passed(inputs: Inputs, enemies: dict[str, Chosen]) -> None:
    trial = tried(inputs, enemies, inputs.aimed_y)
    trial.look_closer(enemies, 2.0)  # never passed
    assert trial.counts(enemies) == [1, 4, N]
    assert trial.lost("all", 4).mean() < 0.5
    trial.look_closer(enemies, 0.5)
    assert trial.counts(enemies) == [1, 4, 6, 9, 11, 13, 15, 18, N]


def test_borne_is_the_last_before_the_limit_is_reached() -> None:
    lost = np.array([[0.0, 0.1, 0.5], [0.2, 0.0, 0.0], [0.0, 0.0, 0.05], [0.0, 0.2, 0.0]])
    assert borne([1, 4, 20], lost, 0.1).tolist() == [1, 0, 20, 1]  # to come to it is to reach it
    assert [first_over([1, 4, 20], each, 0.1) for each in lost] == [4, 1, None, 4]


def test_every_enemy_changes_as_many_labels_as_it_may_and_each_to_another_class(inputs: Inputs) -> None:
    x, y, aimed, targets = inputs[:4]
    found = choices(x, y, 2, aimed, targets, ridge=RIDGE, gamma=None, counts=[1, 3, 12])
    assert found.missing == ""
    chance = by_chance(y, 12, 3, torch.Generator().manual_seed(0))
    for each in (*found.chosen.values(), *chance):
        assert len(set(each.places.tolist())) == 12
        assert (each.to != y[each.places]).all()
    assert len(found.chosen) == 4


def test_answers_of_a_ridge_are_where_its_slope_is_none() -> None:
    x = torch.randn(30, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    y, ridge = x[:, 0] - x[:, 2] ** 2, 0.3
    weights = torch.from_numpy(ridge_matrix(x, torch.eye(3).double(), ridge)) @ y
    torch.testing.assert_close(x.T @ (x @ weights - y) / 30 + ridge * weights, torch.zeros(3).double())
