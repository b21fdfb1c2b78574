"""A participant's page: sign-up, fifteen knobs, one try at a time, the server's clock, and no test before the end."""

from __future__ import annotations

import re
import threading
import time
from dataclasses import replace

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("dbos")

import sqlalchemy as sa
from fastapi.testclient import TestClient

from assay.errors import AssayError
from assay.jobs import study as work
from assay.run import silent
from assay.server import joined, kinds
from assay.server.app import make_app
from assay.server.book import Book
from assay.server.pages.study import drawing
from assay.server.tables import JOINED
from assay.store.studies import Study, StudyFolder
from assay.subjects.digits_mlp import build

CHOICE = {"epochs": "2", "batch-size": "64", "loss": "cross-entropy", "optimiser": "adam", "learning-rate": "1.0e-2"}


class Bench:
    """A workbench with one study for people, made without a worker; what a worker would do is `worked`."""

    def __init__(self, home) -> None:
        self.book = Book(home)
        self.browser = TestClient(make_app(self.book), base_url="http://localhost")
        self.job = self.book.submit("", "study", "Ours", {"who": "people", "minutes": 5.0})
        self.subject = build()
        study = Study(minutes=5.0, seeds=(1, 2), most_epochs=5)
        self.folder = work.new_study(self.job.folder / "run", study, self.subject)
        self.at = f"/studies/{self.job.id}"

    def post(self, address, **form):
        token = re.search(r'name="csrf" value="([^"]+)"', self.browser.get(self.at).text)[1]
        return self.browser.post(f"{self.at}{address}", data={**form, "csrf": token}, follow_redirects=False)

    def join(self, **form):
        answer = self.post("/join", **{"months": "12", **form})
        assert answer.status_code == 303, answer.text
        return answer.headers["location"].rpartition("/")[2]

    def worked(self, id):
        """Run the command of the newest job that waits, in this process."""
        waiting = next(j for j in self.book.jobs(None) if j.kind == "tuning" and j.settings["participant"] == id)
        words = kinds.load("tuning").argv(waiting.settings, waiting.folder)
        assert words[:2] in (["study", "try"], ["study", "finish"])
        assert words[2] == str(self.folder.path)
        trainer = work.Trainer(work.bench(self.subject, self.folder.study), self.folder.study)
        if words[1] == "try":
            return work.run_try(self.folder, words[-1], int(words[4]), trainer)
        return work.finish(self.folder, words[-1], int(words[4]), trainer, silent)


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    return Bench(tmp_path_factory.mktemp("bench"))


def test_whoever_made_a_study_for_people_comes_to_it_from_its_job(tmp_path):
    book = Book(tmp_path)
    browser = TestClient(make_app(book), base_url="http://localhost")
    for who, leads in (("people", True), ("simulated", False)):
        job = book.submit("", "study", "Ours", {"who": who})
        assert "/studies/" not in browser.get(f"/jobs/{job.id}").text  # it is not made yet
        book.begin(job.id, "worker")
        book.finish(job.id, 1, "SUCCESS")
        assert (f'href="/studies/{job.id}"' in browser.get(f"/jobs/{job.id}").text) == leads


def test_the_whole_way_of_a_participant_and_no_test_accuracy_before_its_end(bench):
    first = bench.browser.get(bench.at).text
    assert "1,040 training inputs" in " ".join(first.split()) or "1,040" in first
    assert "digits" not in first  # neither data nor network is named
    id = bench.join(background="<b>biology</b>")
    page = bench.browser.get(f"{bench.at}/people/{id}").text
    assert all(f'name="{k}"' in page for k in ("epochs", "rho", "lambda", "beta2", "why-beta2"))
    assert page.count('data-read-by="') == 15
    assert "digits" not in page
    assert bench.post(f"/people/{id}/try", **CHOICE, **{"why-epochs": "1"}).status_code == 303
    running = bench.browser.get(f"{bench.at}/people/{id}").text
    assert "Try 1 is training" in running
    assert 'id="cancel-try"' in running
    refused = bench.post(f"/people/{id}/try", **CHOICE)
    assert refused.status_code == 422
    assert "Another try is running" in refused.text
    done = bench.worked(id)
    assert done.configuration["learning-rate"] == 0.01
    assert done.reasons == {"epochs": 1}
    after = bench.browser.get(f"{bench.at}/people/{id}").text
    assert f"{100 * done.accuracy:.1f} %" in after
    assert "test inputs rightly" not in after
    assert bench.post(f"/people/{id}/finish", **{"try": "1"}).status_code == 303
    waiting = bench.browser.get(f"{bench.at}/people/{id}").text
    assert "is trained with 2 seeds now" in waiting
    assert "test inputs rightly" not in waiting
    assert bench.post(f"/people/{id}/finish", **{"try": "1"}).status_code == 303  # pressed twice, queued once
    assert sum(j.settings.get("do") == "finish" for j in bench.book.jobs(None)) == 1
    ended = bench.worked(id)
    last = bench.browser.get(f"{bench.at}/people/{id}").text
    assert f"{100 * sum(ended.test) / 2:.1f} %" in last
    assert "The next try" not in last
    late = bench.post(f"/people/{id}/try", **CHOICE)
    assert late.status_code == 422
    assert "was named as final" in late.text


