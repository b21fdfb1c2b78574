"""Comparing audits: paired where the inputs are the same, honest where they are not."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.finding import Finding, Measure, Table, bootstrap, paired_difference
from assay.jobs.compare import FEWEST_PAIRS, compare, over_trainings
from assay.jobs.compare import page as page_of
from assay.report.diff import DIFF_COLUMNS, counted, diff_text, outcome

RNG = np.random.default_rng(7)


@pytest.fixture(scope="module")
def audit_of(build):
    """An audit of one question about `values`, one per input of `index`."""

    def made(
        values,
        index=None,
        *,
        name="m",
        better="higher",
        split="test",
        column="v",
        table=True,
        prints=None,
        unit="",
        **chosen,
    ):
        values = np.asarray(values)
        index = np.arange(len(values)) if index is None else np.asarray(index)
        if values.dtype == bool:
            measure = Measure.proportion(name, values, better=better, column=column)
        else:
            measure = Measure.mean(name, values, better=better, seed=1, column=column, unit=unit)
        samples = Table(split, {"index": index, "v": values}) if table else None
        subject = build.described(data=prints or {"test": "same"})
        return build.audit(
            build.answered("p", "Q?", Finding(says="s", measures=(measure,), samples=samples), **chosen),
            subject=subject,
        )

    return made


def only(before, after):
    (change,) = compare(before, after)
    return change


def test_a_paired_difference_is_the_mean_of_differences(audit_of):
    hard = RNG.normal(size=300)
    a, b = hard + 0.1 * RNG.normal(size=300), hard + 0.1 * RNG.normal(size=300) + 0.05
    change = only(audit_of(a), audit_of(b))
    assert change.paired
    assert change.n == 300
    assert change.difference == pytest.approx(sum(y - x for x, y in zip(a, b, strict=True)) / 300)
    low, high = bootstrap(lambda counts: np.array([c @ (b - a) / 300 for c in counts]), 300, seed=0)
    assert (change.low, change.high) == pytest.approx((low, high))
    assert change.verdict == "better"
    assert change.why == "paired on 300 inputs"


@pytest.mark.parametrize("binary", [True, False])
def test_pairing_narrows_the_interval_where_inputs_are_hard_for_both(audit_of, binary):
    hard = RNG.normal(size=400)
    a, b = hard + 0.2 * RNG.normal(size=400), hard + 0.2 * RNG.normal(size=400) + 0.1
    if binary:
        a, b = a > 0, b > 0
    paired, apart = only(audit_of(a), audit_of(b)), only(audit_of(a, table=False), audit_of(b, table=False))
    assert paired.paired
    assert not apart.paired
    assert paired.difference == pytest.approx(apart.difference)
    assert paired.high - paired.low < 0.6 * (apart.high - apart.low)
    assert "not at hand" in apart.why
    assert "quadrature" in apart.why


@given(st.permutations(range(30)), st.permutations(range(30)))
@settings(max_examples=25, deadline=None)
def test_the_order_of_rows_does_not_matter(audit_of, p, q):
    a, b = np.arange(30.0), np.arange(30.0)[::-1] * 2
    p, q = np.array(p), np.array(q)
    straight = only(audit_of(a), audit_of(b))
    shuffled = only(audit_of(a[p], p), audit_of(b[q], q))
    assert dataclasses.astuple(shuffled)[7:] == dataclasses.astuple(straight)[7:]


def test_turned_around_it_is_the_opposite(audit_of):
    a, b = RNG.random(200) < 0.7, RNG.random(200) < 0.9
    there, back = only(audit_of(a), audit_of(b)), only(audit_of(b), audit_of(a))
    assert back.difference == pytest.approx(-there.difference)
    assert (back.low, back.high) == pytest.approx((-there.high, -there.low))
    assert {there.verdict, back.verdict} == {"better", "worse"}


def test_only_the_inputs_that_both_asked_about_are_paired(audit_of):
    a, b = RNG.normal(size=50), RNG.normal(size=50)
    change = only(audit_of(a, np.arange(50)), audit_of(b, np.arange(20, 70)))
    assert change.n == 30
    assert change.difference == pytest.approx(b[:30].mean() - a[20:].mean())
    assert change.why == "paired on 30 inputs, those that both asked about (50 before, 50 after)"


def test_a_measure_that_no_number_of_inputs_settles_is_paired_and_not_said_to_be_of_none(audit_of):
    """`which-labels-look-wrong` has an interval that more inputs do not narrow, and so tells of no number of them."""
    sides = [audit_of(RNG.random(50) < 0.5) for _ in range(2)]
    for side in sides:
        finding = side.rows[0].answer.finding
        object.__setattr__(finding, "measures", tuple(dataclasses.replace(m, n=None) for m in finding.measures))
    assert only(*sides).why == "paired on 50 inputs"


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        ({}, {"index": np.arange(100, 140)}, "only 0 inputs were asked about in both"),
        ({}, {"index": np.arange(40 - FEWEST_PAIRS + 1, 80 - FEWEST_PAIRS + 1)}, f"only {FEWEST_PAIRS - 1} inputs"),
        ({}, {"prints": {"test": "other"}}, "the data 'test' are not the same"),
        ({"prints": {"train": "x"}}, {"prints": {"train": "x"}}, "the data 'test' are not the same"),
        ({"split": "test"}, {"split": "shifted"}, "from 'test' before and 'shifted' after"),
        ({"column": None}, {"column": None}, "no mean over inputs"),
        ({"column": "gone"}, {"column": "gone"}, "no numbers in 'gone'"),
        ({"table": False}, {}, "table of inputs before is not at hand"),
        ({"index": np.zeros(40, int)}, {}, "more than once"),
    ],
)
def test_what_cannot_be_paired_says_why(audit_of, before, after, why):
    a, b = RNG.normal(size=40), RNG.normal(size=40) + 5
    change = only(audit_of(a, **before), audit_of(b, **after))
    assert not change.paired
    assert why in change.why
    assert change.verdict == "better"
    assert change.n is None
    assert change.difference == pytest.approx(b.mean() - a.mean())


def test_an_unpaired_interval_joins_the_halves_that_point_its_way(audit_of, build):
    def one(value, low, high):
        m = Measure(name="m", value=value, low=low, high=high, n=9, better="lower")
        return build.audit(build.answered("p", "Q?", Finding(says="s", measures=(m,))))

    change = only(one(1.0, 0.6, 1.3), one(2.0, 1.6, 2.9))
    assert change.low == pytest.approx(1 - np.hypot(0.4, 0.3))
    assert change.high == pytest.approx(1 + np.hypot(0.9, 0.4))
    assert change.verdict == "worse"


@pytest.mark.parametrize("helped", range(12))
@pytest.mark.parametrize("n", [40, 500])
def test_right_or_wrong_agrees_with_mcnemar(audit_of, helped, n):
    """Clear where the exact test is, unclear where even its less strict mid-p is not; a bootstrap calls 4 clear."""
    from scipy.stats import binomtest

    a = np.arange(n) >= helped
    change = only(audit_of(a), audit_of(np.ones(n, bool)))
    exact = binomtest(0, helped, 0.5).pvalue if helped else 1.0
    middle = exact - 0.5**helped
    if exact < 0.05:
        assert change.verdict == "better"
    if middle >= 0.05 or not helped:
        assert change.verdict == "no clear change"
    assert change.low <= change.difference <= change.high


def test_the_interval_of_right_or_wrong_holds_what_it_promises(audit_of):
    rng, held, trials = np.random.default_rng(3), 0, 400
    for _ in range(trials):
        u = rng.random(120)
        a, b = u < 0.7, (u < 0.68) | (rng.random(120) < 0.2)
        change = only(audit_of(a), audit_of(b))
        held += change.low <= (0.68 + 0.32 * 0.2) - 0.7 <= change.high
    assert held / trials > 0.92


@pytest.mark.parametrize(("better", "verdict"), [("higher", "worse"), ("lower", "better"), ("neither", "changed")])
def test_the_verdict_follows_the_direction(audit_of, better, verdict):
    a = RNG.normal(size=60)
    assert only(audit_of(a, better=better), audit_of(a - 1, better=better)).verdict == verdict
    assert only(audit_of(a, better=better), audit_of(a, better=better)).verdict == "no clear change"


def test_another_question_is_not_compared(audit_of):
    a = RNG.normal(size=60)
    change = only(audit_of(a, radius=0.1), audit_of(a + 1, radius=0.2))
    assert change.verdict == "cannot tell"
    assert "radius was 0.1, then 0.2" in change.why
    assert only(audit_of(a, radii=(1, 2)), audit_of(a + 1, radii=[1, 2])).verdict == "better"  # as JSON gives it back
    assert only(audit_of(a, unit="m"), audit_of(a + 1, unit="cm")).verdict == "cannot tell"


def test_what_was_not_measured_cannot_be_told(realistic):
    change = next(c for c in compare(realistic, realistic) if c.measure == "relative robustness")
    assert change.verdict == "cannot tell"
    assert change.difference is None
    assert "not measured before" in change.why


def test_a_number_without_an_interval_cannot_be_told(build):
    finding = Finding(says="s", measures=(Measure(name="m", value=1.0, better="higher"),))
    change = only(*[build.audit(build.answered("p", "Q?", finding))] * 2)
    assert (change.verdict, change.difference, change.low) == ("cannot tell", 0.0, None)


def test_inputs_without_a_value_leave_the_pair(audit_of):
    a, b = np.arange(40.0), np.arange(40.0) + 1
    audit = audit_of(a)
    holes = a.copy()
    holes[:5] = np.nan
    samples = Table("test", {"index": np.arange(40), "v": holes})
    finding = dataclasses.replace(audit.rows[0].answer.finding, samples=samples)
    row = dataclasses.replace(audit.rows[0], answer=dataclasses.replace(audit.rows[0].answer, finding=finding))
    change = only(dataclasses.replace(audit, rows=(row,)), audit_of(b))
    assert change.n == 35
    assert change.difference == pytest.approx(1.0)


def test_several_trainings_are_one_change_with_an_interval_over_both(audit_of):
    """The equation of its docstring, on a sheet of paper: Student's quantile for three is 4.3027."""
    control = [RNG.random(300) < 0.8 for _ in range(3)]
    cured = [side | (RNG.random(300) < share) for side, share in zip(control, (0.3, 0.5, 0.4), strict=True)]
    each = [only(audit_of(a), audit_of(b)) for a, b in zip(control, cured, strict=True)]
    (change,) = over_trainings([(c,) for c in each])
    d = [float(b.mean() - a.mean()) for a, b in zip(control, cured, strict=True)]
    mean = sum(d) / 3
    spread = 4.302653 * (sum((x - mean) ** 2 for x in d) / 2) ** 0.5 / 3**0.5
    low, high = (sum(getattr(c, end) for c in each) / 3 for end in ("low", "high"))
    assert change.difference == pytest.approx(mean)
    assert change.low == pytest.approx(mean - np.hypot(mean - low, spread), abs=1e-6)
    assert change.high == pytest.approx(mean + np.hypot(high - mean, spread), abs=1e-6)
    assert change.before.value == pytest.approx(np.mean(control))
    assert (change.after.low, change.after.high) == (min(c.after.low for c in each), max(c.after.high for c in each))
    assert "paired on 300 inputs; the mean of 3 trainings (+" in change.why
    assert over_trainings([(each[0],)]) == (each[0],)


