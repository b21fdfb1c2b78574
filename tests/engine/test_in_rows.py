"""Models that view their activations, as many a tutorial's does: that they are known, and that they are trained."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn

from assay.engine.in_rows import in_rows, wants_rows
from assay.jobs.audit import audit
from assay.jobs.cure import cure
from assay.methods.train.fit import fit
from assay.probes.explained.does_the_map_need_the_model import DoesTheMapNeedTheModel
from assay.subject import Subject

if TYPE_CHECKING:
    from pathlib import Path


class Net(nn.Module):
    """The way from images to a vector is given: of a view, of strides of its own, or of what copies where it must."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.first, self.pool, self.last = nn.Conv2d(1, 4, 3, padding=1), nn.MaxPool2d(2), nn.Linear(64, 10)
        self.how = how

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.pool(torch.relu(self.first(x)))
        match self.how:
            case "view":
                x = x.view(len(x), -1)
            case "strides":
                x = x.as_strided((len(x), 64), (64, 1))
            case _:
                x = x.flatten(1)
        logits: torch.Tensor = self.last(x)
        return logits


def subject(how: str, digits: Subject) -> Subject:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Subject.classifier(Net(how), dict(digits.data), name=how)


def test_a_model_that_views_is_known_and_left_as_it_was(digits: Subject) -> None:
    for how, wanted in (("view", True), ("strides", True), ("flatten", False)):
        asked = subject(how, digits)
        before = {name: (t.clone(), t.stride()) for name, t in asked.model.state_dict().items()}
        asked.model.train()
        assert wants_rows(asked) == wanted
        assert asked.model.training
        for name, t in asked.model.state_dict().items():
            assert torch.equal(t, before[name][0])
            assert t.stride() == before[name][1]


def test_a_model_without_kernels_or_one_that_never_answers_does_not_view(digits: Subject) -> None:
    flat = Subject.classifier(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), dict(digits.data), name="flat")
    assert not wants_rows(flat)

    class Breaks(nn.Conv2d):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise RuntimeError("always")

    assert not wants_rows(replace(flat, model=nn.Sequential(Breaks(1, 4, 3), nn.Flatten(), nn.Linear(144, 10))))


def test_rounding_is_no_other_answer_and_neither_are_draws(digits: Subject) -> None:
    class Sharp(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.log_softmax(1e4 * super().forward(x), 1).nan_to_num(neginf=-torch.inf)

    class Random(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.draws = getattr(self, "draws", 0) + 1
            return super().forward(x) + self.draws * torch.randn(10)

    assert not wants_rows(replace(digits, model=Sharp("flatten")))
    assert wants_rows(replace(digits, model=Random("flatten")))
    assert not wants_rows(replace(digits, model=Random("flatten"), draws=3))


def test_it_is_trained_to_the_weights_of_one_that_copies(digits: Subject) -> None:
    trained = {}
    for how in ("view", "strides", "flatten"):
        model = subject(how, digits).model
        with in_rows(how != "flatten"):
            fit(model, digits.data["train"], epochs=1, lr=0.1, rng=torch.Generator().manual_seed(0))
        trained[how] = model.state_dict()
    for name, t in trained["flatten"].items():
        for how in ("view", "strides"):
            torch.testing.assert_close(trained[how][name], t, rtol=1e-3, atol=1e-4)
    x = torch.zeros(2, 3, 8, 8).contiguous(memory_format=torch.channels_last)
    assert not nn.Conv2d(3, 4, 3)(x).is_contiguous()  # afterwards nothing is put into rows


@pytest.mark.parametrize("remedy", ["pgd-training", "mixup", "ensemble"])
def test_a_remedy_that_trains_takes_it(remedy: str, digits: Subject, tmp_path: Path, undrawn: None) -> None:
    settings = {"epochs": "1"} | ({"members": "2"} if remedy == "ensemble" else {})
    done = cure(remedy, subject("view", digits), settings=settings, probes=["accuracy"], inputs=40, out=tmp_path)
    assert done.after.rows[0].answer.finding is not None


def test_a_question_that_trains_takes_it(digits: Subject) -> None:
    found = audit(subject("view", digits), probes=[DoesTheMapNeedTheModel(retrain=True)], inputs=3).rows[0].answer
    assert found.finding is not None, found.why
