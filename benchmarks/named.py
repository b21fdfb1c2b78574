"""The part of a benchmark that the command line names."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping


def named(about: str | None, parts: Mapping[str, Callable[[], None]], *, alone: bool = True) -> Callable[[], None]:
    """Where it names none, an end that says what there is; `alone` where no further words may follow."""
    words = sys.argv[1:]
    if not words or words[0] not in parts or (alone and words[1:]):
        sys.exit((about or "") + f"\nName one of {', '.join(parts)}.")
    return parts[words[0]]
