"""Assay finds out whether a neural network can be trusted before anyone relies on it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from assay import report
from assay.audit import Audit, open_audit
from assay.claim import Claim, Evidence, Published
from assay.errors import AssayError
from assay.finding import Alarm, Finding, Measure, Table, Witnesses
from assay.jobs.audit import audit
from assay.probe import Probe
from assay.remedy import Remedy
from assay.run import Run
from assay.standard import Standard
from assay.version import __version__ as __version__

if TYPE_CHECKING:
    from assay.subject import InputSpace, Subject
    from assay.tasks import Classification, Labels, Ranking, Regression, Similarity, Task

__all__ = [
    "Alarm",
    "AssayError",
    "Audit",
    "Claim",
    "Classification",
    "Evidence",
    "Finding",
    "InputSpace",
    "Labels",
    "Measure",
    "Probe",
    "Published",
    "Ranking",
    "Regression",
    "Remedy",
    "Run",
    "Similarity",
    "Standard",
    "Subject",
    "Table",
    "Task",
    "Witnesses",
    "audit",
    "open_audit",
]
TASKS = ("Classification", "Labels", "Regression", "Ranking", "Similarity", "Task")
Audit.framed, Audit.printed = report.framed, report.printed


def __getattr__(name: str) -> Any:
    """What needs torch loads when it is first asked for: `assay --help` and a stored audit do without."""
    if name in ("Subject", "InputSpace"):
        import assay.subject

        return getattr(assay.subject, name)
    if name in TASKS:
        import assay.tasks

        return getattr(assay.tasks, name)
    raise AttributeError(f"module 'assay' has no attribute {name!r}")
