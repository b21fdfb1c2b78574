"""How a model that came through its door and the data of the source become one subject."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from assay.data.arrays import Arrays
from assay.data.episodes import Floats, Whole
from assay.data.image_folder import ImageFolder
from assay.data.nearest import Metric
from assay.data.open import has_labels, open_data
from assay.data.pairs import Pairs
from assay.data.parquet import Parquet
from assay.data.relabelled import in_order, places_of
from assay.data.table import Table
from assay.data.target import Asked
from assay.data.texts import Texts
from assay.domain import Unlabelled, about_domain, apart, by_name, refuse_domain, refuse_few
from assay.errors import AssayError, SubjectError
from assay.given import PAIRS, Data, as_data, as_targets, in_splits, pixel_bounds, refuse_places, task_of
from assay.inputs import Bounded, Observation, Row
from assay.space import extremes
from assay.subject import SURE, InputSpace, Subject, answer_once, check, first_inputs
from assay.subjects import Source
from assay.subjects._attributes import columns as beside
from assay.subjects._domains import by_column, typed, with_domains
from assay.subjects.doors import OPTIONS, environment
from assay.subjects.doors.estimator import EstimatorModel
from assay.subjects.doors.opened import OneOutput, Opened, only_output, outputs, refuse
from assay.tasks import Comparison, Control, Labels, Ranking, Regression, Search, Tagging, Task, find

NAMES = "The numbers of a row are read as names (bytes, words, codes), which are not moved by a little."
SERIAL = ("forecast", "tagging")
"""Tasks of which an input is a series, times by channels, where it has two axes."""
ROWS = 4096  # that are held at a time to find the largest name


def assembled(opened: Opened, source: Source) -> Subject:
    """A bare model and its data as a subject; whether it has gradients is tried, not believed."""
    if source.environment is not None:
        return _policy(opened, source, source.environment)
    if source.gallery is not None:
        return _searching(opened, source, source.gallery)
    given = opened.data
    if given is None or source.data is not None:
        given = data_of(source, opened.channels, opened)
        opened = _with_categories(opened, given)
    parts, said = by_column(given if isinstance(given, Mapping) else {"test": given}, source)
    if said:
        opened = dataclasses.replace(opened, notes=(*opened.notes, said))
    if not source.places():
        return joined(opened, given, source, domains=parts)
    chosen = _chooses(source, opened)
    given = in_splits(given, source.bounds, classes=chosen)
    shape = tuple(first_inputs(_test(given)).shape[1:])
    named = typed(source, _test(given), shape, opened.classes or (), chosen)
    if twice := sorted(set(parts) & set(named)):
        raise AssayError(f"The domain {twice[0]!r} is a value of --domain-column too; rename it.")
    return joined(opened, given, source, domains={**parts, **named})


def _searching(opened: Opened, source: Source, gallery: str) -> Subject:
    """A model of descriptors with its gallery, its queries, and those of each domain."""
    paths = {"test": str(source.data), **{name: str(path) for name, path in source.places().items()}}
    for path in (*paths.values(), gallery):
        if source.target is not None or Path(path).suffix.lower() in (".csv", ".jsonl"):
            raise AssayError(
                f"--gallery is for images and arrays, and {path} is a table; give tables in Python, "
                "Subject.retrieval(model, gallery, queries)."
            )
    for name in source.places():
        refuse_domain(name)
        if not has_labels(paths[name]):
            raise AssayError(
                f"The domain {name!r} has no labels, by which --gallery knows what answers a query; give some, or "
                "leave it out."
            )
    labelled = dataclasses.replace(source, task=None)  # which would read targets, and here they are labels
    given = {name: data_of(dataclasses.replace(labelled, data=path), opened.channels) for name, path in paths.items()}
    for name in source.places():
        refuse_few(name, len(given[name]))
    items = data_of(dataclasses.replace(labelled, data=gallery), opened.channels)
    subject = Subject.retrieval(
        _one_output(opened, source, given, Search), items, given, name=opened.name, bounds=source.bounds,
        mean=source.mean, std=source.std, draws=source.draws or 1, about=opened.about,
        metric=cast(Metric, source.metric or "cosine"),
    )  # fmt: skip
    differentiable = opened.gradients is not False and subject.leads()
    return dataclasses.replace(subject, differentiable=differentiable, notes=(*opened.notes, *subject.notes))


def _policy(opened: Opened, source: Source, word: str) -> Subject:
    """A policy with its environment; its data is --data, or what it meets in whole episodes and does there itself."""
    make = environment.maker(word)
    seen, *ends = environment.first(make, word)
    try:
        # Until it has acted nobody knows what the readings lie between that have no ends.
        room = source.bounds or _sides(ends, seen - 1.0, seen + 1.0)
        subject = joined(opened, (seen, np.zeros(1, dtype=np.int64)), dataclasses.replace(source, bounds=room))
    except SubjectError as e:
        raise SubjectError(
            f"{opened.name} does not take what {word} shows, observations of shape {tuple(seen.shape[1:])}; give the "
            f"environment that it was made for ({str(e).rstrip('.')})."
        ) from e
    task = Control(subject.task.classes)

    def act(shown: Floats, rows: Whole) -> Whole:
        out = subject.predict(torch.from_numpy(shown)).argmax(1)
        return np.asarray(out.numpy(), dtype=np.int64)

    x, y = environment.met(make, act, word, actions=len(task.classes), shape=subject.inputs.shape)
    test: Data = Arrays(x, y, task.classes)
    told: tuple[str, ...] = (
        f"A target is what the policy does itself, on {len(x):,} observations of {environment.EPISODES} episodes.",
    )
    if source.data is not None:
        test, told = _test(in_splits(data_of(source, opened.channels, opened), source.bounds)), ()
        if first_inputs(test).shape[1:] != subject.inputs.shape:
            raise SubjectError(
                f"{source.data} holds observations of shape {tuple(first_inputs(test).shape[1:])}, and {word} shows "
                f"{subject.inputs.shape}; give what was seen there."
            )
        x = np.stack(extremes({"test": test}, subject.inputs.shape)).astype(np.float32)  # 2 *d
    space = InputSpace.between(subject.inputs.shape, *(source.bounds or _sides(ends, x, x)))
    low, width = (edge.expand(space.shape) for edge in space.edges())
    subject = dataclasses.replace(
        subject,
        task=task,
        data={"test": test},
        inputs=space,
        kind=Observation.of(x, low=low.tolist(), high=(low + width).tolist()) if x.ndim == 2 else None,
        environment=make,
        notes=(*subject.notes, *told),
    )
    check(subject)
    return with_domains(subject, source)


def _sides(ends: Sequence[NDArray[np.float64]], least: Any, most: Any) -> tuple[Any, Any]:
    """What observations lie between: as their space says, and where that has no end what was seen; of a vector for
    each reading, of images one for all."""
    low = np.where(np.isfinite(ends[0]), ends[0], least.min(0))
    high = np.where(np.isfinite(ends[1]), ends[1], most.max(0))
    if low.ndim > 1:
        return float(low.min()), float(high.max())
    return tuple(low.tolist()), tuple(high.tolist())


def joined(
    opened: Opened,
    given: Any,
    source: Source,
    task: Task | None = None,
    domains: Mapping[str, Any] | None = None,
    kind: Bounded | None = None,
) -> Subject:
    """A model that came through its door, and data and domains in any form that `Subject.of` takes."""
    chosen = _chooses(source, opened) if task is None else "classes" in task.gives
    splits = given if isinstance(given, Mapping) else {"test": given}
    elsewhere = {}
    for name, each in by_name(domains or {}).items():
        refuse_domain(name, splits)
        with about_domain(name):
            elsewhere[name] = apart(each, source.bounds)
    splits = {**splits, **{name: each for name, (each, _) in elsewhere.items()}}
    given = in_splits(_encoded(splits, opened), source.bounds, classes=chosen)
    if task is None and (named := _named(source, given)) is not None:
        given = {split: as_targets(each, split, source.bounds) for split, each in given.items()}
        task = _as_named(named, opened, given, source)
    elif task is None:
        given = _in_its_order(given, opened, source)
        task = _task_of(opened, given, source)
    if opened.look is not None:
        opened = opened.shown(first_inputs(_test(given)))
    tokens = opened.tokens is not None or (opened.whole and "test" in given and not isinstance(given["test"], Table))
    if tokens and opened.tokens is None:
        opened = dataclasses.replace(opened, notes=(*opened.notes, NAMES))
    told: dict[str, Any] = {} if task is not None else {"classes": opened.classes}
    read = {
        name: given[name] if known else Unlabelled(as_targets(given[name], name, source.bounds))
        for name, (_, known) in elsewhere.items()
    }
    subject = Subject.of(
        _one_output(opened, source, given, task),
        {split: each for split, each in given.items() if split not in elsewhere},
        task,
        domains=read,
        name=opened.name,
        bounds=_numbers_of_tokens(opened.tokens, given, source.bounds) if tokens else source.bounds,
        mean=source.mean,
        std=source.std,
        about=opened.about,
        kind=kind,
        **told,
    )
    return dataclasses.replace(
        subject,
        kind=kind or _row(given, subject.inputs, source.fixed),
        tokens=tokens,
        differentiable=opened.gradients is not False and subject.leads(),
        draws=source.draws or 1,
        notes=(*opened.notes, *subject.notes),
    )


def _encoded(given: Any, opened: Opened) -> Any:
    """Pairs (texts, targets) as the tokens that the model reads, all splits padded to one length."""
    if opened.encode is None:
        return given
    splits = given if isinstance(given, Mapping) else {"test": given}
    texts = {
        split: list(each[0])
        for split, each in splits.items()
        if isinstance(each, tuple | list) and len(each) == 2 and len(each[0]) and isinstance(each[0][0], str)
    }
    if not texts:
        return given
    tokens = torch.split(opened.encode([text for each in texts.values() for text in each]), [*map(len, texts.values())])
    return {**splits, **{split: (ids.float(), splits[split][1]) for split, ids in zip(texts, tokens, strict=True)}}


def _numbers_of_tokens(count: int | None, given: Mapping[str, Any], bounds: Any) -> tuple[Any, Any]:
    """What the places of a row of tokens lie between: each may hold any; where nobody knows which, any that the data
    have."""
    places = first_inputs(_test(given)).shape[1:].numel()
    if count is None and bounds is not None:
        low, high = bounds
    elif count is None:
        low, high = 0.0, 1.0
        for split, each in given.items():
            data = as_targets(each, split)
            for rows in np.array_split(np.arange(len(data)), max(1, len(data) // ROWS)):
                high = max(high, float(data.take(rows)[0].max())) if len(rows) else high
    else:
        low, high = 0.0, count - 1.0
    if not isinstance(low, tuple) and not isinstance(high, tuple):
        return (float(low),) * places, (float(high),) * places
    return low, high


def _row(given: Any, space: InputSpace, fixed: tuple[str, ...]) -> Row | None:
    """The columns of a table, each between what all splits have; those that nobody can change are `fixed`."""
    table = given.get("test") if isinstance(given, Mapping) else given
    names = [column.name for column in table.columns] if isinstance(table, Table) else []
    if strange := [name for name in fixed if name not in names]:
        there = (
            f"no column of {', '.join(names)}; mend the name" if names else "and the data has no columns; leave it out"
        )
        raise AssayError(f"--fixed {strange[0]!r} is {there}.")
    if not isinstance(table, Table):
        return None
    low, span = (edge.expand(space.shape).tolist() for edge in space.edges())
    columns = []
    for c, a, width in zip(table.columns, low, span, strict=True):
        if c.type in ("number", "integer"):  # the codes of the others are as many as there are
            c = dataclasses.replace(c, low=min(c.low, a), high=max(c.high, a + width))
        columns.append(dataclasses.replace(c, fixed=c.fixed or c.name in fixed))
    return Row(tuple(columns))


def _named(source: Source, given: Mapping[str, Any]) -> type[Task] | None:
    """The task that was typed; None where that says no more than the data do: a table has read it already."""
    known = isinstance(given.get("test"), Table | Texts)
    if source.task in (None, "classification", "control") or (known and source.task in get_args(Asked)):
        return None
    return find(str(source.task))


def _as_named(named: type[Task], opened: Opened, given: Mapping[str, Any], source: Source) -> Task:
    """The task of this name, as the targets, a few inputs and the model's answers tell it."""
    if "test" not in given:
        raise AssayError(f"The data has no split 'test', only {sorted(given)}; name one 'test'.")
    x, like = first_inputs(_test(given)), given.get("train", given["test"])
    target = np.asarray(like[1] if isinstance(like, tuple | list) else like.labels)
    out = answer_once(_one_output(opened, source, given, named), x)
    return named.told_by(x, target, out, opened.classes)


