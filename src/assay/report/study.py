"""The page of a tuning study: what share is the tuner's, which test says what, and what tries bought."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from assay.finding import Bars, Boxes, Curve, Line, Matrix, Scatter, View
from assay.methods.study.analysis import Analysis, Corrected
from assay.methods.study.comparisons import Tested
from assay.methods.study.experience import GROUPS
from assay.methods.study.hyperparameters import KNOBS, REASONS, effective
from assay.methods.study.people import Participant
from assay.report.words import MINUS, NBSP

if TYPE_CHECKING:
    from assay.store.studies import Study

LEVEL = 0.05
FEW = 8  # participants in the smallest group of the source
NOT_LEVEL = (
    "Levene's test compares spread, not level: add ten points to every result of one group and its statistic stays as "
    "it is. Whether one group scores higher is what Mann and Whitney's test and, for all groups at once, Kruskal and "
    "Wallis's ask."
)


class Row(NamedTuple):
    """A test for the table."""

    name: str
    compared: str
    asks: str
    statistic: str
    p: str
    corrected: str
    reads: str


class Group(NamedTuple):
    name: str
    n: str
    mean: str
    between: str
    reached: str
    defaults: str
    random: str


class Final(NamedTuple):
    """What a reader of a result would need: the final configuration, and the effort behind it."""

    number: int
    who: str
    months: str
    tries: str
    validation: str
    test: str
    configuration: str


def headline(found: Analysis) -> str:
    """The answer to the study's question, in a sentence."""
    share = found.person
    if share is None:
        return "Too few participants have ended to say how much of a result is the tuner's."
    if share.value is None or share.low is None or share.high is None:
        return "No result differs from any other: nothing can be said of the tuner's share."
    return (
        f"The tuner makes {_percent(max(0.0, share.value))} of what varies in a single result "
        f"({_percent(max(0.0, share.low))} to {_percent(max(0.0, share.high))}): results of different tuners are "
        f"{_points(share.between)} apart (standard deviation), those of one tuner with different seeds "
        f"{_points(share.within)}."
    )


def cautions(found: Analysis) -> list[str]:
    """Why a number may mislead, a sentence each."""
    told = []
    simulated = sum(bool(p.simulated) for p in found.people)
    if simulated:
        told.append(
            f"{simulated} of {len(found.people)} participants are programs. What is found of them is about these "
            "programs, and of people nothing."
        )
    small = {name: len(some) for name, some in found.groups.items() if len(some) < FEW}
    if small:
        sizes = ", ".join(f"{n} {name}" for name, n in small.items())
        told.append(f"Few have ended in a group ({sizes}): a test of so few misses all but large differences.")
    if found.ungrouped:
        told.append(f"{found.ungrouped} with exactly {found.cut:g} months are in no group, as published.")
    if not found.reference:
        told.append("No random configurations were trained: nothing can be said against random at equal tries.")
    return told


def tests(found: Analysis) -> list[Row]:
    """Every test that was made, with what it asks and how it reads."""
    rows = [
        _row(found.experience, "months and mean test accuracy", None, _order(found.experience, "test accuracy")),
        _row(found.several, ", ".join(GROUPS), None, _several(found.several)),
        *(_pair(each, _level(each)) for each in found.level),
        *(_pair(each, _spread(each)) for each in found.spread),
        _row(found.guesses, "months and share of guesses", None, _order(found.guesses, "the share of guesses")),
    ]
    return rows


