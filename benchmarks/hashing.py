"""How fast is it known that nothing has changed?

    python benchmarks/hashing.py disk [GB]       a file of this size (2) and 20,000 small ones, read and known again
    python benchmarks/hashing.py memory [GB]     an array of this size (2), as a model's weights and data are hashed
    python benchmarks/hashing.py code            the code behind every probe, and the fingerprints of bundled subjects

Run it on a quiet machine; everything is the best of five. Files lie in the current folder, are in the system's cache
when they are read, and are removed at the end: what is measured is the hashing and not the disk. The goal is 1 GB/s on
two cores.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from assay import code, shelf
from assay.data import digest, digest_cache
from assay.engine.local import ThisProcess
from assay.run import Run

RUNS = 5
SMALL = 20_000
SIZE = 3000  # bytes of a small file, as of a picture of 28 x 28


def best_seconds(work: Callable[[], Any], prepare: Callable[[], Any] = lambda: None) -> float:
    taken = []
    for _ in range(RUNS):
        prepare()
        start = time.perf_counter()
        work()
        taken.append(time.perf_counter() - start)
    return min(taken)


def say(what: str, seconds: float, size: float = 0) -> None:
    speed = f"{size / seconds / 1e9:8.2f} GB/s" if size else ""
    print(f"{what:52s} {seconds:9.3f} s {speed}", flush=True)


def disk(gigabytes: float) -> None:
    with tempfile.TemporaryDirectory(dir=".") as name:
        folder = Path(name).resolve()  # a cache folder that is not absolute would not count
        os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
        digest_cache.MARGIN = 0.0  # these files are new
        block = np.random.default_rng(0).bytes(64 << 20)
        large, size = folder / "large", int(gigabytes * 1e9)
        with large.open("wb") as file:
            for start in range(0, size, len(block)):
                file.write(block[: size - start])
        few = folder / "small"
        few.mkdir()
        small = [few / f"{i:05d}" for i in range(SMALL)]
        for i, path in enumerate(small):
            path.write_bytes(block[i : i + SIZE])
        time.sleep(0.1)

        def forget() -> None:
            for kept in (folder / "cache" / "assay").glob("*"):
                kept.unlink()

        for what, root, paths, total in (
            (f"one file of {gigabytes:g} GB", folder, [large], size),
            (f"{SMALL:,} files of {SIZE:,} bytes", few, small, SMALL * SIZE),
        ):
            read = partial(digest.of_files, root, paths, "")
            say(f"{what}, read", best_seconds(read, forget), total)
            say(f"{what}, known", best_seconds(read))


def memory(gigabytes: float) -> None:
    array = np.zeros(int(gigabytes * 1e9), np.uint8)
    say(f"an array of {gigabytes:g} GB", best_seconds(lambda: digest.of_array(array)), array.nbytes)


def everything() -> None:
    kinds = [shelf.load("probes", name) for name in shelf.names("probes")]

    def forget() -> None:
        code._own.cache_clear()
        code._own_code.cache_clear()

    say(
        f"the code behind {len(kinds)} probes",
        best_seconds(lambda: [code.behind(k, Run, ThisProcess) for k in kinds], forget),
    )
    for name in ("fashion-cnn", "digits-mlp"):
        subject = shelf.load("subjects", name).build()
        say(f"the fingerprint of {name}, with its data", best_seconds(subject.fingerprint))
        say(f"the behaviour of {name}", best_seconds(subject.behaviour))


if __name__ == "__main__":
    which, *rest = sys.argv[1:] or [""]
    size = float(rest[0]) if rest else 2.0
    works = {"disk": lambda: disk(size), "memory": lambda: memory(size), "code": everything}
    if which not in works:
        sys.exit(__doc__)
    print(f"{digest._threads()} threads")
    works[which]()
