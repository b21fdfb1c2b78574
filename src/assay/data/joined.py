"""Labelled inputs of several domains, one after the other."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from assay.data.held_out import Labelled
from assay.errors import AssayError


class Joined:
    """Several data sets as one, read when taken; `domain` is the number of each input's own."""

    def __init__(self, parts: Mapping[str, Labelled]) -> None:
        if not parts:
            raise AssayError("Joined got no data; give at least one set.")
        self.parts = dict(parts)
        sizes = [len(each) for each in self.parts.values()]
        self.starts = np.cumsum([0, *sizes])
        self.domain: NDArray[np.int64] = np.repeat(np.arange(len(sizes)), sizes)
        self.labels: NDArray[np.int64] = np.concatenate([np.asarray(each.labels) for each in self.parts.values()])
        self.classes = next(iter(self.parts.values())).classes

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, indices: NDArray[np.int64]) -> tuple[Tensor, Tensor]:  # k -> k *d, k
        indices = np.asarray(indices)
        of, where, xs, ys = self.domain[indices], [], [], []
        for number, part in enumerate(self.parts.values()):
            mine = np.flatnonzero(of == number)
            if len(mine) or not len(indices):
                x, y = part.take(indices[mine] - self.starts[number])
                where.append(mine)
                xs.append(x)
                ys.append(y)
        back = torch.from_numpy(np.argsort(np.concatenate(where), kind="stable"))
        return torch.cat(xs)[back], torch.cat(ys)[back]

    def fingerprint(self) -> str:
        digest = hashlib.blake2b(digest_size=16)
        for name, part in self.parts.items():
            digest.update(f"{name} {part.fingerprint()}\n".encode())
        return digest.hexdigest()
