"""A benchmark as a module, for tests of what it tells."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).parents[1] / "benchmarks"


@contextmanager
def bench_called(name: str) -> Iterator[ModuleType]:
    """`benchmarks/<name>.py`, loaded as Python does a script; what it names finds itself only inside."""
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(FOLDER)
        patch.setitem(sys.modules, name, module)  # where its dataclasses look for their names
        spec.loader.exec_module(module)
        yield module
