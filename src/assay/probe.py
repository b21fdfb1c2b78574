"""Probe: one question asked of a subject. An adapter writes `ask`; what all share is done once, in `put`."""

from __future__ import annotations

import dataclasses
import json
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, TypeVar, get_args, get_origin, get_type_hints

from assay import code
from assay.errors import AssayError
from assay.finding import Alarm, Finding, Witnesses, share
from assay.run import KEPT_BYTES, OutOfTime, environment
from assay.standard import Standard

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor, nn

    from assay.run import Run, Shard
    from assay.subject import Subject

Norm = TypeVar("Norm", bound=str)
JUDGED = 32  # fresh answers of a random model at each witness
Need = Literal[
    "classes",
    "comparison",
    "order",
    "numbers",
    "spread",
    "focus",
    "gradients",
    "images",
    "train",
    "domains",
    "attributes",
    "original",
]
OTHER = "other"
THEMES: tuple[tuple[str, str], ...] = (
    ("right", "Is it right?"),
    ("sure", "Is it sure?"),
    ("steady", "Does it stay right?"),
    ("attacked", "Can it be attacked?"),
    ("proved", "What is proved?"),
    ("explained", "Can its reasons be believed?"),
    ("poisoned", "What could wrong labels have done to it?"),
    ("fair", "Is it fair?"),
    ("private", "Does it keep secrets?"),
    ("compared", "Does it compare well?"),
    ("deployed", "What did making it smaller do to it?"),
    (OTHER, "What else was asked"),
)
"""What questions are about, in the order in which they are read: the folder below `probes/`, and what it asks."""


