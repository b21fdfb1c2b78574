"""A study on a real training: seeds, secrecy, time, stopped tries, simulated tuners, and going on after a kill."""

from __future__ import annotations

import csv
import json
import threading
import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from assay.errors import AssayError
from assay.jobs import study as job
from assay.methods.study.analysis import analyse
from assay.methods.study.comparisons import permuted
from assay.methods.study.hyperparameters import checked
from assay.run import silent
from assay.store.studies import Study, StudyFolder
from assay.subjects.digits_mlp import build

CHOICE = {"epochs": 2, "batch-size": 64, "loss": "cross-entropy", "optimiser": "adam", "learning-rate": 0.01}
SMALL = Study(seeds=(1, 2), most_epochs=6)


@pytest.fixture(scope="module")
def subject():
    return build()


@pytest.fixture(scope="module")
def trainer(subject):
    return job.Trainer(job.bench(subject, SMALL), SMALL)


@pytest.fixture
def folder(tmp_path, subject):
    return job.new_study(tmp_path / "study", SMALL, subject)


def tried(folder, trainer, id, now=None, **given):
    one = folder.submit(id, {**CHOICE, **given}, {}, now=time.time() if now is None else now)
    return job.run_try(folder, id, one.number, trainer)


def test_two_participants_with_one_configuration_have_one_validation_curve(folder, subject):
    found = []
    for _ in range(2):  # each by a trainer of its own, as two jobs would
        who = folder.join(3, now=time.time())
        found.append(tried(folder, job.Trainer(job.bench(subject, SMALL), SMALL), who.id))
    assert found[0].accuracies == found[1].accuracies
    assert found[0].losses == found[1].losses
    assert found[0].accuracy > 0.7


def test_the_final_seeds_are_one_list_for_all_and_differ_from_that_of_the_tries(folder, trainer):
    ended = []
    for _ in range(2):
        who = folder.join(3, now=time.time())
        one = tried(folder, trainer, who.id)
        ended.append(job.finish(folder, who.id, one.number, trainer, silent))
    assert ended[0].test == ended[1].test
    assert len(ended[0].test) == len(SMALL.seeds)
    assert len(set(ended[0].test)) > 1  # seeds differ, and it shows
    assert not set(SMALL.seeds) & {SMALL.seed}
    with pytest.raises(AssayError, match="is one of those at the end"):
        Study(seed=1, seeds=(1, 2))


def test_the_split_hangs_on_the_seed_of_the_study_alone(subject):
    one, other = (job.bench(subject, replace(SMALL, seed=s, seeds=(8, 9))) for s in (0, 3))
    again = job.bench(subject, replace(SMALL, seed=0, seeds=(8, 9), most_epochs=2, minutes=1))
    assert torch.equal(one.validation.x, again.validation.x)
    assert not torch.equal(one.validation.x, other.validation.x)
    assert one.facts() == {
        "classes": 10, "training inputs": 1040, "validation inputs": 260, "test inputs": 497,
    }  # fmt: skip
    assert len(one.both.y) == 1300


def test_test_inputs_are_not_looked_at_before_the_end(folder, subject):
    bench = job.bench(subject, SMALL)
    spoilt = replace(bench, test=bench.test._replace(x=torch.full_like(bench.test.x, float("nan"))))
    trainer = job.Trainer(spoilt, SMALL)
    who = folder.join(3, now=time.time())
    one = tried(folder, trainer, who.id)
    assert one.state == "done"  # no try has seen them
    assert not folder.participant(who.id).test
    assert not (folder.path / "people" / who.id / "final.json").exists()
    folder.export()
    with open(folder.path / "people.csv") as f:
        assert next(csv.DictReader(f))["test_1"] == ""
    done = job.finish(folder, who.id, one.number, trainer, silent)
    assert set(done.test) == {0.0}  # only now


def test_tries_are_refused_after_the_time_by_whoever_asks(folder, trainer):
    who = folder.join(3, now=1000.0)
    folder.submit(who.id, CHOICE, {}, now=1000.0 + 60 * SMALL.minutes - 1)
    late = job.run_try(folder, who.id, 1, trainer, clock=lambda: 1000.0 + 60 * SMALL.minutes + 1)
    assert (late.state, late.accuracy) == ("out of time", None)
    with pytest.raises(AssayError, match="The 120 minutes are over"):
        folder.submit(who.id, CHOICE, {}, now=1000.0 + 60 * SMALL.minutes)
    assert folder.left(folder.participant(who.id), 1000.0 + 60 * SMALL.minutes - 90) == 90


