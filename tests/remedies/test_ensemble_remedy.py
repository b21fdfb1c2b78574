from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.testing import assert_close

from assay.errors import AssayError
from assay.nn.members import Ensemble
from assay.probe import configure
from assay.remedies.ensemble import NaiveEnsemble
from assay.remedy import Cost
from assay.run import Run
from assay.subject import Subject


def test_it_trains_nets_that_answer_together_and_leaves_the_old(digits: Subject, run: Run) -> None:
    before = {k: v.clone() for k, v in digits.model.state_dict().items()}
    remedy = NaiveEnsemble(epochs=3, members=3)
    cured, again = remedy.apply(digits, run), remedy.apply(digits, run)
    assert all(torch.equal(v, before[k]) for k, v in digits.model.state_dict().items())
    assert cured.origin == ("ensemble",)
    assert isinstance(cured.model, Ensemble)
    assert not cured.model.training
    x, y = cured.data["test"].take(np.arange(300))
    each = cured.model.members(x)
    assert each.shape == (3, 300, 10)
    assert torch.equal(cured.predict(x), again.predict(x))
    assert float((cured.predict(x).argmax(1) == y).float().mean()) > 0.9
    own = [digits.predict(x), *each]  # none is the subject's own net
    assert all(not torch.equal(own[i], own[j]) for i in range(4) for j in range(i))


def test_its_cost_follows_its_settings() -> None:
    assert NaiveEnsemble(members=7).cost() == Cost(7, 7)
    assert configure(NaiveEnsemble, {"members": "3", "epochs": "2"}) == NaiveEnsemble(members=3, epochs=2)


def test_it_needs_training_data(digits: Subject) -> None:
    without = replace(digits, data={"test": digits.data["test"]})
    assert "no split 'train'" in (NaiveEnsemble().why_not(without) or "")
    assert NaiveEnsemble().why_not(digits) is None


def test_kept_weights_fit_its_frame(digits: Subject, run: Run) -> None:
    remedy = NaiveEnsemble(epochs=2, members=2)
    cured, frame = remedy.apply(digits, run), remedy.frame(digits)
    frame.model.load_state_dict(cured.model.state_dict())
    assert frame.fingerprint() == cured.fingerprint()
    assert frame.name == cured.name


def test_its_nets_can_answer_with_their_mean_logits(digits: Subject, run: Run) -> None:
    flat = replace(digits, model=nn.Sequential(nn.Flatten(), nn.Linear(64, 10)))
    logits, usual = (NaiveEnsemble(epochs=1, members=2, average=a) for a in ("logits", "probabilities"))
    cured, mean = logits.apply(flat, run), usual.apply(flat, run)
    x, _ = digits.data["test"].take(np.arange(50))
    assert isinstance(cured.model, Ensemble)
    assert_close(cured.predict(x), cured.model.members(x).mean(0))
    assert_close(mean.predict(x).softmax(1), cured.model.members(x).softmax(2).mean(0))
    frame = logits.frame(flat)
    frame.model.load_state_dict(cured.model.state_dict())
    assert_close(frame.predict(x), cured.predict(x))
    with pytest.raises(AssayError, match="averages probabilities or logits, got average='votes'"):
        NaiveEnsemble(epochs=1, members=2, average="votes").apply(flat, run)  # type: ignore[arg-type]


def test_progress_counts_the_epochs_of_all_nets(digits: Subject, run: Run) -> None:
    from collections.abc import Callable, Iterator
    from contextlib import contextmanager

    done: list[int] = []
    totals: list[int] = []

    @contextmanager
    def progress(about: str, total: int) -> Iterator[Callable[[int], None]]:
        totals.append(total)
        yield done.append

    flat = replace(digits, model=nn.Sequential(nn.Flatten(), nn.Linear(64, 10)))
    for subject in (digits, flat):  # one after the other, and together
        done.clear()
        NaiveEnsemble(epochs=2, members=3).apply(subject, replace(run, progress=progress))
        assert sum(done) == totals[-1] == 6
