from __future__ import annotations

from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from scipy.optimize import linprog, nnls
from sklearn.neighbors import KNeighborsClassifier

from assay.errors import AssayError, ShapeError
from assay.methods.certify import nearest
from assay.methods.certify.nearest_cell import Cell, open_inputs, open_space, queries
from assay.methods.certify.nearest_qp import least_l2

seeds = st.integers(0, 10_000)
few = settings(max_examples=6, deadline=None)


def blobs(seed, n=40, d=3, classes=3, inputs=6):
    """Overlapping clouds, and inputs that 1-NN gets right."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, classes, n)
    y[: 2 * classes] = np.tile(np.arange(classes), 2)
    centre = rng.normal(size=(classes, d))
    x = rng.normal(size=(n, d)) + centre[y]
    z = rng.normal(size=(20 * inputs, d)) + centre[rng.integers(0, classes, 20 * inputs)]
    label = y[((z[:, None] - x) ** 2).sum(-1).argmin(1)]
    return x, y, z[:inputs], label[:inputs]


def rows(x, y, z, c, j, m=None):
    """A and b of one programme as printed, one training point at a time: A d + b >= 0."""
    m = np.eye(len(z)) if m is None else m
    own = [i for i in range(len(x)) if y[i] == c]
    a = np.array([m @ (x[j] - x[i]) for i in own])
    b = np.array([((z - x[i]) @ m @ (z - x[i]) - (z - x[j]) @ m @ (z - x[j])) / 2 for i in own])
    return a, b


def shortest(a, b, bounds=None):
    """The shortest d with A d + b >= 0, as a least-squares problem with multipliers >= 0.

    Source: Lawson & Hanson, Solving Least Squares Problems, 1974, ch. 23 (LDP). What comes out is held to the
    conditions that an optimum alone meets: a general solver that stopped short would be no reference.
    """
    if bounds is not None:
        low, high = np.array(bounds).T
        a, b = np.vstack([a, np.eye(len(low)), -np.eye(len(low))]), np.concatenate([b, -low, high])
    e, f = np.vstack([a.T, -b]), np.append(np.zeros(a.shape[1]), 1)
    weight, _ = nnls(e, f, maxiter=10_000)
    left = e @ weight - f
    if -left[-1] < 1e-9:  # (1 + |d|^2)^-1 at an optimum
        return np.inf
    d, lam = -left[:-1] / left[-1], -weight / left[-1]
    assert (a @ d + b > -1e-8).all()
    assert_allclose(a.T @ lam, d, atol=1e-8)
    assert_allclose(lam * (a @ d + b), 0, atol=1e-7)
    return np.linalg.norm(d)


def coordinate_ascent(a, b):
    """The print's own solver: one multiplier at a time, the one that moves most. Returns the norm of d."""
    gram, lam = a @ a.T, np.zeros(len(b))
    g = -b.copy()
    for _ in range(20_000):
        step = np.maximum(lam + g / np.diag(gram), 0) - lam
        i = int(np.abs(step).argmax())
        if abs(step[i]) < 1e-12:
            break
        lam[i] += step[i]
        g -= step[i] * gram[i]
    return np.linalg.norm(a.T @ lam)


def over_all(x, y, z, c, solve, m=None):
    return min(solve(*rows(x, y, z, c, j, m)) for j in range(len(x)) if y[j] != c)


def spd(rng, d):
    g = rng.normal(size=(d, d))
    return g @ g.T / d


@given(seeds)
@settings(max_examples=4, deadline=None, derandomize=True)
def test_exact_agrees_with_least_squares_and_with_coordinate_ascent(seed):
    x, y, z, c = blobs(seed, n=24, d=4, inputs=3)
    m = spd(np.random.default_rng(seed), 4)
    ours, under = nearest.exact_radius(x, y, z, c), nearest.exact_radius(x, y, z, c, metric=m)
    assert_allclose(ours.radius, [over_all(x, y, *one, shortest) for one in zip(z, c, strict=True)], atol=1e-6)
    assert_allclose(ours.radius, [over_all(x, y, *one, coordinate_ascent) for one in zip(z, c, strict=True)], atol=1e-7)
    right = under.ended == "solved"
    general = [over_all(x, y, *one, shortest, m) for one in zip(z, c, strict=True)]
    assert_allclose(under.radius[right], np.array(general)[right], rtol=1e-5, atol=1e-6)
    assert (under.radius[~right] == 0).all()


