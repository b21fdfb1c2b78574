from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from assay.claim import Claim
from assay.claims import liu2021_smoothing as study
from assay.data import beyond
from assay.data.arrays import Arrays
from assay.data.whole import Whole
from assay.errors import AssayError
from assay.methods.uncertainty import ece
from assay.methods.uncertainty.output_calibration import output_ece_sum
from assay.run import Run


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """CIFAR-10 and the photographs are a few random images, and every effort is small."""
    for name, value in {
        "SEEDS": 1, "EPOCHS": 1, "BATCH": 32, "WIDTH": 2, "CODE": 4, "ENCODER_EPOCHS": 1, "UNSEEN": 5,
        "BETAS": (0.5, 6.0),
    }.items():  # fmt: skip
        monkeypatch.setattr(study, name, value)
    rng = np.random.default_rng(0)
    small = {part: Arrays(rng.random((n, 3, 32, 32)), np.arange(n) % 10) for part, n in (("train", 48), ("test", 20))}
    monkeypatch.setattr(beyond, "cifar10", lambda: small)
    monkeypatch.setattr(beyond, "imagenet_sample", lambda: Arrays(rng.random((5, 3, 64, 64)), np.arange(5)))
    kept = (study._data, study._split, study._unseen, study._distances, study._tried)
    for each in kept:
        each.cache_clear()
    yield
    for each in kept:
        each.cache_clear()


def claim(name: str) -> Claim:
    return next(c for c in study.SHELVED if c.name == name)


def test_studies_measure_in_the_order_of_print(tiny: None, run: Run) -> None:
    for tested in study.SHELVED:  # they share their networks
        evidence = tested.test(run)
        assert evidence.verdict in ("holds", "fails", "cannot tell")
        names = [m.name for m in evidence.measures]
        assert len(set(names)) == len(names)
        assert names[: len(tested.published)] == [p.what for p in tested.published]
        assert all(p.value <= 1 for p in tested.published if p.unit == "%")
    assert study._tried.cache_info().misses == 3 + 3 * 2  # two betas of three arms


def test_beta_is_chosen_on_images_that_no_network_saw(tiny: None, monkeypatch: pytest.MonkeyPatch) -> None:
    learn, held = study._split("cpu")
    assert (len(learn), len(held)) == (32, 16)
    right = np.eye(10)[held.y.numpy()]

    def tried(arm: str, beta: float, seed: int, device: str) -> study._Answers:
        sure = {0.5: 0.6, 6.0: 0.99, 0.0: 0.5}[beta]  # all are right: the surest is calibrated best
        nothing = np.zeros(1)
        return study._Answers(nothing, nothing, nothing, sure * right + (1 - sure) / 9 * (1 - right), beta)

    monkeypatch.setattr(study, "_tried", tried)
    assert study._answers("names", 0, "cpu").beta == 6.0
    assert study._answers("uniform", 0, "cpu").beta == 0.0


def test_the_labels_of_each_arm(tiny: None) -> None:
    tables = {arm: study._labels(arm, 2.0, 0, "cpu") for arm in study.ARMS}
    for arm, table in tables.items():
        assert torch.allclose(table.sum(1), torch.ones(10, dtype=torch.float64)), arm
    assert torch.equal(tables["one-hot"], torch.eye(10, dtype=torch.float64))
    assert float(tables["uniform"][0, 0]) == pytest.approx(0.91)
    for arm in ("L2", "AE", "names", "equal"):
        assert tables[arm].diagonal().tolist() == pytest.approx([0.9] * 10)  # type: ignore[index]
    order = list(study.NAMES)
    cat, truck = order.index("cat"), order.index("truck")
    assert order[int(tables["names"][cat].topk(2).indices[1])] == "dog"
    assert order[int(tables["names"][truck].topk(2).indices[1])] == "automobile"
    assert {word for row in study.NAMES.values() for word in row} == set(study.SAID)


def test_the_errors_are_those_of_the_methods() -> None:
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.full(10, 0.3), 300)
    y = rng.integers(0, 10, 300)
    ones = np.ones((1, 300))
    assert study._error(study._gaps(p, y, False), ones)[0] == pytest.approx(ece(p, y))
    assert study._error(study._gaps(p, y, True), ones)[0] == pytest.approx(output_ece_sum(p, y))
    twice = np.zeros((1, 300))
    twice[0, :150] = 2  # the first half, twice
    assert study._error(study._gaps(p, y, False), twice)[0] == pytest.approx(ece(p[:150], y[:150]))


def said(y: np.ndarray, sure: float, seed: int, right: float = 0.87) -> study._Answers:
    """A network that is right so often and says `sure`."""
    rng = np.random.default_rng(seed)
    top = np.where(rng.random(len(y)) < right, y, (y + 1) % 10)
    p = np.full((len(y), 10), (1 - sure) / 9)
    p[np.arange(len(y)), top] = sure
    return study._Answers(p, np.full(50, sure) + 1e-4 * rng.random(50), np.full(50, sure) + 1e-4 * rng.random(50), p)


def test_verdicts(tiny: None, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    y = np.arange(500) % 10
    monkeypatch.setattr(study, "_data", lambda device: {"test": Whole(torch.zeros(1), torch.as_tensor(y))})

    def verdicts(right: float = 0.87, **sure: float) -> list[str]:
        levels = {arm: sure.get(arm.replace("-", "_"), 0.9) for arm in study.ARMS}
        told = {arm: [said(y, level, seed, right) for seed in range(2)] for arm, level in levels.items()}
        monkeypatch.setattr(study, "_all", lambda run: told)
        found = [claim(name).test(run) for name in ("beats-uniform", "beats-one-hot", "unseen")]
        assert {each.verdict for each in found} == {"cannot tell"}  # CIFAR-10 is not print's
        return [re.sub(r".*not print's, (it )?(.*)\.", r"\2", each.says) for each in found]

    assert verdicts(one_hot=0.99, uniform=0.97, AE=0.87, names=0.87) == ["holds", "holds", "holds"]
    assert verdicts(one_hot=0.99, uniform=0.87, AE=0.87, names=0.97) == ["fails", "holds", "fails"]
    assert set(verdicts(right=0.7, one_hot=0.99, AE=0.7, names=0.7)) == {"nothing can be told either"}  # a weak one
    assert verdicts(one_hot=0.87, uniform=0.97, AE=0.97, names=0.97) == [
        "nothing can be told either",
        "fails",
        "nothing can be told either",
    ]


def test_the_printed_errors_cannot_be_those_of_eq_4(run: Run) -> None:
    evidence = claim("output-normaliser").test(run)
    assert evidence.verdict == "fails"
    bound_100, bound_200, above, ratio = (m.value or 0 for m in evidence.measures)
    assert (bound_100, bound_200) == pytest.approx((0.02, 0.01))
    assert above == 58  # all but two, 1.64 and 1.55 of CIFAR-100
    assert 1.9 < ratio < 2.5  # print: 2.11 to 2.33
    assert claim("output-normaliser").published[1].value == max(max(r) for r in study.OUTPUT_ERRORS[200]) / 100


def test_without_data_it_says_how_to_have_it(monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    monkeypatch.delenv("ASSAY_DATA", raising=False)
    study._data.cache_clear()
    study._tried.cache_clear()
    study._split.cache_clear()
    with pytest.raises(AssayError, match="ASSAY_DATA is not set"):
        claim("beats-uniform").test(run)
