"""Whether an answer hangs on where a thing stands: of classes, of classes of pixels, of boxes, of images."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from assay.errors import AssayError
from assay.finding import Finding
from assay.methods.steady.where_it_stands import Frame
from assay.probe import put
from assay.probes.steady.does_it_depend_on_where_it_stands import (
    INFLUENCE,
    LEAK,
    LOST,
    DoesItDependOnWhereItStands,
    _placed,
)
from assay.run import Run
from assay.standard import judge
from assay.subject import Subject
from assay.tasks import Detection, ImageToImage, Segmentation

SIDE = 10


def asked(subject: Subject, run: Run, **settings: float) -> Finding:
    answer = put(DoesItDependOnWhereItStands(**settings), subject, run)
    assert answer.finding is not None, answer.why
    return answer.finding


class Brightest(nn.Module):
    """Says whether the picture has a bright pixel, anywhere or in the middle alone."""

    def __init__(self, blind: int) -> None:
        super().__init__()
        self.blind = blind

    def forward(self, x: Tensor) -> Tensor:
        seen = x[..., self.blind : SIDE - self.blind, self.blind : SIDE - self.blind]
        lead = seen.flatten(1).amax(1) - 0.5
        return torch.stack([-lead, lead], 1)


def things(blind: int, n: int = 80) -> Subject:
    """Half of the pictures hold a bright thing that touches their border everywhere: two pixels wide around it."""
    x = np.full((n, 1, SIDE, SIDE), 0.1, dtype=np.float32)
    x[1::2, :, 0:2] = x[1::2, :, :, 0:2] = 0.9
    y = np.arange(n) % 2
    return Subject.classifier(Brightest(blind), (x, y), classes=("dark", "bright"), name="things")


def test_one_that_sees_all_places_alike_passes_and_one_that_is_blind_at_the_border_fails(run: Run) -> None:
    steady = asked(things(0), run)
    assert steady.measure(LOST).value == 0
    assert judge(DoesItDependOnWhereItStands.standards[0], steady).verdict == "pass"
    # down and to the right the bright thing comes into view of the middle; up and to the left it leaves it
    shy = asked(things(2), run)
    places = next(view for view in shy.views if view.name == "places")
    assert shy.measure("score at the worst place").value == 0.5
    assert places.values[0][0] == 0.5  # type: ignore[union-attr]
    assert places.values[-1][-1] == 1.0  # type: ignore[union-attr]


def test_what_is_lost_is_the_middle_less_the_border_input_by_input(run: Run) -> None:
    """The thing is a point in the middle: moved to the border, a model that is blind there cannot see it."""
    x = np.full((60, 1, SIDE, SIDE), 0.1, dtype=np.float32)
    x[1::2, :, 3:7, 3:7] = 1.0
    subject = Subject.classifier(Brightest(3), (x, np.arange(60) % 2), classes=("dark", "bright"))
    finding = asked(subject, run, scale=0.4)
    assert finding.measure("score at the centre").value == 1.0
    assert finding.measure(LOST).value == pytest.approx(0.5)
    assert judge(DoesItDependOnWhereItStands.standards[0], finding).verdict == "fail"
    (gallery,) = [view for view in finding.views if view.name == "moved"]
    assert "score 1.00 in the middle, 0.00" in gallery.exhibits[0].caption  # type: ignore[union-attr]


def test_a_model_with_nothing_to_lose_is_doubted(run: Run) -> None:
    finding = asked(things(0), run)
    assert not finding.alarms
    blind = asked(replace(things(0), model=Brightest(SIDE // 2 - 1)), run)
    (alarm,) = blind.alarms
    assert alarm.about(LOST)
    assert judge(DoesItDependOnWhereItStands.standards[0], blind).verdict == "cannot tell"


@pytest.mark.parametrize("n", [2, 4, 8])
def test_a_few_that_are_right_everywhere_are_no_pass(n: int, run: Run) -> None:
    finding = asked(things(0, n), run)
    assert finding.measure(LOST).value == 0
    assert any(a.about(LOST) and f"on {n} inputs alone, too few" in a.says for a in finding.alarms)
    assert judge(DoesItDependOnWhereItStands.standards[0], finding).verdict == "cannot tell"


def test_without_a_gradient_the_influence_is_left_out_and_the_rest_is_asked(run: Run) -> None:
    class Cut(Brightest):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).detach()

    cut = asked(replace(things(0), model=Cut(0)), run)
    assert INFLUENCE in {m.name for m in asked(things(0), run).measures}
    assert INFLUENCE not in {m.name for m in cut.measures}
    assert judge(DoesItDependOnWhereItStands.standards[0], cut).verdict == "pass"


class Copies(nn.Module):
    """A class for each pixel: whether it is bright."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 2, 1)
        with torch.no_grad():
            self.conv.weight.copy_(torch.tensor([-1.0, 1.0]).view(2, 1, 1, 1))
            self.conv.bias.copy_(torch.tensor([0.5, -0.5]))  # type: ignore[union-attr]

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.conv(x)
        return out


