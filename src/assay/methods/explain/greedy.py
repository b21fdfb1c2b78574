r"""Greedy and Greedy-AS: the features that decide how robust a prediction is, found one after the other.

Two objectives for a set A of features, with g from subset_robustness.py and U all features:

    s_r_bar   maximise  v(A) = g(f, x, U \ A):   with A held fast the answer is hard to change             (7.3)
    s_r       minimise  v(A) = g(f, x, A):       small changes of A alone change the answer                (7.4)

Greedy adds the one feature that makes v best. Greedy-AS (aggregation score) asks what each unchosen feature adds to
the picks S^t together with a random set of other unchosen ones, R = U \ S^t,

    w, c = argmin sum_{S in R} ( w . b(S) + c - v(S^t + S) )^2,   b(S) in {0, 1}^R                         (7.6)

and adds those with the best w, so that features which matter only together are seen. Over all S in R, w is the Banzhaf
value of the game on R: the mean of v(S + i) - v(S).

Source: Liu, "Building Trustworthy Machine Learning Models", UCLA 2021 (dissertation), sec. 7.2; Banzhaf by regression:
Hammer and Holzman, ZOR 1992. Its public code (ChengYuHsieh/explanation_robustness) draws 5000 subsets a round, each
feature with chance 0.2 (a biased coin: then w is not the Banzhaf value), adds 5 % of the pixels at once, up to 50 %,
and has no intercept c.
Departs from print: where the 2^|R| subsets are no more than `samples` all are taken, else `samples` are drawn, among
them those of earlier rounds that hold S^t. Infinite values are capped (subset_robustness.capped), and counted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from assay.errors import AssayError
from assay.methods.attack.attacked import Model
from assay.methods.explain import groups as grouping
from assay.methods.explain.subset_robustness import Search, capped, subset_robustness, usual_cap

Value = Callable[[Tensor], Tensor]  # m k bool -> m: what each set of features is worth
Criterion = Literal["s-r-bar", "s-r"]
Method = Literal["greedy-as", "greedy"]
MOST_PLAYERS = 30  # whose subsets may be counted at all
SAMPLES_EACH, LEAST_SAMPLES = 8, 128
ROUNDS = 4  # of picks, where many inputs are ranked
PICKING = Search(steps=10, halvings=2)
"""To tell sets of one input apart takes less than to judge them. On 16 pairs of the bundled network its values lie a
tenth above those of 60 steps towards three rivals, and those of Search() 3 %."""


class Picked(NamedTuple):
    order: Tensor  # size: the features, in the order in which they were picked
    scores: Tensor  # k float64, of the first round: Banzhaf values for Greedy-AS, v of each feature alone for Greedy
    asked: int  # sets whose value was asked for


class Explained(NamedTuple):
    """The features that decide one prediction. `criterion` is the one that was optimised."""

    criterion: Criterion
    order: Tensor  # size: features, the most important first
    weight: Tensor  # k float64: 1 for the first pick, in equal steps down to 1 / size for the last, 0 for the others
    scores: Tensor  # k float64: those of the first round, for every feature
    map: Tensor  # *d float64: the weights on the entries of the input
    whole: float  # g(f, x, U)
    capped: int  # of the sets asked for
    asked: int
    stable: float | None = None  # mean Jaccard index of the picks of two seeds; None where one seed was all

    @property
    def capped_share(self) -> float:
        """The part of the values that is the cap: those tell sets of features apart no more."""
        return self.capped / self.asked if self.asked else 0.0

    def ranking(self) -> Tensor:
        """All features: the picks in their order, the others below them by their score in the first round: -> k."""
        best = self.scores if self.criterion == "s-r-bar" else -self.scores
        span = (best.max() - best.min()).clamp_min(1e-300)
        return self.weight + (best - best.min()) / span / (
            2 * max(1, len(self.order))
        )  # a pick weighs 1 / size or more

    def doubts(self) -> str:
        """One sentence: how many values are capped, and how far the picks hang on the draw."""
        if self.stable is None:
            told = "the picks were made with one seed"
        else:
            told = f"picks of two seeds share {100 * self.stable:.0f} % (Jaccard)"
        return f"{100 * self.capped_share:.0f} % of the values behind the picks are capped; {told}."


class Ranked(NamedTuple):
    """One row per input."""

    scores: Tensor  # n k float64, larger is more important
    capped: Tensor  # n float64: the part of the values behind it that is the cap
    stable: Tensor  # n float64: the mean Jaccard index of the picks of two seeds


def banzhaf(sets: Tensor, values: Tensor) -> Tensor:
    """The w of (7.6), least squares with an intercept; over all subsets the Banzhaf values: m k, m -> k float64.

    A feature that is in all sets or in none has no say, and w = 0.
    """
    b, v = sets.double(), values.double()
    b, v = b - b.mean(0), v - v.mean()  # takes the intercept out
    gram, right = b.T @ b, b.T @ v  # with all subsets the Gram matrix is m / 4 times the identity, exactly
    factor, failed = torch.linalg.cholesky_ex(gram)
    if bool(failed):
        least: Tensor = torch.linalg.pinv(gram, hermitian=True) @ right
        return least
    return torch.cholesky_solve(right[:, None], factor)[:, 0]


def greedy(value: Value, players: int, *, size: int, maximise: bool) -> Picked:
    """Add the feature that makes `value` best, until there are `size`; of equals the first."""
    _check(players, size)
    chosen = torch.zeros(players, dtype=torch.bool)
    order, first, asked = [], torch.zeros(players, dtype=torch.float64), 0
    for t in range(size):
        rest = (~chosen).nonzero()[:, 0]
        sets = chosen.repeat(len(rest), 1)
        sets[torch.arange(len(rest)), rest] = True
        worth = _asked(value, sets)
        asked += len(sets)
        first = worth if t == 0 else first
        order.append(int(rest[(worth if maximise else -worth).argmax()]))
        chosen[order[-1]] = True
    return Picked(torch.tensor(order, dtype=torch.int64), first, asked)


def greedy_as(
    value: Value,
    players: int,
    *,
    size: int,
    maximise: bool,
    samples: int,
    at_once: int = 1,
    include: float = 0.5,
    rng: torch.Generator,
) -> Picked:
    """Add the `at_once` features with the best aggregation score, until there are `size`; of equals the first.

    `include` is the chance of an unchosen feature to be in a drawn set; (7.6) means 1/2. More than one at once is
    quicker and brings back some of the blindness for features that matter only together.
    """
    _check(players, size)
    if at_once < 1 or not 0 < include < 1:
        raise AssayError(f"greedy_as needs at_once >= 1 and 0 < include < 1, got {at_once} and {include}.")
    if samples <= players and 2**players > samples:
        raise AssayError(
            f"greedy_as got {samples} samples for {players} features; (7.6) has one unknown for each and one more."
        )
    chosen = torch.zeros(players, dtype=torch.bool, device=rng.device)
    sets, worth = chosen.new_zeros(0, players), torch.zeros(0, dtype=torch.float64, device=rng.device)
    order: list[int] = []
    first, asked = torch.zeros(players, dtype=torch.float64, device=rng.device), 0
    while len(order) < size:
        rest = (~chosen).nonzero()[:, 0]
        kept = sets[:, chosen].all(1)
        sets, worth = sets[kept], worth[kept]  # what is known already of sets that hold the picks
        whole_table = len(rest) <= MOST_PLAYERS and 2 ** len(rest) <= samples
        if whole_table:
            bit = 2 ** torch.arange(len(rest), device=rng.device)
            table = torch.full((2 ** len(rest),), torch.nan, dtype=torch.float64, device=rng.device)
            table[(sets[:, rest] * bit).sum(1)] = worth
            drawn = torch.arange(len(table), device=rng.device)[:, None] & bit != 0
            fresh = _together(chosen, rest, drawn)
            missing = table.isnan()
            table[missing] = _asked(value, fresh[missing])
            sets, worth, new = fresh, table, int(missing.sum())
        else:
            new = max(0, samples - len(sets))
            drawn = torch.rand(new, len(rest), generator=rng, device=rng.device) < include
            fresh = _together(chosen, rest, drawn)
            sets, worth = torch.cat([sets, fresh]), torch.cat([worth, _asked(value, fresh)])
        asked += new
        w = banzhaf(sets[:, rest], worth)
        first = w if not order else first
        best = (-w if maximise else w).argsort(stable=True)[: min(at_once, size - len(order))]
        order += rest[best].tolist()
        chosen[rest[best]] = True
    return Picked(torch.tensor(order, dtype=torch.int64), first.cpu(), asked)


def robust_features(
    model: Model,
    x: Tensor,
    *,
    criterion: Criterion = "s-r",
    groups: Tensor | None = None,
    size: int | None = None,
    method: Method = "greedy-as",
    target: int | None = None,
    samples: int | None = None,
    at_once: int = 1,
    include: float = 0.5,
    cap: float | None = None,
    search: Search | None = None,
    rng: torch.Generator | None = None,
    seeds: int = 1,
) -> Explained:
    """Which features make the model say y = f(x), or with a target t, y and not t: *d -> Explained.

    The default criterion is the one that names what is known to decide more often (claims/known_truth.py: bars of
    digits and words that fade; on planted patches both do alike).

    `groups` says what a feature is (groups.py), `size` how many are picked (half of them
    where it is None). With a target g_t takes the place of g: the features whose change would bring x towards t.
    `samples=None` draws 8 sets a round for each feature and at least 128; `rng=None` is a generator on the device of
    `x`, seeded with 0. With more
    than one of `seeds` the picks are made so often, the first are returned, and `stable` says how far they agree.
    """
    if seeds < 1:
        raise AssayError(f"robust_features needs seeds >= 1, got {seeds}.")
    if criterion not in get_args(Criterion) or method not in get_args(Method):
        known = f"{' or '.join(get_args(Criterion))}, and {' or '.join(get_args(Method))}"
        raise AssayError(f"robust_features got criterion={criterion!r}, method={method!r}; it knows {known}.")
    search, rng = search or PICKING, rng or torch.Generator(x.device).manual_seed(0)
    groups = grouping.checked(groups, x.shape).to(x.device)
    k = grouping.count(groups)
    size = -(-k // 2) if size is None else size
    samples = max(LEAST_SAMPLES, SAMPLES_EACH * k) if samples is None else samples

    def robustness(sets: Tensor) -> Tensor:
        return subset_robustness(model, x[None], sets, groups=groups, target=target, search=search)[0]

    whole = robustness(torch.ones(1, k, dtype=torch.bool, device=x.device))
    if cap is None and not bool(torch.isfinite(whole)):
        goal = "another class" if target is None else f"class {target}"
        raise AssayError(f"No change of all {k} features led to {goal}: it is not reachable on these features.")
    limit = usual_cap(x[None], whole, search) if cap is None else torch.full_like(whole, cap)
    too_far = 0

    def value(sets: Tensor) -> Tensor:
        nonlocal too_far
        found = capped(robustness(~sets if criterion == "s-r-bar" else sets)[None], limit)
        too_far += int(found.capped.sum())
        return found.value[0]

    maximise = criterion == "s-r-bar"
    drawn = False
    if method == "greedy":
        every = [greedy(value, k, size=size, maximise=maximise)]
    else:
        drawn = k > MOST_PLAYERS or 2**k > samples  # else all subsets are taken, and no seed has a say
        every = [
            greedy_as(
                value, k, size=size, maximise=maximise, samples=samples, at_once=at_once, include=include, rng=rng
            )
            for _ in range(seeds if drawn else 1)
        ]
    picked, asked = every[0], sum(each.asked for each in every)
    stable = 1.0 if not drawn else agreement([each.order for each in every]) if seeds > 1 else None
    weight = torch.zeros(k, dtype=torch.float64)
    weight[picked.order] = torch.linspace(1, 1 / max(size, 1), size, dtype=torch.float64)
    spread = grouping.spread(weight[None], groups.cpu())[0]
    return Explained(criterion, picked.order, weight, picked.scores, spread, float(whole), too_far, asked, stable)


def greedy_maps(
    model: Model,
    x: Tensor,
    groups: Tensor,
    *,
    criterion: Criterion = "s-r",
    search: Search | None = None,
    rng: torch.Generator,
    seeds: int = 2,
) -> Ranked:
    """How Greedy-AS ranks the features of each input, and what that is worth: n *d, *d -> Ranked.

    Half of the features are picked in ROUNDS rounds, several at once as in the public code, for the sake of time.
    Where no change of all features leads to another class nothing is picked: all features rank alike, every value is
    capped, and all seeds agree.
    """
    found: list[Explained | None] = []
    at_once = -(-grouping.count(groups) // (2 * ROUNDS))
    for each in x:
        try:
            found.append(
                robust_features(
                    model,
                    each,
                    criterion=criterion,
                    groups=groups,
                    at_once=at_once,
                    search=search,
                    rng=rng,
                    seeds=seeds,
                )
            )
        except AssayError:
            found.append(None)
    blank = torch.zeros(grouping.count(groups), dtype=torch.float64)
    return Ranked(
        torch.stack([blank if f is None else f.ranking() for f in found]).to(x.device),
        torch.tensor([1.0 if f is None else f.capped_share for f in found], dtype=torch.float64, device=x.device),
        torch.tensor([1.0 if f is None or f.stable is None else f.stable for f in found], device=x.device).double(),
    )


def agreement(picks: Sequence[Tensor]) -> float:
    """The mean Jaccard index |A and B| / |A or B| of two of the picks; 1 where nothing is picked."""
    sets = [set(each.tolist()) for each in picks]
    pairs = [(a, b) for i, a in enumerate(sets) for b in sets[:i]]
    if not pairs:
        raise AssayError("Agreement is between two or more picks; make them with two seeds.")
    return sum(len(a & b) / len(a | b) if a | b else 1.0 for a, b in pairs) / len(pairs)


def refuse_strange(who: str, criterion: str, parts: str | None) -> None:
    """Settings of a question that name no criterion or no cut."""
    known = {"criterion": get_args(Criterion), "parts": get_args(grouping.Parts)}
    for name, given in (("criterion", criterion), ("parts", parts)):
        if given is not None and given not in known[name]:
            raise AssayError(f"The setting {name}={given} of {who!r} must be one of {', '.join(known[name])}.")


def _together(chosen: Tensor, rest: Tensor, drawn: Tensor) -> Tensor:
    """The picks with each of the sets drawn from the rest: k, r, m r -> m k."""
    sets = chosen.repeat(len(drawn), 1)
    sets[:, rest] = drawn
    return sets


def _asked(value: Value, sets: Tensor) -> Tensor:
    worth = value(sets).double().to(sets.device) if len(sets) else sets.new_zeros(0, dtype=torch.float64)
    if worth.shape != (len(sets),) or not bool(torch.isfinite(worth).all()):
        raise AssayError(
            f"A game must give one finite number for each of {len(sets)} sets, got shape {tuple(worth.shape)} and "
            f"{int((~torch.isfinite(worth)).sum())} that are not finite; cap what has no value."
        )
    return worth


def _check(players: int, size: int) -> None:
    if players < 1 or not 0 <= size <= players:
        raise AssayError(f"Of {players} features {size} cannot be picked; size lies between 0 and their number.")
