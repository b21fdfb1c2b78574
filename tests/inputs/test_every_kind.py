"""What every kind of input promises, whatever it is: bounds, seeds, severities, parts, and empty batches."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

import assay.inputs as package
from assay.errors import AssayError, ShapeError
from assay.inputs import (
    SEVERITIES,
    Both,
    Bounded,
    Channel,
    Cloud,
    Column,
    Image,
    Kind,
    Observation,
    Pair,
    Row,
    Series,
    Text,
    Video,
    in_shares,
    pair_of,
)

SENTENCES = [
    "The quick doctor bought a large house near the city, and the children were happy about it.",
    "I think that the movie was not very good; however, the story had many funny parts to enjoy.",
    "We started our journey in the autumn and finally finished it because the car was fixed.",
    "Usually people speak quickly when they are afraid, although everybody tries to help them.",
    "A short one.",
]


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def walk(n: int, t: int, c: int, seed: int = 0) -> Tensor:
    """Smooth series between 0 and 1: random walks."""
    steps = torch.randn(n, t, c, generator=seeded(seed)).cumsum(1)
    if not n:
        return steps
    low, high = steps.amin((0, 1)), steps.amax((0, 1))
    return (steps - low) / (high - low)


def photos(n: int, c: int, side: int) -> Tensor:
    """Smooth images: a few waves."""
    phase = 6 * torch.rand(n, c, 1, 1, generator=seeded(3))
    axis = torch.linspace(0, 4, side)
    return (0.5 + 0.25 * (torch.sin(axis[:, None] + phase) + torch.cos(1.7 * axis + phase))).clamp(0, 1)


ROW = Row(
    (
        Column("income", "number", -500.0, 9000.0, 2000.0, unit="EUR"),
        Column("age", "integer", 18, 99, 40, unit="years"),
        Column("colour", "category", 0, 3, 1, categories=("blue", "green", "red", "white")),
        Column("member", "boolean", 0, 1, 1),
        Column("rate", "number", 0.0, 1.0, 0.3, missing=True),
        Column("born in", "category", 0, 2, 0, categories=("here", "there", "yonder"), fixed=True),
        Column("height", "integer", 120, 220, 170, unit="cm", fixed=True),
        Column("always", "number", 3.0, 3.0, 3.0),
    )
)


def rows(n: int, seed: int = 1) -> Tensor:
    low, span = ROW.edges()
    x = ROW.typed((low + span * torch.rand(n, 8, generator=seeded(seed), dtype=torch.float64)).float())
    x[::7, 4] = math.nan
    return x


SERIES = Series(60, (Channel("heat", -2.0, 5.0, "C"), Channel("push", 0.0, 1.0), Channel("turn", -1.0, 1.0)))
RAGGED = dataclasses.replace(SERIES, padding=-9.0)
CLOUD = Cloud(64, ((-1.0, 1.0), (-2.0, 2.0), (0.0, 3.0)))
SEEN = Observation((Channel("place", -2.4, 2.4, "m"), Channel("speed", -3.0, 3.0), Channel("angle", 0.1, 0.4)))


def series(n: int) -> Tensor:
    low, span = SERIES.edges()
    return (low + span * walk(n, 60, 3)).float()


def ragged(n: int) -> Tensor:
    x = series(n)
    for row, length in enumerate((torch.randint(2, 61, (n,), generator=seeded(5))).tolist()):
        x[row, length:] = -9.0
    return x


def inside(kind: Bounded, n: int, seed: int = 2) -> Tensor:
    low, span = kind.edges()
    return (low + span * torch.rand(n, *kind.shape, generator=seeded(seed), dtype=torch.float64)).float()


def films(n: int) -> Tensor:
    """Pictures that grow lighter and darker: n 9 1 12 12."""
    return walk(n, 9, 1)[..., None, None] * photos(n, 1, 12)[:, None]


EXAMPLES: dict[str, tuple[Kind[Any, Any], Callable[[int], Any]]] = {
    "image": (Image((3, 16, 16)), lambda n: photos(n, 3, 16)),
    "image to 255": (Image((1, 12, 20), 0.0, 255.0), lambda n: 255 * photos(n, 1, 20)[:, :, :12]),
    "row": (ROW, rows),
    "series": (SERIES, series),
    "ragged series": (RAGGED, ragged),
    "video": (Video(9, Image((1, 12, 12))), films),
    "cloud": (CLOUD, lambda n: inside(CLOUD, n)),
    "observation": (SEEN, lambda n: inside(SEEN, n)),
    "text": (Text(), lambda n: (SENTENCES * n)[:n]),
    "pair of images": (Pair(Image((1, 16, 16))), lambda n: photos(2 * n, 1, 16).reshape(n, 2, 1, 16, 16)),
    "pair of rows": (Pair(ROW), lambda n: rows(2 * n).reshape(n, 2, 8)),
    "image and text": (Both(Image((3, 16, 16)), Text()), lambda n: (photos(n, 3, 16), (SENTENCES * n)[:n])),
    "series in shares": (in_shares(SERIES), lambda n: walk(n, 60, 3)),
    "row in shares": (in_shares(ROW), lambda n: in_shares(ROW).shares(rows(n))),  # type: ignore[attr-defined]
}  # fmt: skip
EACH = [(kind, name) for kind, (made, _) in EXAMPLES.items() for name in made.everyday()]
BOUNDED = [name for name, (kind, _) in EXAMPLES.items() if isinstance(kind, Bounded)]


def apart(kind: Kind[Any, Any], a: Any, b: Any) -> float:
    """The mean distance of two batches: in shares of the range, a cell that went missing 1; of texts, edits."""
    if isinstance(kind, Both):
        return apart(kind.first, a[0], b[0]) + apart(kind.second, a[1], b[1])
    if isinstance(kind, Text):
        return float(np.mean([edits(x, y) for x, y in zip(a, b, strict=True)]))
    assert isinstance(kind, Bounded)
    span = kind.edges()[1]
    gap = ((a.double() - b.double()) / torch.where(span > 0, span, torch.inf)).abs()
    return float(gap.nan_to_num(nan=1.0)[~(a.isnan() & b.isnan())].mean())


def edits(a: str, b: str) -> int:
    """Levenshtein's distance; of texts with as many words, summed over these, which is no less."""
    if a.count(" ") == b.count(" ") > 0 and a.replace(" ", "") != b.replace(" ", ""):
        return sum(edits(x, y) for x, y in zip(a.split(" "), b.split(" "), strict=True))
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        last, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            last, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, last + (x != y))
    return row[-1]