def _task_of(opened: Opened, given: Any, source: Source) -> Task | None:
    """The task that the model's answers or the targets tell of; None: a classifier, or what the targets say."""
    if opened.answers == "labels":
        return None if opened.classes is None else Labels(opened.classes)
    if opened.answers == "tags":
        return None if opened.classes is None else Tagging(opened.classes)
    if opened.answers == "numbers":
        data = given.get("train", given.get("test"))
        return (
            None
            if data is None
            else Regression.of(np.asarray(data[1] if isinstance(data, tuple | list) else data.labels))
        )
    task = task_of(given)
    return task if type(task) is not Regression else _as_named(Regression, opened, given, source)


def adjusted(subject: Subject, source: Source) -> Subject:
    """A whole subject, on other data where --data is given. What belongs to its model stays as it was built."""
    if source.environment is not None:
        raise AssayError(
            f"{source.subject} is a whole subject, so --environment does not apply; name it where that is built: "
            "Subject.of(..., environment=...)."
        )
    if source.gallery is not None:
        raise AssayError(
            f"{source.subject} is a whole subject, so --gallery does not apply; give it where that is built: "
            "Subject.retrieval(model, gallery, queries)."
        )
    refuse(source, "bounds", "mean", "std", "fixed", *OPTIONS)
    if source.task is not None and source.target is None:  # of a table it says how the column is read
        raise AssayError(
            f"{source.subject} is a whole subject with the task {subject.task.name()}, so --task {source.task} does "
            "not apply; leave it out."
        )
    if source.data is not None:
        given = _other_data(subject, source, source.data)
        given = given if isinstance(given, Mapping) else {"test": given}
        parts, said = by_column(given, source)
        notes = (*subject.notes, said) if said else subject.notes
        subject = dataclasses.replace(
            subject, data={**given, **parts}, unlabelled={}, at={}, notes=notes, attributes={}
        )
        check(subject)
    subject = with_domains(subject, source)
    return subject if source.draws is None else dataclasses.replace(subject, draws=source.draws)


