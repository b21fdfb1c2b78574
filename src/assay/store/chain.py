"""The chain of digests that a run is: whether each file is the one that was vouched for, and which link broke.

    audit.json  ->  run.json, report.html, junit.xml, card.md, figures/*.svg, findings/<probe>.json
    findings/<probe>.json  ->  samples/<probe>.parquet, witnesses/<probe>.safetensors

Each arrow is the plain SHA-256 of a file, so that `sha256sum` checks it. `audit.json` is written last and nothing in
the folder vouches for it: that is what a seal does. Reading this needs neither torch nor anything of the subject.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from assay.errors import AssayError
from assay.store.answers import BROKEN, check_format, finding_of, links_of
from assay.store.answers import HEAD as HEAD
from assay.store.files import JSON_BYTES, TEMPORARY, digest, read, read_json

UNVOUCHED = frozenset({HEAD, "diff.html", "profile.html"})
"""What may lie in a run and is vouched for by nothing in it: the head, what a later comparison wrote, and where the
time of an audit went."""
UNREAD = frozenset({"aside", "seal"})
"""Folders that are no part of what was found: what was set aside, and the seal, which is checked by itself."""
DRAWN = frozenset({"report.html", "junit.xml", "card.md"})
"""What `assay report` writes anew, beside the figures."""
MOST_FILES = 20_000


def links(folder: Path) -> dict[str, str]:
    """Every file of the run that is vouched for, with the digest that vouches for it; the head's own is taken now."""
    found = {HEAD: digest_of_head(folder)}
    for name, wanted in head_links(folder).items():
        found[name] = wanted
        if name.startswith("findings/"):
            try:
                found.update(finding_links(folder, name))
            except FileNotFoundError as e:
                raise AssayError(f"{name} is missing from {str(folder)!r}; `assay verify` says what else.") from e
    return dict(sorted(found.items()))


def broken(folder: Path) -> list[str]:
    """One sentence for each link that does not hold; AssayError where there is no audit to begin with."""
    breaks, known = _breaks(folder)
    return [says for _, says in breaks] + _strangers(folder, known)


def refuse_changed(folder: Path) -> None:
    """Refuse a run whose findings are not those that were audited: what is written of it anew would vouch for them."""
    for name, says in _breaks(folder)[0]:
        if name not in DRAWN and not name.startswith("figures/"):
            raise AssayError(f"{says}; `assay verify {folder}` says more, and auditing again mends it.")


def stored(folder: Path, probes: Iterable[str], known: Mapping[str, str]) -> dict[str, str]:
    """The first links of an audit that is about to be written: of what stands in its folder.

    Where a digest is `known` that one counts: of what was written or read, and not of what it was changed to since.
    """
    names = ("run.json", *map(finding_of, probes))
    there = (name for name in names if (folder / name).exists())
    return {name: known[name] if name in known else digest(folder, name) for name in there}


def holds(folder: Path, name: str, wanted: str) -> bool:
    return not _differs(folder, name, wanted, HEAD)


def _breaks(folder: Path) -> tuple[list[tuple[str, str]], set[str]]:
    """Each file whose link does not hold, with a sentence, and every name that a link leads to."""
    told, known = [], {HEAD}
    for name, wanted in head_links(folder).items():
        known.add(name)
        told += _differs(folder, name, wanted, HEAD)
        if not name.startswith("findings/"):
            continue
        try:
            for other, said in finding_links(folder, name).items():
                known.add(other)
                told += _differs(folder, other, said, name)
        except FileNotFoundError:
            continue  # told already
        except AssayError as e:
            told.append((name, str(e)))
    return told, known


def head(folder: Path) -> dict[str, Any]:
    """What audit.json says, as it stands there."""
    try:
        told = read_json(read(folder, HEAD, JSON_BYTES))
        check_format(str(folder / HEAD), told)
        return told
    except FileNotFoundError as e:
        raise AssayError(
            f"{str(folder)!r} holds no finished audit ({e.filename!r} is missing); give the folder that `assay audit` "
            f"named, or run the audit again to finish it."
        ) from e
    except AssayError:
        raise
    except ValueError as e:
        raise AssayError(f"Cannot read the audit {str(folder / HEAD)!r}: {e}; audit again.") from e


def head_links(folder: Path) -> dict[str, str]:
    found = head(folder).get("links")
    if not isinstance(found, dict) or not all(isinstance(v, str) for v in found.values()):
        raise AssayError(f"{str(folder / HEAD)!r} vouches for nothing: it has no links; audit again.")
    return found


def finding_links(folder: Path, name: str) -> dict[str, str]:
    try:
        stored = read_json(read(folder, name, JSON_BYTES))
        if name != finding_of(stored["probe"]):
            raise ValueError(f"it is the finding of {stored['probe']!r}")
        return links_of(stored)
    except (FileNotFoundError, AssayError):
        raise
    except BROKEN as e:
        raise AssayError(f"{name} is no finding of Assay: {e}; do not trust it, or audit again.") from e


def digest_of_head(folder: Path) -> str:
    try:
        return digest(folder, HEAD)
    except FileNotFoundError:
        head(folder)  # says so
        raise


def _differs(folder: Path, name: str, wanted: str, by: str) -> list[tuple[str, str]]:
    try:
        same = digest(folder, name) == wanted
    except FileNotFoundError:
        return [(name, f"{name} is missing, and {by} vouches for it")]
    except AssayError as e:
        return [(name, str(e))]
    return [] if same else [(name, f"{name} was changed after {by} was written")]


def _strangers(folder: Path, known: set[str]) -> list[str]:
    """Files that no link leads to: a finding that the audit never made, a program, a link to elsewhere."""
    told, seen = [], 0
    for here, folders, files in os.walk(folder):
        above = Path(here)
        if above == folder:
            folders[:] = [f for f in folders if f not in UNREAD or (above / f).is_symlink()]
        for each in sorted(files + [f for f in folders if (above / f).is_symlink()]):
            seen += 1
            name = (above / each).relative_to(folder).as_posix()
            if name not in known and name not in UNVOUCHED and not TEMPORARY.fullmatch(each):
                told.append(f"{name!r} is vouched for by nothing in this run")
            if seen > MOST_FILES:
                return [*told[:MOST_FILES], f"there are more than {MOST_FILES:,} files in it"]
    return told
