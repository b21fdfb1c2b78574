from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from small_models import digit_inputs, digit_net
from torch import Tensor, nn
from torch.testing import assert_close

from assay.errors import AssayError, ShapeError
from assay.methods.attack import minimal_norm
from assay.methods.explain.faithfulness import robustness_curve
from assay.methods.explain.groups import patches, spread
from assay.methods.explain.subset_robustness import (
    Search,
    capped,
    masked_minimal,
    nearest_rivals,
    subset_robustness,
    usual_cap,
)

WIDE = Search(bounds=(-20.0, 20.0), step=0.05, halvings=0)


def linear(w: Tensor, b: Tensor) -> nn.Module:
    layer = nn.Linear(w.shape[1], len(w), dtype=w.dtype)
    with torch.no_grad():
        layer.weight.copy_(w)
        layer.bias.copy_(b)
    return layer.requires_grad_(False)


def all_subsets(k: int) -> Tensor:
    return torch.arange(2**k)[:, None] & 2 ** torch.arange(k) != 0


def closed_form(w: Tensor, b: Tensor, x: Tensor, sets: Tensor) -> Tensor:
    """min_t (z_y - z_t) / ||(w_y - w_t)_S||, one input at a time: n m."""
    z = x @ w.T + b
    rows = []
    for i in range(len(x)):
        y = int(z[i].argmax())
        away = [
            (z[i, y] - z[i, t]) / torch.linalg.vector_norm((w[y] - w[t]) * sets, dim=1) for t in range(len(w)) if t != y
        ]
        rows.append(torch.stack(away).amin(0))
    return torch.stack(rows)


@pytest.mark.parametrize("classes", [2, 3, 7])
def test_linear_models_have_a_closed_form_on_every_subset(classes: int) -> None:
    rng = torch.Generator().manual_seed(classes)
    w, b = torch.randn(classes, 6, generator=rng), torch.randn(classes, generator=rng)
    x, sets = torch.randn(5, 6, generator=rng), all_subsets(6)
    found = subset_robustness(linear(w, b), x, sets, search=replace(WIDE, rivals=1))
    exact = closed_form(w.double(), b.double(), x.double(), sets)
    assert torch.isinf(found[:, 0]).all()
    near = exact[:, 1:] < 15  # inside the box in every direction
    assert near.float().mean() > 0.7
    assert_close(found[:, 1:][near], exact[:, 1:][near], rtol=3e-3, atol=1e-3)
    assert (found[:, 1:] >= exact[:, 1:] * (1 - 1e-5)).all()  # nothing lies nearer than the boundary


def test_the_nearest_rival_differs_from_subset_to_subset() -> None:
    w = torch.tensor([[0.0, 0.0], [1.0, 0.1], [0.1, 1.0]])
    b = torch.tensor([3.0, 2.0, 2.0])
    x = torch.zeros(1, 2)
    sets = torch.tensor([[[True, False], [False, True]]])
    _, rivals = nearest_rivals(linear(w, b), x, sets, torch.arange(2), search=replace(WIDE, rivals=1))
    assert rivals[0, :, 0].tolist() == [1, 2]
    assert_close(subset_robustness(linear(w, b), x, sets, search=WIDE), torch.ones(1, 2).double(), rtol=3e-3, atol=0)


def test_a_point_is_really_answered_otherwise_and_equal_to_the_input_off_the_subset() -> None:
    net, x = digit_net(), digit_inputs()
    rng = torch.Generator().manual_seed(0)
    free = torch.rand(x.shape, generator=rng) < 0.4
    y = net(x).argmax(1)
    rivals = torch.stack([(y + 1) % 10, (y + 4) % 10], 1)
    found = masked_minimal(net, x, y, free, rivals)
    assert found.success.float().mean() > 0.9
    answer = net(found.x).argmax(1)
    assert ((answer == rivals[:, 0]) | (answer == rivals[:, 1]))[found.success].all()
    assert torch.equal(found.x[~free], x[~free])
    assert_close(
        found.distance[found.success],
        torch.linalg.vector_norm((found.x.double() - x.double()).flatten(1), dim=1)[found.success],
    )
    assert ((found.x >= 0) & (found.x <= 1)).all()
    alone = [masked_minimal(net, x, y, free, rivals[:, j : j + 1]).distance for j in range(2)]
    assert_close(found.distance, torch.minimum(*alone), rtol=1e-3, atol=0)