def _chooses(source: Source, opened: Opened | None) -> bool:
    """Whether targets are classes as far as the words and the model's file say."""
    told = None if opened is None else opened.answers
    return told in (None, "classes") and source.task in (None, "classification", "control")


def data_of(
    source: Source,
    channels: int | None,
    opened: Opened | None = None,
    task: Task | None = None,
    space: InputSpace | None = None,
) -> Any:
    """The data of the source, by splits where it is a table with one to train on.

    Encoded images come in as many channels as the model takes, the columns of a table in its order, texts as its
    tokens.
    """
    if source.data is None:
        raise AssayError(
            f"{source.subject} is a model without data; give --data: a folder of images, .npz, .parquet, or a table "
            "with --target COLUMN."
        )
    reads = None if opened is None else opened.encode
    if source.target is not None and source.text is None and not Path(source.data).is_dir():
        if reads is not None:
            raise AssayError(
                f"{source.subject} reads texts, and {source.data} is a table; name the column that holds them: "
                "--text COLUMN."
            )
        return _tables(source, opened, None if space is None or len(space.shape) != 1 else space.shape[0])
    size = None if source.size is None else (source.size, source.size)
    pixels = pixel_bounds(source.bounds)
    classes = None if opened is None else opened.classes
    if source.text is not None or (reads is not None and not source.data.endswith(".npz")):
        if reads is None:
            raise AssayError(
                f"{source.subject} brings no tokenizer, so that it cannot read texts; give a Hugging Face folder that "
                "has one, or the tokens as .npz."
            )
        if source.train is not None:
            raise AssayError(f"--train {source.train} is for columns, which texts have none of; leave it out.")
        asked = cast(Asked, source.task) if source.task in get_args(Asked) else None
        return open_data(
            source.data, size, pixels=pixels, target=source.target, text=source.text, tokenizer=reads, task=asked,
            classes=classes,
        )  # fmt: skip
    shape = None if opened is None else opened.shape
    series = source.task in SERIAL or (shape is not None and len(shape) == 2)
    chosen = _chooses(source, opened) if task is None else "classes" in task.gives
    data = open_data(source.data, size, pixels=pixels, images=not series, chosen=chosen)
    if channels in (1, 3) and isinstance(data, ImageFolder | Parquet) and data.form and data.form.channels != channels:
        return open_data(source.data, size, channels, pixels=pixels)
    return data


