"""Columns of strangers, as Arrow: of a CSV, a Parquet or a JSON lines file, or of a data frame.

How much is read is known before memory is taken for it: bytes, cells, columns, the longest row.
"""

from __future__ import annotations

import codecs
import io
import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from assay.data.column import is_missing, sort
from assay.data.parquet import check_footer, one_line
from assay.data.plain_file import MOST_ROWS, MOST_UNPACKED, open_plain, some
from assay.errors import AssayError

MOST_COLUMNS = 2**14
MOST_LINE = 8 * 2**20
"""Bytes of one row of a file of text."""
CELL = 8  # bytes that a number takes
SUFFIXES = (".csv", ".parquet", ".jsonl")
_CHUNK = 1 << 20
_INDEX = re.compile(r"__index_level_\d+__")  # what pandas adds for the names of its rows


def read_columns(path: Path, words: Sequence[str] = ()) -> Any:  # -> pyarrow.Table
    """The columns of a file, by its suffix; those named in `words` are read as words whatever they look like."""
    if not path.exists():
        raise AssayError(f"There is no file {path}; give an existing .csv, .parquet or .jsonl file.")
    readers = {".csv": _read_csv, ".parquet": _read_parquet, ".jsonl": _read_jsonl}
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise AssayError(f"{path} is no table that can be opened; give a .csv, .parquet or .jsonl file.")
    return checked(reader(path, words), str(path))


def columns_of_frame(frame: Any) -> Any:  # -> pyarrow.Table
    """The columns of a data frame: of pandas, polars, pyarrow or whatever speaks Arrow, or a dict of lists."""
    import pyarrow as pa

    if hasattr(frame, "__arrow_c_stream__"):
        try:
            table = pa.table(frame)
        except (pa.ArrowException, TypeError, ValueError) as error:  # a column of pandas may mix types: told below
            if not hasattr(frame, "to_dict"):
                raise AssayError(f"The frame cannot be read ({one_line(error)}); give columns of one type.") from error
        else:
            kept = [k for k, name in enumerate(table.column_names) if not _INDEX.fullmatch(name)]
            return checked(table.select(kept), "The frame")
    try:
        columns = frame if isinstance(frame, Mapping) else frame.to_dict("list")
        lists = {str(name): list(cells) for name, cells in columns.items()}
    except (AttributeError, TypeError, ValueError) as error:
        raise AssayError(
            f"A {type(frame).__name__} is no table; give a data frame, a dict of columns, or the path of a file."
        ) from error
    if len(lists) < len(columns):
        raise AssayError(f"The frame has two columns of one name among {some(list(map(str, columns)))}; rename one.")
    lengths = {len(cells) for cells in lists.values()}
    if len(lengths) > 1:
        raise AssayError(f"The columns of the frame have {min(lengths)} to {max(lengths)} rows; give each as many.")
    return checked(pa.table({name: _array(name, cells) for name, cells in lists.items()}), "The frame")


def checked(table: Any, where: str) -> Any:
    """Refuse a table without rows, with too many columns, or with two of one name."""
    names = table.column_names
    if len(names) > MOST_COLUMNS:
        raise AssayError(f"{where} has {len(names):,} columns, more than {MOST_COLUMNS:,}; give a part.")
    _refuse_twice(names, where)
    if not table.num_rows:
        raise AssayError(f"{where} holds no rows; give at least two.")
    if table.num_rows > MOST_ROWS:
        raise AssayError(f"{where} holds {table.num_rows:,} rows, more than {MOST_ROWS:,}; give a part.")
    return table


def find(table: Any, name: str, what: str, where: str) -> Any:  # -> pyarrow.ChunkedArray
    """The column of this name, or an error that names the nearest."""
    names: list[str] = table.column_names
    if name not in names:
        near = get_close_matches(name, names, 1, 0.5) or [n for n in names if n.lower() == name.lower()]
        hint = f"did you mean {short(near[0])}?" if near else f"it has {some([_cut(n) for n in names])}."
        raise AssayError(f"{where} has no {what} {short(name)}; {hint}")
    return table.column(name)


def short(value: object) -> str:
    """A cell or a name as it is shown in a message: quoted, without escapes, and not longer than a line."""
    return repr(_cut(value) if isinstance(value, str) else value)


