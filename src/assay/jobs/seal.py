"""A seal: somebody's word that this run, this model and this data belong together, and that nothing changed since.

    RUN/seal/
      run.sigstore.json   the seal: the digest of every file of the run, of the model and of the data, signed
      model.sig           the model alone, in the format of OpenSSF Model Signing, for tools that know nothing of Assay
      bom.cdx.json        what the model, its data and the packages behind the numbers are (CycloneDX)

The seal is written last and vouches for the other two. It says what `docs/seal.md` says, and nothing of whether the
numbers are right: `assay verify` judges those. Names inside a seal are data and never opened: what the user gave is
walked, and compared by name. Checking takes no package but cryptography.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from assay.audit import open_audit
from assay.errors import AssayError
from assay.store import chain, turn, write_atomically
from assay.store.envelope import (
    BUNDLE_BYTES,
    STATEMENT,
    NotSigned,
    hint,
    opened,
    private_key,
    public_key,
    signed,
)
from assay.store.files import JSON_BYTES, TEMPORARY, Content, read, read_json

SEAL = "urn:assay:seal:v1"
MODEL_SIGNING = "https://model_signing/signature/v1.0"
BUNDLE, MODEL_SIGNATURE, BILL = "seal/run.sigstore.json", "seal/model.sig", "seal/bom.cdx.json"
FILES = 50_000
"""The most files that one part of a seal may have; more would hardly fit into a bundle that is read."""
OF_GIT = (".git", ".gitattributes", ".github", ".gitignore")
"""What OpenSSF Model Signing leaves out of a model's folder (1.0, sec. 6.2)."""

Part = Literal["run", "model", "data"]
Doing = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Sealed:
    """What a seal was made of."""

    bundle: Path
    signer: str
    counts: Mapping[Part, int]


@dataclass(frozen=True, kw_only=True)
class Checked:
    """What came of holding a seal against files: it is whole where nothing is broken."""

    signer: str
    when: str = ""
    counts: Mapping[Part, int]
    broken: tuple[str, ...]
    unseen: tuple[Part, ...] = ()
    """Sealed, but not given to be compared."""


def seal(
    run: Path,
    key: Path,
    *,
    model: Path | None = None,
    data: Path | None = None,
    passphrase: Callable[[], str | None] = lambda: None,
    doing: Doing = lambda what: None,
) -> Sealed:
    """Sign a finished run with a private key, and with it the bytes of model and data where they are given."""
    from assay.report.bom import bill
    from assay.version import __version__

    secret = private_key(key, passphrase)
    with turn(run):
        _refuse_broken(run)
        audit, told = open_audit(run), _told(chain.head(run))
        parts = _gathered(run, model, data, doing)
        when = datetime.now(UTC).isoformat(timespec="seconds")
        written = {BILL: bill(audit, when, parts.get("model"), parts.get("data"))}
        if "model" in parts:
            written[MODEL_SIGNATURE] = signed(_model_statement(parts["model"]), secret)
        files = {part: dict(found.files) for part, found in parts.items()}
        files["run"].pop(MODEL_SIGNATURE, None)  # of an earlier seal
        files["run"] |= {name: hashlib.sha256(file).hexdigest() for name, file in written.items()}
        predicate: dict[str, Any] = {"assay": __version__, "sealed": when, "run": told}
        predicate |= {part: found.told() for part, found in parts.items() if part != "run"}
        bundle = signed({"_type": STATEMENT, **_subjects(files), "predicateType": SEAL, "predicate": predicate}, secret)
        if len(bundle) > BUNDLE_BYTES:
            raise AssayError(
                f"The seal would have {len(bundle):,} bytes, and {BUNDLE_BYTES:,} are read at most; {_FEWER}."
            )
        for name, file in written.items():
            write_atomically(run / name, file)
        if MODEL_SIGNATURE not in written:
            (run / MODEL_SIGNATURE).unlink(missing_ok=True)
        write_atomically(run / BUNDLE, bundle)
    return Sealed(
        bundle=run / BUNDLE,
        signer=hint(secret.public_key()),
        counts={part: len(some) for part, some in files.items()},
    )


