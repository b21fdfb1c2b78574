"""Is the map faithful: closed forms on a linear model, and on a model of one corner the right maps win."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from assay.errors import AssayError
from assay.probe import put
from assay.probes.explained.is_the_map_faithful import CALLED, CRITERIA, HEADLINE, ROBUST, IsTheMapFaithful, Says, _both
from assay.run import Run
from assay.subject import Subject


def ask(subject: Subject, run: Run, **settings: Any) -> Any:  # a Finding; each test knows which views it has
    answer = put(IsTheMapFaithful(**settings), subject, run)
    assert answer.finding is not None, answer.why
    return answer.finding


def area(finding: Any, name: str, criterion: Any) -> Any:
    return finding.samples.columns[f"{name}, {CALLED[criterion]}"]


@pytest.fixture
def halfspace() -> tuple[Subject, Tensor, Tensor]:
    """A linear model of sixteen columns, inputs in the middle of the box and near the boundary: g(S) = m / ||w_S||."""
    torch.manual_seed(0)
    linear = nn.Linear(16, 2, bias=False)
    linear.weight.data[0] -= linear.weight.data[0].mean()  # grey lies on the boundary
    linear.weight.data[1] = -linear.weight.data[0]  # what speaks for one class speaks against the other
    w = (linear.weight[0] - linear.weight[1]).detach()
    x = 0.5 + 0.05 * torch.randn(24, 16)
    wanted = torch.linspace(0.002, 0.01, 24) * torch.tensor([1, -1]).repeat(12)
    x += (wanted - x @ w)[:, None] * w / w.square().sum()
    return Subject.classifier(linear, (x, (wanted < 0).long()), name="halfspace"), w, wanted.abs()


@pytest.fixture
def corner() -> Subject:
    """A model that looks at the upper left quarter; a bright square, and with it every edge, is in the lower right."""
    torch.manual_seed(1)

    class Corner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(16, 2)

        def forward(self, x: Tensor) -> Tensor:
            logits: Tensor = self.linear(x[:, :, :4, :4].flatten(1))
            return logits

    model, x = Corner(), 0.5 + 0.01 * torch.randn(40, 1, 8, 8)
    x[:, :, 5:7, 5:7] = 1
    return Subject.classifier(model, (x, model(x).argmax(1)), name="corner")


def test_on_a_linear_model_the_areas_are_known_and_no_map_beats_the_gradient(
    halfspace: tuple[Subject, Tensor, Tensor], run: Run
) -> None:
    subject, w, margin = halfspace
    finding = ask(subject, run, inputs=24, steps=30)
    order = w.abs().argsort(descending=True)
    counts, percent = (2, 4, 8), np.array([12.5, 25, 50])
    on = np.stack([(margin / w[order[:k]].norm()).numpy() for k in counts], 1)
    off = np.stack([(margin / w[order[k:]].norm()).numpy() for k in counts], 1)
    np.testing.assert_allclose(area(finding, "gradient", "s-r"), np.trapezoid(on, percent), rtol=0.02)
    np.testing.assert_allclose(area(finding, "gradient", "s-r-bar"), np.trapezoid(off, percent), rtol=0.02)
    for other in ("integrated-gradients", "occlusion", "kernel-shap", "random"):
        assert (area(finding, other, "s-r-bar") <= area(finding, "gradient", "s-r-bar") * 1.02).all()
        assert (area(finding, other, "s-r") >= area(finding, "gradient", "s-r") / 1.02).all()
    assert "Better than random: gradient" in finding.says
    assert "gradcam" in finding.says.split("Left out")[1]


def test_maps_of_the_right_corner_win_and_edges_elsewhere_lose(corner: Subject, run: Run) -> None:
    finding = ask(corner, run, methods=("gradient", "occlusion", "edges"), inputs=10, steps=10)
    assert "Better than random: gradient, occlusion. Not better than random: edges" in finding.says
    head = finding.measure()
    assert head.name == HEADLINE
    assert (head.low, head.value, head.high) == pytest.approx((2 / 3, 2 / 3, 2 / 3))
    assert (area(finding, "gradient", "s-r") < area(finding, "edges", "s-r")).all()
    assert (area(finding, "gradient", "s-r-bar") > area(finding, "edges", "s-r-bar")).all()
    # Attacks on the edges alone find nothing, and the finding owns up to it.
    assert "no change was found" in finding.alarms[0].says
    assert HEADLINE in finding.alarms[0].doubts


def test_every_score_says_which_way_is_better_and_what_chance_gets(digits: Subject, run: Run) -> None:
    maps = ("gradient", "occlusion")
    finding = ask(digits, run, methods=maps)
    for criterion, better in zip(ROBUST, ("higher", "lower"), strict=True):
        for name in maps:
            measure = finding.measure(f"{name}, {CALLED[criterion]}")
            assert measure.better == better
            assert f"{better} is better" in measure.about
            assert measure.low <= measure.value <= measure.high
            assert measure.value == pytest.approx(area(finding, name, criterion).mean())
            chance = next(b for b in measure.beside if b.label == "random rankings")
            assert chance.value == pytest.approx(area(finding, "random", criterion).mean())
    assert finding.measure("occlusion, the top attacked").beside[1].label == "the gradient"
    matrix = finding.views[-1]
    assert matrix.rows == (*maps, "random")
    assert [c[-1] for c in matrix.columns] == ["↑", "↓", "↑", "↓"]
    assert {v.name for v in finding.views} >= {f"gain-{c.replace('_', '-')}" for c in CRITERIA}


def test_curves_run_the_right_way(digits: Subject, run: Run) -> None:
    off, on = ask(digits, run, methods=("gradient",), inputs=8, steps=8).views[:2]
    for line in off.lines:
        assert all(a <= b + 1e-9 for a, b in zip(line.y, line.y[1:], strict=False))
    for line in on.lines:
        assert all(a >= b - 1e-9 for a, b in zip(line.y, line.y[1:], strict=False))


def test_a_verdict_needs_both_attacks() -> None:
    better: Says = "better than random"
    worse: Says = "not better than random"
    open_: Says = "cannot tell"
    assert _both(better, better) == better
    assert _both(better, worse) == _both(worse, open_) == worse
    assert _both(better, open_) == open_


def test_what_it_cannot_judge_it_says(digits: Subject, run: Run) -> None:
    x = torch.rand(10, 3)
    narrow = Subject.classifier(nn.Linear(3, 2), (x, torch.zeros(10, dtype=torch.long)))
    assert "has 3" in put(IsTheMapFaithful(), narrow, run).why
    assert "needs gradients" in put(IsTheMapFaithful(), replace(digits, differentiable=False), run).why


def test_one_input_has_no_interval_and_is_refused(digits: Subject, run: Run) -> None:
    alone = replace(run, budget=run.budget.bounded(1))
    answer = put(IsTheMapFaithful(), digits, alone, "key")
    assert (answer.status, answer.why) == (
        "failed",
        "Maps are compared with chance over inputs, two at least, and here is one; give it more.",
    )


def test_the_same_seed_gives_the_same_numbers(digits: Subject, run: Run) -> None:
    first, second = (ask(digits, run, methods=("gradient", "smoothgrad")).samples.columns for _ in range(2))
    assert all((first[name] == second[name]).all() for name in first)


def test_bad_settings_are_refused() -> None:
    with pytest.raises(AssayError, match="must name some of gradient"):
        IsTheMapFaithful(methods=("random",))
    with pytest.raises(AssayError, match="inputs=1 .* at least 2"):
        IsTheMapFaithful(inputs=1)


@pytest.mark.parametrize(("parts", "criterion"), [("superpixels", "s-r"), (None, "s-r-bar")])
def test_greedy_as_is_tried_by_either_criterion_and_any_cut(
    digits: Subject, run: Run, parts: Any, criterion: Any
) -> None:
    probe = IsTheMapFaithful(methods=("gradient", "greedy-as"), inputs=2, steps=2, parts=parts, criterion=criterion)
    answer = put(probe, digits, run)
    assert answer.finding is not None, answer.why
    rows = answer.finding.samples.columns  # type: ignore[union-attr]
    assert {"greedy-as, values capped", "greedy-as, seeds agree"} <= set(rows)
    assert ((rows["greedy-as, seeds agree"] >= 0) & (rows["greedy-as, seeds agree"] <= 1)).all()
    assert np.isfinite(rows["greedy-as, the top attacked"]).all()


def test_cuts_and_criteria_that_do_not_exist_are_refused(digits: Subject) -> None:
    assert "has no columns; it has patches or pixels" in str(IsTheMapFaithful(parts="columns").why_not(digits))
    with pytest.raises(AssayError, match="criterion=best of 'is-the-map-faithful' must be one of s-r-bar, s-r"):
        IsTheMapFaithful(criterion="best")  # type: ignore[arg-type]
