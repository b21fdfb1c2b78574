"""A subject out of the user's own Python file."""

from __future__ import annotations

import hashlib
import importlib.abc
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from assay.errors import AssayError


def call(path: Path, function: str) -> Any:
    """What `function` in the file at `path` returns.

    The file is run by itself, under a name that no other module has, with its folder on the import path meanwhile, so
    that it finds what lies beside it. No bytecode is read or written: the answer is always that of the file as it is.
    """
    with _beside(path):
        module = _run(path)
        there = [n for n, f in vars(module).items() if inspect.isfunction(f) and f.__module__ == module.__name__]
        build = getattr(module, function, None) if function else None
        if not callable(build):
            missing = f"There is no function {function!r} in {path}" if function else f"{path} lacks a function's name"
            mend = f"give {path}:{there[0]} (it has: {', '.join(there)})" if there else "write one: def build(): ..."
            raise AssayError(f"{missing}; {mend}.")
        try:
            return build()
        except AssayError:
            raise
        except (Exception, SystemExit) as e:
            raise AssayError(_told(e, path, f"{path}:{function}")) from e


@contextmanager
def _beside(path: Path) -> Iterator[None]:
    folder = str(path.resolve().parent)
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        if folder in sys.path:
            sys.path.remove(folder)


def _run(path: Path) -> ModuleType:
    full = path.resolve()
    name = f"assay_subject_{full.stem}_{hashlib.blake2b(str(full).encode(), digest_size=4).hexdigest()}"
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
