"""What a sceptic tries on the pages: to see more than is theirs, to fill the disk, to have one break without a word."""

from __future__ import annotations

import shutil

import pytest
import sqlalchemy as sql
from visitor import Browser, leave_run

from assay.errors import AssayError
from assay.server import shares

PASSWORD = "correct horse"


@pytest.fixture
def app(bench):
    made = bench(accounts=True)
    for name, role in (("ada", "user"), ("bob", "user"), ("olga", "operator")):
        made.state.desk.accounts.add(name, PASSWORD, role)
    return made


def signed_in(app, name):
    made = Browser(app)
    assert made.sign_in(name).status_code == 303
    return made


# Seeing more than is theirs.


@pytest.mark.parametrize("by", ["taking the link back", "signing out"])
def test_who_follows_a_page_no_longer_does_so_when_it_is_not_theirs_any_more(app, book, submitted, monkeypatch, by):
    from assay.server import live

    monkeypatch.setattr(live, "EVERY", 0.01)
    monkeypatch.setattr(live, "LONGEST", 1.0)
    job, ada = submitted("one", "RUNNING", owner="ada"), signed_in(app, "ada")
    token, session, looked = shares.share(book, job.id), ada.client.cookies["assay"], book.log

    def log(id, after=0):  # what happens while somebody follows
        shares.unshare(book, token) if "link" in by else app.state.desk.accounts.sign_out(session)
        return looked(id, after)

    monkeypatch.setattr(book, "log", log)
    told = ada.get(f"/shared/{token}/events" if "link" in by else f"/jobs/{job.id}/events").text
    assert told.endswith("event: end\ndata: {}\n\n")


def test_a_removed_accounts_name_and_its_invitation_open_nothing_again(app, submitted):
    known, seal = app.state.desk.accounts, app.state.desk.seal
    word = seal.invitation("carl", "user")
    carl = Browser(app)
    assert carl.post(f"/join/{word}", password=PASSWORD, again=PASSWORD).status_code == 303
    job = submitted("private", "SUCCESS", owner="carl")
    known.remove("carl")
    assert [user.name for user in known.users()] == ["ada", "bob", "olga"]
    assert known.user("carl") is None
    assert Browser(app).sign_in("carl").status_code == 403
    again = Browser(app)
    answer = again.post(f"/join/{word}", password=PASSWORD, again=PASSWORD)
    assert answer.status_code == 422
    assert "choose another name" in answer.text
    assert again.get(f"/jobs/{job.id}").status_code == 303  # to the sign-in
    for ask in (lambda: known.change("carl", role="user"), lambda: known.remove("carl")):
        with pytest.raises(AssayError, match="no account 'carl'"):
            ask()


def test_a_step_that_only_its_own_page_takes_is_no_form(alone, book):
    from assay.server import kinds

    hidden = [name for name in kinds.names() if not kinds.load(name).listed]
    assert hidden
    for name in hidden:
        assert alone.get(f"/new/{name}").status_code == 404
        assert alone.post("/jobs", kind=name, study="A" * 22, do="analyse").status_code == 404
    assert book.jobs() == []


def test_who_has_a_link_is_not_told_of_machines(app, book, submitted):
    job = submitted("one", "RUNNING", owner="ada")
    book.hand_back(job.id, 1, "its worker, process 4711 on a-host, was lost")
    page = Browser(app).get(f"/shared/{shares.share(book, job.id)}")
    assert page.status_code == 200
    assert "a-host" not in page.text
    assert "a-host" in signed_in(app, "ada").get(f"/jobs/{job.id}").text


