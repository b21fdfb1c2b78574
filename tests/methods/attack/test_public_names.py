from __future__ import annotations

import weakref
from types import ModuleType

import pytest
import torch
from torch import Tensor

import assay.methods.attack as attack
from assay.methods.attack import apgd, carlini_wagner, fgsm, minimal_norm, pgd

from .conftest import Task


def test_public_names_are_the_things_themselves_not_their_files() -> None:
    assert {"Attacked", "Ball", "apgd", "carlini_wagner", "distance", "fgsm", "minimal_norm", "pgd"} <= set(
        attack.__all__
    )
    assert not any(isinstance(getattr(attack, name), ModuleType) for name in attack.__all__)


@pytest.mark.parametrize("run", [pgd, apgd, carlini_wagner, minimal_norm], ids=lambda run: run.__name__)
def test_memory_does_not_grow_with_steps_or_restarts(digits: Task, run: object) -> None:
    """Of all the points that the model was shown, few are alive at any time: no graph and no path is kept."""
    shown: list[weakref.ref[Tensor]] = []
    alive: list[int] = []

    def model(x: Tensor) -> Tensor:
        shown.append(weakref.ref(x))
        alive.append(sum(ref() is not None for ref in shown))
        out: Tensor = digits.model(x)
        return out

    budget = {"radius": 0.02, "leave": False} if run in (pgd, apgd) else {}
    again = {"restarts": 3} if run in (pgd, apgd) else {}
    run(model, digits.x[:20], digits.y[:20], steps=40, **budget, **again)  # type: ignore[operator]
    assert len(shown) >= 40 * again.get("restarts", 1)
    assert max(alive) <= 6


def test_parameters_stay_as_they_are(digits: Task) -> None:
    before = [p.clone() for p in digits.model.parameters()]
    x, y = digits.x[:10], digits.y[:10]
    fgsm(digits.model, x, y, radius=0.1)
    apgd(digits.model, x, y, radius=0.1, steps=5)
    carlini_wagner(digits.model, x, y, steps=5)
    minimal_norm(digits.model, x, y, steps=5)
    for p, old in zip(digits.model.parameters(), before, strict=True):
        assert p.grad is None
        assert torch.equal(p, old)