def test_on_all_features_it_is_the_ordinary_distance() -> None:
    net, x = digit_net(), digit_inputs()[:6]
    y = net(x).argmax(1)
    every = torch.ones(1, x[0].numel(), dtype=torch.bool)
    ours = subset_robustness(net, x, every, search=Search(rivals=0, steps=40))[:, 0]
    ordinary = minimal_norm(net, x, y, norm="l2", steps=100).distance
    assert (ours <= 1.02 * ordinary).all()
    assert ours.mean() > 0.8 * ordinary.mean()
    scores = torch.rand(len(x), x[0].numel())
    search = Search(steps=5)
    whole = robustness_curve(net, x, scores, criterion="s-r", shares=(1.0,), search=search)
    none = robustness_curve(net, x, scores, criterion="s-r-bar", shares=(0.0,), search=search)
    assert_close(whole.value, none.value, rtol=1e-3, atol=0)


def test_larger_sets_are_never_harder() -> None:
    net, x = digit_net(), digit_inputs()[:6]
    rng = torch.Generator().manual_seed(1)
    order = torch.rand(64, generator=rng).argsort()
    nested = order.argsort() < torch.tensor([0, 1, 4, 16, 32, 64])[:, None]
    value = subset_robustness(net, x, nested, search=Search(steps=10))
    assert (value[:, 1:] <= value[:, :-1]).all()
    apart = torch.cat([subset_robustness(net, x, nested[j : j + 1], search=Search(steps=30)) for j in range(6)], 1)
    broken = (apart[:, 2:] > apart[:, 1:-1] * 1.01).float().mean()
    assert broken < 0.05  # what the search by itself gets wrong


def test_many_inputs_and_subsets_at_once_are_what_each_is_alone() -> None:
    net, x = digit_net(), digit_inputs()
    rng = torch.Generator().manual_seed(2)
    sets = torch.rand(2, 3, 64, generator=rng) < 0.5
    together = subset_robustness(net, x[:2], sets, search=Search(batch=5))
    for i in range(2):
        for j in range(3):
            alone = subset_robustness(net, x[i : i + 1], sets[i, j : j + 1])
            assert alone.item() == pytest.approx(float(together[i, j]), rel=1e-2)
    same = subset_robustness(net, x[:2], sets[0], search=Search(batch=5))
    assert_close(same[0], together[0], rtol=1e-3, atol=0)


def test_groups_move_together_and_a_feature_without_say_adds_nothing() -> None:
    net, x = digit_net(), digit_inputs()
    groups = patches((1, 8, 8), 4)
    some = torch.tensor([[True, False, False, True]])
    entries = spread(some, groups).flatten(1)
    assert_close(subset_robustness(net, x, some, groups=groups), subset_robustness(net, x, entries))

    def deaf(at: Tensor) -> Tensor:
        out: Tensor = net(torch.cat([at[:, :, :, :4], x[:1, :, :, 4:].expand(len(at), -1, -1, -1)], 3))
        return out

    left = torch.tensor([[True, False, True, False], [True, True, True, True], [False, True, False, True]])
    value = subset_robustness(deaf, x, left, groups=groups)
    assert_close(value[:, 0], value[:, 1], rtol=1e-6, atol=0)
    assert torch.isinf(value[:, 2]).all()


def test_scaled_inputs_have_scaled_distances() -> None:
    rng = torch.Generator().manual_seed(0)
    model = mlp(10, rng)
    x, sets = torch.rand(6, 10, generator=rng), torch.rand(5, 10, generator=rng) < 0.6
    plain = subset_robustness(model, x, sets)
    for factor in (0.1, 3.0, 20.0):
        search = Search(bounds=(0.0, factor))
        scaled = subset_robustness(lambda at, f=factor: model(at / f), factor * x, sets, search=search)  # type: ignore[misc]
        both = torch.isfinite(plain) & torch.isfinite(scaled)
        assert (torch.isfinite(plain) != torch.isfinite(scaled)).sum() <= 1
        assert_close(scaled[both], factor * plain[both], rtol=2e-2, atol=0)


