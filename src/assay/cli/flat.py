"""Options that several commands share are declared once, as a dataclass.

    @dataclass(frozen=True)
    class Work:
        seed: Annotated[int, typer.Option(help="The same seed gives the same numbers.")] = 0

    @app.command()
    @flat
    def audit(*, subject: str, work: Work) -> None: ...

typer takes no dataclass, so it is shown the fields: it sees `subject` and `seed`.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from functools import wraps
from inspect import Parameter, Signature
from typing import Any, get_type_hints


def flat(command: Callable[..., None]) -> Callable[..., None]:
    """The same command with the fields of each dataclass among its parameters in that parameter's place.

    It takes them by name, and packs the values back. A field keeps its annotation and its default, and without one it
    is required.
    """
    hints = get_type_hints(command, include_extras=True)
    packs: dict[str, type[Any]] = {}
    seen: list[Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        kind = hints[name]
        if isinstance(kind, type) and dataclasses.is_dataclass(kind):
            packs[name] = kind
            seen += _fields(kind)
        else:
            seen.append(parameter.replace(annotation=kind, kind=Parameter.KEYWORD_ONLY))
    names = [parameter.name for parameter in seen]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise TypeError(f"{command.__name__} declares {', '.join(twice)} twice")

    @wraps(command)
    def whole(**given: Any) -> None:
        for name, kind in packs.items():
            own = {field.name: given.pop(field.name) for field in dataclasses.fields(kind)}
            given[name] = kind(**own)
        command(**given)

    whole.__signature__ = Signature(seen)  # type: ignore[attr-defined]
    whole.__annotations__ = {parameter.name: parameter.annotation for parameter in seen}
    return whole


def _fields(kind: type[Any]) -> list[Parameter]:
    hints = get_type_hints(kind, include_extras=True)
    return [
        Parameter(
            field.name,
            Parameter.KEYWORD_ONLY,
            default=Parameter.empty if field.default is dataclasses.MISSING else field.default,
            annotation=hints[field.name],
        )
        for field in dataclasses.fields(kind)
    ]
