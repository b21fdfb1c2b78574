from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from assay.claims import liu2021_controls as controls
from assay.claims import liu2021_smoothing as study
from assay.data import beyond
from assay.data.arrays import Arrays
from assay.run import Run


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name, value in {
        "SEEDS": 1,
        "EPOCHS": 1,
        "BATCH": 30,
        "WIDTH": 2,
        "CODE": 4,
        "ENCODER_EPOCHS": 1,
        "BETAS": (0.5, 6.0),
        "UNSEEN": 20,
    }.items():
        monkeypatch.setattr(study, name, value)
    rng = np.random.default_rng(0)
    small = {part: Arrays(rng.random((90, 3, 32, 32)), np.arange(90) % 10) for part in ("train", "test")}
    monkeypatch.setattr(beyond, "cifar10", lambda: small)
    monkeypatch.setattr(beyond, "imagenet_sample", lambda: Arrays(rng.random((20, 3, 64, 64)), np.arange(20)))
    kept = (study._data, study._split, study._distances, study._unseen, study._tried, controls._mixed)
    for each in kept:
        each.cache_clear()
    yield
    for each in kept:
        each.cache_clear()


def test_the_study_measures_in_the_order_of_print_and_chooses_on_held_out_images(
    tiny: None, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    learn, held = study._split("cpu")
    assert (len(learn), len(held)) == (60, 30)
    whole = study._data("cpu")["train"].x.flatten(1)
    both = torch.cat([learn.x, held.x]).flatten(1)
    assert torch.equal(whole.sum(1).sort().values, both.sum(1).sort().values)  # each image is in one of the two
    # Logits that know something, so that what scales has a best scale.
    true = controls._said

    def told(how: str, seed: int, device: str) -> controls._Said:
        said = true(how, seed, device)  # type: ignore[arg-type]
        rng = torch.Generator().manual_seed(seed)

        def informed(z: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return z + 2 * torch.nn.functional.one_hot(y, 10) + 2 * torch.randn(z.shape, generator=rng)

        return controls._Said(informed(said.held, held.y), informed(said.test, study._data("cpu")["test"].y))

    monkeypatch.setattr(controls, "_said", told)
    (claim,) = controls.SHELVED
    evidence = claim.test(run)
    names = [m.name for m in evidence.measures]
    assert names[: len(claim.published)] == [p.what for p in claim.published]
    assert len(set(names)) == len(names)
    assert evidence.verdict in ("holds", "fails", "cannot tell")
    assert "The betas chosen: AE " in evidence.says
    values = {m.name: m.value for m in evidence.measures}
    assert values["accuracy, TS"] == values["accuracy, one-hot"] == values["accuracy, ETS"]  # these keep the answers
    assert values["TS, P"] != values["one-hot, P"]
    assert values["mixup, P"] != values["one-hot, P"]