def test_the_time_is_kept_by_the_server(bench, monkeypatch):
    id = bench.join()
    bench.post(f"/people/{id}/try", **CHOICE)
    bench.worked(id)
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 301)
    over = bench.post(f"/people/{id}/try", **CHOICE)
    assert over.status_code == 422
    assert "The 5 minutes are over" in over.text
    assert "Your time is over" in over.text
    assert bench.post(f"/people/{id}/finish", **{"try": "1"}).status_code == 303


def test_a_try_can_be_cancelled_whether_or_not_somebody_trains_it(bench):
    id = bench.join()
    bench.post(f"/people/{id}/try", **CHOICE)
    bench.post(f"/people/{id}/cancel")
    assert bench.folder.participant(id).tries[0].state == "running"  # its job waits, and will see it
    assert bench.worked(id).state == "cancelled"
    bench.post(f"/people/{id}/try", **CHOICE)
    job = bench.folder.job_of(id, 2)
    bench.book.cancel(job)  # the operator stopped the job
    bench.post(f"/people/{id}/cancel")
    assert [t.state for t in bench.folder.participant(id).tries] == ["cancelled", "cancelled"]
    assert "none" in bench.browser.get(f"{bench.at}/people/{id}").text


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"epochs": ""}, "epochs has no default and was not given"),
        ({"epochs": "6"}, "epochs &#39;6&#39; is out of its range; give a whole number from 1 to 5"),
        ({"learning-rate": "fast"}, "learning-rate &#39;fast&#39; is out of its range"),
        ({"optimiser": "<i>"}, "optimiser &#39;&lt;i&gt;&#39; is none"),
        ({"why-rho": "9"}, "The reason &#39;9&#39; of rho is none"),
    ],
)
def test_what_is_wrong_is_said_and_what_was_typed_stays(bench, change, says):
    id = bench.join()
    answer = bench.post(f"/people/{id}/try", **{**CHOICE, "batch-size": "77", **change})
    assert answer.status_code == 422
    assert says in answer.text
    assert 'value="77"' in answer.text
    assert not bench.folder.participant(id).tries


def test_people_are_asked_for_months_and_nothing_else_is_taken(bench):
    for months, says in (("many", "is no number"), ("-1", "cannot be"), ("", "is no number")):
        answer = bench.post("/join", months=months, background="<script>")
        assert answer.status_code == 422
        assert says in answer.text
        assert "<script>" not in answer.text


def test_a_sign_up_that_is_sent_twice_is_one_participant(bench):
    """A double click, or a page sent again by its browser; whoever goes back and changes it is another."""
    word, other = (re.search(r'name="once" value="([^"]+)"', bench.browser.get(bench.at).text)[1] for _ in range(2))
    before = len(bench.folder.people())
    first = bench.join(once=word, background="biology")
    assert bench.join(once=word, background="biology") == first
    assert bench.join(once=other, background="biology") != first
    assert bench.join(once=word, background="law") != first
    assert len(bench.folder.people()) == before + 3


def test_a_sign_up_is_one_participant_whichever_server_has_it(book, monkeypatch):
    """Two servers over one database, four forms each sent four times at once."""
    job = book.submit("", "study", "Ours", {"who": "people"})
    folder = StudyFolder.make(job.folder / "run", Study())
    servers, found = [book, Book(book.home, book.url)], []
    words = [letter * 22 for letter in "abcd"]

    def send(server, word):
        start.wait()
        found.append((word, joined.join(server, job.id, folder, 1.0, "", once=word).id))

    start = threading.Barrier(16)
    threads = [threading.Thread(target=send, args=(servers[n % 2], word)) for n in range(4) for word in words]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    servers[1].close()
    assert len(found) == 16
    assert len(set(found)) == len({id for _, id in found}) == len(folder.people()) == 4
    monkeypatch.setattr(joined, "MOST_PEOPLE", 4)
    assert ("a" * 22, joined.join(book, job.id, folder, 1.0, "", once="a" * 22).id) in found  # it is in already
    with pytest.raises(AssayError, match="4 people take part already"):
        joined.join(book, job.id, folder, 1.0, "", once="e" * 22)
    book.cancel(job.id)
    assert book.remove(job.id)
    with book.reading() as c:
        assert c.execute(sa.select(JOINED)).all() == []


