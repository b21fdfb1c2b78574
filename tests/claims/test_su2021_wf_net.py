"""The study of drawn images: small and whole, its verdicts on made-up finds, and its digits in colours."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from assay.claims import su2021_wf_net as study
from assay.run import Run


@pytest.fixture(scope="module")
def tiny() -> Iterator[None]:
    patch = pytest.MonkeyPatch()
    for name, value in {
        "SEEDS": 2, "HUES": 3, "IMAGES": 4, "ITEMS": 2, "QUERIES": 3, "WIDTH": 4, "SIZE": 4, "STEPS": 3, "WARM_UP": 1,
    }.items():  # fmt: skip
        patch.setattr(study, name, value)
    study._trained.cache_clear()
    yield
    patch.undo()
    study._trained.cache_clear()


@pytest.mark.parametrize("claim", study.SHELVED, ids=lambda c: c.name)
def test_the_study_runs_on_a_few_digits(tiny: None, run: Run, claim: study.Claim) -> None:
    evidence = claim.test(run)
    assert evidence.verdict == "cannot tell"
    assert "which are not print's" in evidence.says
    names = [m.name for m in evidence.measures]
    assert len(set(names)) == len(names)
    assert all(m.value is not None and np.isfinite(m.value) for m in evidence.measures)
    for printed, measure in zip(claim.published, evidence.measures, strict=False):
        assert (measure.name, measure.unit) == (printed.what, printed.unit)
    assert len(evidence.measures) >= len(claim.published)


def made_up(share: float, colour: float = 0.9, shape: float = 0.9) -> study.Told:
    coin = np.random.default_rng(0).random((3, 300))
    seen = [(coin < s).astype(float) for s in (share, colour, shape)]
    return study.Told(*seen, np.array([0.1, 0.2, 0.3]))


@pytest.mark.parametrize(
    ("shares", "here"),
    [
        ((0.5, 0.6, 0.6, 0.7), "it holds"),
        ((0.5, 0.8, 0.6, 0.7), "it fails"),
        ((0.5, 0.7, 0.6, 0.7), "nothing can be told either"),
        ((0.1, 0.6, 0.6, 0.7), "nothing can be told either"),
    ],
)
def test_verdicts_of_both(monkeypatch: pytest.MonkeyPatch, run: Run, shares: tuple[float, ...], here: str) -> None:
    told = {arm: made_up(share) for arm, share in zip(study.ARMS, shares, strict=True)}
    monkeypatch.setattr(study, "_trained", lambda arm, seed, device: told[arm])
    evidence = study.both(run)
    assert evidence.says.endswith(f"which are not print's, {here}.")
    assert ("that the baseline finds is" in evidence.says) == (shares[0] == 0.1)


@pytest.mark.parametrize(
    ("colour", "shape", "here"),
    [(0.9, 0.7, "it holds"), (0.05, 0.9, "it fails"), (0.9, 0.4, "nothing can be told either")],
)
def test_verdicts_of_codes(monkeypatch: pytest.MonkeyPatch, run: Run, colour: float, shape: float, here: str) -> None:
    monkeypatch.setattr(study, "_trained", lambda *args, **options: made_up(0.5, colour, shape))
    assert study.separate(run).says.endswith(f"which are not print's, {here}.")


def test_real_images_have_their_own_colour_and_shape(tiny: None) -> None:
    """A generator that hands the build's source back, in the colour of the look's source, is told as one that does."""

    class Honest:
        def look(self, x: study.Tensor) -> study.Tensor:
            return x.mean((2, 3)) / x.mean((1, 2, 3))[:, None]

        def build(self, x: study.Tensor) -> study.Tensor:
            return x.mean(1, keepdim=True)

        def draw(self, f: study.Tensor, s: study.Tensor) -> study.Tensor:
            return f[:, :, None, None] * s

    taught = study._worn("train", np.array([0, 2, 4]), 4, 0, "cpu")
    assert taught.x.shape == (12, 3, 8, 8)
    colour, shape, spread = study._told(Honest(), taught)  # type: ignore[arg-type]
    assert colour.mean() > 0.9
    assert shape.mean() > 0.7
    assert 0 < spread < 0.5

    class Swapped(Honest):
        def draw(self, f: study.Tensor, s: study.Tensor) -> study.Tensor:
            return f.roll(4, 0)[:, :, None, None] * s.flip(3)

    colour, shape, _ = study._told(Swapped(), taught)  # type: ignore[arg-type]
    assert colour.mean() < 0.3
    assert shape.mean() < 0.7
