"""LocalNorm against its equation, batch normalisation and instance normalisation, in each of its four test modes."""

from __future__ import annotations

import copy
import warnings

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.testing import assert_close

from assay.data.multiplicative_noise import spoil
from assay.errors import AssayError, ShapeError
from assay.methods.train.fit import fit
from assay.nn.local_norm import LocalNorm, LocalNormed, Mode, majority, norms, with_local_norm
from assay.nn.variational import as_variational

MODES: tuple[Mode, ...] = ("single", "single-vote", "batch", "voting")


def rand(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def scattered(layer: nn.Module, seed: int = 1) -> nn.Module:
    """Each scale and shift another."""
    for i, p in enumerate(layer.parameters()):
        p.data = 1 + 0.3 * rand(*p.shape, seed=seed + i)
    return layer


def layer_of(channels: int, groups: int, *, alone: int = 0) -> LocalNorm:
    layer = scattered(LocalNorm(channels, groups).double())
    assert isinstance(layer, LocalNorm)
    layer.alone = alone
    return layer


def as_printed(x: Tensor, layer: LocalNorm, groups: list[list[int]], eps: float = 1e-5) -> Tensor:
    """One group and one channel at a time, no view in sight."""
    y = torch.empty_like(x)
    for k, rows in enumerate(groups):
        for c in range(x.shape[1]):
            seen = x[rows, c]
            mu = seen.mean()
            sigma = ((seen - mu).square().mean() + eps).sqrt()
            y[rows, c] = layer.weight[k, c] * (seen - mu) / sigma + layer.bias[k, c]
    return y


@settings(deadline=None, max_examples=6)
@given(groups=st.integers(1, 5), rows=st.integers(1, 17), places=st.sampled_from([(3, 2), (4,), (2, 1, 2)]))
def test_it_is_the_equation_whether_or_not_the_groups_are_equal(
    groups: int, rows: int, places: tuple[int, ...]
) -> None:
    rows = max(rows, groups)
    x, layer = rand(rows, 3, *places), layer_of(3, groups)
    size, longer = divmod(rows, groups)
    cut = longer * (size + 1)
    dealt = [list(range(k, cut, longer)) for k in range(longer)]
    dealt += [list(range(cut + k, rows, groups - longer)) for k in range(groups - longer)]
    for training in (True, False):
        assert_close(layer.train(training)(x), as_printed(x, layer, dealt))


def test_one_group_is_batch_normalisation_in_training_mode() -> None:
    x, layer, theirs = rand(12, 3, 4, 4), layer_of(3, 1), nn.BatchNorm2d(3).double()
    theirs.weight.data, theirs.bias.data = layer.weight.data[0], layer.bias.data[0]
    assert_close(layer(x), theirs.train()(x))
    assert_close(layer.eval()(x), theirs(x))  # and in eval mode too: there are no running averages
    assert not list(layer.buffers())


def test_one_input_a_group_with_shared_parameters_is_instance_normalisation() -> None:
    x, layer = rand(6, 3, 4, 4), LocalNorm(3, 6).double()
    assert_close(layer(x), F.instance_norm(x))
    layer = LocalNorm(3, 2).double().eval()
    layer.alone = 1
    assert_close(layer(x), F.instance_norm(x))


def test_mean_and_deviation_of_a_group_are_its_shift_and_its_scale() -> None:
    layer = layer_of(3, 4)
    y = layer(50 + 9 * rand(20, 3, 5, 5)).unflatten(0, (5, 4))  # 5 k c h w
    assert_close(y.mean((0, 3, 4)), layer.bias.data, rtol=0, atol=1e-6)
    assert_close(y.std((0, 3, 4), correction=0), layer.weight.data.abs(), rtol=1e-5, atol=0)


@settings(deadline=None, max_examples=12)
@given(st.lists(st.floats(0.1, 10), min_size=6, max_size=6), st.lists(st.floats(-20, 20), min_size=6, max_size=6))
def test_contrast_and_brightness_of_a_whole_group_do_not_matter(a: list[float], b: list[float]) -> None:
    x, layer = rand(8, 3, 4, 4), layer_of(3, 2)
    layer.eps = 1e-12
    times, plus = (torch.tensor(v).double().view(1, 2, 3, 1, 1) for v in (a, b))
    changed = (x.unflatten(0, (4, 2)) * times + plus).flatten(0, 1)
    assert_close(layer(changed), layer(x), rtol=1e-6, atol=1e-6)


def test_places_inside_a_group_do_not_matter_and_groups_do() -> None:
    x, layer = rand(8, 3, 4, 4), layer_of(3, 2)
    y = layer(x)
    inside = torch.tensor([2, 1, 0, 3, 6, 7, 4, 5])  # even rows are of one group, odd rows of the other
    assert_close(layer(x[inside]), y[inside])
    across = torch.tensor([1, 0, 2, 3, 4, 5, 6, 7])
    assert (layer(x[across])[0] - y[1]).abs().max() > 0.05


def net_of(groups: int = 4, mode: Mode = "single-vote", rotations: int = 0, alike: bool = False) -> LocalNormed:
    torch.manual_seed(0)
    plain = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 5, 3), nn.BatchNorm2d(5), nn.ReLU(),
        nn.Flatten(), nn.Linear(80, 3),
    )  # fmt: skip
    made = with_local_norm(plain.double().eval(), groups, mode, rotations=rotations)
    return made if alike else scattered_norms(made)


