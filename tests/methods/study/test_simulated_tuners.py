"""Simulated tuners on a height that is known, and what each of them promises; on a real training: test_tuning_study."""

from __future__ import annotations

import math
from itertools import islice

import numpy as np
import pytest

from assay.errors import AssayError
from assay.methods.study.hyperparameters import BY_NAME, KNOBS, checked, from_defaults
from assay.methods.study.tuners import TUNERS, kind


def height(c):
    """Best at learning rate 0.03, better with epochs; any other value than the default costs a little."""
    off = sum(c[k.name] != k.default for k in KNOBS if not k.mandatory and k.name != "learning-rate")
    return 0.9 - 0.1 * abs(math.log10(c["learning-rate"] / 0.03)) + 0.002 * c["epochs"] - 0.02 * off


def tuned(name, index=0, tries=20, most_epochs=30):
    tuner = kind(name).tuner(np.random.default_rng([7, index]), most_epochs)
    chosen = [next(tuner)]
    for _ in range(tries - 1):
        chosen.append(tuner.send(height(chosen[-1].configuration)))
    return chosen


@pytest.mark.parametrize("name", TUNERS)
def test_every_choice_is_one_that_the_form_takes_and_has_its_reasons(name):
    if name == "tpe":
        pytest.importorskip("optuna")
    for chosen in tuned(name):
        assert checked(chosen.configuration, most_epochs=30) == chosen.configuration
        assert set(chosen.reasons) == set(BY_NAME)
        assert set(chosen.reasons.values()) <= {1, 2, 3, 4, 5}


@pytest.mark.parametrize("name", TUNERS)
def test_the_same_seed_chooses_the_same(name):
    if name == "tpe":
        pytest.importorskip("optuna")
    assert tuned(name, tries=6) == tuned(name, tries=6)
    assert any(tuned(name, tries=6) != tuned(name, other, tries=6) for other in range(1, 4))


def test_experts_and_medium_begin_with_defaults_and_novices_do_not():
    for name in ("expert", "medium"):
        assert all(from_defaults(tuned(name, i, 1)[0].configuration) for i in range(10))
    assert {tuned("expert", i, 1)[0].configuration["batch-size"] for i in range(30)} == {16, 32, 64, 128}
    assert not any(from_defaults(tuned("novice", i, 1)[0].configuration) for i in range(10))


def test_an_expert_turns_one_of_two_knobs_at_a_time_from_the_best_so_far():
    for index in range(8):
        chosen = [c.configuration for c in tuned("expert", index, 12)]
        best = chosen[0]
        for after in chosen[1:]:
            turned = [name for name in after if after[name] != best[name]]
            assert set(turned) <= {"learning-rate", "epochs", "batch-size"}
            assert len(turned) == 1
            best = after if height(after) >= height(best) else best  # a tie on the way up goes on
        assert len({tuple(c.values()) for c in chosen}) == len(chosen)  # none twice


def test_on_a_known_height_the_order_is_expert_medium_random():
    def best(name):
        return np.mean([max(height(c.configuration) for c in tuned(name, i)) for i in range(20)])

    assert best("expert") > best("medium") > best("random") > best("novice")


def test_a_stopped_try_moves_nobody():
    for name in ("expert", "medium", "novice", "random"):
        tuner = kind(name).tuner(np.random.default_rng(0), 30)
        first = next(tuner).configuration
        for _ in range(30):
            last = tuner.send(None)
        assert checked(last.configuration, most_epochs=30)
        if name == "medium":
            assert sum(last.configuration[k] != first[k] for k in first) <= 1


def test_random_draws_learning_rates_by_powers_of_ten_and_novices_evenly():
    def rates(name):
        drawn = islice(kind(name).tuner(np.random.default_rng(0), 30), 2000)
        return np.array([c.configuration["learning-rate"] for c in drawn])

    assert np.mean(rates("random") < 1e-3) == pytest.approx(2 / 5, abs=0.04)
    assert np.mean(rates("novice") < 0.1) == pytest.approx(0.1, abs=0.03)


def test_one_epoch_at_most_is_kept_to():
    for name in ("expert", "medium", "novice", "random"):
        assert {c.configuration["epochs"] for c in tuned(name, most_epochs=1)} == {1}


def test_an_unknown_tuner_is_told():
    with pytest.raises(AssayError, match="There is no tuner 'guru'; choose among expert"):
        kind("guru")
