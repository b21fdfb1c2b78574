"""A folder of images, one sub-folder per class."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from assay.data.arrays import UNIT, as_inputs
from assay.data.digest import of_files
from assay.data.image import Form, check_form, check_same, decode
from assay.data.plain_file import files_below, refuse_leading_out
from assay.data.rows_at import rows_at
from assay.errors import AssayError

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff")


def class_folders(root: Path) -> list[Path]:
    """The sub-folders of a folder, which are classes; none where what lies in it has no labels."""
    return sorted(entry for entry in root.iterdir() if entry.is_dir() and entry.name[0] != ".")


class ImageFolder:
    """Images in `root/<class>/`, decoded when they are taken; the sorted names of the sub-folders are the classes.

    Names that begin with a dot and files that are no images are passed over. `channels` is 1 (grey) or 3 (RGB), that of
    the first image unless given; `size` (height, width) scales and crops, and may be left out if all are of one size;
    `pixels` is what 0..255 is brought to. Images that nobody `labelled` lie in `root` itself; their labels are zeros.
    """

    def __init__(
        self,
        root: str | Path,
        size: tuple[int, int] | None = None,
        channels: int | None = None,
        *,
        pixels: tuple[float, float] = UNIT,
        labelled: bool = True,
    ):
        check_form(size, channels)
        self.pixels = pixels
        self.root = Path(root)
        if not self.root.is_dir():
            raise AssayError(f"There is no folder {self.root}; give a folder with one sub-folder of images per class.")
        folders = class_folders(self.root) if labelled else [self.root]
        for folder in folders:
            refuse_leading_out(folder, self.root)
        if not folders:
            raise AssayError(f"{self.root} has no sub-folders; put the images of each class into one of its own.")
        self.paths: list[Path] = []
        counts = []
        for folder in folders:
            found = sorted(files_below(folder, self.root, SUFFIXES))
            if not found:
                what = "Class folder" if labelled else "The folder"
                raise AssayError(f"{what} {folder} holds no images ({' '.join(SUFFIXES)}); fill or remove it.")
            self.paths += found
            counts.append(len(found))
        self.classes: tuple[str, ...] | None = tuple(folder.name for folder in folders) if labelled else None
        self.labels: NDArray[np.int64] = np.repeat(np.arange(len(folders), dtype=np.int64), counts)
        self.form = Form(channels or len(decode(self.paths[0], str(self.paths[0]), None)), size)
        self.shape = decode(self.paths[0], str(self.paths[0]), self.form).shape  # c h w, of every image

    def __len__(self) -> int:
        return len(self.paths)

    def take(self, indices: NDArray[np.integer]) -> tuple[Tensor, Tensor]:  # k -> k c h w, k
        """Decode these images: float32 between `pixels`, and their int64 labels."""
        rows = rows_at(indices, len(self))
        pixels = np.empty((len(rows), *self.shape), dtype=np.uint8)
        for place, row in enumerate(rows):
            path = self.paths[row]
            image = decode(path, str(path), self.form)
            check_same(str(path), image, self.shape, f"the first image {self.paths[0]}")
            pixels[place] = image
        return as_inputs(pixels, self.pixels), torch.from_numpy(self.labels[rows])

    def fingerprint(self) -> str:
        """A hash of names and contents, and of how the images are brought to one form."""
        return of_files(self.root, self.paths, f"ImageFolder {tuple(self.form)} {self.pixels}")
