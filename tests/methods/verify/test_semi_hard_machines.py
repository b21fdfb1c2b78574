import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy.optimize import minimize, nnls
from scipy.stats import norm
from sklearn.datasets import make_moons
from sklearn.svm import SVC

from assay.errors import AssayError
from assay.methods.verify.fit import choose, fit_verifier, train
from assay.methods.verify.machine import refuse_equal
from assay.methods.verify.mahalanobis import mahalanobis
from assay.methods.verify.nonnegative_qp import Unbounded, nonnegative_qp
from assay.methods.verify.rates import equal_error_interval, equal_error_rate, exact_interval, rates, rule_of_three
from assay.methods.verify.semi_hard_svm import l2_svm, semi_hard_svm
from assay.methods.verify.sphere import radii, sphere
from assay.methods.verify.twin import twin
from assay.nn.kernel import CELLS, Kernel, usual_gamma
from assay.nn.verifier import GenuineHead, Verifier

RBF = Kernel("rbf", gamma=2.0)


def moons(n=120, noise=0.25, seed=0):
    x, c = make_moons(n, noise=noise, random_state=seed)
    return x, np.where(c == 1, 1.0, -1.0)


def gram(x, kernel=RBF):
    t = torch.as_tensor(x, dtype=torch.float64)
    return kernel(t, t).numpy()


@pytest.fixture(scope="module")
def toy():
    x, y = moons()
    return x, y, gram(x)


@pytest.mark.parametrize("kernel", [RBF, Kernel("linear"), Kernel("poly", degree=3)])
@pytest.mark.parametrize("lam", [1.0, 100.0])
@pytest.mark.parametrize("fit", [semi_hard_svm, sphere])
def test_no_training_impostor_is_let_in_and_slack_is_the_multiplier_over_lambda(fit, kernel, lam):
    x, y = moons()
    k = gram(x, kernel)
    m = fit(k, y, lam=lam)
    d = m.decide(k, np.diagonal(k))
    assert abs(d[y < 0].max() + 1) < 1e-8
    xi = np.maximum(0, 1 - d[y > 0])
    assert np.abs(xi - m.dual[y > 0] / lam).max() < 1e-8
    assert np.abs(xi - m.slack[y > 0]).max() < 1e-8
    assert not m.slack[y < 0].any()


@pytest.mark.parametrize("margin", [0, 1])
def test_each_support_vector_tells_the_same_radius(toy, margin):
    _, y, k = toy
    m = sphere(k, y, lam=10.0, margin=margin)
    each = radii(k, y, m, lam=10.0, margin=margin)
    centre = m.weight / 2
    assert np.ptp(each) < 1e-7
    assert abs(each.mean() - (m.bias + centre @ k @ centre)) < 1e-7
    assert m.decide(k, np.diagonal(k))[y < 0].max() == pytest.approx(-margin, abs=1e-8)
    if margin == 1:  # as print has it, without + y_i
        assert np.ptp(radii(k, y, m, lam=10.0, margin=0)) > 1


def test_a_sphere_in_a_constant_kernel_is_a_plane_with_a_price_on_its_bias():
    x, y = moons(14, seed=3)
    k, lam = gram(x), 5.0
    m = sphere(k, y, lam=lam)
    centre = m.weight / 2
    r2 = m.bias + centre @ k @ centre
    w, b = 2 * centre, r2 - centre @ k @ centre - 1
    assert np.allclose(k @ w + b, m.decide(k, np.diagonal(k)), atol=1e-10)

    def cost(v):
        return v[14] + v[:14] @ k @ v[:14] / 4 + lam / 2 * (v[15:] ** 2).sum()

    genuine = np.flatnonzero(y > 0)

    def room(v):
        slack = np.zeros(14)
        slack[genuine] = v[15:]
        return y * (k @ v[:14] + v[14]) - 1 + slack

    ours = np.concatenate([w, [b], m.slack[genuine]])
    start = np.concatenate([np.zeros(14), [-1.0], np.full(len(genuine), 2.0)])
    best = minimize(cost, start, constraints={"type": "ineq", "fun": room}, method="SLSQP", options={"maxiter": 500})
    assert room(ours).min() > -1e-8
    assert cost(ours) == pytest.approx(best.fun, rel=1e-4)
    assert cost(ours) <= best.fun + 1e-6


