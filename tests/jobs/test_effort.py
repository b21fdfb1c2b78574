"""The one table of what questions take: it knows every probe, and times follow inputs, steps and the model's pace."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from assay import shelf
from assay.engine.local import ThisProcess
from assay.jobs.audit import Asker, plan, rounds_of
from assay.jobs.audit.effort import EFFORTS, OTHERWISE, inputs_of, seconds_of
from assay.jobs.audit.rounds import timed
from assay.jobs.check import _asked
from assay.nn.members import Drawn
from assay.nn.tally import counted
from assay.probe import BACK
from assay.probes.proved.certified_radius import CertifiedRadius
from assay.run import BUDGETS, Run, budget
from assay.standard import Standards
from assay.subject import Subject


def test_every_probe_on_the_shelf_has_its_effort_and_no_other():
    assert set(EFFORTS) == set(shelf.ours("probes")), "a new probe needs its line in EFFORTS, counted as the others are"


def test_inputs_are_those_that_a_question_takes():
    assert inputs_of("accuracy", BUDGETS["quick"], 10_000) == 500
    assert inputs_of("worst-case-accuracy", BUDGETS["quick"], 10_000) == 200
    assert inputs_of("worst-case-accuracy", BUDGETS["full"], 10_000) == 10_000
    assert inputs_of("distance-to-failure", BUDGETS["standard"], 10_000) == 150
    assert inputs_of("distance-to-failure", budget("standard", 40), 10_000) == 40
    assert inputs_of("accuracy", BUDGETS["full"], 97) == 97


def test_time_is_linear_in_the_pace_and_grows_with_inputs_and_steps():
    for name, effort in EFFORTS.items():
        slow, slower = (seconds_of(name, BUDGETS["quick"], pace, 5000) for pace in (1.0, 2.0))
        n = inputs_of(name, BUDGETS["quick"], 5000)
        assert slower - slow == pytest.approx((effort.passes + effort.votes) * n + effort.once)
        assert seconds_of(name, budget("quick", 10), 1.0, 5000) <= slow
        longer = replace(BUDGETS["quick"], steps=40)
        assert (seconds_of(name, longer, 1.0, 5000) > slow) is (effort.longer > 0 or effort.of == "steps")


def test_the_first_to_need_what_takes_long_to_import_has_that_in_its_time():
    """Else it is put where there is no time for it, and sees no clock while it imports."""
    assert EFFORTS["how-bad-are-its-mistakes"].own - EFFORTS["accuracy"].own >= 2  # seconds for scikit-learn


class Rolling(nn.Module):
    """Two classes on either side of the mean, and a little noise in each pass."""

    def forward(self, x: Tensor) -> Tensor:  # n d -> n 2
        side = 20 * (x.mean(1) - 0.5)
        return torch.stack([-side, side], 1) + 0.1 * torch.randn(len(x), 2)


def rolling(draws: int) -> Subject:
    x = torch.rand(40, 4, generator=torch.Generator().manual_seed(0))
    model = Drawn(Rolling(), draws, rows_apart=True).eval()
    return Subject.classifier(model, {"test": (x.numpy(), (x.mean(1) > 0.5).long().numpy())}, name="r", draws=draws)


@pytest.mark.parametrize("draws", [2, 10, 15])
def test_what_votes_of_a_random_model_cost_is_what_was_counted(draws):
    """They are single passes, and were told as if each were a mean of all draws: six times too many with ten."""
    subject, name = rolling(draws), "certified-radius"
    quick = budget("quick", 6)
    with counted(subject.model) as tally:
        CertifiedRadius().ask(subject, Run(engine=ThisProcess(), budget=quick))
    found = (tally.answers + BACK * tally.slopes) / draws  # a pass that the pace is of has all draws
    effort, n = EFFORTS[name], inputs_of(name, quick, 40)
    told = seconds_of(name, quick, 1.0, 40, draws) - effort.own - effort.own_each * n
    assert told == pytest.approx(found, rel=0.15)


def test_plans_and_checks_know_how_many_draws_a_model_has():
    name, limit, standards = "certified-radius", timed("10m"), Standards()
    assert limit is not None
    planned = plan([name], standards, "10m")
    asker = Asker(rolling(10), planned, Run(engine=ThisProcess(), budget=limit), standards)
    rounds = rounds_of(limit, [question for _, question in planned], asker.begun, standards, lambda: 0.0)
    some, rounds.pace, rounds.reading = replace(limit, inputs=6), 1.0, 0.0
    assert rounds._about(0, some) == pytest.approx(seconds_of(name, some, 1.0, 40, 10))
    assert rounds._about(0, some) < seconds_of(name, some, 1.0, 40) / 5
    assert asker._about(0) == pytest.approx(seconds_of(name, limit, 1e-3, 40, 10))
    assert _asked([name], BUDGETS["quick"], 1.0, 40, 10) == "1 questions in about 60 min"
    assert _asked([name], BUDGETS["quick"], 1.0, 40) == "1 questions in about 6.5 h"


def test_a_stranger_s_question_is_guessed():
    assert seconds_of("of-a-third-party", BUDGETS["quick"], 1e-3, 5000) == pytest.approx(
        OTHERWISE.own + OTHERWISE.passes * 500 * 1e-3
    )
