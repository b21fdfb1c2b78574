"""Workers on one queue: who runs what, what is left when they are killed, and what a job says when it cannot go on."""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import signal
import sqlite3
import time
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hired import Crew, eventually

pytest.importorskip("dbos", reason="assay[server] is not installed")

import sqlalchemy as sa

from assay.server import roll
from assay.server.tables import WORKERS

if TYPE_CHECKING:
    from cluster import Cluster

    from assay.server.book import Book, Job


def steps(book: Book, n: int, each: float = 0.0, seed: int = 0, **more: Any) -> Job:
    """A job of n steps, `fake_command.py`."""
    return book.submit("", "audit", "x", {"inputs": n, "size": max(1, round(1000 * each)), "seed": seed, **more})


def go(*jobs: Job) -> None:
    """Let those go on that wait at the step of `draws`."""
    for job in jobs:
        (job.folder / "run" / "go").touch()


def number(seed: int, n: int) -> str:
    """What n undisturbed steps come to."""
    found = str(seed)
    for step in range(n):
        found = hashlib.sha256(f"{found} {step}".encode()).hexdigest()[:16]
    return found


def state(book: Book, job: Job) -> str:
    found = book.job(job.id)
    assert found is not None
    return found.state


def ended(book: Book, *jobs: Job) -> bool:
    return all(state(book, job) in ("SUCCESS", "FAILURE", "CANCELLED") for job in jobs)


def begun(job: Job) -> list[list[str]]:
    """The process, the time and the step of each start of its command."""
    path = job.folder / "run" / "starts"
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


def held(book: Book, job: Job, n: int, seed: int) -> None:
    """It ended once, well, with the numbers that it has undisturbed."""
    from assay.server.book import ARROWS, ENDED

    now, events = book.job(job.id), book.events(job.id)
    assert now is not None
    assert (now.state, now.reason) == ("SUCCESS", "")
    assert (job.folder / "run" / "result").read_text() == number(seed, n)
    assert all(a.became == b.was and b.became in ARROWS[a.became] for a, b in pairwise(events))
    assert [event.became in ENDED for event in events].count(True) == 1
    assert all(int(a[2]) <= int(b[2]) for a, b in pairwise(begun(job)))  # each went on from where the last was


def test_the_second_waits_until_the_first_has_ended(sqlite: Book, crew: Crew) -> None:
    """The published code started each at once, so that jobs competed; and its RUN could be lost."""
    jobs = [steps(sqlite, 3, 0.01, seed, draws=2) for seed in range(3)]
    crew.hire(sqlite)
    eventually(lambda: sqlite.job(jobs[0].id).progress == 2 / 3)
    assert [state(sqlite, job) for job in jobs] == ["RUNNING", "QUEUED", "QUEUED"]
    go(*jobs)
    eventually(lambda: ended(sqlite, *jobs))
    for seed, job in enumerate(jobs):
        held(sqlite, job, 3, seed)
    times = [(found.began, found.ended) for found in map(sqlite.job, [job.id for job in jobs])]
    assert all(first[1] <= second[0] for first, second in pairwise(times))
    lines, _ = sqlite.log(jobs[0].id)
    assert lines[0].endswith(
        "assay audit fashion-cnn --size 10 --draws 2 --budget quick --inputs 3 --seed 0 --device cpu --out ./run"
    )
    assert lines[1:] == [f"stepping: {i} of 3" for i in (1, 2, 3)]


def test_what_came_in_and_what_comes_out_lie_apart(sqlite: Book, crew: Crew, tmp_path: Path) -> None:
    """The published code kept the address of the data and that of the result in one column."""
    (tmp_path / "s.toml").write_text("# mine")
    job = sqlite.submit("", "audit", "x", {"standards": "s.toml", "inputs": 2}, {"s.toml": tmp_path / "s.toml"})
    crew.hire(sqlite)
    eventually(lambda: ended(sqlite, job))
    assert [path.name for path in (job.folder / "files").iterdir()] == ["s.toml"]
    assert (job.folder / "files" / "s.toml").read_text() == "# mine"
    assert (job.folder / "run" / "result").read_text() == number(0, 2)
    assert sqlite.job(job.id).settings == job.settings


