"""Bad files by chance: small valid files of every format, changed by a drawn number, the same for the same seed."""

from __future__ import annotations

import io
import json
import random
import re
import struct
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Change = Callable[[bytes, random.Random], bytes]

EXTREMES = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1)


def one_bit(b: bytes, draw: random.Random) -> bytes:
    place = draw.randrange(8 * len(b))
    return b[: place // 8] + bytes([b[place // 8] ^ 1 << place % 8]) + b[place // 8 + 1 :]


def some_bytes(b: bytes, draw: random.Random) -> bytes:
    changed = bytearray(b)
    for _ in range(draw.randint(2, 12)):
        changed[draw.randrange(len(b))] = draw.randrange(256)
    return bytes(changed)


def cut_short(b: bytes, draw: random.Random) -> bytes:
    return b[: draw.randrange(len(b))]


def extreme_number(b: bytes, draw: random.Random) -> bytes:
    """A field of 2, 4 or 8 bytes set to an extreme: lengths, offsets, sides."""
    width = draw.choice((2, 4, 8))
    place = draw.randrange(max(1, len(b) - width))
    value = draw.choice(EXTREMES) % 2 ** (8 * width)
    return b[:place] + value.to_bytes(width, draw.choice(("little", "big"))) + b[place + width :]


def spliced(b: bytes, draw: random.Random) -> bytes:
    """A part of itself at another place."""
    a, c = sorted(draw.sample(range(len(b) + 1), 2))
    place = draw.randrange(len(b))
    return b[:place] + b[a:c][:4096] + b[place:]


def removed(b: bytes, draw: random.Random) -> bytes:
    a = draw.randrange(len(b))
    return b[:a] + b[a + draw.randint(1, 64) :]


def near_the_end(b: bytes, draw: random.Random) -> bytes:
    """Archives and Parquet keep their directory there."""
    part = min(len(b), 200)
    return b[:-part] + some_bytes(b[-part:], draw)


def near_the_start(b: bytes, draw: random.Random) -> bytes:
    part = min(len(b), 64)
    return extreme_number(b[:part], draw) + b[part:]


BYTES: tuple[Change, ...] = (
    one_bit, some_bytes, cut_short, extreme_number, spliced, removed, near_the_end, near_the_start,
)  # fmt: skip


def of_archive(inner: Change) -> Change:
    """Change one member and pack anew, so that no checksum catches it."""

    def of_member(b: bytes, draw: random.Random) -> bytes:
        out = io.BytesIO()
        with zipfile.ZipFile(io.BytesIO(b)) as old, zipfile.ZipFile(out, "w") as new:
            members = [i for i in old.infolist() if i.file_size]
            chosen = draw.choice(members).filename
            for info in old.infolist():
                content = old.read(info)
                if info.filename == chosen:
                    content = (of_json if chosen.endswith(".json") and draw.random() < 0.8 else inner)(content, draw)
                new.writestr(info.filename, content, info.compress_type)
        return out.getvalue()

    return of_member


def of_npy_head(b: bytes, draw: random.Random) -> bytes:
    """The header of a member of an .npz: its shape, its type."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(b)) as old, zipfile.ZipFile(out, "w") as new:
        for info in old.infolist():
            content = old.read(info)
            if draw.random() < 0.6:
                content = content[:10] + of_text(content[10:118], draw) + content[118:]
            new.writestr(info.filename, content, info.compress_type)
    return out.getvalue()


STRANGE: tuple[Any, ...] = (
    None, True, -1, 0, 1e308, 2**70, -(2**70), "", "x" * 5000, "\x1b[2J\u202e", [], {}, [[[[[]]]]],
    "../../../etc/passwd", "9**9**9", {"as_int": 2**62}, "NaN",
)  # fmt: skip


def of_json(b: bytes, draw: random.Random) -> bytes:
    """A value of a JSON document replaced by a strange one, a key dropped or doubled; what follows it stays."""
    try:
        document = json.loads(b)
    except ValueError:
        return some_bytes(b, draw)
    places: list[tuple[Any, Any]] = []

    def walk(at: Any) -> None:
        for key in at if isinstance(at, dict) else range(len(at)) if isinstance(at, list) else ():
            places.append((at, key))
            walk(at[key])

    walk(document)
    for _ in range(draw.randint(1, 3)):
        if not places:
            break
        at, key = draw.choice(places)
        if draw.random() < 0.2 and isinstance(at, dict):
            at.pop(key, None)
        elif (isinstance(at, list) and key < len(at)) or (isinstance(at, dict) and key in at):
            at[key] = draw.choice(STRANGE)
    return json.dumps(document).encode()


def of_text(b: bytes, draw: random.Random) -> bytes:
    """A number or a word of a text replaced."""
    text = b.decode("latin-1")
    words = list(re.finditer(r"-?\d+(\.\d+)?|[A-Za-z_]+|[\[\](){}=\"',]", text))
    if not words:
        return b
    for found in sorted(draw.sample(words, min(len(words), draw.randint(1, 2))), key=lambda m: -m.start()):
        new = draw.choice(
            ("-1", "1e999", "9" * 400, "nan", "inf", "true", "''", "[" * 2000, '"""', "0x", "\x00", "\x1b", "=")
        )
        text = text[: found.start()] + new + text[found.end() :]
    return text.encode("latin-1")


def of_safetensors(b: bytes, draw: random.Random) -> bytes:
    """The header is JSON with its length before it."""
    (length,) = struct.unpack_from("<Q", b)
    header = of_json(b[8 : 8 + length], draw)
    return struct.pack("<Q", len(header)) + header + b[8 + length :]


def of_png(b: bytes, draw: random.Random) -> bytes:
    """A field of the header, with its checksum made right."""
    import zlib

    head = bytearray(b[16:29])
    place = draw.choice((0, 4, 8, 9, 10, 11, 12))
    if place < 8:
        head[place : place + 4] = struct.pack(">I", draw.choice((0, 1, 7, 9, 65_535, 2_000_000, 2**31 - 1, 2**32 - 1)))
    else:
        head[place] = draw.randrange(256)
    return b[:16] + bytes(head) + struct.pack(">I", zlib.crc32(b"IHDR" + bytes(head))) + b[33:]


ALSO: dict[str, tuple[Change, ...]] = {
    "pt2": (of_archive(some_bytes), of_archive(extreme_number), of_archive(of_json)),
    "npz": (of_archive(some_bytes), of_npy_head, of_npy_head),
    "json": (of_json, of_json, of_text),
    "toml": (of_text, of_text),
    "safetensors": (of_safetensors, of_safetensors),
    "png": (of_png, of_png),
}
"""Changes that know a format, beside those of bytes."""


@dataclass(frozen=True)
class Nth:
    """The n-th change of a file of this format."""

    format: str
    number: int
    seed: int

    @property
    def way(self) -> Change:
        ways = (*BYTES, *ALSO.get(self.format, ()))
        return ways[self.number % len(ways)]

    @property
    def name(self) -> str:
        return getattr(self.way, "__name__", "change").replace("_", "-")

    def __call__(self, content: bytes) -> bytes:
        return self.way(content, random.Random(f"{self.seed} {self.format} {self.number}"))