def check(
    bundle: Path,
    key: Path,
    *,
    run: Path | None = None,
    model: Path | None = None,
    data: Path | None = None,
    doing: Doing = lambda what: None,
) -> Checked:
    """Hold a seal, or a signature of Model Signing, against what is there, with a public key and nothing else.

    A seal that lies in the folder of its run is held against that run without being told.
    """
    public = public_key(key)
    if bundle.is_dir():
        bundle = bundle / BUNDLE
    try:
        statement = opened(bundle, public)
    except NotSigned as e:
        return Checked(signer=hint(public), counts={}, broken=(f"signature: {e}",))
    kind: Any = statement.get("predicateType")
    predicate: Any = statement.get("predicate")
    if kind not in (SEAL, MODEL_SIGNING):
        raise AssayError(
            f"{str(bundle)!r} is signed, but says {kind!r}; `assay seal --check` judges {SEAL} and {MODEL_SIGNING}."
        )
    try:
        sealed: dict[Part, dict[str, str]] = (
            _files_of_seal(statement) if kind == SEAL else {"model": _files_of_model(predicate)}
        )
        when, ignored = (
            (str(predicate["sealed"]), OF_GIT)
            if kind == SEAL
            else ("", (*OF_GIT, *map(str, predicate["serialization"].get("ignore_paths", ()))))
        )
    except (KeyError, TypeError, ValueError, AttributeError) as e:
        raise AssayError(
            f"The statement in {str(bundle)!r} is signed, but not as {kind} is written ({type(e).__name__} {e}); ask "
            f"for it again."
        ) from e
    beside = bundle.resolve().parent.parent
    if run is None and kind == SEAL and (beside / BUNDLE) == bundle.resolve() and (beside / chain.HEAD).exists():
        run = beside
    counts: dict[Part, int] = {}
    broken: list[str] = []
    given: tuple[tuple[Part, Path | None], ...] = (("run", run), ("model", model), ("data", data))
    for part, path in given:
        if path is None:
            continue
        if part not in sealed:
            raise AssayError(f"{str(bundle)!r} seals no {part}; leave --{part} out, or seal again with it.")
        found = content(path, doing, of_run=part == "run", ignored=ignored)
        counts[part] = len(found.files)
        broken += _differences(part, sealed[part], found)
        if part == "run":
            broken = _otherwise(predicate["run"], path, found, broken) + broken
    if not counts:
        raise AssayError(
            f"The signature of {str(bundle)!r} holds, but there is nothing to compare it with; give "
            f"{' or '.join(f'--{part}' for part in sealed)}."
        )
    return Checked(
        signer=hint(public),
        when=when,
        counts=counts,
        broken=tuple(broken),
        unseen=tuple(part for part in sealed if part not in counts),
    )


def content(
    path: Path, doing: Doing = lambda what: None, *, of_run: bool = False, ignored: Collection[str] = OF_GIT
) -> Content:
    """Every file with its SHA-256. Of a run, its seal and what is just being written are left out."""
    files: dict[str, str] = {}
    odd: dict[str, str] = {}
    root = path.resolve()  # the user typed it: a link is followed here, and nowhere below
    try:
        single = not stat.S_ISDIR(os.stat(root).st_mode)
        for name, entry in [(root.name, root)] if single else _walk(root, of_run):
            if not single and any(name == i or name.startswith(f"{i}/") for i in ((BUNDLE,) if of_run else ignored)):
                continue
            if len(files) + len(odd) == FILES:
                raise AssayError(f"{str(path)!r} has more than {FILES:,} files, the most that are sealed; {_FEWER}.")
            doing(f"hashing {name}")
            _take(name, entry, files, odd)
    except OSError as e:
        raise AssayError(f"Cannot read {e.filename or str(path)!r}: {e.strerror}; check the path.") from e
    if not files and not odd:
        raise AssayError(f"{str(path)!r} holds no file; give a file, or a folder with files.")
    return Content(name=root.name, single=single, files=dict(sorted(files.items())), odd=odd)


def _refuse_broken(run: Path) -> None:
    if broken := chain.broken(run):
        more = f" (and {len(broken) - 1} more)" if len(broken) > 1 else ""
        raise AssayError(f"{str(run)!r} is not sealed, for its chain is broken: {broken[0]}{more}; audit again.")


def _gathered(run: Path, model: Path | None, data: Path | None, doing: Doing) -> dict[Part, Content]:
    parts: dict[Part, Content] = {"run": content(run, doing, of_run=True)}
    given: tuple[tuple[Part, Path | None], ...] = (("model", model), ("data", data))
    for part, path in given:
        if path is None:
            continue
        if run.resolve().is_relative_to(path.resolve()):
            raise AssayError(
                f"The run {str(run)!r} lies inside --{part} {str(path)!r}, which its own seal would change; give the "
                f"{part}'s own file or folder."
            )
        parts[part] = content(path, doing)
    for part, found in parts.items():
        for name, why in found.odd.items():
            raise AssayError(f"Cannot seal {name!r} of the {part}: it is {why}; put a plain file in its place.")
    return parts


def _subjects(files: Mapping[Part, Mapping[str, str]]) -> dict[str, Any]:
    return {
        "subject": [
            {"name": f"{part}/{name}", "digest": {"sha256": digest}}
            for part, some in files.items()
            for name, digest in sorted(some.items())
        ]
    }


_FEWER = "pack many files into one .npz or Parquet file, or leave --data out: its fingerprint is sealed anyway"


