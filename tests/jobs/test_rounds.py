"""Audits with a time limit, against a clock that the test turns: what is asked, in which order, and when it ends."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field

import numpy as np
import pytest

from assay.audit import Judged, Question, judgements
from assay.errors import AssayError
from assay.finding import Alarm, Beside, Finding, Measure, Table, wilson
from assay.jobs.audit import rounds
from assay.jobs.audit.effort import seconds_of
from assay.jobs.audit.rounds import WRITING, Rounds, budget_of, error_of, keyed, looked, seconds_named, timed
from assay.methods.uncertainty.exact import exact
from assay.methods.uncertainty.sequences import ladder, mean_interval, rungs
from assay.probe import Answer
from assay.probes.sure.how_often_is_the_set_right import _missed
from assay.run import Budget, Drawn
from assay.standard import Standard, Standards


@pytest.fixture(autouse=True)
def idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever else this machine does."""
    monkeypatch.setattr(rounds, "contention", lambda: 1.0)


TRUTH = {"accuracy": 0.95, "confidence": 0.8, "everyday-change": 0.55, "worst-case-accuracy": 0.2, "how-steep": 0.9}
LIMIT = Standard(at_least=0.5)


def question(probe: str, own: tuple[Standard, ...] = (LIMIT,)) -> Question:
    return Question(probe=probe, question="?", source="", settings={}, own=own)


@dataclass
class Simulated:
    """A model of a known pace, whose questions take what the table says times `slower`, and a clock."""

    pace: float = 1e-3
    there: int = 3000
    slower: float = 1.0
    now: float = 0.0
    seed: int = 7
    asked: list[tuple[str, int, int]] = field(default_factory=list)

    def audit(self, names, text, inputs=None, rows=None, standards=None, own=None):
        questions = [question(n, (LIMIT,) if own is None else own[n]) for n in names]
        self.rounds = Rounds(
            timed(text, inputs), questions, [True] * len(names), standards or Standards(),
            pace=self.pace, there=self.there, clock=lambda: self.now,
        )  # fmt: skip
        rows = {} if rows is None else rows
        while (turn := self.rounds.next(rows)) is not None:
            about = self.slower * seconds_of(names[turn.place], turn.budget, self.pace, self.there)
            self.now += min(about, turn.most)
            if about > turn.most:
                self.rounds.leave(turn.place)
                continue
            self.asked.append((names[turn.place], turn.budget.inputs, turn.budget.steps))
            before = rows[turn.place].answer.looks if turn.place in rows else ()
            answer = self.answer(names[turn.place], turn.budget, about)
            drawn = Drawn(turn.budget.inputs, None, self.there).grows
            answer = looked(answer, before, turn.budget, drawn, self.now, self.rounds.most)
            rows[turn.place] = Judged(answer=answer, judgements=judgements(answer, questions[turn.place].own, ()))
        return rows

    def answer(self, name: str, budget: Budget, seconds: float) -> Answer:
        hits = np.random.default_rng(self.seed).random(self.there)[: budget.inputs] < TRUTH[name]
        finding = Finding(says="so", measures=(Measure.proportion("share", hits, better="higher"),))
        return Answer(
            probe=name, question="?", source="", settings={}, key="k", status="asked", finding=finding, seconds=seconds
        )


def test_times_are_read_and_what_is_none_is_refused():
    assert [seconds_named(text) for text in ("90s", "10m", "2h", "0.5m", "27777h")] == [90, 600, 7200, 30, 99_997_200]
    assert seconds_named("quick") is None
    for text, words in (
        ("0s", "'0s' is no time to ask in; give more than 0s"),
        ("0", "'0' is no time to ask in; give more than 0s"),  # not "write 0s", which is refused too
        ("30000h", "'30000h' is too long; give at most 27777h"),
        ("27777.1h", "'27777.1h' is too long; give at most 27777h"),
        ("10", "'10' has no unit; write 10s, 10m or 10h"),
        ("10d", "'10d' has the unit 'd'; write 10s, 10m or 10h"),
    ):
        with pytest.raises(AssayError, match=words):
            seconds_named(text)
    with pytest.raises(AssayError, match="There is no budget '-5m'; choose one of"):
        budget_of("-5m")
    for text in ("10M", "5 m"):
        with pytest.raises(AssayError, match=f"'{text}' is none here; choose one of .* a time in s, m or h, written"):
            budget_of(text)
    assert budget_of("standard").seconds is None


