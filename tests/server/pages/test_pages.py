"""The pages: what they show, what they refuse, and that nothing of a stranger's becomes more than text."""

from __future__ import annotations

import html
import io
import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from visitor import Browser, leave_run

HOSTILE = """</title><script>alert('x')</script><img src=x onerror="alert(1)"> ' " & {{ 7*7 }}"""
PAGES = ("/", "/new/audit", "/new/cure", "/new/rank", "/jobs", "/help", "/operator", "/claims", "/subjects",
         "/questions", "/subjects/fashion-cnn", "/nothing")  # fmt: skip


def of(answer, id):
    return answer.headers["location"].endswith(id)


# Every page


def test_every_page_keeps_the_policy_and_asks_for_nothing_elsewhere(alone, submitted):
    job = submitted("one", "SUCCESS")
    leave_run(job)
    other = submitted("two", "RUNNING")
    for path in (*PAGES, f"/jobs/{job.id}", f"/jobs/{other.id}", f"/compare?job={job.id}&job={other.id}"):
        page = alone.get(path)
        assert page.status_code == (404 if path == "/nothing" else 200), path
        policy = page.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert page.headers["x-content-type-options"] == "nosniff"
        assert not re.search(r"<script(?![^>]* src=\"/static/)", page.text), path
        assert not re.search(r"<style|\sstyle=|\son[a-z]+=|javascript:", page.text), path
        for address in re.findall(r'(?:src|href|action|hx-get|hx-post|data-live)="([^"#]+)', page.text):
            assert address.startswith("/"), (path, address)
            assert not address.startswith("//")


def test_the_server_needs_no_torch():
    code = "import sys, assay.server.app; print([m for m in ('torch', 'matplotlib', 'pyarrow') if m in sys.modules])"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert told.stdout.strip() == "[]"


def test_shipped_files_are_kept_for_good_and_no_other_is_given(alone):
    sheet = re.search(r'href="(/static/bench.css[^"]+)"', alone.get("/help").text)[1]
    assert "immutable" in alone.get(sheet).headers["cache-control"]
    assert alone.get("/static/report.css").text.startswith(":root")
    for name in ("app.py", "..%2fapp.py", "%2e%2e/app.py", "bench.html"):
        assert alone.get(f"/static/{name}").status_code == 404


def test_html_in_a_name_stays_text(alone, submitted, book):
    job = submitted(HOSTILE, "FAILURE", reason=HOSTILE)
    (job.folder / "log.txt").write_text(f"{HOSTILE}\n")
    leave_run(job)
    for path in (
        "/jobs",
        f"/jobs/{job.id}",
        f"/new/audit?from={job.id}",
        f"/compare?job={job.id}&job={submitted().id}",
    ):
        text = alone.get(path).text
        assert "<script>alert" not in text, path
        assert "<img src=x" not in text, path
        assert "49" not in re.findall(r"&amp; (\S+)", text), path
        if path.startswith("/jobs"):
            assert "&lt;script&gt;alert(&#39;x&#39;)" in text, path
    assert "&lt;b&gt;right" in alone.get(f"/jobs/{job.id}").text  # what a model's process wrote


# Submitting


def test_a_job_is_submitted_as_the_form_says(alone, book):
    answer = alone.post("/jobs", kind="audit", subject="digits-mlp", budget="10m", seed="7", timeout="1.0e+2",
                        title="My  net", sensitive="sex\nage<25")  # fmt: skip
    assert answer.status_code == 303
    (job,) = book.jobs()
    assert of(answer, job.id)
    assert (job.title, job.kind, job.state) == ("My net", "audit", "QUEUED")
    wanted = {"subject": "digits-mlp", "budget": "10m", "seed": 7, "timeout": 100.0, "sensitive": ["sex", "age<25"]}
    assert {name: job.settings[name] for name in wanted} == wanted
    page = alone.get(f"/jobs/{job.id}").text  # settings and name are not swapped when they are read back
    assert "<h1><bdi>My net</bdi></h1>" in page
    assert "--timeout 100.0" in page
    assert "--sensitive sex --sensitive &#39;age&lt;25&#39;" in page


def test_every_sample_is_one_click(alone, book):
    page = alone.get("/").text.partition('class="samples"')[2].partition("</section>")[0]
    forms = [dict(re.findall(r'name="([^"]+)" value="([^"]*)"', form)) for form in page.split("</form>")[:-1]]
    assert len(forms) >= 6
    for fields in forms:
        answer = alone.client.post("/jobs", data=fields)
        assert answer.status_code == 303, (fields, answer.text)
    assert len(book.jobs()) == len(forms)


