"""Series and observations: closed forms, padding that is never touched, and what is told of ragged ones."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from assay.errors import AssayError, ShapeError
from assay.inputs import SEVERITIES, Channel, Observation, Series
from assay.inputs.series import channel_loss, clock_jitter, drift, gap, spikes, time_warp
from assay.inputs.show import Cells, Trace, Traces

WIDE = Series(50, (Channel("a", -10.0, 10.0), Channel("b", 0.0, 4.0)))


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def noise(n: int, t: int = 50) -> Tensor:
    low, span = WIDE.edges()
    return (low[:t] + span[:t] * torch.rand(n, t, 2, generator=seeded(9), dtype=torch.float64)).float()


def full(x: Tensor) -> Tensor:
    return torch.full((len(x),), x.shape[1])


def ramp(n: int, t: int) -> Tensor:
    return torch.arange(t, dtype=torch.float64)[None, :, None].expand(n, t, 1).clone()


def test_a_gap_holds_the_last_reading_or_another_value():
    x = ramp(40, 100)
    for share in (0.05, 0.2, 0.5):
        held = gap(x, share, seeded(), full(x))
        dead = gap(x, share, seeded(), full(x), torch.tensor([-7.0], dtype=torch.float64))
        inside = (dead == -7.0)[..., 0]
        assert inside.sum(1).tolist() == [math.ceil(100 * share)] * 40
        for row in range(40):
            first, *_ = places = inside[row].nonzero()[:, 0].tolist()
            assert places == list(range(first, first + len(places)))
            assert first > 0
            assert (held[row, places] == first - 1).all()
        assert torch.equal(held[~inside], x[~inside])
    assert len({int((gap(x, 0.2, seeded(), full(x)) != x)[row].nonzero()[0, 0]) for row in range(40)}) > 10


def test_drift_is_a_line_up_to_its_size():
    x = torch.zeros(6, 11, 2, dtype=torch.float64)
    off = drift(x, 0.1, seeded(), full(x), torch.tensor([20.0, 4.0]))
    assert_close(
        off.abs(),
        torch.linspace(0, 1, 11, dtype=torch.float64)[None, :, None] * torch.tensor([2.0, 0.4]).expand(6, 11, 2),
    )
    assert len(torch.unique(off[:, -1].sign(), dim=0)) > 1


def test_a_warp_of_a_line_is_the_time_that_it_reads():
    x = ramp(8, 41)
    warped = time_warp(x, 0.1, seeded(), full(x))[..., 0]
    off = 0.1 * 40 * torch.sin(math.pi * torch.arange(41, dtype=torch.float64) / 40)
    assert_close((warped - x[..., 0]).abs(), off.expand(8, 41), atol=1e-9, rtol=0)
    assert (warped.diff(dim=1) > 0).all()
    assert_close(warped[:, [0, -1]], torch.tensor([[0.0, 40.0]], dtype=torch.float64).expand(8, 2), atol=1e-9, rtol=0)


def test_a_jittering_clock_reads_early_or_late_and_never_backwards():
    x = ramp(30, 80)
    for size in (0.3, 1.2):
        off = clock_jitter(x, size, seeded(), full(x))[..., 0]
        assert ((off - x[..., 0]).abs() <= size + 1e-9).all()
        assert (off.diff(dim=1) >= 0).all()
        assert (off - x[..., 0]).std() > size / 4


def test_spikes_are_half_a_range_and_as_many_as_said():
    x = torch.zeros(50, 100, 2)
    off = spikes(x, 0.08, seeded(), span=torch.tensor([20.0, 4.0]))
    assert 0.07 < (off != 0).float().mean() < 0.09
    assert set(off[..., 0].unique().tolist()) == {-10.0, 0.0, 10.0}


def test_a_lost_channel_is_dead_to_the_end():
    x = torch.ones(20, 10, 6)
    for part, channels in ((0.2, 1), (0.6, 2), (1.0, 3)):
        dead = channel_loss(x, part, seeded(), full(x), torch.zeros(6)) == 0
        assert (dead.any(1).sum(1) == channels).all()
        assert (dead.sum((1, 2)) == channels * round(10 * part)).all()
        assert dead[:, -1].sum(1).eq(channels).all()


def test_a_dead_sensor_reads_the_bound_next_to_zero():
    kind = Series(20, (Channel("warm", 5.0, 9.0), Channel("cold", -9.0, -5.0), Channel("both", -1.0, 1.0)))
    low, span = kind.edges()
    x = (low + span * 0.7).float()[None].repeat(30, 1, 1)
    for name in ("dropouts", "channel-loss"):
        changed = kind.everyday()[name](x, 5, seeded())
        for k, rest in enumerate((5.0, -5.0, 0.0)):
            moved = changed[..., k] != x[..., k]
            assert moved.any()
            assert_close(changed[..., k][moved], torch.full((int(moved.sum()),), rest))


@pytest.mark.parametrize("padding", [0.0, -99.0, math.nan])
def test_padding_is_no_part_of_a_series(padding: float):
    given = [noise(1)[0, :length].numpy() + 0.001 for length in (50, 17, 1, 33)]
    kind = Series.of(given, padding=padding, low=[-10, 0], high=[10.1, 4.1])
    x = kind.pad(given)
    assert kind.steps == 50
    assert kind.lengths(x).tolist() == [50, 17, 1, 33]
    for name, change in kind.everyday().items():
        for severity in SEVERITIES:
            changed = change(x, severity, seeded())
            for row, length in enumerate((50, 17, 1, 33)):
                assert_close(changed[row, length:], x[row, length:], rtol=0, atol=0, equal_nan=True)
                assert changed[row, :length].isfinite().all(), name
    features = kind.features(x[1])
    assert features.groups[17:].eq(-1).all()
    assert features.groups[:17].ge(0).all()
    assert len(kind.show(x[1]).lines[0].x) == 17
    batch = Series.of(x, padding=padding)
    assert batch.channels[0].low >= -10  # what stands in for nothing is no bound


def test_ragged_series_are_refused_where_none_are_allowed():
    with pytest.raises(ShapeError, match=r"Series 1 has 4 times where others have 5; .* padding=0.0"):
        Series.of([np.zeros((5, 2)), np.zeros((4, 2))])
    with pytest.raises(ShapeError, match=r"Series 1 has shape \(4, 3\); each is times by 2 channels"):
        Series.of([np.zeros((5, 2)), np.zeros((4, 3))], padding=0.0)
    kind = Series.of(noise(3), padding=0.0)
    with pytest.raises(ShapeError, match="Series 0 has 60 times, more than the 50"):
        kind.pad([np.zeros((60, 2))])
    with pytest.raises(AssayError, match="A series holds NaN"):
        Series.of([np.full((5, 2), np.nan)])
    with pytest.raises(AssayError, match="no series to look at"):
        Series.of([])
    with pytest.raises(AssayError, match="3 names for 2 channels"):
        Series.of(noise(3), names=["a", "b", "c"])


def test_windows_cover_the_time_of_each_channel():
    x = noise(1)[0]
    features = WIDE.features(x)
    assert features.names[0] == "a, 0 to 6"
    assert features.names[-1] == "b, 44 to 49"
    assert len(features) == 16
    assert len(WIDE.features(x, windows=99)) == 100
    assert WIDE.show(x).lines[1] == Trace("b", tuple(map(float, range(50))), tuple(x[:, 1].double().tolist()))
    assert isinstance(WIDE.show(x), Traces)


def test_quantised_series_have_few_levels():
    changed = WIDE.everyday()["quantisation"](noise(20), 5, seeded())
    assert torch.unique((changed[..., 0] * 100).round()).tolist() == [-1000.0, -333.0, 333.0, 1000.0]


def test_an_observation_without_bounds_has_those_that_were_seen():
    seen = torch.tensor([[0.5, -3.0], [1.5, 4.0]])
    kind = Observation.of(
        seen, names=["place", "speed"], units=["m", "m/s"], low=[0.0, -math.inf], high=[2.0, math.inf]
    )
    assert kind.channels == (Channel("place", 0.0, 2.0, "m"), Channel("speed", -3.0, 4.0, "m/s"))
    assert kind.show(seen[0]) == Cells((("place", "0.5 m"), ("speed", "-3 m/s")))
    with pytest.raises(AssayError, match="Observation 1 holds NaN"):
        Observation.of([[1.0], [math.nan]])
    with pytest.raises(AssayError, match="holds an infinite value"):
        Observation.of([[1.0], [math.inf]])
    with pytest.raises(AssayError, match="give finite ones"):
        Observation((Channel("a", -math.inf, 1.0),))
    with pytest.raises(AssayError, match="no input to read bounds from"):
        Observation.of(torch.zeros(0, 2))
    with pytest.raises(ShapeError, match="flatten each"):
        Observation.of(torch.zeros(3, 2, 2))


def test_a_bias_moves_every_reading_by_its_share():
    kind = Observation((Channel("a", -10.0, 10.0), Channel("b", 0.0, 1.0)))
    x = torch.tensor([[0.0, 0.5]]).repeat(100, 1)
    change = kind.everyday()["bias"]
    off = change(x, 3, seeded()) - x
    assert_close(off.abs(), torch.tensor([[20.0, 1.0]]).repeat(100, 1) * change.strengths[2])
    assert 20 < (off[:, 0] > 0).sum() < 80
