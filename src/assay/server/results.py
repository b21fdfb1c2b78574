"""What a job has left so far, as its page shows it: answers as they come, pages, and all of it as one archive.

Nothing here is believed: a file is read only if it lies in the job's folder and is no link, up to a size, as text or
JSON; what does not read is as if it were not there yet.
"""

from __future__ import annotations

import json
import os
import re
import stat
import zipfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay.errors import AssayError
from assay.store.files import JSON_BYTES, read, read_json

if TYPE_CHECKING:
    from assay.server.book import Job

ORDER = ("fail", "error", "cannot tell", "pass", "no standard", "not asked")
TOLD = re.compile(r"([A-Za-z0-9+_-][A-Za-z0-9.+_-]*): (pass|fail|cannot tell|error|not asked|no standard) \(.*\)")
"""How the meter tells of an answer, in the log."""
PAGES = ("report.html", "cure.html", "ship.html", "diff.html")
MOST_FILES = 20_000


@dataclass(frozen=True)
class Row:
    """One question and what came of it."""

    probe: str
    question: str
    outcome: str
    says: str


@dataclass(frozen=True)
class Answers:
    rows: tuple[Row, ...]
    asked: int
    """How many questions there are in all; 0 while that is not known."""

    @property
    def tally(self) -> str:
        seen = Counter(row.outcome for row in self.rows)
        said = {"fail": ("fails", "fail"), "pass": ("passes", "pass"), "error": ("broke", "broke")}
        parts = [f"{seen[word]} {said.get(word, (word, word))[seen[word] > 1]}" for word in ORDER[:4] if seen[word]]
        return ", ".join(parts)

    @property
    def worst(self) -> str:
        return next((word for word in ORDER if any(row.outcome == word for row in self.rows)), "")


def answers(job: Job, log: Sequence[str] = ()) -> Answers:
    """What was answered so far, in the order in which it is asked; once it has ended, the worst first."""
    run = newest_run(job.folder)
    if run is None:
        return Answers((), 0)
    done = _json(run, "audit.json")
    if isinstance(done, dict) and isinstance(done.get("rows"), list):
        rows = [_row(told, _outcome(told)) for told in done["rows"] if isinstance(told, dict)]
        return Answers(tuple(sorted(rows, key=lambda row: ORDER.index(row.outcome))), len(rows))
    plan = _json(run, "run.json")
    probes = plan.get("probes", []) if isinstance(plan, dict) else []
    probes = [name for name in probes if isinstance(name, str)] if isinstance(probes, list) else []
    told_of = {m[1]: m[2] for line in log if (m := TOLD.fullmatch(line.strip()))}
    found = []
    for name in probes:
        stored = _json(run, f"findings/{name}.json") if re.fullmatch(r"[A-Za-z0-9.+_-]+", name) else None
        if isinstance(stored, dict):
            finding = stored.get("finding")
            says = finding.get("says", "") if isinstance(finding, dict) else stored.get("why", "")
            found.append(_row({**stored, "says": says}, told_of.get(name, "no standard")))
    return Answers(tuple(found), len(probes))


def _row(told: dict[str, Any], outcome: str) -> Row:
    says = told.get("says") or told.get("why") or ""
    return Row(str(told.get("probe", ""))[:100], str(told.get("question", ""))[:300], outcome, str(says)[:1000])


def _outcome(told: dict[str, Any]) -> str:
    said = "error" if told.get("status") == "failed" else str(told.get("verdict", ""))
    return said if said in ORDER else "not asked"


def _json(folder: Path, name: str) -> Any:
    try:
        at = (folder / name).stat()
        return _parsed(folder, name, at.st_mtime_ns, at.st_size)
    except (OSError, AssayError, ValueError):
        return None


