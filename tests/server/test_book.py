"""The book: what is stored, in which order, how states move, and what is refused. No worker takes part."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import shutil
import threading
import time
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("sqlalchemy", reason="assay[server] is not installed")
pytest.importorskip("dbos", reason="assay[server] is not installed")

import sqlalchemy as sa

from assay.server import roll, shares

if TYPE_CHECKING:
    from collections.abc import Callable

    from assay.server.book import Book


def audit(book: Book, owner: str = "", title: str = "an audit", **more: Any) -> Any:
    return book.submit(owner, "audit", title, more)


def test_a_job_comes_back_as_it_was_sent(book: Book, tmp_path: Path) -> None:
    """Every field in its own place: the published code swapped the description and the settings on reading."""
    sent = tmp_path / "model.onnx"
    sent.write_bytes(b"weights")
    title = "<b>cells</b> & 'quotes'; DROP TABLE jobs"
    given = {"model": "model.onnx", "data": "d.csv", "seed": 3, "probe": ["accuracy"]}
    (tmp_path / "d.csv").write_text("a,b\n1,2\n")
    made = book.submit("ada", "audit", title, given, {"model.onnx": sent, "d.csv": tmp_path / "d.csv"})
    found = book.job(made.id)
    assert found == made
    assert (found.owner, found.kind, found.title, found.settings) == ("ada", "audit", title, given)
    assert (found.state, found.reason, found.progress, found.began, found.ended) == ("QUEUED", "", 0, None, None)
    assert len(found.id) == 22
    assert found.folder == book.home / "jobs" / found.id
    assert (found.folder / "files" / "model.onnx").read_bytes() == b"weights"
    assert json.loads((found.folder / "job.json").read_text())["settings"] == given
    assert found.bytes >= 7


def test_newest_first_page_by_page_and_of_one_owner(sqlite: Book) -> None:
    from assay.server.errors import Refused

    made = [audit(sqlite, "ada" if i % 2 else "bob", f"job {i}") for i in range(7)]
    with sqlite.engine.begin() as c:  # two made in the same instant are still told apart
        c.execute(sa.text("UPDATE jobs SET made = 5 WHERE id IN (:a, :b)"), {"a": made[0].id, "b": made[1].id})
    seen, before = [], None
    while page := sqlite.jobs(None, limit=2, before=before):
        seen += page
        before = (page[-1].made, page[-1].id)
    assert [job.id for job in seen] == sorted((j.id for j in seen), key=lambda i: (sqlite.job(i).made, i), reverse=True)
    assert {job.id for job in seen} == {job.id for job in made}
    assert [job.title for job in sqlite.jobs("ada")] == ["job 5", "job 3", "job 1"]
    sqlite.cancel(made[3].id)
    assert [job.title for job in sqlite.jobs("ada", state="CANCELLED")] == ["job 3"]
    assert sqlite.counts("ada") == {"QUEUED": 2, "RUNNING": 0, "SUCCESS": 0, "FAILURE": 0, "CANCELLED": 1}
    assert sum(sqlite.counts().values()) == 7
    with pytest.raises(Refused, match="is no place in the list"):
        sqlite.jobs(before=(1.0, "x\0"))
    assert [sqlite.place(job.id) for job in made[2:5]] == [2, None, 3]


def test_a_page_of_many_jobs_is_read_off_an_index(sqlite: Book) -> None:
    from assay.server.tables import JOBS

    for where in (
        (),
        (JOBS.c.owner == "ada",),
        (JOBS.c.state == "FAILURE",),
        (JOBS.c.owner == "a", JOBS.c.state == "B"),
    ):
        older = sa.tuple_(JOBS.c.made, JOBS.c.id) < sa.tuple_(sa.literal(5.0), sa.literal("x"))
        query = sa.select(JOBS).where(older, *where).order_by(JOBS.c.made.desc(), JOBS.c.id.desc()).limit(50)
        text = str(query.compile(sqlite.engine, compile_kwargs={"literal_binds": True}))
        with sqlite.engine.connect() as c:
            plan = " ".join(str(row[-1]) for row in c.exec_driver_sql(f"EXPLAIN QUERY PLAN {text}"))
        assert "USING INDEX" in plan
        assert "TEMP B-TREE" not in plan


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"budget": "huge"}, "How hard to look: 'huge' is none of quick, standard, full"),
        ({"seed": -1}, "Seed: -1 is out of range; give from 0 to"),
        ({"seed": "many"}, "Seed: 'many' is no number"),
        ({"seed": 1.5}, "Seed: 1.5 is no whole number"),
        ({"subject": "../../etc"}, "There is no model '../../etc'"),
        ({"colour": "red"}, "There is no setting 'colour'"),
        ({"model": "gone.onnx"}, "the file 'gone.onnx' did not arrive"),
        ({"probe": ["acuracy"]}, "there is no 'acuracy'"),
        ({"timeout": float("nan")}, "nan is no number"),
    ],
)
def test_what_is_wrong_is_refused_and_leaves_nothing(sqlite: Book, wrong: dict[str, Any], says: str) -> None:
    """The published code stored such a job, and it stayed for ever."""
    from assay.server.errors import Refused

    with pytest.raises(Refused, match=says.replace("(", r"\(")):
        sqlite.submit("", "audit", "x", wrong)
    assert sqlite.jobs() == []
    assert list((sqlite.home / "jobs").iterdir()) == []


def test_a_kind_that_is_none_and_files_that_reach_out_are_refused(sqlite: Book, tmp_path: Path) -> None:
    from assay.server.errors import Refused

    with pytest.raises(Refused, match="There is no kind of job 'os'"):
        sqlite.submit("", "os", "x", {})
    (tmp_path / "f.toml").write_text("")
    for name in ("../f.toml", ".hidden.toml", "a/b.toml"):
        with pytest.raises(Refused, match="is no name for a file"):
            sqlite.submit("", "audit", "x", {"standards": name}, {name: tmp_path / "f.toml"})
    folder = tmp_path / "images"
    folder.mkdir()
    (folder / "0.png").symlink_to("/etc/hostname")
    with pytest.raises(Refused, match="holds a link to somewhere else"):
        sqlite.submit("", "rank", "x", {"data": "images"}, {"images": folder})
    assert sqlite.jobs() == []
    assert list((sqlite.home / "jobs").iterdir()) == []


@pytest.mark.parametrize(
    "id",
    ["", "x", "../../../etc/passwd", "a" * 22 + "/", "'; DROP TABLE jobs; --", "é" * 22, "A" * 21 + "\0", "A" * 22],
)
def test_a_job_id_that_is_none(sqlite: Book, id: str) -> None:
    from assay.server.errors import Refused

    assert sqlite.job(id) is None
    assert shares.tokens(sqlite, id) == []
    assert not shares.unshare(sqlite, id)
    assert not roll.stop(sqlite, id)
    assert sqlite.log(id, 3) == ([], 3)
    assert sqlite.events(id) == []
    assert sqlite.place(id) is None
    assert not sqlite.cancel(id)
    assert not sqlite.remove(id)
    assert shares.shared(sqlite, id) is None
    with pytest.raises(Refused, match="There is no job"):
        sqlite.again(id, "")
    with pytest.raises(Refused, match="There is no job"):
        shares.share(sqlite, id)


def test_text_is_kept_as_text_on_one_line(sqlite: Book) -> None:
    made = audit(sqlite, title="a\nb\0c \x1b[31m" + "x" * 500)
    assert made.title.startswith("a b c [31mxxx")
    assert len(made.title) == 200
    assert audit(sqlite, title="  ").title == "audit"


def test_no_word_becomes_part_of_a_statement(book: Book) -> None:
    """The published code wrote its statements by formatting: a reason could have said anything to the database."""
    from assay.server.errors import Refused

    word = "x', state = 'SUCCESS'; DROP TABLE jobs; -- \"%s %(a)s :a ? {0}"
    other, job = audit(book, title="other"), audit(book, title=word, owner=word)
    assert book.begin(job.id, word).attempt == 1
    assert [each.id for each in book.jobs(word)] == [job.id]
    assert book.counts(word)["RUNNING"] == 1
    assert book.finish(job.id, 1, "FAILURE", word)
    now = book.job(job.id)
    assert (now.title, now.owner, now.reason, now.state) == (word, word, word, "FAILURE")
    assert book.events(job.id)[-1].why == word
    assert book.job(other.id).state == "QUEUED"
    assert (book.job(word), shares.shared(book, word)) == (None, None)
    assert (book.cancel(word), book.remove(word)) == (False, False)
    with pytest.raises(Refused, match="is no place in the list"):
        book.jobs(before=(0.0, word))


def test_a_job_is_in_the_book_before_anything_can_begin_it(sqlite: Book, monkeypatch: pytest.MonkeyPatch) -> None:
    """The published code began first and wrote the row after: that it ran could be lost. Here both are one."""
    seen: list[object] = []
    put = sqlite.queue.put

    def watched(c: Any, id: str) -> None:
        seen.append(sqlite.job(id))  # as another process sees it while it is queued: neither is there yet
        put(c, id)
        if len(seen) == 2:
            raise RuntimeError("cut off in between")

    monkeypatch.setattr(sqlite.queue, "put", watched)
    job = audit(sqlite)
    assert seen == [None]
    assert sqlite.begin(job.id, "w").state == "RUNNING"
    with pytest.raises(RuntimeError):
        audit(sqlite)
    assert [each.id for each in sqlite.jobs()] == [job.id]
    assert [w.workflow_id for w in sqlite.queue.open().list_workflows()] == [job.id]
    assert [path.name for path in (sqlite.home / "jobs").iterdir()] == [job.id]


# States


def test_the_arrows_and_no_others(sqlite: Book) -> None:
    from assay.server.book import ARROWS, ENDED, STATES

    assert ARROWS == {"QUEUED": ("RUNNING", "CANCELLED"), "RUNNING": ("SUCCESS", "FAILURE", "CANCELLED", "QUEUED")}
    job = audit(sqlite)
    for was in STATES:
        for became in STATES:
            if became not in ARROWS.get(was, ()):
                with pytest.raises(ValueError, match="no arrow leads"), sqlite.engine.begin() as c:
                    sqlite._move(c, job.id, was, became, "")
    assert not sqlite.finish(job.id, 0, "SUCCESS")  # it was never begun
    assert not sqlite.hand_back(job.id, 0, "x")
    assert sqlite.begin(job.id, "w").attempt == 1
    assert sqlite.begin(job.id, "v") is None  # one worker alone
    assert not sqlite.finish(job.id, 2, "SUCCESS")  # another attempt's word
    assert sqlite.finish(job.id, 1, "FAILURE", "because\nof this")
    for state in ENDED:
        assert not sqlite.finish(job.id, 1, state)
    assert not sqlite.cancel(job.id)
    assert not sqlite.hand_back(job.id, 1, "x")
    assert sqlite.begin(job.id, "w") is None
    now = sqlite.job(job.id)
    assert (now.state, now.reason) == ("FAILURE", "because of this")
    assert now.made <= now.began <= now.ended
    assert [(e.was, e.became) for e in sqlite.events(job.id)] == [
        ("", "QUEUED"), ("QUEUED", "RUNNING"), ("RUNNING", "FAILURE"),
    ]  # fmt: skip


def test_a_job_handed_back_belongs_to_its_next_attempt_alone(sqlite: Book) -> None:
    job = audit(sqlite)
    first = sqlite.begin(job.id, "w")
    assert sqlite.tell(job.id, 1, 0.5)
    assert sqlite.hand_back(job.id, 1, "its worker was lost")
    back = sqlite.job(job.id)
    assert (back.state, back.progress, back.began, back.reason) == ("QUEUED", 0, None, "")
    second = sqlite.begin(job.id, "v")
    assert not sqlite.tell(job.id, 1, 0.9)  # the first, which only slept, is told so
    assert not sqlite.still_runs(first)
    assert sqlite.still_runs(second)
    assert not sqlite.finish(job.id, 1, "SUCCESS")
    assert sqlite.finish(job.id, 2, "SUCCESS")
    assert sqlite.job(job.id).progress == 1


def test_a_job_that_ends_its_workers_ends(sqlite: Book) -> None:
    from assay.server.book import MOST_ATTEMPTS

    job = audit(sqlite)
    for attempt in range(1, MOST_ATTEMPTS + 1):
        assert sqlite.begin(job.id, "w").attempt == attempt
        assert sqlite.hand_back(job.id, attempt, "its worker was lost")
    now = sqlite.job(job.id)
    assert now.state == "FAILURE"
    assert "begun 20 times" in now.reason


def test_restarts_are_not_held_against_a_job(sqlite: Book) -> None:
    """The server was stopped and started again so often, and every time its workers were asked to end."""
    from assay.server.book import ASKED_TO_END, MOST_ATTEMPTS

    job = audit(sqlite)
    for attempt in range(1, 2 * MOST_ATTEMPTS):
        assert sqlite.begin(job.id, "w").attempt == attempt
        assert sqlite.hand_back(job.id, attempt, ASKED_TO_END)
    assert sqlite.job(job.id).state == "QUEUED"
    for lost in range(MOST_ATTEMPTS):  # these are
        assert sqlite.job(job.id).state == "QUEUED", lost
        assert sqlite.hand_back(job.id, sqlite.begin(job.id, "w").attempt, "its worker was lost")
    now = sqlite.job(job.id)
    assert now.state == "FAILURE"
    assert "begun 59 times, and 20 times its worker was gone" in now.reason


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    moves=st.lists(
        st.tuples(st.sampled_from(["begin", "finish", "fail", "cancel", "back"]), st.integers(0, 3)), max_size=12
    )
)
def test_whatever_is_asked_states_follow_the_arrows(sqlite: Book, moves: list[tuple[str, int]]) -> None:
    from assay.server.book import ARROWS

    job = audit(sqlite)
    do: dict[str, Callable[[int], object]] = {
        "begin": lambda n: sqlite.begin(job.id, str(n)),
        "finish": lambda n: sqlite.finish(job.id, n, "SUCCESS"),
        "fail": lambda n: sqlite.finish(job.id, n, "FAILURE", "x"),
        "cancel": lambda n: sqlite.cancel(job.id),
        "back": lambda n: sqlite.hand_back(job.id, n, "x"),
    }
    worker = None
    for name, n in moves:
        before = sqlite.job(job.id)
        moved = do[name](n)
        after = sqlite.job(job.id)
        if name == "begin" and before.state == "RUNNING":  # asked twice: its own worker is told so, another is not
            assert (bool(moved), after) == (n == worker, before)
            continue
        worker = n if name == "begin" and moved else worker
        assert bool(moved) == (before.state != after.state)
        assert not moved or after.state in ARROWS[before.state]
    events = sqlite.events(job.id)
    assert events[0].became == "QUEUED"
    assert all(a.became == b.was and b.became in ARROWS[a.became] for a, b in pairwise(events))
    assert events[-1].became == sqlite.job(job.id).state


def _race(home: str, url: str, ids: list[str], seed: int) -> None:
    from assay.server.book import Book, Quota

    book, rng = Book(Path(home), url, Quota(free=0)), random.Random(seed)
    for _ in range(25):
        id = rng.choice(ids)
        match rng.randrange(5):
            case 0 | 1:
                book.begin(id, str(seed))
            case 2:
                book.finish(id, rng.randrange(1, 5), "SUCCESS")
            case 3:
                book.hand_back(id, rng.randrange(1, 4), "x")
            case 4 if rng.random() < 0.3:
                book.cancel(id)


def test_states_follow_the_arrows_when_processes_race(book: Book) -> None:
    from assay.server.book import ARROWS, ENDED

    ids = [audit(book).id for _ in range(3)]
    url = book.engine.url.render_as_string(hide_password=False)
    book.close()  # no connection is carried into another process
    context = multiprocessing.get_context("fork")
    racers = [context.Process(target=_race, args=(str(book.home), url, ids, seed)) for seed in range(3)]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join(60)
        assert racer.exitcode == 0
    for id in ids:
        events, job = book.events(id), book.job(id)
        assert all(a.became == b.was and b.became in ARROWS[a.became] for a, b in pairwise(events))
        assert events[-1].became == job.state
        assert sum(event.became in ENDED for event in events) <= 1
        assert sum(event.became == "RUNNING" for event in events) == job.attempt


def test_states_survive_a_restart(book: Book) -> None:
    from assay.server.book import Book

    jobs = [audit(book) for _ in range(3)]
    book.begin(jobs[0].id, "w")
    book.cancel(jobs[1].id)
    before = book.jobs()
    book.close()
    again = Book(book.home, book.url)
    assert again.jobs() == before
    again.close()


# Room


def test_a_burst_from_many_threads_is_all_there_once(book: Book) -> None:
    """Each with its folder, its row and its place in the queue: none lost, none doubled."""
    made: list[str] = []
    threads = [
        threading.Thread(target=lambda n=n: made.extend(audit(book, title=f"{n}.{i}").id for i in range(5)))
        for n in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(made)) == 30
    assert {job.id for job in book.jobs(limit=100)} == set(made) == {p.name for p in (book.home / "jobs").iterdir()}
    queued = book.queue.open().list_workflows(queue_name="jobs", status="ENQUEUED")
    assert sorted(workflow.workflow_id for workflow in queued) == sorted(made)


def test_the_queue_of_one_owner_has_an_end_also_in_a_race(book: Book) -> None:
    from assay.server.book import Quota
    from assay.server.errors import Full

    book.quota, full = Quota(queued=4, free=0), []

    def push() -> None:
        for _ in range(3):
            try:
                audit(book, "ada")
            except Full as e:
                full.append(str(e))

    threads = [threading.Thread(target=push) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(book.jobs("ada")) == 4
    assert len(full) == 8
    assert full[0].startswith("4 of your jobs wait or run")
    assert len(list((book.home / "jobs").iterdir())) == 4
    audit(book, "bob")  # whose share is his own
    book.cancel(book.jobs("ada")[0].id)
    audit(book, "ada")


def test_disk_is_shared_out_and_a_full_one_is_told(
    sqlite: Book, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from assay.server.book import Quota
    from assay.server.errors import Full

    sqlite.quota = Quota(disk=5000, free=0)
    (tmp_path / "s.toml").write_text("#" * 3000)
    first = sqlite.submit("ada", "audit", "x", {"standards": "s.toml"}, {"s.toml": tmp_path / "s.toml"})
    assert sqlite.bytes_of("ada") > 3000
    with pytest.raises(Full, match="Your jobs hold .* Remove some"):
        sqlite.submit("ada", "audit", "x", {"standards": "s.toml"}, {"s.toml": tmp_path / "s.toml"})
    assert not sqlite.remove(first.id)  # it has not ended
    sqlite.cancel(first.id)
    assert sqlite.remove(first.id)
    assert sqlite.job(first.id) is None
    assert not first.folder.exists()
    sqlite.submit("ada", "audit", "x", {"standards": "s.toml"}, {"s.toml": tmp_path / "s.toml"})
    sqlite.quota = Quota(free=10**18)
    with pytest.raises(Full, match="The disk is full"):
        audit(sqlite)
    sqlite.quota = Quota(free=0)

    def no_room(*anything: object, **more: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", no_room)
    with pytest.raises(Full, match="could not be written: No space left on device"):
        audit(sqlite)
    assert len(sqlite.jobs()) == len(list((sqlite.home / "jobs").iterdir())) == 1


def test_a_database_that_is_gone_is_told_and_nothing_half_stays(tmp_path: Path) -> None:
    from assay.server.book import Book, Quota
    from assay.server.errors import Gone

    book = Book(tmp_path / "w", quota=Quota(free=0))
    job = audit(book)
    book.close()
    away = tmp_path / "away.sqlite"
    shutil.move(tmp_path / "w" / "book.sqlite", away)
    with pytest.raises(Gone, match="The workbench's database cannot be used: .*; see that it runs"):
        book.jobs()
    with pytest.raises(Gone):
        audit(book)
    assert [path.name for path in (tmp_path / "w" / "jobs").iterdir()] == [job.id]
    assert book.log(job.id) == ([], 0)  # a log needs no database
    book.close()
    shutil.move(away, tmp_path / "w" / "book.sqlite")
    assert book.job(job.id) == job


@pytest.mark.parametrize("url", ["nonsense", "mysql://x/y", "postgresql://host", "sqlite://"])
def test_an_address_that_is_none(tmp_path: Path, url: str) -> None:
    from assay.errors import AssayError
    from assay.server.book import Book

    with pytest.raises(AssayError, match="postgresql://USER@HOST/NAME"):
        Book(tmp_path, url)


def test_a_password_is_not_told(tmp_path: Path) -> None:
    from assay.server.book import Book
    from assay.server.errors import Gone

    with pytest.raises(Gone) as e:
        Book(tmp_path, "postgresql://assay:secret@127.0.0.1:1/assay")
    assert "secret" not in str(e.value)


def test_a_folder_without_a_job_is_swept_up_when_it_is_old(sqlite: Book) -> None:
    job = audit(sqlite)
    old, new = sqlite.home / "jobs" / ("o" * 22), sqlite.home / "jobs" / ("n" * 22)
    for folder in (old, new):
        folder.mkdir()
    for folder in (old, job.folder):
        os.utime(folder, (1, 1))
    sqlite.sweep()
    assert [folder.exists() for folder in (old, new, job.folder)] == [False, True, True]


# The rest of a page


def test_the_log_is_read_by_whole_lines_from_where_one_was(sqlite: Book, monkeypatch: pytest.MonkeyPatch) -> None:
    job = audit(sqlite)
    log = job.folder / "log.txt"
    log.write_bytes("one\ntw\xe9\nhal".encode("latin-1"))
    lines, at = sqlite.log(job.id)
    assert (lines, at) == (["one", "tw�"], 8)
    assert sqlite.log(job.id, at) == ([], 8)
    with open(log, "ab") as f:
        f.write(b"f\n")
    assert sqlite.log(job.id, at) == (["half"], 13)
    assert sqlite.log(job.id, 10**9) == ([], 10**9)
    monkeypatch.setattr("assay.server.folders.READ_AT_ONCE", 4)
    log.write_bytes(b"abcdefgh\n")
    assert sqlite.log(job.id) == (["abcd"], 4)  # a line without an end cannot hold the reader up


def test_again_has_the_same_settings_and_files(sqlite: Book, tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text("# mine")
    job = sqlite.submit("ada", "audit", "x", {"standards": "s.toml", "seed": 4}, {"s.toml": tmp_path / "s.toml"})
    sqlite.cancel(job.id)
    again = sqlite.again(job.id, "bob")
    assert again.id != job.id
    assert (again.owner, again.kind, again.title, again.settings) == ("bob", "audit", "x", job.settings)
    assert (again.folder / "files" / "s.toml").read_text() == "# mine"
    sqlite.remove(job.id)
    assert (again.folder / "files" / "s.toml").read_text() == "# mine"


def test_a_share_opens_one_job_until_it_is_taken_back(sqlite: Book) -> None:
    job, other = audit(sqlite), audit(sqlite)
    token, second = shares.share(sqlite, job.id), shares.share(sqlite, job.id)
    assert shares.shared(sqlite, token).id == job.id
    assert shares.tokens(sqlite, job.id) == [token, second]
    assert shares.tokens(sqlite, other.id) == []
    assert shares.unshare(sqlite, token)
    assert not shares.unshare(sqlite, token)
    assert shares.shared(sqlite, token) is None
    assert shares.shared(sqlite, second).id == job.id
    sqlite.cancel(job.id)
    sqlite.remove(job.id)
    assert shares.shared(sqlite, second) is None


def test_workers_are_seen_stopped_and_forgotten(book: Book) -> None:
    job = audit(book)
    roll.greet(book, "w" * 22, "host", os.getpid())
    book.begin(job.id, "w" * 22)
    (worker,) = roll.workers(book)
    assert (worker.id, worker.host, worker.pid, worker.job, worker.stopping) == (
        "w" * 22,
        "host",
        os.getpid(),
        job.id,
        False,
    )
    time.sleep(0.05)
    assert roll.workers(book)[0].silent > 0.04

    def seen() -> float:
        with book.engine.connect() as c:
            return float(c.scalar(sa.text("SELECT seen FROM workers")))

    before = seen()
    assert roll.beat(book, "w" * 22) is False
    assert seen() > before + 0.04
    assert roll.stop(book, "w" * 22)
    assert not roll.stop(book, "v" * 22)
    assert roll.beat(book, "w" * 22) is True
    roll.part(book, "w" * 22)
    assert roll.beat(book, "w" * 22) is None
    assert roll.workers(book) == []


def test_draining_is_known_to_every_process(book: Book) -> None:
    from assay.server.book import Book

    other = Book(book.home, book.url)
    assert not other.draining()
    book.drain(True)
    assert other.draining()
    other.drain(False)
    assert not book.draining()
    other.close()
