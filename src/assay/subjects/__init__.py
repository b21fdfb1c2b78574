"""Reference subjects, one file each, and the doors through which a user's own model comes in.

Importing this needs no torch: the command line does it to answer `--help`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay import shelf
from assay.data.plain_file import check_plain, refuse_leading_out
from assay.errors import AssayError
from assay.subjects import doors

if TYPE_CHECKING:
    from assay.inputs import Bounded
    from assay.subject import Subject
    from assay.tasks import Task

__all__ = ["Source", "beside", "brought", "located", "open_subject"]

FORMS = (
    "a name that `assay subjects` lists, subject.py:build, model.pt2, .onnx, .skops or .keras, a TorchScript .pt, "
    "weights with --builder, trees of LightGBM (.txt) or XGBoost (.json, .ubj), or a Hugging Face folder"
)


@dataclass(frozen=True)
class Source:
    """Where a subject comes from, as it was typed. A run keeps the words for people: nobody opens what a run names."""

    subject: str
    data: str | None = None
    bounds: tuple[float | tuple[float, ...], float | tuple[float, ...]] | None = None
    """Low and high: one number for all features, or one for each."""
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    size: int | None = None
    """Encoded images are scaled until their shorter side has this many pixels, and their centre is cut out."""
    allow_pickle: bool = False
    draws: int | None = None
    """Passes to an answer of a random model, where it does not say so itself."""
    target: str | None = None
    """Of a table, the column that the model predicts."""
    text: str | None = None
    """Of a table, the column of the texts that the model reads."""
    train: str | None = None
    """The table that the model was trained on: its columns, categories and medians are taken."""
    fixed: tuple[str, ...] = ()
    """Columns of the table that nobody can change, so that no attack moves them."""
    task: str | None = None
    """The name of the task where the targets could be those of several, such as segmentation; of a policy control."""
    output: str | None = None
    """Of a model with several outputs, the one to read."""
    layout: str | None = None
    """Where the channels of images stand in the model: nchw or nhwc."""
    feed: tuple[str, ...] = ()
    """NAME=NUMBER of inputs beside the data: what they are filled with."""
    builder: str | None = None
    """FILE.py:FUNCTION or MODULE:FUNCTION that builds the network that weights are put into."""
    environment: str | None = None
    """FILE.py:FUNCTION, MODULE:FUNCTION or gymnasium's id of what the policy acts in."""
    trust: tuple[str, ...] = ()
    """Types that a .skops file may be made of beside those that skops trusts."""
    gallery: str | None = None
    """Where the items lie that a model of descriptors searches for what answers the queries of --data."""
    metric: str | None = None
    """How descriptors are compared: cosine or euclidean."""
    domain: tuple[str, ...] = ()
    """NAME=PATH of data from elsewhere, with labels or without; NAME@NUMBER=PATH says where it lies."""
    domains: str | None = None
    """A folder in which each folder or file is such a domain, under its own name."""
    domain_column: str | None = None
    """Of a table, the column that says which domain a row is of."""
    sensitive: tuple[str, ...] = ()
    """Of a table, columns about the people behind the rows, such as sex; a cut makes two groups of numbers: age<25."""
    groups: tuple[str, ...] = ()
    """NAME=PATH of a file with one such value for each row of the test data; NAME@SPLIT=PATH for another split."""
    original: str | None = None
    """The model that this one was made from, or another for the same: as a subject is named, opened like it."""

    def words(self) -> tuple[str, ...]:
        """The words that name this source on the command line."""
        words = [self.subject]
        if self.data is not None:
            words += ["--data", self.data]
        if self.bounds is not None:
            words += ["--bounds", *map(_numbers, self.bounds)]
        for option, values in (("--mean", self.mean), ("--std", self.std)):
            if values is not None:
                words += [option, ",".join(map(_number, values))]
        if self.size is not None:
            words += ["--size", str(self.size)]
        if self.draws is not None:
            words += ["--draws", str(self.draws)]
        for name in (
            "target",
            "text",
            "train",
            "task",
            "gallery",
            "metric",
            "output",
            "layout",
            "builder",
            "environment",
            "original",
        ):
            text = getattr(self, name)
            if text is not None:
                words += [f"--{name}", text]
        if self.domains is not None:
            words += ["--domains", self.domains]
        if self.domain_column is not None:
            words += ["--domain-column", self.domain_column]
        lists = (
            ("--fixed", self.fixed),
            ("--feed", self.feed),
            ("--trust", self.trust),
            ("--domain", self.domain),
            ("--sensitive", self.sensitive),
            ("--groups", self.groups),
        )
        for option, texts in lists:
            words += [word for text in texts for word in (option, text)]
        return (*words, "--allow-pickle") if self.allow_pickle else tuple(words)

    def places(self) -> dict[str, Path]:
        """Where each domain lies that was named, by its name; refused where one is given twice or is not there."""
        pairs = []
        for word in self.domain:
            name, _, where = word.partition("=")
            name, _ = _placed(name)
            if not (name and where):
                raise AssayError(f"--domain {word!r} is not NAME=PATH; write for example --domain night=night.npz.")
            pairs.append((name, Path(where)))
        if self.domains is not None:
            pairs += [(path.stem if path.is_file() else path.name, path) for path in _bodies(self.domains)]
        found: dict[str, Path] = {}
        for name, path in pairs:
            if name in found:
                raise AssayError(f"The domain {name!r} is given twice, {found[name]} and {path}; rename one.")
            if not _is_there(path):
                raise AssayError(f"There is nothing at {path}, given as --domain {name}; check the path.")
            found[name] = path
        return found

    def positions(self) -> dict[str, float]:
        """Where domains lie that were named with a number, as in NAME@30=PATH."""
        told = (_placed(word.partition("=")[0]) for word in self.domain)
        return {name: at for name, at in told if at is not None}


