from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_digits

from assay.claim import Claim, Evidence, judged
from assay.claims import _over_seeds as over
from assay.claims import giulivi2020 as study
from assay.data import beyond
from assay.data.arrays import Arrays
from assay.errors import AssayError
from assay.methods.rank.pair_sanity import Seen
from assay.methods.train.ranker import Likeness
from assay.run import Run

CACHED = (
    study._data, study._asked, study._made, study._answers, study._drawn, study._agreed, study._map, study._walked,
    study._reader, study._read, study._gate, study._recycled, study._cascaded, study._mirrored, study._strolled,
)  # fmt: skip
KINDS: tuple[study.Kind, ...] = ("joint", "comparison only", "random targets", "unit norm", "variational")
Floats = NDArray[np.float64]


def forget() -> None:
    for each in CACHED:
        each.cache_clear()


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """MNIST is scikit-learn's digits, each pixel three times as wide and a rim around it; every effort is small."""
    for name, value in {
        "SEEDS": 2,
        "STEPS": 2,
        "BATCH": 2,
        "PAIRS": 6,
        "WALK": 3,
        "READ": 60,
        "CASCADED": 3,
        "REDRAWN": 1,
    }.items():
        monkeypatch.setattr(study, name, value)
    x, y = load_digits(return_X_y=True)
    wide = np.kron(x[:160].reshape(-1, 1, 8, 8) / 16, np.ones((3, 3)))
    images = (np.pad(wide, ((0, 0), (0, 0), (2, 2), (2, 2))) * 255).astype(np.uint8)
    names = tuple("0123456789")
    small = {"train": Arrays(images[:100], y[:100], names), "test": Arrays(images[100:], y[100:160], names)}
    monkeypatch.setattr(beyond, "mnist", lambda: small)
    forget()
    yield
    forget()


def claim(name: str) -> Claim:
    return next(c for c in study.SHELVED if c.name == name)


def ruled(name: str, evidence: Evidence) -> str:
    """The verdict that gates leave, however few the seeds."""
    return judged(replace(claim(name), seeds=0), evidence).verdict


def test_all_studies_run_on_a_few_images_and_share_their_networks(tiny: None, run: Run) -> None:
    first: dict[str, Evidence] = {}
    for each in study.SHELVED:
        evidence = first[each.name] = each.test(run)
        assert evidence.verdict in ("holds", "fails", "cannot tell")
        assert len({m.name for m in evidence.measures}) == len(evidence.measures)
        for printed, measure in zip(each.published, evidence.measures, strict=False):
            assert printed.what.removesuffix(", at least") == measure.name
            assert printed.unit == measure.unit
    assert study._made.cache_info().misses == study.SEEDS * len(KINDS)
    values = {m.name: m.value or 0.0 for m in first["joint-costs-little"].measures}
    assert values["MAE, joint less comparison only"] == pytest.approx(
        values["MAE, joint"] - values["MAE, comparison only"]
    )
    assert values["1 - MAE, joint"] == pytest.approx(1 - values["MAE, joint"])
    assert values["time of one joint training"] > 0
    said = study._answers("joint", 0, "cpu")
    study._made.cache_clear()
    study._answers.cache_clear()
    assert np.array_equal(study._answers("joint", 0, "cpu"), said)


def test_pairs_share_no_image_and_their_targets_are_the_published_ones(tiny: None) -> None:
    asked = study._asked("cpu")
    images = torch.cat([asked.a, asked.b]).flatten(1)
    assert len(images) == 60
    assert len(torch.unique(images, dim=0)) == 60
    test = study._data("cpu")["test"]
    for k in range(5):
        first, second = (int(torch.nonzero((test.x == x).flatten(1).all(1))) for x in (asked.a[k], asked.b[k]))
        assert asked.gaps[k] == test.y[first] - test.y[second]
        assert asked.values[k] == test.y[first]
        assert asked.t[k] == pytest.approx(0.5 + float(test.y[first] - test.y[second]) / 18)
    assert asked.constant.mean() == pytest.approx(np.abs(asked.gaps).mean() / 18)


