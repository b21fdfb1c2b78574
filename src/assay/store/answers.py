"""Answers on disk: a finding's JSON, and beside it the samples and witnesses that it vouches for.

The JSON is written last of an answer's files, opens with its key, and keeps the SHA-256 of each of the others: a
finding is there whole or not at all, is found by its key without reading it, and shows where a file of its was changed.
"""

from __future__ import annotations

import io
import json
import logging
import os
import re
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay import shelf
from assay.errors import AssayError
from assay.finding import Table, Witnesses, finding_from_json, finding_to_json
from assay.probe import OTHER, THEMES, Answer, Look, Spent
from assay.store.files import (
    JSON_BYTES,
    MOST_BYTES,
    digest,
    first_key,
    make_folder,
    naming,
    read,
    read_json,
    strict_json,
    turn,
    write_atomically,
)
from assay.store.typed import check_types

if TYPE_CHECKING:
    from numpy.typing import NDArray

FORMAT = 2
HEAD = "audit.json"
WITNESS_BYTES = 256 * 2**20
"""The most that one probe's witnesses may take on disk; the rest is counted and left out."""
SAMPLES_BYTES = 1024 * 2**20
"""The most that one probe's samples may unpack to."""
TRIES = 3  # of a writer who cannot be alone and was disturbed
BROKEN = (OSError, LookupError, TypeError, ValueError, AttributeError, ArithmeticError, AssayError)
"""What reading a file raises that is not what we wrote."""


class NotKept(AssayError):
    """An answer that no file can hold."""


class TooLarge(NotKept):
    """An answer that could be written and never be read again."""


def save_answer(folder: Path, answer: Answer) -> str:
    """Write an answer. Where another audit of this folder has just answered the same question, that answer stands.

    Returns the SHA-256 of the finding that stands.
    """
    name = finding_of(answer.probe)
    with naming(folder / "findings"):
        make_folder(folder)
    for _ in range(TRIES):
        with turn(folder):
            if first_key(folder, name) == answer.key and _stands(folder, name, looks=len(answer.looks)):
                return digest(folder, name)
            written = _write_answer(folder, name, answer)
            if _stands(folder, name, answer.status) and not _is_other(folder, name, written):
                return written
    raise AssayError(f"Another audit keeps writing to {str(folder)!r}; let it end, and run this again.")


def _stands(folder: Path, name: str, status: str = "asked", looks: int = 0) -> bool:
    """Whether an answer that is stored is whole, and of at least so many looks."""
    try:
        stored = load_answer(folder / name, whole=False, linked=True)
        return stored.status == status and len(stored.looks) >= looks
    except AssayError:
        return False


def _write_answer(folder: Path, name: str, answer: Answer) -> str:
    stored: dict[str, Any] = {
        "key": answer.key,
        "format": FORMAT,
        "probe": answer.probe,
        "question": answer.question,
        "source": answer.source,
        "settings": dict(answer.settings),
        "status": answer.status,
        "why": answer.why,
        "seconds": answer.seconds,
        "when": answer.when,
        "environment": dict(answer.environment),
        "theme": answer.theme,
        **({"looks": [asdict(look) for look in answer.looks]} if answer.looks else {}),
        **({} if answer.spent is None else {"spent": asdict(answer.spent)}),
        "links": {},
    }
    finding = answer.finding
    if finding is not None:
        stored["finding"] = finding_to_json(finding)
        _check_size(stored)
    samples, witnesses = samples_of(answer.probe), witnesses_of(answer.probe)
    if finding is not None and finding.samples is not None:
        content = _table_bytes(finding.samples)
        if len(content) > MOST_BYTES:
            raise TooLarge(
                f"Its samples take {len(content):,} bytes, where {MOST_BYTES:,} are read; keep fewer columns."
            )
        stored["links"][samples] = write_atomically(folder / samples, content)
    if finding is not None and finding.witnesses is not None and len(finding.witnesses):
        kept, n = _witness_bytes(finding.witnesses)
        stored["witnesses_kept"] = n
        stored["witnesses_left_out"] = finding.witnesses.left_out + len(finding.witnesses) - n
        stored["links"][witnesses] = write_atomically(folder / witnesses, kept)
    for stale in {samples, witnesses} - set(stored["links"]):  # of a writer who was killed before its finding
        (folder / stale).unlink(missing_ok=True)
    return write_atomically(folder / name, strict_json(stored))