def _walk(root: Path, of_run: bool) -> Iterator[tuple[str, Path]]:
    folders = [("", root)]
    while folders:
        above, folder = folders.pop()
        with os.scandir(folder) as entries:
            for entry in entries:
                if of_run and TEMPORARY.fullmatch(entry.name):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    folders.append((f"{above}{entry.name}/", Path(entry.path)))
                else:
                    yield above + entry.name, Path(entry.path)


def _take(name: str, path: Path, files: dict[str, str], odd: dict[str, str]) -> None:
    try:
        name.encode()
    except UnicodeEncodeError:
        odd[name.encode("utf-8", "replace").decode()] = "a name that is not UTF-8"
        return
    mode = os.lstat(path).st_mode
    if not stat.S_ISREG(mode):
        odd[name] = "a link" if stat.S_ISLNK(mode) else "no plain file"
        return
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)  # it may be swapped meanwhile
    with open(os.open(path, flags), "rb") as f:
        files[name] = hashlib.file_digest(f, "sha256").hexdigest()


def _told(stored: Mapping[str, Any]) -> dict[str, Any]:
    """What a seal says of a run in words: all of it stands in audit.json."""
    try:
        return {
            "format": stored["format"],
            "when": str(stored["when"]),
            "status": stored["status"],
            "subject": str(stored["subject"]["name"]),
            "fingerprint": str(stored["subject"]["fingerprint"]),
            "data": dict(stored["subject"]["data"]),
        }
    except (LookupError, TypeError, ValueError) as e:
        raise AssayError(f"Cannot read audit.json of this run: {type(e).__name__} {e}; audit again.") from e


def _model_statement(model: Content) -> dict[str, Any]:
    """What `model_signing verify key` reads. It calls a single file ".", where the specification has its name."""
    return {
        "_type": STATEMENT,
        "subject": [{"name": model.name, "digest": {"sha256": model.root}}],
        "predicateType": MODEL_SIGNING,
        "predicate": {
            "serialization": {
                "method": "files",
                "hash_type": "sha256",
                "allow_symlinks": False,
                "ignore_paths": list(OF_GIT),
            },
            "resources": [
                {"name": "." if model.single else name, "algorithm": "sha256", "digest": digest}
                for name, digest in model.files.items()
            ],
        },
    }


def _files_of_seal(statement: Mapping[str, Any]) -> dict[Part, dict[str, str]]:
    found: dict[Part, dict[str, str]] = {"run": {}}
    for subject in statement["subject"]:
        part, _, name = subject["name"].partition("/")
        if part not in ("run", "model", "data") or name in found.setdefault(part, {}):
            raise ValueError(f"subject {subject['name']!r}")
        found[part][name] = str(subject["digest"]["sha256"])
    if any(not isinstance(statement["predicate"][part], dict) for part in found):
        raise ValueError("predicate")
    return found


def _files_of_model(predicate: Mapping[str, Any]) -> dict[str, str]:
    how, resources = predicate["serialization"], predicate["resources"]
    if how["method"] != "files" or any(r["algorithm"] != "sha256" for r in resources):
        raise AssayError(
            f"This signature hashed the model by {how['method']} with {how['hash_type']}, and `assay seal --check` "
            f"knows whole files with sha256; use: model_signing verify key."
        )
    return {str(r["name"]): str(r["digest"]) for r in resources}


def _differences(part: Part, sealed: Mapping[str, str], found: Content) -> list[str]:
    """Which links broke. A single file may go by any name, as in Model Signing."""
    files = found.files
    if part != "run" and found.single and len(sealed) == 1:
        files = dict(zip(sealed, files.values(), strict=False))
    broken = [f"{part}/{name} is sealed as a file, and is now {why}" for name, why in found.odd.items()]
    for name in sorted({*sealed, *files} - {*found.odd}):
        if name not in files:
            broken.append(f"{part}/{name} is sealed, and gone")
        elif name not in sealed:
            broken.append(f"{part}/{name} is there, and not in the seal")
        elif files[name] != sealed[name]:
            broken.append(
                f"{part}/{name} is not what was sealed: SHA-256 {files[name][:16]}, sealed {sealed[name][:16]}"
            )
    return broken


def _otherwise(said: Mapping[str, Any], run: Path, found: Content, broken: list[str]) -> list[str]:
    """Where the seal's words differ from the run's: it was audited again, or the words were never true."""
    if chain.HEAD not in found.files:
        return []
    changed = any(line.startswith(f"run/{chain.HEAD} ") for line in broken)
    try:
        most = BUNDLE_BYTES if changed else JSON_BYTES  # what nobody signed may be a bomb
        now = _told(read_json(read(run, chain.HEAD, most)))  # in whatever format: bytes are what was sealed
    except (OSError, ValueError):
        return []  # what cannot be read was changed, and is told already
    if changed and now["when"] != said.get("when"):
        return [f"the run was audited again ({now['when']}): sealed was its audit of {said.get('when')}; seal it again"]
    return [] if changed else [f"the seal says otherwise than audit.json of: {k}" for k in now if now[k] != said.get(k)]
