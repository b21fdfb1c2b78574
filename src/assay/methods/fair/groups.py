r"""How a classifier treats groups of people: rates by group, their gaps, and intervals of the largest gap.

Everything is read off one table t[g, y, s]: how many of group g with the label y were told s. For a class c, against
all others,

    selection  P(s = c | g)          true positives   P(s = c | y = c, g)
    accuracy   P(s = y | g)          false positives  P(s = c | y != c, g)

    demographic parity   difference  max_g - min_g of selection,     ratio  min_g / max_g
    equal opportunity    difference  max_g - min_g of true positives
    equalised odds       difference  the larger of that and of max_g - min_g of false positives

The largest of many gaps is above 0 where there is none: chance parts groups. Two things say how far.
*Simultaneous intervals*: each of m gaps p_g - p_h gets Newcombe's interval at the level 1 - alpha/m, so that all hold
at once, and then

    max_j low_j  <=  max_j gap_j  <=  max_j high_j           with probability at least 1 - alpha (Bonferroni).

*The null*: tables with the same margins in which the group says nothing of the answer, within each label (equalised
odds) or at all (demographic parity): what a random permutation of the groups gives, drawn cell by cell from
hypergeometric laws, or row by row where there are many cells.
p = (1 + #{null >= seen}) / (1 + draws) is valid at any size.

Source: Hardt, Price & Srebro, NeurIPS 2016, arXiv:1610.02413 (equalised odds, equal opportunity); Feldman et al., KDD
    2015, arXiv:1412.3756 (the ratio); Newcombe, Stat. Med. 1998, 17:873, method 10 (the interval of a difference);
    Wilson, JASA 1927. The intervals of the largest gap are the intersection of the above; names and definitions of the
    gaps are fairlearn's, and a test holds them to it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtri

from assay.errors import AssayError, ShapeError

Floats = NDArray[np.float64]
Codes = NDArray[np.int64]
LEAST = 30  # inputs behind a rate, below which it is not told
ALPHA = 0.05
DRAWS = 1000
FEW = 400  # cells that are drawn in no time, of however few rows
DEAR = 10  # times as long as the shuffle of a row takes the draw of a cell
AT_ONCE = 4_000_000  # numbers of one kind that are held in memory


class Tally(NamedTuple):
    """Hits of so many, for each class that is looked at and each group; leading axes are tables."""

    hits: Floats  # ... c g
    total: Floats  # ... c g

    @property
    def rate(self) -> Floats:  # ... c g, NaN where there is nobody
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.asarray(np.where(self.total > 0, self.hits / np.where(self.total > 0, self.total, 1), np.nan))

    def enough(self, least: int = LEAST) -> NDArray[np.bool_]:  # ... c g
        return np.asarray(self.total >= least)


class Rates(NamedTuple):
    """What a table says of each group."""

    selection: Tally
    accuracy: Tally  # of one class: it is about all
    true_positive: Tally
    false_positive: Tally


class Gap(NamedTuple):
    """The largest difference between two groups, with an interval that holds for the largest of all of them."""

    value: float
    low: float
    high: float
    above: int  # the group with the higher rate
    below: int
    of: int  # which of the tallies that were given


class Lowest(NamedTuple):
    """The group of the lowest rate, with an interval of the lowest of all."""

    group: int
    value: float
    low: float
    high: float


def crossed(codes: Sequence[ArrayLike], sizes: Sequence[int]) -> Codes:  # a times n -> n
    """One code for each combination of several, the last running fastest; -1 where one is unknown."""
    if not codes or len(codes) != len(sizes):
        raise ShapeError(
            f"crossed got {len(codes)} codes and {len(sizes)} sizes; give one size for each, at least one."
        )
    out = np.zeros(len(np.asarray(codes[0])), dtype=np.int64)
    unknown = np.zeros(len(out), dtype=bool)
    for each, size in zip(codes, sizes, strict=True):
        code = np.asarray(each, dtype=np.int64)
        out, unknown = out * size + code, unknown | (code < 0)
    return np.where(unknown, -1, out)


def counted(groups: ArrayLike, label: ArrayLike, said: ArrayLike, *, sizes: tuple[int, int]) -> Floats:  # n, n, n
    """The table t[g, y, s] of `sizes` groups and classes; rows of group -1 are in none: g k k."""
    g, y, s = (np.asarray(each, dtype=np.int64) for each in (groups, label, said))
    if not (g.shape == y.shape == s.shape) or g.ndim != 1:
        raise ShapeError(f"counted got groups {g.shape}, labels {y.shape} and answers {s.shape}; give one each, (n,).")
    many, k = sizes
    known = g >= 0
    at = (g[known] * k + y[known]) * k + s[known]
    return np.bincount(at, minlength=many * k * k).reshape(many, k, k).astype(np.float64)


def rates(table: Floats, classes: Sequence[int]) -> Rates:  # ... g k k
    """The rates of each group, of each of these `classes` against all others."""
    c = list(classes)
    size = table.sum((-1, -2))[..., None, :]  # ... 1 g
    told = np.moveaxis(table.sum(-2)[..., c], -1, -2)  # ... c g
    true = np.moveaxis(table.sum(-1)[..., c], -1, -2)
    both = np.moveaxis(np.diagonal(table, axis1=-2, axis2=-1)[..., c], -1, -2)
    right = np.diagonal(table, axis1=-2, axis2=-1).sum(-1)[..., None, :]
    everyone = np.broadcast_to(size, told.shape)
    return Rates(Tally(told, everyone), Tally(right, size), Tally(both, true), Tally(told - both, everyone - true))


def spread(tally: Tally, enough: NDArray[np.bool_]) -> Floats:  # ... c g, c g -> ...
    """The largest difference between two groups that have `enough`, over all classes; NaN where no class has two."""
    rate = tally.rate
    high = np.where(enough, rate, -np.inf).max(-1)
    low = np.where(enough, rate, np.inf).min(-1)
    two = enough.sum(-1) >= 2
    gap = np.where(two, high - low, -np.inf).max(-1)
    return np.asarray(np.where(np.isfinite(gap), gap, np.nan))


def wilson_bounds(hits: ArrayLike, total: ArrayLike, z: float) -> tuple[Floats, Floats]:
    """Wilson's interval at z standard deviations, of any shape; from 0 to 1 where there is nobody."""
    h, n = np.asarray(hits, dtype=np.float64), np.asarray(total, dtype=np.float64)
    some = np.maximum(n, 1)
    p = h / some
    centre = (p + z * z / (2 * some)) / (1 + z * z / some)
    half = z / (1 + z * z / some) * np.sqrt(p * (1 - p) / some + z * z / (4 * some * some))
    low = np.where(h == 0, 0.0, np.maximum(0.0, centre - half))
    high = np.where(h == n, 1.0, np.minimum(1.0, centre + half))
    return np.where(n > 0, low, 0.0), np.where(n > 0, high, 1.0)