def _check_size(stored: Mapping[str, Any]) -> None:
    """TooLarge where a finding is longer than what is read of one, with its longest part; NotKept where it is no JSON.

    A NaN in a curve is no JSON: a view may be made of numbers that a measure would have refused.
    """
    told = stored["finding"]
    parts = {"settings": stored["settings"], "sentence": told["says"]}
    parts |= {name: told[name] for name in ("measures", "alarms")}
    parts |= {f"view {view['name']!r}": view for view in told["views"]}
    try:
        size = _bytes(stored)
    except (TypeError, ValueError) as e:
        broken = next((name for name, part in parts.items() if not _is_json(part)), "finding")
        raise NotKept(f"Its {broken} cannot be kept: {e}; what was not measured is None, and left out.") from e
    if size > JSON_BYTES - 2**10:  # its links are still to come
        sizes = {name: _bytes(part) for name, part in parts.items()}
        longest = max(sizes, key=sizes.__getitem__)
        raise TooLarge(
            f"Its finding takes {size:,} bytes, where {JSON_BYTES:,} are read; keep less in its {longest} "
            f"({sizes[longest]:,} bytes)."
        )


def _is_json(part: Any) -> bool:
    try:
        strict_json(part)
    except (TypeError, ValueError):
        return False
    return True


def _bytes(value: Any) -> int:
    return len(strict_json(value).encode("utf-8", "replace"))


def finding_of(probe: str) -> str:
    """Where the finding of a probe lies in its run; AssayError where its name would lead elsewhere."""
    if not isinstance(probe, str) or not re.fullmatch(r"[A-Za-z0-9+_-][A-Za-z0-9.+_-]{0,99}", probe):
        raise AssayError(f"The probe's name {str(probe)[:100]!r} is no file name; use letters, digits and - _ + .")
    return f"findings/{probe}.json"


def samples_of(probe: str) -> str:
    return f"samples/{probe}.parquet"


def witnesses_of(probe: str) -> str:
    return f"witnesses/{probe}.safetensors"


def find_answer(root: Path, folder: Path, probe: str, key: str) -> Answer | None:
    """An answer with this key: in the run's own folder, or carried over from another run beside it.

    What stands in its place in the own folder and cannot be believed (half of a file, another format, samples that were
    changed) is set aside, and the question is asked again. Another run's finding is passed over where that run's
    audit.json vouches for another.
    """
    name = finding_of(probe)
    with turn(folder):  # else what another audit of this folder is writing just now would look torn
        if (folder / name).exists() or (folder / name).is_symlink():
            try:
                if first_key(folder, name) not in (key, None):
                    raise AssayError("it answers another question")
                own = load_answer(folder / name, whole=False, linked=True)
                if own.status == "asked":
                    return own
            except AssayError as e:
                set_aside(folder, name, str(e))
    for path in sorted(root.glob(f"*/{name}"), reverse=True):
        other = path.parent.parent
        if other == folder or first_key(other, name) != key or changed(other, [name]):
            continue
        try:
            answer = load_answer(path)
        except AssayError:  # it is that run's to mend
            continue
        if answer.status == "asked":
            save_answer(folder, answer)
            return answer
    return None


def changed(folder: Path, names: Iterable[str]) -> list[str]:
    """Those of a run's files that are not what its audit.json vouches for; none where there is no audit.json yet."""
    try:
        links = dict(read_json(read(folder, HEAD, JSON_BYTES))["links"])
    except BROKEN:  # it vouches for nothing, or is no file of ours
        return []
    return differing(folder, {name: links[name] for name in names if name in links})


def _is_other(folder: Path, name: str, wanted: object) -> bool:
    """Whether a file is there and is not the one of this digest."""
    try:
        return digest(folder, name) != wanted
    except FileNotFoundError:
        return False
    except AssayError:  # a link, or larger than any file of ours
        return True


def differing(folder: Path, links: Mapping[str, str]) -> list[str]:
    """Those of these files that are there and are not the ones of these digests."""
    return [name for name, wanted in links.items() if _is_other(folder, name, wanted)]


def looked_more(folder: Path, name: str, ours: Answer) -> bool:
    """Whether what lies there is a whole answer to the same question, of more looks than ours."""
    return first_key(folder, name) == ours.key and _stands(folder, name, looks=len(ours.looks) + 1)


