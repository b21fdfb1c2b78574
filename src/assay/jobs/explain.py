"""Explain: one input, the maps of many methods side by side, and the trial of each of them, on one page.

    runs/explain-<subject>-<input>/explanation.html

An input is the number of a test input, an image file, a sentence (for a model that reads texts) or the values of a row
(for one that reads tables). A model that reads texts or names its columns says so by what it has: `Reader`, `Table`.

Of a classifier the logit of its answer is explained, and why it is not another class; of any other task the one number
that it names (`Task.focus`), whose trial is how far it moves while features come and go.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from datetime import UTC, datetime
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, cast, get_args, runtime_checkable

from assay import store
from assay.errors import AssayError, ShapeError
from assay.explanation import Criterion, Explanation, Input, Kind, Map, Units

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray
    from torch import Tensor, nn

    from assay.inputs import Series
    from assay.methods.explain.greedy import Explained as Decided
    from assay.methods.explain.sanity import Likeness
    from assay.methods.explain.subset_robustness import Search
    from assay.methods.explain.trial import Scored
    from assay.methods.explain.words import Change
    from assay.run import Run
    from assay.subject import Subject

UNITS: dict[Kind, tuple[Units, ...]] = {
    "image": ("patches", "superpixels", "pixels"),
    "table": ("columns",),
    "text": ("words",),
    "series": ("stretches",),
}
"""What may be ranked and picked, the usual first."""
CRITERIA: dict[Criterion, Literal["s-r-bar", "s-r"]] = {"held": "s-r-bar", "moved": "s-r"}
"""What Greedy-AS is after: features that, held fast, keep the answer; features whose own small changes change it."""
GREEDY = "greedy-as"
GRADIENTS = ("gradient", "gradient-input", "integrated-gradients", "expected-gradients", "smoothgrad", "gradcam")
WEIGHTS, LAST = "random weights", "a random last layer"  # what a map has to change under
BLIND = ("random", "edges")  # maps that look at no model, whichever it is
HEADS: dict[Kind, int] = {"image": 10, "table": 32, "text": 32, "series": 32}
"""Models with new weights that a map is compared on: the fewer its entries, the more of them it takes to tell."""
BACKGROUND = 32  # inputs that expected gradients start from
MOST_PICKS = 5
MANY = 32  # features from which on they are picked by the score: SHARE of them in all, a quarter of those at once
SHARE = 0.2
SEEDS = 2  # with which features are picked, to see how far the draw decides
RIVALS = 3  # classes that a search tries; for images, where each takes seconds, the budget says how many
CELLS = 4  # of an image on either side: the patches that are ranked and picked
DRAWS: dict[Kind, int] = {
    "image": 19,
    "table": 39,
    "text": 39,
    "series": 39,
}  # random rankings; those of images take seconds


@runtime_checkable
class Reader(Protocol):
    """A model of embedded texts, or of rows of word numbers, that can read a text and say which words an input is."""

    def read(self, text: str) -> Tensor: ...  # -> words m, or L

    def words(self, text: Tensor) -> tuple[str, ...]: ...  # L m or L -> words, up to the end of the text


@runtime_checkable
class Table(Protocol):
    """A model of rows whose columns have names, and values as they were recorded."""

    columns: tuple[str, ...]

    def in_units(self, row: Tensor) -> tuple[float, ...]: ...  # d -> d

    def from_units(self, values: Sequence[float]) -> Tensor: ...  # d -> d


def explain_input(
    subject: Subject,
    given: int | str | Path,
    *,
    methods: Sequence[str] = ("all",),
    why_not: int | str | None = None,
    of: int | str | None = None,
    units: str | None = None,
    criterion: str | None = None,
    run: Run,
    out: str | Path = "runs",
    source: tuple[str, ...] = (),
) -> Explanation:
    """Explain what the subject says of one input, try each map, and write the page.

    `given` is the number of a test input, an image file, a sentence, or a row as "13.2,1.8,...". `methods` are names
    of `assay.methods.explain.maps.METHODS`, "greedy-as", or "all". `why_not` is another class, by number or name; by
    default the second likeliest; where the answer is no class, `of` is which part of it (`Task.named`). `units` is what
    is ranked and picked (UNITS), `criterion` what Greedy-AS is after (CRITERIA), by default what finds known words
    best: "moved" for a text, else "held".
    """
    from assay.door import admit
    from assay.probe import undisturbed
    from assay.report.explanation import render

    lacks = subject.task.lacks(("focus",))
    if lacks is not None:
        raise AssayError(f"{subject.name!r} cannot be explained: {lacks}.")
    if "classes" in subject.task.gives:
        if of is not None:
            raise AssayError(f"{subject.name!r} is a classifier: its answer is explained; leave out --of.")
    elif why_not is not None:
        raise AssayError(f"{subject.name!r} says no class, so there is no why not; leave it out.")
    subject = admit(subject).subject
    if subject.draws > 1:
        raise AssayError(
            f"{subject.name!r} answers at random (draws={subject.draws}), so that no two maps of it are alike; "
            f"explain takes a model that answers the same twice."
        )
    asked, aim, start = chosen(methods), aimed(criterion), time.perf_counter()
    x, told = read_input(subject, given)
    cut, after = units_of(told.kind, units), aim or ("moved" if told.kind == "text" else "held")
    with undisturbed(subject.model, run):
        scene = _Scene.of(subject, x.to(run.device), told, why_not, of, cut, after, run)
        maps, left_out = _maps(scene, asked, run)
    made = Explanation(
        subject=subject.name,
        about=subject.about,
        input=told,
        classes=scene.classes,
        probabilities=scene.probabilities,
        score=scene.score,
        answer=scene.answer,
        rival=scene.rival,
        says=scene.says,
        number=scene.number,
        of=None if of is None else str(of),
        picture=None if scene.classes else subject.task.picture(scene.out),
        units=cut,
        criterion=after,
        methods=tuple(methods),
        maps=maps,
        left_out=left_out,
        groups=scene.labels().cpu().numpy(),
        reference=scene.reference,
        budget=run.budget.name,
        seed=run.seed,
        device=run.device,
        when=datetime.now(UTC).isoformat(timespec="seconds"),
        seconds=time.perf_counter() - start,
        source=source,
        page=Path(out) / f"explain-{store.slug(subject.name)}-{store.slug(told.what)}" / "explanation.html",
    )
    store.write_atomically(made.page, render(made))
    return made


def chosen(methods: Sequence[str]) -> tuple[str, ...]:
    """The maps that are asked for, each once; "all" is all of them."""
    from assay.methods.explain.maps import METHODS

    known = (*METHODS, GREEDY)
    if not methods or "all" in methods:
        return known
    for name in methods:
        if name not in known:
            near = get_close_matches(name, known, 1, 0.4)
            hint = f"did you mean {near[0]}?" if near else f"choose from all, {', '.join(known)}."
            raise AssayError(f"There is no map {name!r}; {hint}")
    return tuple(dict.fromkeys(methods))


def aimed(criterion: str | None) -> Criterion | None:
    """What Greedy-AS is after, by its name; None where the kind of input decides."""
    if criterion is not None and criterion not in get_args(Criterion):
        raise AssayError(f"There is no criterion {criterion!r}; choose held or moved.")
    return cast("Criterion | None", criterion)


def units_of(kind: Kind, units: str | None) -> Units:
    """What is ranked and picked in such an input, by its name; the usual where nobody says."""
    if units is None:
        return UNITS[kind][0]
    if units not in UNITS[kind]:
        what = {"image": "An image", "table": "A row", "text": "A text", "series": "A series"}[kind]
        raise AssayError(f"{what} is cut into {' or '.join(UNITS[kind])}, not into {units!r}.")
    return units


def read_input(subject: Subject, given: int | str | Path) -> tuple[Tensor, Input]:
    """The input as the model takes it, 1 *d, and what there is to show of it."""
    import numpy as np

    from assay.inputs import Series
    from assay.inputs.show import Cells

    text, model = str(given).strip(), subject.model
    if re.fullmatch(r"-?\d+", text):
        data, index = subject.data["test"], int(text)
        if not 0 <= index < len(data):
            raise AssayError(f"There is no input {index}; 'test' has {len(data):,}, numbered 0 to {len(data) - 1}.")
        x, y = data.take(np.array([index]))
        what, truth = f"input {index}", subject.task.told(y[0])
    else:
        x, what, truth = _typed(subject, text), text, None
    if subject.tokens:
        return x, Input(what=what, kind="text", names=_spelt(subject, x[0], what), truth=truth)
    if isinstance(model, Reader):
        x = x[:, (x[0] != 0).any(1)]  # what comes after the end is no word, and no map should speak of it
        if x.shape[1] == 0:
            raise AssayError(f"The text of {what} has no words; choose another input.")
        return x, Input(what=what, kind="text", names=model.words(x[0]), truth=truth)
    if subject.inputs.is_image:
        low, high = subject.inputs.low, subject.inputs.high
        return x, Input(what=what, kind="image", image=((x[0] - low) / (high - low)).numpy(), truth=truth)
    if isinstance(subject.kind, Series):
        return x, _series(subject.kind, x[0], what, truth)
    if x.ndim != 2:
        raise ShapeError(
            f"An input of shape {tuple(x.shape[1:])} is neither an image (1 or 3 channels) nor a row, and the model "
            f"has no `read` and `words` for texts; explain cannot show it."
        )
    if isinstance(model, Table):
        return x, Input(what=what, kind="table", names=model.columns, values=model.in_units(x[0]), truth=truth)
    names, values = tuple(f"column {k}" for k in range(x.shape[1])), tuple(x[0].tolist())
    recorded: tuple[str, ...] = ()
    if subject.kind is not None:
        names, shown = subject.kind.features(x[0]).names, subject.kind.show(x[0])
        recorded = tuple(cell for _, cell in shown.cells) if isinstance(shown, Cells) else ()
    return x, Input(what=what, kind="table", names=names, values=values, told=recorded, truth=truth)


def _spelt(subject: Subject, tokens: Tensor, what: str) -> tuple[str, ...]:  # L -> words
    """The words of a row of word numbers, up to its end; the numbers themselves of a model that cannot spell them."""
    names = subject.model.words(tokens) if isinstance(subject.model, Reader) else None
    if names is None:
        return tuple(f"word {int(k)}" for k in tokens)
    if not names:
        raise AssayError(f"The text of {what} has no words; choose another input.")
    return names


def _series(kind: Series, x: Tensor, what: str, truth: str | None) -> Input:  # t c
    """A series by its stretches of time, with the mean in each."""
    from assay.methods.explain import groups as grouping

    parts = kind.features(x)
    size = grouping.gather((parts.groups >= 0).double()[None], parts.groups)[0]
    means = grouping.gather(x.double().nan_to_num()[None], parts.groups)[0] / size
    lines = tuple(
        (channel.name, tuple(line.tolist())) for channel, line in zip(kind.channels, x.double().T, strict=True)
    )
    return Input(
        what=what, kind="series", names=parts.names, values=tuple(means.tolist()), lines=lines, truth=truth,
        told=tuple(f"mean {v:.4g}" for v in means.tolist()),
    )  # fmt: skip


def _typed(subject: Subject, text: str) -> Tensor:
    """A sentence, an image file or a row, by what the model reads: -> 1 *d."""
    import torch

    from assay.data.image import Form, decode

    model, space = subject.model, subject.inputs
    if isinstance(model, Reader):
        return model.read(text)[None]
    if space.is_image:
        path, (channels, height, width) = Path(text), space.shape
        if not path.is_file():
            raise AssayError(f"There is no image {text!r}; give the number of a test input, or the path of an image.")
        pixels = decode(path, path.name, Form(channels, None))
        if pixels.shape != space.shape:
            raise ShapeError(
                f"{path.name} has {pixels.shape[1]} x {pixels.shape[2]} pixels and the model takes {height} x {width} "
                f"(height x width); scale the image first."
            )
        return space.low + torch.tensor(pixels)[None].float() / 255 * (space.high - space.low)
    if len(space.shape) != 1:
        raise AssayError(f"{text!r} is no number of a test input, and inputs of shape {space.shape} cannot be typed.")
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError:
        raise AssayError(
            f"{text!r} is no row; give the number of a test input, or {space.shape[0]} values with commas between."
        ) from None
    if not isinstance(model, Table) and len(values) != space.shape[0]:
        raise ShapeError(f"A row of {len(values)} values; the model takes {space.shape[0]}.")
    row = model.from_units(values) if isinstance(model, Table) else torch.tensor(values)
    least, span = (edge.to(row).expand_as(row) for edge in space.edges())
    outside = ((row < least) | (row > least + span) | row.isnan()).nonzero().flatten().tolist()
    if outside:
        k, ends = outside[0], (least, least + span)
        names = (
            subject.kind.features(row).names if subject.kind is not None else [f"column {i}" for i in range(len(row))]
        )
        name = model.columns[k] if isinstance(model, Table) else names[k]
        low, high = ((model.in_units(end) if isinstance(model, Table) else end.tolist())[k] for end in ends)
        raise AssayError(f"The value {values[k]:g} of {name} lies outside {low:g} to {high:g}, which the model takes.")
    return row[None]


def _class(classes: tuple[str, ...], named: int | str, what: str = "class") -> int:
    if str(named) in classes:
        return classes.index(str(named))
    number = re.fullmatch(r"\d+", str(named))
    if not number or int(named) >= len(classes):
        near = [] if number else get_close_matches(str(named), classes, 1)
        some = f"there are {len(classes)}, numbered from 0: {classes[0]!r}." if classes else "there is only one."
        raise AssayError(f"There is no {what} {named!r}; {f'did you mean {near[0]!r}?' if near else some}")
    return int(named)


class _Scene(NamedTuple):
    """One input, with everything that a map of it is made from."""

    model: nn.Module
    kind: Kind
    x: Tensor  # 1 *d
    out: Tensor  # *o: the answer
    target: int | Tensor  # what is explained: the class that is said, or the weights of a number, 1 *o
    says: str
    number: str
    score: float  # the logit of the answer, or the number
    probabilities: tuple[float, ...]
    answer: int | None
    rival: int | None
    named: bool  # the rival, by whoever asks
    criterion: Criterion
    classes: tuple[str, ...]
    groups: Tensor  # *d
    baseline: float | Tensor
    reference: str
    background: Tensor
    heads: tuple[_Blank, ...]
    search: Search | None  # None for a model without gradients

    @property
    def weights(self) -> Tensor | None:
        """Those of the number that is tried in the place of a class; None where the answer is one."""
        return None if isinstance(self.target, int) or self.answer is not None else self.target

    def labels(self) -> Tensor:
        """The features of what is shown, where a pixel's channels and a word's entries are one: -> h w, words, d, k."""
        import torch

        from assay.methods.explain import groups as grouping

        match self.kind:
            case "image":
                return self.groups[0]
            case "text" if self.groups.ndim > 1:
                return self.groups[:, 0]
            case "text":
                return self.groups[self.groups >= 0]
            case "series":
                return torch.arange(grouping.count(self.groups))
            case _:
                return self.groups

    def as_shown(self, values: Tensor, *, mean: bool = False) -> NDArray[np.float64]:
        """A map as the page shows it, a pixel's channels together, a word's entries, a stretch's times: 1 *d -> as
        `labels`."""
        from assay.methods.explain import groups as grouping

        joined = values[0].double().cpu()
        match self.kind:
            case "image":
                joined = joined.mean(0) if mean else joined.sum(0)
            case "text" if joined.ndim > 1:
                joined = joined.mean(1) if mean else joined.sum(1)
            case "text":
                joined = joined[self.groups.cpu() >= 0]
            case "series":
                groups = self.groups.cpu()
                size = grouping.gather((groups >= 0).double()[None], groups)[0]
                joined = grouping.gather(joined[None], groups)[0] / (size if mean else 1)
            case "table":
                pass
        shown: NDArray[np.float64] = joined.numpy()
        return shown

    @classmethod
    def of(
        cls,
        subject: Subject,
        x: Tensor,
        told: Input,
        why_not: int | str | None,
        of: int | str | None,
        units: Units,
        criterion: Criterion,
        run: Run,
    ) -> _Scene:
        from assay.methods.explain.spoken import class_of, is_class, number, weights
        from assay.methods.explain.subset_robustness import Search
        from assay.methods.explain.words import unbounded

        out, task, space = subject.predict(x), subject.task, subject.inputs
        answer = rival = None
        says = "its logit"
        which = None if of is None else _class(task.named, of, "part of the answer")
        target: int | Tensor
        if "classes" in task.gives:
            logits = out[0].double()
            answer, second = logits.topk(2).indices.tolist()
            rival = second if why_not is None else _class(task.classes, why_not)
            if rival == answer:
                raise AssayError(
                    f"The model says {task.classes[answer]!r} itself, so there is no why not; give another class."
                )
            target, score, chances = answer, float(logits[answer]), tuple(logits.softmax(0).tolist())
            apart = class_of(out)
            if not is_class(apart):  # a model with one score
                target, score = apart, float(number(out.double(), apart.double())[0])
                says = f"its logit less that of {task.classes[1 - answer]}"
        else:
            target, chances = weights(task, out, which), ()
            score, says = float(number(out.double(), target.double())[0]), task.focus(out, which).says[0]
        split = "train" if "train" in subject.data else "test"
        some, _ = subject.data[split].take(run.pick(subject.data[split], BACKGROUND))
        some = some[:, : x.shape[1]] if told.kind == "text" else some
        search = Search(
            steps=max(1, run.budget.steps // 2),
            halvings=2,
            rivals=run.budget.restarts if told.kind == "image" else RIVALS,
            bounds=(space.low, space.high),
        )
        baseline: float | Tensor = 0.0 if told.kind == "text" else space.low
        reference = "no word" if told.kind == "text" else f"{space.low:g}"
        if told.kind in ("table", "series"):  # the least of every column is no row that anybody has seen
            rows = "rows" if told.kind == "table" else "series"
            baseline, reference = some.mean(0).to(x.device), f"the mean of {len(some)} {rows}"
        if told.kind == "text" and answer is not None and not subject.tokens:
            search = unbounded(x[0], search)
        return cls(
            model=subject.model,
            kind=told.kind,
            x=x,
            out=out[0].cpu(),
            target=target,
            says=task.words(out[0].cpu()),
            number=says,
            score=score,
            probabilities=chances,
            answer=answer,
            rival=rival,
            named=why_not is not None,
            criterion=criterion,
            classes=() if answer is None else task.classes,
            groups=_features(subject, told, x[0].cpu(), units),
            baseline=baseline,
            reference=reference,
            background=some.to(x.device),
            heads=_heads(subject.model, x, HEADS[told.kind], run.rng()),
            search=search if subject.differentiable else None,
        )


class _Blank(NamedTuple):
    """The model with new weights, in all its layers and in the last one alone: the two ends of a cascade."""

    whole: nn.Module
    last: nn.Module


def _heads(model: nn.Module, x: Tensor, count: int, rng: torch.Generator) -> tuple[_Blank, ...]:
    """Copies with new weights; none of a model that cannot be copied, or whose layers are not modules."""
    from assay.methods.explain.sanity import randomised

    made = []
    try:
        for _ in range(count):
            cascade = randomised(model, x, rng=rng)
            whole = last = next(cascade).model
            for step in cascade:
                whole = step.model
            made.append(_Blank(whole, last))
    except (AssayError, TypeError, RuntimeError):  # TypeError is what copying raises for a session of onnxruntime
        return ()
    return tuple(made)


def _features(subject: Subject, told: Input, x: Tensor, units: Units) -> Tensor:  # *d -> *d
    """What is ranked and picked."""
    import torch

    from assay.methods.explain import groups as grouping
    from assay.methods.explain.maps import usual_groups

    match units:
        case "patches":
            return grouping.patches(x.shape, -(-max(x.shape[1:]) // CELLS))
        case "superpixels":
            assert told.image is not None  # units_of: only an image has them
            return grouping.superpixels(torch.from_numpy(told.image), CELLS**2)
        case "pixels":
            return grouping.pixels(x.shape)
        case "columns":
            return grouping.columns(told.names)
        case "words" if subject.tokens:
            place = torch.arange(len(x))
            return torch.where(place < len(told.names), place, grouping.NEVER)
        case "words":
            return usual_groups(x.shape)
        case "stretches":
            assert subject.kind is not None  # read_input: a series has a kind
            return subject.kind.features(x).groups


class _Made(NamedTuple):
    """A map before its trial."""

    name: str
    says: str
    shown: NDArray[np.float64]
    signed: bool
    ranking: Tensor  # k
    likeness: Likeness | None  # to the maps of each of the models with new weights
    under: str = WEIGHTS
    gap: float | None = None
    target: int | None = None
    picks: tuple[int, ...] = ()
    decided: str = ""
    base: float | None = None
    missed: float | None = None
    start: str = ""


def _maps(scene: _Scene, asked: Sequence[str], run: Run) -> tuple[tuple[Map, ...], tuple[tuple[str, str], ...]]:
    """Every map that the model admits, tried; and the others with the reason."""
    import torch

    from assay.methods.explain.trial import faithfulness, judge

    made: list[_Made] = []
    left_out: list[tuple[str, str]] = []
    with run.progress("maps", len(asked) + 1) as tick:
        for name in asked:
            try:
                if scene.search is None and name in (*GRADIENTS, GREEDY):
                    raise AssayError("It needs gradients, and this model gives answers only.")
                if scene.answer is None and name == GREEDY:
                    raise AssayError("It looks for the least change to another class, and this answer is no class.")
                if scene.kind == "text" and scene.x.ndim == 2 and name in (*GRADIENTS, GREEDY):
                    raise AssayError("It moves words by a little, and between the numbers of two words lies none.")
                made += _decided(scene, run) if name == GREEDY else [_map(scene, name, run)]
            except AssayError as e:
                left_out.append((name, str(e)))
            tick(1)
        if not made:
            raise AssayError(f"No map can be made of this input: {'; '.join(f'{n}: {why}' for n, why in left_out)}")
        scores: dict[int, tuple[Scored, ...]] = {}
        for target in {m.target for m in made}:
            rows = [i for i, m in enumerate(made) if m.target == target]
            tried = faithfulness(
                scene.model,
                scene.x[0],
                torch.stack([made[i].ranking for i in rows]),
                groups=scene.groups,
                target=target,
                weights=scene.weights,
                reference=scene.baseline,
                search=scene.search,
                draws=DRAWS[scene.kind],
                rng=run.rng(),
            )
            scores.update(zip(rows, tried, strict=True))
        tick(1)
    maps = []
    for i, m in enumerate(made):
        verdict, checks = judge(scores[i], ranking=m.ranking, likeness=m.likeness, under=m.under, gap=m.gap)
        maps.append(
            Map(
                name=m.name,
                says=m.says,
                shown=m.shown,
                signed=m.signed,
                scores=scores[i],
                likeness=None if m.likeness is None else float(m.likeness.absolute.mean()),
                signed_likeness=None if m.likeness is None else float(m.likeness.signed.mean()),
                gap=m.gap,
                verdict=verdict,
                checks=checks,
                picks=m.picks,
                decided=m.decided,
                base=m.base,
                missed=m.missed,
                start=m.start,
            )
        )
    return tuple(maps), tuple(left_out)


def _map(scene: _Scene, name: str, run: Run) -> _Made:
    """One of the standard maps, and how much of it is left when the model's weights are random."""
    import torch

    from assay.methods.explain.faithfulness import importance
    from assay.methods.explain.maps import METHODS, Attribution, explain, missed

    def of(model: nn.Module) -> Attribution:
        return explain(
            model,
            scene.x,
            scene.target,
            name,
            baseline=scene.baseline,
            background=scene.background,
            groups=None if scene.kind == "image" else scene.groups,  # a map may be finer than what is ranked
            rng=run.rng(),
        )

    found = of(scene.model)
    shown = scene.as_shown(found.values, mean=not found.signed)  # what has no sign does not add up either
    heads = [head.whole for head in scene.heads] or ([scene.model] * 2 if name in BLIND else [])
    others = [of(head).values for head in heads]
    lost, gap = missed(found), None if found.gap is None else float(found.gap[0])
    return _Made(
        name=name,
        says=METHODS[name],
        shown=shown,
        signed=found.signed,
        ranking=importance(torch.from_numpy(shown)[None], scene.labels())[0],
        likeness=_alike(found.values, others),
        gap=None if lost is None else float(lost.share[0]),
        base=None if lost is None else scene.score - float(lost.promised[0]),
        missed=gap,
        start=f"mean of {len(scene.background)} examples" if name == "expected-gradients" else scene.reference,
    )