def mlp(features: int, rng: torch.Generator, classes: int = 3) -> nn.Module:
    seed = int(torch.randint(2**31, (), generator=rng))
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        first, last = nn.Linear(features, 24), nn.Linear(24, classes)
    first.weight.data *= 4
    return nn.Sequential(first, nn.Tanh(), last).requires_grad_(False)


def test_targeted_values_have_the_untargeted_one_as_their_minimum() -> None:
    rng = torch.Generator().manual_seed(3)
    w, b = torch.randn(4, 5, generator=rng), torch.zeros(4)
    model, x, sets = linear(w, b), torch.randn(6, 5, generator=rng), all_subsets(5)[1:]
    y = model(x).argmax(1)
    each = torch.stack([subset_robustness(model, x, sets, target=(y + k) % 4, search=WIDE) for k in (1, 2, 3)])
    free = subset_robustness(model, x, sets, search=WIDE)
    near = free < 15
    assert_close(each.amin(0)[near], free[near], rtol=1e-2, atol=0)
    assert (each >= free * (1 - 5e-3)).all()


def gaps_between(w: Tensor, b: Tensor, x: Tensor, *, y: int, t: int, free: Tensor) -> float:
    return float(((w[y] - w[t]) @ x + b[y] - b[t]) / torch.linalg.vector_norm((w[y] - w[t])[free]))


def test_a_targeted_value_on_a_linear_model_is_a_quadratic_program() -> None:
    rng = torch.Generator().manual_seed(4)
    w, b = torch.randn(3, 4, generator=rng).double(), 0.2 * torch.randn(3, generator=rng).double()
    x = torch.randn(4, 4, generator=rng)
    model, sets = linear(w.float(), b.float()), torch.tensor([[True, True, True, False], [True, True, True, True]])
    y = model(x).argmax(1)
    search = Search(bounds=(-20.0, 20.0), step=0.05, steps=100)
    simple = 0
    for i in range(4):
        goal = (int(y[i]) + 1) % 3
        found = subset_robustness(model, x[i : i + 1], sets, target=goal, search=search)[0]
        for j, mask in enumerate(sets):
            free = mask.nonzero()[:, 0]
            gaps = [
                {
                    "type": "ineq",
                    "fun": lambda d, k=k, i=i, free=free, goal=goal: float(
                        (w[goal] - w[k]) @ x[i].double() + b[goal] - b[k] + (w[goal] - w[k])[free] @ torch.tensor(d)
                    ),
                }
                for k in range(3)
                if k != goal
            ]
            starts = [minimize(lambda d: d @ d, np.full(len(free), s), constraints=gaps) for s in (0.0, 1.0, -1.0)]
            best = min((s for s in starts if s.success), key=lambda s: s.fun)
            exact = best.fun**0.5
            assert exact * (1 - 1e-4) <= float(found[j]) <= 1.15 * exact
            alone = gaps_between(w, b, x[i].double(), y=int(y[i]), t=goal, free=free)
            if alone == pytest.approx(exact, rel=1e-4):  # no third class stands in the way: the closed form
                assert float(found[j]) == pytest.approx(exact, rel=1e-2)
                simple += 1
    assert simple >= 2


def test_with_two_classes_targeted_is_untargeted() -> None:
    rng = torch.Generator().manual_seed(5)
    model = mlp(8, rng, classes=2)
    x, sets = torch.rand(6, 8, generator=rng), torch.rand(4, 8, generator=rng) < 0.7
    y = model(x).argmax(1)
    aimed, free = subset_robustness(model, x, sets, target=1 - y), subset_robustness(model, x, sets)
    assert_close(aimed, free, rtol=1e-3, atol=0)


def test_permuting_the_classes_permutes_the_targeted_values() -> None:
    net, x = digit_net(), digit_inputs()
    shift = torch.randperm(10, generator=torch.Generator().manual_seed(0))
    sets = torch.rand(3, 64, generator=torch.Generator().manual_seed(1)) < 0.5
    y = net(x).argmax(1)
    goal = (y + 1) % 10
    plain = subset_robustness(net, x, sets, target=goal)
    moved = subset_robustness(lambda at: net(at)[:, shift], x, sets, target=shift.argsort()[goal])
    assert_close(moved, plain, rtol=1e-3, atol=0)