def widest(tallies: Sequence[Tally], *, least: int = LEAST, alpha: float = ALPHA) -> Gap | None:  # each c g
    """The largest gap of these tallies between two groups that have at least `least`; None where no two have.

    Tallies may be of different groups; the interval is that of the largest gap of all of them.
    """
    ends: list[tuple[Floats, ...]] = []
    for of, tally in enumerate(tallies):
        a, b = np.triu_indices(tally.hits.shape[-1], 1)
        both = tally.enough(least)[:, a] & tally.enough(least)[:, b]  # c pairs
        c, pair = np.nonzero(both)
        sides = [(tally.hits[c, g[pair]], tally.total[c, g[pair]], g[pair].astype(np.float64)) for g in (a, b)]
        ends.append((*sides[0], *sides[1], np.full(len(c), float(of))))
    h, n, above, i, m, below, which = (np.concatenate(part) for part in zip(*ends, strict=True))
    if not len(h):
        return None
    z = float(ndtri(1 - alpha / (2 * len(h))))
    (p, p_low, p_high), (q, q_low, q_high) = ((x / k, *wilson_bounds(x, k, z)) for x, k in ((h, n), (i, m)))
    gap = p - q
    low, high = gap - np.hypot(p - p_low, q_high - q), gap + np.hypot(p_high - p, q - q_low)
    at = int(np.abs(gap).argmax())
    up, down = (above, below) if gap[at] >= 0 else (below, above)
    return Gap(
        value=float(abs(gap[at])),
        low=max(0.0, float(np.maximum(low, -high).max())),
        high=min(1.0, float(np.maximum(high, -low).max())),
        above=int(up[at]),
        below=int(down[at]),
        of=int(which[at]),
    )