def set_aside_changed(folder: Path, probes: Iterable[str]) -> None:
    """Set aside the findings that were changed after the run's audit.json was written, so that they are asked again."""
    with turn(folder):
        for name in changed(folder, map(finding_of, probes)):
            set_aside(folder, name, f"it was changed after {HEAD} was written")


def set_aside(folder: Path, name: str, why: str) -> None:
    """Move a file that cannot be believed to `aside/`, where nothing is read, and say so in one line."""
    aside = folder / "aside" / f"{secrets.token_hex(4)}-{Path(name).name}"
    with naming(aside):
        make_folder(aside.parent)
        os.replace(folder / name, aside)
    line = " ".join(why.split()).partition("; ")[0]
    logging.getLogger("assay").warning("%r is set aside as %r and asked again: %s", name, str(aside), line)


def load_answer(path: Path, whole: bool = True, linked: bool = False) -> Answer:
    """Read a stored answer; with `whole`, its samples and witnesses too; `linked` only sees that they are unchanged.

    Needs no torch.
    """
    folder, name = path.parent.parent, f"{path.parent.name}/{path.name}"
    try:
        stored = read_json(read(folder, name, JSON_BYTES))
        check_format(name, stored)
        if name != finding_of(stored["probe"]):
            raise ValueError(f"it is the finding of {stored['probe']!r}")
        samples = witnesses = None
        for other, wanted in links_of(stored).items() if whole or linked else ():
            if digest(folder, other) != wanted:
                raise ValueError(f"{other} was changed after {name} was written")
            if whole and other == samples_of(stored["probe"]):
                samples = read_table(read(folder, other))
            elif whole:
                witnesses = replace(read_witnesses(read(folder, other)), left_out=_count(stored, "witnesses_left_out"))
        return answer_from(stored, samples, witnesses)
    except FileNotFoundError as e:
        raise AssayError(
            f"Cannot read the finding {str(path)!r}: {e.filename!r} is missing; delete it and audit again."
        ) from e
    except AssayError as e:
        raise AssayError(f"Cannot read the finding {str(path)!r}: {e}") from e
    except BROKEN as e:
        what = str(e) if isinstance(e, ValueError) else f"{type(e).__name__} {e}"
        raise AssayError(f"Cannot read the finding {str(path)!r}: {what}; delete it and audit again.") from e


def check_format(name: str, stored: Mapping[str, Any]) -> None:
    if not isinstance(stored.get("format"), int):
        raise ValueError("it does not say which format it has")
    if stored["format"] != FORMAT:
        raise AssayError(
            f"{name} has format {stored['format']}, and this version of Assay reads format {FORMAT}; audit "
            "again, or open it with the version that wrote it."
        )


def links_of(stored: Mapping[str, Any]) -> dict[str, str]:
    """The files that a stored finding vouches for: its own samples and witnesses, and nothing else."""
    links, known = stored["links"], (samples_of(stored["probe"]), witnesses_of(stored["probe"]))
    if not isinstance(links, dict) or not all(k in known and isinstance(v, str) for k, v in links.items()):
        raise ValueError(f"its links are not digests of {' and '.join(known)}")
    return links


def answer_from(stored: Mapping[str, Any], samples: Table | None = None, witnesses: Witnesses | None = None) -> Answer:
    """The answer that a JSON object of ours tells of."""
    answer = Answer(
        probe=stored["probe"],
        question=stored["question"],
        source=stored["source"],
        settings=stored["settings"],
        key=stored["key"],
        status=stored["status"],
        finding=finding_from_json(stored["finding"], samples, witnesses) if "finding" in stored else None,
        why=stored["why"],
        seconds=stored["seconds"],
        when=stored["when"],
        environment=stored["environment"],
        theme=theme_of(stored),
        looks=tuple(Look(**look) for look in stored.get("looks", ())),
        spent=None if stored.get("spent") is None else Spent(**stored["spent"]),
    )
    check_types(answer, leave=(Table, Witnesses))
    return answer


def theme_of(stored: Mapping[str, Any]) -> str:
    """The theme of a stored answer; of one from before there were themes, where its probe stands today."""
    theme = stored["theme"] if "theme" in stored else shelf.folder(stored["probe"])
    return theme if theme in dict(THEMES) else OTHER


