from __future__ import annotations

import copy
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor

from assay.errors import AssayError, ShapeError
from assay.methods.attack import Attacked, pgd
from assay.methods.attack.affinity import Cell, Crossed, affinity, cross

from .conftest import Task, trained_mlp

ATTACK = partial(pgd, radius=0.1, steps=8, leave=False)


def flat(x: Tensor) -> Tensor:
    """Says nothing about its input, and its gradient is 0."""
    return x[:, :10] * 0


@pytest.fixture(scope="module")
def models(digits: Task) -> dict[str, object]:
    return {"a": digits.model, "b": trained_mlp(10, seed=1).model, "copy": copy.deepcopy(digits.model), "flat": flat}


@pytest.fixture(scope="module")
def crossed(digits: Task, models: dict[str, object]) -> Crossed:
    return cross(models, digits.x, digits.y, attack=ATTACK)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def cells(models: dict[str, object], crossed: Crossed) -> dict[tuple[str, str], Cell]:
    return affinity(list(models), crossed.clean.numpy(), crossed.held.numpy())


def rho(cells: dict[tuple[str, str], Cell], a: str, b: str) -> float:
    found = cells[a, b].rho
    assert found is not None
    return found.value


def test_a_model_and_its_copy_hurt_each_other_as_themselves(cells: dict[tuple[str, str], Cell]) -> None:
    for a, b in (("a", "a"), ("b", "b"), ("a", "copy"), ("copy", "a"), ("copy", "copy")):
        assert cells[a, b].rho == (1.0, 1.0, 1.0)
        assert cells[a, b].gap == (0.0, 0.0, 0.0)


def test_two_seeds_are_alike_and_a_constant_model_is_like_noise(cells: dict[tuple[str, str], Cell]) -> None:
    assert rho(cells, "a", "b") > 0.5
    assert rho(cells, "b", "a") > 0.5
    for name in ("a", "b"):
        assert abs(rho(cells, "flat", name)) < 0.1


def test_a_model_that_its_own_attack_does_not_hurt_has_no_affinity_and_says_why(
    cells: dict[tuple[str, str], Cell],
) -> None:
    for source in ("a", "b", "flat"):
        assert cells[source, "flat"].rho is None
        assert "cannot tell from 0" in cells[source, "flat"].why
        assert cells[source, "flat"].gap is not None


def test_rho_is_the_printed_ratio(digits: Task, models: dict[str, object], cells: dict[tuple[str, str], Cell]) -> None:
    def acc(model: object, x: Tensor) -> float:
        return float((model(x).argmax(1) == digits.y).double().mean())  # type: ignore[operator]

    made = {name: ATTACK(model, digits.x, digits.y).x for name, model in models.items()}  # type: ignore[arg-type]
    for a in ("a", "b", "flat"):
        for b in ("a", "b"):
            clean, theirs, own = (acc(models[b], x) for x in (digits.x, made[a], made[b]))
            assert rho(cells, a, b) == pytest.approx((clean - theirs) / (clean - own), rel=1e-9)
            found = cells[a, b].gap
            assert found is not None
            assert found.value == pytest.approx(own - theirs, abs=1e-9)


def test_the_order_of_the_models_does_not_matter(
    digits: Task, models: dict[str, object], cells: dict[tuple[str, str], Cell]
) -> None:
    order = ["flat", "b", "a"]
    again = cross({name: models[name] for name in order}, digits.x, digits.y, attack=ATTACK)  # type: ignore[misc]
    other = affinity(order, again.clean.numpy(), again.held.numpy())
    for pair, cell in other.items():
        assert cell.rho == pytest.approx(cells[pair].rho)


def test_examples_are_made_once_for_each_source(digits: Task, models: dict[str, object]) -> None:
    calls = []

    def attack(model: object, x: Tensor, y: Tensor) -> Attacked:
        calls.append(model)
        return ATTACK(model, x, y)  # type: ignore[arg-type]

    got = cross(models, digits.x[:20], digits.y[:20], attack=attack, sources=["b", "a"])  # type: ignore[arg-type]
    assert calls == [models["b"], models["a"]]
    assert got.x.shape == (2, 20, 64)
    assert got.held.shape == (2, 4, 20)
    assert got.clean.shape == (4, 20)


