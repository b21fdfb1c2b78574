"""What one label does to a last layer: against layers that are learnt anew, with all of them and with each left out."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.stats import spearmanr
from torch.testing import assert_close

from assay.errors import AssayError
from assay.methods.poison.head import fit_heads
from assay.methods.poison.influence import SHARP, influence, left_out, pull_of_head
from assay.methods.poison.most_harmful import local_gamma
from assay.methods.poison.rounds import SHARP as OF_SHARES
from assay.methods.poison.rounds import Chosen, in_rounds, pull_of_propagation, wrong_slope

RIDGE, N, CLASSES = 0.1, 60, 3


@pytest.fixture(scope="module")
def case() -> dict[str, torch.Tensor]:
    rng = torch.Generator().manual_seed(5)
    x = torch.randn(N + 15, 3, generator=rng, dtype=torch.float64)
    x = torch.cat([x, torch.ones(len(x), 1).double()], 1)
    y = (x[:, :3] + 0.7 * torch.randn(len(x), 3, generator=rng, dtype=torch.float64)).argmax(1)
    learnt = fit_heads(x[:N], y[None, :N], CLASSES, ridge=RIDGE)[0]
    return {"x": x[:N], "y": y[:N], "aimed": x[N:], "targets": y[N:], "w": learnt}


def wrong(w: torch.Tensor, case: dict[str, torch.Tensor]) -> torch.Tensor:  # *r d c -> *r
    """What the attack counts, as printed."""
    p = torch.softmax(SHARP * (case["aimed"] @ w), -1)
    return (1 - p[..., torch.arange(len(case["targets"])), case["targets"]]).mean(-1)


def pull(case: dict[str, torch.Tensor]) -> torch.Tensor:
    slope = wrong_slope(case["aimed"] @ case["w"], case["targets"], SHARP)
    return influence(case["x"], case["w"], case["aimed"], slope, ridge=RIDGE)


def test_the_slope_is_the_derivative_of_what_is_counted(case: dict[str, torch.Tensor]) -> None:
    z = (case["aimed"] @ case["w"]).requires_grad_(True)
    p = torch.softmax(3.0 * z, 1).gather(1, case["targets"][:, None])
    (expected,) = torch.autograd.grad((1 - p).mean(), z)
    assert_close(wrong_slope(z.detach(), case["targets"], 3.0), expected)


def test_influence_is_the_derivative_of_what_a_share_of_a_label_does(case: dict[str, torch.Tensor]) -> None:
    """A label that is of another class to a small share, the layer learnt anew to both sides."""
    x, y, h = case["x"], case["y"], 0.05
    given = F.one_hot(y, CLASSES).double()
    moves = [(i, int((y[i] + 1) % CLASSES)) for i in range(0, N, 10)]
    sides = []
    for i, c in moves:
        way = torch.zeros_like(given)
        way[i, c], way[i, y[i]] = 1.0, -1.0
        sides += [given + h * way, given - h * way]
    layers = fit_heads(x, torch.stack(sides), CLASSES, ridge=RIDGE, start=case["w"])
    counted = wrong(layers, case)
    expected = (counted[::2] - counted[1::2]) / (2 * h)
    pulled = pull(case)
    found = torch.stack([pulled[i, c] - pulled[i, y[i]] for i, c in moves])
    assert_close(found, expected, rtol=1e-3, atol=1e-6)


def test_whole_flips_are_ranked_as_layers_learnt_anew_rank_them(case: dict[str, torch.Tensor]) -> None:
    x, y = case["x"], case["y"]
    moves = [(i, c) for i, c in product(range(N), range(CLASSES)) if c != int(y[i])]
    rows = torch.cat([Chosen(torch.tensor([i]), torch.tensor([c])).first(y, [1]) for i, c in moves])
    exact = wrong(fit_heads(x, rows, CLASSES, ridge=RIDGE, start=case["w"]), case) - wrong(case["w"], case)
    pulled = pull(case)
    guessed = torch.stack([pulled[i, c] - pulled[i, y[i]] for i, c in moves])
    assert spearmanr(guessed, exact).statistic > 0.9
    worst = int(guessed.argmax())  # the choice that the attack makes is among the best there are
    assert float(exact[worst]) > 0.8 * float(exact.max())


def test_leaving_one_out_is_what_learning_without_it_gives(case: dict[str, torch.Tensor]) -> None:
    x, y = case["x"], case["y"]
    given = F.one_hot(y, CLASSES).double()
    # n/(n-1) of the ridge: the mean over one input less weighs the ridge by as much more
    exact, some = [], range(0, N, 4)
    for i in some:
        kept = torch.arange(N) != i
        layer = fit_heads(x[kept], given[None, kept], CLASSES, ridge=RIDGE * N / (N - 1), start=case["w"])
        exact.append(wrong(layer[0], case) - wrong(case["w"], case))
    guessed = left_out(x, y, case["w"], pull(case))[list(some)]
    assert spearmanr(guessed, torch.stack(exact)).statistic > 0.95
    assert_close(guessed, torch.stack(exact), rtol=0, atol=float(torch.stack(exact).abs().max()) / 2)


def test_rounds_harm_more_than_all_at_once_or_by_chance(case: dict[str, torch.Tensor]) -> None:
    x, y = case["x"], case["y"]
    pulled = pull_of_head(x, CLASSES, case["aimed"], case["targets"], ridge=RIDGE)
    step, rng = in_rounds(y, pulled, list(range(1, 7))), torch.Generator().manual_seed(0)
    chance = [
        Chosen(places, (y[places] + 1) % CLASSES)
        for places in (torch.randperm(N, generator=rng)[:6] for _ in range(20))
    ]
    rows = torch.cat([each.first(y, [6]) for each in (step, *chance)])
    harm = wrong(fit_heads(x, rows, CLASSES, ridge=RIDGE), case)
    assert len(set(step.places.tolist())) == 6
    assert bool((step.to != y[step.places]).all())
    assert float(harm[0]) > float(harm[1:].max())


def test_of_label_propagation_the_best_single_change_is_found() -> None:
    """Brute force over every change of a small graph, by what is counted."""
    rng = torch.Generator().manual_seed(1)
    k = torch.rand(7, 12, generator=rng, dtype=torch.float64)
    k /= k.sum(1, keepdim=True)
    y, targets = torch.randint(3, (12,), generator=rng), torch.randint(3, (7,), generator=rng)

    def counted(labels: torch.Tensor) -> float:
        p = torch.softmax(OF_SHARES * k @ F.one_hot(labels, 3).double(), 1)
        return float((1 - p[torch.arange(7), targets]).mean())

    (found,) = in_rounds(y, pull_of_propagation(k, 3, targets), [1]).first(y, [1])
    tried = [
        counted(Chosen(torch.tensor([i]), torch.tensor([c])).first(y, [1])[0])
        for i, c in product(range(12), range(3))
        if c != int(y[i])
    ]
    assert counted(found) > np.quantile(tried, 0.9)
    assert counted(found) > counted(y)


def test_begun_changes_come_first_and_none_twice() -> None:
    y = torch.zeros(6, dtype=torch.long)
    pull = torch.arange(12, dtype=torch.float64).reshape(6, 2).flip(0) ** 2
    begun = Chosen(torch.tensor([4]), torch.tensor([1]))
    found = in_rounds(y, lambda labels: pull, [1, 3, 4], begun)
    assert found.places[0] == 4
    assert found.places.tolist() == [4, 0, 1, 2]
    assert found.first(y, [0, 2]).sum(1).tolist() == [0, 2]


@pytest.mark.parametrize(
    ("counts", "says"),
    [([3, 3], "grow"), ([0, 1], "from 1"), ([], "from 1"), ([1, 7], "7 labels cannot be changed, for there are 6")],
)
def test_numbers_of_changes_that_make_no_sense_are_refused(counts: list[int], says: str) -> None:
    with pytest.raises(AssayError, match=says):
        in_rounds(torch.zeros(6, dtype=torch.long), lambda labels: torch.zeros(6, 2), counts)


def test_rows_that_repeat_leave_a_width() -> None:
    """Of a table of five yes and no, most inputs have ten equal rows; the width is that of one column."""
    rng = np.random.default_rng(0)
    x, aimed = (torch.from_numpy(rng.integers(0, 2, (n, 5)) / 3.0) for n in (800, 100))
    assert local_gamma(x, aimed) == pytest.approx(9.0)
    spread = torch.from_numpy(rng.normal(size=(50, 2)))
    tenth = ((spread[:, None] - spread) ** 2).sum(2).sort(1).values[:, 9]
    assert local_gamma(spread, spread.clone()) == pytest.approx(1 / float(np.median(tenth.numpy())))
    assert local_gamma(x[:1], x[:1].clone()) == 1.0
