"""Convolutions by another way: the same answers and gradients of every order; who does not fit is left alone."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.testing import assert_close

from assay.data.arrays import Arrays
from assay.engine import turned as module
from assay.engine.turned import fastest, order_now, turned
from assay.jobs.audit import audit
from assay.subject import Subject


class Counted:
    """How often the other way was taken."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.times, true = 0, module._convolved
        self.orders: list[bool] = []  # whether each answer lies in rows

        def convolved(*args: object, **kwargs: object) -> Tensor | None:
            found = true(*args, **kwargs)  # type: ignore[arg-type]
            self.times += found is not None and "_Convolution" in str(found.grad_fn)
            self.orders += [] if found is None else [found.is_contiguous()]
            return found

        patch.setattr(module, "_convolved", convolved)


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def slopes(x: Tensor, w: Tensor, b: Tensor | None, **how: object) -> tuple[Tensor, Tensor]:
    at = x.clone().requires_grad_()
    out = F.conv2d(at, w, b, **how)  # type: ignore[arg-type]
    (found,) = torch.autograd.grad(out, at, drawn(*out.shape, seed=1))
    return out.detach(), found


@settings(max_examples=40, deadline=None)
@given(
    channels=st.sampled_from([1, 3, 12, 17]), out=st.sampled_from([24, 30]), high=st.integers(1, 5),
    wide=st.integers(1, 5), dilation=st.integers(1, 2), last=st.booleans(), biased=st.booleans(), part=st.data(),
)  # fmt: skip
def test_answers_and_gradients_are_those_of_torch(
    channels: int, out: int, high: int, wide: int, dilation: int, last: bool, biased: bool, part: st.DataObject
) -> None:
    x, w = drawn(4, channels, 11, 13), drawn(out, channels, high, wide, seed=2)
    b = drawn(out, seed=3) if biased else None
    padding = tuple(part.draw(st.integers(0, dilation * (k - 1))) for k in (high, wide))
    with pytest.MonkeyPatch.context() as patch:
        taken = Counted(patch)
        with turned("channels-last" if last else "rows"):
            there = slopes(x, w, b, padding=padding, dilation=dilation)
        assert taken.times == 1
    assert_close(there, slopes(x, w, b, padding=padding, dilation=dilation), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("order", ["rows", "channels-last"])
@pytest.mark.parametrize("channels", [3, 12])
def test_gradients_of_gradients_and_forward_ones_and_batches_of_them_are_too(
    channels: int, order: module.Order
) -> None:
    w = drawn(24, channels, 3, 3, seed=2) / 10

    def height(x: Tensor) -> Tensor:
        return F.conv2d(x, w, padding=1).square().tanh().sum()

    def all_of(x: Tensor) -> tuple[Tensor, ...]:
        at = x.clone().requires_grad_()
        (first,) = torch.autograd.grad(height(at), at, create_graph=True)
        (second,) = torch.autograd.grad(first.square().sum(), at)
        with forward_ad.dual_level():
            forward = forward_ad.unpack_dual(height(forward_ad.make_dual(at, torch.ones_like(x)))).tangent
        each = torch.func.vmap(torch.func.grad(lambda one: height(one[None])))(x)
        _, other = torch.func.jvp(height, (x,), (torch.ones_like(x),))
        return first.detach(), second, forward.detach(), other, each

    x = drawn(6, channels, 10, 10)
    with turned(order):
        there = all_of(x)
    assert_close(there, all_of(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("order", ["rows", "channels-last"])
def test_who_does_not_fit_goes_torchs_own_way(order: module.Order, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = Counted(monkeypatch)
    x, w = drawn(8, 12, 10, 10).requires_grad_(), drawn(24, 12, 3, 3)
    small = drawn(8, 3, 10, 10).requires_grad_()
    with turned(order):
        for how in ({"stride": 2}, {"padding": "same"}, {"padding": 3}):
            out = F.conv2d(x, w, **how)  # type: ignore[arg-type]
            assert out.is_contiguous() == (order == "rows")
            out.sum().backward()
        F.conv2d(x[:, :6], w[:, :6])  # neither few channels nor many
        F.conv2d(small, w[:8, :3])  # to few
        with torch.no_grad():
            assert F.conv2d(x, w).is_contiguous() == (order == "rows")
        F.conv2d(x.detach(), w)  # nobody asks for its gradient
        own = [
            F.conv2d(x, w[:, :6], groups=2),
            F.conv2d(x, w.clone().requires_grad_()),  # it learns
            F.conv2d(x, w, drawn(24).requires_grad_()),
            F.conv2d(x.double(), w.double()),
            F.conv2d(x[:1, :, :5, :5], w),  # few places
            F.conv2d(x[0], w),  # one image without a batch
        ]
        assert all(out.is_contiguous() for out in own)
        with torch.autocast("cpu", torch.bfloat16):  # of a model that asks for it
            F.conv2d(x, w).float().sum().backward()
        with pytest.raises(RuntimeError):
            F.conv2d(x, w[0])
        assert taken.times == 0
        F.conv2d(input=x, weight=w, stride=[1], padding=[1])  # type: ignore[arg-type]
        assert taken.times == 1
    F.conv2d(x, w)
    assert taken.times == 1  # outside


@pytest.mark.parametrize("channels", [1, 12])
def test_kernels_lie_channels_last_in_an_answer_and_are_those_of_now(channels: int) -> None:
    net, x = nn.Conv2d(channels, 24, 3), drawn(8, channels, 10, 10)
    with turned("channels-last"), torch.no_grad():
        for _ in range(2):
            out = net(x)
            assert not out.is_contiguous()
            assert net.bias is not None
            exact = F.conv2d(x.double(), net.weight.double(), net.bias.double())  # torch's own way
            assert_close(out, exact.float(), rtol=1e-4, atol=1e-4)
            net.weight.data.mul_(2)  # of which autograd's count of changes knows nothing
    assert net.weight.is_contiguous()


def test_it_is_on_inside_once_and_off_again_after_an_error() -> None:
    assert order_now() is None
    with turned(None):
        assert order_now() is None
    with turned("rows"):
        with turned("channels-last"):  # what is begun is kept
            assert order_now() == "rows"
        assert order_now() == "rows"
    with pytest.raises(RuntimeError), turned("rows"):
        F.conv2d(drawn(2, 3, 4, 4), drawn(2, 5, 3, 3))
    assert order_now() is None


@pytest.mark.parametrize(("machine", "device", "on"), [("aarch64", "cpu", True), ("x86_64", "cpu", False),
                                                       ("aarch64", "cuda", False)])  # fmt: skip
def test_it_is_taken_where_it_was_measured(
    machine: str, device: str, on: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platform.machine", lambda: machine)
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", True)
    for rows, order in ((True, "rows"), (False, "channels-last")):
        assert fastest(device, rows=rows) == (order if on else None)


def test_an_audit_asks_by_it_where_it_pays_and_finds_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    x = drawn(40, 3, 12, 12).sigmoid().numpy()
    y = (x.mean((1, 2, 3)) > x.mean()).astype("int64")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = nn.Sequential(nn.Conv2d(3, 24, 3), nn.ReLU(), nn.Conv2d(24, 8, 3), nn.Flatten(), nn.Linear(512, 2))
    taken, found = Counted(monkeypatch), []
    orders: tuple[module.Order | None, ...] = (None, "rows", "channels-last")
    for order in orders:
        monkeypatch.setattr(module, "fastest", lambda device, *, rows, order=order: order)
        taken.times = 0
        subject = Subject.classifier(net, {"test": Arrays(x, y)}, name="net")
        answer = audit(subject, probes=["worst-case-accuracy"]).row("worst-case-accuracy").answer
        assert answer.finding is not None
        found.append({measure.name: measure.value for measure in answer.finding.measures})
        assert (taken.times > 0) == (order is not None)
    for other in found[1:]:
        assert other == pytest.approx(found[0], abs=0.05)  # one of 40 may lie on the edge
