"""Uploads: what is not what its name says, leads outside, or is too much, is refused in one line."""

from __future__ import annotations

import io
import os
import shutil
import stat
import struct
import time
import zipfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.errors import AssayError
from assay.server import uploads
from assay.server.uploads import KEPT, Uploads, in_bytes, safe_name

DRAFT = "d" * 22


@pytest.fixture
def kept(tmp_path, monkeypatch):
    monkeypatch.setattr(uploads, "LEFT", 0)
    return Uploads(tmp_path)


def take(kept, name, content, **how):
    return kept.take("ada", DRAFT, name, io.BytesIO(content), **how)


def packed(*members, compression=zipfile.ZIP_STORED):
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w", compression) as made:
        for name, content in members:
            made.writestr(name, content)
    return held.getvalue()


def refused(kept, name, content, says, **how):
    with pytest.raises(AssayError, match=says):
        take(kept, name, content, **how)
    assert kept.files("ada", DRAFT) == {}
    left = [path for path in kept.root.rglob("*") if path.is_file() and path.name != "owner"]
    assert left == []  # nothing of it stays


def test_a_file_is_kept_as_it_came(kept):
    found = take(kept, "C:\\my data\\rows (1).CSV", b"a,b\n1,2\n")
    assert found.name == "rows-1.csv"
    assert found.path.read_bytes() == b"a,b\n1,2\n"
    assert kept.files("ada", DRAFT) == {"rows-1.csv": found}
    assert kept.files("bob", DRAFT) == {}
    assert take(kept, "rows (1).csv", b"c\n").name == "rows-1-2.csv"  # both stay
    kept.drop("bob", DRAFT, "rows-1.csv")
    assert "rows-1.csv" in kept.files("ada", DRAFT)
    kept.drop("ada", DRAFT, "rows-1.csv")
    assert list(kept.files("ada", DRAFT)) == ["rows-1-2.csv"]


@given(st.text("aZ9._-+/\\ \0\n:*é\u202e", max_size=300))
def test_a_name_is_one_plain_part_of_a_path(name):
    safe = safe_name(name)
    assert 1 <= len(safe) <= 97
    assert not safe.startswith((".", "-"))
    assert set(safe) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._+-")
    assert safe.count(".") <= 1
    assert safe_name(safe) == safe


@pytest.mark.parametrize("name", ["../evil.png", "a/../../evil.png", "/etc/evil.png", "..\\evil.png", "C:\\evil.png",
                                  "a/..", "a\nb.png"])  # fmt: skip
def test_an_archive_that_leads_outside_is_refused(kept, name, tmp_path):
    refused(kept, "x.zip", packed(("good.png", b"1"), (name, b"2")), "leads outside")
    assert not (tmp_path / "evil.png").exists()
    assert not (tmp_path.parent / "evil.png").exists()


def test_a_link_in_an_archive_is_refused(kept):
    link = zipfile.ZipInfo("link")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    refused(kept, "x.zip", packed((link, "/etc/passwd")), "holds the link 'link'")


def test_a_bomb_is_refused(kept, tmp_path, monkeypatch):
    monkeypatch.setattr(uploads, "FREE", 2**22)
    bomb = packed(("a.csv", b"0" * (uploads.FREE + 1)), compression=zipfile.ZIP_DEFLATED)
    assert len(bomb) < 2**16
    refused(kept, "x.zip", bomb, "refused as a bomb")
    small = Uploads(tmp_path / "small", unpacked=1000)
    with pytest.raises(AssayError, match="unpacks to more than"):
        take(small, "x.zip", packed(("a.csv", b"0" * 1001)))


def test_an_archive_that_lies_about_its_size_is_counted(tmp_path, monkeypatch):
    """What its directory says is small; what comes out is not."""
    content = packed(("a.csv", b"0" * 5000), compression=zipfile.ZIP_DEFLATED)
    at = content.index(b"PK\x01\x02")
    lying = content[: at + 24] + struct.pack("<I", 10) + content[at + 28 :]
    small = Uploads(tmp_path, unpacked=1000)
    with pytest.raises(AssayError, match="unpacks to more than|broken archive"):
        take(small, "x.zip", lying)
    assert small.files("ada", DRAFT) == {}


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"PK\x03\x04 and no more", "broken archive"),
        (packed(("a.png", b"1"))[:-30], "broken archive"),
        (b"hello", "does not begin as .zip"),
        (packed(), "does not begin as .zip|holds no file"),
        (packed(("__MACOSX/a", b"1"), (".DS_Store", b"2")), "holds no file"),
        (packed(("a/b.png", b"1"), ("a", b"2")), "one name"),
        (packed(("a.png", b"1"), ("A.png", b"2")), "twice"),
        (packed(("n" * 250, b"1")), "over 200 letters"),
    ],
    ids=["begun", "cut", "text", "empty", "hidden", "file and folder", "case alone", "long"],  # bytes hold the time
)
def test_a_broken_archive_is_refused(kept, content, says):
    refused(kept, "x.zip", content, says)


