"""Each promise is attacked in an interpreter of its own; what the system cannot hold is skipped with its own reason."""

from __future__ import annotations

import contextlib
import errno
import importlib.util
import json
import os
import socket
import subprocess
import sys
import sysconfig
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from assay.engine import sandbox
from assay.engine.sandbox import GROUP, MODES, NETWORK, PRIVILEGES, PROCESSES, PROMISES, READS, SIGNALS, WRITES

HARNESS = """
import ctypes, json, os, sys
from pathlib import Path
from assay.engine import sandbox
given = json.loads(sys.argv[1])
base, parent = Path(given["base"]), os.getppid()
run, data, outside, secret = base / "run", base / "data", base / "outside", base / "outside" / "secret"
libc = ctypes.CDLL(None, use_errno=True)
def native(done):
    if done < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return done
exec(given["before"])
held = sandbox.confine(read=[data], write=[run], network=given["network"])
def outcome(code):
    names = {k: v for k, v in globals().items()}
    try:
        exec(compile(code, "<attack>", "exec"), names)
    except BaseException as e:
        told = sandbox.refused(e)
        return {"error": type(e).__name__, "code": getattr(e, "errno", None), "text": str(e), "told": told}
    return {"error": None, "value": repr(names.get("value"))}
tried = {name: outcome(code) for name, code in given["tries"].items()}
print(json.dumps({"held": held.held, "missing": held.missing, "tried": tried}))
"""


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("border")
    for name in ("run", "data", "outside", "outside/empty"):
        (folder / name).mkdir()
    (folder / "outside" / "secret").write_text("a secret")
    (folder / "data" / "rows").write_text("some rows")
    (folder / "data" / "way-out").symlink_to(folder / "outside" / "secret")
    (folder / "run" / "old").write_text("found before")
    return folder


def confined(
    base: Path, tries: dict[str, str], *, before: str = "", network: bool = False, keep: tuple[int, ...] = ()
) -> dict[str, Any]:
    given = {"base": str(base), "tries": tries, "before": before, "network": network}
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-c", HARNESS, json.dumps(given)],
        env=sandbox.scrubbed(os.environ, home=base / "run"),
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        pass_fds=keep,
        timeout=120,
    )
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout.splitlines()[-1])


def need(seen: dict[str, Any], promise: str) -> None:
    for why in seen["missing"]:
        if why.startswith(promise):
            pytest.skip(why)
    assert promise in seen["held"]