def test_no_command_is_told_where_the_server_keeps_its_jobs(sqlite: Book, crew: Crew, tmp_path: Path) -> None:
    """What is told ends up on pages that people send on: a report says how it was asked."""
    (tmp_path / "rows.csv").write_text("a,b\n1,2\n")
    settings = {"subject": "hiring-mlp", "data": "rows.csv", "target": "b", "domains": ["rows.csv"], "inputs": 1}
    job = sqlite.submit("", "audit", "x", settings, {"rows.csv": tmp_path / "rows.csv"})
    crew.hire(sqlite)
    eventually(lambda: ended(sqlite, job))
    assert state(sqlite, job) == "SUCCESS", sqlite.job(job.id)
    words = (job.folder / "run" / "words").read_text().splitlines()
    assert {"../files/rows.csv", "rows=../files/rows.csv", "../run"} <= set(words)
    assert str(sqlite.home) not in " ".join(words) + "".join(sqlite.log(job.id)[0])


def test_a_command_that_breaks_ends_as_failure_with_its_reason(sqlite: Book, crew: Crew) -> None:
    """The published code took any end for a success. A verdict (status 1) is one, a signal is not."""
    broken, verdict = steps(sqlite, 1, budget="standard"), steps(sqlite, 1, budget="full")
    killed = steps(sqlite, 1, device="auto")
    crew.hire(sqlite)
    eventually(lambda: ended(sqlite, broken, verdict, killed))
    found = sqlite.job(broken.id)
    assert (found.state, found.reason) == ("FAILURE", "It broke <on purpose>; mend it.")
    assert sqlite.log(broken.id)[0][1:] == ["loading", "assay: It broke <on purpose>; mend it."]
    assert state(sqlite, verdict) == "SUCCESS"
    found = sqlite.job(killed.id)
    assert found.state == "FAILURE"
    assert "ended by signal 9 (killed)" in found.reason


def test_what_is_cancelled_ends_and_what_waited_never_begins(sqlite: Book, crew: Crew) -> None:
    runs, waits, after = steps(sqlite, 1000, 0.05), steps(sqlite, 1), steps(sqlite, 1)
    crew.hire(sqlite)
    eventually(lambda: len(begun(runs)) == 1)
    assert sqlite.cancel(waits.id)
    assert sqlite.cancel(runs.id)
    assert state(sqlite, runs) == "CANCELLED"
    eventually(lambda: state(sqlite, after) == "SUCCESS")
    assert not _lives(int(begun(runs)[0][0]))
    assert begun(waits) == []
    assert state(sqlite, runs) == state(sqlite, waits) == "CANCELLED"
    assert sqlite.log(runs.id)[0][-1] == "assay: stopped"
    again = sqlite.again(runs.id, "")
    eventually(lambda: state(sqlite, again) == "RUNNING")
    sqlite.cancel(again.id)


def test_workers_are_killed_and_every_job_ends_once_with_its_numbers(book: Book, crew: Crew) -> None:
    jobs = [steps(book, 8, 0.05, seed, draws=4) for seed in range(5)]
    crew.hire(book), crew.hire(book)
    rng, kills, until = random.Random(0), 0, time.monotonic() + 120
    while not ended(book, *jobs):
        assert time.monotonic() < until
        time.sleep(0.3 * rng.random())
        busy = [worker.pid for worker in roll.workers(book) if worker.job is not None and worker.silent < 1]
        if busy and kills < 4:
            crew.kill(rng.choice(busy))
            crew.hire(book)
            kills += 1
        if kills == 4:
            go(*jobs)
    for seed, job in enumerate(jobs):
        held(book, job, 8, seed)
        ends = (job.folder / "run" / "ends").read_text().splitlines()
        assert len(ends) == 1  # no second command came to the end beside it
    assert kills == 4
    assert sum(book.job(job.id).attempt for job in jobs) > len(jobs)


def test_a_worker_that_is_asked_to_end_hands_its_job_back(sqlite: Book, crew: Crew) -> None:
    job = steps(sqlite, 10, draws=5)
    first = crew.hire(sqlite)
    eventually(lambda: sqlite.job(job.id).progress > 0)
    os.kill(int(begun(job)[0][0]), signal.SIGTERM)  # as where a service ends all of its processes at once
    crew.kill(first, signal.SIGTERM)
    eventually(lambda: roll.workers(sqlite) == [])
    assert state(sqlite, job) == "QUEUED"
    assert sqlite.events(job.id)[-1].why == "its worker was asked to end"
    go(job)
    crew.hire(sqlite)
    eventually(lambda: ended(sqlite, job))
    held(sqlite, job, 10, 0)
    assert int(begun(job)[1][2]) > 0  # it went on from where it was