def test_the_time_is_no_part_of_the_question():
    assert keyed(timed("10m")) == keyed(timed("2h"))
    assert keyed(timed("10m")) != keyed(timed("10m", 40))
    assert keyed(budget_of("quick")) is budget_of("quick")


def test_it_goes_on_until_every_verdict_is_settled_and_asks_again_only_what_is_not():
    model = Simulated()
    rows = model.audit(list(TRUTH), "2h")
    verdicts = {row.answer.probe: row.verdict for row in rows.values()}
    assert verdicts == {
        "accuracy": "pass",
        "confidence": "pass",
        "everyday-change": "pass",
        "worst-case-accuracy": "fail",
        "how-steep": "pass",
    }
    looks = {row.answer.probe: len(row.answer.looks) for row in rows.values()}
    assert looks["everyday-change"] > 1  # 0.55 is near the limit
    assert all(n == 1 for name, n in looks.items() if name != "everyday-change")
    assert model.now < 7200 - 10  # and then it ends
    again = [look.inputs for look in rows[2].answer.looks]
    assert again == sorted(set(again))
    assert set(again) <= set(rungs(3000))


def test_the_first_round_asks_the_cheapest_first_and_what_has_no_limit_last():
    model = Simulated()
    names = ["worst-case-accuracy", "accuracy", "confidence", "everyday-change"]
    model.audit(names, "2h", own={n: () if n == "accuracy" else (LIMIT,) for n in names})
    first = list(dict.fromkeys(name for name, _, _ in model.asked))
    assert first == ["confidence", "everyday-change", "worst-case-accuracy", "accuracy"]


def test_what_has_no_limit_is_looked_at_once_more_when_all_is_settled_and_there_is_time():
    names, own = ["accuracy", "confidence"], {"accuracy": (), "confidence": (LIMIT,)}
    model = Simulated(there=50_000)
    rows = model.audit(names, "10m", own=own)
    assert rows[1].verdict == "pass"
    few, more = rows[0].answer.looks
    assert few.inputs == 50
    assert more.inputs == max(n for n in ladder(50, 50_000) if n <= 2000)
    assert more.high - more.low < few.high - few.low
    assert model.asked[-1][0] == "accuracy"
    for seconds in (10, 30, 60, 120, 240):
        slow = Simulated(there=50_000, pace=0.05)
        slow.audit(names, f"{seconds}s", own=own)
        assert slow.now < seconds


def test_inputs_that_take_long_to_read_count_once_each():
    """As where each is a picture to decode: the first look is at fewer, and what it takes is foreseen."""

    def rounds_with(reading: float) -> Rounds:
        return Rounds(
            timed("60s"), [question("accuracy")], [True], Standards(), pace=1e-6, reading=reading, there=20_000,
            clock=lambda: 0.0,
        )  # fmt: skip

    fast, slow = rounds_with(0.0), rounds_with(4e-3)
    assert slow.first[0] < fast.first[0]
    about = slow.next({}).about
    assert about == pytest.approx(fast._about(0, slow.next({}).budget) + 4e-3 * slow.first[0])


def once_looked(*measures: Measure, grows: str = "inputs") -> tuple[Simulated, Judged]:
    """A question that was looked at once, at 50 of 3,000 inputs, with a limit of at least 0.5 on each measure."""
    model, limits = Simulated(), tuple(Standard(measure=m.name, at_least=0.5) for m in measures)
    model.audit(["accuracy"], "10m", own={"accuracy": limits}, rows={})
    budget = dataclasses.replace(timed("10m"), inputs=50, samples=None)
    answer = dataclasses.replace(
        model.answer("accuracy", budget, 0.05), finding=Finding(says="From 0.2 (0.1 to 0.3).", measures=measures)
    )
    answer = looked(answer, (), budget, grows, 1.0, 3000)
    model.now = 0.0
    return model, Judged(answer=answer, judgements=judgements(answer, limits, ()))