@dataclass(frozen=True)
class Probe(ABC):
    """Subclasses are frozen dataclasses: the fields are the settings, the docstring's first line is the question."""

    needs: ClassVar[tuple[Need, ...]] = ()
    """What it needs of a subject. One that needs nothing of the answers is asked of every task, by the task's own
    score and margin; where the task calls an answer a choice (is the first higher, are the two the same), of the
    classifier that it is then, see `Subject.in_classes`."""
    standards: ClassVar[tuple[Standard, ...]] = ()
    source: ClassVar[str]
    in_quick: ClassVar[bool] = True
    """Whether a quick audit asks it unless told to; one that takes long waits for the standard budget."""
    in_shares: ClassVar[bool] = False
    """Whether it is about changes of a size: it is then put to the subject in shares of the range of its inputs, see
    `Subject.in_shares`, and its radii are such shares."""
    goes_through: ClassVar[bool] = False
    """Whether it knows what to do with a model of torch whose answers carry no gradient. To others such a model is one
    that gives answers only, see `Subject.leads`."""
    takes_missing: ClassVar[bool] = False
    """Whether it only asks the model, so that inputs may have empty cells where the model takes them."""
    stands_under: ClassVar[str | None] = None
    """Its theme, for a third party's file that lies in no folder of that name."""

    @abstractmethod
    def ask(self, subject: Subject, run: Run) -> Finding: ...

    @classmethod
    def name(cls) -> str:
        """The file's name: probes/attacked/worst_case_accuracy.py is 'worst-case-accuracy'."""
        return cls.__module__.rsplit(".", 1)[-1].replace("_", "-")

    @classmethod
    def theme(cls) -> str:
        """The folder's name: probes/attacked/worst_case_accuracy.py is 'attacked'; 'other' where that is no theme."""
        themes = dict(THEMES)
        if cls.stands_under is not None and cls.stands_under not in themes:
            raise AssayError(
                f"{cls.name()!r} stands under {cls.stands_under!r}, which is no theme; use one of {', '.join(themes)}."
            )
        folder = cls.stands_under or cls.__module__.rpartition(".")[0].rpartition(".")[2]
        return folder if folder in themes else OTHER

    @classmethod
    def question(cls) -> str:
        return (cls.__doc__ or "").strip().splitlines()[0]

    def why_not(self, subject: Subject) -> str | None:
        """The reason why this question cannot be put to the subject, or None."""
        lacks = subject.task.lacks(self.needs)
        if lacks is not None:
            return lacks
        if self.in_shares and subject.tokens:
            return "it changes values by a little, and an input here is a row of words by number: none lies between two"
        if "gradients" in self.needs and not (subject.leads() or (self.goes_through and subject.differentiable)):
            return "it needs gradients, and this model gives answers only"
        if "images" in self.needs and not subject.inputs.is_picture:
            return f"it is for images, and an input here has shape {subject.inputs.shape}"
        if "train" in self.needs and "train" not in subject.data:
            return f"it needs the training data, and the subject has only {sorted(subject.data)}"
        if "domains" in self.needs and not subject.domains():
            return (
                "it needs a domain beside train and test (--domain NAME=PATH), and the subject has only "
                f"{sorted(subject.data)}"
            )
        if "attributes" in self.needs and not any("test" in a.codes for a in subject.attributes.values()):
            return (
                "it needs to know something about the people behind the test inputs: --sensitive COLUMN of a table, "
                "or --groups NAME=PATH with one value for each row"
            )
        if "original" in self.needs and subject.original is None:
            return (
                "it needs the model that this one was made from: name it with --original MODEL, or make the smaller "
                "one with `assay ship`"
            )
        for split in () if self.takes_missing else ("test", "train") if "train" in self.needs else ("test",):
            where = subject.empty_cell(split)
            if where is not None:
                return f"it computes with inputs, and those of {split!r} have empty cells, in {where}; fill them"
        return None

    def refuse_below(self, least: float, *names: str) -> None:
        """Refuse settings that are below `least` or not finite; None, which stands for the budget's own, is fine."""
        for name in names:
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value >= least):
                raise AssayError(f"The setting {name}={value} of {self.name()!r} must be a number of at least {least}.")

    def refuse_beyond_the_range(self, *names: str) -> None:
        """Refuse l_inf radii above 1: they are shares of the range, and someone has written them in natural units."""
        for name in names:
            value = getattr(self, name)
            if value > 1:
                raise AssayError(
                    f"The setting {name}={value:g} of {self.name()!r} is a share of the range of the inputs, at most "
                    f"1; for {value:g} of pixels up to 255 write {value:g}/255."
                )

    def settings(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    def depends_on(self, run: Run) -> tuple[str, ...]:
        """What else its answer hangs on, as fingerprints: those of further subjects that its settings name."""
        return ()

    def key(self, fingerprint: str, run: Run, behaviour: str = "") -> str:
        """What makes two askings the same: subject and its answers, question, settings, code, seed, budget, device.

        The code is that of the probe and of whatever it imports, of the engine and of what a run hands to it, with the
        versions of Assay and of installed packages: whoever changes a method need not think of the answers stored.
        """
        parts = [
            fingerprint,
            behaviour,
            self.name(),
            code.behind(type(self), type(run), type(run.engine)),
            self.settings(),
            run.seed,
            run.device.partition(":")[0],
            dataclasses.asdict(run.budget),
            *self.depends_on(run),
        ]
        return sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()


def in_each_norm(
    norms: tuple[Norm, ...], work: Callable[[Norm, Shard], Mapping[str, Tensor]], subject: Subject, run: Run,
    index: NDArray[np.int64], about: str,
) -> dict[Norm, dict[str, NDArray[Any]]]:  # fmt: skip
    """`work` over test inputs in one norm after the other; `changed`, where it `fell`, shares the room there is."""
    return {
        norm: run.map(
            partial(work, norm), subject, "test", index, f"{about}, {norm}",
            few={"changed": "fell"}, room=KEPT_BYTES // len(norms),
        )
        for norm in norms
    }  # fmt: skip


class Configurable(Protocol):
    """What a probe and a remedy have in common: a name, and fields that are settings."""

    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]

    @classmethod
    def name(cls) -> str: ...


Kind = TypeVar("Kind", bound=Configurable)


def configure(kind: type[Kind], settings: Mapping[str, Any]) -> Kind:
    """A probe or remedy with these settings; text is read as the setting's type, what does not fit is refused.

    A name may be spelled as on the command line, weight-decay, or as in Python, weight_decay.
    """
    hints = {k: v for k, v in get_type_hints(kind).items() if k in {f.name for f in dataclasses.fields(kind)}}
    ready = {}
    for name, value in settings.items():
        field = name.replace("-", "_")
        if field not in hints:
            known = ", ".join(map(spelled, hints)) or "none"
            raise AssayError(f"{kind.name()!r} has no setting {name!r}; its settings: {known}.")
        if field in ready:
            raise AssayError(f"The setting {spelled(name)} of {kind.name()!r} is given twice; give it once.")
        ready[field] = _read(kind.name(), spelled(name), hints[field], value)
    return kind(**ready)


