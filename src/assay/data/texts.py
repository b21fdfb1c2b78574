"""Labelled texts: a .csv, .parquet or .jsonl file with a column of text, a data frame, or a folder of folders of .txt.

The strings are kept. With a tokenizer an input is the numbers of its tokens, held as floats, n by length.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence, Sized
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from assay.data.arrow import columns_of_frame, find, is_words, read_columns, short
from assay.data.column import WHOLE
from assay.data.digest import of_array
from assay.data.image_folder import SUFFIXES as IMAGES
from assay.data.parquet import one_line
from assay.data.plain_file import MOST_ROWS, MOST_UNPACKED, files_below, read_plain, refuse_leading_out
from assay.data.rows_at import rows_at
from assay.data.target import Asked, Target
from assay.errors import AssayError

MOST_TEXT = 2**20
"""Bytes of one .txt file."""
BATCH = 1024  # texts that are given to a tokenizer at once
SUFFIX = (".txt",)


class Encoder(Protocol):
    """A tokenizer that reads one text at a time."""

    def encode(self, text: str) -> Sequence[int]: ...


Tokenizer = Callable[[list[str]], Any] | Encoder
"""Texts to rows of token numbers: lists of any length, an array, or what holds them as `input_ids`."""


class Texts:
    """Texts with their targets. Rows of tokens are padded at the end to one `length`, the longest unless given.

    `vocabulary` is how many tokens the model knows, the tokenizer's own number unless given; `pad` the token after the
    end, the tokenizer's `pad_token_id` or 0. `classes` and `task` are as for `Target`. A file of texts that nobody
    `labelled` needs no target, and has zeros.
    """

    def __init__(
        self,
        source: Any,
        target: str = "label",
        *,
        text: str = "text",
        tokenizer: Tokenizer | None = None,
        vocabulary: int | None = None,
        length: int | None = None,
        pad: int | None = None,
        classes: Sequence[str] | None = None,
        task: Asked | None = None,
        labelled: bool = True,
    ) -> None:
        path = Path(source) if isinstance(source, str | Path) else None
        if path is not None and path.is_dir():
            self.all, self.target = _of_folder(path, classes)
        else:
            where = "The frame" if path is None else str(path)
            table = columns_of_frame(source) if path is None else read_columns(path, [text])
            column = find(table, text, "column of texts", where)
            if labelled:
                asked = find(table, target, "target column", where)
                self.target = Target.of(target, asked, classes=classes, task=task)
            else:
                self.target = Target(target, np.zeros(table.num_rows, dtype=np.int64), None)
            self.all = _strings(text, column)
        self.notes: list[str] = []
        self.tokens: NDArray[np.int32] | None = None  # n length
        self.tokenizer = tokenizer
        self.pad = (getattr(tokenizer, "pad_token_id", None) if pad is None else pad) or 0
        self.vocabulary = vocabulary
        if tokenizer is not None:
            if vocabulary is None and isinstance(tokenizer, Sized):
                self.vocabulary = len(tokenizer)
            self.tokens, told = _padded(_tokenised(self.all, tokenizer, self.vocabulary), length, self.pad)
            self.notes += told

    @property
    def labels(self) -> NDArray[Any]:
        return self.target.labels

    @property
    def classes(self) -> tuple[str, ...] | None:
        return self.target.classes

    def __len__(self) -> int:
        return len(self.all)

    def strings(self, indices: NDArray[np.integer]) -> list[str]:
        """These texts, as they were written."""
        return [self.all[i] for i in rows_at(indices, len(self)).tolist()]

    def encode(self, texts: list[str]) -> tuple[Tensor, Tensor]:  # k -> k length, k bool
        """Other texts as `take` gives these, and which of them fit: some tokens, and no more than there are places."""
        if self.tokenizer is None or self.tokens is None:
            raise AssayError("These texts have no tokenizer, so that no other can be read; give the model's own.")
        wide = self.tokens.shape[1]
        # a tokenizer may have padded all of them to the longest
        found = _rows(texts, self.tokenizer, self.vocabulary)
        rows = [row if len(row) <= wide else _bare(row, self.pad) for row in found]
        x = torch.full((len(rows), wide), float(self.pad))
        fits = torch.tensor([0 < len(row) <= wide for row in rows], dtype=torch.bool)
        for k in torch.nonzero(fits)[:, 0].tolist():
            x[k, : len(rows[k])] = torch.from_numpy(rows[k]).float()
        return x, fits

    def take(self, indices: NDArray[np.integer]) -> tuple[Tensor, Tensor]:  # k -> k length, k
        """Token numbers as float32, and the targets."""
        if self.tokens is None:
            raise AssayError("These texts have no tokenizer, so there are no numbers to take; give the model's own.")
        x = torch.from_numpy(self.tokens[indices].astype(np.float32))
        return x, torch.from_numpy(self.labels[indices])

    def fingerprint(self) -> str:
        """A hash of every text, target and token."""
        digest = hashlib.sha256(of_array(self.labels) + f"Texts {self.classes} {len(self)}".encode())
        for text in self.all:
            raw = text.encode("utf-8", "surrogatepass")
            digest.update(b"%d " % len(raw) + raw)
        if self.tokens is not None:
            digest.update(of_array(self.tokens))
        return digest.hexdigest()

    def described(self) -> list[str]:
        """What was understood, in lines."""
        words = [len(text.split()) for text in self.all]
        return [
            f"{len(self):,} texts of {min(words):,} to {max(words):,} words.",
            self.target.told(),
            *self.notes,
        ]


def holds_texts(root: Path) -> bool:
    """Whether a folder holds folders of .txt files, by the first of them."""
    first = min((entry for entry in root.iterdir() if entry.is_dir() and entry.name[0] != "."), default=None)
    held = set() if first is None else {entry.suffix.lower() for entry in first.iterdir()}
    return not held.isdisjoint(SUFFIX) and held.isdisjoint(IMAGES)  # beside images a text is a remark on them


def _of_folder(root: Path, classes: Sequence[str] | None) -> tuple[list[str], Target]:
    folders = sorted(entry for entry in root.iterdir() if entry.is_dir() and entry.name[0] != ".")
    if len(folders) < 2:
        raise AssayError(f"{root} has {len(folders)} sub-folders; put the texts of each class into one of its own.")
    texts: list[str] = []
    names: list[str] = []
    held = 0
    for folder in folders:
        refuse_leading_out(folder, root)
        found = sorted(files_below(folder, root, SUFFIX))
        if not found:
            raise AssayError(f"Class folder {folder} holds no .txt files; fill or remove it.")
        for path in found:
            raw = read_plain(path, MOST_TEXT)
            held += len(raw)
            if held > MOST_UNPACKED or len(texts) >= MOST_ROWS:
                raise AssayError(f"{root} holds more text than {MOST_UNPACKED:,} bytes; give a part.")
            try:
                texts.append(raw.decode("utf-8-sig"))
            except UnicodeDecodeError as error:
                raise AssayError(f"{path} is not UTF-8 (byte {error.start}); save it as UTF-8.") from error
            names.append(folder.name)
    import pyarrow as pa

    asked = pa.chunked_array([pa.array(names)])
    return texts, Target.of("folder", asked, classes=classes, task="classification")


def _strings(name: str, column: Any) -> list[str]:  # pyarrow.ChunkedArray
    import pyarrow as pa

    kind = column.type
    if not is_words(kind) and not (pa.types.is_dictionary(kind) and is_words(kind.value_type)):
        raise AssayError(f"The column {short(name)} is {one_line(kind)}, not text; name the one that holds the texts.")
    if column.null_count:
        row = column.is_null().index(True).as_py()
        raise AssayError(f"The column {short(name)} has no text in row {row}; fill it or drop the row.")
    if pa.types.is_dictionary(kind):
        _refuse_large(column)
    try:
        texts: list[str] = column.to_pylist()
    except UnicodeDecodeError as error:
        raise AssayError(f"The column {short(name)} holds texts that are not UTF-8; write it again.") from error
    return texts


def _refuse_large(column: Any) -> None:  # pyarrow.ChunkedArray
    """Refuse a dictionary that unpacks to more than is held: a million rows may name one large text."""
    import pyarrow.compute as pc

    size = sum(pc.sum(pc.binary_length(chunk.dictionary).take(chunk.indices)).as_py() or 0 for chunk in column.chunks)
    if size > MOST_UNPACKED:
        raise AssayError(f"The texts unpack to {size:,} bytes, over the {MOST_UNPACKED:,} that are held; give a part.")


def _tokenised(texts: list[str], tokenizer: Tokenizer, vocabulary: int | None) -> Iterator[NDArray[np.int64]]:
    """The tokens of each text; one that the model does not know, or none, is refused."""
    for k, row in enumerate(_rows(texts, tokenizer, vocabulary)):
        if not row.size:
            raise AssayError(
                f"Text {k} ({short(texts[k])}) gives no token; take it out, or give the model's own tokenizer."
            )
        yield row


def _bare(row: NDArray[np.int64], pad: int) -> NDArray[np.int64]:
    """A row without the padding after its end."""
    kept = np.flatnonzero(row != pad)
    return row[: kept[-1] + 1] if len(kept) else row[:0]


def _rows(texts: list[str], tokenizer: Tokenizer, vocabulary: int | None) -> Iterator[NDArray[np.int64]]:
    """The tokens of each text; one that the model does not know is refused."""
    most = WHOLE if vocabulary is None else min(vocabulary, WHOLE)  # single precision holds no more
    for start in range(0, len(texts), BATCH):
        batch = texts[start : start + BATCH]
        try:
            given: Any = tokenizer(batch) if callable(tokenizer) else [tokenizer.encode(text) for text in batch]
            rows = given["input_ids"] if hasattr(given, "keys") else given
            arrays = [np.asarray(row) for row in rows]
        except AssayError:
            raise
        except Exception as error:  # a stranger's tokenizer may raise whatever it likes
            raise AssayError(
                f"The tokenizer raised {type(error).__name__} on texts {start} to {start + len(batch) - 1} "
                f"({one_line(error)}); it takes a list of strings and gives rows of whole numbers."
            ) from error
        if len(arrays) != len(batch):
            raise AssayError(f"The tokenizer gives {len(arrays)} rows for {len(batch)} texts; it should give one each.")
        for k, row in enumerate(arrays, start):
            if row.dtype.kind == "f" and np.array_equal(row, np.trunc(row)):  # as a model takes them: whole, as floats
                row = row.astype(np.int64)
            if row.ndim != 1 or (row.size and row.dtype.kind not in "iu"):
                raise AssayError(
                    f"The tokenizer gives {row.dtype} of shape {row.shape} for text {k}; give a row of whole numbers."
                )
            strange = row[(row < 0) | (row >= most)]
            if strange.size:
                raise AssayError(
                    f"Text {k} ({short(texts[k])}) gives token {strange[0]}, outside the vocabulary of {most:,}; the "
                    "tokenizer does not match the model, give the one it was trained with."
                )
            yield row.astype(np.int64)


def _padded(
    rows: Iterator[NDArray[np.int64]], length: int | None, pad: int
) -> tuple[NDArray[np.int32], list[str]]:  # -> n length
    held: list[NDArray[np.int32]] = []
    size = 0
    for k, row in enumerate(rows):
        if length is not None and len(row) > length:
            raise AssayError(
                f"Text {k} has {len(row):,} tokens, more than {length:,}; cut it, or give a larger length."
            )
        held.append(row.astype(np.int32))
        size += row.size * 4
        if size > MOST_UNPACKED:
            raise AssayError(f"The texts have more than {MOST_UNPACKED // 4:,} tokens; give a part.")
    lengths = np.array([len(row) for row in held])
    wide = int(lengths.max()) if length is None else length
    if len(held) * wide * 4 > MOST_UNPACKED:
        raise AssayError(
            f"{len(held):,} texts padded to {wide:,} tokens are more than {MOST_UNPACKED // 4:,}; cut the longest, or "
            "give a part."
        )
    tokens = np.full((len(held), wide), pad, dtype=np.int32)
    tokens[np.arange(wide) < lengths[:, None]] = np.concatenate(held)
    if lengths.min() == wide:
        return tokens, []
    ragged = (
        f"Texts have {lengths.min():,} to {lengths.max():,} tokens; shorter ones are padded to {wide:,} with {pad}."
    )
    return tokens, [ragged]