ATTACKS = {
    WRITES: {
        "create": "open(outside / 'new', 'w')",
        "overwrite": "open(secret, 'w')",
        "append": "open(secret, 'a')",
        "update": "open(secret, 'r+')",
        "overwrite the data": "open(data / 'rows', 'w')",
        "create in the data": "open(data / 'new', 'w')",
        "truncate": "os.truncate(secret, 0)",
        "truncate the data": "os.truncate(data / 'rows', 0)",
        "truncate by reading": "os.open(data / 'rows', os.O_RDONLY | os.O_TRUNC)",
        "unlink": "os.unlink(secret)",
        "unlink the data": "os.unlink(data / 'rows')",
        "mkdir": "os.mkdir(outside / 'folder')",
        "rmdir": "os.rmdir(outside / 'empty')",
        "move in": "os.rename(data / 'rows', run / 'rows')",
        "move out": "os.rename(run / 'old', outside / 'old')",
        "replace": "os.replace(run / 'old', data / 'rows')",
        "link in and write": "os.link(data / 'rows', run / 'linked'); open(run / 'linked', 'w')",
        "link out": "os.link(run / 'old', outside / 'linked')",
        "symlink inside": "os.symlink(secret, run / 'pointer')",
        "symlink outside": "os.symlink(run, outside / 'pointer')",
        "fifo inside": "os.mkfifo(run / 'fifo')",
        "device inside": "os.mknod(run / 'device', 0o60666, os.makedev(7, 0))",
        "nameless file": "os.open(outside, os.O_TMPFILE | os.O_WRONLY)",
        "through an open file": "f = open(data / 'rows'); open(f'/proc/self/fd/{f.fileno()}', 'w')",
        "through the root": "open(f'/proc/self/root{outside}/new', 'w')",
        "from a folder": "os.open('../outside/new', os.O_CREAT | os.O_WRONLY, dir_fd=os.open(run, os.O_RDONLY))",
        "after chdir": "os.chdir(outside); open('new', 'w')",
        "in the common folder": "open('/tmp/assay-was-here', 'w')",
        "in shared memory": "open('/dev/shm/assay-was-here', 'w')",
        "a thread": """
            import concurrent.futures
            concurrent.futures.ThreadPoolExecutor(1).submit(open, outside / 'new', 'w').result()""",
        "a child": """
            import subprocess
            if subprocess.run(['/bin/sh', '-c', f'echo x > {outside}/new'], stderr=-3).returncode:
                raise PermissionError(13, 'of a child')""",
    },
    READS: {
        "open": "open(secret).read()",
        "list": "os.listdir(outside)",
        "list /": "os.listdir('/')",
        "list the home": "os.listdir(given['home'])",
        "accounts": "open('/etc/passwd')",
        "passwords": "open('/etc/shadow')",
        "through a link in the data": "open(data / 'way-out')",
        "through the root": "open(f'/proc/self/root{secret}')",
        "from a folder": "os.open('../outside/secret', os.O_RDONLY, dir_fd=os.open(data, os.O_RDONLY))",
        "link in": "os.link(secret, run / 'stolen'); open(run / 'stolen')",
        "move in": "os.rename(secret, run / 'stolen'); open(run / 'stolen')",
        "execute": "os.execv(secret, ['x'])",
        "map": "import mmap; mmap.mmap(os.open(secret, os.O_RDONLY), 0)",
        "natively": "native(libc.open(bytes(secret), 0))",
        "a child": """
            import subprocess
            if subprocess.run([sys.executable, '-c', f'open({str(secret)!r})'], stderr=-3).returncode:
                raise PermissionError(13, 'of a child')""",
        "a shell": "if os.system(f'cat {secret} 2> /dev/null'): raise PermissionError(13, 'of a child')",
        "the parent's command": "open(f'/proc/{parent}/cmdline')",
        "the terminal": "open('/dev/tty')",
    },
    NETWORK: {
        "tcp": "import socket; socket.create_connection(('127.0.0.1', given['tcp']), 5)",
        "tcp natively": "native(libc.socket(2, 1, 0))",
        "tcp 6": "import socket; socket.socket(socket.AF_INET6)",
        "udp": "import socket; socket.socket(2, 2).sendto(b'x', ('127.0.0.1', given['tcp']))",
        "listen": "import socket; socket.create_server(('127.0.0.1', 0))",
        "unix": "import socket; socket.socket(1).connect(given['unix'])",
        "unix in order": "import socket; socket.socket(1, 5).connect(given['unix in order'])",
        "abstract": "import socket; socket.socket(1).connect(given['abstract'])",
        "datagrams of a pair": "import socket; socket.socketpair(1, 2)[0].sendto(b'x', given['unix'])",
        "packets": "import socket; socket.socket(17, 3)",
        "netlink": "import socket; socket.socket(16, 3)",
        "bluetooth": "import socket; socket.socket(31, 5, 1)",
        "the machine's host": "import socket; socket.socket(40, 1)",
        "a name": "import socket; socket.getaddrinfo('example.org', 80)",
        "a page": "import urllib.request; urllib.request.urlopen('http://127.0.0.1:%d' % given['tcp'], timeout=5)",
        "io_uring": "native(libc.syscall(425, 8, bytes(120)))",
        "a child": """
            import subprocess
            code = f"import socket; socket.create_connection(('127.0.0.1', {given['tcp']}), 5)"
            if subprocess.run([sys.executable, '-c', code], stderr=-3).returncode:
                raise PermissionError(1, 'of a child')""",
        "a thread": """
            import concurrent.futures, socket
            concurrent.futures.ThreadPoolExecutor(1).submit(socket.socket).result()""",
    },
    MODES: {
        "chmod": "os.chmod(secret, 0o777)",
        "fchmod": "os.fchmod(os.open(data / 'rows', os.O_RDONLY), 0o777)",
        "utime": "os.utime(data / 'rows', (0, 0))",
        "chown": "os.chown(secret, -1, -1)",
        "attribute": "os.setxattr(data / 'rows', 'user.assay', b'x')",
        "chmod by a child": """
            import subprocess
            if subprocess.run(['/bin/chmod', '777', str(secret)], stderr=-3).returncode:
                raise PermissionError(1, 'of a child')""",
    },
    PROCESSES: {
        "ptrace": "native(libc.ptrace(0x4206, parent, 0, 0))",
        "memory": "native(libc.process_vm_readv(parent, None, 0, None, 0, 0))",
        "memory as a file": "open(f'/proc/{parent}/mem')",
        "environment": "open(f'/proc/{parent}/environ').read()",
        "open files": "os.listdir(f'/proc/{parent}/fd')",
        "shared memory": "native(libc.shmget(0, 4096, 0o1600))",
        "message queue": "native(libc.msgget(0, 0o1600))",
        "limits": "import resource; resource.prlimit(parent, resource.RLIMIT_NOFILE)",
        "keys": "native(libc.syscall({'x86_64': 250, 'aarch64': 219}[os.uname().machine], 0, -3, 1))",
    },
    SIGNALS: {
        "parent": "os.kill(parent, 0)",
        "parent's group": "os.killpg(given['group'], 0)",
        "by a child": """
            if os.system(f'kill -0 {parent} 2> /dev/null'):
                raise PermissionError(1, 'of a child')""",
    },
    GROUP: {
        "session": "import pty; os.setsid() if os.fork() else os._exit(0)",
        "group": "os.setpgid(0, 0)",
        "a child": "import subprocess; subprocess.run(['/bin/true'], start_new_session=True)",
    },
    PRIVILEGES: {
        "namespace": "native(libc.unshare(0x10000000))",
        "mount": "native(libc.mount(b'none', bytes(run), b'tmpfs', 0, None))",
        "host's name": "import socket; socket.sethostname(socket.gethostname())",
        "clock": "import time; time.clock_settime(time.CLOCK_REALTIME, time.time())",
        "priority": "os.nice(-5)",
    },
}
EACH = [(promise, name) for promise, attacks in ATTACKS.items() for name in attacks]


