"""The fault campaign: what an audit does when it is killed, starved, torn apart and lied to.

Every case runs in a folder of its own and under watch of the kernel (campaign/watch.py): each write, connection and
program of it and of all that it starts is seen before it happens. A case holds if it ended in the right status and
one line, nothing found before was lost, no byte was written outside the run, no process was left behind and no request
was made. Ends with 0 only if all held.

    python tools/faults.py                     everything: minutes on two cores
    python tools/faults.py --quick             a short version
    python tools/faults.py --only kill         one kind
    python tools/faults.py --only kill/17      one case, by the beginning of its name; its folder is kept
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import multiprocessing
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any
from unittest.mock import patch

from campaign import room, watch
from campaign.case import COMMAND, Case, Undisturbed, audit_here, spread
from campaign.room import COLUMNS, Room, clear

HEADS = {
    "status": "right status", "line": "one line", "kept": "nothing lost", "outside": "nothing outside",
    "left": "none left behind", "request": "no request",
}  # fmt: skip
LONGER = (
    "fsync fails", "rename fails", "read-only", "no descriptors", "clock set back", "swapped file", "deleted file",
    "fuzzed .npz packed", "fuzzed Parquet of lists", "fuzzed TOML", "fuzzed safetensors", "fuzzed audit.json",
    "fuzzed witnesses", "fuzzed samples",
)  # fmt: skip
"""Kinds that --quick leaves out, beside the command line's: others go the same way."""
LIMIT = 1800
"""Seconds after which no further case is begun."""


def load(folder: Path) -> None:
    """Audit once here, in one thread and without a gradient, so that forks of this process have all that they need.

    The one thread is OMP_NUM_THREADS' alone. Where torch was told by set_num_threads, threads of autograd that a fork
    starts, as a CUDA build does, look for the pool that was left behind and end the process ("Invalid thread pool!").
    """
    os.environ["MPLCONFIGDIR"] = str(folder / "fonts")  # a user who has drawn before has such a list of fonts
    sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))
    import hostile

    with without_gradients():
        with open(folder / "loading.txt", "w") as aside, redirect_stdout(aside), redirect_stderr(aside):
            try:
                audit_here(out=str(folder / "loading"))()
            except SystemExit as e:
                if e.code not in (0, 1, 3):
                    said = Path(aside.name).read_text()
                    raise SystemExit(f"faults: the audit fails without any fault: {said}") from e
        import torch.export.pt2_archive._package  # noqa: F401

        with suppress(ImportError):
            import onnxruntime  # noqa: F401
        hostile._exported()
    gc.collect()
    gc.freeze()  # or each fork looks through all of torch again, and copies it


@contextmanager
def without_gradients() -> Iterator[None]:
    """End the campaign where a gradient is taken: forks of a process in which autograd ran may not run it.

    A CUDA build of torch refuses it there, and whatever asks for one fails for a reason that is none of its own.
    """
    import torch

    taken: list[str] = []

    class Refusing:
        def run_backward(self, *anything: object, **more: object) -> None:
            taken.append(traceback.extract_stack()[-4].name)
            raise RuntimeError("a gradient was taken")

    with patch.object(torch.autograd.Variable, "_execution_engine", Refusing()):
        try:
            yield
        finally:
            if taken:
                raise SystemExit(f"faults: no fork can take gradients, and {taken[0]} took one; ask something else.")


def undisturbed(folder: Path, trap: int) -> Undisturbed:
    """The audit that the others are compared with, and every write of it."""
    first, second = Room(folder / "undisturbed", trap), Room(folder / "other", trap)
    ended, other = first.run(audit_here()), second.run(audit_here(seed=1))
    if ended.status not in (0, 1, 3) or other.status != ended.status:
        raise SystemExit(f"faults: the audit fails without any fault ({ended.status}, {other.status}): {ended.err}")
    if first.faults or second.faults:
        raise SystemExit(f"faults: without any fault, {'; '.join(why for _, why in first.faults + second.faults)}")
    writes = tuple((w.what, short(w.path)) for w in ended.writes)
    return Undisturbed(first.runs, second.runs, ended.status, writes)


def short(path: str) -> str:
    """A file's name without what changes from run to run."""
    name = Path(path).name.lstrip(".")
    if Path(path).parent.name == "runs" or name == "runs":
        return "folder"
    known = next(
        (k for k in ("run.json", "audit.json", "report.html", "junit.xml", "card.md") if name.startswith(k)), ""
    )
    return known or name.split(".")[0]


def undrawn() -> None:
    """From here on a figure is its view's name: drawing, which the undisturbed audits did, takes most of the time."""
    from assay.report import page

    page.draw = lambda view, key="": f"<svg><!-- {view.name} --></svg>"


def everything(base: Undisturbed, seed: int, quick: bool) -> list[Case]:
    from campaign import disk, files, inputs, strangers, words

    found = [c for part in (disk, files, inputs, strangers, words) for c in part.cases(base, seed)]
    if not quick:
        return found
    few = []
    for kind in dict.fromkeys(c.kind for c in found):
        of = [c for c in found if c.kind == kind]
        if kind not in LONGER and of[0].road != COMMAND:
            few += spread(of, 2 if kind == "kill" else 1)
    return few


