"""Files of strangers: which may be opened, and how much may be taken from them.

A pipe named x.png never ends, a device has side effects, and a link in a folder that came by mail may lead to anything
that its reader may read. So only plain files are opened. What the user typed may be a link; what lies in a folder may
not lead out of it.
"""

from __future__ import annotations

import io
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

from assay.errors import AssayError

MOST_UNPACKED = 512 * 2**20
"""Bytes that are held at once of what a file unpacks to: an array, a group of rows, a text."""
MOST_ROWS = 2**26
"""Labelled inputs in one file: their labels take MOST_UNPACKED."""
KINDS = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a folder",
}


def open_plain(path: Path) -> io.BufferedReader:
    """The file, open for reading; a pipe, a device or a socket is refused without waiting for it."""
    # O_NONBLOCK: opening a pipe that nobody writes to would wait; what was opened is asked, so nothing can be swapped.
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    kind = stat.S_IFMT(os.fstat(descriptor).st_mode)
    if kind != stat.S_IFREG:
        os.close(descriptor)
        raise AssayError(f"{str(path)!r} is {KINDS.get(kind, 'no plain file')}; give a plain file.")
    return os.fdopen(descriptor, "rb")


def check_plain(path: Path) -> None:
    """Refuse a path that is no plain file, before it is handed to a reader that opens it itself."""
    kind = stat.S_IFMT(path.stat().st_mode)
    if kind != stat.S_IFREG:
        raise AssayError(f"{str(path)!r} is {KINDS.get(kind, 'no plain file')}; give a plain file.")


def read_plain(path: Path, most: int) -> bytes:
    """The bytes of a plain file that has at most so many."""
    with open_plain(path) as file:
        size = os.fstat(file.fileno()).st_size  # asked first: reading takes the room for what may come
        if size > most:
            raise AssayError(f"{str(path)!r} has more than {most:,} bytes; give a smaller file.")
        return file.read(size)


def files_below(folder: Path, home: Path, suffixes: tuple[str, ...]) -> Iterator[Path]:
    """The files below a folder that end so, whatever the case, and nothing hidden.

    A link that leads out of `home` is refused, as is a pipe; a link to a folder is not followed.
    """
    waiting = [folder]
    while waiting:
        with os.scandir(waiting.pop()) as entries:
            for entry in entries:
                path = Path(entry.path)
                if entry.name.startswith("."):
                    continue
                if entry.is_symlink():
                    refuse_leading_out(path, home)
                elif entry.is_dir():
                    waiting.append(path)
                    continue
                if path.suffix.lower() not in suffixes or path.is_dir():
                    continue
                if not path.is_file():
                    kind = "a link to nothing" if entry.is_symlink() else "a pipe, a socket or a device"
                    raise AssayError(f"{str(path)!r} is {kind}, not a file; remove it.")
                yield path


def refuse_leading_out(path: Path, home: Path) -> None:
    """Refuse a link that leads out of the folder `home`."""
    if not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(home)):
        raise AssayError(f"{str(path)!r} is a link that leads out of {str(home)!r}; put a copy in its place.")


def some(names: Sequence[str]) -> str:
    """The first few of the names that a file has; it may have a million."""
    return ", ".join([*map(repr, names[:8]), *(["..."] if len(names) > 8 else [])])
