"""What would change its mind: coherent on the bundled ranker, silent about what cannot be seen or read."""

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
from assay.probes.explained.what_would_change_its_mind import COHERENCE, GAP, NOWHERE, WhatWouldChangeItsMind
from assay.standard import judge
from assay.subject import Subject
from assay.subjects import digits_mlp
from assay.subjects.digits_ranker import build


def ask(subject, run, **settings):
    answer = put(WhatWouldChangeItsMind(**settings), subject, run)
    assert answer.finding is not None, answer.why
    return answer.finding


@pytest.fixture(scope="module")
def ranker():
    return build()


def test_what_the_bundled_ranker_sees_moves_as_was_meant(ranker, run):
    finding = ask(ranker, run, pairs=60, steps=60)
    coherent = finding.measure(COHERENCE)
    assert coherent.value > 0.7
    assert coherent.low > {b.label: b.value for b in coherent.beside}["a random change of the same length"]
    rows = finding.samples.columns
    assert len(finding.samples) == 60
    assert coherent.value == pytest.approx(rows["coherent"].mean())
    assert finding.measure(GAP).value == pytest.approx(rows[GAP].mean())
    toward = np.sign(np.where(rows["c"] < 0.5, 1.0, 0.0) - rows["c"])
    np.testing.assert_allclose(rows["movement of what is seen"], toward * (rows["read p'"] - rows["read p"]))
    np.testing.assert_allclose(rows["movement of the input"], toward * (rows["read a'"] - rows["read a"]))
    assert (rows["coherent"] == (rows["movement of what is seen"] > 0)).all()
    assert finding.measure("answers that turned").value > 0.9
    assert finding.measure("reconstruction error").value < 0.2  # of the variance of a pixel
    error = finding.measure("reader's error on what is seen")
    assert error.value < 0.5 * {b.label: b.value for b in error.beside}["always the median"]
    far = finding.measure(NOWHERE)
    assert far.value == pytest.approx(rows["from nowhere"].mean())
    assert far.value > 0.8  # all the way to an end of the range, it draws what it has never drawn
    assert {b.label: b.value for b in far.beside}["unchanged"] < 0.15
    (alarm,) = finding.alarms
    assert "of the pictures after the change come from nowhere" in alarm.says
    assert alarm.doubts == (COHERENCE, GAP)
    assert judge(WhatWouldChangeItsMind.standards[0], finding).verdict == "cannot tell"


def test_changes_that_end_at_the_tie_stay_near_what_the_decoder_knows(ranker, run):
    far, near = (ask(ranker, run, pairs=60, steps=60, target=t).measure(NOWHERE) for t in (1.0, 0.5))
    assert near.high < far.low


def test_pictures_that_stay_near_what_is_known_raise_no_alarm(run):
    """Discs in a row: the model sees where the disc is, draws it there, and changes end inside the range."""
    x, place = _bumps(300)
    model = Siamese(_Where(), _Gap(), _Bump()).eval()
    data = {"train": (x[100:], place[100:]), "test": (x[:100], place[:100])}
    subject = Subject.ranker(model, data, low=0, high=1, pairs=100)
    near, far = (ask(subject, run, pairs=40, steps=60, target=t, clip=False) for t in (0.5, 1.0))
    assert near.alarms == ()
    assert near.measure(NOWHERE).value < 0.2
    assert near.measure(COHERENCE).value > 0.9
    assert "come from nowhere" in far.alarms[0].says
    assert COHERENCE in far.alarms[0].doubts


def _bumps(n):
    place = np.random.default_rng(0).uniform(size=n).astype(np.float32)
    return _Bump()(torch.from_numpy(place)[:, None]).numpy(), place


class _Where(nn.Module):
    """The centre of mass of a row, from 0 to 1 where there is one bump."""

    def forward(self, x):
        return (x * torch.linspace(0, 1, 12)).sum(1, keepdim=True) / x.sum(1, keepdim=True)


class _Bump(nn.Module):
    def forward(self, e):
        return torch.exp(-((e - torch.linspace(0, 1, 12)) ** 2) / 0.02)


class _Gap(nn.Module):
    def forward(self, a, b):
        return torch.sigmoid(3 * (a - b).sum(1))


def test_pairs_are_shown_with_what_is_seen_of_them_and_where_it_changed(ranker, run):
    pytest.importorskip("skimage")
    boxes, gallery = ask(ranker, run, pairs=10, steps=10).views
    assert isinstance(boxes, Boxes)
    assert isinstance(gallery, Gallery)
    assert len(gallery.exhibits) == run.budget.shown
    labels = ["first", "second", "first, changed", "seen", "seen, changed", "where the input changed", "by regions",
              "where what is seen changed"]  # fmt: skip
    assert [p.label for p in gallery.exhibits[0].panels] == labels
    assert "read from what is seen" in gallery.exhibits[0].caption


def test_a_target_of_its_own_sends_all_pairs_there(ranker, run):
    up, down = (ask(ranker, run, pairs=20, steps=100, target=t).samples.columns for t in (1.0, 0.0))
    assert (up["c'"] > up["c"]).all()
    assert (down["c'"] < down["c"]).all()
    assert up["read p'"].mean() > up["read p"].mean() + 1
    assert down["read p'"].mean() < down["read p"].mean() - 1


def test_without_clipping_inputs_go_further_from_what_a_reader_knows(ranker, run):
    free, cut = (ask(ranker, run, pairs=40, steps=60, clip=clip) for clip in (False, True))
    assert "free to leave their bounds" in free.says
    assert "bounds" not in cut.says
    assert free.measure(GAP).value > 0


