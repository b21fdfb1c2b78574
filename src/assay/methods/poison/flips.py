r"""Which labels to flip, at most so many, that label propagation errs most.

    max_delta #{ sign(K (y_l * delta)) != t },   delta in {-1, +1}^l with at most c entries of -1

t is the truth of the unlabelled nodes, or sign(K y_l) where it is not known. `greedy` takes the best single flip, and
again; `exhaustive` tries all sets; `relaxation.py` climbs a smooth stand-in.

Source: Liu, 'Building Trustworthy Machine Learning Models', UCLA 2021, sec. 1.2.5 (eq. 1.6 to 1.10); Liu et al.,
    NeurIPS 2019. A score of exactly 0 counts as +1, of which print says nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain, combinations, islice
from math import comb

import numpy as np
from numpy.typing import NDArray

from assay.errors import AssayError, ShapeError
from assay.methods.poison.propagation import Array, signs

Ints = NDArray[np.int64]
Labels = NDArray[np.int64] | NDArray[np.float64]  # whole numbers, in whatever form they come
PAIRS = 200_000  # of a node and a label, that are tried at once
SETS = 2_000_000  # more are too many to try


@dataclass(frozen=True)
class Flips:
    """Labels in the order in which they are flipped, and how many unlabelled nodes are wrong after each."""

    order: Ints  # c; at most as many as were allowed
    errors: Ints  # c
    clean: int  # errors before any flip
    to: Ints  # c: the label that each one gets

    def applied(self, labels: NDArray[np.int64], most: int | None = None) -> Ints:  # l -> l
        """The labels with the first `most` flips made."""
        changed = np.array(labels, np.int64)
        changed[self.order[:most]] = self.to[:most]
        return changed


def greedy(K: Array, labels: Labels, target: Labels, most: int, *, as_published: bool = False) -> Flips:  # u l, l, u
    """The flip that adds most errors, and again; labels and targets are -1 or +1.

    A flip of i moves the scores by -2 y_i K_i, so that one round costs u l.
    Departs from print: where no flip adds an error, the one is taken that brings the margins of nodes that are still
    right down most, sum_u max(0, t_u s_u), and in the end what follows the most errors is left out. It is never worse
    than an end at the first flip that adds none. `as_published=True` takes the flip of most errors to the last.
    """
    labels, target = check_signs(K, labels, target, most)
    scores = K @ labels
    step = -2 * K * labels  # u l
    clean = int((signs(scores) != target).sum())
    order: list[int] = []
    errors: list[int] = []
    right = target > 0
    free = np.ones(len(labels), bool)
    for _ in range(min(most, len(labels))):
        moved = scores[:, None] + step  # u l
        wrong = ((moved >= 0) != right[:, None]).sum(0)  # l
        best = int(np.where(free, wrong, -1).argmax())
        if not as_published and wrong[best] <= (errors[-1] if errors else clean):
            left = np.maximum(moved * target[:, None], 0).sum(0)  # l
            best = int(np.where(free, left, np.inf).argmin())
        free[best] = False
        scores = scores + step[:, best]
        order.append(best)
        errors.append(int(wrong[best]))
    if not as_published:
        kept = int(np.argmax([clean, *errors]))  # of equal ones the fewest flips
        order, errors = order[:kept], errors[:kept]
    return _flips(order, errors, clean, [-labels[i] for i in order])


def exhaustive(K: Array, labels: Labels, target: Labels, most: int) -> Flips:  # u l, l, u
    """The best of all sets of at most so many flips, the smallest of equal ones; for few labels and flips."""
    labels, target = check_signs(K, labels, target, most)
    most = min(most, len(labels))
    count = sum(comb(len(labels), c) for c in range(1, most + 1))
    if count > SETS:
        raise AssayError(
            f"{count:,} sets of at most {most} of {len(labels)} labels are too many to try; {SETS:,} are not. "
            "Take fewer flips, or greedy."
        )
    scores, step, right = K @ labels, -2 * (K * labels).T, target > 0  # u, l u, u
    best, found = int((signs(scores) != target).sum()), ()
    at_once = max(1, PAIRS * 20 // len(K))
    for c in range(1, most + 1):
        sets = combinations(range(len(labels)), c)
        while tried := list(chain.from_iterable(islice(sets, at_once))):
            which = np.array(tried).reshape(-1, c)
            moved = np.repeat(scores[None], len(which), 0)
            for place in which.T:
                moved += step[place]
            wrong = ((moved >= 0) != right).sum(1)
            top = int(wrong.argmax())
            if wrong[top] > best:
                best, found = int(wrong[top]), tuple(which[top].tolist())
    return in_order(K, labels, target, np.array(found, np.int64))


def in_order(K: Array, labels: Ints, target: Ints, order: Ints) -> Flips:  # u l, l, u, c
    """These flips, one after the other, with the errors after each."""
    scores = K @ labels
    after = scores[:, None] + np.cumsum(-2 * K[:, order] * labels[order], 1)  # u c
    errors = ((after >= 0) != (target > 0)[:, None]).sum(0)
    clean = int((signs(scores) != target).sum())
    return Flips(np.asarray(order, np.int64), errors.astype(np.int64), clean, -labels[order])


def greedy_classes(K: Array, labels: Labels, target: Labels, most: int, classes: int) -> Flips:  # u l, l, u
    """For labels 0 to classes - 1, the label and the wrong class that add most errors, until none adds one.

    Scores are K times one column a class, the answer is the highest, of equal ones the first. Only nodes whose lead
    is at most twice their weight on a label can change with it, and only these are looked at.
    """
    labels, target = _check(K, labels, target, most)
    for name, values in (("labels", labels), ("target", target)):
        if not ((values >= 0) & (values < classes)).all():
            odd = values[(values < 0) | (values >= classes)][0]
            raise AssayError(f"Got {odd} among the {name}; {classes} classes want labels from 0 to {classes - 1}.")
    scores = K @ np.eye(classes)[labels]  # u k
    clean = int((scores.argmax(1) != target).sum())
    order, errors, to = [], [], []
    free = np.ones(len(labels), bool)
    for _ in range(min(most, len(labels))):
        added = _added(K, labels, target, scores)  # l k
        added[~free] = -len(K) - 1
        best, other = np.unravel_index(int(added.argmax()), added.shape)
        if added[best, other] <= 0:
            break
        free[best] = False
        scores[:, labels[best]] -= K[:, best]
        scores[:, other] += K[:, best]
        order.append(int(best))
        to.append(int(other))
        errors.append(int((scores.argmax(1) != target).sum()))
    return _flips(order, errors, clean, to)


def _added(K: Array, labels: Ints, target: Ints, scores: Array) -> Ints:  # u l, l, u, u k -> l k
    """The errors that each label adds by becoming each class."""
    size, before = (len(labels), scores.shape[1]), scores.argmax(1) != target
    first, second = np.sort(scores, 1)[:, [-1, -2]].T
    node, label = np.nonzero((first - second)[:, None] * (1 - 1e-9) <= 2 * K)
    added, at_once = np.zeros(size), max(1, PAIRS // size[1])
    for start in range(0, len(node), at_once):
        j, i = node[start : start + at_once], label[start : start + at_once]
        weight, rows = K[j, i], np.arange(len(j))
        moved = scores[j]
        moved[rows, labels[i]] -= weight
        top = moved.argmax(1)  # the answer, unless the class that gains the weight comes to lead
        stays = top != target[j]
        added += np.bincount(i, stays.astype(int) - before[j], size[0])[:, None]
        lead = moved[rows, top] - weight
        pair, other = np.nonzero(moved >= lead[:, None])
        ahead = (moved[pair, other] > lead[pair]) | (other < top[pair])  # of equal ones the first
        pair, other = pair[ahead], other[ahead]
        change = (other != target[j[pair]]).astype(int) - stays[pair]
        added += np.bincount(i[pair] * size[1] + other, change, size[0] * size[1]).reshape(size)
    added[np.arange(size[0]), labels] = 0
    return added.astype(np.int64)


def _flips(order: list[int], errors: list[int], clean: int, to: list[int]) -> Flips:
    return Flips(np.array(order, np.int64), np.array(errors, np.int64), clean, np.array(to, np.int64))


def check_signs(K: Array, labels: Labels, target: Labels, most: int) -> tuple[Ints, Ints]:
    """Labels and targets of -1 and +1 that fit the matrix, or a line that says what is wrong."""
    labels, target = _check(K, labels, target, most)
    for name, values in (("labels", labels), ("target", target)):
        odd = values[np.abs(values) != 1]
        if len(odd):
            raise AssayError(f"Got {odd[0]} among the {name}; flips want -1 and +1 (2 * y - 1 makes them of 0 and 1).")
    return labels, target


def _check(K: Array, labels: Labels, target: Labels, most: int) -> tuple[Ints, Ints]:
    if (*np.shape(target), *np.shape(labels)) != K.shape:
        raise ShapeError(
            f"Got {np.shape(labels)} labels and {np.shape(target)} targets for K of {K.shape}; it wants one target a "
            "row and one label a column."
        )
    if most < 0:
        raise AssayError(f"Got {most} flips at most; give 0 or more.")
    for name, values in (("labels", labels), ("target", target)):
        whole = np.asarray(values, np.int64)
        if (whole != values).any():
            odd = values[whole != values][0]
            raise AssayError(f"Got {odd} among the {name}; flips want classes, which are whole numbers.")
    return np.asarray(labels, np.int64), np.asarray(target, np.int64)
