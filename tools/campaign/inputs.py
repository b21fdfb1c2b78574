"""Bad input by file: those that were made to do harm (tests/hostile.py), and valid ones changed by chance.

Each file is opened, asked for its inputs or its answers, in a fork with a limit on memory and time. It must be refused
in one line, or else be whole: a bit of a weight may flip without anyone being able to tell. What was made to do harm is
also given to the command line, a few of each kind.
"""

from __future__ import annotations

import os
import resource
import shutil
from collections.abc import Callable
from pathlib import Path

from campaign import fuzz
from campaign.case import COMMAND, WORKER, Case, Undisturbed, command
from campaign.room import Room

MEMORY = 3 * 2**30
"""What a reader may take on top of what the process has, as address space."""
SECONDS = 30


def cases(base: Undisturbed, seed: int) -> list[Case]:
    import hostile

    made: list[Case] = []
    for kind, shelf in (("data", hostile.DATA), ("model", hostile.MODELS), ("standards", hostile.STANDARDS)):
        for name in shelf:
            made.append(Case(f"hostile {kind}", name.replace(" ", "-"), WORKER, harmful(kind, name)))
    for name in THROUGH_ALL:
        made.append(Case("hostile file", name.replace(" ", "-"), COMMAND, through_all(name)))
    seeds = valid(base)
    for kind, (folder, file, read) in seeds.items():
        made.append(Case(f"fuzzed {kind}", "unchanged", WORKER, fuzzed(folder, file, None, read)))
        for number in range(36):
            change = fuzz.Nth(file.rpartition(".")[2], number, seed)
            made.append(Case(f"fuzzed {kind}", f"{number}-{change.name}", WORKER, fuzzed(folder, file, change, read)))
    return made


THROUGH_ALL = (
    "postscript named png", "png of eight by two million", "pipe named png", "link out of the folder",
    "npz that unpacks to a gigabyte and a half", "parquet whose dictionary is copied", "pt2 power of a power",
    "pt2 shift by a hundred billion", "onnx with weights outside", "classes that write on the terminal",
    "safetensors with a header of an exabyte", "pipe named toml",
)  # fmt: skip
"""Of what was made to do harm, what is also given to the command line."""


def limited() -> None:
    """At most so much more memory and time than there was."""
    import signal

    import hostile

    hostile.bounded(MEMORY)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.alarm(SECONDS)


def reading(read: Callable[[], object]) -> Callable[[], None]:
    """Read it, and end as the command would: 2 and one line where it is refused."""

    def act() -> None:
        from assay.cli.printing import complain
        from assay.errors import AssayError

        try:
            read()
        except AssayError as e:
            complain(str(e))
            raise SystemExit(2) from e

    return act


def written(room: Room, write: Callable[[Path], Path]) -> Path:
    """Where the file lies, written in a fork: some take half a gigabyte to make. Nobody watches that."""
    told = room.path.with_suffix(".told")
    child = os.fork()
    if child == 0:
        try:
            told.write_text(str(write(room.work)))
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    path = Path(told.read_text())
    told.unlink()
    return path


def harmful(kind: str, name: str) -> Callable[[Room], None]:
    def act(room: Room) -> None:
        import hostile

        what = {"data": hostile.DATA, "model": hostile.MODELS, "standards": hostile.STANDARDS}[kind][name]
        path = written(room, what.write)
        hostile.good_model(room.work), hostile.good_data(room.work)
        ended = room.run(reading(lambda: hostile._open(name, path, room.work)), prepare=limited, limit=SECONDS + 5)
        if not (what.opens and ended.status == 0):
            room.one_line(ended, 2, what.says)
        room.quiet(ended)

    return act


def through_all(name: str) -> Callable[[Room], None]:
    def act(room: Room) -> None:
        import hostile

        what = {**hostile.DATA, **hostile.MODELS, **hostile.STANDARDS}[name]
        path = written(room, what.write).relative_to(room.work)
        model, data = hostile.good_model(room.work).name, hostile.good_data(room.work).name
        given = {
            "DATA": ("audit", f"{model}:build", "--data", str(path)),
            "MODELS": ("audit", str(path), "--data", data),
            "STANDARDS": ("audit", f"{model}:build", "--data", data, "--standards", str(path)),
        }
        shelf = next(s for s in given if name in getattr(hostile, s))
        ended = room.run(command(*given[shelf], "--probe", "accuracy"), limit=120)
        if what.opens and ended.status in (0, 1, 3):
            room.quiet(ended)
        else:
            room.one_line(ended, 2, what.says)

    return act


