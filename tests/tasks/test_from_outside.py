"""A task that another package brings: found by its entry point and audited like ours, with nothing else touched."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from math import sin, tau
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import assay
from assay import AssayError, Subject, tasks

PACKAGE = '''
from dataclasses import dataclass
from math import tau
from typing import ClassVar

import numpy as np
import torch

from assay.tasks import Task, Trivial


@dataclass(frozen=True)
class ClockFace(Task):
    """Where a hand points, as an angle: what counts is the way around the face, 359 degrees are next to 0."""

    tolerance: float = 1 / 8
    slip: float = 0.0

    headline: ClassVar[str] = "nearness on the face"
    good: ClassVar[str] = "is near enough on the face"
    output: ClassVar[str] = "(n,) angles in turns"

    def wrong_output(self, out, n):
        return None if out.shape == (n,) else f"it returned shape {tuple(out.shape)} for {n} inputs"

    def wrong_targets(self, targets):
        return None if targets.ndim == 1 else f"targets have shape {targets.shape}"

    def off(self, out, target):
        """The shorter way around, in turns."""
        return torch.acos(torch.cos(tau * (out - target)).clamp(-1 + 1e-7, 1 - 1e-7)) / tau

    def score(self, out, target):
        return 1 - 2 * self.off(out, target) + self.slip

    def margin(self, out, target):
        return self.tolerance - self.off(out, target)

    def trivial(self, targets):
        return Trivial("always says noon", torch.zeros(()))

    def words(self, out):
        return f"{12 * (float(out) % 1):.1f} o'clock"
'''

LENGTH = 0.4  # of the hand
LATE = 1 / 32  # of a turn, that the model is off by


class Reader(nn.Module):
    """The angle of a hand whose end is at x, from the middle of the face; a little late."""

    def forward(self, x: Tensor) -> Tensor:  # n 2 -> n
        return torch.atan2(x[:, 0] - 0.5, x[:, 1] - 0.5) / tau + LATE


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package as pip would leave it, with its entry point."""
    (tmp_path / "clock_face.py").write_text(PACKAGE)
    told = tmp_path / "clock_face-1.0.dist-info"
    told.mkdir()
    (told / "METADATA").write_text("Metadata-Version: 2.1\nName: clock-face\nVersion: 1.0\n")
    (told / "entry_points.txt").write_text("[assay.tasks]\nclock-face = clock_face:ClockFace\n")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    yield
    sys.modules.pop("clock_face", None)


def hands(n: int = 48) -> tuple[np.ndarray, np.ndarray]:
    """Ends of hands all around the face, and where they point in turns."""
    turn = (np.arange(n) + 0.5) / n
    x = 0.5 + LENGTH * np.stack([np.sin(tau * turn), np.cos(tau * turn)], 1)
    return x.astype(np.float32), turn.astype(np.float32)


def test_it_is_found_and_audited(installed: None) -> None:
    face = tasks.find("clock-face")
    assert face.__module__ == "clock_face"
    subject = Subject.of(Reader(), hands(), face(), name="clock")
    done = assay.audit(subject, probes=["accuracy", "worst-case-accuracy", "distance-to-failure"])
    assert [row.answer.status for row in done.rows] == ["asked"] * 3
    right, worst, far = (row.answer.finding for row in done.rows)
    assert right is not None
    assert worst is not None
    assert far is not None
    assert right.measure("accuracy").value == 1.0
    assert right.measure("nearness on the face").value == pytest.approx(1 - 2 * LATE, abs=1e-5)
    (blind,) = right.measure("accuracy").beside
    assert (blind.label, blind.value) == ("always says noon", 0.25)  # an eighth of a turn to either side
    # The nearest failure is on the ray an eighth of a turn away, less what the model is late by: a right angle from it.
    left = tau * (1 / 8 - LATE)
    nearest = LENGTH * sin(left)
    smallest = np.asarray(far.samples.columns["smallest l2"])
    assert smallest.min() > 0.999 * nearest
    assert smallest.max() < 1.02 * nearest
    assert 0.5 > nearest > 2**0.5 * 8 / 255  # the radii of the next question, of which the second reaches every hand
    assert worst.measure("worst-case accuracy").value == 1.0
    assert worst.measure("worst-case accuracy, l2").value == 0.0


def test_its_score_outside_0_and_1_is_one_line(installed: None) -> None:
    face = tasks.find("clock-face")(slip=0.5)  # type: ignore[call-arg]
    subject = Subject.of(Reader(), hands(), face)
    with pytest.raises(AssayError, match=r"The score of ClockFace is 1\.4375 for answer 0; mend the task") as told:
        face.score(Reader()(torch.from_numpy(hands()[0])), torch.from_numpy(hands()[1]))
    assert "\n" not in str(told.value)
    row = assay.audit(subject, probes=["accuracy"]).row("accuracy")
    assert row.answer.status == "failed"
    assert "The score of ClockFace is 1.4375 for answer 0" in str(row.answer.why)


def test_a_model_that_answers_otherwise_is_told_of_the_task(installed: None) -> None:
    with pytest.raises(AssayError, match=r"task is taken to be ClockFace, whose output is \(n,\) angles in turns"):
        Subject.of(nn.Linear(2, 3), hands(), tasks.find("clock-face")())