def test_a_try_that_trains_is_cut_off_when_the_time_is_over(folder, trainer):
    who, ticks = folder.join(3, now=0.0), iter(range(10**6))
    folder.submit(who.id, {**CHOICE, "epochs": 6, "batch-size": 8}, {}, now=0.0)
    done = job.run_try(folder, who.id, 1, trainer, clock=lambda: 20.0 * next(ticks))  # each look takes 20 s
    assert done.state == "out of time"
    assert 0 < done.seconds <= 60 * SMALL.minutes + 40
    assert len(done.losses) >= 1


def test_a_cancelled_try_stays_in_the_log_and_its_time_is_spent(folder, subject, monkeypatch):
    monkeypatch.setattr(job, "EVERY", 0.0)
    who = folder.join(3, now=time.time())
    one = folder.submit(who.id, {**CHOICE, "epochs": 6, "batch-size": 4}, {}, now=time.time())
    trainer, told = job.Trainer(job.bench(subject, SMALL), SMALL), []
    work = threading.Thread(target=job.run_try, args=(folder, who.id, 1, trainer), kwargs={"told": told.append})
    work.start()
    while not folder.read_live(who.id, 1).get("batches"):
        time.sleep(0.01)
    folder.cancel(who.id, 1)
    work.join(30)
    (done,) = folder.participant(who.id).tries
    assert (done.number, done.state, done.accuracy) == (1, "cancelled", None)
    assert done.seconds > 0
    assert not folder.read_live(who.id, 1)
    assert tried(folder, trainer, who.id).number == 2  # it counted
    with pytest.raises(AssayError, match="Try 1 has ended"):
        folder.cancel(who.id, 1)
    folder.export()
    with open(folder.path / "tries.csv") as f:
        assert [row["state"] for row in csv.DictReader(f)] == ["cancelled", "done"]
    assert one.at >= 0


def test_a_try_cancelled_before_it_began_ends_at_once(folder, trainer):
    who = folder.join(3, now=time.time())
    folder.submit(who.id, {**CHOICE, "weight-decay": 0.5}, {}, now=time.time())
    folder.cancel(who.id, 1)
    assert job.run_try(folder, who.id, 1, trainer).state == "cancelled"


def test_one_try_runs_at_a_time_and_nothing_after_the_end(folder, trainer):
    who = folder.join(3, now=time.time())
    folder.submit(who.id, CHOICE, {"epochs": 1}, now=time.time())
    with pytest.raises(AssayError, match="Another try is running"):
        folder.submit(who.id, CHOICE, {}, now=time.time())
    with pytest.raises(AssayError, match="A try is running"):
        folder.name_final(who.id, 1)
    done = job.run_try(folder, who.id, 1, trainer)
    assert job.run_try(folder, who.id, 1, trainer) == done  # a recovered job changes nothing
    with pytest.raises(AssayError, match="There is no try 2"):
        folder.name_final(who.id, 2)
    job.finish(folder, who.id, 1, trainer, silent)
    assert job.finish(folder, who.id, 1, trainer, silent).ended
    with pytest.raises(AssayError, match="Try 1 was named as final; nothing more is taken"):
        folder.submit(who.id, CHOICE, {}, now=time.time())


class Simulated:
    """Three experts, one medium and three novices, at six tries, with a small network on eight hundred digits."""

    def __init__(self, folder, subject):
        study = replace(SMALL, most_epochs=8)
        train = subject.data["train"]
        few = type(train)(train.x[:800], train.labels[:800], train.classes)
        model = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))
        small = replace(subject, model=model, data={**subject.data, "train": few})
        self.folder = job.new_study(folder / "study", study, small)
        self.trainer = job.Trainer(job.bench(small, study), study)
        job.draw_reference(self.folder, self.trainer, 24, silent)
        self.people = job.simulate(self.folder, self.trainer, COUNTS, 6, silent)
        self.found, self.page = job.conclude(self.folder)


COUNTS = {"expert": 3, "medium": 1, "novice": 3}


@pytest.fixture(scope="module")
def simulated(tmp_path_factory, subject):
    return Simulated(tmp_path_factory.mktemp("simulated"), subject)


