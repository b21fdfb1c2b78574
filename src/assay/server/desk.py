"""The desk: what every page works with. One for each server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from assay.server.accounts import Accounts, BackOff, Rate, Seal
from assay.server.children import Children
from assay.server.uploads import Uploads

if TYPE_CHECKING:
    from assay.server.book import Book


@dataclass(frozen=True, kw_only=True)
class Desk:
    book: Book
    home: Path
    accounts: Accounts | None
    uploads: Uploads
    children: Children
    seal: Seal
    sign_up: bool = True
    """Whether strangers may open an account, as visitors."""
    rates: Mapping[str, Rate] = field(
        default_factory=lambda: {
            "address": Rate(200, 600),  # of one address, which a whole class may have
            "sign-up": Rate(60, 3600),
            "submit": Rate(60, 60),
            "check": Rate(30, 60),
        }
    )
    guesses: BackOff = field(default_factory=BackOff)
    """Of a name from an address: whoever guesses another's password locks out nobody but themselves."""
