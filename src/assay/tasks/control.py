"""What to do, observation by observation: an action out of several.

A target is the action that a reference takes (for a policy that is under test, what it does itself where nobody has
touched the observation), so an answer scores 1 where the action is the same. What a run of actions earns is a matter of
the environment and of whole episodes, and no property of one answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from numpy.typing import NDArray

from assay.tasks.classification import Classification
from assay.tasks.task import Trivial


@dataclass(frozen=True)
class Control(Classification):
    """The model returns one logit per action; `classes` names the actions. The largest is taken."""

    headline: ClassVar[str] = "agreement with the reference"
    good: ClassVar[str] = "is the action of the reference"
    output: ClassVar[str] = "(n, k) logits, one for each action"

    def trivial(self, targets: NDArray[Any]) -> Trivial:
        return Trivial("always takes the commonest action", super().trivial(targets).out)
