"""A cheap fingerprint of files."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path


def stamp(root: Path, paths: Iterable[Path], settings: str) -> str:
    """Hash names relative to `root`, sizes and times of change, and the settings by which the files are read.

    No content is read, so that a folder larger than memory costs one look at each entry; a file changed in place
    without a new size or time goes unseen.
    """
    digest = hashlib.blake2b(settings.encode(), digest_size=16)
    for path in paths:
        status = path.stat()
        digest.update(f"{path.relative_to(root).as_posix()}\0{status.st_size}\0{status.st_mtime_ns}\0".encode())
    return digest.hexdigest()