def scattered_norms(net: LocalNormed) -> LocalNormed:
    for i, layer in enumerate(m for m in net.modules() if isinstance(m, LocalNorm)):
        scattered(layer, seed=10 * i)
    return net


def test_groups_of_a_net_are_blocks_of_neighbours_in_training_and_in_mode_batch() -> None:
    net, x = net_of(3, "batch"), rand(11, 1, 8, 8)  # 4, 4 and 3 inputs
    want = []
    for k, block in enumerate(x.tensor_split(3)):
        one = with_one_group(net, k)
        want.append(one(block))
    assert_close(net.eval()(x), torch.cat(want))
    assert_close(net.train()(x), torch.cat(want))
    assert net.eval()(x[:2]).shape == (2, 3)  # fewer than groups, when asked


def with_one_group(net: LocalNormed, k: int) -> nn.Module:
    """The net of the k-th group alone, on the statistics of all that it is shown."""
    one = copy.deepcopy(net)
    for layer in one.modules():
        if isinstance(layer, LocalNorm):
            layer.weight.data, layer.bias.data = layer.weight.data[k : k + 1], layer.bias.data[k : k + 1]
            layer.groups, layer.alone, layer.only = 1, 0, None
    return one.net


def test_voting_shows_the_batch_to_each_group_and_the_vote_is_the_mean_or_the_majority() -> None:
    net, x = net_of(4, "voting"), rand(7, 1, 8, 8)
    each = torch.stack([with_one_group(net, k)(x) for k in range(4)])
    assert_close(net.members(x), each)
    assert_close(net(x).softmax(-1), each.softmax(-1).mean(0))
    said = majority(each, torch.Generator().manual_seed(0))
    for n in range(7):
        counts = torch.bincount(each[:, n].argmax(-1), minlength=3)
        assert counts[said[n]] == counts.max()


def test_a_tie_of_votes_is_broken_at_random() -> None:
    each = torch.eye(3)[torch.tensor([[0] * 400, [0] * 400, [2] * 400, [2] * 400])]  # four members, 0 and 2 twice each
    said = majority(each, torch.Generator().manual_seed(0))
    share = float((said == 2).double().mean())
    assert set(said.tolist()) == {0, 2}
    assert 0.4 < share < 0.6
    said = majority(torch.cat([each, each[:1]]), torch.Generator().manual_seed(0))  # three for 0, two for 2
    assert not said.any()


@pytest.mark.parametrize("rotations", [0, 3])
def test_alone_each_input_has_its_own_statistics_whatever_its_company(rotations: int) -> None:
    net, x = net_of(4, "single-vote", rotations), rand(6, 1, 8, 8)
    each = net.members(x)
    for i in range(6):
        copies = torch.cat([torch.rot90(x[i : i + 1], -q, (-2, -1)) for q in range(rotations + 1)])
        for k in range(4):
            assert_close(each[k, i], with_one_group(net, k)(copies)[0])
    assert_close(torch.cat([net(x[i : i + 1]) for i in range(6)]), net(x))
    assert_close(net.asked("single", rotations=rotations, group=2)(x), each[2])


