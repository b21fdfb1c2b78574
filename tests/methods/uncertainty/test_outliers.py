from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2, kstest
from sklearn.covariance import EmpiricalCovariance
from sklearn.datasets import load_digits, make_moons
from sklearn.neighbors import NearestNeighbors
from torch import Tensor, nn
from torch.testing import assert_close

from assay.errors import AssayError, ShapeError, SubjectError
from assay.methods.uncertainty.activations import Seen, features, look, shown
from assay.methods.uncertainty.detection import auroc, fpr_at_tpr
from assay.methods.uncertainty.outliers import (
    AMBIGUOUS,
    SURE,
    UNFAMILIAR,
    Energy,
    Mahalanobis,
    MaxSoftmax,
    Neighbours,
    Odin,
    OutlierScore,
    SoftRmaxTail,
    Vim,
    along_rays,
)
from assay.nn.softrmax import SoftRmax, softrmax
from assay.nn.student_head import log_student


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def as_seen(logits: Tensor | None = None, features: Tensor | None = None) -> Seen:
    n = len(logits if logits is not None else features if features is not None else [])
    nothing = torch.zeros(n, 2, dtype=torch.float64)
    return Seen(nothing, nothing if logits is None else logits, nothing if features is None else features)


def train(model: nn.Module, x: Tensor, y: Tensor, *, epochs: int = 15, lr: float = 5e-3) -> nn.Module:
    rng = torch.Generator().manual_seed(1)
    adam = torch.optim.Adam(model.parameters(), lr)
    for _ in range(epochs):
        for rows in torch.split(torch.randperm(len(x), generator=rng), 100):
            adam.zero_grad()
            torch.autograd.backward(nn.functional.cross_entropy(model(x[rows]), y[rows]))
            adam.step()
    adam.zero_grad()
    return model.eval()


def mlp(wide: int, classes: int, *head: nn.Module) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        body = [nn.Linear(wide, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, classes)]
    return nn.Sequential(*body, *head)


def last(model: nn.Module) -> nn.Linear:
    linear = model.get_submodule("4")
    assert isinstance(linear, nn.Linear)
    return linear


class Digits(NamedTuple):
    softmax: nn.Module
    softrmax: nn.Module
    x: Tensor
    y: Tensor
    new: Tensor
    near: Tensor  # digits of a class that training never saw
    noise: Tensor


@pytest.fixture(scope="module")
def digits() -> Digits:
    pixels, labels = load_digits(return_X_y=True)
    rng = torch.Generator().manual_seed(0)
    order = torch.randperm(len(pixels), generator=rng)
    x, y = torch.tensor(pixels / 16, dtype=torch.float32)[order], torch.tensor(labels)[order]
    known = y < 9
    x, y, near = x[known], y[known], x[~known]
    a = train(mlp(64, 9), x[:1100], y[:1100])
    b = train(mlp(64, 9, SoftRmax()), x[:1100], y[:1100])
    return Digits(a, b, x[:1100], y[:1100], x[1100:], near, torch.rand(400, 64, generator=rng))


def test_the_largest_softmax_probability_without_ties() -> None:
    z = 3 * draw(50, 4)
    assert_close(MaxSoftmax().score(as_seen(z)).exp(), z.softmax(1).amax(1))
    sure = torch.tensor([[60.0, 0.0], [90.0, 0.0], [500.0, 0.0]])
    assert (sure.double().softmax(1).amax(1) == 1).all()
    assert (MaxSoftmax().score(as_seen(sure)).diff() > 0).all()  # still in order where softmax is 1 in float64


def test_energy_is_the_free_energy() -> None:
    z = draw(40, 5)
    want = torch.tensor([2 * math.log(sum(math.exp(v / 2) for v in row)) for row in z.tolist()], dtype=torch.float64)
    assert_close(Energy.fit(as_seen(z), torch.zeros(40), temperature=2.0).score(as_seen(z)), want)
    assert_close(Energy().score(as_seen(z + 7)), Energy().score(as_seen(z)) + 7)  # sees the level, softmax does not
    assert_close(MaxSoftmax().score(as_seen(z + 7)), MaxSoftmax().score(as_seen(z)))