def spelled(name: str) -> str:
    """A setting as it is typed and shown, with hyphens like every other name; in Python it has underscores."""
    return name.replace("_", "-")


def _read(owner: str, name: str, hint: Any, value: Any) -> Any:
    kinds = get_args(hint) if get_origin(hint) is not Literal else (hint,)
    kinds = kinds if kinds and get_origin(hint) is not tuple else (hint,)
    if value is None and type(None) in kinds:
        return None
    for kind in kinds:
        if get_origin(kind) is Literal and value in get_args(kind):
            return value
        if kind is type(None) and value == "none":
            return None
        if kind is bool and str(value).lower() in ("true", "false"):
            return str(value).lower() == "true"
        if kind in (int, float) and not isinstance(value, bool):
            try:
                number = _fraction(value) if isinstance(value, str) else float(value)
                if kind is float or number == int(number):
                    return kind(number)
            except (TypeError, ValueError, OverflowError):  # also int(nan) and int(inf)
                continue
        if kind is str and isinstance(value, str):
            return value
        if get_origin(kind) is tuple and isinstance(value, str | list | tuple):
            parts = value.split(",") if isinstance(value, str) else list(value)
            return tuple(_read(owner, name, get_args(kind)[0], p) for p in parts)
    wanted = " or ".join(
        " | ".join(map(repr, get_args(k))) if get_origin(k) is Literal else getattr(k, "__name__", str(k))
        for k in kinds
    )
    raise AssayError(f"The setting {name}={value!r} of {owner!r} is not {wanted}; mend its value.")


def _fraction(text: str) -> float:
    """'8/255' is how people write a radius."""
    top, _, bottom = text.partition("/")
    if bottom and float(bottom) == 0:
        raise ValueError(text)
    return float(top) / float(bottom) if bottom else float(top)


Status = Literal["asked", "does not apply", "failed"]
Grows = Literal["inputs", "steps", ""]


@dataclass(frozen=True, kw_only=True)
class Look:
    """One of several times that a question was asked: what was allowed, what came of its headline, and when.

    `grows` is what another look could have more of: inputs, steps, or nothing where it had every input. `at` is in
    seconds since the audit began.
    """

    inputs: int
    steps: int
    n: int | None
    value: float | None
    low: float | None
    high: float | None
    seconds: float
    at: float
    grows: Grows

    def __post_init__(self) -> None:
        if self.inputs < 1 or self.steps < 1:
            raise AssayError(f"A look at {self.inputs} inputs with {self.steps} steps is none; give 1 or more of each.")


@dataclass(frozen=True, kw_only=True)
class Spent:
    """What of its time a question spent in the model: inputs that passed it, apart those with a gradient."""

    answers: int
    slopes: int
    pace: float = 0.0
    """Seconds that the model takes for an input where it does nothing else, in batches; 0 where that is not known."""

    def __post_init__(self) -> None:
        if self.answers < 0 or self.slopes < 0 or not 0 <= self.pace < math.inf:
            raise AssayError(f"{self.answers} and {self.slopes} passes at {self.pace} s each are none; give counts.")

    @property
    def passes(self) -> int:
        return self.answers + self.slopes

    @property
    def least(self) -> float:
        """Seconds that the model alone would take for them."""
        return (self.answers + BACK * self.slopes) * self.pace


BACK = 3.0
"""A pass with its gradient takes about as long as three without."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A question with what came of it: a finding, or the reason why there is none."""

    probe: str
    question: str
    source: str
    settings: Mapping[str, Any]
    key: str
    status: Status
    finding: Finding | None = None
    why: str = ""
    seconds: float = 0.0
    when: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    """The versions, the device and the machine that it was found with, which stay its own when an audit resumes."""
    theme: str = OTHER
    """A folder of THEMES."""
    looks: tuple[Look, ...] = ()
    """Of an audit with a time limit, each time that it was asked, the last of which the finding is."""
    spent: Spent | None = None
    """None where it was not counted."""