def test_the_first_turn_is_a_quarter_clockwise() -> None:
    net, x = net_of(2, "single", 1), rand(1, 1, 8, 8)
    turned = x.transpose(-2, -1).flip(-1)
    assert_close(net(x), with_one_group(net, 0)(torch.cat([x, turned]))[:1])


@pytest.mark.parametrize(("one", "all_"), [("single", "single-vote"), ("batch", "voting")])
def test_where_all_groups_are_alike_the_vote_is_the_single_answer(one: Mode, all_: Mode) -> None:
    x = rand(4, 1, 8, 8)
    for groups in (1, 4):
        batch = x if one == "single" or groups == 1 else x[:1].expand(4, -1, -1, -1)  # statistics alike, too
        said = net_of(groups, one, alike=True)(batch).log_softmax(-1)
        assert_close(net_of(groups, all_, alike=True)(batch).log_softmax(-1), said)


def test_company_matters_in_the_modes_of_a_batch_and_in_no_other() -> None:
    x, other = rand(4, 1, 8, 8), rand(4, 1, 8, 8, seed=9)
    for mode in MODES:
        net = net_of(2, mode)
        moved = (net(torch.cat([x[:2], other]))[:2] - net(x)[:2]).abs().max()
        assert (moved > 1e-3) == (mode in ("batch", "voting"))


@pytest.mark.parametrize(("mode", "rotations"), [("single", 3), ("single-vote", 1), ("voting", 0)])
def test_its_layers_see_few_rows_at_once_and_it_says_the_same(
    mode: Mode, rotations: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    net, x = net_of(4, mode, rotations), rand(7, 1, 8, 8)
    whole, sizes = net.members(x), list[int]()
    net.net.register_forward_pre_hook(lambda _, args: sizes.append(len(args[0])))
    monkeypatch.setattr("assay.nn.local_norm.AT_ONCE", 21)
    assert_close(net.members(x), whole)
    assert max(sizes) <= 21
    assert sum(sizes) == 7 * len(whole) * (1 + rotations)
    sizes.clear()
    assert_close(net(x), net.asked(mode, rotations=rotations)(x))
    assert all(layer.only is None for layer in net.modules() if isinstance(layer, LocalNorm)) == (mode != "single")


def test_a_map_of_one_place_warns_that_nothing_of_the_input_is_left() -> None:
    layer = layer_of(3, 2, alone=1).eval()
    x = rand(4, 3, 1, 1).requires_grad_()
    with pytest.warns(UserWarning, match="output is the shift beta and says nothing of the input"):
        y = layer(x)
    assert_close(y, layer.bias.repeat(2, 1).view(4, 3, 1, 1))
    (slope,) = torch.autograd.grad(y.sum(), x)
    assert not slope.any()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        layer.train()(x)  # two inputs to a group
        layer_of(3, 2, alone=2).eval()(x)


def test_the_converter_takes_scale_shift_and_what_is_frozen_over_and_leaves_the_net_as_it_was() -> None:
    plain = nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2, eps=1e-3), nn.Flatten(), nn.BatchNorm1d(8, affine=False)
    )
    assert isinstance(plain[1], nn.BatchNorm2d)
    plain[1].weight.data.uniform_(1, 2)
    plain[1].bias.requires_grad_(False)
    kept = {name: value.clone() for name, value in plain.state_dict().items()}
    made = with_local_norm(plain, 3)
    first, second = (m for m in made.modules() if isinstance(m, LocalNorm))
    assert_close(first.weight.data, plain[1].weight.data.expand(3, -1))
    assert (first.eps, first.weight.requires_grad, first.bias.requires_grad) == (1e-3, True, False)
    assert_close(second.weight.data, torch.ones(3, 8))
    assert_close(dict(plain.state_dict()), kept)
    assert norms(plain) == 2
    assert norms(made) == 0
    x = torch.randn(6, 1, 4, 4)
    assert_close(with_local_norm(plain, 1, "batch")(x), plain.train()(x))