def test_a_remedy_that_does_nothing_is_seldom_better_or_worse_than_its_control(audit_of):
    """Trainings that differ by far more than their inputs: one pair is mostly clear, three are hardly ever."""
    rng, one = np.random.default_rng(5), only(audit_of(RNG.random(40) < 0.5), audit_of(RNG.random(40) < 0.5))

    def trained():
        sides = [(rng.random(1000) < rng.normal(0.8, 0.03)).astype(float) for _ in range(2)]
        difference, low, high = paired_difference(*sides)
        verdict = "no clear change" if low <= 0 <= high else "better" if low > 0 else "worse"
        return dataclasses.replace(one, difference=difference, low=low, high=high, verdict=verdict)

    rounds = [[trained() for _ in range(3)] for _ in range(300)]
    alone = [each[0].verdict for each in rounds]
    threes = [over_trainings([(c,) for c in each])[0].verdict for each in rounds]
    assert alone.count("no clear change") < 180
    assert threes.count("no clear change") > 285


def test_trainings_that_do_not_agree_cannot_be_told(audit_of):
    one = only(audit_of(RNG.normal(size=40)), audit_of(RNG.normal(size=40)))

    def joined(*differences, **first):
        each = [
            dataclasses.replace(one, difference=d, low=d - 0.01, high=d + 0.01, verdict="better") for d in differences
        ]
        each[0] = dataclasses.replace(each[0], **first)
        return over_trainings([(c,) for c in each])[0]

    assert joined(1.0, 1.1, 0.9).verdict == "better"
    apart = joined(*[1.0] * 8, -0.1)
    assert apart.low > 0
    assert (apart.verdict, apart.why.endswith("which do not agree")) == ("cannot tell", True)
    assert joined(1.0, 1.1, 0.9, verdict="cannot tell", why="it was not the same question").verdict == "cannot tell"
    lost = joined(1.0, 1.1, 0.9, difference=None, low=None, high=None, verdict="cannot tell")
    assert (lost.difference, lost.low, lost.verdict) == (None, None, "cannot tell")
    assert "(not measured, +1" in lost.why
    two = [dataclasses.replace(one, measure=name) for name in ("m", "of class 3")]
    assert [c.measure for c in over_trainings([two, two[:1], two])] == ["m"]