@pytest.fixture(scope="module")
def listeners(base: Path) -> Iterator[dict[str, Any]]:
    """Servers that count who came."""
    came: list[str] = []
    ends: dict[str, Any] = {"came": came, "tcp": 0, "abstract": f"\0{base}"}
    ends |= {"unix": str(base / "run" / "socket"), "unix in order": str(base / "run" / "socket-5")}
    tcp = socket.create_server(("127.0.0.1", 0))
    ends["tcp"] = tcp.getsockname()[1]
    opened = [tcp]
    for name, kind in (("unix", 1), ("unix in order", 5), ("abstract", 1)) if sys.platform == "linux" else ():
        opened.append(socket.socket(socket.AF_UNIX, kind))
        opened[-1].bind(ends[name])
        opened[-1].listen()

    def serve(server: socket.socket) -> None:
        while True:
            try:
                visitor, _ = server.accept()
            except OSError:
                return
            came.append(str(server.getsockname()) if server.fileno() >= 0 else "late")
            visitor.close()

    threads = [threading.Thread(target=serve, args=(server,), daemon=True) for server in opened]
    for thread in threads:
        thread.start()
    yield ends
    for server in opened:
        with contextlib.suppress(OSError):
            server.shutdown(socket.SHUT_RDWR)
        server.close()
    for thread in threads:
        thread.join(10)


@pytest.fixture(scope="module")
def attacked(base: Path, listeners: dict[str, Any]) -> dict[str, Any]:
    """All attacks, one after the other, in one confined interpreter."""
    facts = {name: listeners[name] for name in ("tcp", "unix", "unix in order", "abstract")}
    facts |= {"home": str(Path.home()), "group": os.getpgrp()}
    tries = {f"{p}: {name}": textwrap.dedent(ATTACKS[p][name]) for p, name in EACH}
    return confined(base, tries, before=f"given |= {facts!r}")


@pytest.mark.parametrize(("promise", "name"), EACH, ids=[f"{p}: {n}" for p, n in EACH])
def test_an_attack_is_refused_and_told_in_one_line(attacked: dict[str, Any], promise: str, name: str) -> None:
    need(attacked, promise)
    seen = attacked["tried"][f"{promise}: {name}"]
    if seen["error"] == "FileNotFoundError":
        pytest.skip(f"this system has no such thing: {seen['text']}")
    assert seen["error"] in ("PermissionError", "OSError", "gaierror", "URLError"), seen
    assert seen["error"] == "PermissionError" or seen["code"] in (errno.EXDEV, socket.EAI_AGAIN, None), seen
    if name not in ("passwords", "the terminal", "list the home"):  # their modes may have refused it first
        assert seen["told"].startswith("The sandbox refused ")
        assert seen["told"].endswith("; if you trust this subject, add --no-sandbox.")
        assert "\n" not in seen["told"]


