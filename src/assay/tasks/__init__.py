"""What a model is asked for, one file a task (or two that are one idea): `Task` says what each of them gives.

`find` knows each by its name, ours and those that third parties put beside them by the entry point `assay.tasks`.
"""

from __future__ import annotations

import re
from typing import Any

from assay import shelf
from assay.errors import AssayError
from assay.tasks.classification import Classification, Labels, admitted
from assay.tasks.control import Control
from assay.tasks.detection import Detection
from assay.tasks.forecast import Forecast
from assay.tasks.image_to_image import ImageToImage
from assay.tasks.pairs import Comparison, Ranking, Similarity
from assay.tasks.regression import Regression
from assay.tasks.retrieval import Retrieval
from assay.tasks.search import Search
from assay.tasks.segmentation import Segmentation
from assay.tasks.tagging import Tagging
from assay.tasks.task import Focus, Task, Trivial

__all__ = [
    "OURS",
    "Classification",
    "Comparison",
    "Control",
    "Detection",
    "Focus",
    "Forecast",
    "ImageToImage",
    "Labels",
    "Ranking",
    "Regression",
    "Retrieval",
    "Search",
    "Segmentation",
    "Similarity",
    "Tagging",
    "Task",
    "Trivial",
    "admitted",
    "find",
]


def spelt(task: type[Task]) -> str:
    """The name of a task as it is typed: ImageToImage is image-to-image."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "-", task.__name__).lower()


OURS: dict[str, type[Task]] = {
    spelt(task): task
    for task in (
        Classification, Control, Detection, Forecast, ImageToImage, Labels, Ranking, Regression, Retrieval,
        Segmentation, Similarity, Tagging,
    )
}  # fmt: skip


def find(name: str) -> type[Task]:
    """The task of this name, or an error that says which is the nearest."""
    if name in OURS:
        return OURS[name]
    found: Any = shelf.theirs("tasks", name, OURS)
    if not (isinstance(found, type) and issubclass(found, Task)):
        raise AssayError(f"The task {name!r} is {found!r}, which is no assay.tasks.Task; name a subclass of it.")
    return found
