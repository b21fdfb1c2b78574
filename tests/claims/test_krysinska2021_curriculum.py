"""The study of curricula: many regressions side by side are single ones, and what its verdicts hang on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.testing import assert_close

from assay.claim import Evidence
from assay.claims import krysinska2021_curriculum as study
from assay.data.arrays import Arrays
from assay.methods.train.curriculum import Schedule
from assay.methods.train.fit import fit
from assay.run import Run


def test_regressions_side_by_side_are_those_of_fit_one_by_one() -> None:
    draw = torch.Generator().manual_seed(0)
    x, y = torch.randn(2, 30, 4, generator=draw), torch.randint(3, (2, 30), generator=draw)
    orders = torch.stack([torch.randperm(30, generator=draw) for _ in range(2)])
    schedule = Schedule("batch-repetition", batch=8, times=2)
    places = schedule.batches(torch.arange(30))
    start = torch.randn(2, 4, 3, generator=draw)
    w, b = study.logistic(x, y, (orders[:, at] for _ in range(3) for at in places), start, lr=0.01)
    for s in range(2):
        net = nn.Linear(4, 3)
        net.weight.data = start[s].T.clone()
        nn.init.zeros_(net.bias)
        fit(
            net, Arrays(x[s], y[s]), epochs=3, lr=0.01, optimiser="adam", schedule="constant",
            rng=torch.Generator().manual_seed(0), order=schedule.in_order(orders[s]),
        )  # fmt: skip
        assert_close(net.weight.T, w[s], atol=1e-5, rtol=1e-4)
        assert_close(net.bias, b[s], atol=1e-5, rtol=1e-4)


def test_batches_keep_the_orders_and_draw_the_random_ones_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study, "EPOCHS", 2)
    orders = torch.stack([torch.arange(10).flip(0), torch.arange(10)])
    first, second, third, fourth = study._batches(orders, Schedule("mini-batch", batch=5), 1, 0)
    assert torch.equal(first[0], third[0])
    assert torch.cat([first, second], 1)[0].tolist() == orders[0].tolist()
    drawn = [torch.cat(pair, 1)[1] for pair in ((first, second), (third, fourth))]
    assert sorted(drawn[0].tolist()) == sorted(drawn[1].tolist()) == list(range(10))
    assert not torch.equal(*drawn)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(study, "SPLITS", 3)
    monkeypatch.setattr(study, "EPOCHS", 2)
    monkeypatch.setattr(study, "SETS", ("iris", "two Gaussians"))
    monkeypatch.setattr(study, "TOY", 60)
    study._accuracies.cache_clear()
    yield
    study._accuracies.cache_clear()


def test_on_two_gaussians_the_gain_of_repetition_is_that_of_the_updates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight splits: 2 points over the baseline in a random order, and no order adds to it."""
    monkeypatch.setattr(study, "SPLITS", 8)
    baseline, repeated = (
        study._accuracies.__wrapped__(scheduler, "two Gaussians", 0, "cpu").mean(0)  # type: ignore[attr-defined]
        for scheduler in ("mini-batch", "batch-repetition")
    )
    orders, random = slice(0, 3), 3
    updates = repeated[random] - baseline[random]
    assert updates > 0.01
    assert (repeated[orders] - repeated[random] < 0.5 * updates).all()  # credited at equal updates alone
    assert (baseline[orders] - baseline[random] < 0.5 * updates).all()  # nor is it one with as many as the baseline


@pytest.mark.usefixtures("small")
def test_the_studies_run_on_little_and_their_numbers_stand_in_the_order_of_print(run: Run) -> None:
    for claim in study.SHELVED:
        evidence = claim.test(run)
        assert evidence.verdict == "cannot tell"
        for printed, measure in zip(claim.published, evidence.measures, strict=False):
            assert printed.unit == measure.unit
        assert all(np.isfinite(m.value or 0.0) for m in evidence.measures)


def found_here(evidence: Evidence) -> str:
    """What the words say of these data; print's are others, so that the verdict says nothing."""
    assert evidence.verdict == "cannot tell"
    told = evidence.says.rpartition("which are not print's, ")[2]
    return {"it holds.": "holds", "it fails.": "fails", "nothing can be told either.": "cannot tell"}[told]


def made_up(**arms: tuple[float, float]) -> Any:
    """Accuracies by scheduler: that of the orders and that of the random one, with a wobble of each split."""
    wobble = 1e-3 * np.sin(np.arange(60.0)).reshape(30, 2)

    def found(run: Any) -> Any:
        return {
            name.replace("_", "-"): np.stack([ordered + wobble * (i + 1) for i in range(3)] + [random + wobble], 2)
            for name, (ordered, random) in arms.items()
        }

    return found


@pytest.mark.parametrize(
    ("ordered", "random", "beats", "factor"),
    [
        (0.8, 0.8, "holds", "fails"),  # the updates do it
        (0.8, 0.7, "holds", "holds"),
        (0.8, 0.76, "holds", "holds"),
        (0.6, 0.7, "fails", "fails"),  # an order that hurts
        (0.7, 0.7, "cannot tell", "cannot tell"),  # nothing was gained that could be the order's
    ],
)
def test_verdicts_of_repetition_and_of_order(
    ordered: float, random: float, beats: str, factor: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    same = dict.fromkeys(("ordered", "batch_repetition", "repeat_until_remember"), (ordered, random))
    monkeypatch.setattr(study, "_all", made_up(mini_batch=(0.7, 0.7), **same))
    assert found_here(study.repeating(None)) == beats  # type: ignore[arg-type]
    assert found_here(study.order_is_the_factor(None)) == factor  # type: ignore[arg-type]


@pytest.mark.parametrize(("ordered", "verdict"), [(0.6, "holds"), (0.7, "cannot tell"), (0.8, "fails")])
def test_verdicts_of_order_alone(ordered: float, verdict: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study, "_all", made_up(mini_batch=(ordered, 0.7)))
    assert found_here(study.order_alone(None)) == verdict  # type: ignore[arg-type]
