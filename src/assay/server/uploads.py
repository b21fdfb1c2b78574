"""Files that came in through the browser: named safely, bounded, checked, and never opened here.

A file is staged in a folder of its own below `home/uploads` until a job takes it. What its name promises is held
against its first bytes; an archive is unpacked with all that it says of itself in doubt. What is inside a model or a
table is looked at only in the sandboxed child that every command opens models in.
"""

from __future__ import annotations

import filecmp
import re
import secrets
import shutil
import stat
import time
import zipfile
import zlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from assay.errors import AssayError
from assay.server.folders import GB, link

MOST = 2 * GB  # bytes of an upload
UNPACKED = 8 * GB  # bytes of an archive, unpacked
MEMBERS = 200_000  # files in an archive
DIRECTORY = 2**26  # bytes of an archive's list of its files, which is read whole
RATIO = 200  # of unpacked to packed, above FREE bytes: text and flat images stay far below
FREE = 64 * 10**6
LEFT = GB  # bytes of disk that an upload leaves to others
KEPT = 24 * 3600.0  # seconds that a staged file waits for its job
CHUNK = 2**20

CODE = (".py", ".pkl", ".pickle", ".joblib", ".pt", ".pth", ".ckpt", ".bin")
"""What can run any code once it is opened, or may be a pickle that does."""
MODELS = (".onnx", ".pt2", ".safetensors", ".skops", ".keras", ".txt", ".lgb", ".json", ".ubj", ".jit", ".ts", *CODE)
DATA = (".csv", ".tsv", ".parquet", ".jsonl", ".npz", ".npy", ".zip", ".toml")
PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".webp", ".gif")

_ZIP = (b"PK\x03\x04",)
_BEGINS: Mapping[str, tuple[bytes, ...]] = {
    **dict.fromkeys((".zip", ".npz", ".pt2", ".keras", ".skops"), _ZIP),
    ".parquet": (b"PAR1",),
    ".npy": (b"\x93NUMPY",),
    ".png": (b"\x89PNG\r\n\x1a\n",),
    **dict.fromkeys((".jpg", ".jpeg"), (b"\xff\xd8\xff",)),
    ".bmp": (b"BM",),
    ".gif": (b"GIF87a", b"GIF89a"),
    **dict.fromkeys((".tif", ".tiff"), (b"II*\x00", b"MM\x00*", b"II+\x00", b"MM\x00+")),
    ".webp": (b"RIFF",),
    ".onnx": (b"\x08", b"\x12", b"\x1a", b"\x22", b"\x2a", b"\x3a", b"\x42", b"\x72"),  # a protobuf field of ModelProto
}
_TEXT = (".csv", ".tsv", ".jsonl", ".txt", ".lgb", ".json", ".toml", ".py")
DRAFT = re.compile(r"[A-Za-z0-9_-]{22}")


@dataclass(frozen=True)
class Upload:
    """A file, or an archive that was unpacked, and where it waits."""

    name: str
    path: Path
    size: int
    files: int = 1

    @property
    def says(self) -> str:
        return f"{self.files:,} files, {in_bytes(self.size)}" if self.path.is_dir() else in_bytes(self.size)


def in_bytes(n: int) -> str:
    """'12 kB', '3.4 MB', '1.2 GB': thousands, as the options and quotas count."""
    for unit, scale in (("GB", GB), ("MB", 10**6)):
        if n >= scale:
            return f"{n / scale:.1f} {unit}"
    return f"{max(1, round(n / 1000)):,} kB"


