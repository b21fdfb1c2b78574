"""Defensive distillation: its losses, what it does to logits, and who is fooled by it."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.testing import assert_close

from assay.data.arrays import Arrays
from assay.errors import AssayError
from assay.methods.attack.carlini_wagner import carlini_wagner
from assay.methods.attack.fgsm import fgsm
from assay.methods.attack.pgd import pgd
from assay.methods.train.distillation import Distillation
from assay.methods.train.fit import fit

T = 40.0


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def net() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


@pytest.fixture(scope="module")
def digits() -> tuple[Tensor, Tensor]:
    x, y = load_digits(return_X_y=True)
    return torch.tensor(x / 16, dtype=torch.float32), torch.tensor(y)


@pytest.fixture(scope="module")
def trained(digits: tuple[Tensor, Tensor]) -> dict[str, nn.Module]:
    x, y = digits
    plain, teacher, student = net(), net(), net()
    common = {"epochs": 20, "lr": 0.1, "batch": 128}
    data = Arrays(x[:1200], y[:1200])
    fit(plain, data, rng=rng(), **common)  # type: ignore[arg-type]
    fit(teacher, data, rng=rng(), loss=Distillation(T).loss, **common)  # type: ignore[arg-type]
    taught = Distillation(T, teacher.eval().requires_grad_(False))
    fit(student, data, rng=rng(1), loss=taught.loss, augment=taught.augment, **common)  # type: ignore[arg-type]
    return {"plain": plain.eval(), "student": student.eval()}


def test_at_a_temperature_of_1_the_teacher_is_the_plain_training(digits: tuple[Tensor, Tensor]) -> None:
    x, y = digits
    data = Arrays(x[:100], y[:100])
    plain, hot = net(), net()
    fit(plain, data, epochs=2, lr=0.1, rng=rng())
    fit(hot, data, epochs=2, lr=0.1, rng=rng(), loss=Distillation(1.0).loss)
    assert_close(hot.state_dict(), plain.state_dict())


def test_the_student_is_asked_for_what_the_teacher_says_at_that_temperature() -> None:
    teacher, x = net(), torch.rand(5, 64, generator=rng())
    same, soft = Distillation(T, teacher).augment(x, torch.zeros(5, dtype=torch.long), rng())
    assert torch.equal(same, x)
    told = (teacher(x) / T).exp()
    assert_close(soft, told / told.sum(1, keepdim=True))
    z = torch.randn(5, 10, generator=rng(1))
    by_hand = -sum(float(soft[i, c]) * float((z[i] / T).log_softmax(0)[c]) for i in range(5) for c in range(10)) / 5
    assert float(Distillation(T, teacher).loss(z, soft)) == pytest.approx(T * by_hand, rel=1e-5)
    # its minimum is the teacher's own logits, up to a shift of each row
    z = (teacher(x).detach() + 3).requires_grad_()
    (slope,) = torch.autograd.grad(Distillation(T, teacher).loss(z, soft), z)
    assert_close(slope, torch.zeros(5, 10), atol=1e-5, rtol=0)


def test_the_logits_grow_and_only_an_attack_on_the_loss_is_fooled(
    trained: dict[str, nn.Module], digits: tuple[Tensor, Tensor]
) -> None:
    """The temperature is 40: the student is as good as the plain net on clean inputs, its logits are many times as
    wide, the printed cross-entropy gives most inputs no gradient, and the margin breaks it as it breaks the other."""
    x, y = digits[0][1200:], digits[1][1200:]
    spread, right, flat = {}, {}, {}
    for name, model in trained.items():
        at = x.clone().requires_grad_()
        z = model(at)
        (slope,) = torch.autograd.grad(F.cross_entropy(z, y, reduction="sum"), at)
        z = z.detach()
        spread[name], right[name] = float(z.std(1).mean()), float((z.argmax(1) == y).float().mean())
        flat[name] = float((slope == 0).all(1).float().mean())
    assert right["student"] > 0.85
    assert spread["student"] > 5 * spread["plain"]
    assert flat["student"] > 0.5 > 0.1 > flat["plain"]
    student = trained["student"].requires_grad_(False)
    left = {
        way: 1 - float(pgd(student, x, y, radius=0.15, steps=10, random_start=False, **how).success.float().mean())  # type: ignore[arg-type]
        for way, how in {"printed": {"as_published": True}, "margin": {"loss": "margin"}}.items()
    }
    assert left["printed"] > left["margin"] + 0.3
    one_step = fgsm(student, x, y, radius=0.15, as_published=True).success.float().mean()
    moved = (fgsm(student, x, y, radius=0.15, as_published=True).x != x).any(1).float().mean()
    assert float(moved) < 0.5  # most inputs have no gradient to follow
    broken = carlini_wagner(student, x[:150], y[:150], c=1.0, steps=60).success.float().mean()
    assert float(broken) > 0.95 > 0.6 > float(one_step)


def test_logits_that_are_wider_by_the_temperature_have_the_plain_loss(digits: tuple[Tensor, Tensor]) -> None:
    """So that, trained to its minimum at T, a net of the same form has logits T times as wide."""
    x, y = digits
    z = net()(x[:50]).detach()
    for t in (1.0, 7.0, T):
        assert_close(Distillation(t).loss(t * z, y[:50]), t * F.cross_entropy(z, y[:50]))


def test_a_temperature_that_is_none_is_refused() -> None:
    for bad in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(AssayError, match=f"temperature={bad} is none"):
            Distillation(bad)
