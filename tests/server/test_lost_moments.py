"""Awkward moments of a worker, one by one and without a queue's own threads: `Hands.run` is what DBOS calls."""

from __future__ import annotations

import shutil
import smtplib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("dbos", reason="assay[server] is not installed")
pytest.importorskip("sqlalchemy", reason="assay[server] is not installed")

import sqlalchemy as sa

from assay.server import roll

if TYPE_CHECKING:
    from assay.server.book import Book, Job
    from assay.server.worker import Hands

WELL = (sys.executable, "-S", "-E", "-c", "print('well')")


def hands(book: Book, command: tuple[str, ...] = WELL) -> Hands:
    from assay.server.worker import Hands

    return Hands(book, command=command, told=[].append)


def sent(book: Book) -> Job:
    return book.submit("", "audit", "x", {})


def state(book: Book, job: Job) -> tuple[str, int]:
    now = book.job(job.id)
    assert now is not None
    return now.state, now.attempt


def test_the_database_goes_just_after_a_job_was_begun(sqlite: Book, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is begun, and the worker was not told: it has to see that the job is its own, or nobody ever runs it."""
    from assay.server import worker
    from assay.server.errors import Gone

    monkeypatch.setattr(worker, "BEAT", 0.01)
    job, look, gone = sent(sqlite), sqlite.job, [True]

    def once(id: str) -> Job | None:
        if gone and gone.pop():
            raise Gone("no connection")
        return look(id)

    monkeypatch.setattr(sqlite, "job", once)
    hands(sqlite).run(job.id)
    assert state(sqlite, job) == ("SUCCESS", 1)


def test_a_job_that_runs_is_begun_by_its_own_worker_alone(sqlite: Book) -> None:
    job = sent(sqlite)
    assert sqlite.begin(job.id, "one") is not None
    again = sqlite.begin(job.id, "one")
    assert again is not None
    assert (again.state, again.attempt) == ("RUNNING", 1)
    assert sqlite.begin(job.id, "two") is None
    sqlite.finish(job.id, 1, "SUCCESS")
    assert sqlite.begin(job.id, "one") is None
    assert [event.became for event in sqlite.events(job.id)] == ["QUEUED", "RUNNING", "SUCCESS"]


@pytest.mark.parametrize("why", ["_ending", "_lost"])
@pytest.mark.parametrize("draining", [False, True])
def test_a_worker_that_ends_begins_nothing_more(
    sqlite: Book, monkeypatch: pytest.MonkeyPatch, why: str, draining: bool
) -> None:
    """DBOS goes on to hand out jobs until the very end of the process; one that returned would be done for it."""
    from assay.server import worker

    class Ended(Exception):
        pass

    def end() -> None:
        raise Ended

    monkeypatch.setattr(worker, "_sleep", end)
    job, one = sent(sqlite), hands(sqlite)
    sqlite.drain(draining)
    getattr(one, why).set()
    with pytest.raises(Ended):
        one.run(job.id)
    assert state(sqlite, job) == ("QUEUED", 0)
    assert one._idle.is_set()  # and nobody waits for it


def test_what_a_worker_took_while_it_left_is_handed_to_another(sqlite: Book) -> None:
    """It had given back what it knew of and was forgotten; then DBOS had it take one more."""
    job, gone, other = sent(sqlite), hands(sqlite), hands(sqlite)
    table = sa.Table("workflow_status", sa.MetaData(), autoload_with=sqlite.engine)

    def taken() -> tuple[str, str]:
        with sqlite.engine.connect() as c:
            return tuple(c.execute(sa.select(table.c.status, table.c.executor_id)).one())

    with sqlite.engine.begin() as c:
        c.execute(sa.update(table).values(status="PENDING", executor_id=gone.id))
    roll.greet(sqlite, other.id, "here", 2)
    roll.greet(sqlite, gone.id, "here", 1)
    other._idle.set()
    other.recover()
    assert taken() == ("PENDING", gone.id)  # it is known, and at work
    roll.part(sqlite, gone.id)
    other._idle.clear()
    other.recover()
    assert taken() == ("PENDING", gone.id)  # whoever is busy leaves it to others
    other._idle.set()
    other.recover()
    assert taken()[0] == "ENQUEUED"
    assert state(sqlite, job) == ("QUEUED", 0)


def test_a_job_whose_folder_is_gone_fails_in_words_and_no_worker_waits_for_it(sqlite: Book) -> None:
    job = sent(sqlite)
    shutil.rmtree(job.folder)
    worker = hands(sqlite)
    worker._see_jobs()  # else one folder that somebody removed would keep every worker away
    worker.run(job.id)
    now = sqlite.job(job.id)
    assert now is not None
    assert (now.state, now.reason) == ("FAILURE", "The folder of this job is gone; send it anew.")


def test_a_job_does_not_tell_where_the_server_keeps_it(sqlite: Book) -> None:
    says = "import os; print(f'assay: {os.getcwd()!r} has no images; send some.'); raise SystemExit(2)"
    job = sent(sqlite)
    hands(sqlite, (sys.executable, "-S", "-E", "-c", says)).run(job.id)
    now = sqlite.job(job.id)
    assert now is not None
    assert (now.state, now.reason) == ("FAILURE", "'./run' has no images; send some.")
    assert str(sqlite.home) not in (job.folder / "log.txt").read_text()


def test_a_job_cancelled_while_its_worker_is_lost_is_not_run_again(sqlite: Book) -> None:
    job = sent(sqlite)
    sqlite.begin(job.id, "lost")
    assert sqlite.cancel(job.id)
    assert not sqlite.hand_back(job.id, 1, "its worker was lost")
    hands(sqlite).run(job.id)
    assert state(sqlite, job) == ("CANCELLED", 1)
    assert not (job.folder / "log.txt").read_text()


def test_a_command_is_not_told_the_servers_secrets(sqlite: Book, monkeypatch: pytest.MonkeyPatch) -> None:
    from assay.server import children

    for name in ("ASSAY_QUEUE", "ASSAY_MAIL_PASSWORD", "ASSAY_DATA"):
        monkeypatch.setenv(name, f"value of {name}")
    said = "import os; print(sorted(name for name in os.environ if name.startswith('ASSAY_')))"
    job = sent(sqlite)
    hands(sqlite, (sys.executable, "-S", "-c", said)).run(job.id)
    assert (job.folder / "log.txt").read_text().splitlines()[-1] == "['ASSAY_DATA']"
    assert children.python(["-S", "-c", said], sqlite.home, 30)[1].strip() == "['ASSAY_DATA']"


def test_mail_is_sent_when_a_job_ends_and_one_that_is_not_taken_harms_nothing(
    sqlite: Book, monkeypatch: pytest.MonkeyPatch
) -> None:
    from assay.server import mail

    sent_to: list[Any] = []
    monkeypatch.setenv("ASSAY_MAIL_HOST", "mail.example")
    monkeypatch.setenv("ASSAY_MAIL_TO", "me@example.org")
    monkeypatch.setattr(mail, "send", lambda letter, settings: sent_to.append(letter["Subject"]))
    hands(sqlite).run(sent(sqlite).id)
    hands(sqlite, (sys.executable, "-S", "-c", "raise SystemExit(2)")).run(sent(sqlite).id)
    assert sent_to == ["Assay: x is done", "Assay: x failed"]

    def refuse(letter: object, settings: object) -> None:
        raise smtplib.SMTPException("mailbox unavailable")

    monkeypatch.setattr(mail, "send", refuse)
    told: list[str] = []
    job, one = sent(sqlite), hands(sqlite)
    one.told = told.append
    one.run(job.id)
    assert state(sqlite, job) == ("SUCCESS", 1)
    assert told == ["No mail could be sent: mailbox unavailable"]


def test_a_database_that_is_no_longer_one_is_told(tmp_path: Path) -> None:
    from assay.server.book import Book
    from assay.server.errors import Gone

    book = Book(tmp_path)
    book.close()
    for path in tmp_path.glob("book.sqlite*"):
        path.write_bytes(b"no database at all " * 1000)
    with pytest.raises(Gone, match="cannot be used"):
        book.jobs()


def test_a_job_handed_out_while_draining_waits_until_that_is_over(
    sqlite: Book, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DBOS looks at its settings now and then: a worker that had not seen them took one more."""
    from assay.server import worker

    monkeypatch.setattr(worker, "BEAT", 0.01)
    job, one, looks = sent(sqlite), hands(sqlite), [True, True, False]
    seen: list[str] = []

    def draining() -> bool:
        seen.append(state(sqlite, job)[0])
        return looks.pop(0)

    monkeypatch.setattr(sqlite, "draining", draining)
    one._idle.set()
    one.run(job.id)
    assert seen == ["QUEUED"] * 3
    assert state(sqlite, job) == ("SUCCESS", 1)
