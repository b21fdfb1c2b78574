"""What a study knows of its participants and their tries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from assay.methods.study.effort import Tries

State = Literal["running", "done", "diverged", "cancelled", "out of time"]


@dataclass(frozen=True, kw_only=True)
class Try:
    """One configuration, why each value was chosen, and what came of it on the validation inputs."""

    number: int
    configuration: Mapping[str, int | float | str]
    reasons: Mapping[str, int]
    at: float
    """Seconds after the participant began."""
    state: State = "running"
    seconds: float = 0.0
    accuracy: float | None = None
    losses: tuple[float, ...] = ()
    accuracies: tuple[float, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Participant:
    """One who tunes: a person, or a program where `simulated` names one. `test` is there once it ended."""

    id: str
    months: float
    background: str = ""
    simulated: str = ""
    began: float = 0.0
    tries: tuple[Try, ...] = ()
    final: int | None = None
    """The number of the try that was named in the end."""
    test: tuple[float, ...] = ()
    """Test accuracies of the final configuration, one for each of the seeds."""

    @property
    def accuracies(self) -> Tries:
        return [t.accuracy for t in self.tries]

    @property
    def ended(self) -> bool:
        return bool(self.test)

    def best(self) -> Try | None:
        """The try of the highest validation accuracy, the first of several."""
        known = [t for t in self.tries if t.accuracy is not None]
        return max(known, key=lambda t: t.accuracy or 0.0) if known else None
