"""The noises of LocalNorm's study against their laws."""

from __future__ import annotations

import pytest
import torch

from assay.data.multiplicative_noise import spoil
from assay.errors import AssayError

X = torch.full((40, 3, 20, 20), 0.5)


def rng() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def test_they_have_the_printed_laws() -> None:
    gaussian = 2 * spoil(X, "AGN", 0.7, rng(), form="printed") - 1
    assert float(gaussian.mean()) == pytest.approx(0, abs=0.02)
    assert float(gaussian.std()) == pytest.approx(0.7, rel=0.02)
    assert gaussian.min() < -1.5  # it is not clipped
    counts = 2 * spoil(X, "APN", 0.4, rng(), form="printed") - 1
    assert set(counts.unique().tolist()) <= set(range(8))
    assert float(counts.mean()) == pytest.approx(0.4, rel=0.03)
    assert float(counts.var()) == pytest.approx(0.4, rel=0.03)
    kept = spoil(X, "MBN", 0.3, rng(), form="printed") > 0
    assert float(kept.float().mean()) == pytest.approx(0.7, abs=0.02)
    assert torch.equal(kept[:, 0], kept[:, 1])  # one mask for all channels
    assert not torch.equal(gaussian[:, 0], gaussian[:, 1])


def test_as_coded_it_is_uniform_and_stretched_to_the_range_of_the_training_images() -> None:
    x = torch.rand(30, 3, 10, 10, generator=rng())
    coded = spoil(x, "AGN", 2.0, rng(), form="coded", low=-1.0, high=3.0)
    raw = x * (1 + 2 * torch.rand(x.shape, generator=rng()))
    for c in range(3):
        want = (raw[:, c] - raw[:, c].min()) / (raw[:, c].max() - raw[:, c].min()) * 4 - 1
        torch.testing.assert_close(coded[:, c], want)
    black = spoil(torch.zeros(2, 3, 4, 4), "MBN", 0.5, rng(), form="coded")
    assert not black.any()


def test_no_noise_is_the_images_as_they_are_and_what_cannot_be_is_refused() -> None:
    x = torch.rand(5, 3, 4, 4, generator=rng())
    for noise in ("AGN", "APN", "MBN"):
        assert torch.equal(spoil(x, noise, 0.0, rng(), form="printed"), x)  # type: ignore[arg-type]
    for noise, sigma in (("AGN", -1.0), ("MBN", 1.5), ("APN", float("nan"))):
        with pytest.raises(AssayError, match=f"sigma={sigma} is no strength of {noise}"):
            spoil(x, noise, sigma, rng(), form="printed")  # type: ignore[arg-type]
    with pytest.raises(AssayError, match="noise='salt'"):
        spoil(x, "salt", 1.0, rng(), form="printed")  # type: ignore[arg-type]
