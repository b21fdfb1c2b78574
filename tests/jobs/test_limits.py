"""Limits: how they are typed, what they name, and the verdict by the interval of a difference."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from assay.audit import Audit, Change, Described, Judged
from assay.errors import AssayError
from assay.finding import Alarm, Finding, Measure
from assay.jobs.limits import FORGET, Limit, held, parsed, probe_of, refuse_unasked, refuse_unknown
from assay.probe import Answer

ASKED = ("accuracy", "confidence", "worst-case-accuracy", FORGET)


@pytest.mark.parametrize(
    ("words", "limits"),
    [
        (["accuracy=0.5pt,worst-case=2pt"], [Limit("accuracy", 0.005, True), Limit("worst-case", 0.02, True)]),
        (["churn = 3 pt", "Brier score=0.01"], [Limit("churn", 0.03, True), Limit("Brier score", 0.01, False)]),
        (["accuracy=0pt"], [Limit("accuracy", 0.0, True)]),
    ],
)
def test_limits_are_read_as_they_are_typed(words: list[str], limits: list[Limit]) -> None:
    found = parsed(words)
    assert [each.of for each in found] == [each.of for each in limits]
    assert [each.most for each in found] == pytest.approx([each.most for each in limits])
    assert parsed([",".join(map(str, found))]) == found  # as they are told


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("accuracy", "is not NAME=AMOUNT"),
        ("=1pt", "is not NAME=AMOUNT"),
        ("accuracy=", "is not NAME=AMOUNT"),
        ("accuracy=-1pt", "has no amount of 0 or more"),
        ("accuracy=nan", "has no amount of 0 or more"),
        ("accuracy=1%", "has the unit '%', which is none"),
        ("accuracy=1apples", "has the unit 'apples', which is none"),
        ("accuracy=1pt,accuracy=2pt", "gives 'accuracy' twice"),
    ],
)
def test_what_is_no_limit_is_told_in_one_line(word: str, says: str) -> None:
    with pytest.raises(AssayError, match=says) as told:
        parsed([word])
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("accuracy=1", "has no unit, and accuracy gained is a share; write accuracy=1pt"),
        ("acc=1", "has no unit, and accuracy gained is a share; write acc=1pt"),
        ("what-did=1", "has no unit, and churn is a share; write what-did=1pt"),
        ("worst-class-loss=0.5", "has no unit, and worst class loss is a share; write worst-class-loss=0.5pt"),
        ("everyday=1pt", "is on everyday-change, which is not asked; add --probe everyday-change"),
    ],
)
def test_what_its_name_tells_is_refused_before_anything_runs(word: str, says: str) -> None:
    with pytest.raises(AssayError, match=says):
        refuse_unasked(parsed([word]), ASKED)
    refuse_unasked(parsed(["accuracy=1pt,what-did=1pt,worst-class-loss=1pt,Brier score=0.1"]), ASKED)


def test_a_limit_names_a_question_or_how_it_begins() -> None:
    assert probe_of(Limit("worst-case", 0.02, True), ASKED) == "worst-case-accuracy"
    assert probe_of(Limit("confidence", 0.02, True), ["confidence-under-shift", *ASKED]) == "confidence"
    assert probe_of(Limit("churn", 0.02, True), ASKED) is None
    with pytest.raises(AssayError, match="is on everyday-change, which is not asked; add --probe everyday-change"):
        probe_of(Limit("everyday", 0.02, True), ASKED)
    with pytest.raises(AssayError, match="c=2pt could be of confidence or certified-radius; write which"):
        probe_of(Limit("c", 0.02, True), ["confidence", "certified-radius"])


def answered(probe: str, *measures: Measure, alarms: tuple[Alarm, ...] = ()) -> Judged:
    answer = Answer(
        probe=probe, question="", source="", settings={}, key=probe, status="asked",
        finding=Finding(says="", measures=measures, alarms=alarms),
    )  # fmt: skip
    return Judged(answer=answer, judgements=())


def audit(*rows: Judged) -> Audit:
    told = Described(
        name="it", about="", task="Classification", classes=(), shape=(1,), low=0, high=1, parameters=1, splits={},
        data={}, draws=1, differentiable=True, origin=(), fingerprint="",
    )  # fmt: skip
    return Audit(
        subject=told, rows=rows, budget={}, seed=0, device="cpu", alarms=(), environment={}, when="", source=(),
        folder=Path("nowhere"),
    )  # fmt: skip


def change(low: float, high: float, *, better: str = "higher", n: int = 100, unit: str = "%") -> Change:
    m = Measure(name="worst-case accuracy", value=0.5, unit=unit, better="higher")
    return Change(
        probe="worst-case-accuracy", question="", measure=m.name, unit=unit, better=better, before=m, after=m,  # type: ignore[arg-type]
        difference=(low + high) / 2, low=low, high=high, paired=True, n=n, verdict="no clear change", why="paired",
    )  # fmt: skip


ATTACK = answered("worst-case-accuracy", Measure(name="worst-case accuracy", value=0.5, unit="%", better="higher"))
LIMIT = Limit("worst-case", 0.02, True)


@pytest.mark.parametrize(
    ("better", "low", "high", "outcome"),
    [
        ("higher", -0.019, 0.01, "within"),
        ("higher", 0.01, 0.05, "within"),  # better than before
        ("higher", -0.06, -0.021, "exceeded"),
        ("higher", -0.06, 0.0, "cannot tell"),
        ("lower", -0.06, 0.019, "within"),
        ("lower", 0.021, 0.06, "exceeded"),
        ("neither", 0.021, 0.06, "exceeded"),
        ("neither", -0.06, -0.021, "exceeded"),
        ("neither", -0.01, 0.019, "within"),
        ("neither", -0.03, 0.01, "cannot tell"),
    ],
)
def test_the_whole_interval_decides(better: str, low: float, high: float, outcome: str) -> None:
    found = held(LIMIT, [change(low, high, better=better)], audit(ATTACK), audit(ATTACK))
    assert (found.outcome, found.probe) == (outcome, "worst-case-accuracy")


def test_how_many_more_inputs_would_settle_it_shrinks_with_the_root() -> None:
    """A loss of 1 point in -3 to 5, held to 2: the half-width 4 must become 1, which takes 16 times as many."""
    found = held(LIMIT, [change(-0.05, 0.03)], audit(ATTACK), audit(ATTACK))
    assert (found.outcome, found.more) == ("cannot tell", 15 * 100)
    assert "1,500 more inputs would settle it" in found.why
    assert "2 points" in found.why


def test_accuracy_is_held_by_the_finer_pairs_and_churn_by_itself() -> None:
    gained = Measure(name="accuracy gained", value=-0.02, low=-0.03, high=-0.011, n=2000, unit="%", better="higher")
    churn = Measure(name="churn", value=0.04, low=0.03, high=0.05, n=2000, unit="%", better="lower")
    right = answered("accuracy", Measure(name="accuracy", value=0.9, unit="%", better="higher"))
    after = audit(right, answered(FORGET, churn, gained))
    found = held(Limit("accuracy", 0.01, True), [], audit(right), after)
    assert (found.outcome, found.measure, found.probe) == ("exceeded", "accuracy gained", FORGET)
    assert found.harm is not None
    assert (found.harm.value, found.harm.low, found.harm.high) == pytest.approx((0.02, 0.011, 0.03))
    assert held(Limit("churn", 0.05, True), [], audit(right), after).outcome == "within"
    assert held(Limit("churn", 0.04, True), [], audit(right), after).outcome == "cannot tell"
    assert held(Limit("what-did", 0.02, True), [], audit(right), after).outcome == "exceeded"


def test_a_number_in_doubt_is_not_within() -> None:
    doubted = answered(
        "worst-case-accuracy", Measure(name="worst-case accuracy", value=0.5, unit="%", better="higher"),
        alarms=(Alarm("masked", ("worst-case accuracy",)),),
    )  # fmt: skip
    found = held(LIMIT, [change(-0.01, 0.01)], audit(ATTACK), audit(doubted))
    assert found.outcome == "cannot tell"
    assert "masked" in found.why


def test_what_was_not_compared_cannot_be_told_and_units_must_fit() -> None:
    assert held(LIMIT, [], audit(ATTACK), audit(ATTACK)).outcome == "cannot tell"
    with pytest.raises(AssayError, match="is in points of a share, and worst-case accuracy is a plain number"):
        held(LIMIT, [change(-0.01, 0.01, unit="")], audit(ATTACK), audit(ATTACK))
    plain = Limit("worst-case", 0.5, False)
    assert held(plain, [change(-0.4, 0.01, unit="")], audit(ATTACK), audit(ATTACK)).outcome == "within"


def test_a_share_is_limited_in_points_alone() -> None:
    """1 without a unit would be all of a share: 90 points lost would be within."""
    whole = Limit("worst-case", 1.0, False)
    says = "--limit worst-case=1 has no unit, and worst-case accuracy is a share; write worst-case=1pt"
    with pytest.raises(AssayError, match=says):
        held(whole, [change(-0.95, -0.85)], audit(ATTACK), audit(ATTACK))
    with pytest.raises(AssayError, match=says):
        refuse_unknown([whole], audit(ATTACK), "accuracy")


def test_a_limit_on_what_nobody_asks_is_refused_before_anything_is_made() -> None:
    refuse_unknown(parsed(["churn=1pt,worst-case-accuracy=1pt,worst-class-loss=1pt"]), audit(ATTACK), "accuracy")
    with pytest.raises(AssayError, match=r"--limit apples=1pt is on a question that is not asked; name one that is"):
        refuse_unknown(parsed(["apples=1pt"]), audit(ATTACK), "accuracy")


def test_what_stands_for_two_measures_is_refused_and_what_is_no_harm_too() -> None:
    both = [Measure(name=f"worst class {of}", value=0.0, unit="%", better="lower") for of in ("churn", "loss")]
    after = audit(ATTACK, answered(FORGET, *both, Measure(name="learnt", value=0.0, unit="%", better="higher")))
    says = "--limit worst-class=1pt could be on worst class churn or worst class loss; write which"
    for refusing in (
        lambda limit: refuse_unknown([limit], audit(ATTACK), "accuracy"),
        lambda limit: held(limit, [], audit(ATTACK), after),
    ):
        with pytest.raises(AssayError, match=says):
            refusing(Limit("worst-class", 0.01, True))
    for word in ("learnt", "p of McNemar's test"):
        with pytest.raises(AssayError, match="is on a question that is not asked"):
            refuse_unknown([Limit(word, 0.01, True)], after, "accuracy")
    assert held(Limit("learnt", 0.01, True), [], audit(ATTACK), after).outcome == "cannot tell"


def test_two_questions_with_one_measure_are_told_apart_before_anything_is_made() -> None:
    error = Measure(name="error", value=0.1, better="lower")
    says = r"--limit error=1 could be on error \(one\) or error \(two\); write which"
    with pytest.raises(AssayError, match=says):
        refuse_unknown(parsed(["error=1"]), audit(answered("one", error), answered("two", error)), "accuracy")
    refuse_unknown(parsed(["error=1"]), audit(answered("one", error)), "accuracy")


def test_what_became_of_a_score_can_be_limited_where_there_are_no_classes() -> None:
    refuse_unknown(parsed(["closeness gained=0.1"]), audit(ATTACK), "closeness")
    with pytest.raises(AssayError, match="and closeness gained is a plain number; write the number alone"):
        refuse_unknown(parsed(["closeness-gained=1pt"]), audit(ATTACK), "closeness")
    with pytest.raises(AssayError, match="is on a question that is not asked"):
        refuse_unknown(parsed(["closeness gained=0.1"]), audit(ATTACK), "accuracy")


def test_accuracy_is_asked_where_what_was_forgotten_is() -> None:
    """So that the limit where none is given holds for any questions."""
    assert probe_of(Limit("accuracy", 0.01, True), ["confidence", FORGET]) == "accuracy"
    with pytest.raises(AssayError, match="is on accuracy, which is not asked"):
        probe_of(Limit("accuracy", 0.01, True), ["confidence"])
    gained = Measure(name="accuracy gained", value=0.0, low=0.0, high=0.0, n=9, unit="%", better="higher")
    found = held(Limit("accuracy", 0.01, True), [], audit(ATTACK), audit(ATTACK, answered(FORGET, gained)))
    assert (found.outcome, found.probe) == ("within", FORGET)
    missing = audit(ATTACK, answered(FORGET, gained))
    broke = replace(missing.rows[1], answer=replace(missing.rows[1].answer, finding=None, why="it broke"))
    told = held(Limit("accuracy", 0.01, True), [], audit(ATTACK), replace(missing, rows=(ATTACK, broke)))
    assert (told.outcome, told.why) == ("cannot tell", "not compared: it broke")


def test_random_intervals_never_say_both() -> None:
    rng = np.random.default_rng(0)
    for low, high in np.sort(rng.uniform(-0.1, 0.1, (50, 2)), axis=1):
        outcome = held(LIMIT, [change(float(low), float(high))], audit(ATTACK), audit(ATTACK)).outcome
        assert (outcome == "within") == (-low <= 0.02)
        assert (outcome == "exceeded") == (-high > 0.02)