def test_without_batch_normalisation_it_stands_behind_every_convolution() -> None:
    made = with_local_norm(nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Conv2d(2, 3, 3), nn.Flatten()), 2)
    assert made.put_in
    assert not net_of().put_in
    assert [m.channels for m in made.modules() if isinstance(m, LocalNorm)] == [2, 3]
    assert made(torch.rand(4, 1, 8, 8)).shape == (4, 48)


class Down(nn.Module):
    """No batch normalisation; it reads a layer's weight and hands another one the size that it should give."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(1, 4, 3, stride=2, padding=1), nn.ConvTranspose2d(4, 2, 3, stride=2, padding=1)

    def forward(self, x: Tensor) -> Tensor:  # n 1 h w -> n 2 h w
        z = self.down(input=x.to(self.down.weight.dtype))
        out: Tensor = self.up(z.relu(), output_size=x.shape[-2:])
        return out


def test_a_net_reads_and_calls_a_layer_that_it_stands_behind_as_it_did() -> None:
    net, x = Down(), torch.rand(6, 1, 8, 8)
    z = F.instance_norm(net.down(x)).relu()
    assert_close(with_local_norm(net, 2, "single").eval()(x), F.instance_norm(net.up(z, output_size=(8, 8))))


def test_it_stands_behind_gaussian_weights_too() -> None:
    net, x = Down(), torch.rand(6, 1, 8, 8)
    gaussian = as_variational(net, draws=2, sigma=1e-30, prior=0.1, kinds=(nn.Conv2d,))
    assert_close(with_local_norm(gaussian, 2, "single").eval()(x), with_local_norm(net, 2, "single").eval()(x))


class Frames(nn.Module):
    """Each input and its mirror image are two rows of what its layers see."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.line = nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.Linear(108, 2)

    def forward(self, x: Tensor) -> Tensor:  # n 1 8 8 -> n 2
        rows = torch.cat([x, x.flip(-1)], 1).reshape(-1, 1, 8, 8)
        said: Tensor = self.line(self.norm(self.conv(rows)).flatten(1))
        return said.view(len(x), 2, 2).mean(1)


def test_a_net_that_folds_frames_into_the_batch_has_one_group() -> None:
    net, x = Frames(), torch.rand(4, 1, 8, 8)
    folds = r"LocalNorm got \d+ rows of a batch of \d+: the net folds more .*; use groups=1 and rotations=0"
    for mode in ("single-vote", "batch", "voting"):
        with pytest.raises(ShapeError, match=folds):
            with_local_norm(net, 4, mode).eval()(x)
    two = with_local_norm(net, 2).train()
    with pytest.raises(ShapeError, match="LocalNorm got 8 rows of a batch of 4"):
        two(x)
    assert two.net(x).shape == (4, 2)  # a pass that broke off leaves nothing behind
    with pytest.raises(ShapeError, match="LocalNorm got 32 rows of a batch of 16"):
        with_local_norm(net, 1, "single", rotations=3).eval()(x)
    one = with_local_norm(net, 1, "batch")
    assert_close(one.train()(x), net.train()(x))
    nested = with_local_norm(net_of(2), 2, "single", rotations=1).eval()  # the inner one sends more rows again
    assert nested(rand(3, 1, 8, 8)).shape == (3, 3)
    alone = with_local_norm(net, 4, "single").eval()
    assert_close(torch.cat([alone(x[i : i + 1]) for i in range(4)]), alone(x))


def test_without_a_scale_it_is_of_the_kind_that_the_net_is() -> None:
    for tracks in (True, False):
        norm = nn.BatchNorm2d(3, affine=False, track_running_stats=tracks)
        made = with_local_norm(nn.Sequential(nn.Conv2d(1, 3, 3), norm).double(), 2)
        x = rand(4, 1, 8, 8)
        assert_close(made.eval()(x), F.instance_norm(made.net[0](x)).log_softmax(-1))


