"""Networks that studies share are trained once, kept by all that is behind them, and anew where that changed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from assay.claims import _kept, _networks, _robust
from assay.data import beyond
from assay.data.arrays import Arrays
from assay.data.whole import Whole
from assay.methods.train.robust import RobustRecipe
from assay.methods.train.well_trained import Recipe
from assay.nn import vgg

FEW = Recipe(epochs=1, batch=10, lr=0.1)


def linear() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 10))


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """MNIST is sixty small pictures; everything is worth keeping."""
    rng = np.random.default_rng(0)
    small = {
        part: Arrays(rng.random((60, 1, 4, 4)).astype(np.float32), np.arange(60) % 10) for part in ("train", "test")
    }
    monkeypatch.setattr(beyond, "mnist", lambda: small)
    monkeypatch.setattr(_kept, "WORTH", -1.0)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    forget()
    yield tmp_path / "assay" / "studies"
    forget()


def forget() -> None:
    _networks.images.cache_clear()
    _networks.network.cache_clear()


def trained(seed: int = 0, recipe: Recipe = FEW, held_out: int = 0) -> Tensor:
    _networks.network.cache_clear()
    net = _networks.network("MNIST", linear, seed, "cpu", held_out=held_out, recipe=recipe)
    assert not net.training
    assert not any(p.requires_grad for p in net.parameters())
    return next(net.parameters())


def test_it_is_trained_once_and_found_again(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = trained()
    assert len(list(tiny.iterdir())) == 1
    monkeypatch.setattr(_networks, "well_trained", lambda *a, **k: pytest.fail("it was kept"))
    assert torch.equal(trained(), first)


def test_whatever_changes_it_is_another(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained()
    trained(seed=1)
    trained(recipe=Recipe(epochs=2, batch=10, lr=0.1))
    trained(held_out=10)
    assert len(list(tiny.iterdir())) == 4
    monkeypatch.setattr(_kept.code, "in_rooms", lambda module, rooms: {module: "another hash"})
    trained()
    assert len(list(tiny.iterdir())) == 5


def test_a_damaged_file_is_trained_again_and_a_quick_one_not_kept(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = trained()
    (file,) = tiny.iterdir()
    file.write_bytes(b"no weights")
    assert torch.equal(trained(), first)
    file.unlink()
    monkeypatch.setattr(_kept, "WORTH", 1e9)
    trained()
    assert not list(tiny.iterdir())


def test_a_cache_that_cannot_be_written_is_none(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny.parent.mkdir(parents=True)
    tiny.write_text("in the way")
    assert trained().shape == (10, 16)


def test_held_out_images_are_the_last_and_at_most_a_third(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Whole] = []

    def watch(net: nn.Module, data: Whole, *a: object, **k: object) -> nn.Module:
        seen.append(data)
        return net

    monkeypatch.setattr(_networks, "well_trained", watch)
    for held_out in (0, 10, 5000):
        trained(held_out=held_out)
    assert [len(data) for data in seen] == [60, 50, 40]
    assert torch.equal(seen[1].x, seen[0].x[:50])


def test_the_robust_network_is_trained_once_and_anew_by_another_recipe(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    small = {"train": Arrays(rng.random((30, 3, 8, 8)).astype(np.float32), np.arange(30) % 10)}
    monkeypatch.setattr(beyond, "cifar10", lambda: small)
    monkeypatch.setattr(vgg, "STAGES", (1,))
    monkeypatch.setattr(vgg, "WIDER", (1,))
    monkeypatch.setattr(_robust, "vgg16", lambda: vgg.Vgg16(width=1))
    monkeypatch.setattr(_robust, "RECIPE", RobustRecipe(epochs=2, batch=5, lr=0.1, steps=1, shift=1))

    def found(seed: int = 0) -> Tensor:
        _robust.robust.cache_clear()
        net = _robust.robust(seed, "cpu")
        assert not net.training
        assert not any(p.requires_grad for p in net.parameters())
        return torch.cat([p.flatten() for p in net.parameters()])

    first = found()
    assert not torch.equal(found(1), first)
    assert len(list(tiny.iterdir())) == 2
    with monkeypatch.context() as no_more:
        no_more.setattr(_robust, "robustly_trained", lambda *a, **k: pytest.fail("it was kept"))
        assert torch.equal(found(), first)
    monkeypatch.setattr(_robust, "RECIPE", replace(_robust.RECIPE, radius=0.1))
    assert not torch.equal(found(), first)
    _robust.robust.cache_clear()
