from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import Ridge
from torch import Tensor, nn
from torch.testing import assert_close

from assay.errors import AssayError, SubjectError
from assay.methods.explain import maps
from assay.methods.explain.gradcam import gradcam
from assay.methods.explain.groups import gather, patches
from assay.methods.explain.maps import METHODS, Attribution, Missed, explain, methods_for, missed, usual_groups
from assay.nn.text_classifier import TextClassifier


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def cnn(seed: int = 0) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        net = nn.Sequential(
            nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(36, 8), nn.ReLU(),
            nn.Linear(8, 3))  # fmt: skip
    return net.double().eval()


def images(n: int = 3, seed: int = 0) -> Tensor:
    return torch.rand(n, 2, 6, 6, generator=seeded(seed), dtype=torch.float64)


def linear(seed: int = 0, d: int = 5) -> nn.Linear:
    net = nn.Linear(d, 3).double().eval()
    with torch.no_grad():
        net.weight.copy_(torch.randn(3, d, generator=seeded(seed), dtype=torch.float64))
    return net


class Bumpy(nn.Module):
    """Products of columns: a game whose Shapley values are not those of a linear one. n 4 -> n 2"""

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([x[:, 0] * x[:, 1] + 3 * x[:, 2] * x[:, 3] * x[:, 0] - x[:, 2], x.sum(1)], 1)


def made(net: nn.Module, x: Tensor, method: str, **more: object) -> Attribution:
    return explain(net, x, 1, method, background=x + 0.1, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("method", METHODS)
def test_a_map_has_the_shape_of_its_input_and_leaves_the_model_as_it_was(method: str) -> None:
    net, x = cnn(), images()
    before = [p.clone() for p in net.parameters()]
    state = torch.get_rng_state()
    found = made(net, x, method, samples=20)
    assert found.values.shape == x.shape
    assert found.values.dtype == x.dtype
    assert not found.values.requires_grad
    assert not x.requires_grad
    assert all(p.grad is None and torch.equal(p, old) for p, old in zip(net.parameters(), before, strict=True))
    assert torch.equal(state, torch.get_rng_state())
    assert (found.gap is not None) == found.complete
    assert found.complete == (method in ("integrated-gradients", "expected-gradients", "kernel-shap"))
    if not found.signed:
        assert (found.values >= 0).all()


@pytest.mark.parametrize("method", METHODS)
def test_the_same_seed_gives_the_same_map_and_batches_do_not_matter(method: str) -> None:
    net, x = cnn(), images()
    whole = made(net, x, method, samples=20, batch=1000, rng=seeded(3)).values
    assert_close(made(net, x, method, samples=20, batch=1000, rng=seeded(3)).values, whole, rtol=0, atol=0)
    if method == "smoothgrad":  # draws its noise as it goes
        return
    assert_close(made(net, x, method, samples=20, batch=7, rng=seeded(3)).values, whole, rtol=1e-9, atol=1e-12)


def test_tables_and_embedded_texts_have_maps_too() -> None:
    table = linear()
    x = torch.rand(2, 5, dtype=torch.float64, generator=seeded(0))
    assert "gradcam" not in methods_for(table, x)
    assert "edges" not in methods_for(table, x)
    for method in methods_for(table, x):
        assert made(table, x, method).values.shape == x.shape
    with torch.random.fork_rng():
        torch.manual_seed(0)
        text = TextClassifier(20, 3, width=4).eval()
    words = text.embed(torch.tensor([[3, 4, 5, 6, 7], [9, 8, 7, 6, 5]])).detach()  # n L m
    for method in methods_for(text.classify, words):
        found = explain(text.classify, words, None, method, background=words.roll(1, 1), samples=20)
        assert found.values.shape == words.shape
    per_word = explain(text.classify, words, None, "occlusion").values
    assert_close(per_word, per_word[..., :1].expand_as(per_word))  # one value per word
    assert methods_for(cnn(), images()) == tuple(METHODS)


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10**6), base=st.floats(-1, 1))
def test_on_a_linear_model_all_complete_maps_are_weight_times_change(seed: int, base: float) -> None:
    net = linear(seed)
    x = torch.rand(3, 5, generator=seeded(seed), dtype=torch.float64)
    exact = net.weight[1].detach() * (x - base)
    background = torch.full((2, 5), base, dtype=torch.float64)
    for method in ("gradient-input", "integrated-gradients", "expected-gradients", "occlusion", "kernel-shap"):
        found = explain(net, x, 1, method, baseline=base, background=background)
        assert_close(found.values, exact, rtol=0, atol=1e-9)
        if found.gap is not None:
            assert_close(found.gap, torch.zeros(3, dtype=torch.float64), rtol=0, atol=1e-9)
    for method in ("gradient", "smoothgrad"):
        assert_close(explain(net, x, 1, method).values, net.weight[1].detach().expand(3, 5), rtol=0, atol=1e-12)


