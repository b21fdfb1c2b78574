"""Filters that fade: the decay and its order, what is frozen to the bit, and that what faded leaves no trace."""

from __future__ import annotations

import copy
import functools
import itertools
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.testing import assert_close

from assay.errors import AssayError
from assay.methods.compress import fading as method
from assay.methods.compress.fading import Fading, Pace, faded, plan, wasserstein2
from assay.methods.compress.price import flops, parameters
from assay.methods.compress.surgery import Edge, cut, edges
from assay.methods.train.fit import fit
from assay.nn.resnet import ResNet


class Block(nn.Module):
    """Two layers write the residual stream: `first` and `second`; one writes what lies between."""

    def __init__(self, normed: bool = True) -> None:
        super().__init__()
        norm = nn.BatchNorm2d if normed else nn.Identity
        self.first, self.a = nn.Conv2d(2, 4, 3, padding=1), norm(4)
        self.inner, self.b = nn.Conv2d(4, 6, 3, padding=1), norm(6)
        self.second, self.c = nn.Conv2d(6, 4, 3, padding=1), norm(4)
        self.head = nn.Linear(4 * 16, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.a(self.first(x)).relu()
        x = (x + self.c(self.second(self.b(self.inner(x)).relu()))).relu()
        out: Tensor = self.head(x.flatten(1))
        return out


@pytest.fixture
def x() -> Tensor:
    return torch.rand(16, 2, 4, 4, generator=torch.Generator().manual_seed(0))


def block(normed: bool = True) -> Block:
    """With batch normalisations that have seen something."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = Block(normed)
        for module in net.modules():
            if isinstance(module, nn.BatchNorm2d):
                nn.init.normal_(module.weight), nn.init.normal_(module.bias)
    return net.eval()


@functools.cache
def edges_of(normed: bool = True) -> tuple[Edge, ...]:
    return edges(block(normed), torch.rand(2, 2, 4, 4))


def fades(
    net: nn.Module, x: Tensor, share: float = 0.5, found: tuple[Edge, ...] | None = None, **settings: object
) -> tuple[Fading, dict[str, Tensor]]:
    found = edges_of() if found is None else found
    gone = {edge.name: faded(method.strength(net, edge), share) for edge in found}
    return Fading(net, plan(net, found, gone, x), per_epoch=4, **settings), gone  # type: ignore[arg-type]


@given(
    n=st.integers(1, 60), e=st.floats(0, 20), more=st.floats(0, 5), lambda_e=st.floats(0.1, 5), lambda_l=st.floats(0, 9)
)
@settings(deadline=None, max_examples=10)
def test_the_decay_starts_at_one_and_falls_with_epochs_and_from_the_top(
    n: int, e: float, more: float, lambda_e: float, lambda_l: float
) -> None:
    pace, layer = Pace(lambda_e, lambda_l), torch.arange(1, n + 1, dtype=torch.float64)
    at = [pace.decay(layer, n, torch.tensor(when, dtype=torch.float64)) for when in (0.0, e, e + more)]
    assert (at[0] == 1).all()
    assert (at[2] <= at[1]).all()
    assert (at[1].diff() <= 0).all()
    assert_close(at[1][-1], torch.tensor(math.exp(-lambda_e * e), dtype=torch.float64))
    naive = [math.exp(min(-lambda_e * e + lambda_l * (n - i) / n, 0)) for i in range(1, n + 1)]
    assert_close(at[1], torch.tensor(naive, dtype=torch.float64))


def test_with_prints_settings_the_top_is_dead_after_2_3_epochs_and_the_bottom_before_4_8() -> None:
    layer, pace = torch.tensor([1.0, 55.0]), Pace()
    assert_close(pace.decay(layer, 55, torch.tensor(2.302586))[1], torch.tensor(0.01))
    assert pace.decay(layer, 55, torch.tensor(4.75))[0] > 0.01 > pace.decay(layer, 55, torch.tensor(4.81))[0]
    assert pace.length(55) == pytest.approx((math.log(100) + 5 * 54 / 55) / 2)
    steps = [float(Pace(whole=True).decay(layer, 55, torch.tensor(e))[1]) for e in (0.9, 1.9, 2.0)]
    assert steps == pytest.approx([1, 0.135335, 0.018316], rel=1e-4)


def test_filters_are_chosen_by_index_or_strength_or_chance_and_never_all() -> None:
    l1 = torch.tensor([3.0, 1.0, 2.0, 5.0, 4.0])
    assert faded(l1, 0.4).tolist() == [False, False, False, True, True]
    assert faded(l1, 0.4, "lowest-l1").tolist() == [False, True, True, False, False]
    assert faded(l1, 0.4, "highest-l1").tolist() == [False, False, False, True, True]
    rng = torch.Generator().manual_seed(1)
    drawn = torch.stack([faded(l1, 0.4, "random", rng=rng) for _ in range(50)])
    assert (drawn.sum(1) == 2).all()
    assert drawn.any(0).all()
    assert faded(l1, 0.99).sum() == 4
    assert faded(l1, 0).sum() == 0
    for share in (1.0, -0.1):
        with pytest.raises(AssayError, match=r"cannot fade; give one from 0"):
            faded(l1, share)


def test_layers_that_are_added_lose_the_same_channels_behind_their_own_normalisations(x: Tensor) -> None:
    net, found = block(), edges_of()
    gone = {edge.name: faded(method.strength(net, edge), 0.5) for edge in found}
    assert {name: int(each.sum()) for name, each in gone.items()} == {"first": 2, "inner": 3}
    made = plan(net, found, gone, x)
    assert {(p.module, p.layer, p.entering) for p in made.places} == {("a", 1, False), ("b", 2, False), ("c", 3, False)}
    assert made.layers == 3
    names = {held.parameter for held in made.held}
    assert names == {f"{m}.{p}" for m in ("first", "inner", "second", "a", "b", "c") for p in ("weight", "bias")}
    bare = plan(block(False), edges_of(False), gone, x)
    assert {(p.module, p.layer, p.entering) for p in bare.places} == {
        ("inner", 1, True), ("head", 1, True), ("second", 2, True),
    }  # fmt: skip


@pytest.mark.parametrize("normed", [True, False])
def test_it_begins_as_the_network_and_ends_as_the_one_that_is_cut(normed: bool, x: Tensor) -> None:
    net = block(normed)
    before = net(x)
    fading, gone = fades(net, x, found=edges_of(normed), fires=False)
    assert_close(fading.eval()(x), before, rtol=0, atol=0)
    fading.steps.fill_(4)  # one epoch
    assert not torch.allclose(fading(x), before)
    fading.steps.fill_(4 * 50)
    last = fading(x)
    small = cut(fading.faded_out(), edges_of(normed), {name: ~each for name, each in gone.items()})
    assert_close(small(x), last)
    assert_close(net(x), before, rtol=0, atol=0)  # no hook is left
    assert sum(p.numel() for p in small.parameters()) < 0.4 * sum(p.numel() for p in net.parameters())


class ByKeyword(Block):
    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(input=self.a(input=self.first(input=x)).flatten(1))
        return out


def test_layers_and_norms_that_are_called_by_keyword_are_seen(x: Tensor) -> None:
    run = method.order(ByKeyword(), x)
    assert (run.layers, run.feeds) == (("first", "head"), {"a": "first"})


def test_depthwise_convolutions_fade_with_the_layer_that_they_follow(x: Tensor) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(2, 6, 1), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 6, 3, padding=1, groups=6), nn.BatchNorm2d(6),
        nn.ReLU6(), nn.Flatten(), nn.Linear(96, 3),
    )  # fmt: skip
    nn.init.normal_(net[4].bias)  # type: ignore[arg-type]
    found = edges(net.eval(), x)
    fading, gone = fades(net, x, found=found, fires=False)
    fading.eval().steps.fill_(1000)
    last = fading(x)
    assert_close(cut(fading.faded_out(), found, {name: ~each for name, each in gone.items()})(x), last)


def test_dead_layers_fire_while_they_train_and_are_silent_when_they_answer(x: Tensor) -> None:
    fading, gone = fades(block(), x)
    heard: list[Tensor] = []
    fading.net.a.register_forward_hook(lambda module, given, out: heard.append(out.detach()))  # type: ignore[union-attr]
    fading.train().steps.fill_(1000)
    torch.manual_seed(0)
    many = x.repeat(20, 1, 1, 1)
    fading(many)
    fading.eval()(many)
    loud, silent = (each[:, gone["first"]] for each in heard)
    assert float(loud.std()) == pytest.approx(0.01, rel=0.05)
    assert abs(float(loud.mean())) < 0.001
    assert (silent == 0).all()
    quiet, gone = fades(block(), x, fires=False)
    last: list[Tensor] = []
    quiet.net.c.register_forward_hook(lambda module, given, out: last.append(out.detach()))  # type: ignore[union-attr]
    for steps, dead in ((9, False), (10, True)):  # 0.011 and 0.0067 of what it was
        quiet.steps.fill_(steps)
        quiet(x)
        assert bool((last.pop()[:, gone["first"]] == 0).all()) == dead
    quiet.train().steps.fill_(1000)
    assert_close(quiet(many), quiet(many), rtol=0, atol=0)


def trained(
    fading: Fading, x: Tensor, epochs: int = 3, keep: Path | None = None, stop: int = 99, **settings: Any
) -> None:
    from assay.data.arrays import Arrays

    def on_epoch(epoch: int, mean: float) -> None:
        if epoch == stop:
            raise KeyboardInterrupt

    settings = {"lr": 0.05, "weight_decay": 0.01, "momentum": 0.9, **settings}
    fit(
        fading, Arrays(x.numpy(), (torch.arange(16) % 3).numpy()), epochs=epochs, batch=4, **settings,
        rng=torch.Generator().manual_seed(3), after_step=fading.after_step, on_epoch=on_epoch,
        keep=keep, keep_key="fading" if keep else "",
    )  # fmt: skip


@pytest.mark.parametrize("freezes", [True, False])
def test_what_fades_stays_to_the_bit_under_weight_decay_and_momentum(freezes: bool, x: Tensor) -> None:
    net = block()
    begun = copy.deepcopy(net.state_dict())
    _, gone = fades(block(), x)
    made = plan(net, edges_of(), gone, x)
    fading, _ = fades(net, x, freezes=freezes)
    trained(fading, x)
    assert int(fading.steps) == 12
    for name, away in made.held:
        now, then = net.get_parameter(name), begun[name]
        away = away.expand_as(then)
        assert torch.equal(now[away], then[away]) == freezes
        assert not torch.equal(now[~away], then[~away])


@pytest.mark.parametrize(
    "settings",
    [
        {"weight_decay": 0.3, "momentum": 0.0},
        {"weight_decay": 0.0, "momentum": 0.99},
        {"weight_decay": 0.3, "optimiser": "adam"},
        {"weight_decay": 0.3, "optimiser": "adamw"},
    ],
    ids=str,
)
def test_what_fades_stays_to_the_bit_whatever_else_would_move_it(settings: dict[str, Any], x: Tensor) -> None:
    """In plain, depthwise and transposed convolutions, one of those in groups; scales and shifts too."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = nn.Sequential(
            *(nn.Conv2d(2, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1, groups=8)),
            *(nn.BatchNorm2d(8), nn.ReLU(), nn.ConvTranspose2d(8, 8, 3, padding=1, groups=2), nn.BatchNorm2d(8)),
            *(nn.ReLU(), nn.ConvTranspose2d(8, 4, 1), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3)),
        )
    found = edges(net.eval(), x)
    fading, gone = fades(net, x, found=found)
    away = {name: gone[edge.name][places] for edge in found for name, places in edge.outputs.items()}
    assert {name: int(out.sum()) for name, out in away.items()} == {
        "0": 4, "1": 4, "3": 4, "4": 4, "6": 4, "7": 4, "9": 2,
    }  # fmt: skip

    @torch.no_grad()
    def says() -> dict[str, Tensor]:
        """Of layers what they make of some input, channel by channel; of normalisations their scales and shifts."""
        found = {}
        for name in away:
            module: Any = net.get_submodule(name)
            if isinstance(module, nn.BatchNorm2d):
                found[name] = torch.stack([module.weight, module.bias], 1)
            else:
                given = torch.rand(4, module.in_channels, 3, 3, generator=torch.Generator().manual_seed(5))
                found[name] = module(given).transpose(0, 1)
        return found

    begun = {name: said.clone() for name, said in says().items()}
    trained(fading, x, **settings)
    for name, now in says().items():
        assert torch.equal(now[away[name]], begun[name][away[name]])
        assert not torch.equal(now[~away[name]], begun[name][~away[name]])


