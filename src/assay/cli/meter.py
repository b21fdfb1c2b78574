"""What people wait for: what is going on, on stderr."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from assay.cli.place import PLACE, Inside
from assay.cli.printing import console, say

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID

    from assay.audit import Judged
    from assay.run import Tick


class Meter:
    """What is going on, on stderr: a bar per question on a terminal, else a line now and then.

    The first line comes after two seconds, and another every ten: a log is read later, and by the line.
    """

    def __init__(self, console: Console, bars: Progress | None, questions: int | None) -> None:
        self.console, self.bars, self.left = console, bars, questions
        self.bar: TaskID | None = None
        self.due = time.monotonic() + 2
        self.last = ""
        place = PLACE.get()
        self.beat: Callable[[], None] = place.line.beat if isinstance(place, Inside) else lambda: None

    def expect(self, questions: int) -> None:
        """So many are to be answered, and the waiting begins now."""
        self.left, self.due = questions, time.monotonic() + 2

    def line(self, text: str) -> None:
        say(self.console, text)
        self.due = time.monotonic() + 10

    def doing(self, what: str, total: int | None = None) -> None:
        """Say what the work is now; without a total, that it goes on."""
        from assay.report.terminal import plain

        what = self.last = plain(what)
        self.beat()
        if self.bars is None:
            if time.monotonic() > self.due:
                self.line(what)
        elif self.bar is None:
            self.bar = self.bars.add_task(what, total=total)
        else:
            self.bars.update(self.bar, description=what, total=total, completed=0)  # its clock runs on

    @contextmanager
    def progress(self, about: str, total: int) -> Iterator[Tick]:
        self.doing(about, total)
        done = 0

        def tick(n: int) -> None:
            nonlocal done
            done += n
            self.last = f"{about}: {done} of {total}"
            self.beat()
            if self.bars is not None and self.bar is not None:
                self.bars.advance(self.bar, n)
            elif time.monotonic() > self.due:
                self.line(self.last)

        yield tick

    def alive(self, seconds: float) -> None:
        """Nothing new, but the work goes on; a bar shows that by itself."""
        from assay.report.words import duration

        if self.bars is None and time.monotonic() > self.due:
            self.line(f"{self.last} ({duration(seconds)} so far)")

    def told(self, row: Judged, asked: bool) -> None:
        """A question was answered: close its bar and begin the next."""
        from assay.report.terminal import plain
        from assay.report.words import duration, outcome

        took = duration(row.answer.seconds) if asked else "known from before"
        said = plain(f"{row.answer.probe}: {outcome(row)} ({took})")
        if self.bars is None:
            self.line(said)
        else:
            self.doing(said, total=1)
            assert self.bar is not None  # doing saw to it
            self.bars.advance(self.bar)
            self.bar = None
        if self.left is not None:
            self.left -= 1
        self.doing("the next question" if self.left != 0 else "writing the report")


@contextmanager
def metered(questions: int | None = None) -> Iterator[Meter]:
    to = console(stderr=True)
    if not to.is_terminal:
        yield Meter(to, None, questions)
        return
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=to, transient=True) as bars:
        yield Meter(to, bars, questions)
