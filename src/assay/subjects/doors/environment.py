"""The environment that a policy acts in (--environment): found by its name, and what the policy meets in it."""

from __future__ import annotations

import functools
import importlib
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from assay.data.episodes import Floats, Policy, Whole, collected, fresh
from assay.errors import AssayError, MissingExtra
from assay.subjects.doors.script import found

EPISODES = 20  # seeds 0, 1, ... that the policy acts in to be asked about what it saw there
OBSERVATIONS = 1000  # of those episodes together, spread evenly
LONGEST = 10_000  # steps; longer than this no episode of gymnasium's own environments is without its clock
HUGE = 1e30  # some spaces write the largest float32 where they mean that there is no end
REGISTERED = re.compile(r"-v\d+$")


class First(NamedTuple):
    """What an environment shows before anybody acts."""

    seen: Floats  # 1 *d
    low: NDArray[np.float64]  # *d: as its space says, infinite where it has no end
    high: NDArray[np.float64]  # *d


def maker(word: str) -> Callable[[], Any]:
    """What makes a fresh environment: FILE.py:FUNCTION, MODULE:FUNCTION, or an id of gymnasium's, such as CartPole-v1.

    Either is code that runs: nothing but the command line names one.
    """
    if REGISTERED.search(word):
        try:
            import gymnasium
        except ImportError as e:
            raise MissingExtra(
                f"--environment {word} is an id of gymnasium's: pip install gymnasium, or give FILE.py:FUNCTION."
            ) from e
        return functools.partial(gymnasium.make, word)
    where, _, function = word.rpartition(":")
    if not where or not function:
        raise AssayError(
            f"--environment {word!r} is not FILE.py:FUNCTION, MODULE:FUNCTION or an id of gymnasium's; write "
            "world.py:build or CartPole-v1."
        )
    if not where.endswith(".py"):
        with _theirs(word):
            made = getattr(importlib.import_module(where), function)
    elif not Path(where).is_file():
        raise AssayError(f"There is no file {where!r} for --environment; check the path.")
    else:
        made = found(Path(where), function)
    if not callable(made):
        raise AssayError(f"--environment {word} is a {type(made).__name__}; name what makes a fresh one: its class.")
    chosen: Callable[[], Any] = made
    return chosen


def first(make: Callable[[], Any], word: str) -> First:
    """What it shows for the first seed, where it has gymnasium's interface at all."""
    with _theirs(word):
        seen, space = fresh(make)
    shape = seen.shape[1:]
    low, high = (
        np.broadcast_to(np.asarray(getattr(space, side, end), dtype=np.float64), shape)
        for side, end in (("low", -np.inf), ("high", np.inf))
    )
    return First(seen, np.where(low < -HUGE, -np.inf, low), np.where(high > HUGE, np.inf, high))


def met(
    make: Callable[[], Any], policy: Policy, word: str, *, actions: int, shape: tuple[int, ...]
) -> tuple[Floats, Whole]:  # -> n *d, n
    """What the policy saw over whole episodes, and what it did; one that does not end is refused."""
    with _theirs(word):
        return collected(
            make, policy, np.arange(EPISODES), actions=actions, shape=shape, longest=LONGEST, most=OBSERVATIONS
        )


@contextmanager
def _theirs(word: str) -> Iterator[None]:
    """The user's own code, or gymnasium's of an id that is none: it raises what it likes, and may even leave."""
    try:
        yield
    except AssayError:
        raise
    except (Exception, SystemExit) as e:
        what = " ".join(str(e).split()) or "no message"
        raise AssayError(f"--environment {word} raised {type(e).__name__}: {what}; mend it there.") from e
