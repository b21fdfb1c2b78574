"""What a run leaves on disk, and how it resumes.

    runs/<when>-<subject>/
      run.json  audit.json  report.html  junit.xml  card.md
      findings/<probe>.json  samples/<probe>.parquet  witnesses/<probe>.safetensors  figures/<probe>-<name>.svg

Every file is written under a temporary name and renamed. A finding's JSON is written last of its files and opens with
its key, so that a finding is there whole or not at all, and can be found by its key without reading it.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from assay.errors import AssayError
from assay.finding import Table, Witnesses, finding_from_json, finding_to_json
from assay.probe import Answer

FORMAT = 1
WITNESS_BYTES = 256 * 2**20
"""The most that one probe's witnesses may take on disk; the rest is counted and left out."""


def write_atomically(path: Path, content: str | bytes) -> None:
    """All of it or nothing: a temporary name beside it, then a rename."""
    with _naming(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            with open(temporary, "wb") as f:
                f.write(content.encode("utf-8", "replace") if isinstance(content, str) else content)  # lone surrogates
                f.flush()
                os.fsync(f.fileno())
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as e:
        raise AssayError(
            f"Cannot write {str(path)!r}: {e.strerror or e}; free some space or choose another folder with --out."
        ) from e


def strict_json(value: Any) -> str:
    """JSON without NaN: what was not measured is null."""
    return json.dumps(value, allow_nan=False, ensure_ascii=False, indent=1)


def slug(text: str) -> str:
    """A user's name for a thing, as a file name."""
    return re.sub(r"[^A-Za-z0-9._+-]+", "-", text).strip("-.")[:60] or "subject"


def open_run(root: Path, subject: str, key: str, manifest: Mapping[str, Any]) -> Path:
    """The folder of the audit with this key: the newest one that was begun, whether it ended or not, else a new one."""
    for folder in sorted(root.glob("*/run.json"), reverse=True):
        if _first_key(folder) == key:
            _sweep(folder.parent)
            return folder.parent
    when = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    folder, twin = root / f"{when}-{slug(subject)}", 1
    while folder.exists():
        twin += 1
        folder = root / f"{when}-{slug(subject)}-{twin}"
    write_atomically(folder / "run.json", strict_json({"key": key, **manifest}))
    return folder


def _sweep(folder: Path) -> None:
    """Remove what writers that were killed left under temporary names; those of living ones stay."""
    for path in folder.rglob(".*"):
        writer = path.name.rpartition(".")[2]
        if path.is_file() and writer.isdigit() and not _lives(int(writer)):
            path.unlink(missing_ok=True)


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass
    return True


def _first_key(path: Path) -> str | None:
    """The key that a JSON file of ours opens with, without reading the rest."""
    try:
        with open(path, encoding="utf-8") as f:
            found = re.match(r'\{\s*"key": "([0-9a-f]+)"', f.read(80))
    except (OSError, UnicodeDecodeError):
        return None
    return found.group(1) if found else None


def save_answer(folder: Path, answer: Answer) -> None:
    """Write an answer; its samples and witnesses go first, so that the JSON vouches for them."""
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
    }
    if answer.finding is not None:
        stored["finding"] = finding_to_json(answer.finding)
        if answer.finding.samples is not None:
            _write_table(folder / "samples" / f"{answer.probe}.parquet", answer.finding.samples)
            stored["samples"] = f"samples/{answer.probe}.parquet"
        if answer.finding.witnesses is not None and len(answer.finding.witnesses):
            stored["witnesses"] = f"witnesses/{answer.probe}.safetensors"
            stored["witnesses_left_out"] = _write_witnesses(folder / stored["witnesses"], answer.finding.witnesses)
    write_atomically(folder / "findings" / f"{answer.probe}.json", strict_json(stored))


def find_answer(root: Path, folder: Path, probe: str, key: str) -> Answer | None:
    """An answer with this key: in the run's own folder, or carried over from another run beside it."""
    own = folder / "findings" / f"{probe}.json"
    for path in [own, *sorted(root.glob(f"*/findings/{probe}.json"), reverse=True)]:
        if _first_key(path) == key:
            answer = load_answer(path, whole=path != own)
            if answer.status != "asked":
                continue
            if path != own:
                save_answer(folder, answer)
            return answer
    return None


def load_answer(path: Path, whole: bool = True) -> Answer:
    """Read a stored answer; with `whole`, its samples and witnesses too. Needs no torch."""
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        folder = path.parent.parent
        samples = _read_table(folder / stored["samples"]) if whole and "samples" in stored else None
        witnesses = _read_witnesses(folder / stored["witnesses"]) if whole and "witnesses" in stored else None
        finding = finding_from_json(stored["finding"], samples, witnesses) if "finding" in stored else None
        return Answer(
            probe=stored["probe"],
            question=stored["question"],
            source=stored["source"],
            settings=stored["settings"],
            key=stored["key"],
            status=stored["status"],
            finding=finding,
            why=stored["why"],
            seconds=stored["seconds"],
            when=stored["when"],
        )
    except (OSError, KeyError, TypeError, ValueError) as e:
        raise AssayError(f"Cannot read the finding {str(path)!r}: {e}; delete it and audit again.") from e


def _write_table(path: Path, table: Table) -> None:
    import io

    import pyarrow as pa
    import pyarrow.parquet as pq

    out = io.BytesIO()
    columns = {name: pa.array(column, from_pandas=True) for name, column in table.columns.items()}
    pq.write_table(pa.table(columns).replace_schema_metadata({"split": table.split}), out)
    write_atomically(path, out.getvalue())


def _read_table(path: Path) -> Table:
    import pyarrow.parquet as pq

    stored = pq.read_table(path)
    split = (stored.schema.metadata or {}).get(b"split", b"test").decode()
    return Table(split, {n: stored[n].to_numpy(zero_copy_only=False) for n in stored.column_names})


def _write_witnesses(path: Path, w: Witnesses) -> int:
    """Write as many as fit into WITNESS_BYTES; return how many were left out."""
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
    write_atomically(path, save(arrays, metadata=about))
    return len(w) - n


def _read_witnesses(path: Path) -> Witnesses:
    from safetensors import safe_open

    with safe_open(path, framework="numpy") as f:
        about = f.metadata()
        arrays = {name: f.get_tensor(name) for name in f.keys()}  # noqa: SIM118  (not a mapping)
    return Witnesses(
        split=about["split"], norm=tuple(json.loads(about["norm"])), how=tuple(json.loads(about["how"])), **arrays
    )
