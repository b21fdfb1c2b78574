"""A network that the user's own function builds (--builder), and weights that are put into it."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from assay.errors import AssayError
from assay.subjects.doors.opened import Opened
from assay.subjects.doors.script import call

if TYPE_CHECKING:
    from assay.subjects import Source

SHOWN = 3


def filled(path: Path, weights: Mapping[str, Any], source: Source) -> Opened:
    """The network of --builder with these weights, each of which has its place."""
    assert source.builder is not None
    net = _built(source.builder)
    strange = next((name for name, value in weights.items() if not isinstance(value, Tensor)), None)
    if strange is not None:
        raise AssayError(f"{str(path)!r} holds {strange!r}, which is no weight; save model.state_dict() alone.")
    wanted = net.state_dict()
    missing, unknown = [k for k in wanted if k not in weights], [k for k in weights if k not in wanted]
    if missing or unknown:
        raise AssayError(
            f"The weights in {path.name} are not those of {source.builder} ({_some('missing', missing)}, "
            f"{_some('unexpected', unknown)}); build the network that they were saved from."
        )
    for name, value in wanted.items():
        if value.shape != weights[name].shape:
            raise AssayError(
                f"{name!r} in {path.name} has shape {tuple(weights[name].shape)}, and in {source.builder} "
                f"{tuple(value.shape)}; build the network that it was saved from."
            )
    net.load_state_dict(dict(weights))
    return Opened(model=net.eval(), name=path.name, about=f"{source.builder} with the weights of {path.name}.")


def _built(builder: str) -> nn.Module:
    """What the function returns; it is FILE.py:FUNCTION, or MODULE:FUNCTION of an installed package."""
    where, _, function = builder.rpartition(":")
    if not where or not function:
        raise AssayError(f"--builder {builder!r} is not FILE.py:FUNCTION or MODULE:FUNCTION; write net.py:build.")
    if where.endswith(".py"):
        path = Path(where)
        if not path.is_file():
            raise AssayError(f"There is no file {where!r} for --builder; check the path.")
        made = call(path, function)
    else:
        try:
            made = getattr(importlib.import_module(where), function)()
        except Exception as e:  # the user's own code raises what it likes
            what = " ".join(str(e).split()) or "no message"
            raise AssayError(f"--builder {builder} raised {type(e).__name__}: {what}; mend it there.") from e
    if not isinstance(made, nn.Module):
        raise AssayError(f"--builder {builder} returned {type(made).__name__}; return the torch.nn.Module to fill.")
    return made


def _some(what: str, names: list[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return f"{what} {', '.join(names[:SHOWN])}{more}" if names else f"none {what}"