def fuzzed(folder: Path, file: str, change: fuzz.Nth | None, read: Callable[[Path], object]) -> Callable[[Room], None]:
    """A file that was changed is refused in one line, or still whole; one that was not is whole."""

    def act(room: Room) -> None:
        shutil.copytree(folder, room.work / "given", symlinks=True)
        path = room.work / "given" / file
        if change is not None:
            path.write_bytes(change(path.read_bytes()))
        ended = room.run(reading(lambda: read(path)), prepare=limited, limit=SECONDS + 5)
        if ended.status == 0 or change is None:
            room.look("status", ended.status == 0, f"it is refused unchanged: {ended.err[-300:]}")
            room.notes.append("still whole")
            room.quiet(ended)
            room.look("line", not ended.complaints, "it complained and went on")
        else:
            room.one_line(ended, 2)

    return act


Valid = dict[str, tuple[Path, str, Callable[[Path], object]]]


def valid(base: Undisturbed) -> Valid:
    """A small valid file of each format: the folder with all that it needs, its name there, and what opens it."""
    import hostile
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    from assay.nn.siamese import ARCHITECTURES
    from assay.subjects.doors.ranker_file import save_ranker

    made: Valid = {}

    def at(kind: str, file: str, read: Callable[[Path], object]) -> Path:
        folder = base.runs.parents[1] / "valid" / kind.replace(" ", "-")
        folder.mkdir(parents=True)
        hostile.good_model(folder), hostile.good_data(folder)
        made[kind] = folder, file, read
        return folder

    x, y = np.random.default_rng(0).random((6, 1, 8, 8), dtype=np.float32), np.arange(6) % 2
    hostile.pt2(at(".pt2", "m.pt2", read_model))
    hostile.good_onnx(at(".onnx", "m.onnx", read_model))
    np.savez(at(".npz", "d.npz", read_data) / "d.npz", x=x, y=y)
    np.savez_compressed(at(".npz packed", "d.npz", read_data) / "d.npz", x=x, y=y)
    hostile.parquet(at("Parquet", "d.parquet", read_data), {"image": [hostile.png(8, 8)] * 6, "label": y.tolist()})
    lists = pa.FixedSizeListArray.from_arrays(pa.array(x.reshape(-1)), 64)
    pq.write_table(pa.table({"image": lists, "label": y}), at("Parquet of lists", "d.parquet", read_data) / "d.parquet")
    hostile.images(at("PNG", "images/a/x.png", read_images), hostile.png(8, 8, rows=(b"\1" + bytes(range(8))) * 8))
    (at("TOML", "assay.toml", read_toml) / "assay.toml").write_text(
        "[probes.worst-case-accuracy]\nradius = 0.03\nsteps = 4\n\n[standards.accuracy]\nat_least = 0.9\n\n"
        '[standards.confidence."calibration error"]\nat_most = 0.05\n'
    )
    ranker = at("safetensors", "m.safetensors", read_ranker)
    nobody = np.zeros(0, np.int64)
    digits = ARCHITECTURES["digits"](10)
    save_ranker(ranker / "m.safetensors", digits, architecture="digits", embedding=10, low=0, high=9, seen=nobody)
    (ranker / "numbers").mkdir()
    for number in range(6):
        (ranker / "numbers" / f"{number}_a.png").write_bytes(hostile.png(8, 8, rows=(b"\0" + bytes([number] * 8)) * 8))
    made["finding"] = base.folder, "findings/accuracy.json", read_run
    made["audit.json"] = base.folder, "audit.json", read_run
    made["witnesses"] = base.folder, "witnesses/accuracy.safetensors", read_run
    made["samples"] = base.folder, "samples/accuracy.parquet", read_run
    return made


def read_model(path: Path) -> None:
    import numpy as np

    from assay.subjects import Source, open_subject

    subject = open_subject(Source(str(path), str(path.parent / "good.npz")))
    subject.model(subject.data["test"].take(np.arange(4))[0])


def read_ranker(path: Path) -> None:
    import numpy as np

    from assay.subjects import Source, open_subject

    subject = open_subject(Source(str(path), str(path.parent / "numbers")))
    subject.model(subject.data["test"].take(np.arange(4))[0])


def read_data(path: Path) -> None:
    import numpy as np

    from assay.data.open import open_data

    data = open_data(str(path))
    data.take(np.arange(len(data)))
    data.fingerprint()


def read_images(path: Path) -> None:
    read_data(path.parents[1])


def read_toml(path: Path) -> None:
    from assay.jobs.audit import questions
    from assay.standard import read_standards

    questions(None, read_standards(path))


def read_run(path: Path) -> None:
    """Open a run as `assay diff` does, whole, and write its page in memory."""
    from assay.audit import open_audit
    from assay.report.page import render

    render(open_audit(path.parent if path.name == "audit.json" else path.parents[1], whole=True))