def test_the_gradient_is_the_finite_difference() -> None:
    net, x = cnn(), images(2)
    slope = explain(net, x, torch.tensor([2, 0]), "gradient").values
    for row, target in ((0, 2), (1, 0)):
        for place in ((0, 1, 2), (1, 5, 5)):
            step = torch.zeros_like(x[:1])
            step[(0, *place)] = 1e-6
            change = (net(x[row : row + 1] + step) - net(x[row : row + 1] - step))[0, target].detach() / 2e-6
            assert float(slope[(row, *place)]) == pytest.approx(float(change), abs=1e-7)


def test_integrated_gradients_close_their_gap_with_more_steps() -> None:
    net = nn.Sequential(nn.Linear(5, 20), nn.Tanh(), nn.Linear(20, 3)).double().eval()
    x = 3 * torch.randn(4, 5, generator=seeded(0), dtype=torch.float64)
    gaps = [explain(net, x, 0, "integrated-gradients", samples=k).gap for k in (3, 12, 60)]
    sizes = [float(gap.abs().max()) for gap in gaps if gap is not None]
    assert sizes[0] > 10 * sizes[1] > 100 * sizes[2]
    assert sizes[2] < 1e-9
    few = explain(net, x, 0, "integrated-gradients", samples=3)
    with torch.no_grad():
        missed = few.values.sum(1) - (net(x) - net(torch.zeros_like(x)))[:, 0]
    assert few.gap is not None
    assert_close(few.gap, missed)


def test_expected_gradients_come_near_to_the_mean_of_integrated_ones() -> None:
    net, x, background = cnn(), images(2), images(5, seed=9)
    exact = torch.stack(
        [explain(net, x, 1, "integrated-gradients", baseline=b, samples=100).values for b in background]
    ).mean(0)
    found = explain(net, x, 1, "expected-gradients", background=background, samples=2000)
    assert float((found.values - exact).abs().max()) < 0.02 * float(exact.abs().max())
    assert found.gap is not None
    assert float(found.gap.abs().max()) < 0.02 * float(exact.sum((1, 2, 3)).abs().max())


def test_smoothgrad_is_the_mean_of_noisy_gradients() -> None:
    net, x = cnn(), images(1)
    noise = torch.randn(40, 2, 6, 6, generator=seeded(5), dtype=torch.float64)
    sigma = 0.3 * (x.max() - x.min())
    naive = torch.stack([explain(net, x + sigma * one, 1, "gradient").values[0] for one in noise]).mean(0)
    found = explain(net, x, 1, "smoothgrad", samples=40, noise=0.3, rng=seeded(5), batch=40)
    assert_close(found.values[0], naive)
    assert_close(explain(net, x, 1, "smoothgrad", samples=3, noise=0).values, explain(net, x, 1, "gradient").values)


def test_gradcam_is_the_layers_map_made_larger() -> None:
    net, x = cnn(), images(2)
    heat = gradcam(net, x, "1", target=torch.tensor([1, 1])).heat()
    found = explain(net, x, 1, "gradcam").values  # the maps are as large as the input here
    assert_close(found, heat[:, None].expand_as(x))
    assert_close(explain(net, x, 1, "gradcam", layer="2").values[:, 0, 0, 0], _coarse(net, x)[:, 0, 0])


