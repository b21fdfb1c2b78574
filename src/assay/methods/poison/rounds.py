r"""Which labels to change for which classes, in rounds, from what each change would add to an enemy's sum.

An enemy wants inputs u, whose targets t are right or believed to be, to be answered wrongly. Counted smoothly,

    L = mean_u  1 - softmax(sharp z_u)_{t_u}          z: the victim's scores

and a victim has a pull: how L grows, to first order, with label i being of class c. What a change from y to c adds is

    gain(i, c) = pull_ic - pull_iy

    label propagation    pull = K' dL/dz                     z = K Y, which is linear in the labels Y
    a last layer         pull = 1/n X H^-1 A' dL/dz          z = A W, see influence.py

Of the labels that are not changed yet those of the highest gain are, each to its worst class; then the pull is taken
anew, since gains of a hundred changes do not add up. L and not the cross entropy, by which an enemy drives a few inputs
far beyond the boundary instead of many across it: 200 changes of 2,000 took 4 points from the bundled Fashion-MNIST
network by that, and 8 by this.

Source: the relaxed objective of Liu, 'Building Trustworthy Machine Learning Models', UCLA 2021, sec. 1.2.5, with
    softmax in place of tanh for more than two classes (of two they are one: tanh(a m) is sharp = 2 a), and rounds in
    place of sampled flips.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from assay.errors import AssayError

SHARP = 20.0  # of scores that are shares of labels: the public code of print has tanh(10 x) of two classes
Pull = Callable[[Tensor], Tensor]  # the labels as they are now: n -> n c


class Chosen(NamedTuple):
    """Training labels to be changed, the first ones first, each with the class that it is changed to."""

    places: Tensor  # k
    to: Tensor  # k

    def first(self, labels: Tensor, counts: Sequence[int]) -> Tensor:  # n -> r n
        """The labels with the first so many of them changed, for each count."""
        rows = labels.repeat(len(counts), 1)
        for row, k in zip(rows, counts, strict=True):
            row[self.places[:k]] = self.to[:k]
        return rows


def wrong_slope(scores: Tensor, targets: Tensor, sharp: float) -> Tensor:  # m c, m -> m c
    """dL/dz."""
    p = torch.softmax(sharp * scores, 1)
    right = F.one_hot(targets, scores.shape[1]).to(p)
    return sharp * p.gather(1, targets[:, None]) * (p - right) / len(scores)


def pull_of_propagation(k: Tensor, classes: int, targets: Tensor) -> Pull:  # m n, m
    """The pull of label propagation whose matrix is `k`."""

    def pull(labels: Tensor) -> Tensor:  # n -> n c
        scores = k @ F.one_hot(labels, classes).to(k)
        return k.T @ wrong_slope(scores, targets, SHARP)

    return pull


def in_rounds(labels: Tensor, pull: Pull, counts: Sequence[int], begun: Chosen | None = None) -> Chosen:  # n
    """The counts[-1] most harmful changes, in rounds that end at each count; `begun` ones come first."""
    refuse_counts(counts, len(labels))
    now, free = labels.clone(), torch.ones_like(labels, dtype=torch.bool)
    places, to = ([], []) if begun is None else ([begun.places[: counts[-1]]], [begun.to[: counts[-1]]])
    for chosen, classes in zip(places, to, strict=True):
        now[chosen], free[chosen] = classes, False
    for count in counts:
        more = count - int((~free).sum())
        if more <= 0:
            continue
        given = pull(now)
        gain = given - given.gather(1, now[:, None])
        best = gain.scatter(1, now[:, None], -torch.inf).max(1)
        chosen = torch.where(free, best.values, -torch.inf).argsort(descending=True, stable=True)[:more]
        places.append(chosen)
        to.append(best.indices[chosen])
        now[chosen], free[chosen] = to[-1], False
    return Chosen(torch.cat(places), torch.cat(to))


def refuse_counts(counts: Sequence[int], labels: int) -> None:
    """Refuse numbers of changes that do not grow, or are more than there are labels."""
    if not counts or counts[0] < 1 or any(b <= a for a, b in pairwise(counts)):
        raise AssayError(f"The numbers of labels to change are {list(counts)}; give whole numbers from 1 that grow.")
    if counts[-1] > labels:
        raise AssayError(f"{counts[-1]} labels cannot be changed, for there are {labels}; give at most {labels}.")
