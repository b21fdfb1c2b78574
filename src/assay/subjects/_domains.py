"""The domains that were typed, opened as the data of the subject were: --domain, --domains and --domain-column."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from difflib import get_close_matches
from typing import Any

import numpy as np

from assay.data.held_out import Part
from assay.data.image_folder import ImageFolder
from assay.data.open import has_labels, open_data
from assay.data.parquet import Parquet
from assay.data.plain_file import some
from assay.data.relabelled import Relabelled
from assay.data.table import Table
from assay.data.texts import Texts
from assay.domain import LEAST, NO_DOMAIN, Unlabelled, about_domain, in_their_order, refuse_domain, taken
from assay.errors import AssayError
from assay.given import Data, pixel_bounds
from assay.space import left_open
from assay.subject import Subject, check
from assay.subjects import Source
from assay.tasks import Comparison, Search


def typed(source: Source, test: Data, shape: tuple[int, ...], classes: tuple[str, ...], chosen: bool) -> dict[str, Any]:
    """The domains of --domain and --domains, each in the form of the test data; `Unlabelled` where it has no labels.

    `shape` is that of one input, `classes` the names of the model's, and targets are classes where one is `chosen`.
    """
    found: dict[str, Any] = {}
    for name, path in source.places().items():
        with about_domain(name):
            data, labelled = _opened(str(path), source, _inner(test), shape, chosen)
        found[name] = data if labelled else Unlabelled(data)
    return in_their_order(found, test.classes or classes) if chosen else found


def _opened(path: str, source: Source, test: Data, shape: tuple[int, ...], chosen: bool) -> tuple[Data, bool]:
    """What lies at a path, read as the test data were, and whether it has labels."""
    if isinstance(test, Table):
        labelled = has_labels(path, test.target.name)
        return test.like(path, labelled=labelled), labelled
    if isinstance(test, Texts):
        labelled = has_labels(path, test.target.name)
        length = None if test.tokens is None else test.tokens.shape[1]
        data: Data = Texts(
            path, test.target.name, text=source.text or "text", tokenizer=test.tokenizer, vocabulary=test.vocabulary,
            length=length, pad=test.pad, classes=test.classes, labelled=labelled,
        )  # fmt: skip
        return data, labelled
    size = None if source.size is None else (source.size, source.size)
    labelled, pixels = has_labels(path), pixel_bounds(source.bounds)
    found = open_data(path, size, pixels=pixels, images=len(shape) != 2, chosen=chosen, labelled=labelled)
    if len(shape) == 3 and isinstance(found, ImageFolder | Parquet) and found.form and found.form.channels != shape[0]:
        found = open_data(path, size, shape[0], pixels=pixels, labelled=labelled)
    return found, labelled


def _inner(data: Any) -> Data:
    """What the test data are where they were cut or counted anew."""
    while isinstance(data, Part | Relabelled):
        data = data.whole
    return data  # type: ignore[no-any-return]


def by_column(tables: Mapping[str, Any], source: Source) -> tuple[dict[str, Data], str]:
    """Rows of the test table by what they have in the column of --domain-column, and what to say of the others."""
    column, table = source.domain_column, tables.get("test")
    if column is None:
        return {}, ""
    if not isinstance(table, Table):
        raise AssayError(f"--domain-column {column!r} is about a table, and {source.data} is none; leave it out.")
    if table.origins is None:
        names = [c.name for c in table.source]
        near = get_close_matches(column, names, 1, 0.5)
        hint = f"did you mean {near[0]!r}?" if near else f"it has {some(names)}."
        raise AssayError(f"{source.data} has no column {column!r} for --domain-column; {hint}")
    counts = Counter(table.origins)
    missing = counts.pop(None, 0)
    few = {str(value): n for value, n in counts.items() if n < LEAST}
    if len(few) == len(counts):
        raise AssayError(
            f"--domain-column {column!r} has {len(counts):,} values, none of them in {LEAST} rows or more; name a "
            "column that parts the rows into a few domains."
        )
    rows = np.array([value if value is not None and value not in few else "" for value in table.origins])
    found: dict[str, Data] = {}
    for value in sorted({str(v) for v in counts} - set(few)):
        name = f"{column}={value}" if value in NO_DOMAIN else value
        refuse_domain(name)
        found[name] = Part(table, np.flatnonzero(rows == value))
    said = [f"{missing:,} rows have no {column!r}"] if missing else []
    if few:
        seen = [f"{value} ({n})" for value, n in sorted(few.items(), key=lambda pair: (-pair[1], pair[0]))]
        shown = ", ".join([*seen[:8], *(["..."] if len(seen) > 8 else [])])
        said.append(f"{len(few):,} values of {column!r} are in fewer than {LEAST} rows: {shown}")
    told = f"{' and '.join(said)}; they are in no domain, and stay in the test data." if said else ""
    if tables.get("train") is None:
        told += " Domains are rows of the test table: for want of --train each is compared with the rows of the others."
    return found, told.strip()


def with_domains(subject: Subject, source: Source) -> Subject:
    """A subject that is whole, with the domains that were typed beside its own."""
    if not source.places():
        return subject
    if isinstance(subject.task, Comparison) or subject.environment is not None:
        what = "acts in an environment" if subject.environment is not None else "compares two inputs"
        raise AssayError(f"{source.subject} {what}, and --domain is for models of single inputs; leave it out.")
    if isinstance(subject.task, Search):
        raise AssayError(
            f"{source.subject} is asked with queries that were matched with its gallery, so --domain does not apply; "
            "give a domain where it is built, as a split of the queries: Subject.retrieval(model, gallery, queries)."
        )
    space, chosen = subject.inputs, "classes" in subject.task.gives
    if space.ranges is None and space.is_image:
        source = replace(source, bounds=(space.low, space.high))
    found = typed(source, subject.data["test"], space.shape, subject.task.classes, chosen)
    labelled, unlabelled = taken(found, {**subject.data, **subject.unlabelled}, source.bounds, classes=chosen)
    if space.natural is None and not subject.tokens:
        space, said = left_open(space, {**labelled, **unlabelled})
        subject = replace(subject, inputs=space, notes=(*subject.notes, *said))
    subject = replace(
        subject,
        data={**subject.data, **labelled},
        unlabelled={**subject.unlabelled, **unlabelled},
    )
    check(subject)
    return subject
