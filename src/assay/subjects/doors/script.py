"""A subject out of the user's own Python file."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.abc
import importlib.machinery
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from assay.code import SCRIPT, is_beside
from assay.errors import AssayError

if TYPE_CHECKING:
    from assay.subject import Subject
    from assay.subjects import Source
    from assay.subjects.doors.opened import Opened


def open(path: Path, source: Source) -> Opened | Subject:
    """Run the user's function: it returns a Subject, a model and its data, or a model to go with --data."""
    from assay.subject import Subject
    from assay.subjects import doors

    text = source.subject
    made = call(path, text.rpartition(":")[2] if ".py:" in text else "")
    if isinstance(made, Subject):
        return made
    model, data = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
    with suppress(doors.Unopened):
        return dataclasses.replace(doors.of_object(model), data=data)
    what = f"a tuple of {', '.join(type(m).__name__ for m in made)}" if isinstance(made, tuple) else type(made).__name__
    raise AssayError(
        f"{text} returned {what}; return an assay.Subject, a model (nn.Module, estimator, function), or (model, data)."
    )


def call(path: Path, function: str) -> Any:
    """What `function` in the file at `path` returns.

    The file is run by itself, under a name that no other module has, with its folder on the import path meanwhile, so
    that it finds what lies beside it. What an earlier call loaded in this way is loaded anew. No bytecode is read or
    written, which Python takes for that of the file if size and second agree: the answer is always that of the files
    as they are.
    """
    with _beside(path):
        build = _function(path, function)
        try:
            return build()
        except AssayError:
            raise
        except (Exception, SystemExit) as e:
            raise AssayError(_told(e, path, f"{path}:{function}")) from e


def found(path: Path, function: str) -> Callable[[], Any]:
    """The function itself, or the class of that name, likewise: who calls it later finds what it had imported."""
    with _beside(path):
        return _function(path, function)


def _function(path: Path, function: str) -> Callable[[], Any]:
    module = _run(path)
    there = [n for n, f in vars(module).items() if inspect.isfunction(f) and f.__module__ == module.__name__]
    build: Callable[[], Any] | None = getattr(module, function, None) if function else None
    if not callable(build):
        missing = f"There is no function {function!r} in {path}" if function else f"{path} lacks a function's name"
        mend = f"give {path}:{there[0]} (it has: {', '.join(there)})" if there else "write one: def build(): ..."
        raise AssayError(f"{missing}; {mend}.")
    return build


class _Fresh(importlib.machinery.SourceFileLoader):
    """Compiles the file that is there."""

    def path_stats(self, path: Any) -> Any:
        raise OSError("no bytecode is looked for")


_loaded: set[str] = set()
"""The modules that scripts have loaded from their folders."""


@contextmanager
def _beside(path: Path) -> Iterator[None]:
    folder = str(path.resolve().parent)
    for name in _loaded:  # also those of another folder, which may have the same names
        sys.modules.pop(name, None)
    _loaded.clear()
    before, hook = set(sys.modules), _finder(folder)
    sys.path.insert(0, folder)
    sys.path_hooks.insert(0, hook)
    for known in [p for p in sys.path_importer_cache if is_beside(p, folder)]:
        del sys.path_importer_cache[known]
    try:
        yield
    finally:
        if folder in sys.path:
            sys.path.remove(folder)
        if hook in sys.path_hooks:
            sys.path_hooks.remove(hook)
        new = {
            n: getattr(sys.modules[n], "__file__", None)
            for n in set(sys.modules) - before
            if n[: len(SCRIPT)] != SCRIPT
        }
        _loaded.update(name for name, file in new.items() if isinstance(file, str) and is_beside(file, folder))


def _finder(folder: str) -> Callable[[str], Any]:
    """How Python finds modules in this folder and below; elsewhere its own ways go on."""
    kinds = (
        (importlib.machinery.ExtensionFileLoader, importlib.machinery.EXTENSION_SUFFIXES),
        (_Fresh, importlib.machinery.SOURCE_SUFFIXES),
    )

    def hook(path: str) -> Any:
        if not is_beside(path, folder):
            raise ImportError
        return importlib.machinery.FileFinder(path, *kinds)

    return hook


def _run(path: Path) -> ModuleType:
    full = path.resolve()
    name = f"{SCRIPT}{full.stem}_{hashlib.blake2b(str(full).encode(), digest_size=4).hexdigest()}"
    spec = importlib.util.spec_from_file_location(name, full)
    if spec is None or not isinstance(spec.loader, importlib.abc.InspectLoader):
        raise AssayError(f"{path} cannot be imported as Python; give a .py file.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # stays: the classes in it are found by this name, when their source is hashed
    try:
        exec(spec.loader.source_to_code(full.read_bytes(), str(full)), vars(module))
    except AssayError:
        raise
    except (Exception, SystemExit) as e:
        raise AssayError(_told(e, path, str(path))) from e
    return module


def _told(e: BaseException, path: Path, who: str) -> str:
    """One line: what was raised, and on which line of the user's file."""
    file = str(path.resolve())
    lines = [f.lineno for f in traceback.extract_tb(e.__traceback__) if f.filename == file]
    what = " ".join(str(e).split()) or "no message"
    if isinstance(e, SyntaxError) and e.filename == file:
        lines, what = [e.lineno], e.msg
    where = f" on line {lines[-1]}" if lines else ""
    return f"{who} raised {type(e).__name__}{where}: {what}; mend it there."