def test_one_limit_that_failed_does_not_stop_the_work_on_another():
    failed = Measure.proportion("failed", np.arange(50) < 2, better="higher")
    open_one = Measure.proportion("open", np.arange(50) < 26, better="higher")
    model, row = once_looked(failed, open_one)
    assert row.verdict == "fail"
    assert [j.verdict for j in row.judgements] == ["fail", "cannot tell"]
    assert list(model.rounds._again(0, row))
    assert not list(model.rounds._again(0, once_looked(failed)[1]))


@pytest.mark.parametrize("value", [0.0, 30.0])
def test_values_that_are_all_equal_settle_nothing_where_nobody_knows_how_far_others_lie(value):
    same = Measure.mean("steps lost", np.full(50, value), better="higher", seed=0, unit="steps")
    model, row = once_looked(same)
    assert row.verdict == "cannot tell"
    assert "nobody knows how far another may lie" in row.judgements[0].why
    assert list(model.rounds._again(0, row))
    assert once_looked(same, grows="")[1].verdict != "cannot tell"  # all inputs that there are were asked


def test_a_sentence_with_an_interval_says_that_it_is_of_one_look():
    half = Measure.proportion("share", np.arange(50) < 25, better="higher")
    assert once_looked(half)[1].answer.finding.says.endswith(rounds.OF_ONE_LOOK)
    assert once_looked(half, grows="")[1].answer.finding.says == "From 0.2 (0.1 to 0.3)."


@pytest.mark.parametrize("text", ["20s", "90s", "5m", "30m"])
@pytest.mark.parametrize("slower", [0.3, 1.0, 3.0])
def test_it_never_takes_longer_than_it_was_given(text, slower):
    model = Simulated(pace=2e-3, slower=slower)
    model.audit(list(TRUTH), text)
    report = model.rounds.slow * (WRITING[0] + WRITING[1] * model.rounds.unwritten)
    assert model.now + report <= seconds_named(text) + 1e-6
    assert model.rounds.answered or text == "20s"


def test_what_a_report_took_tells_what_the_last_one_takes():
    model = Simulated()
    model.audit(["accuracy"], "60s")
    assert model.rounds.unwritten == len(model.asked) == 1
    assert model.rounds.ending == pytest.approx(WRITING[0] + 2 * WRITING[1])
    model.rounds.wrote(10 * (WRITING[0] + WRITING[1]))
    assert model.rounds.ending == pytest.approx(12.5 * (WRITING[0] + WRITING[1]))  # what was drawn is not drawn again


def test_what_does_not_fit_says_how_long_it_would_take_and_more_time_asks_it():
    model = Simulated(pace=0.05)
    names = ["accuracy", "worst-case-accuracy"]
    rows = model.audit(names, "60s")
    assert list(rows) == [0]
    told = seconds_of("worst-case-accuracy", dataclasses.replace(timed("60s"), inputs=25), 0.05, 3000)
    assert model.rounds.too_long[1].startswith(
        f"it does not fit into 60s: it would take about {math.floor(told / 60 + 0.5)} min, and "
    )
    longer = Simulated(pace=0.05)
    longer.audit(names, "1h", rows=rows)
    assert set(rows) == {0, 1}
    assert longer.asked[0][0] == "worst-case-accuracy"  # the other is known from before


def test_a_time_that_is_too_short_for_the_first_question_is_refused_with_the_time_it_takes():
    rounds = Rounds(
        timed("8s"), [question("everyday-change"), question("worst-case-accuracy")], [True, True], Standards(),
        pace=0.01, there=3000, clock=lambda: 3.0,
    )  # fmt: skip
    with pytest.raises(AssayError, match=r"A time of 8s is too short: opening the model took 3 s, and everyday-change "
                       r"would take about 21 s; give at least 26s"):  # fmt: skip
        rounds.refuse_what_is_too_short()
    Rounds(
        timed("60s"), [question("everyday-change")], [True], Standards(), pace=0.01, there=3000, clock=lambda: 3.0
    ).refuse_what_is_too_short()


def test_more_time_searches_as_hard_as_a_larger_budget():
    hurried, patient = Simulated(pace=5e-3), Simulated(pace=1e-5)
    hurried.audit(list(TRUTH), "5m")
    patient.audit(list(TRUTH), "2h")
    assert {steps for _, _, steps in hurried.asked} == {20}
    assert {steps for _, _, steps in patient.asked} == {100}