def test_odin_on_a_linear_model_is_the_closed_form() -> None:
    model = nn.Linear(6, 3).double()
    with torch.no_grad():
        model.weight.copy_(draw(3, 6, seed=1))
    x, w, b, eps, t = draw(20, 6, seed=2), model.weight.detach(), model.bias.detach(), 0.05, 10.0
    want = []
    for row in x:
        p = ((w @ row + b) / t).softmax(0)
        way = (w[p.argmax()] - p @ w).sign()  # the gradient of log max softmax is this over t
        want.append(((w @ (row + eps * way) + b) / t).softmax(0).amax())
    odin = Odin.fit(as_seen(x), torch.zeros(20), model=model, temperature=t, eps=eps)
    assert_close(odin.score(Seen(x, x, x)).exp(), torch.stack(want), rtol=1e-12, atol=0)
    still = Odin(model, temperature=1.0, eps=0.0)
    assert_close(still.score(Seen(x, x, x)), MaxSoftmax().score(as_seen(model(x))))  # no step, no temperature
    assert_close(Odin(model, t, eps, batch=7).score(Seen(x, x, x)), odin.score(Seen(x, x, x)))
    assert all(p.grad is None for p in model.parameters())
    assert not x.requires_grad


def test_odin_keeps_its_digits_at_temperature_1000() -> None:
    model = nn.Linear(6, 3)
    with torch.no_grad():
        model.weight.copy_(draw(3, 6, seed=1))
    x = draw(200, 6).float()
    scores = Odin(model).score(Seen(x, x, x))
    assert len(torch.unique(scores)) == 200  # in float32 all of these would be near 1/3 and many of them equal


def test_mahalanobis_of_gaussians() -> None:
    rng = torch.Generator().manual_seed(0)
    means = 5 * torch.randn(3, 4, generator=rng, dtype=torch.float64)
    root = torch.randn(4, 4, generator=rng, dtype=torch.float64)
    y = torch.randint(0, 3, (6000,), generator=rng)
    x = means[y] + torch.randn(6000, 4, generator=rng, dtype=torch.float64) @ root.T
    fitted = Mahalanobis.fit(as_seen(features=x), y)
    centred = x - torch.stack([x[y == c].mean(0) for c in range(3)])[y]
    tied = EmpiricalCovariance(assume_centered=True).fit(centred.numpy())
    apart = [tied.mahalanobis((x - x[y == c].mean(0)).numpy()) for c in range(3)]
    assert_close(fitted.score(as_seen(features=x)), -torch.tensor(np.min(apart, 0)), rtol=1e-8, atol=1e-8)
    own = -fitted.score(as_seen(features=means[:1] + draw(4000, 4, seed=9) @ root.T))
    assert kstest(own.numpy(), chi2(4).cdf).statistic < 0.04  # squared distances of a Gaussian: chi squared


@settings(deadline=None, max_examples=10)
@given(seed=st.integers(0, 1000))
def test_mahalanobis_does_not_depend_on_the_coordinates(seed: int) -> None:
    x, y, turn = draw(60, 5, seed=seed), torch.arange(60) % 3, draw(5, 5, seed=seed + 1) + 3 * torch.eye(5)
    plain = Mahalanobis.fit(as_seen(features=x), y)
    turned = Mahalanobis.fit(as_seen(features=x @ turn + 7), y)
    new = 3 * draw(20, 5, seed=seed + 2)
    want = plain.score(as_seen(features=new))
    assert_close(turned.score(as_seen(features=new @ turn + 7)), want, rtol=1e-6, atol=1e-6)


