"""Does the pair map need the model: a small ranker that learns in a second, and the verdicts on numbers by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from assay.errors import AssayError
from assay.methods.train.ranker import Course, fit_ranker
from assay.nn.siamese import Siamese
from assay.probe import put
from assay.probes.explained.does_the_pair_map_need_the_model import (
    CHANGE,
    HEADLINE,
    PERCEPTION,
    STARTS,
    TARGETS,
    DoesThePairMapNeedTheModel,
    _error,
    _Tried,
    _unequal,
)
from assay.run import Run
from assay.standard import judge
from assay.subject import Subject


class Tail(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.out = nn.Linear(16, 32), nn.Linear(32, 1)

    def forward(self, e1: Tensor, e2: Tensor) -> Tensor:
        c: Tensor = self.out(self.hidden(torch.cat([e1, e2], 1)).tanh()).sigmoid()
        return c


def images(n: int, seed: int) -> tuple[Tensor, np.ndarray]:
    """Noise of 6 x 6 whose value is what a fixed pattern finds in it, scaled to [0, 1]."""
    x = torch.rand(n, 1, 6, 6, generator=torch.Generator().manual_seed(seed))
    pattern = torch.randn(36, generator=torch.Generator().manual_seed(7))
    raw = (x.flatten(1) - 0.5) @ pattern
    return x, (torch.sigmoid(1.5 * raw)).double().numpy()


@pytest.fixture(scope="module")
def subject() -> Subject:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Siamese(nn.Sequential(nn.Flatten(), nn.Linear(36, 8)), Tail())
    x, values = images(600, 0)
    rng = torch.Generator().manual_seed(0)
    fit_ranker(model, x, values, low=0, high=1, rng=rng, comparison_only=True, course=Course(steps=150, lr=3e-3))
    data = {"train": (x, values), "test": images(150, 1)}
    return Subject.ranker(model.eval(), data, low=0, high=1, pairs=300, name="patterns")


def ask(subject: Subject, run: Run, **settings: Any) -> Any:  # a Finding; each test knows which views it has
    answer = put(DoesThePairMapNeedTheModel(**settings), subject, run)
    assert answer.finding is not None, answer.why
    return answer.finding


@pytest.fixture(scope="module")
def finding(subject: Subject) -> Any:
    from assay.engine.local import ThisProcess
    from assay.run import Budget

    run = Run(engine=ThisProcess(), budget=Budget("tiny", samples=100, steps=8, restarts=1, shown=3))
    return ask(subject, run, pairs=16, learn=150, draws=2, models=1)


def test_both_cascades_and_both_kinds_of_shuffling_are_told(finding: Any) -> None:
    names = [m.name for m in finding.measures]
    assert names[0] == HEADLINE
    likeness = {n: finding.measure(n) for n in names if "likeness" in n}
    assert len(likeness) == 4
    for measure in likeness.values():
        assert [b.label for b in measure.beside] == ["another seed", "the input itself", "its edges", "a random map"]
        assert measure.value == pytest.approx(finding.samples.columns[measure.column].mean())
    branch, output = finding.views[:2]
    assert "Layers in order: encoder.1." in branch.says
    assert "Layers in order: tail.out, tail.hidden, encoder.1." in output.says
    for curve in (branch, output):
        lines = {line.label: line for line in curve.lines}
        assert set(lines) == {CHANGE, "edges"}
        assert lines["edges"].y == pytest.approx([1] * len(lines["edges"].y), abs=1e-5)
        assert lines[CHANGE].y[0] == 1
        assert lines[CHANGE].y[-1] < 0.5
    assert finding.views[2].labels[-3:] == ("another seed", "the input itself", "its edges")
    panels = [p.label for p in finding.views[3].exhibits[0].panels]
    assert panels[:3] == ["pair", "own", "encoder.1 random"]
    assert len(panels) == 3 + len(TARGETS)


def test_targets_without_meaning_reach_the_constant_and_the_other_seed_learns(finding: Any) -> None:
    error = {n: finding.measure(_error(n)) for n in ("subject", *TARGETS)}
    constant = error["subject"].beside[0].value
    assert error["subject"].value < 0.5 * constant
    assert error["true"].value < 0.6 * constant
    assert error["shuffled pairs"].value > 0.9 * constant
    assert error["shuffled images"].value > 0.9 * constant
    assert not any("leaked" in a.says for a in finding.alarms)


def test_a_pattern_that_every_good_model_needs_is_more_alike_with_another_seed(finding: Any) -> None:
    columns = finding.samples.columns
    other = columns["change, another seed"].mean()
    shuffled = columns["change, likeness under targets shuffled among pairs"].mean()
    assert other > 0.3
    assert shuffled < other


def test_the_subject_is_left_alone_and_a_seed_gives_the_same_numbers(subject: Subject, run: Run) -> None:
    before = {k: v.clone() for k, v in subject.model.state_dict().items()}
    first, second = (ask(subject, run, pairs=6, learn=3, draws=1, models=1).samples.columns for _ in range(2))
    assert all(torch.equal(v, before[k]) for k, v in subject.model.state_dict().items())
    assert all((first[name] == second[name]).all() for name in first)


def test_without_training_data_weights_alone_are_tried_and_nothing_passes(subject: Subject, run: Run) -> None:
    alone = ask(replace(subject, data={"test": subject.data["test"]}), run, pairs=8, draws=1)
    assert "Without training data" in alone.says
    assert alone.measure().value == 0
    assert not any("shuffled" in m.name for m in alone.measures)


def test_with_a_decoder_what_the_model_sees_is_a_map_too(subject: Subject, run: Run) -> None:
    model = subject.model
    assert isinstance(model, Siamese)
    decoder = nn.Sequential(nn.Linear(8, 36), nn.Unflatten(1, (1, 6, 6)))
    finding = ask(replace(subject, model=Siamese(model.encoder, model.tail, decoder).eval()), run, pairs=8, learn=2)
    for curve in finding.views[:2]:
        lines = {line.label: line for line in curve.lines}
        assert set(lines) == {CHANGE, PERCEPTION, "edges"}
        assert lines[CHANGE].y != lines[PERCEPTION].y
    assert len([m for m in finding.measures if m.name.startswith(PERCEPTION)]) == 4
    assert (
        finding.measure("mean absolute error, another seed").value > 0.1
    )  # two steps teach nothing, and an alarm says so
    assert "it is no equal" in finding.alarms[-1].says


def tried(weights: float, seed: float, shuffled: float, moved: float = 1.0) -> _Tried:
    """Maps of 40 pairs, two layers, two draws, with these likenesses; the control keeps all of itself."""
    noise = np.random.default_rng(0)
    rows: dict[str, Any] = {}
    for trial in (*STARTS, *TARGETS):
        mean = weights if trial in STARTS else seed if trial == "true" else shuffled
        shape = (40, 2 if trial in STARTS else 1, 2)
        for name, level in ((CHANGE, mean), ("edges", 1.0)):
            value = level + 0.05 * noise.standard_normal(shape) * (name == CHANGE)
            rows |= {f"{trial} {name} signed": value, f"{trial} {name} absolute": value}
            rows |= {f"{trial} {name} moved": np.full(shape, moved)}
    return _Tried([CHANGE, "edges"], {s: ["last", "first"] for s in STARTS}, rows)


def test_the_verdict_goes_three_ways() -> None:
    assert tried(0.1, 0.4, 0.1).overall(CHANGE) == "pass"
    assert tried(0.1, 0.14, 0.14).overall(CHANGE) == "cannot tell"  # as little alike with meaning as without
    assert tried(0.9, 0.4, 0.1).overall(CHANGE) == "fail"
    assert tried(0.1, 0.9, 0.8).overall(CHANGE) == "fail"
    still = tried(0.1, 0.4, 0.1, moved=0.0)
    assert still.overall(CHANGE) == "cannot tell"
    assert [a.doubts for a in still.alarms()] == [(HEADLINE,)] * 4
    assert tried(0.1, 0.4, 0.1).overall("edges") == "fail"
    assert tried(0.1, 0.4, 0.1).alarms() == []


@pytest.mark.parametrize(
    ("levels", "verdict"),
    [((0.1, 0.4, 0.1), "pass"), ((0.1, 0.14, 0.14), "cannot tell"), ((0.9, 0.4, 0.1), "fail")],
)
def test_the_standard_reads_the_headline_the_same_way(levels: tuple[float, float, float], verdict: str) -> None:
    from assay.finding import Alarm, Finding

    finding = Finding(says="", measures=(tried(*levels).headline(),), alarms=(Alarm("none"),))
    assert judge(DoesThePairMapNeedTheModel.standards[0], finding).verdict == verdict


def test_a_seed_that_learnt_less_raises_an_alarm(finding: Any) -> None:
    subject, other = (finding.measure(_error(n)) for n in ("subject", "true"))
    worse = replace(other, value=2 * subject.value, high=None, low=None)
    assert _unequal([subject, worse])[0].doubts == (HEADLINE,)
    assert _unequal([subject, subject]) == []
    assert _unequal([]) == []


def test_it_waits_for_the_standard_budget_and_refuses_bad_settings() -> None:
    assert not DoesThePairMapNeedTheModel.in_quick
    with pytest.raises(AssayError, match="pairs=1 .* at least 2"):
        DoesThePairMapNeedTheModel(pairs=1)
    with pytest.raises(AssayError, match="models=0 .* at least 1"):
        DoesThePairMapNeedTheModel(models=0)
