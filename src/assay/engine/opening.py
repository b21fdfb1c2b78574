"""How a command opens its subject: by its source, through the door, on a device that there is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.errors import AssayError

if TYPE_CHECKING:
    from assay.subject import Subject
    from assay.subjects import Source


def opened(source: Source) -> Subject:
    from assay.door import admit
    from assay.subjects import open_subject

    return admit(open_subject(source)).subject


def device_named(name: str) -> str:
    import torch

    if name not in ("cpu", "cuda", "auto"):
        raise AssayError(f"There is no device {name!r}; choose cpu, cuda or auto.")
    if name == "cuda" and not torch.cuda.is_available():
        raise AssayError("--device 'cuda' was asked for, but torch sees no GPU here; use --device cpu or auto.")
    return ("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name
