"""Cascades both ways, targets without meaning, and the verdicts: an edge detector must not get through."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from assay.errors import AssayError, ShapeError
from assay.methods.explain.maps import edges
from assay.methods.explain.sanity import likeness
from assay.methods.rank.pair_sanity import (
    NOTHING,
    Seen,
    Stage,
    Start,
    Statistics,
    blind,
    cascade,
    compare,
    leaks,
    movable,
    needs_the_labels,
    needs_the_weights,
    stages,
    trained_anew,
)
from assay.methods.train.ranker import Course, Targets
from assay.nn.siamese import Siamese


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


class Tail(nn.Module):
    def __init__(self, s: int) -> None:
        super().__init__()
        self.hidden, self.out = nn.Linear(2 * s, 16), nn.Linear(16, 1)

    def forward(self, e1: Tensor, e2: Tensor) -> Tensor:
        c: Tensor = self.out(self.hidden(torch.cat([e1, e2], 1)).sigmoid()).sigmoid()
        return c


def network() -> Siamese:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        encoder = nn.Sequential(
            *(nn.Conv2d(1, 8, 3, stride=2, padding=1), nn.ReLU(), nn.BatchNorm2d(8)),
            *(nn.Conv2d(8, 6, 4), nn.Flatten()),
        )
        return Siamese(encoder, Tail(6)).eval()


@cache
def digits() -> tuple[Tensor, Tensor]:
    x, y = load_digits(return_X_y=True)
    return torch.tensor(x / 16, dtype=torch.float32).view(-1, 1, 8, 8), torch.tensor(y, dtype=torch.float32)


def learn(targets: Targets, seed: int) -> Siamese:
    x, y = digits()
    net, rng = network(), seeded(seed)
    return trained_anew(
        net, x[:1200], y[:1200], low=0, high=9, targets=targets, rng=rng, course=Course(steps=100, lr=8e-3)
    )


@pytest.fixture(scope="module")
def model() -> Siamese:
    return learn("true", 0)


def held(n: int = 24) -> tuple[Tensor, Tensor]:
    x, y = digits()
    pair, value = x[1200 : 1200 + 2 * n].view(n, 2, 1, 8, 8), y[1200 : 1200 + 2 * n].view(n, 2)
    return pair, (value[:, 0] - value[:, 1]) / 18 + 0.5


def gradient(model: nn.Module, pair: Tensor) -> Seen:
    a = pair[:, 0].clone().requires_grad_()
    (slope,) = torch.autograd.grad(model(torch.stack([a, pair[:, 1]], 1)).sum(), a)
    return Seen(slope, slope.flatten(1).norm(dim=1))


def edge_detector(model: nn.Module, pair: Tensor) -> Seen:
    return Seen(edges(pair[:, 0]), torch.ones(len(pair)))


def changed(a: nn.Module, b: nn.Module) -> set[str]:
    other = b.state_dict()
    return {name for name, value in a.state_dict().items() if not torch.equal(value, other[name])}


CONV1, NORM = {"encoder.0.weight", "encoder.0.bias"}, {"encoder.2.weight", "encoder.2.bias"}
FLATTEN = {"encoder.3.weight", "encoder.3.bias"}
DENSE, OUT = {"tail.hidden.weight", "tail.hidden.bias"}, {"tail.out.weight", "tail.out.bias"}


def test_a_cascade_keeps_what_it_drew_and_leaves_the_model_alone(model: Siamese) -> None:
    before = {name: value.clone() for name, value in model.state_dict().items()}
    pair, _ = held()
    branch = list(cascade(model, pair, start="branch", rng=seeded(0)))
    assert [step.layer for step in branch] == ["encoder.3", "encoder.0"]
    assert [changed(model, step.model) for step in branch] == [FLATTEN, FLATTEN | CONV1 | NORM]
    assert changed(branch[0].model, branch[1].model) == CONV1 | NORM
    output = list(cascade(model, pair, start="output", rng=seeded(0)))
    assert [step.layer for step in output] == ["tail.out", "tail.hidden", "encoder.3", "encoder.0"]
    wanted = [OUT, OUT | DENSE, OUT | DENSE | FLATTEN, OUT | DENSE | FLATTEN | CONV1 | NORM]
    assert [changed(model, step.model) for step in output] == wanted
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not any(m.training for step in (*branch, *output) for m in step.model.modules())


def test_running_statistics_stay_unless_told_otherwise(model: Siamese) -> None:
    def norm(statistics: Statistics) -> nn.BatchNorm2d:
        last = list(cascade(model, held()[0], start="branch", rng=seeded(0), statistics=statistics))[-1]
        found = last.model.get_submodule("encoder.2")
        assert isinstance(found, nn.BatchNorm2d)
        return found

    learnt = model.get_submodule("encoder.2").get_buffer("running_mean")
    kept, anew = norm("kept"), norm("reset")
    assert torch.equal(kept.get_buffer("running_mean"), learnt)
    assert torch.equal(anew.get_buffer("running_mean"), torch.zeros(8))
    assert torch.equal(kept.weight, torch.ones(8))
    assert torch.equal(anew.weight, torch.ones(8))


def test_any_model_with_encode_has_a_branch() -> None:
    class Own(nn.Module):
        decoder = None

        def __init__(self) -> None:
            super().__init__()
            self.eye, self.judge = nn.Linear(5, 3), nn.Linear(3, 1)

        def encode(self, x: Tensor) -> Tensor:
            e: Tensor = self.eye(x)
            return e

        def forward(self, pair: Tensor) -> Tensor:
            c: Tensor = self.judge(self.encode(pair[:, 0]) - self.encode(pair[:, 1]))[:, 0].sigmoid()
            return c

    net, pair = Own(), torch.rand(2, 2, 5)
    assert [s.layer for s in cascade(net, pair, start="branch", rng=seeded(0))] == ["eye"]
    assert [s.layer for s in cascade(net, pair, start="output", rng=seeded(0))] == ["judge", "eye"]


@pytest.mark.parametrize("start", ["branch", "output"])
def test_the_gradient_changes_at_once_and_an_edge_detector_never(model: Siamese, start: Start) -> None:
    pair, _ = held()
    found = stages(model, pair, gradient, start=start, rng=seeded(0), draws=3)
    assert found[0].layer == NOTHING
    torch.testing.assert_close(found[0].absolute, torch.ones(1, len(pair)), rtol=0, atol=1e-5)
    torch.testing.assert_close(found[0].signed, torch.ones(1, len(pair)), rtol=0, atol=1e-5)
    assert all(stage.absolute.shape == stage.moved.shape == (3, len(pair)) for stage in found[1:])
    assert not torch.equal(found[1].absolute[0], found[1].absolute[1])  # each draw is another
    fake = stages(model, pair, edge_detector, start=start, rng=seeded(0), draws=2)
    for stage in fake:
        torch.testing.assert_close(stage.absolute, torch.ones_like(stage.absolute), rtol=0, atol=1e-5)
    assert needs_the_weights(fake) == "does not need the model"
    if start == "branch":
        assert float(found[1].absolute.mean()) < 0.4
        assert needs_the_weights(found) == "needs the model"


def test_what_cannot_be_moved_proves_nothing(model: Siamese) -> None:
    found = stages(model, held()[0], gradient, start="branch", rng=seeded(0), draws=2)
    still = [stage._replace(moved=torch.zeros_like(stage.moved)) for stage in found]
    assert movable(still[1]) == 0
    assert needs_the_weights(still) == "cannot tell"
    one_immovable = [*found[:-1], still[-1]]
    assert needs_the_weights(one_immovable) == "cannot tell"
    with pytest.raises(AssayError, match="no stage with a random layer"):
        needs_the_weights(found[:1])


def stage(mean: float, *, models: int = 1, n: int = 60, moved: float = 1.0, seed: int = 0) -> Stage:
    values = mean + 0.1 * torch.randn(models, n, generator=seeded(seed))
    return Stage("", values, values, torch.full((models, n), moved))


def test_the_verdict_on_labels_goes_three_ways() -> None:
    assert needs_the_labels(stage(0.05), stage(0.4, seed=1)).says == "needs the model"
    assert needs_the_labels(stage(0.14), stage(0.14, seed=1)).says == "cannot tell"  # small, and no smaller
    same = stage(0.3)
    assert needs_the_labels(same, same).says == "cannot tell"
    assert needs_the_labels(stage(0.4), stage(0.05, seed=1)).says == "cannot tell"
    assert needs_the_labels(stage(1.0), stage(1.0, seed=1)).says == "does not need the model"
    assert needs_the_labels(stage(0.8), stage(0.95, seed=1)).says == "does not need the model"
    assert needs_the_labels(stage(0.05, moved=0.0), stage(0.4, seed=1)).says == "cannot tell"
    told = needs_the_labels(stage(0.05), stage(0.4, seed=1))
    assert told.low < told.excess < told.high < 0
    assert told.excess == pytest.approx(-0.35, abs=0.05)


def test_models_that_overlap_cannot_tell_however_many_pairs() -> None:
    seeds = stage(0.3, models=2, n=2000, seed=1)
    apart = stage(0.1, models=2, n=2000)
    assert needs_the_labels(apart, seeds).says == "needs the model"
    mixed = apart._replace(absolute=torch.cat([apart.absolute[:1] - 0.1, apart.absolute[1:] + 0.25]))
    verdict = needs_the_labels(mixed, seeds)
    assert verdict.high < 0  # the mean over models is clearly lower, and one model is not
    assert verdict.says == "cannot tell"
    with pytest.raises(ShapeError, match=r"got \(1, 60\) and \(1, 50\)"):
        needs_the_labels(stage(0.1), stage(0.1, n=50))


def test_a_map_with_its_pixels_shuffled_is_like_nothing() -> None:
    maps = torch.randn(200, 1, 16, 16, generator=seeded(0))
    order = torch.argsort(torch.rand(200, 256, generator=seeded(1)), 1)
    shuffled = maps.flatten(1).gather(1, order).view_as(maps)
    signed = likeness(maps, shuffled).signed
    assert float(signed.mean()) == pytest.approx(0, abs=4 / 16 / 200**0.5)
    assert float(signed.std()) == pytest.approx(1 / 16, rel=0.2)  # 1 / sqrt(pixels)


def test_targets_without_meaning_teach_nothing_and_true_ones_do(model: Siamese) -> None:
    pair, t = held(250)
    constant = float((t - 0.5).abs().mean())
    nets = {"true": model, "pairs": learn("shuffled pairs", 3), "images": learn("shuffled images", 3)}
    error = {name: float((net(pair) - t).abs().mean()) for name, net in nets.items()}
    assert {name: leaks(net(pair), t) for name, net in nets.items()} == {"true": True, "pairs": False, "images": False}
    assert error["true"] < 0.85 * constant
    assert error["pairs"] == pytest.approx(constant, rel=0.1)
    assert error["images"] > 0.97 * constant


def test_training_anew_starts_from_new_weights_on_a_copy() -> None:
    x, y = digits()
    net, decoder = network(), nn.Sequential(nn.Linear(6, 64), nn.Unflatten(1, (1, 8, 8)))
    with_decoder = Siamese(net.encoder, net.tail, decoder).eval()
    before = {name: value.clone() for name, value in with_decoder.state_dict().items()}
    nets = [
        trained_anew(with_decoder, x[:50], y[:50], low=0, high=9, targets="true", rng=seeded(s), course=Course(steps=2))
        for s in (0, 0, 1)
    ]
    assert changed(with_decoder, nets[0]) >= FLATTEN | CONV1 | OUT | {"decoder.0.weight", "decoder.0.bias"}
    assert changed(nets[0], nets[1]) == set()
    assert changed(nets[0], nets[2]) >= FLATTEN | CONV1 | OUT
    assert all(torch.equal(value, before[name]) for name, value in with_decoder.state_dict().items())
    assert not nets[0].training
    assert not any(p.requires_grad for p in nets[0].parameters())


def test_leaks_by_hand() -> None:
    t = torch.linspace(0, 1, 50)
    assert leaks(t, t)
    assert not leaks(torch.full((50,), 0.5), t)
    assert not leaks(1 - t, t)


def test_blind_maps_and_a_comparison_with_them(model: Siamese) -> None:
    pair, _ = held()
    maps = blind(pair[:, 0])
    assert list(maps) == ["intensity", "edges"]
    assert torch.equal(maps["edges"], edges(pair[:, 0]))
    assert list(blind(torch.rand(3, 5))) == ["intensity"]
    own = gradient(model, pair)
    beside = compare("", own, [Seen(m, own.moved) for m in maps.values()])
    assert beside.absolute.shape == (2, len(pair))
    assert np.isfinite(beside.absolute.numpy()).all()


def test_bad_settings_are_refused(model: Siamese) -> None:
    with pytest.raises(AssayError, match="at the branch or at the output, not at 'top'"):
        list(cascade(model, held()[0], start="top", rng=seeded(0)))  # type: ignore[arg-type]
    with pytest.raises(AssayError, match="draws=0"):
        stages(model, held()[0], gradient, start="branch", rng=seeded(0), draws=0)
