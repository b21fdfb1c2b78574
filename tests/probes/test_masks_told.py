"""What accuracy tells of masks: outlines beside the overlap, and F1 that is 2 IoU / (1 + IoU), class by class."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from assay.finding import Bars, Finding
from assay.probe import put
from assay.probes.right.accuracy import Accuracy
from assay.run import Run
from assay.subject import Subject
from assay.tasks import Segmentation


class Shown(nn.Module):
    """Says class 1 where a pixel is above a half, class 2 never."""

    def forward(self, x: Tensor) -> Tensor:  # n 1 h w -> n 3 h w
        return torch.cat([0.5 - x, x - 0.5, torch.full_like(x, -9.0)], 1)


def told(said: np.ndarray, true: np.ndarray, run: Run) -> Finding:
    task = Segmentation(("ground", "thing", "other"))
    subject = Subject.of(Shown().eval(), (said[:, None].astype(np.float32), true), task, bounds=(0.0, 1.0))
    answer = put(Accuracy(), subject, run)
    assert answer.finding is not None, answer.why
    return answer.finding


def test_f1_of_each_class_is_what_its_iou_makes_it(run: Run) -> None:
    rng = np.random.default_rng(0)
    true, said = rng.integers(0, 2, (40, 6, 5)), rng.integers(0, 2, (40, 6, 5))
    true[:, 0] = -1  # nobody counts these
    found = told(said, true, run)
    (bars,) = (view for view in found.views if isinstance(view, Bars))
    assert bars.labels == ("ground", "thing")  # the third is neither said nor true
    for c, name in enumerate(bars.labels):
        a, t = ((each == c)[true >= 0] for each in (said, true))
        tp, fp, fn = (a & t).sum(), (a & ~t).sum(), (~a & t).sum()
        assert bars.values[c] == pytest.approx(tp / (tp + fp + fn))
        words = re.search(rf"{name} (\d\.\d+)", bars.says)
        assert words is not None
        assert float(words[1]) == pytest.approx(2 * tp / (2 * tp + fp + fn), abs=5e-4)
        assert float(words[1]) == pytest.approx(2 * bars.values[c] / (1 + bars.values[c]), abs=5e-4)


def outline_f1(said: np.ndarray, true: np.ndarray) -> float:
    """Pixel by pixel: an outline has a pixel outside beside each of its own, and is met within two."""
    lines = []
    for mask in (said, true):
        inside = [tuple(at) for at in np.argwhere(mask)]
        lines.append([(i, j) for i, j in inside if not mask[max(0, i - 1) : i + 2, max(0, j - 1) : j + 2].all()])
    met = [
        np.mean([any(max(abs(i - a), abs(j - b)) <= 2 for a, b in other) for i, j in line])
        for line, other in (lines, lines[::-1])
    ]
    return float(2 * met[0] * met[1] / (met[0] + met[1]))


def test_an_outline_that_is_off_is_told_where_the_overlap_is_high(run: Run) -> None:
    """A square of 12 in an image of 16, of which three columns are not said."""
    true = np.zeros((40, 16, 16), dtype=np.int64)
    true[:, 2:14, 2:14] = 1
    assert told(true, true, run).measure("boundary F1").value == pytest.approx(1)
    said = np.zeros_like(true)
    said[:, 2:14, 2:11] = 1
    found = told(said, true, run)
    both = [outline_f1(said[0] == c, true[0] == c) for c in (0, 1)]
    assert max(both) < 0.9
    assert found.measure("boundary F1").value == pytest.approx(np.mean(both))
    assert found.measure("mean IoU").value == pytest.approx((9 / 12 + (256 - 144) / (256 - 108)) / 2)
    assert found.samples is not None
    assert np.allclose(found.samples.columns["boundary F1"], np.mean(both))


def test_other_tasks_are_told_of_no_outline(run: Run) -> None:
    x = torch.rand(40, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    subject = Subject.classifier(nn.Sequential(nn.Flatten(), nn.Linear(16, 2)).eval(), (x, torch.arange(40) % 2))
    answer = put(Accuracy(), subject, run)
    assert answer.finding is not None
    assert "boundary F1" not in [m.name for m in answer.finding.measures]