@given(seeds)
@settings(max_examples=4, deadline=None, derandomize=True)
def test_the_box_agrees_with_least_squares(seed):
    x, y, z, c = blobs(seed, n=24, d=4, inputs=2)
    low, high = z.min(0) - 0.1, z.max(0) + 0.1
    got = nearest.exact_radius(x, y, z, c, box=(low, high))
    free = nearest.exact_radius(x, y, z, c).radius
    for k in range(len(z)):
        bounds = list(zip(low - z[k], high - z[k], strict=True))
        want = over_all(x, y, z[k], c[k], lambda a, b, bounds=bounds: shortest(a, b, bounds))
        assert got.radius[k] == pytest.approx(want, abs=1e-5)
        assert (got.ended[k] == "unreachable") == np.isinf(want)
    assert (got.radius >= free - 1e-9).all()
    assert ((got.point >= low - 1e-9) & (got.point <= high + 1e-9)).all()


def test_a_box_that_no_cell_enters_is_unreachable():
    got = nearest.exact_radius([[0.0], [9.0]], [0, 1], [[0.0]], [0], box=(0, 1))
    assert got.radius[0] == np.inf
    assert got.ended[0] == "unreachable"
    assert got.neighbour[0] == -1
    for norm in (1, np.inf):
        assert nearest.exact_radius([[0.0], [9.0]], [0, 1], [[0.0]], [0], norm, box=(0, 1)).ended[0] == "unreachable"


@given(seeds)
@few
def test_linear_programmes_agree_with_all_rows_at_once(seed):
    x, y, z, c = blobs(seed, n=16, inputs=2)
    d = x.shape[1]

    def linf(a, b):
        cost = np.append(np.zeros(d), 1)
        eye, one = np.eye(d), np.ones((d, 1))
        left = np.block([[-a, np.zeros((len(a), 1))], [eye, -one], [-eye, -one]])
        return linprog(cost, left, np.append(b, np.zeros(2 * d)), bounds=[(None, None)] * d + [(0, None)]).fun

    def l1(a, b):
        return linprog(np.ones(2 * d), np.hstack([-a, a]), b, bounds=(0, None)).fun

    for norm, solve in ((np.inf, linf), (1, l1)):
        got = nearest.exact_radius(x, y, z, c, norm)
        assert_allclose(got.radius, [over_all(x, y, *one, solve) for one in zip(z, c, strict=True)], atol=1e-6)
        assert_allclose(np.linalg.norm(got.point - z, norm, axis=1), got.radius, atol=1e-9)


@given(seeds)
@few
def test_norms_are_ordered(seed):
    x, y, z, c = blobs(seed, d=4, inputs=3)
    inf, two, one = (nearest.exact_radius(x, y, z, c, norm).radius for norm in (np.inf, 2, 1))
    assert (inf <= two + 1e-8).all()
    assert (two <= one + 1e-8).all()
    assert (one <= 2 * two + 1e-8).all()


@given(seeds, st.sampled_from([2, 1, np.inf]), st.booleans())
@few
def test_screening_changes_nothing(seed, norm, stretched):
    x, y, z, c = blobs(seed, n=20, inputs=2)
    metric = spd(np.random.default_rng(seed), 3) if stretched else None
    none = nearest.exact_radius(x, y, z, c, norm, metric=metric, screen=0)
    for screen in (1, 50):
        got = nearest.exact_radius(x, y, z, c, norm, metric=metric, screen=screen)
        assert_allclose(got.radius, none.radius, rtol=1e-9, atol=1e-9)
        assert (got.programs <= none.programs).all()


