"""How steep: exact where the truth is known, an interval that holds where it is not, and open about what it left."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from assay.data.arrays import Arrays
from assay.errors import AssayError
from assay.finding import Curve, Histogram
from assay.methods.certify.layers import layers
from assay.probe import put
from assay.probes.proved import how_steep
from assay.probes.proved.how_steep import HEADLINE, HowSteep, _norm
from assay.subject import Subject


def ask(subject, run, **settings):
    answer = put(HowSteep(**settings), subject, run)
    assert answer.finding is not None, answer.why
    return answer.finding


def subject_of(model, x, y=None, bounds=(0.0, 1.0)):
    labels = model(x).argmax(1) if y is None else y
    return Subject.classifier(model.eval(), (x, labels.detach()), name="net", bounds=bounds)


def net(*widths, seed=0):
    torch.manual_seed(seed)
    parts = []
    for a, b in itertools.pairwise(widths):
        parts += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*parts[:-1])


def points(n, *shape, seed=1):
    return torch.rand(n, *shape, generator=torch.Generator().manual_seed(seed)) * 0.8 + 0.1


def test_of_a_linear_model_the_constant_is_the_spectral_norm_and_the_radius_margin_over_length(run):
    model = net(6, 3)
    x = points(9, 6)
    y = model(x).argmax(1)
    y[0] = (y[0] + 1) % 3  # one wrong input
    finding = ask(subject_of(model, x, y), run, reach=0.05, inputs=9)
    columns, w = finding.samples.columns, model[0].weight.detach().double()
    spectral = float(torch.linalg.matrix_norm(w, ord=2))
    for name in ("lower", "upper", "first", "gradient"):
        np.testing.assert_allclose(columns[name], spectral, rtol=1e-6)
    assert {b.label: b.value for b in finding.measure().beside}["product of norms"] == pytest.approx(spectral)
    z = model(x).detach().double()
    for i in range(9):
        best, *others = z[i].argsort(descending=True).tolist()
        radius = {
            "l2": min(float((z[i, best] - z[i, j]) / (w[best] - w[j]).norm()) for j in others),
            "linf": min(float((z[i, best] - z[i, j]) / (w[best] - w[j]).abs().sum()) for j in others),
        }
        assert columns["margin upper"][i] == pytest.approx(float((w[best] - w[others[0]]).norm()), rel=1e-6)
        assert columns["radius l2"][i] == pytest.approx(0.0 if i == 0 else min(radius["l2"], 1.0), rel=1e-5)
        assert columns["radius linf"][i] == pytest.approx(0.0 if i == 0 else min(radius["linf"], 0.05), rel=1e-5)
    assert columns["right"].tolist() == [False] + [True] * 8
    assert finding.measure("solved exactly").value == 1.0
    assert (
        finding.measure("lower over upper end").value
        == finding.measure("share of the product of norms").value
        == pytest.approx(1)
    )
    assert not finding.alarms


def test_a_tiny_net_agrees_with_all_activation_patterns_that_occur(run):
    model, x = net(2, 4, 3, 2, seed=3), points(2, 2)
    finding = ask(subject_of(model, x), run, reach=0.3, nodes=10_000)
    (w1, b1), (w2, b2), (w3, _) = [
        (m.weight.detach().double(), m.bias.detach().double()) for m in model if isinstance(m, nn.Linear)
    ]
    step = torch.linspace(-1, 1, 401, dtype=torch.float64) * 0.3
    for i in range(2):
        grid = torch.stack(torch.meshgrid(step, step, indexing="ij"), -1).reshape(-1, 2) + x[i].double()
        grid = grid[((grid >= 0) & (grid <= 1)).all(1)]
        first = grid @ w1.T + b1
        second = first.relu() @ w2.T + b2
        patterns = torch.cat([first > 0, second > 0], 1).unique(dim=0)
        largest = max(
            float(torch.linalg.matrix_norm((w3 * p[4:].double()) @ (w2 * p[:4].double()) @ w1, ord=2)) for p in patterns
        )
        assert len(patterns) > 1
        assert finding.samples.columns["exact"][i]
        assert finding.samples.columns["upper"][i] == pytest.approx(largest, rel=1e-6)


@settings(deadline=None, max_examples=5)
@given(seed=st.integers(0, 1000), nodes=st.sampled_from([1, 7, 40]))
def test_the_bounds_are_in_order_and_no_sampled_slope_is_above_them(seed, nodes):
    from assay.engine.local import ThisProcess
    from assay.run import Run

    model, x, reach = net(5, 10, 6, 3, seed=seed), points(4, 5, seed=seed), 0.2
    finding = ask(subject_of(model, x), Run(engine=ThisProcess()), reach=reach, inputs=4, nodes=nodes)
    c = finding.samples.columns
    product = {b.label: b.value for b in finding.measure().beside}["product of norms"]
    hair = 1 + 1e-9
    assert (c["gradient"] <= c["lower"] * hair).all()
    assert (c["lower"] <= c["upper"] * hair).all()
    assert (c["upper"] <= np.minimum(c["first"], product) * hair).all()
    assert (c["margin lower"] <= c["margin upper"] * hair).all()
    rng = torch.Generator().manual_seed(seed)
    twin = model.double()
    for i in range(4):
        centre = x[i].double()
        box = (centre - reach).clamp_min(0), (centre + reach).clamp_max(1)
        a, b = (box[0] + (box[1] - box[0]) * torch.rand(300, 5, generator=rng, dtype=torch.float64) for _ in range(2))
        with torch.no_grad():
            rise, run_ = (twin(a) - twin(b)).norm(dim=1), (a - b).norm(dim=1)
            assert float((rise / run_).max()) <= c["upper"][i] * hair
            for norm, p in (("l2", 2), ("linf", math.inf)):
                r = c[f"radius {norm}"][i]
                way = torch.randn(300, 5, generator=rng, dtype=torch.float64)
                way = way / torch.linalg.vector_norm(way, ord=p, dim=1, keepdim=True) * r * 0.999
                inside = centre + way
                inside = inside[((inside >= 0) & (inside <= 1)).all(1)]
                assert (twin(inside).argmax(1) == twin(centre[None]).argmax(1)).all()


def test_a_search_that_was_cut_short_says_for_how_many_inputs(run):
    model, x = net(4, 12, 12, 3), points(6, 4)
    short = ask(subject_of(model, x), run, reach=0.4, inputs=6, nodes=1)
    long = ask(subject_of(model, x), run, reach=0.4, inputs=6, nodes=30)
    assert not short.samples.columns["exact"].all()
    assert f"{int((~short.samples.columns['exact']).sum())} of 6" in short.alarms[0].says
    assert "holds" in short.alarms[0].says
    assert (long.samples.columns["upper"] <= short.samples.columns["upper"] * (1 + 1e-9)).all()
    assert (long.samples.columns["lower"] >= short.samples.columns["lower"] * (1 - 1e-9)).all()
    assert long.measure().value < short.measure().value
    assert [type(v) for v in short.views] == [Curve, Curve, Curve]
    slopes, l2, linf = short.views
    assert [line.label for line in slopes.lines][1:3] == ["proved: at most", "proved: at least"]
    assert list(slopes.lines[1].y) == sorted(short.samples.columns["upper"])
    mine, naive = (line.y for line in l2.lines)
    assert all(a >= b for a, b in zip(mine, naive, strict=True))
    assert sum(mine) > sum(naive)
    for line in (*l2.lines, *linf.lines):
        assert all(a >= b for a, b in itertools.pairwise(line.y))
    assert linf.lines[0].y[-1] == pytest.approx((short.samples.columns["radius linf"] >= max(linf.lines[0].x)).mean())


def slab(width, tall=10.0):
    """Flat below 0, of slope 0.1 above `width`, and as steep as `tall` in between."""
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[1.0, 0.0], [1.0, 0.0]]))
        model[0].bias.copy_(torch.tensor([0.0, -width]))
        model[2].weight.copy_(torch.tensor([[tall, 0.1 - tall], [0.0, 0.0]]))
        model[2].bias.copy_(torch.tensor([0.01, 0.0]))
    return model


def test_a_piece_too_thin_to_be_seen_is_not_called_solved(run):
    x = torch.tensor([[-0.01, 0.5], [-0.5, 0.5]])
    box = ((-1.0, -1.0), (1.0, 1.0))  # the range is 2: slopes are twice those in the slab's own units
    asked = {w: ask(subject_of(slab(w), x, bounds=box), run, reach=0.05) for w in (0.0, 1e-12, 1e-3)}
    slope = {w: finding.samples.columns["upper"].tolist() for w, finding in asked.items()}
    assert slope == {w: pytest.approx([s, 0.0], rel=1e-4) for w, s in ((0.0, 0.2), (1e-12, 20.0), (1e-3, 20.0))}
    thin = asked[1e-12]
    assert thin.samples.columns["thin"].tolist() == [True, False]
    assert thin.samples.columns["exact"].tolist() == [False, True]
    assert thin.samples.columns["lower"][0] < 2
    assert "Around 1 of 2 (50 %) of the inputs" in thin.alarms[0].says
    assert thin.samples.columns["radius l2"][0] < 0.00055  # the step is 0.01 / 20 away from another answer, at most
    for w in (0.0, 1e-3):
        assert asked[w].samples.columns["exact"].all()
        assert not asked[w].alarms


@pytest.mark.parametrize("scale", [1.0, 255.0])
def test_what_is_proved_is_held_against_ascent_and_attack(run, monkeypatch, scale):
    model, x = net(4, 12, 3, seed=2), points(6, 4) * scale
    model[0].weight.data.div_(scale)
    model[2].bias.data.sub_(model(x).mean(0))  # so that it has more than one answer
    subject = subject_of(model, x, bounds=(0.0, scale))
    honest = ask(subject, run, reach=0.2, inputs=6)
    c = honest.samples.columns
    assert not any("contradict" in a.says for a in honest.alarms)
    assert (c["secant"] <= c["upper"] * (1 + 1e-9)).all()
    assert (c["secant"] >= c["gradient"] * 0.5).all()
    broken = np.isfinite(c["broken l2"])
    assert broken.any()
    assert (c["radius l2"][broken] <= c["broken l2"][broken] * 1.001).all()
    found = how_steep.lipschitz

    def flattered(*args, **settings):
        got = found(*args, **settings)
        return replace(got, lower=got.lower / 3, upper=got.upper / 3)

    monkeypatch.setattr(how_steep, "lipschitz", flattered)
    lying = ask(subject, run, reach=0.2, inputs=6)
    (alarm,) = (a for a in lying.alarms if "contradict" in a.says)
    assert "a slope of at most" in alarm.says
    assert HEADLINE in alarm.doubts
    monkeypatch.undo()
    monkeypatch.setattr(how_steep, "certified_radius", lambda model, x, reach, p, **_: reach)
    reaching = ask(subject, run, reach=0.2, inputs=6)
    said = [a.says for a in reaching.alarms if "contradict" in a.says]
    assert len(said) == 2
    assert "l2 radius of" in said[0]


def test_the_same_seed_gives_the_same_numbers(run):
    model, x = net(6, 24, 3), points(30, 6)
    first, second = (ask(subject_of(model, x), run) for _ in range(2))
    for name, column in first.samples.columns.items():
        np.testing.assert_array_equal(column, second.samples.columns[name])
    assert len(first.samples) == run.budget.steps


def test_a_model_that_answers_always_the_same_has_slope_zero(run):
    model = net(4, 5, 3)
    with torch.no_grad():
        model[2].weight.zero_()
    finding = ask(subject_of(model, points(5, 4)), run)
    assert finding.measure().value == 0.0
    assert (finding.samples.columns["radius linf"] == 8 / 255).all()
    np.testing.assert_allclose(finding.samples.columns["radius l2"], 1.0)  # no farther than the inputs go


def test_a_large_net_gets_what_was_seen_and_the_product_and_hears_what_stood_in_the_way(digits, run, monkeypatch):
    monkeypatch.setattr(how_steep, "NEURONS", 100)
    finding = ask(digits, run, inputs=12)
    seen, product = finding.measures
    assert (seen.name, product.name) == ("largest gradient seen", "product of norms")
    assert "512 ReLUs" in finding.alarms[0].says
    assert "at most 100" in finding.alarms[0].says
    assert finding.alarms[0].doubts == (seen.name,)  # the product is a proved bound
    assert isinstance(finding.views[0], Histogram)
    assert sum(finding.views[0].counts[0][1]) == 12
    x = digits.data["test"].take(finding.samples.columns["index"])[0]
    for i in range(12):  # the gradient once more, class by class
        at = x[i : i + 1].clone().requires_grad_()
        j = torch.stack([torch.autograd.grad(digits.model(at)[0, k], at)[0].flatten() for k in range(10)])
        wanted = float(torch.linalg.matrix_norm(j, ord=2))
        assert finding.samples.columns["gradient"][i] == pytest.approx(wanted, rel=1e-4)
    assert seen.value == finding.samples.columns["gradient"].max()
    truth = math.prod(float(torch.linalg.matrix_norm(a.dense()[0], ord=2)) for a in layers(digits.model, (1, 8, 8)))
    assert truth <= product.value <= 1.2 * truth
    assert seen.value < product.value


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(2, 3, 3, padding=1),
        nn.Conv2d(4, 6, 3, padding=1, groups=2),
        nn.Conv2d(3, 2, 5, stride=2, padding=2),
        nn.Conv2d(2, 2, 2),
        nn.Conv2d(2, 2, (1, 3), padding=(0, 2), dilation=2),
        nn.Conv2d(3, 3, 1),
        nn.AvgPool2d(2),
        nn.AvgPool2d(3, stride=1, padding=1),
        nn.AdaptiveAvgPool2d(1),
        nn.BatchNorm2d(2).eval(),
        nn.Linear(7, 5),
    ],
    ids=str,
)
def test_the_norm_of_a_layer_is_bounded_from_above_and_not_by_much(layer):
    shape = (7,) if isinstance(layer, nn.Linear) else (getattr(layer, "in_channels", 2), 12, 12)
    torch.manual_seed(0)
    if hasattr(layer, "reset_parameters"):
        layer.reset_parameters()
    (affine,) = layers(layer, shape)
    truth = float(torch.linalg.matrix_norm(affine.dense()[0], ord=2))
    (bound,) = (_norm(part, size) for part, size in zip(affine.parts, affine.shapes, strict=False))
    assert truth <= bound * (1 + 1e-9)
    stride = layer.stride[0] if isinstance(layer, nn.Conv2d) else 1
    assert bound <= truth * 1.2 * stride


def test_what_it_cannot_read_is_named(run):
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2))
    answer = put(HowSteep(), subject_of(model, points(5, 4)), run)
    assert answer.status == "does not apply"
    assert "'1' (Tanh)" in answer.why
    blind = put(HowSteep(), replace(subject_of(net(4, 5, 2), points(5, 4)), differentiable=False), run)
    assert "gradients" in blind.why


def test_a_model_left_in_training_mode_is_read_as_it_will_be_asked(run):
    model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 2))
    subject = Subject.classifier(
        model.eval(), Arrays(points(5, 4), torch.zeros(5, dtype=torch.long)), classes=("a", "b")
    )
    model.train()
    assert ask(subject, run).measure().value > 0
    assert model.training
    assert model[1].training


def test_bad_settings_are_refused():
    with pytest.raises(AssayError, match="reach=0.0 .* at least"):
        HowSteep(reach=0.0)
    with pytest.raises(AssayError, match="nodes=0 .* at least 1"):
        HowSteep(nodes=0)
    with pytest.raises(AssayError, match="inputs=-1 .* at least 1"):
        HowSteep(inputs=-1)
