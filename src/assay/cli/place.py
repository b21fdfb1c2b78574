"""Where a command runs: beside a child that opens the model, in such a child, or all in one process."""

from __future__ import annotations

import time
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from assay.engine.child import Line


@dataclass(frozen=True)
class Parent:
    """This process guards: what opens a model runs in a child."""

    words: tuple[str, ...]
    since: float = field(default_factory=time.monotonic)
    """When it was started, by the monotonic clock: what is loaded since is part of the time that was given."""


@dataclass(frozen=True)
class Inside:
    """This process is such a child."""

    line: Line


PLACE: ContextVar[Parent | Inside | None] = ContextVar("PLACE", default=None)
"""Where commands run; None: here, models too."""
