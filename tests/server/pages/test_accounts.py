"""Accounts: who may do what, and what a database that leaks gives away."""

from __future__ import annotations

import os
import re
import stat
import time

import pytest
import sqlalchemy as sql
from visitor import Browser

from assay.errors import AssayError

PASSWORD = "correct horse"


@pytest.fixture
def app(bench):
    made = bench(accounts=True)
    known = made.state.desk.accounts
    for name, role in (("ada", "user"), ("bob", "user"), ("eve", "visitor"), ("olga", "operator")):
        known.add(name, PASSWORD, role, f"{name}@example.org")
    return made


def signed_in(app, name):
    made = Browser(app)
    assert made.sign_in(name).status_code == 303
    return made


def sent(who, title="a job"):
    answer = who.post("/jobs", kind="audit", subject="fashion-cnn", budget="quick", title=title)
    assert answer.status_code == 303
    return answer.headers["location"]


def test_the_database_gives_nobody_away(app):
    ada = signed_in(app, "ada")
    from assay.server.safety import COOKIE

    with app.state.desk.accounts.engine.connect() as at:
        told = [
            str(cell)
            for table in ("users", "sessions")
            for row in at.execute(sql.text(f"SELECT * FROM {table}"))
            for cell in row
        ]
    assert not any(PASSWORD in cell or ada.client.cookies[COOKIE] in cell for cell in told)
    assert sum(cell.startswith("$argon2id$") for cell in told) == 4
    assert stat.S_IMODE(os.stat(app.state.desk.home / "secret").st_mode) == 0o600


def test_signing_in_and_out(app):
    who = Browser(app)
    before = who.get("/help").cookies["assay"]
    assert who.get("/jobs").headers["location"] == "/sign-in?next=/jobs"
    answer = who.post("/sign-in", name=" Ada ", password=PASSWORD, next="/jobs?state=RUNNING")
    assert answer.headers["location"] == "/jobs?state=RUNNING"
    kept = answer.headers["set-cookie"]
    assert "HttpOnly" in kept
    assert "SameSite=Lax" in kept
    assert who.client.cookies["assay"] != before  # nobody can have chosen the word of the session before
    assert who.get("/jobs").status_code == 200
    session = who.client.cookies["assay"]
    who.post("/sign-out")
    who.client.cookies.set("assay", session)
    assert who.get("/jobs").status_code == 303


def test_a_wrong_password_and_an_unknown_name_are_told_alike(app):
    who = Browser(app)
    wrong, unknown = who.sign_in("ada", "wrong password"), who.sign_in("nobody", "wrong password")
    assert wrong.status_code == unknown.status_code == 403
    says = re.compile(r'role="alert">(.*?)</div>')
    assert says.search(wrong.text)[1] == says.search(unknown.text)[1]


def test_trying_too_often_has_to_wait(app):
    app.state.desk.guesses.first = 300.0  # however slow the machine is
    who = Browser(app)
    assert [who.sign_in("ada", "wrong password").status_code for _ in range(11)] == [403] * 10 + [429]
    assert who.sign_in("ada").status_code == 429  # the right one too


def test_a_session_ends_by_itself(app, monkeypatch):
    ada = signed_in(app, "ada")
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 8 * 24 * 3600)
    assert ada.get("/jobs").status_code == 303


def test_anothers_job_is_not_there(app, book):
    ada, bob, olga = (signed_in(app, name) for name in ("ada", "bob", "olga"))
    at = sent(ada, "private matters")
    id = at.rpartition("/")[2]
    for path in ("", "/events", "/log.txt", "/bundle.zip", "/report/report.html", "/files/a"):
        assert bob.get(at + path).status_code == 404
    for path in ("/cancel", "/again", "/share", "/remove", "/unshare"):
        assert bob.post(at + path).status_code == 404
    assert "private matters" not in bob.get("/jobs").text
    assert bob.get(f"/new/audit?from={id}").status_code == 404
    assert bob.get(f"/compare?job={id}&job={sent(bob).rpartition('/')[2]}").status_code == 404
    assert "private matters" not in bob.get(f"/jobs/events?ids={id}").text
    assert book.job(id).state == "QUEUED"
    assert ada.get(at).status_code == 200
    assert olga.get(at).status_code == 200
    assert "private matters" in olga.get("/jobs").text


