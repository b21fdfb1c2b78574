"""The folder of a job: files/ (what was uploaded), run/ (what the command leaves), log.txt, job.json."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Container, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from assay.errors import AssayError
from assay.server.errors import Full, Refused

GB = 10**9
READ_AT_ONCE = 2**18
ABANDONED = 86400.0  # seconds after which a folder without a job is nobody's
NAME = re.compile(r"(?!\.)[^/\\\0]{1,200}")


def folder_of(home: Path, id: str) -> Path:
    return home / "jobs" / id


def make(home: Path) -> None:
    """Where the folders of all jobs lie."""
    folder = home / "jobs"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise AssayError(f"Cannot write {str(folder)!r}: {e.strerror or e}; choose another folder with --home.") from e


def fill(home: Path, row: Mapping[str, Any], files: Mapping[str, Path], *, free: int) -> int:
    """Write the folder of this row of the book, and leave so many bytes of the disk free; what it holds then."""
    folder = folder_of(home, row["id"])
    told = {name: row[name] for name in ("id", "kind", "title", "made")}
    told["settings"] = json.loads(row["settings"])
    told["files"] = sorted(files)
    try:
        if shutil.disk_usage(home).free < free + sum(map(size, files.values())):
            raise Full(f"The disk is full: less than {gb(free)} would stay free; remove some jobs first.")
        for name in ("files", "run"):
            (folder / name).mkdir(parents=True)
        for name, path in files.items():
            if not NAME.fullmatch(name):
                raise Refused(f"{name[:80]!r} is no name for a file; give one without slashes or a leading dot.")
            if path.is_symlink() or (path.is_dir() and any(found.is_symlink() for found in path.rglob("*"))):
                raise Refused(f"{path.name!r} holds a link to somewhere else; send the files themselves.")
            link(path, folder / "files" / name)
        (folder / "job.json").write_text(json.dumps(told, indent=1))
        (folder / "log.txt").touch()
    except OSError as e:
        raise Full(f"The job could not be written: {e.strerror or e}; free some room or mend the disk.") from e
    return size(folder)


def log(folder: Path, after: int) -> tuple[list[str], int]:
    """Whole lines of log.txt from that offset on, as many as are read at once, and the offset to go on from."""
    try:
        with open(folder / "log.txt", "rb") as f:
            f.seek(max(0, after))
            some = f.read(READ_AT_ONCE)
    except OSError:
        return [], after
    whole = some.rfind(b"\n") + 1
    if not whole and len(some) == READ_AT_ONCE:  # one line longer than that is told in pieces
        whole = len(some)
    return some[:whole].decode("utf-8", "replace").splitlines(), max(0, after) + whole


def sweep(home: Path, known: Container[str]) -> None:
    """Remove folders of jobs that were never written: whoever sent them was cut off in between."""
    for folder in (home / "jobs").iterdir():
        with suppress(OSError):
            if folder.name not in known and time.time() - folder.stat().st_mtime > ABANDONED:
                shutil.rmtree(folder, ignore_errors=True)


def size(path: Path) -> int:
    """Bytes of a file, or of all files in a folder; what goes meanwhile counts as nothing."""
    try:
        if not path.is_dir():
            return path.lstat().st_size
        return sum(size(Path(entry)) for entry in os.scandir(path) if not entry.is_symlink())
    except OSError:
        return 0


def gb(n: float) -> str:
    return f"{n / GB:.3g} GB"


def link(path: Path, to: Path) -> None:
    """A file, or a folder of files, to another place. On the same disk that takes no room; nothing writes there."""
    if path.is_dir():
        shutil.copytree(path, to, copy_function=_link)
    else:
        _link(path, to)


def _link(path: str | Path, to: str | Path) -> str:
    try:
        os.link(path, to)
    except OSError:
        shutil.copy2(path, to)
    return str(to)
