"""Pairs of images, what goes in and what should come out, in a folder or a zip archive of one layout.

    input/train/NAME   input/test/NAME   output/train/NAME   output/test/NAME

A name is the same in `input` and `output` but for its suffix (cell_7.tif and cell_7.png are a pair). The four folders
lie at the top, or in one folder that holds nothing else. Without `output/test` the test images have no truth. All
images of `input` are grey, or all in colour, and so are all of `output`; all have one size. Grey images may have 16
bits, all of `input` or all of `output`: they are brought to 8 by one factor, such that the greatest training value
becomes 255, and `notes` say so. Both may come from a stranger: nothing is unpacked onto the disk, and what would be too
large is refused before it is read.
"""

from __future__ import annotations

import stat
import zipfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from assay.data.archive import open_archive
from assay.data.deep_image import decode_deep
from assay.data.image_folder import SUFFIXES
from assay.data.pair_names import LAYOUT, MOST_ONE, PLACES, Found, add, of_folder, refuse_unpaired
from assay.errors import AssayError

MOST_FILES = 100_000
MOST_BYTES = 2**31  # of all images as they are held, and of all that an archive unpacks to
COLOURS = {1: "grey", 3: "in colour"}
Bytes = NDArray[np.uint8]
Held = NDArray[np.uint8] | NDArray[np.uint16]


class Split(NamedTuple):
    names: tuple[str, ...]  # n, without suffixes
    x: Bytes  # n c h w
    y: Bytes | None  # n k h w; None where nobody knows the truth


@dataclass(frozen=True)
class ImagePairs:
    train: Split
    test: Split
    notes: tuple[str, ...] = ()
    """How values were changed on their way in, for whoever reads the results."""

    @property
    def shapes(self) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
        """Of an input and of an output, each channels, height, width."""
        assert self.train.y is not None
        (_, c, h, w), (_, k, _, _) = self.train.x.shape, self.train.y.shape
        return (c, h, w), (k, h, w)


def open_image_pairs(
    path: str | Path, *, channels: int | None = None, tick: Callable[[int], None] = lambda done: None
) -> ImagePairs:
    """The pairs of a folder or a .zip; `channels` 1 or 3 is what a model takes, else the first image decides.

    `tick` hears of each image that was read.
    """
    path = Path(path)
    if path.is_dir():
        return _read(str(path), of_folder(path, SUFFIXES), channels, tick)
    if not path.exists():
        raise AssayError(f"There is no {str(path)!r}; give a folder or a .zip with {LAYOUT}.")
    try:
        with open_archive(path) as archive:
            return _read(str(path), _of_archive(archive, str(path)), channels, tick)
    except AssayError:
        raise
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, NotImplementedError, ValueError) as error:
        said = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise AssayError(f"{str(path)!r} cannot be read as a zip archive ({said}); pack it again.") from error


def _of_archive(archive: zipfile.ZipFile, name: str) -> Found:
    entries = [entry for entry in archive.infolist() if not entry.is_dir()]
    if len(entries) > MOST_FILES:
        raise AssayError(f"{name!r} holds {len(entries):,} files, over {MOST_FILES:,}; pack fewer.")
    unpacked = sum(entry.file_size for entry in entries)
    if unpacked > MOST_BYTES:
        raise AssayError(f"{name!r} unpacks to {unpacked:,} bytes, over {MOST_BYTES:,}; pack fewer or smaller images.")
    places: list[tuple[tuple[str, ...], zipfile.ZipInfo]] = []
    for entry in entries:
        parts = PurePosixPath(entry.filename).parts
        if ".." in parts or entry.filename.startswith("/") or set("\\:\0") & set(entry.filename):
            raise AssayError(f"{name!r} holds {entry.filename[:80]!r}, which leads out of it; do not trust it.")
        if stat.S_ISLNK(entry.external_attr >> 16):
            raise AssayError(f"{name!r} holds the link {entry.filename[:80]!r}; pack the file that it stands for.")
        if entry.flag_bits & 1:
            raise AssayError(f"{name!r} is locked with a password; pack it without one.")
        if not any(part.startswith((".", "__MACOSX")) for part in parts):
            places.append((parts, entry))
    tops = {parts[0] for parts, _ in places}
    skip = 0 if tops & {"input", "output"} else int(len(tops) == 1)
    found: Found = {}
    for parts, entry in sorted(places, key=lambda each: each[0]):
        place = "/".join(parts[skip:-1])
        if place in PLACES and PurePosixPath(parts[-1]).suffix.lower() in SUFFIXES:
            if entry.file_size > MOST_ONE:
                raise AssayError(f"{entry.filename[:80]!r} unpacks to {entry.file_size:,} bytes, over {MOST_ONE:,}.")
            add(found, place, parts[-1], lambda entry=entry: archive.read(entry))  # type: ignore[misc]
    return found