class Uploads:
    """What waits for its jobs: a folder for each form that is being filled in, laid out as a job's folder is.

    The word that names it is known only to the page that it was made for; whose it is, is looked at all the same.
    """

    def __init__(self, home: Path, most: int = MOST, unpacked: int = UNPACKED) -> None:
        self.root, self.most, self.unpacked = home / "uploads", most, unpacked
        self.root.mkdir(parents=True, exist_ok=True, mode=0o700)

    @staticmethod
    def new() -> str:
        return secrets.token_urlsafe(16)

    def folder(self, owner: str, draft: str) -> Path | None:
        """Where the files of this form are, if there are any and they are this owner's."""
        path = self.root / draft
        if not DRAFT.fullmatch(draft) or not path.is_dir():
            return None
        try:
            return path if (path / "owner").read_text(encoding="utf-8") == owner else None
        except OSError:
            return None

    def files(self, owner: str, draft: str) -> dict[str, Upload]:
        folder = self.folder(owner, draft)
        return {} if folder is None else {p.name: seen(p) for p in sorted((folder / "files").iterdir())}

    def waiting(self, owner: str) -> int:
        """Bytes of this owner's files that no job has; what is linked to a job's takes no room twice."""
        mine = (path for path in self.root.iterdir() if self.folder(owner, path.name) is not None)
        return sum(_alone(path) for draft in mine for path in (draft / "files").rglob("*"))

    def take(
        self, owner: str, draft: str, name: str, content: BinaryIO, *, code: bool = True, room: int | None = None
    ) -> Upload:
        """Keep what was sent under this name; AssayError where it is not what its name says, or too much, by itself or
        for the `room` that its owner has."""
        self.sweep()
        name = safe_name(name)
        refuse_unknown(name, code)
        folder = self._made(owner, draft)
        own = f"half-{secrets.token_hex(8)}"
        half = folder / f"{own}{Path(name).suffix}"
        try:
            self._copy(content, half, name, room)
            check_begins(half, name)
            if half.suffix == ".zip":
                unpacked = half.with_suffix("")
                unpack(half, unpacked, self.unpacked if room is None else min(room, self.unpacked), name, code=code)
                half.unlink()
                half, name = only_folder(unpacked), Path(name).stem
            place = _free(folder / "files", name)
            half.rename(place)
            return seen(place)
        except OSError as e:
            raise AssayError(f"{name!r} could not be kept: {e.strerror or e}; the disk may be full.") from e
        finally:
            for left in folder.glob(f"{own}*"):
                shutil.rmtree(left, ignore_errors=True) if left.is_dir() else left.unlink(missing_ok=True)

    def _made(self, owner: str, draft: str) -> Path:
        if not DRAFT.fullmatch(draft):
            raise AssayError(f"{draft[:40]!r} is no form of ours; load the page again.")
        path = self.root / draft
        with suppress(FileExistsError):
            path.mkdir(mode=0o700)
            (path / "files").mkdir()
            (path / "owner").write_text(owner, encoding="utf-8")
        found = self.folder(owner, draft)
        if found is None:
            raise AssayError("These files are not yours; load the page again.")
        return found

    def _copy(self, content: BinaryIO, to: Path, name: str, room: int | None) -> None:
        size = 0
        with to.open("xb") as file:
            while chunk := content.read(CHUNK):
                if size % (64 * CHUNK) < CHUNK:
                    refuse_full(self.root)
                size += len(chunk)
                if size > self.most:
                    raise AssayError(f"{name!r} is larger than {in_bytes(self.most)}, the most that is taken.")
                if room is not None and size > room:
                    raise AssayError(f"{name!r} does not fit into the {in_bytes(max(0, room))} that are left to you; "
                                     "remove some jobs.")  # fmt: skip
                file.write(chunk)
        if not size:
            raise AssayError(f"{name!r} is empty; choose another file.")

    def adopt(self, owner: str, draft: str, path: Path) -> None:
        """A file of an earlier job, for a form that begins with its settings; on one disk it takes no room twice."""
        to = self._made(owner, draft) / "files" / path.name
        if path.is_dir() or path.is_file():
            link(path, to)

    def drop(self, owner: str, draft: str, name: str) -> None:
        found = self.files(owner, draft).get(name)
        if found is not None:
            shutil.rmtree(found.path) if found.path.is_dir() else found.path.unlink(missing_ok=True)

    def forget(self, owner: str, draft: str) -> None:
        folder = self.folder(owner, draft)
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)

    def sweep(self, now: float | None = None) -> None:
        """What no job took in a day goes."""
        now = time.time() if now is None else now
        for folder in self.root.iterdir():
            try:
                if now - folder.stat().st_mtime > KEPT:
                    shutil.rmtree(folder, ignore_errors=True)
            except OSError:
                continue


