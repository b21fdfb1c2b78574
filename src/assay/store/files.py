"""Files of a run: written whole or not at all, and read as a stranger's.

A file is written under a temporary name that nobody else can draw, synced, renamed, and its folder synced, so that a
loss of power loses what was begun and nothing else. Those who write into one folder take turns where the system has
locks; where it has none, whoever needs to be alone checks afterwards. What is read may come from anyone: no name leads
out of the folder, no pipe or link is opened, and no file is larger than its kind may be.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import secrets
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any, NoReturn

from assay.errors import AssayError

try:
    from fcntl import LOCK_EX, LOCK_NB, flock
except ImportError:  # a system without them
    flock = None  # type: ignore[assignment]

MOST_BYTES = 512 * 2**20
"""The most that any file of a run may have; whatever is larger is none of ours."""
JSON_BYTES = 64 * 2**20
PATIENCE = 60.0  # seconds that a turn is waited for: writing one answer takes fewer
LEFT_OVER = 3600.0  # seconds after which a temporary file that nobody holds is nobody's, also where locks mean nothing
TEMPORARY = re.compile(r"\..+\.[0-9a-f]{16}\.part")


def write_atomically(path: Path, content: str | bytes) -> str:
    """All of it or nothing, also after a loss of power; returns the SHA-256 of what was written."""
    data = content.encode("utf-8", "replace") if isinstance(content, str) else content  # lone surrogates
    with naming(path):
        make_folder(path.parent)
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")
        try:
            with open(temporary, "xb") as f:
                _take(f.fileno())  # says to `sweep` that its writer lives
                f.write(data)
                f.flush()
                os.fsync(f.fileno())
                os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
        _sync(path.parent)
    return hashlib.sha256(data).hexdigest()


def make_folder(folder: Path) -> None:
    """The folder and those above it; each that is new is synced into the one above. In a run none is a link."""
    if folder.is_symlink() and (folder.parent / "run.json").exists():
        raise NotADirectoryError(errno.ENOTDIR, f"{folder.name!r} is a link, and may lead out of the run", str(folder))
    if folder.is_dir():
        return
    make_folder(folder.parent)
    if not new_folder(folder) and not folder.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, "Not a directory", str(folder))


def new_folder(folder: Path) -> bool:
    """Whether the folder could be made: False where somebody else just did, also in another container."""
    try:
        folder.mkdir()
    except FileExistsError:
        return False
    _sync(folder.parent)
    return True


def _sync(folder: Path) -> None:
    try:
        fd = os.open(folder, os.O_RDONLY)
    except OSError:  # a system on which folders are not opened
        return
    try:
        os.fsync(fd)
    except OSError as e:
        if e.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EBADF):  # a file system that syncs no folders
            raise
    finally:
        os.close(fd)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as e:
        raise AssayError(
            f"Cannot write {str(path)!r}: {e.strerror or e}; free some space or choose another folder with --out."
        ) from e


@contextmanager
def turn(folder: Path) -> Iterator[None]:
    """One writer at a time in this folder, where the system has locks.

    Where it has none, or another writer hangs, the work goes on: whoever writes files that belong together reads them
    back, and writes them again where somebody came between.
    """
    try:
        fd = os.open(folder, os.O_RDONLY)
    except OSError:
        yield
        return
    try:
        end = time.monotonic() + PATIENCE
        while not _take(fd) and time.monotonic() < end:
            time.sleep(0.02)
        yield
    finally:
        os.close(fd)


def _take(fd: int) -> bool:
    """Take the lock on what is open: False where somebody else has it; where there are no locks, nobody has."""
    if flock is None:
        return True
    try:
        flock(fd, LOCK_EX | LOCK_NB)
    except OSError as e:
        return e.errno not in (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES, errno.EINTR)
    return True


def sweep(folder: Path) -> None:
    """Remove what writers that were killed left under temporary names; what a living one writes stays.

    A process number says nothing in another container that shares the folder, so it is: nobody holds it, for an hour.
    """
    for path in folder.rglob(".*.part"):
        if not TEMPORARY.fullmatch(path.name) or path.is_symlink() or not path.is_file():
            continue
        try:
            with open(path, "rb") as f:
                if _left_over(os.fstat(f.fileno())) and _take(f.fileno()):
                    path.unlink(missing_ok=True)
        except OSError:
            continue


def sweep_stub(folder: Path) -> None:
    """Remove a run's folder that is empty, or holds only what `sweep` removes: its writer was killed at the start."""
    try:
        if not folder.is_symlink() and not (folder / "run.json").exists() and _left_over(folder.stat()):
            sweep(folder)
            folder.rmdir()  # fails where anything else is in it
    except OSError:
        return


