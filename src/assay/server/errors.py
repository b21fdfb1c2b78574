"""What a workbench says no with, and what a page makes of each."""

from __future__ import annotations

from assay.errors import AssayError


class Refused(AssayError):
    """What was asked for cannot be done as it was asked; nothing was stored. Of a page: 4xx."""


class Full(Refused):
    """There is no room: on the disk, in the queue, or in the owner's share of either. Of a page: 429 or 507."""


class Gone(AssayError):
    """The database cannot be reached. Of a page: 503."""
