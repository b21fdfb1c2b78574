"""Ranking pixels by spread, asked of subjects whose spread is known: perfect, none, everywhere alike, and cut."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from assay.data.held_out import Part
from assay.data.marked import Marked
from assay.data.stained_cells import make_fields
from assay.errors import AssayError
from assay.finding import Finding
from assay.nn.members import Drawn, Ensemble
from assay.probe import put
from assay.probes.sure.does_it_know_where_it_is_wrong import WRONG, DoesItKnowWhereItIsWrong
from assay.run import Run
from assay.subject import Subject
from assay.tasks import ImageToImage

IN_BOXES = "partial area in boxes, strange"


class Says(nn.Module):
    """Adds `by` to bright pixels of the image: members with other numbers are apart there and nowhere else."""

    def __init__(self, by: float) -> None:
        super().__init__()
        self.by = nn.Parameter(torch.tensor(by))

    def forward(self, x: Tensor) -> Tensor:
        return 0.5 * x + self.by * (x > 0.9)


def images(n: int = 30, side: int = 12) -> tuple[np.ndarray, np.ndarray, np.ndarray]:  # type: ignore[type-arg]
    """Dim noise with one bright square each; the truth is half of the image, the box lies around the square."""
    rng = np.random.default_rng(0)
    x = 0.8 * rng.random((n, 1, side, side))
    boxes = np.zeros((n, 1, 4), dtype=int)
    for k, (left, top) in enumerate(rng.integers(0, side - 4, (n, 2))):
        x[k, 0, top : top + 4, left : left + 4] = 1.0
        boxes[k, 0] = left, top, left + 4, top + 4
    return x.astype(np.float32), (0.5 * x).astype(np.float32), boxes


def subject(*by: float, draws: int = 1, model: nn.Module | None = None) -> Subject:
    x, y, boxes = images()
    made = model or Ensemble([Says(b) for b in by], average="answers")
    made_of = Subject.of(
        made.eval(), {"test": (x, y)}, ImageToImage((1, 12, 12), 0.2), domains={"strange": Marked(x, y, boxes)}
    )
    return replace(made_of, draws=draws)


def asked(of: Subject, run: Run, **settings: float) -> Finding:
    answer = put(DoesItKnowWhereItIsWrong(**settings), of, replace(run, debug=True))  # type: ignore[arg-type]
    assert answer.finding is not None, answer.why
    return answer.finding


def value(finding: Finding, name: str) -> float | None:
    return finding.measure(name).value


def test_members_that_are_apart_where_they_are_wrong_rank_perfectly(run: Run) -> None:
    found = asked(subject(0.1, 0.7), run)
    assert value(found, WRONG) == pytest.approx(0.2)
    assert value(found, IN_BOXES) == pytest.approx(0.2)
    assert value(found, "partial area of each image in boxes, strange") == pytest.approx(0.2)
    assert value(found, "precision and recall at their number in boxes, strange") == 1
    assert found.measure(WRONG).beside[0].value == pytest.approx(0.02)
    assert {view.name for view in found.views} == {"roc", "at-k", "boxes-strange"}
    assert found.alarms == ()
    assert found.samples is not None
    assert found.samples.columns["wrong"] == pytest.approx(np.full(30, 16 / 144))


def test_members_that_are_alike_are_at_chance_and_an_alarm_says_so(run: Run) -> None:
    found = asked(subject(0.4, 0.4), run)
    assert value(found, IN_BOXES) == pytest.approx(0.02, abs=0.01)
    assert any("no uncertainty available" in alarm.says for alarm in found.alarms)
    assert value(found, "spread goes with the error") is None  # undefined, and told
    assert any("undefined for every image" in alarm.says for alarm in found.alarms)


def test_where_nothing_is_wrong_there_is_nothing_to_find(run: Run) -> None:
    found = asked(subject(-0.01, 0.01), run)
    assert value(found, WRONG) is None
    assert "there is none to find" in found.says
    assert value(found, IN_BOXES) == pytest.approx(0.2)


def test_one_answer_has_no_uncertainty_available_and_classifiers_are_left_alone() -> None:
    probe = DoesItKnowWhereItIsWrong()
    why = probe.why_not(subject(model=Says(0.1)))
    assert why is not None
    assert why.startswith("no uncertainty available")
    x, y = images()[:2]
    chosen = Subject.classifier(nn.Sequential(nn.Flatten(), nn.Linear(144, 2)), (x, y[:, 0, 0, 0] > 0.2))
    assert "answer an image with an image" in (probe.why_not(chosen) or "")


class Shaky(Says):
    """A pass adds a random number to bright pixels."""

    def forward(self, x: Tensor) -> Tensor:
        return 0.5 * x + (self.by + torch.randn(len(x), 1, 1, 1)) * (x > 0.9)


def test_a_random_model_is_asked_by_its_draws(run: Run) -> None:
    found = asked(subject(model=Drawn(Shaky(0.5), 4), draws=4), run)
    assert value(found, IN_BOXES) == pytest.approx(0.2)


def test_boxes_follow_their_rows_and_background_and_thinning_leave_pixels_out(run: Run) -> None:
    whole = subject(0.1, 0.7)
    data = whole.data["strange"]
    part = replace(whole, data={**whole.data, "strange": Part(data, np.arange(29, -1, -1))})
    assert value(asked(part, run), IN_BOXES) == pytest.approx(0.2)
    dark = asked(whole, run, background=0.45)
    assert value(dark, IN_BOXES) is None  # only the boxes are as bright as that
    assert any("every pixel that counts is one" in alarm.says for alarm in dark.alarms)
    assert value(asked(whole, run, thin=10), IN_BOXES) == pytest.approx(0.2)
    assert value(asked(whole, run, most=1.0), IN_BOXES) == pytest.approx(1.0)
    for wrong in ({"most": 0.0}, {"most": 1.5}, {"thin": 0}):
        with pytest.raises(AssayError, match="does-it-know-where-it-is-wrong"):
            DoesItKnowWhereItIsWrong(**wrong)  # type: ignore[arg-type]


def test_a_large_image_is_ranked_by_some_of_its_pixels(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("assay.probes.sure.does_it_know_where_it_is_wrong.KEPT", 30 * 40)
    found = asked(subject(0.1, 0.7), run)
    assert value(found, IN_BOXES) == pytest.approx(0.2)


def test_fields_without_boxes_are_no_boxes(run: Run) -> None:
    fields = make_fields(range(30), side=32)
    net = Ensemble([Says(0.1), Says(0.2)], average="answers").eval()
    data = {"test": (fields.x[:5], fields.stain[:5] / 255)}
    plain = Subject.of(net, data, ImageToImage((1, 32, 32), 0.1), domains={"clean": fields.marked()})
    assert not any("boxes" in m.name for m in asked(plain, run).measures)
