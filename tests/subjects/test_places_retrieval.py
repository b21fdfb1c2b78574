"""The subject that searches for places: what it says of itself, in either domain, and where it looks."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.testing import assert_close

import assay
from assay.nn.vlad import PlaceNet
from assay.subject import Subject
from assay.subjects import Source, open_subject
from assay.subjects.places_retrieval import degrees, load_places

BUNDLED = Path(__file__).parents[2] / "src" / "assay" / "data" / "bundled"


@pytest.fixture(scope="module")
def subject():
    return open_subject(Source("places-retrieval"))


def recall(subject: Subject, split: str) -> float:
    x, target = subject.data[split].take(np.arange(len(subject.data[split])))
    return float(subject.task.right(subject.predict(x), target).double().mean())


def test_it_is_as_good_as_it_says_at_home_and_before_checks(subject):
    stated = re.search(
        r"first for ([\d.]+) of 200 queries before stripes, and for ([\d.]+) of 200 before", subject.about
    )
    assert stated is not None
    assert recall(subject, "test") == pytest.approx(float(stated[1]), abs=0.0051)  # one query may lie on the border
    assert recall(subject, "checks") == pytest.approx(float(stated[2]), abs=0.0051)
    assert (BUNDLED / "places_retrieval.safetensors").stat().st_size < 200_000


def test_recall_by_places_and_distances_written_out(subject):
    """Not by geo-tags nor by cosines: the nearest descriptor, and the place's own number."""
    data = load_places()
    with torch.no_grad():
        items, asked = (subject.model(torch.from_numpy(data[name].x)) for name in ("gallery", "test"))
    first = torch.cdist(asked.double(), items.double(), compute_mode="donot_use_mm_for_euclid_dist").argmin(1)
    right = data["gallery"].labels[first.numpy()] == data["test"].labels
    assert right.mean() == pytest.approx(recall(subject, "test"), abs=0.0051)


def test_images_within_25_metres_answer_and_they_are_those_of_the_place(subject):
    data = load_places()
    for split in ("test", "checks"):
        gallery, asked = subject.task.gallery, torch.as_tensor(subject.data[split].labels)
        query, item = gallery.relevant(asked[:, 0], 0, gallery.size)
        assert (gallery.count(asked) == 5).all()
        assert torch.equal(torch.bincount(query), torch.full((len(asked),), 5))
        same = data["gallery"].labels[item.numpy()] == data[split].labels[query.numpy()]
        assert same.all()
    assert degrees(np.array([[6_371_008.8 * np.pi / 180, 0.0]])).tolist() == [[pytest.approx(1.0), 0.0]]


def test_the_other_background_is_a_labelled_domain_and_the_city_is_new(subject):
    told = {name: (d.labelled, len(d.data)) for name, d in subject.domains().items()}
    assert told == {"checks": (True, 200)}
    assert subject.home == "test"
    from assay.data.textured_places import city

    learnt, asked = (city(n, seed=s).objects for n, s in ((100, 1), (40, 2)))
    apart = np.abs(learnt[:, None] - asked[None]).max((2, 3))
    assert apart.min() > 0  # no place of the one stands in the other


def test_a_random_network_finds_less(subject):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        blind = PlaceNet().eval()
    data = load_places()
    made = {name: (data[name].x, degrees(data[name].geo)) for name in ("gallery", "test")}
    other = Subject.retrieval(blind, made["gallery"], made["test"], metres=25)
    assert recall(other, "test") < recall(subject, "test") / 3


def test_attention_lies_on_the_object_and_backgrounds_alone_get_less(subject):
    """Of the card's synthetic check: in either domain the mass on the object is above its share of the image."""
    from assay.data.textured_places import outliers

    net, data = subject.model.model, load_places()
    for split, texture in (("test", "stripes"), ("checks", "checks")):
        with torch.no_grad():
            weight = net.attention(torch.from_numpy(data[split].x))
            alone = net.attention(torch.from_numpy(outliers(9, 200, texture)))
        inside = torch.nn.functional.avg_pool2d(torch.from_numpy(data[split].mask)[:, None].float(), 4)[:, 0]
        mass = (weight * inside).sum() / weight.sum()
        assert mass > inside.mean()
        assert weight.sum((1, 2)).mean() > alone.sum((1, 2)).mean()


def test_layers_are_the_encoders(subject):
    assert subject.layers == {"last_conv": "model.features.4"}
    module = subject.model.get_submodule(subject.layers["last_conv"])
    assert module.out_channels == 32
    x, _ = subject.data["test"].take(np.arange(3))
    assert_close(subject.predict(x).norm(dim=1), torch.ones(3))


def test_an_audit_tells_its_recall_beside_chance(subject):
    audit = assay.audit(subject, probes=["accuracy", "does-it-find-them"])
    found = audit.row("does-it-find-them").answer.finding
    assert found is not None
    first = found.measures[0]
    assert first.name == "recall at 1"
    assert first.value == pytest.approx(recall(subject, "test"))
    assert first.beside[0].value == pytest.approx(5 / 200)
    assert [m.value for m in found.measures[:4]] == sorted(m.value for m in found.measures[:4])
    right = audit.row("accuracy").answer.finding
    assert right is not None
    assert right.measures[0].value == first.value
