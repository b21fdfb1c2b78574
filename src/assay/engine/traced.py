"""An engine that tells when each batch was read, sent to the device, worked on and fetched."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from assay.run import Engine, Found, Item, Progress, Shard, Tick, Work
from assay.trace import Trace

if TYPE_CHECKING:
    from torch import Tensor

    from assay.subject import Data


class Traced:
    """Another engine, in this process, with a clock beside it. A GPU is waited for at each reading of it."""

    def __init__(self, engine: Engine, trace: Trace) -> None:
        self.engine, self.trace, self.apart = engine, trace, engine.apart

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
    ) -> dict[str, NDArray[Any]]:
        clocked = _Clocked(data, self.trace)

        def worked(shard: Shard) -> Mapping[str, Tensor]:
            self.trace.add("sent", f"to {device}", clocked.last, _now(device), len(shard.x))
            start = _now(device)
            found = work(shard)
            clocked.last = _now(device)
            self.trace.add("done", "worked on", start, clocked.last, len(shard.x))
            return found

        def ticked(count: int) -> None:
            self.trace.add("fetched", f"from {device}", clocked.last, _now(device), count)
            tick(count)

        return self.engine.map(
            worked,
            clocked,  # type: ignore[arg-type]  # it answers as the data do
            indices,
            seed=seed,
            device=device,
            tick=ticked,
            few=few,
            room=room,
            most=most,
        )

    def each(self, work: Callable[[Item], Found], items: Iterable[Item]) -> Iterator[tuple[Item, Callable[[], Found]]]:
        return self.engine.each(work, items)


class _Clocked:
    """Data of which each taking is told."""

    def __init__(self, data: Data, trace: Trace) -> None:
        self._data, self._trace, self.last = data, trace, time.monotonic()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._data, name)

    def __len__(self) -> int:
        return len(self._data)

    def take(self, indices: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        start = time.monotonic()
        taken = self._data.take(indices)
        self.last = time.monotonic()
        self._trace.add("read", "read", start, self.last, len(indices))
        return taken


def in_parts(progress: Progress, trace: Trace) -> Progress:
    """Progress whose parts are told."""

    @contextmanager
    def told(about: str, total: int) -> Iterator[Tick]:
        with trace.part("part", about, total), progress(about, total) as tick:
            yield tick

    return told


def _now(device: str) -> float:
    if device.startswith("cuda"):
        import torch

        torch.cuda.synchronize(device)
    return time.monotonic()
