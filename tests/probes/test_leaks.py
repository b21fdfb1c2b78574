"""Training inputs among those that a model is judged by: found bit for bit, told, and the numbers doubted."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from assay.data.arrays import Arrays
from assay.engine.local import ThisProcess
from assay.finding import Measure
from assay.probes._leaks import leaked_domains, seen_in_training
from assay.probes.sure.confidence_under_shift import ConfidenceUnderShift
from assay.run import Run
from assay.subject import Subject

RNG = np.random.default_rng(0)
X = RNG.random((200, 5)).astype(np.float32)
Y = np.arange(200) % 2


@pytest.fixture(scope="module")
def subject():
    torch.manual_seed(0)
    far = np.concatenate([X[150:180], X[[3, 3, 7]]])  # the last three are training inputs, one of them twice
    return Subject.of(
        nn.Linear(5, 2),
        {"train": (X[:100], Y[:100]), "test": (X[100:150], Y[100:150])},
        domains={"far": (far, Y[:33]), "farther": X[150:], "hidden": X[50:80]},
    )


def test_inputs_of_any_split_are_found_in_the_training_data(subject):
    run = Run(engine=ThisProcess())
    found = seen_in_training(subject, run, {"far": np.arange(33), "farther": np.arange(50), "hidden": np.arange(4, 9)})
    assert {name: rows.tolist() for name, rows in found.items()} == {
        "far": [30, 31, 32],
        "farther": [],
        "hidden": [4, 5, 6, 7, 8],
    }
    no_train = replace(subject, data={"test": subject.data["test"]})
    assert seen_in_training(no_train, run, {"hidden": np.arange(5)})["hidden"].tolist() == []


def test_an_alarm_doubts_what_is_measured_in_that_domain_alone(subject):
    held = np.ones(40, dtype=bool)
    names = ("accuracy on far", "accuracy on farther", "accuracy", "error on hidden, 5 bins")
    measures = [Measure.proportion(name, held, better="higher") for name in names]
    alarms = leaked_domains(subject, Run(engine=ThisProcess()), measures)
    assert [alarm.doubts for alarm in alarms] == [("accuracy on far",), ("error on hidden, 5 bins",)]
    assert alarms[0].says.startswith(
        "3 of 33 (9 %) of the inputs of the domain 'far' stand in the training data too (for"
    )
    assert "example input 30" in alarms[0].says
    assert (
        leaked_domains(
            replace(subject, unlabelled={}, data={"test": subject.data["test"]}), Run(engine=ThisProcess()), measures
        )
        == ()
    )


def test_confidence_on_a_leaked_domain_is_in_doubt(subject):
    finding = ConfidenceUnderShift().ask(subject, Run(engine=ThisProcess()))
    (alarm,) = [a for a in finding.alarms if "'far'" in a.says]
    assert alarm.doubts == ("calibration error on far", "accuracy on far", "negative log-likelihood on far")
    clean = replace(subject, data={**subject.data, "far": Arrays(X[150:], Y[150:])})
    assert not any("'far'" in a.says for a in ConfidenceUnderShift().ask(clean, Run(engine=ThisProcess())).alarms)
