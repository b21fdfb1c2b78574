"""A training that was stopped goes on at its last whole epoch and ends with the weights that it would have had.

One safetensors file holds the weights, what the optimiser remembers, and the state of every generator; its header, as
JSON, the epochs done and the losses. The file's name is a digest of what the training begins with (weights, random
state, settings, and what its caller says of loss, augmentation and data), so that another training never takes it for
its own. It is written beside and renamed: whole, or not there. Nothing in it is run when it is read.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

PREFIX = "training-"


class Done(NamedTuple):
    """How far a training had come."""

    epochs: tuple[float, ...]  # the mean loss of each
    steps: tuple[float, ...]  # the loss of each


class Checkpoint:
    """Where the training of `model` that begins here is kept, epoch by epoch."""

    def __init__(self, folder: Path, model: nn.Module, rng: torch.Generator, settings: Mapping[str, Any]) -> None:
        begun = sha256(json.dumps(settings, sort_keys=True, default=str).encode())
        for name, tensor in {**model.state_dict(), "rng": rng.get_state()}.items():
            begun.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
            begun.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        self.path = folder / f"{PREFIX}{begun.hexdigest()[:16]}.safetensors"

    def save(
        self, model: nn.Module, optim: torch.optim.Optimizer, generators: Mapping[str, torch.Generator], done: Done
    ) -> None:
        held = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
        for number, weight in enumerate(_weights(optim)):
            for name, value in optim.state[weight].items():
                if isinstance(value, Tensor):
                    held[f"optimiser.{number}.{name}"] = value
        held |= {f"generator.{name}": generator.get_state() for name, generator in generators.items()}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        beside = self.path.with_suffix(".tmp")
        whole = {
            name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format) for name, tensor in held.items()
        }
        save_file(whole, beside, metadata={"done": json.dumps(done._asdict())})
        with beside.open("rb+") as file:
            os.fsync(file.fileno())
        beside.replace(self.path)

    def load(
        self, model: nn.Module, optim: torch.optim.Optimizer, generators: Mapping[str, torch.Generator]
    ) -> Done | None:
        """Put everything back as it was kept; None, and nothing touched, where nothing is kept that can be read."""
        if not self.path.exists():
            return None
        try:
            with safe_open(self.path, framework="pt") as file:
                told = json.loads((file.metadata() or {})["done"])
                held: dict[str, Tensor] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (OSError, SafetensorError, KeyError, ValueError):
            return None  # a damaged file costs the epochs in it, no more
        with torch.no_grad():
            for name, tensor in model.state_dict().items():
                tensor.copy_(held[f"model.{name}"])
        for number, weight in enumerate(_weights(optim)):
            start = f"optimiser.{number}."
            optim.state[weight] = {
                (said := name.removeprefix(start)): _beside(weight, said, tensor)
                for name, tensor in held.items()
                if name.startswith(start)
            }
        for name, generator in generators.items():
            generator.set_state(held[f"generator.{name}"])
        return Done(tuple(told["epochs"]), tuple(told["steps"]))


def _weights(optim: torch.optim.Optimizer) -> list[Tensor]:
    return [weight for group in optim.param_groups for weight in group["params"]]


def _beside(weight: Tensor, name: str, kept: Tensor) -> Tensor:
    """What belongs to each value of a weight lies with it, in its order; counts of steps stay where they were."""
    return kept.clone() if name == "step" else torch.empty_like(weight).copy_(kept)