def test_the_order_of_channels_means_nothing_so_that_the_last_are_any(x: Tensor) -> None:
    """Whichever fade: the same network with those put last, fading its last, ends as the same function."""

    def drawn(seed: int, size: int) -> Tensor:
        return torch.randperm(size, generator=torch.Generator().manual_seed(seed))

    net, found = block(), edges_of()
    to = {edge.name: drawn(i, edge.size) for i, edge in enumerate(found)}
    gone = {name: torch.zeros(len(order), dtype=torch.bool) for name, order in to.items()}
    for name, order in to.items():
        gone[name][order[len(order) // 2 :]] = True
    other = copy.deepcopy(net)
    stream, inner = to["first"], to["inner"]
    with torch.no_grad():
        for layer, norm, outs, ins in (
            ("first", "a", stream, None), ("inner", "b", inner, stream), ("second", "c", stream, inner),
        ):  # fmt: skip
            for name in (f"{layer}.weight", f"{layer}.bias", f"{norm}.weight", f"{norm}.bias"):
                other.get_parameter(name).copy_(net.get_parameter(name)[outs])
            if ins is not None:
                other.get_parameter(f"{layer}.weight").copy_(other.get_parameter(f"{layer}.weight")[:, ins])
        other.head.weight.copy_(net.head.weight.view(3, 4, 16)[:, stream].flatten(1))
    begun = net(x)
    assert_close(other(x), begun)
    last = {name: faded(torch.ones(len(order)), 0.5) for name, order in to.items()}
    ends = []
    for each, away in ((net, gone), (other, last)):
        fading = Fading(each, plan(each, found, away, x), per_epoch=4, pace=Pace(lambda_e=4.0), fires=False)
        trained(fading, x)
        ends.append(cut(fading.eval().faded_out(), found, {name: ~of for name, of in away.items()})(x))
    assert_close(ends[1], ends[0], rtol=1e-3, atol=1e-4)
    assert not torch.allclose(ends[1], begun, atol=0.1)


def test_what_faces_the_faded_can_be_measured(x: Tensor) -> None:
    net, found = block(), edges_of()
    gone = {"inner": torch.tensor([True, False, False, True, False, False])}
    assert method.facing(net, found, gone) == pytest.approx(float(net.second.weight[:, [0, 3]].detach().norm()))
    assert method.facing(net, found, {}) == 0


def test_a_training_that_was_stopped_goes_on_at_the_same_decay(x: Tensor, tmp_path: Path) -> None:
    """The noise of dead layers included: after two epochs of three the top fires."""
    pace = Pace(lambda_e=4.0)
    whole, _ = fades(block(), x, pace=pace)
    trained(whole, x)
    stopped, _ = fades(block(), x, pace=pace)
    with pytest.raises(KeyboardInterrupt):
        trained(stopped, x, keep=tmp_path, stop=2)
    again, _ = fades(block(), x, pace=pace)
    trained(again, x, keep=tmp_path)
    assert int(again.steps) == 12
    for name, tensor in whole.state_dict().items():
        assert_close(again.state_dict()[name], tensor, rtol=0, atol=0)


def test_half_the_width_is_a_quarter_of_the_price() -> None:
    """Of a ResNet-56, and only where the residual stream is cut with the rest: print's 74.7 and 74.9 %."""
    net, x = ResNet(width=16, blocks=(9, 9, 9)).eval(), torch.rand(1, 3, 32, 32)
    found = edges(net, x)

    def saved(some: Iterable[Edge]) -> tuple[float, float]:
        small = cut(net, found, {edge.name: ~faded(torch.ones(edge.size), 0.5) for edge in some})
        return 1 - flops(small, x) / flops(net, x), 1 - parameters(small) / parameters(net)

    assert saved(found) == (pytest.approx(0.747, abs=0.003), pytest.approx(0.749, abs=0.003))
    inner = [edge for edge in found if len(edge.writers) == 1]
    assert (len(inner), len(found)) == (27, 30)
    assert saved(inner) == (pytest.approx(0.5, abs=0.01), pytest.approx(0.5, abs=0.01))


def test_the_distance_of_two_sets_of_filters_is_that_of_the_best_pairing() -> None:
    rng = torch.Generator().manual_seed(0)
    a, b = torch.randn(5, 2, 3, generator=rng), torch.randn(5, 2, 3, generator=rng)
    assert wasserstein2(a, a[torch.tensor([3, 1, 0, 4, 2])]) == pytest.approx(0, abs=1e-6)
    ways = [(a - b[list(p)]).flatten(1).norm(dim=1) for p in itertools.permutations(range(5))]
    least = min(math.sqrt(float(way.square().mean())) for way in ways)
    assert wasserstein2(a, b) == pytest.approx(least)
    assert wasserstein2(a, b[torch.randperm(5, generator=rng)]) == pytest.approx(least)
    assert wasserstein2(a, b, as_published=True) == pytest.approx(min(math.sqrt(float(w.mean())) for w in ways))
    assert wasserstein2(a + 2, a) == pytest.approx(2 * math.sqrt(6))  # a shift moves every point by as much
    with pytest.raises(AssayError, match="between 5 and 0 filters"):
        wasserstein2(a, b[:0])


def test_the_distance_of_sets_of_unequal_size_splits_points_evenly() -> None:
    rng = torch.Generator().manual_seed(0)
    a, b = torch.randn(2, 4, generator=rng), torch.randn(3, 4, generator=rng)
    assert wasserstein2(a, b) == pytest.approx(wasserstein2(a.repeat(3, 1), b.repeat(2, 1)))
    assert wasserstein2(a, a.repeat(2, 1)) == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("wrong", [{"lambda_e": 0.0}, {"lambda_l": -1.0}, {"dead": 1.0}, {"noise": -1.0}])
def test_a_pace_that_cannot_be_is_refused_in_one_line(wrong: dict[str, float]) -> None:
    with pytest.raises(AssayError, match=next(iter(wrong))) as caught:
        Pace(**wrong)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)
