"""The ledger of claims: what was published, what was measured here, and under which conditions.

One JSON file per claim, `<file>--<name>.json`, with the evidence, the seed, the versions and the machine behind it, the
commit, hashes of the code and of the data, and the command that repeats it. A claim without a record was not run, and
says so. A record is stale where the code that made it has changed since, or where it does not say which code that was:
what it found was found, and may be another thing today.

A record vouches for itself (`seal`, SHA-256 over all the rest): one that was edited by hand is refused.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import cache, partial
from hashlib import sha256
from pathlib import Path
from typing import Any, get_args

from assay import code, shelf
from assay.claim import Before, Claim, Entry, Evidence, Gate, Held, judged, too_few
from assay.errors import AssayError
from assay.finding import Beside, Better, Measure
from assay.report import ledger as drawn
from assay.run import Run, environment
from assay.store import strict_json, write_atomically

SHIPPED = Path(__file__).parents[1] / "claims" / "ledger"
FORMAT = 2
COMPUTES = ("methods", "nn", "data", "remedies", "probes", "subjects")
"""The rooms whose code a study's numbers hang on; the vocabulary only hands them on, but for what follows."""
JUDGE = ("assay.interval", "assay.claim")
READS = ("inputs", "tasks")
"""What makes a verdict of numbers: intervals and gates, and how inputs and answers are read."""
PARTS = {
    "claim": "the study",
    "methods": "a method, a layer or the data's reading",
    "rules": "an interval, a gate, or how inputs and answers are read",
}
LOST = Before(verdict="not run", why="its record could not be read")
RECORDS = ":(exclude)src/assay/claims/ledger"  # of what may have changed since a commit: they are no code


def home() -> Path:
    """Where records are written if nobody says: Assay's own ledger in the root of a checkout, else claims/ledger."""
    root = SHIPPED.parents[3]
    return SHIPPED if Path.cwd() == root and (root / "pyproject.toml").is_file() else Path("claims/ledger")


def claims() -> dict[str, Claim]:
    """Every claim on the shelf by its id, '<file>/<name>'."""
    found: dict[str, Claim] = {}
    for source in shelf.names("claims"):
        for each in shelf.load("claims", source):
            name = f"{source}/{each.name}"
            if name in found:
                raise AssayError(f"Two claims are called {name!r}; give each its own name.")
            found[name] = each
    return found


def claim(name: str) -> Claim:
    known = claims()
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else "`assay claims` lists them."
        raise AssayError(f"There is no claim {name!r}; {hint}")
    return known[name]


def record(name: str, run: Run, root: Path | None = None) -> Entry:
    """Run the study behind a claim, judge what it found, and record it."""
    return keep(measured(run, name), root)


def writable(root: Path | None = None) -> None:
    """Refuse a ledger that no record can be written to, before a study takes its hours."""
    folder = root or home()
    try:
        with tempfile.TemporaryFile(dir=_nearest(folder)):
            pass
    except OSError as e:
        raise AssayError(
            f"No record can be written to {str(folder)!r}: {e.strerror}; name another folder: assay claims --ledger "
            "FOLDER test ..."
        ) from e


def _nearest(folder: Path) -> Path:
    """The folder itself, or the nearest above it that is there."""
    return next((above for above in (folder, *folder.parents) if above.exists()), folder)


def keep(entry: Entry, root: Path | None = None) -> Entry:
    """Write it, with what stood there before."""
    path = _file(root or home(), entry.id)
    last = read(root, broken=False).get(entry.id)
    before = LOST if last is None and path.exists() else _before(last, entry)
    entry = dataclasses.replace(entry, before=before)
    write_atomically(path, strict_json(_sealed({"format": FORMAT, **dataclasses.asdict(entry)})))
    return entry


def measured(run: Run, name: str) -> Entry:
    """Run the study behind a claim and judge what it found; nothing is written."""
    tested = claim(name)
    start = time.perf_counter()
    with _files_read(_module(tested)) as read_now:
        evidence = judged(tested, tested.test(run))
    versions = environment(run.device)
    place, device = f"{versions.pop('system')}, {versions.pop('cores')} cores", versions.pop("device")
    options = [] if run.budget.name == "quick" else ["--budget", run.budget.name]
    options += ["--seed", str(run.seed), *([] if run.device == "cpu" else ["--device", run.device])]
    return Entry(
        id=name,
        says=tested.says,
        evidence=evidence,
        seed=run.seed,
        budget=run.budget.name,
        machine=place if run.device == "cpu" else f"{place}, {device}",
        versions=versions,
        command=shlex.join(["assay", "claims", "test", name, *options]),
        seconds=time.perf_counter() - start,
        when=datetime.now(UTC).isoformat(timespec="seconds"),
        here=tested.here,
        commit=commit(),
        code=behind(tested),
        data={f"{path.parent.name}/{path.name}": _digest(path) for path in sorted(read_now)},
    )


