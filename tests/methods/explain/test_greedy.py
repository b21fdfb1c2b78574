from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_models import digit, digit_inputs, digit_net, segment_net, segment_pixels
from torch import Tensor, nn
from torch.testing import assert_close

from assay.errors import AssayError
from assay.methods.explain.greedy import Criterion, agreement, banzhaf, greedy, greedy_as, robust_features
from assay.methods.explain.groups import NEVER, patches, pixels
from assay.methods.explain.subset_robustness import Search, subset_robustness

Game = Callable[[Tensor], Tensor]


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def all_subsets(k: int) -> Tensor:
    return torch.arange(2**k)[:, None] & 2 ** torch.arange(k) != 0


def from_table(table: Tensor) -> Game:
    """A game by its 2^k values, in the order of all_subsets."""
    k = len(table).bit_length() - 1
    return lambda sets: table[(sets * 2 ** torch.arange(k)).sum(1)]


def mean_gain(table: Tensor, i: int) -> float:
    """The Banzhaf value as defined: the mean of v(S + i) - v(S) over the sets without i."""
    without = [s for s in range(len(table)) if not s >> i & 1]
    return float(sum(table[s | 1 << i] - table[s] for s in without)) / len(without)


@settings(deadline=None, max_examples=10)
@given(seed=st.integers(0, 1000), players=st.integers(1, 7))
def test_over_all_subsets_the_regression_is_the_banzhaf_value(seed: int, players: int) -> None:
    table = torch.randn(2**players, generator=rng(seed), dtype=torch.float64)
    found = banzhaf(all_subsets(players), table)
    exact = torch.tensor([mean_gain(table, i) for i in range(players)], dtype=torch.float64)
    assert_close(found, exact, rtol=0, atol=1e-12)


def test_without_an_intercept_it_is_something_else() -> None:
    table = torch.randn(64, generator=rng(), dtype=torch.float64) + 3
    sets = all_subsets(6).double()
    bare = torch.linalg.lstsq(sets, table[:, None]).solution[:, 0]
    assert float((bare - banzhaf(sets, table)).abs().max()) > 0.1


def test_a_column_that_never_varies_has_no_say() -> None:
    sets = torch.rand(40, 5, generator=rng()) < 0.5
    sets[:, 1], sets[:, 3] = True, False
    weight = torch.tensor([1.0, 5.0, -2.0, 7.0, 0.5]).double()
    w = banzhaf(sets, sets.double() @ weight)
    assert_close(w, torch.tensor([1.0, 0.0, -2.0, 0.0, 0.5]).double(), rtol=0, atol=1e-9)


def and_game(sets: Tensor) -> Tensor:
    return torch.where(sets[:, 1] & sets[:, 2], 10.0, 1.0)


def or_game(sets: Tensor) -> Tensor:
    """For (7.4): either feature alone leaves the answer where it is (the cap), both together change it."""
    return torch.where(sets[:, 1] & sets[:, 2], torch.tensor(2**0.5, dtype=torch.float64), 10.0)


@pytest.mark.parametrize(("game", "maximise", "gain"), [(and_game, True, 4.5), (or_game, False, (2**0.5 - 10) / 2)])
def test_features_that_matter_only_together(game: Game, maximise: bool, gain: float) -> None:
    alone = greedy(game, 6, size=2, maximise=maximise)
    assert len(torch.unique(alone.scores)) == 1  # Greedy cannot tell them apart
    assert alone.order.tolist() == [0, 1]
    both = greedy_as(game, 6, size=2, maximise=maximise, samples=64, rng=rng())
    assert_close(both.scores, torch.tensor([0, gain, gain, 0, 0, 0], dtype=torch.float64), rtol=0, atol=1e-12)
    assert sorted(both.order.tolist()) == [1, 2]
    sampled = greedy_as(game, 6, size=2, maximise=maximise, samples=40, rng=rng())
    assert sorted(sampled.order.tolist()) == [1, 2]


