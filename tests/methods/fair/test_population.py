"""Networks trained together: as if one after the other, and as autograd and torch's Adam would."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.testing import assert_close

from assay.errors import AssayError
from assay.methods.fair.population import Population, drawn

RUNS, SIZE, FEATURES, HIDDEN, ROWS = 2, 3, 4, 5, 22


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture(scope="module")
def people() -> tuple[Tensor, Tensor]:
    x = torch.randn(RUNS, ROWS, FEATURES, generator=seeded(0))
    return x, (x[..., 0] + 0.3 * torch.randn(RUNS, ROWS, generator=seeded(1)) > 0).long()


@pytest.fixture(scope="module")
def begun() -> Population:
    return drawn(RUNS, SIZE, FEATURES, HIDDEN, seeded(2)).varied(0.1, seeded(3))  # with biases


def module(population: Population, run: int, member: int) -> nn.Sequential:
    net = nn.Sequential(nn.Linear(FEATURES, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 1))
    first, last = net[0], net[2]
    assert isinstance(first, nn.Linear)
    assert isinstance(last, nn.Linear)
    with torch.no_grad():
        first.weight.copy_(population.inner[run, :-1, member].T)
        first.bias.copy_(population.inner[run, -1, member])
        last.weight.copy_(population.outer[run, member][None])
        last.bias.copy_(population.shift[run, member][None])
    return net


def test_scores_are_those_of_each_network(people, begun):
    x, _ = people
    together = begun.scores(x)
    assert together.shape == (RUNS, SIZE, ROWS)
    for run in range(RUNS):
        for member in range(SIZE):
            alone = module(begun, run, member)(x[run]).sigmoid()[:, 0]
            assert_close(together[run, member], alone.detach())


def test_scores_in_parts_are_those_at_once(people, begun, monkeypatch):
    at_once = begun.scores(people[0])
    monkeypatch.setattr("assay.methods.fair.population.AT_ONCE", 7 * RUNS * SIZE * HIDDEN)
    assert_close(begun.scores(people[0]), at_once)


def test_trained_together_is_trained_one_by_one(people, begun):
    """With torch's own modules, cross-entropy and Adam, in the same batches."""
    x, y = people
    together = begun.trained(x, y, epochs=3, lr=0.01, batch=8, rng=seeded(4))
    rng = seeded(4)
    orders = [torch.rand(y.shape, generator=rng).argsort(1) for _ in range(3)]
    for run in range(RUNS):
        for member in range(SIZE):
            net = module(begun, run, member)
            adam = torch.optim.Adam(net.parameters(), lr=0.01)
            for order in orders:
                for seen in order[run].split(8):
                    adam.zero_grad()
                    F.binary_cross_entropy_with_logits(net(x[run, seen])[:, 0], y[run, seen].float()).backward()
                    adam.step()
            wanted = net(x[run]).sigmoid()[:, 0].detach()
            assert_close(together.scores(x)[run, member], wanted, rtol=1e-4, atol=1e-5)


def test_no_network_feels_another(people, begun):
    x, y = people
    together = begun.trained(x, y, epochs=2, lr=0.01, batch=8, rng=seeded(5))
    alone = begun.take(torch.tensor([[1], [1]])).trained(x, y, epochs=2, lr=0.01, batch=8, rng=seeded(5))
    for whole, one in zip(together.take(torch.tensor([[1], [1]])), alone, strict=True):
        assert_close(whole, one, rtol=1e-4, atol=1e-6)


def test_training_lowers_the_loss_and_leaves_what_it_began_with(people, begun):
    x, y = people
    before = [w.clone() for w in begun]
    after = begun.trained(x, y, epochs=40, lr=0.01, batch=22, rng=seeded(6))
    losses = [F.binary_cross_entropy(p.scores(x), y[:, None].expand(-1, SIZE, -1).float()) for p in (begun, after)]
    assert losses[1] < 0.7 * losses[0]
    for w, was in zip(begun, before, strict=True):
        assert_close(w, was, rtol=0, atol=0)


def test_offspring_differ_by_the_noise_and_keep_the_order(begun):
    young = begun.take(torch.tensor([[2, 0], [1, 1]]))
    assert_close(young.inner[0, :, 0], begun.inner[0, :, 2])
    assert_close(young.outer[1], begun.outer[1, [1, 1]])
    large = drawn(1, 20, 30, 40, seeded(7))
    moved = large.varied(0.01, seeded(8))
    gap = torch.cat([(a - b).flatten() for a, b in zip(moved, large, strict=True)])
    assert abs(gap.std() - 0.01) < 3e-4
    assert (gap != 0).float().mean() > 0.99
    both = begun.joined(young)
    assert both.size == SIZE + 2
    assert_close(both.take(torch.tensor([[3, 4], [3, 4]])).inner, young.inner)


def test_first_weights_are_those_of_glorot():
    new = drawn(1, 50, 10, 30, seeded(9))
    edge = (6 / 40) ** 0.5
    assert new.inner[:, :-1].abs().max() <= edge
    assert abs(new.inner[:, :-1].std() - edge / 3**0.5) < 0.01 * edge
    assert not new.inner[:, -1].any()
    assert not new.shift.any()


def test_bad_input_is_one_line(people, begun):
    with pytest.raises(AssayError, match="0 networks"):
        drawn(1, 0, 3, 3, seeded(0))
    with pytest.raises(AssayError, match="batches of 0"):
        begun.trained(*people, epochs=1, lr=0.1, batch=0, rng=seeded(0))
