"""Guarded: a stranger's model runs in a child process; this side watches it, keeps what it finds and gives the verdict.

A model can end its process, hang, crash it, take all memory, leave threads and processes behind. None of that reaches
this side, which loads no torch and none of the model's code: it hands over the job, hears which question is being
asked, takes each answer, and ends the child with all that it started. A question during which the child ends is
unanswered, with the reason; another child goes on with the next. Only what was heard on the private line counts
(see `child.py`), and only an audit in which every question has its answer gets a verdict.

The child writes into a temporary folder alone. It is removed at the end, and by the next audit if this one is killed.
"""

from __future__ import annotations

import dataclasses
import json
import os
import queue
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol

from assay import store
from assay.audit import Audit, Begun, Judged, Question, Record
from assay.engine.family import Family, memory_there_is
from assay.engine.job import Job
from assay.engine.sandbox import scrubbed
from assay.errors import AssayError
from assay.probe import Answer
from assay.run import Progress, Tick
from assay.subjects import located

LONGEST = 64 * 2**20
"""Bytes of one message; what is longer is no message of ours."""
LOOK_EVERY = 0.1  # seconds between two looks at the clock and the memory
LOADING = 600.0  # seconds for what is not the model's: to load torch and the questions
SECONDS = {"quick": 1800.0, "standard": 14400.0, "full": 172800.0}
"""What one question may take unless the user says so: twenty times the longest of the bundled subject, by budget."""
ASK = "assay.engine.child:ask"
SHARE = 0.9
"""Of the memory there is, what the child may take unless the user says so."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a child may take and touch."""

    seconds: float
    """For opening the subject, and for each question."""
    memory: int | None
    """Bytes, of the child and all that it starts together; None: as much as there is."""
    sandbox: bool

    @classmethod
    def of(cls, budget: str, timeout: float | None, memory: float | None, sandbox: bool) -> Limits:
        """What the user typed, or what is sensible."""
        for option, value in (("--timeout", timeout), ("--memory", memory)):
            if value is not None and not 0 < value < float("inf"):
                raise AssayError(f"{option} {value:g} is no limit; give a number above 0.")
        there = memory_there_is()
        default = None if there is None else int(SHARE * there)
        return cls(
            seconds=SECONDS[budget] if timeout is None else timeout,
            memory=default if memory is None else int(memory * 1e9),
            sandbox=sandbox,
        )


class Meter(Protocol):
    """Where it is told what goes on."""

    @property
    def progress(self) -> Progress: ...

    def expect(self, questions: int) -> None: ...

    def doing(self, what: str, total: int | None = None) -> None: ...

    def told(self, row: Judged, asked: bool) -> None: ...

    def alive(self, seconds: float) -> None: ...

    def line(self, text: str) -> None: ...


class Died(Exception):
    """The child ended, or was ended, before it was done; the text says how, and what to do."""


class Refused(Died):
    """The child itself said why it cannot go on."""


