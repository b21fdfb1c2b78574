"""Pictures from nowhere: distances by brute force, the promised rate of false alarms, and both ways to be strange."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from assay.errors import AssayError
from assay.methods.rank.familiar import STRANGE, Familiar, familiar
from assay.nn.siamese import Distance, Siamese

S = 3


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def model(scale: float = 1.0) -> Siamese:
    """Embeds by a linear map, `scale` times; draws what it embedded, clipped to [-2, 2]."""
    to, back = nn.Linear(4, S, bias=False), nn.Linear(S, 4, bias=False)
    to.weight.data = scale * torch.randn(S, 4, generator=rng(1))
    back.weight.data = torch.linalg.pinv(to.weight.data)
    encoder = nn.Sequential(nn.Flatten(), to)
    drawn = nn.Sequential(back, nn.Hardtanh(-2.0, 2.0), nn.Unflatten(1, (1, 2, 2)))
    return Siamese(encoder, Distance(), drawn).requires_grad_(False)


def inputs(n: int, seed: int) -> Tensor:
    return torch.randn(n, 1, 2, 2, generator=rng(seed))


def by_hand(net: Siamese, known: Tensor, e: Tensor) -> list[float]:
    """d of each embedding, in plain loops."""

    def gaps(x: Tensor, others: Tensor) -> list[float]:
        return [float((x - other).double().norm()) for other in others]

    codes = net.encode(known)
    pictures = net.decode(codes)
    units = []
    for each in (pictures, codes):
        least = sorted(min(g for j, g in enumerate(gaps(x, each)) if j != i) for i, x in enumerate(each))
        units.append(least[(len(least) - 1) // 2])
    drawn = net.decode(e)
    return [
        max(min(gaps(p, pictures)) / units[0], min(gaps(x, codes)) / units[1]) for p, x in zip(drawn, e, strict=True)
    ]


def test_distances_and_p_values_are_those_of_the_definition() -> None:
    net, known, held = model(), inputs(31, 2), inputs(23, 3)
    e = torch.cat([net.encode(inputs(6, 4)), 5 * net.encode(inputs(3, 5))])
    found = familiar(net, known, held)
    told, others = found.away(net, e), by_hand(net, known, net.encode(held))
    expected = by_hand(net, known, e)
    torch.testing.assert_close(told.furthest, torch.tensor(expected, dtype=torch.float64), rtol=1e-4, atol=1e-6)
    p = [(1 + sum(other >= d for other in others)) / 24 for d in expected]
    assert told.p.tolist() == pytest.approx(p)
    assert told.strange.tolist() == [value <= STRANGE for value in p]
    assert told.strange.tolist() == (told.furthest > found.limit).tolist()
    assert told.strange.any()
    assert not told.strange.all()


def test_a_new_unchanged_input_is_strange_as_rarely_as_promised() -> None:
    net, calls = model(), []
    for seed in range(60):
        x = torch.randn(40 + 19 + 20, 1, 2, 2, generator=rng(100 + seed))
        calls.append(familiar(net, x[:40], x[40:59]).away(net, net.encode(x[59:])).strange.double().mean())
    rate = float(torch.stack(calls).mean())
    assert 0.02 < rate < 0.085  # 19 held out: exactly 1 / 20 in expectation


def test_a_picture_that_looks_known_is_strange_by_its_embedding_and_the_other_way_round() -> None:
    net, known = model(), inputs(200, 2)
    found = familiar(net, known, inputs(100, 3))
    home = net.encode(known[:1])
    assert not found.away(net, home).strange
    far = found.away(net, 50 * home)  # the picture is clipped to a corner that others are near, the embedding is not
    assert far.strange
    assert float(far.code) > float(far.picture)
    ring = Siamese(net.encoder, Distance(), _Ring(net, home[0]))  # draws as ever, but for one embedding
    known_to_it = familiar(ring, known[1:], inputs(100, 3))
    odd = known_to_it.away(ring, home)
    assert odd.strange
    assert float(odd.picture) > float(odd.code)


class _Ring(nn.Module):
    def __init__(self, net: Siamese, where: Tensor) -> None:
        super().__init__()
        self.net, self.where = net, where

    def forward(self, e: Tensor) -> Tensor:
        here = ((e - self.where).norm(dim=1) < 1e-3).view(-1, 1, 1, 1)
        return torch.where(here, 9.0, self.net.decode(e))


@settings(max_examples=25, deadline=None)
@given(scale=st.floats(0.01, 100), seed=st.integers(0, 99))
def test_the_unit_of_the_embedding_does_not_matter(scale: float, seed: int) -> None:
    x = inputs(30, seed)
    plain, other = (
        familiar(model(s), inputs(40, 2), inputs(25, 3)).away(model(s), model(s).encode(x)) for s in (1.0, scale)
    )
    torch.testing.assert_close(plain.furthest, other.furthest, rtol=1e-3, atol=1e-4)


def test_the_limit_is_where_strange_begins() -> None:
    net, held = model(), torch.arange(1.0, 40.0, dtype=torch.float64)  # m = 39: p <= 1 / 20 if at most one is as far
    found = familiar(net, inputs(40, 2), inputs(39, 3))
    known = Familiar(found.codes, found.pictures, found.units, held)
    assert known.limit == 38
    few = Familiar(found.codes, found.pictures, found.units, held[:18])
    assert few.limit == float("inf")


def test_copies_and_blank_pictures_have_a_unit_too() -> None:
    net = Siamese(nn.Flatten(), Distance(), nn.Sequential(nn.Hardtanh(0.0, 0.0 + 1e-30), nn.Unflatten(1, (1, 2, 2))))
    found = familiar(net, inputs(1, 2).expand(30, 1, 2, 2), inputs(20, 3))
    assert all(unit > 0 for unit in found.units)
    assert found.away(net, inputs(5, 4).flatten(1)).p.isfinite().all()


def test_too_few_inputs_are_refused() -> None:
    with pytest.raises(AssayError, match="2 known inputs and 19 that were held out, got 30 and 18"):
        familiar(model(), inputs(30, 0), inputs(18, 1))
