"""The workbench under load and under fire, on this machine alone. Each table is a word, or several:

    python benchmarks/workbench.py start load burst faults          # about a quarter of an hour
    python benchmarks/workbench.py load --tiny                      # to see that it works: seconds
    python benchmarks/workbench.py hands                            # a minute

start   how long until `assay serve` says its address, from a cold process
load    the page of 10,000 stored jobs at 100 loads a second from 50 clients for a minute: latency from the moment that
        each load was due (a late one counts as late), errors, and the server's memory along the way
burst   200 jobs sent by forms as fast as 20 clients can: all queued, none lost, none doubled
faults  50 jobs (audits, some that must fail, some that are cancelled) while the server is killed 20 times and workers
        20 times, on SQLite and on PostgreSQL: every job ends once, in its right state, and every audit with the numbers
        that it has undisturbed
hands   two workers on PostgreSQL finish one queue of real audits: who ran which, and that each has its own numbers

It ends with 1 where something did not hold. PostgreSQL is started in a temporary folder; where it is not installed its
rows are left out, and that is told.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "server"))

import sqlalchemy as sa
from cluster import Cluster, NotHere

from assay.server import roll
from assay.server.book import ARROWS, ENDED, RUNNING, SUCCESS, Book, Job, Quota
from assay.server.errors import Gone
from assay.server.tables import JOBS

HOST = "127.0.0.1"
P95, GROWTH, UP = 0.300, 0.05, 3.0
"""Seconds of the 95th of 100 loads; the share of its memory that a server may gain; seconds until it is up."""


@dataclass(frozen=True)
class Size:
    jobs: int
    seconds: float
    rate: float
    clients: int
    burst: int
    faulty: int
    kills: int


WHOLE = Size(jobs=10_000, seconds=60, rate=100, clients=50, burst=200, faulty=50, kills=20)
TINY = Size(jobs=300, seconds=3, rate=20, clients=5, burst=10, faulty=3, kills=1)


class Server:
    """`assay serve` as a process that can be killed and started again at the same port."""

    def __init__(self, book: Book, workers: int = 0) -> None:
        self.book, self.workers, self.port = book, workers, 0
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> float:
        """Seconds until it said its address."""
        words = [sys.executable, "-m", "assay", "serve", "--home", str(self.book.home), "--port", str(self.port)]
        words += ["--workers", str(self.workers), "--keep-free", "0"]
        begun = time.monotonic()
        self.process = subprocess.Popen(
            words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            env={**os.environ, "ASSAY_QUEUE": self.book.url},
        )  # fmt: skip
        assert self.process.stdout is not None
        told = self.process.stdout.readline()
        found = re.search(r":(\d+)$", told.strip())
        if found is None:
            raise SystemExit(f"the server did not start; it said {told!r}")
        self.port = int(found[1])
        return time.monotonic() - begun

    def kill(self, sign: int = signal.SIGKILL) -> None:
        assert self.process is not None
        self.process.send_signal(sign)
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def memory(self) -> float:
        """Megabytes that it holds."""
        assert self.process is not None
        rows = Path(f"/proc/{self.process.pid}/smaps_rollup").read_text()
        return int(re.search(r"^Pss:\s+(\d+)", rows, re.M)[1]) / 1024  # type: ignore[index]


@contextmanager
def serving(book: Book, workers: int = 0) -> Iterator[Server]:
    server = Server(book, workers)
    server.start()
    try:
        yield server
    finally:
        server.kill(signal.SIGTERM)


async def ask(port: int, method: str, path: str, body: bytes = b"", headers: str = "") -> tuple[int, str, bytes]:
    """One request on a connection of its own: its status, its headers, its body."""
    reader, writer = await asyncio.open_connection(HOST, port)
    try:
        kind = "Content-Type: application/x-www-form-urlencoded\r\n" if body else ""
        writer.write(
            f"{method} {path} HTTP/1.1\r\nHost: {HOST}:{port}\r\nConnection: close\r\n{kind}"
            f"Content-Length: {len(body)}\r\n{headers}\r\n".encode()
            + body
        )
        whole = await reader.read()
        head, _, rest = whole.partition(b"\r\n\r\n")
        return int(head.split(b" ", 2)[1]), head.decode("latin-1"), rest
    finally:
        writer.close()


# start


def start(size: Size, root: Path) -> bool:
    took = []
    for _ in range(3):
        server = Server(Book(root / "start"))
        took.append(server.start())
        server.kill()
    good = median(took) < UP
    print(f"up after {', '.join(f'{t:.2f}' for t in took)} s: {_word(good)} {UP:g} s")
    return good


# load


def load(size: Size, root: Path) -> bool:
    book = Book(root / "load", quota=Quota(free=0))
    _store(book, size.jobs)
    begun = _taken()
    with serving(book) as server:
        took, errors, memory = asyncio.run(_loads(server, size))
    lost = [now - then for then, now in zip(begun, _taken(), strict=True)]
    took.sort()
    quarter = max(1, len(memory) // 4)
    before, after = (sum(part) / len(part) for part in (memory[quarter : 2 * quarter] or memory, memory[-quarter:]))
    p50, p95, p99 = (took[min(len(took) - 1, int(share * len(took)))] for share in (0.5, 0.95, 0.99))
    print(f"{size.jobs:,} stored jobs, {len(took):,} loads at {size.rate:g} a second from {size.clients} clients:")
    print(
        f"  p50 {1000 * p50:.0f} ms, p95 {1000 * p95:.0f} ms, p99 {1000 * p99:.0f} ms, worst {1000 * took[-1]:.0f} ms"
    )
    print(f"  p95 is {_word(p95 < P95)} {1000 * P95:.0f} ms; errors: {dict(errors) or 'none'}")
    print(f"  memory {before:.1f} MB in the second quarter, {after:.1f} MB in the last, at most {max(memory):.1f} MB")
    if lost[0]:
        print(f"  a host that gave these cores to others took {100 * lost[0] / lost[1]:.0f} % of their time meanwhile")
    return p95 < P95 and not errors and after < (1 + GROWTH) * before


def _taken() -> tuple[int, int]:
    """Ticks that the cores were given to other machines of the same host, and all ticks; none where nobody says."""
    try:
        ticks = [int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    except (OSError, ValueError, IndexError):
        return 0, 1
    return ticks[7], sum(ticks)


def _store(book: Book, n: int) -> None:
    """So many jobs of three people over a year, in every state."""
    rng, rows, now = random.Random(0), [], time.time()
    for i in range(n):
        state = rng.choices(("SUCCESS", "FAILURE", "CANCELLED"), (8, 1, 1))[0]
        made = now - rng.random() * 365 * 86400
        rows.append(
            {
                "id": f"{i:022d}", "owner": "", "kind": rng.choice(("audit", "cure")), "title": f"model {i} & <co>",
                "settings": json.dumps({"subject": "fashion-cnn", "seed": i}), "state": state, "made": made,
                "reason": "The model broke; mend it." if state == "FAILURE" else "", "progress": 1.0, "began": made + 1,
                "ended": made + 60, "worker": "w", "attempt": 1, "bytes": 10_000,
            }
        )  # fmt: skip
    with book.engine.begin() as c:
        c.execute(sa.insert(JOBS), rows)


async def _loads(server: Server, size: Size) -> tuple[list[float], Counter[str], list[float]]:
    took: list[float] = []
    errors: Counter[str] = Counter()
    memory: list[float] = []
    older: list[str] = []

    async def once(path: str, due: float) -> None:
        try:
            status, _, body = await asyncio.wait_for(ask(server.port, "GET", path), 30)
            if status != 200 or b"</html>" not in body:
                errors[f"status {status}"] += 1
            if found := re.search(rb'href="(/jobs\?[^"]*before=[^"]*)"', body):
                older.append(found[1].decode().replace("&amp;", "&"))
                del older[:-20]
        except (TimeoutError, OSError, IndexError) as e:
            errors[type(e).__name__] += 1
        took.append(time.monotonic() - due)

    async def client(number: int, begun: float) -> None:
        """One person: a load every so often, whether or not the last came back in time."""
        every, rng, pending = size.clients / size.rate, random.Random(number), []
        for turn in range(int(size.seconds / every)):
            due = begun + (turn + number / size.clients) * every
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            path = rng.choice(older) if older and rng.random() < 0.3 else rng.choice(("/jobs", "/jobs?state=FAILURE"))
            pending.append(asyncio.create_task(once(path, due)))
        await asyncio.gather(*pending)

    async def watch() -> None:
        while True:
            memory.append(server.memory())
            await asyncio.sleep(0.5)

    for _ in range(5):
        await once("/jobs", time.monotonic())
    took.clear()
    watching = asyncio.create_task(watch())
    begun = time.monotonic() + 0.2
    await asyncio.gather(*(client(number, begun) for number in range(size.clients)))
    watching.cancel()
    return took, errors, memory


# burst


def burst(size: Size, root: Path) -> bool:
    good = True
    for name, url in _databases(root):
        book = Book(root / f"burst-{name}", url, Quota(free=0))
        with serving(book) as server:
            begun = time.monotonic()
            answers = asyncio.run(_send(server.port, size.burst, 20))
            took = time.monotonic() - begun
        jobs = book.jobs(limit=10 * size.burst)
        titles = Counter(job.title for job in jobs)
        waiting = Counter(w.workflow_id for w in book.queue.open().list_workflows(queue_name="jobs", status="ENQUEUED"))
        held = (
            set(answers) == {303}
            and titles == Counter(f"burst {i}" for i in range(size.burst))
            and waiting == Counter(job.id for job in jobs)
            and all(job.state == "QUEUED" and (job.folder / "job.json").exists() for job in jobs)
        )
        good &= held
        told = f"{len(jobs)} jobs, {len(waiting)} in the queue, {_held(held)}"
        print(f"{name:10} {size.burst} forms in {took:.1f} s: {told}", flush=True)
        book.close()
    return good


async def _visit(port: int) -> tuple[str, str]:
    """The header with a cookie, and the token of a form, as a browser has them."""
    _, head, body = await ask(port, "GET", "/new/audit")
    cookie = re.search(r"set-cookie: ([^;]+)", head, re.I)
    token = re.search(rb'name="csrf" value="([^"]+)"', body)
    if cookie is None or token is None:
        raise SystemExit("the form has no token; has the page changed?")
    return f"Cookie: {cookie[1]}\r\n", token[1].decode()


async def _post(port: int, cookie: str, fields: dict[str, str]) -> int:
    from urllib.parse import urlencode

    return (await ask(port, "POST", "/jobs", urlencode(fields).encode(), cookie))[0]


async def _send(port: int, n: int, clients: int) -> list[int]:
    answers: list[int] = []

    async def client(mine: range) -> None:
        cookie, token = await _visit(port)
        for i in mine:
            fields = {"csrf": token, "kind": "audit", "title": f"burst {i}", "subject": "fashion-cnn", "seed": str(i)}
            answers.append(await _post(port, cookie, fields))

    await asyncio.gather(*(client(range(k, n, clients)) for k in range(clients)))
    return answers


# faults

SEEDS = 5
AUDIT = {"subject": "digits-mlp", "probe": ["accuracy", "everyday-change"], "inputs": 100}
FAILS = {"claim": ["co2021/nobody-made-this-claim"]}


def faults(size: Size, root: Path) -> bool:
    known = _undisturbed(root, size)
    held = [_under_fire(name, url, known, size, root) for name, url in _databases(root)]
    return all(held)


def _undisturbed(root: Path, size: Size) -> dict[int, str]:
    """What the same audits find with nobody killed, by seed."""
    book = Book(root / "calm", quota=Quota(free=0))
    jobs = {
        seed: book.submit("", "audit", str(seed), {**AUDIT, "seed": seed}) for seed in range(min(SEEDS, size.faulty))
    }
    with serving(book, workers=2):
        _until_all_end(book, len(jobs), 600)
    book.close()
    return {seed: _numbers(job) for seed, job in jobs.items()}


def _numbers(job: Job) -> str:
    """All that the questions found, with digests of what they keep of each input; not when, nor in what time."""
    found = {}
    for path in sorted((job.folder / "run").glob("*/findings/*.json")):
        told = json.loads(path.read_text())
        kept = {name: _digest(path.parents[1] / name) for name in told["links"]}
        found[told["probe"]] = (told["finding"], kept)
    return json.dumps(found, sort_keys=True)


def _digest(path: Path) -> str:
    """Of a file of tensors without the order of its header, which is another each time."""
    whole = path.read_bytes()
    if path.suffix != ".safetensors":
        return sha256(whole).hexdigest()
    end = 8 + int.from_bytes(whole[:8], "little")
    return sha256(json.dumps(json.loads(whole[8:end]), sort_keys=True).encode() + whole[end:]).hexdigest()


def _under_fire(name: str, url: str, known: dict[int, str], size: Size, root: Path) -> bool:
    rng, book = random.Random(1), Book(root / f"fire-{name}", url, Quota(free=0))
    wanted: dict[str, tuple[str, int]] = {}  # the state in which each must end, and its seed
    cancelled: list[str] = []
    for i in range(size.faulty):
        if i % 10 == 9:
            job = book.submit("", "claims", f"fails {i}", FAILS)
            wanted[job.id] = ("FAILURE", -1)
        else:
            job = book.submit("", "audit", f"audit {i}", {**AUDIT, "seed": i % len(known)})
            wanted[job.id] = ("CANCELLED" if i % 10 == 4 else SUCCESS, i % len(known))
            cancelled += [job.id] if i % 10 == 4 else []
    server = Server(book, workers=1)
    server.start()
    hand = _hand(book)
    kills, begun, most = {"server": 0, "worker": 0}, time.monotonic(), 600 + 40 * size.faulty
    try:
        while not _all_ended(book, size.faulty) and time.monotonic() - begun < most:
            time.sleep(rng.uniform(1, 7) if size is WHOLE else 1)
            for id in cancelled[: rng.random() < 0.2]:  # some while they wait, some while they run
                if book.job(id).state == RUNNING or rng.random() < 0.3:  # type: ignore[union-attr]
                    book.cancel(id)
                    cancelled.remove(id)
            if hand.poll() is not None:
                hand = _hand(book)
            who = rng.choice([who for who, n in kills.items() if n < size.kills] or ["nobody"])
            if who == "server":
                server.kill()
                server.start()
                kills[who] += 1
            elif who == "worker" and (busy := [w.pid for w in roll.workers(book) if w.job and w.silent < 5]):
                with suppress(ProcessLookupError):
                    os.kill(rng.choice(busy), signal.SIGKILL)
                    kills[who] += 1
            if not kills.keys() - {who for who, n in kills.items() if n >= size.kills}:
                for id in cancelled:
                    book.cancel(id)
                cancelled = []
    finally:
        server.kill(signal.SIGTERM)
        hand.terminate()
        hand.wait()
    took = time.monotonic() - begun
    wrong = [line for id, (state, seed) in wanted.items() for line in _wrong(book, id, state, known.get(seed, ""))]
    counts = {state: n for state, n in book.counts().items() if n}
    again = sum(job.attempt > 1 for job in book.jobs(limit=1000))
    held = not wrong and all(n == size.kills for n in kills.values())
    killed = f"server killed {kills['server']} times, workers {kills['worker']} times"
    print(f"{name:10} {size.faulty} jobs in {took:.0f} s, {killed}:", flush=True)
    print(f"           {counts}, {again} begun more than once, {_held(held)}", flush=True)
    for line in wrong[:10]:
        print(f"           {line}")
    book.close()
    return held


def _wrong(book: Book, id: str, state: str, numbers: str) -> list[str]:
    job, events = book.job(id), book.events(id)
    assert job is not None
    wrong = []
    if job.state != state and not (state == "CANCELLED" and job.state == SUCCESS):  # it may end before it is cancelled
        wrong.append(f"{job.title}: {job.state}, not {state}: {job.reason}")
    if sum(event.became in ENDED for event in events) != 1:
        wrong.append(f"{job.title}: ended {[event.became for event in events]}")
    if any(b.was != a.became or b.became not in ARROWS[a.became] for a, b in pairwise(events)):
        wrong.append(f"{job.title}: moved {[(event.was, event.became) for event in events]}")
    if job.state == SUCCESS and _numbers(job) != numbers:
        wrong.append(f"{job.title}: other numbers than undisturbed")
    return wrong


# hands


def hands(size: Size, root: Path) -> bool:
    from collections import defaultdict

    for name, url in _databases(root):
        if name != "PostgreSQL":
            continue
        book = Book(root / "hands", url, Quota(free=0))
        jobs = [book.submit("", "audit", f"seed {k}", {**AUDIT, "seed": k % 2}) for k in range(6)]
        crew = [_hand(book) for _ in range(2)]
        try:
            _until_all_end(book, len(jobs), 600)
        finally:
            for each in crew:
                each.terminate()
            for each in crew:
                each.wait(60)
        ran: dict[str, list[str]] = defaultdict(list)
        for job in jobs:
            ran[book.events(job.id)[-1].worker].append(job.title)
        for worker, titles in ran.items():
            print(f"worker {worker[:6]} ended {len(titles)} jobs: {', '.join(titles)}", flush=True)
        numbers = [{_numbers(job) for job in jobs[k::2]} for k in range(2)]  # of one seed the same, whoever ran it
        states = [now.state for job in jobs if (now := book.job(job.id)) is not None]
        held = len(ran) == 2 and states == [SUCCESS] * 6 and [len(some) for some in numbers] == [1, 1]
        print(f"{len(jobs)} jobs, {len(ran)} workers, {_held(held)}", flush=True)
        book.close()
        return held
    return True  # that it was left out has been told


def _hand(book: Book) -> subprocess.Popen[bytes]:
    """A worker beside the server's."""
    return subprocess.Popen(
        [sys.executable, "-m", "assay", "worker", "--home", str(book.home), "--keep-free", "0"],
        env={**os.environ, "ASSAY_QUEUE": book.url}, stderr=subprocess.DEVNULL,
    )  # fmt: skip