def test_nothing_outside_has_changed_and_nobody_came(
    base: Path, attacked: dict[str, Any], listeners: dict[str, Any]
) -> None:
    for promise in (WRITES, MODES, NETWORK):
        need(attacked, promise)
    assert sorted(p.name for p in (base / "outside").iterdir()) == ["empty", "secret"]
    assert (base / "outside" / "secret").read_text() == "a secret"
    assert (base / "outside" / "secret").stat().st_mode & 0o777 != 0o777
    assert sorted(p.name for p in (base / "data").iterdir()) == ["rows", "way-out"]
    assert (base / "data" / "rows").read_text() == "some rows"
    assert (base / "data" / "rows").stat().st_mtime > 0
    assert not any(Path(folder, "assay-was-here").exists() for folder in ("/tmp", "/dev/shm"))
    assert listeners["came"] == []


USES = {
    "read data": "value = (data / 'rows').read_text(), os.listdir(data)",
    "write": "(run / 'a' / 'b').mkdir(parents=True); (run / 'a' / 'b' / 'c').write_text('x')",
    "append": "open(run / 'old', 'a').write('more')",
    "truncate": "os.truncate(run / 'a/b/c', 0)" if sys.platform == "linux" else "",
    "rename": "os.rename(run / 'a/b/c', run / 'c')",
    "replace": "(run / 'new').write_text('y'); os.replace(run / 'new', run / 'c')",
    "link": "os.link(run / 'c', run / 'd')",
    "sync": "os.fsync(os.open(run, os.O_RDONLY))",
    "remove": "import shutil; os.unlink(run / 'c'); shutil.rmtree(run / 'a')",
    "temporary": "import tempfile; tempfile.TemporaryFile().write(b'x'); tempfile.TemporaryDirectory().cleanup()",
    "home": "(Path.home() / 'cache').mkdir()",
    "nothing": "open(os.devnull, 'w').write('x'); open(os.devnull).read()",
    "chance": "import random; random.SystemRandom().random(); open('/dev/urandom', 'rb').read(4)",
    "itself": "open('/proc/self/status').read(); os.listdir('/proc/self/task')",
    "late imports": "import sqlite3, decimal, zoneinfo, mimetypes, ssl, xml.dom.minidom; mimetypes.init()",
    "name": "import getpass; getpass.getuser()",
    "a child": "import subprocess; subprocess.run([sys.executable, '-c', 'import json'], check=True)",
    "a shell": "assert os.system('exit 0') == 0",
    "end a child": "import subprocess; p = subprocess.Popen(['/bin/sleep', '60']); p.kill(); p.wait()",
    "a thread": "import threading; t = threading.Thread(target=int); t.start(); t.join()",
    "a pair": "import socket; a, b = socket.socketpair(); a.send(b'x'); assert b.recv(1) == b'x'",
    "a pipe": "import multiprocessing; a, b = multiprocessing.Pipe(); a.send(1); assert b.recv() == 1",
    "a loop": "import asyncio; asyncio.run(asyncio.sleep(0))",
    "own limits": "import resource; resource.setrlimit(resource.RLIMIT_CORE, (0, 0))",
}


def test_what_a_subject_needs_still_works(base: Path) -> None:
    (base / "run" / "old").write_text("found before")
    seen = confined(base, USES)
    assert {name: s for name, s in seen["tried"].items() if s["error"]} == {}