def test_a_bound_on_the_inputs_holds_in_every_round():
    model = Simulated()
    rows = model.audit(["everyday-change"], "2h", inputs=120)
    assert max(inputs for _, inputs, _ in model.asked) == 120
    assert rows[0].verdict == "cannot tell"


@pytest.mark.parametrize("honest", [True, False])
def test_a_verdict_that_may_be_taken_early_is_wrong_no_more_often_than_claimed(honest, monkeypatch):
    """The truth is the limit itself: whatever is settled is settled by chance. With intervals for one look it is."""
    monkeypatch.setitem(TRUTH, "everyday-change", 0.5)
    if not honest:
        monkeypatch.setattr(rounds, "over_looks", lambda finding, error: finding)
    settled = sum(
        Simulated(seed=seed).audit(["everyday-change"], "2h")[0].verdict != "cannot tell" for seed in range(120)
    )  # fmt: skip
    assert settled <= 0.05 * 120 if honest else settled > 0.1 * 120


def test_a_value_that_is_the_limit_is_looked_at_again_and_one_in_doubt_is_not(monkeypatch):
    """25 of 50 at a limit of a half: no number of inputs would settle it by what was seen, and more may."""
    monkeypatch.setattr(
        Simulated, "answer", lambda self, name, budget, seconds: answered(
            Measure.proportion("share", np.arange(budget.inputs) % 2 == 0, better="higher")
        ),
    )  # fmt: skip
    model = Simulated()
    looks = [look.inputs for look in model.audit(["everyday-change"], "2h")[0].answer.looks]
    assert len(looks) > 1
    assert looks[-1] == 3000
    doubted = dataclasses.replace(
        answered(Measure.proportion("share", [True] * 50, better="higher")).finding,  # type: ignore[arg-type]
        alarms=(Alarm("it is masked", ("share",)),),
    )
    row = dataclasses.replace(answered(Measure.proportion("share", [True] * 50, better="higher")), finding=doubted)
    assert not list(rounds.unsettled(Judged(answer=row, judgements=judgements(row, (LIMIT,), ()))))


def test_what_would_settle_sooner_comes_before_what_costs_more():
    """A second look of a cheap question comes before the first of a dear one."""
    model = Simulated(pace=5e-3)
    TRUTHS = {"accuracy": 0.46, "worst-case-accuracy": 0.2}
    model.audit(list(TRUTHS), "2h", own={n: (Standard(at_least=0.9 if n == "accuracy" else 0.5),) for n in TRUTHS})
    order = [name for name, _, _ in model.asked]
    assert order.index("worst-case-accuracy") > 0
    assert order.count("accuracy") >= 2
    assert order[:2] == ["accuracy", "accuracy"]


def test_a_question_of_many_passes_has_more_inputs_in_a_look_than_its_steps_would_give():
    look = Simulated()
    look.audit(["how-steep"], "2h")
    budget = look.rounds._budget("quick", 400)
    assert budget.few(20) == 200
    assert budget_of("quick").few(20) == 20
    assert budget_of("full").few(20) == 20
    assert budget_of("quick", 50).few(20) == 20


def answered(value: Measure, samples: Table | None = None) -> Answer:
    finding = Finding(says="so", measures=(value,), samples=samples)
    return Answer(probe="accuracy", question="?", source="", settings={}, key="k", status="asked", finding=finding)


MOST = 100
EACH = 0.05 * 0.95 * 0.98
"""Of all looks that were not hurried; a first one at 50 of 100 has 0.4 of it, the other the rest."""


def test_one_look_at_everything_keeps_the_interval_of_one_look_and_others_do_not():
    whole, part = (Budget("10m", samples=None, steps=20, restarts=1, inputs=n) for n in (100, 50))
    share = Measure.proportion("share", [True] * 80 + [False] * 20, better="higher")
    once = looked(answered(share), (), whole, "", 1.0, MOST)
    assert once.finding.measures == (share,)
    assert (once.looks[0].n, once.looks[0].grows) == (100, "")
    first = looked(answered(Measure.proportion("share", [True] * 40 + [False] * 10, better="higher")), (), part,
                   "inputs", 1.0, MOST)  # fmt: skip
    second = looked(answered(share), first.looks, whole, "", 2.0, MOST)
    m = second.finding.measures[0]
    assert (m.low, m.high) == pytest.approx(np.array(exact(80, 100, 0.6 * EACH)))
    assert (m.low, m.high) != wilson(80, 100)
    assert "however often one looks" in m.about
    assert [look.at for look in second.looks] == [1.0, 2.0]


