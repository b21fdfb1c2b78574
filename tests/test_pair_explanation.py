"""Explaining a pair, on models small enough that the answers are known: c = sigmoid(w . (x_A - x_B))."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from assay.data.arrays import Arrays
from assay.data.pairs import Pairs
from assay.engine.local import ThisProcess
from assay.errors import AssayError, ShapeError
from assay.jobs import explain_pair as job
from assay.jobs.explain_pair import explain_pair, trials
from assay.jobs.explain_pair import scene as scenes
from assay.methods.rank.manner import Manner
from assay.methods.rank.pair_sanity import Stage
from assay.methods.rank.perception import perceive
from assay.nn.siamese import Distance, Siamese
from assay.pair_explanation import PairExplanation, Trial
from assay.run import Budget, Run
from assay.subject import Subject

SIDE, MANY = 6, 80


class Logistic(nn.Module):
    """sigmoid(w . (e1 - e2))"""

    def __init__(self, size: int, scale: float = 1.0) -> None:
        super().__init__()
        self.weight = nn.Linear(size, 1, bias=False)
        self.scale = scale

    def forward(self, e1: Tensor, e2: Tensor) -> Tensor:
        return torch.sigmoid(self.scale * self.weight(e1 - e2))


class Rotated(nn.Module):
    """An encoder that loses nothing: a rotation of the pixels; `back` is its decoder."""

    def __init__(self, size: int, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.turn = nn.Linear(size, size, bias=False)
        nn.init.orthogonal_(self.turn.weight, generator=torch.Generator().manual_seed(3))
        self.shape = shape

    def forward(self, x: Tensor) -> Tensor:
        e: Tensor = self.turn(x.flatten(1))
        return e


class Back(nn.Module):
    def __init__(self, rotated: Rotated) -> None:
        super().__init__()
        self.turn = nn.Linear(len(rotated.turn.weight), len(rotated.turn.weight), bias=False)
        self.turn.weight.data = rotated.turn.weight.data.T.clone()
        self.shape = rotated.shape

    def forward(self, e: Tensor) -> Tensor:
        x: Tensor = self.turn(e)
        return x.view(len(e), *self.shape)


def linear(*, decoder: bool = True, scale: float = 1.0, channels: int = 1) -> Siamese:
    """A generalised linear model whose gradient is the same everywhere, up to its length."""
    size = channels * SIDE * SIDE
    with torch.random.fork_rng():
        torch.manual_seed(0)
        encoder, tail = Rotated(size, (channels, SIDE, SIDE)), Logistic(size, scale)
    return Siamese(encoder, tail, Back(encoder) if decoder else None).eval()


def gradient(model: Siamese) -> Tensor:
    """w in the space of pixels, flat."""
    assert isinstance(model.encoder, Rotated)
    assert isinstance(model.tail, Logistic)
    return (model.tail.weight.weight @ model.encoder.turn.weight)[0].detach() * model.tail.scale


def subject_of(model: Siamese, *, channels: int = 1, train: bool = True, name: str = "toy") -> Subject:
    draw = np.random.default_rng(1)
    x = draw.uniform(size=(2 * MANY, channels, SIDE, SIDE)).astype(np.float32)
    values = torch.tensor(x).flatten(1).double().numpy() @ gradient(model).double().numpy()
    test = (x[:MANY], values[:MANY])
    data = {"test": test, "train": (x[MANY:], values[MANY:])} if train else test
    assert isinstance(model.tail, Logistic)
    return Subject.ranker(model, data, low=-2 * model.tail.scale, high=2 * model.tail.scale, name=name, pairs=50)


def run_of() -> Run:
    return Run(engine=ThisProcess(), budget=Budget("tiny", samples=100, steps=5, restarts=1, shown=3))


def pixels(png: bytes) -> np.ndarray:
    with Image.open(io.BytesIO(png)) as image:
        return np.asarray(image.convert("L")).astype(int)


def trial(told: PairExplanation, name: str) -> Trial:
    return next(t for t in told.trials if t.name == name)


def measure(told: PairExplanation, name: str, what: str) -> float:
    value = next(m.value for m in trial(told, name).measures if m.name == what)
    assert value is not None
    return value


@pytest.fixture(scope="module", autouse=True)
def quickly() -> Iterator[None]:
    """As on the page, with fewer draws and shorter walks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trials, "DRAWS", 4)
        patch.setattr(scenes, "STEPS", 80)
        patch.setattr(trials, "STEPS", 80)
        yield


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> tuple[PairExplanation, Subject]:
    subject = subject_of(linear())
    told = explain_pair(subject, 3, 8, run=run_of(), out=tmp_path_factory.mktemp("runs"), source=("toy.py:build",))
    return told, subject


