"""What a benchmark aims at, beside what it found."""

from __future__ import annotations


def aimed(what: str, found: float, aim: float, *, least: bool = True) -> bool:
    """Print both, and whether it is met: at least the aim, or at most."""
    met = found >= aim if least else found <= aim
    bound = "at least" if least else "at most"
    print(f"{what:72s} {found:12,.3f}, {bound} {aim:,g}: {'met' if met else 'MISSED'}", flush=True)
    return met
