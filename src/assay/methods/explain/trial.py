r"""The trial of one map of one input: is its ranking better than chance, does it need the model, does it add up?

    faithful   The areas under the curves of faithfulness.py, beside those that rankings drawn at random get. Map and
               random rankings are ranked by each score, their ranks R added up, and
                   p = (1 + #{random rankings with R no worse}) / (1 + #{random rankings})
               The map is better than chance if p <= CLEAR; if p > 1/2, chance does better.
    needs it   `map_needs_the_model` of sanity.py, which the probe asks too: on the likeness, signs left out, of the
               map to those of the same model whose weights are initialised anew, a few times. What does not look at
               the model gets 1, two unrelated maps get 0.
    adds up    |sum(map) - (f(x) - f(x0))| / |f(x) - f(x0)|, where the method promises 0, is at most MISSED.

A map is believable if it stands every test, not believable if it falls in one, else it cannot be told. One input
convicts a map better than it acquits: of many inputs, ask the probes.

Source: Liu, UCLA 2021, sec. 7.1.2 (the scores); the p-value of a random permutation: Phipson and Smyth, 2010,
arXiv:1603.05766; layers initialised anew: Adebayo et al., NeurIPS 2018, arXiv:1810.03292. The limits are ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from assay.errors import AssayError
from assay.methods.attack.attacked import Model
from assay.methods.explain.faithfulness import BETTER, NUMBERS, Better, Removal, area, removal_curve, robustness_curve
from assay.methods.explain.greedy import Criterion
from assay.methods.explain.sanity import Likeness, map_needs_the_model
from assay.methods.explain.subset_robustness import Search

Verdict = Literal["believable", "not believable", "cannot tell"]
Outcome = Literal["pass", "fail", "cannot tell"]
ScoreName = Criterion | Removal
CLEAR = 0.05
MISSED = 0.05  # of what the map should add up to
SHARES = (0.1, 0.2, 0.3, 0.4, 0.5)  # of the features, where robustness is asked
DRAWS = 39  # random rankings; with fewer than 19 no map can be better than chance


class Scored(NamedTuple):
    """One score of a ranking, beside what random rankings get."""

    name: ScoreName
    value: float
    random: tuple[float, ...]

    @property
    def better(self) -> Better:
        return BETTER[self.name]

    @property
    def beaten(self) -> int:
        """How many of the random rankings are worse."""
        sign = 1 if self.better == "higher" else -1
        return sum(sign * self.value > sign * other for other in self.random)


class Check(NamedTuple):
    name: str
    outcome: Outcome
    says: str


def faithfulness(
    model: Model,
    x: Tensor,
    rankings: Tensor,
    *,
    groups: Tensor,
    target: int | None = None,
    weights: Tensor | None = None,
    reference: float | Tensor = 0.0,
    search: Search | None,
    draws: int = DRAWS,
    rng: torch.Generator,
) -> list[tuple[Scored, ...]]:
    """The scores of some rankings of one input's features, all against the same random ones: *d, r k -> r scores.

    `search=None` is for a model without gradients, of which insertion and deletion are all that can be asked. A number
    is no class: its `weights` (1 *o) are given, and the trial is how far it moves while features come and go.
    """
    if draws < 1:
        raise AssayError(f"A trial needs at least one random ranking, got {draws}.")
    r, k = rankings.shape
    chance = torch.rand(draws, k, generator=rng, device=rng.device, dtype=torch.float64)
    scores = torch.cat([rankings.double().to(x.device), chance.to(x.device)])  # r+draws k
    many = x[None].expand(len(scores), *x.shape)
    areas: dict[ScoreName, Tensor] = {}
    if search is not None and weights is None:
        for name in ("s-r-bar", "s-r"):
            curve = robustness_curve(
                model, many, scores, criterion=name, groups=groups, target=target, shares=SHARES, search=search
            )  # fmt: skip
            areas[name] = area(curve.percent, curve.value)
    each = None if weights is None else weights.expand(len(scores), *weights.shape[1:])
    kinds: tuple[Removal, ...] = ("insertion", "deletion") if weights is None else NUMBERS
    for kind in kinds:
        curve = removal_curve(model, many, scores, kind=kind, groups=groups, reference=reference, target=each)
        areas[kind] = area(curve.percent, curve.value)
    return [tuple(Scored(name, float(a[i]), tuple(a[r:].tolist())) for name, a in areas.items()) for i in range(r)]


def judge(
    scores: Sequence[Scored],
    *,
    ranking: Tensor,
    likeness: Likeness | None,
    under: str = "random weights",
    gap: float | None,
) -> tuple[Verdict, tuple[Check, ...]]:
    """The verdict on a map and the tests behind it: scores, k, h -> Verdict, checks.

    `likeness` has one value for each of h models with new weights, of which there should be two or more (`under` says
    what is new in them), None where there is no such model; `gap` is the share that the map misses, None where nothing
    is promised.
    """
    if bool((ranking == ranking[0]).all()):
        return "not believable", (Check("says something", "fail", "It is the same everywhere: it ranks nothing."),)
    checks = [_faithful(scores), _needs(likeness, under)]
    if gap is not None:
        checks.append(_adds_up(gap))
    outcomes = {check.outcome for check in checks}
    if "fail" in outcomes:
        return "not believable", tuple(checks)
    return "cannot tell" if "cannot tell" in outcomes else "believable", tuple(checks)


def together(scores: Sequence[Scored]) -> int:
    """How many of the random rankings are worse, all scores taken together: those whose ranks add up to less."""
    signs = torch.tensor([1.0 if s.better == "higher" else -1.0 for s in scores], dtype=torch.float64)
    pool = signs[:, None] * torch.tensor([(s.value, *s.random) for s in scores], dtype=torch.float64)  # s 1+draws
    # The rank of each among the pool: how many are lower, and half of its equals.
    lower = (pool[:, :, None] > pool[:, None, :]).double() + (pool[:, :, None] == pool[:, None, :]).double() / 2
    rank = lower.sum((0, 2))  # 1+draws
    return int((rank[1:] < rank[0]).sum())


def _faithful(scores: Sequence[Scored]) -> Check:
    draws, beaten = len(scores[0].random), together(scores)
    p = (1 + draws - beaten) / (1 + draws)
    told = f"it beats {beaten} of {draws} random rankings"
    if p <= CLEAR:
        return Check("faithful", "pass", f"Better than chance: {told}.")
    if p > 0.5:
        return Check("faithful", "fail", f"No better than chance: {told}.")
    return Check("faithful", "cannot tell", f"Not clearly better than chance: {told}.")


def _needs(likeness: Likeness | None, under: str) -> Check:
    if likeness is None or len(likeness.absolute) < 2:
        return Check("needs the model", "cannot tell", f"It could not be made of models with {under}.")
    found = map_needs_the_model(likeness)
    told = f"likeness {_mean(likeness.absolute)} to the maps of models with {under}"
    match found.says:
        case "needs the model":
            return Check("needs the model", "pass", f"It needs the model: {told}.")
        case "does not need the model":
            signs = f" ({_mean(likeness.signed)} if signs count, which new weights turn over)"
            turned = signs if float(likeness.signed.mean()) < float(likeness.absolute.mean()) - 0.1 else ""
            return Check("needs the model", "fail", f"It hardly needs the model: {told}{turned}.")
        case "cannot tell":
            return Check("needs the model", "cannot tell", f"It may owe much to the input alone: {told}.")


def _mean(values: Tensor) -> str:
    return f"{round(float(values.mean()), 2) + 0.0:.2f}"  # no minus before a zero


def _adds_up(gap: float) -> Check:
    told = f"its values miss the score that they should add up to by {100 * gap:.1f} %"
    if gap <= MISSED:
        return Check("adds up", "pass", f"It adds up: {told}.")
    return Check("adds up", "fail", f"It does not add up: {told}.")
