from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from assay import shelf
from assay.data.arrays import Arrays
from assay.engine.local import ThisProcess
from assay.errors import AssayError, SubjectError
from assay.nn.in_pieces import InPieces
from assay.probe import configure, put
from assay.run import BUDGETS, Budget, Run, budget


def labelled(labels):
    return Arrays(np.zeros((len(labels), 2), dtype=np.float32), np.asarray(labels))


def test_samples_are_stratified_seeded_and_in_order():
    data = labelled([0] * 700 + [1] * 290 + [2] * 10)
    run = Run(engine=ThisProcess(), budget=Budget("b", samples=100, steps=1, restarts=1))
    picked = run.pick(data)
    assert np.bincount(data.labels[picked]).tolist() == [70, 29, 1]
    assert (np.diff(picked) > 0).all()
    assert (picked == run.pick(data)).all()
    assert (picked != replace(run, seed=1).pick(data)).any()


def test_shares_that_do_not_divide_are_rounded_to_the_total():
    data = labelled([0] * 5 + [1] * 5 + [2] * 5)
    for n in range(1, 15):
        run = Run(engine=ThisProcess(), budget=Budget("b", samples=n, steps=1, restarts=1))
        assert len(run.pick(data)) == n
    assert len(replace(run, budget=BUDGETS["full"]).pick(data)) == 15


def test_a_quick_look_asks_fewer_inputs_where_each_takes_dozens_of_passes(digits, run):
    hurried = replace(run, budget=Budget("hurried", samples=30, steps=1, restarts=1, shown=0, dear=10))
    asked = {}
    for name in ("accuracy", "everyday-change", "worst-case-accuracy"):
        finding = put(configure(shelf.load("probes", name), {}), digits, hurried).finding
        asked[name] = finding.samples.columns["index"].tolist()
    assert (len(asked["accuracy"]), len(asked["everyday-change"]), len(asked["worst-case-accuracy"])) == (30, 10, 10)
    assert set(asked["everyday-change"]) <= set(asked["accuracy"])  # the fewer are among the others
    assert BUDGETS["standard"].dear is BUDGETS["full"].dear is None


def test_a_bound_holds_for_every_count_and_the_fewer_are_among_the_others():
    data = labelled([0] * 700 + [1] * 290 + [2] * 10)
    run = Run(engine=ThisProcess(), budget=BUDGETS["full"])
    bounded = replace(run, budget=BUDGETS["full"].bounded(40))
    assert (len(run.pick(data)), len(bounded.pick(data)), len(bounded.pick(data, 300))) == (1000, 40, 40)
    assert len(bounded.pick(data, 30)) == 30
    larger = replace(run, budget=BUDGETS["full"].bounded(300))
    assert set(bounded.pick(data)) <= set(larger.pick(data))


def test_draws_under_a_bound_favour_no_class_and_each_holds_the_smaller_ones():
    data = labelled(np.repeat(np.arange(100), 50))
    run = Run(engine=ThisProcess(), budget=BUDGETS["full"].bounded(50))
    classes = np.array([np.bincount(data.labels[replace(run, seed=s).pick(data)], minlength=100) for s in range(40)])
    assert classes.max() == 1  # stratified: no class twice before each had one
    assert (classes.mean(0) > 0.1).all()  # a fair coin of 40 throws is below 4 once in 10**7
    assert (classes.mean(0) < 0.9).all()
    uneven = labelled([0] * 700 + [1] * 290 + [2] * 10)
    before: set[int] = set()
    for n in range(1, 1000, 7):
        now = set(replace(run, budget=BUDGETS["full"].bounded(n)).pick(uneven).tolist())
        assert before < now
        assert len(now) == n
        shares = np.bincount(uneven.labels[sorted(now)], minlength=3) - n * np.array([0.7, 0.29, 0.01])
        assert np.abs(shares).max() < 2
        before = now


def test_what_is_fitted_is_the_same_at_each_look_and_bound_by_the_whole_audit():
    data = labelled([0] * 700 + [1] * 300)
    whole = Budget("10m", samples=None, steps=1, restarts=1, seconds=600)
    first, second = (
        Run(engine=ThisProcess(), budget=replace(whole, inputs=n, seconds=None), whole=whole) for n in (50, 200)
    )
    assert (len(first.pick(data)), len(second.pick(data))) == (50, 200)
    for count, n in ((400, 400), (None, 500)):
        made = first.pick(data, count, bounded=False)
        assert len(made) == n
        assert (made == second.pick(data, count, bounded=False)).all()
    assert len(first.drawn) == 1  # what is fitted tells nothing of what more there is to ask
    assert len(replace(first, whole=whole.bounded(80)).pick(data, 400, bounded=False)) == 80
    named = Run(engine=ThisProcess(), budget=BUDGETS["quick"].bounded(40))
    assert (named.pick(data, 400, bounded=False) == named.pick(data, 400)).all()


