"""The code behind an answer: modules, and all that they import, as their files have it. Nothing is run to find out.

Which module imports which is read from the text of its file, wherever an import stands in it: inside a function, under
a condition, also where it is only text. To follow one import too many costs a question asked again; to miss one would
leave a stale answer. (Parsing a whole package takes seconds, and a regular expression a hundredth of that.)

Files are hashed as they are, comments too: the docstring of a probe is its question and stands in what is stored, and
to tell a harmless edit from another is what nobody should have to rely on.

Followed are files that are neither the standard library's nor installed; of what is installed, name and version count.
Installed is what lies in site-packages, or in a folder where an installer left its records (`pip install --target`).
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import re
import sys
import uuid
from collections.abc import Collection, Iterable, Sequence
from functools import cache, lru_cache
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import NamedTuple

IMPORT = re.compile(
    r"(?:^|[;:])[ \t]*(?:"
    r"from[ \t]*(?P<where>\.*[ \t]*[\w.]*)[ \t]+import\b[ \t]*(?P<names>\([^)]*\)|(?:[^\n\\#;]|\\\r?\n)*)"
    r"|import[ \t]+(?P<modules>(?:[^\n\\#;]|\\\r?\n)*))",
    re.MULTILINE,
)
BY_LITERAL = re.compile(r"\bimport_module\(\s*[\"']([\w.]+)")
BY_NAME = re.compile(r"\b(?:import_module|__import__|spec_from_file_location|run_path|run_module|exec|execfile)\b")
"""What loads code by a name that stands nowhere: then whatever was loaded from the folder counts."""
INSTALLED = frozenset({"site-packages", "dist-packages"})
OWN = __name__.partition(".")[0]


class Code(NamedTuple):
    """Modules by their names with the hash of each one's file, and installed packages with their versions."""

    files: dict[str, str]
    packages: dict[str, str]

    def told(self, *, own: bool) -> bytes:
        """The files, Assay's own or the others, as bytes to hash: the same wherever they lie."""
        asked = (name for name in self.files if (name.partition(".")[0] == OWN) == own)
        return repr(sorted((lasting(name), self.files[name]) for name in asked)).encode()


def behind(*kinds: type) -> str:
    """The hash of the code of classes of Assay's or of whoever extends it, with all that it imports.

    Where a class has no file, each call gives another hash: nobody can tell whether it is the same as before.
    """
    modules = frozenset(each.__module__ for kind in kinds for each in kind.__mro__)
    if any(_file(m, []) is None and m.partition(".")[0] not in sys.stdlib_module_names for m in modules):
        return uuid.uuid4().hex
    theirs = frozenset(m.partition(".")[0] for m in modules if not _is_own(m))
    found = of_modules(modules, theirs) if theirs else _own_code(modules)
    versions = repr((sys.modules[OWN].__version__, sorted(found.packages.items()))).encode()
    return hashlib.sha256(found.told(own=True) + found.told(own=False) + versions).hexdigest()


@cache
def _own_code(modules: frozenset[str]) -> Code:
    """Read once in a process: what is loaded does not follow its file."""
    return of_modules(modules)


def _is_own(module: str) -> bool:
    top = module.partition(".")[0]
    return top == OWN or top in sys.stdlib_module_names


def of_modules(roots: Iterable[str], opened: Collection[str] = ()) -> Code:
    """These modules and all that they import, each by the name under which it is imported.

    A package's own file counts with each of its modules and is followed, but for Assay's, which only gather names.
    Installed packages that are `opened` are followed too, by their files.
    """
    found = Code({}, {})
    waiting = sorted(set(roots), reverse=True)
    unfollowed: set[str] = set()
    beside: list[str] = []  # folders of what was found, which need not be on the path any more
    while waiting:
        name = waiting.pop()
        top = name.partition(".")[0]
        if name in found.files or top in found.packages or (top in sys.stdlib_module_names and name != "__main__"):
            continue
        if top == OWN:
            module = _own(name)
            unfollowed.update(_parents(name) if module else ())
        else:
            path = _file(name, beside)
            if path is not None and _by_installer(path) and top not in opened:
                found.packages[top] = _version(top)
                continue
            module = None if path is None else _read(name, path)
            if module is not None:
                waiting += _parents(name)
                up = name.count(".") + (module.path.name == "__init__.py")
                folder = str([*module.path.parents, module.path.anchor][: up + 1][-1])
                beside += [] if folder in beside else [folder]
        if module is not None:
            found.files[name] = module.digest
            waiting += [m for m in module.imports if m not in found.files] if name != OWN else []
            waiting += _loaded_below(module.path.parent) if module.by_name else ()
    for name in unfollowed - set(found.files):
        module = _own(name)
        if module is not None:
            found.files[name] = module.digest
    return found


def in_rooms(root: str, rooms: Collection[str], by_package: Collection[str] = ()) -> dict[str, str]:
    """A module of Assay's and those that it imports, one through the other, within these rooms: names and hashes.

    What lies in between in another room is not followed: the vocabulary imports much that computes nothing of theirs.
    Of rooms `by_package` what the package itself hands on counts too, wherever a module imports from it.
    """
    followed = tuple(f"{OWN}.{room}." for room in (*rooms, *by_package))
    packages = {f"{OWN}.{room}" for room in by_package}
    found: dict[str, str] = {}
    waiting = [root]
    while waiting:
        name = waiting.pop()
        module = None if name in found else _own(name)
        if module is not None:
            found[name] = module.digest
            waiting += [m for m in module.imports if m.startswith(followed) or m in packages]
    return found