def test_a_mean_of_shares_has_the_interval_of_its_bets_where_the_values_are_kept():
    part = Budget("10m", samples=None, steps=20, restarts=1, inputs=50)
    values = np.random.default_rng(0).beta(1, 3, 50)
    mean = Measure.mean("mean share", values, better="higher", seed=0, unit="%", column="share")
    table = Table("test", {"index": np.arange(50), "share": values})
    m = looked(answered(mean, table), (), part, "inputs", 1.0, MOST).finding.measures[0]
    assert (m.low, m.high) == pytest.approx(mean_interval(values, alpha=0.4 * EACH))
    assert m.high - m.low > mean.high - mean.low  # type: ignore[operator]
    for other in ({"share": 3 * values}, {"share": values[::-1] / 2}, {}):  # not these values
        kept = Table("test", {"index": np.arange(50), **other})
        m = looked(answered(mean, kept), (), part, "inputs", 1.0, MOST).finding.measures[0]
        assert "times as wide" in m.about


def test_other_measures_are_widened_and_say_so():
    part = Budget("10m", samples=None, steps=20, restarts=1, inputs=50)
    mean = Measure(name="mean", value=2.0, low=1.0, high=4.0, n=50, better="lower")
    found = looked(answered(mean), (), part, "inputs", 0.0, MOST)
    m = found.finding.measures[0]
    assert (m.high - 2) == pytest.approx(2 * (2 - m.low))  # each side by its own
    assert "1.20 times as wide as for one look" in m.about
    # 1 - 0.4 * 0.95 * 0.98 * 0.05 / 2 of a normal law, over its 0.975
    assert (m.high - m.low) / 3 == pytest.approx(2.3526 / 1.96, abs=2e-3)
    more = dataclasses.replace(part, inputs=200)
    wider = looked(answered(mean), found.looks, more, "inputs", 0.0, 100_000).finding.measures[0]
    assert wider.high > m.high


@pytest.mark.parametrize("hits", [86, 90, 93])
def test_what_is_cut_off_at_0_has_the_interval_that_follows_from_what_it_was_made_of(hits):
    part = Budget("10m", samples=None, steps=20, restarts=1, inputs=100)
    right = [True] * hits + [False] * (100 - hits)
    covered = Measure.proportion("coverage", right, better="neither", beside=(Beside("promised", 0.9),))
    missed = _missed(covered, 0.9)
    found = Finding(says="so", measures=(covered, missed))
    answer = dataclasses.replace(answered(covered), finding=found)
    wide, m = looked(answer, (), part, "inputs", 0.0, MOST).finding.measures
    assert (m.value, m.low, m.high) == (missed.value, max(0.0, 0.9 - wide.high), 0.9 - wide.low)
    assert m.high > missed.high
    assert missed.about in m.about


def test_values_that_are_all_equal_settle_nothing_by_few_inputs():
    part = Budget("10m", samples=None, steps=20, restarts=1, inputs=20)
    flat = Measure.mean("mean share", np.full(20, 0.5), better="higher", seed=0, unit="%")
    assert flat.low == flat.high == 0.5
    m = looked(answered(flat), (), part, "inputs", 1.0, MOST).finding.measures[0]
    often = float(exact(19, 19, 0.4 * 0.05 / 0.95 * EACH)[0])  # fewer than 50 inputs are of a hurried look
    assert (m.low, m.high) == pytest.approx((0.5 * often, 1 - 0.5 * often))
    assert 0.1 < m.high - m.low < 0.4
    assert "all values are equal" in m.about
    assert m.low <= 0.9 * 0.5  # where 1 of 10 is 0 and the others are 0.5, 20 equal ones come in 1 look of 8