def _takes(table: Table, opened: Opened | None, width: int | None) -> bool:
    """Whether a model that names no columns takes as many as these: by its width, else it is tried on a row."""
    if opened is None:
        return width is None or width == len(table.columns)
    try:
        answer_once(opened.model, torch.from_numpy(table.x[:1]))
    except AssayError:
        return False
    return True


def _tables(source: Source, opened: Opened | None, width: int | None = None) -> dict[str, Table]:
    """The rows to ask about, and those that the model was trained on where they are given.

    Sensitive columns are shown to a model that takes them: one that names its columns says so.
    """
    assert source.data is not None
    assert source.target is not None
    if source.size is not None:
        raise AssayError(f"--size {source.size} scales images, and {source.data} is a table; leave it out.")
    if source.task not in (None, *get_args(Asked)):
        raise AssayError(f"--task {source.task!r} is none that a table can say; give {' or '.join(get_args(Asked))}.")
    classes = None if opened is None or opened.answers == "numbers" else opened.classes
    columns = None if opened is None else opened.columns
    asked = cast(Asked | None, "regression" if opened and opened.answers == "numbers" else source.task)
    first = Table(
        source.train or source.data, source.target, classes=classes, columns=columns, task=asked,
        apart=source.domain_column, beside=beside(source.sensitive),
    )  # fmt: skip
    shown = [c.name for c in first.source]
    others = [name for name in shown if name not in beside(source.sensitive)]
    if columns is None and others and len(others) < len(shown) and not _takes(first, opened, width):
        first = Table(
            source.train or source.data, source.target, classes=classes, columns=others, task=asked,
            apart=source.domain_column, beside=beside(source.sensitive),
        )  # fmt: skip
        first.notes.append(f"The model takes {len(others)} columns; what is sensitive is not shown to it.")
    if source.train is None:
        return {"test": first}
    return {"test": first.like(source.data), "train": first}


