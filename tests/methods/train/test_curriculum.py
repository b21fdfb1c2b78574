"""The four schedulers: what is seen how often, and that order is credited only at equal updates."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.testing import assert_close

from assay.data.arrays import Arrays
from assay.errors import AssayError
from assay.methods.train.curriculum import Schedule, Scheduler
from assay.methods.train.fit import fit, shuffled

ALL: tuple[Scheduler, ...] = ("ordered", "mini-batch", "batch-repetition", "repeat-until-remember")


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_updates_of_an_epoch_of_381_inputs_as_counted_by_hand() -> None:
    counted = {name: len(Schedule(name).batches(torch.arange(381))) for name in ALL}
    assert counted == {"ordered": 381, "mini-batch": 12, "batch-repetition": 48, "repeat-until-remember": 89}
    assert len(shuffled(381, 32)(rng())) == 12  # the baseline


@settings(deadline=None, max_examples=40)
@given(
    n=st.integers(1, 200), batch=st.integers(1, 40), times=st.integers(1, 5), more=st.integers(1, 9),
    scheduler=st.sampled_from(ALL), seed=st.integers(0, 99),
)  # fmt: skip
def test_every_input_is_seen_every_epoch_and_the_count_of_updates_is_known(
    n: int, batch: int, times: int, more: int, scheduler: Scheduler, seed: int
) -> None:
    schedule = Schedule(scheduler, batch, times, more)
    ranked = torch.randperm(n, generator=rng(seed))
    batches = schedule.batches(ranked)
    assert len(batches) == schedule.updates(n)
    seen = Counter(i for each in batches for i in each.tolist())
    assert set(seen) == set(range(n))
    assert all(len(each) >= 1 for each in batches)
    again = times if scheduler == "batch-repetition" else 1
    if scheduler != "repeat-until-remember":
        assert set(seen.values()) == {again}
        assert [i for each in batches[::again] for i in each.tolist()] == ranked.tolist()
        assert max(map(len, batches)) <= (1 if scheduler == "ordered" else batch)
    else:
        assert [seen[i] for i in ranked.tolist()] == sorted(seen.values(), reverse=True)
    random = schedule.in_random_order(n)(rng(seed))
    assert sorted(map(len, random)) == sorted(map(len, batches))


def test_repeat_until_remember_shows_the_first_32_in_every_batch_and_the_last_4_once() -> None:
    batches = Schedule("repeat-until-remember").batches(torch.arange(200).flip(0))
    assert len(batches) == 1 + (200 - 32) // 4
    for each in batches:
        assert set(range(168, 200)) <= set(each.tolist())
    assert [sum(i in each.tolist() for each in batches) for i in range(4)] == [1] * 4
    assert [len(each) for each in batches[:3]] == [32, 36, 40]
    assert len(batches[-1]) == 200


def test_an_order_stays_every_epoch_and_a_random_one_does_not() -> None:
    schedule, ranked = Schedule("mini-batch", batch=4), torch.tensor([3, 1, 2, 0, 5, 4, 7, 6])
    order, random, draw = schedule.in_order(ranked), schedule.in_random_order(8), rng()
    assert [b.tolist() for b in order(draw)] == [b.tolist() for b in order(draw)] == [[3, 1, 2, 0], [5, 4, 7, 6]]
    assert [b.tolist() for b in random(draw)] != [b.tolist() for b in random(draw)]


def test_what_makes_no_batches_is_refused() -> None:
    for name in ("batch", "times", "more"):
        with pytest.raises(AssayError, match=f"{name}=0 makes no batches"):
            Schedule("mini-batch", **{name: 0})  # type: ignore[arg-type]


def test_fit_takes_the_batches_of_an_order_and_means_over_what_it_saw() -> None:
    """Against the same steps by hand."""
    x = torch.randn(10, 3, generator=rng())
    y = torch.arange(10) % 2
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net, twin = nn.Linear(3, 2), nn.Linear(3, 2)
    twin.load_state_dict(net.state_dict())
    batches = Schedule("repeat-until-remember", batch=4, more=3).batches(torch.arange(10))
    curve = fit(
        net, Arrays(x, y), epochs=2, lr=0.1, momentum=0.0, schedule="constant", rng=rng(), order=lambda rng: batches
    )
    optim, losses = torch.optim.SGD(twin.parameters(), 0.1), []
    for _ in range(2):
        for each in batches:
            loss = nn.functional.cross_entropy(twin(x[each]), y[each])
            optim.zero_grad()
            torch.autograd.backward(loss)
            optim.step()
            losses.append(float(loss))
    assert_close(net.state_dict(), twin.state_dict())
    assert_close(curve.steps, tuple(losses))
    sizes = [4, 7, 10]
    assert curve.epochs[0] == pytest.approx(sum(s * v for s, v in zip(sizes, losses, strict=False)) / 21, rel=1e-5)


def test_the_default_is_the_order_of_before() -> None:
    """The same numbers come from the generator as where fit drew its permutation itself."""
    batches = shuffled(10, 4)(rng(3))
    assert torch.cat(list(batches)).tolist() == torch.randperm(10, generator=rng(3)).tolist()
    assert [len(b) for b in batches] == [4, 3, 3]
