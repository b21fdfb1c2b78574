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


def association(counts: NDArray[np.integer]) -> Floats:  # ... r c -> ...
    """Cramér's V of each table, corrected; 0 where fewer than two cues or two labels are seen."""
    seen = np.asarray(counts, dtype=np.float64)
    n = seen.sum((-2, -1))
    rows, columns = seen.sum(-1), seen.sum(-2)
    expected = rows[..., :, None] * columns[..., None, :] / np.maximum(n, 1)[..., None, None]
    chi = np.where(expected > 0, (seen - expected) ** 2 / np.where(expected > 0, expected, 1), 0).sum((-2, -1))
    r, c = (rows > 0).sum(-1).astype(np.float64), (columns > 0).sum(-1).astype(np.float64)
    left = np.maximum(n - 1, 1)
    phi = np.maximum(0, chi / np.maximum(n, 1) - (r - 1) * (c - 1) / left)
    most = np.minimum(r - (r - 1) ** 2 / left, c - (c - 1) ** 2 / left) - 1
    return np.where(most > 0, np.sqrt(np.minimum(1, phi / np.where(most > 0, most, 1))), 0.0)


def association_interval(counts: Ints, *, seed: int, draws: int = 1000) -> tuple[float, float]:
    """95 % of the associations of tables that are drawn anew from this one, by the basic bootstrap, within 0 and 1.

    Drawn tables are tied a little more than the one they come from; the basic interval takes that off.
    """
    n = int(counts.sum())
    drawn = np.random.default_rng(seed).multinomial(n, counts.ravel() / n, size=draws).reshape(draws, *counts.shape)
    value = float(association(counts))
    low, high = np.quantile(association(drawn), [0.025, 0.975])
    return max(0.0, 2 * value - float(high)), min(1.0, max(value, 2 * value - float(low)))
