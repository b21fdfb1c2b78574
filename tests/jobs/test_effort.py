"""The one table of what questions take: it knows every probe, and times follow inputs, steps and the model's pace."""

from __future__ import annotations

from dataclasses import replace

import pytest

from assay import shelf
from assay.jobs.audit.effort import EFFORTS, OTHERWISE, inputs_of, seconds_of
from assay.run import BUDGETS, budget


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
        assert slower - slow == pytest.approx(effort.passes * n + effort.once)
        assert seconds_of(name, budget("quick", 10), 1.0, 5000) <= slow
        longer = replace(BUDGETS["quick"], steps=40)
        assert (seconds_of(name, longer, 1.0, 5000) > slow) is (effort.longer > 0 or effort.of == "steps")


def test_the_first_to_need_what_takes_long_to_import_has_that_in_its_time():
    """Else it is put where there is no time for it, and sees no clock while it imports."""
    assert EFFORTS["how-bad-are-its-mistakes"].own - EFFORTS["accuracy"].own >= 2  # seconds for scikit-learn


def test_a_stranger_s_question_is_guessed():
    assert seconds_of("of-a-third-party", BUDGETS["quick"], 1e-3, 5000) == pytest.approx(
        OTHERWISE.own + OTHERWISE.passes * 500 * 1e-3
    )
