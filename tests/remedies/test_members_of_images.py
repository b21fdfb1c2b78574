"""The seven ways to get uncertainty, applied to a model that answers an image with an image."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from assay import shelf
from assay.nn.members import Members
from assay.nn.translator import Translator
from assay.probe import put
from assay.probes.sure.does_it_know_where_it_is_wrong import DoesItKnowWhereItIsWrong
from assay.run import Run
from assay.subject import Subject
from assay.tasks import ImageToImage, Regression

WAYS = {
    "ensemble": {"members": 2},
    "batch-ensemble": {"members": 2},
    "snapshot": {"members": 2},
    "mc-dropout": {"draws": 3},
    "sgld": {"samples": 2, "step": 1e-4},
    "variational": {"draws": 3, "lr": 1e-3},
    "fast-ensemble": {"members": 2, "share": 0.5},
}


@pytest.fixture(scope="module")
def inverter() -> Subject:
    """Negatives of noise."""
    rng = np.random.default_rng(0)
    x = rng.random((30, 1, 8, 8), dtype=np.float32)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Translator(1, 1, width=2, levels=2)
    return Subject.of(model.eval(), {"train": (x[:10], 1 - x[:10]), "test": (x[10:], 1 - x[10:])},
                      ImageToImage((1, 8, 8), 0.3), name="inverter")  # fmt: skip


@pytest.mark.parametrize("name", WAYS)
def test_it_answers_with_the_mean_of_members_and_says_how_far_they_are_apart(
    name: str, inverter: Subject, run: Run
) -> None:
    told = {"epochs": 2, "lr": 0.01, "batch": 5, **WAYS[name]}
    remedy = shelf.load("remedies", name)(**told)
    assert remedy.why_not(inverter) is None
    cured = remedy.apply(inverter, run)
    assert isinstance(cured.model, Members)
    x, y = cured.data["test"].take(np.arange(6))
    with torch.no_grad():
        if cured.draws == 1:
            each = cured.model.members(x)
            assert_close(cured.predict(x), each.mean(0))
            assert not torch.allclose(each[0], each[1])
        assert cured.predict(x).shape == y.shape
    (said,) = remedy.remarks(cured, run)
    assert "members are" in said
    assert "apart at a pixel" in said
    framed = remedy.frame(inverter)
    framed.model.load_state_dict(cured.model.state_dict())
    if cured.draws == 1:
        assert_close(framed.predict(x), cured.predict(x))
    answer = put(DoesItKnowWhereItIsWrong(), cured, run)
    assert answer.status == "asked", answer.why
    if name == "snapshot":  # one control for all of them
        plain = remedy.control().apply(inverter, run)
        assert plain.predict(x).shape == y.shape


def test_one_member_says_that_there_is_no_uncertainty(inverter: Subject, run: Run) -> None:
    remedy = shelf.load("remedies", "ensemble")(members=1, epochs=1, lr=0.01)
    assert remedy.remarks(remedy.apply(inverter, run), run) == ("It has one member: no uncertainty available.",)


def test_other_tasks_are_left_alone(inverter: Subject) -> None:
    rng = np.random.default_rng(0)
    x = rng.random((20, 3), dtype=np.float32)
    numbers = Subject.of(
        torch.nn.Linear(3, 1), {"test": (x, x[:, :1]), "train": (x, x[:, :1])}, Regression.of(x[:, :1])
    )
    for name in WAYS:
        why = shelf.load("remedies", name)().why_not(numbers)
        assert why == "it needs answers whose mean is an answer too, and the subject's task is Regression"