def test_packages_import_and_compute_with_threads(base: Path) -> None:
    """Also what is imported late, and what was built to ask the machine for its processors."""
    names = ("sklearn.ensemble", "pyarrow.parquet", "PIL.Image", "onnxruntime", "safetensors.torch")
    tries = {name: f"import {name}" for name in names if importlib.util.find_spec(name.split(".")[0])} | {
        "torch": """
            import torch
            torch.set_num_threads(2)
            x = torch.rand(64, 3, 32, 32, requires_grad=True)
            torch.nn.Conv2d(3, 8, 3)(x).square().sum().backward()
            value = bool(x.grad.isfinite().all()), torch.get_num_threads()""",
        "forest": """
            import numpy as np
            from sklearn.ensemble import RandomForestClassifier
            x = np.arange(60.0).reshape(20, 3)
            RandomForestClassifier(3, n_jobs=2).fit(x, np.arange(20) % 2).predict(x)""",
    }
    seen = confined(base, {name: textwrap.dedent(code) for name, code in tries.items()})
    assert {name: s for name, s in seen["tried"].items() if s["error"]} == {}
    assert seen["tried"]["torch"]["value"] == "(True, 2)"


def test_every_promise_is_held_or_missing_with_a_reason(attacked: dict[str, Any]) -> None:
    for promise in PROMISES:
        missing = [why for why in attacked["missing"] if why.startswith(promise + " (")]
        assert (promise in attacked["held"]) + len(missing) == 1
        assert all(why.endswith(")") and len(why) > len(promise) + 10 for why in missing)


def test_another_system_promises_nothing_and_raises_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox.sys, "platform", "darwin")
    monkeypatch.setattr(sandbox.platform, "system", lambda: "Darwin")
    held = sandbox.confine(read=[], write=[])
    assert held.held == ()
    assert held.missing == tuple(f"{p} (Darwin has neither Landlock nor seccomp)" for p in PROMISES)


CUTS = {name: ATTACKS[WRITES][name] for name in ("truncate", "truncate the data", "truncate by reading", "overwrite")}


@pytest.mark.parametrize("abi", [1, 2, 3, 5])
def test_an_older_landlock_holds_what_it_can(base: Path, attacked: dict[str, Any], abi: int) -> None:
    need(attacked, WRITES)
    tries = {**CUTS, "read": ATTACKS[READS]["open"], "write": "(run / 'note').write_text('x')"}
    seen = confined(
        base, tries, before=f"now = sandbox._landlock_abi; sandbox._landlock_abi = lambda c: min({abi}, now(c))"
    )
    assert {WRITES, READS} <= set(seen["held"])
    assert SIGNALS not in seen["held"]
    assert {name for name, s in seen["tried"].items() if s["error"] is None} == {"write"}
    assert (base / "data" / "rows").read_text() == "some rows"


def test_without_landlock_the_network_is_closed_still(base: Path, attacked: dict[str, Any]) -> None:
    need(attacked, NETWORK)
    tries = {"tcp": ATTACKS[NETWORK]["tcp natively"], "read": ATTACKS[READS]["open"]}
    seen = confined(base, tries, before="sandbox._landlock_abi = lambda libc: 0")
    assert NETWORK in seen["held"]
    assert {why.split(" (")[0] for why in seen["missing"]} == {WRITES, READS, SIGNALS}
    assert seen["tried"]["tcp"]["error"] == "PermissionError"
    assert seen["tried"]["read"]["error"] is None


def test_without_a_filter_files_are_closed_still(
    base: Path, attacked: dict[str, Any], listeners: dict[str, Any]
) -> None:
    need(attacked, WRITES)
    tries = {name: ATTACKS[WRITES][name] for name in ("create", "truncate")}
    tries["tcp"] = ATTACKS[NETWORK]["tcp"]
    before = f"sandbox._MACHINES = {{}}; given['tcp'] = {listeners['tcp']}"
    seen = confined(base, tries, before=before)
    assert {WRITES, READS} <= set(seen["held"])
    reasons = {why.split(" (")[0]: why for why in seen["missing"]}
    assert "no seccomp filter is written for" in reasons[MODES]
    assert {seen["tried"][name]["error"] for name in ("create", "truncate")} <= {"PermissionError"}
    if NETWORK in seen["held"]:  # by a namespace
        assert seen["tried"]["tcp"]["error"] is not None
    else:
        assert "namespaces are forbidden" in reasons[NETWORK]


def test_threads_from_before_are_not_promised_for(base: Path, attacked: dict[str, Any]) -> None:
    before = "import threading; early = threading.Event(); threading.Thread(target=early.wait).start()"
    seen = confined(base, {"over": "early.set()"}, before=before)
    assert WRITES not in seen["held"]
    assert READS not in seen["held"]
    if NETWORK in attacked["held"]:
        assert any(why == f"{WRITES} (1 threads ran before it was called)" for why in seen["missing"])
        assert NETWORK in seen["held"]