def test_the_curve_of_experts_lies_above_that_of_novices_at_every_try(simulated):
    expert, novice = simulated.found.curves["expert"].mean, simulated.found.curves["novice"].mean
    assert len(expert) == 6
    assert (expert[1:] > novice[1:]).all()
    assert expert[-1] > 0.8


def test_skill_correlates_and_dealt_out_anew_it_does_not(simulated):
    found = simulated.found.experience
    assert found.effect > 0.4
    months = [p.months for p in simulated.people]
    heights = [float(np.mean(p.test)) for p in simulated.people]
    dealt = permuted(months, heights, np.random.default_rng(0), 2000)
    assert abs(dealt.mean()) < 0.03
    assert simulated.found.shuffled[0] < 0 < simulated.found.shuffled[1]


def test_experts_beat_as_many_random_tries_and_novices_do_not(simulated):
    ahead = {each.id: each for each in simulated.found.against}
    experts = [ahead[p.id] for p in simulated.found.groups["expert"]]
    assert all(a.best > a.expected for a in experts)
    novices = [ahead[p.id] for p in simulated.found.groups["novice"]]
    assert np.mean([a.best - a.expected for a in novices]) < 0
    assert all(a.tries == 6 for a in ahead.values())
    assert len(simulated.found.expected) == 6
    assert (np.diff(simulated.found.expected) >= 0).all()


def test_what_began_with_defaults_and_the_reasons_are_counted(simulated):
    assert simulated.found.defaults == {"novice": (0, 3), "medium": (1, 1), "expert": (3, 3)}
    began = [p for p in simulated.people if p.simulated != "novice"]
    assert simulated.found.above_half == (sum(np.mean(p.test) > 0.5 for p in began), 4)
    assert simulated.found.reasons["novice"][1] == 1.0
    assert simulated.found.guesses.effect < 0
    for shares in simulated.found.reasons.values():
        assert sum(shares.values()) == pytest.approx(1.0)
    reached = {(r.group, r.threshold): r for r in simulated.found.reach}
    assert np.mean(reached["expert", 0.5].tries) < 4
    assert reached["expert", 0.5].never == 0


def test_a_stopped_simulation_goes_on_to_the_same_end(simulated, tmp_path, monkeypatch):
    """Killed in its twentieth try, in the midst of a training; the rest is made of what was kept."""
    folder = StudyFolder.make(tmp_path / "again", simulated.folder.study)
    real, left = job.run_try, [20]

    def dies(*given, **more):
        left[0] -= 1
        if left[0] == 0:
            raise KeyboardInterrupt
        return real(*given, **more)

    monkeypatch.setattr(job, "run_try", dies)
    with pytest.raises(KeyboardInterrupt):
        job.simulate(folder, simulated.trainer, COUNTS, 6, silent)
    monkeypatch.setattr(job, "run_try", real)
    people = job.simulate(folder, simulated.trainer, COUNTS, 6, silent)
    assert [(p.months, p.final, p.test) for p in people] == [(p.months, p.final, p.test) for p in simulated.people]
    assert len(folder.people()) == len(simulated.people)
    kept = [[t.configuration for t in p.tries] for p in people]
    assert kept == [[t.configuration for t in p.tries] for p in simulated.people]


def test_random_tries_go_on_where_they_were(simulated, tmp_path):
    folder = StudyFolder.make(tmp_path / "again", simulated.folder.study)
    first = job.draw_reference(folder, simulated.trainer, 15, silent)
    assert first == list(simulated.found.reference[:15])
    assert job.draw_reference(folder, simulated.trainer, 24, silent) == list(simulated.found.reference)


def test_the_tables_lead_back_to_nobody(simulated):
    ids = {p.id for p in simulated.people}
    for name in ("tries.csv", "people.csv", "analysis.json", "report.html"):
        text = (simulated.folder.path / name).read_text()
        assert not any(id in text for id in ids)
        assert "simulated 0" not in text  # what was said of the background
    with open(simulated.folder.path / "tries.csv") as f:
        rows = list(csv.DictReader(f))
    assert len(rows) == 7 * 6
    assert {row["participant"] for row in rows} == {str(i) for i in range(1, 8)}
    told = json.loads((simulated.folder.path / "analysis.json").read_text())
    assert told["experience"]["effect"] == pytest.approx(simulated.found.experience.effect)


