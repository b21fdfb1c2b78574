"""The engine of many machines: shards, questions and studies as tasks of Ray.

Ray chooses where a task runs, and runs it again where its process or machine ends. A task's answer hangs on what it was
given alone: shards are cut, seeded and joined as in one process (`local.py`), each worker computes with one thread, and
so it is the same to the bit however many workers there are and whichever of them die.

What a task works with is packed once. Weights and large arrays go into Ray's object store by their content, data sets
by who they are, and from there once to each machine; data that hold paths are read there, at the same paths. Arrays of
a data set may change in place: they are hashed again for each work (2 s for 600 MB on two busy cores), and the set goes
anew where they differ. All else of a set (1.3 million paths are packed in 16 s) is looked at by `each`, which packs its
work once for all questions of an audit. Of a question that was sent its shards go on to others only where one is idle:
else they would wait for each other.

Sources: Ray's own patterns against too many tasks in flight, and against nested ones that fill memory.
"""

from __future__ import annotations

import dataclasses
import io
import logging
import math
import os
import pickle
import socket
import sys
import types
import uuid
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache, partial
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.storage import TypedStorage

from assay import code
from assay.data.digest import of_array
from assay.engine.local import Joined, Noise, Part, ThisProcess, fitting, worked
from assay.engine.turned import Order, order_now, turned
from assay.errors import AssayError, MissingExtra, SubjectError, in_words
from assay.nn.tally import COUNTED, counted
from assay.run import KEPT_BYTES, Found, Item, Run, Tick, Work, environment, silent
from assay.subject import Data

# After so many milliseconds whoever sends tasks gives each worker back and asks for another, for the sake of others.
# The machine that is asked hears ten times a second which workers are free elsewhere, so that at Ray's own 500 eight
# machines wait for a sixth of their time (measured). Ray reads it as it is loaded.
os.environ.setdefault("RAY_worker_lease_timeout_milliseconds", "5000")

try:
    import ray
    from ray import cloudpickle
    from ray.exceptions import RayError, RayTaskError
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
except ImportError as e:
    raise MissingExtra.of("--engine ray", "Ray", "ray") from e

RETRIES = 3  # times that a task is run again whose process or machine ended
AHEAD = 4  # shards for each worker that are on their way at once: what came is held until its turn
LOOK_EVERY = 0.2  # seconds between two looks at whether anybody wants it stopped
LARGE = 64 * 2**10  # bytes from which on an array goes by itself
HELD = 2**30  # bytes of arrays that stay in the object store for whoever sends them again
OPEN = 3  # packed works that a worker keeps open
SETS = 32  # data sets likewise
PATIENCE = 5.0  # seconds for a cluster to answer at all


