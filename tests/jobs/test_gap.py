"""Two models on the same inputs: agreement, the largest gap and its input, and which pairs are no pair."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from torch import Tensor, nn

from assay.errors import AssayError
from assay.jobs.gap import between, compared
from assay.run import Run
from assay.subject import Subject
from assay.subjects import Source

if TYPE_CHECKING:
    from conftest import Command


class Off(nn.Module):
    """Adds to the second class what the first value of an input says, times ten."""

    def __init__(self, by: float) -> None:
        super().__init__()
        self.first = nn.Linear(2, 2)
        self.second = nn.Identity()
        self.by = by
        with torch.no_grad():
            self.first.weight.copy_(torch.eye(2))
            self.first.bias.zero_()

    def forward(self, x: Tensor) -> Tensor:  # n 2 -> n 2
        out: Tensor = self.second(self.first(x))
        return out + self.by * torch.stack([torch.zeros_like(x[:, 0]), x[:, 0]], 1)


@pytest.fixture(scope="module")
def pair() -> tuple[Subject, Subject]:
    x = torch.rand(50, 2, generator=torch.Generator().manual_seed(0))
    x[17] = torch.tensor([0.99, 0.5])
    one = Subject.classifier(Off(0.0), (x, x.argmax(1)), name="one")
    return one, replace(one, model=Off(0.5), name="two")


def test_the_largest_gap_is_told_with_its_input(pair: tuple[Subject, Subject], run: Run) -> None:
    gap = between(*pair, run)
    x = pair[0].data["test"].take(range(50))[0]  # type: ignore[arg-type]
    assert gap.index == int(x[:, 0].argmax())
    assert gap.largest == pytest.approx(0.5 * float(x[:, 0].max()))
    assert gap.relative == pytest.approx(0.5 * float(x[gap.index, 0]) / float(x[gap.index].max()))
    same = (x.argmax(1) == (x + torch.stack([torch.zeros(50), 0.5 * x[:, 0]], 1)).argmax(1)).double().mean()
    assert gap.agreement.value == pytest.approx(float(same))
    assert gap.agreement.n == 50
    assert [layer.name for layer in gap.layers] == ["first", "second"]
    assert "No layer parts" in gap.where  # what is added is inside no layer


def test_probabilities_and_logits_are_compared_as_logarithms(pair: tuple[Subject, Subject], run: Run) -> None:
    from assay.door import admit

    chances = admit(replace(pair[0], model=nn.Sequential(Off(0.0), nn.Softmax(1)))).subject
    gap = between(pair[0], chances, run)
    assert gap.largest < 1e-5
    assert "the logarithms of both are compared" in " ".join(gap.says())


def test_what_shows_nothing_inside_is_told(pair: tuple[Subject, Subject], run: Run) -> None:
    script = torch.jit.trace(Off(0.0), torch.rand(3, 2))
    gap = between(pair[0], replace(pair[0], model=script, name="script"), run)
    assert gap.largest < 1e-6
    assert gap.where == "Where it opens cannot be said: script shows nothing of what is inside it."


def test_what_is_not_finite_inside_both_is_written_as_none(pair: tuple[Subject, Subject], run: Run) -> None:
    class Sick(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x / 0 * 0

    class Masked(Off):
        def __init__(self) -> None:
            super().__init__(0.0)
            self.sick = Sick()

        def forward(self, x: Tensor) -> Tensor:
            nothing: Tensor = self.sick(x).nan_to_num()
            return super().forward(x) + nothing

    gap = between(replace(pair[0], model=Masked()), replace(pair[1], model=Masked()), run)
    told = json.loads(json.dumps(gap.to_json(), allow_nan=False))
    assert [layer["gap"] for layer in told["layers"]] == [None, 0, 0]
    assert told["largest"] == 0


def test_a_layer_that_gives_nothing_is_passed_over(pair: tuple[Subject, Subject], run: Run) -> None:
    class Empty(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x[:, :0]

    class Beside(Off):
        def __init__(self, off: float) -> None:
            super().__init__(off)
            self.empty = Empty()

        def forward(self, x: Tensor) -> Tensor:
            return super().forward(torch.cat([x, self.empty(x)], 1))

    gap = between(replace(pair[0], model=Beside(0.0)), replace(pair[1], model=Beside(0.5)), run)
    assert [layer.name for layer in gap.layers] == ["first", "second"]


BUILT = """
import torch
from torch import nn
from assay import Subject
def made(classes=3, scale=1.0):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, classes))
    with torch.no_grad():
        net[3].weight.mul_(scale)
    x = torch.rand(40, 1, 4, 4)
    return Subject.classifier(net, (x, torch.arange(40) % classes), name='net')
def big(): return made()
def small(): return made(scale=1.1)
def wide(): return made(4)
"""


@pytest.fixture
def built(tmp_path: Path) -> Path:
    path = tmp_path / "two.py"
    path.write_text(BUILT)
    return path


def test_two_models_are_no_pair_where_they_are_for_something_else(built: Path, run: Run) -> None:
    with pytest.raises(AssayError, match="has 4 classes, and 'net' 3; give two models for the same"):
        compared((Source(f"{built}:big"), Source(f"{built}:wide")), run)


def test_diff_takes_two_models_and_names_the_layer(assay: Command, built: Path) -> None:
    ended = assay("diff", f"{built}:big", f"{built}:small")
    assert ended.status == 0, ended.err
    assert "net (1) and net (2) give the same answer to" in ended.out
    assert "It opens at 3: " in ended.out
    assert "by name" in ended.out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("two.py:big", "runs"), "'runs' is a folder and 'two.py:big' a model; give two runs, or two models."),
        (("two.py:big", "gone.onnx"), "There is no file 'gone.onnx'"),
        (("two.py:big", "two.py:big", "--inputs", "none"), "--inputs 'none' is no number of inputs"),
        (("runs", "runs"), "runs"),
    ],
)
def test_what_cannot_be_compared_is_told_in_one_line(
    assay: Command, built: Path, words: tuple[str, ...], says: str
) -> None:
    Path("runs").mkdir()
    ended = assay("diff", *words)
    assert ended.status == 2
    assert len(ended.complaints) == 1
    assert says in ended.complaints[0]