def views(found: Analysis) -> dict[str, tuple[View, ...]]:
    """What is drawn, by section."""
    drawn: dict[str, tuple[View, ...]] = {"level": (), "tries": (), "reasons": ()}
    if any(found.groups.values()):
        heights = {name: tuple(float(np.mean(p.test)) for p in some) for name, some in found.groups.items()}
        boxes = Boxes(
            name="groups", title="Final test accuracy by experience", x_label="", y_label="mean test accuracy",
            labels=tuple(f"{name} ({len(v)})" for name, v in heights.items()), values=tuple(heights.values()),
            unit_y=True,
        )  # fmt: skip
        points = Scatter(
            name="months", title="Experience and final test accuracy", x_label="months of experience",
            y_label="mean test accuracy",
            lines=tuple(
                Line(label=name, x=tuple(p.months for p in some), y=heights[name])
                for name, some in found.groups.items()
                if some
            ),
        )  # fmt: skip
        drawn["level"] = (boxes, points)
    lines = []
    for name, band in found.curves.items():
        known = np.flatnonzero(np.isfinite(band.mean))
        if len(known):
            error = np.nan_to_num(band.error[known])
            lines.append(
                Line(
                    label=f"{name} ({int(band.n.max())})", x=tuple(float(i + 1) for i in known),
                    y=tuple(band.mean[known].tolist()), low=tuple((band.mean[known] - error).tolist()),
                    high=tuple((band.mean[known] + error).tolist()),
                )
            )  # fmt: skip
    if found.expected:
        x = tuple(float(i) for i in range(1, len(found.expected) + 1))
        lines.append(Line(label="best of as many random tries, expected", x=x, y=found.expected))
    tries: list[View] = []
    if lines:
        tries.append(
            Curve(
                name="best", title="Best validation accuracy so far", x_label="tries", y_label="validation accuracy",
                lines=tuple(lines), unit_y=True, says="Mean over participants, with its standard error.",
            )
        )  # fmt: skip
    if found.reference:
        counts, _ = np.histogram(found.reference, bins=10, range=(0, 1))
        tries.append(
            Bars(
                name="random", title=f"{len(found.reference)} random configurations", y_label="configurations",
                labels=tuple(f"{10 * i} to {10 * i + 10} %" for i in range(10)),
                values=tuple(float(c) for c in counts), says=_reference(found),
            )
        )  # fmt: skip
    drawn["tries"] = tuple(tries)
    told = {name: shares for name, shares in found.reasons.items() if shares}
    if told:
        drawn["reasons"] = (
            Matrix(
                name="reasons", title="Reasons by experience", row_label="", column_label="share of all reasons given",
                rows=tuple(told), columns=tuple(map(str, REASONS)),
                values=tuple(tuple(shares[code] for code in REASONS) for shares in told.values()),
            ),
        )  # fmt: skip
    return drawn


def groups(found: Analysis) -> list[Group]:
    rows = []
    against = {each.id: each for each in found.against}
    for name in GROUPS:
        some = found.groups[name]
        heights = [float(np.mean(p.test)) for p in some]
        known = [against[p.id] for p in some if p.id in against]
        began, of = found.defaults.get(name, (0, 0))
        rows.append(
            Group(
                name,
                str(len(some)),
                f"{_percent(float(np.mean(heights)))}" if heights else "none ended",
                f"{_percent(min(heights))} to {_percent(max(heights))}" if heights else "",
                "; ".join(_reached(found, name)),
                f"{began} of {of}" if of else "",
                f"{sum(a.best > a.expected for a in known)} of {len(known)}" if known else "",
            )
        )
    return rows


def finals(people: Sequence[Participant]) -> list[Final]:
    rows = []
    for number, p in enumerate(sorted((p for p in people if p.ended), key=lambda p: p.id), 1):
        one = next(t for t in p.tries if t.number == p.final)
        chosen = effective(one.configuration)
        told = ", ".join(
            f"{k.name} {chosen[k.name]:.4g}" if isinstance(chosen[k.name], float) else f"{k.name} {chosen[k.name]}"
            for k in KNOBS
            if k.name in chosen and chosen[k.name] != k.default
        )
        spread = float(np.std(p.test, ddof=1)) if len(p.test) > 1 else 0.0
        rows.append(
            Final(
                number, p.simulated or "person", f"{p.months:g}", str(len(p.tries)), _percent(one.accuracy or 0.0),
                f"{_percent(float(np.mean(p.test)))} ± {100 * spread:.1f}",
                told,
            )
        )  # fmt: skip
    return rows


