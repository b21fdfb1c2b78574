"""The engine that is always there: shards in order, in this process, halved when memory runs out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from assay.errors import AssayError, SubjectError
from assay.run import KEPT_BYTES, Few, Shard, Tick, Work, batch_of
from assay.subject import Data


@dataclass(frozen=True)
class ThisProcess:
    """`batch` None chooses by device: small batches stay in a CPU's cache, a GPU wants to be filled. Where inputs are
    large a batch on a CPU has fewer of them, so that memory does not follow their size.

    Each shard's generator is seeded by the run's seed and the shard's place, so that no shard depends on another.
    """

    batch: int | None = None

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
    ) -> dict[str, NDArray[Any]]:
        batch = self.batch or (1024 if device.startswith("cuda") else _fitting(data, indices))
        parts: defaultdict[str, list[NDArray[Any]]] = defaultdict(list)
        kept = {name: Few(room) for name in few}
        start = 0
        while start < len(indices):
            rows = indices[start : start + batch]
            try:
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
                    torch.cuda.empty_cache()
                continue
            for name, column in done.items():
                if name not in few:
                    parts[name].append(column)
                    continue
                wanted = np.flatnonzero(done[few[name]])
                kept[name].add(start + wanted, column[wanted])
                parts[name] = [column[:0]]
            tick(len(rows))
            start += len(rows)
        for name, some in kept.items():
            if name in parts:
                at, rows = some.joined(parts[name][0])
                parts |= {name: [rows], f"{name} at": [at]}
        return {name: np.concatenate(columns) if len(columns) > 1 else columns[0] for name, columns in parts.items()}


def _fitting(data: Data, indices: NDArray[np.int64]) -> int:
    """How many of these inputs go together on a CPU."""
    return min(128, batch_of(tuple(data.take(indices[:1])[0].shape[1:]))) if len(indices) else 1


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
    return {name: t.detach().cpu().numpy() for name, t in done.items()}


def _out_of_memory(e: BaseException) -> bool:
    return isinstance(e, torch.OutOfMemoryError | MemoryError) or (
        isinstance(e, RuntimeError) and "can't allocate memory" in str(e)
    )