@pytest.mark.parametrize(
    ("verdicts", "since", "more", "told"),
    [
        ("", "", {}, "What r did cannot be told: no measure is in both audits."),
        ("+", "", {}, "r helps. Better: a (p). Nothing is clearly worse."),
        ("-", "", {}, "r does not help here: it makes things worse. Worse: a (p). Nothing is clearly better."),
        ("0", "", {}, "r does not help here. Nothing is clearly better or clearly worse."),
        ("+-", "", {}, "r helps and harms. Better: a (p). Worse: b (p)."),
        (
            "+", "", {"trainings": 1},
            "r came out better in one training; another seed may turn this round, and --trainings 3 tells. Better: "
            "a (p). Nothing is clearly worse.",
        ),
        (
            "-+", "--", {"trainings": 1},
            "r came out better and worse in one training each; another seed may turn this round, and --trainings 3 "
            "tells. Better: b (p). Worse: a (p). Clearly worse than before: a (p), b (p).",
        ),
        (
            "00", "00", {"trainings": 1},
            "r came out no different in one training each; another seed may turn this round, and --trainings 3 tells. "
            "Nothing is clearly better or clearly worse than the control.",
        ),
        (
            "+0", "-+", {"trainings": 3},
            "r helps, in the mean of 3 trainings. Better: a (p). Nothing is clearly worse than the control. Clearly "
            "worse than before: a (p).",
        ),
        (
            "+0", "-+", {"trainings": 1, "undertrained": "right on 30 %, before on 100 %"},
            "What r did cannot be told: the control undertrains (right on 30 %, before on 100 %). Clearly better than "
            "before: b (p). Clearly worse than before: a (p).",
        ),
    ],
)  # fmt: skip
def test_what_a_remedy_did_in_a_sentence(audit_of, verdicts, since, more, told):
    one, ways = only(audit_of(RNG.normal(size=40)), audit_of(RNG.normal(size=40))), {"+": "better", "-": "worse"}
    changes, before = (
        [
            dataclasses.replace(one, measure=name, verdict=ways.get(way, "no clear change"))
            for name, way in zip("ab", each, strict=False)
        ]
        for each in (verdicts, since)
    )
    assert outcome("r", changes, before, **more) == told


