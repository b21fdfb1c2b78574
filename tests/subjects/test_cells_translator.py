"""The translator that comes with Assay: as good as it says, and the benchmark's trends are there."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from assay.methods.uncertainty.image_correlation import pearson
from assay.methods.uncertainty.pixel_ranking import MOST, partial_auc, ranked
from assay.methods.uncertainty.pixel_spread import together
from assay.nn.members import Members
from assay.subjects import Source, open_subject


def test_it_is_as_good_as_it_says_and_the_trends_of_the_benchmark_are_there() -> None:
    subject = open_subject(Source("cells-translator"))
    assert isinstance(subject.model, Members)
    assert {d.at for d in subject.domains().values()} == {None, 3, 8, 20, 45}
    x, y = subject.data["test"].take(np.arange(60))
    said = subject.predict(x)
    score = float(subject.task.score(said, y).mean())
    assert f"closeness {score:.4f}" in subject.about
    assert score > float(subject.task.score(*subject.blind("test", np.arange(60))[1:]).mean()) + 0.3
    correlation = [float(pearson(said.numpy(), y.numpy()).mean())]
    area = {}
    for name in ("dense", "very dense", "foreign", "impurities"):
        x, y = subject.data[name].take(np.arange(12 if "dense" in name else 30))
        with torch.no_grad():
            mean, spread = together(subject.model.members(x))
        correlation.append(float(np.nanmean(pearson(mean.numpy(), y.numpy()))))
        inside = subject.data[name].inside(np.arange(len(x)))  # type: ignore[attr-defined]
        area[name] = float(partial_auc(ranked(spread.numpy().ravel(), inside.ravel(), rng=np.random.default_rng(0))))
    sparse, dense, very_dense, *_ = correlation
    assert sparse > dense > very_dense  # it falls with the distance in density from home
    assert area["foreign"] > MOST**2 / 2 + 0.02
    assert area["impurities"] >= area["foreign"]
    assert np.isnan(area["dense"])  # nothing in boxes there
    assert area["foreign"] == pytest.approx(0.0685, abs=0.003)