def test_the_page_says_that_these_are_programs_and_that_levene_is_not_of_level(simulated):
    page = simulated.page.read_text()
    assert "7 of 7 participants are programs" in page
    assert "compares spread, not level" in page
    for word in ("Spearman", "Levene", "Mann-Whitney", "Kruskal-Wallis", "Holm", "Bonferroni"):
        assert word in page
    assert "<script" not in page


def test_html_in_what_people_say_stays_text(folder, trainer):
    evil = "<script>alert(1)</script>"
    study = StudyFolder(folder.path, replace(folder.study, title=evil))
    who = study.join(2, evil, now=time.time())
    job.run_try(study, who.id, study.submit(who.id, CHOICE, {}, now=time.time()).number, trainer)
    page = job.conclude(study)[1].read_text()
    assert evil not in page
    assert "&lt;script&gt;" in page


def test_programs_that_are_no_persons_are_in_no_group():
    from assay.methods.study.people import Participant

    def one(id, simulated, months, test):
        return Participant(id=id, months=months, simulated=simulated, test=test)

    people = [one("a", "", 0, (0.2, 0.3)), one("b", "tpe", 0, (0.9, 0.9)), one("c", "", 9, (0.6, 0.7))]
    found = analyse(people, [])
    assert {name: [p.id for p in some] for name, some in found.groups.items()} == {
        "novice": ["a"], "medium": [], "expert": ["c"],
    }  # fmt: skip
    assert analyse(people, [], as_published=True).ungrouped == 1
    assert found.experience.p is None  # two are too few
    assert found.person.value > 0.9


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"minutes": 0}, "--minutes 0 is out of its range; give a number from 0.1"),
        ({"validation": 1.0}, "--validation 1.0 is out of its range"),
        ({"most_epochs": 0}, "--most-epochs 0"),
        ({"seeds": ()}, "seeds"),
        ({"seeds": (1, 1)}, "different whole numbers"),
        ({"thresholds": (1.5,)}, "--threshold 1.5"),
        ({"minutes": "long"}, "This is no study: its study has the minutes 'long'"),
        ({"seed": -1}, "--seed -1"),
    ],
)
def test_a_study_that_cannot_be_is_refused_in_a_line(change, says):
    with pytest.raises(AssayError, match=says) as told:
        replace(SMALL, **change)
    assert "\n" not in str(told.value)


def test_folders_that_are_none_are_told(tmp_path, folder, subject):
    with pytest.raises(AssayError, match="There is no study in"):
        StudyFolder.open(tmp_path / "nothing")
    (tmp_path / "study.json").write_text('{"subject": 3}')
    with pytest.raises(AssayError, match="is no study"):
        StudyFolder.open(tmp_path)
    with pytest.raises(AssayError, match="There is another study"):
        job.new_study(folder.path, replace(SMALL, minutes=5), subject)
    assert job.new_study(folder.path, SMALL, subject).study == folder.study
    with pytest.raises(AssayError, match="Nobody has joined"):
        job.conclude(folder)
    for id in ("../../etc", "x" * 22 + "/", ""):
        with pytest.raises(AssayError, match="is no id of a participant"):
            folder.participant(id)
    with pytest.raises(AssayError, match="Nobody in this study has the id"):
        folder.participant("A" * 22)
    for months in (-1, float("nan"), 5000):
        with pytest.raises(AssayError, match="months of experience cannot be"):
            folder.join(months, now=0.0)
    with pytest.raises(AssayError, match="401 letters"):
        folder.join(1, "x" * 401, now=0.0)


def test_what_is_no_classifier_or_has_nothing_to_learn_from_is_refused(subject):
    from assay.subjects.diabetes_mlp import SHELVED

    with pytest.raises(AssayError, match="is no classifier"):
        job.bench(SHELVED.build(), SMALL)
    alone = replace(subject, data={"test": subject.data["test"]})
    with pytest.raises(AssayError, match="has no train data"):
        job.bench(alone, SMALL)
    stuck = replace(subject, model=type("Own", (nn.Module,), {"forward": lambda self, x: x})())
    stuck.model.w = nn.Parameter(torch.zeros(2))
    with pytest.raises(AssayError, match="has no reset_parameters"):
        job.Trainer(job.bench(stuck, SMALL), SMALL).tried(checked(CHOICE, most_epochs=6))
