r"""Blend criteria, layer by layer: a weighted sum of one criterion from each cluster, evolved for what pruning leaves.

    gene       (P, S): P in [0, 1]^{L x K} calibration factors, S one criterion of each cluster, L x K
    score      S_blend^l = sum_k p_k^l S_{i_k}^l        of scores that are scaled to [0, 1] (criteria.scaled)
    fitness    held-out accuracy after pruning by it and a short fine-tuning on training data

    draw N genes (P ~ U[0, 1], S uniform in its cluster) and judge them
    again and again:
        cross     each with another one: of each of its L x K entries, with probability `cross`, the other's factor and
                  a criterion sampled anew from the cluster, so that none is locked in
        mutate    each entry with probability `mutate`: factor and criterion drawn anew
        judge     the N children
        drop      the worst share of them
    fine-tune the best few fully, and take the one that is then best on held-out data

Scaling all factors of a layer alike moves no filter. With K = 1 a gene is one criterion for each layer, whatever p > 0.

Source: He, Huang, Liang, Liang & Yang, "Blending Pruning Criteria for Convolutional Neural Networks", ICANN 2021, sec.
    3.2, algorithm 1, sec. 5: N = 20, 50 iterations, cross 0.8, mutate 0.1, drop 0.08 (0.05 in one place), K = 3.
Where print is open: crossover and mutation are as above. The first genes are judged, for there is nothing to drop
    by otherwise. The places of the dropped go to the best genes from before, unchanged, so that the best of all is
    never lost (`elitism`); without it they stay empty, and the children of the next round are of those that are left.
Departs from print: one sentence there fine-tunes on the validation split, which then judges what it taught. Whoever
    writes `short` and `full` is to teach training data alone and to judge by others. Genes that keep the same channels
    are judged once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor, nn

from assay.errors import AssayError, ShapeError
from assay.methods.compress.agreement import Clusters
from assay.methods.compress.criteria import kept

SIZE, ITERATIONS, CROSS, MUTATE, DROP = 20, 50, 0.8, 0.1, 0.08
Keep = dict[str, Tensor]  # of each edge, by name: bool (size)


@dataclass(frozen=True)
class Genes:
    """Several genes, or one where the first dimension is missing."""

    factors: Tensor  # *n l k, in [0, 1]
    criteria: Tensor  # *n l k, by number

    def __len__(self) -> int:
        return len(self.factors)

    def take(self, which: int | Tensor) -> Genes:
        return Genes(self.factors[which], self.criteria[which])


class Evolved(NamedTuple):
    """The last population, best first, with what each is worth; and the best of each round, from the drawn ones on."""

    genes: Genes  # n l k
    fitness: NDArray[np.float64]  # n
    best: tuple[float, ...]


def blended(scores: Sequence[Tensor], gene: Genes) -> list[Tensor]:  # of each layer i m, one gene -> of each layer m
    """S_blend of each layer's filters."""
    if gene.factors.shape != gene.criteria.shape or gene.factors.shape[:-1] != (len(scores),):
        raise ShapeError(
            f"A gene of shape {tuple(gene.factors.shape)} does not fit {len(scores)} layers; give layers x clusters."
        )
    return [
        (p.to(each)[:, None] * each[i.to(each.device)]).sum(0)
        for each, p, i in zip(scores, gene.factors, gene.criteria, strict=True)
    ]


def drawn(many: int, layers: Sequence[Clusters], rng: Generator) -> Genes:
    """Genes at random: factors uniform, criteria uniform within their clusters."""
    counts = {len(clusters) for clusters in layers}
    if many < 1 or len(counts) != 1 or any(not cluster for clusters in layers for cluster in clusters):
        raise AssayError(
            f"Genes were asked for {many} times, of layers with {sorted(counts)} clusters; give at least 1, and as "
            "many clusters in every layer, none of them empty."
        )
    shape = (many, len(layers), counts.pop())
    return Genes(torch.rand(shape, generator=rng), _sampled(many, layers, rng))


def crossed(genes: Genes, many: int, layers: Sequence[Clusters], rng: Generator, *, cross: float = CROSS) -> Genes:
    """`many` children, of each gene in turn with another one at random."""
    first = torch.arange(many) % len(genes)
    step = torch.randint(1, max(2, len(genes)), (many,), generator=rng)
    mine, other = genes.take(first), genes.take((first + step) % len(genes))
    here = torch.rand(mine.factors.shape, generator=rng) < cross
    return Genes(
        torch.where(here, other.factors, mine.factors),
        torch.where(here, _sampled(many, layers, rng), mine.criteria),
    )


def mutated(genes: Genes, layers: Sequence[Clusters], rng: Generator, *, mutate: float = MUTATE) -> Genes:
    """The same with some entries drawn anew."""
    here = torch.rand(genes.factors.shape, generator=rng) < mutate
    new = drawn(len(genes), layers, rng)
    return Genes(torch.where(here, new.factors, genes.factors), torch.where(here, new.criteria, genes.criteria))


