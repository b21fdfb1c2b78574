"""Run: what the surroundings decide about a probe. Budget, seed, device, engine, progress."""

from __future__ import annotations

import math
import os
import platform
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from assay.errors import AssayError, SubjectError, in_words

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray
    from torch import Tensor

    from assay.subject import Data, Subject


@dataclass(frozen=True)
class Budget:
    """How hard to look: inputs per probe (None: all), attack steps and restarts, inputs shown in a gallery.

    `dear` is how many inputs a question has that puts dozens of passes to each; None: as many as any other. `inputs`
    is the most that any question takes of a set of data, whatever it would take by itself; None: no such bound.
    `seconds` is the time limit of a whole audit, which asks in rounds; None: there is none.
    """

    name: str
    samples: int | None
    steps: int
    restarts: int
    shown: int = 8
    dear: int | None = None
    inputs: int | None = None
    seconds: float | None = None

    def bounded(self, inputs: int | None) -> Budget:
        """The same with at most so many inputs to a question; None leaves it as it is."""
        if inputs is None:
            return self
        if isinstance(inputs, bool) or not isinstance(inputs, int) or inputs < 1:
            raise AssayError(f"--inputs {inputs} is no number of inputs; give a whole number of at least 1.")
        samples = inputs if self.samples is None else min(self.samples, inputs)
        dear = self.dear if self.dear is not None and self.dear < inputs else None
        return replace(self, samples=samples, dear=dear, inputs=inputs)

    def few(self, count: int) -> int:
        """How many inputs a question has that puts hundreds of passes to each, where it would take `count`.

        One look of several, which alone says what is dear of all that there is, takes as many as it is bound by, but
        no more than FEW_TIMES of them: such a question may hold its inputs in memory.
        """
        return FEW_TIMES * count if self.samples is None and self.dear is not None else count


FEW_TIMES = 10
BUDGETS = {
    "quick": Budget("quick", samples=500, steps=20, restarts=1, dear=200),
    "standard": Budget("standard", samples=2000, steps=50, restarts=2),
    "full": Budget("full", samples=None, steps=100, restarts=5),
}


def budget(name: str, inputs: int | None = None) -> Budget:
    """The budget of this name, with at most so many inputs to a question where that is given."""
    if name not in BUDGETS:
        known = f"choose one of {', '.join(BUDGETS)}"
        if name[:1].isdigit():
            times = "`assay audit`, ask and check also take a time in s, m or h, written 90s, 10m or 2h"
            raise AssayError(f"--budget {name!r} is none here; {known}; {times}.")
        raise AssayError(f"There is no budget {name!r}; {known}.")
    return BUDGETS[name].bounded(inputs)


@dataclass(frozen=True)
class Shard:
    """Some of the inputs of a split, on the run's device, with their labels, places in the split, and a generator."""

    x: Tensor  # n *d
    y: Tensor  # n *t
    index: NDArray[np.int64]  # n
    rng: torch.Generator


Work = Callable[[Shard], "Mapping[str, Tensor]"]
"""What is done to one shard; tensors with one row per input come out."""

KEPT_BYTES = 128 * 2**20
"""The most that is held of a column whose rows are as large as inputs: whole sets of them do not fit into memory."""

HELD_BYTES = 256 * 2**20
"""The most that is held of inputs that are wanted again and again; more of them are taken anew each time."""

BATCH_BYTES = 32 * 2**20


