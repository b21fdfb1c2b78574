"""Images and labels in one Parquet file."""

from __future__ import annotations

import io
import json
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
from assay.errors import AssayError


class Parquet:
    """A Parquet file with columns `image` and `label`, read one row group at a time.

    `image` is an encoded image (binary), a struct {bytes, path} as Hugging Face's datasets write it, or a fixed-size
    list of uint8 or floats, nested for several axes (the layout rule is `assay.data.image.channels_first`). Only the
    labels and one row group are held in memory. `size` and `channels` are as for a folder of images. `classes` are
    those given, or the names that datasets left in the file.
    """

    def __init__(
        self,
        path: str | Path,
        size: tuple[int, int] | None = None,
        channels: int | None = None,
        classes: Sequence[str] | None = None,
        *,
        pixels: tuple[float, float] = UNIT,
    ):
        import pyarrow as pa
        import pyarrow.parquet as pq

        check_form(size, channels)
        self.path, self.pixels = Path(path), pixels
        if not self.path.is_file():
            raise AssayError(f"There is no file {self.path}; give an existing Parquet file.")
        try:
            self.file = pq.ParquetFile(self.path, memory_map=True)
            schema = self.file.schema_arrow
            missing = {"image", "label"}.difference(schema.names)
            if missing:
                raise AssayError(
                    f"{self.path} has columns {', '.join(map(repr, schema.names))} but no "
                    f"{' and no '.join(sorted(missing))}; rename yours to image and label."
                )
            labels = self.file.read(columns=["label"]).column("label")
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise AssayError(f"{self.path} cannot be read as Parquet ({one_line(error)}); write it again.") from error
        if not pa.types.is_integer(labels.type):
            raise AssayError(f"Column label of {self.path} is {labels.type}; give class indices as integers from 0.")
        if labels.null_count:
            row = labels.is_null().index(True).as_py()
            raise AssayError(f"Row {row} of {self.path} has no label; fill it or drop the row.")
        if not len(labels):
            raise AssayError(f"{self.path} holds no rows; give at least one input.")
        self.labels = as_labels(labels.to_numpy(), len(labels))
        self.classes = named_by_datasets(schema) if classes is None else tuple(classes)
        check_classes(self.labels, self.classes)
        counts = [self.file.metadata.row_group(g).num_rows for g in range(self.file.num_row_groups)]
        self.starts = np.concatenate([[0], np.cumsum(counts)])  # the first row of each group, and the end
        if self.starts[-1] != len(labels):
            raise AssayError(f"{self.path} has {len(labels)} labels for {self.starts[-1]} rows; write it again.")
        self.held: tuple[int, Any] | None = None  # the row group in memory
        self.encoded, self.axes = image_kind(schema.field("image").type, self.path)
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
        rows = np.arange(len(self))[indices]
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
        """The images of one row group: an Arrow array of encoded bytes, or a numpy array of numbers."""
        import pyarrow as pa

        if self.held is None or self.held[0] != group:
            self.held = None  # let the last one go before the next one comes
            try:
                column = self.file.read_row_group(group, columns=["image"]).column("image").combine_chunks()
            except (pa.ArrowException, OSError) as error:
                raise AssayError(
                    f"Row group {group} of {self.path} cannot be read ({one_line(error)}); write it again."
                ) from error
            if len(column) != self.starts[group + 1] - self.starts[group]:
                raise AssayError(f"Row group {group} of {self.path} has {len(column)} images, not one for each label.")
            self.held = group, column if self.encoded else self.numbers(column, group)
        return self.held[1]

    def numbers(self, column: Any, group: int) -> NDArray[np.generic]:  # -> n *axes
        """Flatten a fixed-size list into a numpy array."""
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

    def decode(self, row: int, value: Any, form: Form | None) -> NDArray[np.uint8]:  # -> c h w
        """Decode one cell; a struct carries its image in the field `bytes`."""
        name = f"Row {row} of {self.path}"
        raw = value.as_py()
        if isinstance(raw, dict):
            raw = raw["bytes"]
        if raw is None:
            raise AssayError(f"{name} has no image bytes; embed the image or drop the row.")
        image = decode(io.BytesIO(raw), name, form)
        if form is not None and row:
            check_same(name, image, self.shape, "row 0")
        return image


def image_kind(kind: Any, path: Path) -> tuple[bool, tuple[int, ...]]:
    """Whether a column of this Arrow type holds encoded images, and the axes of its lists where it does not."""
    import pyarrow as pa

    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return True, ()
    if pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0:
        return True, ()
    axes, inner = [], kind
    while pa.types.is_fixed_size_list(inner):
        axes.append(inner.list_size)
        inner = inner.value_type
    if not axes or not (pa.types.is_integer(inner) or pa.types.is_floating(inner)):
        raise AssayError(
            f"Column image of {path} is {kind}; give encoded images (binary), a struct with a field bytes, "
            "or fixed-size lists of uint8 or floats."
        )
    return False, tuple(axes)


def named_by_datasets(schema: Any) -> tuple[str, ...] | None:
    """The class names that Hugging Face's datasets keep in the schema, if it wrote this file."""
    try:
        names = json.loads(schema.metadata[b"huggingface"])["info"]["features"]["label"]["names"]
        return tuple(str(name) for name in names)
    except (KeyError, TypeError, ValueError):  # no metadata, not by datasets, or not a class label
        return None


def one_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