def _read(name: str, found: Found, channels: int | None, tick: Callable[[int], None]) -> ImagePairs:
    refuse_unpaired(name, found)
    first: dict[str, tuple[str, tuple[int, ...], int]] = {}
    names = {split: tuple(sorted(found[f"input/{split}"])) for split in ("train", "test")}
    held: dict[str, Held | None] = {}
    for split in names:
        for side in ("input", "output"):
            place = f"{side}/{split}"
            held[place] = _stack(found.get(place, {}), place, side, names[split], first, channels, tick)
    notes = tuple(note for side in ("input", "output") if (note := _in_eight_bits(held, side)))
    splits = {}
    for split in names:
        shown, wanted = held[f"input/{split}"], held[f"output/{split}"]
        assert shown is not None and shown.dtype == np.uint8  # noqa: PT018
        splits[split] = Split(names[split], shown, wanted)  # type: ignore[arg-type]
    return ImagePairs(splits["train"], splits["test"], notes)


def _in_eight_bits(held: dict[str, Held | None], side: str) -> str:
    """Bring a side's images of 16 bits to 8, and say how: v -> round(255 min(v, top) / top), top of the training."""
    train = held[f"{side}/train"]
    assert train is not None
    if train.dtype == np.uint8:
        return ""
    top, beyond = int(train.max()), 0
    if top == 0:
        raise AssayError(f"All images in {side}/train are black all over; see that they are the right ones.")
    for split in ("train", "test"):
        images = held[f"{side}/{split}"]
        if images is None:
            continue
        brought = np.empty(images.shape, np.uint8)
        for row, image in enumerate(images):  # a few bytes at a time
            beyond += int((image > top).sum())
            brought[row] = np.rint(np.minimum(image, top) * (255.0 / top))
        held[f"{side}/{split}"] = brought
    cut = f"; {beyond:,} pixels of test images are brighter, and are cut there" if beyond else ""
    return (
        f"The images of {side} have 16 bits and were brought to 8 by one factor for all: {top:,}, the greatest value "
        f"in {side}/train, became 255{cut}. Errors and spreads are shares of that range."
    )


def _stack(
    images: Mapping[str, tuple[str, Callable[[], bytes]]], place: str, side: str, names: tuple[str, ...],
    first: dict[str, tuple[str, tuple[int, ...], int]], channels: int | None, tick: Callable[[int], None],
) -> Held | None:  # fmt: skip
    if not images:
        return None
    held: Held | None = None
    for row, stem in enumerate(names):
        name = f"{place}/{images[stem][0]}"
        image: Held = decode_deep(images[stem][1](), name)  # c h w
        if side == "input" and channels is not None and len(image) != channels:
            raise AssayError(
                f"{name} is {COLOURS[len(image)]}, and the model takes images that are {COLOURS[channels]}; save it so."
            )
        known, shape, bits = first.setdefault(side, (name, image.shape, 8 * image.itemsize))
        if len(image) != shape[0]:
            raise AssayError(
                f"{name} is {COLOURS[len(image)]}, where {known} is {COLOURS[shape[0]]}; save all images of {side} "
                "alike."
            )
        if 8 * image.itemsize != bits:
            raise AssayError(
                f"{name} has {8 * image.itemsize} bits, where {known} has {bits}; save all images of {side} alike."
            )
        other, size, _ = next(iter(first.values()))
        if image.shape[1:] != size[1:]:
            raise AssayError(
                f"{name} is {image.shape[2]} x {image.shape[1]} pixels, where {other} is {size[2]} x {size[1]}; scale "
                "or cut all images to one size."
            )
        if held is None:
            if len(names) * image.nbytes > MOST_BYTES // 4:
                raise AssayError(
                    f"{place} holds {len(names):,} images of {image.shape[2]} x {image.shape[1]}, "
                    f"{len(names) * image.nbytes:,} bytes, over {MOST_BYTES // 4:,}; scale them down or take fewer."
                )
            held = np.empty((len(names), *image.shape), dtype=image.dtype)
        held[row] = image
        tick(1)
    return held
