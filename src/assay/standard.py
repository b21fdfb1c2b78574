"""Standards and verdicts: a limit on a measure, and whether the whole interval lies on its good side."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from assay.data.plain_file import read_plain
from assay.errors import AssayError
from assay.finding import Alarm, Finding, Measure

MOST_BYTES = 2**20  # of a file of standards
LONGEST_LINE = 4000  # a name of a hundred thousand parts would take hours
Verdict = Literal["pass", "fail", "cannot tell", "not asked", "no standard"]


@dataclass(frozen=True, kw_only=True)
class Standard:
    """A limit on a measure; `measure` None means the probe's headline."""

    measure: str | None = None
    at_least: float | None = None
    at_most: float | None = None

    def __post_init__(self) -> None:
        if (self.at_least is None) == (self.at_most is None):
            raise AssayError(
                f"A standard wants exactly one of at_least and at_most; got at_least={self.at_least}, "
                f"at_most={self.at_most}."
            )
        if not math.isfinite(self.limit):
            raise AssayError(f"A standard's limit must be a finite number, got {self.limit}.")

    @property
    def limit(self) -> float:
        limit = self.at_least if self.at_least is not None else self.at_most
        assert limit is not None  # __post_init__ saw to it
        return limit


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """A standard held against a finding: the verdict, why, and how many more samples would settle it."""

    standard: Standard | None
    measure: str
    verdict: Verdict
    why: str
    more: int | None = None


def judge(standard: Standard, finding: Finding, alarms: tuple[Alarm, ...] = ()) -> Judgement:
    """Pass if the whole interval is on the good side, fail if it is on the bad side, else cannot tell.

    `alarms` are those about the subject as a whole.
    """
    measure = finding.measure(standard.measure)
    doubts = [a.says for a in (*alarms, *finding.alarms) if a.about(measure.name)]
    verdict, why, more = _compare(standard, measure)
    if verdict == "pass" and doubts:
        verdict, why = "cannot tell", f"the limit is met, but the number is in doubt: {doubts[0]}"
    return Judgement(standard=standard, measure=measure.name, verdict=verdict, why=why, more=more)


def _compare(standard: Standard, measure: Measure) -> tuple[Verdict, str, int | None]:
    if measure.value is None:
        return "cannot tell", "it was not measured; the alarms say why", None
    low = measure.value if measure.low is None else measure.low
    high = measure.value if measure.high is None else measure.high
    limit = standard.limit
    side = "least" if standard.at_least is not None else "most"
    said = f"at {side} {100 * limit:g} %" if measure.unit == "%" else f"at {side} {limit:g}"
    good, bad = (low >= limit, high < limit) if standard.at_least is not None else (high <= limit, low > limit)
    if good:
        return "pass", f"the whole interval is {said}", None
    if bad:
        return "fail", f"none of the interval is {said}", None
    more = _more_samples(measure, low, high, limit)
    settle = f"; about {more:,} more input{'' if more == 1 else 's'} would settle it" if more else ""
    return "cannot tell", f"only part of the interval is {said}{settle}", more


def _more_samples(measure: Measure, low: float, high: float, limit: float) -> int | None:
    """Widths shrink with the root of n; how many more inputs until the interval, around the same value, clears it."""
    gap = abs((measure.value or 0.0) - limit)
    if measure.n is None or gap == 0:
        return None
    needed = measure.n * ((high - low) / 2 / gap) ** 2
    return max(1, math.ceil(round(needed, 6)) - measure.n)


@dataclass(frozen=True)
class Standards:
    """What `assay.toml` says: settings of probes, limits per probe, and the most inputs that a question looks at.

    Where it is silent, the defaults rule.
    """

    limits: Mapping[str, tuple[Standard, ...]] = field(default_factory=dict)
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    inputs: int | None = None


def read_standards(path: Path) -> Standards:
    """Read an `assay.toml`::

    [audit]
    inputs = 200                        # the most that any question looks at, as --inputs says it
    [probes.worst-case-accuracy]        # settings of a probe
    radius = 0.03
    [standards.worst-case-accuracy]     # a limit on its headline measure
    at_least = 0.4
    [standards.confidence."Brier score"]  # a limit on another of its measures
    at_most = 0.3
    """
    try:
        text = read_plain(path, MOST_BYTES).decode()
        if max(map(len, text.splitlines()), default=0) > LONGEST_LINE:
            raise AssayError(f"{str(path)!r} has a line of over {LONGEST_LINE} characters; write shorter ones.")
        stored = tomllib.loads(text)
    except OSError as e:
        raise AssayError(
            f"Cannot read standards from {str(path)!r}: {e.strerror}; give the path of a TOML file."
        ) from e
    except AssayError:
        raise
    except (ValueError, RecursionError) as e:  # not TOML, not UTF-8, a number of too many digits, lists in lists
        raise AssayError(f"{str(path)!r} is not TOML: {e}; mend that line.") from e
    strange = sorted(set(stored) - {"audit", "probes", "standards"})
    if strange:
        raise AssayError(
            f"{str(path)!r} has unknown section {strange[0]!r}; known are [probes.NAME], [standards.NAME], [audit]."
        )
    for section in ("probes", "standards"):
        for name, entry in stored.get(section, {}).items():
            if not isinstance(entry, dict):
                raise AssayError(f"{str(path)!r} has {section}.{name} = {entry!r}; write a section [{section}.{name}].")
    limits = {name: tuple(_limits(str(path), name, entry)) for name, entry in stored.get("standards", {}).items()}
    return Standards(
        limits=limits, settings=stored.get("probes", {}), inputs=_bound(str(path), stored.get("audit", {}))
    )


def _bound(path: str, entry: Any) -> int | None:
    if not isinstance(entry, dict):
        raise AssayError(f"{path!r} has audit = {entry!r}; write a section [audit].")
    strange = sorted(set(entry) - {"inputs"})
    if strange:
        raise AssayError(f"{path!r} has unknown key {strange[0]!r} in [audit]; known is inputs.")
    inputs = entry.get("inputs")
    if inputs is not None and (isinstance(inputs, bool) or not isinstance(inputs, int) or inputs < 1):
        raise AssayError(f"{path!r} has inputs = {inputs!r} in [audit]; give a whole number of at least 1.")
    return inputs


def _limits(path: str, probe: str, entry: Mapping[str, Any]) -> list[Standard]:
    headline = {k: v for k, v in entry.items() if not isinstance(v, dict)}
    found: list[tuple[str | None, Mapping[str, Any]]] = [(None, headline)] if headline else []
    found += [(k, v) for k, v in entry.items() if isinstance(v, dict)]
    standards = []
    for measure, limit in found:
        where = f"[standards.{probe}" + (f'."{measure}"]' if measure else "]")
        strange = sorted(set(limit) - {"at_least", "at_most"})
        if strange:
            raise AssayError(f"{path!r} has unknown key {strange[0]!r} in {where}; known are at_least and at_most.")
        for key, number in limit.items():
            if isinstance(number, bool) or not isinstance(number, int | float):
                raise AssayError(f"{path!r} has {key} = {number!r} in {where}; a limit is a number.")
        standards.append(Standard(measure=measure, **limit))
    return standards
