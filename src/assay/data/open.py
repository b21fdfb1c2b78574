"""Open a data set by what its path is."""

from __future__ import annotations

from pathlib import Path

from assay.data.arrays import UNIT
from assay.data.image_folder import ImageFolder
from assay.data.npz import Npz
from assay.data.parquet import Parquet
from assay.errors import AssayError


def open_data(
    path: str | Path,
    size: tuple[int, int] | None = None,
    channels: int | None = None,
    *,
    pixels: tuple[float, float] = UNIT,
) -> ImageFolder | Npz | Parquet:
    """A folder of images, an .npz file or a .parquet file; `size` and `channels` bring encoded images to one form.

    8-bit pixels are brought from 0..255 to `pixels`.
    """
    path = Path(path)
    if not path.exists():
        raise AssayError(f"There is nothing at {path}; give the path of an existing folder or file.")
    if path.is_dir():
        return ImageFolder(path, size, channels, pixels=pixels)
    if path.suffix.lower() == ".parquet":
        return Parquet(path, size, channels, pixels=pixels)
    if path.suffix.lower() != ".npz":
        raise AssayError(
            f"{path} is no data set that can be opened; give a folder with one sub-folder of images per class, "
            "an .npz file with x and y, or a .parquet file with image and label."
        )
    if size is not None or channels is not None:
        raise AssayError(f"{path} holds plain numbers, not encoded images; leave size and channels out.")
    return Npz(path, pixels=pixels)