def test_mahalanobis_leaves_out_what_never_varies() -> None:
    x, y = draw(60, 5), torch.arange(60) % 3
    dead = torch.cat((x, torch.zeros(60, 2, dtype=torch.float64)), 1)
    fitted = Mahalanobis.fit(as_seen(features=dead), y)
    want = Mahalanobis.fit(as_seen(features=x), y).score(as_seen(features=x))
    assert_close(fitted.score(as_seen(features=dead)), want)
    dead[:, 5] = 1e6
    assert_close(fitted.score(as_seen(features=dead)), want)  # not seen: must be known, not hidden


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_neighbours_are_scikit_learns(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype) -> None:
    x, new = draw(300, 8).to(dtype), draw(50, 8, seed=1).to(dtype)
    labels, seen = torch.zeros(300), as_seen(features=new)
    unit = nn.functional.normalize
    away, _ = NearestNeighbors(n_neighbors=7, algorithm="brute").fit(unit(x.double())).kneighbors(unit(new.double()))
    found = Neighbours.fit(as_seen(features=x), labels, k=7).score(seen)
    assert_close(found, -torch.tensor(away[:, -1]), rtol=1e-5, atol=1e-6)
    own = Neighbours.fit(as_seen(features=x), labels, k=1).score(as_seen(features=x))
    assert (own == 0).all()  # each training input is its own nearest, exactly
    scaled = Neighbours.fit(as_seen(features=10 * x), labels, k=7).score(as_seen(features=0.1 * new))
    assert_close(scaled, found, rtol=1e-5, atol=1e-6)  # directions only
    monkeypatch.setattr("assay.methods.uncertainty.outliers.CELLS", 900)  # three inputs at a time
    assert_close(Neighbours.fit(as_seen(features=x), labels, k=7).score(seen), found)


def test_vim_is_that_of_print() -> None:
    f, new, head = draw(200, 6), draw(30, 6, seed=1), nn.Linear(6, 3).double()
    with torch.no_grad():
        head.weight.copy_(draw(3, 6, seed=2))
        head.bias.copy_(draw(3, seed=3))
    w, b = head.weight.detach(), head.bias.detach()
    fitted = Vim.fit(as_seen(features=f), torch.zeros(200), head=head, dim=4)
    origin = -np.linalg.pinv(w.numpy()) @ b.numpy()
    around = f.numpy() - origin
    values, axes = np.linalg.eigh(np.cov(around.T, bias=True) + np.outer(around.mean(0), around.mean(0)))
    rest = axes[:, np.argsort(values)[:2]]
    alpha = head(f).amax(1).detach().mean().item() / np.linalg.norm(around @ rest, axis=1).mean()
    virtual = torch.tensor(alpha * np.linalg.norm((new.numpy() - origin) @ rest, axis=1))
    p = torch.cat((head(new).detach(), virtual[:, None]), 1).softmax(1)[:, -1]  # the printed score, high = outlier
    found = fitted.score(as_seen(features=new))
    assert_close(found, (1 - p).log() - p.log(), rtol=1e-8, atol=1e-8)
    unseen = torch.linalg.svd(w).Vh[3:].T  # f 3: directions that the logits do not show
    off = new + 50 * (
        unseen @ torch.linalg.svd(torch.tensor(rest).T @ unseen).Vh[0]
    )  # the one furthest out of the rest
    assert_close(head(off), head(new))
    assert (fitted.score(as_seen(features=off)) < found).all()
    with pytest.raises(AssayError, match="Vim got dim=6 for 6 features"):
        Vim.fit(as_seen(features=f), torch.zeros(200), head=head, dim=6)
    flat = torch.cat((f[:, :3], torch.zeros(200, 3, dtype=torch.float64)), 1)
    bare, down = nn.Linear(6, 3, bias=False).double(), nn.Linear(6, 3).double()
    with torch.no_grad():
        down.weight.copy_(-draw(3, 6, seed=4).abs())
        down.bias.fill_(-1)
    with pytest.raises(AssayError, match="largest logit is -"):
        Vim.fit(as_seen(features=f.abs()), torch.zeros(200), head=down, dim=3)
    with pytest.raises(AssayError, match="nothing left over"):
        Vim.fit(as_seen(features=flat), torch.zeros(200), head=bare, dim=3)


@pytest.mark.parametrize("power", [0.5, 1.0, 4.0])
def test_softrmax_is_one_over_k_far_out_where_softmax_is_one(power: float) -> None:
    k, directions = 5, draw(30, 5)
    tail = SoftRmaxTail(0.0, 1.0, power=power)
    t = torch.logspace(0, 7, 15, dtype=torch.float64)
    start = torch.zeros(5, dtype=torch.float64)
    ours = along_rays(lambda z: tail.score(as_seen(z)).exp(), start, directions, t)
    theirs = along_rays(lambda z: MaxSoftmax().score(as_seen(z)).exp(), start, directions, t)
    assert_close(ours[:, -1], torch.full((30,), 1 / k, dtype=torch.float64), rtol=0, atol=1e-6)
    assert_close(theirs[:, -1], torch.ones(30, dtype=torch.float64))
    worst = ours.amax(0)  # at each distance the direction that stays surest
    assert (worst[2:].diff() < 0).all()  # past ||z|| = 1 even this one falls


