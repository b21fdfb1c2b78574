"""May one map stand in: yes on a generalised linear ranker, no where the walk turns; clipping beside it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from assay.errors import AssayError
from assay.finding import Boxes, Gallery, Matrix
from assay.nn.siamese import Siamese
from assay.probe import put
from assay.probes.explained.may_one_map_stand_in import HEADLINE, LOCALS, MayOneMapStandIn
from assay.standard import judge
from assay.subject import Subject
from assay.subjects.digits_ranker import build


def ask(subject, run, **settings):
    answer = put(MayOneMapStandIn(**settings), subject, run)
    assert answer.finding is not None, answer.why
    return answer.finding


class Difference(nn.Module):
    """sigmoid(steepness * w . (a - b))"""

    def __init__(self, steepness):
        super().__init__()
        self.steepness = steepness

    def forward(self, a, b):
        w = torch.linspace(-1, 1, a.shape[1], dtype=a.dtype, device=a.device)
        return torch.sigmoid(self.steepness * ((a - b) @ w))


def linear(steepness=1.0, bounds=(0.0, 1.0)):
    x = 0.5 + 0.1 * (np.random.default_rng(0).random((60, 1, 5, 5)).astype(np.float32) - 0.5)
    values = x.reshape(60, -1) @ np.linspace(-1, 1, 25)
    model = Siamese(nn.Flatten(), Difference(steepness))
    return Subject.ranker(model, (x, values), low=-5, high=5, pairs=40, bounds=bounds)


def test_on_a_generalised_linear_ranker_all_maps_are_one(run):
    finding = ask(linear(), run, pairs=12, steps=30)
    assert finding.measure(HEADLINE).value < 0.1
    assert finding.measure(LOCALS).value == 1
    assert finding.measure("rank correlation of many steps with one").value == pytest.approx(1, abs=0.01)
    assert finding.measure("straightness of the walk to the boundary").value == pytest.approx(1, abs=1e-4)
    assert "drawn-free" not in [v.name for v in finding.views]  # no decoder
    assert judge(MayOneMapStandIn.standards[0], finding).verdict == "pass"


def test_clipped_walks_end_in_the_corner_of_the_bounds(run):
    subject = linear(bounds=(0.4, 0.6))
    rows = ask(subject, run, pairs=12, steps=200).samples.columns
    pair, _ = subject.data["test"].take(rows["index"])
    w, up = torch.linspace(-1, 1, 25), torch.from_numpy(rows["clipped c b"] > 0.5)[:, None]
    corner = torch.where((w > 0) == up, 0.6, 0.4)
    corner[:, 12] = pair[:, 0].flatten(1)[:, 12]  # where w is 0 nothing moves
    reached = torch.sigmoid((corner - pair[:, 1].flatten(1)) @ w)
    np.testing.assert_allclose(rows["clipped c b"], reached, atol=1e-4)
    assert (rows["free length b"] > rows["clipped length b"]).all()


@pytest.fixture(scope="module")
def bundled():
    return build()


def test_on_the_bundled_ranker_every_link_of_the_argument_is_measured(bundled, run):
    finding = ask(bundled, run, pairs=12, steps=60)
    rows = finding.samples.columns
    np.testing.assert_allclose(rows["free angle s m'"][rows["free found"]], 0, atol=0.01)  # on one line
    assert finding.measure("angle of many steps with one, mid-point").value < finding.measure(HEADLINE).value
    for box in ("free", "clipped"):
        assert (rows[f"{box} local"] == (rows[f"{box} angle b s"] <= 30)).all()
        straight = rows[f"{box} straightness b"]
        assert ((straight > 0) & (straight <= 1)).all()
        assert (rows[f"{box} length m"] <= rows[f"{box} length b"]).all()
    beside = {b.label: b.value for b in finding.measure(HEADLINE).beside}
    assert beside == {"a random change": 90.0, "in print, faces": 14.0}
    assert finding.measure(HEADLINE).value == pytest.approx(rows["free angle b s"].mean())
    assert finding.measure(HEADLINE + ", clipped").value == pytest.approx(rows["clipped angle b s"].mean())


def test_views_show_all_pairs_of_attacks_with_and_without_clipping(bundled, run):
    views = ask(bundled, run, pairs=4, steps=10).views
    assert [type(v) for v in views] == [Boxes, *[Matrix] * 6, Gallery]
    angle = next(v for v in views if v.name == "angle-free").values
    assert all(angle[i][i] == 0 for i in range(4))
    assert all(angle[i][j] == angle[j][i] for i in range(4) for j in range(4))
    assert len(views[-1].exhibits[0].panels) == 9
    assert all("local" in e.caption for e in views[-1].exhibits)


def test_the_gate_takes_its_limit(bundled, run):
    assert ask(bundled, run, pairs=4, steps=10, limit=180.0).measure(LOCALS).value == 1
    refused = ask(bundled, run, pairs=4, steps=10, limit=0.0)
    assert refused.measure(LOCALS).value == 0
    assert all("not local" in e.caption for e in refused.views[-1].exhibits)


def test_a_ranker_without_a_slope_has_no_maps_and_the_finding_says_so(run):
    finding = ask(linear(steepness=0.0), run, pairs=6, steps=5)
    assert finding.measure().value is None
    assert "no maps to compare" in finding.says
    assert any("has no gradient" in a.says for a in finding.alarms)
    assert finding.measure(LOCALS).value == 0


def test_bad_settings_are_refused():
    with pytest.raises(AssayError, match="limit=-1 .* at least 0"):
        MayOneMapStandIn(limit=-1)