def witnesses_kept(folder: Path, probe: str) -> tuple[int, int]:
    """How many witnesses of a finding are kept, and how many more were found that had no room; 0 where it is unread."""
    try:
        stored = read_json(read(folder, finding_of(probe), JSON_BYTES))
    except (AssayError, *BROKEN):
        return 0, 0
    return _count(stored, "witnesses_kept"), _count(stored, "witnesses_left_out")


def _count(stored: Mapping[str, Any], name: str) -> int:
    """0 where it is not told, or no count."""
    count = stored.get(name)
    return count if isinstance(count, int) and count > 0 else 0


def _table_bytes(table: Table) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    out = io.BytesIO()
    columns = {name: _arrow(column) for name, column in table.columns.items()}
    pq.write_table(pa.table(columns).replace_schema_metadata({"split": table.split}), out)
    return out.getvalue()


def _arrow(column: NDArray[Any]) -> Any:  # n -> pyarrow.Array
    """`pa.array(column, from_pandas=True)`, which imports pandas where it is installed: half a second of each audit."""
    import numpy as np
    import pyarrow as pa

    column, n = np.asarray(column), len(column)
    if column.ndim == 1 and column.dtype.kind in "biuf" and column.dtype.isnative:
        missing = np.isnan(column) if column.dtype.kind == "f" else np.zeros(n, dtype=bool)
        known = pa.py_buffer(np.packbits(~missing, bitorder="little")) if missing.any() else None
        held = np.packbits(column, bitorder="little") if column.dtype.kind == "b" else np.ascontiguousarray(column)
        return pa.Array.from_buffers(pa.from_numpy_dtype(column.dtype), n, [known, pa.py_buffer(held)])
    if column.ndim == 1 and column.dtype.kind == "U":
        texts = [text.encode() for text in column.tolist()]
        ends = np.cumsum([0, *map(len, texts)])
        if ends[-1] < 2**31:
            words = [pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(b"".join(texts))]
            return pa.Array.from_buffers(pa.string(), n, [None, *words])
    return pa.array(column, from_pandas=True)