def test_a_worker_that_sleeps_too_long_has_no_say_any_more(sqlite: Book, crew: Crew) -> None:
    """Its job is another's; when it wakes it ends."""
    job = steps(sqlite, 10, draws=5)
    first = crew.hire(sqlite)
    eventually(lambda: sqlite.job(job.id).progress > 0)
    (asleep,) = roll.workers(sqlite)
    crew.kill(first, signal.SIGSTOP)
    while _locked(sqlite):  # it fell asleep while it wrote, and nobody else can
        crew.kill(first, signal.SIGCONT)
        time.sleep(0.03)
        crew.kill(first, signal.SIGSTOP)
    with sqlite.writing() as c:
        c.execute(sa.update(WORKERS).values(seen=WORKERS.c.seen - 2 * roll.LOST))  # it has slept for so long
    crew.hire(sqlite)
    eventually(lambda: sqlite.job(job.id).attempt == 2)
    assert asleep.id not in [worker.id for worker in roll.workers(sqlite)]
    assert [state(sqlite, job), len(begun(job))] == ["RUNNING", 1]  # the folder is still the first one's command's
    crew.kill(first, signal.SIGCONT)
    eventually(lambda: not _lives(first))
    go(job)
    eventually(lambda: ended(sqlite, job))
    held(sqlite, job, 10, 0)
    assert len(begun(job)) == 2


def test_draining_takes_nothing_more_and_a_stopped_worker_leaves(postgres: Book, crew: Crew) -> None:
    first, second = steps(postgres, 2, draws=1), steps(postgres, 1)
    crew.hire(postgres)
    eventually(lambda: state(postgres, first) == "RUNNING")
    postgres.drain(True)
    go(first)
    eventually(lambda: ended(postgres, first))
    time.sleep(0.8)
    assert state(postgres, second) == "QUEUED"
    postgres.drain(False)
    eventually(lambda: ended(postgres, second))
    assert roll.stop(postgres, roll.workers(postgres)[0].id)
    eventually(lambda: roll.workers(postgres) == [])


def test_a_worker_with_another_home_does_not_begin(postgres: Book, tmp_path: Path) -> None:
    from assay.errors import AssayError
    from assay.server.book import Book
    from assay.server.worker import Hands

    job = steps(postgres, 1)
    elsewhere = Book(tmp_path / "elsewhere", postgres.url)
    with pytest.raises(AssayError, match="give --home the folder that the server has"):
        Hands(elsewhere).work()
    elsewhere.close()
    assert state(postgres, job) == "QUEUED"
    assert roll.workers(postgres) == []


def test_two_workers_finish_one_queue_on_postgresql(postgres: Book, crew: Crew) -> None:
    jobs = [steps(postgres, 3, seed=seed, draws=1) for seed in range(5)]
    crew.hire(postgres), crew.hire(postgres)
    eventually(lambda: [state(postgres, job) for job in jobs] == [*2 * ["RUNNING"], *3 * ["QUEUED"]])
    go(*jobs)
    eventually(lambda: ended(postgres, *jobs))
    for seed, job in enumerate(jobs):
        held(postgres, job, 3, seed)
    assert len({postgres.events(job.id)[-1].worker for job in jobs}) == 2


def test_a_job_that_fills_the_disk_is_ended_and_says_so(tmp_path: Path, prepared: Path, crew: Crew) -> None:
    from assay.server.book import Book, Quota

    home = tmp_path / "tight"  # as `crew.py` knows it: 2 MB for all
    home.mkdir()
    shutil.copy(prepared, home)
    book = Book(home, quota=Quota(free=0))
    job = steps(book, 1, device="cuda")
    crew.hire(book)
    eventually(lambda: ended(book, job))
    found = book.job(job.id)
    assert found.state == "FAILURE"
    assert found.reason == "It wrote until its owner's jobs held 0.003 GB; 0.002 GB is the most."
    assert (job.folder / "run" / "much").exists()
    assert len(book.log(job.id)[0]) >= 1
    eventually(lambda: book.job(job.id).bytes > 3_000_000)
    book.close()


def test_the_database_goes_in_mid_job_and_the_job_is_kept(postgres: Book, cluster: Cluster, crew: Crew) -> None:
    from assay.server.errors import Gone

    job, after = steps(postgres, 10, draws=5), steps(postgres, 1)
    crew.hire(postgres)
    eventually(lambda: postgres.job(job.id).progress > 0)
    cluster.stop()
    with pytest.raises(Gone, match="The workbench's database cannot be used"):
        postgres.job(job.id)
    go(job)
    eventually(lambda: (job.folder / "run" / "result").exists())  # the command needs no database
    eventually(lambda: postgres.log(job.id)[0][-1] == "stepping: 10 of 10")
    cluster.start()
    eventually(lambda: ended(postgres, job, after))
    held(postgres, job, 10, 0)
    assert postgres.job(job.id).attempt == 1


def _locked(book: Book) -> bool:
    with closing(sqlite3.connect(book.home / "book.sqlite", timeout=0.3)) as c:
        try:
            c.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return True
        return False


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "Z" not in Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