def test_the_filter_reaches_threads_from_before(base: Path, attacked: dict[str, Any]) -> None:
    need(attacked, NETWORK)
    before = """
import concurrent.futures
early = concurrent.futures.ThreadPoolExecutor(1)
early.submit(int).result()
"""
    seen = confined(base, {"tcp": "early.submit(lambda: native(libc.socket(2, 1, 0))).result()"}, before=before)
    assert seen["tried"]["tcp"]["error"] == "PermissionError"


def test_network_on_request_opens_no_other_door(
    base: Path, attacked: dict[str, Any], listeners: dict[str, Any]
) -> None:
    need(attacked, NETWORK)
    tries = {name: ATTACKS[NETWORK][name] for name in ("tcp", "unix", "datagrams of a pair", "packets", "io_uring")}
    facts = {name: listeners[name] for name in ("tcp", "unix")}
    seen = confined(base, tries, before=f"given |= {facts!r}", network=True)
    assert f"{NETWORK} (it was asked for)" in seen["missing"]
    assert {name for name, s in seen["tried"].items() if s["error"] is None} == {"tcp"}
    listeners["came"].clear()


def test_a_terminal_cannot_be_typed_into(base: Path, attacked: dict[str, Any]) -> None:
    need(attacked, GROUP)
    ours, theirs = os.openpty()
    try:
        tries = {"type": f"import fcntl; fcntl.ioctl({theirs}, 0x5412, b'x')"}
        assert confined(base, tries, keep=(theirs,))["tried"]["type"]["code"] == errno.EPERM
    finally:
        os.close(ours)
        os.close(theirs)


# The filter, run step by step here: what this machine cannot try, another one's numbers, is tried too -----------------


def verdict(program: list[tuple[int, int, int, int]], name: int, number: int, *arguments: int) -> int:
    """What Linux's classic BPF gives back for one system call: the errno, or 0 if it is allowed."""
    words = {0: number, 4: name} | {
        16 + 8 * i: a & 0xFFFFFFFF for i, a in enumerate((*arguments, 0, 0, 0, 0, 0, 0)[:6])
    }
    at = value = 0
    while True:
        code, yes, no, k = program[at]
        at += 1
        if code == 0x06:
            return k & 0xFFFF if k & 0x50000 and k < 0x7FFF0000 else 0
        if code == 0x20:
            value = words[k]
        elif code == 0x54:
            value &= k
        else:
            at += yes if (value == k if code == 0x15 else value >= k) else no


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_filter_refuses_what_it_names_on_either_machine(machine: str) -> None:
    column, name = sandbox._MACHINES[machine]
    closed = sandbox._program(sandbox._refusals(network=False, truncation=True), machine)
    opened = sandbox._program(sandbox._refusals(network=True, truncation=False), machine)
    assert len(closed) < 4096

    def call(which: str, *arguments: int, program: list[tuple[int, int, int, int]] = closed) -> int:
        number = sandbox._CALLS[which][column]
        assert number is not None
        return verdict(program, name, number, *arguments)

    sockets = {(f, t) for f in range(46) for t in range(8) if not call("socket", f, t | 0o2000000)}
    assert sockets == {(1, 5)}  # local, in order: leads nowhere without connect
    assert [f for f in range(46) if not call("socket", f, 1, program=opened)] == [2, 10, 16]
    assert call("connect") == errno.EPERM
    assert call("connect", program=opened) == 0
    pairs = {(f, t) for f in range(46) for t in range(8) if not call("socketpair", f, t | 0o2000000)}
    assert pairs == {(1, 1)}
    assert call("clone", 0x01200011) == call("clone", 0x003D0F00) == 0  # as fork and a thread's start do
    assert call("clone", 0x10000011) == call("clone", 0x40000011) == call("clone", 0x00020011) == errno.EPERM
    assert call("clone3") == errno.ENOSYS
    assert call("ioctl", 1, 0x5401) == 0
    assert call("ioctl", 1, 0x5412) == call("ioctl", 1, 0x541C) == call("ioctl", 1, 0x40086602) == errno.EPERM
    assert call("prlimit64", 0) == 0
    assert call("prlimit64", 7) == errno.EPERM
    assert call("openat", 0, 0, os.O_RDONLY | os.O_TRUNC) == errno.EPERM
    assert call("openat", 0, 0, os.O_WRONLY | os.O_TRUNC) == call("openat", 0, 0, os.O_RDONLY) == 0
    assert call("openat", 0, 0, os.O_RDONLY | os.O_TRUNC, program=opened) == 0
    assert call("seccomp") == call("capset") == 0
    for which in ("ptrace", "io_uring_setup", "bpf", "setsid", "fchmod", "open_by_handle_at", "keyctl", "file_setattr"):
        assert call(which) == errno.EPERM

    named = {n[column] for n in sandbox._CALLS.values()}
    assert [n for n in range(600) if n not in named and verdict(closed, name, n)] == []
    assert verdict(closed, 0x40000003, 1) == errno.EPERM  # 32-bit x86
    assert verdict(closed, 0x40000028, 1) == errno.EPERM  # 32-bit Arm
    if machine == "x86_64":
        assert verdict(closed, name, 0x40000000 + 1) == errno.EPERM  # x32


