"""Shelves: what there is to ask, to cure with, to test. A shelf is its folder; a module loads when it is asked for.

Probes lie in folders by theme, and a name is theirs alone whatever folder it is in. Files whose name opens with an
underscore are not on a shelf. Third parties put theirs beside ours through entry points named like the shelf:
`assay.probes`, `assay.remedies`, `assay.subjects`, `assay.claims`, and `assay.tasks`, whose own room keeps ours.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.metadata
import os
import pkgutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Any, Literal

from assay.errors import AssayError

Shelf = Literal["probes", "remedies", "subjects", "claims"]
_ONE: dict[str, str] = {
    "probes": "probe", "remedies": "remedy", "subjects": "subject", "claims": "claim", "tasks": "task",
}  # fmt: skip
SETTLED = 2_000_000_000
"""Nanoseconds after which a folder's time tells whether anything came since."""


def _modules(shelf: Shelf) -> dict[str, str]:
    """The modules of a shelf by the names of what stands in them; none of them is loaded."""
    package = importlib.import_module(f"assay.{shelf}")
    paths = tuple(package.__path__)
    inner = [f.path for path in paths for f in os.scandir(path) if f.is_dir()] if shelf == "probes" else []
    where = tuple(map(_state, (*paths, *inner)))
    # A file that comes in the same tick of the clock as the last one leaves a folder's time as it was.
    settled = time.time_ns() - max(changed for _, _, changed in where) > SETTLED
    return (_kept if settled else _kept.__wrapped__)(shelf, package.__name__, paths, where)


@lru_cache(maxsize=8)
def _kept(shelf: Shelf, package: str, paths: tuple[str, ...], where: tuple[object, ...]) -> dict[str, str]:
    """Kept as long as no file comes or goes: an audit looks dozens of times, and each time all are read."""
    found: dict[str, str] = {}
    for module in _files(package, paths, folders=shelf == "probes"):
        name = module.rpartition(".")[2].replace("_", "-")
        if name in found:
            raise AssayError(f"Two files hold the {_ONE[shelf]} {name!r}: {found[name]}, {module}; rename one.")
        found[name] = module
    return found


def _files(package: str, paths: Iterable[str], folders: bool) -> Iterator[str]:
    for m in pkgutil.iter_modules(paths):
        if m.name.startswith("_"):
            continue
        if not m.ispkg:
            yield f"{package}.{m.name}"
        elif folders:
            yield from _files(f"{package}.{m.name}", [os.path.join(path, m.name) for path in paths], folders=False)


def _entry_points(shelf: Shelf | Literal["tasks"]) -> dict[str, importlib.metadata.EntryPoint]:
    where = tuple(_packages(*_state(path or os.curdir)) for path in sys.path)
    return _offered(f"assay.{shelf}", importlib.metadata.entry_points, where)


@lru_cache(maxsize=32)
def _offered(
    group: str, read: Callable[..., Iterable[importlib.metadata.EntryPoint]], where: tuple[object, ...]
) -> dict[str, importlib.metadata.EntryPoint]:
    """Kept as long as packages lie where they lay: an audit looks dozens of times, and each time all are read."""
    return {e.name: e for e in read(group=group)}


@lru_cache(maxsize=256)
def _packages(path: str, number: int, changed: int) -> tuple[str, int, int]:
    """A folder's state where packages lie; where none does, as where runs are written, it stays the same."""
    try:
        lies = any(name.endswith((".dist-info", ".egg-info", ".egg")) for name in os.listdir(path))
    except OSError:  # an archive, or nothing
        lies = True
    return (path, number, changed) if lies else (path, 0, 0)


def _state(path: str) -> tuple[str, int, int]:
    """Another where a file or a folder was put there or taken away."""
    try:
        seen = os.stat(path)
    except OSError:
        return path, 0, 0
    return path, seen.st_ino, seen.st_mtime_ns


def ours(shelf: Shelf) -> list[str]:
    """The names that come with Assay itself."""
    return sorted(_modules(shelf))


def folder(name: str) -> str | None:
    """The folder of a probe of ours, which is its theme; None where it is not ours. Nothing is loaded."""
    module = _modules("probes").get(name)
    return None if module is None else module.split(".")[-2]


def names(shelf: Shelf) -> list[str]:
    """Every name on the shelf, ours and third parties'; nothing is loaded."""
    return sorted({*_modules(shelf), *_entry_points(shelf)})


def load(shelf: Shelf, name: str) -> Any:
    """What stands under `name`: the object that a module calls `SHELVED`, or what a third party's entry point names."""
    modules = _modules(shelf)
    if name in modules:
        module = importlib.import_module(modules[name])
        if not hasattr(module, "SHELVED"):
            raise AssayError(f"{modules[name]} puts nothing on the shelf; end it with SHELVED = ...")
        return module.SHELVED
    return theirs(shelf, name, modules)


def theirs(shelf: Shelf | Literal["tasks"], name: str, ours: Iterable[str]) -> Any:
    """What a third party's entry point names, where none of `ours` has that name."""
    known = _entry_points(shelf)
    if name in known:
        try:
            return known[name].load()
        except Exception as e:
            raise AssayError(
                f"The {_ONE[shelf]} {name!r} of {known[name].value!r} does not load: {e}; mend or uninstall it."
            ) from e
    names = sorted({*ours, *known})
    near = difflib.get_close_matches(name, names, n=1)
    there = f"there are {', '.join(names)}." if shelf == "tasks" else f"`assay {shelf}` lists them."
    raise AssayError(f"There is no {_ONE[shelf]} {name!r}; {f'did you mean {near[0]!r}?' if near else there}")