def same(a: Any, b: Any) -> None:
    if isinstance(a, Tensor):
        assert_close(a, b, rtol=0, atol=0, equal_nan=True)
    elif isinstance(a, tuple):
        same(a[0], b[0])
        same(a[1], b[1])
    else:
        assert list(a) == list(b)


def copied(x: Any) -> Any:
    return (
        tuple(copied(part) for part in x) if isinstance(x, tuple) else x.clone() if isinstance(x, Tensor) else list(x)
    )


def test_the_public_names_are_these():
    assert package.__all__ == sorted(package.__all__, key=lambda name: (not name.isupper(), name[0].islower(), name))
    assert {"Image", "Row", "Series", "Text", "Video", "Cloud", "Observation", "Pair"} <= set(package.__all__)
    assert all(hasattr(package, name) for name in package.__all__)


def test_each_kind_has_the_changes_that_it_is_said_to_have():
    assert set(SERIES.everyday()) == {
        "sensor-noise", "gaps", "dropouts", "drift", "time-warp", "spikes", "clock-jitter", "channel-loss",
        "quantisation",
    }  # fmt: skip
    assert set(ROW.everyday()) == {
        "missing-cells", "swapped-cells", "slipped-digits", "moved-points", "noise", "rounding", "slipped-categories",
    }  # fmt: skip
    assert set(Text().everyday()) == {
        "typos", "casing", "punctuation", "swapped-words", "dropped-words", "synonyms", "homoglyphs", "spacing",
    }  # fmt: skip
    assert set(CLOUD.everyday()) == {"jitter", "dropped-points", "rotation", "scale", "outliers", "occlusion"}
    assert set(SEEN.everyday()) == {"sensor-noise", "bias", "dropout", "quantisation"}


@pytest.mark.parametrize(("kind", "name"), EACH)
def test_a_change_grows_with_its_severity_and_the_same_seed_is_the_same_change(kind: str, name: str):
    made, batch = EXAMPLES[kind]
    x = batch(
        {"row": 300, "pair of rows": 150, "row in shares": 300}.get(
            kind, 8 if "text" in kind else 40 if kind == "observation" else 12
        )
    )
    before = copied(x)
    changed = [made.everyday()[name](x, severity, seeded(11)) for severity in SEVERITIES]
    same(x, before)  # a new batch, never the one that came
    for severity, one in zip(SEVERITIES, changed, strict=True):
        same(one, made.everyday()[name](x, severity, seeded(11)))
        made.check(one)
    far = [apart(made, x, one) for one in changed]
    assert far[0] > 0, far
    # a hair of slack: the places of a blur or a grid of steps do not grow pixel by pixel
    assert all(b >= 0.98 * a for a, b in pairwise(far)), far
    assert far[4] > 1.3 * far[0], far


