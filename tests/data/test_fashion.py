from __future__ import annotations

import importlib.util
import os
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest

from assay.data.fashion import CLASSES, fashion_weights, load_fashion

BUNDLED = Path(str(files("assay.data") / "bundled"))


def test_the_sample_is_balanced_at_every_length():
    data = load_fashion()
    assert {part: len(rows) for part, rows in data.items()} == {"train": 10_000, "test": 2_000}
    for rows in data.values():
        tens = np.sort(rows.labels.reshape(-1, 10))
        assert (tens == np.arange(10)).all()
        assert rows.classes == CLASSES


def test_inputs_are_in_the_unit_interval_and_memory_is_uint8():
    for rows in load_fashion().values():
        x, y = rows.take(np.arange(500))
        assert x.shape == (500, 1, 28, 28)
        assert (x.min(), x.max()) == (0, 1)
        assert (y.min(), y.max()) == (0, 9)
        assert rows.x.dtype == np.uint8
        with pytest.raises(ValueError, match="read-only"):
            rows.x[0] = 1


def test_no_image_is_in_both_parts():
    seen = {part: {image.tobytes() for image in rows.x} for part, rows in load_fashion().items()}
    assert not seen["train"] & seen["test"]
    assert len(seen["train"]) == 10_000


def test_the_bundle_is_small_and_carries_its_licence():
    sizes = {path.name: path.stat().st_size for path in BUNDLED.iterdir()}
    assert sum(sizes.values()) < 7_500_000
    assert max(sizes["fashion_cnn.safetensors"], sizes["fashion_robust.safetensors"]) < 1_000_000
    licence = (BUNDLED / "LICENSE.fashion-mnist.txt").read_text()
    assert "MIT License" in licence
    assert "Copyright (c) 2017 Zalando SE, https://tech.zalando.com" in licence


def test_weights_are_finite():
    assert all(value.isfinite().all() for value in fashion_weights().values())


@pytest.mark.skipif(not os.environ.get("ASSAY_DATA"), reason="needs the standard files in ASSAY_DATA")
def test_the_sample_is_what_the_tool_draws():
    path = Path(__file__).parents[2] / "tools" / "train_bundled.py"
    spec = importlib.util.spec_from_file_location("train_bundled", path)
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    drawn = tool.draw_sample(Path(os.environ["ASSAY_DATA"]) / "fashion-mnist")
    for part, rows in load_fashion().items():
        np.testing.assert_array_equal(rows.x[:, 0], drawn[f"x_{part}"])
        np.testing.assert_array_equal(rows.labels, drawn[f"y_{part}"])
