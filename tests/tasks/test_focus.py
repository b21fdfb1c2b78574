"""The one number of each answer that an explanation speaks of, task by task."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from assay.errors import AssayError
from assay.tasks import (
    Classification,
    Control,
    Detection,
    Focus,
    Forecast,
    ImageToImage,
    Labels,
    Ranking,
    Regression,
    Retrieval,
    Segmentation,
    Similarity,
    Tagging,
)


def read(focus: Focus, out: Tensor) -> list[float]:
    assert focus.weight.shape == out.shape
    assert len(focus.says) == len(out)
    return (focus.weight * out).flatten(1).sum(1).tolist()


def test_a_class_an_action_and_a_match_are_the_largest_logit() -> None:
    out = torch.tensor([[1.0, 5.0, 2.0], [4.0, 0.0, 3.0]])
    for task in (Classification(("a", "b", "c")), Control(("a", "b", "c")), Retrieval(("a", "b", "c"), first=1)):
        focus = task.focus(out)
        assert read(focus, out) == [5.0, 4.0]
        assert [says[-1] for says in focus.says] == ["b", "a"]
        assert read(task.focus(out, 2), out) == [2.0, 3.0]


def test_the_surest_label_is_one_that_is_said_unless_none_is() -> None:
    out = torch.tensor([[1.0, -9.0, 2.0], [-4.0, -1.0, -2.0]])
    focus = Labels(("a", "b", "c")).focus(out)
    assert read(focus, out) == [2.0, -4.0]
    assert focus.says == ("the logit of c", "the logit of a")


def test_a_number_is_the_first_without_its_spread_and_the_middle_quantile() -> None:
    task = Regression(("y", "z"), (1.0, 1.0), units=("mm", ""), spread=True)
    out = torch.tensor([[[3.0, 4.0], [0.5, 0.6]]])
    assert read(task.focus(out), out) == [3.0]
    assert task.focus(out).says == ("y in mm",)
    assert read(task.focus(out, 1), out) == [4.0]
    assert task.named == ("y", "z")
    levels = Regression(("y",), (1.0,), quantiles=(0.1, 0.4, 0.6, 0.9))
    out = torch.tensor([[[0.0], [1.0], [2.0], [9.0]]])
    assert read(levels.focus(out), out) == [1.5]
    single = Regression(("y",), (1.0,))
    assert single.focus(torch.tensor([7.0, 8.0])).weight.tolist() == [1.0, 1.0]


def test_a_forecast_is_the_mean_of_the_steps_of_one_channel() -> None:
    task = Forecast(("load", "heat"), 2, (1.0, 1.0), quantiles=(0.1, 0.5, 0.9))
    out = torch.arange(12.0).reshape(1, 3, 2, 2)
    assert read(task.focus(out), out) == [5.0]  # the median: (4 + 6) / 2
    assert read(task.focus(out, 1), out) == [6.0]
    assert "the mean of 2 steps" in task.focus(out).says[0]


def test_a_region_is_the_largest_besides_the_first_class() -> None:
    task = Segmentation(("ground", "a", "b"))
    out = torch.zeros(1, 3, 2, 4)
    out[0, 0], out[0, 1, 0, 0], out[0, 2, 1, :2] = 1.0, 7.0, torch.tensor([3.0, 5.0])
    assert read(task.focus(out), out) == [4.0]
    assert task.focus(out).says == ("the mean logit of b over its region",)
    assert read(task.focus(out, 1), out) == [7.0]
    assert read(task.focus(out[:, :, :, 2:]), out[:, :, :, 2:]) == [1.0]  # ground alone
    assert read(task.focus(out[:, :, :, 2:], 2), out[:, :, :, 2:]) == [0.0]  # never said: over all pixels


def test_a_tag_is_the_surest_that_is_not_the_first() -> None:
    task = Tagging(("O", "B-x", "I-x"))
    out = torch.tensor([[[9.0, 0, 0], [0, 2.0, 1.0], [0, 1.0, 5.0]], [[3.0, 0, 0], [9.0, 0, 0], [1.0, 0, 0]]])
    focus = task.focus(out)
    assert read(focus, out) == [5.0, 9.0]
    assert focus.says == ("the logit of I-x at place 3", "the logit of O at place 2")
    assert read(task.focus(out, 1), out) == [2.0, 0.0]


def test_a_box_is_the_surest_that_is_said_with_its_class() -> None:
    task = Detection(("cup", "hat"))
    proposals = [[0, 0, 1, 1, 4.0, 0.0, 3.0], [0, 0, 1, 1, 1.0, 9.0, 0.0], [0, 0, 1, 1, -1e-3, 99.0, 0.0]]
    out = torch.tensor([proposals])
    assert read(task.focus(out), out) == pytest.approx([7.0])
    assert task.focus(out).says == ("the score of its surest hat, a logit",)
    assert read(task.focus(out, 0), out) == pytest.approx([10.0])
    assert read(task.focus(out[:, 2:]), out[:, 2:]) == pytest.approx([99.0 - 1e-3])  # nothing is said


def test_of_an_image_it_is_the_contrast_that_is_left() -> None:
    task = ImageToImage((1, 2, 2), 0.1)
    out = torch.tensor([[[[0.0, 1.0], [0.5, 0.2]]], [[[0.3, 0.3], [0.3, 0.3]]]])
    focus = task.focus(out)
    assert read(focus, out) == pytest.approx([1.0, 0.3])  # of an even image the mean
    assert read(focus, torch.full_like(out, 0.7))[0] == pytest.approx(0.0, abs=1e-6)
    assert read(focus, out / 2 + 0.1)[0] == pytest.approx(0.5)


def test_who_names_no_number_is_told_so_and_not_asked() -> None:
    for task in (Ranking(0.0, 1.0), Similarity(1.0)):
        assert "a number of one input's answer" in (task.lacks(("focus",)) or "")
    with pytest.raises(AssayError, match="Ranking names no number of its answers to explain"):
        Ranking(0.0, 1.0).focus(torch.zeros(2))
    assert Regression(("y",), (1.0,)).lacks(("focus",)) is None
