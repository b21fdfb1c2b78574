"""Bounds: what values lie between."""

from __future__ import annotations

import math

from assay.errors import AssayError


def refuse_bounds(low: float, high: float, what: str) -> None:
    """Refuse bounds that are no range, or an infinite one: no radius is a share of it."""
    if not (math.isfinite(low) and math.isfinite(high)):
        raise AssayError(f"{what} has the bounds {low:g} and {high:g}; give finite ones, such as what the data shows.")
    if not low <= high:
        raise AssayError(f"Bounds must have low <= high, got {low:g} and {high:g} for {what}; mend them.")
