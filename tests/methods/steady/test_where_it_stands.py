"""Pictures put elsewhere, the influence of pixels, and what a map knows of its place."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.testing import assert_close

from assay.errors import AssayError
from assay.methods.steady.where_it_stands import Frame, influence, position_leak, rings, rolled
from assay.nn.riap import with_riap


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def drawn(*shape: int) -> Tensor:
    return torch.rand(*shape, generator=rng())


def test_the_same_pixels_stand_at_every_place_and_its_edge_is_drawn_out() -> None:
    frame = Frame.of(10, 12, 0.8)
    assert (frame.margin, frame.size) == ((1, 1), (8, 10))
    x = drawn(3, 2, 10, 12)
    small = frame.smaller(x)
    assert small.shape == (3, 2, 8, 10)
    for down in (-1, 0, 1):
        for right in (-1, 0, 1):
            whole = frame.put(small, down, right)
            assert torch.equal(whole[..., 1 + down : 9 + down, 1 + right : 11 + right], small)
            padded = F.pad(small, (1 + right, 1 - right, 1 + down, 1 - down), mode="replicate")
            assert torch.equal(whole, padded)
    ups, lefts = Frame.of(28, 40, 0.8).offsets()
    assert ups.tolist() == [-3, -2, 0, 2, 3]
    assert lefts.tolist() == [-4, -2, 0, 2, 4]
    assert Frame.of(8, 8, 0.8).offsets()[0].tolist() == [-1, 0, 1]


def test_classes_of_pixels_move_along_with_nothing_around_them() -> None:
    frame = Frame.of(8, 8, 0.5)
    y = torch.arange(4).view(2, 2).repeat_interleave(4, 0).repeat_interleave(4, 1)[None]
    small = frame.smaller_classes(y)
    assert torch.equal(small, y[:, ::2, ::2])
    whole = frame.put_alone(small, -2, 2, -1)
    assert torch.equal(whole[0, :4, 4:], small[0])
    assert int((whole == -1).sum()) == 48


def test_rolling_keeps_the_pixels_and_moves_each_picture_by_itself() -> None:
    x = drawn(20, 2, 5, 6)
    turned = rolled(x, rng(1))
    moves = set()
    for one, other in zip(x, turned, strict=True):
        (by,) = [(a, b) for a in range(5) for b in range(6) if torch.equal(one.roll((-a, -b), (1, 2)), other)]
        moves.add(by)
    assert len(moves) > 5


def test_rings_count_from_the_border() -> None:
    assert rings(3, 5).tolist() == [[0, 0, 0, 0, 0], [0, 1, 1, 1, 0], [0, 0, 0, 0, 0]]


def chain(layers: int) -> nn.Sequential:
    net = nn.Sequential(*(nn.Conv2d(1, 1, 3, padding=1, bias=False) for _ in range(layers)))
    for layer in net:
        nn.init.ones_(layer.weight)  # type: ignore[arg-type]
    return net


def test_the_influence_of_a_pixel_is_the_norm_of_its_column() -> None:
    net, x = chain(2), drawn(3, 1, 7, 7)
    columns = net(torch.eye(49).view(49, 1, 7, 7)).detach().flatten(1).square().sum(1)  # of each pixel, linear
    exact = torch.stack([columns[rings(7, 7).flatten() == r].mean() for r in range(4)])
    ours = influence(net, x, draws=200, rng=rng())
    assert_close(ours.mean(0), exact, rtol=0.1, atol=0)
    even = influence(lambda z: z.flatten(1), x, draws=1, rng=rng())
    assert_close(even, torch.ones(3, 4))


def test_riap_raises_the_influence_of_the_border_and_does_not_make_it_level() -> None:
    """The influence on all places together: level in theory is only that on a pixel's own place."""
    net, x = chain(4), drawn(4, 1, 15, 15)
    plain, ours = (influence(n, x, draws=60, rng=rng()).mean(0) for n in (net, with_riap(net)))
    assert float(plain[0] / plain[-1]) < float(ours[0] / ours[-1]) < 0.9


def test_zeros_at_the_border_leak_the_place_and_a_round_picture_does_not() -> None:
    x = rolled(drawn(40, 1, 9, 9), rng(3))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        zeros = nn.Sequential(
            *(m for i in range(3) for m in (nn.Conv2d(1 if i == 0 else 8, 8, 3, padding=1), nn.ReLU()))
        )
    around = nn.Sequential(
        *(
            nn.Conv2d(m.in_channels, 8, 3, padding=1, padding_mode="circular") if isinstance(m, nn.Conv2d) else m
            for m in zeros
        )
    )
    around.load_state_dict(zeros.state_dict())
    with torch.no_grad():
        leak, none = (position_leak(net(x)) for net in (zeros, around))
    assert leak.r2 > 0.1
    assert -0.2 < none.r2 < 0.05
    assert leak.left.shape == (20,)
    told = rings(9, 9).float().expand(4, 1, 9, 9)
    assert position_leak(told).r2 > 0.99
    assert position_leak(drawn(4, 60, 3, 3)).r2 < 0.2  # more channels than places: only pictures held back tell


def test_what_cannot_be_moved_or_read_is_refused() -> None:
    for bad in (0.0, 1.0, -1.0):
        with pytest.raises(AssayError, match="leaves no room to move in"):
            Frame.of(28, 28, bad)
    with pytest.raises(AssayError, match="2 x 28 pixels is too small"):
        Frame.of(2, 28, 0.8)
    with pytest.raises(AssayError, match="3 x 3 places"):
        position_leak(drawn(4, 2, 2, 5))
