r"""A cue, something that can be read off an input beside what the label is about: how it is tied to the labels.

Association is Cramér's V with the correction of Bergsma (J. Korean Stat. Soc. 2013), which is 0 on average where there
is none: of a table of r cues and c labels over n inputs,

    V = sqrt( phi / min(r' - 1, c' - 1) ),   phi = max(0, chi^2 / n - (r - 1)(c - 1) / (n - 1)),
    r' = r - (r - 1)^2 / (n - 1),   c' likewise.

A cue speaks for the label that is commonest where it is seen; it conflicts with a label that is another one.

Source: Wang, TU Delft 2024, sec. 8 ("consistent bias"): is the cue as much tied to the label in use as in training, and
how right is the model where the two conflict?
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def crossed(cue: Ints, label: Ints, cues: int, labels: int) -> Ints:  # n, n -> r c
    """How often each cue stands with each label."""
    counts: Ints = np.bincount(cue * labels + label, minlength=cues * labels).reshape(cues, labels)
    return counts


def speaks_for(counts: Ints) -> Ints:  # r c -> r
    """The label that each cue speaks for, of equally common ones the first; -1 for a cue that is not seen."""
    return np.where(counts.sum(1) > 0, counts.argmax(1), -1)


def spoken_for_at_home(
    cue: Ints, label: Ints, cues: int, labels: int, *, seed: int
) -> NDArray[np.bool_]:  # n, n -> <= n
    """Whether the cue of each input speaks for its label, as the other half of the inputs has it.

    The inputs that a mapping is made of agree with it by more than chance, the more so the more cues there are. A cue
    that the other half does not have is left out.
    """
    half = np.random.default_rng(seed).permutation(len(cue)) % 2
    agrees = []
    for side in (0, 1):
        spoken = speaks_for(crossed(cue[half != side], label[half != side], cues, labels))[cue[half == side]]
        agrees.append((spoken == label[half == side])[spoken >= 0])
    return np.concatenate(agrees)


def association(counts: NDArray[np.integer]) -> Floats:  # ... r c -> ...
    """Cramér's V of each table, corrected; 0 where fewer than two cues or two labels are seen."""
    n, chi, r, c = _chi(counts)
    left = np.maximum(n - 1, 1)
    phi = np.maximum(0, chi / np.maximum(n, 1) - (r - 1) * (c - 1) / left)
    most = np.minimum(r - (r - 1) ** 2 / left, c - (c - 1) ** 2 / left) - 1
    return np.where(most > 0, np.sqrt(np.minimum(1, phi / np.where(most > 0, most, 1))), 0.0)


def association_interval(counts: Ints) -> tuple[float, float]:  # r c
    r"""The 95 % interval of V, within 0 and 1: of two, the end that is further out.

    The one takes chi^2 for noncentral, of (r - 1)(c - 1) degrees of freedom and noncentrality n min(r - 1, c - 1) V^2,
    and is inverted at both ends (Smithson, Confidence Intervals, 2003, ch. 4). It is right for weak ties, where V^2 is
    not normal, and too wide near V = 1, too narrow where few inputs decide: rare labels, many of them. The other is
    V^2 -+ 1.96 of its deviation, by the delta method over the cells p of the table,

        phi = sum_ij p_ij^2 / (p_i p_j) - 1,
        d phi / d p_ij = 2 p_ij / (p_i p_j) - sum_k p_ik^2 / (p_i^2 p_k) - sum_k p_kj^2 / (p_k p_j^2).

    A chi^2 below what chance gives on average counts as that for the upper end, so that no interval collapses to 0. A
    table of one cue or one label can say nothing: 0 to 1.
    """
    from scipy.optimize import brentq
    from scipy.stats import ncx2

    n, chi, r, c = (float(each) for each in _chi(counts))
    if min(r, c) < 2:
        return 0.0, 1.0
    free, most = (r - 1) * (c - 1), min(r, c) - 1

    def tied(at: float, chance: float) -> float:
        """The V^2 under which a chi^2 of at most `at` has this chance; 0 where it has less under every V."""

        def gap(root: float) -> float:
            return float(ncx2.cdf(at, free, root * root)) - chance

        beyond = np.sqrt(at) + 6  # sqrt(chi^2) spreads by about 1 around the root of the noncentrality
        return float(brentq(gap, 0, beyond, rtol=1e-6)) ** 2 / n / most if gap(0) > 0 else 0.0

    p = counts[counts.sum(1) > 0][:, counts.sum(0) > 0] / n
    row, column = p.sum(1, keepdims=True), p.sum(0, keepdims=True)
    each = p * p / (row * column)
    slope = 2 * p / (row * column) - each.sum(1, keepdims=True) / row - each.sum(0, keepdims=True) / column
    spread = 1.96 * np.sqrt(max(0.0, float((p * slope**2).sum() - (p * slope).sum() ** 2)) / n) / most
    value = float(association(counts)) ** 2
    low = min(value - spread, tied(chi, 0.975))
    high = max(value + spread, tied(max(chi, free), 0.025))
    return float(np.sqrt(max(0.0, low))), float(np.sqrt(min(1.0, high)))


def _chi(counts: NDArray[np.integer]) -> tuple[Floats, Floats, Floats, Floats]:  # ... r c -> ... each
    """How many inputs a table has, its chi^2, and how many cues and labels are seen in it."""
    seen = np.asarray(counts, dtype=np.float64)
    n = seen.sum((-2, -1))
    rows, columns = seen.sum(-1), seen.sum(-2)
    expected = rows[..., :, None] * columns[..., None, :] / np.maximum(n, 1)[..., None, None]
    chi = np.where(expected > 0, (seen - expected) ** 2 / np.where(expected > 0, expected, 1), 0).sum((-2, -1))
    return n, chi, (rows > 0).sum(-1).astype(np.float64), (columns > 0).sum(-1).astype(np.float64)
