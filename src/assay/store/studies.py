"""What a tuning study leaves on disk, and the rules that everybody who writes there is held to.

    <study>/
      study.json  reference.json
      people/<id>/person.json  named.json  final.json  tries/0001.json  tries/0001.live.json  tries/0001.cancel
      report.html  analysis.json  tries.csv  people.csv

A participant's time runs from the moment of joining and is kept here, by the clock of whoever writes: after it no try
is taken, and one that still trains is cut off. Stopped tries stay in the log. One try of a participant runs at a time.
What a try may show is validation accuracy; test accuracies are in `final.json`, written once, at the end.
"""

from __future__ import annotations

import csv
import dataclasses
import io
import math
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from assay.errors import AssayError
from assay.methods.study.experience import CUT
from assay.methods.study.hyperparameters import KNOBS, checked
from assay.methods.study.hyperparameters import reasons as checked_reasons
from assay.methods.study.people import Participant, Try
from assay.store.files import read, read_json, strict_json, turn, write_atomically
from assay.store.typed import check_types

ID = re.compile(r"[A-Za-z0-9_-]{22}")
LONGEST = 400  # letters of a background
MOST_TRIES = 9999


@dataclass(frozen=True, kw_only=True)
class Study:
    """What is the same for everybody. `seeds` are those of the trainings at the end."""

    subject: str = "digits-mlp"
    title: str = ""
    seed: int = 0
    seeds: tuple[int, ...] = tuple(range(1, 11))
    minutes: float = 120.0
    most_epochs: int = 30
    validation: float = 0.2
    """The share of the training inputs that tries are judged by."""
    thresholds: tuple[float, ...] = (0.25, 0.5)
    cut: float = CUT
    as_published: bool = False
    device: str = "cpu"
    facts: Mapping[str, int] = field(default_factory=dict)
    """All that participants are told of the data: how many inputs of each part, and how many classes."""

    def __post_init__(self) -> None:
        try:
            check_types(self)
        except ValueError as e:
            raise AssayError(f"This is no study: {e}; `assay study new --help` says what it takes.") from e
        if not 1 <= len(self.seeds) <= 100 or len(set(self.seeds)) < len(self.seeds) or min(self.seeds) < 0:
            raise AssayError(f"The seeds {self.seeds} are none; give 1 to 100 different whole numbers of 0 or more.")
        if self.seed in self.seeds:
            raise AssayError(f"The seed {self.seed} of the tries is one of those at the end; take another.")
        bounds: tuple[tuple[str, float, float, float], ...] = (
            ("minutes", self.minutes, 0.1, 7 * 24 * 60),
            ("most-epochs", self.most_epochs, 1, 1000),
            ("validation", self.validation, 0.01, 0.9),
            ("cut", self.cut, 0.1, 1200),
            *(("threshold", t, 0.0, 1.0) for t in self.thresholds),
        )
        for name, value, low, high in bounds:
            if not low <= value <= high:
                raise AssayError(f"--{name} {value} is out of its range; give a number from {low:g} to {high:g}.")
        if self.seed < 0:
            raise AssayError(f"--seed {self.seed} is below 0; give 0 or more.")


