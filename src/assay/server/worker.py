"""A worker: takes jobs off the queue, one at a time, and runs each as the command line that it stands for.

The command is a child in a process group of its own, on a leash (`leash.py`). Its lines go to the job's log.txt as they
come. Whenever the book says that the job is no longer this worker's attempt (it was cancelled, or the worker was taken
for lost), the command is ended. A worker that is asked to end hands its job back. What a worker that was lost had, any
other hands back for it: the command then goes on from what it left in the job's folder.
"""

from __future__ import annotations

import os
import platform
import re
import secrets
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from smtplib import SMTPException
from typing import IO, NoReturn, TypeVar

from assay.errors import AssayError
from assay.server import kinds, mail, roll
from assay.server.book import ASKED_TO_END, FAILURE, SUCCESS, Book, Job
from assay.server.errors import Gone
from assay.server.folders import gb, size
from assay.server.leash import leash, without_secrets
from assay.server.queue import APPLICATION, QUEUE, VERSION, WORKFLOW, dbos

BEAT = 1.0  # seconds between two signs of life
GRACE = 5.0  # seconds in which a command that is asked to end may do so by itself
LOOK_EVERY = 0.1  # seconds between two looks at a command
TELL_EVERY = 0.5  # seconds between two words on how far it is
WEIGH_EVERY = 5.0  # seconds between two looks at what it wrote
STOPPED = (130, -signal.SIGINT, -signal.SIGTERM)
"""With which a command ends that was asked to."""
LONGEST_LOG = 20 * 10**6  # bytes
LONGEST_LINE = 2**16
PROGRESS = re.compile(rb": (\d+) of (\d+)\b")
COMMAND = (sys.executable, "-m", "assay.server.leash", "{leash}", "assay")
Answer = TypeVar("Answer")