@dataclass(frozen=True)
class Ray:
    """`address` is that of a cluster, HOST:PORT or ray://HOST:PORT; without one the cluster that RAY_ADDRESS names, or
    one that is started here, with as many `workers` as there are cores, and ends with this process.

    Work for a GPU (`device` cuda) has one of its own for each worker. `batch` is as in `ThisProcess`.
    """

    address: str | None = None
    workers: int | None = None
    device: str = "cpu"
    batch: int | None = None
    apart: ClassVar[bool] = True

    def __post_init__(self) -> None:
        others = _connect(self.address, self.workers)
        if not self._there:
            raise AssayError(f"The cluster has no {self._kind}; use another --device.")
        cores = int(ray.cluster_resources().get("CPU", 0))
        if self.workers not in (None, cores):
            raise AssayError(
                f"Ray(workers={self.workers}) was asked for, and this process is connected to a cluster of {cores}; "
                "call ray.shutdown() first to start another, or leave workers out."
            )
        _SENT.forget()
        if others:
            _greet()

    def map(
        self,
        work: Work,
        data: Data,
        indices: NDArray[np.int64],
        *,
        seed: int,
        device: str,
        tick: Tick,
        few: Mapping[str, str] = MappingProxyType({}),
        room: int = KEPT_BYTES,
        most: float = math.inf,
    ) -> dict[str, NDArray[Any]]:
        batch = int(min(self.batch or fitting(data, indices, device), most))
        if len(indices) <= batch or not self._idle():
            return ThisProcess(batch).map(
                work, data, indices, seed=seed, device=device, tick=tick, few=few, room=room
            )  # fmt: skip
        noise, rows = Noise.now(device), Joined(few, room)
        models, tallies = [model for model, _ in COUNTED], [tally for _, tally in COUNTED]
        job = _packed(_Shards(work, data, indices, batch, seed, device, dict(few), noise.name, models, order_now()))
        enough = AHEAD * self.at_once
        with noise.spent(), self._flying() as tasks:
            for start in range(0, len(indices), batch):
                if len(tasks) >= enough:
                    self._land(tasks, rows, tallies, noise, tick)
                tasks.append(self._task(job, start))
            while tasks:
                self._land(tasks, rows, tallies, noise, tick)
        return rows.columns()

    def _land(self, tasks: deque[Any], rows: Joined, tallies: list[Any], noise: Noise, tick: Tick) -> None:
        """Take what came of the first of these shards, which stay in their order."""
        while not ray.wait([tasks[0]], timeout=LOOK_EVERY)[0]:
            tick(0)  # who looks at the time does it here
        parts, passes, drawn = _taken(tasks.popleft())
        noise.drawn |= drawn
        for tally, (answers, slopes) in zip(tallies, passes, strict=True):
            tally.answers, tally.slopes = tally.answers + answers, tally.slopes + slopes
        for part in parts:
            rows.add(part)
            tick(part.count)

    def each(
        self, work: Callable[[Item], Found], items: Iterable[Item]
    ) -> Iterator[tuple[Item, Callable[[], Found]]]:  # as they are done
        if _Worker.inside and self.device.startswith("cuda"):  # whose GPU is taken, by itself
            yield from ThisProcess().each(work, items)
            return
        if not _Worker.inside:  # what a worker was sent is as it was
            _SENT.data.clear()
        job, waiting = _packed(_Each(work, Noise.now().name)), iter(enumerate(items))
        given: dict[Any, Item] = {}
        with self._flying() as tasks:
            while True:
                while len(tasks) < self.at_once and (told := next(waiting, None)) is not None:
                    tasks.append(self._task(job, told))
                    given[tasks[-1]] = told[1]
                if not tasks:
                    return
                for done in ray.wait(list(tasks), timeout=LOOK_EVERY)[0]:
                    tasks.remove(done)
                    yield given.pop(done), partial(_taken, done)

    def _task(self, job: _Job, item: Any) -> Any:
        gpus = 1 if self.device.startswith("cuda") else 0
        return _do.options(num_gpus=gpus, max_retries=RETRIES).remote(job.name, [job.ref], _surroundings(), item)

    @contextmanager
    def _flying(self) -> Iterator[deque[Any]]:
        """Tasks on their way, which are called off when whoever waits for them is stopped."""
        tasks: deque[Any] = deque()
        try:
            yield tasks
        finally:
            for task in tasks:
                with suppress(Exception):
                    ray.cancel(task, recursive=True)

    @property
    def _kind(self) -> str:
        return "GPU" if self.device.startswith("cuda") else "CPU"

    @property
    def _there(self) -> int:
        return int(ray.cluster_resources().get(self._kind, 0))

    @property
    def at_once(self) -> int:
        """How many tasks the cluster runs side by side, as it is now; one that lost all waits for another."""
        return max(1, self._there)

    def _idle(self) -> bool:
        """Whether anybody has nothing to do. A question that waits lends its core to its shards, but not its GPU."""
        if not _Worker.inside:
            return True
        return not self.device.startswith("cuda") and ray.available_resources().get("CPU", 0) >= 1


@dataclass(frozen=True)
class _Shards:
    """What `map` has done with the shard that begins at a place."""

    work: Work
    data: Data
    indices: NDArray[np.int64]
    batch: int
    seed: int
    device: str
    few: dict[str, str]
    noise: tuple[int, ...]
    counted: list[nn.Module]
    order: Order | None

    def __call__(self, start: int) -> tuple[list[Part], list[tuple[int, int]], bool]:
        places = range(start, min(start + self.batch, len(self.indices)))
        noise = Noise(self.noise, self.device)
        with ExitStack() as stack, turned(self.order):
            tallies = [stack.enter_context(counted(model)) for model in self.counted]
            parts = worked(
                self.work, self.data, self.indices, places, self.batch,
                seed=self.seed, device=self.device, few=self.few, noise=noise,
            )  # fmt: skip
            return list(parts), [(t.answers, t.slopes) for t in tallies], noise.drawn


@dataclass(frozen=True)
class _Each:
    """What `each` has done with an item and its place."""

    work: Callable[[Any], Any]
    noise: tuple[int, ...]

    def __call__(self, told: tuple[int, Any]) -> Any:
        place, item = told
        with Noise(self.noise).of(place):
            return self.work(item)