def test_ranking_by_weight_beats_every_permutation_on_a_linear_model() -> None:
    rng = torch.Generator().manual_seed(6)
    w = torch.randn(5, generator=rng)
    model = linear(torch.stack([w, -w]), torch.tensor([3.0, 0.0]))
    x = torch.zeros(1, 5)
    ranks = torch.tensor(list(permutations(range(5)))).float()
    ranks = torch.cat([w.abs()[None].argsort(1).argsort(1).float(), ranks])
    for criterion, best in (("s-r-bar", torch.argmax), ("s-r", torch.argmin)):
        curve = robustness_curve(
            model, x.expand(len(ranks), -1), ranks, criterion=criterion, shares=(0.2, 0.4, 0.6, 0.8), search=WIDE,  # type: ignore[arg-type]

            cap=torch.full((len(ranks),), 15.0),
        )  # fmt: skip
        areas = curve.area()
        assert areas[0].item() == pytest.approx(float(areas[best(areas)]), rel=1e-3)
        assert float(areas.std()) > 0.1


def test_caps_are_counted_and_keep_the_order() -> None:
    value = torch.tensor([[1.0, 50.0, torch.inf], [2.0, 3.0, 4.0]], dtype=torch.float64)
    found = capped(value, torch.tensor([20.0, 3.0]))
    assert found.value.tolist() == [[1, 20, 20], [2, 3, 3]]
    assert found.capped.tolist() == [[False, True, True], [False, True, True]]
    x, search = torch.tensor([[0.2, 0.5], [0.9, 0.0], [0.9, 0.0]]), Search(bounds=(0.0, 1.0))
    whole = torch.tensor([0.01, 0.5, torch.inf], dtype=torch.float64)
    corner = (0.9**2 + 1) ** 0.5
    assert usual_cap(x, whole, search).tolist() == pytest.approx([0.1, corner, corner])


def test_a_softmax_inside_the_model_changes_nothing() -> None:
    net, x = digit_net(), digit_inputs()
    sets = torch.rand(3, 64, generator=torch.Generator().manual_seed(1)) < 0.5
    plain = subset_robustness(net, x, sets)
    soft = subset_robustness(lambda at: net(at).softmax(1), x, sets)
    assert soft.mean().item() == pytest.approx(float(plain.mean()), rel=0.02)


def test_linf_is_measured_too() -> None:
    w = torch.tensor([[1.0, 2.0, -1.0], [0.0, 0.0, 0.0]])
    model, x, sets = linear(w, torch.tensor([1.0, 0.0])), torch.full((1, 3), 0.5), all_subsets(3)[1:]
    found = subset_robustness(model, x, sets, search=Search(norm="linf", bounds=(-20, 20), step=0.05))
    exact = 2 / (w[0].abs() * sets).sum(1)
    assert_close(found[0], exact.double(), rtol=3e-3, atol=0)


def test_words_of_the_errors() -> None:
    net, x = digit_net(), digit_inputs()
    every = torch.ones(1, 64, dtype=torch.bool)
    y = int(net(x[:1]).argmax(1))
    with pytest.raises(AssayError, match=f"target {y} equal to its label"):
        subset_robustness(net, x[:1], every, target=y)
    with pytest.raises(AssayError, match="There is no class 10; the model has 10, 0 to 9"):
        subset_robustness(net, x, every, target=10)
    with pytest.raises(ShapeError, match="Subsets have shape .1, 63.*64 features"):
        subset_robustness(net, x, every[:, 1:])
    with pytest.raises(AssayError, match="measured in l2 or linf, got 'l0'"):
        Search(norm="l0")  # type: ignore[arg-type]
    with pytest.raises(AssayError, match="steps >= 1"):
        Search(steps=0)
    with pytest.raises(ShapeError, match="grouping has shape"):
        subset_robustness(net, x, every, groups=torch.arange(64))
