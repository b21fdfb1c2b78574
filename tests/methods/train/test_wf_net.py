"""The average that teaches, the hinge, the ramp, and what a short training moves."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.testing import assert_close

from assay.data.coloured_digits import colour, palette
from assay.data.digits import load_digits
from assay.errors import AssayError
from assay.methods.train.wf_net import MARGIN, consistency_loss, follow, ramp, separation_loss, teach
from assay.nn.two_codes import TwoCodes


def nets(seed: int = 0) -> TwoCodes:
    torch.manual_seed(seed)
    return TwoCodes(3, 4, width=6, size=5)


@pytest.fixture(scope="module")
def drawn() -> tuple[torch.Tensor, torch.Tensor]:
    y = np.repeat(np.arange(4), 4)
    x = colour(np.asarray(load_digits()["train"].x, dtype=np.float32)[:16], y, palette(4))
    return torch.from_numpy(x), torch.from_numpy(y)


@pytest.mark.parametrize(("a", "n"), [(0.9, 7), (0.5, 3), (0.999, 20)])
def test_what_is_left_of_a_teacher_is_a_to_the_n(a: float, n: int) -> None:
    teacher, student = (nets(seed).look for seed in (0, 1))
    first = [p.detach().clone() for p in teacher.parameters()]
    for _ in range(n):
        follow(teacher, student, a)
    for mine, theirs, start in zip(teacher.parameters(), student.parameters(), first, strict=True):
        assert_close(mine - theirs, a**n * (start - theirs), rtol=1e-4, atol=1e-6)


def test_a_teacher_that_keeps_nothing_is_the_student_and_buffers_are_always_copied() -> None:
    teacher, student = (nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)) for _ in range(2))
    student(torch.rand(9, 3))
    follow(teacher, student, 1.0)
    assert not torch.equal(teacher[0].weight, student[0].weight)
    assert_close(teacher[1].running_mean, student[1].running_mean)
    assert int(teacher[1].num_batches_tracked) == 1
    follow(teacher, student, 0.0)
    for mine, theirs in zip(teacher.state_dict().values(), student.state_dict().values(), strict=True):
        assert_close(mine, theirs)
    with pytest.raises(AssayError, match="share 1.5"):
        follow(teacher, student, 1.5)


def test_nothing_is_lost_exactly_where_the_look_is_nearer_by_the_margin() -> None:
    g = torch.Generator().manual_seed(0)
    code, look, build = (torch.randn(200, 3, generator=g) for _ in range(3))
    gap = (code - look).norm(dim=1) - (code - build).norm(dim=1)
    loss = separation_loss(code, look, build)
    clear = (gap + MARGIN).abs() > 1e-5
    assert ((loss == 0) == (gap <= -MARGIN))[clear].all()
    assert_close(loss, (gap + MARGIN).clamp_min(0))
    printed = separation_loss(code, look, build, as_published=True)
    swapped = separation_loss(code, build, look, as_published=True)
    assert_close(printed - MARGIN, MARGIN - swapped)  # i and j the other way round turn the sign
    assert float(printed.min()) < 0


def test_lambda_is_0_then_rises_then_stays() -> None:
    assert [ramp(step) for step in (0, 29_999, 30_000)] == [0.0, 0.0, 0.0]
    assert ramp(30_001) == pytest.approx(0.0005)
    assert ramp(32_000) == pytest.approx(1.0)
    assert ramp(34_000) == pytest.approx(2.0)
    assert ramp(99_999) == 2.0
    assert ramp(13, warm_up=10, rise=0.5) == pytest.approx(1.5)


def test_consistency_is_a_length_and_not_a_square() -> None:
    sure, other = torch.tensor([[50.0, 0.0]]), torch.tensor([[0.0, 50.0]])
    assert float(consistency_loss(sure, other)) == pytest.approx(2**0.5)
    assert float(consistency_loss(sure, sure + 3)) == pytest.approx(0.0, abs=1e-6)


def test_codes_have_their_shapes_and_the_build_sees_no_colour(drawn: tuple[torch.Tensor, torch.Tensor]) -> None:
    x, _ = drawn
    net = nets().eval()
    f, s = net.look(x), net.build(x)
    assert f.shape == (16, 5)
    assert s.shape == (16, 6, 4, 4)
    out = net.draw(f, s)
    assert out.shape == x.shape
    assert bool(((out > 0) & (out < 1)).all())
    assert net.critic(x).shape == (16,)
    assert_close(net.build(x.flip(1)), s)
    assert not torch.allclose(net.look(x.flip(1)), f)
    assert net.draw(f.roll(1, 0), s).shape == x.shape
    assert not torch.allclose(net.draw(f.roll(4, 0), s), out)


def test_the_teacher_has_no_gradient_and_follows(drawn: tuple[torch.Tensor, torch.Tensor]) -> None:
    x, y = drawn
    net = nets()
    before = copy.deepcopy(net)
    told = teach(net, x, y, steps=3, lr=1e-2, rng=torch.Generator().manual_seed(0), a=0.5, warm_up=1, rise=1.0)
    assert all(p.grad is None and not p.requires_grad for p in net.teacher.parameters())
    assert set(told) == {"L1", "L2", "L_f", "L_s", "L_id^s", "L_id^c", "L_adv", "L_cons", "L_trip"}
    assert all(np.isfinite(loss) for loss in told.values())
    was, now, student = (m.code.weight.detach() for m in (before.teacher, net.teacher, net.look))
    assert not torch.equal(now, was)
    assert float((now - student).norm()) < float((was - student).norm())
    assert not net.training
    for name in ("build", "draw", "critic"):
        assert not torch.equal(next(getattr(net, name).parameters()), next(getattr(before, name).parameters()))


def test_the_warm_up_has_neither_of_the_two_terms_and_the_baseline_draws_nothing(
    drawn: tuple[torch.Tensor, torch.Tensor],
) -> None:
    x, y = drawn

    def trained(**options: object) -> tuple[TwoCodes, dict[str, float]]:
        net = nets()
        rng = torch.Generator().manual_seed(0)
        told = teach(net, x, y, steps=2, lr=1e-2, rng=rng, **options)  # type: ignore[arg-type]
        return net, told

    warm = trained(warm_up=5)[0]
    off = trained(warm_up=0, consistent=False, separate=False)[0]
    on = trained(warm_up=0, consistent=False)[0]
    assert_close(warm.look.code.weight, off.look.code.weight)
    assert not torch.allclose(on.look.code.weight, off.look.code.weight)
    plain, told = trained(generates=False)
    assert set(told) == {"L_id^s"}
    assert torch.equal(plain.draw.looks.weight, nets().draw.looks.weight)
    assert "L2" not in trained(crossed=False)[1]
    with pytest.raises(AssayError, match="an even number"):
        trained(each=3)