def put(probe: Probe, subject: Subject, run: Run, key: str | None = None, *, left_out: str | None = None) -> Answer:
    """Put the question: does it apply, seed, time, ask, judge its witnesses afresh, leave the subject as it was.

    A question that cannot be answered is an answer too, and so is one that is `left_out`, with the reason; whatever
    goes wrong in one loses nothing of the others.
    """
    told: dict[str, Any] = {
        "probe": probe.name(),
        "question": probe.question(),
        "source": probe.source,
        "settings": probe.settings(),
        "key": key or probe.key(subject.fingerprint(), run),
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "environment": environment(run.device),
        "theme": probe.theme(),
    }
    reason = probe.why_not(subject) or left_out
    if not set(probe.needs) & set(subject.task.gives):
        subject = subject.in_classes()
    if reason is not None:
        return Answer(**told, status="does not apply", why=reason)
    if subject.differentiable and not probe.goes_through and not subject.leads():
        subject = dataclasses.replace(subject, differentiable=False)
    if probe.takes_missing:
        run = dataclasses.replace(run, missing=True)
    from assay.nn.tally import counted

    start = time.perf_counter()
    try:
        asked = subject.in_shares() if probe.in_shares else subject
        with undisturbed(asked.model, run), counted(subject.model) as tally:
            finding = probe.ask(asked, run)
            if finding.witnesses is not None:
                if asked is not subject:
                    finding = dataclasses.replace(finding, witnesses=_in_natural_units(finding.witnesses, subject))
                assert finding.witnesses is not None
                finding = _sworn(finding, finding.witnesses, subject, run)
    except (KeyboardInterrupt, OutOfTime):
        raise
    except BaseException as e:  # a model that calls sys.exit or lets a CancelledError out breaks one question
        if run.debug:
            raise
        return Answer(**told, status="failed", why=run.in_words(e), seconds=time.perf_counter() - start)
    spent = Spent(answers=tally.answers, slopes=tally.slopes)
    return Answer(**told, status="asked", finding=finding, seconds=time.perf_counter() - start, spent=spent)


@contextmanager
def torch_as_it_comes() -> Iterator[None]:
    """Gradients on and float32 by default inside, whatever somebody's file said for the whole process."""
    import torch

    default = torch.get_default_dtype()
    with torch.enable_grad():
        torch.set_default_dtype(torch.float32)
        try:
            yield
        finally:
            torch.set_default_dtype(default)


@contextmanager
def undisturbed(model: nn.Module, run: Run) -> Iterator[None]:
    """Eval mode, no parameter gradients and seeded noise inside; weights, mode, hooks and gradients as before outside.

    The global generator is seeded because a model that is random in eval mode draws from it; it is put back after.
    Convolutions and products on a GPU are of whole float32: torch lets cuDNN round factors to ten bits (TF32), and a
    change just across the boundary then breaks a model in one batch and not in the next.
    """
    import torch

    modules = list(model.modules())
    tensors: dict[str, Tensor] = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    modes = [m.training for m in modules]
    place = next((t.device for t in tensors.values()), torch.device("cpu"))
    kept = {name: t.detach().clone() for name, t in tensors.items()}
    grads = {name: (t.requires_grad, t.grad) for name, t in tensors.items()}
    hook_kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    hooks = [[dict(getattr(m, kind)) for kind in hook_kinds] for m in modules]
    devices = [torch.cuda.current_device()] if run.device.startswith("cuda") else []
    kernels: tuple[Any, ...] = (torch.backends.cudnn, torch.backends.cuda.matmul)
    rounded = [kernel.allow_tf32 for kernel in kernels]
    with torch.random.fork_rng(devices=devices), torch_as_it_comes():
        torch.manual_seed(run.seed)
        try:
            for kernel in kernels:
                kernel.allow_tf32 = False
            for m in modules:
                m.training = False
            for p in model.parameters():
                p.requires_grad_(False)
                p.grad = None
            model.to(run.device)
            yield
        finally:
            for kernel, was in zip(kernels, rounded, strict=True):
                kernel.allow_tf32 = was
            model.to(place)
            with torch.no_grad():
                for name, t in {**dict(model.named_parameters()), **dict(model.named_buffers())}.items():
                    if name in kept:
                        t.copy_(kept[name])
                        if t.is_leaf:
                            t.requires_grad_(grads[name][0])
                            t.grad = grads[name][1]
            for m, mode, before in zip(modules, modes, hooks, strict=True):
                m.training = mode
                for kind, held in zip(hook_kinds, before, strict=True):
                    current = getattr(m, kind)
                    current.clear()
                    current.update(held)


