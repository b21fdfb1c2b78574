"""Which group a tuner belongs to by months of experience.

    novice  0 months;    medium  above 0, below the cut;    expert  at the cut or above;    cut = 9

Source: Anand, Wang, Loog and van Gemert, BMVC 2020, sec. 7.3.
Departs from print: "less than nine" and "more than nine" leave out whoever has exactly nine months. Here nine is
    expert; `as_published=True` puts nobody with exactly nine into a group.
"""

from __future__ import annotations

import math

from assay.errors import AssayError

GROUPS = ("novice", "medium", "expert")
CUT = 9.0


def group(months: float, cut: float = CUT, *, as_published: bool = False) -> str | None:
    """The group of so many months; None for exactly the cut, as published."""
    if not math.isfinite(months) or months < 0:
        raise AssayError(f"{months} months of experience cannot be; give 0 or more.")
    if months == 0:
        return "novice"
    if months == cut and as_published:
        return None
    return "medium" if months < cut else "expert"
