from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from assay.data import digest, digest_cache
from assay.errors import AssayError

OLD = 10**9 + 1  # seconds and nanoseconds that are long past


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks and batches of a few bytes, so that small files have many."""
    monkeypatch.setattr(digest, "CHUNK", 4)
    monkeypatch.setattr(digest, "BATCH", 8)
    monkeypatch.setattr(digest, "FILES", 3)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own, used for files of any size; the disk of the test is one that can be relied on."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(digest, "WORTH", 0)
    monkeypatch.setattr(digest_cache, "MARGIN", 0.0)
    monkeypatch.setattr(digest_cache, "_disks", lambda: frozenset({tmp_path.stat().st_dev}))
    return tmp_path / "cache" / "assay"


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files whose content was read."""
    seen: list[str] = []
    chunks = digest._chunks

    def noted(path: Path, *rest: object) -> object:
        seen.append(path.name)
        return chunks(path, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(digest, "_chunks", noted)
    return seen


def as_described(root: Path, paths: list[Path], settings: str) -> str:
    """The hash as the docstring has it, a chunk at a time."""
    whole = hashlib.sha256(f"{len(settings)} {settings}".encode())
    for path in paths:
        content, name = path.read_bytes(), path.relative_to(root).as_posix().encode()
        chunks = [content[i : i + digest.CHUNK] for i in range(0, len(content), digest.CHUNK)]
        file = hashlib.sha256(b"%d " % len(content) + b"".join(hashlib.sha256(c).digest() for c in chunks)).digest()
        whole.update(b"%d %d %s" % (len(name), len(content), name) + file)
    return whole.hexdigest()


def written(root: Path, **contents: bytes) -> list[Path]:
    for name, content in contents.items():
        (root / name).write_bytes(content)
    return [root / name for name in contents]


def settle() -> None:
    """Let the clock of the disk tick on, which is coarser than time's."""
    time.sleep(0.05)


@pytest.mark.usefixtures("small")
def test_many_chunks_and_files_are_hashed_as_described(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    paths = written(tmp_path, **{f"f{n}": rng.bytes(n) for n in (0, 1, 3, 4, 5, 8, 9, 16, 33, 100)})
    assert digest.of_files(tmp_path, paths, "as they are") == as_described(tmp_path, paths, "as they are")
    found = {digest.of_files(tmp_path, some, s) for some in (paths, paths[::-1], paths[1:]) for s in ("a", "b")}
    assert len(found) == 6


@pytest.mark.usefixtures("small")
def test_memory_is_hashed_by_value() -> None:
    x = np.arange(24.0).reshape(4, 6)
    assert digest.of_array(x) == digest.of_array(np.asfortranarray(x)) == digest.of_array(np.pad(x, 1)[1:-1, 1:-1])
    others = [x.reshape(6, 4), x.astype(np.float32), x + 1e-12, x[:0], x[:, :0]]
    assert len({digest.of_array(a) for a in (x, *others)}) == 6
    gappy = np.zeros(3, np.dtype([("a", "u1"), ("b", "f8")], align=True))
    filled = np.frombuffer(bytearray(b"\xff" * gappy.nbytes), gappy.dtype).copy()
    for field in ("a", "b"):
        filled[field] = gappy[field]
    assert digest.of_array(gappy) == digest.of_array(filled)


def test_what_is_no_file_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name, words in (("pipe", "no plain file"), ("nothing", "No such file"), (".", "no plain file")):
        with pytest.raises(AssayError, match=words) as refused:
            digest.of_files(tmp_path, [tmp_path / name], "")
        assert "\n" not in str(refused.value)


def test_a_file_that_shrinks_meanwhile_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (path,) = written(tmp_path, a=b"12345")
    before = path.stat()
    monkeypatch.setattr(digest, "_status", lambda _: before)
    path.write_bytes(b"123")
    with pytest.raises(AssayError, match="became shorter while it was read"):
        digest.of_files(tmp_path, [path], "")


def test_an_unchanged_file_is_read_once(tmp_path: Path, cache: Path, reads: list[str]) -> None:
    paths = written(tmp_path, a=b"one", b=b"two")
    settle()
    first = digest.of_files(tmp_path, paths, "")
    assert sorted(reads) == ["a", "b"]
    assert digest.of_files(tmp_path, paths, "") == first
    assert len(reads) == 2
    assert digest.of_files(tmp_path, paths[:1], "") != first
    assert len(reads) == 2
    written(tmp_path, c=b"three")
    settle()
    digest.of_files(tmp_path, [*paths, tmp_path / "c"], "")
    assert reads[2:] == ["c"]
    assert cache.stat().st_mode & 0o777 == 0o700
    assert [p.stat().st_mode & 0o777 for p in cache.iterdir()] == [0o600]


@pytest.mark.usefixtures("cache")
def test_an_edit_is_seen_whatever_the_times_say(tmp_path: Path) -> None:
    (path,) = written(tmp_path, a=b"one")
    os.utime(path, ns=(OLD, OLD))
    settle()
    before = digest.of_files(tmp_path, [path], "")
    path.write_bytes(b"two")
    os.utime(path, ns=(OLD, OLD))  # the size and the time of modification are those of before
    assert digest.of_files(tmp_path, [path], "") != before


@pytest.mark.usefixtures("cache")
def test_a_file_that_was_just_written_is_read_again(
    tmp_path: Path, reads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second edit within one tick of the clock leaves all times as they were."""
    monkeypatch.setattr(digest_cache, "MARGIN", 60.0)
    (path,) = written(tmp_path, a=b"one")
    for _ in range(2):
        digest.of_files(tmp_path, [path], "")
    os.utime(path, ns=(OLD, OLD))  # set back, but the inode's time tells
    for _ in range(2):
        digest.of_files(tmp_path, [path], "")
    os.utime(path, ns=(2**62, 2**62))  # a clock that was ahead
    digest.of_files(tmp_path, [path], "")
    assert reads == ["a"] * 5


@pytest.mark.usefixtures("cache")
def test_other_disks_are_not_relied_on(tmp_path: Path, reads: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    paths = written(tmp_path, a=b"one")
    settle()
    digest.of_files(tmp_path, paths, "")
    monkeypatch.setattr(digest_cache, "_disks", frozenset)
    for _ in range(2):
        digest.of_files(tmp_path, paths, "")
    assert reads == ["a"] * 3


SPOILT = {
    "cut short": lambda f: f.write_bytes(f.read_bytes()[:-1]),
    "a bit turned": lambda f: f.write_bytes(f.read_bytes()[:-1] + bytes([f.read_bytes()[-1] ^ 1])),
    "empty": lambda f: f.write_bytes(b""),
    "text": lambda f: f.write_bytes(b"{}"),
    "a folder": lambda f: (f.unlink(), f.mkdir()),
    "a link": lambda f: (f.rename(f.with_name("x")), f.symlink_to("x")),
    "a pipe": lambda f: (f.unlink(), os.mkfifo(f, 0o600)),
    "open to others": lambda f: f.chmod(0o666),
    "in an open folder": lambda f: f.parent.chmod(0o777),
    "in a linked folder": lambda f: (f.parent.rename(f.parent.with_name("x")), f.parent.symlink_to("x")),
}


@pytest.mark.parametrize("how", SPOILT)
def test_a_spoilt_cache_is_not_believed_and_not_complained_of(
    tmp_path: Path, cache: Path, reads: list[str], how: str
) -> None:
    paths = written(tmp_path, a=b"one")
    settle()
    first = digest.of_files(tmp_path, paths, "")
    (kept,) = cache.iterdir()
    SPOILT[how](kept)
    assert digest.of_files(tmp_path, paths, "") == first
    assert reads == ["a", "a"]


@pytest.mark.usefixtures("cache")
def test_a_strangers_folder_is_not_used(tmp_path: Path, reads: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    paths = written(tmp_path, a=b"one")
    settle()
    digest.of_files(tmp_path, paths, "")
    monkeypatch.setattr(os, "geteuid", lambda: os.stat(tmp_path).st_uid + 1)
    digest.of_files(tmp_path, paths, "")
    assert reads == ["a", "a"]


def test_no_place_for_a_cache_is_no_matter(
    tmp_path: Path, cache: Path, reads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = written(tmp_path, a=b"one")
    monkeypatch.setenv("XDG_CACHE_HOME", str(paths[0]))  # a file
    settle()
    for _ in range(2):
        digest.of_files(tmp_path, paths, "")
    assert reads == ["a", "a"]
    assert not cache.exists()


def test_the_cache_stays_within_its_room(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digest_cache, "ROOM", 300)
    monkeypatch.setattr(digest_cache, "MOST", 2)
    for name in "abcd":
        folder = tmp_path / name
        folder.mkdir()
        paths = written(folder, one=b"1", two=b"2", three=b"3")
        settle()
        digest.of_files(folder, paths, "")
    sizes = [p.stat().st_size for p in cache.iterdir()]
    assert len(sizes) == 1
    assert sum(sizes) <= 300


@pytest.mark.usefixtures("cache")
def test_small_sets_leave_no_trace(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digest, "WORTH", 1 << 20)
    paths = written(tmp_path, a=b"one")
    settle()
    digest.of_files(tmp_path, paths, "")
    assert not cache.exists()


@pytest.mark.usefixtures("small")
def test_whoever_waits_is_told_and_nothing_is_read_twice_meanwhile(
    tmp_path: Path, reads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digest, "SHOWN", 0)
    monkeypatch.setattr(digest, "BATCH", 1 << 19)
    monkeypatch.setattr(digest, "CHUNK", 1 << 18)
    told: list[tuple[str, int]] = []

    @contextmanager
    def progress(about: str, total: int) -> Iterator[object]:
        told.append((about, total))
        done: list[int] = []
        yield done.append
        told.append(("done", sum(done)))

    paths = written(tmp_path, a=bytes(3 << 20))
    with digest.reading(progress):  # type: ignore[arg-type]
        first = digest.of_files(tmp_path, paths, "")
        before = len(reads)
        assert digest.of_files(tmp_path, paths, "") == first
        assert len(reads) == before
    assert told[:2] == [("reading data (MiB)", 3), ("done", 3)]
    digest.of_files(tmp_path, paths, "")
    assert len(reads) == 2 * before
    assert len(told) <= 4


def test_only_disks_of_this_machine_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = "22 1 8:1 / / rw shared:1 - ext4 /dev/sda1 rw\n23 1 0:30 / /net rw - nfs4 host:/x rw\nnot a mount\n"
    (tmp_path / "mountinfo").write_text(lines)
    real = open
    monkeypatch.setattr(
        digest_cache, "open", lambda path, *a, **k: real(tmp_path / "mountinfo", *a, **k), raising=False
    )
    assert digest_cache._disks() == {os.makedev(8, 1)}