def _all_ended(book: Book, n: int) -> bool:
    with suppress(Gone):
        return sum(count for state, count in book.counts().items() if state in ENDED) == n
    return False


def _until_all_end(book: Book, n: int, most: float) -> None:
    begun = time.monotonic()
    while not _all_ended(book, n):
        if time.monotonic() - begun > most:
            raise SystemExit(f"{n} undisturbed jobs did not end within {most:g} s")
        time.sleep(0.5)


def _databases(root: Path) -> Iterator[tuple[str, str]]:
    yield "SQLite", ""
    try:
        cluster = Cluster()
    except NotHere as e:
        print(f"PostgreSQL is left out: {e}")
        return
    try:
        yield "PostgreSQL", cluster.database("assay")
    finally:
        cluster.remove()


def _word(good: bool) -> str:
    return "below" if good else "ABOVE"


def _held(good: bool) -> str:
    return "all held" if good else "DID NOT HOLD"


def main() -> None:
    tables = {"start": start, "load": load, "burst": burst, "faults": faults, "hands": hands}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="+", choices=list(tables))
    parser.add_argument("--tiny", action="store_true", help="a hundredth of it, to see that it works")
    options = parser.parse_args()
    root, good = Path(tempfile.mkdtemp(prefix="assay-workbench-")), True
    try:
        for name in options.tables:
            print(f"{name}:", flush=True)
            good &= tables[name](TINY if options.tiny else WHOLE, root)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    sys.exit(not good)


if __name__ == "__main__":
    main()