def _placed(word: str) -> tuple[str, float | None]:
    """The name in NAME@NUMBER and the number; an @ before anything else belongs to the name."""
    name, at, number = word.rpartition("@")
    try:
        place = float(number) if at else math.nan
    except ValueError:
        place = math.nan
    return (name, place) if math.isfinite(place) else (word, None)


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # a name that is too long for one
        return False


def _bodies(folder: str) -> list[Path]:
    """What lies in a folder of domains, each under its own name."""
    if not Path(folder).is_dir():
        raise AssayError(f"--domains {folder} is no folder; give one that holds a folder or a file for each domain.")
    found = sorted(each for each in Path(folder).iterdir() if each.name[0] != ".")
    for each in found:
        refuse_leading_out(each, Path(folder))
    if not found:
        raise AssayError(f"--domains {folder} is empty; put a folder or a file for each domain into it.")
    return found


def located(source: Source) -> Path | None:
    """The file that the source names, or None for a name on the shelf; told without torch where there is none."""
    text = source.subject
    if source.draws is not None and source.draws < 1:
        raise AssayError(f"--draws {source.draws} is no number of passes; give 1 for a deterministic model, else more.")
    if source.size is not None and source.data is None and not source.domain and source.domains is None:
        raise AssayError(f"--size {source.size} scales the images of --data, and there is no --data; give both.")
    if source.layout not in (None, "nchw", "nhwc"):
        raise AssayError(f"--layout {source.layout!r} is none; give nchw (channels first) or nhwc (channels last).")
    acts = source.environment is not None
    if source.task == "control" and not acts:
        raise AssayError("--task control is for a policy; say what it acts in: --environment FILE.py:FUNCTION.")
    if acts and source.task not in (None, "control"):
        raise AssayError(f"--environment is for policies, whose task is control, not {source.task!r}; leave one out.")
    check_gallery(source)
    for option in ("target", "text", "train", "task", "fixed", "domain_column", "sensitive"):
        if getattr(source, option) not in (None, (), "control") and source.data is None:
            raise AssayError(
                f"--{option.replace('_', '-')} is about the table of --data, and there is no --data; give both."
            )
    if source.domain_column is not None and source.domain_column == source.target:
        raise AssayError(
            f"--domain-column {source.domain_column!r} is the target, which tells classes apart and no domains; name "
            "another column."
        )
    source.places()
    if source.original is not None:
        located(beside(source, source.original))
    if text in shelf.names("subjects"):
        return None
    path = Path(text.rpartition(":")[0]) if ".py:" in text else Path(text)
    if not path.exists():
        if not path.suffix and len(path.parts) == 1:
            shelf.load("subjects", text)  # raises: it knows what there is, and what was nearly typed
        raise AssayError(f"There is no file {str(path)!r}; check the path, or give {FORMS}.")
    if path.is_dir() and (path / "config.json").is_file():
        return path
    if path.is_dir():
        raise AssayError(f"{text!r} is a folder; give {FORMS}, and a folder of images as --data.")
    check_plain(path)
    return path


