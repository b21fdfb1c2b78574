"""Does it agree with itself: exactly with a perfect decoder, the other way with one that draws the opposite."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from assay.errors import AssayError
from assay.finding import Boxes, Gallery
from assay.nn.siamese import Siamese
from assay.probe import put
from assay.probes.compared.does_it_agree_with_itself import DECISION, PERCEPTION, RANDOM, DoesItAgreeWithItself
from assay.standard import judge
from assay.subject import Subject
from assay.subjects.digits_ranker import build


def ask(subject, run, **settings):
    answer = put(DoesItAgreeWithItself(**settings), subject, run)
    assert answer.finding is not None, answer.why
    return answer.finding


class Difference(nn.Module):
    def __init__(self, steepness):
        super().__init__()
        self.steepness = steepness

    def forward(self, a, b):
        return torch.sigmoid(self.steepness * (a - b).mean(1))


class Mirror(nn.Module):
    def forward(self, e):
        return 1 - e


def ranker(decoder, steepness=8.0):
    x = np.random.default_rng(0).random((60, 6)).astype(np.float32)
    return Subject.ranker(
        Siamese(nn.Identity(), Difference(steepness), decoder), (x, x.mean(1)), low=0, high=1, pairs=60
    )


def test_a_perfect_decoder_agrees_and_one_that_draws_the_opposite_does_not(run):
    agrees = ask(ranker(nn.Identity()), run, pairs=20, steps=10, clip=False)
    assert agrees.measure(PERCEPTION).value == pytest.approx(1, abs=1e-5)
    assert agrees.measure(DECISION).value == 1
    assert agrees.measure("decision follows, how far").value == pytest.approx(1, abs=1e-4)
    assert agrees.measure("cosine of what is seen and the attack").value == pytest.approx(1, abs=1e-5)
    turns = ask(ranker(Mirror()), run, pairs=20, steps=10, clip=False)
    assert turns.measure(DECISION).value == 0
    assert turns.measure("decision follows, how far").value < 0
    assert turns.measure("cosine of what is seen and the attack").value == pytest.approx(-1, abs=1e-5)
    assert [judge(s, turns).verdict for s in DoesItAgreeWithItself.standards] == ["fail", "fail"]


def test_the_bundled_ranker_is_read_against_a_random_change(run):
    finding = ask(build(), run, pairs=60, steps=60)
    rows = finding.samples.columns
    for name in (PERCEPTION, DECISION):
        measure = finding.measure(name)
        assert measure.low > {b.label: b.value for b in measure.beside}[RANDOM]
    assert finding.measure(DECISION).value == pytest.approx(rows["same direction"].mean())
    np.testing.assert_allclose(rows["decision"], (rows["c''"] - rows["c"]) / (rows["c'"] - rows["c"]), rtol=1e-3)
    moves = [np.sign(rows["c'"] - rows["c"]) * (rows[c] - rows["c"]) for c in ("c'", "c''")]
    assert finding.measure("correlation of the two moves").value == pytest.approx(np.corrcoef(*moves)[0, 1], abs=1e-4)
    assert finding.measure("likeness of their maps").high < 0.6  # what is seen to change lies elsewhere than the attack
    assert [type(v) for v in finding.views] == [Boxes, Gallery]
    assert len(finding.views[1].exhibits[0].panels) == 7


def test_without_a_decoder_it_does_not_apply(run):
    subject = build()
    deaf = replace(subject, model=Siamese(subject.model.encoder, subject.model.tail).eval())
    answer = put(DoesItAgreeWithItself(), deaf, run)
    assert answer.status == "does not apply"
    assert "needs a decoder" in answer.why


def test_where_no_attack_moves_anything_there_is_nothing_to_recycle(run):
    finding = ask(ranker(nn.Identity(), steepness=0.0), run, pairs=10, steps=5)
    assert finding.measure().value is None
    assert "nothing to recycle" in finding.says
    assert "10 of 10 (100 %) pairs are left out" in finding.alarms[0].says
    assert finding.views == ()


def test_bad_settings_are_refused():
    with pytest.raises(AssayError, match="pairs=2 .* at least 3"):
        DoesItAgreeWithItself(pairs=2)