@given(seeds)
@few
def test_each_programme_meets_its_optimality_conditions_and_the_lemma_on_screened_rows(seed):
    x, y, z, c = blobs(seed, inputs=2)
    space = open_space(x, y, None, None)
    for k, query in queries(space, *open_inputs(space, z, c)):
        for j in space.others(query.c):
            solved = least_l2(Cell(space, query, np.array([j]), space.own(query.c)), 3, tolerance=1e-11)
            a, b = rows(x, y, z[k], c[k], space.order[j])
            assert (a @ solved.d + b >= -1e-9).all()
            assert (solved.multiplier >= -1e-12).all()
            assert_allclose(solved.rows @ solved.d + solved.offset, 0, atol=1e-9)  # complementary slackness
            held, lam = solved.rows, solved.multiplier
            dual = -lam @ held @ held.T @ lam / 2 - lam @ solved.offset
            assert solved.d @ solved.d / 2 == pytest.approx(dual, abs=1e-9)
            assert solved.bound == pytest.approx(np.linalg.norm(solved.d))
            length, u = np.linalg.norm(a, axis=1), np.linalg.norm(solved.d) * (1 + 1e-9)
            for unit in (a / length[:, None])[b > length * u]:  # Lemma 2: their multiplier is 0
                assert (
                    not (np.abs(held - unit).max(1) < 1e-12).any()
                    or (lam[np.abs(held - unit).max(1) < 1e-12] < 1e-9).all()
                )


@given(seeds, st.booleans())
@few
def test_the_label_holds_inside_and_flips_beyond(seed, stretched):
    x, y, z, c = blobs(seed)
    rng = np.random.default_rng(seed)
    g = rng.normal(size=(2, 3)) if stretched else np.eye(3)
    got = nearest.exact_radius(x, y, z, c, factor=g)
    right = got.ended == "solved"

    def label(at):
        return y[(((at[:, None] - x) @ g.T) ** 2).sum(-1).argmin(1)]

    assert (label(z + (got.point - z) * (1 - 1e-5))[right] == c[right]).all()
    beyond = got.point + 1e-6 * (x[got.neighbour] - got.point)
    assert (label(beyond)[right] != c[right]).all()
    assert_allclose(np.linalg.norm(got.point - z, axis=1), got.radius, atol=1e-12)
    way = rng.normal(size=(50, *z.shape))
    way *= 0.999 * got.radius[:, None] / np.linalg.norm(way, axis=2, keepdims=True)
    for ring in (z + way)[:, right]:
        assert (label(ring) == c[right]).all()


def test_one_point_per_class_is_the_distance_to_the_bisector():
    own, other, z = np.array([0.2, 0.1]), np.array([2.0, 1.0]), np.array([0.0, 0.4])
    want = (np.sum((z - other) ** 2) - np.sum((z - own) ** 2)) / (2 * np.linalg.norm(other - own))
    x, y = np.stack([own, other]), ["a", "b"]
    assert nearest.exact_radius(x, y, z[None], ["a"]).radius[0] == pytest.approx(want, rel=1e-12)
    assert nearest.certified_radius(x, y, z[None], ["a"], 1)[0] == pytest.approx(want, rel=1e-12)


def test_in_the_plane_it_is_the_distance_to_the_voronoi_boundary():
    x, y, z, c = blobs(3, n=12, d=2, inputs=3)
    got = nearest.exact_radius(x, y, z, c).radius
    angle = np.linspace(0, 2 * np.pi, 720, endpoint=False)
    way = np.stack([np.cos(angle), np.sin(angle)], 1)
    for k in range(len(z)):
        reach = np.linspace(0.9, 1.1, 100) * got[k]
        grid = z[k] + reach[:, None, None] * way
        wrong = y[((grid[:, :, None] - x) ** 2).sum(-1).argmin(-1)] != c[k]
        assert reach[wrong.any(1).argmax()] == pytest.approx(got[k], rel=5e-3)


@given(seeds)
@few
def test_more_own_points_help_and_more_others_hurt(seed):
    x, y, z, c = blobs(seed, inputs=3)
    new = np.random.default_rng(seed).normal(size=(1, 3))
    for k in range(3):
        base = nearest.exact_radius(x, y, z[k : k + 1], c[k : k + 1]).radius
        for label in np.unique(y):
            got = nearest.exact_radius(np.vstack([x, new]), np.append(y, label), z[k : k + 1], c[k : k + 1]).radius
            assert (got >= base - 1e-9) if label == c[k] else (got <= base + 1e-9)


@given(seeds)
@few
def test_it_moves_turns_and_scales_with_the_data(seed):
    x, y, z, c = blobs(seed)
    q = np.linalg.qr(np.random.default_rng(seed).normal(size=(3, 3)))[0]
    base = nearest.exact_radius(x, y, z, c).radius
    assert_allclose(nearest.exact_radius(x @ q + 100, y, z @ q + 100, c).radius, base, atol=1e-8)
    assert_allclose(nearest.exact_radius(7 * x, y, 7 * z, c).radius, 7 * base, atol=1e-8)


