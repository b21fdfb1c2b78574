"""A training that was stopped ends with the weights that it would have had; one that diverges keeps the last good."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.testing import assert_close

from assay.data.arrays import Arrays
from assay.errors import AssayError
from assay.methods.train.checkpoint import _beside
from assay.methods.train.fit import Curve, fit, reset
from assay.methods.train.gaussian_training import GaussianTraining


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def data() -> Arrays:
    return Arrays(torch.rand(20, 2, 4, 4, generator=rng()), torch.arange(20) % 3)


def net() -> nn.Module:
    layers = (nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Dropout(0.3), nn.Flatten(), nn.Linear(12, 3))
    return reset(nn.Sequential(*layers), rng())


def train(model: nn.Module, keep: Path | None = None, **more: Any) -> Curve:
    given = {"epochs": 4, "lr": 0.1, "batch": 8, "augment": GaussianTraining(0.1).augment, "rng": rng(7)}
    return fit(model, data(), keep=keep, **(given | {"keep_key": "noise of 0.1"} | more))


class Stopped(Exception):
    pass


def stop_after(epoch: int) -> dict[str, Any]:
    def look(done: int, _: float) -> None:
        if done == epoch:
            raise Stopped

    return {"on_epoch": look}


@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
@pytest.mark.parametrize("epoch", [1, 3, 4])
def test_it_ends_with_the_weights_of_an_undisturbed_training(tmp_path: Path, optimiser: str, epoch: int) -> None:
    whole, stopped = net(), net()
    curve = train(whole, optimiser=optimiser)
    with pytest.raises(Stopped):
        train(stopped, tmp_path, optimiser=optimiser, **stop_after(epoch))
    again, seen = net(), []
    told = train(again, tmp_path, optimiser=optimiser, on_epoch=lambda done, _: seen.append(done))
    assert seen == list(range(epoch + 1, 5))
    assert_close(again.state_dict(), whole.state_dict(), rtol=1e-6, atol=1e-7)
    assert told.epochs == pytest.approx(curve.epochs)
    assert told.steps == pytest.approx(curve.steps)


def test_the_generator_goes_on_as_after_an_undisturbed_training(tmp_path: Path) -> None:
    """What comes after it, the student of a teacher for one, draws the same numbers."""
    drawn = []
    for stopped in (False, True):
        if stopped:
            with pytest.raises(Stopped):
                train(net(), tmp_path, **stop_after(2))
        source = rng(7)
        train(net(), tmp_path if stopped else None, rng=source)
        drawn.append(torch.rand(3, generator=source))
    assert_close(drawn[0], drawn[1])


@pytest.mark.parametrize("other", [{"lr": 0.05}, {"rng": rng(8)}, {"epochs": 5}, {"keep_key": "no noise"}])
def test_another_training_does_not_take_it_for_its_own(tmp_path: Path, other: dict[str, Any]) -> None:
    with pytest.raises(Stopped):
        train(net(), tmp_path, **stop_after(2))
    if "rng" in other:
        other = {"rng": rng(8)}
    seen: list[int] = []
    train(net(), tmp_path, on_epoch=lambda done, _: seen.append(done), **other)
    assert seen[0] == 1
    assert len(list(tmp_path.iterdir())) == 2


def test_what_is_kept_must_say_what_it_is(tmp_path: Path) -> None:
    with pytest.raises(AssayError, match="keep without keep_key; give words for its loss"):
        train(net(), tmp_path, keep_key="")


@pytest.mark.parametrize("shape", [(), (2, 3)])
def test_what_the_optimiser_remembers_lies_with_its_weight_and_steps_stay(shape: tuple[int, ...]) -> None:
    weight = torch.empty(shape, device="meta")  # a device that every machine has
    for name in ("exp_avg", "momentum_buffer"):
        assert _beside(weight, name, torch.ones(shape)).device.type == "meta"
    assert _beside(weight, "step", torch.ones(())).device.type == "cpu"


def test_a_damaged_file_costs_its_epochs_and_no_more(tmp_path: Path) -> None:
    whole = net()
    train(whole)
    with pytest.raises(Stopped):
        train(net(), tmp_path, **stop_after(2))
    (kept,) = tmp_path.iterdir()
    kept.write_bytes(kept.read_bytes()[:100])
    again = net()
    train(again, tmp_path)
    assert_close(again.state_dict(), whole.state_dict())


KILLED = """
import sys, time
from pathlib import Path
from test_checkpoint import net, train

def look(done, _):
    print(done, flush=True)
    time.sleep(60 if done == 2 else 0)

train(net(), Path(sys.argv[1]), on_epoch=look)
"""


def test_a_killed_process_loses_one_epoch_at_most(tmp_path: Path) -> None:
    """In a process of its own and not in a fork: where torch sees a GPU, no gradient can be taken in one."""
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path)], stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": path}
    ) as child:
        assert child.stdout is not None
        assert [child.stdout.readline(), child.stdout.readline()] == [b"1\n", b"2\n"]
        child.kill()
    whole, again, seen = net(), net(), []
    train(whole)
    train(again, tmp_path, on_epoch=lambda done, _: seen.append(done))
    assert seen == [3, 4]
    assert_close(again.state_dict(), whole.state_dict(), rtol=1e-6, atol=1e-7)


def test_one_that_diverges_stops_says_when_and_keeps_the_last_good_weights(tmp_path: Path) -> None:
    good: list[dict[str, Tensor]] = []

    def spoilt(model: nn.Module, epoch: int) -> dict[str, Any]:
        def look(done: int, _: float) -> None:
            good.append(copy.deepcopy(model.state_dict()))
            if done == epoch:
                next(model.parameters()).data.fill_(torch.inf)

        return {"on_epoch": look}

    model = net()
    with pytest.raises(AssayError, match=r"became nan in epoch 3 of 4, batch 1 of 3; .* It has the weights of epoch 2"):
        train(model, tmp_path, **spoilt(model, 2))
    assert_close(model.state_dict(), good[1])
    (kept,) = tmp_path.iterdir()
    assert_close(load_file(kept)["model.5.weight"], good[1]["5.weight"])

    model = net()
    begun = copy.deepcopy(model.state_dict())
    with pytest.raises(
        AssayError, match=r"epoch 1 of 4 the last of 1 .* try lr=0.01. It has the weights it began with"
    ):
        train(model, batch=20, after_step=lambda: next(model.parameters()).data.fill_(torch.nan))
    assert_close(model.state_dict(), begun)