# What is told and kept -----------------------------------------------------------------------------------------------


def test_secrets_stay_behind() -> None:
    here = {
        "PATH": "/bin",
        "LC_ALL": "C",
        "OMP_NUM_THREADS": "2",
        "CUDA_VISIBLE_DEVICES": "0",
        "ASSAY_DATA": "/data",
        "PYTHONPATH": "/src",
        "HOME": "/home/me",
        "XDG_RUNTIME_DIR": "/run/user/1",
        "AWS_SECRET_ACCESS_KEY": "x",
        "HF_TOKEN": "x",
        "TORCH_HUB_TOKEN": "x",
        "ASSAY_KEY": "x",
        "SSH_AUTH_SOCK": "/run/agent",
        "https_proxy": "http://me:word@proxy",
        "DATABASE_URL": "postgres://me:word@db",
        "DISPLAY": ":0",
    }
    kept = sandbox.scrubbed(here, home=Path("/runs/1/home"))
    assert {"PATH", "LC_ALL", "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "ASSAY_DATA", "PYTHONPATH"} <= set(kept)
    assert kept["HOME"] == kept["TMPDIR"] == "/runs/1/home"
    assert kept["ORT_DISABLE_TELEMETRY"] == "1"
    assert not {"x", "/run/agent", "/home/me", "/run/user/1", ":0"} & set(kept.values())
    assert not any("word@" in value for value in kept.values())


def test_only_refusals_are_told(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        (tmp_path / "none").read_bytes()
    assert sandbox.refused(caught.value) is None
    assert sandbox.refused(ValueError("Permission")) is None
    assert sandbox.refused(ModuleNotFoundError("No module named 'nowhere'", name="nowhere")) is None
    assert sandbox.refused(ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")) is None
    wrapped = ValueError("while working")
    wrapped.__cause__ = PermissionError(errno.EACCES, "Permission denied", str(tmp_path))
    told = sandbox.refused(wrapped)
    assert told is not None
    assert str(tmp_path) in told


def test_a_module_out_of_reach_is_told_as_such(base: Path, attacked: dict[str, Any]) -> None:
    need(attacked, READS)
    (base / "outside" / "empty" / "helper_of_mine.py").write_text("")
    try:
        tries = {"import": "sys.path.append(str(outside / 'empty')); import helper_of_mine"}
        seen = confined(base, tries)["tried"]["import"]
    finally:
        (base / "outside" / "empty" / "helper_of_mine.py").unlink()
    assert seen["error"] == "ModuleNotFoundError"
    assert "empty/helper_of_mine.py" in seen["told"]


def test_neither_home_nor_the_folder_of_the_call_comes_with_the_interpreter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "package").mkdir()
    sysconfig.get_paths()  # kept from its first call, which imports: on the path below there is nothing to import
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", "/", "/home", str(tmp_path / "me"), str(tmp_path), str(tmp_path / "package")])
    granted = sandbox._interpreter()
    assert (tmp_path / "package").resolve() in granted
    for broad in ("/", "/home", "/etc", "/tmp", tmp_path, tmp_path / "me"):
        assert Path(broad).resolve() not in granted
