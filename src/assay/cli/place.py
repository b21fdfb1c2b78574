"""Where a command runs: beside a child that opens the model, in such a child, or all in one process."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from assay.engine.child import Line


@dataclass(frozen=True)
class Parent:
    """This process guards: what opens a model runs in a child."""

    words: tuple[str, ...]


@dataclass(frozen=True)
class Inside:
    """This process is such a child."""

    line: Line


PLACE: ContextVar[Parent | Inside | None] = ContextVar("PLACE", default=None)
"""Where commands run; None: here, models too."""