def test_what_was_compared_goes_with_its_jobs(alone, submitted, said, book):
    jobs = [submitted(title, "SUCCESS") for title in ("one", "two")]
    for job in jobs:
        leave_run(job)
    cache = book.home / "cache"

    def draw(words, folder, seconds):
        with open(words[words.index("--page") + 1], "w") as page:
            page.write("<p>secret")
        return 0, "", ""

    alone.client.app.state.desk.children._run = draw
    address = f"/compare/difference?job={jobs[0].id}&job={jobs[1].id}"
    assert "secret" in alone.get(address).text
    assert any("secret" in path.read_text() for path in cache.rglob("*.html"))
    alone.post(f"/jobs/{jobs[0].id}/remove")
    assert not any("secret" in path.read_text() for path in cache.rglob("*.html"))


# Filling the disk.


def test_files_that_wait_count_for_their_owner(app, book):
    book.quota = type(book.quota)(free=0, disk=1000)
    ada, bob = signed_in(app, "ada"), signed_in(app, "bob")
    table = {"data": ("table.csv", b"a,b\n" + 100 * b"1,2\n", "text/csv")}
    says = [ada.post(f"/drafts/{letter * 22}/audit/data", _files=table).text for letter in "ABC"]
    assert "table.csv" in says[0]
    assert "alarm" not in says[1]
    assert "alarm" in says[2]
    assert "remove" in says[2].lower()
    assert not list((book.home / "uploads" / ("C" * 22) / "files").iterdir())
    assert "alarm" not in bob.post(f"/drafts/{'D' * 22}/audit/data", _files=table).text
    job = book.submit("ada", "audit", "x", {"data": "t.csv", "subject": "hiring-mlp"}, {"t.csv": book.home / "secret"})
    waits = app.state.desk.uploads.waiting("ada")
    assert waits == 808
    assert ada.get(f"/new/audit?from={job.id}").status_code == 200
    assert app.state.desk.uploads.waiting("ada") == waits  # it is the job's file, which counts already


def test_a_directory_of_millions_is_not_even_read(tmp_path, monkeypatch):
    """Each entry is a hundred bytes of archive and ten times that in memory, before any can be counted."""
    import io
    import zipfile

    from assay.server import uploads

    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as made:
        for n in range(300):
            made.writestr(f"{n}.png", b"x")
    monkeypatch.setattr(uploads, "DIRECTORY", 10_000)
    monkeypatch.setattr(zipfile, "ZipInfo", lambda *anything: pytest.fail("it was read"))
    with pytest.raises(AssayError, match="holds too many files; send a table instead"):
        uploads.Uploads(tmp_path).take("", "A" * 22, "many.zip", io.BytesIO(held.getvalue()))


# Breaking without a word.


def test_two_files_that_come_at_the_same_time_are_both_kept(tmp_path):
    import io

    from assay.server.uploads import Uploads

    uploads = Uploads(tmp_path)

    class Slow(io.BytesIO):
        def read(self, *how):
            if not self.tell():  # the other comes and is done meanwhile
                uploads.take("", "A" * 22, "other.csv", io.BytesIO(b"c,d\n3,4\n"))
            return super().read(*how)

    uploads.take("", "A" * 22, "slow.csv", Slow(b"a,b\n1,2\n"))
    assert sorted(uploads.files("", "A" * 22)) == ["other.csv", "slow.csv"]
    assert not list((tmp_path / "uploads" / ("A" * 22)).glob("half-*"))


@pytest.mark.parametrize("name", ["a" * 5000, "%00", "a%00b", "%2e%2e/log.txt", "..%2flog.txt", "%ff%fe", "run/" * 400])
def test_a_file_of_no_possible_name_is_not_found(alone, submitted, name):
    job = submitted("one", "SUCCESS")
    for room in ("files", "report"):
        assert alone.get(f"/jobs/{job.id}/{room}/{name}").status_code == 404


def test_a_job_whose_folder_is_gone_says_so(alone, submitted, book):
    job = submitted("one", "SUCCESS")
    shutil.rmtree(job.folder)
    assert alone.get(f"/jobs/{job.id}").status_code == 200
    assert alone.get(f"/jobs/{job.id}/log.txt").status_code == 404
    assert alone.get(f"/jobs/{job.id}/bundle.zip").status_code == 200
    answer = alone.post(f"/jobs/{job.id}/again")
    assert answer.status_code == 400
    assert "gone" in answer.text
    assert alone.post(f"/jobs/{job.id}/remove").status_code == 303
    assert book.job(job.id) is None