@pytest.mark.parametrize("maximise", [True, False])
def test_an_additive_game_is_sorted_by_weight(maximise: bool) -> None:
    weight = torch.randn(9, generator=rng(), dtype=torch.float64)
    weight[4] = 0
    want = weight.argsort(descending=maximise).tolist()

    def game(sets: Tensor) -> Tensor:
        return 2 + sets.double() @ weight

    assert greedy(game, 9, size=9, maximise=maximise).order.tolist() == want
    for samples in (512, 100):  # all subsets, and some
        found = greedy_as(game, 9, size=9, maximise=maximise, samples=samples, rng=rng())
        assert found.order.tolist() == want
        assert_close(found.scores, weight, rtol=0, atol=1e-10)


def test_symmetric_features_have_equal_scores_and_a_dummy_none() -> None:
    def game(sets: Tensor) -> Tensor:
        s = sets.double()
        return (s[:, 0] + s[:, 1]) ** 2 + s[:, 0] * s[:, 1] * s[:, 3]

    w = banzhaf(all_subsets(5), game(all_subsets(5)))
    assert_close(w[0], w[1], rtol=0, atol=1e-12)
    assert_close(w[[2, 4]], torch.zeros(2).double(), rtol=0, atol=1e-12)


def test_sizes_nest_end_in_a_permutation_and_no_set_of_a_table_is_asked_twice() -> None:
    table = torch.randn(64, generator=rng(), dtype=torch.float64)
    met: list[tuple[bool, ...]] = []

    def game(sets: Tensor) -> Tensor:
        met.extend(tuple(row) for row in sets.tolist())
        return from_table(table)(sets)

    full = greedy_as(game, 6, size=6, maximise=True, samples=64, rng=rng())
    assert full.asked == len(met) == len(set(met)) == 64
    assert sorted(full.order.tolist()) == list(range(6))
    for size in range(6):
        short = greedy_as(from_table(table), 6, size=size, maximise=True, samples=64, rng=rng())
        assert short.order.tolist() == full.order.tolist()[:size]
        assert greedy(from_table(table), 6, size=size, maximise=True).order.shape == (size,)
    at_once = greedy_as(from_table(table), 6, size=5, maximise=True, samples=64, at_once=2, rng=rng())
    assert at_once.order[:2].tolist() == full.scores.argsort(descending=True)[:2].tolist()
    assert len(set(at_once.order.tolist())) == 5


def test_each_round_is_the_game_on_what_is_left() -> None:
    table = torch.randn(32, generator=rng(3), dtype=torch.float64)
    order = greedy_as(from_table(table), 5, size=5, maximise=True, samples=32, rng=rng()).order.tolist()
    chosen = 0
    for pick in order:
        rest = [i for i in range(5) if not chosen >> i & 1]
        gains = {}
        for i in rest:
            others = [j for j in rest if j != i]
            sets = [
                chosen | sum(1 << j for j in some) for r in range(len(others) + 1) for some in combinations(others, r)
            ]
            gains[i] = sum(float(table[s | 1 << i] - table[s]) for s in sets) / len(sets)
        assert pick == max(rest, key=lambda i: gains[i])
        chosen |= 1 << pick


def test_drawn_sets_hold_the_picks_and_each_other_feature_with_the_stated_chance() -> None:
    met: list[Tensor] = []

    def game(sets: Tensor) -> Tensor:
        met.append(sets)
        return sets.double() @ torch.arange(40).double()

    found = greedy_as(game, 40, size=3, maximise=True, samples=2000, include=0.2, rng=rng())
    assert found.order.tolist() == [39, 38, 37]
    assert met[0].double().mean().item() == pytest.approx(0.2, abs=0.01)
    assert met[1][:, 39].all()
    assert met[2][:, [39, 38]].all()
    assert met[1][:, :39].double().mean().item() == pytest.approx(0.2, abs=0.01)
    assert len(met[1]) == pytest.approx(1600, abs=60)  # the others are sets of the first round that hold the pick


