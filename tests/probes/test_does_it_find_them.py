"""What a search finds: galleries of which every answer is known."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import assay
from assay.engine.local import ThisProcess
from assay.errors import AssayError
from assay.methods.retrieve.measures import chance_of_recall
from assay.probe import put
from assay.probes.attacked.worst_case_accuracy import WorstCaseAccuracy
from assay.probes.right.does_it_find_them import DoesItFindThem
from assay.probes.steady.does_it_find_them_in_part import HEADLINE, DoesItFindThemInPart
from assay.run import Budget, Run
from assay.subject import Subject
from assay.subjects import Source, open_subject

RNG = np.random.default_rng(0)
KINDS, EACH, ASKED = 8, 4, 60
BASE = RNG.random((KINDS, 1, 8, 8)).astype(np.float32)


class Flat(nn.Module):
    def forward(self, x):
        return x.flatten(1)


class Blind(nn.Module):
    """A descriptor that has nothing to do with what is on the picture: a hash of its pixels."""

    def forward(self, x):
        return torch.sin(1e6 * x.flatten(1)[:, :8])


def pictures(kind, noise):
    near = BASE[kind] + noise * RNG.standard_normal((len(kind), 1, 8, 8))
    return near.clip(0, 1).astype(np.float32)


def searched(model, noise=0.05, **told):
    items, asked = np.arange(KINDS * EACH) % KINDS, np.arange(ASKED) % KINDS
    return Subject.retrieval(model, (pictures(items, noise), items), (pictures(asked, noise), asked), **told)


def answer(subject, probe):
    row = assay.audit(subject, probes=[probe]).row(probe.name())
    assert row.answer.finding is not None, row.answer
    return row.answer.finding


@pytest.fixture(scope="module")
def blind():
    return answer(searched(Blind()), DoesItFindThem())


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
def test_what_can_be_found_is_found(metric):
    finding = answer(searched(Flat(), metric=metric), DoesItFindThem())
    assert [m.name for m in finding.measures[:-1]] == [f"recall at {k}" for k in (1, 5, 10, 20)]
    assert all(m.value == 1 for m in finding.measures)
    assert finding.measure("recall at 1").low < 0.95  # sixty queries are no proof
    assert not finding.alarms
    assert [v.name for v in finding.views] == ["cmc"]


def test_recall_never_falls_with_k_and_is_chance_for_a_model_that_sees_nothing(blind):
    values = [m.value for m in blind.measures[:-1]]
    assert values == sorted(values)
    for measure, k in zip(blind.measures, (1, 5, 10, 20), strict=False):
        chance = chance_of_recall(KINDS * EACH, np.full(ASKED, EACH), k)[0]
        assert measure.beside[0].value == pytest.approx(chance)
        assert abs(measure.value - chance) < 4 * np.sqrt(chance * (1 - chance) / ASKED)
    (curve, *_) = blind.views
    assert list(curve.lines[0].y) == sorted(curve.lines[0].y)
    assert curve.lines[0].y[-1] == 1.0


def test_failures_show_the_query_what_came_first_and_what_should_have(blind):
    gallery = blind.views[1]
    assert [p.label for p in gallery.exhibits[0].panels] == ["query", "came first", "should have"]
    rows = blind.samples.columns
    worst = gallery.exhibits[0].index
    at = list(rows["index"]).index(worst)
    assert rows["rank"][at] == rows["rank"].max()
    wrong = rows["rank"] > 1
    kind = rows["index"] % KINDS  # of the query; items are counted alike
    assert (rows["came first"][wrong] % KINDS != kind[wrong]).all()
    assert (rows["should have"] % KINDS == kind).all()


def test_queries_that_stand_in_the_gallery_are_found_and_told():
    items = np.arange(KINDS * EACH) % KINDS
    x = pictures(items, 0.3)
    copied = Subject.retrieval(Blind(), (x, items), (x[:31], items[:31]))
    finding = answer(copied, DoesItFindThem())
    assert finding.measure("recall at 1").value == 1
    assert any("31 of 31 (100 %) of the queries stand in the gallery to the bit" in a.says for a in finding.alarms)
    assert finding.alarms[0].about("recall at 1")


def test_few_queries_are_told_and_doubted():
    items = np.arange(KINDS * EACH) % KINDS
    few = Subject.retrieval(Flat(), (pictures(items, 0.05), items), (pictures(items[:9], 0.05), items[:9]))
    finding = answer(few, DoesItFindThem())
    assert any("Only 9 queries" in a.says and a.about("recall at 1") for a in finding.alarms)


def test_a_model_that_gives_similarities_itself_is_asked_too():
    finding = answer(open_subject(Source("digits-retrieval")), DoesItFindThem())
    right = finding.measure("recall at 1").value
    assert right == pytest.approx(485 / 497)
    assert finding.measure("mean average precision").value == pytest.approx(0.9623, abs=1e-3)


def test_parts_are_found_less_often_the_less_is_seen():
    whole = searched(Flat(), noise=0.25)
    finding = answer(whole, DoesItFindThemInPart(heights=(), uncovered=(0.9, 0.5, 0.2)))
    rows = finding.samples.columns
    shares = [rows[name].mean() for name in ("whole", "10 % covered", "50 % covered", "80 % covered")]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] > shares[-1]
    assert finding.measure(HEADLINE).value == pytest.approx(np.mean(shares[1:]))
    assert finding.measure(HEADLINE).beside[0].value == shares[0]
    (curve, *more) = finding.views
    assert curve.lines[0].x == (0.2, 0.5, 0.9, 1.0)
    assert [p.label for p in more[0].exhibits[0].panels] == ["whole", "80 % covered"]


def test_the_same_seed_gives_the_same_parts():
    subject = searched(Flat(), noise=0.25)
    one, other = (answer(subject, DoesItFindThemInPart()).samples.columns for _ in range(2))
    assert all((one[name] == other[name]).all() for name in one)


def test_what_it_is_not_for_and_settings_that_are_none():
    classifier = open_subject(Source("digits-mlp"))
    for probe in (DoesItFindThem(), DoesItFindThemInPart()):
        assert probe.why_not(classifier) == (
            "it asks what a search of a gallery finds, and the subject's task is Classification"
        )
    rows = Subject.retrieval(nn.Linear(3, 4), (np.eye(3), [0, 1, 2]), (np.eye(3)[:2] / 2, [0, 1]))
    assert DoesItFindThem().why_not(rows) is None
    assert "it crops and covers images" in str(DoesItFindThemInPart().why_not(rows))
    with pytest.raises(AssayError, match=r"at=\(0,\)"):
        DoesItFindThem(at=(0,))
    with pytest.raises(AssayError, match=r"heights=\(1.5,\)"):
        DoesItFindThemInPart(heights=(1.5,))
    with pytest.raises(AssayError, match="no parts to ask about"):
        DoesItFindThemInPart(heights=(), uncovered=())


def test_an_attack_works_through_the_margin_and_everyday_change_through_the_score():
    subject = searched(Flat(), noise=0.3)
    audit = assay.audit(subject, probes=["accuracy", "worst-case-accuracy", "everyday-change"])
    clean, worst, daily = (audit.row(p).answer.finding for p in ("accuracy", "worst-case-accuracy", "everyday-change"))
    assert worst.measures[0].value < clean.measures[0].value
    assert worst.witnesses is not None
    task = subject.task
    broken = task.right(
        subject.predict(torch.from_numpy(worst.witnesses.changed)), torch.as_tensor(worst.witnesses.label)
    )
    assert not broken.any()
    assert daily.measures[0].value < clean.measures[0].value


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
def test_attacked_queries_stay_within_bounds_and_radius_and_find_what_is_not_relevant(metric):
    """Bounds of -1 and 1, so that shares of the range are no natural units; Euclid far from 0, where it cancelled."""
    items, asked = np.arange(KINDS * EACH) % KINDS, np.arange(24) % KINDS
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 16))
    with torch.no_grad():
        model[1].bias.fill_(300.0 if metric == "euclidean" else 0.0)
    gallery, queries = (2 * pictures(kind, 0.1) - 1 for kind in (items, asked))
    subject = Subject.retrieval(model, (gallery, items), (queries, asked), metric=metric, bounds=(-1.0, 1.0))
    run = Run(engine=ThisProcess(), budget=Budget("tiny", samples=24, steps=10, restarts=1, shown=0), debug=True)
    finding = put(WorstCaseAccuracy(radius=0.3, l2_radius=2.0, steps=10), subject, run).finding
    found = finding.witnesses
    assert len(found) > 10
    assert not any("judged afresh" in alarm.says for alarm in finding.alarms)
    assert found.changed.min() >= -1
    assert found.changed.max() <= 1
    away = ((found.changed - found.clean) / 2).reshape(len(found), -1)  # as a share of the range
    size = {"linf": np.abs(away).max(1), "l2": np.sqrt((away**2).sum(1))}
    assert all(size[norm][i] <= r + 1e-6 for i, (norm, r) in enumerate(zip(found.norm, found.radius, strict=True)))
    g, q = (subject.predict(torch.from_numpy(x)).detach().double() for x in (gallery, found.changed))
    first = (q @ g.T).argmax(1) if metric == "cosine" else torch.cdist(q, g).argmin(1)
    assert (items[first.numpy()] != asked[found.index]).all()
