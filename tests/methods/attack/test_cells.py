"""The search over cells: exact against brute force, never outside the reach, and worth what it costs."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.testing import assert_close

from assay.inputs import Column, Reach, Row
from assay.methods.attack.ball import Norm
from assay.methods.attack.cells import cells, left, masked, settled, size, smallest
from assay.methods.attack.minimal_norm import minimal_norm
from assay.methods.attack.pgd import pgd

WORDS = ("a", "b", "c", "d")
TINY = Row(
    (
        Column("count", "integer", 0, 6, 3),
        Column("three", "category", 0, 2, 0, categories=WORDS[:3]),
        Column("four", "category", 0, 3, 0, categories=WORDS),
        Column("born", "integer", 0, 4, 2, fixed=True),
    )
)
MIXED = Row(
    (
        Column("rate", "number", -1.0, 3.0, 0.0),
        Column("count", "integer", 10, 30, 20),
        Column("three", "category", 0, 2, 0, categories=WORDS[:3]),
        Column("member", "boolean", 0, 1, 0),
        Column("height", "number", 0.0, 1.0, 0.5),
        Column("born", "number", 0.0, 9.0, 2.0, fixed=True),
        Column("sort", "category", 0, 3, 0, categories=WORDS, fixed=True),
    )
)


def rows(kind: Row, n: int, seed: int) -> tuple[Tensor, Tensor, Reach]:
    """Rows in natural units, the same in shares, and what may change of them."""
    low, span = kind.edges()
    u = torch.rand(n, *kind.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    x = kind.typed(low + span * u)
    return x, ((x - low) / span).float(), kind.reach.in_shares(low, span)


def net(kind: Row, seed: int, wide: float = 3.0) -> nn.Module:
    """Rough enough that single cells matter together."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(kind.shape[0], 16), nn.Tanh(), nn.Linear(16, 2))
    for p in model.parameters():
        p.data *= wide
        p.requires_grad_(False)
    out = model(rows(kind, 200, seed)[1])
    model[-1].bias[0] -= (out[:, 0] - out[:, 1]).median()  # half of the rows are of each class
    return model


def by_brute_force(
    model: nn.Module, x: Tensor, y: Tensor, norm: Norm, radius: float, codes: int
) -> Tensor:  # n 4 -> n: the size of the smallest change that breaks each, infinity where none does
    """Every row that TINY has, one after the other, with the definition of the threat written out."""
    low, span = TINY.edges()
    least = torch.full((len(x),), torch.inf, dtype=torch.float64)
    for count, three, four in itertools.product(range(7), range(3), range(4)):
        v = x.clone()
        v[:, 0], v[:, 1], v[:, 2] = count, three, four
        others = (v[:, 1] != x[:, 1]).int() + (v[:, 2] != x[:, 2]).int()
        far = (v[:, 0] - x[:, 0]).abs() / 6
        if norm == "l0":
            far, others = (v != x).sum(1).double(), torch.zeros_like(others)
        wrong = model(((v - low) / span).float()).argmax(1) != y
        fine = wrong & (far <= radius + 1e-6) & (others <= codes)
        least = torch.where(fine, torch.minimum(least, far), least)
    return least


@pytest.mark.parametrize(
    ("norm", "radius", "codes"), [("linf", 0.2, 0), ("linf", 0.35, 1), ("l2", 0.2, 2), ("l1", 0.0, 1)]
)
def test_the_search_is_exact_where_the_beam_holds_every_setting(norm: Norm, radius: float, codes: int) -> None:
    x, u, reach = rows(TINY, 60, 0)
    model = net(TINY, 1)
    y = model(u).argmax(1)
    least = by_brute_force(model, x, y, norm, radius, codes)
    assert 3 < torch.isfinite(least).sum() < 60  # else nothing is tested
    found = cells(model, u, y, reach=reach, norm=norm, radius=radius, codes=codes, queries=3000, steps=5)
    assert found.success.tolist() == torch.isfinite(least).tolist()
    assert_close(found.distance[found.success], least[found.success], rtol=0, atol=1e-6)


def test_the_fewest_values_are_those_of_brute_force() -> None:
    x, u, reach = rows(TINY, 40, 2)
    model = net(TINY, 3, 2.0)
    y = model(u).argmax(1)
    least = by_brute_force(model, x, y, "l0", 4, 0)
    assert len(set(least.tolist())) > 1
    found = smallest(model, u, y, reach=reach, norm="l0", queries=3000)
    assert torch.where(found.success, found.distance, torch.inf).tolist() == least.tolist()


def test_numbers_whole_numbers_and_codes_work_together() -> None:
    """A linear margin is worst with numbers at the ends of the ball, whole steps up to it, and the best single code."""
    _, u, reach = rows(MIXED, 50, 4)
    weight = torch.tensor([1.0, -3.0, 2.0, 1.0, -2.0, 50.0, 50.0])
    radius, codes = 0.13, 1

    def margin(at: Tensor) -> Tensor:
        return (at[:, :5] * weight[:5]).sum(1) - 1

    def model(at: Tensor) -> Tensor:
        return torch.stack([margin(at), torch.zeros(len(at))], 1)

    y = model(u).argmax(1)
    side = torch.where(y == 0, -1.0, 1.0)[:, None]  # what the margin has to do
    whole = torch.floor(torch.tensor(radius * 20 + 1e-6)) / 20
    room = torch.tensor([radius, float(whole), 0.0, 0.0, radius])
    low, high = (u[:, :5] - room).clamp(0, 1), (u[:, :5] + room).clamp(0, 1)
    worst = u.clone()
    worst[:, :5] = torch.where(side * weight[:5] > 0, high, low)
    up = side[:, 0] > 0  # both weights of categories are above 0
    gains = torch.stack([2 * torch.where(up, 1 - u[:, 2], u[:, 2]), torch.where(up, 1 - u[:, 3], u[:, 3])], 1)
    reached = side[:, 0] * margin(worst) + gains.amax(1)
    clear = reached.abs() > 1e-4
    found = cells(model, u, y, reach=reach, radius=radius, codes=codes)
    assert 5 < (reached > 0).sum() < 45
    assert found.success[clear].tolist() == (reached > 0)[clear].tolist()


