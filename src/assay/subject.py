"""Subject: what is under test. A model, its task, its input space, its data."""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from assay import fingerprint
from assay.attribute import Attribute as Attribute  # a word of the vocabulary, as Data is
from assay.attribute import by_name, refuse_label
from assay.data.nearest import Metric
from assay.data.pairs import Pairs
from assay.data.shares import Shares
from assay.data.texts import Texts
from assay.domain import (
    NO_DOMAIN,
    OUTLIERS,
    Unlabelled,
    domains_of,
    in_their_order,
    named_apart,
    positions,
    refuse_domain,
    refuse_few,
    rows_apart,
    rows_of,
    taken,
)
from assay.domain import Domain as Domain  # a word of the vocabulary, as Data is
from assay.errors import AssayError, SubjectError
from assay.gallery import descriptors_of, matched
from assay.given import PAIRS, Bound, as_data, as_pairs, as_targets, in_splits, refuse_places, task_of
from assay.given import Data as Data  # a word of the vocabulary: whoever knows Subject knows it from here
from assay.gradient import Gradient, gradient_of
from assay.inputs import Bounded, Change, Image, Pair
from assay.inputs.reach import Reach
from assay.nn.inner import inner_points
from assay.nn.members import passes
from assay.nn.read_as import OneScore, Rescaled
from assay.nn.unit import Unit
from assay.space import InputSpace as InputSpace
from assay.space import check_bounds, left_open, space_of
from assay.tasks import Classification, Comparison, Ranking, Search, Similarity, Task

SURE = 4  # inputs that are looked at before anything is asked
LOOKS = 256  # inputs that a model is shown to find out how it is to be read, and whether it is the one of before
LOOKS_BYTES = 32 * 2**20  # and no more than these: hundreds of photographs at once fill the memory of a large model
LOOKED = 4096  # rows of a table that are held together to find an empty cell
AT_ONCE = 128  # witnesses that are answered together
DRAWS = 16  # passes to an answer of a model that is random and does not say so: a quarter of the spread of one pass
GALLERY = "gallery"  # what items are called where a split would be named
STILL = 1e-4  # of the spread of the logits: answers closer than this are the same up to rounding


@runtime_checkable
class PairModel(Protocol):
    """A model of pairs in two parts, as `assay.nn.siamese.Siamese` is; `decoder` is None where there is none."""

    if TYPE_CHECKING:  # since Python 3.12 isinstance looks attributes up statically, where a submodule is not seen
        decoder: nn.Module | None

    def encode(self, x: Tensor) -> Tensor: ...  # n *d -> n s

    def compare(self, e1: Tensor, e2: Tensor) -> Tensor: ...  # n s, n s -> n

    def decode(self, e: Tensor) -> Tensor: ...  # n s -> n *d


class Normalised(nn.Module):
    """(x - mean) / std in front of a model, so that budgets are in natural units whatever the model was trained on."""

    def __init__(self, model: nn.Module, mean: tuple[float, ...], std: tuple[float, ...], axes: int = 3) -> None:
        super().__init__()
        if any(s <= 0 for s in std):
            raise AssayError(f"--std must be positive, got {std}; give the standard deviation of each channel.")
        self.mean: Tensor
        self.std: Tensor
        self.model = model
        wide = (-1,) + (1,) * (axes - 1)
        self.register_buffer("mean", torch.tensor(mean).view(wide))
        self.register_buffer("std", torch.tensor(std).view(wide))

    def forward(self, x: Tensor) -> Tensor:  # n c *d -> n k
        out: Tensor = self.model((x - self.mean) / self.std)
        return out