def _before(last: Entry | None, now: Entry) -> Before | None:
    """What stood there until the verdict became what it is; as before where it is still the same."""
    if last is None:
        return Before(verdict="not run", why="it had not been run")
    then = last.evidence
    if then.verdict == now.evidence.verdict:
        return last.before
    return Before(verdict=then.verdict, says=then.says, when=last.when, commit=last.commit, why=_why(last, now))


def _why(last: Entry, now: Entry) -> str:
    """What differs between two tests of a claim that came out differently, the most telling first."""
    then, here = last.evidence, now.evidence
    if then.measures and [_numbers(m) for m in then.measures] == [_numbers(m) for m in here.measures]:
        return "the same was measured, and is judged by another rule"
    found = [f"not reached: {gate.what}" for gate in here.gates if gate.missed()]
    found += [f"reached now: {gate.what}" for gate in then.gates if gate.missed() and not found]
    if here.seeds is not None and here.seeds != then.seeds:
        found.append(f"it rests on {here.seeds} trainings{'' if then.seeds is None else f', then on {then.seeds}'}")
    if last.says != now.says:
        found.append("the statement is worded anew")
    if last.here and last.here != now.here:
        found.append("it is tested under other conditions")
    if not last.code:
        found.append("which code made the last record is not known")
    elif last.code != now.code:
        found.append(f"{_parts_that_differ(last.code, now.code)} changed")
    if last.data and last.data != now.data:
        found.append("the data are other files")
    if last.seed != now.seed or last.budget != now.budget:
        found.append(f"seed {now.seed} and budget {now.budget}, then {last.seed} and {last.budget}")
    return "; ".join(found) or "nothing that is recorded: the study repeats itself only so far"


def _numbers(measure: Measure) -> tuple[object, ...]:
    """A measure as it is compared: what no machine repeats is beyond six digits."""
    return measure.name, *(v if v is None else float(f"{v:.6g}") for v in (measure.value, measure.low, measure.high))


def _sealed(told: dict[str, Any]) -> dict[str, Any]:
    told.pop("seal", None)
    return {**told, "seal": sha256(json.dumps(told, sort_keys=True, allow_nan=False).encode()).hexdigest()}


def _file(root: Path, name: str) -> Path:
    return root / f"{name.replace('/', '--')}.json"


# Where a record comes from.


def _module(tested: Claim) -> str:
    test: Any = tested.test
    while isinstance(test, partial):  # whose own module is functools
        test = test.func
    return str(test.__module__)


def behind(tested: Claim) -> dict[str, str]:
    """The hashes of the code that a claim's numbers hang on, as it is now."""
    return dict(_behind(_module(tested)))


@cache  # what is loaded does not follow its file
def _behind(module: str) -> tuple[tuple[str, str], ...]:
    found = code.in_rooms(module, ("claims", *COMPUTES))
    parts = {"claim": {n: h for n, h in found.items() if n.startswith("assay.claims.") or n == module}}
    parts["methods"] = {n: h for n, h in found.items() if n not in parts["claim"]}
    read = code.in_rooms(module, ("claims", *COMPUTES), by_package=READS)
    judge = {n: h for root in JUDGE for n, h in code.in_rooms(root, ()).items()}
    parts["rules"] = judge | {n: h for n, h in read.items() if n not in found}
    return tuple((part, sha256(repr(sorted(files.items())).encode()).hexdigest()) for part, files in parts.items())


@cache
def commit() -> str:
    """The commit that Assay's own files are of, with a + where they differ from it; empty outside a checkout."""
    root = Path(__file__).parents[3]
    if not (root / ".git").exists():
        return ""

    def git(*words: str) -> str:
        asked = ["git", "-C", str(root), *words]
        return subprocess.run(asked, capture_output=True, text=True, check=True, timeout=30).stdout.strip()

    try:
        return git("rev-parse", "HEAD") + ("+" if git("status", "--porcelain", "--", "src", RECORDS) else "")
    except (OSError, subprocess.SubprocessError):
        return ""