@settings(deadline=None, max_examples=15)
@given(
    seed=st.integers(0, 10**6),
    norm=st.sampled_from(["linf", "l2", "l1", "l0"]),
    radius=st.sampled_from([0.0, 0.04, 0.13, 0.5, 1.0]),
    codes=st.integers(0, 2),
    queries=st.sampled_from([2, 40, 400]),
    gradients=st.booleans(),
)
def test_nothing_leaves_the_reach(
    seed: int, norm: Norm, radius: float, codes: int, queries: int, gradients: bool
) -> None:
    x, u, reach = rows(MIXED, 6, seed)
    model = net(MIXED, seed)
    y = model(u).argmax(1)
    radius = 2.0 if norm == "l0" else radius
    found = cells(
        model, u, y, reach=reach, norm=norm, radius=radius, codes=codes, queries=queries, steps=3, gradients=gradients
    )
    kept_within(x, found.x, norm, radius, codes)
    assert ((model(found.x).argmax(1) != y) | ~found.success).all()


def kept_within(x: Tensor, shares: Tensor, norm: Norm, radius: float, codes: int) -> None:
    """The threat in natural units, in plain sums: shares no code with the search."""
    low, span = MIXED.edges()
    at = low + span * shares.double()
    gap = (at - x).abs() / span
    assert (gap[:, 5:] < 1e-6).all()  # what is fixed
    assert ((at[:, 1] - x[:, 1]).remainder(1).sub(0.5).abs() > 0.5 - 1e-4).all()
    for column, most in ((2, 2), (3, 1)):
        assert (at[:, column] - at[:, column].round()).abs().max() < 1e-4
        assert at[:, column].min() > -1e-4
        assert at[:, column].max() < most + 1e-4
    changed = gap > 1e-6
    if norm == "l0":
        assert (changed.sum(1) <= radius).all()
        return
    assert (changed[:, 2:4].sum(1) <= codes).all()
    sized = gap[:, [0, 1, 4]]
    far = {"linf": sized.amax(1), "l2": sized.norm(dim=1), "l1": sized.sum(1)}[norm]
    assert (far <= radius + 1e-5).all()
    assert (at >= low - 1e-5).all()
    assert (at <= low + span + 1e-5).all()


@pytest.mark.parametrize("attack", [pgd, minimal_norm], ids=lambda attack: attack.__name__)
def test_a_gradient_attack_that_is_masked_and_settled_keeps_to_the_reach(attack) -> None:
    x, u, reach = rows(MIXED, 40, 6)
    model = net(MIXED, 7)
    y = model(u).argmax(1)
    everyone = torch.arange(len(u))
    budget = {"radius": 0.2, "leave": False} if attack is pgd else {}
    found = attack(model, u, y, norm="linf", steps=8, mask=masked(reach, everyone), **budget)
    at, far = settled(reach, everyone, found, u, "linf")
    assert (at != u).any(0).tolist() == [True, True, False, False, True, False, False]
    kept_within(x, at, "linf", 0.2 if attack is pgd else 1.0, 0)
    assert_close(far, (at.double() - u.double())[:, [0, 1, 4]].abs().amax(1), rtol=0, atol=0)


def test_a_wider_beam_and_a_larger_budget_break_no_less() -> None:
    _, u, reach = rows(MIXED, 80, 8)
    model = net(MIXED, 9, 1.5)
    y = model(u).argmax(1)
    fell = [
        int(cells(model, u, y, reach=reach, radius=radius, codes=codes, queries=queries, steps=5).success.sum())
        for radius, codes, queries in ((0.05, 0, 300), (0.1, 0, 300), (0.1, 1, 300), (0.1, 2, 300))
    ]
    assert fell == sorted(fell)
    assert fell[0] < fell[-1]


def test_sizes_leave_codes_out_and_what_is_left_is_what_is_not_used() -> None:
    coded = torch.tensor([False, True, False])
    x, x0 = torch.tensor([[0.3, 1.0, 0.4]]), torch.zeros(1, 3)
    sizes = {norm: float(size(x, x0, norm, coded)) for norm in ("linf", "l2", "l1", "l0")}
    assert sizes == pytest.approx({"linf": 0.4, "l2": 0.5, "l1": 0.7, "l0": 3.0}, rel=1e-6)
    radius = torch.tensor([1.0])
    rest = {norm: float(left(norm, radius, torch.tensor([0.6]))) for norm in ("linf", "l2", "l1", "l0")}
    assert rest == pytest.approx({"linf": 1.0, "l2": 0.8, "l1": 0.4, "l0": 0.4}, rel=1e-6)
    assert float(left("l1", radius, torch.tensor([2.0]))) == 0.0