_GRADIENTS: WeakKeyDictionary[nn.Module, Gradient] = WeakKeyDictionary()


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A model with its task, input space and data. The model takes natural units and returns its task's output.

    `draws` > 1 says that the forward pass is random in eval mode and that answers are averages of that many.
    `differentiable` is False where the model gives answers but no gradients (an ONNX file).
    """

    name: str
    model: nn.Module
    task: Task
    inputs: InputSpace
    data: Mapping[str, Data]
    layers: Mapping[str, str] = field(default_factory=dict)
    draws: int = 1
    differentiable: bool = True
    about: str = ""
    origin: tuple[str, ...] = ()
    """What was done to get here, oldest first: names of remedies."""
    notes: tuple[str, ...] = ()
    """How it is read where that is not plain, in sentences; an audit shows them."""
    kind: Bounded | None = None
    """What an input is, where it is no image and somebody says so: a row with its columns, a series, an observation."""
    tokens: bool = False
    """Whether an input is a row of numbers of words, between which nothing lies."""
    environment: Callable[[], Any] | None = None
    """Makes a fresh environment, with gymnasium's interface and in natural units, that its policy acts in."""
    unlabelled: Mapping[str, Data] = field(default_factory=dict)
    """Domains whose labels nobody knows, by name: theirs are zeros that nobody may read."""
    at: Mapping[str, float] = field(default_factory=dict)
    """Where domains lie along what changes between them, an angle, a year; else the one number in a name tells."""
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    """What is known of the people behind the inputs, by name. Codes follow the rows where data are cut."""
    original: Subject | None = field(default=None, repr=False)
    """What it was made from, or another model for the same that it is held against; its data are not looked at."""
    coded: tuple[Mapping[str, Attribute], Mapping[str, Data]] | None = field(default=None, repr=False, compare=False)
    """The attributes as they were last laid beside the rows, and those rows; nobody else sets it."""

    def __post_init__(self) -> None:
        if "test" not in self.data:
            raise AssayError(f"Subject {self.name!r} has no split 'test', only {sorted(self.data)}; name one 'test'.")
        if self.draws < 1:
            raise AssayError(
                f"Subject {self.name!r} has draws={self.draws}; 1 for a deterministic model, more if random."
            )
        unlabelled = named_apart(self.data, self.unlabelled)
        hidden = unlabelled.keys() - self.unlabelled.keys()  # came as splits, whose labels are read
        if hidden:
            object.__setattr__(self, "data", {split: d for split, d in self.data.items() if split not in hidden})
        object.__setattr__(self, "unlabelled", unlabelled)
        if not self.layers:
            object.__setattr__(self, "layers", guess_layers(self.model))
        rows = {**self.data, **self.unlabelled}
        followed = self.coded is not None and self.coded[0] is self.attributes
        if self.coded is not None and followed and self.attributes:
            object.__setattr__(self, "attributes", _followed(*self.coded, rows))
        elif self.attributes:
            object.__setattr__(self, "attributes", _laid(self.attributes, rows))
        object.__setattr__(self, "coded", (self.attributes, rows) if self.attributes else None)

    @classmethod
    def of(
        cls,
        model: Any,
        data: Any,
        task: Task | None = None,
        *,
        name: str | None = None,
        bounds: tuple[Bound, Bound] | None = None,
        mean: tuple[float, ...] | None = None,
        std: tuple[float, ...] | None = None,
        layers: Mapping[str, str] | None = None,
        draws: int = 1,
        differentiable: bool = True,
        about: str = "",
        kind: Bounded | None = None,
        environment: Callable[[], Any] | None = None,
        domains: Mapping[str, Any] | None = None,
        at: Mapping[str, float] | None = None,
        attributes: Mapping[str, Any] | None = None,
        **told: Any,
    ) -> Subject:
        """Any model and its data: pairs (x, targets), or a mapping from split names ('test', 'train', ...) to such.

        A model is a torch.nn.Module, a fitted estimator or pipeline of scikit-learn, LightGBM or XGBoost, a Keras model
        on its torch backend, one of MAITE's protocol, or a function of arrays. What the targets are decides the task
        where none is given: class indices (a classifier, see `classifier`, which takes what else is `told`), rows of
        zeros and ones (several labels at once), other numbers (a regression). `environment` makes a fresh one, with
        gymnasium's interface, where the model is a policy: questions about whole episodes need it. `domains` are data
        from elsewhere by name, each as a split is given; inputs alone, or (x, None), are a domain without labels.
        `at` says where domains lie along what changes between them, an angle or a year, where no name has the number.
        `attributes` are what is known of the people behind the inputs, by name, one value for each row of a split:
        {"sex": {"test": array, "train": array}}; an array alone is of 'test'.
        """
        if environment is not None and not callable(environment):
            raise AssayError(
                f"The environment is a {type(environment).__name__}; give what makes a fresh one, such as its class."
            )
        if not isinstance(model, nn.Module):
            given_too = [k for k, v in {"mean": mean, "std": std, "layers": layers, **told}.items() if v is not None]
            if given_too:
                raise AssayError(
                    f"{', '.join(given_too)} are about torch modules, and the model is {type(model).__name__}; leave "
                    "them out."
                )
            opened = importlib.import_module("assay.subjects").brought  # doors lie above: they know this word
            subject: Subject = opened(model, data, task, bounds=bounds, draws=draws, domains=domains, kind=kind)
            told_at = positions(at or {}, subject.domains())
            named = replace(subject, name=name or subject.name, about=about or subject.about, at=told_at)
            whole = replace(named, environment=environment)
            return whole.with_attributes(attributes)
        given = in_splits(data, bounds, classes=task is None or "classes" in task.gives)
        if task is None:
            task = task_of(given)
        if task is None:
            chosen = cls.classifier(
                model, given, name=name, bounds=bounds, mean=mean, std=std, layers=layers, draws=draws,
                differentiable=differentiable, about=about, domains=domains, at=at, attributes=attributes, kind=kind,
                **told,
            )  # fmt: skip
            return replace(chosen, environment=environment)
        if told:
            raise AssayError(f"{', '.join(told)} belong to classifiers, and this is {task.name()}; leave them out.")
        splits = {split: as_targets(each, split, bounds) for split, each in given.items()}
        if "test" not in splits:
            raise AssayError(f"The data has no split 'test', only {sorted(splits)}; name one 'test'.")
        if len(splits["test"]) == 0:
            raise SubjectError("The split 'test' is empty; give it at least one input with its target.")
        shape = tuple(splits["test"].take(np.arange(1))[0].shape[1:])
        model = _normalised(model, mean, std, shape)
        names = (splits["test"].classes or task.classes) if "classes" in task.gives else None
        labelled, unlabelled = taken(domains or {}, splits, bounds, classes=False, names=names)
        splits = in_their_order(splits, names) | labelled
        inputs, notes = _space(splits, unlabelled, shape, bounds)
        subject = cls(
            name=name or type(model).__name__,
            model=model,
            task=task,
            inputs=inputs,
            data=splits,
            layers=layers or {},
            draws=draws,
            differentiable=differentiable,
            about=about,
            notes=notes,
            kind=kind,
            environment=environment,
            tokens=isinstance(splits["test"], Texts),
            unlabelled=unlabelled,
            at=positions(at or {}, domains_of(splits, unlabelled, {})),
        )
        check(subject)
        return subject.with_attributes(attributes)

    @classmethod
    def classifier(
        cls,
        model: nn.Module,
        data: Any,
        *,
        name: str | None = None,
        classes: tuple[str, ...] | list[str] | None = None,
        bounds: tuple[Bound, Bound] | None = None,
        mean: tuple[float, ...] | None = None,
        std: tuple[float, ...] | None = None,
        layers: Mapping[str, str] | None = None,
        draws: int = 1,
        differentiable: bool = True,
        about: str = "",
        domains: Mapping[str, Any] | None = None,
        at: Mapping[str, float] | None = None,
        attributes: Mapping[str, Any] | None = None,
        kind: Bounded | None = None,
    ) -> Subject:
        """A classifier and its data: a pair (x, y) of arrays or tensors, a torch Dataset, a path (image folder, .npz,
        .parquet), anything that is `Data`, or a mapping from split names ('test', 'train', ...) to such.

        `bounds` are what input values lie between, numbers or one for each feature: 0 and 1 unless given, and for rows
        of a table that are not, what each column has in the data. 8-bit pixels are brought to these bounds. `domains`,
        `at`, `attributes` and `kind` are as in `of`.
        """
        if not isinstance(model, nn.Module):
            raise AssayError(f"Subject.classifier wants a torch.nn.Module, got {type(model).__name__}; wrap it in one.")
        given = data if isinstance(data, Mapping) else {"test": data}
        splits = {split: as_data(each, split, bounds) for split, each in given.items()}
        if "test" not in splits:
            raise AssayError(f"The data has no split 'test', only {sorted(splits)}; name one 'test'.")
        test = splits["test"]
        if len(test) == 0:
            raise SubjectError("The split 'test' is empty; give it at least one labelled input.")
        example = first_inputs(test)
        shape = tuple(example.shape[1:])
        name = name or type(model).__name__
        model = _normalised(model, mean, std, shape)
        names = classes or test.classes
        model, read = _as_two(model, example, None if names is None else len(names))
        task = Classification(tuple(names or _count_classes(model, example[:1])))
        known = test.classes or task.classes
        labelled, unlabelled = taken(domains or {}, splits, bounds, names=known)
        splits = in_their_order(splits, known) | labelled
        inputs, notes = _space(splits, unlabelled, shape, bounds)
        subject = cls(
            name=name,
            model=model,
            task=task,
            inputs=inputs,
            data=splits,
            layers=layers or {},
            draws=draws,
            differentiable=differentiable,
            about=about,
            notes=(*notes, *read),
            kind=kind,
            tokens=isinstance(test, Texts),
            unlabelled=unlabelled,
            at=positions(at or {}, domains_of(splits, unlabelled, {})),
        )
        check(subject)
        return subject.with_attributes(attributes)

    @classmethod
    def ranker(
        cls,
        model: nn.Module,
        data: Any,
        *,
        low: float | None = None,
        high: float | None = None,
        name: str | None = None,
        bounds: tuple[float, float] = (0.0, 1.0),
        pairs: int = PAIRS,
        about: str = "",
    ) -> Subject:
        """A model that compares (`assay.nn.siamese.Siamese`) and its data: inputs with a number each.

        `data` is a pair (x, values), a folder of images with numbers, `Pairs`, or a mapping from split names to such;
        `pairs` are drawn from each split. `low` and `high` are the range of the values, by default what the data have.
        """
        splits = as_pairs(data, pairs)
        values = np.concatenate([split.values for split in splits.values()])
        task = Ranking(float(values.min()) if low is None else low, float(values.max()) if high is None else high)
        for split, given in splits.items():
            outside = np.flatnonzero((given.values < task.low) | (given.values > task.high))
            if len(outside):
                raise SubjectError(
                    f"The value {given.values[outside[0]]:g} of input {outside[0]} in {split!r} lies outside "
                    f"{task.low:g} to {task.high:g}; give low and high that hold every value."
                )
        return cls._of_pairs(model, splits, task, name, bounds, about)

    @classmethod
    def similarity(
        cls,
        model: nn.Module,
        data: Mapping[str, Pairs] | Pairs,
        *,
        threshold: float,
        name: str | None = None,
        bounds: tuple[float, float] = (0.0, 1.0),
        about: str = "",
    ) -> Subject:
        """A model that gives the distance of two inputs, the pairs to ask about (`Pairs.alike`), and the threshold."""
        splits = dict(data) if isinstance(data, Mapping) else {"test": data}
        return cls._of_pairs(model, splits, Similarity(threshold), name, bounds, about)

    @classmethod
    def retrieval(
        cls,
        model: nn.Module,
        gallery: Any,
        queries: Any,
        *,
        metres: float | None = None,
        pairs: Any = None,
        metric: Metric = "cosine",
        first: int = 5,
        name: str | None = None,
        bounds: tuple[Bound, Bound] | None = None,
        mean: tuple[float, ...] | None = None,
        std: tuple[float, ...] | None = None,
        layers: Mapping[str, str] | None = None,
        draws: int = 1,
        differentiable: bool = True,
        about: str = "",
        kind: Bounded | None = None,
    ) -> Subject:
        """Any module that returns a vector for each input (of places, faces, speakers), what it searches, and what for.

        An item of the gallery answers a query where both have the same label. With `metres`, (x, y) holds latitude and
        longitude in the place of labels, and what lies so near answers; with `pairs` (p, 2), what is named with the
        query by their rows. `queries` may be a mapping from splits ('test', 'train', ...). The gallery is described
        once, here. A copy of a query in the gallery counts as any item; queries that are the gallery are refused.
        """
        if not isinstance(model, nn.Module):
            raise AssayError(f"Subject.retrieval wants a torch.nn.Module, got {type(model).__name__}; wrap it in one.")
        _refuse_queries(gallery, queries, by_label=metres is None and pairs is None)
        sought = matched(gallery, queries, metres=metres, pairs=pairs, bounds=bounds)
        for split, asked in sought.splits.items():
            if split not in NO_DOMAIN:
                refuse_domain(split)
                refuse_few(split, len(asked))
        unit, scaled = metric == "cosine", _normalised(model, mean, std, sought.shape)
        seen = Unit(scaled) if unit else scaled
        inputs, notes = _space(sought.splits, {}, sought.shape, bounds, gallery=sought.gallery)
        described = sought.described(*_describing(seen, draws, inputs), metric, _describer(seen, draws))
        subject = cls.of(
            seen, sought.splits, Search(described, min(first, described.size)), name=name or type(model).__name__,
            bounds=bounds, layers={k: f"model.{v}" if unit else v for k, v in (layers or {}).items()}, draws=draws,
            differentiable=differentiable, about=about, kind=kind,
        )  # fmt: skip
        return replace(subject, inputs=inputs, notes=notes)

    @classmethod
    def _of_pairs(
        cls,
        model: nn.Module,
        splits: Mapping[str, Pairs],
        task: Comparison,
        name: str | None,
        bounds: tuple[float, float],
        about: str,
    ) -> Subject:
        if not isinstance(model, PairModel) or not hasattr(model, "decoder"):
            raise AssayError(
                f"{type(model).__name__} is no model of pairs; give assay.nn.siamese.Siamese(encoder, tail)."
            )
        if "test" not in splits:
            raise AssayError(f"The data has no split 'test', only {sorted(splits)}; name one 'test'.")
        example, _ = splits["test"].take(np.arange(1))
        inputs = InputSpace(tuple(example.shape[1:]), *bounds)
        name = name or type(model).__name__
        _check_tail(model, example[:, 0])
        subject = cls(name=name, model=model, task=task, inputs=inputs, data=splits, about=about)
        check(subject)
        return subject

    @property
    def pairs(self) -> Mapping[str, Pairs]:
        """The splits of a model of pairs, each as what it is."""
        return {split: data for split, data in self.data.items() if isinstance(data, Pairs)}

    def domains(self) -> dict[str, Domain]:
        """Where else its inputs come from, by name: every split but those with a part of their own (`NO_DOMAIN`), and
        the domains without labels."""
        return domains_of(self.data, self.unlabelled, self.at)

    def everywhere(self) -> Subject:
        """The same subject whose `data` also hold the domains without labels, for questions about inputs alone."""
        return replace(self, data={**self.data, **self.unlabelled}) if self.unlabelled else self

    @property
    def home(self) -> str:
        """The split that domains are compared with: 'train' where there is one, else 'test'."""
        return "train" if "train" in self.data else "test"

    def home_rows(self, domain: str) -> NDArray[np.int64]:  # -> k
        """The rows of `home` that this domain is compared with: all but its own, where it is a part of them."""
        return rows_apart(self.data[self.home], self.domains()[domain].data)

    def with_attributes(self, given: Mapping[str, Any] | None) -> Subject:
        """The same subject with these attributes beside those that it has; each is given as `of` takes it."""
        if not given:
            return self
        found = by_name(given, {**self.data, **self.unlabelled})
        notes = tuple(note for each in found.values() if (note := each.note()) is not None)
        return replace(self, attributes={**self.attributes, **found}, notes=(*self.notes, *notes))

    def in_classes(self) -> Subject:
        """A model whose task calls its answers a choice, as the classifier that it is then; any other as it is."""
        read = self.task.choice(self.model, self.data)
        if read is None:
            return self
        original = None if self.original is None else self.original.in_classes()
        return replace(self, model=read.model, task=read.task, data=read.data, layers={}, original=original)

    def unlike(self, other: Subject) -> str | None:
        """Why this model's answers cannot be laid beside those of another, after "it", or None."""
        if self.inputs.shape != other.inputs.shape:
            return f"takes inputs of shape {self.inputs.shape}, and {other.name!r} of {other.inputs.shape}"
        if type(self.task) is not type(other.task):
            return f"is for {self.task.name()}, and {other.name!r} for {other.task.name()}"
        if len(self.task.classes) != len(other.task.classes):
            return f"has {len(self.task.classes)} classes, and {other.name!r} {len(other.task.classes)}"
        return None

    def leads(self) -> bool:
        """Whether a gradient leads from its answers to its inputs: not through onnxruntime, no_grad or a plain copy."""
        return self.differentiable and self.gradient() == "leads"

    def gradient(self) -> Gradient:
        """What comes of asking its model for one, found out once: it leads, there is none, or the model fails."""
        if self.model not in _GRADIENTS:
            _GRADIENTS[self.model] = gradient_of(self.model, self.data["test"].take(np.arange(1))[0])
        return _GRADIENTS[self.model]

    def in_shares(self) -> Subject:
        """The same subject with each value as its share of its range, so that a radius of 0.03 is 3 % of it."""
        space = self.inputs
        if space.ranges is None and (space.low, space.high) == (0.0, 1.0):
            return self
        low, span = space.edges()
        whole = self.kind is not None and bool((self.kind.reach.step > 0).any())
        unlabelled = {name: Unlabelled(Shares(data, low, span)) for name, data in self.unlabelled.items()}
        return replace(
            self,
            model=Rescaled(self.model, low, span, self.kind if whole else None),
            inputs=InputSpace(space.shape, natural=space),
            data={split: Shares(data, low, span) for split, data in self.data.items()}
            | {name: data for name, data in unlabelled.items() if name in self.data},
            unlabelled=unlabelled,
            layers={part: f"model.{name}" for part, name in self.layers.items()},
        )

    def reach(self, x: Tensor | None = None) -> Reach | None:  # n *d
        """What an attacker may change, of these inputs where some hold padding, in the units of `inputs`.

        None where nobody said what an input is: then everything may, by any amount. `kind` speaks of natural units.
        """
        if self.kind is None:
            return None
        if self.kind.shape != self.inputs.shape:
            raise AssayError(
                f"The kind of {self.name!r} has the shape {self.kind.shape}, its inputs {self.inputs.shape}; mend it."
            )
        reach, space = self.kind.reach, self.inputs.natural
        low, span = self.inputs.edges() if space is None else space.edges()
        reach = reach if space is None else reach.in_shares(low, span)
        if x is None:
            return reach
        there = self.kind.present(x if space is None else (low.to(x.device) + x.double() * span.to(x.device)).to(x))
        return replace(reach.to(x.device), free=reach.free.to(x.device) & there)

    def empty_cell(self, split: str) -> str | None:
        """Where inputs of a split first have an empty cell that the model takes, in words; None where none is."""
        if self.kind is None or self.kind.shape != self.inputs.shape or not bool(self.kind.may_miss().any()):
            return None
        data = self.data[split]
        for start in range(0, len(data), LOOKED):
            empty = data.take(np.arange(start, min(start + LOOKED, len(data))))[0].isnan().nonzero()
            if len(empty):
                return self.kind.place(tuple(empty[0, 1:].tolist()))
        return None

    def everyday(self) -> Mapping[str, Change[Tensor]]:
        """What happens to such inputs without anyone attacking them, by name; nothing is known where it is empty."""
        if self.kind is not None:
            return self.kind.everyday()
        if not self.inputs.is_picture or self.inputs.ranges is not None:
            return {}
        channels, height, width = self.inputs.shape[-3:]
        image = Image((channels, height, width), self.inputs.low, self.inputs.high)
        return (image if self.inputs.is_image else Pair(image)).everyday()

    def predict(self, x: Tensor) -> Tensor:  # n *d -> n *o
        """The task's output: of a classifier the logits.

        Of a random model one answer from `draws` passes: of a classifier the log of the probability averaged over them.
        """
        with torch.no_grad():
            if self.draws == 1:
                out: Tensor = self.model(x)
                return out
            return self.task.average(passes(self.model, x, self.draws))

    def said(self, x: NDArray[np.float32], device: str) -> NDArray[np.float32]:  # n *d -> n *o
        """The task's output for inputs at hand, a few at a time on the device where the model is."""
        parts = np.array_split(x, max(1, -(-len(x) // AT_ONCE))) if len(x) else []
        outs = [self.predict(torch.as_tensor(part, device=device)).float().cpu().numpy() for part in parts]
        return np.concatenate(outs) if outs else np.zeros(0, dtype=np.float32)

    def in_words(self, target: Any, said: Any) -> tuple[str, str]:  # *t, *o
        """The target and the answer of a witness; of a classifier both are classes."""
        task = self.task
        words = task.told if "classes" in task.gives else task.words
        return task.told(torch.as_tensor(target)), words(torch.as_tensor(said))

    def blind(self, split: str, index: NDArray[np.int64]) -> tuple[str, Tensor, Tensor]:  # k -> k *o, k *t
        """What a model says that saw no input, in words and as its output for each of these; and their targets."""
        target = torch.as_tensor(np.asarray(self.data[split].labels)[index])
        trivial = self.task.trivial(target.numpy())
        return trivial.says, trivial.out.expand(len(target), *trivial.out.shape), target

    def trivially_right(self, split: str, index: NDArray[np.int64]) -> tuple[str, float]:
        """What a model says that saw no input, and the share of these inputs for which that is good enough."""
        says, out, target = self.blind(split, index)
        return says, float(self.task.right(out, target).double().mean())

    def single(self, x: Tensor) -> Tensor:  # n *d -> n k
        """The logits of one pass, also of a random model."""
        return (self if self.draws == 1 else replace(self, draws=1)).predict(x)

    def fingerprint(self) -> str:
        """A hash of weights, state, code, task and data: the same subject has the same one, on any day and machine.

        Where the model holds something that cannot be hashed, each call gives another one: nothing is known of it.
        """
        digest = self._answering()
        if self.original is not None:
            digest.update(self.original._answering().digest())
        if self.kind is not None:
            digest.update(repr(self.kind).encode())
        for split, data in sorted(self.data.items()):
            digest.update(f"{split} {data.fingerprint()}".encode())
        for name, domain in self.domains().items() if self.unlabelled or self.at else ():
            digest.update(f"{name} {'' if domain.labelled else domain.data.fingerprint()} {domain.at}".encode())
        for attribute in self.attributes.values():
            digest.update(repr((attribute.name, attribute.values)).encode())
            for split, codes in sorted(attribute.codes.items()):
                digest.update(split.encode() + codes.astype(np.int64).tobytes())
        return str(digest.hexdigest())

    def _answering(self) -> Any:
        """A hash, to go on with, of what gives its answers: weights, state, code and task."""
        strangers: list[Any] = [
            *{type(d) for d in self.data.values() if not type(d).__module__.startswith("assay.")},
            *([] if self.environment is None else [self.environment]),
        ]
        digest = hashlib.sha256(fingerprint.of_model(self.model, strangers).lasting.encode())
        digest.update(repr((self.task, self.inputs, self.draws, self.differentiable)).encode())
        return digest

    def behaviour(self) -> str:
        """A hash of its answers to a few hundred test inputs, and of the code and the packages that gave them.

        It tells two models apart that differ in what no hash of their parts sees, a file that they read, a newer torch.
        Rounding differs between machines, so it may too; stored answers are then asked again, and nothing is lost.
        """
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            _, out = first_answers(self.model, self.data["test"])
        return fingerprint.of_answers(out) + fingerprint.of_model(self.model, weights=False).passing

    def cured(self, model: nn.Module, remedy: str, *, draws: int | None = None) -> Subject:
        """The same task and data with another model, which remembers what was done; `draws` where it is random.

        The other model describes a gallery anew: it is no use to look for its descriptors among those of the old one.
        """
        cured = replace(
            self,
            model=model,
            name=f"{self.name}+{remedy}",
            about=f"{self.name} after {remedy}.",  # what was said of it as it was may no longer be true
            origin=(*self.origin, remedy),
            layers={},
            draws=self.draws if draws is None else draws,
            original=self,
        )
        return _described_anew(cured) if isinstance(self.task, Search) else cured


@dataclass(frozen=True)
class Recipe:
    """A reference subject on the shelf: what it is in one line, where it comes from, and how to build it."""

    says: str
    source: str
    build: Callable[[], Subject]


def guess_layers(model: nn.Module) -> dict[str, str]:
    """The inner points that some probes need: the last convolution and the last linear layer."""
    found: dict[str, str] = {}
    for name, module in inner_points(model):
        if isinstance(module, nn.Conv2d):
            found["last_conv"] = name
        if isinstance(module, nn.Linear):
            found["head"] = name
    return found


def _laid(attributes: Mapping[str, Attribute], rows: Mapping[str, Data]) -> Mapping[str, Attribute]:
    """Attributes beside the rows of their splits, one code each; a domain that is a part of such a split has its own.

    One that goes one to one with the labels of the test data is refused.
    """
    for name, attribute in attributes.items():
        for split, codes in attribute.codes.items():
            if split not in rows:
                raise AssayError(f"The attribute {name!r} has codes for {split!r}, which is no split; mend its name.")
            if len(codes) != len(rows[split]):
                raise AssayError(
                    f"The attribute {name!r} has {len(codes):,} values for the {len(rows[split]):,} rows of {split!r}; "
                    "give one for each row."
                )
        if "test" in attribute.codes:
            refuse_label(attribute, np.asarray(rows["test"].labels), "test")
    return _followed(attributes, rows, rows)


def _followed(
    attributes: Mapping[str, Attribute], old: Mapping[str, Data], new: Mapping[str, Data]
) -> Mapping[str, Attribute]:
    """Attributes of `old` data beside `new` ones, which may be parts of them; other rows have none."""
    before, after = ({split: rows_of(data) for split, data in each.items()} for each in (old, new))
    return {name: replace(each, codes=_codes(each, before, after)) for name, each in attributes.items()}


def _codes(
    attribute: Attribute,
    before: Mapping[str, tuple[Any, NDArray[np.int64]]],
    after: Mapping[str, tuple[Any, NDArray[np.int64]]],
) -> dict[str, NDArray[np.int64]]:
    known: dict[int, NDArray[np.int64]] = {}  # by what the data were before they were cut
    for split, codes in attribute.codes.items():
        whole, rows = before[split]
        known.setdefault(id(whole), np.full(len(whole), -1, dtype=np.int64))[rows] = codes
    return {split: known[id(whole)][rows] for split, (whole, rows) in after.items() if id(whole) in known}


def _space(
    splits: Mapping[str, Data],
    unlabelled: Mapping[str, Data],
    shape: tuple[int, ...],
    bounds: tuple[Bound, Bound] | None,
    gallery: Data | None = None,
) -> tuple[InputSpace, tuple[str, ...]]:
    """The input space as a gallery and the splits have it that are no domains, which may lie outside unless told."""
    elsewhere = {**{split: data for split, data in splits.items() if split not in NO_DOMAIN}, **unlabelled}
    home = {split: data for split, data in splits.items() if split in NO_DOMAIN}
    space, notes = space_of(home if gallery is None else {**home, GALLERY: gallery}, shape, bounds)
    if bounds is not None or isinstance(splits["test"], Texts):
        return space, notes
    space, said = left_open(space, elsewhere)
    return space, (*notes, *said)


def _normalised(
    model: nn.Module, mean: tuple[float, ...] | None, std: tuple[float, ...] | None, shape: tuple[int, ...]
) -> nn.Module:
    """The model behind the scaling that it was trained with, where one is told."""
    if mean is None and std is None:
        return model
    mean, std = mean or (0.0,), std or (1.0,)
    for option, numbers in (("--mean", mean), ("--std", std)):
        if len(numbers) not in (1, shape[0]):
            raise AssayError(f"{option} has {len(numbers)} values for {shape[0]} channels; give 1 or {shape[0]}.")
    return Normalised(model, tuple(mean), tuple(std), len(shape))


def looks(x: Tensor) -> int:  # n *d
    """How many inputs such as these are shown to find out about a model, if there are so many."""
    return min(LOOKS, max(SURE, LOOKS_BYTES // (4 * max(1, x[0].numel()))))


def first_inputs(data: Data) -> Tensor:
    """A few hundred inputs to find out by how a model is to be read, fewer where they are large: n *d.

    The four that `check` looks at, where one of the others cannot be read.
    """
    few, _ = data.take(np.arange(min(SURE, len(data))))
    try:
        return data.take(np.arange(min(looks(few), len(data))))[0]
    except AssayError:
        return few


def first_answers(model: nn.Module, data: Data) -> tuple[Tensor, Tensor]:  # -> n *d, n *o
    """The first inputs and what the model answers to them; the first four, where one of the others breaks it.

    The questions that meet that one say so, each for itself.
    """
    x = first_inputs(data)
    try:
        return x, answer_once(model, x.clone())
    except AssayError:
        return x[:SURE], answer_once(model, x[:SURE].clone())


def _as_two(model: nn.Module, x: Tensor, classes: int | None) -> tuple[nn.Module, tuple[str, ...]]:
    """A model that gives one score for each input as one of two classes, and what to say of it; else as it is."""
    if answer_once(model, x[:1]).shape not in ((1,), (1, 1)) or classes not in (None, 2):
        return model, ()
    out = answer_once(model, x)
    probability = bool(((out >= 0) & (out <= 1)).all())
    read = "probability of the second class" if probability else "logit of the second class against the first"
    return OneScore(model, probability), (f"The model gives one number for each input; it is read as the {read}.",)


def _count_classes(model: nn.Module, example: Tensor) -> tuple[str, ...]:
    out = answer_once(model, example)
    refuse_places(out, "The model")
    if out.ndim != 2:
        raise SubjectError(f"The model returned shape {tuple(out.shape)} for 1 input; it should return (1, k) logits.")
    return tuple(str(i) for i in range(out.shape[1]))


@contextmanager
def _asking(model: nn.Module) -> Iterator[torch.device]:
    """Eval mode and no gradients inside, the mode put back after; says where the model is."""
    modes = {m: m.training for m in model.modules()}
    try:
        for m in modes:
            m.training = False
        with torch.no_grad():
            yield next((t.device for t in model.state_dict().values()), torch.device("cpu"))
    finally:
        for m, mode in modes.items():
            m.training = mode


def answer_once(model: nn.Module, x: Tensor, part: Callable[[Tensor], Tensor] | None = None) -> Tensor:
    """One guarded forward pass in eval mode, through the model or this part of it, with its modes put back."""
    try:
        with _asking(model) as place:
            out = (part or model)(x.to(place))
    except AssayError:
        raise
    except Exception as e:
        what = str(e).strip().splitlines()
        raise SubjectError(
            f"The model raised {type(e).__name__} on an input of shape {tuple(x.shape)}: "
            f"{what[0] if what else 'no message'}; check that it takes a batch of inputs like the data's."
        ) from e
    if not isinstance(out, Tensor):
        parts = out.items() if isinstance(out, Mapping) else enumerate(out) if isinstance(out, tuple | list) else ()
        held = ", ".join(f"{k} ({' x '.join(map(str, v.shape))})" for k, v in parts if isinstance(v, Tensor))
        raise SubjectError(
            f"The model returned {type(out).__name__}, not a tensor; return the logits alone."
            + (f" It holds {held}: subject.py:build with --output NAME reads one of them." if held else "")
        )
    return out.cpu()


def check(subject: Subject) -> None:
    """Refuse, in one line, a model and data that cannot be audited: shapes, classes, NaN, bounds, labels.

    Of a domain without labels, whose zeros are none, the inputs alone.
    """
    task = subject.task
    for split, data in subject.data.items():
        if split in subject.unlabelled:
            continue
        if len(data) == 0:
            raise SubjectError(f"The split {split!r} is empty; give it at least one labelled input or leave it out.")
        targets = np.asarray(data.labels)
        if targets.shape[:1] != (len(data),):
            raise SubjectError(
                f"The labels of {split!r} have shape {targets.shape} for {len(data)} inputs; give one each."
            )
        wrong = task.wrong_targets(targets)
        if wrong is not None:
            raise SubjectError(f"In {split!r} {wrong}; mend the targets, or name another task than {task.name()}.")
    for domain in subject.domains().values():
        if not domain.labelled:
            refuse_few(domain.name, len(domain.data))
        x, _ = domain.data.take(np.arange(min(SURE, len(domain.data))))
        check_bounds(x, np.arange(len(x)), domain.name, subject.inputs, subject.kind)
    x, _ = subject.data["test"].take(np.arange(min(SURE, len(subject.data["test"]))))
    check_bounds(x, np.arange(len(x)), "test", subject.inputs, subject.kind)
    task.checked(answer_once(subject.model, x), len(x))


def settled(subject: Subject, x: Tensor) -> Subject:  # n *d
    """The subject; where two passes over the same inputs differ and it says nothing of it, with DRAWS draws."""
    if subject.draws > 1 or isinstance(subject.task, Comparison):
        return subject
    first, second = (answer_once(subject.model, x).reshape(len(x), -1) for _ in range(2))
    spread = first.std(1) if "classes" in subject.task.gives else first.std()
    moved = (first - second).abs().amax(1) > STILL * spread
    if not bool(moved.any()):
        return subject
    drawn = replace(subject, draws=DRAWS)
    return _described_anew(drawn) if isinstance(subject.task, Search) else drawn


def _refuse_queries(gallery: Any, queries: Any, *, by_label: bool) -> None:
    """Refuse splits of queries with a name that stands for something else, and inputs alone where labels decide."""
    given = queries if isinstance(queries, Mapping) else {"test": queries}
    for split in given:
        if not isinstance(split, str) or split in ("", OUTLIERS, GALLERY):
            raise AssayError(
                f"Queries cannot be named {split!r}; give them a name of their own, such as 'night': each has an "
                "answer, so that none are 'outliers', and 'gallery' is what they search."
            )
    for split, each in ({GALLERY: gallery} | dict(given)).items() if by_label else ():
        alone = isinstance(each, tuple | list) and len(each) == 2 and each[1] is None
        if alone or isinstance(each, Unlabelled | np.ndarray | Tensor):
            raise SubjectError(
                f"The inputs of {split!r} have no labels, and labels say what answers a query; give (x, labels), or "
                "say it with metres=... (geo-tags) or pairs=..."
            )


def _describing(
    model: nn.Module, draws: int, inputs: InputSpace
) -> tuple[Callable[[Tensor], Tensor], Callable[[Tensor, NDArray[np.int64]], None]]:
    """What describes items of a gallery as queries are described, and what refuses those that are no such inputs."""
    mean_of = (lambda x: passes(model, x, draws).mean(0)) if draws > 1 else None
    return (
        lambda x: answer_once(model, x, mean_of),
        lambda x, rows: check_bounds(x, rows, GALLERY, inputs),
    )


def _describer(model: nn.Module, draws: int) -> str:
    return f"{fingerprint.of_model(model).lasting} {draws}"


def _described_anew(subject: Subject) -> Subject:
    """A subject that searches, with its gallery as its model describes it now."""
    task = subject.task
    assert isinstance(task, Search)
    if subject.inputs.natural is not None:
        raise AssayError(f"{subject.name!r} is in shares of its range, and its gallery is not; take it as it was.")
    old = task.gallery
    new = descriptors_of(old.items, *_describing(subject.model, subject.draws, subject.inputs), old.metric)
    return replace(subject, task=replace(task, gallery=old.anew(new, _describer(subject.model, subject.draws))))


def _check_tail(model: nn.Module, x: Tensor) -> None:  # n *d
    """Refuse a tail that cannot compare two embeddings, and an encoder that makes none."""
    assert isinstance(model, PairModel)
    e = answer_once(model, x, model.encode)
    with _asking(model) as place:
        try:
            model.compare(e.to(place), e.to(place))
        except Exception as error:
            what = (str(error).strip().splitlines() or ["no message"])[0]
            raise SubjectError(
                f"The tail does not take two embeddings of shape {tuple(e.shape)}: {what}; give a module that is "
                "called as tail(e1, e2) and returns one number for each pair."
            ) from error