def _coarse(net: nn.Module, x: Tensor) -> Tensor:
    return gradcam(net, x, "2", target=torch.tensor([1, 1])).heat()  # a corner is its own under bilinear growth


def test_occlusion_is_one_feature_at_a_time() -> None:
    net, x = cnn(), images(2)
    groups = patches((2, 6, 6), 4)  # uneven: 16, 8, 8 and 4 pixels
    found = explain(net, x, 2, "occlusion", groups=groups, baseline=0.3).values
    with torch.no_grad():
        for label in range(4):
            without = torch.where(groups == label, 0.3, x)
            lost = (net(x) - net(without))[:, 2]
            assert_close(gather(found, groups)[:, label], lost)
            part = found[:, groups == label]
            assert_close(part, part[:, :1].expand_as(part))


def test_what_belongs_to_no_feature_stays_and_gets_nothing() -> None:
    net, x = cnn(), images(2)
    groups = patches((2, 6, 6), 3)
    groups[:, 4:, :] = -1
    shown = torch.where(groups >= 0, 0.0, x)  # the baseline that leaves it alone
    for method in ("occlusion", "lime", "kernel-shap", "rise"):
        found = explain(net, x, 0, method, groups=groups, samples=60)
        assert (found.values[:, groups == -1] == 0).all()
    whole = explain(net, x, 0, "kernel-shap", groups=groups, samples=60)
    with torch.no_grad():
        assert_close(whole.values.sum((1, 2, 3)), (net(x) - net(shown))[:, 0])


def shapley(value: dict[frozenset[int], float], k: int) -> list[float]:
    """The mean over all orders of what a player adds, as defined."""
    total = [0.0] * k
    for order in itertools.permutations(range(k)):
        for place, player in enumerate(order):
            total[player] += value[frozenset(order[: place + 1])] - value[frozenset(order[:place])]
    return [t / math.factorial(k) for t in total]


def test_kernel_shap_with_all_sets_is_shapleys_value() -> None:
    x = torch.tensor([[1.0, 2.0, -1.0, 0.5], [0.3, 0.2, 0.9, -2.0]], dtype=torch.float64)
    base = torch.tensor([0.5, -1.0, 0.2, 0.1], dtype=torch.float64)
    found = explain(Bumpy().eval(), x, 0, "kernel-shap", baseline=base)
    for row in range(2):
        value = {
            frozenset(s): float(
                Bumpy()(torch.where(torch.tensor([i in s for i in range(4)]), x[row], base)[None])[0, 0]
            )
            for size in range(5)
            for s in itertools.combinations(range(4), size)
        }
        assert_close(found.values[row], torch.tensor(shapley(value, 4), dtype=torch.float64), rtol=0, atol=1e-12)


def test_kernel_shap_from_draws_comes_near_and_is_complete_anyway() -> None:
    net, x = cnn(), images(2)
    groups = patches((2, 6, 6), 2)  # 9 features, 510 sets
    exact = explain(net, x, 1, "kernel-shap", groups=groups, samples=510)
    rough = explain(net, x, 1, "kernel-shap", groups=groups, samples=400)
    scale = float(exact.values.abs().max())
    assert 1e-6 * scale < float((rough.values - exact.values).abs().max()) < 0.1 * scale
    assert rough.gap is not None
    assert float(rough.gap.abs().max()) < 1e-12
    one = explain(net, x, 1, "kernel-shap", groups=torch.zeros(2, 6, 6, dtype=torch.long))
    with torch.no_grad():
        assert_close(one.values.sum((1, 2, 3)), (net(x) - net(torch.zeros_like(x)))[:, 1])


