"""The ledger keeps what was measured beside what was published, and never calls a claim tested that was not."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path

import pytest

from assay import code, shelf
from assay.claim import Before, Claim, Evidence, Gate, Held, Published, judged
from assay.claims import _reviewed
from assay.claims._elsewhere import RULE
from assay.data import beyond
from assay.engine.local import ThisProcess
from assay.errors import AssayError
from assay.finding import Beside, Measure
from assay.jobs import claims as ledger
from assay.report import ledger as drawn
from assay.run import Run


def study(verdict: Held) -> Claim:
    def test(run: Run) -> Evidence:
        return Evidence(
            verdict=verdict,
            says=f"Seed {run.seed} | <b>gave</b> this.",
            measures=(
                Measure(
                    name="gain",
                    value=0.012,
                    low=0.008,
                    high=0.016,
                    n=3,
                    unit="%",
                    better="higher",
                    beside=(Beside("chance", 0.0),),
                ),
                Measure(name="spread", value=2.5, better="lower"),
            ),
        )

    return Claim(
        name=f"it-{verdict.replace(' ', '-')}",
        source="Someone, 2021, table <3>",
        says="Centring | helps.",
        published=(
            Published("gain in accuracy", 0.0155, "table 3, row 2", "%", measured="gain"),
            Published("gain in hours", 7.25, "table 3, row 3", "h"),
        ),
        here="two seeds",
        minutes=0.5,
        test=test,
    )


@pytest.fixture(autouse=True)
def one_source(monkeypatch: pytest.MonkeyPatch) -> None:
    on_shelf = {"someone2021": (study("holds"), study("cannot tell"))}
    monkeypatch.setattr(shelf, "names", lambda which: list(on_shelf) if which == "claims" else [])
    monkeypatch.setattr(shelf, "load", lambda which, name: on_shelf[name])


def run(seed: int = 0) -> Run:
    return Run(engine=ThisProcess(), seed=seed)


def test_ids_are_file_and_name() -> None:
    assert list(ledger.claims()) == ["someone2021/it-holds", "someone2021/it-cannot-tell"]


def test_an_unknown_claim_is_told_what_is_near() -> None:
    with pytest.raises(AssayError, match="no claim 'someone2021/it-hold'; did you mean 'someone2021/it-holds'"):
        ledger.record("someone2021/it-hold", run())


def test_a_name_used_twice_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shelf, "load", lambda which, name: (study("holds"), study("holds")))
    with pytest.raises(AssayError, match="Two claims are called 'someone2021/it-holds'"):
        ledger.claims()


def test_what_is_recorded_is_read_back(tmp_path: Path) -> None:
    entry = ledger.record("someone2021/it-holds", run(seed=7), tmp_path)
    assert ledger.read(tmp_path) == {"someone2021/it-holds": entry}
    assert entry.command == "assay claims test someone2021/it-holds --seed 7"
    assert (entry.seed, entry.evidence.verdict, entry.says) == (7, "holds", "Centring | helps.")
    assert {"torch", "numpy", "python", "assay"} <= set(entry.versions)
    stored = json.loads((tmp_path / "someone2021--it-holds.json").read_text())
    assert stored["evidence"]["measures"][0]["value"] == 0.012
    assert "cores" in stored["machine"]


def test_a_second_test_of_a_claim_replaces_its_record(tmp_path: Path) -> None:
    ledger.record("someone2021/it-holds", run(seed=1), tmp_path)
    ledger.record("someone2021/it-holds", run(seed=2), tmp_path)
    assert [entry.seed for entry in ledger.read(tmp_path).values()] == [2]


def test_a_study_that_breaks_leaves_no_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(run: Run) -> Evidence:
        raise AssayError("no data")

    broken = Claim(name="broken", source="s", says="s", published=(), here="h", minutes=1, test=breaks)
    monkeypatch.setattr(shelf, "load", lambda which, name: (broken,))
    with pytest.raises(AssayError, match="no data"):
        ledger.record("someone2021/broken", run(), tmp_path)
    assert ledger.read(tmp_path) == {}


def test_a_broken_record_names_its_file(tmp_path: Path) -> None:
    (tmp_path / "someone2021--it-holds.json").write_text("{}")
    with pytest.raises(AssayError, match=r"someone2021--it-holds\.json.*test that claim again"):
        ledger.read(tmp_path)


@pytest.mark.parametrize("render", [ledger.page, ledger.page_markdown])
def test_both_pages_show_published_beside_measured_and_say_what_was_not_run(render: object, tmp_path: Path) -> None:
    assert callable(render)
    ledger.record("someone2021/it-holds", run(), tmp_path)
    text = " ".join(render(tmp_path).replace("\\", "").replace("\u00a0", " ").split())
    mark = "## " if render is ledger.page_markdown else "<strong>"  # its fold, not its row of the table
    tested, untested = text.split(f"{mark}someone2021/it-cannot-tell")
    for shown in (
        "gain in accuracy",
        "table 3, row 2",
        "1.55 %",
        "1.2 %",
        "0.8 to 1.6 %",
        "holds",
        "assay claims test someone2021/it-holds --seed 0",
        "two seeds",
    ):
        assert shown in tested, shown
    assert untested.count("not run") >= 2  # as its verdict, and where the measured number would stand
    assert "1.55 %" in untested
    assert "nothing of the kind was measured here" in text
    assert "without a number of the kind in print" in text


def test_text_from_elsewhere_stays_text(tmp_path: Path) -> None:
    ledger.record("someone2021/it-holds", run(), tmp_path)
    page = ledger.page(tmp_path)
    assert "<b>gave</b>" not in page
    assert "&lt;b&gt;gave&lt;/b&gt;" in page
    assert "\\|" in ledger.page_markdown(tmp_path)  # or the cell would end there
    assert "<b>" not in ledger.page_markdown(tmp_path).replace("\\<b\\>", "")


def test_a_claim_that_was_reworded_says_what_was_tested(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger.record("someone2021/it-holds", run(), tmp_path)
    changed(tmp_path, says="Centring always helps.")
    assert "tested as it was worded then: Centring always helps." in ledger.page_markdown(tmp_path)


@pytest.mark.parametrize("render", [ledger.page, ledger.page_markdown])
def test_a_record_tells_what_it_was_tested_on_whatever_a_later_test_would_be(render: object, tmp_path: Path) -> None:
    assert callable(render)
    ledger.record("someone2021/it-holds", run(), tmp_path)
    assert json.loads((tmp_path / "someone2021--it-holds.json").read_text())["here"] == "two seeds"
    changed(tmp_path, here="five seeds")
    tested = told(render, tmp_path)
    assert "five seeds" in tested
    assert "two seeds" not in tested
    changed(tmp_path, here=None)  # from before it was kept
    assert "its record does not say" in told(render, tmp_path)
    assert "two seeds" not in told(render, tmp_path)


def told(render: object, root: Path) -> str:
    """What a page tells of the first claim, below its tables."""
    assert callable(render)
    return str(render(root).split("Tested here on" if render is ledger.page_markdown else "Tested on")[1])


def changed(root: Path, **to: object) -> None:
    """Write the record anew with other content and a seal that fits: what an older Assay might have written."""
    path = root / "someone2021--it-holds.json"
    stored = {**json.loads(path.read_text()), **to}
    path.write_text(json.dumps(ledger._sealed({k: v for k, v in stored.items() if v is not None})))


# Gates before verdicts.


def trained(verdict: Held = "holds", reached: float = 0.93, seeds: int | None = 5) -> Claim:
    """A claim about training: five trainings are asked for, and a baseline between 92 and 100 %."""

    def test(run: Run) -> Evidence:
        gate = Gate(what="The accuracy of the plain net", values=(0.935, reached), printed=0.94, low=0.92)
        return Evidence(verdict=verdict, says="It gained.", measures=(), gates=(gate,), seeds=seeds)

    return Claim(name="it", source="s", says="s", published=(), here="h", minutes=1, test=test, seeds=5)


@pytest.mark.parametrize("verdict", ["holds", "fails"])
def test_each_gate_that_breaks_changes_the_verdict(
    verdict: Held, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def recorded(claim: Claim) -> Evidence:
        monkeypatch.setattr(shelf, "load", lambda which, name: (claim,))
        return ledger.record("someone2021/it", run(), tmp_path).evidence

    assert recorded(trained(verdict)).verdict == verdict
    off = recorded(trained(verdict, reached=0.919))
    assert off.verdict == "cannot tell"
    assert "plain net is 93.5, 91.9 % in the seeds, not between 92 and 100 % (printed: 94 %)" in off.says
    one = recorded(trained(verdict, seeds=1))
    assert (one.verdict, one.says) == ("cannot tell", "It gained. It rests on 1 training, and 5 are asked for.")
    untold = recorded(trained(verdict, seeds=None))  # it does not say how many
    assert untold.verdict == "cannot tell"
    assert ledger.read(tmp_path)["someone2021/it"].evidence == untold


def test_what_cannot_be_told_needs_no_gate() -> None:
    claim = trained("cannot tell", reached=0.1)
    assert judged(claim, claim.test(run())).says == "It gained."


def test_a_gate_that_nothing_was_measured_for_is_missed() -> None:
    assert "was not measured" in Gate(what="Its accuracy", values=(), printed=None, low=0.9).missed()


# Where a record comes from.


def test_a_record_is_stale_once_its_code_is_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def verdicts() -> list[str]:
        return [f"{t.verdict}: {t.stale}" for t in ledger.told(tmp_path)]

    ledger.record("someone2021/it-holds", run(), tmp_path)
    assert verdicts() == ["holds: ", "not run: "]
    stored = json.loads((tmp_path / "someone2021--it-holds.json").read_text())
    assert set(stored["code"]) == {"claim", "methods", "rules"}
    changed(tmp_path, code={**stored["code"], "methods": "0" * 64})
    assert verdicts()[0].startswith("holds: since then a method")
    assert "stale" in ledger.page(tmp_path)
    changed(tmp_path, code={**stored["code"], "claim": "0" * 64})
    assert verdicts()[0] == "holds: since then the study changed"
    changed(tmp_path, code={**stored["code"], "rules": "0" * 64})
    assert verdicts()[0] == "holds: since then an interval, a gate, or how inputs and answers are read changed"
    changed(tmp_path, code={part: stored["code"][part] for part in ("claim", "methods")})  # before rules were kept
    assert verdicts()[0] == "holds: "
    changed(tmp_path, code=None)
    assert verdicts()[0] == "holds: it does not say which code made it"


def test_code_behind_a_claim_is_its_own_files_and_what_they_compute_with() -> None:
    found = code.in_rooms("assay.claims.liu2021_poison", ("claims", *ledger.COMPUTES))
    assert {"assay.claims.liu2021_poison", "assay.claims._elsewhere", "assay.methods.poison.propagation"} <= set(found)
    assert not {"assay.run", "assay.finding", "assay.methods.attack.pgd"} & set(found)


@pytest.mark.parametrize(
    "module", ["assay.interval", "assay.claim", "assay.inputs.reach", "assay.tasks.classification"]
)
def test_the_rules_behind_a_claim_are_intervals_gates_and_how_inputs_and_answers_are_read(
    module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = code._own

    def edited(name: str) -> object:
        found = own(name)
        return found._replace(digest="edited") if found is not None and name == module else found

    study = "assay.claims.liu2021_translation" if "tasks" in module else "assay.claims.giulivi2020"
    before, behind = dict(ledger._behind(study)), ledger._behind.__wrapped__  # without what is kept
    monkeypatch.setattr(code, "_own", edited)
    after = dict(behind(study))
    assert {part for part in before if before[part] != after[part]} == {"rules"}


def test_a_copy_under_another_name_does_not_speak_for_the_claim(tmp_path: Path) -> None:
    entry = ledger.record("someone2021/it-holds", run(), tmp_path)
    (tmp_path / "zzz.json").write_bytes((tmp_path / "someone2021--it-holds.json").read_bytes())
    with pytest.raises(AssayError, match=r"zzz\.json' is of 'someone2021/it-holds'.*remove the copy"):
        ledger.read(tmp_path)
    assert ledger.read(tmp_path, broken=False) == {entry.id: entry}


def test_a_record_of_a_newer_assay_asks_for_it(tmp_path: Path) -> None:
    ledger.record("someone2021/it-holds", run(), tmp_path)
    changed(tmp_path, format=ledger.FORMAT + 1)
    with pytest.raises(AssayError, match=r"is of format 3, and this Assay reads 2; update Assay"):
        ledger.read(tmp_path)


SAID: dict[str, object] = {"verdict": "holds", "says": "", "measures": []}


@pytest.mark.parametrize(
    "to",
    [
        {"says": {"deep": 1}},
        {"seconds": "long"},
        {"versions": {"python": [3]}},
        {"data": [["a", "b"]]},
        {"before": {"verdict": "holds", "when": 5}},
        {"before": {"verdict": "holds", "when": "yesterday"}},
        {"before": {"verdict": "probably"}},
        {"evidence": {**SAID, "seeds": 5.5}},
        {"evidence": {**SAID, "measures": [{"name": "m", "value": 1, "better": "sideways", "beside": []}]}},
        {"evidence": {**SAID, "gates": [{"what": "w", "values": ["much"], "printed": None, "low": 0, "high": 1}]}},
    ],
)
def test_sealed_or_not_a_record_holds_texts_and_numbers(tmp_path: Path, to: dict[str, object]) -> None:
    ledger.record("someone2021/it-holds", run(), tmp_path)
    changed(tmp_path, **to)
    with pytest.raises(AssayError, match="Cannot read the record"):
        ledger.read(tmp_path)
    (tmp_path / "someone2021--it-holds.json").write_text("[" * 100_000)
    with pytest.raises(AssayError, match="Cannot read the record"):
        ledger.read(tmp_path)


def test_what_stood_in_a_record_that_cannot_be_read_is_not_known(tmp_path: Path) -> None:
    ledger.record("someone2021/it-holds", run(), tmp_path)
    (tmp_path / "someone2021--it-holds.json").write_text("{")
    again = ledger.record("someone2021/it-holds", run(), tmp_path)
    assert again.before == Before(verdict="not run", why="its record could not be read")


def test_a_record_that_was_edited_by_hand_is_refused(tmp_path: Path) -> None:
    ledger.record("someone2021/it-holds", run(), tmp_path)
    path = tmp_path / "someone2021--it-holds.json"
    path.write_text(path.read_text().replace('"holds"', '"fails"'))
    with pytest.raises(AssayError, match=r"it-holds\.json' was edited after .*test that claim again") as e:
        ledger.read(tmp_path)
    assert "\n" not in str(e.value)
    assert ledger.read(tmp_path, broken=False) == {}
    assert "someone2021/it-holds" in ledger.waiting(tmp_path, ledger.claims())  # what the line says can be done
    ledger.record("someone2021/it-holds", run(), tmp_path)
    stored = json.loads(path.read_text())
    for edited in ({**stored, "format": 1}, {k: v for k, v in stored.items() if k != "seal"}):  # around the seal
        path.write_text(json.dumps(edited))
        with pytest.raises(AssayError, match="test that claim again"):
            ledger.read(tmp_path)
    changed(
        tmp_path,
        **{k: v for k, v in stored.items() if k != "evidence"},
        evidence={**stored["evidence"], "verdict": "sure"},
    )
    with pytest.raises(AssayError, match="verdict 'sure'"):
        ledger.read(tmp_path)


def test_a_verdict_says_whether_print_s_baseline_was_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger.record("someone2021/it-holds", run(), tmp_path)
    assert "names no baseline in print that had to be reached" in ledger.page(tmp_path)
    monkeypatch.setattr(shelf, "load", lambda which, name: (trained(),))
    ledger.record("someone2021/it", run(), tmp_path)
    assert "Reached first: The accuracy of the plain net." in ledger.page_markdown(tmp_path)


def test_a_record_knows_the_data_that_its_study_read_also_where_they_were_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "rows.csv").write_bytes(b"1,2")
    monkeypatch.setenv("ASSAY_DATA", str(tmp_path))
    monkeypatch.setattr(ledger, "_READ", {})
    kept: list[Path] = []

    def test(run: Run) -> Evidence:
        if not kept:
            kept.append(beyond.entry("set", "rows.csv"))
        return Evidence(verdict="holds", says="", measures=())

    read = [Claim(name=n, source="s", says="s", published=(), here="h", minutes=1, test=test) for n in "ab"]
    monkeypatch.setattr(shelf, "load", lambda which, name: read)
    for name in ("someone2021/a", "someone2021/b"):
        found = ledger.record(name, run(), tmp_path / "ledger")
        assert found.data == {"set/rows.csv": hashlib.sha256(b"1,2").hexdigest()}
    assert not beyond.WATCHED


def test_every_record_of_the_ledger_is_as_the_schema_says() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads(ledger.SHIPPED.with_name("ledger.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    valid = jsonschema.Draft202012Validator(schema)
    paths = sorted(ledger.SHIPPED.glob("*.json"))
    assert len(paths) > 100
    for path in paths:
        stored = json.loads(path.read_text())
        valid.validate(stored)
        assert path.name == stored["id"].replace("/", "--") + ".json"
    with pytest.raises(jsonschema.ValidationError):
        valid.validate({**stored, "evidence": {**stored["evidence"], "verdict": "probably"}})
    assert len(ledger.read(ledger.SHIPPED)) == len(paths)  # every seal fits


# What a record was before.


def found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, claim: Claim) -> Before | None:
    monkeypatch.setattr(shelf, "load", lambda which, name: (claim,))
    return ledger.record("someone2021/it", run(), tmp_path).before


def test_a_record_keeps_the_last_verdict_that_was_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = found(tmp_path, monkeypatch, trained("holds"))
    assert first == Before(verdict="not run", why="it had not been run")
    assert "not run | holds | 1" in ledger.page_markdown(tmp_path)
    assert "not run → holds" in ledger.page(tmp_path)
    old = ledger.read(tmp_path)["someone2021/it"]
    changed_to = found(tmp_path, monkeypatch, trained("holds", reached=0.5, seeds=3))
    assert changed_to is not None
    assert (changed_to.verdict, changed_to.says, changed_to.when) == ("holds", "It gained.", old.when)
    assert changed_to.commit == old.commit
    assert changed_to.why == "not reached: The accuracy of the plain net; it rests on 3 trainings, then on 5"
    assert found(tmp_path, monkeypatch, trained("cannot tell")) == changed_to  # still the same verdict
    assert ledger.read(tmp_path)["someone2021/it"].before == changed_to
    for page in (ledger.page(tmp_path), ledger.page_markdown(tmp_path)):
        text = " ".join(page.replace("\\", "").split())
        assert "What changed" in text
        assert changed_to.why in text
        assert "holds (" in text


def test_the_same_numbers_under_another_rule_are_told_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for verdict in ("holds", "cannot tell"):
        claim = dataclasses.replace(study(verdict), name="it")
        before = found(tmp_path, monkeypatch, claim)
    assert before is not None
    assert (before.verdict, before.why) == ("holds", "the same was measured, and is judged by another rule")


def test_a_record_from_before_this_was_kept_tells_no_change(tmp_path: Path) -> None:
    ledger.record("someone2021/it-holds", run(), tmp_path)
    changed(tmp_path, before=None)
    assert ledger.read(tmp_path)["someone2021/it-holds"].before is None
    assert "What changed" not in ledger.page(tmp_path) + ledger.page_markdown(tmp_path)


@pytest.mark.parametrize("rule", [RULE, "`cannot tell` whatever is found, as print has people"])
def test_numbers_of_other_data_stand_beside_none_of_ours(
    rule: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    far = dataclasses.replace(study("holds"), here=f"other rows; {rule}")
    monkeypatch.setattr(shelf, "load", lambda which, name: (far,))
    ledger.record("someone2021/it-holds", run(), tmp_path)
    (told,) = ledger.told(tmp_path)
    assert not told.pairs
    ((why, numbers),) = told.alone
    assert "of other data" in why
    assert (len(numbers), len(told.others)) == (2, 2)
    assert "of other data, networks or settings than those here" in ledger.page(tmp_path)


def test_a_single_number_of_other_data_stands_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = (p.what for p in study("holds").published)
    monkeypatch.setattr(_reviewed, "UNLIKE", {"someone2021/it-holds": (second,)})
    ledger.record("someone2021/it-holds", run(), tmp_path)
    told = ledger.told(tmp_path)[0]
    assert [pair.printed.what for pair in told.pairs] == [first]
    assert [(why, [n.what for n in numbers]) for why, numbers in told.alone] == [
        ("of other data, networks or settings than those here", [second])
    ]


# What is in doubt.


def test_a_verdict_in_doubt_is_none_and_says_why_on_both_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = ledger.record("someone2021/it-holds", run(), tmp_path)
    assert ledger.told(tmp_path)[0].verdict == "holds"
    monkeypatch.setattr(
        _reviewed, "DOUBTS", {"someone2021/it-holds": _reviewed.Doubt(kept.when, "the rule is <b>ours</b>")}
    )
    assert ledger.told(tmp_path)[0].verdict == "cannot tell"
    assert "Its record says holds: the rule is &lt;b&gt;ours&lt;/b&gt;." in ledger.page(tmp_path)
    assert "| holds | cannot tell | 1 |" in ledger.page_markdown(tmp_path)  # among what changed
    assert "In doubt. Its record says holds: the rule is \\<b\\>ours" in ledger.page_markdown(tmp_path)
    changed(tmp_path, when="2031-01-01T00:00:00+00:00")  # tested again
    assert ledger.told(tmp_path)[0].verdict == "holds"


@pytest.mark.parametrize(
    ("seeds", "asked", "why"),
    [
        (None, 0, ""),
        (5, 5, ""),
        (1, 3, "it rests on 1 training, and 3 are asked for"),
        (None, 3, "it does not say on how many trainings it rests, and 3 are asked for"),
    ],
)
def test_a_record_of_fewer_trainings_than_are_asked_for_today_is_in_doubt(
    seeds: int | None, asked: int, why: str, tmp_path: Path
) -> None:
    entry = ledger.record("someone2021/it-holds", run(), tmp_path)
    entry = dataclasses.replace(entry, evidence=dataclasses.replace(entry.evidence, seeds=seeds))
    assert ledger.doubted(entry.id, dataclasses.replace(study("holds"), seeds=asked), entry) == why
    unsure = dataclasses.replace(entry, evidence=dataclasses.replace(entry.evidence, verdict="cannot tell"))
    assert not ledger.doubted(entry.id, dataclasses.replace(study("holds"), seeds=asked), unsure)


def test_a_record_whose_own_gate_is_missed_is_in_doubt_whatever_it_says(tmp_path: Path) -> None:
    entry = ledger.record("someone2021/it-holds", run(), tmp_path)
    gate = Gate(what="The accuracy", values=(0.8, 0.4), printed=0.9, low=0.7)
    evidence = dataclasses.replace(entry.evidence, gates=(gate,), seeds=2)
    doubt = ledger.doubted(entry.id, study("holds"), dataclasses.replace(entry, evidence=evidence))
    assert doubt == "not reached: The accuracy"


def test_notes_of_ours_are_counted_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    both = (study("holds"), dataclasses.replace(study("holds"), name="a-note", ours=True))
    monkeypatch.setattr(shelf, "load", lambda which, name: both)
    for name in ("it-holds", "a-note"):
        ledger.record(f"someone2021/{name}", run(), tmp_path)
    counted = {count.verdict: count for count in drawn.counts(ledger.told(tmp_path))}
    assert (counted["holds"].now, counted["holds"].ours) == (1, 1)
    text = ledger.page_markdown(tmp_path)
    assert "| holds | 1 |  | 1 |" in text
    assert "| someone2021/a-note (note) |" in text


def test_a_ledger_that_is_not_there_or_takes_no_record_is_told_before_the_work(tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("mine")
    for nowhere in (file, tmp_path / "typo"):
        with pytest.raises(AssayError, match=r"There is no ledger in .*--ledger names a folder of records"):
            ledger.told(nowhere)
    for taken in (file, file / "below"):
        with pytest.raises(AssayError, match=r"No record can be written to .*assay claims --ledger FOLDER test"):
            ledger.writable(taken)
    ledger.writable(tmp_path / "new" / "ledger")
    assert not (tmp_path / "new").exists()


def test_each_doubt_is_about_a_record_that_is_there_and_each_unlike_number_is_printed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.undo()  # the shelf as it is
    entries, known = ledger.read(ledger.SHIPPED), ledger.claims()
    for name, doubt in _reviewed.DOUBTS.items():
        assert entries[name].when == doubt.when, f"{name} was tested again: take its doubt back"
        assert entries[name].evidence.verdict in ("holds", "fails")
    for name, begins in _reviewed.UNLIKE.items():
        for begin in begins:
            assert any(p.what.startswith(begin) for p in known[name].published), (name, begin)


# All of them, in a time.


def test_what_was_never_run_comes_first_then_what_is_stale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def made(name: str, minutes: float) -> Claim:
        found = Evidence(verdict="holds", says="", measures=())
        return Claim(name=name, source="s", says="s", published=(), here="h", minutes=minutes, test=lambda run: found)

    many = [made("fresh", 1), made("it-holds", 9), made("long", 60), made("short", 2)]
    monkeypatch.setattr(shelf, "load", lambda which, name: many)
    for name in ("fresh", "it-holds"):
        ledger.record(f"someone2021/{name}", run(), tmp_path)
    changed(tmp_path, code=None)
    known = ledger.claims()
    order = ledger.waiting(tmp_path, known)
    assert [name.split("/")[1] for name in order] == ["short", "long", "it-holds", "fresh"]
    takes = {name: ledger.takes(name, known, ledger.read(tmp_path), "cpu") for name in order}
    assert takes["someone2021/long"] == 3600
    assert takes["someone2021/fresh"] < 1  # as it took here
    changed(tmp_path, seconds=500.0)  # the one that trained for both
    now = ledger.read(tmp_path)
    assert ledger.takes("someone2021/fresh", known, now, "cpu") == 500
    assert ledger.takes("someone2021/fresh", known, now, "cpu", warm=True) < 1
    assert ledger.takes("someone2021/fresh", known, ledger.read(tmp_path), "cuda") == 60
    assert ledger.fitting(order, 100, takes) == "someone2021/it-holds"
    assert ledger.fitting(order[:2], 100, takes) is None


def test_records_of_a_folder_here_stand_over_those_that_are_shipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger, "SHIPPED", tmp_path / "site" / "assay" / "claims" / "ledger")
    monkeypatch.chdir(tmp_path)
    assert ledger.home() == Path("claims/ledger")  # nobody writes into what is installed
    for seed, name in ((1, "it-holds"), (1, "it-cannot-tell")):
        ledger.record(f"someone2021/{name}", run(seed), ledger.SHIPPED)
    ledger.record("someone2021/it-holds", run(2))
    assert Path("claims/ledger/someone2021--it-holds.json").is_file()
    assert {n: e.seed for n, e in ledger.read().items()} == {"someone2021/it-holds": 2, "someone2021/it-cannot-tell": 1}
    assert [e.seed for e in ledger.read(ledger.SHIPPED).values()] == [1, 1]
