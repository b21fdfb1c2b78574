"""A TorchScript archive (torch.jit.save), with its gradients, told from a pickle by what is inside, not by its name.

No Python is in it: torch's own reader knows a few classes and no others, and its compiler takes a small language.
But it is a program. It runs when it is opened (`__setstate__`) as well as when it is asked, and some of torch's
operators reach files and other machines. Those are refused by name, wherever the name stands in its code; all else that
a program may do (take time and memory) is held by the child in which the command line runs it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from assay.data.archive import check_unpacked, open_archive
from assay.errors import AssayError
from assay.subjects.doors.opened import Opened

if TYPE_CHECKING:
    from assay.subjects import Source

MOST_PACKED = 64 * 2**20  # weights are not packed; programs are
REACHING = re.compile(
    rb"\b(save|from_file|load_tensor|rpc_\w+|c10d\w*|_c10d\w*|symm_mem|inductor|debugprims|profiler|_dtensor)\b"
)
"""Operators, and families of them, that reach beyond the model: files, other machines, the profiler."""
NUMBERS: dict[str, Callable[[str], Any]] = {"int": int, "float": float, "bool": lambda text: bool(float(text))}


class TorchScriptModel(nn.Module):
    """The program as a module. `state_digest` is a hash of the file; a state between calls is forgotten before each."""

    def __init__(self, program: torch.jit.ScriptModule, feed: dict[str, Any], digest: str) -> None:
        super().__init__()
        self.program, self.feed = program, feed
        self.state_digest = digest

    def forward(self, x: Tensor) -> Any:  # n *d -> n k
        if hasattr(self.program, "reset_states"):
            self.program.reset_states()
        return self.program(x, **self.feed)


def is_torchscript(path: Path) -> bool:
    """Whether an archive holds a program: torch.save writes none."""
    try:
        with open_archive(path) as archive:
            names = archive.namelist()
    except AssayError:
        raise
    except Exception:  # zipfile raises whatever a damaged list makes it meet
        return False
    return any(name.partition("/")[2].startswith("code/") for name in names)


def open(path: Path, source: Source) -> Opened:
    """The program in the archive, on the CPU."""
    program = _load(path)
    feed = _feed(path, program, source.feed)
    digest = hashlib.blake2b(repr(sorted(feed.items())).encode(), digest_size=16)
    with path.open("rb") as file:
        while part := file.read(2**20):
            digest.update(part)
    keeps = hasattr(program, "reset_states")
    return Opened(
        model=TorchScriptModel(program, feed, digest.hexdigest()),
        name=path.name,
        about=f"{path.name}, a TorchScript program.",
        notes=("It keeps a state between calls, which is forgotten before each.",) if keeps else (),
    )


def _load(path: Path) -> torch.jit.ScriptModule:
    try:
        names = check_unpacked(path, MOST_PACKED)
        with open_archive(path) as archive:
            for name in names:
                if name.partition("/")[2].startswith("code/") and (found := REACHING.search(archive.read(name))):
                    raise AssayError(
                        f"{str(path)!r} names {found[0].decode()!r}, by which a program reaches files or machines; "
                        "export the model without it."
                    )
        return torch.jit.load(path, map_location="cpu").eval()  # type: ignore[no-untyped-call, no-any-return]
    except AssayError:
        raise
    except Exception as e:  # torch's reader raises whatever it meets
        what = str(e).strip().splitlines()
        raise AssayError(
            f"{str(path)!r} cannot be loaded as TorchScript ({type(e).__name__}: {what[0] if what else 'no message'}); "
            "save the model again with torch.jit.save, or export it as .pt2."
        ) from e


def _feed(path: Path, program: torch.jit.ScriptModule, words: tuple[str, ...]) -> dict[str, Any]:
    """The arguments of its forward that are not the batch, as they were typed."""
    forward: Any = program.forward
    arguments = {a.name: a for a in forward.schema.arguments[2:]}  # after self and the batch
    feed: dict[str, Any] = {}
    for word in words:
        name, _, text = word.partition("=")
        if name not in arguments:
            has = ", ".join(arguments) or "none"
            raise AssayError(f"{path.name} has no argument {name!r} to feed beside its data; it has: {has}.")
        kind = str(arguments[name].type)
        try:
            feed[name] = NUMBERS[kind](text)
        except KeyError:
            raise AssayError(f"--feed {name} is for {kind}, which no number is; export the model without it.") from None
        except ValueError:
            raise AssayError(
                f"--feed {word!r} is not NAME={kind.upper()}; write for example --feed sr=16000."
            ) from None
    missing = [a for a in arguments.values() if a.name not in feed and not a.has_default_value()]
    if missing:
        told = ", ".join(f"{a.name} ({a.type})" for a in missing)
        extra = " ".join(f"--feed {a.name}=NUMBER" for a in missing)
        raise AssayError(f"{path.name} takes {told} beside its data; say what they are: {extra}.")
    return feed
