"""Signatures in the air made by code: persons with a style of their own who write the same characters.

A track is a smooth curve in three dimensions, the sum of a few waves that all share and of what is somebody's own:

    f(s) = sum_k (t_k + STYLE u_k + HAND v_k) cos(pi k s) / k^1.5,   s = s(time) from 0 to 1,   k = 1 .. WAVES

with t the characters, u a person's style and v the day's, each a number for each wave and axis. Time runs unevenly: a
person speeds up and slows down in a way of their own, and each time a little differently. Size, place, length and
tremor differ from one writing to the next. Each axis is then brought to 0 .. 1 by its least and largest value, and the
track to STEPS points by straight lines, as Yoshida and Kitamura (ICANN 2021, eqs. 37 and 38) do with what a Leap Motion
saw. Real signatures are not like this in many ways; what is alike is the protocol.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from assay.errors import AssayError

STEPS, WAVES = 64, 10
STYLE, HAND = 0.35, 0.22  # of the size of the characters' own waves
TREMOR = 0.01
CLASSES = ("impostor", "genuine")
PERSONS = 10  # who are verified
ENROLLED, RETURNS = 5, 25  # genuine writings in training and in test
SEEN, UNSEEN, EACH = 12, 15, 10  # other persons in training, further ones in test, and writings of each
RAW = 100  # readings in a second, for about two seconds


class Signatures(NamedTuple):
    x: NDArray[np.float32]  # n STEPS 3 in [0, 1]
    y: NDArray[np.int64]  # n: 1 genuine
    identity: NDArray[np.int64]  # n: who wrote it


class _Hand(NamedTuple):
    """How persons write: p WAVES 3, and p 2 of their pace."""

    waves: NDArray[np.float64]
    pace: NDArray[np.float64]


def load_signatures(person: int = 0, *, seed: int = 0) -> dict[str, Signatures]:
    """`train` (5 genuine, 120 of others) and `test` (25 genuine, 150 of others who are not in `train`).

    One of PERSONS is genuine. The others are the same for all of them: identities PERSONS and above.
    """
    if not 0 <= person < PERSONS:
        raise AssayError(f"There is no person {person}; give one of 0 to {PERSONS - 1}.")
    rng = np.random.default_rng(seed)
    characters = rng.normal(size=(WAVES, 3))
    count = PERSONS + SEEN + UNSEEN
    hands = _Hand(characters + STYLE * rng.normal(size=(count, WAVES, 3)), rng.normal(0, 0.06, (count, 2)))
    own = np.random.default_rng((seed, 1, person))
    seen, unseen = np.arange(PERSONS, PERSONS + SEEN), np.arange(PERSONS + SEEN, count)
    return {
        "train": _written(hands, np.r_[np.full(ENROLLED, person), np.repeat(seen, EACH)], person, own),
        "test": _written(hands, np.r_[np.full(RETURNS, person), np.repeat(unseen, EACH)], person, own),
    }


def names() -> tuple[str, ...]:
    """What identities are called."""
    return tuple(f"person {i}" for i in range(PERSONS + SEEN + UNSEEN))


def _written(hands: _Hand, who: NDArray[np.int64], person: int, rng: np.random.Generator) -> Signatures:
    waves = hands.waves[who] + HAND * rng.normal(size=(len(who), WAVES, 3))  # n k 3
    pace = hands.pace[who] + 0.02 * rng.normal(size=(len(who), 2))
    k = np.arange(1, WAVES + 1)
    tracks = []
    for w, p in zip(waves, pace, strict=True):
        u = np.linspace(0, 1, int(rng.integers(RAW * 3 // 2, RAW * 5 // 2)))
        s = u + p[0] * np.sin(np.pi * u) + p[1] * np.sin(2 * np.pi * u)  # i: both ends stay
        f = np.cos(np.pi * s[:, None] * k) / k**1.5 @ w  # i 3
        f = rng.uniform(0.5, 2) * (f + TREMOR * rng.normal(size=f.shape)) + rng.normal(size=3)
        tracks.append(resampled(normalised(f)))
    return Signatures(np.stack(tracks).astype(np.float32), (who == person).astype(np.int64), who.astype(np.int64))


def normalised(track: NDArray[np.float64]) -> NDArray[np.float64]:  # i 3 -> i 3
    """Each axis from 0 to 1, by its least and largest value."""
    low, high = track.min(0), track.max(0)
    if (high <= low).any():
        raise AssayError(f"A track does not move along axis {int((high <= low).argmax())}; leave it out.")
    brought: NDArray[np.float64] = (track - low) / (high - low)
    return brought


def resampled(track: NDArray[np.float64], steps: int = STEPS) -> NDArray[np.float64]:  # i 3 -> steps 3
    """As many points as others have, on straight lines between those there are."""
    old, new = np.linspace(0, 1, len(track)), np.linspace(0, 1, steps)
    return np.stack([np.interp(new, old, axis) for axis in track.T], 1)
