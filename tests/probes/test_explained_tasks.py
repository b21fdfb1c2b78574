"""Questions about explanations, put to every task that names a number."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from assay.engine.local import ThisProcess
from assay.finding import Matrix
from assay.inputs import Row
from assay.inputs.row import Column
from assay.probe import Answer, Probe, put
from assay.probes.explained.can_the_map_be_chosen import CanTheMapBeChosen
from assay.probes.explained.does_the_map_need_the_model import DoesTheMapNeedTheModel
from assay.probes.explained.does_the_map_survive import DoesTheMapSurvive
from assay.probes.explained.is_the_map_faithful import IsTheMapFaithful
from assay.probes.explained.was_it_tampered_with import WasItTamperedWith
from assay.probes.explained.where_does_it_look import WhereDoesItLook
from assay.run import Budget, Run
from assay.subject import Subject
from assay.subjects import Source, open_subject
from assay.tasks import Regression

NAMES = (
    "cart-pole", "diabetes-mlp", "digits-denoiser", "digits-retrieval", "scenes-detector", "scenes-labels",
    "scenes-segmenter", "seasons-forecaster", "sentences-tagger",
)  # fmt: skip
TINY = Run(engine=ThisProcess(), budget=Budget("tiny", samples=24, steps=2, restarts=1, shown=2))
WEIGHTS = (6.0, -3.0, 1.5, 0.6, 0.3, -0.1)
MAPS = ("gradient", "occlusion")


def asked(probe: Probe, subject: Subject) -> Answer:
    answer = put(probe, subject, dataclasses.replace(TINY, debug=True))
    assert answer.status == "asked", answer.why
    return answer


@pytest.mark.parametrize("name", NAMES)
def test_every_reference_task_is_asked(name: str) -> None:
    subject = open_subject(Source(name))
    looked = asked(WhereDoesItLook(methods=("occlusion", "kernel-shap"), inputs=2), subject)
    assert looked.finding is not None
    assert looked.finding.measures[0].n == 2
    if not subject.differentiable:
        assert "needs gradients" in (DoesTheMapNeedTheModel().why_not(subject) or "")
        return
    probes: tuple[Probe, ...] = (
        IsTheMapFaithful(methods=("gradient",), inputs=2),
        DoesTheMapNeedTheModel(methods=("gradient",), inputs=2),
        CanTheMapBeChosen(methods=("gradient",), inputs=6, steps=1),
    )
    for probe in probes[:1] if name.startswith("scenes") else probes:  # of larger images one is enough
        finding = asked(probe, subject).finding
        assert finding is not None
        assert finding.measures[0].value is not None


class Straight(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Linear(6, 1)
        with torch.no_grad():
            self.w.weight.copy_(torch.tensor([WEIGHTS]))
            self.w.bias.fill_(2.0)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.w(x)
        return out


@pytest.fixture(scope="module")
def straight() -> Subject:
    x = np.random.default_rng(0).random((60, 6)).astype(np.float32)
    y = x @ np.array(WEIGHTS) + 2
    columns = tuple(Column(name, "number", 0.0, 1.0, 0.5) for name in "abcdef")
    return Subject.of(
        Straight().eval(), {"train": (x, y), "test": (x, y)}, Regression(("y",), (0.5,)), kind=Row(columns)
    )


def test_the_maps_of_a_linear_regression_agree_and_name_its_columns(straight: Subject) -> None:
    """Integrated gradients, occlusion and SHAP values are all w (x - base); the base is the mean of the columns."""
    methods = ("integrated-gradients", "occlusion", "kernel-shap")
    finding = asked(WhereDoesItLook(methods=methods, inputs=8), straight).finding
    assert finding is not None
    assert finding.measures[0].value == pytest.approx(1.0, abs=1e-6)
    shown = [view for view in finding.views if isinstance(view, Matrix) and view.columns == tuple("abcdef")]
    assert shown
    base = straight.data["train"].take(TINY.pick(straight.data["train"], 32))[0].double().mean(0)
    row = int(shown[0].title.split()[3])
    adds = (torch.tensor(WEIGHTS) * (straight.data["test"].take(np.array([row]))[0][0] - base)).abs()
    for values in shown[0].values:
        assert values == pytest.approx(tuple((adds / adds.sum()).tolist()), abs=1e-4)
    assert finding.samples is not None
    index = finding.samples.columns["index"]
    y = np.asarray(straight.data["test"].labels).reshape(-1)[index]
    assert finding.samples.columns["explained number"] == pytest.approx(y, abs=1e-4)
    assert finding.samples.columns["kernel-shap misses"] == pytest.approx(np.zeros(8), abs=1e-4)


def test_of_a_linear_regression_the_right_map_is_faithful_in_units_of_the_number(straight: Subject) -> None:
    finding = asked(IsTheMapFaithful(methods=("integrated-gradients",), inputs=20), straight).finding
    assert finding is not None
    assert finding.says.startswith("Better than random: integrated-gradients. Judged on 20 inputs by taking out")
    assert [m.name for m in finding.measures] == [
        "maps that beat a random one", "integrated-gradients, the top kept", "integrated-gradients, the top gone",
    ]  # fmt: skip
    far, gone = finding.measures[1], finding.measures[2]
    assert far.value is not None
    assert gone.value is not None
    assert far.value < (far.beside[0].value or 0)
    assert gone.value > (gone.beside[0].value or 0)


def test_of_a_regression_too_a_map_that_ignores_the_model_is_found_out() -> None:
    """Edges never see the model; the gradient of a number does."""
    x = np.random.default_rng(1).random((30, 1, 8, 8)).astype(np.float32)
    y = x.reshape(30, -1)[:, :3].sum(1)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Tanh(), nn.Linear(8, 1)).eval()
    subject = Subject.of(net, (x, y), Regression(("y",), (9.0,)))
    finding = asked(DoesTheMapNeedTheModel(methods=("gradient", "edges"), inputs=8), subject).finding
    assert finding is not None
    assert "Pass: gradient" in finding.says
    assert "Fail: edges" in finding.says


def test_what_is_about_classes_alone_says_so(straight: Subject) -> None:
    assert "a score for each class" in (WasItTamperedWith().why_not(straight) or "")
    assert "it is for images" in (DoesTheMapSurvive().why_not(straight) or "")
    left = WhereDoesItLook(methods=("greedy-as", "gradient"), inputs=2)
    assert "this model admits fewer" in (left.why_not(straight) or "")


def test_where_no_answer_is_good_there_is_none_to_keep() -> None:
    x = np.random.default_rng(0).random((10, 6)).astype(np.float32)
    told: dict[str, Any] = {"bounds": (0.0, 1.0)}
    subject = Subject.of(Straight().eval(), (x, np.full(10, 99.0) + x[:, 0]), Regression(("y",), (0.5,)), **told)
    answer = put(CanTheMapBeChosen(methods=("gradient",), inputs=5), subject, TINY)
    assert answer.status == "failed"
    assert "Of 5 answers 0 are good enough to be kept, and it takes two" in answer.why