def test_of_a_sign_up_that_the_database_did_not_take_nothing_stays(sqlite, monkeypatch):
    from assay.server.errors import Gone

    job = sqlite.submit("", "study", "Ours", {"who": "people"})
    folder = StudyFolder.make(job.folder / "run", Study())
    with sqlite.writing() as c:
        c.execute(sa.text("DROP TABLE joined"))
    monkeypatch.setattr(joined, "_known", lambda *given: None)
    with pytest.raises(Gone):
        joined.join(sqlite, job.id, folder, 1.0, "", once="a" * 22)
    assert folder.people() == []


def test_addresses_that_lead_nowhere_and_forged_forms(bench):
    assert bench.browser.get("/studies/nothing").status_code == 404
    assert bench.browser.get(f"{bench.at}/people/{'A' * 22}").status_code == 404
    assert bench.browser.get(f"{bench.at}/people/..%2F..%2Fetc").status_code == 404
    simulated = bench.book.submit("", "study", "programs", {})
    assert bench.browser.get(f"/studies/{simulated.id}").status_code == 404
    young = bench.book.submit("", "study", "young", {"who": "people"})
    assert "not made yet" in bench.browser.get(f"/studies/{young.id}").text
    assert bench.browser.post(f"{bench.at}/join", data={"months": "1"}).status_code == 403
    id = bench.join()
    assert bench.post(f"/people/{id}/finish", **{"try": "../1"}).status_code == 422
    assert bench.post(f"/people/{id}/finish", **{"try": "3"}).status_code == 422


def test_the_owner_analyses_by_a_job(bench):
    bench.join()
    answer = bench.post("/analyse")
    assert answer.status_code == 303
    job = bench.book.job(answer.headers["location"].rpartition("/")[2])
    assert kinds.load("tuning").argv(job.settings, job.folder) == ["study", "analyse", str(bench.folder.path)]


def test_a_full_queue_leaves_no_try_that_waits_for_ever(bench, monkeypatch):
    from assay.server.errors import Full

    def full(*given, **more):
        raise Full("The queue is full.")

    id = bench.join()
    monkeypatch.setattr(bench.book, "submit", full)
    assert bench.post(f"/people/{id}/try", **CHOICE).status_code == 507
    assert bench.folder.participant(id).tries[0].state == "cancelled"


def test_the_forms_words_are_those_of_the_command_line(tmp_path):
    kind = kinds.load("study")
    words = kind.argv({"who": "simulated", "expert": 2, "medium": 0, "novice": 1, "tries": 3}, tmp_path)
    assert words[:3] == ["study", "run", "digits-mlp"]
    assert words[words.index("--tuners") + 1] == "expert=2,novice=1"
    assert words[words.index("--out") + 1] == str(tmp_path / "run")
    new = kind.argv({"who": "people", "minutes": 30.0, "as_published": True}, tmp_path)
    assert new[:4] == ["study", "new", str(tmp_path / "run"), "digits-mlp"]
    assert "--as-published" in new
    assert kind.check({"subject": "../x.py:f"}) == [
        "The model to tune: there is no '../x.py:f'; take one that comes with Assay."
    ]
    assert kind.check({"expert": 0, "medium": 0, "novice": 0})
    assert kind.check({"minutes": 0}) == ["Minutes that a person has: 0 is out of range; give from 0.1 to 10080."]
    assert not kind.check({})
    assert not kinds.load("tuning").listed
    assert kinds.load("tuning").check({"study": "../../x", "do": "analyse"})
    assert kinds.load("tuning").check({"study": "A" * 22, "do": "try"})


def test_losses_are_drawn_from_two_on_and_whatever_is_broken_is_not():
    assert drawing([[1, 2.0]], []) is None
    assert drawing("x", None) is None
    found = drawing([[1, 2.0], [2, 1.0]], [1.5])
    assert found["batches"] == "300.0,0.0 600.0,85.0"
    assert found["epoch"] == 1.5


def test_two_who_submit_at_once_get_one_try(bench):
    id = bench.join()
    folder = StudyFolder(bench.folder.path, replace(bench.folder.study))
    folder.submit(id, CHOICE, {}, now=time.time())
    with pytest.raises(AssayError, match="Another try is running"):
        bench.folder.submit(id, CHOICE, {}, now=time.time())