def _cut(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."


def _refuse_twice(names: Sequence[str], where: str) -> None:
    twice = next((name for name, count in Counter(names).items() if count > 1), None)
    if twice is not None:
        raise AssayError(f"{where} has two columns called {short(twice)}; give each a name of its own.")


def _array(name: str, cells: list[Any]) -> Any:  # -> pyarrow.Array
    import pyarrow as pa

    try:
        return pa.array(cells, from_pandas=True)
    except (pa.ArrowException, TypeError, OverflowError) as error:
        refuse_mixed(name, cells)
        raise AssayError(f"The column {short(name)} cannot be read ({one_line(error)}); mend it.") from error


def refuse_mixed(name: str, cells: Iterable[Any]) -> None:
    """Name the first cell that is of another sort than those before it."""
    first: tuple[str, Any] | None = None
    for row, value in enumerate(cells):
        if is_missing(value):
            continue
        found = sort(name, value).removeprefix("whole ")  # 1 and 2.5 are numbers
        if first is not None and found != first[0]:
            raise AssayError(
                f"The column {short(name)} mixes {first[0]} ({short(first[1])}) and {found}: row {row} is "
                f"{short(value)}; make them one type, and leave missing cells empty."
            )
        first = first or (found, value)


# CSV


def _read_csv(path: Path, words: Sequence[str]) -> Any:
    import pyarrow as pa
    import pyarrow.csv as pc

    wrong: list[Any] = []

    def refused(row: Any) -> str:
        wrong.append(row)
        return "error"

    try:
        with open_plain(path) as file:
            delimiter, end = _surveyed(file, path)
            table = pc.read_csv(
                pa.PythonFile(file),
                # One thread: then a broken row has a number. A row longer than a block is refused by the reader.
                read_options=pc.ReadOptions(use_threads=False, block_size=MOST_LINE),
                parse_options=pc.ParseOptions(
                    delimiter=delimiter, newlines_in_values=True, invalid_row_handler=refused
                ),
                convert_options=pc.ConvertOptions(
                    strings_can_be_null=True, column_types={name: pa.string() for name in words}
                ),
            )
    except pa.ArrowException as error:
        if wrong:
            raise AssayError(_ragged(path, wrong[0])) from error
        if "straddl" in str(error):
            raise AssayError(
                f"{path} has a row of more than {MOST_LINE:,} bytes; close its quotes, or give shorter rows."
            ) from error
        raise AssayError(f"{path} cannot be read as CSV ({one_line(error)}); write it again.") from error
    if table.num_rows and table.num_columns and not end.endswith(b'"'):
        last = table.column(table.num_columns - 1)[-1].as_py()
        if isinstance(last, str) and "\n" in last:  # the reader takes the end of the file for a closing quote
            raise AssayError(_unclosed(path, f"the last row, in {short(table.column_names[-1])}"))
    return table


def _ragged(path: Path, row: Any) -> str:
    line = "A row" if row.number is None else f"Row {row.number - 2}"
    if row.text.count('"') % 2:
        return _unclosed(path, line.lower())
    return (
        f"{line} of {path} has {row.actual_columns:,} cells where the header has {row.expected_columns:,} "
        f"({short(row.text)}); mend it, or quote what holds a separator."
    )


def _unclosed(path: Path, where: str) -> str:
    return f"{path} has a quote that never closes, in {where}; close or remove it."


def _surveyed(file: io.BufferedReader, path: Path) -> tuple[str, bytes]:
    """What parts the cells, and how the file ends; refuse what is no CSV before it is parsed."""
    size = os.fstat(file.fileno()).st_size
    if not size:
        raise AssayError(f"{path} is empty; give a CSV with a header and rows.")
    if size > MOST_UNPACKED:
        raise AssayError(f"{path} has {size:,} bytes, more than {MOST_UNPACKED:,}; give a part, or write Parquet.")
    header = (file.readline(MOST_LINE + 1).splitlines() or [b""])[0]
    if b"\0" not in header:  # told below
        if len(header) > MOST_LINE:
            raise AssayError(_long(path, 1))
        if not header.strip():
            raise AssayError(f"The first line of {path} is empty; the names of the columns stand there.")
        if header.count(b'"') % 2:
            raise AssayError(f"A quote in the header of {path} never closes; names of columns stand on one line.")
    delimiter = max((b",", b";", b"\t"), key=header.count)
    if header.count(delimiter) >= MOST_COLUMNS and b"\0" not in header:
        raise AssayError(
            f"{path} has {header.count(delimiter) + 1:,} columns, more than {MOST_COLUMNS:,}; give a part."
        )
    file.seek(0)
    decoder, lines, open_line, cells, chunk, end = codecs.getincrementaldecoder("utf-8")(), 0, 0, 0, b"", b""
    while chunk := file.read(_CHUNK):
        if b"\0" in chunk:
            raise AssayError(f"{path} is no CSV: it holds zero bytes; save the table as CSV in UTF-8, or as Parquet.")
        try:
            decoder.decode(chunk)
        except UnicodeDecodeError as error:
            line = lines + chunk.count(b"\n", 0, error.start) + 1
            raise AssayError(_not_utf8(path, line, error)) from error
        first = chunk.find(b"\n")
        if open_line + (len(chunk) if first < 0 else first) > MOST_LINE:
            raise AssayError(_long(path, lines + 1))
        open_line = open_line + len(chunk) if first < 0 else len(chunk) - 1 - chunk.rfind(b"\n")
        found = chunk.count(b"\n")
        lines += found
        cells += found + chunk.count(b"\r") + chunk.count(delimiter)
        if cells * CELL > MOST_UNPACKED:
            raise AssayError(f"{path} has more than {MOST_UNPACKED // CELL:,} cells; give a part.")
        end = (end + chunk)[-4096:]
    try:
        decoder.decode(b"", final=True)
    except UnicodeDecodeError as error:
        raise AssayError(_not_utf8(path, lines + 1, error)) from error
    file.seek(0)
    return delimiter.decode(), end.rstrip()


def _long(path: Path, line: int) -> str:
    return f"Line {line} of {path} has more than {MOST_LINE:,} bytes; is it a table of rows?"


def _not_utf8(path: Path, line: int, error: UnicodeDecodeError) -> str:
    return f"Line {line} of {path} is not UTF-8 (byte 0x{error.object[error.start]:02x}); save it as UTF-8."


# Parquet


def _read_parquet(path: Path, _words: Sequence[str]) -> Any:
    """Row group by row group; words stay in their dictionaries, as a thousand rows may name one large entry."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with open_plain(path):
            pass
        check_footer(path)
        schema, metadata = pq.read_schema(path), pq.read_metadata(path)
        if len(schema.names) > MOST_COLUMNS:
            raise AssayError(f"{path} has {len(schema.names):,} columns, more than {MOST_COLUMNS:,}; give a part.")
        _refuse_twice(schema.names, str(path))
        nested = next((f for f in schema if pa.types.is_nested(f.type)), None)
        if nested is not None:
            raise AssayError(
                f"The column {short(nested.name)} of {path} is {one_line(nested.type)}; give numbers, words, booleans "
                "or dates."
            )
        told = sum(metadata.row_group(g).total_byte_size for g in range(metadata.num_row_groups))
        size = max(told, metadata.num_rows * len(schema.names) * CELL)
        if size > MOST_UNPACKED:
            raise AssayError(
                f"{path} unpacks to {size:,} bytes, over the {MOST_UNPACKED:,} that are held at once; give a part."
            )
        texts = [f.name for f in schema if is_words(f.type)]
        file = pq.ParquetFile(path, memory_map=False, read_dictionary=texts)
        batches, held = [], 0
        for batch in file.iter_batches(2**16, use_threads=False):
            batches.append(batch)
            held += batch.nbytes
            if held > 2 * MOST_UNPACKED:
                raise AssayError(f"{path} unpacks to over {2 * MOST_UNPACKED:,} bytes; give a part.")
        return pa.Table.from_batches(batches, file.schema_arrow)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise AssayError(f"{path} cannot be read as Parquet ({one_line(error)}); write it again.") from error


def is_words(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


# JSON lines


def _read_jsonl(path: Path, _words: Sequence[str]) -> Any:
    """One object a line; a key that a line lacks is missing there."""
    import pyarrow as pa

    columns: dict[str, list[Any]] = {}
    count = 0
    with open_plain(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > MOST_UNPACKED:
            raise AssayError(f"{path} has {size:,} bytes, more than {MOST_UNPACKED:,}; give a part.")
        while raw := file.readline(MOST_LINE + 1):
            if len(raw) > MOST_LINE:
                raise AssayError(_long(path, count + 1))
            if not raw.strip():
                continue
            for name, value in _object(path, count, raw).items():
                if name not in columns:
                    columns[name] = [None] * count
                    if len(columns) > MOST_COLUMNS:
                        raise AssayError(f"{path} has more than {MOST_COLUMNS:,} keys; give a part.")
                columns[name].append(value)
            count += 1
            for cells in columns.values():
                if len(cells) < count:
                    cells.append(None)
            if count * len(columns) * CELL > MOST_UNPACKED:
                raise AssayError(f"{path} has more than {MOST_UNPACKED // CELL:,} cells; give a part.")
    if not count:
        raise AssayError(f"{path} is empty; give one object a line.")
    return pa.table({name: _array(name, cells) for name, cells in columns.items()})


def _object(path: Path, row: int, raw: bytes) -> dict[str, Any]:
    try:
        found = json.loads(raw.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise AssayError(_not_utf8(path, row + 1, error)) from error
    except (ValueError, RecursionError) as error:
        raise AssayError(f"Row {row} of {path} is no JSON ({one_line(error)}); give one object a line.") from error
    if not isinstance(found, dict):
        raise AssayError(f"Row {row} of {path} is a {type(found).__name__}, no object; give one a line.")
    nested = next((name for name, value in found.items() if isinstance(value, dict | list)), None)
    if nested is not None:
        raise AssayError(f"{short(nested)} in row {row} of {path} is nested; give numbers, words or booleans.")
    return found
