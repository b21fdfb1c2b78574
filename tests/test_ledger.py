"""The ledger keeps what was measured beside what was published, and never calls a claim tested that was not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from assay import shelf
from assay.claim import Claim, Evidence, Held, Published
from assay.engine.local import ThisProcess
from assay.errors import AssayError
from assay.finding import Beside, Measure
from assay.jobs import claims as ledger
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
        published=(Published("gain in accuracy", 0.0155, "table 3, row 2", "%"),),
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
    tested, untested = text.split("it-cannot-tell")[0], text.split("it-cannot-tell", 1)[1]
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
    assert "1.2 %" not in untested


def test_text_from_elsewhere_stays_text(tmp_path: Path) -> None:
    ledger.record("someone2021/it-holds", run(), tmp_path)
    page = ledger.page(tmp_path)
    assert "<b>gave</b>" not in page
    assert "&lt;b&gt;gave&lt;/b&gt;" in page
    assert "\\|" in ledger.page_markdown(tmp_path)  # or the cell would end there
    assert "<b>" not in ledger.page_markdown(tmp_path).replace("\\<b\\>", "")


def test_a_claim_that_was_reworded_says_what_was_tested(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger.record("someone2021/it-holds", run(), tmp_path)
    path = tmp_path / "someone2021--it-holds.json"
    path.write_text(path.read_text().replace("Centring | helps.", "Centring always helps."))
    assert "tested as it was worded then: Centring always helps." in ledger.page_markdown(tmp_path)


@pytest.mark.parametrize("render", [ledger.page, ledger.page_markdown])
def test_a_record_tells_what_it_was_tested_on_whatever_a_later_test_would_be(render: object, tmp_path: Path) -> None:
    assert callable(render)
    ledger.record("someone2021/it-holds", run(), tmp_path)
    path = tmp_path / "someone2021--it-holds.json"
    assert json.loads(path.read_text())["here"] == "two seeds"
    path.write_text(path.read_text().replace("two seeds", "five seeds"))
    tested = render(tmp_path).split("it-cannot-tell")[0]
    assert "five seeds" in tested
    assert "two seeds" not in tested
    stored = json.loads(path.read_text())
    del stored["here"]  # from before it was kept
    path.write_text(json.dumps(stored))
    assert "two seeds" in render(tmp_path).split("it-cannot-tell")[0]
