"""Tasks by their names, and tasks that others bring."""

from __future__ import annotations

import importlib.metadata
import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from assay import tasks
from assay.errors import AssayError, ShapeError


@dataclass(frozen=True)
class Angle(tasks.Task):
    """A task of somebody else: the direction of something, told in turns; `slip` spoils its score."""

    slip: float = 0.0
    flat: bool = False

    headline: ClassVar[str] = "turned right"
    good: ClassVar[str] = "is within an eighth of a turn"
    output: ClassVar[str] = "(n, 1) turns"

    def wrong_output(self, out: Any, n: int) -> str | None:
        return None if out.shape == (n, 1) else f"it returned shape {tuple(out.shape)}"

    def wrong_targets(self, targets: NDArray[Any]) -> str | None:
        return None

    def score(self, out: Tensor, target: Tensor) -> Tensor:
        if self.flat:
            return torch.ones(())
        return (1 + torch.cos(2 * math.pi * (out[:, 0] - target))) / 2 + self.slip

    def margin(self, out: Tensor, target: Tensor) -> Tensor:
        return torch.cos(2 * math.pi * (out[:, 0] - target)) - math.cos(math.pi / 4)

    def trivial(self, targets: NDArray[Any]) -> tasks.Trivial:
        return tasks.Trivial("always north", torch.zeros(1))

    def words(self, out: Tensor) -> str:
        return f"{float(out):.2f} turns"


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A package that brings a task, one whose entry point does not load, and one that is no task."""
    points = [
        importlib.metadata.EntryPoint(name, f"{where}", "assay.tasks")
        for name, where in (
            ("angle", f"{__name__}:Angle"),
            ("gone", "no_such_package:Task"),
            ("number", "math:pi"),
            ("an-angle", f"{__name__}:NORTH"),
        )
    ]
    monkeypatch.setattr(
        importlib.metadata, "entry_points", lambda group: [p for p in points if p.group == group], raising=True
    )


NORTH = Angle()


def test_ours_have_names():
    assert tasks.find("image-to-image") is tasks.ImageToImage
    assert tasks.find("labels") is tasks.Labels
    assert {name for name in tasks.OURS if name != name.lower() or " " in name or "_" in name} == set()
    assert all(tasks.find(name).__name__.lower() == name.replace("-", "") for name in tasks.OURS)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("regresion", "did you mean 'regression'"),
        ("zzz", "there are an-angle, angle, classification"),
        ("angel", "did you mean 'angle'"),
        ("gone", "'no_such_package:Task' does not load"),
        ("number", "3.14159"),
        ("an-angle", "no assay.tasks.Task"),
    ],
)
def test_what_is_no_task_is_told_in_one_line(installed: None, name: str, told: str):
    with pytest.raises(AssayError, match=told) as error:
        tasks.find(name)
    assert "\n" not in str(error.value)


def test_a_third_partys_task_is_used_like_ours(installed: None):
    found = tasks.find("angle")
    assert found is Angle
    out, target = torch.tensor([[0.0], [0.5], [torch.nan]]), torch.zeros(3)
    assert found().score(out, target).tolist() == [1.0, 0.0, 0.0]
    assert found().right(out, target).tolist() == [True, False, False]
    assert found().loss(out, target)[0] < 0 < found().loss(out, target)[1]
    assert found().strata(np.zeros(3)).tolist() == [0, 0, 0]
    assert found().average(out[:2].expand(4, 2, 1)).equal(out[:2])


@pytest.mark.parametrize(("slip", "value"), [(0.5, "1.5"), (-0.25, "-0.25"), (math.nan, "nan"), (math.inf, "inf")])
def test_a_score_outside_0_and_1_is_refused_where_it_is_used(slip: float, value: str):
    out = torch.tensor([[0.25], [0.0 if slip > 0 else 0.5]])
    with pytest.raises(AssayError, match=rf"Angle is {value} for answer [01]") as error:
        Angle(slip).score(out, torch.zeros(2))
    assert "\n" not in str(error.value)


def test_a_score_of_the_wrong_shape_is_refused():
    with pytest.raises(ShapeError, match=r"shape \(\) for 2 answers"):
        Angle(flat=True).score(torch.zeros(2, 1), torch.zeros(2))


def test_a_task_that_builds_on_another_is_looked_at_too():
    class Doubled(Angle):
        def score(self, out: Tensor, target: Tensor) -> Tensor:
            return 2 * super().score(out, target)

    with pytest.raises(AssayError, match="Doubled is 2 for answer 0"):
        Doubled().score(torch.zeros(1, 1), torch.zeros(1))
