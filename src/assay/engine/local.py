"""The engine that is always there: shards in order, in this process, halved when memory runs out."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from assay.data.digest import of_array
from assay.errors import AssayError, SubjectError
from assay.run import KEPT_BYTES, Few, Found, Item, Shard, Tick, Work, batch_of
from assay.subject import Data


@dataclass(frozen=True)
class ThisProcess:
    """`batch` None chooses by device: small batches stay in a CPU's cache, a GPU wants to be filled. Where inputs are
    large a batch on a CPU has fewer of them, so that memory does not follow their size.

    No shard depends on another: its generator is seeded by the run's seed and the shard's place, and what a random
    model draws of torch's own by how that one stood before and the shard's place.
    """

    batch: int | None = None
    apart: ClassVar[bool] = False

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
        rows = Joined(few, room)
        every, noise = range(len(indices)), Noise.now(device)
        with noise.spent():
            for part in worked(work, data, indices, every, batch, seed=seed, device=device, few=few, noise=noise):
                rows.add(part)
                tick(part.count)
        return rows.columns()

    def each(
        self, work: Callable[[Item], Found], items: Iterable[Item]
    ) -> Iterator[tuple[Item, Callable[[], Found]]]:  # in their order, each done when it is called for
        noise = Noise.now()
        for place, item in enumerate(items):
            yield item, partial(_one, work, item, noise, place)


def _one(work: Callable[[Item], Found], item: Item, noise: Noise, place: int) -> Found:
    devices = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]
    with torch.random.fork_rng(devices=devices), noise.of(place):
        return work(item)


class Noise:
    """What random models draw of torch's own generators: of each shard its own, however many process them where.

    How the generators stand names the noise, and each shard's place its own part of it. Where any has drawn they move
    on by one number, so that the next noise is another; where none has, they are left as they were.
    """

    def __init__(self, name: Sequence[int], device: str = "cpu") -> None:
        self.name, self.device, self.drawn = tuple(name), device, False

    @classmethod
    def now(cls, device: str = "cpu") -> Noise:
        found = sha256(b"".join(of_array(g.get_state().numpy()) for g in _generators(device))).digest()
        return cls([int.from_bytes(found[i : i + 4], "little") for i in range(0, 16, 4)], device)

    @contextmanager
    def spent(self) -> Iterator[None]:
        """After it, generators stand as they did, and where anything was drawn one number further."""
        generators = _generators(self.device)
        before = [g.get_state() for g in generators]
        try:
            yield
        finally:
            for g, state in zip(generators, before, strict=True):
                g.set_state(state)
                if self.drawn:
                    torch.rand((), generator=g, device=g.device)

    @contextmanager
    def of(self, place: int) -> Iterator[None]:
        """Inside, torch's generators give what belongs to this place."""
        generators = _generators(self.device)
        for g in generators:
            g.manual_seed(int(np.random.SeedSequence([*self.name, place]).generate_state(1)[0]))
        before = [g.get_state() for g in generators]
        yield
        self.drawn |= any(not torch.equal(g.get_state(), s) for g, s in zip(generators, before, strict=True))


def _generators(device: str) -> list[torch.Generator]:
    found = [torch.default_generator]
    if device.startswith("cuda") or torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        place = torch.device(device).index if device.startswith("cuda") else None
        torch.cuda.init()  # type: ignore[no-untyped-call]
        found.append(torch.cuda.default_generators[torch.cuda.current_device() if place is None else place])
    return found


GPU_VALUES = 2**25
"""Of a batch of inputs: 1024 of 3 x 96 x 96, 128 of 3 x 224 x 224."""


