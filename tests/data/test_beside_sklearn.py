"""Data that come with scikit-learn are those it would give itself."""

from __future__ import annotations

import subprocess
import sys
from importlib.machinery import ModuleSpec

import numpy as np
import pytest
from sklearn import datasets

from assay.data import beside_sklearn
from assay.data.beside_sklearn import table
from assay.data.diabetes import COLUMNS, load_diabetes
from assay.data.digits import load_digits
from assay.data.strangers import sample_photographs
from assay.errors import AssayError
from assay.subjects import wine_mlp


def test_digits() -> None:
    x, y = datasets.load_digits(return_X_y=True)
    assert np.array_equal(table("digits.csv.gz"), np.c_[x, y])
    order = np.random.default_rng(0).permutation(len(x))
    for part, rows in (("test", order[:497]), ("train", order[497:])):
        ours = load_digits()[part]
        assert np.array_equal(np.asarray(ours.x).reshape(-1, 64) * 16, x[rows])
        assert np.array_equal(ours.take(np.arange(len(rows)))[1].numpy(), y[rows])


def test_wines() -> None:
    x, y = datasets.load_wine(return_X_y=True)
    low, high = np.array(list(wine_mlp.COLUMNS.values())).T
    order = np.random.default_rng(0).permutation(len(x))
    for part, rows in (("test", order[:60]), ("train", order[60:])):
        ours = wine_mlp.load_wine()[part]
        assert np.array_equal(ours.x, ((x - low) / (high - low)).astype(np.float32)[rows])
        assert np.array_equal(ours.take(np.arange(len(rows)))[1].numpy(), y[rows])


def test_patients() -> None:
    x, y = datasets.load_diabetes(return_X_y=True, scaled=False)
    low, high = np.array(list(COLUMNS.values())).T
    order = np.random.default_rng(0).permutation(len(x))
    for part, rows in (("test", order[:142]), ("train", order[142:])):
        ours = load_diabetes()[part]
        assert np.array_equal(ours.x, ((x - low) / (high - low)).astype(np.float32)[rows])
        assert np.array_equal(ours.progression[:, 0], y[rows].astype(np.float32))


def test_photographs() -> None:
    theirs = datasets.load_sample_images().images
    assert len(sample_photographs()) == len(theirs) == 2
    for ours, image in zip(sample_photographs(), theirs, strict=True):
        assert np.array_equal(np.rint(ours * 255), image.transpose(2, 0, 1))


def test_it_is_not_imported() -> None:
    """It would take an audit of a bundled subject as long again as torch does."""
    code = "import sys; from assay.subjects.digits_mlp import SHELVED; SHELVED.build(); print('sklearn' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


@pytest.mark.parametrize("found", [None, ModuleSpec("sklearn", None)])
def test_without_it_one_line_says_how_to_get_it(found: ModuleSpec | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beside_sklearn, "find_spec", lambda name: found)
    with pytest.raises(AssayError, match="pip install scikit-learn"):
        table("digits.csv.gz")