def test_a_ray_through_a_class_rises_to_its_peak_at_length_one_and_falls() -> None:
    t = torch.linspace(0.1, 5, 50, dtype=torch.float64)
    e = torch.eye(4, dtype=torch.float64)
    curve = along_rays(lambda z: SoftRmaxTail(0.0, 1.0).score(as_seen(z)), torch.zeros_like(e[0]), 3 * e, t)
    peak = curve.argmax(1)
    assert_close(t[peak], torch.ones(4, dtype=torch.float64))
    assert (curve[0, : peak[0] + 1].diff() > 0).all()
    assert (curve[0, peak[0] :].diff() < 0).all()


def test_a_larger_power_is_sharper_and_returns_more_slowly() -> None:
    e = torch.eye(4, dtype=torch.float64)[:1]
    scores = [SoftRmaxTail(0.0, 1.0, power=q).score(as_seen(torch.cat((1.3 * e, 50 * e)))).exp() for q in (1, 2, 4)]
    near, far = torch.stack(scores).T
    assert (near.diff() > 0).all()
    assert (far.diff() > 0).all()  # against the remark in print that a larger power drops faster
    assert_close((far - 0.25) / (far[0] - 0.25), torch.tensor([1.0, 2.0, 4.0]).double(), rtol=0.1, atol=0)


def test_the_three_softrmax_scores_agree_at_the_ends() -> None:
    k, e = 4, torch.eye(4, dtype=torch.float64)
    z = torch.cat((e, 0 * e[:1], 1e6 * (e[:1] + e[1:2])))
    by = {name: SoftRmaxTail(0.0, 1.0, by=name).score(as_seen(z)) for name in ("posterior", "entropy", "distance")}
    assert_close(by["posterior"][:4].exp(), torch.ones(4, dtype=torch.float64), rtol=0, atol=1e-6)
    assert_close(by["entropy"][:4], torch.ones(4, dtype=torch.float64), rtol=0, atol=1e-5)
    assert (by["distance"][:4] == 0).all()
    assert_close(by["posterior"][4:].exp(), torch.full((2,), 1 / k, dtype=torch.float64), rtol=0, atol=1e-5)
    assert_close(by["entropy"][4:], torch.zeros(2, dtype=torch.float64), rtol=0, atol=1e-5)
    pixels = 4 * draw(2, 3, 5, k)  # a segmentation: the posterior of every pixel is that of its logits alone
    rows = SoftRmaxTail(0.0, 1.0).score(as_seen(pixels.reshape(-1, k)))
    assert_close(softrmax(pixels).amax(-1), rows.exp().reshape(2, 3, 5))