_READ: dict[str, set[Path]] = {}
"""The files of ASSAY_DATA that each module of claims has read in this process: studies keep what they loaded."""


@contextmanager
def _files_read(module: str) -> Iterator[set[Path]]:
    """Filled, at the end, with the files that the study has read, now or when an earlier one asked for its networks."""
    from assay.data import beyond

    def note(path: Path) -> None:
        frame = sys._getframe()
        while frame is not None:  # whoever is on the way to the file, hangs on it
            where = frame.f_globals.get("__name__", "")
            if where.startswith("assay.claims.") or where == module:
                _READ.setdefault(where, set()).add(path)
            frame = frame.f_back  # type: ignore[assignment]

    found: set[Path] = set()
    beyond.WATCHED.append(note)
    try:
        yield found
    finally:
        beyond.WATCHED.remove(note)
        for name in (module, *code.in_rooms(module, ("claims",))):
            found |= _READ.get(name, set())


@cache
def _digest(path: Path) -> str:
    with path.open("rb") as file:
        import hashlib

        return hashlib.file_digest(file, "sha256").hexdigest()


def stale(tested: Claim, entry: Entry) -> str:
    """Why a record is not what the code of today would make of it; empty where nothing says so."""
    if not entry.code:
        return "it does not say which code made it"
    changed = _parts_that_differ(entry.code, behind(tested))
    return f"since then {changed} changed" if changed else ""


def _parts_that_differ(then: Mapping[str, str], now: Mapping[str, str]) -> str:
    """In words; the rules are compared where both say by which they went, which early records do not."""
    parts = [part for part in PARTS if part in then or part != "rules"]
    return " and ".join(PARTS[part] for part in parts if then.get(part) != now.get(part))


def doubted(name: str, tested: Claim, entry: Entry) -> str:
    """Why the verdict of a record may not be concluded by the rules of today; empty where it may, or is none."""
    from assay.claims._reviewed import DOUBTS

    if entry.evidence.verdict not in ("holds", "fails"):
        return ""
    seeds = entry.evidence.seeds
    if missed := [gate.what for gate in entry.evidence.gates if gate.missed()]:
        return f"not reached: {', '.join(missed)}"
    if seeds is None and tested.seeds:
        return f"it does not say on how many trainings it rests, and {tested.seeds} are asked for"
    doubt = DOUBTS.get(name)
    why = doubt.why if doubt is not None and doubt.when == entry.when else ""
    return why if seeds is None else too_few(tested, seeds) or why


# Reading.


def read(root: Path | None = None, *, broken: bool = True) -> dict[str, Entry]:
    """Every record by its claim's id: of this folder, or of the ledger that comes with Assay and, over it, of home.

    One that does not read or was edited is an error; with `broken=False` it is as if it were not there: what is about
    to be tested need not wait for another's record, nor for its own.
    """
    found: dict[str, Entry] = {}
    if broken and root is not None and not root.is_dir():
        raise AssayError(f"There is no ledger in {str(root)!r}; --ledger names a folder of records.")
    for folder in (SHIPPED, home()) if root is None else (root,):
        for path in sorted(folder.glob("*.json")):
            try:
                entry = _entry(path)
            except AssayError:
                if broken:
                    raise
                continue
            found[entry.id] = entry
    return found


def _entry(path: Path) -> Entry:
    again = "; test that claim again."
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        known = [f.name for f in dataclasses.fields(Entry)]
        told: dict[str, Any] = {name: stored[name] for name in known if name in stored}
        evidence = told["evidence"]
        measures = tuple(
            Measure(**{**m, "beside": tuple(Beside(**b) for b in m["beside"])}) for m in evidence["measures"]
        )
        gates = tuple(Gate(**{**g, "values": tuple(g["values"])}) for g in evidence.get("gates", ()))
        evidence = Evidence(**{**evidence, "measures": measures, "gates": gates})
        before = Before(**told["before"]) if told.get("before") else None
        entry = Entry(**{**told, "evidence": evidence, "before": before})
        sealed = stored["format"] == FORMAT and _sealed(dict(stored))["seal"] == stored["seal"]
        newer = isinstance(stored["format"], int) and stored["format"] > FORMAT
        if entry.evidence.verdict not in ("holds", "fails", "cannot tell"):
            raise ValueError(f"verdict {entry.evidence.verdict!r}")
        _of_their_kinds(entry)
    except (OSError, KeyError, TypeError, ValueError, AttributeError, RecursionError) as e:
        raise AssayError(f"Cannot read the record {str(path)!r}: {type(e).__name__} {e}{again}") from e
    if newer:
        raise AssayError(
            f"The record {str(path)!r} is of format {stored['format']}, and this Assay reads {FORMAT}; update Assay."
        )
    if not sealed:
        raise AssayError(f"The record {str(path)!r} was edited after it was written: its seal does not fit{again}")
    if path.name != _file(path.parent, entry.id).name:
        raise AssayError(f"The record {str(path)!r} is of {entry.id!r}, whose file has another name; remove the copy.")
    return entry