def test_a_changed_byte_in_an_archive_is_seen(kept):
    content = bytearray(packed(("a.csv", b"0123456789" * 10)))
    content[60] ^= 1
    refused(kept, "x.zip", bytes(content), "broken archive")


def test_a_locked_archive_is_refused(kept):
    content = bytearray(packed(("a.csv", b"1")))
    at = content.index(b"PK\x01\x02")
    content[at + 8] |= 1
    content[6] |= 1
    refused(kept, "x.zip", bytes(content), "locked with a password")


def test_too_many_files_are_refused(kept, monkeypatch):
    monkeypatch.setattr(uploads, "MEMBERS", 3)
    refused(kept, "x.zip", packed(*((f"{n}.png", b"1") for n in range(4))), "holds 4 files, more than 3")


def test_an_archive_of_one_folder_is_that_folder(kept):
    found = take(kept, "pairs.zip", packed(("root/input/train/1.png", b"1"), ("root/output/train/1.png", b"2")))
    assert found.name == "pairs"
    assert sorted(p.name for p in found.path.iterdir()) == ["input", "output"]
    assert found.says == "2 files, 1 kB"


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.onnx", b"", "is empty"),
        ("a.onnx", b"PK\x03\x04", "does not begin as .onnx"),
        ("a.onnx", b"<html>", "does not begin as .onnx"),
        ("a.parquet", b"a,b\n", "does not begin as .parquet"),
        ("a.png", b"GIF89a", "does not begin as .png"),
        ("a.csv", b"a\0b", "is no text"),
        ("a.safetensors", b"\xff" * 20, "no safetensors"),
        ("a.exe", b"MZ", "of no kind that is taken"),
        ("a", b"x", "of no kind that is taken"),
        (".htaccess", b"x", "of no kind that is taken"),
    ],
)
def test_what_is_not_what_its_name_says_is_refused(kept, name, content, says):
    if says == "of no kind that is taken":
        with pytest.raises(AssayError, match=says):
            take(kept, name, content)
    else:
        refused(kept, name, content, says)


@pytest.mark.parametrize("name", ["net.py", "net.pkl", "net.pt"])
def test_what_runs_code_is_refused_where_it_may_not(kept, name):
    with pytest.raises(AssayError, match="can run code"):
        take(kept, name, b"x", code=False)
    refused(kept, "x.zip", packed((f"folder/{name}", b"x")), "can run code", code=False)
    assert take(kept, name, b"x = 1\n").name == name


def test_a_file_larger_than_is_taken_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(uploads, "LEFT", 0)
    refused(Uploads(tmp_path, most=1000), "a.csv", b"1" * 1001, "larger than")


@pytest.mark.parametrize(
    ("size", "says"),
    [
        (1, "1 kB"),
        (12_000, "12 kB"),
        (10**6, "1.0 MB"),
        (3_400_000, "3.4 MB"),
        (10**9, "1.0 GB"),
        (5 * 10**10, "50.0 GB"),
    ],
)
def test_sizes_are_told_in_thousands_as_options_and_quotas_count(size, says):
    assert in_bytes(size) == says


def test_a_full_disk_is_told(kept, monkeypatch):
    monkeypatch.setattr(uploads, "LEFT", 2**60)
    with pytest.raises(AssayError, match="The disk has .* left"):
        take(kept, "a.csv", b"1")
    monkeypatch.setattr(uploads, "LEFT", 0)

    def full(*anything):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Uploads, "_copy", full)
    with pytest.raises(AssayError, match="No space left on device"):
        take(kept, "a.csv", b"1")


def test_what_no_job_took_goes_after_a_day(kept):
    folder = take(kept, "a.csv", b"1").path.parents[1]
    kept.sweep()
    assert folder.exists()
    kept.sweep(time.time() + KEPT + 60)
    assert not folder.exists()


@pytest.mark.parametrize("draft", ["", "x", "../" * 8, "a" * 23, "d/" * 11])
def test_a_form_of_nobodys_is_refused(kept, draft):
    with pytest.raises(AssayError, match="is no form of ours"):
        kept.take("ada", draft, "a.csv", io.BytesIO(b"1"))
    assert kept.files("ada", draft) == {}


def test_files_of_an_earlier_job_take_no_room_twice(kept, tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "a.csv").write_text("1")
    kept.adopt("ada", DRAFT, tmp_path / "folder")
    kept.adopt("ada", DRAFT, tmp_path / "folder" / "a.csv")
    found = kept.files("ada", DRAFT)
    assert sorted(found) == ["a.csv", "folder"]
    assert os.stat(found["a.csv"].path).st_nlink == 3
    shutil.rmtree(tmp_path / "folder")
    assert found["a.csv"].path.read_text() == "1"