def test_another_search_has_a_share_of_the_error_of_its_own():
    quick, standard = (Budget("10m", samples=None, steps=s, restarts=1, inputs=50) for s in (20, 50))
    share = Measure.proportion("share", [True] * 40 + [False] * 10, better="higher")
    first = looked(answered(share), (), quick, "steps", 1.0, MOST)
    second = looked(answered(share), first.looks, standard, "steps", 2.0, MOST)
    m = second.finding.measures[0]
    assert (m.low, m.high) == pytest.approx(np.array(exact(40, 50, 0.05 * 0.95 * 0.01 * 0.4)))


@pytest.mark.parametrize("probe", ["accuracy", "how-steep", "somebody-elses"])
@pytest.mark.parametrize("most", [1, 30, 60, 700, 40_000])
def test_whatever_is_looked_at_the_errors_are_no_more_than_one_look_would_have(probe, most):
    """A first look as it was planned, or a hurried one with the fewest inputs; from there all rungs, all searches."""
    fewest, *_ = rungs(most)
    for planned in {n for n in rungs(most) if n >= 50} or {most}:
        begun = {planned, fewest}
        total = sum(
            error_of(probe, search, first, n, most)
            for first in begun
            for n in ladder(first, most)
            for search in range(3)
        )
        assert total <= 0.05 + 1e-12


def test_how_many_inputs_come_first_depends_on_no_answer():
    model, other = Simulated(pace=5e-3), Simulated(pace=5e-3, seed=8)
    rows = model.audit(list(TRUTH), "30m")
    other.audit(list(TRUTH), "30m", own={n: (Standard(at_least=0.99),) for n in TRUTH})
    assert model.rounds.first == other.rounds.first
    assert all(row.answer.looks[0].inputs == model.rounds.first[place] for place, row in rows.items())
    assert all(
        look.inputs in ladder(row.answer.looks[0].inputs, 3000) for row in rows.values() for look in row.answer.looks
    )


def test_a_first_look_at_millions_of_rows_is_at_some_of_them():
    """Also of a question of which the table says that it takes no longer with more."""
    model = Simulated(pace=1e-7, there=10_000_000)
    model.audit(["accuracy", "did-transfer-help"], "2s")
    assert 1000 < max(model.rounds.first) <= 50_000


def test_the_chance_that_a_look_settles_a_verdict_is_that_of_the_law():
    """300 more draws after 60 hits of 100 against a limit of a half, the truth drawn from what was seen."""
    rng, error = np.random.default_rng(0), 0.02
    low, high = (float(end) for end in exact(60, 100, error))
    m = Measure(name="share", value=0.6, low=low, high=high, n=100, better="higher")
    truth = rng.beta(61, 41, 20_000)
    hits = 60 + rng.binomial(300, truth)
    found = exact(hits, 400, error)
    settled = float(((found[0] >= 0.5) | (found[1] < 0.5)).mean())
    z = rounds.quantile(error)
    assert rounds.settles(m, 0.5, 4.0, z, 1.0) == pytest.approx(settled, abs=0.05)
    assert rounds.settles(m, 0.5, 1.0, z, 1.0) == 0
    assert rounds.settles(m, 0.5, 4.0, z, 1.5) < rounds.settles(m, 0.5, 4.0, z, 1.0)


def test_a_question_that_takes_no_more_inputs_is_not_asked_for_ever():
    quick = Budget("10m", samples=None, steps=20, restarts=1, inputs=50)
    more = dataclasses.replace(quick, inputs=100)
    share = Measure.proportion("share", [True] * 5 + [False] * 5, better="higher")
    first = looked(answered(share), (), quick, None, 1.0, MOST)
    assert first.looks[-1].grows == "inputs"  # nobody knows yet
    second = looked(answered(share), first.looks, more, None, 2.0, MOST)
    assert second.looks[-1].grows == ""


def test_where_the_model_would_have_to_be_opened_anew_it_says_so():
    model = Simulated()
    model.audit(["accuracy"], "60s")
    model.rounds.reopening = 150.0
    says = model.rounds.why_not(0)
    assert says.startswith(
        "it does not fit into 60s: a question before ended the model's process, and opening the model again takes "
        "2 min; "
    )
    model.rounds.late = True
    says = model.rounds.why_not(0)
    assert says.startswith(
        "it does not fit into 60s: a question before took more time than there was, and its process was ended, and "
        "opening the model again takes 2 min; "
    )
