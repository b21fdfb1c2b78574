"""Hash the content of files and of memory: fast, and never twice without need.

    file = SHA-256(its size, SHA-256(chunk 1), SHA-256(chunk 2), ...)        chunks of 4 MiB, hashed side by side
    set  = SHA-256(settings, and for each file its name, its size and its hash)

What was read before and has not changed since is taken from `digest_cache`, where there is enough to read.
"""

from __future__ import annotations

import hashlib
import os
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from assay.data import digest_cache
from assay.errors import AssayError

CHUNK = 4 << 20
BATCH = 8 * CHUNK  # what one thread takes at a time
FILES = 256  # the most files in a batch
WORTH = 32 << 20  # bytes to read before the cache is opened; a file counts OPENING more
OPENING = 16 << 10
SHOWN = 256 << 20  # bytes to read before anyone is told

Progress = Callable[[str, int], AbstractContextManager[Callable[[int], None]]]


class _Reading(NamedTuple):
    progress: Progress
    seen: dict[bytes, bytes]


_reading: ContextVar[_Reading | None] = ContextVar("reading", default=None)


@contextmanager
def reading(progress: Progress) -> Iterator[None]:
    """Inside, a file that looks the same is read once, and whoever waits for a large set is told how far it is."""
    token = _reading.set(_Reading(progress, {}))
    try:
        yield
    finally:
        _reading.reset(token)


def of_array(array: NDArray[Any]) -> bytes:
    """The hash of an array's type, shape and every value; not of the gaps between the fields of a record."""
    digest = hashlib.sha256(f"{array.dtype.str} {array.shape}".encode())
    for field in array.dtype.names or ():
        digest.update(f" {field} ".encode() + of_array(array[field]))
    if array.dtype.names is None:
        digest.update(of_bytes(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data))
    return digest.digest()


def of_bytes(view: memoryview) -> bytes:  # of bytes
    """The hash of what is in memory."""
    starts = range(0, len(view), CHUNK)
    if len(starts) < 2:
        return _joined(len(view), [hashlib.sha256(view).digest()] if len(view) else [])
    with ThreadPoolExecutor(_threads()) as pool:
        return _joined(len(view), list(pool.map(lambda s: hashlib.sha256(view[s : s + CHUNK]).digest(), starts)))


def of_files(root: Path, paths: Sequence[Path], settings: str) -> str:
    """The hash of these files, by their names relative to `root`, and of the settings by which they are read."""
    stats = [_status(path) for path in paths]
    cost = sum(s.st_size + OPENING for s in stats)
    now_reading = _reading.get()
    seen = now_reading.seen if now_reading else {}
    known = digest_cache.known(root, stats) if cost >= WORTH else {}
    if seen:
        known |= {i: seen[k] for i, s in enumerate(stats) if (k := digest_cache.key(s)) in seen}
    unknown = [i for i in range(len(paths)) if i not in known]
    now = time.time_ns()
    fresh = {}
    for i, (found, still) in zip(unknown, _read([paths[i] for i in unknown], [stats[i] for i in unknown]), strict=True):
        known[i] = found
        if still:
            fresh[i] = seen[digest_cache.key(stats[i])] = found
    if cost >= WORTH:
        digest_cache.keep(root, {stats[i]: found for i, found in fresh.items()}, now)
    digest = hashlib.sha256(f"{len(settings)} {settings}".encode())
    for i, status in enumerate(stats):
        name = os.fsencode(_below(root, paths[i]))
        digest.update(b"%d %d %s" % (len(name), status.st_size, name) + known[i])
    return digest.hexdigest()


def _below(root: Path, path: Path) -> str:
    """The path below the root, with slashes; pathlib alone would take half of the time that a known set takes."""
    lead, whole = f"{root}/", str(path)
    return whole[len(lead) :] if whole.startswith(lead) else path.relative_to(root).as_posix()


def _joined(size: int, chunks: Sequence[bytes]) -> bytes:
    return hashlib.sha256(b"%d " % size + b"".join(chunks)).digest()


def _threads() -> int:
    return min(8, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)


def _status(path: Path) -> os.stat_result:
    try:
        status = os.stat(path)
    except OSError as e:
        raise AssayError(f"Cannot read {str(path)!r}: {e.strerror or e}; put the file back, or leave it out.") from e
    if not stat.S_ISREG(status.st_mode):
        raise AssayError(f"{str(path)!r} is no plain file; remove it from the data.")
    return status


class _Piece(NamedTuple):
    """Some chunks of a file."""

    file: int
    start: int
    end: int


def _read(paths: Sequence[Path], stats: Sequence[os.stat_result]) -> Iterator[tuple[bytes, bool]]:
    """For each file its hash, and whether it stood still while it was read."""
    batches: list[list[_Piece]] = []
    room = 0
    for i, status in enumerate(stats):
        for begin in range(0, max(status.st_size, 1), BATCH):
            piece = _Piece(i, begin, min(begin + BATCH, status.st_size))
            if not batches or room < piece.end - piece.start or len(batches[-1]) == FILES:
                batches.append([])
                room = BATCH
            batches[-1].append(piece)
            room -= piece.end - piece.start
    chunks: list[list[bytes]] = [[] for _ in paths]
    still = [True] * len(paths)

    def work(batch: Sequence[_Piece]) -> list[tuple[int, list[bytes], bool]]:
        buffer = memoryview(bytearray(min(CHUNK, max((p.end - p.start for p in batch), default=0))))
        return [(p.file, *_chunks(paths[p.file], stats[p.file], p, buffer)) for p in batch]

    total = sum(s.st_size for s in stats)
    told = _reading.get()
    shown = told is not None and total >= SHOWN
    showing = told.progress("reading data (MiB)", total >> 20) if told and shown else nullcontext(lambda done: None)
    with ThreadPoolExecutor(_threads()) as pool, showing as tick:
        done = 0
        for batch, found in zip(batches, (pool.map if len(batches) > 1 else map)(work, batches), strict=True):
            for i, digests, same in found:
                chunks[i] += digests
                still[i] &= same
            before, done = done, done + sum(p.end - p.start for p in batch)
            tick((done >> 20) - (before >> 20))
    for i, status in enumerate(stats):
        yield _joined(status.st_size, chunks[i]), still[i]


def _chunks(path: Path, status: os.stat_result, piece: _Piece, buffer: memoryview) -> tuple[list[bytes], bool]:
    """The hashes of the chunks, and whether the file is the one that was looked at, before and after."""
    digests = []
    try:
        with open(path, "rb", buffering=0, opener=_without_waiting) as file:
            same = digest_cache.key(os.fstat(file.fileno())) == digest_cache.key(status)
            file.seek(piece.start)
            for start in range(piece.start, piece.end, CHUNK):
                part, filled = buffer[: min(CHUNK, piece.end - start)], 0
                while filled < len(part):
                    got = file.readinto(part[filled:])
                    if not got:
                        raise AssayError(f"{str(path)!r} became shorter while it was read; wait until it is whole.")
                    filled += got
                digests.append(hashlib.sha256(part).digest())
            return digests, same and digest_cache.key(os.fstat(file.fileno())) == digest_cache.key(status)
    except OSError as e:
        raise AssayError(f"Cannot read {str(path)!r}: {e.strerror or e}; put the file back, or leave it out.") from e


def _without_waiting(path: str, flags: int) -> int:
    """Open, also where someone has put a pipe in the file's place since it was looked at."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