@given(seeds)
@few
def test_metrics(seed):
    x, y, z, c = blobs(seed)
    rng = np.random.default_rng(seed)
    m, q = spd(rng, 3), np.linalg.qr(rng.normal(size=(3, 3)))[0]
    base = nearest.exact_radius(x, y, z, c, metric=m).radius
    plain = nearest.exact_radius(x, y, z, c).radius
    assert_allclose(nearest.exact_radius(x, y, z, c, metric=np.eye(3)).radius, plain, atol=1e-9)
    assert_allclose(nearest.exact_radius(x, y, z, c, metric=5 * m).radius, base, atol=1e-9)
    assert_allclose(nearest.exact_radius(x, y, z, c, factor=np.linalg.cholesky(m).T).radius, base, atol=1e-9)
    turned = nearest.exact_radius(x @ q.T, y, z @ q.T, c, metric=q @ m @ q.T).radius
    assert_allclose(turned, base, atol=1e-8)
    for k in (1, 3):
        bound = nearest.certified_radius(x, y, z, c, k, metric=m)
        assert_allclose(nearest.certified_radius(x, y, z, c, k, metric=5 * m), bound, atol=1e-9)
        if k == 1:
            assert (bound <= base + 1e-9).all()


def test_the_budget_is_in_input_space():
    """Inputs that are stretched with the metric undoing it are classified the same, yet need larger changes."""
    x, y, z, c = blobs(1)
    s = np.diag([3.0, 1.0, 1.0])
    inverse = np.linalg.inv(s)
    base, got = (
        nearest.exact_radius(x @ t, y, z @ t, c, metric=m).radius
        for t, m in ((np.eye(3), np.eye(3)), (s, inverse @ inverse))
    )
    assert (got >= base - 1e-9).all()
    assert (got > base + 1e-3).any()


@given(seeds)
@few
def test_a_metric_of_rank_one_is_a_line(seed):
    x, y, z, c = blobs(seed, n=12)
    w = np.random.default_rng(seed).normal(size=3)
    got = nearest.exact_radius(x, y, z, c, factor=w[None])
    line, at = x @ w, z @ w
    order = np.argsort(line)
    turns = [(line[i] + line[j]) / 2 for i, j in pairwise(order) if y[i] != y[j]]
    for k in range(len(z)):
        label = y[np.abs(line - at[k]).argmin()]
        if label != c[k]:
            assert got.radius[k] == 0
            continue
        want = min(abs(t - at[k]) for t in turns if not any(min(t, at[k]) < u < max(t, at[k]) for u in turns))
        assert got.radius[k] == pytest.approx(want / np.linalg.norm(w), abs=1e-8)


def test_a_metric_that_sees_no_difference_gives_zero():
    x = np.array([[0.0, 0.0], [0.0, 1.0], [3.0, 0.0]])
    metric = np.diag([1.0, 0.0])
    assert nearest.certified_radius(x, [0, 1, 1], [[0.1, 0.0]], [0], 1, metric=metric)[0] == 0
    assert nearest.exact_radius(x, [0, 1, 1], [[0.1, 0.0]], [0], metric=metric).radius[0] == 0


def test_points_that_two_classes_share_lie_on_the_boundary():
    x, y = np.array([[0.0, 0.0], [1.0, 0.0], [1.0, 0.0], [3.0, 0.0]]), [0, 0, 1, 1]
    got = nearest.exact_radius(x, y, [[0.0, 0.0], [1.0, 0.0]], [0, 0])
    assert_allclose(got.radius, [0.5, 0.0], atol=1e-9)  # the cell of the shared point is a tie, and counts as broken
    assert list(got.ended) == ["solved", "misclassified"]


def bound_as_printed(x, y, z, c, k):
    s = (k + 1) // 2
    inner = []
    for j in range(len(x)):
        if y[j] == c:
            continue
        e = [
            max(np.sum((z - x[j]) ** 2) - np.sum((z - x[i]) ** 2), 0) / (2 * np.linalg.norm(x[j] - x[i]))
            for i in range(len(x))
            if y[i] == c
        ]
        inner.append(sorted(e, reverse=True)[s - 1])
    return sorted(inner)[s - 1]