def batch_of(shape: tuple[int, ...]) -> int:
    """How many inputs of this shape are looked at together where no model is in the way: at most 1024."""
    return max(1, min(1024, BATCH_BYTES // (4 * max(1, math.prod(shape)))))


Item = TypeVar("Item")
Found = TypeVar("Found")
Tick = Callable[[int], None]
Progress = Callable[[str, int], AbstractContextManager[Tick]]


@contextmanager
def silent(about: str, total: int) -> Iterator[Tick]:
    """No progress shown."""
    yield lambda done: None


class OutOfTime(Exception):
    """The time that a question may take is over."""


def until(most: float, progress: Progress) -> Progress:
    """Progress that ends a question `most` seconds from now, at its next sign of it."""
    end = time.monotonic() + most

    @contextmanager
    def limited(about: str, total: int) -> Iterator[Tick]:
        if time.monotonic() > end:
            raise OutOfTime
        with progress(about, total) as tick:

            def ticked(done: int) -> None:
                if time.monotonic() > end:
                    raise OutOfTime
                tick(done)

            yield ticked

    return limited


class Engine(Protocol):
    """Where work runs. `map` cuts `indices` into shards, runs `work` on each and joins the rows in order.

    `few` names columns that are as large as inputs, each with a column that says which of its rows are wanted; of those
    it keeps as many as there is `room` for (`Few`), and their places in `indices` as a column named "<name> at". No
    shard has more than `most` inputs.

    `each` runs `work` on items that do not know of each other, and gives each of them, as it is done, with what gives
    or raises what came of it. Items are taken as there is room for them. `apart` says whether that is in other
    processes, from where nobody is told how far it is.
    """

    @property
    def apart(self) -> bool: ...

    def map(
        self,
        work: Work,
        data: Data,
        indices: NDArray[np.int64],
        *,
        seed: int,
        device: str,
        tick: Tick,
        few: Mapping[str, str],
        room: int,
        most: float,
    ) -> dict[str, NDArray[Any]]: ...

    def each(
        self, work: Callable[[Item], Found], items: Iterable[Item]
    ) -> Iterator[tuple[Item, Callable[[], Found]]]: ...


class Few:
    """Rows that come one after the other, as many as fit into `room` bytes, spread evenly over all that came.

    When it is full every other one leaves, and from then on every other one of those that come is taken.
    """

    def __init__(self, room: int) -> None:
        self.room, self.step, self.seen = room, 1, 0
        self.held: list[tuple[int, NDArray[Any]]] = []

    def add(self, places: NDArray[np.integer], rows: NDArray[Any]) -> None:  # k, k *d
        for place, row in zip(places.tolist(), rows, strict=True):
            if self.seen % self.step == 0:
                self.held.append((place, row.copy()))  # a view would hold the whole shard
                if len(self.held) > 1 and len(self.held) * row.nbytes > self.room:
                    self.held, self.step = self.held[::2], 2 * self.step
            self.seen += 1

    def joined(self, like: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[Any]]:  # k, k *d
        """Places and rows, which are `like` these where there are none."""
        import numpy as np

        at = np.array([place for place, _ in self.held], dtype=np.int64)
        return at, np.stack([row for _, row in self.held]) if self.held else like[:0]


class Drawn(NamedTuple):
    """A draw of inputs under a bound: how many were wanted, None for all, of how many that there are."""

    bound: int
    wanted: int | None
    there: int

    @property
    def grows(self) -> str:
        """What would give more of them: a larger bound, more steps, or nothing, because these are all."""
        if self.wanted is None or self.wanted >= self.bound:
            return "inputs" if self.bound < self.there else ""
        return "steps" if self.wanted < self.there else ""


@dataclass(frozen=True, kw_only=True)
class Run:
    """Handed to every probe, remedy and claim."""

    engine: Engine
    budget: Budget = BUDGETS["quick"]
    seed: int = 0
    device: str = "cpu"
    progress: Progress = silent
    debug: bool = False
    """Let what went wrong inside a probe come through with its traceback."""
    open: Callable[[str], Subject] | None = None
    """Opens further subjects that a setting names. It runs their code, so that only whoever typed the names gives it:
    nothing that is read from a file or a stored run may."""
    in_words: Callable[[BaseException], str] = in_words
    """How what broke a question is told, in one line."""
    keep: Path | None = None
    """A folder in which a long training keeps its last epoch, to go on from after a kill."""
    whole: Budget | None = None
    """The budget of the whole audit, where `budget` is that of one look of several."""
    missing: bool = False
    """Whether inputs may come with empty cells where their kind says so: those who only ask the model take them."""
    drawn: list[Drawn] = field(default_factory=list, repr=False, compare=False)
    """What was picked so far, for whoever asks whether more could have been."""

    def further(self, name: str) -> Subject:
        """The subject of this name, among those that may be opened."""
        if self.open is None:
            raise AssayError(
                f"The model {name!r} cannot be opened from here; name it on the command line (assay ask PROBE --set "
                "NAME=...), or give audit(open=...)."
            )
        return self.open(name)

    def rng(self) -> torch.Generator:
        """A fresh generator on the run's device, seeded."""
        import torch

        return torch.Generator(self.device).manual_seed(self.seed)

    def pick(self, data: Data, count: int | None = None, *, bounded: bool = True) -> NDArray[np.int64]:
        """The inputs to ask about: `count` or as many as the budget has, drawn by seed, stratified by class, ascending.

        Each class gets its share of the budget, rounded by largest remainder, so that a rare class is not lost. Targets
        that are no classes are one stratum.

        Never more than the budget's bound. Under one, the remainders are drawn by seed too (`data/draw.py`): every
        input is then as likely as any other, and by one seed a larger draw holds a smaller one.

        Those that something is fitted to or made on are not `bounded` by one look of several, but by the whole audit:
        they are the same at each look, so that all looks are at one thing.
        """
        import numpy as np

        whole = self.budget if bounded or self.whole is None else self.whole
        labels, wanted, bound = np.asarray(data.labels), count or whole.samples, whole.inputs
        if whole is not self.budget:
            wanted = wanted or BUDGETS["quick"].samples
        if bound is not None:
            if bounded:
                self.drawn.append(Drawn(bound, wanted, len(labels)))
            wanted = bound if wanted is None else min(wanted, bound)
        if wanted is None or wanted >= len(labels):
            return np.arange(len(labels))
        if labels.ndim > 1 or labels.dtype.kind not in "iub":
            labels = np.broadcast_to(np.int64(0), len(labels))
        if self.budget.inputs is not None:
            from assay.data.draw import stratified

            return stratified(labels, wanted, self.seed)
        classes, counts = np.unique(labels, return_counts=True)
        rng = np.random.default_rng(self.seed)
        ideal = counts * (wanted / len(labels))
        quota = np.floor(ideal).astype(int)
        for c in np.argsort(quota - ideal, kind="stable")[: wanted - quota.sum()]:
            quota[c] += 1
        chosen = [rng.permutation(np.flatnonzero(labels == c))[:q] for c, q in zip(classes, quota, strict=True)]
        return np.sort(np.concatenate(chosen)).astype(np.int64)

    def map(
        self,
        work: Work,
        subject: Subject,
        split: str,
        indices: NDArray[np.int64],
        about: str,
        *,
        few: Mapping[str, str] | None = None,
        room: int = KEPT_BYTES,
    ) -> dict[str, NDArray[Any]]:
        """Run `work` over inputs of a split, in shards, wherever the engine runs them; `few` and `room`: see Engine."""
        from assay.nn.in_pieces import at_a_time
        from assay.space import check_bounds

        def guarded(shard: Shard) -> Mapping[str, Tensor]:
            check_bounds(shard.x, shard.index, split, subject.inputs, subject.kind, missing=self.missing)
            return work(shard)

        with self.progress(about, len(indices)) as tick:
            return self.engine.map(
                guarded,
                subject.data[split],
                indices,
                seed=self.seed,
                device=self.device,
                tick=tick,
                few=few or {},
                room=room,
                most=at_a_time(subject.model),
            )

    def each(self, work: Callable[[Item], Found], items: Sequence[Item], about: str) -> list[Found]:
        """What `work` makes of each of these, in their order, wherever the engine runs them."""
        found: dict[int, Found] = {}
        with self.progress(about, len(items)) as tick:
            for place, made in self.engine.each(lambda place: work(items[place]), range(len(items))):
                found[place] = made()
                tick(1)
        return [found[place] for place in range(len(items))]

    def rows(self, subject: Subject, split: str, indices: NDArray[np.int64], about: str) -> Data:
        """Inputs of a split that are wanted again and again, seen to be in bounds: held in memory where they fit."""
        from assay.data.arrays import Targets
        from assay.data.held_out import Part

        fits = 4 * len(indices) * math.prod(subject.inputs.shape) <= HELD_BYTES
        found = self.map(lambda s: {"y": s.y} | ({"x": s.x} if fits else {}), subject, split, indices, about)
        return Targets(found["x"], found["y"]) if fits else Part(subject.data[split], indices)

    def predict(
        self, subject: Subject, split: str, indices: NDArray[np.int64], about: str
    ) -> tuple[NDArray[np.float32], NDArray[Any]]:  # n *o, n *t
        """The subject's outputs, of a classifier its logits, and the targets, for inputs of a split."""
        import numpy as np

        rows = self.map(
            lambda shard: {"logits": subject.predict(shard.x).float(), "y": shard.y}, subject, split, indices, about
        )
        logits = np.asarray(rows["logits"], dtype=np.float32)
        broken = np.flatnonzero(~np.isfinite(logits.reshape(len(logits), -1)).all(1))
        if len(broken):
            raise SubjectError(
                f"The model returned NaN or infinity for input {indices[broken[0]]} of {split!r}; check its "
                f"weights and its scaling."
            )
        return logits, np.asarray(rows["y"])


def environment(device: str = "cpu") -> dict[str, str]:
    """The versions, the kind of device and the kind of machine behind the numbers, and a hash of Assay's own code."""
    return dict(_environment(device))


@cache
def _environment(device: str) -> tuple[tuple[str, str], ...]:
    told = {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cores": str(os.cpu_count()),
        "device": device,
    }
    if device.startswith("cuda"):
        import torch

        if torch.cuda.is_available():  # else whoever asks for it is told where the work begins
            told["device"] = torch.cuda.get_device_name(device)
    for package in ("assay", "torch", "numpy", "scipy", "scikit-learn", "pyarrow", "pillow", "safetensors"):
        try:
            told[package] = version(package)
        except PackageNotFoundError:
            told[package] = "not installed"
    return (*told.items(), ("code", _own_code()))


def _own_code() -> str:
    """SHA-256 over Assay's own files: two copies of one version that differ are told apart."""
    found, here = sha256(), Path(__file__).parent
    for path in sorted(here.rglob("*.py")):
        found.update(f"{path.relative_to(here).as_posix()} {sha256(path.read_bytes()).hexdigest()}\n".encode())
    return found.hexdigest()
