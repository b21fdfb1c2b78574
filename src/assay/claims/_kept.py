"""What studies find out once and need again: weights and tables that took long, kept by the digest of all behind them.

They lie in the user's cache (XDG_CACHE_HOME or ~/.cache, in assay/studies) under a hash of the code of the module that
made them and of all that computes in it, of what it was told, of the data, the kind of device and the version of torch:
whatever changes, it is another. A cache that cannot be read or written is none.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Iterable
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from assay import code
from assay.data.whole import Whole

ROOMS = ("methods", "nn", "data")  # whose code a result hangs on, beside the module's own
WORTH = 10.0  # seconds of making from which on a result is kept
Tensors = dict[str, Tensor]


def kept(
    make: Callable[[], Tensors],
    module: str,
    told: object,
    device: str,
    data: Iterable[Whole | Tensor],
    rooms: tuple[str, ...] = ROOMS,
) -> Tensors:
    """What `make` gives, made or found, on the CPU where it was found."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    file = _folder() / f"{_digest(module, told, device, data, rooms)}.safetensors"
    if file.is_file():
        with suppress(OSError, SafetensorError):  # a damaged one is made again
            return load_file(file)
    start = time.monotonic()
    made = make()
    if time.monotonic() - start > WORTH:
        _keep(made, file)
    return made


def _digest(module: str, told: object, device: str, data: Iterable[Whole | Tensor], rooms: tuple[str, ...]) -> str:
    behind = sorted(code.in_rooms(module, rooms).items())
    found = sha256(repr([behind, told, torch.device(device).type, torch.__version__]).encode())
    for part in data:
        for tensor in (part.x, part.y) if isinstance(part, Whole) else (part,):
            found.update(np.ascontiguousarray(tensor.detach().cpu().numpy()).data)
    return found.hexdigest()


def _folder() -> Path:
    given = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(given) if os.path.isabs(given) else Path.home() / ".cache") / "assay" / "studies"


def _keep(made: Tensors, file: Path) -> None:
    from safetensors.torch import save_file

    with suppress(OSError):
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        aside = file.with_name(f".{uuid.uuid4().hex}")
        save_file({name: t.detach().cpu().contiguous() for name, t in made.items()}, aside)
        os.replace(aside, file)