@given(seeds, st.sampled_from([1, 3, 5, 7]))
@few
def test_the_bound_is_the_printed_formula(seed, k):
    x, y, z, c = blobs(seed, n=40, classes=2, inputs=3)
    got = nearest.certified_radius(x, y, z, c, k)
    assert_allclose(got, [bound_as_printed(x, y, *one, k) for one in zip(z, c, strict=True)], atol=1e-10)
    last = got
    for among in (20, 8, 4):
        looser = nearest.certified_radius(x, y, z, c, k, among=among)
        assert (looser <= last + 1e-12).all()
        last = looser


def votes(x, y, at, k):
    near = np.argsort(((at[:, None] - x) ** 2).sum(-1), axis=1)[:, :k]
    return np.stack([(y[near] == label).sum(1) for label in np.unique(y)], 1)


def enumerated(x, y, z, c):
    """K = 3 with two classes by all (I, J) of the print, each a general programme."""
    own, other = np.flatnonzero(y == c), np.flatnonzero(y != c)
    best = np.inf
    for spared in own:
        for pair in combinations(other, 2):
            kept = np.append(own[own != spared], pair)
            parts = [rows(x[kept], np.where(y[kept] == c, 0, 1), z, 0, int(np.flatnonzero(kept == j)[0])) for j in pair]
            best = min(best, shortest(np.vstack([a for a, _ in parts]), np.concatenate([b for _, b in parts])))
    return best


@pytest.mark.parametrize("seed", range(3))
def test_bounds_and_attacks_enclose_the_exact_radius_of_three_neighbours(seed):
    x, y, z, _ = blobs(seed, n=14, d=2, classes=2, inputs=2)
    c = votes(x, y, z, 3).argmax(1)
    exact = np.array([enumerated(x, y, *one) for one in zip(z, c, strict=True)])
    assert (nearest.certified_radius(x, y, z, c, 3) <= exact + 1e-6).all()
    for method in ("greedy", "naive", "mean"):
        assert (nearest.attack(x, y, z, c, 3, method=method).radius >= exact - 1e-6).all()


@given(seeds, st.sampled_from([3, 5]))
@few
def test_no_direction_flips_the_vote_within_the_bound(seed, k):
    x, y, z, _ = blobs(seed)
    c = votes(x, y, z, k).argmax(1)
    bound = nearest.certified_radius(x, y, z, c, k)
    way = np.random.default_rng(seed).normal(size=(50, *z.shape))
    way *= 0.999 * bound[:, None] / np.linalg.norm(way, axis=2, keepdims=True)
    held = bound > 0
    for at in z + way:
        assert (votes(x, y, at, k).argmax(1) == c)[held].all()
    for method in ("greedy", "naive", "mean"):
        assert (nearest.attack(x, y, z, c, k, method=method).radius >= bound - 1e-12).all()


@given(seeds)
@few
def test_one_neighbour_is_ordered_from_the_bound_to_the_naive_attack(seed):
    x, y, z, c = blobs(seed)
    exact = nearest.exact_radius(x, y, z, c).radius
    ten, one = (nearest.attack(x, y, z, c, top=top).radius for top in (10, 1))
    line, lines = (nearest.attack(x, y, z, c, method="naive", top=top).radius for top in (1, 10))
    ladder = [nearest.certified_radius(x, y, z, c, 1), exact, ten, one, line]
    for low, high in pairwise(ladder):
        assert (low <= high + 1e-9).all()
    assert (ten <= lines + 1e-9).all()
    for method in ("mean", "substitute"):
        assert (nearest.attack(x, y, z, c, method=method).radius >= exact - 1e-9).all()


@given(seeds, st.sampled_from([1, 3, 5]))
@few
def test_attacks_break_the_vote_for_real(seed, k):
    x, y, z, _ = blobs(seed, n=60)
    c = votes(x, y, z, k).argmax(1)
    judge = KNeighborsClassifier(k, algorithm="brute").fit(x, y)
    for method in ("greedy", "naive", "mean", "substitute")[: 4 if k == 1 else 3]:
        got = nearest.attack(x, y, z, c, k, method=method)
        done = got.ended == "solved"
        at = got.point + (1e-7 * (x[got.neighbour] - got.point) if method == "greedy" and k == 1 else 0)
        assert (judge.predict(at)[done] != c[done]).all()
        assert_allclose(np.linalg.norm(got.point - z, axis=1)[done], got.radius[done], atol=1e-9)
        assert (got.radius[got.ended == "unreachable"] == np.inf).all()
    assert (nearest.attack(x, y, z, c, k).ended != "unreachable").all()