def test_sizes_of_drawn_sets_follow_shapleys_kernel() -> None:
    rng = seeded(0)
    sets, weight = maps.shapley_sets(12, 4000, lambda *shape: torch.rand(shape, generator=rng))
    assert len(sets) == len(weight) == 4000
    sizes = np.bincount(sets.sum(1).numpy(), minlength=13)[1:12] / 4000
    want = np.array([1 / (s * (12 - s)) for s in range(1, 12)])
    np.testing.assert_allclose(sizes, want / want.sum(), atol=0.02)
    assert_close(sets[:2000], ~sets[2000:])
    np.testing.assert_allclose(sets.double().mean(0).numpy(), 0.5)


def test_lime_is_weighted_ridge_regression() -> None:
    net, x = cnn(), images(2)
    groups = patches((2, 6, 6), 2)
    found = explain(net, x, 1, "lime", groups=groups, samples=70, rng=seeded(4))
    sets = torch.rand(70, 9, generator=seeded(4), dtype=torch.float64) < 0.5
    sets[0] = True
    cosine = sets.sum(1) / (math.sqrt(9) * sets.sum(1).clamp_min(1e-9).sqrt())
    near = torch.sqrt(torch.exp(-((1 - cosine.double()) ** 2) / 0.25**2))
    near = near / near.mean()  # so that the ridge does not depend on the kernel's height
    for row in range(2):
        with torch.no_grad():
            y = net(torch.where(sets[:, groups], x[row], 0.0))[:, 1]
        ridge = Ridge(alpha=1.0).fit(sets.numpy(), y.numpy(), sample_weight=near.numpy())
        np.testing.assert_allclose(gather(found.values, groups)[row].numpy(), ridge.coef_, rtol=1e-5, atol=1e-8)


def test_rise_is_the_mean_probability_while_an_entry_is_shown() -> None:
    x = torch.rand(2, 4, generator=seeded(0), dtype=torch.float64)
    net = linear(d=4)
    found = explain(net, x, 1, "rise", samples=300, rng=seeded(2)).values
    seen = torch.rand(300, 4, generator=seeded(2), dtype=torch.float64) < 0.5
    with torch.no_grad():
        for row in range(2):
            chance = net(seen * x[row]).softmax(1)[:, 1]
            for column in range(4):
                assert float(found[row, column]) == pytest.approx(float(chance[seen[:, column]].mean()), abs=1e-9)


def test_rises_masks_are_soft_half_open_and_shifted() -> None:
    rng = seeded(0)
    masks = maps.soft_masks(2000, 20, 28, lambda *shape: torch.rand(shape, generator=rng))
    assert masks.shape == (2000, 20, 28)
    assert ((masks >= 0) & (masks <= 1)).all()
    assert float((masks.mean(0) - 0.5).abs().max()) < 0.05
    assert ((masks > 0.01) & (masks < 0.99)).float().mean() > 0.2