def _alone(path: Path) -> int:
    """Bytes of a file that lies here and nowhere else."""
    try:
        at = path.lstat()
    except OSError:
        return 0
    return at.st_size if stat.S_ISREG(at.st_mode) and at.st_nlink == 1 else 0


def seen(path: Path) -> Upload:
    if not path.is_dir():
        return Upload(path.name, path, path.stat().st_size)
    sizes = [each.stat().st_size for each in path.rglob("*") if each.is_file()]
    return Upload(path.name, path, sum(sizes), len(sizes))


def same(one: Path, other: Path) -> bool:
    """Whether two files, or two folders, hold the same."""
    if not one.is_dir() or not other.is_dir():
        return one.is_file() and other.is_file() and filecmp.cmp(one, other, shallow=False)
    inside = [sorted(str(path.relative_to(root)) for path in root.rglob("*")) for root in (one, other)]
    return inside[0] == inside[1] and all(
        filecmp.cmp(one / each, other / each, shallow=False) for each in inside[0] if (one / each).is_file()
    )


def _free(folder: Path, name: str) -> Path:
    """A place under this name, or one with a number where that is taken."""
    stem, suffix = Path(name).stem, Path(name).suffix
    names = (name if n == 1 else f"{stem}-{n}{suffix}" for n in count(1))
    return next(path for each in names if not (path := folder / each).exists())


def refuse_full(folder: Path, more: int = 0) -> None:
    free, left = shutil.disk_usage(folder).free, LEFT + more
    if free < left:
        raise AssayError(f"The disk has {in_bytes(free)} left, and {in_bytes(left)} would be needed; remove some jobs.")


def safe_name(name: str) -> str:
    """The last part of what a browser called it, in letters that mean nothing to any file system."""
    last = re.split(r"[/\\]", name)[-1]
    stem, dot, suffix = last.rpartition(".")
    if not dot:
        stem, suffix = last, ""
    stem = re.sub(r"[^A-Za-z0-9_+-]+", "-", stem).strip("-")[:80] or "file"
    suffix = re.sub(r"[^A-Za-z0-9]+", "", suffix)[:16].lower()
    return f"{stem}.{suffix}" if suffix else stem


def refuse_unknown(name: str, code: bool) -> None:
    suffix = Path(name).suffix
    if suffix not in (*MODELS, *DATA, *PICTURES):
        raise AssayError(f"{name!r} is of no kind that is taken: {', '.join(MODELS[:5])} and other models, "
                         f"{', '.join(DATA[:7])}, or pictures.")  # fmt: skip
    refuse_code(name, code)


def refuse_code(name: str, code: bool) -> None:
    if not code and Path(name).suffix.lower() in CODE:
        raise AssayError(f"{name[:80]!r} can run code when it is opened; send .onnx, .pt2 or .safetensors.")


def check_begins(path: Path, name: str) -> None:
    """What the name promises, held against the first bytes: a slip is told at once and not by some parser."""
    with path.open("rb") as file:
        head = file.read(4096)
    suffix, wanted = path.suffix, _BEGINS.get(path.suffix)
    if suffix in _TEXT and b"\0" in head and not head.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise AssayError(f"{name!r} is no text, as {suffix} files are; was it renamed?")
    if suffix == ".safetensors" and not (len(head) > 8 and 2 <= int.from_bytes(head[:8], "little") < 2**27):
        raise AssayError(f"{name!r} is no safetensors file: its header has no length; save it anew.")
    if wanted is not None and not head.startswith(wanted):
        raise AssayError(f"{name!r} does not begin as {suffix} files do; was it renamed, or cut off?")


# Archives.