def test_a_database_that_is_gone_is_told_also_where_people_sign_in(app, monkeypatch):
    ada = signed_in(app, "ada")

    def gone(*anything, **more):
        raise sql.exc.OperationalError("SELECT secret", {}, Exception("no connection"))

    monkeypatch.setattr(app.state.desk.accounts, "who", gone)
    answer = ada.get("/jobs")
    assert answer.status_code == 503
    assert "database" in answer.text
    assert "secret" not in answer.text


def test_what_broke_is_told_under_the_same_policy(alone, book, monkeypatch):
    def broken(*anything, **more):
        raise RuntimeError

    monkeypatch.setattr(book, "jobs", broken)
    answer = alone.get("/jobs")
    assert answer.status_code == 500
    assert answer.headers["content-security-policy"] == alone.get("/help").headers["content-security-policy"]
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_no_room_for_what_comes_in_is_told(alone, book, monkeypatch):
    from starlette.datastructures import UploadFile

    async def full(self, data):
        raise OSError(28, "No space left on device")

    token = alone.token()
    monkeypatch.setattr(UploadFile, "write", full)
    answer = alone.client.post(
        "/jobs", data={"csrf": token, "kind": "audit"}, files={"data": ("t.csv", b"a,b\n1,2\n", "text/csv")}
    )
    assert answer.status_code == 507
    assert "No space left" in answer.text
    assert book.jobs() == []


def test_many_sign_in_and_up_from_one_address_but_nobody_guesses(app):
    app.state.desk.guesses.first = 300.0  # however slow the machine is
    for n in range(12):  # a class
        who = Browser(app)
        name = f"pupil{n}"
        assert who.post("/sign-up", name=name, password=PASSWORD, again=PASSWORD).status_code == 303
        assert Browser(app).sign_in(name).status_code == 303
    codes = [Browser(app).sign_in("ada", f"wrong password {n}").status_code for n in range(12)]
    assert codes == [403] * 10 + [429] * 2


def test_what_comes_drop_by_drop_is_left(bench, monkeypatch):
    """A form of which nothing more comes, or too little a second, holds nobody up; one that comes at once is taken."""
    import asyncio
    from concurrent.futures import ThreadPoolExecutor

    from assay.server import safety

    monkeypatch.setattr(safety, "SILENCE", 0.2)
    monkeypatch.setattr(safety, "FORM_SECONDS", 0.5)
    app = bench()

    def posted(drops, pause):
        sent = []

        async def run():
            left = list(drops)

            async def receive():
                if not left:
                    await asyncio.sleep(30)
                await asyncio.sleep(pause)
                return {"type": "http.request", "body": left.pop(0), "more_body": True}

            async def send(message):
                sent.append(message)

            headers = [(b"host", b"testserver"), (b"content-type", b"application/x-www-form-urlencoded"),
                       (b"content-length", b"1000")]  # fmt: skip
            scope = {"type": "http", "http_version": "1.1", "method": "POST", "path": "/sign-in",
                     "raw_path": b"/sign-in", "query_string": b"", "headers": headers, "scheme": "http",
                     "server": ("testserver", 80), "client": ("192.0.2.1", 1), "root_path": ""}  # fmt: skip
            began = asyncio.get_running_loop().time()
            await app(scope, receive, send)
            return asyncio.get_running_loop().time() - began

        with ThreadPoolExecutor(1) as apart:  # in this thread a browser's loop may run
            took = apart.submit(lambda: asyncio.run(asyncio.wait_for(run(), 20))).result()
        return sent[0]["status"], took

    status, took = posted([], 0.0)
    assert status == 408
    assert took < 15
    status, took = posted([b"x"] * 1000, 0.1)  # never silent, and never done
    assert status == 408
    assert took < 15
