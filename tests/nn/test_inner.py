"""Where a network is looked into: nowhere that has other rows than the inputs, and nowhere that is passed twice."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from assay import shelf
from assay.methods.explain.gradcam import gradcam, last_maps
from assay.methods.explain.maps import methods_for
from assay.methods.uncertainty.activations import features
from assay.nn.continuous import ContinuousNet
from assay.nn.inner import inner_points
from assay.nn.local_norm import LocalNormed, Mode, with_local_norm
from assay.nn.solve import DepthNoise
from assay.run import Run
from assay.subject import Subject

X = torch.rand(40, 1, 8, 8, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0, 0, 0] > 0.5).long()


def local(mode: Mode, rotations: int = 0, groups: int = 4) -> LocalNormed:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        plain = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(108, 2))
    return with_local_norm(plain.eval(), groups, mode, rotations=rotations)


def subject_of(model: nn.Module) -> Subject:
    return Subject.classifier(model.eval(), {"train": (X, Y), "test": (X, Y)}, name="few")


def test_a_net_that_shows_its_layers_other_rows_has_no_inner_points() -> None:
    named = {"last_conv": "net.0", "head": "net.4"}
    for mode, rotations in (("single", 3), ("single-vote", 0), ("batch", 0), ("voting", 0)):
        net = local(mode, rotations)  # type: ignore[arg-type]
        assert not net.rows_inside
        assert [name for name, _ in inner_points(nn.Sequential(net, nn.ReLU()))] == ["", "0", "1"]
        assert subject_of(net).layers == {}
        assert "gradcam" not in methods_for(net, X)
    for mode, groups in (("single", 4), ("batch", 1), ("voting", 1)):
        net = local(mode, groups=groups)  # type: ignore[arg-type]
        assert subject_of(net).layers == named
        assert "gradcam" in methods_for(net, X)
        assert features(net, X, "net.0").shape == (40, 3, 6, 6)


@pytest.mark.parametrize(
    "probe",
    ["where-does-it-look", "is-the-map-faithful", "does-the-map-need-the-model", "does-it-depend-on-where-it-stands"],
)
def test_questions_that_look_inside_leave_that_out(probe: str, run: Run) -> None:
    small = ContinuousNet((1, 8, 8), 2, DepthNoise(), grid=0.5, width=2)
    for net in (local("single", 3), small):
        found = shelf.load("probes", probe)().ask(subject_of(net), run)
        assert found.measures


def test_a_drift_that_is_asked_step_by_step_is_passed_over() -> None:
    for grid, conv in ((0.5, "stem.0"), (1.0, "depth.drift.convs.2")):
        net = ContinuousNet((1, 8, 8), 2, DepthNoise(), grid=grid, width=2).eval()
        assert subject_of(net).layers == {"last_conv": conv, "head": "head.4"}
        assert last_maps(net, X) == "head.1"  # behind the whole depth, before the mean
        assert gradcam(net, X, "head.1").heat().shape == (40, 8, 8)