def test_a_number_with_an_exponent_is_that_number(alone, book):
    """Printed 1.0e-3 beside the slider, the published server trained with 1.0."""
    images = {"data": ("i.zip", zipped({"1_a.png": PNG, "2_b.png": PNG}), "application/zip")}
    answer = alone.post("/jobs", images, kind="rank", held_back="2.0e-1", steps="3e3")
    assert answer.status_code == 303, answer.text
    (job,) = book.jobs()
    assert (job.settings["held_back"], job.settings["steps"]) == (0.2, 3000)
    from assay.server import kinds

    words = kinds.load("rank").argv(job.settings, job.folder)
    assert words[words.index("--held-back") + 1] == "0.2"
    assert words[words.index("--steps") + 1] == "3000"


def test_every_field_of_every_kind_has_its_control(alone):
    """Dropout was asked for and never passed on: what a form lacks, nobody can send; what it has, is a field."""
    from assay.server import kinds

    for name in (name for name in kinds.names() if kinds.load(name).listed):
        page = alone.get(f"/new/{name}")
        assert page.status_code == 200
        fields = {each.name for each in kinds.load(name).fields}
        named = re.findall(r'<(?:input|select|textarea)[^>]* name="([^"]+)"', page.text)
        controls = set(named)
        assert named.count("title") == 1, name
        assert fields <= controls, name
        assert controls - fields <= {"csrf", "kind", "draft", "title"}, name
        for each in kinds.load(name).fields:  # a default stands in its control
            if each.type in ("whole", "number") and each.default is not None:
                assert f'name="{each.name}" value="{each.default}"' in page.text


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"seed": "-1"}, "Seed: -1 is out of range"),
        ({"seed": "1.5"}, "Seed: 1.5 is no whole number"),
        ({"seed": "many"}, "Seed: &#39;many&#39; is no number"),
        ({"seed": "nan"}, "Seed: nan is no number"),
        ({"size": "99999"}, "out of range; give from 1 to 4096"),
        ({"budget": "never"}, "no time such as 10m"),
        ({"subject": "../../etc/passwd"}, "There is no model"),
        ({"device": "tpu"}, "there is no &#39;tpu&#39;"),
        ({"data": "secret.csv"}, "did not arrive"),
        ({"probe": "no-such-question"}, "there is no &#39;no-such-question&#39;"),
    ],
)
def test_what_is_wrong_is_told_and_nothing_is_stored(alone, book, fields, says):
    answer = alone.post(
        "/jobs", **{"kind": "audit", "subject": "fashion-cnn", "budget": "quick", "title": "kept"} | fields
    )
    assert answer.status_code == 422
    assert says in answer.text
    assert 'value="kept"' in answer.text  # the form keeps what was typed
    assert book.jobs() == []
    assert not list((book.home / "jobs").iterdir())


def test_what_is_missing_is_told(alone, book):
    assert "is needed" in alone.post("/jobs", kind="cure").text
    assert alone.post("/jobs", kind="no such kind").status_code == 404
    assert alone.post("/jobs").status_code == 404
    assert book.jobs() == []


def test_own_files_reach_the_job(alone, book, said):
    """Without a script: they come with the form."""
    files = {"model": ("my model.onnx", b"\x08\x07rest", "x"), "data": ("rows.csv", b"a,b\n1,2\n", "text/csv")}
    answer = alone.post("/jobs", files, kind="audit", budget="quick", target="b")
    assert answer.status_code == 303, answer.text
    (job,) = book.jobs()
    assert (job.settings["model"], job.settings["data"]) == ("my-model.onnx", "rows.csv")
    assert (job.folder / "files" / "rows.csv").read_bytes() == b"a,b\n1,2\n"
    assert job.title == "my-model.onnx"
    assert not list((book.home / "uploads").iterdir())  # taken
    again = alone.post(f"/jobs/{job.id}/again")
    newest = book.jobs()[0]
    assert of(again, newest.id)
    assert (newest.folder / "files" / "my-model.onnx").read_bytes() == b"\x08\x07rest"
    assert newest.settings == job.settings
    page = alone.get(f"/new/audit?from={job.id}").text  # to change something before it runs again
    assert 'value="my-model.onnx"' in page
    assert 'name="target" value="b"' in page