@pytest.mark.parametrize(("kind", "name"), EACH)
def test_a_batch_of_one_and_of_none(kind: str, name: str):
    made, batch = EXAMPLES[kind]
    for n in (1, 0):
        x = batch(n)
        for severity in (1, 5):
            changed = made.everyday()[name](x, severity, seeded())
            made.check(changed)
            if isinstance(x, Tensor):
                assert (changed.shape, changed.dtype) == (x.shape, x.dtype)
            elif isinstance(made, Text):
                assert len(changed) == n
            else:
                assert (len(changed[0]), len(changed[1])) == (n, n)


@pytest.mark.parametrize("kind", [k for k in EXAMPLES if k not in ("image", "image to 255")])
def test_two_seeds_differ(kind: str):
    made, batch = EXAMPLES[kind]
    x = batch(4 if "text" in kind else 40 if "row" in kind else 12)
    fixed = ("quantisation", "rounding", "gaussian-blur", "defocus-blur", "brightness", "contrast", "gamma", "pixelate")
    for name, change in made.everyday().items():
        if not name.endswith((*fixed, "jpeg", "synonyms", "punctuation")):  # no draw, or too few words to choose from
            a, b = (change(x, 3, seeded(seed)) for seed in (1, 2))
            assert apart(made, a, b) > 0, name


@pytest.mark.parametrize("kind", BOUNDED)
def test_half_and_double_precision_come_back_as_they_went(kind: str):
    made, batch = EXAMPLES[kind]
    assert isinstance(made, Bounded)
    for dtype in (torch.float16, torch.float64):
        x = batch(3).to(dtype)
        if dtype is torch.float16 and "row" in kind:
            continue  # half precision has no 2049
        for name, change in made.everyday().items():
            changed = change(x, 4, seeded())
            assert changed.dtype is dtype, name
            made.check(changed)


@pytest.mark.parametrize("kind", EXAMPLES)
def test_a_severity_that_is_none_is_told(kind: str):
    made, batch = EXAMPLES[kind]
    change = next(iter(made.everyday().values()))
    for severity in (0, 6, 2.5):
        with pytest.raises(AssayError, match="is not one of 1, 2, 3, 4, 5"):
            change(batch(2), severity, seeded())  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", BOUNDED)
def test_what_is_not_of_the_kind_is_told_in_one_line(kind: str):
    made, batch = EXAMPLES[kind]
    assert isinstance(made, Bounded)
    x = batch(3)
    with pytest.raises(ShapeError, match=r"wants a batch of shape \(n, .*, got"):
        made.check(x[:, :, None] if x.ndim == 2 else x[:, 0])
    with pytest.raises(AssayError, match="floating point, got torch.int64"):
        made.check(x.long())
    wrong = x.clone()
    wrong[(1, *(0 for _ in made.shape))] = 1e4
    with pytest.raises(AssayError, match=r"Input 1 has the value 10000 in .*, outside the bounds") as told:
        next(iter(made.everyday().values()))(wrong, 1, seeded())
    assert "\n" not in str(told.value)
    wrong[(1, *(0 for _ in made.shape))] = math.nan
    with pytest.raises(AssayError, match="has the value nan"):
        made.check(wrong)


