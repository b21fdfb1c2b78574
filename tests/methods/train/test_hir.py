"""The loss of hypothesis invariance, against its definition; balanced batches; one domain left out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.ndimage import rotate
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn
from torch.testing import assert_close

from assay.data.arrays import Arrays
from assay.data.digits import load_digits
from assay.errors import AssayError, ShapeError
from assay.methods.shift.mk_mmd import mk_mmd
from assay.methods.train.alignment import Alignment, WithFeatures
from assay.methods.train.balanced import balanced
from assay.methods.train.fit import Loss, fit
from assay.methods.train.gradient_reversal import GradientReversal, WithCritic
from assay.methods.train.hir import WEIGHT, Hir, invariance, pairs
from assay.methods.train.leave_one_out import leave_one_out, others


def as_printed(logits: Tensor, same: Tensor) -> float:
    """One pair at a time, by the definition of KL."""
    total = 0.0
    p = logits.softmax(1).tolist()
    for i in range(len(p)):
        for j in range(i + 1, len(p)):
            if same[i] == same[j]:
                total += sum(a * (math.log(a) - math.log(b)) for a, b in zip(p[i], p[j], strict=True))
    return total


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 12), st.integers(2, 5), st.integers(0, 10_000))
def test_it_is_the_double_loop_never_below_0_and_blind_to_a_constant(n: int, k: int, seed: int) -> None:
    rng = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(n, k, generator=rng, dtype=torch.float64)
    y = torch.randint(k, (n,), generator=rng)
    found = invariance(logits, y)
    assert_close(float(found), as_printed(logits, y), rtol=1e-6, atol=1e-9)
    assert float(found) >= -1e-9
    assert_close(invariance(logits + torch.randn(n, 1, generator=rng), y), found)
    order = torch.randperm(n, generator=rng)
    one, other = (invariance(logits[o], y[o], symmetric=True) for o in (torch.arange(n), order))
    assert_close(one, other)
    assert_close(one, (found + invariance(logits.flip(0), y.flip(0))) / 2)
    assert_close(invariance(logits, torch.arange(n)), torch.zeros((), dtype=torch.float64))  # one input to a class
    stacked = invariance(torch.stack([logits, logits.flip(0)]), torch.stack([y, y.flip(0)]))
    assert_close(stacked, torch.stack([found, invariance(logits.flip(0), y.flip(0))]))


def test_one_direction_hangs_on_the_order_and_0_means_agreement() -> None:
    logits = torch.tensor([[2.0, 0.0, 0.0], [0.0, 0.5, 0.0], [2.0, 0.0, 0.0]], dtype=torch.float64)
    y = torch.tensor([0, 0, 0])
    assert abs(float(invariance(logits[:2], y[:2]) - invariance(logits[:2].flip(0), y[:2]))) > 0.01
    assert float(invariance(logits[::2], y[:2])) == pytest.approx(0, abs=1e-12)
    assert float(invariance(logits[::2] + torch.tensor([[1.0], [-5.0]]), y[:2])) == pytest.approx(0, abs=1e-9)
    assert float(invariance(logits[:2], y[:2])) > 0.1
    assert float(invariance(logits[:2], torch.tensor([0, 1]))) == 0


def test_both_answers_of_a_pair_move_and_the_gradient_is_right() -> None:
    rng = torch.Generator().manual_seed(0)
    logits = torch.randn(6, 3, generator=rng, dtype=torch.float64, requires_grad=True)
    y = torch.tensor([0, 1, 0, 2, 1, 0])
    assert torch.autograd.gradcheck(lambda z: invariance(z, y), logits)
    assert torch.autograd.gradcheck(lambda z: Hir(0.1).loss(z, y), logits)
    invariance(logits, y).backward()
    assert logits.grad is not None
    moved = logits.grad.abs().sum(1) > 1e-6
    assert moved.tolist() == [True, True, True, False, True, True]  # the only one of class 2 stays


def cells(domains: int, classes: int, each: int) -> tuple[Tensor, Tensor]:
    """Numbers of domains and classes of a set with so many inputs to a cell, in a random order."""
    grid = torch.cartesian_prod(torch.arange(domains), torch.arange(classes)).repeat(each, 1)
    return grid[torch.randperm(len(grid), generator=torch.Generator().manual_seed(0))].T.unbind(0)  # type: ignore[return-value]


def test_the_printed_batch_of_250_has_3000_pairs_of_which_alpha_is_3_times_the_mean() -> None:
    domain, y = cells(5, 10, 20)
    batches = balanced(domain, y, each=5)(torch.Generator().manual_seed(0))
    assert [len(b) for b in batches] == [250] * 4
    seen = y[batches[0]]
    labels = seen.tolist()
    same = sum(labels[i] == labels[j] for i in range(250) for j in range(i))
    assert same == pairs(10, 25) == 3000
    logits = torch.randn(250, 10, generator=torch.Generator().manual_seed(1))
    extra = Hir(1e-3).loss(logits, seen) - F.cross_entropy(logits, seen)
    assert_close(extra, WEIGHT * invariance(logits, seen) / same)
    within = Hir(1.0, domains=5).loss(logits, seen) - F.cross_entropy(logits, seen)
    parts = sum(invariance(z, c) for z, c in zip(logits.chunk(5), seen.chunk(5), strict=True))
    assert_close(within, parts)
    assert pairs(50, 5) == 500


def test_batches_hold_every_cell_alike_and_every_input_comes_before_one_comes_twice() -> None:
    domain, y = cells(3, 4, 7)
    order = balanced(domain, y, each=2)
    rng = torch.Generator().manual_seed(0)
    first, second = order(rng), order(rng)
    assert len(first) == len(second) == round(84 / 24)
    assert [b.tolist() for b in first] != [b.tolist() for b in second]
    for batch in first:
        assert domain[batch].tolist() == [0] * 8 + [1] * 8 + [2] * 8
        assert y[batch].tolist() == [0, 0, 1, 1, 2, 2, 3, 3] * 3
        assert len(set(batch.tolist())) == 24
    long = balanced(domain, y, each=7)(rng)
    assert sorted(torch.cat(long).tolist()) == list(range(84))
    with pytest.raises(AssayError, match="Domain 3 has no input of class 1, which other domains have"):
        balanced(torch.cat([domain, torch.tensor([3])]), torch.cat([y, torch.tensor([0])]), each=1)
    more = torch.cat([domain, domain[domain == 0]]), torch.cat([y, y[domain == 0]])  # cells of 14, and of 7
    twice = torch.cat(balanced(*more, each=2)(rng))
    seen = torch.bincount(twice, minlength=112)
    assert int(seen.max()) == 2
    assert all(int(seen[(more[0] == d) & (more[1] == 1)].sum()) == 2 * round(112 / 24) for d in range(3))


def test_paired_batches_hold_the_same_things_of_every_domain() -> None:
    domain, y = torch.arange(3).repeat_interleave(20), torch.arange(4).repeat_interleave(5).repeat(3)
    thing = torch.arange(20).repeat(3)
    rng = torch.Generator().manual_seed(0)
    for batch in balanced(domain, y, each=1, paired=True)(rng):
        assert len({tuple(row) for row in thing[batch].reshape(3, 4).tolist()}) == 1
    unpaired = [thing[batch].reshape(3, 4) for batch in balanced(domain, y, each=1)(rng)]
    assert any(bool((rows != rows[0]).any()) for rows in unpaired)
    with pytest.raises(AssayError, match="Domain 1 has 5 inputs of class 0 and domain 0 4; pairs want the same"):
        balanced(domain[1:], y[1:], each=1, paired=True)


def test_what_is_left_out_is_never_handed_to_the_training() -> None:
    domains = {"a": 1, "b": 2, "c": 3}
    handed: list[Mapping[str, int]] = []

    def train(some: Mapping[str, int]) -> int:
        handed.append(dict(some))
        return sum(some.values())

    assert leave_one_out(domains, train, lambda net, at: (net, at)) == {"a": (5, 1), "b": (4, 2), "c": (3, 3)}
    assert handed == [{"b": 2, "c": 3}, {"a": 1, "c": 3}, {"a": 1, "b": 2}]
    with pytest.raises(AssayError, match="no domain 'd' to hold out; there are a, b, c"):
        others(domains, "d")
    with pytest.raises(AssayError, match="'a' is the only domain"):
        others({"a": 1}, "a")


def test_what_cannot_be_is_refused_in_one_line() -> None:
    with pytest.raises(AssayError, match="alpha=-1 is no weight for L_h"):
        Hir(-1)
    with pytest.raises(ShapeError, match=r"logits of shape \(4, 3\) and classes of shape \(3,\)"):
        invariance(torch.zeros(4, 3), torch.zeros(3))
    with pytest.raises(ShapeError, match="7 inputs does not hold 2 domains"):
        Hir(1.0, domains=2).loss(torch.zeros(7, 3), torch.zeros(7, dtype=torch.long))
    with pytest.raises(AssayError, match="each=0 puts no input"):
        balanced(torch.zeros(3), torch.zeros(3), each=0)


def test_too_much_of_it_and_every_answer_is_the_same() -> None:
    rng = torch.Generator().manual_seed(0)
    y = torch.arange(120) % 3
    x = torch.randn(120, 2, generator=rng) / 4 + torch.stack([y.float(), (y == 1).float()], 1)
    ends: dict[float, tuple[float, float]] = {}
    for alpha in (0.0, 1e-3, 10.0):
        net = nn.Linear(2, 3)
        nn.init.zeros_(net.weight)
        nn.init.zeros_(net.bias)
        optimiser = torch.optim.LBFGS(net.parameters(), max_iter=40, line_search_fn="strong_wolfe")

        def step(alpha: float = alpha, net: nn.Module = net, optimiser: Any = optimiser) -> Tensor:
            optimiser.zero_grad()
            value = Hir(alpha).loss(net(x), y)
            value.backward()
            return value

        optimiser.step(step)  # type: ignore[no-untyped-call]
        with torch.no_grad():
            ends[alpha] = float(invariance(net(x), y)), float(F.cross_entropy(net(x), y))
    assert ends[0.0][0] > 2 * ends[1e-3][0] > 4 * ends[10.0][0]
    assert ends[10.0][0] < 0.01
    assert ends[10.0][1] == pytest.approx(math.log(3), abs=0.01)
    assert ends[0.0][1] < 0.2


def shifted(n: int) -> tuple[Tensor, Tensor, Tensor]:
    """Three domains that a feature of its own tells apart, and two classes that another one does: x, y, domain."""
    rng = torch.Generator().manual_seed(0)
    domain, y = torch.arange(3).repeat_interleave(n), (torch.arange(3 * n) % 2)
    told = torch.stack([2.0 * y - 1, domain - 1.0], 1)
    return told + 0.3 * torch.randn(3 * n, 2, generator=rng), y, domain


def test_features_of_hir_still_tell_the_domain_and_invariant_ones_do_not() -> None:
    """At the same accuracy; by a linear classifier of domains on what enters the last layer. Chance is 1/3."""
    x, y, domain = shifted(60)
    order = balanced(domain, y, each=30)
    told, right = {}, {}
    for way in ("HIR", "MMD", "reversal"):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(2, 4), nn.Linear(4, 2))
        rng = torch.Generator().manual_seed(0)
        if way == "HIR":
            trained: nn.Module = net
            loss: Loss = Hir(WEIGHT / pairs(2, 90)).loss
        elif way == "MMD":
            trained, loss = WithFeatures(net, "1"), Alignment(mk_mmd, 3.0, classes=2, each=60).loss
        else:
            trained = WithCritic(net, "1", 3, x[:2], rng=rng)
            loss = GradientReversal(classes=2, domains=3, each=60).loss
        fit(trained, Arrays(x, y), epochs=100, lr=0.05, optimiser="adam", momentum=0.0, order=order, loss=loss, rng=rng)
        with torch.no_grad():
            z = net[0](x).numpy()
            right[way] = float((net(x).argmax(1) == y).float().mean())
        fitted, asked = torch.randperm(len(z), generator=rng).chunk(2)
        z = z / z.std()
        told[way] = LogisticRegression().fit(z[fitted], domain[fitted]).score(z[asked], domain[asked])
    assert min(right.values()) > 0.97
    assert told["HIR"] > 0.8
    assert told["MMD"] < 0.5
    assert told["reversal"] < 0.5


@pytest.fixture(scope="module")
def angles() -> dict[int, Arrays]:
    """Digits of 8 x 8 at six angles: 60 of each class, the same ones at each angle, class by class."""
    train = load_digits()["train"]
    rows = np.concatenate([np.flatnonzero(train.labels == c)[:60] for c in range(10)])
    x, y = np.asarray(train.x)[rows], train.labels[rows]
    return {
        a: Arrays(rotate(x, a, axes=(2, 3), reshape=False, order=1).clip(0, 1).astype(np.float32), y)
        for a in range(0, 90, 15)
    }


def joined(domains: Mapping[str, Arrays]) -> tuple[Arrays, Tensor]:
    parts = list(domains.values())
    whole = Arrays(np.concatenate([d.x for d in parts]), np.concatenate([d.labels for d in parts]))
    return whole, torch.arange(len(parts)).repeat_interleave(len(parts[0]))


def trained(domains: Mapping[str, Arrays], alpha: float, epochs: int = 10) -> nn.Module:
    whole, domain = joined(domains)
    order = balanced(domain, torch.from_numpy(whole.labels), each=5)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    rng = torch.Generator().manual_seed(0)
    fit(net, whole, epochs=epochs, lr=3e-3, optimiser="adam", order=order, loss=Hir(alpha).loss, rng=rng)
    return net.eval()


def right(net: nn.Module, at: Any) -> float:
    with torch.no_grad():
        x, y = at.take(np.arange(len(at)))
        return float((net(x).argmax(1) == y).float().mean())


def test_the_trend_on_rotated_digits(angles: dict[int, Arrays]) -> None:
    """Ends are harder than the middle for both, and HIR is ahead at the ends: the card's own run, in small."""
    named = {str(a): data for a, data in angles.items()}
    found = {
        alpha: {a: right(trained(others(named, a), alpha), named[a]) for a in ("0", "30", "75")}
        for alpha in (0.0, 1e-2)
    }
    for by_angle in found.values():
        assert max(by_angle["0"], by_angle["75"]) < by_angle["30"] - 0.05
    gains = [found[1e-2][a] - found[0.0][a] for a in ("0", "30", "75")]
    assert sum(gains) > 0.05


def test_what_unpaired_batches_bring_apart_is_more(angles: dict[int, Arrays]) -> None:
    """L_h of batches of one input to a cell, by a net that has learned a little (fig. 3.5 of the dissertation)."""
    few = {str(a): angles[a] for a in (0, 15, 30)}
    net = trained(few, 0.0, epochs=3)
    whole, domain = joined(few)
    y = torch.from_numpy(whole.labels)
    apart = {}
    for paired in (True, False):
        batches = balanced(domain, y, each=1, paired=paired)(torch.Generator().manual_seed(0))
        with torch.no_grad():
            each = [invariance(net(whole.take(b.numpy())[0]), y[b]) for b in batches]
        apart[paired] = float(torch.stack(each).mean())
    assert apart[False] > 1.3 * apart[True]
