"""At equal budget, robust accuracy is not above that of Foolbox and torchattacks by more than 0.5 points."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from assay.methods.attack import carlini_wagner, fgsm, minimal_norm, pgd

from .conftest import Task, accuracy

SLACK = 0.005


class Image(nn.Module):
    """The digits network on n 1 8 8, which is what the libraries expect."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.model(x.flatten(1))
        return out


@pytest.fixture
def images(digits: Task) -> tuple[nn.Module, Tensor, Tensor]:
    # a copy: the libraries leave gradients on the parameters
    return Image(copy.deepcopy(digits.model)).eval(), digits.x.reshape(-1, 1, 8, 8), digits.y


def held(model: nn.Module, x: Tensor, y: Tensor) -> float:
    return accuracy(model(x).argmax(1) != y)


@pytest.mark.parametrize("scale", [1.0, 100.0])
def test_torchattacks(images: tuple[nn.Module, Tensor, Tensor], scale: float) -> None:
    torchattacks = pytest.importorskip("torchattacks")
    plain, x, y = images

    class Scaled(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return scale * plain(x)

    model = Scaled().eval()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        for radius in (0.05, 0.1):
            theirs = held(
                model, torchattacks.PGD(model, eps=radius, alpha=radius / 8, steps=20, random_start=False)(x, y), y
            )
            ours = accuracy(pgd(model, x, y, radius=radius, steps=20, step=radius / 8, random_start=False).success)
            assert ours <= theirs + SLACK
            theirs = held(model, torchattacks.FGSM(model, eps=radius)(x, y), y)
            assert accuracy(fgsm(model, x, y, radius=radius).success) <= theirs + SLACK
        for radius in (0.3, 0.6):
            theirs = held(
                model, torchattacks.PGDL2(model, eps=radius, alpha=radius / 8, steps=20, random_start=False)(x, y), y
            )
            ours = accuracy(
                pgd(model, x, y, norm="l2", radius=radius, steps=20, step=radius / 8, random_start=False).success
            )
            assert ours <= theirs + SLACK
        for c in (0.1, 1.0):
            theirs = held(model, torchattacks.CW(model, c=c, kappa=0, steps=60, lr=0.1)(x, y), y)
            assert accuracy(carlini_wagner(model, x, y, c=c, steps=60).success) <= theirs + SLACK


def test_foolbox(images: tuple[nn.Module, Tensor, Tensor]) -> None:
    foolbox = pytest.importorskip("foolbox")
    model, x, y = images
    attacks, wrapped = foolbox.attacks, foolbox.PyTorchModel(model, bounds=(0, 1), device="cpu")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        for norm, attack, radii in (
            ("linf", attacks.LinfPGD(steps=20, rel_stepsize=1 / 8, random_start=False), (0.05, 0.1)),
            ("l2", attacks.L2PGD(steps=20, rel_stepsize=1 / 8, random_start=False), (0.3, 0.6)),
            ("l1", attacks.SparseL1DescentAttack(steps=20, rel_stepsize=1 / 8, random_start=False), (0.8, 1.6)),
        ):
            for radius in radii:
                theirs = accuracy(attack(wrapped, x, y, epsilons=radius)[2])
                got = pgd(model, x, y, norm=norm, radius=radius, steps=20, step=radius / 8, random_start=False)  # type: ignore[arg-type]
                assert accuracy(got.success) <= theirs + SLACK
        for norm, walk in (
            ("linf", attacks.LInfFMNAttack(steps=60)),
            ("l2", attacks.L2FMNAttack(steps=60)),
            ("l1", attacks.L1FMNAttack(steps=60)),
        ):
            _, found, broken = walk(wrapped, x, y, epsilons=None)
            order = {"linf": torch.inf, "l2": 2, "l1": 1}[norm]
            theirs = torch.linalg.vector_norm((found - x).flatten(1), order, dim=1)
            ours = minimal_norm(model, x, y, norm=norm, steps=60)  # type: ignore[arg-type]
            assert ours.success.sum() >= broken.sum()
            assert ours.distance[broken].mean() <= 1.01 * theirs[broken].mean()  # theirs may break fewer
