"""Shelves: what there is to ask, to cure with, to test. A shelf is its folder; a module loads when it is asked for.

Third parties put theirs beside ours through entry points named like the shelf: `assay.probes`, `assay.remedies`,
`assay.subjects`, `assay.claims`.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.metadata
import pkgutil
from typing import Any, Literal

from assay.errors import AssayError

Shelf = Literal["probes", "remedies", "subjects", "claims"]
_ONE: dict[str, str] = {"probes": "probe", "remedies": "remedy", "subjects": "subject", "claims": "claim"}


def _modules(shelf: Shelf) -> dict[str, str]:
    package = importlib.import_module(f"assay.{shelf}")
    return {
        m.name.replace("_", "-"): f"assay.{shelf}.{m.name}"
        for m in pkgutil.iter_modules(package.__path__)
        if not (m.name.startswith("_") or m.ispkg)
    }


def _entry_points(shelf: Shelf) -> dict[str, importlib.metadata.EntryPoint]:
    return {e.name: e for e in importlib.metadata.entry_points(group=f"assay.{shelf}")}


def ours(shelf: Shelf) -> list[str]:
    """The names that come with Assay itself."""
    return sorted(_modules(shelf))


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
    theirs = _entry_points(shelf)
    if name in theirs:
        try:
            return theirs[name].load()
        except Exception as e:
            raise AssayError(
                f"The {_ONE[shelf]} {name!r} of {theirs[name].value!r} does not load: {e}; mend or uninstall it."
            ) from e
    near = difflib.get_close_matches(name, [*modules, *theirs], n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"`assay {shelf}` lists them."
    raise AssayError(f"There is no {_ONE[shelf]} {name!r}; {hint}")