def test_a_bound_is_the_least_of_what_a_budget_has():
    assert BUDGETS["quick"].bounded(None) is BUDGETS["quick"]
    assert budget("quick", 300) == Budget("quick", samples=300, steps=20, restarts=1, dear=200, inputs=300)
    assert budget("quick", 100) == Budget("quick", samples=100, steps=20, restarts=1, inputs=100)
    assert budget("quick", 9000).samples == 500
    assert budget("full", 9000).samples == 9000
    for wrong in (0, -3, True, 2.5):
        with pytest.raises(AssayError, match=f"--inputs {wrong} is no number of inputs; give a whole number"):
            budget("quick", wrong)


def test_shards_join_in_order_and_each_has_its_own_generator(digits, run):
    seen = []

    def work(shard):
        seen.append((len(shard.x), shard.rng.initial_seed()))
        return {"index": torch.as_tensor(shard.index), "noise": torch.rand(len(shard.x), generator=shard.rng)}

    index = np.arange(10, 310)
    once = run.map(work, digits, "test", index, "")
    assert (once["index"] == index).all()
    assert [n for n, _ in seen] == [128, 128, 44]
    assert len({seed for _, seed in seen}) == 3
    assert (run.map(work, digits, "test", index, "")["noise"] == once["noise"]).all()
    assert (replace(run, seed=1).map(work, digits, "test", index, "")["noise"] != once["noise"]).any()


def test_no_shard_has_more_inputs_than_the_model_takes(digits, run):
    def sizes(model):
        seen = []
        run.map(lambda s: seen.append(len(s.x)) or {"y": s.y}, replace(digits, model=model), "test", np.arange(50), "")
        return seen

    assert sizes(digits.model) == [50]
    assert sizes(torch.nn.Sequential(InPieces(digits.model, 20))) == [20, 20, 10]
    assert sizes(InPieces(InPieces(digits.model, 30), 200)) == [30, 20]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_what_comes_in_halves_is_widened_and_nothing_else_is(digits, run, dtype):
    """numpy has no bfloat16, and the sum of a thousand float16 has no digit right."""

    def work(shard):
        return {"half": shard.x.flatten(1)[:, 20].to(dtype), "whole": shard.x.double().flatten(1)[:, 20], "y": shard.y}

    done = run.map(work, digits, "test", np.arange(200), "")
    assert [done[name].dtype for name in ("half", "whole", "y")] == [np.float32, np.float64, np.int64]
    assert np.abs(done["half"] - done["whole"]).max() <= 2**-8


def test_batches_halve_when_memory_runs_out(digits, run):
    sizes = []

    def work(shard):
        sizes.append(len(shard.x))
        if len(shard.x) > 40:
            raise torch.OutOfMemoryError("too much")
        return {"y": shard.y}

    done = run.map(work, digits, "test", np.arange(100), "")
    assert (done["y"] == digits.data["test"].labels[:100]).all()
    assert sizes == [100, 50, 25, 25, 25, 25]


def test_an_input_that_never_fits_is_an_error(digits, run):
    def work(shard):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes")

    with pytest.raises(AssayError, match="does not fit into the memory of 'cpu'"):
        run.map(work, digits, "test", np.arange(4), "")


def test_what_raises_is_named_with_its_inputs(digits, run):
    def work(shard):
        raise KeyError("oops")

    with pytest.raises(SubjectError, match="KeyError while working on inputs 3 to 6"):
        run.map(work, digits, "test", np.arange(3, 7), "")
    with pytest.raises(AssayError, match="must return one row per input"):
        run.map(lambda shard: {"y": shard.y[:1]}, digits, "test", np.arange(3), "")


def test_an_input_outside_the_bounds_is_named_by_its_place(digits, run):
    x, y = digits.data["test"].take(np.arange(200))
    x[150, 0, 2, 2] = 7.0
    broken = replace(digits, data={"test": Arrays(x, y)})
    with pytest.raises(SubjectError, match=r"Input 150 of 'test' has the value 7 outside the bounds \[0, 1\]"):
        run.predict(broken, "test", np.arange(200), "")


def test_an_answer_that_is_nan_is_named(digits, run):
    class Sick(torch.nn.Module):
        def forward(self, x):
            return torch.where(x.sum((1, 2, 3))[:, None] > 24, torch.nan, torch.zeros(len(x), 10))

    sick = replace(digits, model=Sick())
    rows = np.arange(300)
    first = int(np.flatnonzero(digits.data["test"].take(rows)[0].sum((1, 2, 3)).numpy() > 24)[0])
    with pytest.raises(SubjectError, match=f"NaN or infinity for input {first} of 'test'"):
        run.predict(sick, "test", rows, "")


def test_an_unknown_budget_lists_the_known_ones():
    with pytest.raises(AssayError, match="no budget 'huge'; choose one of quick, standard, full"):
        budget("huge")
