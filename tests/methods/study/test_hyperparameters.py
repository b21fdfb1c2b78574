"""Fifteen knobs: what may be typed, what is read of it, and that no knob reaches a seed."""

from __future__ import annotations

import pytest

from assay.errors import AssayError
from assay.methods.study.hyperparameters import (
    BY_NAME,
    KNOBS,
    OPTIMISERS,
    REASONS,
    checked,
    effective,
    from_defaults,
    reasons,
)

NEEDED = {"epochs": "10", "batch-size": "32", "loss": "cross-entropy", "optimiser": "adam"}


def test_there_are_fifteen_with_the_printed_defaults():
    printed = {
        "learning-rate": 0.001, "weight-decay": 0, "momentum": 0, "rho": 0.9, "lambda": 0.75, "alpha": 0.99,
        "epsilon": 1e-5, "learning-rate-decay": 0, "initial-accumulator": 0, "beta1": 0.9, "beta2": 0.999,
    }  # fmt: skip
    assert len(KNOBS) == 15
    assert {k.name: k.default for k in KNOBS if not k.mandatory} == printed
    assert [k.name for k in KNOBS if k.mandatory] == list(NEEDED)
    assert not any("seed" in k.name or "split" in k.name for k in KNOBS)
    assert len(REASONS) == 5


def test_what_is_left_out_has_its_default_and_what_was_typed_is_read():
    found = checked({**NEEDED, "learning-rate": "1.0e-3", "beta1": ""}, most_epochs=30)
    assert list(found) == [k.name for k in KNOBS]
    assert found["learning-rate"] == 0.001
    assert found["epochs"] == 10
    assert isinstance(found["epochs"], int)
    assert from_defaults(found)
    assert not from_defaults({**found, "rho": 0.8})


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"epochs": None}, "epochs has no default and was not given; choose a whole number from 1 to 30"),
        ({"loss": ""}, "loss has no default and was not given; choose one of cross-entropy"),
        ({"epochs": "31"}, "epochs '31' is out of its range; give a whole number from 1 to 30"),
        ({"epochs": "2.5"}, "whole number"),
        ({"batch-size": "0"}, "batch-size '0' is out of its range"),
        ({"learning-rate": "nan"}, "learning-rate 'nan' is out of its range"),
        ({"learning-rate": "fast"}, "learning-rate 'fast' is out of its range"),
        ({"learning-rate": "-1"}, "give a number from 1e-08 to 10"),
        ({"optimiser": "lion"}, "optimiser 'lion' is none; choose one of sgd"),
        ({"seed": "3"}, "There is no hyper-parameter 'seed'"),
    ],
)
def test_what_cannot_be_is_said_in_a_line(given, says):
    with pytest.raises(AssayError, match=says) as told:
        checked({**NEEDED, **given}, most_epochs=30)
    assert "\n" not in str(told.value)


def test_reasons_are_numbers_from_one_to_five():
    assert reasons({"epochs": "1", "loss": "", "rho": None}) == {"epochs": 1}
    for given in ({"epochs": "6"}, {"epochs": "because"}, {"seed": "1"}):
        with pytest.raises(AssayError):
            reasons(given)


@pytest.mark.parametrize("optimiser", OPTIMISERS)
def test_what_an_optimiser_does_not_read_makes_no_difference(optimiser):
    one = checked({**NEEDED, "optimiser": optimiser}, most_epochs=30)
    read = effective(one)
    assert {"epochs", "batch-size", "loss", "optimiser", "learning-rate", "weight-decay"} <= set(read)
    assert len(read) < 15
    for knob in KNOBS:
        if knob.name not in read:
            assert effective({**one, knob.name: 0.123}) == read
    assert BY_NAME["lambda"].read_by == ("asgd",)
