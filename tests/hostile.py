"""Files that were made to do harm, one function each: it writes the file into a folder and returns what to give Assay.

`DATA` are given as --data, `MODELS` as the subject, `STANDARDS` as assay.toml. Each says how its one line of refusal
reads. Nothing here is random, and nothing is larger than a few megabytes on disk.
"""

from __future__ import annotations

import ctypes
import functools
import io
import json
import os
import resource
import select
import signal
import socket
import struct
import sys
import tempfile
import time
import warnings
import zipfile
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Hostile:
    """How to write a bad file, and a pattern of what is said of it. `opens`: it may also open, and be asked about."""

    write: Callable[[Path], Path]
    says: str
    opens: bool = False


DATA: dict[str, Hostile] = {}
MODELS: dict[str, Hostile] = {}
STANDARDS: dict[str, Hostile] = {}
Writer = Callable[[Path], Path]


def _on(shelf: dict[str, Hostile], says: str, *, opens: bool = False) -> Callable[[Writer], Writer]:
    def put(write: Writer) -> Writer:
        shelf[write.__name__.replace("_", " ")] = Hostile(write, says, opens)
        return write

    return put


# Images.


def png(width: int, height: int, *, rows: bytes = b"", depth: int = 8, colour: int = 0, extra: bytes = b"") -> bytes:
    """A PNG with these sides in its header and these bytes, already filtered, for its pixels."""
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    packed = zlib.compress(rows or bytes((width * (depth * (3 if colour == 2 else 1)) + 7) // 8 + 1) * height, 9)
    return b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", header) + extra + _chunk(b"IDAT", packed) + _chunk(b"IEND", b"")


def _chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def images(folder: Path, first: bytes | None, name: str = "x.png", classes: tuple[str, str] = ("a", "b")) -> Path:
    """A folder of two classes with three good images each, and before them the bad one."""
    root = folder / "images"
    for k, label in enumerate(classes):
        (root / label).mkdir(parents=True)
        for i in range(3):
            (root / label / f"y{i}.png").write_bytes(png(8, 8, rows=(b"\0" + bytes([k * 100 + i] * 8)) * 8))
    if first is not None:
        (root / classes[0] / name).write_bytes(first)
    return root


UNREADABLE = r"x\.\w+ cannot be read as an image"
LARGE = r"x\.\w+ is too large to decode safely"


@_on(DATA, UNREADABLE)
def postscript_named_png(folder: Path) -> Path:
    """Pillow hands EPS to Ghostscript."""
    return images(folder, b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\n(owned) = quit\n%%EOF\n")


@_on(DATA, UNREADABLE)
def icon_named_png(folder: Path) -> Path:
    """A format that nobody named."""
    return images(folder, b"\0\0\1\0\1\0\x08\x08\0\0\1\0\x20\0\x28\1\0\0\x16\0\0\0" + bytes(296))


@_on(DATA, UNREADABLE)
def pnm_named_png(folder: Path) -> Path:
    return images(folder, b"P5 8 8 255\n" + bytes(64))


@_on(DATA, UNREADABLE)
def xv_thumbnail_named_png(folder: Path) -> Path:
    return images(folder, b"P7 332\n#END_OF_COMMENTS\n8 8 255\n" + bytes(64))


@_on(DATA, UNREADABLE)
def empty_png(folder: Path) -> Path:
    return images(folder, b"")


@_on(DATA, UNREADABLE)
def truncated_png(folder: Path) -> Path:
    whole = png(64, 64, rows=np.random.default_rng(0).bytes(65 * 64).replace(b"\x00", b"\x01"))
    return images(folder, whole[: len(whole) // 2])


@_on(DATA, UNREADABLE)
def truncated_jpeg(folder: Path) -> Path:
    from PIL import Image

    out = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64), dtype=np.uint8)).save(out, "JPEG")
    return images(folder, out.getvalue()[:1000], "x.jpg")


@_on(DATA, UNREADABLE)
def png_with_a_broken_sum(folder: Path) -> Path:
    whole = bytearray(png(8, 8))
    whole[29] ^= 0xFF  # in the sum of the header
    return images(folder, bytes(whole))


@_on(DATA, UNREADABLE)
def png_of_no_width(folder: Path) -> Path:
    return images(folder, png(0, 8, rows=b"\0" * 8))


@_on(DATA, LARGE)
def png_of_eight_by_two_million(folder: Path) -> Path:
    """17 kB; scaled to cover 224 x 224 it took 15 GB."""
    return images(folder, png(8, 2_000_000))


@_on(DATA, r"y0\.png is 8 x 8 where the first image .*x\.png is 65000 x 1", opens=True)
def png_that_grows_when_scaled(folder: Path) -> Path:
    """Allowed as it is; with --size 224 it would become 224 x 14,560,000."""
    return images(folder, png(1, 65_000))


@_on(DATA, LARGE)
def png_of_nine_hundred_million_pixels(folder: Path) -> Path:
    return images(folder, png(30_000, 30_000, rows=b"\0"))


@_on(DATA, LARGE)
def png_that_pillow_only_warns_of(folder: Path) -> Path:
    return images(folder, png(10_000, 10_000, rows=b"\0"))


@_on(DATA, LARGE)
def gif_of_four_billion_pixels(folder: Path) -> Path:
    return images(
        folder, b"GIF89a\xff\xff\xff\xff\x80\0\0\0\0\0\xff\xff\xff,\0\0\0\0\xff\xff\xff\xff\0\x02\x02D\x01\0;", "x.gif"
    )


@_on(DATA, LARGE)
def bmp_of_a_billion_pixels(folder: Path) -> Path:
    header = struct.pack("<IiiHHIIiiII", 40, 32_000, 32_000, 1, 24, 0, 0, 0, 0, 0, 0)
    return images(folder, b"BM" + struct.pack("<IHHI", 54, 0, 0, 54) + header, "x.bmp")


def tiff(tags: Mapping[int, int], body: bytes = b"") -> bytes:
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in sorted(tags.items()))
    directory = struct.pack("<H", len(tags)) + entries + struct.pack("<I", 0)
    return b"II*\0" + struct.pack("<I", 8) + directory + body


@_on(DATA, LARGE)
def tiff_of_four_billion_pixels(folder: Path) -> Path:
    tags = {256: 65_000, 257: 65_000, 258: 8, 259: 1, 262: 1, 273: 8, 277: 1, 278: 65_000, 279: 100}
    return images(folder, tiff(tags, bytes(100)), "x.tif")


@_on(DATA, LARGE)
def tiff_of_huge_tiles(folder: Path) -> Path:
    """8 x 8, packed in tiles of 30,000 x 30,000."""
    tags = {256: 8, 257: 8, 258: 8, 259: 8, 262: 1, 277: 1, 322: 30_000, 323: 30_000, 324: 134, 325: 11}
    return images(folder, tiff(tags, zlib.compress(bytes(10))), "x.tif")


@_on(DATA, r"x\.png|y0\.png", opens=True)
def png_with_a_text_that_unpacks_to_a_gigabyte(folder: Path) -> Path:
    """Pillow bounds texts; the image itself is good."""
    text = _chunk(b"zTXt", b"Comment\0\0" + zlib.compress(bytes(2**28), 9))
    return images(folder, png(8, 8, extra=text))


@_on(DATA, r"x\.png' is a pipe, a socket or a device, not a file; remove it")
def pipe_named_png(folder: Path) -> Path:
    """Opening it waited for ever."""
    root = images(folder, None)
    os.mkfifo(root / "a" / "x.png")
    return root


@_on(DATA, r"x\.png' is a pipe, a socket or a device, not a file; remove it")
def socket_named_png(folder: Path) -> Path:
    root, here = images(folder, None), os.getcwd()
    os.chdir(root / "a")  # the name of a socket has at most a hundred characters
    try:
        with socket.socket(socket.AF_UNIX) as held:
            held.bind("x.png")
    finally:
        os.chdir(here)
    return root


def _link(folder: Path, to: str) -> Path:
    root = images(folder, None)
    (root / "a" / "x.png").symlink_to(to)
    return root


@_on(DATA, r"x\.png' is a link that leads out of .*; put a copy in its place")
def link_out_of_the_folder(folder: Path) -> Path:
    (folder / "secret.png").write_bytes(png(8, 8))
    return _link(folder, "../../secret.png")


@_on(DATA, r"x\.png' is a link that leads out of .*; put a copy in its place")
def link_to_a_device(folder: Path) -> Path:
    return _link(folder, "/dev/zero")


@_on(DATA, r"x\.png' is a link to nothing, not a file; remove it")
def link_to_nothing(folder: Path) -> Path:
    return _link(folder, "gone.png")


@_on(DATA, r"x\.png' is a link to nothing, not a file; remove it")
def link_to_itself(folder: Path) -> Path:
    return _link(folder, "x.png")


@_on(DATA, r"c' is a link that leads out of .*; put a copy in its place")
def class_folder_that_leads_out(folder: Path) -> Path:
    (folder / "elsewhere").mkdir()
    (folder / "elsewhere" / "x.png").write_bytes(png(8, 8))
    root = images(folder, None)
    (root / "c").symlink_to(Path("..") / "elsewhere")
    return root


@_on(DATA, "", opens=True)
def classes_that_write_on_the_terminal(folder: Path) -> Path:
    """Escapes, a line break and a direction mark in the name of a class; the data is good."""
    return images(folder, None, classes=("a\x1b[2J\x1b]0;owned\x07", "b\u202egnp.\n# heading | cell <b>"))


# .npz


def npz(folder: Path, members: Mapping[str, bytes], how: int = zipfile.ZIP_DEFLATED, name: str = "d.npz") -> Path:
    path = folder / name
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of names that occur twice
        with zipfile.ZipFile(path, "w", how) as archive:
            for member, content in members.items():
                archive.writestr(member, content)
    return path


def npy(shape: str, body: bytes = b"", kind: str = "|u1", *, order: bool = False) -> bytes:
    told = f"{{'descr': {kind!r}, 'fortran_order': {order}, 'shape': {shape}, }}".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(told) + 1) + told + b"\n" + body