def test_a_model_that_cannot_be_attacked_has_no_affinity_but_its_accuracies(
    digits: Task, models: dict[str, object]
) -> None:
    got = cross(models, digits.x, digits.y, attack=ATTACK, sources=["b"])  # type: ignore[arg-type]
    cells = affinity(list(models), got.clean.numpy(), got.held.numpy(), sources=["b"])
    assert set(cells) == {("b", name) for name in models}
    assert cells["b", "a"].rho is None
    assert cells["b", "a"].gap is None
    assert "a was not attacked itself" in cells["b", "a"].why
    assert cells["b", "b"].rho == (1.0, 1.0, 1.0)


def crafted(own: list[int], theirs: list[int]) -> Cell:
    """rho(A->B) for a B that is right on every clean input and holds on its own and on A's examples as told."""
    right = np.ones((2, len(own)), dtype=bool)
    held = np.array([[own, theirs], [own, own]], dtype=bool)  # the first source's own column is not read
    return affinity(["A", "B"], right, held)["A", "B"]


def test_above_one_is_told_and_not_cut() -> None:
    cell = crafted(own=[1] * 80 + [0] * 20, theirs=[1] * 40 + [0] * 60)
    assert cell.rho is not None
    assert cell.gap is not None
    assert cell.rho.value == pytest.approx(3)
    assert cell.rho.low > 1
    assert cell.gap.value == pytest.approx(0.4)
    assert cell.gap.low > 0


def test_the_gap_speaks_where_there_is_no_ratio() -> None:
    cell = crafted(own=[1] * 100, theirs=[1] * 40 + [0] * 60)
    assert cell.rho is None
    assert "from 1 to 1" in cell.why
    assert cell.gap is not None
    assert cell.gap.low > 0.4


def test_examples_that_help_have_a_negative_affinity() -> None:
    clean = np.array([[True] * 100, [True] * 80 + [False] * 20])
    held = np.stack([np.stack([clean[0], np.ones(100, bool)]), np.stack([clean[0], np.arange(100) < 30])])
    found = affinity(["A", "B"], clean, held)["A", "B"].rho
    assert found is not None
    assert found.value == pytest.approx(-20 / 50)


def test_the_interval_is_that_of_a_slow_paired_bootstrap() -> None:
    rng = np.random.default_rng(3)
    own, theirs = rng.random(150) < 0.3, rng.random(150) < 0.6
    found = crafted(own.tolist(), theirs.tolist()).rho
    assert found is not None
    ratios = []
    for _ in range(4000):
        rows = rng.integers(0, 150, 150)
        ratios.append((1 - theirs[rows].mean()) / (1 - own[rows].mean()))
    low, high = np.quantile(ratios, [0.025, 0.975])
    assert found.low == pytest.approx(low, abs=0.015)
    assert found.high == pytest.approx(high, abs=0.015)
    assert found.low < found.value < found.high


def test_intervals_shrink_with_the_root_of_the_inputs() -> None:
    few = crafted(own=([1] + [0] * 3) * 25, theirs=([1] * 2 + [0] * 2) * 25).rho
    many = crafted(own=([1] + [0] * 3) * 400, theirs=([1] * 2 + [0] * 2) * 400).rho
    assert few is not None
    assert many is not None
    assert (few.high - few.low) / (many.high - many.low) == pytest.approx(4, rel=0.15)


def test_bad_input_is_told(digits: Task, models: dict[str, object]) -> None:
    with pytest.raises(AssayError, match=r"no model \['z'\] to attack"):
        cross(models, digits.x, digits.y, attack=ATTACK, sources=["z"])  # type: ignore[arg-type]
    with pytest.raises(ShapeError, match=r"want \(2, n\) and \(2, 2, n\)"):
        affinity(["a", "b"], np.ones((2, 5), bool), np.ones((2, 3, 5), bool))
    with pytest.raises(AssayError, match="of 0 inputs"):
        affinity(["a"], np.ones((1, 0), bool), np.ones((1, 1, 0), bool))


def test_a_random_model_is_averaged(digits: Task) -> None:
    rng = torch.Generator().manual_seed(0)

    def noisy(x: Tensor) -> Tensor:
        z = digits.model(x)
        return z + 10 * torch.randn(z.shape, generator=rng)

    both = {"quiet": digits.model, "noisy": noisy}
    once = cross(both, digits.x, digits.y, attack=ATTACK, sources=["quiet"])
    often = cross(both, digits.x, digits.y, attack=ATTACK, sources=["quiet"], draws={"noisy": 100})
    assert (often.clean[1] == often.clean[0]).double().mean() > (once.clean[1] == once.clean[0]).double().mean() + 0.1
