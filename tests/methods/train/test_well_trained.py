"""The recipe of the networks that studies share: what it does to images, and that it trains."""

from __future__ import annotations

import torch
from torch import nn

from assay.data.whole import Whole
from assay.methods.train.well_trained import Recipe, changed, covered, moved, well_trained


def test_images_are_moved_by_at_most_four_pixels_and_turned_as_a_whole() -> None:
    x = torch.rand(100, 1, 12, 10, generator=torch.Generator().manual_seed(0))
    changed, y = moved(x, torch.arange(100), torch.Generator().manual_seed(1))
    assert torch.equal(y, torch.arange(100))
    assert changed.shape == x.shape
    padded = torch.nn.functional.pad(x, (4, 4, 4, 4), mode="reflect")
    found = set()
    for i in range(100):
        places = [
            (dy, dx, turned)
            for dy in range(9)
            for dx in range(9)
            for turned in (False, True)
            if torch.equal(changed[i], padded[i, :, dy : dy + 12, dx : dx + 10].flip([2] if turned else []))
        ]
        assert len(places) >= 1
        found.update(places)
    assert {dy for dy, _, _ in found} == {dx for _, dx, _ in found} == set(range(9))
    assert {turned for _, _, turned in found} == {False, True}


def test_a_square_of_each_image_is_covered_by_its_own_mean_and_nothing_else_changes() -> None:
    x = torch.rand(200, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    seen = covered(x, 6, torch.Generator().manual_seed(1))
    other = (seen != x).any(1)  # n h w
    mean = x.mean((2, 3), keepdim=True).expand_as(x)
    assert torch.equal(seen[other[:, None].expand_as(x)], mean[other[:, None].expand_as(x)])
    area = other.flatten(1).sum(1)
    assert area.max() == 36
    assert (area >= 9).all()  # a centre in a corner still covers a quarter
    rows, columns = other.any(2).sum(1), other.any(1).sum(1)
    assert torch.equal(rows * columns, area)  # one rectangle


def test_a_recipe_that_changes_nothing_hands_images_on() -> None:
    x, y = torch.rand(4, 1, 8, 8), torch.arange(4)
    for got, given in zip(changed(Recipe(epochs=1, batch=2, lr=0.1))(x, y, torch.Generator()), (x, y), strict=True):
        assert torch.equal(got, given)


def test_it_learns_and_the_seed_alone_decides() -> None:
    rng = torch.Generator().manual_seed(0)
    y = torch.arange(200) % 2
    x = torch.rand(200, 1, 8, 8, generator=rng) * 0.5 + 0.5 * y[:, None, None, None]

    def trained(seed: int) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(3)
            net = nn.Sequential(nn.Flatten(), nn.Linear(64, 2))
        recipe = Recipe(epochs=5, batch=20, lr=0.1, moved=1, mirrored=True, covered=2)
        return well_trained(net, Whole(x, y), recipe, seed=seed, device="cpu")

    net, again, other = trained(0), trained(0), trained(1)
    assert not net.training
    assert (net(x).argmax(1) == y).double().mean() > 0.95
    assert torch.equal(net(x), again(x))
    assert not torch.equal(net(x), other(x))