def test_anothers_files_are_not_there(app):
    ada, bob = signed_in(app, "ada"), signed_in(app, "bob")
    draft = "d" * 22
    ada.post(f"/drafts/{draft}/audit/model", {"model": ("a.onnx", b"\x08\x07", "x")})
    answer = bob.post(f"/drafts/{draft}/audit/model", {"model": ("b.onnx", b"\x08\x07", "x")})
    assert "These files are not yours" in answer.text
    answer = bob.post("/jobs", kind="audit", budget="quick", draft=draft, model="a.onnx")
    assert answer.status_code == 422
    assert "did not arrive" in answer.text
    bob.post(f"/drafts/{draft}/audit/model", model="a.onnx", drop="a.onnx")
    assert "a.onnx" in app.state.desk.uploads.files("ada", draft)


def test_roles_say_what_one_may_do(app, book):
    eve, ada = signed_in(app, "eve"), signed_in(app, "ada")
    answer = eve.post("/jobs", kind="audit", subject="fashion-cnn", budget="quick")
    assert answer.status_code == 403
    assert book.jobs() == []
    assert eve.get("/new/audit").status_code == 403
    assert eve.get("/subjects").status_code == 200
    assert eve.get("/").status_code == 200
    for who in (eve, ada):
        assert who.get("/operator").status_code == 403
        assert who.post("/operator/drain", on="yes").status_code == 403
        assert who.post("/operator/accounts/ada", role="operator").status_code == 403
    assert not book.draining()


def test_what_runs_code_is_taken_from_the_operator_alone(app):
    for name, says in (("ada", "can run code"), ("olga", 'value="net.py"')):
        who = signed_in(app, name)
        answer = who.post(f"/drafts/{name * 11:.22}/audit/model", {"model": ("net.py", b"x = 1\n", "x")})
        assert says in answer.text


def test_a_machine_of_ones_own_has_no_accounts(alone):
    assert alone.get("/sign-in").status_code == 404
    assert alone.get("/account").status_code == 404


def test_the_first_operator_is_invited_when_nobody_is_there(bench):
    app = bench(accounts=True)
    (path,) = app.state.says
    who = Browser(app)
    assert "invited as operator" in who.get(path).text
    assert "differ" in who.post(path, password=PASSWORD, again="another one").text
    assert "10 to 200 characters" in who.post(path, password="short", again="short").text
    assert who.post(path, password=PASSWORD, again=PASSWORD).status_code == 303
    assert who.get("/operator").status_code == 200
    again = Browser(app).post(path, password=PASSWORD, again=PASSWORD)  # it holds once
    assert again.status_code == 422
    assert "already" in again.text
    assert bench(accounts=True).state.says == []


def test_invitations_hold_for_a_name_a_role_and_a_week(app, monkeypatch):
    olga = signed_in(app, "olga")
    answer = olga.post("/operator/invite", name="carl", role="user")
    path = re.search(r'value="http://testserver(/join/[^"]+)"', answer.text)[1]
    who = Browser(app)
    assert who.get(path.replace("~user~", "~operator~")).status_code == 403
    assert who.get(path.replace("carl", "carla")).status_code == 403
    assert who.get("/join/nothing").status_code == 403
    assert olga.post("/operator/invite", name="x", role="god").status_code == 400
    assert who.post(path, password=PASSWORD, again=PASSWORD, role="operator").status_code == 303
    assert app.state.desk.accounts.user("carl").role == "user"
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 8 * 24 * 3600)
    assert Browser(app).get(path).status_code == 403


def test_strangers_begin_as_visitors(app, bench):
    who = Browser(app)
    assert who.post("/sign-up", name="zoe", password=PASSWORD, again=PASSWORD, role="operator").status_code == 303
    assert app.state.desk.accounts.user("zoe").role == "visitor"
    assert "Ask the operator" in who.get("/").text
    closed = Browser(bench(accounts=True, sign_up=False))
    assert closed.get("/sign-up").status_code == 404
    assert closed.post("/sign-up", name="yan", password=PASSWORD, again=PASSWORD).status_code == 404


def test_one_changes_ones_own_password_and_every_session_ends(app):
    first, second = signed_in(app, "ada"), signed_in(app, "ada")
    assert (
        "do not belong together" in first.post("/account", old="no", password="another one", again="another one").text
    )
    assert first.post("/account", old=PASSWORD, password="another one", again="another one").status_code == 303
    assert first.get("/account").status_code == 200
    assert second.get("/account").status_code == 303
    assert second.sign_in("ada").status_code == 403
    assert second.sign_in("ada", "another one").status_code == 303
    assert "is no mail address" in second.post("/account", mail="x@y\r\nBcc: all@example.org").text
    second.post("/account", mail="ada@new.example")
    assert app.state.desk.accounts.user("ada").mail == "ada@new.example"