def test_a_flat_posterior_is_ambiguous_between_classes_and_unfamiliar_in_the_tail() -> None:
    e = torch.eye(3, dtype=torch.float64)
    training = e.repeat(40, 1) + 0.05 * draw(120, 3)
    fitted = SoftRmaxTail.fit(as_seen(training), torch.arange(3).repeat(40))
    cases = torch.stack((e[0], (e[0] + e[1]) / 2, e.mean(0), 0 * e[0], 30 * (e[0] + e[1]), -9 * e[2]))
    want = [SURE, AMBIGUOUS, AMBIGUOUS, UNFAMILIAR, UNFAMILIAR, UNFAMILIAR]
    assert fitted.cause(as_seen(cases)).tolist() == want
    assert int((fitted.cause(as_seen(training)) == SURE).sum()) == 114  # 95 % of 120
    hull = torch.rand(500, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    hull = hull / hull.sum(1, keepdim=True)
    assert (fitted.cause(as_seen(hull)) != UNFAMILIAR).all()  # nothing between the classes is


def test_a_t_density_has_the_same_causes_and_its_own_posterior() -> None:
    e = torch.eye(3, dtype=torch.float64)
    training = e.repeat(40, 1) + 0.05 * draw(120, 3)
    fitted = SoftRmaxTail.fit(as_seen(training), torch.arange(3).repeat(40), nu=0.1)
    cases = torch.stack((e[0], (e[0] + e[1]) / 2, 30 * (e[0] + e[1])))
    assert fitted.cause(as_seen(cases)).tolist() == [SURE, AMBIGUOUS, UNFAMILIAR]
    assert_close(fitted.score(as_seen(cases)), log_student(cases, nu=0.1).amax(1))


def test_what_a_network_ignores_no_score_can_see() -> None:
    x, y = draw(300, 4).float(), torch.arange(300) % 3
    model = mlp(4, 3).eval()
    with torch.no_grad():
        model.get_parameter("0.weight")[:, 3] = 0  # the fourth number is ignored
    moved = x.clone()
    moved[:, 3] += 1e6
    seen, after = look(model, x, "3"), look(model, moved, "3")
    fits: list[OutlierScore] = [
        MaxSoftmax.fit(seen, y),
        Energy.fit(seen, y),
        Mahalanobis.fit(seen, y),
        Neighbours.fit(seen, y, k=5),
        Vim.fit(seen, y, head=last(model)),
        SoftRmaxTail.fit(seen, y),
    ]
    for fitted in fits:
        assert_close(fitted.score(after), fitted.score(seen))


def test_scores_find_noise_and_a_held_out_class(digits: Digits) -> None:
    model = digits.softmax
    seen = [look(model, x, "4", entering=True) for x in (digits.x, digits.new, digits.near, digits.noise)]
    scores: tuple[OutlierScore, ...] = (
        MaxSoftmax.fit(seen[0], digits.y),
        Energy.fit(seen[0], digits.y),
        Odin.fit(seen[0], digits.y, model=model),
        Mahalanobis.fit(seen[0], digits.y),
        Neighbours.fit(seen[0], digits.y),
        Vim.fit(seen[0], digits.y, head=last(model)),
    )
    for fitted in scores:
        new, near, noise = (fitted.score(s) for s in seen[1:])
        assert new.shape == (len(digits.new),)
        assert auroc(new, near) > 0.7, fitted  # the held-out digit
        assert auroc(new, noise) > 0.8, fitted


def test_softrmax_gains_much_far_away_and_little_nearby(digits: Digits) -> None:
    far, near, level = {}, {}, {}
    for name, model in (("softmax", digits.softmax), ("softrmax", digits.softrmax)):
        score = {what: MaxSoftmax().score(look(model, x, "4")) for what, x in digits._asdict().items() if what in KINDS}
        score["far"] = MaxSoftmax().score(look(model, 1000 * digits.new, "4"))
        far[name], near[name] = auroc(score["new"], score["noise"]), auroc(score["new"], score["near"])
        level[name] = float(score["far"].exp().mean())
    assert level["softmax"] > 0.99
    assert level["softrmax"] < 0.2  # 1/9 and a little
    assert far["softrmax"] > 0.95
    assert far["softrmax"] - far["softmax"] > near["softrmax"] - near["softmax"]
    z = [look(digits.softrmax, x, "4").features for x in (digits.x, digits.new, 1000 * digits.new)]
    tail = SoftRmaxTail.fit(as_seen(z[0]), digits.y)
    assert (tail.cause(as_seen(z[2])) == UNFAMILIAR).double().mean() > 0.95
    assert (tail.cause(as_seen(z[1])) == SURE).double().mean() > 0.75
    assert fpr_at_tpr(tail.score(as_seen(z[1])), tail.score(as_seen(z[2]))) < 0.2
    log_p = look(digits.softrmax, digits.new, "4")
    assert_close(MaxSoftmax().score(log_p), tail.score(as_seen(z[1])), rtol=1e-4, atol=1e-4)  # the head's own answer


KINDS = ("new", "near", "noise")


def test_two_moons_are_confident_around_the_data_only() -> None:
    x, y = make_moons(400, noise=0.1, random_state=0)
    x, y = torch.tensor(x, dtype=torch.float32), torch.tensor(y)
    models = {head: train(mlp(2, 2, *tops), x, y, epochs=40) for head, tops in (("r", [SoftRmax()]), ("e", []))}
    angle = torch.arange(0, 2 * math.pi, 0.1)
    ring = 100 * torch.stack((angle.cos(), angle.sin()), 1)
    for head, model in models.items():
        inside, outside = (MaxSoftmax().score(look(model, at, "4")).exp() for at in (x, ring))
        assert inside.mean() > 0.9
        assert outside.mean() < 0.6 if head == "r" else outside.mean() > 0.95


def test_features_come_from_the_named_module_and_nothing_stays_behind() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(8, 3)).eval()
    x = draw(10, 1, 4, 4).float()
    with torch.no_grad():
        want = model[0](x)
    found = features(model, x, "0", batch=4)
    assert_close(found, want)  # before the ReLU that writes in place
    assert (found < 0).any()
    assert_close(features(model, x, "3", entering=True), want.relu().flatten(1))
    seen = look(model, x, "0", batch=3)
    assert seen.features.shape == (10, 8)
    assert_close(seen.logits, model(x).detach())
    assert not seen.features.requires_grad
    assert all(not m._forward_hooks for m in model.modules())
    assert all(p.grad is None for p in model.parameters())


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.unused, self.pair = nn.Linear(4, 4), nn.Linear(4, 4), Pair()

    def forward(self, x: Tensor) -> Tensor:
        self.pair(x)
        twice: Tensor = self.one(self.one(x))
        return twice