def test_a_linear_comparison_is_explained_by_its_weights(seen: tuple[PairExplanation, Subject]) -> None:
    told, subject = seen
    model, x = subject.model, subject.pairs["test"].singles.take(np.array([3, 8]))[0]
    assert isinstance(model, Siamese)
    g = gradient(model)
    margin = float(g @ (x[0] - x[1]).flatten())
    assert told.c == pytest.approx(1 / (1 + np.exp(-margin)), abs=1e-6)
    assert told.right == pytest.approx(margin / 8 + 0.5, abs=1e-6)  # (value - value) / (2 (high - low)) + 1/2
    assert told.target == 0.5
    assert told.reached_c == pytest.approx(0.5, abs=0.005)
    assert trial(told, "agreement").outcome == "pass"
    assert measure(told, "agreement", "angle with one step") < 0.1
    assert measure(told, "agreement", "rank correlation with the map of one step") > 0.999
    assert measure(told, "agreement", "straightness of the walk") == pytest.approx(1, abs=1e-4)
    assert measure(told, "coherence", "distance to a tie") == pytest.approx(abs(margin) / float(g.norm()), rel=1e-4)
    size = g.view(SIDE, SIDE).abs()
    drawn = 255 * (size - size.min()) / (size.max() - size.min())
    assert abs(pixels(told.maps[0].panel.png) - drawn.numpy()).max() <= 1.5
    assert [m.panel.label for m in told.maps] == [
        "grey", "green on red", "red on blue", "regions, largest", "regions, mean"
    ]  # fmt: skip
    assert [c.says for c in told.checks] == ["local", trial(told, "sanity").verdict]
    change = told.reached_c  # in the unit of the pixels, not stretched
    moved = abs(np.log(told.c / (1 - told.c)) - np.log(change / (1 - change))) / float(g.norm()) ** 2
    assert [(m.low, m.high) for m in told.maps] == [
        (pytest.approx(moved * float(size.min()), rel=1e-3), pytest.approx(moved * float(size.max()), rel=1e-3))
    ] * 5


def test_a_decoder_that_loses_nothing_agrees_with_itself(seen: tuple[PairExplanation, Subject]) -> None:
    told, _ = seen
    assert trial(told, "recycling").outcome == "pass"
    assert measure(told, "recycling", "what is seen follows") == pytest.approx(1, abs=1e-4)
    assert measure(told, "recycling", "the answer follows") == pytest.approx(1, abs=1e-3)
    assert measure(told, "recycling", "same pixels") > 0.999
    assert measure(told, "coherence", "knowledge that the reader keeps") == pytest.approx(1, abs=1e-4)
    before, after, _ = told.seen
    assert abs(pixels(before.png) - pixels(told.pictures[0].png)).max() <= 1
    assert abs(pixels(after.png) - pixels(told.pictures[1].png)).max() <= 1


def test_the_walk_is_told_from_its_first_to_its_last_step(seen: tuple[PairExplanation, Subject]) -> None:
    told, _ = seen
    trace = told.walked.lines[0].y
    assert trace[0] == pytest.approx(told.c)
    assert trace[-1] == pytest.approx(told.reached_c)
    assert all(abs(b - 0.5) <= abs(a - 0.5) for a, b in pairwise(trace))  # it never jumps past it
    steps = [frame.step for frame in told.frames]
    assert steps == sorted(set(steps))
    assert (steps[0], steps[-1]) == (0, len(trace) - 1)
    assert [frame.c for frame in told.frames] == pytest.approx([trace[step] for step in steps])
    assert pixels(told.frames[0].panel.png).tolist() == pixels(told.first.panel.png).tolist()
    assert told.page.read_text(encoding="utf-8").startswith("<!doctype html>")
    with Image.open(told.page.with_name("walk.gif")) as moving:
        assert moving.n_frames == len(steps)  # type: ignore[attr-defined]
    assert told.page.parent.name == "explain-toy-3-8-to-0.5"