def test_a_large_lambda_is_the_hard_margin_and_a_small_one_rejects_all():
    x, y = moons(60, noise=0.05)
    k = gram(x)
    hard = semi_hard_svm(k, y, lam=math.inf)
    near = semi_hard_svm(k, y, lam=1e8)
    assert np.abs(hard.decide(k, np.diagonal(k)) - near.decide(k, np.diagonal(k))).max() < 1e-4
    libsvm = SVC(kernel="precomputed", C=1e6, tol=1e-8).fit(k, y)
    assert np.abs(libsvm.decision_function(k) - hard.decide(k, np.diagonal(k))).max() < 1e-2
    tiny = semi_hard_svm(k, y, lam=1e-6)
    assert (tiny.decide(k, np.diagonal(k))[y > 0] < 0).all()


@pytest.mark.parametrize("fit", [semi_hard_svm, sphere])
def test_slack_shrinks_as_lambda_grows(toy, fit):
    _, y, k = toy
    total = [(fit(k, y, lam=lam).slack ** 2).sum() for lam in (0.1, 1.0, 10.0, 100.0, 1e4)]
    assert all(b <= a + 1e-9 for a, b in pairwise(total))
    assert total[-1] < total[0]


def test_the_printed_dual_without_its_half_is_half_way_to_the_mean_side(toy):
    _, y, k = toy
    right, print_ = semi_hard_svm(k, y, lam=10.0), semi_hard_svm(k, y, lam=10.0, as_published=True)
    held = right.dual > 0
    d = right.decide(k, np.diagonal(k))
    assert np.allclose(print_.decide(k, np.diagonal(k)), (d + y[held].mean()) / 2, atol=1e-8)


def test_what_may_not_err_and_cannot_help_it_is_found_out():
    x = np.array([[0.0], [1.0], [2.0]])
    y = np.array([1.0, -1.0, 1.0])
    with pytest.raises(Unbounded, match="finite lambda"):
        semi_hard_svm(gram(x, Kernel("linear")), y, lam=math.inf)
    assert semi_hard_svm(gram(x, Kernel("linear")), y, lam=10.0).slack.sum() > 0


def test_equal_vectors_are_refused_and_the_machine_itself_rejects_both():
    x = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 0.0], [3.0, 1.0]])
    y = np.array([1.0, 1.0, -1.0, -1.0])
    with pytest.raises(AssayError, match=r"vectors 0 \(genuine\) and 2 \(impostor\) are equal"):
        refuse_equal(x, y)
    with pytest.raises(AssayError, match="are equal"):
        fit_verifier(torch.as_tensor(x), torch.as_tensor(y), kernel=RBF, lam=10.0)
    k = gram(x)
    d = semi_hard_svm(k, y, lam=10.0).decide(k, np.diagonal(k))
    assert d[0] == pytest.approx(-1, abs=1e-9)
    assert d[2] == pytest.approx(-1, abs=1e-9)
    with pytest.raises(Unbounded):
        semi_hard_svm(k, y, lam=math.inf)
    with pytest.raises(Unbounded, match="equals every impostor's"):
        semi_hard_svm(gram(x[[0, 2]]), y[[0, 2]], lam=math.inf)


@pytest.mark.parametrize(
    ("y", "lam", "says"),
    [
        ([1, 1, 1], 1.0, "is impostor"),
        ([-1, -1, -1], 1.0, "is genuine"),
        ([1, -1, 0], 1.0, "A side is 0"),
        ([1, -1, -1], 0.0, "lambda is 0"),
        ([1, -1, -1], -2.0, "lambda is -2"),
        ([1, -1, -1], math.nan, "lambda is nan"),
    ],
)
def test_bad_sides_and_prices_are_refused(y, lam, says):
    k = gram(np.arange(6.0).reshape(3, 2))
    for fit in (semi_hard_svm, sphere, l2_svm):
        with pytest.raises(AssayError, match=says):
            fit(k, np.array(y, float), lam=lam)


def test_a_twin_fits_the_genuine_to_zero_so_that_the_printed_threshold_rejects_most():
    lost, mild, let = [], [], []
    for seed in range(5):
        x, y = moons(150, seed=seed)
        k = gram(x)
        m = twin(k, y)
        d = m.decide(k, np.diagonal(k))
        assert d[y < 0].max() == pytest.approx(-1, abs=1e-6)
        lost.append((d[y > 0] <= 0).mean())
        mild.append((d[y > 0] <= -0.5).mean())
        let.append((d[y < 0] > -0.5).mean())
    assert np.mean(lost) > 0.5
    assert np.mean(mild) < np.mean(lost) - 0.25
    assert max(let) == 0
    with pytest.raises(AssayError, match="ridge is 0"):
        twin(k, y, ridge=0.0)