def read_table(content: bytes) -> Table:
    """Samples as we write them; ValueError where the file is another, or unpacks to more than SAMPLES_BYTES."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    try:
        about = pq.read_metadata(io.BytesIO(content))
        schema = about.schema.to_arrow_schema()
        if about.num_columns != len(schema.names) or len(set(schema.names)) != len(schema.names):
            raise ValueError("its columns are not plain")
        packings = {
            about.row_group(i).column(j).compression for i in range(about.num_row_groups) for j in range(len(schema))
        }
        if not packings <= {"SNAPPY", "UNCOMPRESSED"}:  # these cannot swell a small file to a large one
            raise ValueError(f"it is packed with {', '.join(sorted(packings))}")
        texts = [f.name for f in schema if pa.types.is_string(f.type)]
        if len(schema) * about.num_rows * 8 > SAMPLES_BYTES or not all(
            f.name in texts or _is_plain(f.type) for f in schema
        ):
            raise ValueError("its columns are too long, or neither numbers nor text")
        batches, size = [], 0
        # A text that stands once in the file and in every row takes its length times the rows only where it is copied.
        for batch in pq.ParquetFile(io.BytesIO(content), read_dictionary=texts).iter_batches(2**16):
            for column in batch.columns:
                told = pa.types.is_dictionary(column.type)
                lengths = pc.binary_length(column.dictionary).take(column.indices) if told else None
                size += column.nbytes + (pc.sum(lengths).as_py() or 0 if told else 0)
            if size > SAMPLES_BYTES:
                raise ValueError(f"it unpacks to more than {SAMPLES_BYTES:,} bytes")
            batches.append(batch)
        stored = pa.Table.from_batches(batches, None if batches else schema)
    except (pa.ArrowException, OSError) as e:
        raise ValueError(f"the samples are no Parquet file of ours: {e}") from e
    columns = {n: _numpy(stored[n]) for n in stored.column_names}
    return Table((schema.metadata or {}).get(b"split", b"test").decode(), columns)


def _numpy(column: Any) -> NDArray[Any]:  # pyarrow.ChunkedArray -> n
    """`column.to_numpy(zero_copy_only=False)`, which imports pandas where it is installed; what is missing is NaN."""
    import numpy as np
    import pyarrow as pa

    kind = column.type
    if pa.types.is_boolean(kind) and not column.null_count:
        return np.concatenate([np.zeros(0, dtype=bool), *(_bits(chunk, 1).astype(bool) for chunk in column.chunks)])
    if pa.types.is_floating(kind) or (pa.types.is_integer(kind) and not column.null_count):
        dtype = np.dtype({"halffloat": "f2", "float": "f4", "double": "f8"}.get(str(kind), str(kind)))
        parts: list[NDArray[Any]] = [np.zeros(0, dtype=dtype)]
        for chunk in column.chunks:
            if len(chunk):
                parts.append(np.frombuffer(chunk.buffers()[1], dtype, len(chunk), chunk.offset * dtype.itemsize))
            if chunk.null_count:
                parts[-1] = np.where(_bits(chunk, 0), parts[-1], dtype.type(np.nan))
        return np.concatenate(parts)
    if pa.types.is_dictionary(kind) or pa.types.is_string(kind):  # what is missing is None
        return np.array(column.to_pylist(), dtype=object)
    return np.asarray(column.to_numpy(zero_copy_only=False))


def _bits(chunk: Any, buffer: int) -> NDArray[Any]:  # pyarrow.Array -> n
    import numpy as np

    if not len(chunk):
        return np.zeros(0, dtype=np.uint8)
    packed = np.frombuffer(chunk.buffers()[buffer], np.uint8)
    return np.unpackbits(packed, count=chunk.offset + len(chunk), bitorder="little")[chunk.offset :]


def _is_plain(kind: Any) -> bool:
    import pyarrow as pa

    plain = (pa.types.is_null, pa.types.is_boolean, pa.types.is_integer, pa.types.is_floating)
    return any(fits(kind) for fits in plain)


def _witness_bytes(w: Witnesses) -> tuple[bytes, int]:
    """As many as fit into WITNESS_BYTES, and how many those are."""
    from safetensors.numpy import save

    each = 2 * max(1, w.clean[:1].nbytes)
    n = min(len(w), max(1, WITNESS_BYTES // each))
    arrays: dict[str, Any] = {
        "index": w.index[:n],
        "clean": w.clean[:n],
        "changed": w.changed[:n],
        "label": w.label[:n],
        "said": w.said[:n],
        "radius": w.radius[:n],
    }
    about = {"split": w.split, "norm": json.dumps(w.norm[:n]), "how": json.dumps(w.how[:n])}
    return save(arrays, metadata=about), n


def read_witnesses(content: bytes) -> Witnesses:
    """Witnesses as we write them; ValueError where the file is another."""
    import numpy as np
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        arrays = load(content)  # whose sizes are those of the file: nothing unpacks
        about = read_json(content[8 : 8 + int.from_bytes(content[:8], "little")])["__metadata__"]
        words = {name: json.loads(about[name]) for name in ("norm", "how")}
    except (SafetensorError, LookupError, TypeError, RecursionError, ValueError) as e:
        raise ValueError(f"the witnesses are no safetensors file of ours: {e}") from e
    kinds = {"index": "i", "clean": "f", "changed": "f", "label": "if", "said": "if", "radius": "f"}
    n = len(arrays["index"]) if "index" in arrays and arrays["index"].ndim == 1 else -1
    fits = (
        set(arrays) == set(kinds)
        and all(len(a) == n and a.dtype.kind in kinds[k] for k, a in arrays.items() if a.ndim)
        and arrays["radius"].ndim == 1
        and all(arrays[k].ndim >= 1 for k in ("label", "said", "clean", "changed"))
        and arrays["clean"].shape == arrays["changed"].shape
        and all(isinstance(w, list) and len(w) == n and all(isinstance(s, str) for s in w) for w in words.values())
        and isinstance(about.get("split"), str)
    )
    if not fits:
        raise ValueError("the witnesses are not arrays of one length, as we write them")
    return Witnesses(
        split=about["split"],
        norm=tuple(words["norm"]),
        how=tuple(words["how"]),
        index=np.asarray(arrays["index"]),
        clean=np.asarray(arrays["clean"]),
        changed=np.asarray(arrays["changed"]),
        label=np.asarray(arrays["label"]),
        said=np.asarray(arrays["said"]),
        radius=np.asarray(arrays["radius"]),
    )
