"""Does the map survive: GradCAM is rewritten by edits that move no score, what only asks for answers is not."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from assay.errors import AssayError
from assay.methods.explain.gradcam import gradcam
from assay.methods.explain.twins import TOL, twins
from assay.probe import Probe, put
from assay.probes.explained.does_the_map_survive import HARMLESS, HEADLINE, LIES, STICKERED, DoesTheMapSurvive
from assay.run import Run
from assay.standard import judge
from assay.subject import Subject

METHODS = ("gradcam", "gradient", "occlusion")


def ask(subject: Subject, run: Run, **settings: Any) -> Any:
    answer = put(DoesTheMapSurvive(**settings), subject, run)
    assert answer.finding is not None, answer.why
    return answer.finding


def reason(probe: Probe, subject: Subject) -> str:
    return probe.why_not(subject) or "it applies"


@pytest.fixture
def finding(digits: Subject, run: Run) -> Any:
    return ask(digits, run, inputs=6)


def test_gradcam_is_rewritten_where_no_score_moves_and_occlusion_is_not(finding: Any) -> None:
    rows = finding.samples.columns
    assert finding.measure().name == HEADLINE
    assert finding.measure().value > 0.3
    assert "gradcam map does not survive" in finding.says
    assert "occlusion map survives" in finding.says
    for twin in LIES[:2]:
        assert rows[f"P {twin}"].max() < 1e-8
        assert rows[f"gradcam, {twin}"].mean() > 0.3
        assert rows[f"gradient, {twin}"].max() < 1e-12
        assert rows[f"occlusion, {twin}"].max() < 1e-12
    for twin in HARMLESS:
        assert rows[f"P {twin}"].max() < 1e-8
        for m in METHODS:
            assert rows[f"{m}, {twin}"].max() < 1e-8
    assert 1e-6 < rows[f"P {LIES[2]}"].max() <= 0.01
    assert rows[f"total variation {LIES[2]}"].max() < 1e-8
    assert rows[f"gradient, {LIES[2]}"].mean() > 0.05


def test_t4_sleeps_until_it_sees_its_sticker(finding: Any) -> None:
    rows = finding.samples.columns
    assert (rows[f"gradcam, {LIES[3]}"] == 0).all()
    assert rows[f"gradcam, {STICKERED}"].min() > 0.01
    assert rows[f"total variation {STICKERED}"].max() < 1e-8


def test_gaps_are_those_of_the_definition(digits: Subject, run: Run, finding: Any) -> None:
    x = digits.data["test"].take(finding.samples.columns["index"])[0].double()
    net = copy.deepcopy(digits.model).double()
    flat = next(twins(net, "2", x, rng=torch.Generator().manual_seed(0))).model
    heats = [gradcam(m, x, "2").heat() for m in (net, flat)]  # 8 x 8, as large as the input
    for i in range(len(x)):
        a, b = (h[i] / h[i].max() if h[i].max() > 0 else h[i] for h in heats)
        gap = sum(abs(float(a[r, c] - b[r, c])) for r in range(8) for c in range(8)) / 64
        assert finding.samples.columns["gradcam, T1 flat map"][i] == pytest.approx(gap, abs=1e-9)
    q = finding.measure("explanation gap, gradcam, T1 flat map")
    assert q.value == pytest.approx(finding.samples.columns["gradcam, T1 flat map"].mean())
    assert q.low <= q.value <= q.high
    for m in METHODS:
        ratios = [
            finding.measure(f"explanation gap, {m}, {t}").value
            / max(finding.measure(f"prediction gap, {t}").value, TOL)
            for t in (*LIES, *HARMLESS, STICKERED)
        ]
        assert finding.measure(f"fooling ratio, {m}").value == pytest.approx(max(ratios))


def test_every_map_on_show_has_its_verdict_beside_it(finding: Any) -> None:
    (gallery,) = (v for v in finding.views if hasattr(v, "exhibits"))
    assert gallery.exhibits
    for exhibit in gallery.exhibits:
        assert "survives" in exhibit.caption or "does not survive" in exhibit.caption
        assert [p.label for p in exhibit.panels] == [
            "input",
            "its map",
            *LIES[:3],
            "sticker on",
            "its map then",
            STICKERED,
        ]


def test_who_relies_on_occlusion_alone_passes(digits: Subject, run: Run) -> None:
    probe = DoesTheMapSurvive()
    assert judge(probe.standards[0], ask(digits, run, methods=("occlusion",), inputs=3)).verdict == "pass"
    assert judge(probe.standards[0], ask(digits, run, methods=("gradcam",), inputs=3)).verdict == "fail"


def test_the_subject_is_left_as_it_was(digits: Subject, run: Run) -> None:
    before = {k: v.clone() for k, v in digits.model.state_dict().items()}
    ask(digits, run, inputs=2, methods=("gradcam",))
    after = digits.model.state_dict()
    assert all(torch.equal(before[k], after[k]) and before[k].dtype == after[k].dtype for k in before)


def test_a_net_without_a_linear_meets_the_harmless_edits_and_says_which_it_did_not(digits: Subject, run: Run) -> None:
    torch.manual_seed(0)
    parts = (
        nn.Conv2d(1, 6, 3),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.Conv2d(6, 10, 3),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    )
    finding = ask(replace(digits, model=nn.Sequential(*parts).eval(), layers={}), run, inputs=2)
    assert "Not built: T1 flat map" in finding.says
    assert len([a for a in finding.alarms if "could not be built" in a.says and "Linear" in a.says]) == len(LIES)
    assert HEADLINE in finding.alarms[0].doubts
    assert finding.measure().value < 1e-8
    assert finding.measure("prediction gap, channels permuted").value < 1e-8
    assert judge(DoesTheMapSurvive.standards[0], finding).verdict == "cannot tell"


def test_a_forward_pass_that_cannot_be_read_leaves_the_question_open(digits: Subject, run: Run) -> None:
    class Deciding(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(1, 10, 3)

        def forward(self, x: Tensor) -> Tensor:
            z: Tensor = self.conv(x)
            return z.mean((2, 3)) if z.sum() > 0 else z.amax((2, 3))

    finding = ask(replace(digits, model=Deciding().eval(), layers={}), run, inputs=2)
    assert finding.measure().value is None
    assert "No twin" in finding.alarms[0].says


def test_where_it_does_not_apply_it_says_why(digits: Subject, run: Run) -> None:
    flat = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    probe = DoesTheMapSurvive()
    assert "no convolutional layer" in reason(probe, replace(digits, model=flat, layers={}))
    assert "gradients" in reason(probe, replace(digits, differentiable=False))
    assert "random" in reason(probe, replace(digits, draws=4))
    table = replace(digits, inputs=replace(digits.inputs, shape=(64,)))
    assert "images" in reason(probe, table)
    assert put(probe, replace(digits, differentiable=False), run).status == "does not apply"


def test_bad_settings_are_refused() -> None:
    with pytest.raises(AssayError, match="'gradcem' in methods; choose from gradient"):
        DoesTheMapSurvive(methods=("gradcem",))
    with pytest.raises(AssayError, match="no map in methods"):
        DoesTheMapSurvive(methods=())
    with pytest.raises(AssayError, match="inputs=0"):
        DoesTheMapSurvive(inputs=0)


def test_same_seed_same_numbers(digits: Subject, run: Run, finding: Any) -> None:
    again = ask(digits, run, inputs=6)
    for name, column in finding.samples.columns.items():
        np.testing.assert_array_equal(column, again.samples.columns[name])
