"""Training from geo-tags: what the loss asks for, which tuples are drawn, and what is learnt where."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.testing import assert_close

from assay.errors import AssayError, ShapeError
from assay.methods.shift.mk_mmd import mk_mmd
from assay.methods.shift.places import ADAPT, MARGIN, Miner, describe, fit_places, ranking_loss, step_loss
from assay.nn.vlad import PlaceNet


def drawn(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).double()


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000), close=st.floats(0.1, 2.0))
def test_the_loss_is_the_printed_sum_and_0_just_where_every_negative_is_far_enough(seed, close):
    q, p, n = drawn(seed, 3, 4), close * drawn(seed + 1, 3, 2, 4), drawn(seed + 2, 3, 5, 4)
    found = ranking_loss(q, p, n)
    for b in range(3):
        best = min(float((q[b] - each).square().sum()) for each in p[b])
        far = [float((q[b] - each).square().sum()) for each in n[b]]
        assert float(found[b]) == pytest.approx(sum(max(0.0, best + MARGIN - d) for d in far))
        assert (float(found[b]) == 0) == all(d >= best + MARGIN for d in far)


def test_the_gradient_reaches_the_closest_positive_alone_and_the_negatives_that_are_too_near():
    q = torch.zeros(1, 2, requires_grad=True)
    p = torch.tensor([[[3.0, 0.0], [1.0, 0.0], [1.0, 0.0]]], requires_grad=True)  # two are as near: one is taken
    n = torch.tensor([[[0.5, 0.0], [9.0, 0.0]]], requires_grad=True)
    there = torch.tensor([[True, True, True]])
    ranking_loss(q, p, n, there=there).sum().backward()
    assert p.grad is not None
    assert n.grad is not None
    assert int((p.grad != 0).any(2).sum()) == 1
    assert (p.grad[0, 0] == 0).all()
    assert (n.grad != 0).any(2).tolist() == [[True, False]]


def test_padding_is_no_positive():
    q, n = torch.zeros(2, 2), torch.ones(2, 1, 2)
    p = torch.tensor([[[0.0, 0.0], [1.0, 0.0]], [[0.0, 0.0], [1.0, 0.0]]])
    there = torch.tensor([[True, True], [False, True]])
    assert ranking_loss(q, p, n, there=there, margin=2.0).tolist() == [0.0, 1.0]


TAGS = torch.tensor([[0.0, 0.0], [20.0, 0.0], [40.0, 0.0], [500.0, 0.0], [510.0, 0.0], [900.0, 0.0], [1e4, 0.0]])


def test_tuples_are_the_nearest_positive_and_the_hardest_negatives_by_what_was_seen():
    miner = Miner(TAGS, kept=2, positives=2)
    assert miner.queries.tolist() == [0, 1, 2, 3, 4]  # 5 and 6 are alone
    miner.refresh(torch.tensor([[0.0], [5.0], [1.0], [2.0], [3.0], [-1.0], [9.0]]))
    found = miner(torch.tensor([1, 0]), torch.Generator().manual_seed(0))
    assert found.positive.tolist() == [
        [2, 0],
        [1, -1],
    ]  # both lie within 25 m of 1; of 0 only 1 does, though 2 is like it
    assert found.negative.tolist() == [[4, 3], [5, 2]]
    miner.refresh(torch.tensor([[0.0], [5.0], [1.0], [2.0], [9.0], [5.5], [9.0]]))
    assert miner(torch.tensor([1]), torch.Generator()).negative.tolist() == [[5, 3]]


def test_only_as_many_negatives_are_looked_at_as_are_drawn():
    """Of 4 negatives 2 are drawn and the nearer is kept: by the order of the 6 pairs, 1/2, 1/3, 1/6 and never."""
    miner = Miner(TAGS, drawn=2, kept=1)
    miner.refresh(torch.arange(7.0)[:, None])
    query = torch.ones(3000, dtype=torch.long)
    kept = miner(query, torch.Generator().manual_seed(0)).negative[:, 0]
    share = torch.bincount(kept, minlength=7) / 3000
    assert_close(share, torch.tensor([0, 0, 0, 1 / 2, 1 / 3, 1 / 6, 0.0]), atol=0.04, rtol=0)


class Flat(nn.Module):
    """Features and a descriptor of which everything is known by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Linear(3, 3, bias=False)
        self.vlad = nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.vlad(self.features(x))
        return out