def play(case: Case, folder: Path, trap: int) -> dict[str, Any]:
    """One case, in a room of its own that is cleared if all held."""
    start = time.monotonic()
    place = Room(folder, trap)
    try:
        case.act(place)
    except Exception as e:  # a mistake of the campaign's own must not look like a case that held
        where = traceback.extract_tb(e.__traceback__)[-1]
        place.look(
            "status", False, f"the case itself broke: {type(e).__name__} {e} ({where.name}, line {where.lineno})"
        )
    return {
        "id": case.id,
        "looked": sorted(place.looked),
        "faults": place.faults,
        "notes": place.notes,
        "seconds": time.monotonic() - start,
    }


def runner(cases: list[Case], taken: Any, back: Any, folder: Path, trap: int, until: float, keep: bool) -> None:
    """One of the processes that play cases: the next that nobody has, until there is none or time is up."""
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER: whoever is left behind becomes our child
    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG: the campaign was stopped, and this with it
    while time.monotonic() < until:
        with taken.get_lock():
            place = taken.value
            taken.value += 1
        if place >= len(cases):
            break
        told = play(cases[place], folder / str(place), trap)
        if not keep:
            clear(folder / str(place))
        back.send((place, told))
    back.send(None)


def campaign(cases: list[Case], folder: Path, trap: int, processes: int, keep: bool) -> dict[int, dict[str, Any]]:
    fork = multiprocessing.get_context("fork")
    taken = fork.Value("i", 0)
    until = time.monotonic() + LIMIT
    here, there = fork.Pipe(duplex=False)
    runners = [
        fork.Process(target=runner, args=(cases, taken, there, folder, trap, until, keep)) for _ in range(processes)
    ]
    for each in runners:
        each.start()
    results: dict[int, dict[str, Any]] = {}
    running = len(runners)
    while running:
        if not here.poll(LIMIT):
            break
        told = here.recv()
        if told is None:
            running -= 1
            continue
        place, result = told
        results[place] = result
        if sys.stderr.isatty():
            print(f"\r{len(results)} of {len(cases)}: {result['id'][:60]:60}", end="", file=sys.stderr, flush=True)
    for each in runners:
        each.join(5)
        if each.is_alive():
            each.kill()
    return results


def table(cases: list[Case], results: dict[int, dict[str, Any]]) -> bool:
    """Print it, and every case that did not hold with how to run it alone; whether all held."""
    head = ("kind", "through", "cases", *HEADS.values(), "seconds")
    rows: list[tuple[str, ...]] = []
    for kind in dict.fromkeys(c.kind for c in cases):
        of = [i for i, c in enumerate(cases) if c.kind == kind]
        played = [results[i] for i in of if i in results]
        cells = []
        for column in COLUMNS:
            looked = [r for r in played if column in r["looked"]]
            wrong = sum(any(c == column for c, _ in r["faults"]) for r in looked)
            cells.append(f"{len(looked) - wrong} of {len(looked)}" if looked else "-")
        road = ", ".join(dict.fromkeys(cases[i].road for i in of))
        count = str(len(played)) if len(played) == len(of) else f"{len(played)} of {len(of)}"
        rows.append((kind, road, count, *cells, f"{sum(r['seconds'] for r in played):.0f}"))
    bad = [r for r in results.values() if r["faults"]]
    total = f"{len(results) - len(bad)} of {len(cases)} held"
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    for row in (head, *rows):
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    print(total)
    whole = sum("still whole" in r["notes"] for r in results.values())
    if whole:
        print(f"{whole} of the fuzzed files were still whole, and opened")
    for r in bad:
        print(f"\n{r['id']}\n  python tools/faults.py --only '{r['id']}'")
        for column, why in dict.fromkeys(map(tuple, r["faults"])):
            print(f"  {HEADS[column]}: {why}")
    return not bad and len(results) == len(cases)


@contextmanager
def listening() -> Iterator[socket.socket]:
    """A server that nobody should call: all proxies name it."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        yield server


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="of random moments and of fuzzed files")
    parser.add_argument("--only", metavar="KIND", help="a kind, the beginning of a case's name, or a pattern with *")
    parser.add_argument("--quick", action="store_true", help="a case or two of the quicker kinds, without figures")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="how many cases at a time")
    parser.add_argument("--list", action="store_true", help="name the cases and run none")
    asked = parser.parse_args()
    reason = watch.why_not()
    if reason is not None:
        print(f"faults: cannot watch here: {reason}", file=sys.stderr)
        return 2
    # before torch is loaded, which reads the first; no case needs a GPU
    os.environ.update(OMP_NUM_THREADS="1", MPLBACKEND="agg", CUDA_VISIBLE_DEVICES="-1", **room.QUIET_TORCH)
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
    folder = Path(tempfile.mkdtemp(prefix="faults-")).resolve()
    keep = False
    try:
        with listening() as trap:
            port = trap.getsockname()[1]
            load(folder)
            base = undisturbed(folder, port)
            if asked.quick:
                undrawn()
            cases = everything(base, asked.seed, asked.quick)
            if asked.only:
                cases = [c for c in cases if c.id.startswith(asked.only) or fnmatchcase(c.id, asked.only)]
            if not cases:
                print(f"faults: no case is called {asked.only!r}; --list names them", file=sys.stderr)
                return 2
            if asked.list:
                print("\n".join(c.id for c in cases))
                return 0
            keep = len(cases) == 1
            held = table(cases, campaign(cases, folder, port, min(asked.processes, len(cases)), keep))
            if keep:
                print(f"\nits folder: {folder / '0'}")
            return 0 if held else 1
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