def unpack(archive: Path, into: Path, most: int = UNPACKED, name: str = "", *, code: bool = True) -> int:
    """Unpack a zip file and say how many files came out; AssayError where it leads outside, or is too much."""
    name = name or archive.name
    try:
        _refuse_directory(archive, name)
        with zipfile.ZipFile(archive) as zipped:
            members = [m for m in zipped.infolist() if not m.is_dir() and not _of_the_system(m.filename)]
            _refuse_before(archive, name, members, most)
            for member in members:
                refuse_code(member.filename, code)
            into.mkdir()
            left, seen = most, set()
            for member in members:
                place = into.joinpath(*_inside(name, member).parts)
                if str(place).lower() in seen:
                    raise AssayError(f"{name!r} holds {member.filename[:80]!r} twice; pack it anew.")
                seen.add(str(place).lower())
                place.parent.mkdir(parents=True, exist_ok=True)
                with zipped.open(member) as packed, place.open("xb") as file:
                    while chunk := packed.read(CHUNK):
                        left -= len(chunk)
                        if left < 0:
                            raise _too_much(name, most)
                        file.write(chunk)
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError, ValueError) as e:
        if isinstance(e, AssayError):
            raise
        raise AssayError(f"{name!r} is a broken archive ({e}); pack it anew as a plain zip file.") from e
    except (FileExistsError, NotADirectoryError) as e:
        raise AssayError(f"{name!r} has a file and a folder of one name; pack it anew.") from e
    if not members:
        raise AssayError(f"{name!r} holds no file; pack the folder anew.")
    return len(members)


def _refuse_directory(archive: Path, name: str) -> None:
    with archive.open("rb") as file:
        end = zipfile._EndRecData(file)  # type: ignore[attr-defined]  # as ZipFile finds it
    if end and end[zipfile._ECD_SIZE] > DIRECTORY:  # type: ignore[attr-defined]
        raise AssayError(f"{name!r} holds too many files; send a table instead.")


def _refuse_before(archive: Path, name: str, members: list[zipfile.ZipInfo], most: int) -> None:
    """What the directory of the archive tells already; the rest is counted while it is unpacked."""
    if len(members) > MEMBERS:
        raise AssayError(f"{name!r} holds {len(members):,} files, more than {MEMBERS:,}; send a table instead.")
    unpacked = sum(m.file_size for m in members)
    if unpacked > most:
        raise _too_much(name, most)
    if unpacked > FREE and unpacked > RATIO * archive.stat().st_size:
        raise AssayError(f"{name!r} unpacks to {unpacked / archive.stat().st_size:,.0f} times its size; it is "
                         "refused as a bomb.")  # fmt: skip
    refuse_full(archive.parent, unpacked)
    for member in members:
        _inside(name, member)


def _too_much(name: str, most: int) -> AssayError:
    return AssayError(f"{name!r} unpacks to more than {in_bytes(most)}; send less at once.")


def _inside(archive: str, member: zipfile.ZipInfo) -> PurePosixPath:
    """The path of a member, if it stays inside; the name is doubted as Windows and Unix read it."""
    name = member.filename
    path = PurePosixPath(name.replace("\\", "/"))
    bad = [part for part in path.parts if part in ("..", "/") or ":" in part]
    if bad or path.is_absolute() or not path.parts or not name.isprintable() or len(name) > 400:
        raise AssayError(f"{archive!r} holds {name[:80]!r}, which leads outside; pack it anew.")
    if any(len(part.encode()) > 200 for part in path.parts):
        raise AssayError(f"{archive!r} holds a name of over 200 letters; shorten it.")
    if stat.S_ISLNK(member.external_attr >> 16):
        raise AssayError(f"{archive!r} holds the link {name[:80]!r}; pack the file itself.")
    if member.flag_bits & 1:
        raise AssayError(f"{archive!r} is locked with a password; pack it without.")
    return path


def _of_the_system(name: str) -> bool:
    """What desktops put into archives for themselves."""
    return name.startswith("__MACOSX/") or name.rpartition("/")[2] in (".DS_Store", "Thumbs.db", "desktop.ini")


def only_folder(folder: Path) -> Path:
    """The folder inside, where an archive holds one and nothing else that is not a split or a class by itself."""
    inside = list(folder.iterdir())
    return inside[0] if len(inside) == 1 and inside[0].is_dir() else folder
