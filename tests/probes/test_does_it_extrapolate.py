"""Between what was seen and beyond it: which domains are which, what is lost, and its interval."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from assay.data.arrays import Arrays
from assay.domain import Domain
from assay.engine.local import ThisProcess
from assay.errors import AssayError
from assay.probe import configure, put
from assay.probes.steady.does_it_extrapolate import LOST, DoesItExtrapolate
from assay.run import Run
from assay.subject import Subject


class Marked(nn.Module):
    """Says class 1 where the first pixel is above a half: whoever sets pixels chooses how often it is right."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(4.0))

    def forward(self, x: Tensor) -> Tensor:
        said = self.scale * (x.flatten(1)[:, :1] - 0.5)
        return torch.cat([-said, said], 1)


def data(right: float, n: int = 200, seed: int = 0) -> Arrays:
    """Inputs of which exactly this share is answered rightly."""
    rng = np.random.default_rng(seed)
    x, y = rng.random((n, 1, 2, 2)).astype(np.float32), np.arange(n) % 2
    wrong = np.arange(n) >= round(right * n)
    x[:, 0, 0, 0] = np.where(wrong, 1 - y, y)
    return Arrays(x, y)


def subject(**rates: float) -> Subject:
    splits = {
        f"rotated-{name.removeprefix('at')}": data(rate, seed=i + 1) for i, (name, rate) in enumerate(rates.items())
    }
    return Subject.classifier(Marked(), {"test": data(0.9), **splits})


def asked(of: Subject, **settings: object):
    answer = put(configure(DoesItExtrapolate, settings), of, Run(engine=ThisProcess(), debug=True))
    assert answer.finding is not None, answer.why
    return answer.finding


def test_the_ends_are_beyond_and_what_is_lost_there_is_measured() -> None:
    found = asked(subject(at45=0.9, at0=0.5, at15=0.8, at75=0.7))
    value = {m.name: m.value for m in found.measures}
    assert value["right between"] == pytest.approx(0.85)
    assert value["right beyond"] == pytest.approx(0.6)
    assert value[LOST] == pytest.approx(0.25)
    lost = found.measure()
    assert lost.low is not None
    assert lost.high is not None
    assert 0.1 < lost.low < 0.25 < lost.high < 0.35
    (unsaid,) = [a for a in found.alarms if "Nobody said where training lay" in a.says]
    assert LOST in unsaid.doubts
    (curve,) = found.views
    assert curve.lines[0].x == (0.0, 15.0, 45.0, 75.0)
    assert curve.lines[0].y == pytest.approx((0.5, 0.8, 0.9, 0.7))


def test_what_was_seen_decides_where_somebody_says_it() -> None:
    found = asked(subject(at45=0.9, at0=0.5, at15=0.8, at75=0.7), seen="0,50")
    value = {m.name: m.value for m in found.measures}
    assert value["right beyond"] == pytest.approx(0.7)
    assert value["right between"] == pytest.approx((0.9 + 0.5 + 0.8) / 3)
    assert not found.alarms
    assert [mark.value for mark in found.views[0].marks] == [0.0, 50.0]


def test_a_perfect_model_loses_nothing_and_the_interval_is_not_a_point() -> None:
    lost = asked(subject(at0=1.0, at15=1.0, at30=1.0)).measure()
    assert lost.value == 0
    assert lost.low is not None
    assert lost.high is not None
    assert lost.low < 0 < lost.high


@pytest.mark.parametrize(
    ("rates", "settings", "why"),
    [
        ({}, {}, "needs a domain beside train and test"),
        ({"at0": 0.5, "at15": 0.5}, {}, "three domains with labels and a number in their names"),
        ({"at0": 0.5, "at15": 0.5}, {"seen": "0,15"}, "outside of what was seen, 0 to 15"),
    ],
)
def test_it_says_which_domains_it_wants(rates: dict[str, float], settings: dict[str, str], why: str) -> None:
    answer = put(configure(DoesItExtrapolate, settings), subject(**rates), Run(engine=ThisProcess()))
    assert answer.status == "does not apply"
    assert why in answer.why


def test_the_test_data_stand_for_what_was_seen_where_no_domain_lies_inside() -> None:
    found = asked(subject(at0=0.5, at75=0.7), seen="15,60")
    value = {m.name: m.value for m in found.measures}
    assert value["right between"] == pytest.approx(0.9)
    assert value[LOST] == pytest.approx(0.3)
    assert "(test)" in found.says


def test_numbers_of_cameras_are_no_place_along_a_line() -> None:
    of = Subject.classifier(Marked(), {"test": data(0.9), **{f"camera{i}": data(0.5, seed=i) for i in (1, 2, 3)}})
    assert put(DoesItExtrapolate(), of, Run(engine=ThisProcess())).status == "does not apply"


def test_domains_without_labels_are_not_read() -> None:
    known = subject(at0=0.5, at15=0.8, at30=0.9)
    told = asked(replace(known, unlabelled={"rotated-60": data(0.0)}))
    assert not [m for m in told.measures if "60" in m.name]
    assert told.measure().value == asked(known).measure().value
    assert isinstance(next(iter(known.domains().values())), Domain)


def test_few_inputs_and_leaked_ones_are_doubted() -> None:
    of = subject(at0=0.5, at15=0.8, at30=0.9)
    few = asked(replace(of, data={**of.data, "rotated-0": data(0.5, n=10)}))
    assert [a for a in few.alarms if LOST in a.doubts and "rotated-0" in a.says]
    leaked = asked(replace(of, data={**of.data, "train": of.data["rotated-0"]}))
    assert [a for a in leaked.alarms if LOST in a.doubts and "not unseen" in a.says]


@pytest.mark.parametrize("seen", ["15", "60,15", "1,2,3", "nan,3"])
def test_seen_is_from_where_to_where(seen: str) -> None:
    with pytest.raises(AssayError, match="from where to where"):
        configure(DoesItExtrapolate, {"seen": seen})