@dataclass
class Hands:
    """One worker process."""

    book: Book
    told: Callable[[str], None] = print
    command: Sequence[str] = COMMAND
    """What the words of a job are put behind; "{leash}" stands for the descriptor of the leash."""
    id: str = field(default_factory=lambda: secrets.token_urlsafe(16))
    _ending: threading.Event = field(default_factory=threading.Event)
    _idle: threading.Event = field(default_factory=threading.Event)
    _lost: threading.Event = field(default_factory=threading.Event)

    def end(self, *anything: object) -> None:
        """Hand back what runs, and leave."""
        self._ending.set()

    def work(self) -> int:
        """Until it is told to end. 0: it was told; 1: it was taken for lost, and another has to take its place."""
        self._idle.set()
        self._see_jobs()
        with _held(self._sign(self.id)):
            self._patiently(lambda: roll.greet(self.book, self.id, platform.node(), os.getpid()))
            self._launch()
            try:
                return self._watch()
            finally:
                self._leave()

    def _see_jobs(self) -> None:
        """Else every job would fail here, one after the other. A book of SQLite lies where its jobs lie."""
        elsewhere = self.book.engine.dialect.name == "postgresql"
        newest = self._patiently(lambda: self.book.jobs(limit=50)) if elsewhere else []
        if newest and not any(job.folder.is_dir() for job in newest):
            raise AssayError(
                f"The jobs of this queue do not lie in {str(self.book.home)!r}; give --home the folder that the server "
                "has."
            )
        self._patiently(self.book.sweep)

    def _launch(self) -> None:
        library = dbos()
        self._patiently(self.book.open_queue)

        @library.DBOS.step(name="command")  # type: ignore[untyped-decorator]
        def command(id: str) -> str:
            return self.run(id)

        @library.DBOS.workflow(name=WORKFLOW, max_recovery_attempts=None)  # type: ignore[untyped-decorator]
        def job(id: str) -> str:
            return str(command(id))

        library.DBOS(
            config={
                "name": APPLICATION,
                "system_database_engine": self.book.engine,
                "application_version": VERSION,
                "executor_id": self.id,
                "serializer": library.DBOSPortableJSONSerializer(),
                "log_level": "CRITICAL",
                "use_listen_notify": False,
                "run_migrations": False,
            }
        )
        library.DBOS.listen_queues([QUEUE])
        library.DBOS.launch()

    def _watch(self) -> int:
        gone = False
        while not self._ending.wait(BEAT):
            try:
                said = roll.beat(self.book, self.id)
                if said is None:
                    self.told("This worker was silent for so long that it was taken for lost; it ends.")
                    self._lost.set()
                    return 1
                self.recover()
                if gone:
                    self.told("The database is there again.")
                    gone = False
                if said and self._idle.is_set():
                    return 0
            except Gone as e:
                if not gone:
                    self.told(f"{e} What runs goes on.")
                gone = True
        return 0

    def _leave(self) -> None:
        """Wait until what ran is handed back, put it into the queue again, and be forgotten. Others do what fails."""
        self._ending.set()
        self._idle.wait(2 * GRACE)
        with suppress(Gone):
            self._hand_back(self.id, ASKED_TO_END)

    def _hand_back(self, worker: str, why: str) -> None:
        """In this order: a job that DBOS hands out while the book has it running would not be begun."""
        for job in self.book.running(worker):
            self.book.hand_back(job.id, job.attempt, why)
        self.book.requeue(worker)
        roll.part(self.book, worker)

    def recover(self) -> None:
        """Hand back what workers had that are gone. One worker does so at a time, and each part may be done twice."""
        if self._idle.is_set():  # who is busy could not take it
            for stranger in roll.strangers(self.book):
                self._hand_back(stranger, "its worker left")
        if not any(self._is_lost(worker) for worker in roll.workers(self.book)):
            return
        with self.book.alone("recovery"):
            for worker in roll.workers(self.book):
                if self._is_lost(worker):
                    lost = f"its worker, process {worker.pid} on {worker.host}, was lost"
                    self.told(f"{lost.capitalize()}; the job waits again.")
                    self._hand_back(worker.id, lost)
                    self._sign(worker.id).unlink(missing_ok=True)

    def _is_lost(self, worker: roll.Worker) -> bool:
        """It was silent for long; or, on this very machine, nothing holds its sign any more."""
        return worker.id != self.id and (worker.silent > roll.LOST or _let_go(self._sign(worker.id)))

    def _sign(self, worker: str) -> Path:
        return self.book.home / "workers" / worker

    # One job

    def run(self, id: str) -> str:
        """In a thread of DBOS's. What it returns is kept by DBOS; what counts is in the book."""
        try:
            self._wait_while_held()
            self._idle.clear()  # first: from here on whoever ends this worker waits for what becomes of the job
            self._stay()
            job = self._patiently(lambda: self.book.begin(id, self.id))
            if job is None:
                return "was not to be run"
            try:
                state, reason = self._conduct(job)
            except (_NotOurs, _Leaving):
                raise
            except Exception as e:
                state, reason = FAILURE, f"{type(e).__name__}: {e}; this should not happen"
            if not self._patiently(lambda: self.book.finish(id, job.attempt, state, reason)):
                raise _NotOurs
            with suppress(Gone):
                self.book.weigh(id)
            self._send_mail(id)
            return f"{state} {reason}"
        except _NotOurs:
            return "is no longer this worker's"
        except _Leaving:
            self._idle.set()
            _sleep()
        finally:
            self._idle.set()

    def _wait_while_held(self) -> None:
        """DBOS looks at its settings now and then, and may hand out one more job after draining was begun."""
        while self._patiently(self.book.draining):
            self._stay()
            self._ending.wait(BEAT)

    def _stay(self) -> None:
        """Of a job that is not begun: whoever goes must not return from it, or for DBOS it would be done."""
        if self._ending.is_set() or self._lost.is_set():
            raise _Leaving

    def _send_mail(self, id: str) -> None:
        try:
            mail.ended(self.book, id)
        except (OSError, SMTPException, ValueError, AssayError) as e:
            self.told(f"No mail could be sent: {e}")

    def _conduct(self, job: Job) -> tuple[str, str]:
        """The state in which it ends, and why."""
        if not job.folder.is_dir():
            return FAILURE, "The folder of this job is gone; send it anew."
        try:
            kind = kinds.load(job.kind)
            words = kind.argv(job.settings, job.folder)
        except AssayError as e:
            return FAILURE, str(e)
        try:
            with self._lock(job) as lock, Log(job.folder / "log.txt") as log:
                if job.attempt > 1:
                    log.say(f"begun again, for the {_th(job.attempt)} time")
                log.say(f"assay {' '.join(words)}".replace(str(job.folder), "."))
                words = [word.replace(str(job.folder), "..") for word in words]  # as seen from run/: pages tell them
                status, why = self._attend(job, kind, words, lock, log)
        except OSError as e:
            return FAILURE, f"The command could not be run: {e.strerror or e}."
        if why:
            return FAILURE, why
        if status in kind.good:
            return SUCCESS, ""
        if status in STOPPED and self._ending.wait(BEAT):  # whoever ends this worker ended the command too
            raise _Leaving
        return FAILURE, log.reason or _how_it_ended(status, log.last)

    def _attend(self, job: Job, kind: kinds.Kind, words: list[str], lock: IO[str] | None, log: Log) -> tuple[int, str]:
        """Run the command; its status, and why it was ended where that was ours to do."""
        with leash() as its:
            process = subprocess.Popen(
                [part.replace("{leash}", str(its)) for part in self.command] + words,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                cwd=job.folder / "run",
                env={**without_secrets(os.environ), "PYTHONUNBUFFERED": "1", "NO_COLOR": "1"},
                pass_fds=[its] if lock is None else [its, lock.fileno()],
                start_new_session=True,
            )
            if lock is not None:
                lock.close()  # from now on it is the command's alone, and free when the command has ended
            assert process.stdout is not None
            reader = threading.Thread(target=log.follow, args=(process.stdout,), daemon=True)
            reader.start()
            try:
                why = self._until_it_ends(process, job, kind, log)
            finally:
                _end(process)
                reader.join(GRACE)
            return process.returncode, why

    def _until_it_ends(self, process: subprocess.Popen[bytes], job: Job, kind: kinds.Kind, log: Log) -> str:
        last, told, weighed, came = 0.0, 0.0, 0.0, size(job.folder / "files")
        while process.poll() is None:
            self._give_up(log)
            now = time.monotonic()
            if now - told > TELL_EVERY:
                bytes = came + size(job.folder / "run") if now - weighed > WEIGH_EVERY else None
                weighed = weighed if bytes is None else now
                found = kind.progress(job.folder)
                done = log.progress if found is None else found
                with suppress(Gone):  # nobody can take it from us now, and the command needs no database
                    news = done != last or bytes is not None
                    if not (self.book.tell(job.id, job.attempt, done, bytes) if news else self.book.still_runs(job)):
                        raise _NotOurs
                    last = done
                    if bytes is not None and (why := self._too_much(job)):
                        return why
                told = time.monotonic()
            with suppress(subprocess.TimeoutExpired):
                process.wait(LOOK_EVERY)
        return ""

    def _too_much(self, job: Job) -> str:
        """Why a job has to end for want of room."""
        quota, held = self.book.quota, self.book.bytes_of(job.owner)
        if held > quota.disk:
            return f"It wrote until its owner's jobs held {gb(held)}; {gb(quota.disk)} is the most."
        if shutil.disk_usage(self.book.home).free < quota.free / 2:
            return f"The disk is full: less than {gb(quota.free / 2)} is free; remove some jobs, run it again."
        return ""

    @contextmanager
    def _lock(self, job: Job) -> Iterator[IO[str] | None]:
        """Held by the command itself while it lives, so that two never write into one folder."""
        try:
            import fcntl
        except ImportError:
            yield None
            return
        with open(job.folder / "lock", "w") as lock:
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:  # the command of a worker that was lost is about to end
                    self._give_up(None)
                    if not self._patiently(lambda: self.book.still_runs(job)):
                        raise _NotOurs from None
                    time.sleep(LOOK_EVERY)
                except OSError:
                    yield None  # a file system without locks
                    return
            yield lock

    def _give_up(self, log: Log | None) -> None:
        if self._lost.is_set():
            raise _NotOurs
        if self._ending.is_set():
            if log is not None:
                log.say("its worker was asked to end; the job waits for another")
            raise _Leaving

    def _patiently(self, ask: Callable[[], Answer]) -> Answer:
        """Ask the book until it can be reached."""
        while True:
            try:
                return ask()
            except Gone as e:
                if self._ending.is_set():
                    raise _Leaving from e
                self.told(str(e))
                self._ending.wait(BEAT)