class Child:
    """One child process, from its start until it and all that it started are gone."""

    def __init__(self, entry: str, job: Mapping[str, Any], limits: Limits, folder: Path) -> None:
        module, function = entry.split(":")
        self._limits, self._family = limits, Family()
        self._token = secrets.token_hex(16).encode()
        self._heard: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._since = self._looked = time.monotonic()
        self._allowed = max(LOADING, limits.seconds)
        self._ended_at: float | None = None
        temporary = folder / "tmp"
        temporary.mkdir(exist_ok=True)
        surroundings = {**os.environ, **dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(temporary))}
        if limits.sandbox:
            surroundings = scrubbed(os.environ, home=temporary)
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", f"from {module} import {function}; {function}()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=surroundings,
            start_new_session=True,  # a key pressed at the terminal is for this side to hear
        )
        self._family.begin(self._process)
        assert self._process.stdout is not None
        threading.Thread(target=self._listen, args=(self._process.stdout,), daemon=True).start()
        self.say(
            token=self._token.decode(), job=job, folder=str(folder), sandbox=limits.sandbox, parent=os.getpid()
        )  # fmt: skip

    def say(self, **message: Any) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(message, default=str).encode() + b"\n")
            self._process.stdin.flush()
        except OSError:
            return  # it is gone, which `hear` finds out and tells

    def _listen(self, line: IO[bytes]) -> None:
        """Take messages off the line as they come; what does not open with the token is none."""
        while text := line.readline(LONGEST):
            if text.startswith(self._token) and text.endswith(b"\n"):
                try:
                    message = json.loads(text[len(self._token) :])
                except ValueError:
                    continue
                if isinstance(message, dict):
                    self._heard.put(message)
        self._heard.put(None)

    @property
    def seconds(self) -> float:
        """Since the clock was last set back."""
        return time.monotonic() - self._since

    def set_clock_back(self) -> None:
        """From now on the time is the model's."""
        self._since, self._allowed = time.monotonic(), self._limits.seconds

    def hear(self) -> dict[str, Any] | None:
        """The next message, or None if there is none for a moment. Raises `Died` where the child is at its end."""
        if time.monotonic() - self._looked > LOOK_EVERY:
            self._look()
        try:
            message = self._heard.get(timeout=LOOK_EVERY)
        except queue.Empty:
            if self._process.poll() is None:
                return None
            self._ended_at = self._ended_at or time.monotonic()
            if time.monotonic() - self._ended_at < 1:  # what it said last may still be on its way
                return None
            message = None
        if message is None:
            raise Died(self._how_it_ended())
        return message

    def _look(self) -> None:
        self._looked = time.monotonic()
        if self.seconds > self._allowed:
            raise Died(f"took more than {self._allowed:g} s and was ended; give it longer with --timeout")
        allowed, taken = self._limits.memory, self._family.memory()
        if allowed is not None and taken is not None and taken > allowed:
            raise Died(f"took more than {allowed / 1e9:.3g} GB of memory and was ended; give it more with --memory")

    def _how_it_ended(self) -> str:
        try:
            status = self._process.wait(timeout=3)  # much memory takes a while to give back
        except subprocess.TimeoutExpired:
            return "closed every file that was open, the line to Assay too; take that out"
        if status >= 0:
            return f"ended by itself with status {status}; take out what ends it, such as os._exit"
        try:
            name = signal.strsignal(-status) or signal.Signals(-status).name
        except ValueError:
            name = "unknown"
        mend = {
            "SIGSEGV": "some native code is at fault: show it these inputs by itself",
            "SIGBUS": "a file that it maps may be cut short: write it anew",
            "SIGKILL": "most often that is for want of memory: free some, or give it a limit with --memory",
        }
        kind = signal.Signals(-status).name if -status in list(signal.Signals) else ""
        return f"was ended by signal {-status} ({name.lower()}); {mend.get(kind, 'find out who sends it')}"

    def end(self) -> None:
        """Kill it with all that it started. Its stdout stays to the thread that reads it, until there is no writer."""
        self._family.end()
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()


@contextmanager
def started(entry: str, job: Mapping[str, Any], limits: Limits, folder: Path) -> Iterator[Child]:
    """A child that is gone with all that it started when the work with it ends, however that ends."""
    child = Child(entry, job, limits, folder)
    try:
        yield child
    finally:
        child.end()