def test_it_starts_anew_with_ones_and_zeros() -> None:
    layer = layer_of(3, 2)
    layer.reset_parameters()
    assert_close(layer.weight.data, torch.ones(2, 3).double())
    assert_close(layer.bias.data, torch.zeros(2, 3).double())


def test_what_cannot_be_is_refused_in_one_line() -> None:
    with pytest.raises(AssayError, match="A batch of 3 inputs cannot be split into 4 groups; use groups=3 or fewer"):
        net_of(4).train()(rand(3, 1, 8, 8))
    with pytest.raises(AssayError, match="no mode='all'; it is one of single, single-vote, batch, voting"):
        net_of(mode="all")  # type: ignore[arg-type]
    with pytest.raises(AssayError, match="rotations=4"):
        net_of(rotations=4)
    with pytest.raises(AssayError, match="rotations=1 are for an input alone, and mode='voting' asks a batch"):
        net_of(mode="voting", rotations=1)
    with pytest.raises(ShapeError, match=r"shape \(1, 8, 7\) cannot be turned by a quarter; use rotations=0"):
        net_of(rotations=1).members(rand(2, 1, 8, 7))
    with pytest.raises(AssayError, match="has no batch normalisation and no convolution"):
        with_local_norm(nn.Linear(2, 2), 2)
    with pytest.raises(AssayError, match="groups=0"):
        LocalNorm(3, 0)
    with pytest.raises(AssayError, match="group=2, which is none of its 2; count them from 0"):
        net_of(2).asked("single", group=2)
    with pytest.raises(ShapeError, match="ask the net through LocalNormed"):
        layer_of(3, 2, alone=1).eval()(rand(3, 3, 2, 2))
    with pytest.raises(ShapeError, match="of 3 channels got shape"):
        layer_of(3, 2)(rand(4, 2, 2, 2))


class Rows:
    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.y)

    def take(self, index: np.ndarray) -> tuple[Tensor, Tensor]:
        return self.x[index], self.y[index]


def test_digits_stand_noise_better_on_statistics_of_the_batch_and_worse_where_it_is_sorted() -> None:
    """At seed 0: clean 0.98 and 0.96; of masked digits 0.49 with batch normalisation, 0.57 with LocalNorm.

    Dynamic batch normalisation has 0.58: that LocalNorm is ahead of it, as in print on CIFAR-10, does not show here.
    """
    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(x))
    images, labels = torch.tensor(x[order] / 16, dtype=torch.float32).view(-1, 1, 8, 8), torch.tensor(y[order])
    torch.manual_seed(0)
    plain = nn.Sequential(
        nn.Conv2d(1, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 12, 3, stride=2, padding=1),
        nn.BatchNorm2d(12), nn.ReLU(), nn.Flatten(), nn.Linear(192, 10),
    )  # fmt: skip
    local = with_local_norm(plain, 8, "batch")
    for net in (plain, local):
        fit(net, Rows(images[:1200], labels[:1200]), epochs=3, lr=0.05, batch=64, rng=torch.Generator().manual_seed(0))
        net.eval()
    shown, truth = images[1200:], labels[1200:]
    masked = spoil(shown, "MBN", 0.5, torch.Generator().manual_seed(0), form="printed")

    @torch.no_grad()
    def right(net: nn.Module, at: Tensor, order: Tensor | None = None, size: int = 64) -> float:
        order = torch.arange(len(at)) if order is None else order
        said = torch.cat([net(at[rows]).argmax(1) for rows in torch.split(order, size)])
        return float((said == truth[order]).double().mean())

    dynamic, voting, by_class = with_local_norm(plain, 1, "batch"), local.asked("voting"), truth.argsort(stable=True)
    assert right(local, shown) > right(plain, shown) - 0.03
    for net in (dynamic, local):
        assert right(net, masked) > right(plain, masked) + 0.02
        assert right(net, shown, by_class) < right(net, shown) - 0.005
    assert right(voting, masked, size=8) > right(plain, masked) + 0.02
    alone = local.asked("single")
    assert right(alone, shown, by_class) == right(alone, shown)