class Pair(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x, x


def test_bad_input_gets_one_line() -> None:
    model, x, y = Twice().eval(), torch.rand(5, 4), torch.tensor([0, 1, 0, 1, 0])
    for layer, words in (
        ("one", "ran 2 times"),
        ("unused", "ran 0 times"),
        ("ones", "no module 'ones'; did you mean one"),
    ):
        with pytest.raises(AssayError, match=words):
            features(model, x, layer)
    with pytest.raises(SubjectError, match="gave tuple for 5 inputs"):
        features(model, x, "pair")
    with pytest.raises(AssayError, match="no inputs"):
        look(model, x[:0], "one")
    with pytest.raises(AssayError, match="training mode"):
        shown(model.train(), x, ["one"])
    assert all(not m._forward_hooks for m in model.modules())
    bad = x.clone()
    bad[2, 1] = math.nan
    for fitted in (MaxSoftmax(), Energy(), SoftRmaxTail(0.0, 1.0)):
        with pytest.raises(AssayError, match="Row 2 of the logits holds NaN"):
            fitted.score(as_seen(bad))
    with pytest.raises(AssayError, match="Row 2 of the features holds NaN"):
        Mahalanobis.fit(as_seen(features=bad), y)
    with pytest.raises(AssayError, match="All 5 training inputs are of class 0"):
        Mahalanobis.fit(as_seen(features=x), 0 * y)
    with pytest.raises(ShapeError, match=r"labels of shape \(4,\) for 5 inputs"):
        Mahalanobis.fit(as_seen(features=x), y[:4])
    with pytest.raises(AssayError, match="do not vary within any class"):
        Mahalanobis.fit(as_seen(features=y[:, None].expand(5, 2).float()), y)
    with pytest.raises(AssayError, match="k=50 with 5 training inputs"):
        Neighbours.fit(as_seen(features=x), y)
    with pytest.raises(ShapeError, match="3 features for each input where 4 were fitted"):
        Neighbours.fit(as_seen(features=x), y, k=1).score(as_seen(features=x[:, :3]))
    with pytest.raises(ShapeError, match=r"logits of shape \(5, 1\)"):
        MaxSoftmax().score(as_seen(x[:, :1]))
    with pytest.raises(AssayError, match="temperature=0"):
        Energy.fit(as_seen(x), y, temperature=0)
    with pytest.raises(AssayError, match="log-probabilities"):
        Energy().score(as_seen(x.log_softmax(1)))
    with pytest.raises(AssayError, match="eps=-1"):
        Odin.fit(as_seen(x), y, model=model, eps=-1)
    with pytest.raises(AssayError, match="by='margin'"):
        SoftRmaxTail.fit(as_seen(x), y, by="margin")  # type: ignore[arg-type]
