"""What data that print does not have can say of its claims."""

from __future__ import annotations

from collections.abc import Iterable

from assay.claim import Evidence, Held
from assay.finding import Measure

RULE = "`cannot tell` whatever is found, as print has other data"


def elsewhere(held: Held, says: str, measures: Iterable[Measure]) -> Evidence:
    """Evidence from other data than print's: it can neither hold nor fail by them, and what is found there is told."""
    here = "nothing can be told either" if held == "cannot tell" else f"it {held}"
    return Evidence(
        verdict="cannot tell", says=f"{says} On these data, which are not print's, {here}.", measures=tuple(measures)
    )