def test_only_measures_of_both_are_compared(realistic, build):
    assert compare(realistic, build.audit()) == ()
    names = [c.measure for c in compare(realistic, realistic)]
    assert names == [m.name for row in realistic.rows if row.answer.finding for m in row.answer.finding.measures]


def test_rows_for_the_terminal(realistic, hostile):
    changes = compare(realistic, realistic)
    rows = diff_text(changes)
    assert all(len(row) == len(DIFF_COLUMNS) for row in rows)
    assert [c.replace("\u00a0", " ") for c in rows[0][:6]] == [
        "accuracy",
        "accuracy",
        "89.0 % (86.0 to 91.5 %)",
        "89.0 % (86.0 to 91.5 %)",
        "0.0 points (\u22120.6 to +0.6)",
        "no clear change",
    ]
    assert counted(changes) == "0 better, 0 worse, 8 without a clear change, 1 cannot tell"
    assert "\x1b" not in str(diff_text(compare(hostile, hostile)))


def test_the_page_shows_both_and_warns_of_other_budgets(small, build):
    stronger = dataclasses.replace(
        small,
        budget={**small.budget, "name": "full", "steps": 100},
        rows=small.rows[1:],
        subject=build.described(name="cured", origin=("a remedy",)),
    )
    page = page_of(small, stronger)
    for said in (
        "small CNN on Fashion-MNIST",
        "cured",
        "as given → a remedy",
        "The budgets differ",
        "This audit did not ask.",
        "no clear change",
    ):
        assert said in page, said
    assert page.count('role="img"') == 2
    assert "The budgets differ" not in page_of(small, small)


def test_a_page_of_a_cure_draws_what_the_remedy_has_to_show(audit_of):
    from assay.finding import Curve, Exhibit, Gallery, Line
    from assay.report.diff import render_diff

    one = audit_of([0.0, 1.0, 0.5])
    curve = Curve(
        name="way", title="How it went", x_label="round", y_label="accuracy",
        lines=(Line(label="who", x=(0.0, 1.0), y=(0.9, 0.1)),),
    )  # fmt: skip
    seen = Gallery(name="seen", title="What became of it", exhibits=(Exhibit.of(3, "a path", np.zeros((1, 4, 4))),))
    plain = render_diff(one, one, compare(one, one))
    shown = render_diff(one, one, compare(one, one), views=(curve, seen))
    assert "How the cure went" not in plain
    for word in ("How the cure went", "How it went", "What became of it", "a path"):
        assert word in shown
    assert shown.count("<svg") > plain.count("<svg")