# A worker's side.


class _Worker:
    """What a worker's process knows."""

    inside = False
    opened: ClassVar[OrderedDict[str, Callable[[Any], Any]]] = OrderedDict()
    data: ClassVar[OrderedDict[str, Any]] = OrderedDict()


@ray.remote  # type: ignore[untyped-decorator]
def _do(name: str, job: list[Any], expected: Mapping[str, str], item: Any) -> Any:
    """One task. The work is opened once for many of them."""
    if not _Worker.inside:
        _refuse_another(expected)
        torch.set_num_threads(1)
        _Worker.inside = True
    if "ASSAY_DATA" in expected:
        os.environ["ASSAY_DATA"] = expected["ASSAY_DATA"]
    if name not in _Worker.opened:
        _Worker.opened[name] = _unpacked(ray.get(job[0]))
        while len(_Worker.opened) > OPEN:
            _Worker.opened.popitem(last=False)
    _Worker.opened.move_to_end(name)
    try:
        return _Worker.opened[name](item)
    except KeyboardInterrupt:  # it was called off, wherever it was
        _forget_orphans()
        raise


def _forget_orphans() -> None:
    """Drop modules whose parent was not loaded to its end: who loads that one again would find it without them.

    The next task in this process would fail for it ("module 'sympy' has no attribute 'core'").
    """
    for name in sorted(sys.modules):  # a parent before its children
        parent = name.rpartition(".")[0]
        if parent and parent not in sys.modules:
            del sys.modules[name]


def _surroundings() -> dict[str, str]:
    """What must be the same on all machines, and where data beyond the bundle lie."""
    here = environment()
    told = {name: here[name] for name in ("python", "assay", "code", "torch", "numpy")}
    return told | {name: os.environ[name] for name in ("ASSAY_DATA",) if name in os.environ}


def _refuse_another(expected: Mapping[str, str]) -> None:
    here = environment()
    for name, value in expected.items():
        if name in here and here[name] != value:
            what = {"code": "another copy of Assay", "assay": f"Assay {here[name]}"}.get(name, f"{name} {here[name]}")
            beside = "" if name == "code" else f", and here it is {value}"
            raise AssayError(
                f"The machine {socket.gethostname()} of the cluster has {what}{beside}; install the same there."
            )


def _taken(task: Any) -> Any:
    """What a task gave, or what it raised, as if it had been done here."""
    try:
        return ray.get(task)
    except RayTaskError as e:
        if isinstance(e.cause, ModuleNotFoundError):
            raise AssayError(
                f"A machine of the cluster has no module {e.cause.name!r}; install there what is installed here."
            ) from e
        if isinstance(e.cause, FileNotFoundError):
            raise AssayError(
                f"A machine of the cluster does not see {str(e.cause.filename)!r}; put it where all of them see it."
            ) from e
        raise e.cause from e
    except RayError as e:
        first = (str(e).strip().splitlines() or ["no reason given"])[0]
        raise SubjectError(
            f"The processes that worked on this ended {RETRIES + 1} times ({type(e).__name__}: {first}); most often "
            "that is for want of memory, or some native code is at fault."
        ) from e


# Packing: what is large goes once.


@dataclass(frozen=True)
class _Job:
    """Work as it is sent: by which name workers know it, and where it lies."""

    name: str
    ref: Any


@dataclass
class _Packed:
    """An object as it was pickled, and what of it lies in the object store by itself."""

    text: bytes
    apart: dict[str, Any]


@dataclass
class _Lying:
    """A data set in the object store: its name there, and what may change in place of the one that is here."""

    alive: weakref.ref[Any]
    name: str
    ref: Any
    parts: list[tuple[Any, str]] | None
    """Arrays, storages and data sets, each with its name as it was sent; None where it came from elsewhere."""
    attributes: dict[str, int]

    def holds(self) -> bool:
        """Whether the one that is here has the attributes that were sent, and its arrays their values."""
        if self.parts is None:
            return True
        return _attributes(self.alive()) == self.attributes and all(_name(part) == name for part, name in self.parts)