def test_there_is_always_an_operator(app):
    olga = signed_in(app, "olga")
    for fields in ({"do": "remove"}, {"role": "visitor"}):
        answer = olga.post("/operator/accounts/olga", **fields)
        assert answer.status_code == 400
        assert "only operator" in answer.text
    olga.post("/operator/accounts/eve", role="user")
    sent(signed_in(app, "eve"))
    eve = signed_in(app, "eve")
    olga.post("/operator/accounts/eve", do="remove")
    assert eve.get("/jobs").status_code == 303


def test_nobody_is_led_elsewhere_after_signing_in(app):
    for address in ("https://elsewhere.example/", "//elsewhere.example", "/\\elsewhere.example", "javascript:alert(1)"):
        answer = Browser(app).post("/sign-in", name="ada", password=PASSWORD, next=address)
        assert answer.headers["location"] == "/"


def test_submitting_too_often_has_to_wait(app):
    from assay.server.accounts import Rate

    app.state.desk.rates["submit"] = Rate(2, 60)
    ada, bob = signed_in(app, "ada"), signed_in(app, "bob")
    assert [ada.post("/jobs", kind="audit", budget="quick").status_code for _ in range(3)] == [303, 303, 429]
    assert bob.post("/jobs", kind="audit", budget="quick").status_code == 303


@pytest.mark.parametrize("name", ["", "a", "Ä b", "../x", "a" * 41, "-dash", "x y", "<b>"])
def test_names_are_plain(name):
    from assay.server.accounts import checked_name

    with pytest.raises(AssayError, match="is not 2 to 40 of"):
        checked_name(name)


def test_a_rate_lets_go_with_time_and_forgets():
    from assay.server.accounts import Rate

    rate = Rate(2, 10, keys=3)
    assert [rate.wait("a", now=t) for t in (0, 1, 2)] == [0, 0, 8]
    assert rate.wait("a", now=10.5) == 0
    for n in range(10):
        rate.wait(f"k{n}", now=11)
    assert len(rate._seen) == 3


def test_whoever_guesses_locks_out_nobody_but_themselves(bench):
    """The limit was on the name alone: ten wrong tries from anywhere kept its owner out."""
    from fastapi.testclient import TestClient

    app = bench(accounts=True)
    app.state.desk.guesses.first = 300.0  # however slow the machine is
    app.state.desk.accounts.add("ada", PASSWORD, "user")
    guesser, owner = Browser(app), Browser(app)
    guesser.client = TestClient(app, follow_redirects=False, client=("2001:db8::1", 1))
    told = [guesser.sign_in("ada", f"wrong {n}").status_code for n in range(30)]
    assert told == [403] * 10 + [429] * 20
    assert "Too many tries; the next one is in" in guesser.sign_in("ADA ", "wrong").text
    guesser.client = TestClient(app, follow_redirects=False, client=("2001:db8::ffff:2", 1))  # the same network
    assert guesser.sign_in("ada", "wrong").status_code == 429
    assert owner.sign_in("ada").status_code == 303
    for n in range(12):  # a right one forgets the wrong ones before it
        assert owner.sign_in("ada", "wrong" if n % 3 else PASSWORD).status_code == (403 if n % 3 else 303)


def test_every_wrong_try_doubles_the_wait_and_quiet_ends_it():
    from assay.server.accounts import BackOff, network

    back = BackOff(free=3, first=2.0, longest=10.0, keys=3)
    now, waits = 0.0, []
    for _ in range(7):
        while wait := back.wait("a", now=now):
            waits.append(wait)
            now += wait
    assert waits == [2, 4, 8, 10]
    assert back.wait("a", now=now) == 10  # not counted twice
    assert back.wait("b", now=now) == 0
    now += 10 + 4 * 10.0 + 1
    assert [back.wait("a", now=now) for _ in range(3)] == [0, 0, 0]
    assert back.wait("a", now=now) == 2
    for n in range(9):
        back.wait(f"k{n}", now=now)
    assert len(back._tried) == 3
    assert network("192.0.2.7") == network("::ffff:192.0.2.7") == "192.0.2.7"
    assert network("2001:db8::1") == network("2001:db8::2:3:4:5") != network("2001:db8:0:1::1")
    assert network("fe80::1%eth0") == "fe80::/64"
    assert network("testclient") == "testclient"