class _NotOurs(Exception):
    """The job was cancelled, or is another worker's by now."""


class _Leaving(Exception):
    """This worker ends before the job does."""


def _sleep() -> NoReturn:
    """Until the process ends, in a moment: a workflow that returned would be one that is done."""
    while True:
        time.sleep(GRACE)


class Log:
    """What a command says, line by line into a file that does not grow for ever; and what was said last."""

    def __init__(self, path: Path) -> None:
        self._file = open(path, "ab", buffering=0)  # noqa: SIM115  closed by __exit__
        self._room = LONGEST_LOG - path.stat().st_size
        self._folder = str(path.parent).encode()  # where the server keeps it is nobody's business
        self.reason, self.last, self.progress = "", "", 0.0

    def __enter__(self) -> Log:
        return self

    def __exit__(self, *anything: object) -> None:
        self._file.close()

    def say(self, text: str) -> None:
        self._write(f"[{time.strftime('%H:%M:%S')}] {text}\n".encode())

    def follow(self, lines: IO[bytes]) -> None:
        with lines:
            while line := lines.readline(LONGEST_LINE).replace(self._folder, b"."):
                self._write(line if line.endswith(b"\n") else line + b"\n")
                if found := PROGRESS.search(line):
                    done, total = int(found[1]), int(found[2])
                    self.progress = done / total if total > 0 and done <= total else self.progress
                if text := line.decode("utf-8", "replace").strip():
                    self.last = text
                    if text.startswith("assay: "):
                        self.reason = text.removeprefix("assay: ")

    def _write(self, line: bytes) -> None:
        if self._room <= 0:
            return
        self._room -= len(line)
        if self._room <= 0:
            line = b"[the log ends here: it is as long as one may be]\n"
        with suppress(OSError, ValueError):  # a full disk, or a reader that is late: what the job does goes on
            self._file.write(line)


