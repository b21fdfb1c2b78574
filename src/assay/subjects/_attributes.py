"""What was typed of the people behind the inputs: --sensitive, columns of a table, and --groups, files beside data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from assay.attribute import Attribute, column_of, group_file, parted
from assay.data.arrow import short
from assay.data.held_out import Part
from assay.data.plain_file import some
from assay.data.relabelled import Relabelled
from assay.data.table import Table
from assay.errors import AssayError
from assay.subject import Subject
from assay.subjects import Source


def columns(words: Sequence[str]) -> tuple[str, ...]:
    """The columns that the words of --sensitive may name: each as it is typed, and without its cut."""
    return tuple(dict.fromkeys(name for word in words for name in (word, parted(word)[0])))


def with_attributes(subject: Subject, source: Source) -> Subject:
    """The subject with what was typed of its people."""
    found = {**_sensitive(subject, source), **_groups(subject, source)}
    both = [name for name in _sensitive_names(source) if any(_named(word)[0] == name for word in source.groups)]
    if both:
        raise AssayError(f"The attribute {both[0]!r} is given twice, by --sensitive and --groups; leave one out.")
    return subject.with_attributes(found)


def _sensitive_names(source: Source) -> list[str]:
    return [parted(word)[0] for word in source.sensitive]


def _sensitive(subject: Subject, source: Source) -> dict[str, Attribute]:
    if not source.sensitive:
        return {}
    tables = {split: table for split, data in _splits(subject).items() if (table := _table(data)) is not None}
    if "test" not in tables:
        raise AssayError(
            f"--sensitive {source.sensitive[0]!r} is a column of a table, and {source.data} is none; give the groups "
            "as a file, --groups NAME=PATH."
        )
    found: dict[str, Attribute] = {}
    for word in source.sensitive:
        name, cut = (word, None) if word in tables["test"].names else parted(word)
        if name == source.target:
            raise AssayError(
                f"--sensitive {name!r} is the target, what the model is asked for; name a column about the people."
            )
        if name in found:
            raise AssayError(f"The attribute {name!r} is given twice by --sensitive; give it once.")
        _refuse_missing(name, tables["test"], str(source.data))
        cells = {split: table.beside.get(name) for split, table in tables.items()}
        found[name] = Attribute.of(
            name, {split: column_of(name, each, cut) for split, each in cells.items() if each is not None}, cut=cut
        )
    return found


def _refuse_missing(name: str, table: Table, where: str) -> None:
    if name in table.names:
        return
    near = get_close_matches(name, table.names, 1, 0.5)
    hint = f"did you mean {short(near[0])}?" if near else f"it has {some(table.names)}."
    raise AssayError(f"{where} has no column {short(name)} for --sensitive; {hint}")


def _groups(subject: Subject, source: Source) -> dict[str, Attribute]:
    told: dict[str, dict[str, Any]] = {}
    splits = _splits(subject)
    for word in source.groups:
        name, split, path = _named(word)
        if split not in splits:
            raise AssayError(f"--groups {word!r} is about {split!r}, which is no split; there are {some([*splits])}.")
        if split in told.setdefault(name, {}):
            raise AssayError(f"The groups {name!r} of {split!r} are given twice; give each a name of its own.")
        told[name][split] = group_file(path)
    return {name: Attribute.of(name, given) for name, given in told.items()}


def _named(word: str) -> tuple[str, str, Path]:
    """The name, the split and the path in NAME=PATH and NAME@SPLIT=PATH."""
    name, _, where = word.partition("=")
    name, _, split = name.partition("@")
    if not (name and where):
        raise AssayError(f"--groups {word!r} is not NAME=PATH; write for example --groups sex=sex.npy.")
    return name, split or "test", Path(where)


def _splits(subject: Subject) -> Mapping[str, Any]:
    return {**subject.data, **subject.unlabelled}


def _table(data: Any) -> Table | None:
    """The table that a split is, where its rows were not cut: codes follow those that were."""
    while isinstance(data, Relabelled):
        data = data.whole
    return None if isinstance(data, Part) or not isinstance(data, Table) else data