def widest_means(
    values: Sequence[ArrayLike], groups: Sequence[ArrayLike], *, least: int = LEAST, alpha: float = ALPHA
) -> Gap | None:  # n, n
    """The same of means, of errors for one: `of` says which values; intervals are normal, with each group's own spread.

    Rows of group -1 are in none.
    """
    rows: list[tuple[float, ...]] = []
    for of, (value, group) in enumerate(zip(values, groups, strict=True)):
        v, g = np.asarray(value, dtype=np.float64), np.asarray(group, dtype=np.int64)
        size = np.bincount(g[g >= 0])
        own = [(k, v[g == k]) for k in np.flatnonzero(size >= max(least, 2))]
        told = [(float(k), float(part.mean()), float(part.var(ddof=1) / len(part))) for k, part in own]
        rows += [(a, b, m - n, s + t, float(of)) for i, (a, m, s) in enumerate(told) for b, n, t in told[i + 1 :]]
    if not rows:
        return None
    above, below, gap, noise, which = np.array(rows).T
    half = float(ndtri(1 - alpha / (2 * len(rows)))) * np.sqrt(noise)
    at = int(np.abs(gap).argmax())
    up, down = (above, below) if gap[at] >= 0 else (below, above)
    low, high = max(0.0, float((np.abs(gap) - half).max())), float((np.abs(gap) + half).max())
    return Gap(float(abs(gap[at])), low, high, int(up[at]), int(down[at]), int(which[at]))


def ratio(tally: Tally, *, least: int = LEAST, alpha: float = ALPHA) -> tuple[float, float, float] | None:  # 1 g
    """The smallest rate of a group over the largest, with its interval; None where no two groups have enough.

    All groups' own intervals hold at once, and so the smallest of low_g / high_h and of high_g / low_h are its ends.
    """
    enough = tally.enough(least)[0]
    if enough.sum() < 2:
        return None
    hits, total = tally.hits[0, enough], tally.total[0, enough]
    rate = hits / total
    low, high = wilson_bounds(hits, total, float(ndtri(1 - alpha / (2 * len(hits)))))
    apart = ~np.eye(len(hits), dtype=bool)
    with np.errstate(divide="ignore", invalid="ignore"):
        ends = [np.where(apart, a[:, None] / b[None], np.inf) for a, b in ((low, high), (high, low))]
    value = float(rate.min() / rate.max()) if rate.max() > 0 else 1.0
    least_low, least_high = (float(min(1.0, np.nan_to_num(e, nan=1.0).min())) for e in ends)
    return value, min(least_low, value), max(least_high, value)


def lowest(tally: Tally, *, least: int = LEAST, alpha: float = ALPHA) -> Lowest | None:  # 1 g
    """The group that has it least often; None where none has enough."""
    enough = np.flatnonzero(tally.enough(least)[0])
    if not len(enough):
        return None
    hits, total = tally.hits[0, enough], tally.total[0, enough]
    low, high = wilson_bounds(hits, total, float(ndtri(1 - alpha / (2 * len(enough)))))
    worst = int((hits / total).argmin())
    return Lowest(int(enough[worst]), float(hits[worst] / total[worst]), float(low.min()), float(high.min()))


def shuffled(table: Floats, draws: int, rng: np.random.Generator, *, within: bool) -> Floats:  # g k k -> draws g k k
    """Tables that a random permutation of the groups gives: of all rows, or `within` the rows of each label."""
    if table.ndim != 3 or table.shape[1] != table.shape[2]:
        raise ShapeError(f"shuffled got a table of shape {table.shape}; give that of `counted`, (g, k, k).")
    if draws < 1:
        raise AssayError(f"shuffled got draws={draws}; give at least 1.")
    g, k, _ = table.shape
    whole = table.astype(np.int64)
    if not within:
        return _same_margins(whole.reshape(g, k * k), draws, rng).reshape(draws, g, k, k).astype(np.float64)
    return np.stack([_same_margins(whole[:, y], draws, rng) for y in range(k)], 2).astype(np.float64)


def chance_gaps(
    table: Floats, classes: Sequence[int], draws: int, rng: np.random.Generator
) -> tuple[Floats, Floats]:  # g k k -> draws, draws
    """The largest gaps in the odds and in selection that random permutations of the groups show; NaN without two."""
    seen = rates(table, classes)
    odds = [
        np.fmax(
            spread(true_positive, seen.true_positive.enough()), spread(false_positive, seen.false_positive.enough())
        )
        for _, true_positive, false_positive in _drawn(table, classes, draws, rng, within=True)
    ]
    whole = _drawn(table, classes, draws, rng, within=False)
    return np.concatenate(odds), np.concatenate([spread(told, seen.selection.enough()) for told, _, _ in whole])


