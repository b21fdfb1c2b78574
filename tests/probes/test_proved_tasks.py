"""What is proved of numbers and of several labels: closed forms, and the reason where nothing can be."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from assay.finding import Finding
from assay.probe import judge_witnesses, put
from assay.probes.proved.certified_radius import CertifiedRadius
from assay.probes.proved.how_steep import HowSteep
from assay.run import Run
from assay.subject import Subject
from assay.tasks import Labels, Regression, Retrieval

ERROR = torch.linspace(-0.36, 0.36, 20)
TOLERANCE = 0.3


def network(outputs: int = 1) -> nn.Sequential:
    rng = torch.Generator().manual_seed(0)
    net = nn.Sequential(nn.Linear(4, outputs))
    net[0].weight.data, net[0].bias.data = torch.randn(outputs, 4, generator=rng) / 2, torch.zeros(outputs)
    return net.eval()


@pytest.fixture(scope="module")
def regression() -> Subject:
    net, x = network(), 0.4 + 0.2 * torch.rand(20, 4, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        y = net(x) - ERROR[:, None]
    return Subject.of(net, {"test": (x.numpy(), y.numpy())}, Regression(("y",), (TOLERANCE,)), bounds=(0.0, 1.0))


def asked(probe: CertifiedRadius | HowSteep, subject: Subject, run: Run) -> Finding:
    answer = put(probe, subject, replace(run, debug=True))
    assert answer.finding is not None, answer.why
    return answer.finding


def test_a_linear_regression_is_certified_to_its_room_over_the_dual_norm(regression: Subject, run: Run) -> None:
    found = asked(CertifiedRadius(radius=0.1, linf_radius=0.05), regression, run)
    assert found.samples is not None
    columns, weight = found.samples.columns, network()[0].weight.detach().double()
    room = (TOLERANCE - ERROR.abs()).double().clamp_min(0).numpy()
    assert columns["right"].tolist() == (room > 0).tolist()
    for norm, order in (("l2", 2), ("linf", 1)):
        exact = room / float(weight.norm(order))
        near = exact < 0.35  # the ball stays inside the bounds
        assert (columns[f"lower {norm}"] <= exact * (1 + 1e-4) + 1e-9)[near].all()
        np.testing.assert_allclose(columns[f"lower {norm}"][near], exact[near], rtol=0.02, atol=1e-6)
        broke = near & (room > 0)
        assert (columns[f"upper {norm}"][broke] >= exact[broke] * (1 - 1e-3)).all()
    assert found.measures[0].value == np.mean(room / float(weight.norm(2)) >= 0.1)
    assert found.witnesses is not None
    assert judge_witnesses(found.witnesses, regression, run)[0].all()


def test_the_slope_of_a_linear_regression_is_the_norm_of_its_weights(regression: Subject, run: Run) -> None:
    found = asked(HowSteep(reach=0.1), regression, run)
    by = {m.name: m for m in found.measures}
    norm = float(network()[0].weight.detach().norm())
    assert by["median local constant"].value == pytest.approx(norm, rel=1e-5)
    assert by["median local constant of the margin"].value == pytest.approx(norm, rel=1e-5)
    assert by["solved exactly"].value == 1
    assert "outputs change by at most" in found.says
    assert found.samples is not None
    assert "label" not in found.samples.columns
    assert not found.alarms


def test_several_labels_keep_their_signs(run: Run) -> None:
    net = network(2)
    x = 0.3 + 0.4 * torch.rand(20, 4, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        z = net(x)
    subject = Subject.of(net, {"test": (x.numpy(), (z > 0).long().numpy())}, Labels(("a", "b")), bounds=(0.0, 1.0))
    found = asked(CertifiedRadius(radius=0.05), subject, run)
    assert found.samples is not None
    exact = (z.abs().double() / net[0].weight.double().norm(dim=1)).amin(1).detach().numpy()
    near = exact < 0.25
    assert near.any()
    np.testing.assert_allclose(found.samples.columns["lower l2"][near], exact[near], rtol=0.02, atol=1e-6)


def test_where_nothing_can_be_proved_the_reason_is_said(regression: Subject) -> None:
    probe = CertifiedRadius()
    spread = replace(regression, task=Regression(("y",), (0.3,), spread=True))
    gallery = replace(regression, task=Retrieval(("a", "b"), first=1))
    bent = replace(regression, model=nn.Sequential(nn.Linear(4, 1), nn.Tanh()).eval())
    for subject, why in (
        (spread, "task is Regression with a spread or quantiles"),
        (gallery, "task is Retrieval"),
        (replace(regression, draws=4), "random"),
        (bent, "smoothing, which does not, is of a vote among classes"),
    ):
        for each in (probe, HowSteep()):
            reason = each.why_not(subject)
            assert reason is not None
            assert why in reason