def test_networks_are_twins_and_finished(tiny: None) -> None:
    models = {kind: study._made(kind, 0, "cpu").model for kind in KINDS}
    for kind, model in models.items():
        assert not model.training
        assert not any(p.requires_grad for p in model.parameters())
        asked = study._asked("cpu")
        said = study._answers(kind, 0, "cpu")
        assert said == pytest.approx(model(torch.stack([asked.a, asked.b], 1)).double().numpy(), abs=1e-6)

    def apart(one: study.Kind, other: study.Kind, seed: int = 0) -> float:
        pair = (study._made(kind, s, "cpu").model.encoder.parameters() for kind, s in ((one, 0), (other, seed)))
        return max(float((p - q).abs().max()) for p, q in zip(*pair, strict=True))

    reach = 2 * study.STEPS * 1.1e-3  # Adam goes no further than its rate in a step, or hardly
    assert 0 < apart("joint", "comparison only") < reach  # from one start
    assert 0 < apart("joint", "random targets") < reach
    assert apart("joint", "joint", seed=1) > reach
    assert apart("joint", "joint") == 0


def test_a_change_of_perception_is_counted_towards_the_target(tiny: None) -> None:
    for target in (0.0, 1.0):
        read, noise = study._read(0, "cpu", target, False)
        sign = 1 if target else -1
        assert torch.equal(read.perception_moved, sign * (read.perception[1] - read.perception[0]))
        assert torch.equal(read.image[0], noise.image[0])
        assert (read.toward == sign).all()


def made_up(monkeypatch: pytest.MonkeyPatch, off: Callable[[str, int], float], shown: float = 0.01) -> None:
    """Networks that are off by so much in each seed, up and down in turn, on 400 pairs; pictures with this error."""
    monkeypatch.setattr(study, "SEEDS", min(study.SEEDS, 2))
    gaps = np.random.default_rng(0).integers(-9, 10, 400).astype(np.float64)
    asked = study._Asked(torch.zeros(400, 1, 4, 4), torch.zeros(400, 1, 4, 4), torch.zeros(400), gaps)
    wave = np.where(np.arange(400) % 2 == 0, 1.0, -1.0) * (1 + 1e-2 * np.sin(np.arange(400.0)))

    def answers(kind: str, seed: int, device: str) -> Floats:
        said: Floats = asked.t + off(kind, seed) * wave
        return said

    monkeypatch.setattr(study, "_asked", lambda device: asked)
    monkeypatch.setattr(study, "_answers", answers)
    monkeypatch.setattr(study, "_drawn", lambda *a: Likeness(shown, 0.07))
    monkeypatch.setattr(study, "_made", lambda *a: study._Made(None, 12.0))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("joint", "verdict"),
    [
        ((0.021, 0.021), "holds"),
        ((0.045, 0.045), "cannot tell"),  # 0.025 more than the twin: how much is little, print does not say
        ((0.021, 0.045), "cannot tell"),  # the seeds disagree
    ],
)
def test_verdicts_of_the_cost(
    monkeypatch: pytest.MonkeyPatch, run: Run, joint: tuple[float, float], verdict: str
) -> None:
    made_up(monkeypatch, lambda kind, seed: joint[seed] if kind == "joint" else 0.02)
    evidence = study.costs_little(run)
    assert evidence.verdict == verdict
    assert "One joint training took 12 s" in evidence.says
    made_up(monkeypatch, lambda kind, seed: 0.02, shown=0.06)  # it draws next to nothing
    assert study.costs_little(run).verdict == "cannot tell"


