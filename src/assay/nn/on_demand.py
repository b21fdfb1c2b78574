"""What a network makes when it is first asked and can make again: a session, a compiled pass."""

from __future__ import annotations

from typing import Any


class OnDemand:
    """Holds it. A copy, and what is hashed or pickled, holds nothing: it is made again of what the network stores."""

    __slots__ = ("made",)

    def __init__(self) -> None:
        self.made: Any = None

    def __reduce__(self) -> tuple[type[OnDemand], tuple[()]]:
        return OnDemand, ()