def check_gallery(source: Source) -> None:
    """Refuse a gallery that nothing is looked for in, or that another task has no use for."""
    if source.metric is not None and source.gallery is None:
        raise AssayError(f"--metric {source.metric} is how a gallery is searched; give one as --gallery.")
    if source.metric not in (None, "cosine", "euclidean"):
        raise AssayError(f"There is no --metric {source.metric!r}; choose cosine or euclidean.")
    if source.gallery is None:
        return
    if source.data is None:
        raise AssayError(f"--gallery {source.gallery} is searched for what answers queries; give them as --data.")
    if source.task not in (None, "retrieval"):
        raise AssayError(f"--gallery is for retrieval, and the task is {source.task!r}; leave one out.")
    if not Path(source.gallery).exists():
        raise AssayError(f"There is no gallery {source.gallery!r}; check the path.")


def open_subject(source: Source) -> Subject:
    """The subject that the source names, checked, or an error that says in one line what is in the way."""
    if source.original is None:
        return _whole(source)
    from assay.door import admit

    original = admit(_opened(beside(source, source.original))).subject
    bundled = source.original in shelf.names("subjects")
    subject = with_data_of(original, source) if bundled and source.data is None else _whole(source)
    unlike = original.unlike(subject)
    if unlike is not None:
        raise AssayError(f"--original {source.original} {unlike}; name the model that {subject.name!r} was made from.")
    return replace(subject, original=original)


def _whole(source: Source) -> Subject:
    from assay.domain import positions
    from assay.subjects._attributes import with_attributes

    subject, told = with_attributes(_opened(source), source), source.positions()
    return replace(subject, at={**subject.at, **positions(told, subject.domains())}) if told else subject


def with_data_of(other: Subject, source: Source) -> Subject:
    """The model of a source that names no data, with those of another subject for the same; one that has its own
    keeps them."""
    from assay.subject import Subject
    from assay.subjects._assembly import joined

    path = located(source)
    made = None if path is None else doors.open_file(path, source)
    if made is None or isinstance(made, Subject):
        return _whole(source)
    subject = joined(made, dict(other.data), source, other.task)
    return replace(subject, inputs=other.inputs, kind=other.kind, attributes=other.attributes)


def beside(source: Source, name: str) -> Source:
    """Where another model of that name comes from, which is shown the same data; one that comes with Assay has its
    own."""
    if name in shelf.names("subjects"):
        return Source(name)
    return replace(source, subject=name, draws=None, original=None)


def _opened(source: Source) -> Subject:
    from assay.subject import Subject
    from assay.subjects._assembly import adjusted, assembled
    from assay.subjects._domains import with_domains

    path = located(source)
    if path is None:
        return adjusted(shelf.load("subjects", source.subject).build(), source)
    made = doors.open_file(path, source)
    if made is None:
        raise AssayError(f"{source.subject!r} is no model that can be opened; give {FORMS}.")
    if not isinstance(made, Subject):
        return assembled(made, source)
    return adjusted(made, source) if path.suffix == ".py" else with_domains(made, source)


def brought(
    model: Any,
    data: Any,
    task: Task | None = None,
    *,
    bounds: Any = None,
    draws: int = 1,
    domains: Mapping[str, Any] | None = None,
    kind: Bounded | None = None,
) -> Subject:
    """Whatever was brought in Python, through the door that fits it, with its data: see `Subject.of`."""
    from assay.subjects._assembly import joined

    opened = doors.of(model)
    return joined(opened, data, Source(opened.name, bounds=bounds, draws=draws), task, domains, kind)


def _numbers(value: float | tuple[float, ...]) -> str:
    return ",".join(map(_number, value)) if isinstance(value, tuple) else _number(value)


def _number(value: float) -> str:
    """The shortest text that reads back as the same number."""
    return repr(float(value)).removesuffix(".0")
