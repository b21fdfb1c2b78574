"""The training loop: what it promises about order, seeds, state and failure."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.testing import assert_close

from assay.errors import AssayError
from assay.methods.train.centralize import Centralizer
from assay.methods.train.fit import fit, into_training, reset


@dataclass
class Held:
    """Rows in memory; remembers which were asked for."""

    x: np.ndarray | Tensor
    y: np.ndarray | Tensor
    asked: list[list[int]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.x)

    def take(self, index: np.ndarray) -> tuple[np.ndarray | Tensor, np.ndarray | Tensor]:
        self.asked.append(index.tolist())
        return self.x[index], self.y[index]


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def toy(n: int = 20, seed: int = 0) -> Held:
    return Held(torch.randn(n, 2, 4, 4, generator=rng(seed)), torch.arange(n) % 3)


def toy_net(seed: int = 0) -> nn.Sequential:
    net = nn.Sequential(
        nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Dropout(0.3), nn.Flatten(), nn.Linear(12, 3)
    )
    return reset(net, rng(seed))


def weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def test_it_learns_the_digits():
    images, labels = load_digits(return_X_y=True)
    x, y = (images / 16).reshape(-1, 1, 8, 8).astype(np.float32), labels.astype(np.int64)
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(256, 32), nn.ReLU(), nn.Linear(32, 10),
    )  # fmt: skip
    net = reset(net, rng())
    hands = Centralizer(net, fully=True)
    order = np.random.default_rng(0).permutation(len(x))
    inside, outside = order[:1200], order[1200:]
    curve = fit(
        net, Held(x[inside], y[inside]), epochs=8, lr=0.05, batch=32, rng=rng(),
        after_backward=hands.after_backward, after_step=hands.after_step,
    )  # fmt: skip
    with torch.no_grad():
        hits = net(torch.as_tensor(x[outside])).argmax(1).numpy() == y[outside]
    assert hits.mean() > 0.95
    assert len(curve.epochs) == 8
    assert curve.epochs[-1] < 0.1 < curve.epochs[0]
    assert net[0].weight.detach().flatten(1).mean(1).abs().max() < 1e-7


def test_the_weights_follow_the_printed_recursion():
    """Nesterov, weight decay and cosine, written out for a linear model; one batch per epoch, so no order matters."""
    x, y = torch.randn(7, 4, generator=rng(1), dtype=torch.float64), torch.arange(7) % 3
    net = reset(nn.Linear(4, 3, bias=False).double(), rng())
    w, v = net.weight.detach().clone(), torch.zeros(3, 4, dtype=torch.float64)
    fit(net, Held(x, y), epochs=6, lr=0.3, batch=7, momentum=0.8, weight_decay=0.05, rng=rng())
    for t in range(6):
        grad = (torch.softmax(x @ w.T, 1) - F.one_hot(y, 3)).T @ x / 7
        d = grad + 0.05 * w
        v = 0.8 * v + d
        w = w - 0.3 * (1 + math.cos(math.pi * t / 6)) / 2 * (d + 0.8 * v)
    assert_close(net.weight.detach(), w, rtol=0, atol=1e-13)


@pytest.mark.parametrize(("optimiser", "momentum"), [("sgd", 0.0), ("sgd", 0.9), ("adam", 0.7)])
def test_a_constant_rate_is_torch_s_own_optimiser(optimiser, momentum):
    data, ours = Held(torch.randn(9, 4, generator=rng(2)), torch.arange(9) % 3), reset(nn.Linear(4, 3), rng())
    theirs = copy.deepcopy(ours)
    if optimiser == "adam":
        optim = torch.optim.Adam(theirs.parameters(), 0.02, betas=(momentum, 0.999), weight_decay=0.1)
    else:
        optim = torch.optim.SGD(theirs.parameters(), 0.02, momentum=momentum, nesterov=momentum > 0, weight_decay=0.1)
    fit(ours, data, epochs=3, lr=0.02, batch=4, momentum=momentum, weight_decay=0.1, rng=rng(),
        optimiser=optimiser, schedule="constant")  # fmt: skip
    assert len(data.asked) == 9
    for index in copy.deepcopy(data.asked):
        x, y = data.take(np.array(index))
        optim.zero_grad()
        F.cross_entropy(theirs(x), y).backward()
        optim.step()
    assert_close(dict(ours.state_dict()), dict(theirs.state_dict()))


def test_each_step_goes_backward_hook_step_hook():
    net, data, said = nn.Linear(2, 3), Held(torch.randn(4, 2, generator=rng()), torch.arange(4) % 3), []
    start = net.weight.detach().clone()
    net.weight.register_hook(lambda grad: said.append("backward"))

    def augment(x, y, generator):
        said.append("augment")
        F.cross_entropy(net(x), y).backward()  # careless, and must not reach the step
        said.pop()
        return x + torch.rand(1, generator=generator), y

    def loss(out, y):
        said.append("loss")
        return F.cross_entropy(out, y)

    def after_backward():
        said.append("after_backward")
        assert_close(net.weight.detach(), start)
        net.weight.grad.fill_(1.0)
        net.bias.grad.zero_()

    def after_step():
        said.append("after_step")
        assert_close(net.weight.detach(), start - 0.5)  # the step used what after_backward left
        net.weight.data.copy_(start)

    fit(net, data, epochs=2, lr=0.5, momentum=0, batch=4, rng=rng(), schedule="constant", loss=loss, augment=augment,
        after_backward=after_backward, after_step=after_step,
        on_epoch=lambda done, mean: said.append(f"epoch {done}"))  # fmt: skip
    step = ["augment", "loss", "backward", "after_backward", "after_step"]
    assert said == [*step, "epoch 1", *step, "epoch 2"]


def test_a_seed_gives_the_same_weights_and_leaves_the_global_generator_alone():
    ends = []
    for seed, noise in [(3, 1), (3, 2), (4, 1)]:
        net = toy_net()
        torch.default_generator.manual_seed(noise)
        before = torch.get_rng_state()
        curve = fit(net, toy(), epochs=3, lr=0.1, batch=6, rng=rng(seed))
        assert_close(torch.get_rng_state(), before, rtol=0, atol=0)
        ends.append((weights(net), curve))
    assert_close(ends[0][0], ends[1][0], rtol=0, atol=0)
    assert ends[0][1] == ends[1][1]
    assert (ends[0][0]["0.weight"] - ends[2][0]["0.weight"]).abs().max() > 1e-4


def test_what_augment_draws_does_not_move_the_order():
    plain, drawn = toy(), toy()
    fit(toy_net(), plain, epochs=2, lr=0.1, batch=6, rng=rng())
    fit(toy_net(), drawn, epochs=2, lr=0.1, batch=6, rng=rng(),
        augment=lambda x, y, g: (x + torch.randn(x.shape, generator=g), y))  # fmt: skip
    assert plain.asked == drawn.asked


def test_every_epoch_sees_every_input_once_in_even_batches():
    data = toy(n=13)
    curve = fit(toy_net(), data, epochs=3, lr=0.1, batch=4, rng=rng())  # 13 = 3 * 4 + 1: a rest of one breaks BatchNorm
    sizes = [len(index) for index in data.asked]
    assert sizes == [4, 3, 3, 3] * 3
    for epoch in range(3):
        assert sorted(i for index in data.asked[4 * epoch : 4 * epoch + 4] for i in index) == list(range(13))
        steps = curve.steps[4 * epoch : 4 * epoch + 4]
        assert curve.epochs[epoch] == pytest.approx(np.average(steps, weights=sizes[:4]))
    assert data.asked[:4] != data.asked[4:8]


def test_modes_layout_and_gradients_are_as_before():
    net = toy_net()
    net[1].eval()
    modes, strides = [m.training for m in net.modules()], [p.stride() for p in net.parameters()]
    inside = []

    def look(_done: int, _mean: float) -> None:
        inside.append((net[3].training, net[0].weight.is_contiguous(memory_format=torch.channels_last)))
        net.eval()

    fit(net, toy(), epochs=2, lr=0.1, rng=rng(), on_epoch=look)
    assert inside == [(True, True), (True, True)]
    assert [m.training for m in net.modules()] == modes
    assert [p.stride() for p in net.parameters()] == strides
    assert all(p.grad is None for p in net.parameters())


def test_frozen_parameters_stay_and_numpy_and_soft_targets_serve():
    net = toy_net()
    net[0].requires_grad_(False)
    before = weights(net)
    data = Held(toy().x.numpy(), toy().y.numpy())
    soft = lambda x, y, g: (x, F.one_hot(y, 3).float())  # noqa: E731
    fit(net, data, epochs=2, lr=0.1, rng=rng(), augment=soft)
    assert_close(net[0].weight, before["0.weight"], rtol=0, atol=0)
    assert (net[5].weight - before["5.weight"]).abs().max() > 1e-3


def test_running_means_of_a_frozen_normalisation_stay_as_its_parameters_do():
    net = toy_net()
    net[1].requires_grad_(False)
    before = weights(net)
    fit(net, toy(), epochs=2, lr=0.1, rng=rng(), on_epoch=lambda *_: net.eval())
    for name, kept in net[1].state_dict().items():
        assert_close(kept, before[f"1.{name}"], rtol=0, atol=0)
    half = toy_net()
    half[1].bias.requires_grad_(False)
    fit(half, toy(), epochs=2, lr=0.1, rng=rng())
    assert (half[1].running_mean - before["1.running_mean"]).abs().max() > 1e-3
    still = toy_net().requires_grad_(False)
    assert all(module.training for module in into_training(still.eval()).modules())  # all of it, so nothing is frozen


def test_a_loss_that_is_not_finite_says_where_and_what_to_do():
    net, calls = toy_net(), []

    def loss(out, y):
        calls.append(1)
        return F.cross_entropy(out, y) * (math.inf if len(calls) == 7 else 1)

    net.eval()
    with pytest.raises(AssayError, match=r"became inf in epoch 2 of 4, batch 3 of 4; .*try lr=0\.05"):
        fit(net, toy(), epochs=4, lr=0.5, batch=5, rng=rng(), loss=loss)
    assert not net.training
    assert all(p.isfinite().all() for p in net.parameters())  # stopped before the step


def test_a_nan_in_the_data_or_in_the_weights_is_called_that():
    data = toy()
    data.x[3, 0, 1, 1] = math.nan
    with pytest.raises(AssayError, match=r"became nan in epoch 1 of 1, .*1 of its 20 inputs hold NaN or inf: clean"):
        fit(toy_net(), data, epochs=1, lr=0.1, rng=rng())
    net = toy_net()
    net[5].weight.data[0, 0] = math.nan
    with pytest.raises(AssayError, match=r"batch 1 of 1; the weights of 5\.weight are no longer finite: try lr=0\.01"):
        fit(net, toy(), epochs=1, lr=0.1, rng=rng())
    net = toy_net()
    spoil = lambda: net[5].weight.data.fill_(math.inf)  # noqa: E731
    with pytest.raises(AssayError, match=r"last of 1 training steps left NaN or inf in 5\.weight; try lr=0\.01"):
        fit(net, toy(), epochs=1, lr=0.1, rng=rng(), after_step=spoil)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"epochs": 0}, "epochs=0, batch=128, lr=0.1; it wants at least 1"),
        ({"batch": 0}, "batch=0"),
        ({"lr": math.nan}, "lr=nan"),
        (
            {"optimiser": "lion"},
            "optimiser='lion', schedule='cosine'; it knows sgd or adam or adamw, and cosine or constant",
        ),
        ({"schedule": "steps"}, "schedule='steps'"),
    ],
)
def test_bad_settings_are_refused(change, words):
    with pytest.raises(AssayError, match=words):
        fit(toy_net(), toy(), **{"epochs": 1, "lr": 0.1, "rng": rng(), **change})


def test_nothing_to_train_and_nothing_to_train_on():
    with pytest.raises(AssayError, match="0 inputs"):
        fit(toy_net(), toy(n=0), epochs=1, lr=0.1, rng=rng())
    with pytest.raises(AssayError, match=r"requires_grad_\(True\)"):
        fit(toy_net().requires_grad_(False), toy(), epochs=1, lr=0.1, rng=rng())


def test_reset_is_a_fresh_copy_that_depends_on_the_seed_alone():
    trained, untrained = toy_net(), toy_net(9)
    fit(trained, toy(), epochs=2, lr=0.1, rng=rng())
    before, state = weights(trained), torch.get_rng_state()
    once, again, other = reset(trained, rng(1)), reset(untrained, rng(1)), reset(trained, rng(2))
    assert_close(torch.get_rng_state(), state, rtol=0, atol=0)
    assert_close(weights(trained), before, rtol=0, atol=0)
    assert_close(weights(once), weights(again), rtol=0, atol=0)
    assert (once[0].weight - other[0].weight).abs().max() > 1e-2
    assert once[1].running_mean.abs().max() == 0  # batch normalisation forgets what it saw
    assert once[1].num_batches_tracked == 0
    assert once[0].weight.abs().max() <= 18**-0.5 + 1e-6  # U(-1/sqrt(fan in), 1/sqrt(fan in)), as a new Conv2d


def test_reset_lets_a_parent_have_the_last_word_and_keeps_plain_buffers():
    class Zeroed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last = nn.Linear(2, 2)
            self.register_buffer("mean", torch.tensor(0.5))

        def reset_parameters(self) -> None:
            nn.init.zeros_(self.last.weight)

    fresh = reset(nn.Sequential(Zeroed()), rng())
    assert fresh[0].last.weight.abs().max() == 0
    assert fresh[0].mean == 0.5


def test_reset_names_the_modules_that_it_cannot_reset():
    class Scale(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.by = nn.Parameter(torch.ones(1))

    with pytest.raises(AssayError, match=r"Cannot re-initialise head\.scale \(Scale\): .* no reset_parameters"):
        reset(nn.ModuleDict({"head": nn.ModuleDict({"scale": Scale(), "line": nn.Linear(2, 2)})}), rng())
    with pytest.raises(AssayError, match=r"the model itself \(Scale\)"):
        reset(Scale(), rng())


def test_one_cycle_goes_up_for_a_quarter_of_the_steps_and_down_to_nothing():
    """With a gradient of 1 and no momentum each step is the learning rate."""
    line, seen = nn.Linear(1, 1, bias=False), []
    fit(
        line,
        Held(torch.ones(8, 1), torch.zeros(8)),
        epochs=1,
        lr=0.6,
        batch=1,
        momentum=0.0,
        schedule="one-cycle",
        loss=lambda out, y: out.mean(),
        after_step=lambda: seen.append(line.weight.item()),
        rng=rng(),
    )
    taken = [a - b for a, b in pairwise(seen)]
    assert_close(torch.tensor(taken), torch.tensor([0.3, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1]), atol=1e-5, rtol=0)


def test_swift_passes_are_bf16_and_channels_last_and_weights_stay_float32(monkeypatch):
    """What is compiled is looked at uncompiled here."""
    asked = []

    def compiled(ask, *, dynamic):
        assert not dynamic

        def look(x):
            asked.append(x.is_contiguous(memory_format=torch.channels_last))
            return ask(x)

        return look

    monkeypatch.setattr(torch, "compile", compiled)
    plain, swift, inner = toy_net(), toy_net(), []
    swift[0].register_forward_hook(lambda module, x, out: inner.append(out.dtype))
    curves = [
        fit(net, toy(), epochs=2, lr=0.05, batch=8, rng=rng(1), swift=fast)
        for net, fast in ((plain, False), (swift, True))
    ]
    assert asked == [True] * 6
    assert set(inner) == {torch.bfloat16}
    assert {p.dtype for p in swift.parameters()} == {torch.float32}
    assert curves[1].steps == pytest.approx(curves[0].steps, abs=0.02)
    assert curves[1].steps != curves[0].steps