def sending(page: str) -> dict[str, str]:
    """The hidden fields of the form."""
    form = page[page.index('id="job-form"') :]
    return dict(re.findall(r'type="hidden" name="(draft|from)" value="([^"]+)"', form))


def test_a_form_that_is_sent_twice_is_one_job(alone, book):
    """A double click, or a page sent again by its browser."""
    page = alone.get("/new/audit").text
    draft, table = sending(page)["draft"], {"data": ("t.csv", b"a,b\n1,2\n", "text/csv")}
    given = {"kind": "audit", "draft": draft, "subject": "hiring-mlp", "target": "b"}
    first = alone.post("/jobs", table, **given)
    assert first.status_code == 303, first.text
    for files in (table, None):  # without a script the file comes again, with one it has been taken
        again = alone.post("/jobs", files, **given, **({} if files else {"data": "t.csv"}))
        assert (again.status_code, again.headers["location"]) == (303, first.headers["location"])
    assert len(book.jobs()) == 1
    assert not list((book.home / "uploads").iterdir())
    other = alone.post("/jobs", {"data": ("t.csv", b"a,b\n3,4\n", "text/csv")}, **given)  # another file of that name
    changed = alone.post("/jobs", **{**given, "subject": "fashion-cnn", "target": ""})  # gone back, and changed
    assert len({answer.headers["location"] for answer in (first, other, changed)}) == 3
    (job,) = [each for each in book.jobs() if first.headers["location"].endswith(each.id)]
    word = re.search(r'name="once" value="([^"]+)"', alone.get(f"/jobs/{job.id}").text)[1]
    new = [alone.post(f"/jobs/{job.id}/again", once=word).headers["location"] for _ in range(2)]
    assert new[0] == new[1] != first.headers["location"]
    assert alone.post(f"/jobs/{job.id}/again").headers["location"] != new[0]


def test_one_persons_form_is_not_anothers_job(bench, book):
    first = book.submit("ada", "audit", "x", {"subject": "fashion-cnn"}, once="A" * 22)
    assert book.submit("ada", "audit", "x", {"subject": "fashion-cnn"}, once="A" * 22).id == first.id
    assert book.submit("bob", "audit", "x", {"subject": "fashion-cnn"}, once="A" * 22).id != first.id
    book.cancel(first.id)
    book.remove(first.id)
    assert book.submit("ada", "audit", "x", {"subject": "fashion-cnn"}, once="A" * 22).id != first.id


def test_to_look_at_a_form_changes_nothing(alone, book):
    """A GET that links files could be made by any page that shows a picture from here."""
    answer = alone.post(
        "/jobs", {"data": ("t.csv", b"a,b\n1,2\n", "x")}, kind="audit", subject="hiring-mlp", target="b"
    )
    (job,) = book.jobs()
    for _ in range(3):
        page = alone.get(f"/new/audit?from={job.id}").text
    assert not list((book.home / "uploads").iterdir())
    form = sending(page)
    assert form["from"] == job.id
    assert '<input type="hidden" name="data" value="t.csv">' in page
    taken = alone.post(f"/drafts/{form['draft']}/audit/data", data="t.csv", drop="t.csv", **{"from": job.id})
    assert "t.csv" not in taken.text
    assert (job.folder / "files" / "t.csv").exists()
    kept = alone.post("/jobs", kind="audit", subject="hiring-mlp", target="a", data="t.csv",
                      **sending(alone.get(f"/new/audit?from={job.id}").text))  # fmt: skip
    assert kept.status_code == 303, kept.text
    newest = book.jobs()[0]
    assert (newest.id != job.id, (newest.folder / "files" / "t.csv").read_bytes()) == (True, b"a,b\n1,2\n")
    assert answer.status_code == 303


def test_files_are_dropped_one_by_one_and_taken_away(alone, book):
    page = alone.get("/new/audit").text
    draft = re.search(r'name="draft" value="([^"]+)"', page)[1]
    to = f"/drafts/{draft}/audit/model"
    answer = alone.post(to, {"model": ("a.onnx", b"\x08\x07", "x")})
    assert 'value="a.onnx"' in answer.text
    assert answer.headers["hx-trigger-after-settle"] == "files"
    answer = alone.post(to, {"model": ("b.onnx", b"\x08\x07", "x")}, model="a.onnx")  # another takes its place
    assert 'value="b.onnx"' in answer.text
    assert "a.onnx" not in answer.text
    answer = alone.post(to, {"model": ("c.onnx", b"PK\x03\x04", "x")}, model="b.onnx")
    assert "does not begin as .onnx files do" in answer.text
    assert answer.headers["hx-trigger-after-settle"] == "files"  # what was understood before is not what is there
    answer = alone.post(to, model="b.onnx", drop="b.onnx")
    assert "b.onnx" not in answer.text
    assert "ends in" in alone.post(to, {"model": ("t.csv", b"a\n", "x")}).text.replace("has to end in", "ends in")
    assert alone.post(f"/drafts/{draft}/audit/budget").status_code == 404