def test_a_cost_in_order_alone_is_a_cost(monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    made_up(monkeypatch, lambda kind, seed: 0.054 if kind == "comparison only" else 0.0575)  # a gap of 1 is 0.056
    evidence = study.costs_little(run)
    assert evidence.verdict == "cannot tell"  # more than we would call little
    lost = next(m for m in evidence.measures if m.name == "order accuracy, comparison only less joint")
    assert lost.value is not None
    assert 0.02 < lost.value < 0.08


@pytest.mark.parametrize(
    ("unit", "variational", "verdict"),
    [
        ((0.33, 0.33), (0.33, 0.33), "holds"),
        ((0.33, 0.33), (0.1, 0.1), "fails"),
        ((0.33, 0.33), (0.33, 0.1), "cannot tell"),  # the seeds disagree
    ],
)
def test_verdicts_of_the_frozen(
    monkeypatch: pytest.MonkeyPatch, run: Run, unit: tuple[float, float], variational: tuple[float, float], verdict: str
) -> None:
    off = {"unit norm": unit, "variational": variational, "joint": (0.02, 0.02)}
    made_up(monkeypatch, lambda kind, seed: off[kind][seed])
    assert study._asked("cpu").constant.mean() == pytest.approx(0.26, abs=0.02)
    assert study.frozen_is_constant(run).verdict == verdict
    made_up(monkeypatch, lambda kind, seed: off[kind][seed], shown=0.06)
    assert study.frozen_is_constant(run).verdict == "cannot tell"


@pytest.mark.parametrize(
    ("angle", "spearman", "reached", "verdict"),
    [
        (14.0, 0.75, 0.1, "holds"),
        (40.0, 0.75, 0.1, "cannot tell"),  # print does not say how near is near
        (14.0, 0.2, 0.1, "cannot tell"),
        (95.0, 0.75, 0.1, "fails"),  # as by chance
        (14.0, -0.2, 0.1, "fails"),
        (30.0, 0.75, 0.1, "cannot tell"),
        (14.0, 0.75, 0.4, "cannot tell"),  # most of the way was not gone
    ],
)
def test_verdicts_of_the_agreement(
    monkeypatch: pytest.MonkeyPatch, run: Run, angle: float, spearman: float, reached: float, verdict: str
) -> None:
    made_up(monkeypatch, lambda kind, seed: 0.0)
    wobble = torch.linspace(-1, 1, 50).double()
    monkeypatch.setattr(study, "PAIRS", 50)
    monkeypatch.setattr(study, "_answers", lambda *a: np.full(400, 0.5))
    monkeypatch.setattr(study, "_learnt", lambda *a: good)

    def agreed(seed: int, device: str, clipped: bool) -> Any:
        angles = angle + (20 if clipped else 0) + wobble
        angles[0] = torch.nan  # one pair did not move
        likes = spearman - (0.3 if clipped else 0) + 0.01 * wobble
        pairs = (("b", "s"), ("m", "m'"))
        return SimpleNamespace(
            angle=dict.fromkeys(pairs, angles),
            spearman=dict.fromkeys(pairs, likes),
            c={"b": reached + 0.01 * wobble, "s": reached + 0.1 + 0.01 * wobble},
            length={"b": 2 + wobble},
            local=lambda: angles <= 30,
        )

    monkeypatch.setattr(study, "_agreed", agreed)
    evidence = study.one_step_agrees(run)
    assert evidence.verdict == verdict
    told = {m.name: m for m in evidence.measures}
    assert told["angle, target 0"].n == 49
    assert told["angle, clipped less free"].value == pytest.approx(20)
    assert told["rank correlation, clipped less free"].value == pytest.approx(-0.3)
    assert told["c after one step less c after many"].value == pytest.approx(0.1)
    assert told["share of the way to 0 in many steps"].value == pytest.approx(1 - reached / 0.5)
    monkeypatch.setattr(study, "_learnt", lambda *a: bad)
    assert ruled("one-step-agrees", study.one_step_agrees(run)) == "cannot tell"


good = over.gate("1 - MAE", [np.full(9, 0.95)] * 2, 0.95, study.GOOD)
bad = over.gate("1 - MAE", [np.full(9, 0.95), np.full(9, 0.9)], 0.95, study.GOOD)


def labels_told(
    monkeypatch: pytest.MonkeyPatch,
    run: Run,
    *,
    good: float,
    shuffled: float,
    off: float = 1.0,
    moves: float = 0.3,
    joint: float = 0.1,
) -> Evidence:
    """Maps that are made of one pattern, in these parts, and of noise of their own; answers so far off, 1 for 1/2."""
    made_up(monkeypatch, lambda kind, seed: 0.0)
    asked = study._asked("cpu")
    monkeypatch.setattr(study, "PAIRS", 60)
    meant = {"joint": joint, "random targets": off}
    monkeypatch.setattr(study, "_answers", lambda kind, *a: asked.t + meant[kind] * (0.5 - asked.t))
    rng = torch.Generator().manual_seed(0)
    pattern = torch.rand(60, 1, 8, 8, generator=rng)
    part = {"joint": good, "random targets": shuffled}
    seen = {
        (kind, seed): Seen(
            share * pattern + (1 - share) * torch.rand(60, 1, 8, 8, generator=rng), torch.full((60,), moves)
        )
        for kind, share in part.items()
        for seed in range(2)
    }
    looks = 0.3 * pattern + 0.7 * torch.rand(60, 1, 8, 8, generator=rng)  # a little of what good rankers see
    blank = study._Asked(looks, asked.b, asked.values, asked.gaps)
    monkeypatch.setattr(study, "_asked", lambda device: blank)
    monkeypatch.setattr(study, "_map", lambda kind, seed, device: seen[kind, seed])
    return study.label_randomisation(run)


def test_verdicts_of_the_labels(monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    assert labels_told(monkeypatch, run, good=0.5, shuffled=0.1).verdict == "holds"
    assert labels_told(monkeypatch, run, good=0.25, shuffled=0.02).verdict == "cannot tell"  # no more than edges
    assert labels_told(monkeypatch, run, good=0.2, shuffled=0.2).verdict == "cannot tell"  # alike, and little
    assert labels_told(monkeypatch, run, good=0.8, shuffled=0.8).verdict == "fails"
    assert labels_told(monkeypatch, run, good=0.5, shuffled=0.1, moves=0.0).verdict == "cannot tell"
    leaky = labels_told(monkeypatch, run, good=0.5, shuffled=0.1, off=0.2)
    assert leaky.verdict == "cannot tell"
    assert "leaked" in leaky.says
    for part in (0.1, 0.5):  # whatever the maps say
        weak = labels_told(monkeypatch, run, good=0.5, shuffled=part, joint=0.5)
        assert ruled("label-randomisation", weak) == "cannot tell"
        assert weak.gates[0].missed()


def test_without_another_seed_the_labels_cannot_be_told(monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    monkeypatch.setattr(study, "SEEDS", 1)
    evidence = labels_told(monkeypatch, run, good=0.5, shuffled=0.1)
    assert evidence.verdict == "cannot tell"
    assert "no other seed" in evidence.says
    assert not any("another seed" in m.name for m in evidence.measures)


@pytest.mark.parametrize(
    ("seen", "image", "noise", "passes", "verdict"),
    [
        (3.0, 1.0, 0.1, True, "holds"),
        (1.0, 3.0, 0.1, True, "fails"),
        (2.0, 2.0, 0.1, True, "cannot tell"),
        (3.0, 1.0, 0.1, False, "cannot tell"),  # nobody can read what is seen
        (3.0, 1.0, 3.0, True, "cannot tell"),  # noise does as much
    ],
)
def test_verdicts_of_the_movement(
    monkeypatch: pytest.MonkeyPatch, run: Run, seen: float, image: float, noise: float, passes: bool, verdict: str
) -> None:
    made_up(monkeypatch, lambda kind, seed: 0.0)
    wave = torch.sin(torch.arange(80.0)).double()

    def read(seed: int, device: str, target: float, clipped: bool) -> Any:
        attacked = SimpleNamespace(perception_moved=seen + 0.1 * wave, image_moved=image + 0.1 * wave.flip(0))
        return attacked, SimpleNamespace(perception_moved=noise + 0.1 * wave.roll(7))

    monkeypatch.setattr(study, "_read", read)
    monkeypatch.setattr(study, "_gate", lambda *a: SimpleNamespace(passes=passes, kept=0.9 if passes else None))
    evidence = study.moves_further(run)
    assert evidence.verdict == verdict
    made_up(monkeypatch, lambda kind, seed: 0.06 * seed)
    assert (
        ruled("perception-moves-further", study.moves_further(run)) == "cannot tell"
    )  # one ranker is not as good as in print
    told = {m.name: m for m in evidence.measures}
    assert told["movement of what is seen less the image's, target 1"].value == pytest.approx(seen - image, abs=0.01)
    assert told["what the reader still knows of what is seen"].value == (0.9 if passes else None)


@pytest.mark.parametrize(
    ("cosine", "ratio", "verdict", "words"),
    [
        (0.8, 0.2, "holds", "Perception follows, the decision does not follow"),
        (0.8, -0.5, "holds", "Perception follows, the decision does not follow"),
        (0.8, 0.9, "cannot tell", "Perception follows, the decision follows"),
        (0.2, 0.2, "cannot tell", "Perception does not follow, the decision does not follow"),
        (0.8, 0.5, "cannot tell", "the decision cannot be told to follow"),
    ],
)
def test_verdicts_of_recycling(
    monkeypatch: pytest.MonkeyPatch, run: Run, cosine: float, ratio: float, verdict: str, words: str
) -> None:
    made_up(monkeypatch, lambda kind, seed: 0.0)
    wave = torch.sin(torch.arange(80.0)).double()

    def recycled(seed: int, device: str, target: float) -> Any:
        decision = ratio + 0.1 * wave
        decision[3] = torch.nan  # the attack did not move this one
        low = 0.1 * wave.roll(5)
        found = SimpleNamespace(perception=cosine + 0.1 * wave, decision=decision, cosine=low, spearman=low)
        return found, SimpleNamespace(perception=low, decision=low)

    monkeypatch.setattr(study, "_recycled", recycled)
    evidence = study.recycled_change(run)
    assert evidence.verdict == verdict
    made_up(monkeypatch, lambda kind, seed: 0.06 * seed)
    assert (
        ruled("recycled-change", study.recycled_change(run)) == "cannot tell"
    )  # one ranker is not as good as in print
    assert words in evidence.says
    told = {m.name: m for m in evidence.measures}
    assert told["decisions that go the other way, target 0"].value == (1.0 if ratio < 0 else 0.0)
    assert told["decisions that go the other way, target 0"].n == 79
    middle = told["(c'' - c) / (c' - c), median, target 0"].value
    assert middle is not None
    assert np.sign(middle) == np.sign(ratio)


def test_a_number_that_no_pair_has_is_not_measured_and_decides_nothing() -> None:
    none = study._mean("angle", np.full((2, 5), np.nan))
    assert none.measure.value is None
    assert none.told() == "not measured"
    assert study._above(none, 0.0) == study._below(none, 0.0) == "cannot tell"


def test_what_the_source_says_of_no_number_is_not_given_one() -> None:
    assert [len(c.published) for c in study.SHELVED] == [1, 2, 2, 1, 0, 0, 0, 0, 0]
    assert all(f"{study.STEPS:,} steps" in c.here and f"on {study.BATCH} pairs" in c.here for c in study.SHELVED)


def test_without_data_it_says_how_to_have_it(monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    monkeypatch.delenv("ASSAY_DATA", raising=False)
    forget()
    with pytest.raises(AssayError, match="ASSAY_DATA is not set"):
        claim("joint-costs-little").test(run)
