"""How a walk is made, said in numbers: each setting reaches the walk, and what makes no sense is told in one line."""

from __future__ import annotations

import pytest
import torch

from assay.errors import AssayError
from assay.methods.rank.manner import PLAIN, Manner
from assay.methods.rank.perception import random_change
from assay.methods.rank.walk import interpolate, relative_move, walk
from assay.probe import configure

X = torch.rand(3, 1, 4, 6, generator=torch.Generator().manual_seed(0))
W = torch.linspace(0.1, 1, 24).view(1, 4, 6)


def score(x: torch.Tensor) -> torch.Tensor:
    return torch.sigmoid((x * W).sum((1, 2, 3)) - 5)


def walked(manner: Manner) -> torch.Tensor:
    return walk(score, X, target=1.0, steps=10, **manner.ways(X)).x


def test_a_plain_manner_is_the_plain_walk() -> None:
    torch.testing.assert_close(walked(PLAIN), walk(score, X, target=1.0, steps=10).x)
    assert (PLAIN.told(), PLAIN.changed()) == ("", {})


def test_a_region_is_all_that_changes() -> None:
    manner = Manner(region=(1, 2, 3, 5))
    moved = walked(manner) != X
    assert moved[:, :, 1:3, 2:5].all()
    assert int(moved.sum()) == 3 * 6
    assert manner.inside(moved[:, 0]).shape == (3, 2, 3)
    noise = random_change(X, torch.full((3,), 2.0), rng=torch.Generator().manual_seed(1), mask=manner.mask(X)) - X
    torch.testing.assert_close(noise.flatten(1).norm(dim=1), torch.full((3,), 2.0))
    assert int((noise != 0).sum()) == 3 * 6
    assert manner.told() == "only in rows 1 to 2 and columns 2 to 4"


@pytest.mark.parametrize("name", ["tv", "sparse", "close"])
def test_a_charge_shortens_the_change_and_momentum_lengthens_it(name: str) -> None:
    plain, charged, faster = (
        (walked(manner) - X).norm()
        for manner in (PLAIN, Manner(**{name: 0.5}), Manner(damping=0.2))  # type: ignore[arg-type]
    )
    assert charged < plain < faster


def test_what_is_typed_comes_back_as_it_was_typed() -> None:
    typed = {"region": "0,0,2,3", "tv": "0.01", "momentum": "classic", "damping": "0.9"}
    manner = configure(Manner, typed)
    assert manner == Manner(region=(0, 0, 2, 3), tv=0.01, momentum="classic", damping=0.9)
    assert manner.changed() == typed
    assert configure(Manner, manner.changed()) == manner
    assert manner.told().endswith("charged 0.01 for roughness, with classic momentum of 0.9")


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"region": (0, 0, 4)}, "The region 0,0,4 is none; give top,left,bottom,right in pixels"),
        ({"region": (2, 0, 2, 3)}, "The region 2,0,2,3 is none"),
        ({"region": (-1, 0, 2, 3)}, "The region -1,0,2,3 is none"),
        ({"damping": -1.0}, "The damping -1 must be at least 0"),
        ({"damping": float("nan")}, "The damping nan must be at least 0"),
        ({"momentum": "fast"}, "no momentum 'fast'; choose printed or classic"),
        ({"tv": -1.0}, "wants tv of at least 0"),
        ({"sparse_form": "rare"}, "no sparse form 'rare'"),
    ],
)
def test_what_makes_no_sense_is_refused(settings: dict[str, object], says: str) -> None:
    with pytest.raises(AssayError, match=says):
        Manner(**settings)  # type: ignore[arg-type]


def test_a_region_outside_the_image_is_refused() -> None:
    with pytest.raises(AssayError, match=r"region 0,0,4,7 does not lie in inputs of shape \(1, 4, 6\)"):
        Manner(region=(0, 0, 4, 7)).mask(X)
    with pytest.raises(AssayError, match=r"does not lie in inputs of shape \(5,\)"):
        Manner(region=(0, 0, 1, 1)).mask(torch.zeros(2, 5))


def test_moves_are_relative_and_lines_are_straight() -> None:
    e, other = torch.tensor([[3.0, 4.0], [0.0, 0.0]]), torch.tensor([[6.0, 8.0], [1.0, 0.0]])
    moved = relative_move(e, other)
    assert float(moved[0]) == pytest.approx(1)
    assert bool(moved[1].isnan())
    line = interpolate(e, other, 5)
    torch.testing.assert_close(line[1], 0.75 * e + 0.25 * other)
    torch.testing.assert_close(torch.stack([line[0], line[-1]]), torch.stack([e, other]))
    with pytest.raises(AssayError, match="at least 2 frames, got 1"):
        interpolate(e, other, 1)