@contextmanager
def handed_over() -> Iterator[Path]:
    """A temporary folder into which a child writes; what one that was killed left behind goes too."""
    try:
        folder = Path(tempfile.mkdtemp(prefix="assay-"))
    except OSError as e:
        raise AssayError(f"Cannot make a temporary folder: {e}; set TMPDIR to a folder that can be written.") from e
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        try:
            import fcntl
        except ImportError:
            yield folder
            return
        lock = stack.enter_context(open(folder / "lock", "w"))
        fcntl.flock(lock, fcntl.LOCK_EX)  # held as long as this process lives, and before anyone can look for it
        os.rename(folder / "lock", folder / "in-use")
        for other in folder.parent.glob("assay-*/in-use"):
            try:
                with open(other) as theirs:
                    fcntl.flock(theirs, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(other.parent, ignore_errors=True)
            except OSError:
                continue  # it is in use, or somebody else's
        yield folder


@contextmanager
def stopped_by_signals() -> Iterator[None]:
    """What asks this process to end stops it as a key does, so that no child outlives it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*anything: object) -> None:
        raise KeyboardInterrupt

    names = [name for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    before = {name: signal.signal(getattr(signal, name), stop) for name in names}
    try:
        yield
    finally:
        for name, handler in before.items():
            signal.signal(getattr(signal, name), handler)


def audit_guarded(job: Job, limits: Limits, out: Path, meter: Meter) -> Audit:
    """Ask what the job wants of its subject in a child process, and more of them where they end; judge and conclude."""
    located(job.source)  # a slip of the pen is told at once
    with stopped_by_signals(), handed_over() as folder:
        asking = _Asking(job, limits, out, meter, folder)
        while not asking.complete:
            asking.go_on()
        assert asking.record is not None  # complete
        return asking.record.conclude(asking.surroundings)


class _Asking:
    """An audit while it is made: what is known of it does not depend on the child that is asked just now."""

    def __init__(self, job: Job, limits: Limits, out: Path, meter: Meter, folder: Path) -> None:
        self.job, self.limits, self.out, self.meter, self.folder = job, limits, out, meter, folder
        self.asked: list[Question] = []
        self.record: Record | None = None
        self.surroundings: dict[str, str] = {}
        self.device = job.device
        self.place: int | None = None
        self.tick: Tick = lambda n: None

    @property
    def complete(self) -> bool:
        return self.record is not None and len(self.record.rows) == len(self.asked)

    def go_on(self) -> None:
        """Start a child and hear it out. One that settles nothing is the last: another would not get further."""
        settled = 0 if self.record is None else len(self.record.rows)
        self.meter.doing("loading torch and the questions" if self.record is None else "starting the model anew")
        self.place, why = None, "the model's process said that it was done before it was"
        with ExitStack() as stack:
            child = stack.enter_context(started(ASK, self.job.to_json(), self.limits, self.folder))
            bars = stack.enter_context(ExitStack())
            try:
                self._listen(child, bars)
            except Died as e:
                why = str(e) if isinstance(e, Refused) else f"the model's process {e}"
                if self.record is None:
                    what = f"{self.job.source.subject!r} could not be opened: "
                    raise AssayError(why if isinstance(e, Refused) else what + why) from e
                if self.place is not None:
                    self._enter(self.place, why, child.seconds)
        if self.record is None or len(self.record.rows) == settled:
            self._give_up(why)

    def _listen(self, child: Child, bars: ExitStack) -> None:
        while True:
            message = child.hear()
            if message is None:
                if self.asked or child.seconds > 10:
                    self.meter.alive(child.seconds)
            elif "done" in message:
                return
            elif "error" in message:
                raise Refused(message["error"])
            elif "plan" in message:
                if not self.asked:
                    self.asked, self.device = [Question.from_json(q) for q in message["plan"]], message["device"]
                    self.surroundings |= message["environment"]
                    self.meter.expect(sum(question.named for question in self.asked))
                child.set_clock_back()
            elif "held" in message:
                self._confined(message)
            elif "doing" in message:
                bars.close()
                if message["total"] is None:
                    self.meter.doing(message["doing"])
                else:
                    self.tick = bars.enter_context(self.meter.progress(message["doing"], message["total"]))
            elif "tick" in message:
                self.tick(message["tick"])
            elif "begun" in message:
                self._begin(Begun.from_json(message["begun"]))
            elif "next" in message:
                self._next(message["next"], child)
            elif "answered" in message and message["answered"] == self.place:
                self._take(message["answer"], child.seconds)

    def _confined(self, message: Mapping[str, Any]) -> None:
        held, missing = ("; ".join(map(str, message[name])) for name in ("held", "missing"))
        if missing and "sandbox" not in self.surroundings:
            self.meter.line(f"sandbox: {held or 'nothing held'}; what did not hold: {missing}")
        self.surroundings["sandbox"] = f"{held or 'nothing'}; not held: {missing}" if missing else held

    def _begin(self, begun: Begun) -> None:
        if self.record is None:
            self.record = Record(
                self.asked,
                begun,
                standards=self.job.standards,
                budget=self.job.budget,
                seed=self.job.seed,
                device=self.device,
                out=self.out,
                told=self.meter.told,
                source=self.job.source.words(),
            )
        elif begun.keys != self.record.begun.keys:
            self._give_up(
                "a question before ended the model's process, and opened again it is another model: its weights, data "
                "or answers differ; fix its seeds"
            )

    def _next(self, place: int, child: Child) -> None:
        if self.record is None:
            return
        wanted = 0 <= place < len(self.asked) and not self.record.knows(place)
        self.place = place if wanted else None
        child.set_clock_back()
        child.say(ask=wanted)

    def _take(self, told: Mapping[str, Any] | None, seconds: float) -> None:
        """Keep an answer if it is one to the question that was asked."""
        assert self.record is not None
        assert self.place is not None
        place, self.place = self.place, None
        question, key = self.asked[place], self.record.begun.keys[place]
        try:
            if told is None:
                answer = _fetched(self.folder / str(place), self.folder / "taken", question.probe)
            else:
                answer = Answer(**told)
            if (answer.probe, answer.key) != (question.probe, key) or (answer.finding is None) != (told is not None):
                raise AssayError("the answer that came is not to this question; ask it again")
            answer = dataclasses.replace(
                answer,
                question=question.question,
                source=question.source,
                settings=question.settings,
                theme=question.theme,
                environment=self.surroundings,
            )
        except (AssayError, TypeError) as e:
            self._enter(place, str(e), seconds)
            return
        self.record.take(place, answer)

    def _enter(self, place: int, why: str, seconds: float) -> None:
        """This question broke."""
        assert self.record is not None
        answer = self.asked[place].unanswered(self.record.begun.keys[place], why, seconds)
        self.record.take(place, dataclasses.replace(answer, environment=self.surroundings))

    def _give_up(self, why: str) -> None:
        """Nothing more can be asked: what is left is unanswered, and what was found stands."""
        if self.record is None:
            raise AssayError(why)
        for place in range(len(self.asked)):
            if not self.record.knows(place):
                self._enter(place, why, 0.0)


def _fetched(handed: Path, taken: Path, probe: str) -> Answer:
    """The answer that a child left in a folder: moved out of its reach, and only plain files of the names we know."""
    shutil.rmtree(taken, ignore_errors=True)
    try:
        os.rename(handed, taken)
        known = {f"findings/{probe}.json", f"samples/{probe}.parquet", f"witnesses/{probe}.safetensors"}
        there = {str(p.relative_to(taken)) for p in taken.rglob("*") if p.is_symlink() or not p.is_dir()}
        if not there <= known or any(not _plain_file(taken / name) for name in there):
            raise AssayError("the files of its answer are not those of an answer; ask it again")
        return store.load_answer(taken / "findings" / f"{probe}.json")
    except OSError as e:
        raise AssayError(f"its answer could not be fetched: {e.strerror or e}; ask it again") from e
    finally:
        shutil.rmtree(taken, ignore_errors=True)


def _plain_file(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()


def command_guarded(
    entry: str, job: Mapping[str, Any], limits: Limits, spoken: Callable[[str], None], warn: Callable[[str], None]
) -> int:
    """Run a whole command in a child, with its own progress on stderr; its status, if the child itself said so."""
    with stopped_by_signals(), handed_over() as folder, started(entry, job, limits, folder) as child:
        try:
            while True:
                message = child.hear()
                if message is None:
                    continue
                if "held" not in message:
                    child.set_clock_back()
                if "status" in message:
                    return int(message["status"])
                if "out" in message:
                    spoken(str(message["out"]))
                elif message.get("missing"):
                    held, missing = ("; ".join(map(str, message[name])) for name in ("held", "missing"))
                    warn(f"sandbox: {held or 'nothing held'}; what did not hold: {missing}")
        except Died as e:
            raise AssayError(f"The model's process {e}.") from e
