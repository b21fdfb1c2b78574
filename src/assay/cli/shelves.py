"""assay probes, remedies and subjects: what stands on the shelves."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from assay.cli.meter import metered
from assay.cli.printing import console
from assay.errors import AssayError

if TYPE_CHECKING:
    from assay.shelf import Shelf


def probes() -> None:
    """List the questions that there are to ask.

    Example: assay probes
    """
    _list("probes", lambda found: (found.question(), found.source))


def remedies() -> None:
    """List what can be done about a model that fails.

    Example: assay remedies
    """
    _list("remedies", lambda found: (found.promise(), found.source))


def subjects() -> None:
    """List the models that come with Assay.

    Example: assay subjects
    """
    _list("subjects", lambda found: (found.says, found.source))


def _list(name: Shelf, about: Callable[[Any], tuple[str, str]]) -> None:
    from assay import shelf
    from assay.report.terminal import table

    told = table("name", "what it is", "source")
    with metered() as meter:
        for each in shelf.names(name):
            meter.doing(f"loading {each}")
            try:
                told.add_row(each, *about(shelf.load(name, each)))
            except AssayError as e:  # a third party's that does not load must not hide the others
                told.add_row(each, str(e), "")
    console().print(told)
