"""Inputs that the model was trained on, among those that it is judged by: they say nothing about new ones."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from assay.finding import Alarm, Measure, share
from assay.run import batch_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from assay.run import Run
    from assay.subject import Subject


def seen_in_training(
    subject: Subject, run: Run, splits: Mapping[str, NDArray[np.int64]]
) -> dict[str, NDArray[np.int64]]:  # k each -> at most k each, ascending
    """Which of these inputs of each split stand bit for bit in the training data; none where there are none."""
    if "train" not in subject.data or not splits:
        return {split: np.zeros(0, dtype=np.int64) for split in splits}
    batch, data = batch_of(subject.inputs.shape), subject.everywhere().data
    asked: dict[bytes, list[tuple[str, int]]] = {}
    for split, index in splits.items():
        for start in range(0, len(index), batch):
            rows = index[start : start + batch]
            for row, i in zip(data[split].take(rows)[0].numpy(), rows.tolist(), strict=True):
                asked.setdefault(_digest(row), []).append((split, i))
    train, seen = data["train"], set[bytes]()
    with run.progress(f"looking for inputs of {', '.join(splits)} in the training data", len(train)) as tick:
        for start in range(0, len(train), batch):
            rows = np.arange(start, min(start + batch, len(train)))
            seen |= asked.keys() & set(map(_digest, train.take(rows)[0].numpy()))
            tick(len(rows))
    found = [pair for digest in seen for pair in asked[digest]]
    return {split: np.array(sorted(i for s, i in found if s == split), dtype=np.int64) for split in splits}


def leaked_domains(subject: Subject, run: Run, measures: Iterable[Measure]) -> tuple[Alarm, ...]:
    """An alarm for each domain that holds training inputs, which doubts every measure that names the domain."""
    sizes = {name: len(domain.data) for name, domain in subject.domains().items()}
    found = seen_in_training(subject, run, {name: np.arange(n) for name, n in sizes.items()})
    names = [measure.name for measure in measures]
    return tuple(
        Alarm(
            f"{share(len(rows), sizes[name])} of the inputs of the domain {name!r} stand in the training data too (for "
            f"example input {rows[0]}): it is not unseen, and what is measured there may be memory.",
            doubts=tuple(m for m in names if re.search(rf"(?<!\w){re.escape(name)}(?!\w)", m)),
        )
        for name, rows in found.items()
        if len(rows)
    )


def _digest(x: NDArray[np.float32]) -> bytes:
    return hashlib.blake2b(np.ascontiguousarray(x).tobytes(), digest_size=16).digest()
