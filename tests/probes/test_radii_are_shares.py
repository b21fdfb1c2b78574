"""Every question about changes of a size, put to one network in three units: the same numbers, told in both."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from assay.engine.local import ThisProcess
from assay.errors import AssayError
from assay.finding import finding_to_json
from assay.methods.certify.points import points
from assay.nn.nearest_neighbour import NearestNeighbour
from assay.nn.read_as import Rescaled
from assay.probe import judge_witnesses, put
from assay.probes.attacked.distance_to_failure import DistanceToFailure
from assay.probes.attacked.does_it_transfer import DoesItTransfer
from assay.probes.attacked.is_the_number_real import IsTheNumberReal
from assay.probes.attacked.one_change_for_all import OneChangeForAll
from assay.probes.attacked.worst_case_accuracy import WorstCaseAccuracy
from assay.probes.compared.does_the_metric_hold import DoesTheMetricHold
from assay.probes.explained.can_the_map_be_chosen import CanTheMapBeChosen
from assay.probes.proved.certified_radius import CertifiedRadius
from assay.probes.proved.how_steep import HowSteep
from assay.probes.sure.does_it_know import DoesItKnow
from assay.run import Budget, Run
from assay.subject import Normalised, Subject

RUN = Run(engine=ThisProcess(), budget=Budget("tiny", samples=40, steps=3, restarts=1, shown=2), debug=True)
PIXELS, TABLE = (0.0, 255.0), (tuple(range(-8, 8)), tuple(10.0 * k + 20 for k in range(16)))
PROBES = (
    WorstCaseAccuracy(radius=0.1),
    DistanceToFailure(inputs=20),
    IsTheNumberReal(radius=0.1, inputs=20),
    OneChangeForAll(radius=0.1),
    DoesItTransfer(radius=0.1),
    CertifiedRadius(inputs=20),
    HowSteep(inputs=4, nodes=3),
    CanTheMapBeChosen(radius=0.1, methods=("gradient",), inputs=6),
    DoesItKnow(radius=0.1, outliers=10, taught=40),
)


def data(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(seed).random((n, 16), dtype=np.float32)
    return x, (x[:, :8].sum(1) > x[:, 8:].sum(1)).astype(np.int64)


@pytest.fixture(scope="module")
def net() -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 12), nn.ReLU(), nn.Linear(12, 2))
    x, y = map(torch.from_numpy, data(300, 1))
    optimiser = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(80):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimiser.step()
    return model.eval()


def in_units(model: nn.Module, bounds: tuple) -> Subject:
    """A model of shares as one of natural units, and its data with it."""
    low, high = (torch.as_tensor(b, dtype=torch.float32).expand(16) for b in bounds)
    splits = {
        split: (low.numpy() + x * (high - low).numpy(), y)
        for split, (x, y) in (("test", data(60, 2)), ("train", data(60, 3)))
    }
    natural = model if bounds == (0.0, 1.0) else Normalised(model, tuple(low.tolist()), tuple((high - low).tolist()), 1)
    return Subject.classifier(natural, splits, bounds=bounds)


def ask(probe, subject: Subject):
    answer = put(probe, subject, RUN)
    assert answer.status == "asked", answer.why
    assert answer.finding is not None
    return answer.finding


@pytest.fixture(scope="module")
def plain(net):
    return {probe.name(): ask(probe, in_units(net, (0.0, 1.0))) for probe in PROBES}


@pytest.mark.parametrize("bounds", [PIXELS, TABLE], ids=["pixels", "table"])
@pytest.mark.parametrize("probe", PROBES, ids=lambda p: p.name())
def test_the_numbers_are_those_of_shares_and_the_words_have_both_units(probe, bounds, net, plain) -> None:
    subject, one = in_units(net, bounds), plain[probe.name()]
    two = ask(probe, subject)
    assert [m.name for m in two.measures] == [m.name for m in one.measures]
    for a, b in zip(one.measures, two.measures, strict=True):
        assert b.value == (None if a.value is None else pytest.approx(a.value, rel=0.05, abs=0.04)), a.name
    assert (one.witnesses is None) == (two.witnesses is None)
    if two.witnesses is not None:
        assert judge_witnesses(two.witnesses, subject, RUN)[0].all()
    words = "of the range (" if bounds == PIXELS else "of each feature's range (from "
    told, bare = (json.dumps(finding_to_json(f), ensure_ascii=False) for f in (two, one))
    assert words in told
    assert "of the range" not in bare
    assert "own units" not in bare
    axes = [v.x_label for v in two.views if any(w in getattr(v, "x_label", "") for w in ("l∞", "l2 size", "l2 radius"))]
    assert all(label.endswith(", share of the range") for label in axes)
    said = {"does-it-know", "is-the-number-real", "does-it-transfer"}  # these name the radius further down only
    assert words in two.says or probe.name() in said


@pytest.mark.parametrize("probe", [type(p) for p in PROBES if not isinstance(p, DistanceToFailure)])
def test_a_radius_in_natural_units_is_refused_in_one_line(probe) -> None:
    name = {CertifiedRadius: "linf_radius", HowSteep: "reach"}.get(probe, "radius")
    with pytest.raises(AssayError, match=f"{name}=8 of .* is a share of the range .* write 8/255"):
        probe(**{name: 8})
    probe(**{name: 1})


# Nearest neighbours, seen through what stands in front of them.


def neighbours(bounds: tuple, factor: Tensor | None = None) -> Subject:
    low, high = (torch.as_tensor(b, dtype=torch.float32).expand(4) for b in bounds)
    rng = np.random.default_rng(0)
    x = rng.random((40, 4), dtype=np.float32)
    y = (x.sum(1) > 2).astype(np.int64)
    span = high - low
    given = None if factor is None else factor / span
    model = NearestNeighbour(low + torch.from_numpy(x[:30]) * span, torch.from_numpy(y[:30]), factor=given)
    return Subject.classifier(model, (low.numpy() + x[30:] * span.numpy(), y[30:]), bounds=bounds)


@pytest.mark.parametrize("metric", [False, True])
@pytest.mark.parametrize("probe", [CertifiedRadius(), DoesTheMetricHold(radius=0.1)], ids=lambda p: p.name())
def test_the_exact_radius_of_neighbours_is_that_of_shares(probe, metric: bool) -> None:
    mix = torch.randn(4, 4, generator=torch.Generator().manual_seed(0)) if metric else None
    one = ask(probe, neighbours((0.0, 1.0), mix))
    every = [PIXELS] if not metric else [PIXELS, ((0.0, -3.0, 5.0, 1.0), (1.0, 7.0, 5000.0, 1.5))]
    for bounds in every:
        two = ask(probe, neighbours(bounds, mix))
        if isinstance(probe, CertifiedRadius):
            named, column = "median exact radius, l2", "exact l2"
        else:
            named, column = "median certified radius", "radius"
            words = "0.1 of the range (25.5" if bounds == PIXELS else "0.1 of each feature's range"
            assert words in two.says
            assert two.views[0].x_label.endswith("share of the range")
        assert two.measure(named).value is not None
        for a, b in zip(one.measures, two.measures, strict=True):
            assert b.value == pytest.approx(a.value, rel=1e-3, abs=1e-4), a.name
        assert np.nan_to_num(two.samples.columns[column]) == pytest.approx(
            np.nan_to_num(one.samples.columns[column]), rel=1e-3, abs=1e-4
        )


def test_points_are_seen_through_both_wrappers_and_a_value_that_no_input_has_is_not_hidden() -> None:
    inner = NearestNeighbour(torch.tensor([[1.0, 2.0], [3.0, 2.0]]), torch.tensor([0, 1]))
    model = Rescaled(Normalised(inner, (0.5, 0.0), (2.0, 1.0), 1), torch.tensor([0.0, 2.0]), torch.tensor([10.0, 0.0]))
    seen = points(model)
    assert seen is not None
    u = torch.rand(5, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    there = (u.numpy()[:, None] - seen.x) @ seen.factor.T
    assert -(there**2).sum(2) == pytest.approx(model.double()(u).numpy(), rel=1e-6)
    other = NearestNeighbour(torch.tensor([[1.0, 2.0], [3.0, 9.0]]), torch.tensor([0, 1]))
    assert points(Rescaled(other, torch.tensor([0.0, 2.0]), torch.tensor([10.0, 0.0]))) is None
    assert points(nn.Linear(2, 2)) is None