def _in_natural_units(witnesses: Witnesses, subject: Subject) -> Witnesses:
    """Witnesses that were found in shares of the range, as inputs of the subject; their radii stay shares."""
    import numpy as np

    low, span = (edge.float().numpy() for edge in subject.inputs.edges())
    clean = subject.data[witnesses.split].take(np.asarray(witnesses.index))[0].numpy()
    moved = witnesses.changed != witnesses.clean  # what did not move is the input's own value, to the bit
    changed = np.where(moved, low + witnesses.changed * span, clean).astype(np.float32)
    if subject.kind is not None:  # 35 is 35 again, and not 35.000004
        import torch

        changed = np.where(moved, subject.kind.typed(torch.from_numpy(changed)).numpy(), clean)
    return dataclasses.replace(witnesses, clean=clean, changed=changed)


def _sworn(finding: Finding, witnesses: Witnesses, subject: Subject, run: Run) -> Finding:
    """Keep only the witnesses that a fresh judge confirms, and raise an alarm for the others.

    Their measures are doubted, but for one case: a random model's mistakes on inputs that nobody searched for. There
    each answer is an honest draw, the mean of them has no bias, and to take the lucky ones back would give it one.
    """
    held, _ = judge_witnesses(witnesses, subject, run)
    if held.all():
        return finding
    refuted = share(int((~held).sum()), len(held))
    met = subject.draws > 1 and set(witnesses.norm) == {"none"}
    alarm = Alarm(
        f"{refuted} of the inputs that it got wrong are right in most fresh answers of this random model; they leave "
        "the list, and the share of wrong answers stands."
        if met
        else f"{refuted} of the inputs said to break the model did not when judged afresh; they are left out.",
        doubts=() if met else tuple(m.name for m in finding.measures),
    )
    return dataclasses.replace(finding, witnesses=witnesses.keep(held), alarms=(*finding.alarms, alarm))


def judge_witnesses(
    witnesses: Witnesses, subject: Subject, run: Run
) -> tuple[NDArray[np.bool_], list[str]]:  # n, and for each why it does not hold ("" where it does)
    """Judge stored witnesses with fresh float32 forward passes and with box and ball checks in float64.

    Shares no code with the attacks. A witness holds if the model's answer is still not good enough by its task, every
    value is in the box, and the change is within its radius in its norm (up to float32 rounding of the inputs). Radii
    are shares of the range of the inputs, of each feature's own where they have one. An answer that is NaN is not
    right. A random model gives JUDGED answers, and a witness is refuted where so few of them are wrong that a chance of
    1/2 or more shows that once in a thousand times: membership at 1/2 is no matter of luck.

    Where the subject has a kind, a witness also keeps to what can change: no fixed value and no padding moves, whole
    numbers move in whole steps, a category has one of its codes. Codes have no distance: the norm is that of the other
    values, and as many categories differ as the promise says, "linf+1" one at most and "linf" none; l0 counts all.
    A missing cell has no distance from a value: none is filled in, and only l0 counts one that is emptied.
    """
    import numpy as np
    import torch
    from scipy.special import bdtr  # scipy.stats, which has the binomial law too, is slow to import

    from assay.run import batch_of

    low, span = (edge.flatten().numpy() for edge in subject.inputs.edges())

    def shares(x: NDArray[Any]) -> NDArray[np.float64]:  # n *d -> n f
        beyond = x.astype(np.float64).reshape(len(x), -1) - low
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(beyond == 0, 0.0, beyond / span)

    reasons: list[str] = []
    batch = min(128, batch_of(subject.inputs.shape))
    for start in range(0, len(witnesses), batch):
        rows = slice(start, start + batch)
        changed = torch.as_tensor(witnesses.changed[rows]).float()
        count = 1 if subject.draws == 1 else JUDGED
        wrong = np.zeros(len(changed), dtype=np.int64)
        for _ in range(count):
            out = subject.predict(changed.to(run.device))
            target = torch.as_tensor(witnesses.label[rows]).to(out.device)
            wrong += ~subject.task.right(out, target).cpu().numpy()
        refuted = wrong == 0 if count == 1 else bdtr(wrong, count, 0.5) < 1e-3
        flat, before = shares(witnesses.changed[rows]), shares(witnesses.clean[rows])
        strays, coded, empty = _beyond_reach(witnesses.clean[rows], witnesses.changed[rows], subject)
        moved = (flat != before) & ~(empty & np.isnan(before))
        filled, emptied = np.isnan(before) & ~np.isnan(flat), empty & ~np.isnan(before)
        flat, gap = np.where(empty, 0.0, flat), np.where(coded, 0.0, np.abs(flat - before))
        size = {
            "linf": gap.max(1),
            "l2": np.sqrt((gap**2).sum(1)),
            "l1": gap.sum(1),
            "l0": moved.sum(1).astype(float),
            "none": np.zeros(len(gap)),
        }
        for i in range(len(changed)):
            row = start + i
            (norm, _, most), radius = witnesses.norm[row].partition("+"), float(witnesses.radius[row])
            if norm not in size or (most and not most.isdecimal()):
                reasons.append(f"unknown norm {witnesses.norm[row]!r}")
            elif refuted[i]:
                often = "" if count == 1 else f" in {count - wrong[i]} of {count} fresh answers"
                told = subject.task.told(torch.as_tensor(witnesses.label[row]))
                reasons.append(f"the model answers {told!r}{often}, which is right")
            elif not (flat[i].min() >= -1e-6 and flat[i].max() <= 1 + 1e-6):
                reasons.append(f"it leaves the box [{subject.inputs.low:g}, {subject.inputs.high:g}]")
            elif norm != "none" and filled[i].any():
                reasons.append(f"it fills in a missing cell, feature {filled[i].argmax()}")
            elif norm not in ("l0", "none") and emptied[i].any():
                reasons.append(f"it empties a cell, feature {emptied[i].argmax()}, which is no distance in {norm}")
            elif norm != "none" and not size[norm][i] <= radius + 1e-6 * max(1.0, radius):
                reasons.append(f"its {norm} distance {size[norm][i]:.6g} is above the radius {radius:.6g}")
            elif strays[i]:
                reasons.append(strays[i])
            elif norm not in ("l0", "none") and (moved & coded)[i].sum() > int(most or 0):
                reasons.append(f"{(moved & coded)[i].sum()} of its categories changed, and {most or 'none'} may")
            else:
                reasons.append("")
    return np.array([r == "" for r in reasons], dtype=bool), reasons