def test_a_step_is_the_ranking_loss_and_the_distance_of_the_features_from_the_target():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Flat()
    images, target = drawn(0, 7, 3).float(), drawn(1, 6, 3).float() + 1
    miner = Miner(TAGS, kept=2, positives=2)
    miner.refresh(describe(model, images))
    tuples = miner(torch.tensor([1, 0, 3]), torch.Generator().manual_seed(0))
    z = model(images).detach()
    plain = ranking_loss(z[tuples.query], z[tuples.positive], z[tuples.negative], there=tuples.positive >= 0).mean()
    assert_close(step_loss(model, images, tuples), plain)
    rows = torch.cat([tuples.query[:, None], tuples.positive.clamp_min(0), tuples.negative], 1).flatten()
    apart = mk_mmd(z[rows], model(target).detach())
    assert float(apart) > 0.01
    assert_close(step_loss(model, images, tuples, target), plain + ADAPT * apart)
    assert_close(step_loss(model, images, tuples, target, a=0.0), plain)


@pytest.fixture(autouse=True)
def seeded():
    """What a network starts from does not hang on the tests before."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


def test_training_finds_the_place_behind_what_varies_and_adaptation_brings_domains_together():
    """Of three numbers one tells the place, one is louder and tells nothing, one is the domain and added to the first,
    of which nothing in the source can tell."""
    place = torch.arange(40) % 10
    geo = torch.stack([100.0 * place, torch.zeros(40)], 1)
    images = torch.stack([place / 3.0, 2 * drawn(0, 40).float(), torch.zeros(40)], 1)
    target = torch.stack([place / 3.0, 2 * drawn(1, 40).float(), torch.full((40,), 3.0)], 1)

    def fitted(*given: torch.Tensor) -> tuple[Flat, list[float]]:
        model = Flat()
        with torch.no_grad():
            model.features.weight.copy_(torch.tensor([[1.0, 0.0, 1.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]))
        rng = torch.Generator().manual_seed(0)
        losses = fit_places(
            model, images, geo, *given, steps=60, rng=rng, lr=0.05, tuples=4, drawn=20, kept=5, refresh=40
        )
        return model, losses

    def first(model: nn.Module, x: torch.Tensor) -> float:
        """The share of images whose nearest other one of the source is of their place."""
        away = torch.cdist(describe(model, x), describe(model, images))
        if x is images:
            away.fill_diagonal_(torch.inf)
        return float((place[away.argmin(1)] == place).float().mean())

    plain, losses = fitted()
    assert first(Flat().requires_grad_(False), images) < 0.5
    assert first(plain, images) > 0.9
    assert sum(losses[-10:]) < sum(losses[:10]) / 2
    assert len(losses) == 60
    adapted, _ = fitted(target)
    gap = [float((describe(m, images).mean(0) - describe(m, target).mean(0)).norm()) for m in (plain, adapted)]
    assert gap[1] < gap[0] / 3
    assert first(adapted, target) > first(plain, target) + 0.3
    assert plain.features.weight.grad is None


def test_one_seed_gives_the_same_weights_again_and_descriptors_come_in_parts():
    images, geo = drawn(0, 12, 1, 8, 8).float().sigmoid(), torch.arange(12).float()[:, None].repeat(1, 2) // 3 * 100
    found = []
    for _ in range(2):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            net = PlaceNet(4, 2)
        fit_places(net, images, geo, images, steps=2, rng=torch.Generator().manual_seed(3), lr=1e-3, kept=5)
        found.append(describe(net, images))
    assert_close(found[0], found[1])
    assert_close(describe(net, images.repeat(50, 1, 1, 1))[-12:], found[1], rtol=1e-4, atol=1e-5)


def test_what_is_wrong_is_said():
    rng = torch.Generator()
    with pytest.raises(AssayError, match="only 4 negatives beyond 25 m, and 5 are kept"):
        Miner(TAGS, kept=5)
    with pytest.raises(AssayError, match="No image has another within 1 m"):
        Miner(TAGS, near=1.0, kept=1)
    with pytest.raises(AssayError, match="drawn=3, kept=5"):
        Miner(TAGS, drawn=3, kept=5)
    with pytest.raises(ShapeError, match=r"geo-tags of shape \(7,\); give metres"):
        Miner(TAGS[:, 0])
    miner = Miner(TAGS, kept=2)
    with pytest.raises(AssayError, match="no descriptors to mine by; call refresh"):
        miner(torch.tensor([0]), rng)
    with pytest.raises(ShapeError, match="Descriptors of 3 images for 7 tags"):
        miner.refresh(torch.zeros(3, 2))
    miner.refresh(torch.zeros(7, 2))
    with pytest.raises(AssayError, match=r"no potential positive; draw queries from Miner\.queries"):
        miner(torch.tensor([6]), rng)
    with pytest.raises(ShapeError, match=r"give \(b, s\), \(b, p, s\) and \(b, m, s\)"):
        ranking_loss(torch.zeros(2, 3), torch.zeros(2, 3), torch.zeros(2, 1, 3))
    with pytest.raises(AssayError, match="steps=0"):
        fit_places(Flat(), torch.zeros(7, 3), TAGS, steps=0, rng=rng)