def greedy_as_printed(x, y, z, c, turns):
    """Algorithm 6 for K = 3: I is the point next to z, J the pivot and the point of its class next to it."""
    line = np.argsort(((x - z) ** 2).sum(1))
    found = []
    for pivot in [j for j in line if y[j] != c][:turns]:
        kin = np.flatnonzero(y == y[pivot])
        near = kin[np.argsort(((x[kin] - x[pivot]) ** 2).sum(1))][:2]
        rest = [i for i in line if y[i] != y[pivot]][1:]
        kept = np.append(rest, near)
        label = np.append(np.zeros(len(rest)), np.ones(2))
        parts = [rows(x[kept], label, z, 0, len(rest) + n) for n in range(2)]
        found.append(shortest(np.vstack([a for a, _ in parts]), np.concatenate([b for _, b in parts])))
    return min(found)


@pytest.mark.parametrize("seed", range(4))
def test_greedy_solves_the_printed_programmes(seed):
    x, y, z, _ = blobs(seed, n=20, inputs=3)
    c = votes(x, y, z, 3).argmax(1)
    got = nearest.attack(x, y, z, c, 3, top=6)
    want = np.array([greedy_as_printed(x, y, *one, 6) for one in zip(z, c, strict=True)])
    seen = np.isfinite(want) & (got.ended == "solved")
    assert seen.any()
    assert_allclose(got.radius[seen], want[seen], atol=1e-5)


@given(seeds, st.sampled_from([1, 3]))
@few
def test_more_pivots_never_hurt_the_attacker(seed, k):
    x, y, z, _ = blobs(seed)
    c = votes(x, y, z, k).argmax(1)
    tried = [nearest.attack(x, y, z, c, k, top=top).radius for top in (1, 3, 10, 30)]
    for fewer, more in pairwise(tried):
        assert (more <= fewer + 1e-9).all()


def test_an_infeasible_choice_of_neighbours_is_noticed():
    """The two points of class 1 on either side are never the nearest two, so nothing is found in one turn."""
    x = np.array([[-3.0], [-0.1], [0.0], [0.1], [3.0]])
    space = open_space(x, [1, 0, 0, 0, 1], None, None)
    ((_, query),) = queries(space, *open_inputs(space, [[0.02]], [0]))
    solved = least_l2(Cell(space, query, np.array([3, 4]), space.own(0)), 1, tolerance=1e-9)
    assert solved.d is None
    assert solved.bound == np.inf


def test_few_votes_give_no_certificate_and_too_few_others_an_endless_one():
    x = np.array([[0.0], [1.0], [1.5], [2.0]])
    assert nearest.certified_radius(x, [0, 1, 1, 1], [[0.0]], [0], 3)[0] == 0  # one point can never have two votes
    assert nearest.certified_radius(x, [0, 0, 0, 1], [[0.0]], [0], 3)[0] == np.inf  # nor can the other
    # two of three neighbours are of class 0, yet the input stands where the second can be lost at once
    assert nearest.certified_radius([[-1.0], [1.0], [-1.0], [1.0]], [0, 0, 1, 1], [[0.0]], [0], 3)[0] == 0


def test_misclassified_inputs_have_radius_zero():
    got = nearest.exact_radius([[0.0], [1.0]], [0, 1], [[0.9], [0.5], [0.1]], [0, 0, 0])
    assert_allclose(got.radius, [0, 0, 0.4], atol=1e-12)
    assert list(got.ended) == ["misclassified", "misclassified", "solved"]
    assert_allclose(got.point[:2], [[0.9], [0.5]])
    assert list(got.programs) == [0, 0, 1]


def test_images_keep_their_shape_and_points_their_place():
    rng = np.random.default_rng(0)
    x, y = rng.random((20, 1, 2, 3)), rng.integers(0, 2, 20)
    got = nearest.exact_radius(x, y, x[:4] + 0.01, y[:4], box=(0, 2))
    assert got.point.shape == (4, 1, 2, 3)
    assert (y[got.neighbour] != y[:4]).all()