def _of_their_kinds(entry: Entry) -> None:
    """A seal vouches for what was written, whoever wrote it: what the pages print must be text or numbers."""
    evidence, before = entry.evidence, entry.before or Before(verdict="not run")
    texts = [entry.id, entry.says, entry.budget, entry.machine, entry.command, entry.when, entry.here, entry.commit]
    texts += [evidence.says, before.says, before.when, before.commit, before.why]
    texts += [part for m in evidence.measures for part in (m.name, m.unit, m.about, *(b.label for b in m.beside))]
    texts += [gate.what for gate in evidence.gates]
    texts += [part for kept in (entry.versions, entry.code, entry.data) for pair in kept.items() for part in pair]
    numbers = [entry.seconds, *(n for m in evidence.measures for n in (m.value, m.low, m.high))]
    numbers += [n for gate in evidence.gates for n in (*gate.values, gate.printed, gate.low, gate.high)]
    counts = [entry.seed, evidence.seeds, *(m.n for m in evidence.measures)]
    named: list[tuple[object, object]] = [(before.verdict, Held), *((m.better, Better) for m in evidence.measures)]
    for text in texts:
        if not isinstance(text, str):
            raise TypeError(f"{text!r} where a text is wanted")
    for number in (*numbers, *counts):
        if number is not None and not isinstance(number, int | float):
            raise TypeError(f"{number!r} where a number is wanted")
    for count in counts:
        if count is not None and not isinstance(count, int):
            raise TypeError(f"{count!r} where a whole number is wanted")
    for name, known in named:
        if name not in get_args(known):
            raise ValueError(f"{name!r} where one of {', '.join(get_args(known))} is wanted")
    for when in filter(None, (entry.when, before.when)):
        datetime.fromisoformat(when)


# All of them, in a time.


def waiting(root: Path | None, known: Mapping[str, Claim]) -> list[str]:
    """In which order to test them: what was never run, what is stale, what holds from before; the shortest first."""
    entries = read(root, broken=False)

    def turn(name: str) -> tuple[int, float]:
        entry = entries.get(name)
        return (0 if entry is None else 1 if stale(known[name], entry) else 2), known[name].minutes

    return sorted(known, key=turn)


def takes(
    name: str, known: Mapping[str, Claim], entries: Mapping[str, Entry], device: str, *, warm: bool = False
) -> float:
    """About how many seconds: as long as it took last on such a device, or what the claim says of two cores.

    The claims of one source share its networks, and whichever was tested first had trained them: unless the source is
    `warm`, the longest of them counts.
    """
    like = [entry for entry in entries.values() if ("--device" in entry.command) == (device != "cpu")]
    if name not in {entry.id for entry in like}:
        return 60 * known[name].minutes
    source = "" if warm else name.partition("/")[0]
    return max(entry.seconds for entry in like if entry.id == name or entry.id.partition("/")[0] == source)


def fitting(names: Sequence[str], left: float, seconds: Mapping[str, float]) -> str | None:
    """The first of these that fits into the time that is left."""
    return next((name for name in names if seconds[name] <= left), None)


# Pages.


def told(root: Path | None = None) -> list[drawn.Told]:
    from assay.claims._elsewhere import RULE
    from assay.claims._reviewed import UNLIKE

    foregone = RULE.partition(",")[0]  # what nothing that is found can change: print's data are not at hand
    entries = read(root)
    found = []
    for name, each in claims().items():
        entry = entries.get(name)
        unlike = ("",) if foregone in each.here else UNLIKE.get(name, ())
        old, doubt = (stale(each, entry), doubted(name, each, entry)) if entry is not None else ("", "")
        found.append(drawn.Told(name, each, entry, old, unlike, doubt))
    return found


def page_markdown(root: Path | None = None) -> str:
    """The ledger as Markdown."""
    return drawn.markdown(told(root))


def page(root: Path | None = None) -> str:
    """The ledger as one HTML page that stands alone, dressed like the report."""
    return drawn.html(told(root))