@dataclass
class _Sent:
    """What this process knows to lie in the object store, by content or, of data sets, by who they are."""

    refs: OrderedDict[str, tuple[Any, int]] = field(default_factory=OrderedDict)
    data: dict[int, _Lying] = field(default_factory=dict)
    looked: set[int] = field(default_factory=set)
    """Data sets of which it is known, for the work that is packed now, that they lie there as they are."""

    def forget(self) -> None:
        self.refs.clear()
        self.data.clear()

    def content(self, array: NDArray[Any]) -> tuple[str, Any]:
        """Where an array lies, which is put there if it does not."""
        name = of_array(array).hex()
        ref = self.refs[name][0] if name in self.refs else ray.put(np.ascontiguousarray(array))
        self.known(name, ref, array.nbytes)
        return name, ref

    def known(self, name: str, ref: Any, size: int) -> None:
        self.refs[name] = (ref, size)
        self.refs.move_to_end(name)
        while len(self.refs) > 1 and sum(size for _, size in self.refs.values()) > HELD:
            self.refs.popitem(last=False)

    def data_set(self, data: Any) -> tuple[str, Any] | None:
        """Where a data set lies; None where nothing tells when it is gone."""
        lying = self.data.get(id(data))
        if lying is None or not (id(data) in self.looked or lying.holds()):
            try:
                weakref.ref(data)
            except TypeError:
                return None
            parts: list[tuple[Any, str]] = []
            lying = self.at(data, uuid.uuid4().hex, ray.put(_pack(data, data, parts)), parts)
        self.looked.add(id(data))
        return lying.name, lying.ref

    def at(self, data: Any, name: str, ref: Any, parts: list[tuple[Any, str]] | None = None) -> _Lying:
        number = id(data)
        alive = weakref.ref(data, lambda gone: self.data.pop(number, None))
        self.data[number] = _Lying(alive, name, ref, parts, _attributes(data))
        return self.data[number]


def _attributes(data: Any) -> dict[str, int]:
    return {name: id(value) for name, value in getattr(data, "__dict__", {}).items()}


def _name(part: Any) -> str:
    """Of an array or a storage its content's, of a data set its own."""
    if isinstance(part, torch.UntypedStorage):
        part = _flat(part)
    if isinstance(part, np.ndarray):
        return of_array(part).hex()
    at = _SENT.data_set(part)
    return "" if at is None else at[0]


def _flat(raw: torch.UntypedStorage) -> NDArray[np.uint8]:
    flat: NDArray[np.uint8] = torch.empty(0, dtype=torch.uint8, device=raw.device).set_(raw).cpu().numpy()
    return flat


_SENT = _Sent()