def test_a_form_whose_file_was_refused_is_not_sent_as_if_none_had_been_dropped(alone, book):
    """Of the translator's form empty means sample cells: a broken archive must not end as a training on those."""
    draft = sending(alone.get("/new/translate").text)["draft"]
    to = f"/drafts/{draft}/translate/data"
    page = alone.post(to, {"data": ("pairs.zip", b"no zip", "x")}).text
    why = re.search(r'name="refused-data" value="([^"]+)"', page)[1]
    assert "does not begin as .zip files do" in why
    for _ in range(2):  # the page that comes back refuses again
        answer = alone.post("/jobs", kind="translate", draft=draft, **{"refused-data": html.unescape(why)})
        assert answer.status_code == 422
        assert f'name="refused-data" value="{why}"' in answer.text
    assert book.jobs() == []
    assert "refused-data" not in alone.post(to, **{"refused-data": why}).text  # go on without it
    assert alone.post("/jobs", kind="translate", draft=draft).status_code == 303


def test_images_without_a_partner_are_told_when_they_are_dropped(alone, book):
    """By their names alone, and also where the file comes with the form; nothing of it stays."""
    draft = sending(alone.get("/new/translate").text)["draft"]
    to = f"/drafts/{draft}/translate/data"
    whole = {f"{place}/1.png": b"1" for place in ("input/train", "output/train", "input/test")}
    pairs = {"data": ("cells.zip", zipped({**whole, "input/train/2.png": b"1"}), "x")}
    page = alone.post(to, pairs).text
    why = "input/train has &#39;2.png&#39; and output/train has not; 1 of its images have no partner: "
    why += "give each pair one name."
    assert f'name="refused-data" value="{why}"' in page
    answer = alone.post("/jobs", pairs, kind="translate", draft=draft)
    assert answer.status_code == 422
    assert why in answer.text
    assert book.jobs() == []
    assert not list((book.home / "uploads" / draft / "files").iterdir())
    good = alone.post(to, {"data": ("cells.zip", zipped(whole), "x")}).text
    assert 'name="data" value="cells"' in good
    assert "refused-data" not in good


def test_of_a_refused_file_the_reason_is_understood_and_not_the_model_that_comes_along(alone, said):
    answer = alone.post("/understood/audit", subject="digits-mlp", **{"refused-model": "'a.onnx' is too <large>."})
    assert "is too &lt;large&gt;." in answer.text
    assert "a small" not in answer.text


def test_what_is_wrong_with_one_field_is_not_said_of_another(alone):
    page = alone.post("/jobs", kind="translate", epochs="900").text
    assert page.count("900 is out of range") == 1


def test_what_was_understood_is_what_check_says(alone, said):
    answer = alone.post("/understood/audit", subject="digits-mlp", budget="quick")
    assert "a small &lt;net&gt;" in answer.text
    assert "it answers at random" in answer.text
    assert said.asked[0][:4] == ["check", "digits-mlp", "--budget", "quick"]
    assert "--json" in said.asked[0]
    alone.post("/understood/audit", subject="digits-mlp", budget="quick")
    assert len(said.asked) == 1  # what comes with Assay is looked at once
    said.status, said.err = 2, "warming up\nassay: Column 'x' is not in the table; there are a, b.\n"
    assert (
        "Column &#39;x&#39; is not in the table"
        in alone.post("/understood/audit", subject="wine-mlp", budget="quick").text
    )
    assert "There is no model" in alone.post("/understood/audit", subject="/etc/passwd", budget="quick").text
    assert len(said.asked) == 2


