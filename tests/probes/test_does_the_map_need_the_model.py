"""Does the map need the model: an edge detector is found out, the gradient of a linear model is not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from assay.errors import AssayError
from assay.probe import put
from assay.probes.explained.does_the_map_need_the_model import HEADLINE, DoesTheMapNeedTheModel, _Tried
from assay.run import Run
from assay.subject import Subject


def ask(subject: Subject, run: Run, **settings: Any) -> Any:  # a Finding; each test knows which views it has
    answer = put(DoesTheMapNeedTheModel(**settings), subject, run)
    assert answer.finding is not None, answer.why
    return answer.finding


def test_the_edge_detector_is_found_out_and_the_gradient_passes(digits: Subject, run: Run) -> None:
    finding = ask(digits, run, methods=("gradient", "edges"), inputs=16)
    assert finding.says.startswith("Pass: gradient. Fail: edges")
    np.testing.assert_allclose(finding.samples.columns["edges, under random weights"], 1, atol=1e-4)
    head = finding.measure()
    assert head.name == HEADLINE
    assert (head.low, head.value, head.high) == (0.5, 0.5, 0.5)
    edges = finding.measure("edges, likeness under random weights")
    assert edges.better == "lower"
    assert "Fail" in edges.about
    assert not finding.alarms


def test_the_cascade_goes_from_the_head_down_on_a_copy(digits: Subject, run: Run) -> None:
    before = {k: v.clone() for k, v in digits.model.state_dict().items()}
    finding: Any = DoesTheMapNeedTheModel(methods=("gradient", "gradcam"), inputs=6).ask(digits, run)
    assert all(torch.equal(v, before[k]) for k, v in digits.model.state_dict().items())
    cascade = finding.views[0]
    assert "Layers in order: 4, 0." in cascade.says
    lines = {line.label: line for line in cascade.lines}
    assert set(lines) == {"gradient", "gradcam", "edges"}
    assert all(line.x == (0, 1, 2) and line.y[0] == 1 for line in lines.values())
    assert lines["edges"].y == pytest.approx((1, 1, 1))
    assert "edges: fail" in finding.views[2].says


def test_on_a_linear_table_the_gradient_passes_and_fixed_noise_is_found_out(run: Run) -> None:
    torch.manual_seed(0)
    x, linear = torch.rand(30, 40), nn.Linear(40, 3)
    subject = Subject.classifier(linear, (x, linear(x).argmax(1)), name="rows")
    finding = ask(subject, run, inputs=20, methods=("gradient", "gradcam", "random"))
    assert finding.says.startswith("Pass: gradient. Fail: random")
    assert "do not admit them: gradcam, edges." in finding.says
    assert "there are no training data" in finding.says
    # One weight vector for each class, so at most three maps: what is left must be near that of unrelated ones.
    assert abs(finding.measure("gradient, likeness under random weights").value) < 0.4


def test_training_anew_adds_shuffled_labels_and_another_seed(digits: Subject, run: Run) -> None:
    longer = replace(run, budget=replace(run.budget, steps=40))  # eight times over 1,200 digits
    finding = ask(digits, longer, methods=("gradient",), inputs=8, retrain=True)
    shuffled = finding.measure("gradient, likeness under shuffled labels")
    assert [b.label for b in shuffled.beside] == ["edges, blind to the model", "another seed", "a random map"]
    columns = finding.samples.columns
    assert shuffled.beside[1].value == pytest.approx(columns["gradient, another seed"].mean())
    np.testing.assert_allclose(columns["edges, under shuffled labels"], 1, atol=1e-4)
    assert "labels were shuffled" in finding.says
    assert [a.says.split(",")[0] for a in finding.alarms] == ["Trained anew on shuffled labels"]
    assert finding.alarms[0].doubts == (HEADLINE, shuffled.name)
    quick = ask(digits, run, methods=("gradient",), inputs=8)
    assert "need more than this budget" in quick.says
    assert "gradient, another seed" not in quick.samples.columns
    larger = replace(run, budget=replace(run.budget, restarts=2))
    assert "gradient, another seed" in ask(digits, larger, methods=("gradient",), inputs=8).samples.columns


def test_one_failed_trial_fails_a_map_and_a_control_that_passes_raises_an_alarm() -> None:
    def tried(weights: float, shuffled: float) -> _Tried:
        rows: dict[str, Any] = {}
        for kind in ("absolute", "signed"):
            rows |= {f"{m} {kind}": np.full((5, 2), w) for m, w in (("map", weights), ("edges", 1.0))}
            rows |= {f"{m} shuffled {kind}": np.full(5, s) for m, s in (("map", shuffled), ("edges", 1.0))}
        return _Tried(["map"], "edges", ["head", "conv"], rows)

    assert tried(0.1, 0.2).overall("map") == "pass"
    assert tried(0.1, 0.9).overall("map") == tried(0.9, 0.1).overall("map") == "fail"
    assert tried(0.1, 0.5).overall("map") == "cannot tell"
    assert tried(0.1, 0.2).alarms([HEADLINE]) == ()
    nothing = {f"{m} {kind}": np.zeros((5, 1)) for m in ("map", "edges") for kind in ("absolute", "signed")}
    blind = _Tried(["map"], "edges", ["head"], nothing)
    assert blind.alarms([HEADLINE])[0].doubts == (HEADLINE,)


def test_without_gradients_it_does_not_apply(digits: Subject, run: Run) -> None:
    assert "needs gradients" in put(DoesTheMapNeedTheModel(), replace(digits, differentiable=False), run).why


def test_the_same_seed_gives_the_same_numbers(digits: Subject, run: Run) -> None:
    first, second = (ask(digits, run, methods=("smoothgrad", "rise")).samples.columns for _ in range(2))
    assert all((first[name] == second[name]).all() for name in first)


def test_bad_settings_are_refused() -> None:
    with pytest.raises(AssayError, match="must name some of gradient"):
        DoesTheMapNeedTheModel(methods=("saliency",))
    with pytest.raises(AssayError, match="inputs=1 .* at least 2"):
        DoesTheMapNeedTheModel(inputs=1)
