r"""The most harmful training labels of a classifier, as several enemies would choose them, on features that stay.

    influence            on the last layer itself, learnt anew as labels change (influence.py, in rounds)
    label propagation    on the graph of the features (propagation.py): single flips as long as one by itself adds an
                         error (flips.py), then in rounds
    degree, PageRank     the most central labels of that graph, each to the class that the layer holds next likely
    random               any labels, each to any other class

All but the random ones see the training inputs and their labels, the aimed inputs, and what is right there or what they
believe to be; no other input. The width of the graph's kernel is that of its neighbourhoods, which needs no labels:

    gamma = 1 / median over the aimed inputs of |x - x_(10)|^2,     x_(10) the tenth nearest training input

or, where ten training inputs are equal to x, the nearest that is not: of a table of a few yes and no, rows repeat.

Source: Liu, 'Building Trustworthy Machine Learning Models', UCLA 2021, sec. 1.2.5 and 1.2.6; Koh and Liang, ICML 2017,
    arXiv:1703.04730.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from assay.errors import AssayError
from assay.methods.poison.centrality import degree, most_central, pagerank
from assay.methods.poison.flips import greedy_classes
from assay.methods.poison.head import fit_heads
from assay.methods.poison.influence import pull_of_head
from assay.methods.poison.propagation import Propagation, propagate, squared_distances
from assay.methods.poison.rounds import Chosen, in_rounds, pull_of_propagation

DENSE = 3000  # nodes, up to which a graph has all its ties; a larger one has those of the nearest
NEAREST, TIES = 10, 20
SAME = 1e-12  # of the largest squared distance: rounding of equal rows


class Enemies(NamedTuple):
    """What each would change, by name, and why one is missing, or ""."""

    chosen: dict[str, Chosen]
    missing: str


def local_gamma(x: Tensor, aimed: Tensor) -> float:  # n d, m d
    """The width by which a node's nearest labels count and far ones do not."""
    apart = squared_distances(aimed.cpu().numpy(), x.cpu().numpy())
    near = min(NEAREST, apart.shape[1]) - 1
    tenth = np.partition(apart, near, axis=1)[:, near]
    other = np.where(apart > SAME * apart.max(), apart, np.inf).min(1)
    told = other < np.inf  # an input that equals all of them tells no width
    return 1 / float(np.median(np.maximum(tenth, other)[told])) if told.any() else 1.0


def on_features(x: Tensor, aimed: Tensor, gamma: float | None) -> Propagation:  # n d, m d
    """Label propagation from the training inputs to the aimed ones; their width where none is told."""
    width = local_gamma(x, aimed) if gamma is None else gamma
    neighbours = TIES if len(x) + len(aimed) > DENSE else None
    return propagate(x.cpu().numpy(), aimed.cpu().numpy(), width, neighbours=neighbours)


def enemies(
    x: Tensor, labels: Tensor, classes: int, aimed: Tensor, targets: Tensor, *,
    ridge: float, gamma: float | None, counts: Sequence[int],
) -> Enemies:  # fmt: skip
    """The choices of all enemies who choose; x: n d+1 as `Scaling` gives it, labels: n, aimed: m d+1, targets: m"""
    most = counts[-1]
    found = {"influence": in_rounds(labels, pull_of_head(x, classes, aimed, targets, ridge=ridge), counts)}
    try:
        graph = on_features(x[:, :-1], aimed[:, :-1], gamma)
        k = graph.K
    except AssayError as e:
        return Enemies(found, str(e))
    singly = greedy_classes(k, labels.cpu().numpy(), targets.cpu().numpy(), most, classes)
    begun = Chosen(*(torch.as_tensor(part, device=labels.device) for part in (singly.order, singly.to)))
    pull = pull_of_propagation(torch.as_tensor(k, device=x.device), classes, targets)
    found["label propagation"] = in_rounds(labels, pull, counts, begun)
    layer = fit_heads(x, labels[None], classes, ridge=ridge)[0]
    likely = (x @ layer).scatter(1, labels[:, None], -torch.inf).argmax(1)
    for name, scores in (("degree", degree(graph.graph)), ("PageRank", pagerank(graph.graph, close=1e-9))):
        places = torch.as_tensor(most_central(scores, len(labels), most), device=labels.device)
        found[name] = Chosen(places, likely[places])
    return Enemies(found, "")


def by_chance(labels: Tensor, most: int, draws: int, rng: torch.Generator) -> list[Chosen]:  # n
    """Random labels, each changed to any other class that there is."""
    there = torch.unique(labels)  # type: ignore[no-untyped-call]
    if len(there) < 2:
        raise AssayError(f"All {len(labels)} labels are of one class; there is no other to change one to.")
    found = []
    for _ in range(draws):
        places = torch.randperm(len(labels), generator=rng, device=rng.device).to(labels.device)[:most]
        step = torch.randint(1, len(there), (most,), generator=rng, device=rng.device).to(labels.device)
        found.append(Chosen(places, there[(torch.searchsorted(there, labels[places]) + step) % len(there)]))
    return found