def test_a_full_disk_and_a_lost_database_are_told(alone, book, monkeypatch):
    from assay.server.errors import Full, Gone

    def full(*anything, **more):
        raise Full("The disk is full: less than 1 GB would stay free; remove some jobs first.")

    monkeypatch.setattr(book, "submit", full)
    answer = alone.post("/jobs", kind="audit", subject="fashion-cnn", budget="quick")
    assert answer.status_code == 507
    assert "The disk is full" in answer.text

    def gone(*anything, **more):
        raise Gone("The workbench's database cannot be used; see that it runs, then try again.")

    monkeypatch.setattr(book, "jobs", gone)
    answer = alone.get("/jobs")
    assert answer.status_code == 503
    assert "cannot be used" in answer.text

    def broken(*anything, **more):
        raise RuntimeError("secret of ours")

    monkeypatch.setattr(book, "jobs", broken)
    answer = alone.get("/jobs")
    assert answer.status_code == 500
    assert "secret" not in answer.text


# Queue and history


def test_a_list_shows_own_changes_at_once_and_those_of_others_in_a_second(book, monkeypatch):
    from assay.server.book import Book
    from assay.server.pages import history

    now, other = [100.0], Book(book.home, book.url)
    monkeypatch.setattr(history.time, "monotonic", lambda: now[0])

    def shown(whose):
        return history._listed(book, whose, "", "", False)

    first = book.submit("ann", "audit", "the first", {})
    assert "the first" in shown("ann")
    assert "the first" not in shown("bob")  # what is kept is each one's own
    book.cancel(first.id)
    assert "cancelled" in shown("ann").split("<tbody", 1)[1]
    other.submit("ann", "audit", "the second", {})
    now[0] += 1.0
    assert "the second" in shown("ann")
    other.close()


def test_newest_first_and_a_download_only_of_what_succeeded(alone, submitted):
    made = [submitted(f"job {state}", state) for state in ("SUCCESS", "FAILURE", "RUNNING", "CANCELLED", "QUEUED")]
    text = alone.get("/jobs").text
    places = [text.index(f'id="row-{job.id}"') for job in reversed(made)]
    assert places == sorted(places)
    for job in made:
        assert (f'href="/jobs/{job.id}/bundle.zip"' in text) == (job.state == "SUCCESS")
    for word in ("queued", "running", "success", "failure", "cancelled"):
        assert f"</svg>{word}</span>" in text
    only = alone.get("/jobs?state=FAILURE").text
    assert made[1].id in only
    assert made[0].id not in only


def test_older_jobs_follow_page_by_page(alone, submitted):
    from assay.server.pages.history import PAGE

    made = [submitted(f"job {n}").id for n in range(PAGE + 3)]
    first = alone.get("/jobs").text
    seen = re.findall(r'id="row-([^"]+)"', first)
    assert seen == made[::-1][:PAGE]
    older = alone.get(re.search(r'href="(/jobs\?before=[^"]+)"', first)[1]).text
    assert re.findall(r'id="row-([^"]+)"', older) == made[::-1][PAGE:]
    assert "before=" not in older
    assert alone.get("/jobs?before=' OR 1=1 --").status_code == 200  # the beginning


def test_the_second_waits_until_the_first_has_ended(alone, submitted, book):
    first, second = submitted("first"), submitted("second")
    assert "1 job is before it" in alone.get(f"/jobs/{second.id}").text
    book.begin(first.id, "hands")
    assert "next in the queue" in alone.get(f"/jobs/{second.id}").text


def test_what_runs_is_followed_until_it_has_ended(alone, submitted, book):
    job = submitted("one", "RUNNING")
    leave_run(job, ended=False)
    (job.folder / "log.txt").write_text("accuracy: pass (0.2 s)\n")
    page = alone.get(f"/jobs/{job.id}").text
    assert f'data-live="/jobs/{job.id}/events?after=23"' in page
    assert "1 of 2 questions answered" in page
    assert "Answers so far" in page
    assert "</svg>pass</span>" in page  # as the log told it
    with open(job.folder / "log.txt", "a") as log:
        log.write("confidence: fail (1 s)\n")
    leave = job.folder / "run" / "20260301-120000-net"
    (leave / "audit.json").write_text(json.dumps({"rows": []}))
    book.finish(job.id, 1, "SUCCESS")
    told = alone.get(f"/jobs/{job.id}/events?after=23").text
    events = re.findall(r"event: (\w+)\ndata: (.*)", told)
    assert [name for name, _ in events][-1] == "end"
    assert json.loads(next(data for name, data in events if name == "lines"))["lines"] == ["confidence: fail (1 s)"]
    assert any("</svg>success" in json.loads(data)["html"] for name, data in events if name == "part")
    assert "event: end" in alone.get(f"/jobs/events?ids={job.id},nothing").text