def render_study(found: Analysis, study: Study) -> str:
    from assay.report.page import drawn_of, environment

    drawn = views(found)
    above, of = found.above_half
    return (
        environment()
        .get_template("study.html")
        .render(
            title=study.title or "A tuning study",
            study=study,
            found=found,
            tries=sum(len(p.tries) for p in found.people),
            stopped=sum(t.accuracy is None for p in found.people for t in p.tries),
            ended=sum(p.ended for p in found.people),
            persons=sum(not p.simulated for p in found.people),
            headline=headline(found),
            cautions=cautions(found),
            groups=groups(found),
            tests=tests(found),
            not_level=NOT_LEVEL,
            correlated=correlated(found),
            halves=f"{above} of {of} who began with all defaults ended above 50{NBSP}%." if of else "",
            reasons=REASONS,
            finals=finals(found.people),
            drawings={name: drawn_of(some, name) for name, some in drawn.items()},
            knobs=KNOBS,
        )
    )


def correlated(found: Analysis) -> str:
    """The correlation beside what there is by chance."""
    test = found.experience
    if test.effect is None or found.shuffled is None:
        return f"Whether accuracy goes up with experience cannot be told: {test.why[:1].lower()}{test.why[1:]}"
    low, high = found.shuffled
    return (
        f"Spearman's correlation of months and test accuracy is {_signed(test.effect)} (p {_p(test.p)}, "
        f"{test.n[0]} participants). Dealt out anew, 95{NBSP}% lie between {_signed(low)} and {_signed(high)}."
    )


# Words


def _row(test: Tested, compared: str, corrected: str | None, reads: str) -> Row:
    statistic = "none" if test.statistic is None else f"{test.statistic:.3g}".replace("-", MINUS)
    return Row(test.name, compared, test.asks, statistic, "" if test.p is None else _p(test.p), corrected or "", reads)


def _pair(each: Corrected, reads: str) -> Row:
    told = "" if each.holm is None or each.bonferroni is None else f"{_p(each.holm)}, {_p(each.bonferroni)}"
    return _row(each.test, " and ".join(each.groups), told, reads)


def _level(each: Corrected) -> str:
    low, high = each.groups
    if each.holm is None or each.test.effect is None:
        return each.test.why
    chance = f"One {high} is above one {low} with a chance of {_percent(each.test.effect)}"
    return f"{chance}; {_settled(each)}."


def _spread(each: Corrected) -> str:
    if each.holm is None:
        return each.test.why
    return f"Of spread alone; {_settled(each)}."


def _settled(each: Corrected) -> str:
    assert each.holm is not None
    assert each.bonferroni is not None
    if each.holm >= LEVEL:
        return f"not settled at {LEVEL:g} once several tests are allowed for"
    if each.bonferroni >= LEVEL:
        return f"below {LEVEL:g} by Holm's correction, not by Bonferroni's"
    return f"below {LEVEL:g} also when several tests are allowed for"


def _several(test: Tested) -> str:
    if test.p is None:
        return test.why
    return "The groups differ in level." if test.p < LEVEL else "That the groups differ in level is not settled."


def _order(test: Tested, what: str) -> str:
    if test.p is None or test.effect is None:
        return test.why
    if test.p >= LEVEL:
        return f"That {what} goes with months is not settled."
    return f"The more months, the {'higher' if test.effect > 0 else 'lower'} is {what}."


def _reached(found: Analysis, name: str) -> list[str]:
    told = []
    for each in found.reach:
        if each.group == name:
            mean = f"{np.mean(each.tries):.1f} tries" if each.tries else "nobody"
            never = f", {each.never} never" if each.never else ""
            told.append(f"{_percent(each.threshold, 0)}: {mean}{never}")
    return told


def _reference(found: Analysis) -> str:
    mean, sd = (
        float(np.mean(found.reference)),
        float(np.std(found.reference, ddof=1)) if len(found.reference) > 1 else 0,
    )
    return f"{100 * mean:.1f} ± {100 * sd:.1f}{NBSP}% validation accuracy (mean and standard deviation)."


def _percent(value: float, digits: int = 1) -> str:
    return f"{100 * value:.{digits}f}{NBSP}%"


def _points(value: float) -> str:
    return f"{100 * value:.1f} points"


def _signed(value: float) -> str:
    return f"{value:+.2f}".replace("-", MINUS)


def _p(value: float | None) -> str:
    if value is None:
        return "not known"
    return "below 0.001" if value < 0.001 else f"{value:.3f}"