class _Packer(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickles, but for what goes apart: storages of tensors, arrays, data sets; those that lie in a file stay there."""

    def __init__(self, file: io.BytesIO, whole: object, parts: list[tuple[Any, str]]) -> None:
        super().__init__(file, protocol=5)
        self.whole, self.parts, self.apart = whole, parts, dict[str, Any]()

    def persistent_id(self, value: Any) -> Any:
        if isinstance(value, TypedStorage):
            return self._storage(value)
        kind: Any = type(value)
        if kind is np.ndarray and not value.dtype.hasobject:
            return self._array(value)
        if value is not self.whole and _is_data(kind) and (at := _SENT.data_set(value)) is not None:
            self.apart[at[0]] = at[1]
            self.parts.append((value, at[0]))
            return "data", at[0]
        return None

    def _array(self, value: NDArray[Any]) -> tuple[Any, ...] | None:
        if value.nbytes < LARGE:
            self._small(value, value)
            return None
        mapped = _mapped(value)
        return ("array", self._content(value, value)) if mapped is None else ("mapped", *mapped)

    def _storage(self, value: TypedStorage) -> tuple[Any, ...]:
        """Tensors that share one share it there too: it is told by where it lies here."""
        raw = value._untyped_storage
        flat = _flat(raw)
        if flat.nbytes >= LARGE:
            return "storage", raw._cdata, value.dtype, raw.device.type, self._content(raw, flat)
        self._small(raw, flat)
        return "storage", raw._cdata, value.dtype, raw.device.type, flat.tobytes()

    def _small(self, part: Any, array: NDArray[Any]) -> None:
        if self.whole is not None:
            self.parts.append((part, of_array(array).hex()))

    def _content(self, part: Any, array: NDArray[Any]) -> str:
        name, ref = _SENT.content(array)
        self.apart[name] = ref
        self.parts.append((part, name))
        return name

    def reducer_override(self, value: Any) -> Any:
        if type(value) is Run:  # what it tells of its progress is told here
            alone = {"progress": silent, "in_words": in_words, "drawn": []}
            told = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
            return partial(Run, **told | alone), ()
        return super().reducer_override(value)


@cache
def _is_data(kind: type) -> bool:
    return callable(getattr(kind, "take", None)) and callable(getattr(kind, "fingerprint", None))


def _mapped(array: NDArray[Any]) -> tuple[str, int, str, tuple[int, ...]] | None:
    """The file that an array is a part of, where in it, and as what; None where it or a change of it lies in memory."""
    base: Any = array
    while base is not None and not isinstance(base, np.memmap):
        base = getattr(base, "base", None)
    if base is None or base.filename is None or base.mode == "c" or not array.flags.c_contiguous:
        return None
    inside = array.__array_interface__["data"][0] - base.__array_interface__["data"][0]
    return str(base.filename), base.offset + inside, array.dtype.str, array.shape


def _packed(work: Callable[[Any], Any]) -> _Job:
    _SENT.looked.clear()
    return _Job(uuid.uuid4().hex, ray.put(_pack(work)))


def _pack(value: Any, whole: object = None, parts: list[tuple[Any, str]] | None = None) -> _Packed:
    """`whole` is the data set that is packed itself, and not only where it lies; `parts` hears what it holds."""
    _take_along_what_is_not_installed()
    file = io.BytesIO()
    packer = _Packer(file, whole, [] if parts is None else parts)
    try:
        packer.dump(value)
    except Exception as e:
        path, held = _unsendable(value)
        raise AssayError(
            f"What {path} holds cannot be sent to another process: it is a {type(held).__name__} ({e}); leave it out "
            "of the model, or make it where it is used."
        ) from e
    return _Packed(file.getvalue(), packer.apart)


_MODULES: set[str] = set()


def _take_along_what_is_not_installed() -> None:
    """The user's own modules go along: no other machine has them."""
    for name, module in list(sys.modules.items()):
        if name not in _MODULES:
            _MODULES.add(name)
            own = name.partition(".")[0] in (code.OWN, "__main__")
            if not own and getattr(module, "__file__", None) and not code.is_installed(name):
                cloudpickle.register_pickle_by_value(module)


def _unsendable(value: Any, path: str = "", seen: set[int] | None = None) -> tuple[str, Any]:
    """The innermost thing that cannot be packed, and how one comes to it."""
    seen = set() if seen is None else seen
    for name, held in _held(value):
        if id(held) in seen or isinstance(held, torch.Tensor | np.ndarray | type | types.ModuleType):
            continue
        seen.add(id(held))
        try:
            _Packer(io.BytesIO(), held, []).dump(held)
        except Exception:
            return _unsendable(held, f"{path}{name}", seen)
    return path.lstrip(".") or type(value).__name__, value


def _held(value: Any) -> Iterator[tuple[str, Any]]:
    """What lies directly in a value, with how it is reached; what a function closes over is reached by its name."""
    if isinstance(value, Mapping):
        yield from ((f"[{key!r}]", held) for key, held in value.items())
    elif isinstance(value, list | tuple | set | frozenset):
        yield from ((f"[{i}]", held) for i, held in enumerate(value))
    elif isinstance(value, partial):
        yield from _held([value.func, value.args, value.keywords])
    elif isinstance(value, types.MethodType):
        yield "", value.__self__
    elif isinstance(value, types.FunctionType):
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            with suppress(ValueError):  # not filled yet
                yield f".{name}", cell.cell_contents
    elif isinstance(value, nn.Module):
        parts = {**value._modules, **{n: v for n, v in vars(value).items() if n != "_modules"}}
        yield from ((f".{name}", held) for name, held in parts.items())
    else:
        yield from ((f".{name}", held) for name, held in getattr(value, "__dict__", {}).items())


class _Opener(pickle.Unpickler):
    """Opens what `_Packer` packed, with what lies apart. Weights are copied: the object store is for reading alone."""

    def __init__(self, text: bytes, apart: Mapping[str, Any]) -> None:
        super().__init__(io.BytesIO(text))
        self.apart, self.storages = apart, dict[int, torch.UntypedStorage]()

    def persistent_load(self, told: Any) -> Any:
        kind, *rest = told
        if kind == "storage":
            number, dtype, device, held = rest
            if number not in self.storages:
                flat = np.frombuffer(held, np.uint8) if isinstance(held, bytes) else self.apart[held]
                self.storages[number] = torch.from_numpy(flat.copy()).to(device).untyped_storage()
            return TypedStorage(  # type: ignore[no-untyped-call]
                wrap_storage=self.storages[number], dtype=dtype, _internal=True
            )
        if kind == "mapped":
            file, offset, dtype, shape = rest
            return np.asarray(np.memmap(file, dtype=dtype, mode="r", offset=offset, shape=shape))
        return self.apart[rest[0]]


def _unpacked(packed: _Packed) -> Any:
    """The object. What lies apart is asked for once, and is known from here on where the work is sent further."""
    fetched = [name for name in packed.apart if name not in _Worker.data]
    apart = {name: _Worker.data[name] for name in packed.apart if name in _Worker.data}
    for name, held in zip(fetched, ray.get([packed.apart[name] for name in fetched]), strict=True):
        if isinstance(held, _Packed):
            apart[name] = _Worker.data[name] = _unpacked(held)
            _SENT.at(apart[name], name, packed.apart[name])
        else:
            apart[name] = held
            _SENT.known(name, packed.apart[name], held.nbytes)
    while len(_Worker.data) > SETS:
        _Worker.data.popitem(last=False)
    return _Opener(packed.text, apart).load()


# The cluster.


def _connect(address: str | None, workers: int | None) -> bool:
    """Be a part of the cluster that is meant, and say whether others started it; what is wrong with it, in a line."""
    if ray.is_initialized():
        _refuse_elsewhere(address)
        return False
    where = address or os.environ.get("RAY_ADDRESS", "")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nobody is told that it is used
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if where in ("", "local"):
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        quiet |= {"num_cpus": workers or cores, "include_dashboard": False, "_node_ip_address": "127.0.0.1"}
    else:
        _knock(where)
    try:
        ray.init(address=where or "local", **quiet)
    except Exception as e:
        first = " ".join(str(e).split())
        if "ersion mismatch" in first:
            raise AssayError(f"The cluster {where!r} is of another kind: {first}; install the same there.") from e
        what = f"There is no cluster at {where!r}" if where else "Ray could not be started here"
        raise AssayError(
            f"{what}: {type(e).__name__} {first[:300]}; start one with `ray start --head` and give its address."
        ) from e
    _JOINED[where] = _joined()
    return where not in ("", "local")


_JOINED: dict[str, str] = {}
"""By which address this process joined a cluster, and which one that was."""


def _joined() -> str:
    return str(ray.get_runtime_context().gcs_address)


def _refuse_elsewhere(address: str | None) -> None:
    """Refuse an address that is not that of the cluster which this process is a part of already."""
    if address is None or address in ("", "auto"):
        return
    here = _joined()
    if here not in (_JOINED.get(address), address) and _place(address) != _place(here):
        raise AssayError(
            f"Ray({address!r}) was asked for, and this process is connected to the cluster {here}; call ray.shutdown() "
            "first to go there, or leave the address out."
        )


def _place(address: str) -> tuple[str, str]:
    """Machine and port, by whatever name of this machine."""
    host, _, port = address.rpartition(":")
    with suppress(OSError, UnicodeError):  # no name of a machine
        host = socket.gethostbyname(host.strip("[]"))
    return ray.util.get_node_ip_address() if host.startswith("127.") else host, port


def _greet() -> None:
    """Have every machine look at its versions before anything is asked."""
    job = _packed(str)
    nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU")]
    near = [NodeAffinitySchedulingStrategy(node_id=node, soft=True) for node in nodes]
    for task in [_do.options(scheduling_strategy=n).remote(job.name, [job.ref], _surroundings(), "") for n in near]:
        _taken(task)


def _knock(address: str) -> None:
    """Ray waits for minutes at a door that nobody opens, and for half of one where no port is named."""
    scheme, there, _ = address.rpartition("://")
    if address == "auto" or scheme not in ("", "ray"):
        return
    host, _, port = address.removeprefix(f"{scheme}{there}").rpartition(":")
    if not host or not port.isdecimal():
        raise AssayError(f"{address!r} is no address of a cluster; write HOST:PORT, or ray://HOST:PORT.")
    try:
        socket.create_connection((host.strip("[]"), int(port)), PATIENCE).close()
    except (OSError, UnicodeError) as e:  # a name that none can have is refused before it is asked for
        told = e.strerror if isinstance(e, OSError) else "that is no name of a machine"
        raise AssayError(
            f"There is no cluster at {address!r}: {told or e}; start one with `ray start --head`, or leave the "
            "address out to compute here."
        ) from e