def evolve(
    fitness: Callable[[Genes], float],
    layers: Sequence[Clusters],
    *,
    rng: Generator,
    size: int = SIZE,
    iterations: int = ITERATIONS,
    cross: float = CROSS,
    mutate: float = MUTATE,
    drop: float = DROP,
    elitism: bool = True,
    after: Callable[[int, float], None] = lambda iteration, best: None,
) -> Evolved:
    """Genes evolved for a high `fitness`, which is asked of one gene at a time, `size` times in each round."""
    if size < 2 or iterations < 0:
        raise AssayError(f"An evolution got size={size}, iterations={iterations}; give at least 2 and at least 0.")
    if not (0 <= cross <= 1 and 0 <= mutate <= 1 and 0 <= drop < 1):
        raise AssayError(
            f"An evolution got cross={cross:g}, mutate={mutate:g}, drop={drop:g}; give shares from 0 to 1, and drop "
            "less than all."
        )
    dropped = min(size - 1, max(1 if elitism else 0, math.ceil(drop * size)))

    def judged(genes: Genes) -> tuple[Genes, NDArray[np.float64]]:  # best first
        worth = np.array([fitness(genes.take(i)) for i in range(len(genes))], dtype=np.float64)
        return _best_first(genes, worth)

    here, worth = judged(drawn(size, layers, rng))
    best = [float(worth[0])]
    after(0, best[-1])
    for iteration in range(1, iterations + 1):
        young = mutated(crossed(here, size, layers, rng, cross=cross), layers, rng, mutate=mutate)
        old, old_worth = here.take(torch.arange(dropped)), worth[:dropped]
        here, worth = judged(young)
        here, worth = here.take(torch.arange(size - dropped)), worth[: size - dropped]
        if elitism:
            joined = Genes(torch.cat([old.factors, here.factors]), torch.cat([old.criteria, here.criteria]))
            here, worth = _best_first(joined, np.concatenate([old_worth, worth]))
        best.append(float(worth[0]))
        after(iteration, best[-1])
    return Evolved(here, worth, tuple(best))


class Candidate(NamedTuple):
    """A gene, what it keeps, the network that was cut and fine-tuned by it, and what that is worth."""

    gene: Genes  # l k
    keep: Keep
    model: nn.Module
    worth: float


class Blended(NamedTuple):
    candidates: tuple[Candidate, ...]  # fully fine-tuned, best first
    evolved: Evolved
    judged: int  # networks that were pruned and fine-tuned shortly


def blend(
    scores: Mapping[str, Tensor],
    counts: Mapping[str, int],
    layers: Sequence[Clusters],
    *,
    make: Callable[[Keep], nn.Module],
    short: Callable[[nn.Module], float],
    full: Callable[[nn.Module], float],
    top: int,
    rng: Generator,
    size: int = SIZE,
    iterations: int = ITERATIONS,
    cross: float = CROSS,
    mutate: float = MUTATE,
    drop: float = DROP,
    after: Callable[[int, float], None] = lambda iteration, best: None,
) -> Blended:  # scores: of each edge, in the order of `layers`: i m, scaled
    """Search the blend by which `make` cuts best, keeping `counts` channels of each edge.

    `short` and `full` fine-tune what `make` gave, in place, and return its accuracy on held-out data. The `top` best
    genes that keep different channels are fully fine-tuned.
    """
    if top < 1:
        raise AssayError(f"top={top} leaves no gene to fine-tune; give at least 1.")
    each, known = list(scores.values()), dict[bytes, float]()

    def keeps(gene: Genes) -> tuple[bytes, Keep]:
        keep = {name: kept(of, counts[name]) for name, of in zip(scores, blended(each, gene), strict=True)}
        return b"".join(of.numpy().tobytes() for of in keep.values()), keep

    def fitness(gene: Genes) -> float:
        same, keep = keeps(gene)
        if same not in known:
            known[same] = short(make(keep))
        return known[same]

    found = evolve(
        fitness, layers, rng=rng, size=size, iterations=iterations, cross=cross, mutate=mutate, drop=drop, after=after
    )
    best: dict[bytes, tuple[Genes, Keep]] = {}
    for i in range(len(found.genes)):
        gene = found.genes.take(i)
        same, keep = keeps(gene)
        if len(best) < top:
            best.setdefault(same, (gene, keep))
    candidates = []
    for gene, keep in best.values():
        model = make(keep)
        candidates.append(Candidate(gene, keep, model, full(model)))
    candidates.sort(key=lambda one: -one.worth)
    return Blended(tuple(candidates), found, len(known))


def _best_first(genes: Genes, worth: NDArray[np.float64]) -> tuple[Genes, NDArray[np.float64]]:
    order = np.argsort(-worth, kind="stable")
    return genes.take(torch.from_numpy(order)), worth[order]


def _sampled(many: int, layers: Sequence[Clusters], rng: Generator) -> Tensor:  # -> n l k
    """A criterion of each cluster."""
    sizes = torch.tensor([[len(cluster) for cluster in clusters] for clusters in layers])
    place = (torch.rand(many, *sizes.shape, generator=rng) * sizes).long().clamp_max(sizes - 1)
    table = torch.zeros(*sizes.shape, int(sizes.max()), dtype=torch.int64)
    for l, clusters in enumerate(layers):
        for k, cluster in enumerate(clusters):
            table[l, k, : len(cluster)] = torch.tensor(cluster)
    return table.expand(many, -1, -1, -1).gather(-1, place[..., None])[..., 0]
