"""Faults in what is stored: torn, swapped, edited and replaced files of a run, each file in turn.

Of each it is asked whether the next audit ends with the undisturbed numbers, and whether `assay verify` and
`assay report` say what is wrong with the run as it lies there.
"""

from __future__ import annotations

import os
import random
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

from campaign.case import (
    ASKED,
    FORK,
    Case,
    Undisturbed,
    audit_here,
    command_here,
    copy_runs,
    goes_on,
    numbers,
    verify_here,
)
from campaign.room import Room

EVIDENCE = ("findings", "samples", "witnesses", "audit.json")
"""What a verdict rests on; pages are made from it and can be made again."""

TEARS: dict[str, Callable[[bytes, random.Random], bytes]] = {
    "empty": lambda b, r: b"",
    "one-byte": lambda b, r: b[:1],
    "half": lambda b, r: b[: len(b) // 2],
    "last-byte-gone": lambda b, r: b[:-1],
    "garbage-at-the-end": lambda b, r: b + r.randbytes(64),
    "zeros-at-the-end": lambda b, r: b[: len(b) // 2] + bytes(len(b) - len(b) // 2),
    "one-bit": lambda b, r: _flip(b, r.randrange(8 * len(b))),
}


def _flip(content: bytes, bit: int) -> bytes:
    changed = bytearray(content)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


REPLACED: dict[str, Callable[[Path, Room], None]] = {
    "a-folder": lambda path, room: path.mkdir(),
    "a-fifo": lambda path, room: os.mkfifo(path),
    "a-socket": lambda path, room: _socket(path),
    "a-link-outside": lambda path, room: path.symlink_to(room.path / "outside" / "secret.txt"),
    "a-link-to-nothing": lambda path, room: path.symlink_to("nothing"),
    "a-link-to-itself": lambda path, room: path.symlink_to(path.name),
    "an-endless-file": lambda path, room: path.symlink_to("/dev/zero"),
}


def _socket(path: Path) -> None:
    """At a path of any length: a socket's own name may have a hundred letters."""
    here = os.open(path.parent, os.O_RDONLY)
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(f"/proc/self/fd/{here}/{path.name}")
    finally:
        os.close(here)


def cases(base: Undisturbed, seed: int) -> list[Case]:
    made: list[Case] = []

    def add(kind: str, name: str, act: Callable[[Room], None]) -> None:
        made.append(Case(kind, name, FORK, act))

    for file, how in [(file, how) for file in base.files for how in TEARS]:
        add("torn file", f"{file}-{how}", harmed(base, file, tear(file, how, seed)))

    replaced = [f for f in base.files if f.startswith(EVIDENCE) or f in ("run.json", "report.html")]
    for file, how in [(f, how) for f in (*replaced, "findings", "samples", "figures") for how in REPLACED]:
        add("replaced file", f"{file}-by-{how}", harmed(base, file, replace(file, how), whole=False))

    one, two = ASKED
    for a, b in (
        (f"findings/{one}.json", f"findings/{two}.json"),
        (f"figures/{one}-classes.svg", f"figures/{one}-confusion.svg"),
    ):
        add("swapped file", f"{a}-with-{b}", harmed(base, a, swap(a, b), two=True))
    (other,) = base.other.iterdir()
    for file in base.files:
        if (other / file).read_bytes() != (base.folder / file).read_bytes():
            add("swapped file", f"{file}-of-another-run", harmed(base, file, foreign(base, file)))
    for file in base.files:
        if file.startswith(EVIDENCE):
            add("deleted file", file, harmed(base, file, lambda room, folder, f=file: (folder / f).unlink()))
    return made


def harmed(
    base: Undisturbed, file: str, harm: Callable[[Room, Path], None], whole: bool = True, two: bool = False
) -> Callable[[Room], None]:
    """Harm a copy of the run; look at it, verify it, and audit again. With `whole` the next audit must succeed;
    with `two` both answers are harmed."""

    def act(room: Room) -> None:
        copy_runs(base.runs, room.runs)
        (folder,) = room.runs.iterdir()
        harm(room, folder)
        untouched = {p: p.read_bytes() for p in folder.rglob("*.json") if p.is_file() and not p.is_symlink()}
        name = f"runs/{folder.name}"
        told = room.run(verify_here(name), limit=60)
        if told.status == 2:
            room.one_line(told, 2)
        else:
            lied = file != "run.json" and told.status != 1
            room.look("status", not lied, f"verify found nothing wrong: {told.out[-200:]}")
            room.look("line", not told.complaints, "verify complained beside its answer")
            room.quiet(told)
        if file.endswith(".json"):  # a page is made from these
            told = room.run(command_here("report", name), limit=60)
            if told.status == 0:
                room.look("line", not told.complaints, f"report ended with 0 and complained {told.complaints}")
                room.quiet(told)
            else:
                room.one_line(told, 2)
        for path, content in untouched.items():
            same = not path.is_file() or path.is_symlink() or path.read_bytes() == content
            room.look("kept", same or "audit" in path.name, f"looking at the run changed {path.name}")
        others = (
            sum(probe not in file for probe in ASKED) if not two and file.startswith(EVIDENCE) and "/" in file else 0
        )
        if whole:
            goes_on(room, base, others, lines=1)
            return
        again = room.run(audit_here(), limit=60)
        if again.status == base.status:
            page = room.work / again.out.strip().splitlines()[-1]
            stands = page.with_name("audit.json")
            right = stands.is_file() and numbers(stands) == base.numbers
            room.look("kept", right, "the numbers differ from those of an undisturbed audit")
            room.look("line", len(again.complaints) <= 1, f"it complained: {again.complaints}")
            room.quiet(again)
        else:
            room.one_line(again, 2)

    return act


def tear(file: str, how: str, seed: int) -> Callable[[Room, Path], None]:
    def harm(room: Room, folder: Path) -> None:
        path = folder / file
        path.write_bytes(TEARS[how](path.read_bytes(), random.Random(f"{seed} {file} {how}")))

    return harm


def replace(file: str, how: str) -> Callable[[Room, Path], None]:
    def harm(room: Room, folder: Path) -> None:
        path = folder / file
        if path.is_dir():
            shutil.rmtree(path)
            if how == "a-link-outside":
                path.symlink_to(room.path / "outside")
                return
        else:
            path.unlink()
        REPLACED[how](path, room)

    return harm


def swap(a: str, b: str) -> Callable[[Room, Path], None]:
    def harm(room: Room, folder: Path) -> None:
        one, two = (folder / a).read_bytes(), (folder / b).read_bytes()
        (folder / a).write_bytes(two)
        (folder / b).write_bytes(one)

    return harm


def foreign(base: Undisturbed, file: str) -> Callable[[Room, Path], None]:
    """The same file of a run with another seed."""

    def harm(room: Room, folder: Path) -> None:
        (other,) = base.other.iterdir()
        shutil.copyfile(other / file, folder / file)

    return harm