def test_close_points_lose_no_digits():
    """Two classes 1e-6 apart, far from the origin and from the rest."""
    x = np.array([[1000.0, 0.0], [1000.0 + 1e-6, 0.0], [0.0, 0.0], [0.0, 900.0]])
    got = nearest.exact_radius(x, [0, 1, 0, 1], [[1000.0, 0.3]], [0])
    assert got.radius[0] == pytest.approx(5e-7, rel=1e-3)


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"train_y": [0, 0, 0]}, AssayError, r"All 3 training points are of class \[0\]"),
        ({"y": [7]}, AssayError, r"No training point is of class \[7\]"),
        ({"train_y": [0, 1]}, ShapeError, r"train_y has shape \(2,\) for 3"),
        ({"y": [0, 1]}, ShapeError, r"y has shape \(2,\) for 1"),
        ({"x": [[0.0]]}, ShapeError, "1 features and train_x 2"),
        ({"x": [0.0, 0.0]}, ShapeError, "one row or more"),
        ({"x": [[0.0, np.nan]]}, AssayError, "x holds NaN or infinity in 1 rows, the first 0"),
        (
            {"train_x": [[0.0, 0], [1, np.inf], [2, 2]]},
            AssayError,
            "train_x holds NaN or infinity in 1 rows, the first 1",
        ),
        ({"metric": [[1.0, 0], [0, -0.5]]}, AssayError, "eigenvalues run from -0.5 to 1"),
        ({"metric": [[1.0, 1], [0, 1]]}, ShapeError, "symmetric"),
        ({"metric": np.eye(2), "factor": np.eye(2)}, AssayError, "give one of them"),
        ({"factor": np.eye(3)}, ShapeError, r"shape \(r, 2\)"),
        ({"box": (1, 0)}, AssayError, "lower 1 above upper 0"),
        ({"box": (0.5, 1)}, AssayError, "Input 0 lies outside the box"),
        ({"box": (np.zeros(3), 1)}, ShapeError, "one per feature"),
        ({"norm": 3}, AssayError, "choose 2, 1 or inf"),
        ({"screen": -1}, AssayError, "screen=-1"),
        ({"top": 0}, AssayError, "top=0"),
    ],
)
def test_bad_input_is_one_line(change, error, words):
    good = {"train_x": [[0.0, 0], [1, 1], [2, 2]], "train_y": [0, 1, 1], "x": [[0.0, 0.1]], "y": [0]}
    with pytest.raises(error, match=words) as told:
        nearest.exact_radius(**{**good, **change})
    assert "\n" not in str(told.value)


def test_votes_must_be_odd_and_methods_known():
    x, y = [[0.0], [1.0], [2.0]], [0, 1, 1]
    for k in (2, 0, -1):
        with pytest.raises(AssayError, match=f"K must be odd, .* got {k}"):
            nearest.certified_radius(x, y, [[0.0]], [0], k)
        with pytest.raises(AssayError, match="K must be odd"):
            nearest.attack(x, y, [[0.0]], [0], k)
    for work in (nearest.certified_radius, nearest.attack):
        with pytest.raises(AssayError, match="K is 5 and there are 3 training points"):
            work(x, y, [[0.0]], [0], 5)
    with pytest.raises(AssayError, match="no method 'brute'"):
        nearest.attack(x, y, [[0.0]], [0], method="brute")
    with pytest.raises(AssayError, match="substitute attacks K = 1 only"):
        nearest.attack(x, y, [[0.0]], [0], 3, method="substitute")
    with pytest.raises(AssayError, match="top must be 1 or more"):
        nearest.attack(x, y, [[0.0]], [0], method="naive", top=0)
    with pytest.raises(AssayError, match="among must be"):
        nearest.certified_radius(x, y, [[0.0]], [0], 1, among=0)


def test_points_of_two_classes_are_counted_to_the_bit():
    x = np.array([[0.0, 1.0], [2.0, 2.0], [0.0, 1.0], [2.0, 2.0], [2.0, 2.0], [0.0, 1.0 + 1e-12]])
    assert nearest.in_two_classes(x, ["a", "b", "c", "b", "b", "c"]).startswith("2 of 6 training points")
    assert "the first at 1:" in nearest.in_two_classes(x, [0, 1, 0, 0, 1, 0])
    assert nearest.in_two_classes(x, [0, 1, 0, 1, 1, 2]) == ""
