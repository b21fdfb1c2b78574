"""Genes of blended criteria, and their evolution."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_digits
from torch import nn
from torch.testing import assert_close

from assay.data.arrays import Arrays
from assay.errors import AssayError, ShapeError
from assay.methods.compress.agreement import clusters, matrix
from assay.methods.compress.blend import Genes, Keep, blend, blended, crossed, drawn, evolve, mutated
from assay.methods.compress.criteria import CRITERIA, kept, sample, scaled, scores
from assay.methods.compress.surgery import cut, edges
from assay.methods.train.fit import fit

LAYERS = (((0, 1), (2,), (3, 4, 5)), ((0,), (1, 2, 3, 4), (5,)))
seeds = st.integers(0, 2**32 - 1)


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def in_clusters(genes: Genes) -> bool:
    return all(
        int(genes.criteria[n, l, k]) in LAYERS[l][k] for n in range(len(genes)) for l in range(2) for k in range(3)
    )


@settings(deadline=None, max_examples=10)
@given(seed=seeds)
def test_every_gene_has_one_criterion_of_each_cluster_and_factors_between_0_and_1(seed: int) -> None:
    draw = rng(seed)
    genes = drawn(6, LAYERS, draw)
    for each in (genes, crossed(genes, 9, LAYERS, draw), mutated(genes, LAYERS, draw)):
        assert in_clusters(each)
        assert each.factors.shape == each.criteria.shape == (len(each), 2, 3)
        assert bool(((each.factors >= 0) & (each.factors <= 1)).all())


def test_criteria_are_drawn_evenly_within_their_cluster() -> None:
    some = drawn(6000, LAYERS, rng()).criteria[:, 0, 2]
    assert_close(torch.bincount(some, minlength=6)[3:] / 6000, torch.full((3,), 1 / 3), atol=0.03, rtol=0)


def test_a_child_has_its_own_factor_or_anothers_and_keeps_its_criterion_where_it_does_not_cross() -> None:
    genes = drawn(5, LAYERS, rng())
    child = crossed(genes, 5, LAYERS, rng(1), cross=0.0)
    assert_close(child.factors, genes.factors)
    assert_close(child.criteria, genes.criteria)
    whole = crossed(genes, 400, LAYERS, rng(2), cross=1.0)
    mine = genes.factors.repeat(80, 1, 1)
    assert not bool((whole.factors == mine).any())  # all from another one
    assert bool((whole.factors[:, None] == genes.factors[None]).all(-1).all(-1).any(1).all())
    some = crossed(genes, 4000, LAYERS, rng(3))
    assert float((some.factors != genes.factors.repeat(800, 1, 1)).double().mean()) == pytest.approx(0.8, abs=0.02)
    of_one = whole.criteria[::5, 0, 2]  # children of the same parent
    assert set(of_one.tolist()) == {3, 4, 5}  # sampled again, whatever it had


def test_a_tenth_of_the_entries_mutate() -> None:
    genes = drawn(3000, LAYERS, rng())
    other = mutated(genes, LAYERS, rng(1))
    assert float((other.factors != genes.factors).double().mean()) == pytest.approx(0.1, abs=0.01)
    assert_close(mutated(genes, LAYERS, rng(2), mutate=0.0).factors, genes.factors)


@settings(deadline=None, max_examples=10)
@given(seed=seeds, by=st.floats(0.01, 100))
def test_scaling_all_factors_of_a_layer_moves_no_filter(seed: int, by: float) -> None:
    scores = [scaled(torch.rand(6, 9, generator=rng(seed), dtype=torch.float64)) for _ in LAYERS]
    gene = drawn(1, LAYERS, rng(seed)).take(0)
    other = Genes(gene.factors * torch.tensor([[by], [1.0]]), gene.criteria)
    for a, b in zip(blended(scores, gene), blended(scores, other), strict=True):
        assert bool((kept(a, 4) == kept(b, 4)).all())


def test_one_cluster_with_factor_1_is_the_criterion_itself() -> None:
    scores = [torch.rand(6, 8, generator=rng(s)) for s in range(2)]
    gene = Genes(torch.ones(2, 1), torch.tensor([[4], [2]]))
    assert_close(blended(scores, gene), [scores[0][4], scores[1][2]])
    by_hand = Genes(torch.tensor([[0.5, 0.25], [1.0, 0.0]]), torch.tensor([[0, 1], [2, 3]]))
    assert_close(blended(scores, by_hand), [0.5 * scores[0][0] + 0.25 * scores[0][1], scores[1][2]])
    with pytest.raises(ShapeError, match="does not fit 1 layers"):
        blended(scores[:1], gene)


@settings(deadline=None, max_examples=15)
@given(seed=seeds, p=st.floats(1e-3, 1.0), i=st.integers(0, 5), count=st.integers(1, 9))
def test_with_one_cluster_the_channels_go_that_the_criterion_puts_last(seed: int, p: float, i: int, count: int) -> None:
    """As it is, in its own units: neither the scale to [0, 1] nor the factor moves a filter."""
    raw = 50 * torch.randn(6, 9, generator=rng(seed), dtype=torch.float64)
    (score,) = blended([scaled(raw)], Genes(torch.tensor([[p]]), torch.tensor([[i]])))
    assert bool((kept(score, count) == kept(raw[i], count)).all())


def towards(target: Genes) -> Any:
    return lambda gene: -float((gene.factors - target.factors).square().mean())


@pytest.mark.parametrize("seed", range(3))
def test_with_elitism_the_best_never_gets_worse_and_evolution_beats_drawing(seed: int) -> None:
    asked: list[float] = []
    judge = towards(drawn(1, LAYERS, rng(99)).take(0))

    def fitness(gene: Genes) -> float:
        asked.append(judge(gene))
        return asked[-1]

    found = evolve(fitness, LAYERS, rng=rng(seed), size=10, iterations=12)
    assert len(asked) == 10 * 13
    assert len(found.best) == 13
    assert all(b >= a for a, b in zip(found.best, found.best[1:], strict=False))
    assert found.best[-1] == found.fitness[0] == max(asked)
    assert found.best[-1] > found.best[0]
    assert list(found.fitness) == sorted(found.fitness, reverse=True)
    assert_close(torch.tensor([judge(found.genes.take(i)) for i in range(10)]), torch.from_numpy(found.fitness).float())


def test_without_elitism_the_best_may_be_lost_and_the_worst_share_is_gone() -> None:
    judge = towards(drawn(1, LAYERS, rng(99)).take(0))
    runs = [evolve(judge, LAYERS, rng=rng(s), size=10, iterations=6, drop=0.3, elitism=False) for s in range(3)]
    assert any(b < a for run in runs for a, b in zip(run.best, run.best[1:], strict=False))
    assert all(len(run.genes) == 7 for run in runs)


def test_the_same_seed_gives_the_same_genes() -> None:
    judge = towards(drawn(1, LAYERS, rng(99)).take(0))
    a, b = (evolve(judge, LAYERS, rng=rng(5), size=4, iterations=3) for _ in range(2))
    assert_close(a.genes.factors, b.genes.factors, rtol=0, atol=0)
    assert np.array_equal(a.fitness, b.fitness)


def test_the_blend_that_is_best_after_the_full_fine_tuning_is_taken_and_same_channels_are_judged_once() -> None:
    scores = {name: scaled(torch.rand(6, 5, generator=rng(s))) for s, name in enumerate("ab")}
    made: list[nn.Module] = []
    worth = torch.rand(32, generator=rng(7))

    def make(keep: Keep) -> nn.Module:
        assert [int(keep[name].sum()) for name in "ab"] == [2, 3]
        net = nn.Linear(1, 1)
        net.keep = keep  # type: ignore[assignment]
        made.append(net)
        return net

    def code(net: Any) -> int:
        return int((net.keep["a"] * 2 ** torch.arange(5)).sum())

    tuned: list[tuple[str, Any, float]] = []

    def short(net: nn.Module) -> float:
        tuned.append(("short", net, float(worth[code(net)])))
        return tuned[-1][2]

    def full(net: nn.Module) -> float:  # what was best shortly is not best fully
        tuned.append(("full", net, 1 - float(worth[code(net)])))
        return tuned[-1][2]

    found = blend(scores, {"a": 2, "b": 3}, LAYERS, make=make, short=short, full=full, top=3, rng=rng(), size=6,
                  iterations=4)  # fmt: skip
    shortly = [net for how, net, _ in tuned if how == "short"]
    keys = {tuple(of for name in "ab" for of in net.keep[name].tolist()) for net in shortly}
    assert found.judged == len(shortly) == len(keys) < 6 * 5
    fully = [value for how, _, value in tuned if how == "full"]
    assert len(fully) == len(found.candidates) == 3
    assert [each.worth for each in found.candidates] == sorted(fully, reverse=True)
    first = found.candidates[0]
    for name, score in zip("ab", blended(list(scores.values()), first.gene), strict=True):
        assert bool((kept(score, int(first.keep[name].sum())) == first.keep[name]).all())
    assert all(each.model is not net for each in found.candidates for net in shortly)  # a fresh cut is fine-tuned
    with pytest.raises(AssayError, match="top=0"):
        blend(scores, {"a": 2, "b": 3}, LAYERS, make=make, short=short, full=full, top=0, rng=rng())


def test_on_digits_a_blend_beats_the_median_of_single_criteria_and_the_worst_by_far() -> None:
    """Four convolutions, half of their channels cut, a short training after; judged by what the search is judged by."""
    x, y = load_digits(return_X_y=True)
    x = (x / 16).astype(np.float32).reshape(-1, 1, 8, 8)
    train, few = Arrays(x[:600], y[:600]), Arrays(x[:192], y[:192])
    held = torch.from_numpy(x[600:900]), torch.from_numpy(y[600:900])
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = nn.Sequential(
            *(*conv(1, 6), nn.MaxPool2d(2), *conv(6, 6), *conv(6, 6), *conv(6, 6)), nn.Flatten(), nn.Linear(96, 10)
        )
    fit(net, train, epochs=3, lr=0.1, rng=rng(), batch=64)
    net.eval()
    found = edges(net, held[0][:2])
    told = {name: scaled(of) for name, of in scores(net, found, *sample(train, 200)).items()}
    counts = {edge.name: 3 for edge in found}

    def make(keep: Keep) -> nn.Module:
        return cut(net, found, keep)

    def short(small: nn.Module) -> float:
        fit(small, few, epochs=1, lr=0.05, rng=rng(), batch=64)
        return float((small.eval()(held[0]).argmax(1) == held[1]).double().mean())

    single = [short(make({name: kept(of[i], 3) for name, of in told.items()})) for i in range(len(CRITERIA))]
    layers = [clusters(matrix(of.numpy()), 3) for of in told.values()]
    best = blend(told, counts, layers, make=make, short=short, full=short, top=1, rng=rng(), size=5, iterations=1)
    assert best.candidates[0].worth == pytest.approx(best.evolved.best[-1])
    assert best.evolved.best[-1] >= np.median(single)
    assert best.evolved.best[-1] >= min(single) + 0.1


def conv(a: int, b: int) -> tuple[nn.Module, ...]:
    return nn.Conv2d(a, b, 3, padding=1, bias=False), nn.BatchNorm2d(b), nn.ReLU()


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"size": 1}, "size=1"),
        ({"iterations": -1}, "iterations=-1"),
        ({"drop": 1.0}, "drop=1"),
        ({"cross": 2}, "cross=2"),
    ],
)
def test_settings_that_cannot_be_are_told(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(AssayError, match=says):
        evolve(lambda gene: 0.0, LAYERS, rng=rng(), **wrong)
    with pytest.raises(AssayError, match="as many clusters in every layer"):
        drawn(2, (LAYERS[0], LAYERS[1][:2]), rng())
