"""Images and labels in one Parquet file."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from assay.data.arrays import UNIT, as_inputs, as_labels, check_classes, check_inputs
from assay.data.digest import of_files
from assay.data.image import Form, channels_first, check_form, check_same, decode
from assay.data.plain_file import MOST_ROWS, MOST_UNPACKED, open_plain, some
from assay.data.rows_at import rows_at
from assay.errors import AssayError

MOST_FOOTER = 64 * 2**20
"""Bytes of what a file says of itself; the reader makes some ten times as much of it."""


class Parquet:
    """A Parquet file with columns `image` and `label`, read one row group at a time.

    `image` is an encoded image (binary), a struct {bytes, path} as Hugging Face's datasets write it, or a fixed-size
    list of uint8 or floats, nested for several axes (the layout rule is `assay.data.image.channels_first`). Only the
    labels and one row group are held in memory, up to MOST_UNPACKED of it. `size` and `channels` are as for a folder of
    images. `classes` are those given, or the names that datasets left in the file. Where nobody `labelled` the images
    there is no column of labels, which are zeros.
    """

    def __init__(
        self,
        path: str | Path,
        size: tuple[int, int] | None = None,
        channels: int | None = None,
        classes: Sequence[str] | None = None,
        *,
        pixels: tuple[float, float] = UNIT,
        labelled: bool = True,
    ):
        import pyarrow as pa
        import pyarrow.parquet as pq

        check_form(size, channels)
        self.path, self.pixels = Path(path), pixels
        if not self.path.is_file():
            raise AssayError(f"There is no file {self.path}; give an existing Parquet file.")
        try:
            check_footer(self.path)
            # Not mapped: a file that is cut off meanwhile gives an error, where a map would end the process.
            self.file = pq.ParquetFile(self.path, memory_map=False)
            schema = self.file.schema_arrow
            missing = {"image", *(("label",) if labelled else ())}.difference(schema.names)
            if missing:
                raise AssayError(
                    f"{self.path} has columns {some(schema.names)} but no "
                    f"{' and no '.join(sorted(missing))}; rename yours to image and label."
                )
            if labelled and not pa.types.is_integer(schema.field("label").type):
                raise AssayError(
                    f"Column label of {self.path} is {one_line(schema.field('label').type)}; give class indices as "
                    "integers from 0."
                )
            if self.file.metadata.num_rows > MOST_ROWS:
                raise AssayError(
                    f"{self.path} holds {self.file.metadata.num_rows:,} rows, more than {MOST_ROWS:,}; give a part."
                )
            if labelled:
                labels = self.file.read(columns=["label"]).column("label")
            else:
                labels = pa.chunked_array([np.zeros(self.file.metadata.num_rows, dtype=np.int64)])
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise AssayError(f"{self.path} cannot be read as Parquet ({one_line(error)}); write it again.") from error
        if labels.null_count:
            row = labels.is_null().index(True).as_py()
            raise AssayError(f"Row {row} of {self.path} has no label; fill it or drop the row.")
        if not len(labels):
            raise AssayError(f"{self.path} holds no rows; give at least one input.")
        self.labels = as_labels(labels.to_numpy(), len(labels))
        self.classes: tuple[str, ...] | None = None if classes is None else tuple(classes)
        if classes is None and labelled:
            self.classes = named_by_datasets(schema)
        check_classes(self.labels, self.classes)
        counts = [self.file.metadata.row_group(g).num_rows for g in range(self.file.num_row_groups)]
        self.starts = np.concatenate([[0], np.cumsum(counts)])  # the first row of each group, and the end
        if self.starts[-1] != len(labels):
            raise AssayError(f"{self.path} has {len(labels)} labels for {self.starts[-1]} rows; write it again.")
        self.held: tuple[int, Any] | None = None  # the row group in memory
        kind = schema.field("image").type
        self.encoded, self.axes, self.width = image_kind(kind, self.path)
        self.column = "image.bytes" if pa.types.is_struct(kind) else "image"
        if self.encoded:
            first = self.row_group(0)[0]
            self.form: Form | None = Form(channels or len(self.decode(0, first, None)), size)
            self.shape: tuple[int, ...] = self.decode(0, first, self.form).shape  # c h w, of every image
        else:
            if size is not None or channels is not None:
                raise AssayError(f"{self.path} holds plain numbers, not encoded images; leave size and channels out.")
            self.form = None
            example = self.row_group(0)[:1]
            check_inputs(example)
            self.shape = channels_first(example).shape[1:]

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, indices: NDArray[np.integer]) -> tuple[Tensor, Tensor]:  # k -> k *d, k
        """Inputs as float32 in natural units and int64 labels, in the order asked for; each row group is read once."""
        rows = rows_at(indices, len(self))
        groups = np.searchsorted(self.starts, rows, side="right") - 1
        x = torch.empty((len(rows), *self.shape))
        for group in np.unique(groups):
            values = self.row_group(int(group))
            places = np.flatnonzero(groups == group)
            inside = rows[places] - self.starts[group]
            if self.encoded:
                part = np.empty((len(places), *self.shape), dtype=np.uint8)
                for k, (row, within) in enumerate(zip(rows[places], inside, strict=True)):
                    part[k] = self.decode(int(row), values[int(within)], self.form)
                x[places] = as_inputs(part, self.pixels)
            else:
                x[places] = as_inputs(channels_first(values[inside]), self.pixels)
        return x, torch.from_numpy(self.labels[rows])

    def fingerprint(self) -> str:
        """A hash of the file's name and content, and of how the images are brought to one form."""
        return of_files(self.path.parent, [self.path], f"Parquet {self.form and tuple(self.form)} {self.pixels}")

    def row_group(self, group: int) -> Any:
        """The images of one row group: a list of encoded ones, or a numpy array of numbers."""
        import pyarrow as pa

        if self.held is None or self.held[0] != group:
            self.held = None  # let the last one go before the next one comes
            try:
                values = self.encoded_images(group) if self.encoded else self.numbers(group)
            except (pa.ArrowException, OSError) as error:
                raise AssayError(
                    f"Row group {group} of {self.path} cannot be read ({one_line(error)}); write it again."
                ) from error
            if len(values) != self.starts[group + 1] - self.starts[group]:
                raise AssayError(f"Row group {group} of {self.path} has {len(values)} images, not one for each label.")
            self.held = group, values
        return self.held[1]

    def encoded_images(self, group: int) -> list[bytes | None]:
        """One row at a time: a thousand rows may all name one large entry of a dictionary, and each gets a copy."""
        told = self.file.metadata.row_group(group)
        chunks = [told.column(c) for c in range(told.num_columns)]
        self.refuse_large(group, sum(c.total_uncompressed_size for c in chunks if self.is_read(c.path_in_schema)))
        images: list[bytes | None] = []
        held = 0
        for batch in self.file.iter_batches(1, row_groups=[group], columns=[self.column], use_threads=False):
            (raw,) = batch.column(0).to_pylist()
            images.append(raw["bytes"] if isinstance(raw, dict) else raw)
            held += len(images[-1] or b"")
            self.refuse_large(group, held)
        return images

    def is_read(self, path: str) -> bool:
        return path == self.column or path.startswith(f"{self.column}.")

    def refuse_large(self, group: int, size: int) -> None:
        if size > MOST_UNPACKED:
            raise AssayError(
                f"The images in row group {group} of {self.path} unpack to {size:,} bytes or more, over the "
                f"{MOST_UNPACKED:,} that are held at once; write it again with fewer rows to a group."
            )

    def numbers(self, group: int) -> NDArray[np.generic]:  # -> n *axes
        """The fixed-size lists of a row group as a numpy array; how many numbers they have is known before."""
        rows = self.file.metadata.row_group(group).num_rows
        self.refuse_large(group, rows * math.prod(self.axes) * self.width)
        column = self.file.read_row_group(group, columns=[self.column]).column("image").combine_chunks()
        n, values = len(column), column
        for _ in self.axes:
            self.refuse_null(values, group)
            values = values.flatten()
        self.refuse_null(values, group)
        array: NDArray[np.generic] = values.to_numpy(zero_copy_only=False).reshape(n, *self.axes)
        return array

    def refuse_null(self, values: Any, group: int) -> None:
        if values.null_count:
            raise AssayError(f"Row group {group} of {self.path} has images with missing values; fill or drop them.")

    def decode(self, row: int, value: bytes | None, form: Form | None) -> NDArray[np.uint8]:  # -> c h w
        """Decode one cell."""
        name = f"Row {row} of {self.path}"
        if value is None:
            raise AssayError(f"{name} has no image bytes; embed the image or drop the row.")
        image = decode(value, name, form)
        if form is not None and row:
            check_same(name, image, self.shape, "row 0")
        return image