def test_a_failure_says_why_and_keeps_its_log(alone, submitted):
    job = submitted("broken", "FAILURE", reason="Unpaired names: 3.png has no target.")
    (job.folder / "log.txt").write_text("it began\n")
    page = alone.get(f"/jobs/{job.id}").text
    assert "Unpaired names: 3.png has no target." in page
    assert "it began" in page
    assert alone.get(f"/jobs/{job.id}/log.txt").text == "it began\n"
    assert "Unpaired names" in alone.get("/jobs").text


def test_cancel_and_remove(alone, submitted, book):
    job = submitted()
    assert alone.post(f"/jobs/{job.id}/remove").status_code == 409
    alone.post(f"/jobs/{job.id}/cancel")
    assert book.job(job.id).state == "CANCELLED"
    alone.post(f"/jobs/{job.id}/remove")
    assert book.job(job.id) is None
    assert alone.get(f"/jobs/{job.id}").status_code == 404


# What a job leaves


def test_the_archive_is_a_zip_with_the_run_its_log_and_its_settings(alone, submitted):
    job = submitted("one", "SUCCESS", seed=7)
    run = leave_run(job)
    (job.folder / "log.txt").write_text("all went well\n")
    (run / "large.bin").write_bytes(b"0123456789" * 300_000)
    (run / "link").symlink_to("/etc/passwd")
    answer = alone.get(f"/jobs/{job.id}/bundle.zip")
    assert answer.headers["content-type"] == "application/zip"
    with zipfile.ZipFile(io.BytesIO(answer.content)) as zipped:
        assert zipped.testzip() is None
        top = f"assay-audit-{job.id[:8]}"
        names = set(zipped.namelist())
        assert {f"{top}/log.txt", f"{top}/settings.json", f"{top}/run/{run.name}/report.html"} <= names
        assert not any("link" in name for name in names)
        assert json.loads(zipped.read(f"{top}/settings.json"))["settings"]["seed"] == 7
        assert zipped.read(f"{top}/run/{run.name}/large.bin") == b"0123456789" * 300_000
    assert alone.get(f"/jobs/{submitted().id}/bundle.zip").status_code == 404  # not before its end


def test_a_page_of_the_run_can_do_nothing_here(alone, submitted):
    job = submitted("one", "SUCCESS")
    run = leave_run(job)
    (run / "link.html").symlink_to("/etc/passwd")
    frame = alone.get(f"/jobs/{job.id}/report/{run.name}/report.html").text
    assert 'sandbox="allow-scripts allow-popups allow-downloads"' in frame
    page = alone.get(f"/jobs/{job.id}/files/{run.name}/report.html")
    policy = page.headers["content-security-policy"]
    assert policy.startswith("sandbox allow-scripts")
    assert "allow-same-origin" not in policy
    assert re.search(r"script-src ('sha256-[^']+' ?)+;", policy)
    for name in ("link.html", "%2e%2e/%2e%2e/log.txt", "..%2f..%2flog.txt", "%2fetc/passwd", "no.html"):
        assert alone.get(f"/jobs/{job.id}/files/{run.name}/{name}").status_code == 404
    data = alone.get(f"/jobs/{job.id}/files/{run.name}/run.json")
    assert data.headers["content-disposition"].startswith("attachment")


def test_two_are_compared(alone, submitted, said, book):
    before, after = submitted("one", "SUCCESS", seed=1), submitted("two", "SUCCESS", seed=2)
    runs = leave_run(before), leave_run(after)
    page = alone.get(f"/compare?job={after.id}&job={before.id}").text
    assert page.index("one") < page.index("two")  # the older first
    assert "differs" in page

    def diff(words, folder, seconds):
        said.asked.append(list(words))
        Path(words[-1]).write_text("<!doctype html>side by side")
        return 0, "", ""

    alone.client.app.state.desk.children._run = diff
    assert "/compare/difference" in alone.get(f"/compare/page?job={before.id}&job={after.id}").text
    assert said.asked[-1][:3] == ["diff", str(runs[0]), str(runs[1])]
    answer = alone.get(f"/compare/difference?job={before.id}&job={after.id}")
    assert "side by side" in answer.text
    assert answer.headers["content-security-policy"].startswith("sandbox")
    for wrong in ("", f"?job={before.id}", f"?job={before.id}&job={before.id}"):
        assert alone.get(f"/compare{wrong}").status_code == 400
    assert alone.get(f"/compare?job={before.id}&job=nothing").status_code == 404


