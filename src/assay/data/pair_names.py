"""Names of pairs of images: what lies in each of the four folders, and whether each image has its partner.

By names alone and without torch, so that a page tells at once what is wrong; images are read by image_pairs.py, which
says what the layout is.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path, PurePosixPath

from assay.data.plain_file import files_below, read_plain, some
from assay.errors import AssayError

MOST_ONE = 2**28  # bytes of one file
LAYOUT = "input/train, input/test, output/train and output/test, with equal file names in input and output"
PLACES = ("input/train", "output/train", "input/test", "output/test")
Found = dict[str, dict[str, tuple[str, Callable[[], bytes]]]]  # by place and stem: the whole name, and its bytes


def of_folder(root: Path, suffixes: tuple[str, ...]) -> Found:
    home = _home({place.split("/")[0] for place in PLACES if (root / place.split("/")[0]).is_dir()}, root)
    found: Found = {}
    for place in PLACES:
        folder = home / place
        paths = sorted(files_below(folder, root, suffixes)) if folder.is_dir() else []
        for file in paths:
            if file.parent != folder:
                inside = str(file.relative_to(root))
                raise AssayError(f"{inside!r} lies in a folder below {place}; put the images right into {place}.")
            add(found, place, file.name, lambda file=file: read_plain(file, MOST_ONE))  # type: ignore[misc]
    return found


def _home(there: set[str], root: Path) -> Path:
    """The folder itself, or the one folder that it holds."""
    if there:
        return root
    inner = [entry for entry in root.iterdir() if entry.is_dir() and not entry.is_symlink() and entry.name[0] != "."]
    return inner[0] if len(inner) == 1 else root


def add(found: Found, place: str, name: str, read: Callable[[], bytes]) -> None:
    stem = PurePosixPath(name).stem
    there = found.setdefault(place, {})
    if stem in there:
        raise AssayError(
            f"{place} holds {there[stem][0]!r} and {name!r}, which are one name but for the suffix; rename one of them."
        )
    there[stem] = (name, read)


def refuse_unpaired(name: str, found: Found) -> None:
    """Where a folder is missing or an image has no partner; test images alone may have none, all of them."""
    for place in PLACES[:3]:
        if not found.get(place):
            raise AssayError(f"{name!r} has no images in {place}; it should hold {LAYOUT}.")
    for split in ("train", "test"):
        x, y = found[f"input/{split}"], found.get(f"output/{split}", {})
        if split == "test" and not y:
            continue
        for here, there, lacks in ((x, y, "output"), (y, x, "input")):
            alone = sorted(here.keys() - there.keys())
            if alone:
                has = "input" if lacks == "output" else "output"
                raise AssayError(
                    f"{has}/{split} has {some([here[stem][0] for stem in alone])} and {lacks}/{split} has not; "
                    f"{len(alone)} of its images have no partner: give each pair one name."
                )
