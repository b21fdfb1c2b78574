"""Which estimator: its numbers are those of the bench, and it names the best."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.special import softmax

from assay.errors import AssayError
from assay.finding import finding_from_json, finding_to_json
from assay.methods.uncertainty.calibration import Rule
from assay.methods.uncertainty.estimator_bench import around, bench, called, choose
from assay.probe import put
from assay.probes.sure.which_estimator import EVERY, TEMPERATURES, USUAL, WhichEstimator


@pytest.fixture(scope="module")
def finding(digits_model):
    from assay.engine.local import ThisProcess
    from assay.run import Budget, Run
    from assay.subject import Subject

    model, data = digits_model
    run = Run(engine=ThisProcess(), budget=Budget("tiny", samples=120, steps=5, restarts=1), debug=True)
    return put(WhichEstimator(sets=40), Subject.classifier(model, data, name="digits"), run).finding


def test_the_best_is_the_best_of_the_bench(finding, digits, run):
    run = replace(run, budget=replace(run.budget, samples=120))
    index = run.pick(digits.data["test"])
    logits, _ = run.predict(digits, "test", index, "the same")
    own = around(softmax(logits.astype(np.float64), axis=1), temperatures=TEMPERATURES)
    trusts = bench(own, 120, rules=EVERY, sets=40, seed=run.seed)
    assert called(trusts[0].rule) in finding.says
    assert finding.measure().value == pytest.approx(float(np.median(trusts[0].absolute)))
    usual = next(t for t in trusts if t.rule == USUAL)
    assert finding.measure("error of the usual estimator").value == pytest.approx(float(np.median(usual.absolute)))
    assert finding.measure().value <= finding.measure("error of the usual estimator").value
    chosen = choose(softmax(logits.astype(np.float64), axis=1), sets=40, seed=run.seed)[0]
    reported = finding.measure("error of the reported estimator")
    assert reported.value == pytest.approx(float(np.median(chosen.absolute)))
    assert f"`confidence` reports by {called(chosen.rule)}" in finding.says
    assert finding.views[0].labels == tuple(called(t.rule) for t in trusts)


def test_the_views_hold_every_rule_and_every_law(finding):
    bars, laws, sizes = finding.views
    assert len(bars.labels) == len(set(bars.labels)) == 19
    assert list(bars.values) == sorted(bars.values)
    assert len(laws.columns) == len(TEMPERATURES) + 1
    values = np.array(laws.values)
    assert values.shape == (19, 6)
    assert (values > 0).all()
    np.testing.assert_allclose(np.median(values[:, :5], axis=1), 100 * np.array(bars.values))
    for line in sizes.lines:
        assert line.x == (30.0, 100.0, 120.0)
        assert line.y[-1] < line.y[0]  # more inputs, less error
    again = finding_from_json(finding_to_json(finding))
    assert again.views == finding.views


def test_the_same_seed_gives_the_same_answer(digits, run):
    few = replace(run, budget=replace(run.budget, samples=40))
    first, again = (put(WhichEstimator(sets=20), digits, few).finding for _ in range(2))
    assert first.measures == again.measures
    assert "Only 40 inputs" in first.alarms[0].says


def test_enough_inputs_raise_no_alarm(finding):
    assert not finding.alarms
    assert "With 120 inputs" in finding.says


def test_names_tell_rules_apart_and_bad_settings_are_refused():
    assert called(USUAL) == "legacy, 15 bins"
    assert called(Rule("kde")) == "density, Silverman"
    with pytest.raises(AssayError, match="sets=5 .* at least 20"):
        WhichEstimator(sets=5)
