"""Is it a consistent order: models whose every number is known, from perfect to rock, paper and scissors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from assay.data.arrays import Arrays
from assay.data.pairs import Pairs
from assay.errors import AssayError
from assay.nn.siamese import Siamese
from assay.probe import put
from assay.probes.compared import is_it_a_consistent_order
from assay.probes.compared.is_it_a_consistent_order import ITSELF, SURVIVE, SWAP, TRIPLES, IsItAConsistentOrder
from assay.run import BUDGETS, Run
from assay.standard import judge
from assay.subject import Subject


class Tail(nn.Module):
    def __init__(self, rule: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.rule = rule

    def forward(self, e1: Tensor, e2: Tensor) -> Tensor:
        return self.rule(e1, e2)


def images() -> tuple[Tensor, np.ndarray]:
    """90 grey images whose value is their mean, from 0 to 1."""
    x = torch.rand(90, 1, 3, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return x.float(), x.float().double().flatten(1).mean(1).numpy()


def ranker(rule: Callable[[Tensor, Tensor], Tensor]) -> Subject:
    model = Siamese(nn.Sequential(nn.Flatten(), nn.AvgPool1d(9)), Tail(rule)).eval()
    return Subject.ranker(model, images(), low=0, high=1, pairs=400, name="by hand")


def ask(subject: Subject, run: Run, **settings: Any) -> Any:  # a Finding; each test knows which views it has
    answer = put(IsItAConsistentOrder(**settings), subject, run)
    assert answer.finding is not None, answer.why
    return answer.finding


def test_the_right_comparison_is_consistent_in_every_way(run: Run) -> None:
    finding = ask(ranker(lambda a, b: ((a - b) / 2 + 0.5)[:, 0]), run)
    value = {m.name: m.value for m in finding.measures}
    assert value[SURVIVE] == value["order accuracy"] == 1
    assert value[TRIPLES] == 0
    for name in (SWAP, ITSELF, "mean absolute error"):
        assert value[name] == pytest.approx(0, abs=1e-6)
    survives = finding.measure()
    assert survives.name == SURVIVE
    assert [b.label for b in survives.beside] == ["always 0.5", "a coin"]
    constant = finding.measure("mean absolute error").beside[0].value
    assert constant == pytest.approx(np.abs(finding.samples.columns["gap of the values"] / 2).mean())
    told = {s.measure: judge(s, finding).verdict for s in IsItAConsistentOrder.standards}
    assert told[SWAP] == told[ITSELF] == "pass"
    assert told[TRIPLES] == "cannot tell"  # none of 65 inputs: up to 5.6 % may be part of a broken triple
    assert len(finding.views) == 2


def test_a_lean_to_the_first_shows_in_each_number(run: Run) -> None:
    finding = ask(ranker(lambda a, b: ((a - b) / 2 + 0.6)[:, 0]), run)
    assert finding.measure(SWAP).value == pytest.approx(0.2, abs=1e-6)
    assert finding.measure(ITSELF).value == pytest.approx(0.1, abs=1e-6)
    assert finding.measure("mean absolute error").value == pytest.approx(0.1, abs=1e-6)
    gaps = finding.samples.columns["gap of the values"]
    assert finding.measure(SURVIVE).value == pytest.approx((np.abs(gaps[gaps != 0]) > 0.2).mean())
    assert judge(IsItAConsistentOrder.standards[0], finding).verdict == "fail"
    assert judge(IsItAConsistentOrder.standards[1], finding).verdict == "fail"


def test_always_half_is_symmetric_and_survives_no_swap(run: Run) -> None:
    finding = ask(ranker(lambda a, b: (0.5 + 0 * a)[:, 0]), run)
    assert finding.measure(SURVIVE).value == 0
    assert finding.measure(SWAP).value == finding.measure(ITSELF).value == 0
    right = finding.measure("order accuracy")
    assert right.value == pytest.approx(right.beside[0].value)
    error = finding.measure("mean absolute error")
    assert error.value == pytest.approx(error.beside[0].value)


def test_rock_paper_and_scissors_break_triples_and_are_shown(run: Run) -> None:
    finding = ask(ranker(lambda a, b: 0.5 + 0.4 * torch.sin(20 * (a - b))[:, 0]), run, inputs=40)
    broken = finding.measure(TRIPLES)
    assert 0.1 < broken.low <= broken.value <= broken.high < 0.6
    assert broken.n == 40
    assert finding.measure(SWAP).value == pytest.approx(0, abs=1e-6)
    gallery = finding.views[-1]
    assert len(gallery.exhibits) == run.budget.shown
    assert [p.label for p in gallery.exhibits[0].panels] == ["A", "B", "C"]
    assert "c(A,C) = 0." in gallery.exhibits[0].caption


def alike(rule: Callable[[Tensor, Tensor], Tensor]) -> Subject:
    x, value = images()
    model = Siamese(nn.Flatten(), Tail(rule)).eval()
    pairs = Pairs.alike(Arrays(x, np.zeros(90, dtype=np.int64)), (value > 0.5).astype(int), 300)
    return Subject.similarity(model, pairs, threshold=0.5, name="by hand")


def test_a_euclidean_distance_holds_and_its_square_breaks_triangles(run: Run) -> None:
    finding = ask(alike(lambda a, b: (a - b).norm(dim=1)), run)
    assert finding.measure(SURVIVE).value == 1
    assert finding.measure(TRIPLES).value == 0
    assert finding.measure(SWAP).value == finding.measure(ITSELF).value == 0
    assert finding.measure(SWAP).unit == "thresholds"
    assert finding.measure("accuracy").beside[0].value == pytest.approx(0.5, abs=0.02)
    squared = ask(alike(lambda a, b: (a - b).square().sum(1)), run)
    assert squared.measure(TRIPLES).value > 0.01
    assert "finds the way round shorter" in squared.says
    aslant = ask(alike(lambda a, b: (a - b).norm(dim=1) * (1 + a[:, 0])), run)
    assert aslant.measure(SWAP).value > 0.1


def test_the_bundled_ranker_is_consistent(run: Run) -> None:
    from assay.subjects.digits_ranker import build

    finding = ask(build(), run)
    assert finding.measure(SWAP).value < 0.02
    assert finding.measure(ITSELF).value < 0.02
    assert finding.measure(TRIPLES).value < 0.02
    assert finding.measure("order accuracy").value > 0.85
    error = finding.measure("mean absolute error")
    assert error.value < 0.4 * error.beside[0].value
    curve = finding.views[0]
    assert curve.lines[0].x == tuple(range(1, 10))


def test_bad_settings_and_pairs_without_an_order_are_refused(run: Run) -> None:
    with pytest.raises(AssayError, match="inputs=2 .* at least 3"):
        IsItAConsistentOrder(inputs=2)
    x, value = images()
    ties = Pairs(Arrays(x, np.zeros(90, dtype=np.int64)), value, [[0, 0], [1, 1]])
    model = Siamese(nn.Flatten(), Tail(lambda a, b: torch.sigmoid((a - b).sum(1)))).eval()
    answer = put(IsItAConsistentOrder(), Subject.ranker(model, ties, low=0, high=1), run)
    assert "All 2 pairs have equal values" in answer.why


def test_a_bound_on_the_inputs_holds_for_the_triples_too(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    real = is_it_a_consistent_order.compare_all
    monkeypatch.setattr(is_it_a_consistent_order, "compare_all", lambda c, e: seen.append(len(e)) or real(c, e))
    ask(ranker(lambda a, b: ((a - b) / 2 + 0.5)[:, 0]), replace(run, budget=BUDGETS["quick"].bounded(10)))
    assert seen == [10]