def test_a_twin_meets_the_conditions_of_its_problem():
    x, y = moons(40, seed=2)
    k, ridge = gram(x), 0.01
    m = twin(k, y, ridge=ridge)
    near, far = (np.column_stack([k[y == s], np.ones((y == s).sum())]) for s in (1, -1))
    z = np.append(m.weight, m.bias)
    assert np.allclose((near.T @ near + ridge * np.eye(len(z))) @ z, -far.T @ m.dual, atol=1e-7)
    assert m.dual.min() >= 0
    room = -1 - far @ z
    assert room.min() > -1e-7
    assert np.abs(room * m.dual).max() < 1e-6


def test_the_programme_agrees_with_nnls_and_meets_its_conditions():
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(30, 20)), rng.normal(size=30)
    ours = nonnegative_qp(a.T @ a, a.T @ b)
    assert np.abs(ours.a - nnls(a, b)[0]).max() < 1e-9
    x, y = moons(100)
    q = y[:, None] * gram(x) * y + np.diag((1 + y) / 20)
    found = nonnegative_qp(q, np.ones(100), y=y, start=(int(y.argmax()), int(y.argmin())))
    g = q @ found.a + y * found.mu - 1
    assert g.min() > -1e-9
    assert np.abs(g * found.a).max() < 1e-8
    assert abs(y @ found.a) < 1e-9


def test_an_l2_svm_forgives_impostors(toy):
    _, y, k = toy
    m = l2_svm(k, y, lam=1.0)
    d = m.decide(k, np.diagonal(k))
    assert np.abs(np.maximum(0, 1 - y * d) - m.dual).max() < 1e-8
    assert d[y < 0].max() > 0


def test_the_mahalanobis_threshold_lets_no_training_impostor_in():
    x, y = moons(60, noise=0.1)
    x = x + 3 * (y > 0)[:, None]
    d = mahalanobis(x, y).decide(x)
    assert d[y < 0].max() == pytest.approx(0, abs=1e-9)
    assert (d[y > 0] > 0).any()
    with pytest.raises(AssayError, match="at least 2 genuine"):
        mahalanobis(x[:3], np.array([1.0, -1.0, -1.0]))


def test_kernels_are_as_written_and_their_own_is_the_diagonal(monkeypatch):
    rng = torch.Generator().manual_seed(0)
    a, b = (torch.randn(7, 3, generator=rng, dtype=torch.float64) for _ in range(2))
    naive = {
        Kernel("linear"): lambda p, q: float(p @ q),
        Kernel("poly", degree=4): lambda p, q: float((p @ q + 1) ** 4),
        RBF: lambda p, q: math.exp(-2 * float((p - q).square().sum())),
    }
    for kernel, of in naive.items():
        want = torch.tensor([[of(p, q) for q in b] for p in a], dtype=torch.float64)
        torch.testing.assert_close(kernel(a, b), want)
        torch.testing.assert_close(kernel.own(a), kernel(a, a).diagonal())
    monkeypatch.setattr("assay.nn.kernel.CELLS", 14)  # two rows at a time
    torch.testing.assert_close(RBF(a, b), torch.exp(-2 * torch.cdist(a, b) ** 2))
    assert CELLS > 14
    with pytest.raises(AssayError, match="gamma must be above 0"):
        Kernel("rbf", gamma=0.0)
    assert usual_gamma(torch.tensor([[0.0], [2.0]])) == pytest.approx(0.25)


@pytest.mark.parametrize("machine", ["sh-svm", "sh-svdd", "sh-twsvm"])
def test_a_verifier_decides_as_its_machine_and_has_its_gradient(toy, machine):
    x, y, k = toy
    t = torch.as_tensor(x)
    v = fit_verifier(t, torch.as_tensor(y), machine=machine, kernel=RBF, lam=10.0, threshold=-0.5)
    want = train(machine, k, y, lam=10.0).decide(k, np.diagonal(k)) + 0.5
    assert np.abs(v(t).numpy() - want).max() < 1e-7
    at = t[:2].clone().requires_grad_()
    assert torch.autograd.gradcheck(v, (at,))


@pytest.mark.parametrize(
    ("x", "y", "settings", "says"),
    [
        (torch.zeros(4), torch.ones(4), {}, r"shape \(4,\) with sides"),
        (torch.eye(4), torch.ones(3), {}, r"sides of shape \(3,\)"),
        (torch.full((4, 2), math.nan), torch.tensor([1.0, 1, -1, -1]), {}, "vectors with NaN"),
        (torch.eye(4), torch.tensor([1.0, 1, -1, -1]), {"threshold": math.inf}, "threshold=inf"),
        (torch.eye(4), torch.tensor([1.0, 1, -1, -1]), {"machine": "svm"}, "no machine 'svm'; it is one of sh-svm"),
        (torch.eye(4), torch.tensor([1.0, 1, -1, -1]), {"machine": "sh-svdd", "margin": 2}, "margin of the sphere is"),
    ],
)
def test_what_no_verifier_can_be_had_of_is_said_in_one_line(x, y, settings, says):
    with pytest.raises(AssayError, match=says):
        fit_verifier(x, y, kernel=RBF, lam=1.0, **settings)