def _drawn(
    table: Floats, classes: Sequence[int], draws: int, rng: np.random.Generator, *, within: bool
) -> Iterator[tuple[Tally, Tally, Tally]]:
    """Selection, true and false positives of tables as `shuffled` gives them, in pieces; many cells are never drawn."""
    if table.size <= FEW or (DEAR * table.size <= table.sum() and draws * table.size <= AT_ONCE):
        drawn = rates(shuffled(table, draws, rng, within=within), classes)
        yield drawn.selection, drawn.true_positive, drawn.false_positive
        return
    by_label = table.transpose(1, 0, 2).astype(np.int64)
    cells = np.nonzero(by_label)
    label, group, said = (np.repeat(at, by_label[cells]) for at in cells)  # n, by label
    g, n, c = len(table), len(label), list(classes)
    most = max(1, AT_ONCE // max(n, g * table.shape[1]))

    def count(groups: Codes, rows: Codes, what: Codes) -> Floats:  # d n, m, n -> d c g
        d, k = len(groups), table.shape[1]
        at = (np.arange(d)[:, None] * g + groups[:, rows]) * k + what[rows]
        found = np.bincount(at.reshape(-1), minlength=d * g * k).reshape(d, g, k)
        return np.moveaxis(found[..., c], -1, -2).astype(np.float64)

    every, right = np.arange(n), np.flatnonzero(label == said)
    for start in range(0, draws, most):
        keys = rng.random((min(most, draws - start), n)) + (label if within else 0)
        new = group[keys.argsort(1)]  # rows lie by label, and so each keeps its own
        told, true, both = count(new, every, said), count(new, every, label), count(new, right, said)
        everyone = np.broadcast_to(table.sum((1, 2)), told.shape)
        yield Tally(told, everyone), Tally(both, true), Tally(told - both, everyone - true)


def _same_margins(table: Codes, draws: int, rng: np.random.Generator) -> Codes:  # g m -> draws g m
    """Tables of the same sums of rows and columns, each as likely as a random permutation makes it."""
    g, m = table.shape
    out = np.zeros((draws, g, m), dtype=np.int64)
    room = np.broadcast_to(table.sum(1), (draws, g)).copy()  # what rows still take
    for j in range(m - 1):
        left = np.full(draws, table[:, j].sum())
        beyond = room.sum(1)
        for i in range(g):
            beyond = beyond - room[:, i]
            out[:, i, j] = rng.hypergeometric(room[:, i], beyond, left)
            left = left - out[:, i, j]
        room -= out[:, :, j]
    out[:, :, m - 1] = room
    return out


def p_value(null: ArrayLike, seen: float) -> float:  # draws
    """How often the null shows at least as much; never 0, and valid at any number of draws."""
    drawn = np.asarray(null, dtype=np.float64)
    return float((1 + (drawn >= seen - 1e-12).sum()) / (1 + len(drawn)))


def entropy_parts(benefit: Floats, groups: Codes, weights: Floats) -> tuple[Floats, Floats]:  # n, n, d n -> d, d
    """Generalised entropy of alpha = 2 within groups and between them, of resamples that are given as weights.

        within  =  E[ Var(b | g) ] / (2 mu^2),          between  =  Var( E[b | g] ) / (2 mu^2)

    the closed forms of `entropy.decomposed` at alpha = 2. Rows of group -1 are left out.
    """
    known = groups >= 0
    b, w = benefit[known], weights[:, known]
    member = np.eye(int(groups.max()) + 1)[groups[known]]  # m g
    n, first, second = (w @ (member * part[:, None]) for part in (np.ones_like(b), b, b * b))  # d g
    size = n.sum(1)
    mean = first.sum(1) / size
    own = np.where(n > 0, first**2 / np.where(n > 0, n, 1), 0.0)  # n_g mu_g^2
    within = (second - own).sum(1) / size
    between = own.sum(1) / size - mean**2
    scale = 2 * mean**2
    return np.maximum(within, 0.0) / scale, np.maximum(between, 0.0) / scale
