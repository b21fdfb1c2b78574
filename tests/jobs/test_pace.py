"""How fast inputs are read, and that an audit with a time is told of it."""

from __future__ import annotations

import dataclasses
import time

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from assay.data.arrays import Arrays
from assay.errors import AssayError
from assay.jobs.audit import Begun
from assay.jobs.audit.pace import reading
from assay.subject import Subject


class Decoded(Arrays):
    """Each input takes a while to read, as a picture does."""

    def take(self, indices: NDArray[np.integer]) -> tuple[torch.Tensor, torch.Tensor]:
        time.sleep(2e-3 * len(indices))
        return super().take(indices)


def subject(kind: type[Arrays]) -> Subject:
    x = torch.rand(64, 3, generator=torch.Generator().manual_seed(0))
    it = Subject.classifier(torch.nn.Linear(3, 2), (x, torch.arange(64) % 2), name="few")
    data = it.data["test"]
    return dataclasses.replace(it, data={"test": kind(*data.take(np.arange(64)))})


def test_what_is_decoded_takes_longer_than_what_lies_in_memory() -> None:
    decoded = reading(subject(Decoded))
    assert decoded >= 2e-3  # which it sleeps for
    assert reading(subject(Arrays)) < decoded / 2


@pytest.mark.parametrize("seconds", [-1.0, float("inf"), "long"])
def test_a_child_that_says_something_else_is_not_believed(seconds: object) -> None:
    told = {"alarms": [], "applies": [True], "pace": 1e-3, "reading": seconds}
    with pytest.raises(AssayError, match="says that it takes"):
        Begun.from_json(told)


@pytest.mark.parametrize("draws", [0, -1, True, 1.5, "ten", None])
def test_a_child_whose_model_is_said_to_draw_never_is_not_believed(draws: object) -> None:
    """What a question takes is divided by it."""
    told = {"alarms": [], "applies": [True], "pace": 1e-3, "reading": 0.0, "subject": {"draws": draws}}
    with pytest.raises(AssayError, match="says that it answers by .* draws"):
        Begun.from_json(told)