@dataclass(frozen=True)
class StudyFolder:
    """A study on disk."""

    path: Path
    study: Study

    # Making and opening

    @classmethod
    def make(cls, path: Path, study: Study) -> StudyFolder:
        if (path / "study.json").exists():
            raise AssayError(f"There is a study in {str(path)!r} already; go on with it, or choose another folder.")
        write_atomically(path / "study.json", strict_json(dataclasses.asdict(study)))
        return cls(path, study)

    @classmethod
    def open(cls, path: Path) -> StudyFolder:
        try:
            told = read_json(read(path, "study.json"))
            told = {k: tuple(v) if isinstance(v, list) else v for k, v in told.items()}
            study = Study(**told)
        except FileNotFoundError:
            raise AssayError(f"There is no study in {str(path)!r}; make one: assay study new FOLDER.") from None
        except (ValueError, TypeError) as e:
            raise AssayError(f"{str(path / 'study.json')!r} is no study: {e}") from e
        return cls(path, study)

    # People

    def join(self, months: float, background: str = "", *, now: float, simulated: str = "") -> Participant:
        """A new participant, whose time begins now. No name is asked for or kept."""
        if not (isinstance(months, int | float) and 0 <= months <= 1200 and math.isfinite(months)):
            raise AssayError(f"{months} months of experience cannot be; give a number from 0 to 1200.")
        if len(background) > LONGEST:
            raise AssayError(f"The background has {len(background)} letters; say it in {LONGEST} or fewer.")
        id = secrets.choice("abcdefghijklmnopqrstuvwxyz") + secrets.token_urlsafe(16)[1:]  # no dash first: no option
        who = Participant(id=id, months=months, background=background, simulated=simulated, began=now)
        kept = {"id": id, "months": months, "background": background, "simulated": simulated, "began": now}
        write_atomically(self._at(id) / "person.json", strict_json(kept))
        return who

    def participant(self, id: str) -> Participant:
        folder = self._at(id)
        try:
            told = read_json(read(folder, "person.json"))
            named = read_json(read(folder, "named.json")) if (folder / "named.json").exists() else {}
            final = read_json(read(folder, "final.json")) if (folder / "final.json").exists() else {}
            who = Participant(
                **told, tries=self._tries(folder), final=named.get("try"), test=tuple(final.get("test", ()))
            )
            check_types(who)
        except FileNotFoundError:
            raise AssayError(f"Nobody in this study has the id {id[:40]!r}; see that it is whole.") from None
        except (ValueError, TypeError) as e:
            raise AssayError(f"What is kept of {id!r} does not read: {e}") from e
        return who

    def people(self) -> list[Participant]:
        """Everybody, in the order of joining."""
        ids = [p.name for p in (self.path / "people").glob("*") if ID.fullmatch(p.name)]
        return sorted(map(self.participant, ids), key=lambda p: (p.began, p.id))

    def left(self, who: Participant, now: float) -> float:
        """Seconds that a participant has; a program has all the time."""
        return math.inf if who.simulated else who.began + 60 * self.study.minutes - now

    # Tries

    def submit(self, id: str, given: Mapping[str, object], why: Mapping[str, object], *, now: float) -> Try:
        """Take a try into the log, to be trained: refused after the end, after the time, and beside another one."""
        with turn(self._at(id)):
            who = self.participant(id)
            self._open_to(who, now)
            configuration = checked(given, most_epochs=self.study.most_epochs)
            if len(who.tries) >= MOST_TRIES:
                raise AssayError(f"{MOST_TRIES} tries are the most that anybody has; name one of them as final.")
            taken = Try(
                number=len(who.tries) + 1, configuration=configuration, reasons=checked_reasons(why), at=now - who.began
            )
            self._keep(id, taken)
        return taken

    def cancel(self, id: str, number: int) -> None:
        """Ask a running try to end; whoever trains it sees to that within a step, or before the first."""
        one = self._running(id, number)
        write_atomically(self._at(id) / "tries" / f"{one.number:04}.cancel", "")

    def cancelled(self, id: str, number: int) -> bool:
        return (self._at(id) / "tries" / f"{number:04}.cancel").exists()

    def live(self, id: str, number: int, told: Mapping[str, Any]) -> None:
        """How a running try goes: losses by batch and epoch."""
        write_atomically(self._at(id) / "tries" / f"{number:04}.live.json", strict_json(told))

    def read_live(self, id: str, number: int) -> dict[str, Any]:
        try:
            return read_json(read(self._at(id), f"tries/{number:04}.live.json"))
        except (FileNotFoundError, ValueError):
            return {}

    def close(self, id: str, number: int) -> Try:
        """End a try that nobody trains any more, as one that was cancelled."""
        return self.end(id, dataclasses.replace(self._try(id, number), state="cancelled"))

    def note_job(self, id: str, number: int, job: str) -> None:
        """Which job of a queue trains a try; 0: the final configuration."""
        write_atomically(self._at(id) / "tries" / f"{number:04}.job.json", strict_json({"job": job}))

    def job_of(self, id: str, number: int) -> str:
        """As it was noted; "" where none was."""
        try:
            return str(read_json(read(self._at(id), f"tries/{number:04}.job.json")).get("job", ""))
        except (FileNotFoundError, ValueError):
            return ""

    def end(self, id: str, done: Try) -> Try:
        """Write what came of a try that runs; of one that has ended already the first word stands."""
        with turn(self._at(id)):
            before = self._try(id, done.number)
            if before.state != "running":
                return before
            self._keep(id, done)
        for name in (f"{done.number:04}.live.json", f"{done.number:04}.cancel"):
            (self._at(id) / "tries" / name).unlink(missing_ok=True)
        return done

    def _running(self, id: str, number: int) -> Try:
        one = self._try(id, number)
        if one.state != "running":
            raise AssayError(f"Try {number} has ended ({one.state}); there is nothing to cancel.")
        return one

    def _try(self, id: str, number: int) -> Try:
        found = next((t for t in self.participant(id).tries if t.number == number), None)
        if found is None:
            raise AssayError(f"There is no try {number}; `assay study show` lists those that there are.")
        return found

    # The end

    def name_final(self, id: str, number: int) -> Try:
        """Name the try that counts: one that came to its end, while none runs, once. The time may be over."""
        with turn(self._at(id)):
            who = self.participant(id)
            if who.final not in (None, number):
                raise AssayError(f"Try {who.final} was named as final already; that is done once.")
            if any(t.state == "running" for t in who.tries):
                raise AssayError("A try is running; let it end or cancel it before you name the final one.")
            one = self._try(id, number)
            if one.accuracy is None:
                raise AssayError(f"Try {number} has no validation accuracy ({one.state}); name one that has.")
            write_atomically(self._at(id) / "named.json", strict_json({"try": number}))
        return one

    def end_participant(self, id: str, test: Sequence[float]) -> None:
        """Write the test accuracies, one for each seed of the study; what is written first stands."""
        with turn(self._at(id)):
            if not (self._at(id) / "final.json").exists():
                write_atomically(self._at(id) / "final.json", strict_json({"test": list(test)}))

    # Reference and export

    def keep_reference(self, tried: Sequence[Mapping[str, Any]]) -> None:
        write_atomically(self.path / "reference.json", strict_json({"tries": list(tried)}))

    def reference(self) -> list[dict[str, Any]]:
        try:
            return list(read_json(read(self.path, "reference.json"))["tries"])
        except FileNotFoundError:
            return []
        except (ValueError, KeyError, TypeError) as e:
            raise AssayError(f"The reference in {str(self.path)!r} does not read: {e}; remove it.") from e

    def export(self) -> None:
        """Two tables without anything that leads back to a person: numbers in place of ids, no words, no dates."""
        people = self.people()
        with_tests = len(self.study.seeds)
        who = [["participant", "simulated", "months", "tries", "final_try", *(f"test_{s}" for s in self.study.seeds)]]
        tries: list[list[Any]] = [
            ["participant", "try", "at_s", "seconds", "state", "validation_accuracy", *(k.name for k in KNOBS),
             *(f"why_{k.name}" for k in KNOBS)]
        ]  # fmt: skip
        for number, p in enumerate(sorted(people, key=lambda p: p.id), 1):  # ids are random: so is this order
            row = [number, p.simulated, f"{p.months:g}", len(p.tries), p.final, *(p.test or [""] * with_tests)]
            who.append([str(cell) if cell is not None else "" for cell in row])
            for t in p.tries:
                values = [t.configuration[k.name] for k in KNOBS]
                codes = [t.reasons.get(k.name, "") for k in KNOBS]
                found = "" if t.accuracy is None else t.accuracy
                tries.append([number, t.number, f"{t.at:.1f}", f"{t.seconds:.2f}", t.state, found, *values, *codes])
        write_atomically(self.path / "people.csv", _csv(who))
        write_atomically(self.path / "tries.csv", _csv(tries))

    # Inner

    def _open_to(self, who: Participant, now: float) -> None:
        if who.final is not None:
            raise AssayError(f"Try {who.final} was named as final; nothing more is taken.")
        if self.left(who, now) <= 0:
            raise AssayError(f"The {self.study.minutes:g} minutes are over; name one of the tries as final.")
        if any(t.state == "running" for t in who.tries):
            raise AssayError("Another try is running; let it end or cancel it.")

    def _at(self, id: str) -> Path:
        if not ID.fullmatch(id):
            raise AssayError(f"{id[:40]!r} is no id of a participant; it has 22 letters, digits, - and _.")
        return self.path / "people" / id

    def _tries(self, folder: Path) -> tuple[Try, ...]:
        names = sorted(p.name for p in (folder / "tries").glob("????.json"))
        found = []
        for name in names:
            told = read_json(read(folder, f"tries/{name}"))
            told = {k: tuple(v) if isinstance(v, list) else v for k, v in told.items()}
            found.append(Try(**told))
        return tuple(found)

    def _keep(self, id: str, one: Try) -> None:
        write_atomically(self._at(id) / "tries" / f"{one.number:04}.json", strict_json(dataclasses.asdict(one)))


def _csv(rows: Sequence[Sequence[Any]]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(rows)
    return out.getvalue()