@pytest.mark.parametrize("kind", BOUNDED)
def test_reach_has_the_shape_of_an_input_and_speaks_of_what_can_change(kind: str):
    made, batch = EXAMPLES[kind]
    assert isinstance(made, Bounded)
    reach = made.reach
    assert reach.norms == ("linf", "l2")
    assert reach.gradient
    for part in (reach.free, reach.low, reach.span, reach.step, reach.choices):
        assert part.shape == made.shape
    span = made.edges()[1]
    assert not (reach.free & (span.expand(made.shape) == 0)).any()
    x = batch(6)
    wild = x + 3 * span.to(x) * torch.randn(x.shape, generator=seeded(4))
    settled = reach.settled(wild, x)
    made.check(settled)
    assert_close(settled[:, ~reach.free], x[:, ~reach.free], rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("kind", EXAMPLES)
def test_features_name_every_part_and_say_where_it_lies(kind: str):
    made, batch = EXAMPLES[kind]
    x = batch(2)
    one = (x[0][0], x[1][0]) if isinstance(made, Both) else x[0]
    features = made.features(one)
    assert len(features) > 1
    if "text" not in kind:  # a text may say a word twice
        assert len(set(features.names)) == len(features)
    places = torch.cat([features.positions(k) for k in range(len(features))])
    assert len(torch.unique(places)) == len(places)  # no place in two parts
    assert torch.equal(places.sort().values, (features.groups.flatten() >= 0).nonzero()[:, 0])
    if isinstance(made, Bounded):
        assert features.groups.shape == made.shape
    with pytest.raises(AssayError, match="There is no feature"):
        features.positions(len(features))


@pytest.mark.parametrize("kind", BOUNDED)
def test_the_arithmetic_is_that_of_an_input_space(kind: str):
    from assay.subject import InputSpace

    made, _ = EXAMPLES[kind]
    assert isinstance(made, Bounded)
    old = InputSpace(made.shape, made.low, made.high, made.ranges)
    for a, b in zip(made.edges(), old.edges(), strict=True):
        assert_close(a, b, rtol=0, atol=0)
    shares, old_shares = in_shares(made), InputSpace(made.shape, natural=old)
    if shares is not made:
        assert shares.shape == made.shape
        assert (shares.low, shares.high, shares.ranges, shares.natural) == (0.0, 1.0, None, made)
        assert shares.size(0.03) == old_shares.size(0.03)
        assert shares.aside(0.03) == old_shares.aside(0.03)
        assert shares.axis("radius") == old_shares.axis("radius") == "radius, share of the range"
    if made.natural is None:
        assert made.size(0.03) == old.size(0.03) == "0.03"


@pytest.mark.parametrize("kind", EXAMPLES)
def test_kinds_are_frozen_and_equal_by_value(kind: str):
    made, _ = EXAMPLES[kind]
    assert dataclasses.replace(made) == made  # type: ignore[type-var]
    assert hash(dataclasses.replace(made)) == hash(made)  # type: ignore[type-var]
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.anything = 1  # type: ignore[attr-defined]


@settings(max_examples=15, deadline=None)
@given(st.data())
def test_any_shape_and_bounds_hold(data: st.DataObject):
    """Kinds of any size, channels without a range among them: every change stays inside."""
    n, t, c = (data.draw(st.integers(1, top)) for top in (4, 12, 4))
    lows = [data.draw(st.floats(-1e3, 1e3)) for _ in range(c)]
    spans = [data.draw(st.sampled_from([0.0, 1e-3, 1.0, 500.0])) for _ in range(c)]
    channels = tuple(Channel(f"c{k}", low, low + span) for k, (low, span) in enumerate(zip(lows, spans, strict=True)))
    box = tuple((c.low, c.high) for c in (channels * 3)[:3])
    kinds: list[Bounded] = [
        Series(t, channels),
        Series(t, channels, padding=math.nan),
        Observation(channels),
        Cloud(t, (box[0], box[1], box[2])),
        Pair(Observation(channels)),
        Row(tuple(Column(c.name, "number", c.low, c.high, c.low) for c in channels)),
        Video(t, Image((1, 7, 9), -1.0, 2.0)),  # too small for the changes of an image
    ]
    for kind in kinds:
        x = inside(kind, n, seed=t)
        if isinstance(kind, Series) and kind.padding is not None:
            x[0, t // 2 :] = math.nan
        severity = data.draw(st.integers(1, 5))
        for name, change in kind.everyday().items():
            changed = change(x, severity, seeded(c))
            kind.check(changed)
            assert changed.shape == x.shape, name
            there = kind.present(x).expand_as(x)
            assert torch.equal(changed.isnan(), ~there), name


def test_in_shares_the_changes_are_the_same():
    x = series(10)
    shares = in_shares(SERIES)
    for name, change in SERIES.everyday().items():
        low, span = SERIES.edges()
        there = shares.everyday()[name](((x - low) / span).float(), 3, seeded(8))
        assert_close(there.double(), (change(x, 3, seeded(8)) - low) / span, rtol=0, atol=2e-6)


def test_an_empty_name_or_a_label_too_many_is_told():
    from assay.inputs import Features

    with pytest.raises(AssayError, match="1 names and the labels"):
        Features(("a",), torch.tensor([0, 1, -1]))


def test_pair_of_chooses_one_tensor_for_two_of_a_kind():
    assert pair_of(SEEN, SEEN) == Pair(SEEN)
    assert isinstance(pair_of(SEEN, ROW), Both)
    assert isinstance(pair_of(Text(), Text()), Both)
