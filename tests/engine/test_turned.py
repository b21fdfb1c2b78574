"""Convolutions by another way: the same answers and gradients of every order; who does not fit is left alone."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.testing import assert_close

from assay.data.arrays import Arrays
from assay.engine import turned as module
from assay.engine.turned import is_on, laid, pays, turned
from assay.jobs.audit import audit
from assay.subject import Subject


class Counted:
    """How often the other way was taken."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.times, true = 0, module._convolved

        def convolved(*args: object, **kwargs: object) -> Tensor | None:
            found = true(*args, **kwargs)  # type: ignore[arg-type]
            self.times += found is not None
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
    if last:
        x, w = (t.contiguous(memory_format=torch.channels_last) for t in (x, w))
    b = drawn(out, seed=3) if biased else None
    padding = tuple(part.draw(st.integers(0, dilation * (k - 1))) for k in (high, wide))
    with pytest.MonkeyPatch.context() as patch:
        taken = Counted(patch)
        with turned(True):
            there = slopes(x, w, b, padding=padding, dilation=dilation)
        assert taken.times == 1
    assert_close(there, slopes(x, w, b, padding=padding, dilation=dilation), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("channels", [3, 12])
def test_gradients_of_gradients_forward_derivatives_and_batches_of_them_are_too(channels: int) -> None:
    w = drawn(24, channels, 3, 3, seed=2) / 10

    def height(x: Tensor) -> Tensor:
        return F.conv2d(x, w, padding=1).square().tanh().sum()

    def all_of(x: Tensor) -> tuple[Tensor, ...]:
        at = x.clone().requires_grad_()
        (first,) = torch.autograd.grad(height(at), at, create_graph=True)
        (second,) = torch.autograd.grad(first.square().sum(), at)
        _, forward = torch.func.jvp(height, (x,), (torch.ones_like(x),))
        each = torch.func.vmap(torch.func.grad(lambda one: height(one[None])))(x)
        return first.detach(), second, forward, each

    x = drawn(6, channels, 10, 10)
    with turned(True):
        there = all_of(x)
    assert_close(there, all_of(x), rtol=1e-4, atol=1e-5)


def test_who_does_not_fit_goes_torchs_own_way(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = Counted(monkeypatch)
    x, w = drawn(8, 12, 10, 10).requires_grad_(), drawn(24, 12, 3, 3)
    with turned(True):
        for how in ({"stride": 2}, {"padding": "same"}, {"padding": 3}, {"groups": 2}):
            F.conv2d(x, w[:, :6] if "groups" in how else w, **how)  # type: ignore[arg-type]
        F.conv2d(x, w.clone().requires_grad_())  # it learns
        F.conv2d(x, w, drawn(24).requires_grad_())
        F.conv2d(x.detach(), w)  # nobody asks for its gradient
        F.conv2d(x.double(), w.double())
        F.conv2d(x[:1, :, :5, :5], w)  # few places
        F.conv2d(x[0], w)  # one image without a batch
        F.conv2d(x[:, :6], w[:, :6])  # neither few channels nor many
        F.conv2d(x[:, :3], w[:8, :3])  # to few
        with torch.no_grad():
            F.conv2d(x, w)
        assert taken.times == 0
        F.conv2d(input=x, weight=w, stride=[1], padding=[1])  # type: ignore[arg-type]
        assert taken.times == 1
    F.conv2d(x, w)
    assert taken.times == 1  # outside


def test_it_is_on_inside_once_and_off_again_after_an_error() -> None:
    assert not is_on()
    with turned(False):
        assert not is_on()
    with turned(True):
        with turned(True):
            assert is_on()
        assert is_on()
    with pytest.raises(RuntimeError), turned(True):
        F.conv2d(drawn(2, 3, 4, 4), drawn(2, 5, 3, 3))
    assert not is_on()
    assert not pays("cuda")


def test_kernels_lie_channels_last_inside_and_keep_what_was_changed_there() -> None:
    net = nn.Sequential(nn.Conv2d(4, 6, 3), nn.Conv2d(6, 6, 3, groups=6), nn.Flatten(), nn.Linear(6, 2))
    before = {name: p.detach().clone() for name, p in net.named_parameters()}
    first, apart = (net.get_parameter(f"{k}.weight") for k in (0, 1))
    with laid(net, True), laid(net, True):
        assert first.is_contiguous(memory_format=torch.channels_last)
        assert not first.is_contiguous()
        assert apart.is_contiguous()
        with torch.no_grad():
            first.mul_(2)
    assert first.is_contiguous()
    assert torch.equal(first, 2 * before["0.weight"])
    assert all(torch.equal(p, before[name]) for name, p in net.named_parameters() if name != "0.weight")
    with laid(net, False):
        assert first.is_contiguous()
    bound = nn.utils.parametrizations.weight_norm(nn.Conv2d(4, 6, 3))
    with laid(bound, True):  # its kernel is computed, and left
        bound(drawn(1, 4, 5, 5))


def test_an_audit_asks_by_it_where_it_pays_and_finds_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    x = drawn(40, 3, 12, 12).sigmoid().numpy()
    y = (x.mean((1, 2, 3)) > x.mean()).astype("int64")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = nn.Sequential(nn.Conv2d(3, 24, 3), nn.ReLU(), nn.Conv2d(24, 8, 3), nn.Flatten(), nn.Linear(512, 2))
    taken, found = Counted(monkeypatch), []
    for here in (False, True):
        monkeypatch.setattr(module, "pays", lambda device, here=here: here)
        subject = Subject.classifier(net, {"test": Arrays(x, y)}, name="net")
        answer = audit(subject, probes=["worst-case-accuracy"]).row("worst-case-accuracy").answer
        assert answer.finding is not None
        found.append({measure.name: measure.value for measure in answer.finding.measures})
        assert (taken.times > 0) == here
    assert found[0] == pytest.approx(found[1], abs=0.05)  # one of 40 may lie on the edge
    assert all(p.is_contiguous() for p in net.parameters())