def test_without_a_decoder_perception_is_left_out_and_the_finding_says_why(ranker, run):
    deaf = replace(ranker, model=Siamese(ranker.model.encoder, ranker.model.tail).eval())
    finding = ask(deaf, run, pairs=10, steps=20)
    assert finding.measure().value is None
    assert "no decoder" in finding.alarms[0].says
    assert "fit_decoder" in finding.says
    assert finding.measure("answers that turned").value is not None
    (gallery,) = finding.views
    assert "seen" not in [p.label for p in gallery.exhibits[0].panels]
    assert judge(WhatWouldChangeItsMind.standards[0], finding).verdict == "cannot tell"


def test_without_training_inputs_there_is_no_reader_but_what_is_seen_is_shown(ranker, run):
    finding = ask(replace(ranker, data={"test": ranker.data["test"]}), run, pairs=10, steps=20)
    assert finding.measure().value is None
    assert "split 'train'" in finding.alarms[0].says
    assert finding.measure("reconstruction error").value is not None
    assert "seen" in [p.label for p in finding.views[0].exhibits[0].panels]


class Blank(nn.Module):
    """A decoder that draws the same for all."""

    def forward(self, e):
        return torch.full((len(e), 1, 8, 8), 0.5)


def test_a_decoder_that_draws_nothing_closes_the_gate(ranker, run):
    blank = replace(ranker, model=Siamese(ranker.model.encoder, ranker.model.tail, Blank()).eval())
    finding = ask(blank, run, pairs=20, steps=20)
    assert "cannot be read as well as its inputs" in finding.alarms[0].says
    assert "random change" in finding.alarms[-1].says
    assert all(COHERENCE in alarm.doubts for alarm in finding.alarms)
    assert finding.measure(COHERENCE).value == 0
    assert judge(WhatWouldChangeItsMind.standards[0], finding).verdict != "pass"


class Sigmoid(nn.Module):
    def forward(self, a, b):
        return torch.sigmoid(8 * (a - b).mean(1))


def test_rows_of_a_table_have_no_gallery_and_a_perfect_eye_sees_what_the_reader_reads(run):
    x = np.random.default_rng(0).random((200, 6)).astype(np.float32)
    values = x.mean(1)
    model = Siamese(nn.Identity(), Sigmoid(), nn.Identity())
    subject = Subject.ranker(model, {"train": (x, values), "test": (x[:50], values[:50])}, low=0, high=1, pairs=60)
    finding = ask(subject, run, pairs=30, steps=20)
    assert [type(v) for v in finding.views] == [Boxes]
    assert finding.measure(GAP).value == pytest.approx(0, abs=1e-9)
    assert finding.measure(COHERENCE).value > 0.9
    assert finding.measure("likeness of the two maps").value == pytest.approx(1, abs=1e-5)


def test_a_walk_of_the_embedding_leaves_the_input_and_says_how_far_it_went(ranker, run):
    finding = ask(ranker, run, pairs=40, steps=20, walks="embedding")
    rows, model = finding.samples.columns, ranker.model
    pairs, _ = ranker.data["test"].take(rows["index"])
    with torch.no_grad():
        e = model.encode(pairs[:, 0])
    assert (rows["read a"] == rows["read a'"]).all()
    np.testing.assert_allclose(rows["moved"], rows["length"] / e.norm(dim=1).numpy(), rtol=1e-4)
    assert finding.measure("relative move of the embedding").value == pytest.approx(np.sort(rows["moved"])[19])
    assert finding.measure("angle with the straight line to the second").value > 20  # no mere blend of both
    assert finding.measure("answers that turned").value > 0.9
    line = {b.label: b.value for b in finding.measure(COHERENCE).beside}["on the straight line to the second"]
    assert 0 < line <= 1
    assert finding.measure(COHERENCE).value > 0.7
    assert "likeness of the two maps" not in [m.name for m in finding.measures]
    panels = [p.label for p in finding.views[1].exhibits[0].panels]
    assert "where what is seen changed" in panels
    assert "where the input changed" not in panels
    assert finding.says.startswith("When embeddings are changed")
    deaf = replace(ranker, model=Siamese(ranker.model.encoder, ranker.model.tail).eval())
    assert "needs a decoder" in put(WhatWouldChangeItsMind(walks="embedding"), deaf, run).why


def test_a_walk_keeps_to_its_region_and_is_charged_for_what_it_may_not(ranker, run):
    plain, kept, charged = (
        ask(ranker, run, pairs=20, steps=20, clip=False, target=0.5, **settings)
        for settings in ({}, {"region": (0, 0, 4, 8)}, {"close": 1.0})
    )
    assert "only in rows 0 to 3 and columns 0 to 7" in kept.says
    free, least = (f.measure("length of the change").value for f in (plain, charged))
    assert least < free
    c = [np.abs(f.samples.columns["c'"] - 0.5).mean() for f in (plain, kept, charged)]
    assert c[0] < min(c[1:])  # less to change, or a charge for it: less of the way in as many steps


def test_bad_settings_are_refused():
    with pytest.raises(AssayError, match="settings tv of .* leave them out with walks=embedding"):
        WhatWouldChangeItsMind(walks="embedding", tv=1.0)
    with pytest.raises(AssayError, match="region 4,0,0,8 is none; give top,left,bottom,right"):
        WhatWouldChangeItsMind(region=(4, 0, 0, 8))
    with pytest.raises(AssayError, match="target=1.5 .* between 0 and 1"):
        WhatWouldChangeItsMind(target=1.5)
    with pytest.raises(AssayError, match="pairs=0 .* at least 1"):
        WhatWouldChangeItsMind(pairs=0)


def test_it_is_for_rankers(run):
    answer = put(WhatWouldChangeItsMind(), digits_mlp.build(), run)
    assert answer.status == "does not apply"
    assert "it needs which of two inputs has the higher value" in answer.why