def test_what_no_job_has_is_not_found(alone):
    for id in ("x", "0" * 22, "a" * 500, "..%2f..%2fetc"):
        for path in ("", "/events", "/log.txt", "/bundle.zip", "/report/report.html", "/files/a"):
            assert alone.get(f"/jobs/{id}{path}").status_code == 404
    assert alone.post("/jobs/x/cancel").status_code == 404
    assert alone.get("/shared/nothing").status_code == 404


# What comes from elsewhere


def test_a_forged_form_is_refused(alone, book, submitted, bench):
    job = submitted()
    whole = {"kind": "audit", "subject": "fashion-cnn", "budget": "quick"}
    good = alone.token()
    theirs = Browser(alone.client.app).token()
    post = alone.client.post
    assert post("/jobs", data=whole).status_code == 403
    assert post("/jobs", data={**whole, "csrf": theirs}).status_code == 403
    assert post("/jobs", data={**whole, "csrf": ""}).status_code == 403
    assert (
        post("/jobs", data={**whole, "csrf": good}, headers={"origin": "https://elsewhere.example"}).status_code == 403
    )
    assert post("/jobs", data={**whole, "csrf": good}, headers={"sec-fetch-site": "cross-site"}).status_code == 403
    assert post("/jobs", data={**whole, "csrf": good}, headers={"x-csrf": theirs}).status_code == 403
    assert post(f"/jobs/{job.id}/cancel").status_code == 403
    assert len(book.jobs()) == 1
    assert book.job(job.id).state == "QUEUED"
    assert post("/jobs", data={**whole, "csrf": good}, headers={"origin": "http://testserver"}).status_code == 303
    assert post("/jobs", data=whole, headers={"x-csrf": good}).status_code == 303


def test_another_name_for_this_machine_is_refused(alone):
    """Else a page elsewhere could have its own name point here, and read all."""
    answer = alone.get("/jobs", headers={"host": "elsewhere.example:8737"})
    assert answer.status_code == 421
    assert "elsewhere.example" in answer.text
    assert alone.get("/jobs", headers={"host": "TESTSERVER:1"}).status_code == 200


def test_more_than_is_taken_is_refused(bench, book):
    small = Browser(bench(most_upload=5000))
    answer = small.post("/jobs", {"model": ("a.onnx", b"\x08" * 3_000_000, "x")}, kind="audit")
    assert answer.status_code == 413
    answer = small.post("/jobs", {"model": ("a.onnx", b"\x08" * 6000, "x")}, kind="audit")
    assert answer.status_code == 422
    assert "larger than" in answer.text
    assert small.client.post("/sign-in", content=b"x" * 2**21).status_code == 413

    def endless():
        for _ in range(100):
            yield b"x" * 65536

    sent = small.client.post("/jobs", content=endless(), headers={"content-type": "application/x-www-form-urlencoded"})
    assert sent.status_code in (400, 413)
    assert book.jobs() == []


def test_a_limit_is_told_as_it_was_given(bench):
    """`--most-upload 2` is 2 GB on the page for help, and where more came."""
    two = Browser(bench(most_upload=2 * 10**9))
    assert "At most 2.0 GB a file" in two.get("/help").text
    for path, most in (("/jobs", "2.0 GB"), ("/sign-in", "1.0 MB")):
        answer = two.client.post(path, headers={"content-length": str(3 * 10**9)})
        assert (answer.status_code, answer.text) == (413, f"That is more than {most}, the most that is taken here.")


def test_a_link_is_shared_and_taken_back(alone, submitted, book, bench):
    from assay.server import shares

    job = submitted("one", "SUCCESS")
    run = leave_run(job)
    alone.post(f"/jobs/{job.id}/share")
    (token,) = shares.tokens(book, job.id)
    mine = alone.get(f"/jobs/{job.id}").text
    assert f"http://testserver/shared/{token}" in mine
    stranger = Browser(bench(accounts=True))
    page = stranger.get(f"/shared/{token}")
    assert page.status_code == 200
    assert "Run again" not in page.text
    assert "Share" not in re.sub("Shared with you", "", page.text)
    assert stranger.get(f"/shared/{token}/files/{run.name}/report.html").status_code == 200
    assert stranger.get(f"/shared/{token}/bundle.zip").status_code == 200
    assert stranger.get(f"/jobs/{job.id}").status_code == 303  # to the sign-in
    assert stranger.post(f"/jobs/{job.id}/cancel").status_code == 401
    alone.post(f"/jobs/{job.id}/unshare", link="another")
    assert stranger.get(f"/shared/{token}").status_code == 200
    alone.post(f"/jobs/{job.id}/unshare", link=token)
    assert stranger.get(f"/shared/{token}").status_code == 404


