from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from assay.errors import AssayError, ShapeError
from assay.methods.attack.loss import (
    Goal,
    Loss,
    LossName,
    cross_entropy,
    cross_entropy_slope,
    dlr,
    margin,
    targeted_dlr,
)


def scores(classes: int) -> tuple[Tensor, Tensor, Tensor]:
    rng = torch.Generator().manual_seed(classes)
    z = 3 * torch.randn(7, classes, generator=rng, dtype=torch.float64)
    y = torch.randint(classes, (7,), generator=rng)
    return z, y, (y + 1) % classes


@pytest.mark.parametrize("classes", [2, 3, 4, 10])
def test_each_loss_is_its_equation_row_by_row(classes: int) -> None:
    z, y, t = scores(classes)
    for i in range(len(z)):
        row, label, goal = z[i].tolist(), int(y[i]), int(t[i])
        rest = max(v for k, v in enumerate(row) if k != label)
        ranked = sorted(row, reverse=True)
        assert_close(margin(z, y)[i].item(), row[label] - rest)
        assert_close(cross_entropy(z, y)[i], torch.nn.functional.cross_entropy(z[i], y[i]))
        if classes == 2:
            assert_close(dlr(z, y)[i].item(), rest - row[label])
            assert_close(targeted_dlr(z, y, t)[i].item(), row[goal] - row[label])
            continue
        assert_close(dlr(z, y)[i].item(), (rest - row[label]) / (ranked[0] - ranked[2]))
        base = ranked[0] - (ranked[2] + ranked[3]) / 2 if classes > 3 else ranked[0] - ranked[2]
        assert_close(targeted_dlr(z, y, t)[i].item(), (row[goal] - row[label]) / base)


def test_cross_entropy_keeps_its_order_where_softmax_rounds_to_one() -> None:
    z = torch.tensor([[400.0, 0.0, -5.0], [300.0, 0.0, -5.0]], dtype=torch.float64)
    low, high = cross_entropy(z, torch.zeros(2, dtype=torch.long)).tolist()
    assert 0 < low < high
    lost = torch.tensor([[-5000.0, 0.0, -5.0]], dtype=torch.float64, requires_grad=True)
    (g,) = torch.autograd.grad(cross_entropy(lost, torch.tensor([0])).sum(), lost)
    assert_close(g, torch.tensor([[-1.0, 1.0, 0.0]], dtype=torch.float64), rtol=0, atol=0.01)  # no overflow either


@pytest.mark.parametrize("classes", [2, 3, 10])
@pytest.mark.parametrize("sharp", [1e-3, 1.0, 30.0])
def test_the_slope_of_the_cross_entropy_is_autograds(classes: int, sharp: float) -> None:
    z, y, _ = scores(classes)
    z = (sharp * z).requires_grad_()
    expected = cross_entropy(z, y)
    (gradient,) = torch.autograd.grad(expected.sum(), z)
    height, slope = cross_entropy_slope(z.detach(), y)
    assert_close(height, expected.detach(), rtol=1e-12, atol=0)
    assert_close(slope, gradient, rtol=1e-9, atol=0)


@pytest.mark.parametrize("loss", ["ce", "margin", "dlr", lambda z, y: z.square().sum(1)])
@pytest.mark.parametrize("targeted", [False, True])
@pytest.mark.parametrize("as_published", [False, True])
def test_a_goal_gives_the_gradient_of_its_height(loss: LossName | Loss, targeted: bool, as_published: bool) -> None:
    z, y, t = scores(5)
    goal = Goal(y, t if targeted else None, loss, as_published).started(z)
    height, slope = goal.slope(z)
    z.requires_grad_()
    expected = goal.height(z)
    assert_close(height, expected.detach(), rtol=1e-12, atol=0)
    assert_close(slope, torch.autograd.grad(expected.sum(), z)[0], rtol=1e-9, atol=0)


@pytest.mark.parametrize("loss", ["ce", "margin", "dlr"])
@pytest.mark.parametrize("targeted", [False, True])
@pytest.mark.parametrize("classes", [2, 3, 10])
def test_scale_and_shift_leave_the_direction_alone(loss: str, targeted: bool, classes: int) -> None:
    z, y, t = scores(classes)

    def direction(z: Tensor) -> Tensor:
        z = z.requires_grad_()
        goal = Goal(y, t if targeted else None, loss).started(z)  # type: ignore[arg-type]
        (g,) = torch.autograd.grad(goal.height(z).sum(), z)
        return (g / g.abs().amax(1, keepdim=True))[z.argmax(1) == y]  # elsewhere DLR may be flat, at its top

    plain = direction(z.clone())
    for other in (100 * z, 0.01 * z, z.log_softmax(1), z + 50):
        assert_close(direction(other.clone()), plain)


@pytest.mark.parametrize("classes", [2, 3, 4, 10])
def test_the_gradient_points_to_the_goal(classes: int) -> None:
    """While the answer is y, every loss lowers z_y or raises another class, and towards a target raises that one."""
    z, y, t = scores(classes)
    z = z.scatter_add(1, y[:, None], torch.full((7, 1), 30.0, dtype=z.dtype)).requires_grad_()
    for name in ("ce", "margin", "dlr"):
        for target in (None, t):
            (g,) = torch.autograd.grad(Goal(y, target, name).started(z).height(z).sum(), z)  # type: ignore[arg-type]
            gain = g.gather(1, t[:, None])[:, 0] if target is not None else g.amax(1)
            assert (gain > g.gather(1, y[:, None])[:, 0]).all()


def test_reached_is_the_argmax() -> None:
    z, y, t = scores(10)
    assert torch.equal(Goal(y).reached(z), z.argmax(1) != y)
    assert torch.equal(Goal(y, t).reached(z), z.argmax(1) == t)
    assert torch.equal(Goal(y, t, any_other=True).reached(z), z.argmax(1) != y)


def test_words_of_the_errors() -> None:
    z, y, _ = scores(3)
    with pytest.raises(AssayError, match="Unknown loss 'hinge'"):
        Goal(y, None, "hinge")  # type: ignore[arg-type]
    with pytest.raises(ShapeError, match="one value per input"):
        Goal(y, None, lambda z, y: z.mean()).height(z)
