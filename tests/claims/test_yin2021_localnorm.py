from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from small_studies import ruled

from assay.claims import yin2021_localnorm as study
from assay.nn.local_norm import LocalNorm, LocalNormed
from assay.nn.vgg import Vgg16
from assay.run import Run


@pytest.mark.parametrize("test", [study.under_noise, study.at_equal_cost])
def test_every_noise_is_told_in_both_forms(tiny: None, run: Run, test: Any) -> None:
    names = [m.name for m in test(run).measures]
    for form in study.FORMS:
        for noise in study.JUDGED:
            assert any(noise in n and n.endswith(f"as {form}") for n in names)


def test_each_way_asks_the_net_that_it_says(tiny: None) -> None:
    plain, local = study._net(False, 0, "cpu"), study._local(0, "cpu")
    assert isinstance(plain, Vgg16)
    assert isinstance(local, LocalNormed)
    assert not plain.training
    assert sum(isinstance(m, LocalNorm) for m in local.modules()) == 2
    x, y = study._images(None, "cpu"), study._data("cpu")["test"].y[:40]
    right = (plain(x).argmax(1) == y).double().numpy()
    np.testing.assert_allclose(study._right("BN", None, 0, "cpu"), right)
    alone = torch.stack(
        [torch.cat([local.asked("single", group=k)(x[i : i + 1]) for i in range(40)]) for k in range(4)]
    )
    each = (alone.argmax(-1) == y).double()
    np.testing.assert_allclose(study._right("LN-Single", None, 0, "cpu"), each.mean(0).numpy())
    groups = torch.cat([local.asked("voting").members(part) for part in x.split(4)], 1).argmax(-1)  # 4 n
    clear = (groups == groups[0]).all(0).numpy()  # no tie to break
    assert clear.sum() > 5
    voted = (groups[0] == y).double().numpy()
    np.testing.assert_allclose(study._right("LN-Voting", None, 0, "cpu")[clear], voted[clear])
    dynamic = torch.cat([plain.train()(part).argmax(1) for part in x.split(16)]) == y
    plain.eval()
    np.testing.assert_allclose(study._right("dynamic BN", None, 0, "cpu"), dynamic.double().numpy())
    order = y.argsort(stable=True)
    by_class = torch.empty(40, dtype=torch.bool)
    by_class[order] = torch.cat([local.asked("batch")(x[rows]).argmax(1) == y[rows] for rows in order.split(16)])
    np.testing.assert_allclose(study._right("LN-Batch", None, 0, "cpu", True), by_class.double().numpy())


def made_up(right: dict[str, Any]) -> Any:
    """Ways with these accuracies by set, on 100 images, with a wobble."""

    def seen(ways: Any, sets: Any, run: Any) -> Any:
        def one(way: str, of: Any) -> np.ndarray:
            value = right[way]
            return (value(of) if callable(value) else value) + 1e-3 * np.sin(np.arange(100.0) + len(way))

        return {(way, of): [one(way, of)] * 5 for way in ways for of in sets}

    return seen


@pytest.mark.parametrize(
    ("right", "verdict"),
    [
        ({"BN": lambda of: 0.3 if of else 0.9, "dynamic BN": 0.6, "LN-Batch": 0.7, "LN-Voting": 0.8}, "holds"),
        ({"BN": lambda of: 0.3 if of else 0.9, "dynamic BN": 0.85, "LN-Batch": 0.7, "LN-Voting": 0.8}, "fails"),
        ({"BN": 0.3, "dynamic BN": 0.6, "LN-Batch": 0.7, "LN-Voting": 0.8}, "cannot tell"),
    ],
)
def test_verdicts_under_noise(monkeypatch: pytest.MonkeyPatch, right: dict[str, Any], verdict: str) -> None:
    monkeypatch.setattr(study, "_all", made_up(right))
    evidence = ruled(study, "noise", study.under_noise(None))  # type: ignore[arg-type]
    assert evidence.verdict == verdict
    for printed, measure in zip(
        next(c for c in study.SHELVED if c.name == "noise").published, evidence.measures, strict=False
    ):
        assert measure.name == printed.what


@pytest.mark.parametrize(("nets", "verdict"), [(0.7, "holds"), (0.9, "fails")])
def test_verdicts_at_equal_cost(monkeypatch: pytest.MonkeyPatch, nets: float, verdict: str) -> None:
    right = {"BN": 0.9, "LN-Voting": 0.8, "BN nets": 0.5, "dynamic BN nets": nets}
    monkeypatch.setattr(study, "_all", made_up(right))
    assert study.at_equal_cost(None).verdict == verdict  # type: ignore[arg-type]


@pytest.mark.parametrize(("turned", "verdict"), [(0.79, "holds"), (0.7, "fails")])
def test_verdicts_of_rotations(monkeypatch: pytest.MonkeyPatch, turned: float, verdict: str) -> None:
    right = {"BN": 0.9, "LN-Single-Vote": 0.4, "LN-Single-Vote ROT90": turned, "LN-Batch": 0.8}
    monkeypatch.setattr(study, "_all", made_up(right))
    assert study.rotations(None).verdict == verdict  # type: ignore[arg-type]
