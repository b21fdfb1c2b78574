"""Conformal sets: fitted on one half of test, judged on the other, and kept with the weights."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from assay.data.arrays import Arrays
from assay.data.held_out import held_out
from assay.errors import AssayError
from assay.jobs.audit import audit
from assay.jobs.compare import compare
from assay.methods.uncertainty.conformal import ScoreName, fit_conformal
from assay.nn.with_sets import WithSets
from assay.remedies.conformal import Conformal
from assay.run import Run
from assay.subject import Subject


def fitted(subject: Subject) -> WithSets:
    assert isinstance(subject.model, WithSets)
    return subject.model


def test_its_threshold_is_that_of_the_held_out_half_and_its_answers_stay(digits: Subject, run: Run) -> None:
    before, part = digits.fingerprint(), held_out(digits.data)
    cured = Conformal(score="lac").apply(digits, run)
    x, y = digits.data["test"].take(part.fit)
    want = fit_conformal(digits.predict(x).double().softmax(1), y, alpha=0.1)
    assert float(fitted(cured).threshold) == pytest.approx(float(want.quantile), abs=1e-6)
    x, y = digits.data["test"].take(part.ask)
    torch.testing.assert_close(cured.predict(x), digits.predict(x))
    held = fitted(cured).sets(x)[torch.arange(len(y)), y].float().mean()
    assert 0.83 < held < 0.97
    assert {k: v.fingerprint() for k, v in cured.data.items()} == {k: v.fingerprint() for k, v in digits.data.items()}
    assert cured.origin == ("conformal",)
    assert "(lac) that promise to hold the true one in 90 % of cases, fitted on" in cured.about
    assert digits.fingerprint() == before


@pytest.mark.parametrize("score", ["aps", "raps"])
def test_scores_that_break_ties_at_random_cover_as_promised_and_more_without(
    digits: Subject, run: Run, score: ScoreName
) -> None:
    cured = Conformal(score=score, alpha=0.05).apply(digits, run)
    x, y = digits.data["test"].take(held_out(digits.data).ask)
    drawn, largest = fitted(cured).sets(x, rng=torch.Generator().manual_seed(0)), fitted(cured).sets(x)
    assert (drawn <= largest).all()
    held = drawn[torch.arange(len(y)), y].float().mean()
    assert 0.9 < held < 0.99
    assert score in fitted(cured).rule


def test_another_score_is_another_subject_even_before_a_fit(digits: Subject) -> None:
    every = [Conformal(), Conformal(score="aps"), Conformal(score="lac"), Conformal(penalty=0.1)]
    prints = {remedy.frame(digits).fingerprint() for remedy in (*every, Conformal(alpha=0.2))}
    assert len(prints) == 5


def test_a_split_for_calibration_comes_first(digits: Subject, run: Run) -> None:
    x, y = digits.data["test"].take(np.arange(100))
    given = replace(digits, data={**digits.data, "calibration": Arrays(x, y)})
    cured = Conformal(score="lac").apply(given, run)
    want = fit_conformal(digits.predict(x).double().softmax(1), y, alpha=0.1).quantile.item()
    assert float(fitted(cured).threshold) == pytest.approx(want, abs=1e-6)
    assert "fitted on 100 inputs: the split 'calibration'" in cured.about


class Sharp(nn.Module):
    """Inputs in [0, 1] are logits, ten times too sharp."""

    def forward(self, x: Tensor) -> Tensor:
        return 40 * (x - 0.5)


def test_a_promise_that_was_broken_is_kept_and_seen_in_pairs(run: Run) -> None:
    rng = torch.Generator().manual_seed(0)
    x = torch.rand(1200, 4, generator=rng)
    subject = Subject.classifier(Sharp(), (x, torch.multinomial((4 * x).softmax(1), 1, generator=rng)[:, 0]))
    cured = Conformal().apply(subject, run)
    before, after = (audit(s, probes=["how-often-is-the-set-right", "accuracy"]) for s in (subject, cured))
    changes = {c.measure: c for c in compare(before, after)}
    coverage = changes["coverage"]
    assert coverage.paired
    assert (coverage.low or 0) > 0.1
    assert coverage.after.value == pytest.approx(0.9, abs=0.04)
    assert changes["promise missed by"].verdict == "better"
    assert [before.row("how-often-is-the-set-right").verdict, after.row("how-often-is-the-set-right").verdict] == [
        "fail",
        "pass",
    ]
    for score in ("LAC", "APS", "RAPS"):  # what is fitted by the question itself is the same before and after
        assert changes[f"coverage, {score}"].difference == 0
        assert changes[f"mean set size, {score}"].difference == 0
    assert changes["accuracy"].difference == 0


def test_kept_weights_go_into_its_frame(digits: Subject, run: Run) -> None:
    cured, frame = Conformal().apply(digits, run), Conformal().frame(digits)
    assert frame.fingerprint() != cured.fingerprint()
    frame.model.load_state_dict(cured.model.state_dict())
    assert frame.fingerprint() == cured.fingerprint()


def test_bad_settings_are_refused_before_anything_is_asked() -> None:
    with pytest.raises(AssayError, match="alpha=0"):
        Conformal(alpha=0)
    with pytest.raises(AssayError, match="penalty=-1"):
        Conformal(score="raps", penalty=-1)
    assert Conformal().cost() == (0, 1)


def test_per_class_it_has_a_threshold_for_each_class_and_says_which_are_in_every_set(digits: Subject, run: Run) -> None:
    part = held_out(digits.data)
    cured = Conformal(score="lac", per_class=True).apply(digits, run)
    x, y = digits.data["test"].take(part.fit)
    want = fit_conformal(digits.predict(x).double().softmax(1), y, per_class=True)
    assert fitted(cured).threshold.shape == (10,)
    torch.testing.assert_close(fitted(cured).threshold, want.quantile, atol=1e-6, rtol=0)
    assert "(lac, per class)" in cured.about
    assert "of cases of each class" in cured.about
    assert "In every set" not in cured.about
    again = Conformal(score="lac", per_class=True).frame(digits)
    again.model.load_state_dict(cured.model.state_dict())
    assert torch.equal(fitted(again).sets(x), fitted(cured).sets(x))
    x, y = digits.data["test"].take(part.fit)
    rare = torch.cat([torch.nonzero(y != 3)[:, 0], torch.nonzero(y == 3)[:4, 0]])
    few = replace(digits, data={**digits.data, "calibration": Arrays(x[rare], y[rare])})
    scarce = Conformal(score="lac", per_class=True).apply(few, run)
    assert f"In every set, for too few held-out inputs: {digits.task.classes[3]}." in scarce.about
    assert fitted(scarce).sets(x)[:, 3].all()
    assert not fitted(scarce).sets(x)[:, 4].all()