def test_swapped_the_other_one_is_explained_and_the_model_is_left_as_it_was(
    seen: tuple[PairExplanation, Subject], tmp_path: Path
) -> None:
    told, subject = seen
    subject.model.train()
    before = {name: t.clone() for name, t in subject.model.state_dict().items()}
    swapped = explain_pair(subject, 8, 3, target=0.5, run=run_of(), out=tmp_path)
    assert swapped.c == pytest.approx(1 - told.c, abs=1e-6)
    assert swapped.first.value == pytest.approx(told.second.value)
    assert subject.model.training
    assert all(p.requires_grad and p.grad is None for p in subject.model.parameters())
    assert all(torch.equal(before[name], t) for name, t in subject.model.state_dict().items())
    subject.model.eval()
    again = explain_pair(subject, 8, 3, target=0.5, run=run_of(), out=tmp_path)
    assert again.trials == swapped.trials
    assert again.maps == swapped.maps


def test_without_a_decoder_nothing_is_seen_and_it_says_why(tmp_path: Path) -> None:
    told = explain_pair(subject_of(linear(decoder=False)), 3, 8, target=1.0, run=run_of(), out=tmp_path)
    assert (told.seen, told.seen_maps) == ((), ())
    assert all(frame.seen is None for frame in told.frames)
    assert [t.outcome for t in told.trials if t.name in ("recycling", "coherence")] == ["not asked"] * 2
    assert measure(told, "coherence", "distance to a tie") > 0
    assert trial(told, "agreement").outcome == "pass"
    assert trial(told, "sanity").outcome != "not asked"
    page = told.page.read_text(encoding="utf-8")
    assert "Left out: this model has no decoder" in page
    assert told.reached_c > told.c


def test_a_decoder_can_be_trained_afterwards_and_says_what_it_is_worth(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job, "DECODER_STEPS", 20)
    model = linear(decoder=False)
    told = explain_pair(subject_of(model), 3, 8, decoder=True, run=run_of(), out=tmp_path, source=("toy",))
    assert model.decoder is None
    assert told.decoder
    assert told.seen
    assert "trained afterwards, on 80 inputs" in told.seen_says
    assert "that is too much to go by" in told.seen_says  # of noise in 20 steps nothing can be learnt
    assert told.seen_checks[0] == ("fail", "cannot be read: no explanation")
    assert "--decoder" in told.page.read_text(encoding="utf-8")
    with pytest.raises(AssayError, match="No decoder can be trained for 'toy'.*leave --decoder out"):
        explain_pair(subject_of(model, train=False), 3, 8, decoder=True, run=run_of(), out=tmp_path)


@pytest.mark.parametrize(("scale", "target", "even"), [(40.0, 0.5, True), (12.0, 0.5, False), (0.01, 0.53, False)])
def test_a_steep_comparison_is_not_jumped_and_a_flat_one_is_moved(scale: float, target: float, even: bool) -> None:
    """The step of the thesis, 0.5, would leave the first where it is, throw the second beyond the tie, leave the third.

    The first says 0.99998, where it is flat, and is steep at the tie: only steps of one length get there.
    """
    subject = subject_of(linear(scale=scale, decoder=False))
    scene = scenes.Scene.of(subject, 3, 8, target, run_of())
    walked = scene.walk(subject.model)
    assert float(walked.c) == pytest.approx(target, abs=0.01)
    beyond = (walked.trace - target) * np.sign(scene.c - target)
    assert float(beyond.min()) > -0.01
    assert scene.even == even


def test_image_files_are_a_pair_too(tmp_path: Path) -> None:
    subject = subject_of(linear(channels=3), channels=3)
    x = subject.pairs["test"].singles.take(np.array([3, 8]))[0]
    for k in (0, 1):
        Image.fromarray((255 * x[k].permute(1, 2, 0).numpy()).round().astype(np.uint8)).save(tmp_path / f"{k}.png")
    told = explain_pair(subject, str(tmp_path / "0.png"), tmp_path / "1.png", target=0.0, run=run_of(), out=tmp_path)
    assert told.c == pytest.approx(float(subject.model(x[None]).detach()), abs=0.02)
    assert (told.first.what, told.first.value, told.right) == ("0.png", None, None)
    assert told.says.endswith("the first is lower.") or told.says.endswith("the first is higher.")
    assert told.swapped_target == 1.0


