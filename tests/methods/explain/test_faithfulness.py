from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_models import digit_inputs, digit_net
from torch import Tensor
from torch.testing import assert_close

from assay.errors import AssayError, ShapeError
from assay.methods.explain import faithfulness
from assay.methods.explain.faithfulness import (
    area,
    importance,
    random_areas,
    removal_curve,
    robustness_curve,
    top,
)
from assay.methods.explain.groups import NEVER, patches
from assay.methods.explain.subset_robustness import Search

QUICK = Search(steps=8)
SHARES = (0.25, 0.5, 0.75)


def chance(logits: list[float]) -> list[float]:
    return [1 / (1 + math.exp(-z)) for z in logits]


def scores(n: int, k: int, seed: int = 0) -> Tensor:
    return torch.rand(n, k, generator=torch.Generator().manual_seed(seed))


@settings(deadline=None, max_examples=20)
@given(level=st.floats(-5, 5), start=st.floats(0, 10), widths=st.lists(st.floats(0.1, 5), min_size=1, max_size=6))
def test_the_area_of_a_constant_is_constant_times_width_and_of_any_curve_that_of_its_trapezoids(
    level: float, start: float, widths: list[float]
) -> None:
    x = torch.cumsum(torch.tensor([start, *widths], dtype=torch.float64), 0)
    assert_close(area(x, torch.full_like(x, level)[None])[0], level * (x[-1] - x[0]))
    y = torch.rand(3, len(x), dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    naive = [sum(float((r[i] + r[i - 1]) / 2 * (x[i] - x[i - 1])) for i in range(1, len(x))) for r in y]
    assert area(x, y).tolist() == pytest.approx(naive)


def test_curves_are_g_of_the_top_features_and_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a g that is known for every set, so that no search decides where it stops."""
    x, groups, ranked = digit_inputs()[:4], patches((1, 8, 8), 4), scores(4, 4)
    weight = torch.tensor([1.0, 2.0, 4.0, 8.0], dtype=torch.float64)

    def known(model: object, x: Tensor, free: Tensor, **settings: object) -> Tensor:
        assert settings["groups"] is groups
        assert settings["search"] is QUICK
        return 60 - 4 * (free.double() @ weight)

    monkeypatch.setattr(faithfulness, "subset_robustness", known)
    sets = torch.stack([top(ranked, k) for k in (1, 2, 3)], 1)
    for criterion, free, better in (("s-r", sets, "lower"), ("s-r-bar", ~sets, "higher")):
        curve = robustness_curve(
            digit_net(), x, ranked, criterion=criterion, groups=groups, shares=SHARES, search=QUICK,  # type: ignore[arg-type]
            cap=torch.full((4,), 50.0),
        )  # fmt: skip
        assert curve.percent.tolist() == [25, 50, 75]
        assert curve.better == better
        assert_close(curve.value, (60 - 4 * (free.double() @ weight)).clamp_max(50))
        assert torch.equal(curve.capped, curve.value == 50)
        assert curve.capped.any()
        assert_close(curve.area(), area(curve.percent, curve.value))


def test_a_real_search_gives_monotone_curves() -> None:
    for criterion, falls in (("s-r", True), ("s-r-bar", False)):
        curve = robustness_curve(
            digit_net(), digit_inputs()[:4], scores(4, 4), criterion=criterion, groups=patches((1, 8, 8), 4),  # type: ignore[arg-type]
            shares=SHARES, search=QUICK, cap=torch.full((4,), 50.0),
        )  # fmt: skip
        rising = curve.value.diff(dim=1)
        assert (rising <= 0).all() if falls else (rising >= 0).all()


def test_the_top_of_a_ranking() -> None:
    ranked = torch.tensor([[0.1, 0.9, 0.9, 0.3], [4.0, 3.0, 2.0, 1.0]])
    assert top(ranked, 0).sum() == 0
    assert top(ranked, 4).all()
    assert top(ranked, 1).tolist() == [[False, True, False, False], [True, False, False, False]]  # the first of equals
    assert top(ranked, 3).tolist() == [[False, True, True, True], [True, True, True, False]]


def test_importance_is_absolute_and_sums_over_a_feature() -> None:
    groups = torch.tensor([[0, 0], [1, NEVER]])
    attribution = torch.tensor([[[1.0, -2.0], [-5.0, 100.0]]])
    assert importance(attribution, groups).tolist() == [[3, 5]]
    assert importance(attribution).tolist() == [[1, 2, 5, 100]]


def test_insertion_and_deletion_by_hand() -> None:
    """A model that adds up its features: class 1 has the logit sum(w x), class 0 the logit 0."""
    w = torch.tensor([3.0, 1.0, 2.0, 0.5])

    def model(at: Tensor) -> Tensor:
        z = at @ w
        return torch.stack([torch.zeros_like(z), z], 1)

    x, ranked = torch.ones(1, 4), torch.tensor([[4.0, 2.0, 3.0, 1.0]])
    steps = (0.0, 0.25, 0.5, 0.75, 1.0)
    inside = removal_curve(model, x, ranked, kind="insertion", shares=steps)
    assert inside.better == "higher"
    assert inside.value[0].tolist() == pytest.approx(chance([0.0, 3.0, 5.0, 6.0, 6.5]))
    outside = removal_curve(model, x, ranked, kind="deletion", shares=steps)
    assert outside.better == "lower"
    assert outside.value[0].tolist() == pytest.approx(chance([6.5, 3.5, 1.5, 0.5, 0.0]))
    other = removal_curve(model, x, ranked, kind="deletion", shares=steps, reference=torch.tensor([2.0, 0, 0, 0]))
    assert other.value[0].tolist() == pytest.approx(chance([6.5, 9.5, 7.5, 6.5, 6.0]))
    best = removal_curve(model, x, w[None], kind="insertion", shares=steps).area()
    chances = random_areas(
        lambda s: removal_curve(model, x, s, kind="insertion", shares=steps), 1, 4, draws=20,
        rng=torch.Generator().manual_seed(0),
    )  # fmt: skip
    assert chances.shape == (20, 1)
    assert (chances <= best + 1e-12).all()
    assert len(torch.unique(chances)) > 3


def test_what_belongs_to_no_feature_stays_when_features_go() -> None:
    seen: list[Tensor] = []

    def model(at: Tensor) -> Tensor:
        seen.append(at)
        return torch.stack([at.sum(1), -at.sum(1)], 1)

    groups = torch.tensor([0, 1, NEVER])
    for kind in ("insertion", "deletion"):
        removal_curve(model, torch.ones(1, 3), scores(1, 2), kind=kind, groups=groups, shares=(0.0, 0.5, 1.0))  # type: ignore[arg-type]
    assert all((at[:, 2] == 1).all() for at in seen)
    assert any((at[:, :2] == 0).all() for at in seen)


def test_few_features_are_not_counted_twice() -> None:
    net, x = digit_net(), digit_inputs()[:2]
    curve = robustness_curve(
        net, x, scores(2, 4), criterion="s-r", groups=patches((1, 8, 8), 4), shares=(0.2, 0.25, 0.3, 0.5), search=QUICK
    )
    assert curve.percent.tolist() == [25, 50]


def test_words_of_the_errors() -> None:
    net, x = digit_net(), digit_inputs()[:2]
    with pytest.raises(ShapeError, match=r"Scores have shape \(2, 5\).*\(2, 64\)"):
        robustness_curve(net, x, scores(2, 5), criterion="s-r")
    with pytest.raises(AssayError, match="Unknown criterion 'r'; choose one of s-r-bar, s-r"):
        robustness_curve(net, x, scores(2, 64), criterion="r")  # type: ignore[arg-type]
    with pytest.raises(AssayError, match="Unknown removal 'both'"):
        removal_curve(net, x, scores(2, 64), kind="both")  # type: ignore[arg-type]
    with pytest.raises(AssayError, match="between 0 and 1, got .5.0"):
        removal_curve(net, x, scores(2, 64), kind="deletion", shares=(5.0,))
    with pytest.raises(AssayError, match="NaN, which has no rank"):
        removal_curve(net, x, torch.full((2, 64), torch.nan), kind="deletion")
    with pytest.raises(AssayError, match="at least one draw"):
        random_areas(lambda s: removal_curve(net, x, s, kind="deletion"), 2, 64, draws=0, rng=torch.Generator())
