"""NSGA-II's fronts, crowding and survivors, and evolution on people with a planted bias."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from assay.errors import AssayError, ShapeError
from assay.methods.fair.entropy import from_error
from assay.methods.fair.evolve import Evolved, People, crowding, evolve, fronts, judged, survive
from assay.methods.fair.front import hypervolume, non_dominated, normalised
from assay.methods.fair.population import drawn

SEEDS, GENERATIONS = 4, 20


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def fronts_as_printed(points: list[list[float]]) -> list[int]:
    """Peeled one front after another, in plain Python."""
    left, front, rank = set(range(len(points))), [0] * len(points), 0

    def beats(a: int, b: int) -> bool:
        pairs = list(zip(points[a], points[b], strict=True))
        return all(u <= v for u, v in pairs) and any(u < v for u, v in pairs)

    while left:
        first = {i for i in left if not any(beats(j, i) for j in left)}
        for i in first:
            front[i] = rank
        left, rank = left - first, rank + 1
    return front


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 10_000), st.integers(1, 30), st.integers(1, 3), st.booleans())
def test_fronts_are_those_of_the_definition(seed, n, k, ties):
    points = torch.rand(2, n, k, generator=seeded(seed))
    points = (points * 4).round() if ties else points
    assert fronts(points).tolist() == [fronts_as_printed(run.tolist()) for run in points]


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 10_000), st.integers(2, 40), st.integers(1, 3))
def test_no_survivor_of_the_first_front_is_dominated(seed, n, k):
    points = torch.rand(3, n, k, generator=seeded(seed))
    which = survive(points, (n + 1) // 2)
    front = fronts(points)
    for run in range(3):
        left, of = points[run, which[run]], front[run, which[run]]
        assert len(set(which[run].tolist())) == (n + 1) // 2
        first = left[of == 0]
        assert non_dominated(first.double().numpy()).all()
        beats = (points[run, :, None] <= first).all(-1) & (points[run, :, None] < first).any(-1)
        assert not beats.any()
        assert (of.diff() >= 0).all()  # in order of fronts
        out = sorted(set(range(n)) - set(which[run].tolist()))
        assert not out or front[run, out].min() >= of.max()


@pytest.fixture(scope="module")
def pymoo() -> object:
    return pytest.importorskip("pymoo")


@pytest.mark.parametrize("seed", range(3))
def test_as_pymoo_has_it(seed, pymoo):
    from pymoo.operators.survival.rank_and_crowding.metrics import calc_crowding_distance
    from pymoo.util.nds.non_dominated_sorting import NonDominatedSorting

    points = torch.rand(100, 3, generator=seeded(seed), dtype=torch.float64)
    theirs = NonDominatedSorting().do(points.numpy())
    front = fronts(points)
    for rank, members in enumerate(theirs):
        assert sorted(members) == torch.nonzero(front == rank)[:, 0].tolist()
    mine, wanted = crowding(points, front), torch.zeros(100, dtype=torch.float64)
    for members in theirs:
        distance = calc_crowding_distance(points[members].numpy())
        wanted[members] = torch.from_numpy(distance) * 3  # a mean there, a sum in print
    assert_close(mine, wanted)
    # who survives: whole fronts, then the least crowded of the one that does not fit
    whole, cut = [], []
    for members in theirs:
        if len(whole) + len(members) <= 50:
            whole += list(members)
        else:
            cut = sorted(members, key=lambda i: -float(wanted[i]))[: 50 - len(whole)]
            break
    assert {float(mine[i]) for i in survive(points, 50).tolist()} == {float(mine[i]) for i in [*whole, *cut]}
    assert set(whole) <= set(survive(points, 50).tolist())


def test_a_constant_objective_decides_nothing():
    points = torch.rand(40, 2, generator=seeded(3))
    more = torch.cat([points, torch.zeros(40, 1)], -1)
    assert survive(points, 20).tolist() == survive(more, 20).tolist()
    one = torch.cat([points[:, :1], torch.zeros(40, 2)], -1)
    assert survive(one, 20).tolist() == points[:, 0].argsort()[:20].tolist()  # the best of one objective


def biased(seed: int, n: int = 240, runs: int = 1) -> People:
    """Merit shows in two features; group 1 is granted less often at equal merit, and a third feature hints at it."""
    rng = seeded(seed)
    groups = torch.randint(0, 2, (runs, n), generator=rng)
    merit = torch.randn(runs, n, generator=rng)
    y = merit + 0.8 * torch.randn(runs, n, generator=rng) - 0.9 * groups > 0
    hint = groups + 0.4 * torch.randn(runs, n, generator=rng)
    noisy = merit + 0.5 * torch.randn(runs, n, generator=rng)
    return People(torch.stack([merit, noisy, hint], -1), y.long(), groups)


def test_objectives_are_tied_to_the_error():
    people = biased(0, runs=2)
    of = drawn(2, 4, 3, 6, seeded(1))
    seen, scores = judged(of, people), of.scores(people.x).double()
    error = scores - people.y[:, None]
    assert_close(seen[..., 0], error.square().mean(-1))
    for got, mse, mean in zip(
        seen.flatten(0, 1), error.square().mean(-1).flatten(), error.mean(-1).flatten(), strict=True
    ):
        assert_close(float(got[1] + got[2]), from_error(float(mse), float(mean)))


@pytest.fixture(scope="module")
def four() -> tuple[list[Tensor], Evolved, People]:
    """Four seeds of each of EIG, EI, EG and E, evolved side by side: 16 runs. With what was seen as they evolved."""
    care = torch.tensor([[1, 1, 1], [1, 1, 0], [1, 0, 1], [1, 0, 0]]).bool().repeat(SEEDS, 1)
    parts = []
    for what in (0, 1, 2):  # train, judge, test
        one = biased(10 + what, runs=SEEDS)
        parts.append(People(*(part.repeat_interleave(4, 0) for part in one)))
    seen: list[Tensor] = []
    evolved = evolve(
        parts[0], parts[1], hidden=8, generations=GENERATIONS, size=24, care=care, lr=0.01, batch=240, rng=seeded(0),
        after=lambda generation, here: seen.append(here.objectives.clone()),
    )  # fmt: skip
    return seen, evolved, parts[2]


def _volumes(objectives: Tensor) -> list[float]:
    """Of each run, in shares of what all of them have."""
    each = objectives.double().numpy()
    pooled = each.reshape(-1, 3)
    return [hypervolume(normalised(run, pooled), np.ones(3)) for run in each]


def test_three_objectives_cover_more_than_two_or_one(four):
    _, evolved, _ = four
    volume = np.array(_volumes(evolved.objectives)).reshape(SEEDS, 4).mean(0)
    assert volume[0] >= volume[1:].max()
    assert volume[3] < volume[0]


def test_one_objective_goes_down_and_survivors_are_elite(four):
    seen, evolved, _ = four
    assert len(seen) == GENERATIONS + 1
    best = torch.stack([each[..., 0].amin(1) for each in seen])  # generations, runs
    all_ = torch.stack([each[3::4, :, 0].sort(-1).values for each in seen])  # of E, which has this objective alone,
    assert (all_.diff(dim=0) <= 1e-12).all()  # nobody who was better is ever lost
    assert (best[-1] < best[0]).all()
    assert_close(evolved.objectives, seen[-1])


def test_squared_error_alone_lowers_both_kinds_of_unfairness(four):
    seen, _, _ = four
    first, last = seen[0][3::4].mean((0, 1)), seen[-1][3::4].mean((0, 1))
    assert last[0] < first[0]
    assert last[1] < first[1]


def test_volume_of_an_archive_never_shrinks(four):
    seen, _, _ = four
    archive, pooled = np.empty((0, 3)), torch.cat(seen, 1)[0].double().numpy()
    volumes = []
    for each in seen[::3]:
        archive = np.concatenate([archive, each[0].double().numpy()])
        archive = archive[non_dominated(archive)]
        volumes.append(hypervolume(normalised(archive, pooled), np.ones(3)))
    assert (np.diff(volumes) >= -1e-12).all()
    assert volumes[-1] > volumes[0]


def test_objectives_are_those_of_who_is_left(four):
    _, evolved, _ = four
    one = biased(11, runs=SEEDS)
    judge = People(*(part.repeat_interleave(4, 0) for part in one))
    assert_close(judged(evolved.population, judge), evolved.objectives)


def test_same_seed_same_front():
    people = biased(0, 60)
    twice = [evolve(people, people, hidden=4, generations=2, size=6, rng=seeded(5)).objectives for _ in range(2)]
    assert_close(*twice)


@pytest.mark.parametrize(
    ("kind", "settings_", "words"),
    [
        (AssayError, {"generations": -1}, "-1 generations"),
        (ShapeError, {"generations": 1, "care": torch.zeros(1, 3).bool()}, "give 3 each, one true"),
        (ShapeError, {"generations": 1, "care": torch.ones(2, 3).bool()}, r"shape \(2, 3\)"),
    ],
)
def test_bad_settings_are_one_line(kind, settings_, words):
    people = biased(0, 30)
    with pytest.raises(kind, match=words):
        evolve(people, people, hidden=2, size=4, rng=seeded(0), **settings_)


def test_more_cannot_survive_than_there_are():
    with pytest.raises(AssayError, match="5 cannot survive of 4"):
        survive(torch.rand(4, 2), 5)
