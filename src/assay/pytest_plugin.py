"""The pytest plugin: one question about a model as one line of somebody's test suite.

    def test_it_stands_up_to_small_changes(assay):
        assay(subject).ask("worst-case-accuracy", radius=8/255).at_least(0.4)

pytest loads this file in every session, so torch is imported when a question is asked and not before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from assay.errors import AssayError
from assay.finding import Alarm, Finding
from assay.probe import Answer, configure, put
from assay.report.words import NBSP, in_full, limit, printable
from assay.standard import Standard, judge

if TYPE_CHECKING:
    from collections.abc import Callable

    from assay.subject import Subject


@dataclass(frozen=True)
class Answered:
    """What came of a question; `at_least` and `at_most` fail the test unless the whole interval is on the good side."""

    answer: Answer
    subject: str
    alarms: tuple[Alarm, ...] = ()
    """About the subject as a whole."""

    def at_least(self, bound: float, *, measure: str | None = None) -> Answered:
        """The headline measure, or the one that is named, is at least this."""
        return self._held(Standard(measure=measure, at_least=bound))

    def at_most(self, bound: float, *, measure: str | None = None) -> Answered:
        """The headline measure, or the one that is named, is at most this."""
        return self._held(Standard(measure=measure, at_most=bound))

    @property
    def finding(self) -> Finding:
        """What was found; a question without an answer fails the test."""
        if self.answer.finding is None:
            verb = "could not be asked" if self.answer.status == "does not apply" else "was not answered"
            self._fail(f"It {verb}: {self.answer.why}")
        return self.answer.finding

    def _held(self, standard: Standard) -> Answered:
        measure = self.finding.measure(standard.measure)
        judgement = judge(standard, self.finding, self.alarms)
        if judgement.verdict != "pass":
            alarms = "".join(f" Alarm: {alarm.says}" for alarm in (*self.finding.alarms, *self.alarms))
            self._fail(
                f"{judgement.verdict}: {measure.name} is {in_full(measure)}, wanted "
                f"{limit(standard, measure.unit)}; {judgement.why}.{alarms}"
            )
        return self

    def _fail(self, why: str) -> NoReturn:
        __tracebackhide__ = True
        settings = ", ".join(f"{name}={value!r}" for name, value in self.answer.settings.items())
        told = f"{self.subject}, {self.answer.probe}({settings}): {self.answer.question} {why}"
        pytest.fail(printable(told).replace(NBSP, " "), pytrace=False)


@dataclass(frozen=True)
class Examined:
    """A subject to put questions to."""

    subject: Subject
    budget: str
    seed: int

    def ask(self, probe: str, **settings: Any) -> Answered:
        """Put one question, by its name in `assay probes`; keywords are its settings."""
        from assay import shelf
        from assay.door import admit
        from assay.engine.local import ThisProcess
        from assay.run import Run
        from assay.run import budget as budget_named
        from assay.subject import check

        run = Run(engine=ThisProcess(), budget=budget_named(self.budget), seed=self.seed)
        asked = configure(shelf.load("probes", probe), settings)
        check(self.subject)
        subject, alarms = admit(self.subject)
        return Answered(put(asked, subject, run), self.subject.name, alarms)


@pytest.fixture
def assay() -> Callable[..., Examined]:
    """Ask a question of a model: `assay(subject).ask("accuracy").at_least(0.9)`."""
    return examine


def examine(subject: Subject, *, budget: str = "quick", seed: int = 0) -> Examined:
    """A subject to put questions to, with this budget and seed."""
    from assay.subject import Subject

    if not isinstance(subject, Subject):
        raise AssayError(f"assay() got a {type(subject).__name__}; wrap it with Subject.classifier(model, data).")
    return Examined(subject, budget, seed)
