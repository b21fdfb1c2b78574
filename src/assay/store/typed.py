"""Whether what was read from a file has the types that its dataclass says: a stranger's JSON may hold anything."""

from __future__ import annotations

import dataclasses
import math
import types
from collections.abc import Mapping
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints


def check_types(value: Any, *, leave: tuple[type, ...] = ()) -> None:
    """ValueError where a field of this dataclass, or of one inside it, is not what it says; `leave` are let be."""
    for name, hint in _hints(type(value)).items():  # type: ignore[arg-type]  # mypy holds no class to be hashable
        if not _fits(getattr(value, name), hint, leave):
            raise ValueError(f"its {type(value).__name__.lower()} has the {name} {str(getattr(value, name))[:60]!r}")


@cache
def _hints(kind: type) -> dict[str, Any]:
    """What the fields of a dataclass say of themselves, which takes longer to read than to compare with."""
    fields = {f.name for f in dataclasses.fields(kind)}
    return {name: hint for name, hint in get_type_hints(kind).items() if name in fields}


def _fits(value: Any, hint: Any, leave: tuple[type, ...]) -> bool:
    origin, args = get_origin(hint), get_args(hint)
    if hint is Any or isinstance(value, leave):
        return True
    if origin is Literal:
        return isinstance(value, str) and value in args
    if origin in (Union, types.UnionType):
        return any(_fits(value, kind, leave) for kind in args)
    if origin is tuple:
        if not isinstance(value, tuple):
            return False
        kinds = args[:1] * len(value) if args[-1] is Ellipsis else args
        return len(kinds) == len(value) and all(_fits(v, k, leave) for v, k in zip(value, kinds, strict=True))
    if origin is Mapping:
        return isinstance(value, dict) and all(
            _fits(k, args[0], leave) and _fits(v, args[1], leave) for k, v in value.items()
        )
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if not isinstance(value, hint):
        return False
    if dataclasses.is_dataclass(value):
        check_types(value, leave=leave)
    return True
