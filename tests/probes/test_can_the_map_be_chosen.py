"""Can the map be chosen: never on a linear model, more often in a larger ball, and only what a fresh look confirms."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from assay.errors import AssayError
from assay.methods.explain.chosen_by_input import Chosen
from assay.probe import Probe, put
from assay.probes.explained import can_the_map_be_chosen
from assay.probes.explained.can_the_map_be_chosen import AT_ONCE, HEADLINE, PARTS, CanTheMapBeChosen, _others
from assay.run import Run
from assay.subject import Subject


def ask(subject: Subject, run: Run, **settings: Any) -> Any:
    answer = put(CanTheMapBeChosen(**settings), subject, run)
    assert answer.finding is not None, answer.why
    return answer.finding


def reason(probe: Probe, subject: Subject) -> str:
    return probe.why_not(subject) or "it applies"


@pytest.fixture
def finding(digits: Subject, run: Run) -> Any:
    return ask(digits, run, inputs=8, steps=15, radius=0.2)


def test_a_chosen_map_is_nearer_to_the_wish_than_to_the_one_that_was_there(finding: Any) -> None:
    rows = finding.samples.columns
    for m in ("gradient", "gradcam"):
        chosen = rows[f"{m}, chosen"]
        assert (chosen == (rows[f"{m}, after"] < rows[f"{m}, drift"])).all()
        assert (rows[f"{m}, after"] <= rows[f"{m}, before"] + 1e-5).all()
        assert finding.measure(f"{HEADLINE}, {m}").value == pytest.approx(chosen.mean())
        left = [a / b if b else 1 for a, b in zip(rows[f"{m}, after"], rows[f"{m}, before"], strict=True)]
        assert finding.measure(f"way to the wish that is left, {m}").value == pytest.approx(np.mean(left))
    assert finding.measure().value == max(finding.measure(f"{HEADLINE}, {m}").value for m in ("gradient", "gradcam"))
    assert finding.measure().value < 1  # nearly linear, the net leaves little to choose
    assert finding.measure("way to the wish that is left, gradient").value < 0.9  # but it is led some of the way
    assert "the class stays" in finding.says


def test_a_larger_ball_holds_the_smaller_ones(finding: Any) -> None:
    (curve,) = (v for v in finding.views if hasattr(v, "lines"))
    for line in curve.lines:
        assert line.x == (0.0, *(0.2 * p for p in PARTS))
        assert line.y[0] == 0
        assert all(a <= b for a, b in zip(line.y, line.y[1:], strict=False))
        assert line.y[-1] > line.y[1] or line.label == "gradcam"  # whose maps are often empty on this net
        share = finding.measure(f"{HEADLINE}, {line.label}").value
        assert line.y[3] == share


def test_the_slope_of_a_linear_model_is_the_same_everywhere_so_no_map_is_chosen(digits: Subject, run: Run) -> None:
    linear = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    finding = ask(replace(digits, model=linear, layers={}), run, inputs=6, steps=3)
    rows = finding.samples.columns
    assert finding.measure().value == 0
    np.testing.assert_allclose(rows["gradient, drift"], 0, atol=1e-6)
    np.testing.assert_allclose(rows["gradient, after"], rows["gradient, before"], atol=1e-6)
    assert "no gradcam map" in finding.says
    assert not finding.alarms  # noise does not move it either
    assert np.isinf(rows["gradient, smallest radius tried that does"]).all()


def _by_hand(z: Tensor) -> Tensor:
    return torch.where(z > 0, z, 0.1 * z)


def _hidden(z: Tensor) -> Tensor:
    return z * (z.detach() > 0)


class Bent(nn.Module):
    """Two layers at random, with any activation between them."""

    def __init__(self, act: Any) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(3)
            self.first, self.last = nn.Linear(64, 32), nn.Linear(32, 10)
        self.act = act

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(self.act(self.first(x.flatten(1))))
        return out


def test_an_attack_that_cannot_see_the_kinks_is_not_believed(digits: Subject, run: Run) -> None:
    def alarms(act: Any) -> tuple[Any, list[Any]]:
        subject = replace(digits, model=Bent(act).eval(), layers={})
        finding = ask(subject, run, inputs=6, steps=4, methods=("gradient",), radius=0.2)
        return finding, [a for a in finding.alarms if HEADLINE in a.doubts]

    finding, by_hand = alarms(_by_hand)
    assert finding.measure().value == 0  # which would pass
    assert any("uses >" in a.says for a in by_hand)
    assert any("found no way" in a.says for a in by_hand)
    _, hidden = alarms(_hidden)  # the comparison hides, what the attack does not find cannot
    assert [a for a in hidden if "found no way" in a.says]
    for act in (nn.ReLU6(), nn.LeakyReLU(), nn.PReLU(), nn.GELU(), nn.SiLU()):
        finding, doubts = alarms(act)
        assert finding.samples.columns["gradient, no better than noise"].sum() <= 1
        assert not any("uses" in a.says for a in doubts)
        assert finding.measure("way to the wish that is left, gradient").value < 0.98


def test_one_step_is_told_beside_the_many(finding: Any) -> None:
    for m in ("gradient", "gradcam"):
        assert finding.measure(f"{AT_ONCE}, {m}").value == pytest.approx(
            finding.samples.columns[f"{m}, at once"].mean()
        )


def test_without_room_nothing_changes(digits: Subject, run: Run) -> None:
    finding = ask(digits, run, inputs=4, steps=2, radius=0.0)
    assert finding.measure().value == 0
    assert finding.measure("way to the wish that is left, gradcam").value == pytest.approx(1)


def test_a_cheating_attack_is_not_believed(digits: Subject, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def cheat(model: Any, x: Tensor, wish: Tensor, **settings: Any) -> Chosen:
        # The wish itself has the wished map, another class, and lies far away.
        far = torch.zeros(len(x))
        return Chosen(wish, far, far, far, far)

    monkeypatch.setattr(can_the_map_be_chosen, "choose_map", cheat)
    finding = ask(digits, run, inputs=8)
    assert finding.measure().value == 0
    assert "left the ball or the class" in finding.alarms[0].says
    assert HEADLINE in finding.alarms[0].doubts


def test_every_map_on_show_has_its_verdict_beside_it(finding: Any) -> None:
    (gallery,) = (v for v in finding.views if hasattr(v, "exhibits"))
    rows = finding.samples.columns
    assert len(gallery.exhibits) == 2  # one input, two maps
    for exhibit, m in zip(gallery.exhibits, ("gradient", "gradcam"), strict=True):
        verdict = "chosen" if rows[f"{m}, chosen"][0] else "not chosen"
        assert exhibit.caption.startswith(f"{m}, {verdict} within")
        assert [p.label for p in exhibit.panels] == [
            "input", "own map", "changed", "new map", "wished from", "wished map",
        ]  # fmt: skip


def test_wishes_come_from_another_class() -> None:
    label = np.array([0, 0, 1, 1, 2, 0])
    other = _others(label)
    assert (label[other] != label).all()
    assert other.tolist() == [2, 2, 4, 4, 5, 2]
    assert _others(np.zeros(3, dtype=int)).tolist() == [1, 2, 0]


def test_where_it_does_not_apply_it_says_why(digits: Subject) -> None:
    flat = replace(digits, model=nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), layers={})
    assert "convolutional layer" in reason(CanTheMapBeChosen(methods=("gradcam",)), flat)
    assert CanTheMapBeChosen().why_not(flat) is None
    assert "gradients" in reason(CanTheMapBeChosen(), replace(digits, differentiable=False))
    assert "random" in reason(CanTheMapBeChosen(), replace(digits, draws=3))


def test_bad_settings_are_refused() -> None:
    with pytest.raises(AssayError, match="'occlusion' in methods; choose from gradient"):
        CanTheMapBeChosen(methods=("occlusion",))
    with pytest.raises(AssayError, match="inputs=1 .* at least 2"):
        CanTheMapBeChosen(inputs=1)
    with pytest.raises(AssayError, match="radius=-1"):
        CanTheMapBeChosen(radius=-1)
