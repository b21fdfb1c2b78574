"""A zip archive from a stranger, opened after a look at how much its list of members takes."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from assay.data.plain_file import open_plain
from assay.errors import AssayError

MOST_LISTED = 16 * 2**20
"""Bytes of the list of members at the end of an archive. zipfile makes ten times as much of it."""
TAIL = 22 + 65_535  # the record that ends an archive, and the longest comment after it
WIDE = 56 + 20  # what comes before it in archives of 4 GB and more: the 64-bit record and its locator


@contextmanager
def open_archive(path: Path) -> Iterator[zipfile.ZipFile]:
    """The archive; what zipfile says of a damaged one is left to the caller."""
    with open_plain(path) as file:
        size = os.fstat(file.fileno()).st_size
        file.seek(max(0, size - TAIL - WIDE))
        tail = file.read()
        at = tail.rfind(b"PK\x05\x06")
        if at < 0:
            raise zipfile.BadZipFile("File is not a zip file")
        listed = int.from_bytes(tail[at + 12 : at + 16], "little")
        wide = tail.rfind(b"PK\x06\x06", 0, at)
        if wide >= 0:
            listed = max(listed % 0xFFFFFFFF, int.from_bytes(tail[wide + 40 : wide + 48], "little"))
        if min(listed, size) > MOST_LISTED:
            raise AssayError(f"{str(path)!r} lists members in {listed:,} bytes, over {MOST_LISTED:,}; write it again.")
        with zipfile.ZipFile(file) as archive:
            yield archive


def check_unpacked(path: Path, most: int) -> list[str]:
    """The names in an archive that unpacks to no more than `most` bytes beyond its own; a larger one is refused."""
    with open_archive(path) as archive:
        entries = archive.infolist()
        unpacked = sum(entry.file_size for entry in entries)
        if unpacked > path.stat().st_size + most:
            raise AssayError(
                f"{str(path)!r} unpacks to {unpacked:,} bytes, {most:,} more than it has; write it without packing."
            )
        return [entry.filename for entry in entries]