Y = npy("(6,)", bytes(6))


def _unpacking(folder: Path, shape: str, size: int, *, head: bytes | None = None) -> Path:
    """An array of so many zeros, packed to a thousandth."""
    with zipfile.ZipFile(folder / "d.npz", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr("y.npy", Y)
        with archive.open("x.npy", "w", force_zip64=True) as member:
            member.write(npy(shape) if head is None else head)
            for _ in range(size // 2**24):
                member.write(bytes(2**24))
    return folder / "d.npz"


@_on(DATA, r"Array x\.npy in .* unpacks to 1,610,612,736 bytes, over the 536,870,912 that are held at once")
def npz_that_unpacks_to_a_gigabyte_and_a_half(folder: Path) -> Path:
    return _unpacking(folder, f"(6, {2**28})", 6 * 2**28)


@_on(DATA, r"Array x\.npy in .* has a damaged header \(it is 1,073,741,824 characters long\)")
def npz_with_a_header_of_a_gigabyte(folder: Path) -> Path:
    return _unpacking(folder, "", 2**30, head=b"\x93NUMPY\x02\x00" + struct.pack("<I", 2**30))


@_on(DATA, r"Array x\.npy in .* has 6 bytes, not 6000000000000")
def npz_with_a_shape_that_lies(folder: Path) -> Path:
    return npz(folder, {"x.npy": npy("(6, 1000000000000)", bytes(6)), "y.npy": Y})


@_on(DATA, r"Array x\.npy in .* has a damaged header \(its shape is \(-2, -3\)\)")
def npz_with_negative_sides(folder: Path) -> Path:
    return npz(folder, {"x.npy": npy("(-2, -3)", bytes(6)), "y.npy": Y})


@_on(DATA, r"d\.npz holds 1,099,511,627,776 rows, more than 67,108,864; give a part")
def npz_with_a_trillion_rows_of_nothing(folder: Path) -> Path:
    return npz(folder, {"x.npy": npy(f"({2**40}, 0)"), "y.npy": npy(f"({2**40}, 0)")})


@_on(DATA, r"Array x\.npy in .* has a damaged header")
def npz_of_a_thousand_axes(folder: Path) -> Path:
    return npz(folder, {"x.npy": npy(f"({'1, ' * 1000})", bytes(1)), "y.npy": Y})


@_on(DATA, r"Array x\.npy in .* has a damaged header|d\.npz cannot be read as an \.npz file")
def npz_with_deep_brackets(folder: Path) -> Path:
    return npz(folder, {"x.npy": npy("(" * 4000), "y.npy": Y})


@_on(DATA, r"Array x\.npy in .* holds Python objects")
def npz_with_a_pickle(folder: Path) -> Path:
    return npz(folder, {"x.npy": npy("(6,)", b"cos\nsystem\n(S'touch owned'\ntR.", "|O"), "y.npy": Y})


@_on(DATA, r"d\.npz holds '../../x', '/x', .*\.\.\.; it needs inputs and labels named")
def npz_of_many_strange_names(folder: Path) -> Path:
    return npz(folder, {"../../x.npy": Y, "/x.npy": Y, **{f"{k:05}.npy": b"" for k in range(20_000)}})


@_on(DATA, r"d\.npz cannot be read as an \.npz file|Array x.npy in")
def npz_that_is_enciphered(folder: Path) -> Path:
    path = npz(folder, {"x.npy": npy("(6, 4)", bytes(24)), "y.npy": Y}, zipfile.ZIP_STORED)
    raw = bytearray(path.read_bytes())
    at = raw.index(b"PK\x01\x02")
    raw[at + 8] |= 1
    path.write_bytes(raw)
    return path


@_on(DATA, r"d\.npz lists members in 50,000,000 bytes, over 16,777,216" r"|d\.npz.* lists members in")
def npz_with_a_list_of_fifty_megabytes(folder: Path) -> Path:
    path = folder / "d.npz"
    with path.open("wb") as file:
        file.truncate(50_000_000)
        file.seek(50_000_000)
        file.write(struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 65_535, 65_535, 50_000_000, 0, 0))
    return path


@_on(DATA, r"d\.npz ends inside array x\.npy|Array x\.npy in .* has \d+ bytes|d\.npz cannot be read as an \.npz file")
def npz_whose_list_lies(folder: Path) -> Path:
    """The list at the end says 4 GB of a member that has 24 bytes."""
    path = npz(folder, {"x.npy": npy("(6, 600000000)", bytes(24)), "y.npy": Y}, zipfile.ZIP_STORED)
    raw = bytearray(path.read_bytes())
    at = raw.index(b"PK\x01\x02")
    size = len(npy("(6, 600000000)")) + 3_600_000_000
    raw[at + 20 : at + 28] = struct.pack("<II", size, size)
    path.write_bytes(raw)
    return path


@_on(DATA, r"d\.npz")
def pipe_named_npz(folder: Path) -> Path:
    os.mkfifo(folder / "d.npz")
    return folder / "d.npz"


# Parquet


def parquet(
    folder: Path, columns: Mapping[str, Any], metadata: Mapping[bytes, bytes] | None = None, **how: Any
) -> Path:
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.table(dict(columns))
    pq.write_table(table.replace_schema_metadata(metadata) if metadata else table, folder / "d.parquet", **how)
    return folder / "d.parquet"


@_on(DATA, r"row group 0 of .* unpack to \d[\d,]+ bytes or more, over the 536,870,912 that are held at once")
def parquet_whose_dictionary_is_copied(folder: Path) -> Path:
    """One entry of 60 MB, named by a thousand rows: 60 GB."""
    import pyarrow as pa

    image = pa.DictionaryArray.from_arrays(pa.array([0] * 1000, pa.int32()), pa.array([bytes(60_000_000)]))
    path = parquet(
        folder,
        {"image": image, "label": [0, 1] * 500},
        {b"": b""},
        compression="zstd",
        dictionary_pagesize_limit=2**30,
        store_schema=False,
    )
    return path


@_on(DATA, r"row group 0 of .* unpack to \d[\d,]+ bytes or more")
def parquet_with_an_entry_of_600_megabytes(folder: Path) -> Path:
    how: dict[str, Any] = {"compression": "zstd", "use_dictionary": False, "data_page_size": 2**30}
    return parquet(folder, {"image": [bytes(600_000_000), b""], "label": [0, 1]}, **how)


@_on(DATA, r"row group 0 of .* unpack to 1,?\d+.*over the")
def parquet_of_lists_that_unpack_to_a_gigabyte(folder: Path) -> Path:
    import pyarrow as pa

    flat = pa.array(np.zeros(2**20 * 64, np.float32))  # a quarter of a gigabyte, seven times over
    image = pa.chunked_array([pa.FixedSizeListArray.from_arrays(flat, 2**16)] * 5)
    how: dict[str, Any] = {"compression": "zstd", "row_group_size": 10_000}
    return parquet(folder, {"image": image, "label": np.zeros(len(image), np.int8)}, **how)


@_on(DATA, r"Column label of .* is list<.*give class indices as integers")
def parquet_with_labels_in_lists(folder: Path) -> Path:
    return parquet(folder, {"image": [b"", b""], "label": [[[0]], [[1]]]})


@_on(DATA, r"d\.parquet holds 67,108,865 rows, more than 67,108,864; give a part")
def parquet_of_too_many_rows(folder: Path) -> Path:
    import pyarrow as pa

    n = 2**26 + 1
    label = pa.array(np.zeros(n, np.int8))
    return parquet(folder, {"image": pa.nulls(n, pa.binary()), "label": label}, row_group_size=n)


@_on(DATA, r"Row 0 of .*d\.parquet is too large to decode safely")
def parquet_with_an_image_of_900_million_pixels(folder: Path) -> Path:
    return parquet(folder, {"image": [png(30_000, 30_000, rows=b"\0")] * 2, "label": [0, 1]})


@_on(DATA, r"Row 0 of .*d\.parquet cannot be read as an image")
def parquet_with_postscript(folder: Path) -> Path:
    return parquet(folder, {"image": [b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n"] * 2, "label": [0, 1]})


@_on(DATA, r"d\.parquet cannot be read as Parquet|describes itself in")
def parquet_whose_footer_lies(folder: Path) -> Path:
    path = parquet(folder, {"image": [png(8, 8)] * 2, "label": [0, 1]})
    raw = path.read_bytes()
    path.write_bytes(raw[:-8] + struct.pack("<I", 2**31 - 1) + raw[-4:])
    return path


@_on(DATA, r"d\.parquet cannot be read as Parquet")
def parquet_cut_in_half(folder: Path) -> Path:
    path = parquet(folder, {"image": [png(8, 8)] * 2, "label": [0, 1]})
    raw = path.read_bytes()
    path.write_bytes(raw[: len(raw) // 2])
    return path


@_on(DATA, r"d\.parquet has columns '0', '1', .*\.\.\. but no image and no label")
def parquet_of_many_columns(folder: Path) -> Path:
    return parquet(folder, {str(k): [k] for k in range(2000)})


@_on(DATA, "", opens=True)
def parquet_with_deep_names(folder: Path) -> Path:
    """Names of classes below a hundred thousand brackets; the data is good."""
    deep = b"[" * 100_000
    return parquet(folder, {"image": [png(8, 8)] * 6, "label": [0, 1] * 3}, {b"huggingface": deep})


# .pt2


@functools.cache
def _exported() -> Mapping[str, bytes]:
    """The members of a good .pt2 for inputs of 1 x 8 x 8 and two classes."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 2)).eval()
    batch = torch.export.Dim("batch")
    program = torch.export.export(model, (torch.rand(2, 1, 8, 8),), dynamic_shapes=({0: batch},))
    with tempfile.TemporaryDirectory() as folder:
        torch.export.save(program, Path(folder) / "m.pt2")
        with zipfile.ZipFile(Path(folder) / "m.pt2") as archive:
            return {name: archive.read(name) for name in archive.namelist()}


def pt2(
    folder: Path, change: Callable[[Any], None] | None = None, *, how: int = zipfile.ZIP_STORED, **replaced: Any
) -> Path:
    """A .pt2 with its program changed; `replaced` gives other bytes to the members whose name ends so."""
    path = folder / "m.pt2"
    with zipfile.ZipFile(path, "w", how) as archive:
        for name, content in _exported().items():
            made = content
            if change is not None and name.endswith("models/model.json"):
                program = json.loads(content)
                change(program)
                made = json.dumps(program).encode()
            for end, other in replaced.items():
                if name.endswith(end) or name.endswith(f"{end}.json"):
                    made = other(content) if callable(other) else other
            archive.writestr(name, made)
    return path


def _sized(text: str) -> Writer:
    """A .pt2 in which the length of a batch is this expression."""

    def write(folder: Path) -> Path:
        def change(program: Any) -> None:
            for value in program["graph_module"]["graph"]["tensor_values"].values():
                for size in value["sizes"]:
                    if "as_expr" in size:
                        size["as_expr"]["expr_str"] = text
                        return

        return pt2(folder, change)

    return write


SIZE = r"m\.pt2' holds a size (that|with)"
for _name, _text in {
    "power of a power": "9**9**9",
    "shift by a hundred billion": "1<<99999999999",
    "power by function": "Pow(Integer(9), Integer(387420489))",
    "shift by function": "LShift(Integer(1), Integer(99999999999))",
    "natural power": "PowByNatural(Integer(9), Integer(387420489))",
    "shift by a shift": "1<<(1<<40)",
    "product of powers": "*".join(["(9**60)"] * 200),
    "power of a symbol": "Pow(Symbol('s0', integer=True), Pow(Integer(9), Integer(99)))",
    "float of a billion digits": "Float('1e9999999999', precision=53)",
    "float of a billion bits": "Float('1.5', precision=9999999999)",
    "rounding to minus a billion": "RoundDecimal(Integer(5), Integer(-9999999999))",
    "number of a million digits": "1" * 1_000_000,
    "brackets ten thousand deep": "(" * 10_000 + "1" + ")" * 10_000,
    "sum of a hundred thousand": "+".join(["Symbol('s0')"] * 100_000),
    "minus ten thousand times": "-" * 10_000 + "1",
    "squares of squares": functools.reduce(lambda text, _: f"Pow({text}, Integer(60))", range(12), "Integer(9)"),
    "call of eval": 'Integer(\'__import__("os").system("touch owned")\')',
}.items():
    MODELS[f"pt2 {_name}"] = Hostile(_sized(_text), SIZE)


def _node(target: str, arguments: list[Any], result: str) -> dict[str, Any]:
    given = [
        {"name": name, "arg": {"as_int": v} if isinstance(v, int) else {"as_sym_int": {"as_name": v}}, "kind": 1}
        for name, v in zip(("a", "b"), arguments, strict=False)
    ]
    return {"target": target, "inputs": given, "outputs": [{"as_sym_int": {"as_name": result}}], "metadata": {},
            "is_hop_single_tensor_return": None, "name": result}  # fmt: skip


def _computed(*steps: tuple[str, list[Any]]) -> Writer:
    """A .pt2 whose graph begins with these computations of numbers."""

    def write(folder: Path) -> Path:
        def change(program: Any) -> None:
            graph = program["graph_module"]["graph"]
            graph["nodes"][:0] = [_node(f"_operator.{op}", args, f"n{k}") for k, (op, args) in enumerate(steps)]
            graph["sym_int_values"].update({f"n{k}": {"as_int": 1} for k in range(len(steps))})

        return pt2(folder, change)

    return write


NUMBER = r"m\.pt2' holds a number that .*, and loading it"
MODELS["pt2 node with a power"] = Hostile(_computed(("pow", [9, 387420489])), NUMBER)
MODELS["pt2 node with a shift"] = Hostile(_computed(("lshift", [1, 99999999999])), NUMBER)
MODELS["pt2 nodes that square forty times"] = Hostile(
    _computed(("add", [9, 0]), *[("mul", [f"n{k}", f"n{k}"]) for k in range(40)]), NUMBER
)
MODELS["pt2 node with a power of powers"] = Hostile(
    _computed(("pow", [9, 9]), ("pow", [9, "n0"]), ("pow", [9, "n1"])), NUMBER
)


@_on(MODELS, r"m\.pt2' is not a whole torch\.export archive|m\.pt2' holds")
def pt2_with_deep_json(folder: Path) -> Path:
    return pt2(folder, **{"models/model": b"[" * 1_000_000})


@_on(MODELS, r"m\.pt2' has [\d,]+ bytes in '.*models/model\.json'")
def pt2_with_a_program_of_a_hundred_megabytes(folder: Path) -> Path:
    """Stored on a disk that keeps no zeros: spaces do, so this one is large."""
    return pt2(folder, **{"models/model": lambda content: content + b" " * 100_000_000})


@_on(MODELS, r"m\.pt2' has a packed member|m\.pt2' unpacks to")
def pt2_that_unpacks(folder: Path) -> Path:
    return pt2(folder, how=zipfile.ZIP_DEFLATED, weight_0=bytes(2**28))


@_on(MODELS, r"m\.pt2'")
def pt2_with_a_weight_that_is_short(folder: Path) -> Path:
    return pt2(folder, weight_0=bytes(100))


@_on(MODELS, r"m\.pt2'")
def pt2_with_a_weight_of_four_terabytes(folder: Path) -> Path:
    def wide(content: bytes) -> bytes:
        config = json.loads(content)
        next(iter(config["config"].values()))["tensor_meta"]["sizes"] = [{"as_int": 2**20}, {"as_int": 2**20}]
        return json.dumps(config).encode()

    return pt2(folder, model_weights_config=wide)


@_on(MODELS, r"m\.pt2'")
def pt2_with_a_weight_of_strides_beyond(folder: Path) -> Path:
    def strided(content: bytes) -> bytes:
        config = json.loads(content)
        next(iter(config["config"].values()))["tensor_meta"]["strides"] = [{"as_int": 2**30}, {"as_int": 1}]
        return json.dumps(config).encode()

    return pt2(folder, model_weights_config=strided)


@_on(MODELS, r"m\.pt2'")
def pt2_with_a_weight_before_the_start(folder: Path) -> Path:
    def early(content: bytes) -> bytes:
        config = json.loads(content)
        next(iter(config["config"].values()))["tensor_meta"]["storage_offset"] = {"as_int": -(2**20)}
        return json.dumps(config).encode()

    return pt2(folder, model_weights_config=early)


@_on(MODELS, r"m\.pt2' is a pipe; give a plain file")
def pipe_named_pt2(folder: Path) -> Path:
    os.mkfifo(folder / "m.pt2")
    return folder / "m.pt2"


# .onnx, written by hand: the package need not be here.


def field(number: int, value: bytes | str | int) -> bytes:
    """One field of a protobuf message: a number, or a text, bytes or message with its length before it."""

    def varint(n: int) -> bytes:
        out = bytearray()
        while True:
            n, low = n >> 7, n & 0x7F
            out.append(low | (0x80 if n else 0))
            if not n:
                return bytes(out)

    if isinstance(value, int):
        return varint(number << 3) + varint(value % 2**64)
    content = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(content)) + content


def tensor(
    name: str, shape: tuple[int, ...], raw: bytes = b"", kind: int = 1, external: Mapping[str, str] | None = None
) -> bytes:
    parts = [*(field(1, side) for side in shape), field(2, kind), field(8, name)]
    if external is None:
        return b"".join([*parts, field(9, raw)])
    told = [field(13, field(1, k) + field(2, v)) for k, v in external.items()]
    return b"".join([*parts, *told, field(14, 1)])


def value(name: str, shape: tuple[int | str, ...], kind: int = 1) -> bytes:
    sides = b"".join(field(1, field(1, s) if isinstance(s, int) else field(2, s)) for s in shape)
    return field(1, name) + field(2, field(1, field(1, kind) + field(2, sides)))


def node(kind: str, inputs: list[str], outputs: list[str], *attributes: bytes) -> bytes:
    parts = [*(field(1, i) for i in inputs), *(field(2, o) for o in outputs), field(4, kind)]
    return b"".join([*parts, *(field(5, a) for a in attributes)])


def graph(nodes: list[bytes], inputs: list[bytes], outputs: list[bytes], tensors: tuple[bytes, ...] = ()) -> bytes:
    parts = [*(field(1, n) for n in nodes), field(2, "g"), *(field(5, t) for t in tensors)]
    return b"".join([*parts, *(field(11, i) for i in inputs), *(field(12, o) for o in outputs)])


def model(of: bytes, *extra: bytes) -> bytes:
    return b"".join([field(1, 8), field(7, of), field(8, field(1, "") + field(2, 17)), *extra])


GOOD_WEIGHTS = tensor("w", (64, 2), np.linspace(-1, 1, 128, dtype=np.float32).tobytes())
FLAT = node("Flatten", ["x"], ["f"])
PRODUCT = node("MatMul", ["f", "w"], ["out"])
IN, OUT = value("x", ("n", 1, 8, 8)), value("out", ("n", 2))


def onnx(folder: Path, content: bytes) -> Path:
    (folder / "m.onnx").write_bytes(content)
    return folder / "m.onnx"


def good_onnx(folder: Path) -> Path:
    """For inputs of 1 x 8 x 8 and two classes."""
    return onnx(folder, model(graph([FLAT, PRODUCT], [IN], [OUT], (GOOD_WEIGHTS,))))


OUTSIDE = r"m\.onnx' keeps weights in .*outside its folder; put them beside the model"


def _secret(folder: Path) -> Path:
    """A folder for the model, with something outside that it must not read."""
    (folder / "secret.bin").write_bytes(np.linspace(-1, 1, 128, dtype=np.float32).tobytes())
    (folder / "model").mkdir()
    return folder / "model"


LEADS_OUT = {"location": "../secret.bin"}


@_on(MODELS, OUTSIDE)
def onnx_with_weights_outside(folder: Path) -> Path:
    outside = tensor("w", (64, 2), external=LEADS_OUT)
    return onnx(_secret(folder), model(graph([FLAT, PRODUCT], [IN], [OUT], (outside,))))


@_on(MODELS, OUTSIDE)
def onnx_with_weights_at_a_whole_path(folder: Path) -> Path:
    inner = _secret(folder)
    outside = tensor("w", (64, 2), external={"location": str(folder / "secret.bin")})
    return onnx(inner, model(graph([FLAT, PRODUCT], [IN], [OUT], (outside,))))


@_on(MODELS, OUTSIDE)
def onnx_with_fields_in_another_order(folder: Path) -> Path:
    """Value before key: a search for the text finds nothing."""
    entry = field(13, field(2, "../secret.bin") + field(1, "location"))
    outside = b"".join([field(1, 64), field(1, 2), field(2, 1), field(8, "w"), entry, field(14, 1)])
    return onnx(_secret(folder), model(graph([FLAT, PRODUCT], [IN], [OUT], (outside,))))


@_on(MODELS, OUTSIDE)
def onnx_with_a_length_of_three_bytes(folder: Path) -> Path:
    """A length may be spelled with more bytes than it needs."""
    text = b"../secret.bin"
    entry = field(1, "location") + b"\x12" + bytes([len(text) | 0x80, 0x80, 0x00]) + text
    outside = b"".join([field(1, 64), field(1, 2), field(2, 1), field(8, "w"), field(13, entry), field(14, 1)])
    return onnx(_secret(folder), model(graph([FLAT, PRODUCT], [IN], [OUT], (outside,))))


@_on(MODELS, OUTSIDE)
def onnx_with_weights_outside_in_a_node(folder: Path) -> Path:
    attribute = field(1, "value") + field(5, tensor("w", (64, 2), external=LEADS_OUT)) + field(20, 4)
    constant = node("Constant", [], ["w"], attribute)
    return onnx(_secret(folder), model(graph([constant, FLAT, PRODUCT], [IN], [OUT])))


@_on(MODELS, OUTSIDE)
def onnx_with_weights_outside_in_a_branch(folder: Path) -> Path:
    branch = graph([], [], [value("w", (64, 2))], (tensor("w", (64, 2), external=LEADS_OUT),))
    sides = [field(1, name) + field(6, branch) + field(20, 5) for name in ("then_branch", "else_branch")]
    truth = tensor("yes", (), b"\1", 9)
    chosen = node("If", ["yes"], ["w"], *sides)
    return onnx(_secret(folder), model(graph([chosen, FLAT, PRODUCT], [IN], [OUT], (truth,))))


@_on(MODELS, OUTSIDE)
def onnx_with_weights_outside_in_a_function(folder: Path) -> Path:
    attribute = field(1, "value") + field(5, tensor("w", (64, 2), external=LEADS_OUT)) + field(20, 4)
    inside = node("Constant", [], ["w"], attribute)
    function = b"".join(
        [field(1, "Give"), field(5, "w"), field(7, inside), field(9, field(1, "") + field(2, 17)), field(10, "own")]
    )
    call = node("Give", [], ["w"]) + field(7, "own")
    extra = (field(8, field(1, "own") + field(2, 1)), field(25, function))
    return onnx(_secret(folder), model(graph([call, FLAT, PRODUCT], [IN], [OUT]), *extra))


@_on(MODELS, OUTSIDE)
def onnx_with_sparse_weights_outside(folder: Path) -> Path:
    sparse = (
        field(1, tensor("w", (2,), external=LEADS_OUT))
        + field(2, tensor("", (2,), bytes(16), 7))
        + field(3, 64)
        + field(3, 2)
    )
    return onnx(_secret(folder), model(graph([FLAT, PRODUCT], [IN], [OUT]) + field(15, sparse)))


@_on(MODELS, OUTSIDE)
def onnx_with_weights_behind_a_link(folder: Path) -> Path:
    inner = _secret(folder)
    (inner / "w.bin").symlink_to(Path("..") / "secret.bin")
    outside = tensor("w", (64, 2), external={"location": "w.bin"})
    return onnx(inner, model(graph([FLAT, PRODUCT], [IN], [OUT], (outside,))))


@_on(MODELS, r"w\.bin' is a pipe; give a plain file")
def onnx_with_weights_in_a_pipe(folder: Path) -> Path:
    os.mkfifo(folder / "w.bin")
    outside = tensor("w", (64, 2), external={"location": "w.bin"})
    return onnx(folder, model(graph([FLAT, PRODUCT], [IN], [OUT], (outside,))))


@_on(MODELS, r"m\.onnx' cannot be read as ONNX")
def onnx_of_a_thousand_graphs_in_graphs(folder: Path) -> Path:
    inner = graph([], [], [value("w", (1,))])
    for _ in range(1000):
        inner = graph([node("If", ["yes"], ["w"], field(1, "then_branch") + field(6, inner) + field(20, 5))], [], [])
    return onnx(folder, model(inner))


@_on(MODELS, r"m\.onnx' cannot be read as ONNX")
def onnx_with_a_length_beyond_the_end(folder: Path) -> Path:
    return onnx(folder, model(b"")[:-2] + b"\x3a\xff\xff\xff\xff\x0f")


@_on(MODELS, r"m\.onnx' cannot be read as ONNX")
def onnx_of_junk(folder: Path) -> Path:
    return onnx(folder, np.random.default_rng(0).bytes(4096))


@_on(MODELS, r"m\.onnx' cannot be read as ONNX|m\.onnx'")
def onnx_with_a_weight_of_four_terabytes(folder: Path) -> Path:
    wide = tensor("w", (2**20, 2**20), bytes(8))
    return onnx(folder, model(graph([FLAT, PRODUCT], [IN], [OUT], (wide,))))


def onnx_that_never_ends(folder: Path) -> Path:
    """It opens; a question put to it ends by the clock. Not on the shelf, for it hangs what has no clock."""
    body = graph(
        [node("Identity", ["go"], ["on"]), node("Identity", ["s"], ["t"])],
        [value("i", (), 7), value("go", (), 9), value("s", ("n", 64))],
        [value("on", (), 9), value("t", ("n", 64))],
    )
    loop = node("Loop", ["", "yes", "f"], ["g"], field(1, "body") + field(6, body) + field(20, 5))
    product = node("MatMul", ["g", "w"], ["out"])
    return onnx(folder, model(graph([FLAT, loop, product], [IN], [OUT], (GOOD_WEIGHTS, tensor("yes", (), b"\1", 9)))))


@_on(MODELS, r"m\.onnx' is a pipe; give a plain file")
def pipe_named_onnx(folder: Path) -> Path:
    os.mkfifo(folder / "m.onnx")
    return folder / "m.onnx"


# .safetensors


def _safetensors(folder: Path, header: bytes, body: bytes = b"", told: int | None = None) -> Path:
    path = folder / "m.safetensors"
    path.write_bytes(struct.pack("<Q", len(header) if told is None else told) + header + body)
    return path


UNSAFE = r"m\.safetensors' cannot be read as safetensors"


@_on(MODELS, UNSAFE)
def safetensors_with_a_header_of_an_exabyte(folder: Path) -> Path:
    return _safetensors(folder, b"{}", told=2**60)


@_on(MODELS, UNSAFE)
def safetensors_with_deep_json(folder: Path) -> Path:
    return _safetensors(folder, b'{"__metadata__":' + b"[" * 100_000)


@_on(MODELS, UNSAFE)
def safetensors_of_four_terabytes(folder: Path) -> Path:
    told = {"w": {"dtype": "F32", "shape": [2**20, 2**20], "data_offsets": [0, 2**42]}, "__metadata__": RANKER}
    return _safetensors(folder, json.dumps(told).encode())


@_on(MODELS, r"m\.safetensors'")
def safetensors_of_an_embedding_without_end(folder: Path) -> Path:
    told = {"__metadata__": {**RANKER, "embedding": "9" * 30}}
    return _safetensors(folder, json.dumps(told).encode())


RANKER = {
    "kind": "assay ranker",
    "architecture": "small",
    "embedding": "8",
    "decoder": "joint",
    "low": "0",
    "high": "1",
}


@_on(MODELS, r"m\.safetensors' is a pipe; give a plain file")
def pipe_named_safetensors(folder: Path) -> Path:
    os.mkfifo(folder / "m.safetensors")
    return folder / "m.safetensors"


# assay.toml


def _toml(folder: Path, text: str) -> Path:
    (folder / "assay.toml").write_text(text)
    return folder / "assay.toml"


@_on(STANDARDS, r"assay\.toml")
def toml_of_deep_brackets(folder: Path) -> Path:
    return _toml(folder, "a = " + "[" * 100_000)


@_on(STANDARDS, r"assay\.toml")
def toml_of_a_deep_name(folder: Path) -> Path:
    return _toml(folder, ".".join(["a"] * 100_000) + " = 1")


@_on(STANDARDS, r"assay\.toml")
def toml_of_thirty_megabytes(folder: Path) -> Path:
    return _toml(folder, "a = 1\n" + "#" * 30_000_000)


@_on(STANDARDS, r"assay\.toml")
def toml_with_a_number_of_a_million_digits(folder: Path) -> Path:
    return _toml(folder, "a = " + "9" * 1_000_000)


@_on(STANDARDS, r"assay\.toml")
def pipe_named_toml(folder: Path) -> Path:
    os.mkfifo(folder / "assay.toml")
    return folder / "assay.toml"


def good_data(folder: Path) -> Path:
    """Six inputs of 1 x 8 x 8 in two classes."""
    path = folder / "good.npz"
    if not path.exists():
        np.savez(path, x=np.random.default_rng(0).random((6, 1, 8, 8), dtype=np.float32), y=np.arange(6) % 2)
    return path


def good_model(folder: Path) -> Path:
    """A script of a classifier of 1 x 8 x 8 inputs in two classes."""
    path = folder / "good.py"
    with suppress(FileExistsError), path.open("x") as file:
        file.write(
            "import torch\nfrom torch import nn\n\n\ndef build():\n    torch.manual_seed(0)\n"
            "    return nn.Sequential(nn.Flatten(), nn.Linear(64, 2))\n"
        )
    return path


# Trying them.


@dataclass(frozen=True)
class Tried:
    """What came of opening one: "refused" with its line, "opened", "raised" something else, or "killed"."""

    name: str
    bytes: int
    ended: str
    line: str
    seconds: float
    megabytes: int
    """What the process grew by."""


def _open(name: str, path: Path, folder: Path) -> None:
    """Open it as the command line would, and take an input or an answer."""
    from assay.standard import read_standards
    from assay.subjects import Source, open_subject

    if name in STANDARDS:
        read_standards(path)
        return
    if name in DATA:
        source = Source(f"{good_model(folder)}:build", str(path))
    else:
        source = Source(str(path), str(good_data(folder)))
    subject = open_subject(source)
    subject.model(subject.data["test"].take(np.arange(len(subject.data["test"])))[0])


def written(name: str, folder: Path) -> Path:
    return {**DATA, **MODELS, **STANDARDS}[name].write(folder)


def opened(name: str, path: Path, folder: Path) -> tuple[str, str]:
    """ "refused" and its line, "raised" and what, or "opened"."""
    from assay.errors import AssayError

    try:
        _open(name, path, folder)
    except AssayError as e:
        return "refused", str(e)
    except BaseException as e:
        return "raised", f"{type(e).__name__}: {e}"
    return "opened", ""


def _apart(work: Callable[[], str], seconds: float, memory: int | None) -> tuple[str, float, int]:
    """What the work says, done in a copy of this process that is killed by the clock; seconds and kilobytes it took."""
    read, write = os.pipe()
    begun = time.monotonic()
    child = os.fork()
    if not child:
        os.close(read)
        os.close(2)
        os.open(os.devnull, os.O_WRONLY)
        if memory is not None:
            resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
        os.write(write, work().encode("utf-8", "replace")[:60_000])
        os._exit(0)
    os.close(write)
    ready, _, _ = select.select([read], [], [], seconds)
    if not ready:
        os.kill(child, signal.SIGKILL)
    said = os.read(read, 65_536).decode() if ready else "killed by the clock"
    os.close(read)
    _, status, usage = os.wait4(child, 0)
    if ready and status:
        said = f"killed by signal {status & 0x7F}" if status & 0x7F else f"killed, status {status >> 8}"
    return said, time.monotonic() - begun, usage.ru_maxrss


def try_one(name: str, folder: Path, *, seconds: float = 20, memory: int | None = None) -> Tried:
    """Write it and open it, each in a process of its own. `memory` bounds the address space of the second."""
    path = Path(_apart(lambda: str(written(name, folder)), 60, None)[0])
    size = sum(p.lstat().st_blocks * 512 for p in folder.rglob("*") if not p.is_dir())

    _, _, base = _apart(lambda: "nothing", seconds, None)
    said, took, peak = _apart(lambda: "\0".join(opened(name, path, folder)), seconds, memory)
    ended, _, line = said.partition("\0")
    return Tried(
        name, size, ended if line or ended == "opened" else "killed", line or ended, took, (peak - base) // 1024
    )


def bounded(more: int) -> None:
    """From here on this process gets at most so many bytes of addresses beyond those it has."""
    # By default every thread reserves an arena of 64 MiB: on a machine of many cores they alone would fill the bound.
    with suppress(AttributeError):  # another C library than glibc
        ctypes.CDLL(None).mallopt(-8, 1)  # M_ARENA_MAX
    most = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() + more
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def warm(folder: Path) -> None:
    """Open good files of the formats whose readers start threads, so that these are there before memory is bounded."""
    from assay.subjects import Source, open_subject

    for model in (pt2(folder), good_onnx(folder)):
        subject = open_subject(Source(str(model), str(good_data(folder))))
        subject.model(subject.data["test"].take(np.arange(2))[0])


def prepare() -> None:
    """Import what opening imports, so that it is not counted."""
    import onnxruntime  # noqa: F401
    import pyarrow.parquet  # noqa: F401
    import torch.export.pt2_archive._package
    from PIL import Image

    import assay.subjects  # noqa: F401
    from assay import subject  # noqa: F401

    Image.init()
    torch.set_num_threads(1)
    _exported()


def main() -> None:
    """Print what comes of each, or of those whose names are given."""
    prepare()
    for name in sys.argv[1:] or [*DATA, *MODELS, *STANDARDS]:
        with tempfile.TemporaryDirectory() as folder:
            one = try_one(name, Path(folder))
        line = one.line.replace(folder, "").encode("unicode_escape").decode()
        print(
            f"{one.name:50} {one.bytes:>11,} B  {one.ended:8} {one.seconds:5.1f} s {one.megabytes:6} MB  {line:.150}",
            flush=True,
        )


if __name__ == "__main__":
    main()