def _decided(scene: _Scene, run: Run) -> list[_Made]:
    """Greedy-AS twice: the features that decide for the answer, and for the answer and against the rival.

    Of many features, which take long, once: against the rival if it was named, else for the answer.
    Under new weights only the scores of its first round are made again: they rank every feature. No change of an image
    may lead a model with random weights to another class; then models whose last layer is random have to do.
    """
    from assay.methods.explain import groups as grouping
    from assay.methods.explain.greedy import robust_features
    from assay.methods.explain.words import keywords

    assert scene.answer is not None  # what says no class was turned away
    assert scene.rival is not None
    k = grouping.count(scene.groups)
    many = k > MANY
    size = math.ceil(SHARE * k) if many else min(MOST_PICKS, -(-k // 2))
    some = scene.heads[: 3 if many else -(-len(scene.heads) // 2)]

    def of(model: nn.Module, target: int | None, size: int, samples: int | None = None, seeds: int = 1) -> Decided:
        criterion = CRITERIA[scene.criterion]
        if scene.kind != "text":
            return robust_features(
                model,
                scene.x[0],
                criterion=criterion,
                groups=scene.groups,
                size=size,
                target=target,
                samples=samples,
                at_once=-(-size // 4) if many else 1,
                search=scene.search,
                rng=run.rng(),
                seeds=seeds,
            )
        assert scene.search is not None  # a model without gradients was turned away
        ways: tuple[Change, ...] = ("fade",) if target is None else ("fade", "embedding")
        for change in ways:  # no text becomes any class by losing words; by moving them, it may
            with suppress(AssayError) if change != ways[-1] else nullcontext():
                return keywords(
                    model,
                    scene.x[0],
                    size=size,
                    criterion=criterion,
                    target=target,
                    samples=samples,
                    change=change,
                    search=scene.search,
                    rng=run.rng(),
                    seeds=seeds,
                ).explained
        raise AssertionError  # the last way raises or returns

    def again(models: Sequence[nn.Module], target: int | None) -> list[Tensor]:
        scores = []
        for model in models:
            with suppress(AssayError):  # it may give the rival already, or never
                scores.append(of(model, target, 1, (2 if many else 3) * k).scores[None])
        return scores

    answer, rival = scene.classes[scene.answer], scene.classes[scene.rival]
    made = []
    targets: tuple[int | None, ...] = (None, scene.rival)
    if many:
        targets = (scene.rival if scene.named else None,)
    for target in targets:
        found = of(scene.model, target, size, 2 * k if many else None, seeds=1 if many else SEEDS)
        others, under = again([h.whole for h in some], target), WEIGHTS
        if len(others) < 2:
            others, under = again([h.last for h in some], target), LAST
        made.append(
            _Made(
                name=GREEDY if target is None else f"{GREEDY}, not {rival}",
                says=f"what must hold for {answer}{'' if target is None else f' and not {rival}'}"
                if scene.criterion == "held"
                else f"what turns {answer} into {'anything else' if target is None else rival} by the least change",
                shown=scene.as_shown(found.map.view(1, k, -1) if scene.kind == "text" else found.map[None], mean=True),
                signed=False,
                ranking=found.ranking(),
                likeness=_alike(found.scores[None], others),
                under=under,
                target=target,
                picks=tuple(found.order.tolist()),
                decided=_told(found, k, "anything else" if target is None else rival),
            )
        )
    return made


def _told(found: Decided, k: int, goal: str) -> str:
    """What Greedy-AS found in words: how far it is, what the picks do, how much was capped, and what chance changes."""
    from assay.methods.explain.subset_robustness import CAP

    n = len(found.order)
    effect = "held fast, make that hardest" if found.criterion == "s-r-bar" else "moved alone, make that easiest"
    told = [
        f"With all {k} features free, a change of length {found.whole:.3g} makes it {goal}. "
        f"{'This one' if n == 1 else f'These {n}'}, {effect}{'' if n == 1 else '; the first matters most'}.",
        f"Of {found.asked:,} sets tried, {found.capped:,} led nowhere within {CAP:g} times that length, or the far "
        f"corner of what inputs may be, and count as that far (the cap).",
    ]
    if found.stable is not None:
        told.append(f"Picks of two seeds share {100 * found.stable:.0f} % (Jaccard).")
    return " ".join(told)


def _alike(own: Tensor, others: Sequence[Tensor]) -> Likeness | None:  # 1 *d, h times 1 *d
    """How alike a map is to each of the others."""
    import torch

    from assay.methods.explain.sanity import by_word, likeness

    if not others:
        return None
    return likeness(by_word(own).expand(len(others), *by_word(own).shape[1:]), by_word(torch.cat(list(others))))
