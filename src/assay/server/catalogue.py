"""What stands on the shelves, as JSON: `python -m assay.server.catalogue FILE`, a child, as it loads torch."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from assay import shelf
from assay.errors import AssayError
from assay.probe import OTHER, THEMES
from assay.store import strict_json, write_atomically


def catalogue() -> dict[str, list[dict[str, Any]]]:
    return {
        "subjects": list(_told("subjects", lambda s: {"says": s.says})),
        "probes": list(_told("probes", lambda p: {"says": p.question(), "quick": p.in_quick, "theme": p.theme()})),
        "remedies": list(_told("remedies", lambda r: {"says": r.promise()})),
        "themes": [{"name": name, "says": says} for name, says in THEMES],
    }


def _told(name: shelf.Shelf, about: Callable[[Any], dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for each in shelf.names(name):
        try:
            found = shelf.load(name, each)
            told = {"name": each, "source": found.source, **about(found)}
        except AssayError as e:  # a third party's that does not load must not hide the others
            told = {"name": each, "source": "", "says": str(e), "quick": False, "theme": OTHER}
        yield told


if __name__ == "__main__":
    write_atomically(Path(sys.argv[1]), strict_json(catalogue()))