def is_installed(module: str) -> bool:
    """Whether a module is the standard library's or an installed one, known by its version; Assay's own are not."""
    top = module.partition(".")[0]
    if top == OWN or module == "__main__":
        return False
    if top in sys.stdlib_module_names:
        return True
    path = _file(module, [])
    return path is not None and _by_installer(path)


def _by_installer(path: Path) -> bool:
    return bool(INSTALLED.intersection(path.parts)) or any(map(_holds_records, path.parents))


@cache
def _holds_records(folder: Path) -> bool:
    try:
        return any(entry.name.endswith(".dist-info") for entry in os.scandir(folder))
    except OSError:
        return False


def has_file(module: str) -> bool:
    """Whether there is a file that says what stands in the module."""
    return _file(module, []) is not None


def packages(modules: Iterable[str]) -> dict[str, str]:
    """The installed packages of these modules, with their versions."""
    tops = {m.partition(".")[0] for m in modules if is_installed(m)}
    return {top: _version(top) for top in tops if top not in sys.stdlib_module_names}


class _Module(NamedTuple):
    path: Path
    digest: str
    imports: tuple[str, ...]
    """Every module that it may mean."""
    by_name: bool
    """Whether it loads further ones by names that may stand nowhere."""


@cache
def _own(name: str) -> _Module | None:
    path = _file(name, [])
    return None if path is None else _read(name, path)


def _read(name: str, path: Path) -> _Module:
    content = path.read_bytes()
    text = content.decode("utf-8", "replace") if path.suffix in (".py", ".pyw") else ""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    imports: list[str] = []
    for match in IMPORT.finditer(text):
        if match["modules"] is not None:
            imports += _words(match["modules"])
        else:
            imports += _meant("".join(match["where"].split()), _words(match["names"]), package)
    by_name = name.partition(".")[0] != OWN and BY_NAME.search(text) is not None
    imports += BY_LITERAL.findall(text)
    return _Module(path, hashlib.sha256(content).hexdigest(), tuple(dict.fromkeys(imports)), by_name)


def _parents(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:k]) for k in range(1, len(parts))]


def _words(names: str) -> list[str]:
    """The first word of each part between commas: 'a.b as c, d' is a.b and d."""
    plain = re.sub(r"#[^\n]*|[()\\]", " ", names)
    return [part.split()[0] for part in plain.split(",") if part.split()]


def _meant(where: str, names: Sequence[str], package: str) -> list[str]:
    """What 'from where import names' may mean in a package: a name is a module, or stands in one."""
    base = where.lstrip(".")
    up = len(where) - len(base)
    if up:
        parts = package.split(".")
        base = ".".join([*parts[: len(parts) - up + 1], *([base] if base else [])])
    modules = [f"{base}.{n}" for n in names if n.isidentifier()]
    return [name for name in (base, *modules) if name and not name.startswith(".")]


def _spec(name: str, beside: Sequence[str]) -> ModuleSpec | None:
    """Where a module is, loaded or not; a package above it is looked at and not run."""
    loaded = sys.modules.get(name)
    spec = getattr(loaded, "__spec__", None)
    if isinstance(spec, ModuleSpec):
        return spec
    parent = name.rpartition(".")[0]
    try:
        if not parent:
            return PathFinder.find_spec(name, [*beside, *sys.path])
        above = _spec(parent, beside)
        where = None if above is None else above.submodule_search_locations
        return None if where is None else PathFinder.find_spec(name, list(where))
    except (ImportError, ValueError, AttributeError):
        return None


def _file(name: str, beside: Sequence[str]) -> Path | None:
    """A module's file; None where it has none: built in, made by hand, a bare folder, or nothing of the kind."""
    origin = getattr(_spec(name, beside), "origin", None) or getattr(sys.modules.get(name), "__file__", None)
    path = Path(origin) if isinstance(origin, str) else None
    return path if path is not None and path.is_file() else None


def _loaded_below(folder: Path) -> list[str]:
    """Modules that were loaded from files in this folder or below."""
    files = {name: getattr(module, "__file__", None) for name, module in list(sys.modules.items())}
    return sorted(name for name, file in files.items() if isinstance(file, str) and is_beside(file, str(folder)))


def is_beside(path: str, folder: str) -> bool:
    """Whether a path lies in this folder or below, and is neither Python's nor installed there nor Assay's."""
    if not _lies_in(path, folder) or _by_installer(Path(path)):
        return False
    others = (sys.prefix, sys.base_prefix, str(Path(__file__).parent))
    return not any(_lies_in(path, other) and not _lies_in(folder, other) for other in others)


def _lies_in(path: str, folder: str) -> bool:
    """Whether a path is this folder or below it."""
    above = _parts(folder)
    return _parts(path)[: len(above)] == above


@lru_cache(maxsize=2**16)
def _parts(path: str) -> tuple[str, ...]:
    """Kept: all that is loaded is asked about, thousands of files, each time that a script is opened."""
    return Path(path).parts


def _is_script(name: str) -> bool:
    return name == "__main__" or name.startswith(SCRIPT)


def lasting(name: str) -> str:
    """The name under which a module counts: that of a script says where it lies, which is no part of it."""
    return "" if _is_script(name) else name


SCRIPT = "assay_subject_"
"""How the names of modules begin that were run from a file."""


@cache
def _version(top: str) -> str:
    """Its version, whether it is loaded or not; where the distribution has another name, the files that say it."""
    try:
        return importlib.metadata.version(top)
    except (importlib.metadata.PackageNotFoundError, ValueError):
        path = _file(top, [])
        texts = [] if path is None else [path.parent / name for name in (path.name, "_version.py", "version.py")]
        return hashlib.sha256(b"".join(t.read_bytes() for t in texts if t.is_file())).hexdigest()
