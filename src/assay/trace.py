"""Trace: what an audit did when. Questions, their parts, and of each batch what was read, sent, done and fetched."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from assay.errors import AssayError

Kind = Literal["question", "part", "read", "sent", "done", "fetched", "batches"]
"""Of a batch: inputs taken from where they lie; brought to the device; what the question does with them, in the model
most of all; what came of it brought back. `batches` are several of them in one."""
OF_A_BATCH: tuple[Kind, ...] = ("read", "sent", "done", "fetched", "batches")
MOST = 3000
"""Spans that are kept of one question."""
LONGEST_NAME = 200


@dataclass(frozen=True)
class Span:
    """From when to when, in seconds of one clock, and how many inputs it was about."""

    kind: Kind
    name: str
    start: float
    end: float
    inputs: int = 0

    @property
    def seconds(self) -> float:
        return self.end - self.start


@dataclass(frozen=True)
class Asked:
    """One question as it was asked: its spans, of which the first is the whole, and the seconds of each kind.

    `answers` and `slopes` are the inputs that passed the model without and with a gradient.
    """

    spans: tuple[Span, ...]
    seconds: Mapping[str, float]
    answers: int = 0
    slopes: int = 0

    def to_json(self) -> list[Any]:
        spans = [[s.kind, s.name, s.start, s.end, s.inputs] for s in self.spans]
        return [spans, dict(self.seconds), self.answers, self.slopes]

    @classmethod
    def from_json(cls, told: Any) -> Asked:
        """What another process tells; AssayError where it is no such thing."""
        try:
            listed, seconds, answers, slopes = told
            spans = tuple(
                Span(kind, str(name)[:LONGEST_NAME], float(start), float(end), int(inputs))
                for kind, name, start, end, inputs in listed[: 2 * MOST]
            )
            sums: dict[str, float] = {kind: float(seconds.get(kind, 0.0)) for kind in OF_A_BATCH}
            ends = [t for s in spans for t in (s.start, s.end)] + list(sums.values())
            known = all(s.kind in get_args(Kind) and s.start <= s.end and s.inputs >= 0 for s in spans)
            known &= isinstance(answers, int) and isinstance(slopes, int) and min(answers, slopes) >= 0
            if not spans or spans[0].kind != "question" or not known or not all(map(math.isfinite, ends)):
                raise ValueError("spans have a kind, a start and an end")
        except (TypeError, ValueError, LookupError, AttributeError, OverflowError) as e:
            raise AssayError(f"The model's process tells of no question that it asked: {e}; audit again.") from e
        return cls(spans, sums, answers, slopes)


@dataclass
class Trace:
    """Of the question that is asked just now. Where there are too many batches, neighbours become one."""

    spans: list[Span] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    grain: float = 0.0
    """What lies within so many seconds of one another is one."""

    def add(self, kind: Kind, name: str, start: float, end: float, inputs: int = 0) -> None:
        if kind in OF_A_BATCH:
            self.seconds[kind] = self.seconds.get(kind, 0.0) + end - start
        self.spans.append(Span(kind, name[:LONGEST_NAME], start, end, inputs))
        while len(self.spans) > MOST and self.grain < 1e6:
            self.grain = max(1e-3, 2 * self.grain)
            self.spans = list(_joined(self.spans, self.grain))

    @contextmanager
    def part(self, kind: Kind, name: str, inputs: int = 0) -> Iterator[None]:
        start = time.monotonic()
        try:
            yield
        finally:
            self.add(kind, name, start, time.monotonic(), inputs)

    @contextmanager
    def question(self, name: str, inputs: int = 0) -> Iterator[None]:
        """A new one; what was told of the one before is forgotten."""
        self.spans, self.seconds, self.grain = [], {}, 0.0
        start = time.monotonic()
        try:
            yield
        finally:
            self.spans.insert(0, Span("question", name, start, time.monotonic(), inputs))

    def asked(self, answers: int = 0, slopes: int = 0) -> Asked:
        return Asked(tuple(self.spans), dict(self.seconds), answers, slopes)


def _joined(spans: Sequence[Span], grain: float) -> Iterator[Span]:
    """Batches that end within `grain` seconds of where they began, one after the other, as one."""
    open_: Span | None = None
    for span in sorted(spans, key=lambda s: s.start):
        if span.kind not in OF_A_BATCH:
            yield span
        elif open_ is None:
            open_ = span
        elif span.end - open_.start <= grain:
            read = span.inputs if span.kind in ("read", "batches") else 0  # each batch counts once
            counted = open_.inputs if open_.kind in ("read", "batches") else 0
            open_ = Span("batches", "batches", open_.start, max(open_.end, span.end), counted + read)
        else:
            yield open_
            open_ = span
    if open_ is not None:
        yield open_