@lru_cache(maxsize=512)
def _parsed(folder: Path, name: str, when: int, size: int) -> Any:
    """Of a finding only what is shown is kept: pictures are most of it."""
    told = read_json(read(folder, name, JSON_BYTES))
    if name.startswith("findings/") and isinstance(told.get("finding"), dict):
        told["finding"] = {"says": told["finding"].get("says", "")}
    if name == "audit.json":
        kept = ("probe", "question", "status", "verdict", "why", "says")
        told = {"rows": [{key: row.get(key) for key in kept} for row in told.get("rows", []) if isinstance(row, dict)]}
    return told


def newest_run(folder: Path) -> Path | None:
    """The folder of the audit that a job has begun last; a cure begins several."""
    found = [path for path in (folder / "run").glob("*/run.json") if not path.is_symlink()]
    return max(found, key=lambda path: path.parent.name).parent if found else None


def audit_of(job: Job) -> Path | None:
    """The folder of the audit, where the job has finished one."""
    run = newest_run(job.folder)
    return run if run is not None and (run / "audit.json").is_file() else None


# Files.


def pages(job: Job) -> list[str]:
    """The pages that a job has left, as paths in its run folder; the one to open first is first."""
    found = [path for path in inside(job.folder / "run", deep=4) if path.endswith(".html")]

    def turn(path: str) -> tuple[int, int, str]:
        name = path.rpartition("/")[2]
        return (PAGES.index(name) if name in PAGES else len(PAGES), path.count("/"), path)

    top = [path for path in found if "/" not in path]  # a command's own page stands above the runs that it made
    return sorted(top, key=turn) + sorted((path for path in found if "/" in path), key=turn)


def inside(root: Path, deep: int = 12) -> Iterator[str]:
    """Every plain file below a folder, as its path in it; links are left alone."""
    count = 0
    for folder, folders, files in os.walk(root, followlinks=False):
        here = Path(folder).relative_to(root)
        folders.sort()
        if len(here.parts) >= deep:
            folders.clear()
        for name in sorted(files):
            try:
                plain = stat.S_ISREG(os.lstat(os.path.join(folder, name)).st_mode)
            except OSError:
                continue
            if plain:
                count += 1
                if count > MOST_FILES:
                    return
                yield (here / name).as_posix()


def file_of(root: Path, name: str) -> Path | None:
    """The file of this name below `root`, if it is a plain one and no link leads out."""
    path = root / name
    try:
        if not name or name.startswith("/") or ".." in Path(name).parts or not path.is_file() or path.is_symlink():
            return None
        return path if path.resolve().is_relative_to(root.resolve()) else None
    except (OSError, ValueError):  # no file can have that name
        return None


class _Pipe:
    """What a zip file is written to, and read from at the same time."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.at = 0

    def write(self, part: bytes, /) -> int:
        self.parts.append(bytes(part))
        self.at += len(part)
        return len(part)

    def tell(self) -> int:
        return self.at

    def flush(self) -> None:
        pass

    def taken(self) -> bytes:
        whole = b"".join(self.parts)
        self.parts.clear()
        return whole


def bundle(job: Job) -> Iterator[bytes]:
    """A zip file of what the job left, its log and its settings, piece by piece: it need not fit into memory."""
    pipe = _Pipe()
    top = f"assay-{job.kind}-{job.id[:8]}"
    with zipfile.ZipFile(pipe, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as zipped:  # type: ignore[call-overload]
        told = {"kind": job.kind, "title": job.title, "settings": job.settings, "state": job.state, "id": job.id}
        zipped.writestr(f"{top}/settings.json", json.dumps(told, indent=1, sort_keys=True))
        names = [("log.txt", job.folder / "log.txt")]
        names += [(f"run/{name}", job.folder / "run" / name) for name in inside(job.folder / "run")]
        for name, path in names:
            try:
                with path.open("rb") as file, zipped.open(f"{top}/{name}", "w", force_zip64=True) as to:
                    while chunk := file.read(2**20):
                        to.write(chunk)
                        if part := pipe.taken():
                            yield part
            except OSError:
                continue  # it went while we looked
    yield pipe.taken()
