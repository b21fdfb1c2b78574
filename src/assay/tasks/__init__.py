"""What a model is asked for, one file a task (or two that are one idea): `Task` says what each of them gives."""

from assay.tasks.classification import Classification, Labels
from assay.tasks.pairs import Comparison, Ranking, Similarity
from assay.tasks.regression import Regression
from assay.tasks.task import Task, Trivial

__all__ = ["Classification", "Comparison", "Labels", "Ranking", "Regression", "Similarity", "Task", "Trivial"]
