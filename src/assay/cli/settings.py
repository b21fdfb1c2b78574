"""The settings of a probe or a remedy, as `assay probes NAME` shows them: read off its fields and its docstring."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import textwrap
from collections.abc import Iterable
from functools import cache
from types import NoneType
from typing import Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

from assay.probe import spelled
from assay.report.words import setting

KINDS = {int: "whole number", float: "number", bool: "true | false", str: "text", NoneType: "none"}


class Setting(NamedTuple):
    name: str
    takes: str
    default: str
    """As --set takes it; nothing where there is no default, or an empty one."""
    about: str
    """What the code says of it in a line; often nothing."""


def settings_of(kind: type[Any]) -> list[Setting]:
    """Every setting, in the order of the fields; a sentence about several is told once."""
    hints, told = get_type_hints(kind), dict[str, str]()
    found = []
    for field in dataclasses.fields(kind):
        about = _about(kind, field.name)
        first = told.setdefault(about, field.name) if about else field.name
        about = _as_typed(about, hints) if first == field.name else f"see {spelled(first)}"
        found.append(Setting(spelled(field.name), takes(hints[field.name]), _default(field), about))
    return found


def _as_typed(about: str, names: Iterable[str]) -> str:
    """Settings that a sentence names, as they are typed."""
    for name in names:
        about = about.replace(f"`{name}`", f"`{spelled(name)}`")
    return about


def shown(kind: type[Any]) -> str:
    """A setting as --set takes it: the first of its own with a value, else an inherited one, else some number."""
    settings, own = settings_of(kind), set(map(spelled, inspect.get_annotations(kind)))
    for each in (s for some in (True, False) for s in settings if (s.name in own) is some):
        if each.default not in ("", "none"):
            few = ",".join(each.default.split(",")[:2])  # of a list two show how it is written
            return f"{each.name}={few}"
    return next((f"{s.name}=100" for s in settings if s.takes.startswith("whole number")), "")


def paragraphs(kind: type[Any]) -> list[str]:
    """What the docstring says after its first line, without the sentences that open with a setting: the table has them.

    A setting with a string below its field has that in the table, and its sentences stay here.
    """
    own = tuple(f"`{f.name}`" for f in dataclasses.fields(kind) if not any(_below(k, f.name) for k in kind.__mro__))
    kept = (" ".join(s for s in _sentences(part) if not own or not s.startswith(own)) for part in _body(kind))
    return [part for part in kept if part]


def takes(hint: Any) -> str:
    """A type as people read it: 'whole number | none'."""
    if get_origin(hint) is Literal:
        return " | ".join(map(str, get_args(hint)))
    if get_origin(hint) is tuple:
        return f"{takes(get_args(hint)[0])},..."
    if get_args(hint):
        return " | ".join(map(takes, get_args(hint)))
    return KINDS.get(hint) or str(getattr(hint, "__name__", hint))


def _default(field: dataclasses.Field[Any]) -> str:
    if field.default is not dataclasses.MISSING:
        return _written(field.default)
    return _written(field.default_factory()) if field.default_factory is not dataclasses.MISSING else ""


def _written(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(map(_written, value))
    if not isinstance(value, float):
        return setting(value)
    short, of_255 = f"{value:.6g}", value * 255
    return f"{of_255:.0f}/255" if float(short) != value and abs(of_255 - round(of_255)) < 1e-9 else short


def _about(kind: type[Any], name: str) -> str:
    """The string below the field, else what a docstring says of it, that of the class or one above.

    That is the sentences which open with it, else the first that names it.
    """
    for each in kind.__mro__:
        if below := _below(each, name):
            return below
    for each in kind.__mro__:
        named = [s for part in _body(each) for s in _sentences(part) if f"`{name}`" in s]
        if named:
            return " ".join(s for s in named if s.startswith(f"`{name}`")) or named[0]
    return ""


def _below(kind: Any, name: str) -> str:
    return _strings(kind).get(name, "")


@cache
def _strings(kind: type[Any]) -> dict[str, str]:
    """The string below each field of its own that has one."""
    try:
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    except (OSError, TypeError, SyntaxError):  # what was made without a file has no source
        return {}
    assert isinstance(tree, ast.ClassDef)
    return {
        field.target.id: " ".join(str(after.value.value).split())
        for field, after in zip(tree.body, tree.body[1:], strict=False)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
    }


def _body(kind: type[Any]) -> list[str]:
    """The paragraphs of its own docstring after the first line."""
    return inspect.cleandoc(kind.__dict__.get("__doc__") or "").partition("\n")[2].split("\n\n")


def _sentences(text: str) -> list[str]:
    return re.split(r"(?<=[.?!])\s+(?=[A-Z`\"'(])", " ".join(text.split()))