def _with_categories(opened: Opened, given: Any) -> Opened:
    """An estimator that was fitted on named columns gets the words behind the codes of categories back."""
    tables = [t for t in given.values() if isinstance(t, Table)] if isinstance(given, Mapping) else []
    if not tables:
        return opened
    words = {c.name: c.categories for c in tables[0].source if c.type == "category"}
    if words and isinstance(opened.model, EstimatorModel) and opened.columns is not None:
        opened.model.categories.update(words)
    notes = dict.fromkeys(note for table in tables for note in table.notes)
    return dataclasses.replace(opened, notes=(*opened.notes, *notes))


def _other_data(subject: Subject, source: Source, path: str) -> Any:
    """The data of the source for a subject that is whole: of a model of pairs, pairs of the inputs there."""
    from assay.subjects.doors.ranker_file import open_pairs

    if isinstance(subject.task, Search):
        raise AssayError(
            f"{source.subject} is asked with queries that were matched with its gallery, so --data does not apply; "
            "give others where it is built: Subject.retrieval(model, gallery, queries)."
        )
    if not isinstance(subject.task, Comparison):
        channels = subject.inputs.shape[0] if subject.inputs.is_image else None
        return data_of(source, channels, task=subject.task, space=subject.inputs)
    shape = subject.inputs.shape[1:]  # of one input
    if isinstance(subject.task, Ranking):
        refuse(source, "size")
        return open_pairs(path, shape, subject.task, subject.name)
    singles = data_of(source, shape[0])
    return Pairs.alike(singles, singles.labels, PAIRS)


def _in_its_order(given: Any, opened: Opened, source: Source) -> Any:
    """The data with labels as the model counts its classes, where it says what it calls them."""
    if opened.classes is None:
        return given
    splits = given if isinstance(given, Mapping) else {"test": given}
    told: dict[str, Any] = {}
    for split, data in splits.items():
        if isinstance(data, tuple | list) and len(data) == 2 and opened.labels is not None:
            y = np.asarray(data[1])
            if y.dtype.kind in "OUS":
                data = (data[0], places_of(opened.labels, y))
        told[split] = in_order(as_data(data, split, source.bounds), opened.classes, opened.labels)
    return told


def _test(given: Any) -> Data:
    data = given["test"] if isinstance(given, Mapping) else given
    return data if isinstance(data, Data) else as_targets(data, "test")


def _one_output(opened: Opened, source: Source, given: Any, task: Task | type[Task] | None) -> nn.Module:
    """The model, with the one of its outputs that is to be read; what is no single answer for an input is told."""
    caught: list[Any] = []

    def look(x: torch.Tensor) -> torch.Tensor:
        caught.append(opened.model(x))
        return x

    if isinstance(given, Mapping) and "test" not in given:
        return opened.model  # told where the subject is made
    x, _ = _test(given).take(np.arange(min(SURE, len(_test(given)))))
    if not len(x):
        return opened.model
    answer_once(opened.model, x[:1], look)
    name = only_output(caught[0], source.output, opened.name) if opened.reads is None else None
    out = caught[0] if name is None else outputs(caught[0])[name]
    if task is None:
        refuse_places(out, opened.name)
    return opened.model if name is None else OneOutput(opened.model, name)
