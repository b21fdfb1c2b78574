"""A model in a file with targets that are no classes, on the command line: --task names what they are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from assay import AssayError
from assay.subjects import Source, open_subject
from assay.subjects._assembly import adjusted
from assay.tasks import Classification, Labels, Regression

RNG = np.random.default_rng(0)
IMAGES = RNG.random((12, 1, 4, 4), dtype=np.float32)
SERIES = RNG.random((12, 6, 2), dtype=np.float32)


class Last(nn.Module):
    def forward(self, x: Tensor) -> Tensor:  # n t c -> n 1 c
        return x[:, -1:]


class Spread(nn.Module):
    def forward(self, x: Tensor) -> Tensor:  # n d -> n 2 1
        mean = x.sum(1, keepdim=True)
        return torch.stack([mean, torch.ones_like(mean)], 1)


class Boxes(nn.Module):
    def forward(self, x: Tensor) -> Tensor:  # n 1 h w -> n 2 (4 + 1 + 3)
        return x.mean((1, 2, 3))[:, None, None].expand(-1, 2, 8)


PIXELS = nn.Conv2d(1, 3, 1)
ROWS = nn.Sequential(nn.Flatten(), nn.Linear(16, 3))
NAMED = {
    "segmentation": (PIXELS, IMAGES, RNG.integers(0, 3, (12, 4, 4)), "Segmentation", ("0", "1", "2")),
    "tagging": (nn.Linear(2, 3), SERIES, RNG.integers(0, 3, (12, 6)), "Tagging", ("0", "1", "2")),
    "image-to-image": (nn.Conv2d(1, 1, 1), IMAGES, 2 * IMAGES, "ImageToImage", ()),
    "forecast": (Last(), SERIES, RNG.random((12, 1, 2), dtype=np.float32), "Forecast", ()),
    "labels": (ROWS, IMAGES, RNG.integers(0, 2, (12, 3)), "Labels", ("0", "1", "2")),
    "detection": (Boxes(), IMAGES, np.tile([[1.0, 0.1, 0.1, 0.6, 0.6]], (12, 1, 1)), "Detection", ("0", "1", "2")),
    "retrieval": (
        nn.Sequential(nn.Flatten(), nn.Linear(16, 6)), IMAGES, RNG.integers(0, 2, (12, 6)), "Retrieval", (),
    ),
    "regression": (ROWS, IMAGES, RNG.integers(0, 9, (12, 3)), "Regression", ()),
}  # fmt: skip


def files(folder: Path, model: nn.Module, x: np.ndarray, y: np.ndarray) -> tuple[str, str]:
    torch.jit.trace(model.eval(), torch.from_numpy(x[:2]), check_trace=False).save(str(folder / "model.pt"))
    np.savez(folder / "data.npz", x=x, y=y)
    return str(folder / "model.pt"), str(folder / "data.npz")


@pytest.mark.parametrize("task", NAMED)
def test_a_task_is_named_and_the_rest_is_read_off_data_and_answers(task: str, tmp_path: Path) -> None:
    model, x, y, name, classes = NAMED[task]
    subject = open_subject(Source(*files(tmp_path, model, x, y), task=task))
    assert subject.task.name() == name
    assert subject.task.classes == classes
    given, target = subject.data["test"].take(np.arange(12))
    np.testing.assert_allclose(target.numpy(), y, rtol=1e-6)
    score = subject.task.score(subject.predict(given), target)
    assert score.shape == (12,)


def test_numbers_need_no_name_and_a_spread_beside_them_is_seen(tmp_path: Path) -> None:
    x = RNG.random((12, 4), dtype=np.float32)
    found = files(tmp_path, Spread(), x, x.sum(1, keepdims=True))
    task = open_subject(Source(*found)).task
    assert isinstance(task, Regression)
    assert task.spread
    assert not isinstance(task, Labels)


def test_one_hot_rows_are_classes_and_several_at_once_labels(tmp_path: Path) -> None:
    y = RNG.integers(0, 3, 12)
    subject = open_subject(Source(*files(tmp_path, ROWS, IMAGES, np.eye(3, dtype=np.int64)[y])))
    assert isinstance(subject.task, Classification)
    np.testing.assert_array_equal(subject.data["test"].labels, y)
    several = np.eye(3, dtype=np.int64)[y] | np.eye(3, dtype=np.int64)[(y + 1) % 3]
    assert isinstance(open_subject(Source(*files(tmp_path, ROWS, IMAGES, several))).task, Labels)


@pytest.mark.parametrize(
    ("task", "says"),
    [
        (None, r"a class for each pixel, .*name its task, Segmentation, as in --task segmentation or in Subject.of"),
        ("segmentatoin", "There is no task 'segmentatoin'; did you mean 'segmentation'"),
        ("similarity", r"A task Similarity has to be told more than its name; say it in Python: Subject\.of"),
        ("tagging", r"A task Tagging has outputs \(n, length, k\) logits.*the model gave \(12, 3, 4, 4\)"),
        ("labels", "The model's task is taken to be Labels|In 'test'"),
    ],
)
def test_what_does_not_fit_is_one_line(task: str | None, says: str, tmp_path: Path) -> None:
    model, x, y, _, _ = NAMED["segmentation"]
    with pytest.raises(AssayError, match=says) as caught:
        open_subject(Source(*files(tmp_path, model, x, y), task=task))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("task", ["labels", "retrieval"])
def test_one_answer_in_each_row_is_no_class_where_the_task_says_so(task: str, tmp_path: Path) -> None:
    six = nn.Sequential(nn.Flatten(), nn.Linear(16, 6))
    model, data = files(tmp_path, six, IMAGES, np.eye(6, dtype=np.int64)[np.arange(12) % 6])
    subject = open_subject(Source(model, data=data, task=task))
    assert subject.data["test"].labels.shape == (12, 6)
    again = adjusted(subject, Source("m", data=data))
    assert again.data["test"].labels.shape == (12, 6)
    assert open_subject(Source(model, data=data)).data["test"].labels.shape == (12,)
