from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from assay.errors import AssayError
from assay.jobs.cure import cure
from assay.methods.certify import nearest
from assay.nn.nearest_neighbour import NearestNeighbour
from assay.probe import configure
from assay.remedies.arml import Arml
from assay.subject import Normalised, Subject


@pytest.fixture
def neighbours() -> Subject:
    """Inputs of eight numbers of which the first alone decides."""
    x = torch.rand(300, 2, 2, 2, generator=torch.Generator().manual_seed(0))
    y = (x[:, 0, 0, 0] > 0.5).long()
    return Subject.classifier(NearestNeighbour(x[:200], y[:200]), (x[200:].numpy(), y[200:].numpy()), name="1-nn")


def mean_radius(subject):
    x, y = subject.data["test"].take(np.arange(60))
    held = (t.numpy() for t in (subject.model.train_x, subject.model.train_y, x, y))
    return nearest.exact_radius(*held, factor=subject.model.factor.numpy()).radius.mean()


def test_it_replaces_the_metric_and_leaves_the_old(neighbours, run):
    remedy = Arml(epochs=200)
    assert remedy.why_not(neighbours) is None
    before = {k: v.clone() for k, v in neighbours.model.state_dict().items()}
    cured, again = remedy.apply(neighbours, run), remedy.apply(neighbours, run)
    assert all(torch.equal(v, before[k]) for k, v in neighbours.model.state_dict().items())
    assert cured.origin == ("arml",)
    assert torch.equal(cured.model.train_x, neighbours.model.train_x)
    assert torch.equal(cured.model.factor, again.model.factor)
    assert mean_radius(cured) > 1.1 * mean_radius(neighbours)


def test_behind_a_normalisation_it_learns_the_same_metric_in_natural_units(neighbours, run):
    x, y = neighbours.model.train_x, neighbours.model.train_y
    mean, std = (0.4, 0.1), (0.5, 0.25)
    shift, scale = (torch.tensor(v).view(1, 2, 1, 1) for v in (mean, std))
    inside = NearestNeighbour((x - shift) / scale, y)
    normalised = Subject.classifier(inside, neighbours.data, mean=mean, std=std)
    plain, behind = (Arml(epochs=30, lr=0.01).apply(s, run) for s in (neighbours, normalised))
    assert isinstance(behind.model, Normalised)
    images, _ = neighbours.data["test"].take(np.arange(20))
    assert float((normalised.predict(images) - neighbours.predict(images)).abs().max()) > 0.1
    assert_close(behind.predict(images), plain.predict(images), rtol=1e-3, atol=1e-3)


def test_other_models_are_told_what_it_needs(digits, run, tmp_path):
    words = "it learns a metric for a nearest-neighbour classifier, and the model is a Sequential; put the training"
    assert words in (Arml().why_not(digits) or "")
    with pytest.raises(AssayError, match=words):
        cure("arml", digits, out=tmp_path)
    assert configure(Arml, {"epochs": "9", "loss": "hinge"}) == Arml(epochs=9, loss="hinge")
    with pytest.raises(AssayError, match="'square' of 'arml' is not"):
        configure(Arml, {"loss": "square"})


@pytest.mark.usefixtures("undrawn")
def test_it_is_found_on_its_shelf_and_a_cure_goes_on_where_it_was(neighbours, tmp_path, monkeypatch):
    first = cure("arml", neighbours, settings={"epochs": 5}, probes=["accuracy"], out=tmp_path)
    assert first.after.subject.name == "1-nn+arml"
    monkeypatch.setattr(Arml, "apply", None)  # not called again: the weights were kept
    again = cure("arml", neighbours, settings={"epochs": 5}, probes=["accuracy"], out=tmp_path)
    assert again.after.subject.fingerprint == first.after.subject.fingerprint