def image_kind(kind: Any, path: Path) -> tuple[bool, tuple[int, ...], int]:
    """Whether a column of this Arrow type holds encoded images; else the axes of its lists and the bytes of a number.

    A struct carries its image in the field `bytes`.
    """
    import pyarrow as pa

    carried = kind.field("bytes").type if pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0 else kind
    if pa.types.is_binary(carried) or pa.types.is_large_binary(carried):
        return True, (), 1
    axes, inner = [], kind
    while pa.types.is_fixed_size_list(inner):
        axes.append(inner.list_size)
        inner = inner.value_type
    if not axes or not (pa.types.is_integer(inner) or pa.types.is_floating(inner)):
        raise AssayError(
            f"Column image of {path} is {one_line(kind)}; give encoded images (binary), a struct with a field bytes, "
            "or fixed-size lists of uint8 or floats."
        )
    return False, tuple(axes), inner.bit_width // 8


def check_footer(path: Path) -> None:
    """Refuse a file that says more of itself than any data set has to."""
    with open_plain(path) as file:
        end = file.seek(0, 2)
        file.seek(max(0, end - 8))
        length = int.from_bytes(file.read(4), "little")
    if min(length, end) > MOST_FOOTER:
        raise AssayError(f"{path} describes itself in {length:,} bytes, over {MOST_FOOTER:,}; write it again.")


def names_in_parquet(path: Path) -> list[str]:
    """The columns that a file has; what is wrong with it is told by `Parquet`."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        check_footer(path)
        return list(pq.read_schema(path, memory_map=False).names)
    except (pa.ArrowException, OSError, UnicodeDecodeError, AssayError):
        return ["label"]


def named_by_datasets(schema: Any) -> tuple[str, ...] | None:
    """The class names that Hugging Face's datasets keep in the schema, if it wrote this file."""
    try:
        names = json.loads(schema.metadata[b"huggingface"])["info"]["features"]["label"]["names"]
        return tuple(str(name) for name in names)
    except (KeyError, TypeError, ValueError, RecursionError):  # no metadata, not by datasets, or not a class label
        return None


def one_line(said: object) -> str:
    """The beginning of what pyarrow says of an error or a type."""
    text = str(said).splitlines()
    return text[0][:300] if text else type(said).__name__
