"""Questions that attack, as a GPU and a CPU have them: the search goes through a copy, what is found is the model's."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from assay.methods.attack import swift
from assay.methods.attack.swift import Search, Twin
from assay.probe import put, undisturbed
from assay.probes.attacked.distance_to_failure import DistanceToFailure
from assay.probes.attacked.does_it_transfer import DoesItTransfer
from assay.probes.attacked.worst_case_accuracy import WorstCaseAccuracy
from assay.probes.fair import is_it_fair
from assay.probes.proved import how_steep
from assay.probes.proved.certified_radius import CertifiedRadius
from assay.probes.steady.does_an_error_grow import DoesAnErrorGrow
from assay.probes.steady.what_do_its_defaults_cost import WhatDoItsDefaultsCost
from assay.probes.sure.does_it_know import DoesItKnow
from assay.run import Shard


@pytest.fixture(params=["GPU", "CPU"])
def searched(request, monkeypatch):
    """As if there were a GPU, or as it is here: how many inputs passed through copies."""
    passed = []
    monkeypatch.setattr(swift, "DEEP", 2)
    if request.param == "GPU":
        whole = Search.__call__
        monkeypatch.setattr(swift, "_on_gpu", lambda x: True)
        monkeypatch.setattr(swift, "Search", partial(Search, sizes=(8, 32)))
        monkeypatch.setattr(Search, "__call__", lambda self, x: (passed.append(len(x)), whole(self, x))[1])
    else:

        class Watched(Twin):
            def __init__(self, model, x):
                super().__init__(model, x)
                self.net.register_forward_pre_hook(lambda net, given: passed.append(len(given[0])))

        monkeypatch.setattr(swift, "Twin", Watched)
    swift.let_go()
    yield passed
    swift.let_go()


def none_is_copied(patch):
    patch.setattr(swift, "_fit", lambda model, x: False)


PROBES = {
    "worst": WorstCaseAccuracy(radius=0.04, l2_radius=0.3, steps=8),
    "distance": DistanceToFailure(steps=15, inputs=24),
    "carlini": DistanceToFailure(steps=10, inputs=24, attack="carlini-wagner"),
    "transfer": DoesItTransfer(radius=0.06, steps=4),
    "certified": CertifiedRadius(radius=0.2, linf_radius=0.02),
    "grows": DoesAnErrorGrow(steps=4),
}


@pytest.mark.parametrize("name", PROBES)
def test_what_is_found_is_what_a_float32_search_finds(name, digits, run, searched, monkeypatch):
    run = replace(run, budget=replace(run.budget, samples=32), debug=True)
    found = put(PROBES[name], digits, run)
    assert sum(searched) > 0
    assert found.spent.slopes > 0
    with monkeypatch.context() as patch:
        none_is_copied(patch)
        done = len(searched)
        plain = put(PROBES[name], digits, run)
        assert len(searched) == done
    assert [m.name for m in found.finding.measures] == [m.name for m in plain.finding.measures]
    for ours, theirs in zip(found.finding.measures, plain.finding.measures, strict=True):
        if ours.value is None or theirs.value is None:
            assert ours.value is theirs.value, ours.name
        else:
            assert ours.value == pytest.approx(theirs.value, rel=0.1, abs=0.07), ours.name  # two of 32
    assert [a.says for a in found.finding.alarms if "did not when judged afresh" in a.says] == []


@pytest.mark.parametrize("attack", ["steep", "defaults", "knows", "fair"])
def test_and_so_it_is_where_only_the_attack_is_asked(attack, digits, run, searched, monkeypatch):
    x, y = digits.data["test"].take(np.arange(32))
    right = digits.predict(x).argmax(1) == y

    def found():
        shard = Shard(x, y, np.arange(32), torch.Generator().manual_seed(0))
        if attack == "steep":
            return how_steep._attack(digits, shard, right, "linf", 15).isfinite()
        if attack == "defaults":
            return WhatDoItsDefaultsCost(radius=0.04, steps=5)._attacked(digits, run, shard)["held"]
        if attack == "fair":
            return is_it_fair._withstood(digits, 0.04, 5, shard)["held"]
        return DoesItKnow(radius=0.04)._attack(digits, 5, shard)["fell"]

    with undisturbed(digits.model, run):
        ours = found()
        assert searched
        none_is_copied(monkeypatch)
        assert int((ours != found()).sum()) <= 2


def test_a_random_model_and_one_whose_gradients_mislead_are_searched_as_they_are(digits, run, searched):
    run = replace(run, budget=replace(run.budget, samples=16), debug=True)
    put(WorstCaseAccuracy(radius=0.04, steps=2), replace(digits, draws=2), run)
    assert not searched
    stepped = torch.nn.Sequential(Rounds(), digits.model).eval()
    put(WorstCaseAccuracy(radius=0.04, steps=2), replace(digits, model=stepped, layers={}), run)
    assert not searched


class Rounds(torch.nn.Module):
    def forward(self, x):
        return (x * 16).round() / 16
