r"""Is a ranking of features faithful? Curves over the K best-ranked features S_r, and the area under each.

    Robustness-S_r-bar   g(f, x, U \ S_r)   the ranked features held, the others attacked      higher is better
    Robustness-S_r       g(f, x, S_r)       only the ranked features attacked                  lower is better
    Insertion            softmax f(x with the others removed)_y                                higher is better
    Deletion             softmax f(x with S_r removed)_y                                       lower is better

and where the answer is no class but a number f (spoken.py), in units of that number,

    Kept                 |f(x with the others removed) - f(x)|                                 lower is better
    Gone                 |f(x with S_r removed) - f(x)|                                        higher is better

    AUC = sum_i (y_i + y_{i-1}) / 2 (x_i - x_{i-1}),   x the share of the features in percent

"Removed" is set to a reference value, against which the first two need none: where the reference is 0, what is 0
already can never matter.

Source: Liu, "Building Trustworthy Machine Learning Models", UCLA 2021 (dissertation), sec. 7.1.2; insertion and
deletion: Petsiuk, Das and Saenko, BMVC 2018, arXiv:1806.07421. The shares 5, 10, ..., 45 % are those of the thesis's
public code, which ranks by the absolute attribution. Areas compare only within one setting (shares, cap, attack).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from assay.errors import AssayError, ShapeError
from assay.methods.attack.attacked import Model
from assay.methods.explain import groups as grouping
from assay.methods.explain.greedy import Criterion
from assay.methods.explain.spoken import number
from assay.methods.explain.subset_robustness import Search, capped, subset_robustness, usual_cap

Removal = Literal["insertion", "deletion", "kept", "gone"]
Better = Literal["higher", "lower"]
BETTER: dict[Criterion | Removal, Better] = {
    "s-r-bar": "higher", "s-r": "lower", "insertion": "higher", "deletion": "lower", "kept": "lower", "gone": "higher"
}  # fmt: skip
NUMBERS: tuple[Removal, ...] = ("kept", "gone")
"""The removals of a number; the other two are those of a class."""
SHARES = tuple(0.05 * k for k in range(1, 10))
ALL_SHARES = tuple(0.05 * k for k in range(21))


class FaithfulnessCurve(NamedTuple):
    percent: Tensor  # s float64: the share of features in S_r
    value: Tensor  # n s float64
    capped: Tensor  # n s bool: where no change short of the cap was found
    better: Better

    def area(self) -> Tensor:  # -> n
        return area(self.percent, self.value)


def area(x: Tensor, y: Tensor) -> Tensor:
    """The area under each curve by trapezoids: s, n s -> n."""
    return torch.trapezoid(y, x.to(y), dim=-1)


def importance(attribution: Tensor, groups: Tensor | None = None) -> Tensor:
    """How much each feature matters to a map: the sum of |attribution| over its entries: n *d -> n k."""
    return grouping.gather(attribution.abs(), grouping.checked(groups, attribution.shape[1:]))


def top(scores: Tensor, count: int) -> Tensor:
    """The features with the `count` largest scores, of equals the first: n k -> n k bool."""
    best = scores.argsort(dim=1, descending=True, stable=True)[:, :count]
    return torch.zeros_like(scores, dtype=torch.bool).scatter_(1, best, True)


def robustness_curve(
    model: Model,
    x: Tensor,
    scores: Tensor,
    *,
    criterion: Criterion,
    groups: Tensor | None = None,
    target: int | Tensor | None = None,
    shares: Sequence[float] = SHARES,
    cap: Tensor | None = None,
    search: Search | None = None,
) -> FaithfulnessCurve:
    """Robustness-S_r or Robustness-S_r-bar over the size of S_r: n *d, n k -> FaithfulnessCurve.

    `scores` rank the k features of `groups`, the largest first. Values are capped at `cap` (n), or `usual_cap`.
    """
    if criterion not in get_args(Criterion):
        raise AssayError(f"Unknown criterion {criterion!r}; choose one of {', '.join(get_args(Criterion))}.")
    search = search or Search()
    groups, counts = _counted(x, scores, groups, shares)
    sets = torch.stack([top(scores, count) for count in counts], 1)  # n s k
    free = sets if criterion == "s-r" else ~sets
    free = torch.cat([free, torch.ones_like(free[:, :1])], 1)  # and U
    value = subset_robustness(model, x, free, groups=groups, target=target, search=search)
    found = capped(value[:, :-1], usual_cap(x, value[:, -1], search) if cap is None else cap)
    return FaithfulnessCurve(_percent(counts, scores), found.value, found.capped, BETTER[criterion])


@torch.no_grad()
def removal_curve(
    model: Model,
    x: Tensor,
    scores: Tensor,
    *,
    kind: Removal,
    groups: Tensor | None = None,
    reference: float | Tensor = 0.0,
    target: Tensor | None = None,
    shares: Sequence[float] = ALL_SHARES,
    batch: int = 1024,
) -> FaithfulnessCurve:
    """The probability of the answer to x while ranked features come in or go out: n *d, n k -> FaithfulnessCurve.

    Of a number, whose weights are the `target` (n *o), it is how far the number moves: "kept" and "gone".
    """
    if kind not in get_args(Removal):
        raise AssayError(f"Unknown removal {kind!r}; choose one of {', '.join(get_args(Removal))}.")
    if (target is None) == (kind in NUMBERS):
        raise AssayError(f"{kind!r} is for {'a number: give its weights' if target is None else 'classes'}.")
    groups, counts = _counted(x, scores, groups, shares)
    blank = torch.as_tensor(reference, dtype=x.dtype, device=x.device)

    def answers(at: Tensor) -> Tensor:
        return torch.cat([model(part).double() for part in torch.split(at, batch)])

    whole = answers(x)
    y = whole.argmax(1) if target is None else target.double()
    values = []
    for count in counts:
        chosen = grouping.spread(top(scores, count).to(x.device), groups)
        shown = (chosen if kind in ("insertion", "kept") else ~chosen) | (groups.to(x.device) == grouping.NEVER)
        found = answers(torch.where(shown, x, blank))
        if target is None:
            values.append(number(found.softmax(1), y))
        else:
            values.append((number(found, y) - number(whole, y)).abs())
    value = torch.stack(values, 1)
    return FaithfulnessCurve(_percent(counts, scores), value, torch.zeros_like(value, dtype=torch.bool), BETTER[kind])


def random_areas(
    curve: Callable[[Tensor], FaithfulnessCurve], n: int, features: int, *, draws: int, rng: torch.Generator
) -> Tensor:
    """What rankings drawn at random get from the same `curve`: -> draws n, the areas to read a map's against."""
    if draws < 1:
        raise AssayError(f"random_areas needs at least one draw, got {draws}.")
    return torch.stack([curve(torch.rand(n, features, generator=rng, device=rng.device)).area() for _ in range(draws)])


def _counted(x: Tensor, scores: Tensor, groups: Tensor | None, shares: Sequence[float]) -> tuple[Tensor, list[int]]:
    """The grouping, and how many features each share is, no number twice."""
    groups = grouping.checked(groups, x.shape[1:])
    k = grouping.count(groups)
    if scores.shape != (len(x), k):
        raise ShapeError(f"Scores have shape {tuple(scores.shape)}; give one per input and feature, ({len(x)}, {k}).")
    if not shares or not all(0 <= share <= 1 for share in shares):
        raise AssayError(f"Shares of the features lie between 0 and 1, got {tuple(shares)}.")
    if bool(scores.isnan().any()):
        raise AssayError("Scores hold NaN, which has no rank; mend the attribution.")
    return groups, sorted({round(share * k) for share in shares})


def _percent(counts: Sequence[int], scores: Tensor) -> Tensor:
    return 100 * torch.tensor(counts, dtype=torch.float64) / scores.shape[1]
