"""A user's own retrieval model: gallery and queries in every form, what is relevant, and what is refused in a line."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from torch import nn

from assay.data.arrays import Arrays
from assay.data.digits import load_digits, weights
from assay.domain import Unlabelled
from assay.errors import AssayError, ShapeError, SubjectError
from assay.gallery import EARTH, TOGETHER
from assay.nn.unit import Unit
from assay.subject import DRAWS, Subject, settled
from assay.subjects import digits_retrieval
from assay.tasks import Search

RNG = np.random.default_rng(0)
ITEMS, QUERIES = (RNG.random((n, 1, 4, 4), dtype=np.float32) for n in (12, 7))
LABELS, ASKED = np.arange(12) % 4, np.arange(7) % 4
AMSTERDAM = np.array([52.3702, 4.8952])


class Flat(nn.Module):
    """The pixels themselves."""

    def forward(self, x):
        return x.flatten(1)


def sought(subject):
    assert isinstance(subject.task, Search)
    return subject.task.gallery


def relevant(subject, split="test"):
    """For each query the rows of the items that are relevant."""
    gallery, group = sought(subject), np.asarray(subject.data[split].labels)[:, 0]
    return [gallery.rows[gallery.starts[i] : gallery.starts[i + 1]].tolist() for i in group]


def degrees(north, east):
    """A place so many metres from Amsterdam."""
    latitude = AMSTERDAM[0] + np.degrees(north / EARTH)
    return [latitude, AMSTERDAM[1] + np.degrees(east / (EARTH * np.cos(np.radians(AMSTERDAM[0]))))]


def test_it_says_what_the_reference_subject_says_that_compares_by_itself():
    """The same encoder with the same gallery, once behind a model that gives all similarities and once as it is."""
    dense = digits_retrieval.build()
    digits, rows = load_digits(), digits_retrieval.gallery()
    model = digits_retrieval.Searcher()
    model.load_state_dict(weights("digits_retrieval"))
    encoder = nn.Sequential(model.encoder, nn.Flatten()).eval()
    subject = Subject.retrieval(encoder, digits["train"].take(rows), digits["test"])
    x, _ = digits["test"].take(np.arange(len(digits["test"])))
    target, group = (torch.as_tensor(s.data["test"].labels) for s in (dense, subject))
    out, described = dense.predict(x), subject.predict(x)
    torch.testing.assert_close(subject.task.score(described, group), dense.task.score(out, target))
    torch.testing.assert_close(
        subject.task.margin(described, group), dense.task.margin(out, target), rtol=1e-4, atol=1e-5
    )
    assert subject.task.right(described, group).tolist() == dense.task.right(out, target).tolist()


def test_labels_decide_what_is_relevant_and_names_where_both_sides_have_them():
    subject = Subject.retrieval(Flat(), (ITEMS, LABELS), (QUERIES, ASKED))
    assert relevant(subject) == [np.flatnonzero(y == LABELS).tolist() for y in ASKED]
    assert subject.task.told(torch.tensor([2])) == "2"
    assert isinstance(subject.model, Unit)
    gallery = Arrays(ITEMS, LABELS, ("ant", "bee", "cat", "dog"))
    queries = Arrays(QUERIES[:2], [0, 1], ("dog", "bee"))
    named = Subject.retrieval(Flat(), gallery, queries)
    assert relevant(named) == [[3, 7, 11], [1, 5, 9]]
    assert [named.task.told(torch.as_tensor(y)) for y in named.data["test"].labels] == ["dog", "bee"]
    assert sought(named).name(5) == "bee (item 5)"


def test_labels_need_not_be_counted_from_0_or_without_gaps():
    subject = Subject.retrieval(Flat(), (ITEMS, 1500 + 7 * LABELS), (QUERIES, 1500 + 7 * ASKED))
    assert relevant(subject) == [np.flatnonzero(y == LABELS).tolist() for y in ASKED]


def test_pairs_decide_what_is_relevant_for_each_split_by_itself():
    pairs = {"test": [[1, 3], [0, 11], [1, 0], [1, 3]], "train": [[0, 5]]}
    subject = Subject.retrieval(Flat(), ITEMS, {"test": QUERIES[:2], "train": QUERIES[2:3]}, pairs=pairs)
    assert relevant(subject) == [[11], [0, 3]]
    assert relevant(subject, "train") == [[5]]
    assert subject.task.told(torch.tensor([1])) == "item 0 or item 3"


def test_metres_decide_what_is_relevant_by_the_great_circle():
    places = np.array([degrees(0, 0), degrees(24, 0), degrees(26, 0), degrees(0, 24), degrees(0, -26), [-33.9, 151.2]])
    queries = np.array([degrees(0, 0), [-33.9, 151.2]])
    subject = Subject.retrieval(Flat(), (ITEMS[:6], places), (QUERIES[:2], queries), metres=25)
    assert relevant(subject) == [[0, 1, 3], [5]]
    wide = Subject.retrieval(Flat(), (ITEMS[:6], places), (QUERIES[:1], queries[:1]), metres=27)
    assert relevant(wide) == [[0, 1, 2, 3, 4]]


def test_the_date_line_and_the_poles_are_no_edges():
    places = np.array([[0.0, 179.9999], [0.0, -179.9999], [90.0, 0.0], [0.0, 0.0]])
    subject = Subject.retrieval(
        Flat(), (ITEMS[:4], places), (QUERIES[:2], np.array([[0.0, 180.0], [90.0, 135.0]])), metres=25
    )
    assert relevant(subject) == [[0, 1], [2]]


def test_scaling_is_part_of_what_describes_the_gallery():
    plain = Subject.retrieval(Flat(), (ITEMS, LABELS), (QUERIES, ASKED), metric="euclidean")
    scaled = Subject.retrieval(Flat(), (ITEMS, LABELS), (QUERIES, ASKED), metric="euclidean", mean=(0.5,), std=(0.25,))
    one, other = (sought(s).on(torch.device("cpu"))[0] for s in (plain, scaled))
    torch.testing.assert_close(other, (one - 0.5) / 0.25)


def test_the_fingerprint_hangs_on_gallery_relevance_and_metric_and_on_nothing_else():
    def mark(items=ITEMS, labels=LABELS, metric="cosine"):
        return Subject.retrieval(Flat(), (items, labels), (QUERIES, ASKED), metric=metric).fingerprint()

    assert mark() == mark()
    others = {mark(), mark(items=1 - ITEMS), mark(labels=LABELS[::-1].copy()), mark(metric="euclidean")}
    assert len(others) == 4


class Noisy(nn.Module):
    def forward(self, x):
        return x.flatten(1) + torch.randn(len(x), 16)


def described(subject):
    return sought(subject).on(torch.device("cpu")).descriptors


def test_a_random_model_describes_the_gallery_by_the_mean_of_its_draws():
    subject = Subject.retrieval(Noisy(), (ITEMS, LABELS), (QUERIES, ASKED), metric="euclidean", draws=2000)
    assert float((described(subject) - torch.from_numpy(ITEMS).flatten(1)).abs().max()) < 0.15


def test_a_random_model_that_does_not_say_so_describes_the_gallery_as_one_that_does():
    def made(draws=1):
        return Subject.retrieval(Noisy(), (ITEMS, LABELS), (QUERIES, ASKED), metric="euclidean", draws=draws)

    once, told, found = made(), made(DRAWS), settled(made(), torch.from_numpy(QUERIES[:8]))
    assert found.draws == DRAWS
    torch.testing.assert_close(described(found), described(told))
    assert found.fingerprint() == told.fingerprint()
    # What one pass described is another gallery, also where queries are then asked with as many draws.
    assert dataclasses.replace(once, draws=DRAWS).fingerprint() != told.fingerprint()
    noise = [float((described(s) - torch.from_numpy(ITEMS).flatten(1)).std()) for s in (once, found)]
    assert noise[0] == pytest.approx(1, rel=0.3)
    assert noise[1] == pytest.approx(DRAWS**-0.5, rel=0.3)


def linear(seed):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 5))


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
def test_a_cured_model_describes_the_gallery_anew(metric):
    old, new = (Subject.retrieval(linear(s), (ITEMS, LABELS), (QUERIES, ASKED), metric=metric) for s in (0, 1))
    cured = old.cured(new.model, "another")
    torch.testing.assert_close(described(cured), described(new))
    assert cured.fingerprint() != new.fingerprint()  # it remembers what it was made from
    assert dataclasses.replace(cured, original=None).fingerprint() == new.fingerprint()
    drawn = old.cured(new.model, "another", draws=3)
    assert drawn.fingerprint() != dataclasses.replace(cured, draws=3).fingerprint()


def test_a_gallery_that_was_described_before_the_weights_changed_is_known_as_that():
    model = linear(0)
    stale = Subject.retrieval(model, (ITEMS, LABELS), (QUERIES, ASKED))
    with torch.no_grad():
        model[1].weight.neg_()
    fresh = Subject.retrieval(model, (ITEMS, LABELS), (QUERIES, ASKED))
    assert stale.fingerprint() != fresh.fingerprint()
    assert sought(stale) != sought(fresh)


def test_the_rows_of_a_gallery_tell_what_values_lie_between():
    rng = np.random.default_rng(1)
    items, queries = rng.normal(size=(300, 3)).astype(np.float32), rng.normal(size=(20, 3)).astype(np.float32)
    labels = np.arange(300) % 4
    subject = Subject.retrieval(nn.Identity(), (items, labels), (queries, labels[:20]))
    whole = np.concatenate([items, queries])
    np.testing.assert_allclose(subject.inputs.ranges, np.stack([whole.min(0), whole.max(0)], 1), rtol=1e-6)
    assert len(subject.notes) == 1
    far = {"test": (queries, labels[:20]), "far": (9 * items[:40], labels[:40])}
    moved = Subject.retrieval(nn.Identity(), (items, labels), far)
    assert moved.inputs.ranges == subject.inputs.ranges  # a domain widens nothing
    assert "in 'far'" in moved.notes[1]
    with pytest.raises(SubjectError, match="of 'gallery' has the value"):
        Subject.retrieval(nn.Identity(), (items, labels), (0 * queries, labels[:20]), bounds=(0.0, 1.0))


def test_every_item_is_held_against_the_bounds():
    items = np.random.default_rng(2).random((TOGETHER + 40, 1, 4, 4), dtype=np.float32)
    items[TOGETHER + 30, 0, 0, 0] = 200
    with pytest.raises(SubjectError, match=f"Input {TOGETHER + 30} of 'gallery' has the value 200 outside the bounds"):
        Subject.retrieval(Flat(), (items, np.arange(len(items)) % 4), (QUERIES, ASKED))


class Says(nn.Module):
    """Whatever a function makes of the pixels."""

    def __init__(self, make):
        super().__init__()
        self.make = make

    def forward(self, x):
        return self.make(x.flatten(1))


def constant(x):
    return torch.ones(len(x), 3)


def no_number(x):
    out = x.clone()
    out[x[:, 0] == float(ITEMS[5, 0, 0, 0]), 3] = torch.nan
    return out


def nothing(x):
    return torch.where(x[:, :1] == float(ITEMS[5, 0, 0, 0]), 0.0, x)


@pytest.mark.parametrize(
    ("model", "gallery", "queries", "more", "says"),
    [
        (Flat(), (ITEMS[:3], LABELS[:3]), (QUERIES, ASKED), {}, r"relevant for query 3 of 'test' \(label 3\)"),
        (Flat(), (ITEMS[:1], LABELS[:1]), (QUERIES[:1], ASKED[:1]), {}, "The gallery has 1 item; give at least 2"),
        (Flat(), (ITEMS, 0 * LABELS), (QUERIES, 0 * ASKED), {}, "Every item of the gallery is relevant for query 0"),
        (Flat(), (ITEMS[:, :, :3], LABELS), (QUERIES, ASKED), {}, r"have shape \(1, 3, 4\), queries \(1, 4, 4\)"),
        (Flat(), (ITEMS, LABELS), (ITEMS, LABELS), {}, "queries of 'test' are the gallery itself"),
        (Says(constant), (ITEMS, LABELS), (QUERIES, ASKED), {}, "describes all 12 items of the gallery alike"),
        (Says(no_number), (ITEMS, LABELS), (QUERIES, ASKED), {"metric": "euclidean"}, "NaN or infinity for item 5 of"),
        (Says(nothing), (ITEMS, LABELS), (QUERIES, ASKED), {}, "descriptor of item 5 of the gallery is 0, which has"),
        (nn.Identity(), (ITEMS, LABELS), (QUERIES, ASKED), {}, r"shape \(12, 1, 4, 4\) for 12 items .*shape \(12, d\)"),
        (Flat(), (255 * ITEMS, LABELS), (QUERIES, ASKED), {}, "Input 0 of 'gallery' has the value"),
        (Flat(), (ITEMS, LABELS), (QUERIES, ASKED), {"metric": "manhattan"}, "no metric 'manhattan'; choose cosine or"),
        (Flat(), (ITEMS, LABELS), (QUERIES, ASKED), {"metres": -1}, "metres=-1 is no distance"),
        (Flat(), (ITEMS, LABELS), {"train": (QUERIES, ASKED)}, {}, "no split 'test', only"),
        (Flat(), (ITEMS, LABELS), (QUERIES[:0], ASKED[:0]), {}, "split 'test' is empty"),
        (Flat(), ITEMS, QUERIES, {"pairs": [[0, 12]]}, "Pair 0 of 'test' names item 12, and there are 12"),
        (Flat(), ITEMS, QUERIES, {"pairs": [[0, 1]]}, r"query 1 of 'test' \(no pair names it\), nor for 5 others"),
        (Flat(), ITEMS, QUERIES, {"pairs": [0, 1]}, r"pairs of 'test' have shape \(2,\)"),
        (Flat(), ITEMS, QUERIES, {"pairs": {"dusk": [[0, 1]]}}, r"given for \['dusk'\], queries for \['test'\]"),
        (lambda x: x, (ITEMS, LABELS), (QUERIES, ASKED), {}, "wants a torch.nn.Module, got function"),
        (Flat(), (ITEMS, LABELS), (QUERIES, ASKED), {"metres": "25"}, "metres='25' is no distance"),
        (Flat(), (ITEMS, None), (QUERIES, None), {"metres": 25}, r"geo-tags of 'gallery' have shape \(12,\)"),
        (Flat(), (ITEMS, 5), QUERIES, {"pairs": [[0, 1]]}, r"'gallery' has 12 inputs and geo-tags of shape \(\)"),
        (Flat(), (ITEMS, [[1, 2], [3]]), QUERIES, {"pairs": [[0, 1]]}, "geo-tags of 'gallery' are no array"),
        (Flat(), (5, None), QUERIES, {"pairs": [[0, 1]]}, "inputs of 'gallery' are one number, 5"),
        (Flat(), ITEMS, QUERIES, {"pairs": [[0, 1], [2]]}, "pairs of 'test' are no array, their rows"),
        (Flat(), (ITEMS, LABELS), QUERIES, {}, "inputs of 'test' have no labels, and labels say"),
        (Flat(), (ITEMS, None), (QUERIES, ASKED), {}, "inputs of 'gallery' have no labels"),
        (Flat(), (ITEMS, LABELS), {"test": (QUERIES, ASKED), "dusk": (QUERIES, ASKED)}, {}, "'dusk' has 7 inputs"),
        (Flat(), (ITEMS, LABELS), {"test": (QUERIES, ASKED), "dusk": Unlabelled(Arrays(QUERIES, ASKED))}, {},
         "inputs of 'dusk' have no labels"),
        (Flat(), (ITEMS, LABELS), {"test": (QUERIES, ASKED), "outliers": (QUERIES, ASKED)}, {}, "named 'outliers'"),
        (Flat(), (ITEMS, LABELS), {"test": (QUERIES, ASKED), "gallery": (QUERIES, ASKED)}, {}, "named 'gallery'"),
        (Flat(), (ITEMS, LABELS), {"test": (QUERIES, ASKED), 2009: (QUERIES, ASKED)}, {}, "cannot be named 2009"),
    ],
)  # fmt: skip
def test_what_cannot_be_searched_is_told_in_one_line(model, gallery, queries, more, says):
    with pytest.raises((AssayError, SubjectError, ShapeError), match=says) as told:
        Subject.retrieval(model, gallery, queries, **more)
    assert "\n" not in str(told.value)


def test_inputs_that_stand_alone_are_enough_where_pairs_say_what_is_relevant():
    pairs = [[i, i] for i in range(7)]
    given = [(ITEMS, QUERIES), ((ITEMS, None), (QUERIES, None)), (ITEMS, Unlabelled(Arrays(QUERIES, ASKED)))]
    for gallery, queries in given:
        assert relevant(Subject.retrieval(Flat(), gallery, queries, pairs=pairs)) == [[i] for i in range(7)]


@pytest.mark.parametrize(
    ("place", "says"),
    [
        ((91.0, 4.0), "latitude of input 3 of 'gallery' is 91, outside -90 to 90"),
        ((52.0, -180.5), "longitude of input 3 of 'gallery' is -180.5, outside -180 to 180"),
        ((np.nan, 4.0), "latitude of input 3 of 'gallery' is nan"),
    ],
)
def test_geo_tags_out_of_range_are_refused(place, says):
    places = np.tile(AMSTERDAM, (12, 1))
    places[3] = place
    with pytest.raises(SubjectError, match=says):
        Subject.retrieval(Flat(), (ITEMS, places), (QUERIES[:1], AMSTERDAM[None]), metres=25)


def test_a_query_far_from_all_items_says_how_far():
    places = np.array([degrees(0, 0), degrees(500, 0)])
    with pytest.raises(SubjectError, match=r"the nearest is 100 m away, not 25"):
        Subject.retrieval(Flat(), (ITEMS[:2], places), (QUERIES[:1], [degrees(-100, 0)]), metres=25)
    with pytest.raises(ShapeError, match=r"geo-tags of 'gallery' have shape \(12,\)"):
        Subject.retrieval(Flat(), (ITEMS, LABELS), (QUERIES, ASKED), metres=25)