def test_targets_with_places_move_along(run: Run) -> None:
    rng = np.random.default_rng(0)
    whole = rng.random((30, 4, 4)) > 0.5
    bright = np.kron(whole, np.ones((2, 2))).astype(np.float32)[:, None]  # cells of 2 x 2 survive halving
    pixels = Subject.of(Copies().eval(), (bright, bright[:, 0].astype(np.int64)), Segmentation(("dark", "bright")))
    finding = asked(pixels, run, scale=0.5)
    assert finding.measure("score at the centre").value == pytest.approx(1.0)
    assert finding.measure(LOST).value == pytest.approx(0.0, abs=1e-6)
    assert finding.measure(INFLUENCE).value == pytest.approx(1.0, abs=0.03)
    same = Subject.of(nn.Identity(), (bright, bright), ImageToImage((1, 8, 8), 0.1))
    assert asked(same, run).measure(LOST).value == 0
    frame = Frame.of(SIDE, SIDE, 0.8)
    boxes = torch.tensor([[[1, 0.0, 0.0, 0.5, 1.0], [-1, -1, -1, -1, -1]]])
    task = replace(pixels, task=Detection(("a", "b")))
    moved = _placed(task, frame, boxes, -1, 1)
    torch.testing.assert_close(moved, torch.tensor([[[1, 0.2, 0.0, 0.6, 0.8], [-1, -1, -1, -1, -1]]]))


def test_padding_shows_in_the_influence_and_in_the_leak(run: Run) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = [nn.Conv2d(1 if i == 0 else 6, 6, 3, padding=1) for i in range(3)]
        padded = nn.Sequential(*(m for layer in layers for m in (layer, nn.ReLU())), nn.Conv2d(6, 2, 1)).eval()
        x = torch.rand(40, 1, SIDE, SIDE)
    around = copy.deepcopy(padded)
    for at in (0, 2, 4):
        around[at] = nn.Conv2d(1 if at == 0 else 6, 6, 3, padding=1, padding_mode="circular")
    around.load_state_dict(padded.state_dict())
    y = (x[:, 0] > 0.5).long()
    zeros, none = (asked(Subject.of(net, (x, y), Segmentation(("a", "b"))), run) for net in (padded, around))
    assert (zeros.measure(INFLUENCE).high or 1) < 0.95
    assert none.measure(INFLUENCE).value == pytest.approx(1.0, abs=0.1)
    assert (zeros.measure(LEAK).low or 0) > max(0.02, none.measure(LEAK).high or 0)


def test_what_cannot_be_asked_is_told(run: Run) -> None:
    answers_only = replace(things(0), differentiable=False)
    assert {m.name for m in asked(answers_only, run).measures} & {INFLUENCE, LEAK} == set()
    row = Subject.classifier(nn.Linear(4, 2), (torch.rand(6, 4), torch.arange(6) % 2))
    assert "it is for images" in str(DoesItDependOnWhereItStands().why_not(row))
    tiny = Subject.classifier(
        nn.Sequential(nn.Flatten(), nn.Linear(4, 2)), (torch.rand(6, 1, 2, 2), torch.arange(6) % 2)
    )
    assert "2 x 2 pixels is too small to be moved about" in str(DoesItDependOnWhereItStands().why_not(tiny))
    with pytest.raises(AssayError, match="scale=1 leaves no room"):
        DoesItDependOnWhereItStands(scale=1)


class ByItsWeights(Brightest):
    """Has a convolution and calls it never, once or twice."""

    def __init__(self, calls: int) -> None:
        super().__init__(0)
        self.calls, self.conv = calls, nn.Conv2d(1, 1, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(self.calls):
            x = x + 0 * self.conv(x)
        return super().forward(x + 0 * nn.functional.conv2d(x, self.conv.weight, padding=1))


@pytest.mark.parametrize("calls", [0, 1, 2])
def test_a_last_convolution_that_shows_no_one_map_leaves_its_leak_out_and_the_rest_stands(run: Run, calls: int) -> None:
    finding = asked(replace(things(0), model=ByItsWeights(calls), layers={}), run)
    assert (LEAK in [m.name for m in finding.measures]) == (calls == 1)
    assert finding.measure(LOST).value == 0
    assert finding.measure(INFLUENCE).value
