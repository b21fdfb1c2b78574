"""Hashes of files that were read before, kept in the user's cache folder; a file that may have changed is not in it.

A hash stands under its file's device, inode, size and times. The times alone prove little: a file can change twice
within one tick of its clock, and its time of modification can be set back. So a hash is kept only of a file whose last
change, the inode's included (`ctime`, which no program can set), lies MARGIN before the moment of reading. And only on
disks of this machine, whose kernel keeps these times: network and user file systems tell what they like, in memory a
mapped write leaves no trace, and in packed images times are invented, to the whole second, and the same in two images.

A wrong hash would be believed, so that nobody else may have written it: the folder is the user's own and closed to all
others, or it is not used. Whatever is wrong here, the content is read, and nothing is said.
"""

from __future__ import annotations

import hashlib
import os
import stat
import struct
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

MARGIN = 60.0  # seconds; as long as a mapped page is dirty, further writes to it leave the times as they are
MOST = 1 << 20  # hashes kept of one folder
ROOM = 256 << 20  # bytes of the whole cache
HEAD = b"assay hashes of files, 1\n"
KEY = struct.Struct("<QQQqq")
HASH = hashlib.sha256().digest_size
RECORD = KEY.size + HASH
DISKS = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "bcachefs", "zfs", "overlay"})


def key(status: os.stat_result) -> bytes:
    """What a file is known by."""
    return KEY.pack(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def known(root: Path, stats: Sequence[os.stat_result]) -> dict[int, bytes]:
    """The hashes of those of the files below `root` that are known, by their place."""
    disks = _disks()
    if not any(status.st_dev in disks for status in stats):
        return {}
    with suppress(OSError, ValueError), _folder() as folder:
        held = _load(folder, _name(root))
        found = {i: held.get(key(status)) for i, status in enumerate(stats) if status.st_dev in disks}
        return {i: digest for i, digest in found.items() if digest is not None}
    return {}


def keep(root: Path, hashes: Mapping[os.stat_result, bytes], now: int) -> None:
    """Keep these hashes of files below `root`, read from `now` (nanoseconds) on, as far as they can be relied on."""
    disks = _disks()
    fresh = {key(status): digest for status, digest in hashes.items() if status.st_dev in disks and _old(status, now)}
    if not fresh:
        return
    with suppress(OSError, ValueError), _folder() as folder:
        try:
            held = _load(folder, _name(root))
        except (OSError, ValueError):  # none yet, or a damaged one
            held = {}
        records = [k + d for k, d in ({**fresh, **{k: d for k, d in held.items() if k not in fresh}}).items()]
        body = b"".join(records[:MOST])
        _write(folder, _name(root), HEAD + hashlib.sha256(body).digest() + body)
        _sweep(folder)


def _old(status: os.stat_result, now: int) -> bool:
    """Whether the last change was long enough ago, by a clock that ticks more finely than whole seconds."""
    last = max(status.st_mtime_ns, status.st_ctime_ns)  # a time in the future is not old either
    return now - last > MARGIN * 1e9 and status.st_ctime_ns % 10**9 != 0


def _disks() -> frozenset[int]:
    """The device numbers of the file systems whose times can be relied on; none where the system does not tell."""
    found = set()
    with suppress(OSError, ValueError), open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as mounts:
        for line in mounts:
            about, _, kind = line.partition(" - ")
            if kind.split(" ", 1)[0] in DISKS:
                major, _, minor = about.split(" ")[2].partition(":")
                found.add(os.makedev(int(major), int(minor)))
    return frozenset(found)


@contextmanager
def _folder() -> Iterator[int]:
    """The open cache folder, made where there is none; OSError where it is not the user's own, or open to others."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    path = (Path(given) if os.path.isabs(given) else Path.home() / ".cache") / "assay"
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with suppress(FileExistsError):
        path.mkdir(mode=0o700)
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        _check_own(os.fstat(folder))
        yield folder
    finally:
        os.close(folder)


def _check_own(status: os.stat_result) -> None:
    if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077:
        raise PermissionError("not the user's own")


def _name(root: Path) -> str:
    return hashlib.sha256(os.fsencode(root.resolve())).hexdigest()[:32] + ".files"


def _load(folder: int, name: str) -> dict[bytes, bytes]:
    """The records of a file, key and hash; ValueError where it is not whole."""
    file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    with open(file, "rb") as opened:
        status = os.fstat(file)
        _check_own(status)
        if not stat.S_ISREG(status.st_mode):
            raise ValueError("no plain file")
        content = opened.read(len(HEAD) + HASH + RECORD * MOST)
    body = content[len(HEAD) + HASH :]
    if content[: len(HEAD) + HASH] != HEAD + hashlib.sha256(body).digest() or len(body) % RECORD:
        raise ValueError("damaged")
    return {body[i : i + KEY.size]: body[i + KEY.size : i + RECORD] for i in range(0, len(body), RECORD)}


def _write(folder: int, name: str, content: bytes) -> None:
    temporary = f".{uuid.uuid4().hex}"
    try:
        file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600, dir_fd=folder)
        with open(file, "wb") as opened:
            opened.write(content)
        os.replace(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    except OSError:
        with suppress(OSError):
            os.unlink(temporary, dir_fd=folder)
        raise


def _sweep(folder: int) -> None:
    """Remove the oldest files until the others fit into the room; what a killed process left is swept with them."""
    found = []
    for name in os.listdir(folder):
        with suppress(OSError):
            status = os.stat(name, dir_fd=folder, follow_symlinks=False)
            found.append((status.st_mtime_ns, status.st_size, name))
    room = ROOM
    for _, size, name in sorted(found, reverse=True):
        room -= size
        if room < 0 and (name.endswith(".files") or name.startswith(".")):
            with suppress(OSError):
                os.unlink(name, dir_fd=folder)