def fitting(data: Data, indices: NDArray[np.int64], device: str) -> int:
    """How many of these inputs go together.

    By their size alone and not by trial: a shard's generator is seeded by its place, so that a batch that was chosen by
    the clock, or by the memory that others left, would find something else in each run.
    """
    if not len(indices):
        return 1
    shape = tuple(data.take(indices[:1])[0].shape[1:])
    if device.startswith("cuda"):
        return min(1024, 1 << max(0, (GPU_VALUES // max(1, math.prod(shape))).bit_length() - 1))
    return min(128, batch_of(shape))


@dataclass(frozen=True)
class Part:
    """What came of some inputs: where they begin, how many there are, and their columns, of `few` the wanted rows."""

    start: int
    count: int
    columns: dict[str, NDArray[Any]]


class Joined:
    """The columns of all parts, which come in order."""

    def __init__(self, few: Mapping[str, str], room: int) -> None:
        self.few, self.parts = few, defaultdict[str, list[NDArray[Any]]](list)
        self.kept = {name: Few(room) for name in few}

    def add(self, part: Part) -> None:
        for name, column in part.columns.items():
            if name not in self.few:
                self.parts[name].append(column)
                continue
            self.kept[name].add(part.start + np.flatnonzero(part.columns[self.few[name]]), column)
            self.parts[name] = [column[:0]]

    def columns(self) -> dict[str, NDArray[Any]]:
        for name, some in self.kept.items():
            if name in self.parts:
                at, rows = some.joined(self.parts[name][0])
                self.parts |= {name: [rows], f"{name} at": [at]}
        return {name: np.concatenate(each) if len(each) > 1 else each[0] for name, each in self.parts.items()}


def worked(
    work: Work,
    data: Data,
    indices: NDArray[np.int64],
    places: range,
    batch: int,
    *,
    seed: int,
    device: str,
    few: Mapping[str, str],
    noise: Noise,
) -> Iterator[Part]:
    """Run `work` on these places of the indices, a batch at a time, smaller ones where memory runs out."""
    start = places.start
    while start < places.stop:
        rows = indices[start : min(start + batch, places.stop)]
        try:
            with noise.of(start):
                done = _work_on(work, data, rows, start, seed, device)
        except Exception as e:
            if not _out_of_memory(e):
                raise
            if len(rows) == 1:
                raise AssayError(
                    f"One input alone does not fit into the memory of {device!r}; use another device."
                ) from e
            batch = len(rows) // 2
            if device.startswith("cuda"):
                from assay.methods.attack.swift import let_go

                let_go()
                torch.cuda.empty_cache()
            continue
        cut = {name: done[name][np.flatnonzero(done[by])] for name, by in few.items() if name in done}
        yield Part(start, len(rows), done | cut)
        start += len(rows)


def _work_on(
    work: Work, data: Data, rows: NDArray[np.int64], start: int, seed: int, device: str
) -> dict[str, NDArray[Any]]:
    x, y = data.take(rows)
    state = int(np.random.SeedSequence([seed, start]).generate_state(1)[0])
    shard = Shard(x.to(device), y.to(device), rows, torch.Generator(device).manual_seed(state))
    try:
        done = work(shard)
    except AssayError:
        raise
    except Exception as e:
        if _out_of_memory(e):
            raise
        first = (str(e).strip().splitlines() or ["no message"])[0]
        raise SubjectError(
            f"{type(e).__name__} while working on inputs {rows[0]} to {rows[-1]}: {first}; if it is the model that "
            f"raises, run it on these inputs by itself, else --debug shows where."
        ) from e
    short = {name: len(t) for name, t in done.items() if len(t) != len(rows)}
    if short:
        raise AssayError(f"Work on {len(rows)} inputs returned {short} rows; it must return one row per input.")
    return {name: _array(t) for name, t in done.items()}


def _array(rows: Tensor) -> NDArray[Any]:  # n *d
    """On the host; what a model answers in halves is widened: numpy has no bfloat16, and adds float16 in float16."""
    halves = rows.dtype in (torch.bfloat16, torch.float16)
    array: NDArray[Any] = (rows.float() if halves else rows).detach().cpu().numpy()
    return array


def _out_of_memory(e: BaseException) -> bool:
    return isinstance(e, torch.OutOfMemoryError | MemoryError) or (
        isinstance(e, RuntimeError) and "can't allocate memory" in str(e)
    )
