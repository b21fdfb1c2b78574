"""How a command opens its subject: by its source, through the door, on a device that there is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.errors import AssayError

if TYPE_CHECKING:
    from assay.run import Engine
    from assay.subject import Subject
    from assay.subjects import Source


def opened(source: Source) -> Subject:
    from assay.door import admit
    from assay.subjects import open_subject

    return admit(open_subject(source)).subject


def engine_named(name: str, device: str = "cpu") -> Engine:
    """What was given with --engine."""
    if name == "here":
        from assay.engine.local import ThisProcess

        return ThisProcess()
    if name != "ray" and not name.startswith("ray://"):
        raise AssayError(f"There is no engine {name!r}; choose here, ray or ray://HOST:PORT.")
    import torch

    from assay.engine.ray import Ray

    torch.set_num_threads(1)  # as each worker does, so that whoever computes finds the same
    return Ray(address=None if name == "ray" else name, device=device)


def refuse_confined(name: str, sandbox: bool, profile: bool = False) -> None:
    """Refuse what a cluster cannot do: its processes are not in the sandbox, and nobody here sees their batches."""
    if name == "here":
        return
    if sandbox:
        raise AssayError(
            f"--engine {name} has other processes compute, which the sandbox does not confine; add --no-sandbox if you "
            "trust the model."
        )
    if profile:
        raise AssayError(f"--profile tells of one process, and --engine {name} has many; leave one of them out.")


def device_named(name: str) -> str:
    import torch

    if name not in ("cpu", "cuda", "auto"):
        raise AssayError(f"There is no device {name!r}; choose cpu, cuda or auto.")
    if name == "cuda" and not torch.cuda.is_available():
        raise AssayError("--device 'cuda' was asked for, but torch sees no GPU here; use --device cpu or auto.")
    return ("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name
