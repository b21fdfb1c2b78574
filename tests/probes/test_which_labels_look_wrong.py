"""Which labels look wrong: flips are found, clean data pass, noise fails, and what cannot be told is not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import assay as package
from assay.data.column import Column
from assay.errors import AssayError
from assay.finding import Gallery
from assay.inputs.row import Row
from assay.jobs.verify import verify
from assay.probe import configure, put
from assay.probes.right import which_labels_look_wrong as module
from assay.probes.right.which_labels_look_wrong import WhichLabelsLookWrong
from assay.run import Run
from assay.standard import judge
from assay.subject import Subject

LIMIT = WhichLabelsLookWrong.standards[0]


def blobs(wrong: float, apart: float = 5.0, n: int = 600, k: int = 4, seed: int = 0) -> Subject:
    """k Gaussian blobs, a share of whose training labels are flipped at random; the first inputs are those."""
    draw = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % k
    x = torch.randn(n, 6, generator=draw) + apart * torch.eye(k, 6)[y]
    shown, some = y.clone(), round(wrong * n)
    shown[:some] = (y[:some] + torch.randint(1, k, (some,), generator=draw)) % k
    data = {"train": (x, shown), "test": (x[-40:], y[-40:])}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Subject.classifier(nn.Linear(6, k).eval(), data, name="blobs", bounds=(-20.0, 20.0))


def asked(subject: Subject, run: Run, **settings: Any) -> Any:
    answer = put(WhichLabelsLookWrong(**settings), subject, replace(run, budget=replace(run.budget, samples=None)))
    assert answer.status == "asked", answer.why
    return answer.finding


@pytest.mark.parametrize("by", ["typicality", "left-out"])
def test_clean_labels_pass_and_flips_are_found_far_better_than_by_chance(by: Any, run: Run) -> None:
    found = asked(blobs(0.0), run, by=by)
    assert judge(LIMIT, found).verdict == "pass"
    assert found.alarms == ()
    area = found.measure("planted flips told from the others")
    assert area.low > 0.95
    assert area.beside[0].value == 0.5
    recall = found.measure("planted flips found")
    # at least as many as it was set to find, on flips that had no part in that; scores tie, so that it may be more
    assert recall.high > 0.7
    if by == "left-out":
        assert recall.low < 0.7
    precision = found.measure("planted flips among those found")
    assert precision.low > 5 * precision.beside[0].value == pytest.approx(0.25)
    assert sum("told from the others" in m.name for m in found.measures) == 2  # and the rival's


@pytest.mark.parametrize("by", ["typicality", "left-out"])
def test_wrong_labels_are_among_those_that_look_wrong_and_many_of_them_fail(by: Any, run: Run) -> None:
    found = asked(blobs(0.2), run, by=by)
    assert judge(LIMIT, found).verdict == "fail"
    suspect = found.samples.columns["index"][found.samples.columns["suspect"]]
    assert (suspect < 120).mean() > 0.95  # precision on flips that nobody told it of
    assert len(suspect) > 0.6 * 120
    worst = found.samples.columns["index"][found.samples.columns["score"].argsort()[:20]]
    assert (worst < 120).all()


def test_where_classes_overlap_it_neither_passes_nor_fails(run: Run) -> None:
    """Labels look wrong there that are not, and nothing tells them from wrong ones."""
    found = asked(blobs(0.0, apart=1.3, k=2), run)
    headline = found.measure()
    assert headline.value > 0.05 > headline.low
    assert headline.n is None  # no number of inputs would settle it
    assert judge(LIMIT, found).verdict == "cannot tell"


def test_where_flips_look_like_anything_else_nothing_can_be_told(run: Run) -> None:
    found = asked(blobs(0.0, apart=0.0), run)
    assert found.measure().value is None
    assert judge(LIMIT, found).verdict == "cannot tell"
    assert "no better than by chance" in found.alarms[0].says
    assert "cannot be told from the others" in found.says
    blunt = asked(lost(), run)
    assert blunt.measure().value is None
    assert "classes overlap, or very many labels are wrong" in blunt.alarms[0].says


def test_few_that_look_wrong_do_not_pass_where_few_would_be_found(run: Run) -> None:
    found = asked(blobs(0.0), run, by="left-out", find=0.3)
    assert found.measure().high < 0.05
    judgement = judge(LIMIT, found)
    assert judgement.verdict == "cannot tell"
    assert "fewer than half of the wrong labels" in judgement.why


def test_flips_to_a_look_alike_class_are_told_apart_and_only_where_there_is_one(run: Run) -> None:
    """Of three classes two lie close: a flip between them is harder to find."""
    draw = torch.Generator().manual_seed(0)
    y = torch.arange(600) % 3
    x = torch.randn(600, 4, generator=draw) + torch.tensor([[0.0, 0, 0, 0], [1, 0, 0, 0], [0, 9, 9, 0]])[y]
    data = {"train": (x, y), "test": (x[:30], y[:30])}
    three = Subject.classifier(nn.Linear(4, 3).eval(), data, name="three", bounds=(-20.0, 20.0))
    found = asked(three, run)
    alike = found.measure("flips to a look-alike class found")
    assert alike.high < found.measure("planted flips found").low
    assert not any("look-alike" in m.name for m in asked(blobs(0.0, k=2), run).measures)


def lost() -> Subject:
    """Two classes apart in 6 of 200 features: a plane parts them, neighbours are lost among the others."""
    draw = torch.Generator().manual_seed(0)
    y = torch.arange(500) % 2
    x = torch.randn(500, 200, generator=draw)
    x[:, :6] += y[:, None] - 0.5
    data = {"train": (x, y), "test": (x[:30], y[:30])}
    return Subject.classifier(nn.Linear(200, 2).eval(), data, name="lost", bounds=(-9.0, 9.0))


def test_the_better_finder_is_named(run: Run) -> None:
    assert any("--set by=left-out" in alarm.says for alarm in asked(lost(), run).alarms)
    assert not any("--set by=" in alarm.says for alarm in asked(lost(), run, by="left-out").alarms)


def test_suspects_are_shown_as_pictures_or_as_cells(run: Run, digits: Subject) -> None:
    train = digits.data["train"]
    x, y = (torch.as_tensor(part).clone() for part in train.take(np.arange(400)))
    y[:40] = (y[:40] + 1) % 10
    wrong = replace(digits, data={**digits.data, "train": type(train)(x.numpy(), y.numpy(), train.classes)})
    found = asked(wrong, run)
    (gallery,) = [v for v in found.views if isinstance(v, Gallery)]
    assert len(gallery.exhibits) == run.budget.shown
    rows = found.samples.columns
    assert {e.index for e in gallery.exhibits} <= set(rows["index"][rows["suspect"]].tolist())
    assert (rows["index"][rows["suspect"]] < 40).mean() > 0.7
    assert rows["suspect"][:40].sum() >= 12  # all to the class beside: harder than a random one
    assert all(e.panels for e in gallery.exhibits)
    assert "says its label" in gallery.exhibits[0].caption
    assert "the model says" in gallery.exhibits[0].caption

    table = blobs(0.03)
    names = ("age", "income", "rooms", "north", "east", "storeys")
    row = Row(tuple(Column(name, "number", -20.0, 20.0, 0.0) for name in names))
    (listed,) = [v for v in asked(replace(table, kind=row), run).views if isinstance(v, Gallery)]
    assert not listed.exhibits[0].panels
    assert "age " in listed.exhibits[0].caption
    assert "storeys " in listed.exhibits[0].caption


def test_the_same_seed_gives_the_same_answer_and_the_subject_stays(run: Run) -> None:
    subject = blobs(0.05)
    labels = np.asarray(subject.data["train"].labels).copy()
    first, again = asked(subject, run), asked(subject, run)
    assert first.measures == again.measures
    assert np.array_equal(np.asarray(subject.data["train"].labels), labels)


def test_a_few_inputs_are_an_answer_with_a_warning(run: Run) -> None:
    found = asked(blobs(0.0, n=40), run)
    assert any("only 40 different training inputs" in alarm.says for alarm in found.alarms)
    assert asked(blobs(0.0, n=4, k=2), run).measures


def test_what_it_cannot_be_asked_of_is_said_in_one_line(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    subject, probe = blobs(0.0), WhichLabelsLookWrong()
    assert probe.why_not(replace(subject, data={"test": subject.data["test"]})) == (
        "it needs the training data, and the subject has only ['test']"
    )
    assert "a row of words by number" in (probe.why_not(replace(subject, tokens=True)) or "")
    x, _ = subject.data["train"].take(np.arange(20))
    one = Subject.classifier(
        subject.model, {"train": (x, torch.zeros(20).long()), "test": (x, torch.arange(20) % 4)}, name="one",
        bounds=(-20.0, 20.0),
    )  # fmt: skip
    assert "all training labels are of one class" in (probe.why_not(one) or "")
    for setting, words in (
        ({"find": "1"}, "at most 0.99"),
        ({"nearest": "0"}, "at least 1"),
        ({"by": "luck"}, "by='luck'"),
    ):
        with pytest.raises(AssayError, match=words):
            configure(WhichLabelsLookWrong, setting)
    monkeypatch.setattr(module, "MOST", 50)
    assert len(asked(subject, run).samples) == 50


@pytest.mark.usefixtures("undrawn")
def test_a_run_that_nobody_touched_is_whole(tmp_path: Path) -> None:
    """Its headline tells of no number of inputs, because more of them would not settle it."""
    done = package.audit(blobs(0.05), probes=["which-labels-look-wrong"], out=tmp_path)
    assert done.folder is not None
    found = verify(done.folder)
    assert found.broken == ()
    assert found.questions[0].follow == 3


@pytest.mark.parametrize("by", ["typicality", "left-out"])
@pytest.mark.parametrize("part", [0.3, 0.45, 0.6, 0.75])
def test_wrong_labels_that_keep_each_other_company_do_not_pass(by: Any, part: float, run: Run) -> None:
    """Of one class so many are labelled as the next: 8 to 19 % of all, and none looks wrong to every input near."""
    clean = blobs(0.0, n=800)
    train = clean.data["train"]
    x, y = train.take(np.arange(800))
    labels = y.numpy().copy()
    labels[np.flatnonzero(labels == 0)[: round(200 * part)]] = 1
    found = asked(
        replace(clean, data={**clean.data, "train": type(train)(x.numpy(), labels, train.classes)}), run, by=by
    )
    headline = found.measure()
    assert headline.low < 0.05 < headline.high == found.measure("labels among others").high
    assert judge(LIMIT, found).verdict != "pass"
    assert "stand among others" in found.says


def repeated(wrong: float, times: int, moved: float = 0.0, n: int = 300) -> Subject:
    """The blobs with each training input so many times, its label with it; each copy moved by so much noise."""
    one = blobs(wrong, apart=9.0, n=n)
    train = one.data["train"]
    x, y = (torch.as_tensor(part).repeat_interleave(times, 0) for part in train.take(np.arange(n)))
    x = x + moved * torch.randn(x.shape, generator=torch.Generator().manual_seed(1))
    return replace(one, data={**one.data, "train": type(train)(x.numpy(), y.numpy(), train.classes)})


@pytest.mark.parametrize("by", ["typicality", "left-out"])
@pytest.mark.parametrize("moved", [0.0, 0.02])
def test_copies_do_not_vouch_for_each_others_wrong_label(by: Any, moved: float, run: Run) -> None:
    """The nearest of an input were its own copies: 20 % wrong labels passed as 0 %, with a trial that found all."""
    found = asked(repeated(0.2, times=12, moved=moved), run, by=by, find=0.85)
    assert judge(LIMIT, found).verdict == "fail"
    rows = found.samples.columns
    assert len(rows["index"]) == 3600
    wrong = rows["index"] < 0.2 * 3600
    assert rows["suspect"][wrong].mean() > 0.6
    assert wrong[rows["suspect"]].mean() > 0.95
    if not moved:  # copies share the judgement
        assert (rows["suspect"].reshape(-1, 12) == rows["suspect"][::12, None]).all()
    assert "are copies of others" in found.says
    (gallery,) = [v for v in found.views if isinstance(v, Gallery)]
    assert len({e.index // 12 for e in gallery.exhibits}) == len(gallery.exhibits)


def test_clean_copies_pass_with_the_interval_of_the_different_ones(run: Run) -> None:
    once, often = asked(blobs(0.0, apart=9.0, n=300), run), asked(repeated(0.0, times=4), run)
    assert judge(LIMIT, often).verdict == "pass"
    for name in ("labels that none near shares", "labels among others"):
        assert often.measure(name).high >= once.measure(name).high - 0.01
    assert often.measure("planted flips found").n == once.measure("planted flips found").n
    assert "copies of others" not in once.says


def test_a_copy_with_another_label_still_looks_wrong(run: Run) -> None:
    subject = repeated(0.0, times=6)
    train = subject.data["train"]
    x, y = (torch.as_tensor(part).numpy().copy() for part in train.take(np.arange(1800)))
    odd = np.arange(0, 1800, 60)
    y[odd] = (y[odd] + 1) % 4
    rows = asked(
        replace(subject, data={**subject.data, "train": type(train)(x, y, train.classes)}), run
    ).samples.columns
    assert rows["suspect"][np.isin(rows["index"], odd)].mean() > 0.8
    assert not rows["suspect"][~np.isin(rows["index"], odd)].any()