def _left_over(status: os.stat_result) -> bool:
    return abs(time.time() - status.st_mtime) > LEFT_OVER


# What is read may be a stranger's.


@contextmanager
def opened(folder: Path, name: str, most: int = MOST_BYTES) -> Iterator[IO[bytes]]:
    """A plain file of the folder, by its name with slashes; AssayError where it is anything else."""
    path, parts = folder, PurePosixPath(name).parts
    if not parts or str(PurePosixPath(name)) != name or ".." in parts or parts[0] == "/" or set("\\:\0") & set(name):
        raise AssayError(f"{name!r} is no name of a file in {str(folder)!r}; it may lead out of it, do not trust it.")
    try:
        kind = 0
        for part in parts:
            path /= part
            kind = os.lstat(path).st_mode
            if stat.S_ISLNK(kind):
                break
        if not stat.S_ISREG(kind):
            raise AssayError(f"{name!r} in {str(folder)!r} is no plain file; a run has no links, pipes or devices.")
        with open(os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)), "rb") as f:
            size = os.fstat(f.fileno()).st_size
            if size > most:
                raise AssayError(f"{name!r} in {str(folder)!r} has {size:,} bytes, where at most {most:,} are read.")
            yield f
    except (FileNotFoundError, NotADirectoryError) as e:
        raise FileNotFoundError(errno.ENOENT, "No such file", str(path)) from e
    except OSError as e:
        raise AssayError(f"Cannot read {str(path)!r}: {e.strerror or e}; see that you may read it.") from e


def read(folder: Path, name: str, most: int = MOST_BYTES) -> bytes:
    with opened(folder, name, most) as f:
        return f.read(most)


def digest(folder: Path, name: str) -> str:
    """SHA-256 of a file of the folder, as `sha256sum` prints it."""
    found = hashlib.sha256()
    with opened(folder, name) as f:
        for chunk in iter(lambda: f.read(2**20), b""):
            found.update(chunk)
    return found.hexdigest()


def first_key(folder: Path, name: str) -> str | None:
    """The key that a JSON file of ours opens with, without reading the rest."""
    try:
        with opened(folder, name) as f:
            found = re.match(rb'\{\s*"key": "([0-9a-f]+)"', f.read(120))
    except (OSError, AssayError):
        return None
    return found.group(1).decode() if found else None


def strict_json(value: Any) -> str:
    """JSON without NaN: what was not measured is null."""
    return json.dumps(value, allow_nan=False, ensure_ascii=False, indent=1)


def read_json(content: bytes) -> dict[str, Any]:
    """A JSON object as `strict_json` writes one; ValueError where it is none, or says something twice."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        told = dict(pairs)
        if len(told) < len(pairs):
            raise ValueError("a name stands twice in one object")
        return told

    try:
        stored = json.loads(content.decode("utf-8"), parse_constant=_no_number, object_pairs_hook=once)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(stored, dict):
        raise ValueError(f"it is a {type(stored).__name__} and no object")
    return stored


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number")


@dataclass(frozen=True, kw_only=True)
class Content:
    """A file, or the files of a folder by their names in it, with the SHA-256 of each, sorted by name."""

    name: str
    single: bool
    files: Mapping[str, str]
    odd: Mapping[str, str]
    """What is there and cannot be sealed: links, pipes, names that are no text."""

    @property
    def root(self) -> str:
        """One digest for all: SHA-256 over the digests, in the order of the names (Model Signing 1.0, sec. 6.5.1)."""
        return hashlib.sha256(b"".join(map(bytes.fromhex, self.files.values()))).hexdigest()

    def told(self) -> dict[str, Any]:
        return {"name": self.name, "kind": "file" if self.single else "folder", "sha256_of_digests": self.root}