def test_rise_finds_the_corner_that_matters() -> None:
    class Corner(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.stack([x[:, :, :7, :7].mean((1, 2, 3)) * 8, torch.full_like(x[:, 0, 0, 0], 2.0)], 1)

    found = explain(Corner().eval(), torch.ones(1, 1, 28, 28), 0, "rise").values[0, 0]
    assert float(found[:7, :7].min()) > float(found[14:, 14:].max())
    assert float(found[:7, :7].mean()) > float(found[14:, 14:].mean()) + 0.05


def test_edges_see_a_step_and_not_the_model() -> None:
    x = torch.zeros(1, 1, 6, 6, dtype=torch.float64)
    x[..., 3:] = 1
    want = torch.zeros(6, 6, dtype=torch.float64)
    want[:, 2:4] = 4  # 1 + 2 + 1 on both sides of the step
    assert_close(maps.edges(x)[0, 0], want)
    x = images()
    assert_close(explain(cnn(0), x, 0, "edges").values, explain(cnn(1), x, 2, "edges").values, rtol=0, atol=0)
    assert (maps.edges(torch.full((1, 3, 5, 5), 0.7)) < 1e-6).all()


def test_what_one_feature_is_by_default() -> None:
    assert int(usual_groups(torch.Size([1, 28, 28])).max()) == 48
    assert usual_groups(torch.Size([3, 2])).tolist() == [[0, 0], [1, 1], [2, 2]]
    assert usual_groups(torch.Size([4])).tolist() == [0, 1, 2, 3]


def test_captum_agrees() -> None:
    attr = pytest.importorskip("captum.attr")
    net, x = cnn(), images(2)
    groups = patches((2, 6, 6), 2)

    def ours(method: str, **more: object) -> Tensor:
        return explain(net, x, 1, method, **more).values  # type: ignore[arg-type]

    assert_close(ours("gradient"), attr.Saliency(net).attribute(x.clone(), target=1, abs=False))
    assert_close(ours("gradient-input"), attr.InputXGradient(net).attribute(x.clone(), target=1))
    theirs = attr.IntegratedGradients(net).attribute(x, 0.2, target=1, n_steps=30)
    assert_close(ours("integrated-gradients", baseline=0.2, samples=30), theirs, rtol=1e-5, atol=1e-7)
    lost = attr.FeatureAblation(net).attribute(x, 0.2, target=1, feature_mask=groups[None])
    assert_close(ours("occlusion", baseline=0.2, groups=groups) * 8, lost)
    sliding = attr.Occlusion(net).attribute(x, (2, 2, 2), strides=(2, 2, 2), baselines=0.2, target=1)
    assert_close(
        ours("occlusion", baseline=0.2, groups=groups) * 8, sliding.double(), rtol=0, atol=1e-6
    )  # float32 there
    with torch.random.fork_rng():
        torch.manual_seed(0)
        np.random.seed(0)  # noqa: NPY002 - captum draws from it
        cam = attr.LayerAttribution.interpolate(
            attr.LayerGradCam(net, net[1]).attribute(x, target=1, relu_attributions=True), (6, 6), "bilinear"
        )
        few = patches((2, 6, 6), 3)
        shap = attr.KernelShap(net).attribute(x[:1], target=1, feature_mask=few[None], n_samples=400)
        background = images(5, seed=9)
        expected = attr.GradientShap(net).attribute(x, background, n_samples=3000, stdevs=0.0, target=1)
    assert_close(ours("gradcam"), cam.expand_as(x))
    assert_close(
        gather(ours("kernel-shap", groups=few)[:1], few)[0],
        shap[0, 0, ::3, ::3].flatten().double(),
        rtol=2e-2,
        atol=2e-3,
    )
    mine = ours("expected-gradients", background=background, samples=2000)
    assert float((mine - expected).abs().max()) < 0.1 * float(mine.abs().max())


class Deaf(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.one_hot(x.flatten(1).argmax(1) % 3, 3).double()


@pytest.mark.parametrize("method", ["gradient", "integrated-gradients", "smoothgrad"])
def test_a_model_without_gradients_says_so_in_one_line(method: str) -> None:
    with pytest.raises(SubjectError, match="No gradient leads from the answers to the inputs; take .* occlusion"):
        explain(Deaf().eval(), images(), 0, method)
    assert explain(Deaf().eval(), images(), 0, "occlusion").values.shape == images().shape


def test_bad_input_gets_one_line() -> None:
    net, x = cnn(), images()
    cases: list[tuple[Callable[[], object], str]] = [
        (lambda: explain(net, x, 0, "integrated-gradient"), "no map 'integrated-gradient'; did you mean integrated-gr"),
        (lambda: explain(net, x, 0, "zzz"), "no map 'zzz'; choose one of gradient, "),
        (lambda: explain(net, x, 3, "gradient"), "There is no class 3; the model has 3, numbered from 0"),
        (lambda: explain(net, x, torch.tensor([0, -1, 2]), "rise"), "There is no class -1"),
        (lambda: explain(net, x, torch.tensor([0, 1]), "rise"), r"targets of shape \(2,\) .* for 3 inputs"),
        (lambda: explain(net, x, torch.zeros(3), "rise"), "type torch.float32"),
        (lambda: explain(net, x[:0], 0, "rise"), "at least one input"),
        (lambda: explain(net, x.long(), 0, "rise"), "wants float inputs, got torch.int64"),
        (lambda: explain(cnn().train(), x, 0, "rise"), r"training mode.*model.eval\(\)"),
        (lambda: explain(net, x, 0, "lime", samples=0), "samples and batch >= 1"),
        (lambda: explain(net, x, 0, "gradient-input", baseline=torch.zeros(5)), r"baseline of shape \(5,\)"),
        (lambda: explain(net, x, 0, "expected-gradients"), r"needs a background .* got None"),
        (lambda: explain(net, x, 0, "lime", groups=torch.zeros(2, 2)), r"grouping has shape \(2, 2\)"),
        (lambda: explain(linear(d=72), x.flatten(1), 0, "gradcam"), "gradcam needs a CNN"),
        (lambda: explain(nn.Sequential(nn.Flatten(), linear(d=72)).eval(), x, 0, "gradcam"), "no convolutional layer"),
        (lambda: explain(linear(d=72), x.flatten(1), 0, "edges"), "images n c h w"),
        (lambda: explain(linear(d=6), x, 0, "gradient"), r"answered \(3, 2, 6, 3\) to 3 inputs"),
        (lambda: explain(net, x * math.nan, 0, "gradient-input"), "The map gradient-input holds NaN or inf"),
    ]
    for call, words in cases:
        with pytest.raises(AssayError, match=words) as caught:
            call()
        assert "\n" not in str(caught.value)


def test_what_a_map_misses_is_told_on_a_scale_that_makes_sense() -> None:
    def told(values: list[float], gap: float) -> Missed:
        found = missed(
            Attribution(torch.tensor([values], dtype=torch.float64), True, True, torch.tensor([gap]).double())
        )
        assert found is not None
        return found

    plain = told([3.0, -1.0], 0.1)  # promised 1.9
    assert_close(plain.share, torch.tensor([0.1 / 1.9], dtype=torch.float64))
    assert not plain.near_zero
    assert plain.says() == "its values miss the score's difference of 1.9 by 0.1, 5.3 %"
    cancelled = told([3.0, -3.0 + 1e-9], 2e-7)  # 20,000 % of the difference, and nothing
    assert bool(cancelled.near_zero)
    assert float(cancelled.share) < 1e-6
    assert "near 0" in cancelled.says()
    assert "-1.99e-07 by 2e-07" in cancelled.says()
    assert float(told([3.0, -3.0], 1.0).share) > 0.1  # near 0, and still too much
    assert float(told([0.0, 0.0], 0.0).share) == 0  # nothing to miss
    assert float(told([0.0, 0.0], 0.5).share) == 1  # promised -0.5, gave nothing
    for unit in (1e-6, 1e6):
        assert_close(told([3.0 * unit, -unit], 0.1 * unit).share, plain.share)
    assert missed(Attribution(torch.ones(1, 2), True, False, None)) is None


def test_kernel_shap_adds_up_with_one_feature_one_class_or_no_difference() -> None:
    x = torch.rand(3, 6, generator=torch.Generator().manual_seed(0))
    for net, groups in (
        (nn.Linear(6, 1).eval(), None),
        (nn.Linear(6, 4).eval(), torch.zeros(6, dtype=torch.int64)),
        (nn.Linear(6, 4).eval(), None),
    ):
        lost = missed(explain(net, x, 0, "kernel-shap", groups=groups))
        assert lost is not None
        assert float(lost.share.max()) < 1e-4
    flat = nn.Linear(6, 2).eval()
    with torch.no_grad():
        flat.weight[0] = torch.tensor([1.0, -1.0, 2.0, -2.0, 0.5, -0.5])
    even = torch.full((1, 6), 0.7)  # its score is that of the baseline, whatever its features do
    lost = missed(explain(flat, even, 0, "kernel-shap"))
    assert lost is not None
    assert bool(lost.near_zero)
    assert float(lost.share) < 1e-4