def _beyond_reach(
    clean: NDArray[Any], changed: NDArray[Any], subject: Subject
) -> tuple[list[str], NDArray[np.bool_], NDArray[np.bool_]]:  # n *d, n *d -> n, n f, n f
    """What each witness changes that nobody can, "" where it keeps to its kind; what has no distance; what is missing
    where that may be."""
    import numpy as np
    import torch

    n, kind = len(clean), subject.kind
    if kind is None:
        return [""] * n, np.zeros((n, 1), dtype=bool), np.zeros((n, 1), dtype=bool)
    x, reach = torch.as_tensor(clean), kind.reach
    free = (reach.free & kind.present(x)).expand(x.shape).reshape(n, -1).numpy()
    low, span, step, choices = (each.flatten().numpy() for each in (reach.low, reach.span, reach.step, reach.choices))
    before, after = (each.astype(np.float64).reshape(n, -1) for each in (clean, changed))
    empty = np.isnan(after) & kind.may_miss().expand(kind.shape).flatten().numpy()
    moved = (before != after) & ~(empty & np.isnan(before))
    rounding = 4 * np.finfo(np.float32).eps * np.maximum(np.abs(before), np.abs(after))
    by, code = after - before, after - low
    whole = np.abs(by - np.round(by / np.where(step > 0, step, 1.0)) * step) <= rounding
    known = (np.abs(code - np.round(code)) <= rounding) & (code > -0.5) & (code < choices - 0.5)
    slack = np.maximum(rounding, 1e-6 * span)
    beyond = (after < low - slack) | (after > low + span + slack)
    odd = np.where(choices > 0, ~known, beyond | (step > 0) & ~whole)
    wrong = moved & (~free | ~empty & ~np.isnan(before) & odd)
    reasons = [""] * n
    for i in np.flatnonzero(wrong.any(1)):
        j = int(wrong[i].argmax())
        place = kind.place(tuple(map(int, np.unravel_index(j, kind.shape))))
        if not free[i, j]:
            reasons[i] = f"it changes {place}, which nobody can change"
        elif choices[j]:
            reasons[i] = f"it gives {place} the value {after[i, j]:g}, none of its {choices[j]} codes"
        elif beyond[i, j]:
            reasons[i] = f"it gives {place} the value {after[i, j]:g}, outside its {low[j]:g} to {low[j] + span[j]:g}"
        else:
            reasons[i] = f"it changes {place} by {by[i, j]:g}, which is not in whole steps of {step[j]:g}"
    return reasons, (choices > 0) | empty, empty
