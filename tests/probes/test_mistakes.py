"""The inputs that a classifier gets wrong, as two questions show them; and what a model reaches that saw none."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from assay.finding import Finding, Gallery
from assay.probe import put
from assay.probes.right.accuracy import Accuracy
from assay.probes.sure.confidence import Confidence
from assay.run import Run
from assay.subject import Subject

ODDS = (1.0, 5.0, 3.0, 4.0, -6.0, -2.5)  # of the second class, where the first is right, and last the second
LABEL = (0, 0, 0, 0, 1, 0)


class Brightness(nn.Module):
    """The logit of the second class is what the first pixel says, from -8 to 8."""

    def forward(self, x: Tensor) -> Tensor:  # n 1 h w -> n 2
        z = 16 * x[:, 0, 0, 0] - 8
        return torch.stack([torch.zeros_like(z), z], 1)


@pytest.fixture(scope="module")
def subject() -> Subject:
    x = torch.tensor([(o + 8) / 16 for o in ODDS])[:, None, None, None].expand(-1, 1, 8, 8).clone()
    return Subject.classifier(Brightness(), (x, np.array(LABEL)), classes=("dark", "light"))


def gallery(found: Finding | None) -> Gallery:
    assert found is not None
    (view,) = (v for v in found.views if v.name == "mistakes")
    assert isinstance(view, Gallery)
    return view


def test_all_mistakes_are_shown_the_surest_first(subject: Subject, run: Run) -> None:
    """Five are wrong, with the confidences 1 / (1 + exp(-|odds|)); three have room."""
    shown = gallery(put(Accuracy(), subject, run).finding).exhibits
    assert [e.index for e in shown] == [4, 1, 3]
    assert [e.caption for e in shown] == [
        "light, said dark with 99.8 %",
        "dark, said light with 99.3 %",
        "dark, said light with 98.2 %",
    ]


def test_sure_mistakes_are_those_above_the_limit(subject: Subject, run: Run) -> None:
    shown = gallery(put(Confidence(sure=0.99, estimator="legacy"), subject, run).finding)
    assert [e.index for e in shown.exhibits] == [4, 1]
    assert shown.says.startswith("2 of 6")


@pytest.mark.parametrize("which", ["no pictures", "no mistakes"])
def test_where_there_is_nothing_to_show_there_is_no_gallery(which: str, subject: Subject, run: Run) -> None:
    x, y = subject.data["test"].take(np.arange(6))
    model, few = Brightness(), slice(5, 6)
    if which == "no pictures":
        model, x, few = nn.Sequential(nn.Unflatten(1, (1, 8, 8)), model), x.flatten(1), slice(0, 6)
    found = put(Accuracy(), Subject.classifier(model, (x[few], y[few]), classes=("dark", "light")), run).finding
    assert found is not None
    assert "mistakes" not in [v.name for v in found.views]


def test_a_model_that_saw_nothing_says_the_commonest_class(subject: Subject, run: Run) -> None:
    found = put(Accuracy(), subject, run).finding
    assert found is not None
    (beside,) = found.measures[0].beside
    assert (beside.label, beside.value) == ("always says the commonest class", pytest.approx(5 / 6))