@pytest.mark.parametrize("criterion", ["s-r-bar", "s-r"])
@pytest.mark.parametrize("method", ["greedy", "greedy-as"])
def test_on_a_linear_classifier_the_order_is_that_of_the_weights(criterion: Criterion, method: str) -> None:
    w = torch.tensor([0.5, -3.0, 1.2, 0.1, -2.0, 1.6])
    model = nn.Linear(6, 2).requires_grad_(False)
    model.weight.copy_(torch.stack([w, -w]))
    model.bias.copy_(torch.tensor([0.8, 0.0]))
    found = robust_features(
        model, torch.zeros(6), criterion=criterion, size=5, method=method, cap=15.0,  # type: ignore[arg-type]
        search=Search(bounds=(-20.0, 20.0), step=0.05),
    )  # fmt: skip
    assert found.order.tolist() == w.abs().argsort(descending=True)[:5].tolist()
    assert found.weight[found.order].tolist() == pytest.approx([1, 0.8, 0.6, 0.4, 0.2])
    assert found.weight[3] == 0
    assert found.whole == pytest.approx(0.4 / float(torch.linalg.vector_norm(w)), rel=1e-2)


@pytest.mark.parametrize("criterion", ["s-r-bar", "s-r"])
def test_against_the_full_table_of_a_small_network(criterion: Criterion) -> None:
    """No set of size K is better than the best of all; Greedy and Greedy-AS come near it, random ones do not."""
    torch_rng = rng(1)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(10, 20), nn.Tanh(), nn.Linear(20, 3)).requires_grad_(False)
    for layer in (model[0], model[2]):
        layer.weight.mul_(3)  # type: ignore[operator]
    inputs = torch.rand(4, 10, generator=torch_rng)
    sets = all_subsets(10)
    size, maximise = sets.sum(1), criterion == "s-r-bar"
    free = ~sets if maximise else sets
    best_of = torch.amax if maximise else torch.amin
    totals = dict.fromkeys(("best", "greedy", "greedy-as", "gradient", "random"), 0.0)
    tables = subset_robustness(model, inputs, free)
    for x, raw in zip(inputs, tables, strict=True):
        whole = raw[free.all(1)]
        table = torch.minimum(raw, 10 * whole)
        one = greedy(from_table(table), 10, size=5, maximise=maximise).order
        many = greedy_as(from_table(table), 10, size=5, maximise=maximise, samples=1024, rng=rng()).order
        at = x[None].clone().requires_grad_()
        z = model(at).topk(2, dim=1).values[0]
        (slope,) = torch.autograd.grad(z[0] - z[1], at)
        ways = {"greedy": one, "greedy-as": many, "gradient": slope[0].abs().argsort(descending=True)[:5]}
        for k in range(1, 6):
            optimum = best_of(table[size == k], 0)
            totals["best"] += float(optimum)
            totals["random"] += float(table[size == k].mean())
            for name, order in ways.items():
                value = float(table[(2 ** order[:k]).sum()])
                assert value <= float(optimum) if maximise else value >= float(optimum)
                totals[name] += value
    ranked = sorted(totals, key=lambda name: totals[name], reverse=maximise)
    assert ranked[0] == "best"
    assert ranked[-1] == "random"
    for name in ("greedy", "greedy-as"):
        assert totals[name] == pytest.approx(totals["best"], rel=0.06)


def test_pertinent_negatives() -> None:
    """A zero is no eight because its middle bar is empty. Leaving out what is 0 already changes nothing at all."""
    reader = segment_net()
    x = digit(0)
    bar = segment_pixels("middle")
    for criterion in ("s-r-bar", "s-r"):
        found = robust_features(reader, x, criterion=criterion, groups=pixels((1, 9, 5)), size=6, samples=300)  # type: ignore[arg-type]
        assert bar <= set(found.order.tolist()), criterion
        assert set(found.map.flatten().nonzero()[:, 0].tolist()) == set(found.order.tolist())
    logit = reader(x[None])[0, 0]
    left_out = torch.stack([reader((x.flatten() * (torch.arange(45) != i)).view(1, 1, 9, 5))[0, 0] for i in range(45)])
    assert (left_out - logit)[sorted(bar)].tolist() == [0, 0, 0]
    assert float((left_out - logit).abs().max()) > 0.1


