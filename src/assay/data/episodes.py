"""Episodes: a policy acts in an environment with gymnasium's interface until it ends. gymnasium itself is not needed.

An environment has `reset(seed=)`, which gives (observation, info), `step(action)`, which gives (observation, reward,
terminated, truncated, info), and the two spaces: `action_space.n` actions, observations of `observation_space.shape`.
The same seed is the same episode, as far as the environment keeps its word. One episode is one environment, and many of
them go on side by side, so that the policy is asked once a step for all that still run.

Source of the interface: Towers et al. 2024, arXiv:2407.17032.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from assay.errors import AssayError, SubjectError

NEEDED = ("reset", "step", "action_space", "observation_space")
LONGEST = 1000  # steps, after which an episode is cut
AT_ONCE = 256  # environments that are open side by side

Floats = NDArray[np.float32]
Whole = NDArray[np.int64]
Policy = Callable[[Floats, Whole], Whole]
"""Actions, counted from 0, for what is seen now and for which of the episodes: k *d, k -> k."""


class Episodes(NamedTuple):
    """What came of each episode."""

    earned: NDArray[np.float64]  # n: the sum of rewards
    steps: Whole  # n
    ended: NDArray[np.bool_]  # n: the environment ended it, and not its clock
    cut: NDArray[np.bool_]  # n: it still ran after the longest time that it was given


class Best(NamedTuple):
    """The most that an episode is known to earn, and who says so."""

    earned: float
    says: str


def at_random(actions: int, rng: np.random.Generator) -> Policy:
    """The policy that looks at nothing: each action with the same chance."""
    return lambda seen, rows: rng.integers(actions, size=len(seen))


def best_known(make: Callable[[], Any]) -> Best | None:
    """What the environment says of itself: the `most` that an episode earns, or the return at which its spec calls it
    solved (gymnasium's `reward_threshold`); None where it says neither."""
    world = make()
    try:
        most = getattr(getattr(world, "unwrapped", world), "most", None)
        if most is not None:
            return Best(float(most), "the most that an episode can earn")
        solved = getattr(getattr(world, "spec", None), "reward_threshold", None)
        return None if solved is None else Best(float(solved), "what its environment calls solved")
    finally:
        _close(world)


def roll_out(
    make: Callable[[], Any],
    policy: Policy,
    seeds: Sequence[int] | Whole,
    *,
    actions: int,
    shape: tuple[int, ...],
    longest: int = LONGEST,
) -> Episodes:
    """One episode for each seed, in environments fresh from `make`, for a policy of so many actions that sees `shape`.

    An episode that still runs after `longest` steps is cut there, and `cut` tells of it.
    """
    seeds = np.asarray(seeds, dtype=np.int64)
    if not len(seeds) or longest < 1:
        raise AssayError(f"Episodes want at least one seed and one step; got {len(seeds)} seeds and longest={longest}.")
    parts = []
    for start in range(0, len(seeds), AT_ONCE):
        rows = np.arange(start, min(start + AT_ONCE, len(seeds)))
        parts.append(_together(make, policy, seeds[rows], rows, actions, shape, longest))
    return Episodes(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def fresh(make: Callable[[], Any]) -> tuple[Floats, Any]:  # -> 1 *d
    """What a new environment shows for seed 0, and its space of observations."""
    world = make()
    try:
        _refuse_strange(world)
        shape = tuple(getattr(world.observation_space, "shape", None) or ())
        return _observed([_reset(world, 0)], shape, np.zeros(1, dtype=np.int64), 0), world.observation_space
    finally:
        _close(world)


def collected(
    make: Callable[[], Any],
    policy: Policy,
    seeds: Sequence[int] | Whole,
    *,
    actions: int,
    shape: tuple[int, ...],
    longest: int,
    most: int,
) -> tuple[Floats, Whole]:  # -> n *d, n
    """What a policy, or a reference, saw in these episodes, and what it did: at most so many, spread evenly.

    An episode that still runs after `longest` steps is refused: what is met in it has no end.
    """
    seen: list[Floats] = []
    done: list[Whole] = []

    def watched(shown: Floats, rows: Whole) -> Whole:
        taken = policy(shown, rows)
        seen.append(shown.copy())
        done.append(np.asarray(taken))
        return taken

    found = roll_out(make, watched, seeds, actions=actions, shape=shape, longest=longest)
    if found.cut.any():
        seed = np.asarray(seeds)[found.cut][0]
        raise SubjectError(
            f"The episode of seed {seed} still ran after {longest:,} steps; give the environment a clock, such as "
            "gymnasium.wrappers.TimeLimit."
        )
    x, y = np.concatenate(seen), np.concatenate(done)
    rows = np.linspace(0, len(x) - 1, min(most, len(x))).round().astype(np.int64)
    return x[rows], y[rows].astype(np.int64)


def _together(
    make: Callable[[], Any],
    policy: Policy,
    seeds: Whole,
    rows: Whole,
    actions: int,
    shape: tuple[int, ...],
    longest: int,
) -> Episodes:
    """Some episodes side by side; those that end leave."""
    n, worlds = len(rows), []
    found = Episodes(np.zeros(n), np.zeros(n, dtype=np.int64), np.zeros(n, dtype=bool), np.ones(n, dtype=bool))
    try:
        for i in range(n):
            worlds.append(make())
            if i == 0:
                _check(worlds[0], actions, shape)
        first = int(getattr(worlds[0].action_space, "start", 0))
        up = np.arange(n)
        seen = _observed([_reset(w, s) for w, s in zip(worlds, seeds.tolist(), strict=True)], shape, seeds, 0)
        for t in range(1, longest + 1):
            taken = np.asarray(policy(seen, rows[up]))
            if taken.shape != up.shape or taken.dtype.kind not in "iu" or not ((taken >= 0) & (taken < actions)).all():
                raise AssayError(
                    f"The policy gave {taken.dtype} of shape {taken.shape} for {len(up)} observations; it should give "
                    f"one action from 0 to {actions - 1} for each."
                )
            told = [_step(worlds[i], action + first) for i, action in zip(up.tolist(), taken.tolist(), strict=True)]
            shown, reward, ended, over = zip(*told, strict=True)
            if not np.isfinite(reward).all():
                k = int(np.argmin(np.isfinite(reward)))
                raise SubjectError(
                    f"The environment gave the reward {reward[k]} at step {t} of seed {seeds[up[k]]}; mend it."
                )
            seen = _observed(shown, shape, seeds[up], t)
            found.earned[up] += reward
            found.steps[up] = t
            found.ended[up], found.cut[up] = ended, ~(np.array(ended) | np.array(over))
            seen, up = seen[found.cut[up]], up[found.cut[up]]
            if not len(up):
                break
    finally:
        for world in worlds:
            _close(world)
    return found


def _check(world: Any, actions: int, shape: tuple[int, ...]) -> None:
    """Refuse an environment without the interface, or one that the policy does not fit."""
    _refuse_strange(world)
    name = type(world).__name__
    count = getattr(world.action_space, "n", None)
    if count is None or int(count) != actions:
        has = f"the action space {world.action_space}" if count is None else f"{count} actions"
        raise SubjectError(
            f"The environment {name} has {has}, and the policy chooses one of {actions} actions; give the environment "
            "that it was made for."
        )
    shown = getattr(world.observation_space, "shape", None)
    if shown is None or tuple(shown) != shape:
        raise SubjectError(
            f"The environment {name} shows observations of shape {shown}, and the policy takes {shape}; give the "
            "environment that it was made for, or wrap it."
        )


def _refuse_strange(world: Any) -> None:
    missing = [part for part in NEEDED if getattr(world, part, None) is None]
    if missing:
        raise SubjectError(
            f"The environment {type(world).__name__} has no {' and no '.join(missing)}; give one with gymnasium's "
            "interface."
        )


def _reset(world: Any, seed: int) -> Any:
    try:
        given = world.reset(seed=seed)
    except TypeError as e:
        raise SubjectError(
            f"The environment {type(world).__name__} could not be reset with seed={seed}: {str(e).splitlines()[0]}; "
            "give one with gymnasium's interface."
        ) from e
    if not isinstance(given, tuple) or len(given) != 2:
        raise SubjectError(
            f"reset of the environment {type(world).__name__} gave {_told(given)}; gymnasium's gives 2 things: "
            "observation, info."
        )
    return given[0]


def _step(world: Any, action: int) -> tuple[Any, float, bool, bool]:
    given = world.step(action)
    if not isinstance(given, tuple) or len(given) != 5:
        raise SubjectError(
            f"step of the environment {type(world).__name__} gave {_told(given)}; gymnasium's gives 5 things: "
            "observation, reward, terminated, truncated, info."
        )
    shown, reward, ended, over, _ = given
    return shown, float(reward), bool(ended), bool(over)


def _observed(shown: Sequence[Any], shape: tuple[int, ...], seeds: Whole, t: int) -> Floats:  # k -> k *d
    """What the environments of these seeds show after t steps."""
    try:
        seen = np.array(shown, dtype=np.float32)
    except (TypeError, ValueError):
        seen = np.zeros(0, dtype=np.float32)
    if seen.shape == (len(seeds), *shape) and np.isfinite(seen).all():
        return seen
    each = []
    for one, seed in zip(shown, seeds.tolist(), strict=True):  # which of them it was
        where = f"after {t} steps of seed {seed}"
        try:
            each.append(np.asarray(one, dtype=np.float32))
        except (TypeError, ValueError) as e:
            raise SubjectError(
                f"The environment showed a {type(one).__name__} {where}, which is no array of numbers; flatten it."
            ) from e
        if each[-1].shape != shape:
            raise SubjectError(
                f"The environment showed an observation of shape {each[-1].shape} {where}, and its space says {shape}; "
                "mend it."
            )
        if not np.isfinite(each[-1]).all():
            value = each[-1][~np.isfinite(each[-1])][0]
            raise SubjectError(f"The environment showed the value {value} {where}; mend the environment.")
    return np.stack(each)


def _told(given: Any) -> str:
    return f"{len(given)} things" if isinstance(given, tuple) else f"a {type(given).__name__}"


def _close(world: Any) -> None:
    close = getattr(world, "close", None)
    if close is not None:
        close()