@contextmanager
def _held(sign: Path) -> Iterator[None]:
    """A file that this process has locked as long as it lives, by which others on this machine see that it does."""
    sign.parent.mkdir(exist_ok=True)
    with open(sign, "w") as f:
        with suppress(ImportError, OSError):
            import fcntl

            fcntl.flock(f, fcntl.LOCK_EX)
            f.write(_machine())
            f.flush()
        yield
    sign.unlink(missing_ok=True)


def _let_go(sign: Path) -> bool:
    """Whether the process that held it is gone; False where that cannot be told, as from another machine."""
    try:
        import fcntl

        with open(sign) as f:
            if f.read() != _machine():
                return False
            fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
    except (ImportError, OSError):
        return False


def _machine() -> str:
    """The same for processes under one running kernel, and for no others; "" where that is not known."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text()
    except OSError:
        return platform.node()


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ask the command to end, with all of its group; then make it."""
    for sign, patience in ((signal.SIGTERM, GRACE), (signal.SIGKILL, GRACE)):
        if process.poll() is not None:
            return
        with suppress(OSError):
            os.killpg(process.pid, sign)
        with suppress(subprocess.TimeoutExpired):
            process.wait(patience)


def _how_it_ended(status: int, last: str) -> str:
    if status < 0:
        name = (signal.strsignal(-status) or "unknown").lower()
        return f"The command was ended by signal {-status} ({name}); for want of memory, most often."
    return f"The command ended with status {status}; it last said: {last[:200] or 'nothing'}"


def _th(n: int) -> str:
    return f"{n}{'th' if 10 <= n % 100 <= 20 else {1: 'st', 2: 'nd', 3: 'rd'}.get(n % 10, 'th')}"