def test_why_seven_and_not_another() -> None:
    """The picks lie in the segments in which the two digits differ, so they depend on the rival."""
    reader = segment_net()
    differ = {9: ("upper left", "middle", "bottom"), 1: ("top",), 3: ("middle", "bottom")}
    picks = {}
    for rival, names in differ.items():
        want = segment_pixels(*names)
        found = robust_features(
            reader, digit(7), criterion="s-r", groups=pixels((1, 9, 5)), size=len(want), samples=600, target=rival
        )
        picks[rival] = set(found.order.tolist())
        assert len(picks[rival] & want) / len(want) >= 2 / 3, rival
    assert not picks[1] & picks[9]


def test_what_belongs_to_no_feature_is_never_picked() -> None:
    net, x = digit_net(), digit_inputs()
    groups = patches((1, 8, 8), 4)
    groups = torch.where(groups == 3, NEVER, groups)
    found = robust_features(net, x[0], groups=groups, size=3, samples=8)
    assert sorted(found.order.tolist()) == [0, 1, 2]
    assert (found.map[groups == NEVER] == 0).all()
    assert found.asked == 8
    empty = robust_features(net, x[0], groups=groups, size=0)
    assert empty.order.tolist() == []
    assert float(empty.map.abs().sum()) == 0


def test_the_same_seed_gives_the_same_picks() -> None:
    net, x = digit_net(), digit_inputs()
    groups = patches((1, 8, 8), 2)
    one, two = (robust_features(net, x[0], groups=groups, size=4, samples=30, rng=rng(7)) for _ in range(2))
    assert one.order.tolist() == two.order.tolist()
    assert torch.equal(one.scores, two.scores)
    assert 0 <= one.capped <= one.asked


def test_words_of_the_errors() -> None:
    net, x = digit_net(), digit_inputs()
    with pytest.raises(AssayError, match="Of 3 features 4 cannot be picked"):
        greedy(and_game, 3, size=4, maximise=True)
    with pytest.raises(AssayError, match="10 samples for 12 features"):
        greedy_as(and_game, 12, size=2, maximise=True, samples=10, rng=rng())
    with pytest.raises(AssayError, match="1 that are not finite; cap"):
        greedy(lambda sets: torch.where(sets[:, 0], torch.inf, 1.0), 3, size=1, maximise=True)
    with pytest.raises(AssayError, match="it knows s-r-bar or s-r, and greedy-as or greedy"):
        robust_features(net, x[0], criterion="s")  # type: ignore[arg-type]
    groups = patches((1, 8, 8), 4)

    def stubborn(at: Tensor) -> Tensor:
        return torch.stack([at.flatten(1).sum(1) + 100, at.flatten(1).sum(1), 2 * at.flatten(1).sum(1)], 1)

    with pytest.raises(AssayError, match="all 4 features led to class 1: it is not reachable on these features"):
        robust_features(stubborn, x[0], groups=groups, target=1)
    with pytest.raises(AssayError, match="equal to its label"):
        robust_features(net, x[0], groups=groups, target=int(net(x[:1]).argmax()))


def test_agreement_is_the_mean_jaccard_index_of_two_picks() -> None:
    picks = [torch.tensor([0, 1]), torch.tensor([1, 2]), torch.tensor([1, 0])]
    assert agreement(picks) == pytest.approx((1 / 3 + 1 + 1 / 3) / 3)
    assert agreement([torch.tensor([]), torch.tensor([])]) == 1
    with pytest.raises(AssayError, match="two or more picks"):
        agreement(picks[:1])
