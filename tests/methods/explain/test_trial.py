"""The trial of one map: what chance gets, what a map must lose with the model, and how the tests make a verdict."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from assay.errors import AssayError
from assay.methods.explain import groups as grouping
from assay.methods.explain.sanity import Likeness
from assay.methods.explain.subset_robustness import Search
from assay.methods.explain.trial import DRAWS, Scored, faithfulness, judge, together

RANKED = torch.tensor([3.0, 1.0, 2.0])
MANY = tuple(float(k) for k in range(39))


def scored(value: float, name: str = "insertion") -> Scored:
    return Scored(name, value, MANY)  # type: ignore[arg-type]


def alike(*values: float) -> Likeness:
    """Likenesses without sign; with signs there is none."""
    return Likeness(torch.zeros(len(values)), torch.tensor(values, dtype=torch.float64), None)


def rng() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.lists(st.integers(0, 4), min_size=5, max_size=5), min_size=1, max_size=4),
    st.permutations(["s-r-bar", "s-r", "insertion", "deletion"]),
)
def test_ranks_are_added_up_as_by_hand(rows: list[list[int]], names: list[str]) -> None:
    scores = [Scored(n, float(r[0]), tuple(map(float, r[1:]))) for n, r in zip(names, rows, strict=False)]  # type: ignore[arg-type]

    def rank(s: Scored, at: int) -> float:
        pool = [s.value, *s.random]
        worse = [other < pool[at] if s.better == "higher" else other > pool[at] for other in pool]
        return sum(worse) + sum(other == pool[at] for other in pool) / 2

    totals = [sum(rank(s, at) for s in scores) for at in range(5)]
    assert together(scores) == sum(total < totals[0] for total in totals[1:])


def test_lower_is_better_where_it_is() -> None:
    assert scored(100.0, "insertion").beaten == 39
    assert scored(100.0, "deletion").beaten == 0
    assert scored(-1.0, "s-r").beaten == 39
    assert scored(-1.0, "s-r-bar").beaten == 0
    assert scored(3.0, "insertion").beaten == 3  # an equal is not beaten


def linear() -> tuple[nn.Module, Tensor, Tensor]:
    """Two classes whose margin is w . x: the best ranking for small changes is by |w|."""
    weight = torch.tensor([0.1, 0.2, 3.0, 0.1, 2.0, 0.3, 1.5, 0.1, 0.2, 0.1])
    model = nn.Linear(10, 2, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.stack([weight, -weight]))
    return model.eval(), torch.full((10,), 0.5), weight


def test_the_best_ranking_of_a_linear_model_beats_chance_and_its_reverse_loses() -> None:
    model, x, weight = linear()
    tried = faithfulness(
        model,
        x,
        torch.stack([weight, -weight]),
        groups=grouping.checked(None, x.shape),
        search=Search(bounds=(-100.0, 100.0), step=0.05),
        rng=rng(),
    )
    assert [s.name for s in tried[0]] == ["s-r-bar", "s-r", "insertion", "deletion"]
    assert together(tried[0]) == DRAWS
    assert together(tried[1]) == 0
    assert [s.random for s in tried[0]] == [s.random for s in tried[1]]  # all are held against the same
    # g(S) = w . x / ||w_S||, for the 1 to 5 features of largest weight and for the others; the cap is 10 g(U)
    order = weight.argsort(descending=True)
    margin = float(weight @ x)
    for scored, sets in zip(
        tried[0], ([order[k:] for k in range(1, 6)], [order[:k] for k in range(1, 6)]), strict=False
    ):
        g = [min(margin / float(weight[s].norm()), 10 * margin / float(weight.norm())) for s in sets]
        assert scored.value == pytest.approx(10 * sum((a + b) / 2 for a, b in pairwise(g)), rel=0.02)


def test_without_gradients_insertion_and_deletion_are_left() -> None:
    model, x, weight = linear()
    (tried,) = faithfulness(
        model, x, weight[None], groups=grouping.checked(None, x.shape), search=None, draws=7, rng=rng()
    )
    assert [s.name for s in tried] == ["insertion", "deletion"]
    assert all(len(s.random) == 7 for s in tried)


def test_a_trial_without_chance_is_refused() -> None:
    model, x, weight = linear()
    with pytest.raises(AssayError, match=r"at least one random ranking, got 0"):
        faithfulness(model, x, weight[None], groups=grouping.checked(None, x.shape), search=None, draws=0, rng=rng())


@pytest.mark.parametrize(
    ("value", "likeness", "gap", "verdict", "outcomes"),
    [
        (100.0, 0.1, None, "believable", ["pass", "pass"]),
        (100.0, 0.1, 0.01, "believable", ["pass", "pass", "pass"]),
        (100.0, 0.1, 0.5, "not believable", ["pass", "pass", "fail"]),
        (100.0, 1.0, None, "not believable", ["pass", "fail"]),
        (-1.0, 0.1, None, "not believable", ["fail", "pass"]),
        (30.5, 0.1, None, "cannot tell", ["cannot tell", "pass"]),
    ],
)
def test_one_fall_convicts_and_one_doubt_holds(
    value: float, likeness: float, gap: float | None, verdict: str, outcomes: list[str]
) -> None:
    said, checks = judge([scored(value)], ranking=RANKED, likeness=alike(likeness, likeness, likeness), gap=gap)
    assert said == verdict
    assert [c.outcome for c in checks] == outcomes


def test_doubt_about_the_model_holds_a_map_back() -> None:
    for likeness in (alike(0.1, 0.9, 0.5), alike(0.1), None):
        said, checks = judge([scored(100.0)], ranking=RANKED, likeness=likeness, gap=None)
        assert (said, checks[1].outcome) == ("cannot tell", "cannot tell")


def test_a_map_that_only_turns_its_signs_over_fails_and_is_told_so() -> None:
    turned = Likeness(torch.tensor([-1.0, 1.0, -0.9, 0.9]), torch.tensor([1.0, 1.0, 0.9, 0.9]), None)
    said, checks = judge([scored(100.0)], ranking=RANKED, likeness=turned, gap=None)
    assert (said, checks[1].outcome) == ("not believable", "fail")
    assert "likeness 0.95 to the maps of models with random weights (0.00 if signs count" in checks[1].says
    _, checks = judge([scored(100.0)], ranking=RANKED, likeness=turned, under="a random last layer", gap=None)
    assert "models with a random last layer" in checks[1].says


def test_a_map_that_is_the_same_everywhere_says_nothing() -> None:
    said, checks = judge([scored(100.0)], ranking=torch.zeros(3), likeness=alike(0, 0, 0), gap=None)
    assert said == "not believable"
    assert "ranks nothing" in checks[0].says


def test_the_edge_of_clear() -> None:
    """39 draws: p = 2 / 40 is clear, p = 3 / 40 is not."""
    faithful = [
        judge([scored(v)], ranking=RANKED, likeness=alike(0, 0, 0), gap=None)[1][0].outcome for v in (37.5, 36.5)
    ]
    assert faithful == ["pass", "cannot tell"]