def test_a_genuine_head_answers_the_class_exactly_where_it_is_accepted():
    v = Verifier(torch.zeros(1, 2), torch.ones(1), -0.5, Kernel("rbf", gamma=1.0), own=False, threshold=0.0)
    head = GenuineHead(torch.nn.Linear(2, 4), v, 2)
    e = 2 * torch.randn(50, 2, generator=torch.Generator().manual_seed(1))
    z = head(e)
    assert torch.equal(z.argmax(1) == 2, v(e) > 0)
    others = [0, 1, 3]
    assert torch.equal(z[:, others], head.head(e)[:, others])


def test_cross_validation_prefers_what_tells_the_sides_apart():
    x, y = moons(90, noise=0.1)
    chosen = choose(x, y, machine="sh-svm", kernels=[Kernel("linear"), RBF], lams=[100.0], seed=0)
    assert chosen.kernel == RBF
    assert chosen.far + chosen.frr < 0.1
    chance = choose(x, np.random.default_rng(0).permutation(y), machine="sh-svm", kernels=[RBF], lams=[1e4], seed=0)
    assert chance.far + chance.frr > 0.5  # sides at random: what was learnt is not what is judged
    for threshold, side in ((1e6, "frr"), (-1e6, "far")):  # nobody gets in; everybody does
        all_err = choose(x, y, machine="sh-svm", kernels=[RBF], lams=[100.0], seed=0, threshold=threshold)
        assert getattr(all_err, side) == 1
    line = Kernel("linear")  # hard margins that no plane has are left out
    both = choose(*moons(60), machine="sh-svm", kernels=[line, RBF], lams=[math.inf, 1.0], seed=0)
    assert (both.kernel, both.lam) != (line, math.inf)
    with pytest.raises(AssayError, match="of 1 could be solved"):
        choose(*moons(60), machine="sh-svm", kernels=[line], lams=[math.inf], seed=0)
    with pytest.raises(AssayError, match="3 folds want"):
        choose(x[:4], np.array([1, 1, -1, -1.0]), machine="sh-svm", kernels=[RBF], lams=[1.0], seed=0)


def test_rates_intervals_and_the_rule_of_three():
    genuine, impostor = np.array([2.0, 1.0, -1.0]), np.array([-2.0, 0.5, -3.0, -1.0])
    r = rates(genuine, impostor, np.array([0.0, 0.5, 1.0]))  # at a score: nobody who has it is let in
    assert r.far.tolist() == [0.25, 0.0, 0.0]
    assert r.frr.tolist() == [pytest.approx(1 / 3), pytest.approx(1 / 3), pytest.approx(2 / 3)]
    assert equal_error_rate(genuine, impostor) == pytest.approx((1 / 3 + 1 / 4) / 2)
    assert equal_error_rate(np.array([1.0, 2.0]), np.array([-1.0, 0.0])) == 0
    low, high = exact_interval(0, 150)
    assert (float(low), float(high)) == (0.0, pytest.approx(1 - 0.025 ** (1 / 150)))
    assert rule_of_three(150) == pytest.approx(3 / 150, rel=0.02)
    low, high = exact_interval(3, 20)
    assert (float(low), float(high)) == (pytest.approx(0.0321, abs=1e-4), pytest.approx(0.3789, abs=1e-4))
    with pytest.raises(AssayError, match="0 genuine"):
        rates(np.zeros(0), impostor)
    with pytest.raises(AssayError, match="share of 4 of 3"):
        exact_interval(4, 3)


def test_the_interval_of_the_equal_error_rate_holds_that_of_two_normals():
    rng = np.random.default_rng(0)
    genuine, impostor = rng.normal(1, 1, 300), rng.normal(-1, 1, 300)
    low, high = equal_error_interval(genuine, impostor)
    truth, value = norm.cdf(-1), equal_error_rate(genuine, impostor)
    assert low < truth < high
    assert low < value < high
    assert 0.03 < high - low < 0.12  # of either rate 4 sqrt(0.16 x 0.84 / 300) = 0.085, and exact ones are wider