# What comes with Assay


def test_the_shelves_are_listed_once_they_are_read(alone, monkeypatch):
    from assay.server import children

    told = {"subjects": [{"name": "fashion-cnn", "says": "Clothes <b>", "source": "Xiao"}], "remedies": [],
            "probes": [{"name": "accuracy", "says": "Is it right?", "source": "W.", "theme": "right", "quick": True}],
            "themes": [{"name": "right", "says": "Is it right?"}]}  # fmt: skip
    asked = []

    def python(words, folder, seconds):
        asked.append(words)
        Path(words[-1]).write_text(json.dumps(told))
        return 0, "", ""

    monkeypatch.setattr(children, "python", python)
    assert 'hx-get="/shelf/subjects"' in alone.get("/subjects").text  # not read yet
    assert '<a href="/subjects/fashion-cnn">' in alone.get("/shelf/subjects").text
    page = alone.get("/subjects").text
    assert '<a href="/subjects/fashion-cnn">' in page
    assert "Clothes &lt;b&gt;" in page
    assert "<code>accuracy</code>" in alone.get("/questions").text
    assert "Clothes" in alone.get("/subjects/fashion-cnn").text
    assert "Is it right?" in alone.get("/new/audit").text  # beside the name of the question
    assert len(asked) == 1
    assert alone.get("/shelf/nothing").status_code == 404
    assert alone.get("/subjects/nothing").status_code == 404


def test_the_ledger_stands_in_a_frame_of_its_own(alone, monkeypatch):
    from assay.server import children

    def python(words, folder, seconds):
        Path(words[-1]).write_text("<!doctype html>claims")
        return 0, "", ""

    monkeypatch.setattr(children, "python", python)
    assert "/claims/ledger" in alone.get("/claims/page").text
    assert alone.get("/claims/ledger").headers["content-security-policy"].startswith("sandbox")
    assert '<iframe class="frame" src="/claims/ledger"' in alone.get("/claims").text

    def broken(words, folder, seconds):
        return 2, "", "assay: The record 'x' was edited after it was written.\n"

    monkeypatch.setattr(children, "python", broken)
    for page in alone.client.app.state.desk.children.kept.glob("ledger-*"):
        page.unlink()
    answer = alone.get("/claims/page", headers={"hx-request": "true"})
    assert answer.status_code == 400
    assert "was edited after it was written" in answer.text


# The operator's


def test_the_operator_drains_and_stops(alone, book):
    from assay.server import roll

    roll.greet(book, "w" * 22, "bench-1", 4242)
    page = alone.get("/operator").text
    assert "bench-1" in page
    assert "4242" in page
    alone.post("/operator/drain", on="yes")
    assert book.draining()
    assert "Drained" in alone.get("/operator").text
    alone.post("/operator/drain", on="no")
    assert not book.draining()
    alone.post(f"/operator/workers/{'w' * 22}/stop")
    assert roll.workers(book)[0].stopping
    assert alone.post("/operator/workers/nobody/stop").status_code == 404


# Mail


def test_mail_is_off_until_the_environment_says_otherwise(book, submitted, monkeypatch):
    from assay.server import mail

    sent = []
    monkeypatch.setattr(mail, "send", lambda letter, settings: sent.append(letter))
    job = submitted("two\nlines", "FAILURE", reason="no pairs")
    assert not mail.ended(book, job.id, {})
    assert not mail.ended(book, job.id, {"ASSAY_MAIL_HOST": "h"})  # to nobody
    told = {"ASSAY_MAIL_HOST": "mail.example", "ASSAY_MAIL_TO": "me@example.org", "ASSAY_ADDRESS": "https://b.example/"}
    assert mail.ended(book, job.id, told)
    (letter,) = sent
    assert letter["Subject"] == "Assay: two lines failed"
    assert "no pairs" in letter.get_content()
    assert urlsplit(letter.get_content().split()[-1]).path == f"/jobs/{job.id}"
    assert not mail.ended(book, submitted().id, told)  # it has not ended


def zipped(files):
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as made:
        for name, content in files.items():
            made.writestr(name, content)
    return held.getvalue()


PNG = b"\x89PNG\r\n\x1a\n" + b"\0" * 20