def test_a_similarity_is_explained_by_its_distance(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    x = draw.uniform(size=(40, 1, SIDE, SIDE)).astype(np.float32)
    model = Siamese(nn.Flatten(), Distance())
    labels = np.arange(40) % 4
    pairs = Pairs.alike(Arrays(x, labels), labels, 20)
    subject = Subject.similarity(model, {"test": pairs}, threshold=1.0, name="alike")
    told = explain_pair(subject, 0, 1, run=run_of(), out=tmp_path)
    far = float(np.linalg.norm(x[0] - x[1]))
    assert told.c == pytest.approx(far, rel=1e-5)
    assert (told.target, told.swapped_target, told.right, told.ordered) == (1.0, 1.0, None, False)
    assert "the two are different, which is right." in told.says
    assert told.reached_c == pytest.approx(1, abs=0.011)
    assert measure(told, "agreement", "angle with one step") < 0.1  # straight towards the other
    assert measure(told, "coherence", "distance to a tie") == pytest.approx(far - 1, rel=1e-3)
    assert trial(told, "sanity").outcome == "not asked"  # there are no weights to draw anew
    assert "class 0" in told.page.read_text(encoding="utf-8")


def test_without_scikit_image_the_regions_are_left_out(toy: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = scenes.Scene.of(toy, 3, 8, None, run_of())
    assert len(list(job._maps(scene, scene.tied.x))) == 5
    monkeypatch.setitem(sys.modules, "skimage.segmentation", None)
    assert len(list(job._maps(scene, scene.tied.x))) == 3


def stage(likeness: float, moved: float = 0.1) -> Stage:
    alike = likeness + torch.linspace(-0.01, 0.01, 8)[:, None]
    return Stage("layer", alike, alike, torch.full((8, 1), moved))


@pytest.mark.parametrize(
    ("cascades", "says"),
    [
        ([[stage(0.1), stage(0.0)], [stage(0.2)]], "needs the model"),
        ([[stage(1.0), stage(1.0)], [stage(1.0)]], "does not need the model"),  # an edge detector
        ([[stage(0.1), stage(0.0)], [stage(0.9)]], "does not need the model"),
        ([[stage(0.7), stage(0.0)], [stage(0.2)]], "cannot tell"),
        ([[stage(0.1), stage(0.0, moved=0.0)], [stage(0.2)]], "cannot tell"),  # what cannot be moved has no map
    ],
)
def test_a_map_needs_the_model_if_it_goes_with_the_weights(cascades: list[list[Stage]], says: str) -> None:
    assert trials.needs(cascades) == says


def test_better_than_chance_is_better_than_nearly_all_of_it() -> None:
    chance = [float(k) for k in range(39)]
    told = {value: trials.beaten(value, chance) for value in (38.5, 37.5, 36.5, 20.0, 10.0)}
    assert list(told.values()) == ["pass", "pass", "cannot tell", "cannot tell", "fail"]
    assert trials.beaten(0.0, [0.0] * 39) == "fail"  # as good as chance is not better


@pytest.mark.parametrize(("sign", "outcome"), [(1, "pass"), (-1, "fail")])
def test_a_reader_says_whether_it_looks_as_asked(
    toy: Subject, sign: int, outcome: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that reads the very value, and one that reads its opposite."""
    model, run = toy.model, run_of()
    assert isinstance(model, Siamese)
    g = gradient(model).double()
    monkeypatch.setattr(trials, "_reader", lambda *_: lambda x: sign * (x.flatten(1).double() @ g))
    scene = scenes.Scene.of(toy, 3, 8, None, run)
    after = scene.walk(model).x
    others = trials.changes(scene, after - scene.a, run.rng())
    known = trials.knows(toy, scene, run)
    told, readable = trials.looks_as_asked(toy, scene, after, perceive(model, scene.a, after), others, known, run)
    odds = [float(torch.logit(torch.tensor(c))) for c in (scene.c, float(scene.walk(model).c))]
    assert told.outcome == outcome
    assert told.measures[0].value == pytest.approx(sign * abs(odds[1] - odds[0]), rel=1e-3)
    assert abs(told.measures[0].beside[0].value) < abs(told.measures[0].value or 0)
    assert readable[0].outcome == outcome


def test_a_picture_from_nowhere_cannot_be_read_however_well_the_others_can(
    toy: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader reads the very value and the decoder loses nothing: only the distance tells the two pictures apart."""
    model, run = toy.model, run_of()
    assert isinstance(model, Siamese)
    g = gradient(model)
    monkeypatch.setattr(trials, "_reader", lambda *_: lambda x: x.flatten(1).double() @ g.double())
    scene = scenes.Scene.of(toy, 3, 8, None, run)
    known, up = trials.knows(toy, scene, run), (1 if scene.up else -1) * g.view_as(scene.a) / g.norm()
    found = []
    for length in (0.2, 6.0):  # of inputs that differ by about 2.4
        after = scene.a + length * up
        others = trials.changes(scene, after - scene.a, run.rng())
        found.append(trials.looks_as_asked(toy, scene, after, perceive(model, scene.a, after), others, known, run))
    (near, (can,)), (far, (cannot,)) = found
    assert (near.outcome, can) == ("pass", ("pass", "can be read"))
    assert (far.outcome, cannot) == ("cannot tell", ("fail", "drawn from nowhere: no explanation"))
    assert "like nothing that its decoder knows" in far.says
    distances = [next(m for m in t.measures if m.name == "distance from what the decoder knows") for t in (near, far)]
    assert known is not None
    assert (distances[0].value or 0) < known.limit < (distances[1].value or 0)


@pytest.fixture(scope="module")
def toy() -> Subject:
    return subject_of(linear())


@pytest.mark.parametrize(
    ("pair", "target", "says"),
    [
        ((3, 80), None, "There is no input 80; 'test' has 80 to make pairs of, numbered 0 to 79"),
        ((-1, 8), None, "There is no input -1; 'test' has 80"),
        ((3, "nowhere.png"), None, "There is no image 'nowhere.png'; give the number of a test input"),
        ((3, 8), 1.5, "The target 1.5 is no answer of 'toy': it lies between 0 and 1; 0.5 is the tie"),
        ((3, 8), -0.1, "The target -0.1 is no answer"),
        ((3, 8), float("nan"), "The target nan is no answer"),
        ((3, 3), 0.5, "'toy' says 0.500 of this pair already, which is the target 0.5; choose another"),
    ],
)
def test_what_cannot_be_explained_is_told_in_one_line(
    toy: Subject, pair: tuple[int | str, int | str], target: float | None, says: str, tmp_path: Path
) -> None:
    with pytest.raises(AssayError) as told:
        explain_pair(toy, *pair, target=target, run=run_of(), out=tmp_path)
    assert str(told.value).startswith(says)
    assert "\n" not in str(told.value)
    assert not any(tmp_path.iterdir())


def test_an_image_of_another_size_is_refused(toy: Subject, tmp_path: Path) -> None:
    Image.new("L", (7, 5)).save(tmp_path / "odd.png")
    with pytest.raises(ShapeError, match=r"odd.png has 5 x 7 pixels and the model takes 6 x 6"):
        explain_pair(toy, 3, tmp_path / "odd.png", run=run_of(), out=tmp_path)


def test_a_classifier_has_no_pairs(digits: Subject, tmp_path: Path) -> None:
    with pytest.raises(AssayError, match="'digits' answers about one input at a time.*Give --input instead"):
        explain_pair(digits, 3, 8, run=run_of(), out=tmp_path)


def test_a_comparison_that_does_not_move_is_told(tmp_path: Path) -> None:
    model = linear()
    assert isinstance(model.tail, Logistic)
    model.tail.scale = 0.0
    subject = subject_of(linear())
    still = Subject.ranker(model, subject.data, low=-2, high=2, name="still")
    with pytest.raises(AssayError, match="The answer 0.500 of 'still' does not move with input 3: its gradient is 0"):
        explain_pair(still, 3, 8, target=0.0, run=run_of(), out=tmp_path)


def test_pairs_of_rows_are_no_images(tmp_path: Path) -> None:
    x = np.random.default_rng(0).uniform(size=(30, 5)).astype(np.float32)
    subject = Subject.ranker(Siamese(nn.Linear(5, 2), Logistic(2)), (x, x.sum(1)), name="rows")
    with pytest.raises(AssayError, match=r"A pair of inputs of shape \(5,\) is no pair of images"):
        explain_pair(subject, 0, 1, run=run_of(), out=tmp_path)


def test_a_region_holds_the_walk_and_what_chance_is_compared_with(toy: Subject) -> None:
    scene = scenes.Scene.of(toy, 3, 8, None, run_of(), Manner(region=(0, 0, 3, SIDE)))
    after = scene.walk(toy.model).x
    others = trials.changes(scene, after - scene.a, run_of().rng())
    for changed in (after, others, scene.tied.x, scene.as_far(toy.model, 1.0).x):
        assert (changed[:, :, :3] != scene.a[:, :, :3]).any()
        assert (changed[:, :, 3:] == scene.a[:, :, 3:]).all()
