"""What data that print does not have can say of its claims."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from assay.claim import Evidence, Gate, Held
from assay.finding import Measure

RULE = "`cannot tell` whatever is found, as print has other data"


def elsewhere(
    held: Held, says: str, measures: Iterable[Measure], gates: Sequence[Gate] = (), seeds: int | None = None
) -> Evidence:
    """Evidence from other data than print's: it can neither hold nor fail by them, and what is found there is told.

    Where a gate is missed, nothing is told of these either.
    """
    missed = [words for gate in gates if (words := gate.missed())]
    if missed:
        held, says = "cannot tell", f"{says} {' '.join(missed)}"
    here = "nothing can be told either" if held == "cannot tell" else f"it {held}"
    return Evidence(
        verdict="cannot tell",
        says=f"{says} On these data, which are not print's, {here}.",
        measures=tuple(measures),
        gates=tuple(gates),
        seeds=seeds,
    )
