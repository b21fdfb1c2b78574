"""Every write, connection and program of a process and of all its descendants, seen by the kernel and decided here.

A seccomp filter hands the calls that change a disk, connect or start a program to a supervisor before they happen
(SECCOMP_RET_USER_NOTIF, Linux 5.0 and later). It holds for native code, for threads and for whatever the process
starts, and cannot be taken off; so the supervisor counts writes, kills between two of them, answers with an error of
its choice, and knows that all are gone once the filter has no user left.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import platform
import select
import signal
import socket
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

OPEN, WRITE, SYNC, RENAME, MKDIR, UNLINK, LINK, CONNECT, SEND, EXEC = (
    "open", "write", "fsync", "rename", "mkdir", "unlink", "link", "connect", "send", "exec",
)  # fmt: skip

# What a call does, and which arguments are (folder descriptor, path) or a descriptor. -1: the working directory.
CALLS: dict[str, dict[int, tuple[str, tuple[tuple[int, int], ...], int | None]]] = {
    "aarch64": {
        56: (OPEN, ((0, 1),), None), 437: (OPEN, ((0, 1),), None),
        64: (WRITE, (), 0), 66: (WRITE, (), 0), 68: (WRITE, (), 0), 70: (WRITE, (), 0), 287: (WRITE, (), 0),
        71: (WRITE, (), 0), 285: (WRITE, (), 2), 46: (WRITE, (), 0), 47: (WRITE, (), 0), 45: (WRITE, ((-1, 0),), None),
        82: (SYNC, (), 0), 83: (SYNC, (), 0),
        38: (RENAME, ((0, 1), (2, 3)), None), 276: (RENAME, ((0, 1), (2, 3)), None),
        34: (MKDIR, ((0, 1),), None), 35: (UNLINK, ((0, 1),), None),
        36: (LINK, ((1, 2),), None), 37: (LINK, ((2, 3),), None),
        203: (CONNECT, (), None), 206: (SEND, (), None), 221: (EXEC, ((-1, 0),), None), 281: (EXEC, ((0, 1),), None),
    },
    "x86_64": {
        257: (OPEN, ((0, 1),), None), 437: (OPEN, ((0, 1),), None), 2: (OPEN, ((-1, 0),), None),
        85: (OPEN, ((-1, 0),), None),
        1: (WRITE, (), 0), 18: (WRITE, (), 0), 20: (WRITE, (), 0), 296: (WRITE, (), 0), 328: (WRITE, (), 0),
        40: (WRITE, (), 0), 326: (WRITE, (), 2), 77: (WRITE, (), 0), 285: (WRITE, (), 0), 76: (WRITE, ((-1, 0),), None),
        74: (SYNC, (), 0), 75: (SYNC, (), 0),
        264: (RENAME, ((0, 1), (2, 3)), None), 316: (RENAME, ((0, 1), (2, 3)), None),
        82: (RENAME, ((-1, 0), (-1, 1)), None),
        258: (MKDIR, ((0, 1),), None), 83: (MKDIR, ((-1, 0),), None),
        263: (UNLINK, ((0, 1),), None), 87: (UNLINK, ((-1, 0),), None), 84: (UNLINK, ((-1, 0),), None),
        266: (LINK, ((1, 2),), None), 265: (LINK, ((2, 3),), None), 88: (LINK, ((-1, 1),), None),
        86: (LINK, ((-1, 1),), None),
        42: (CONNECT, (), None), 44: (SEND, (), None), 59: (EXEC, ((-1, 0),), None), 322: (EXEC, ((0, 1),), None),
    },
}  # fmt: skip
FLAGS_AT = {"aarch64": {56: 2}, "x86_64": {257: 2, 2: 1}}
"""Of the calls that open: which argument has the flags, so that the kernel lets reading pass by itself."""
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
SECCOMP = {"aarch64": 277, "x86_64": 317}

RECEIVE, ANSWER = 0xC0502100, 0xC0182101  # ioctls of the listener, with 80 and 24 bytes
NOTIFY, ALLOW = 0x7FC00000, 0x7FFF0000
INET = (socket.AF_INET, socket.AF_INET6)


def why_not() -> str | None:
    """What stands in the way of watching on this machine."""
    machine = platform.machine()
    if platform.system() != "Linux" or machine not in CALLS:
        return f"the watch knows Linux on {' and '.join(CALLS)}, not {platform.system()} on {machine}"
    if not Path(f"/proc/self/task/{os.getpid()}/children").exists():
        return "this kernel does not list the children of a process"
    here, there = socket.socketpair()
    child = os.fork()
    if child == 0:
        try:
            install(there)
        except OSError as e:
            os._exit(e.errno or 255)
        os._exit(0)
    there.close()
    refused = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    here.close()
    return f"the kernel refused a seccomp listener ({os.strerror(refused)})" if refused else None


def install(send_to: socket.socket) -> None:
    """Put this process under watch, for good, and send the listener to the one that will supervise it."""
    machine = platform.machine()
    libc = ctypes.CDLL(None, use_errno=True)
    code = _program(machine)
    lines = ctypes.create_string_buffer(code)
    program = struct.pack("HxxxxxxP", len(code) // 8, ctypes.addressof(lines))
    if libc.prctl(38, 1, 0, 0, 0):  # PR_SET_NO_NEW_PRIVS, which a filter needs where one is not root
        raise OSError(ctypes.get_errno(), "no_new_privs")
    # 1: set a filter. 8: with a listener. Sending its descriptor is not among the calls that are watched.
    listener = libc.syscall(SECCOMP[machine], 1, 8, ctypes.c_char_p(program))
    if listener < 0:
        raise OSError(ctypes.get_errno(), "seccomp")
    socket.send_fds(send_to, [b"listener"], [listener])
    os.close(listener)
    send_to.close()


def _program(machine: str) -> bytes:
    """The filter: load the number of the call; those of the table go to the listener, all others go on."""
    load, equal, bits = 0x20, 0x15, 0x45
    body: list[tuple[int, int, int, int]] = [(load, 0, 0, 0)]
    for number in CALLS[machine]:
        if number in FLAGS_AT[machine]:
            low = 16 + 8 * FLAGS_AT[machine][number]
            body += [
                (equal, 0, 4, number),
                (load, 0, 0, low),
                (bits, 0, 1, WRITES),
                (6, 0, 0, NOTIFY),
                (6, 0, 0, ALLOW),
            ]
        else:
            body += [(equal, 0, 1, number), (6, 0, 0, NOTIFY)]
    body.append((6, 0, 0, ALLOW))
    return b"".join(struct.pack("HBBI", *line) for line in body)


@dataclass
class Event:
    """A call that is about to happen."""

    what: str
    paths: tuple[str, ...]
    pid: int

    @property
    def path(self) -> str:
        return self.paths[-1] if self.paths else ""


Decide = Callable[[Event], int]
"""What becomes of a call: 0 lets it happen, an error number is its answer."""


@dataclass
class Seen:
    """What a watched process and its descendants did."""

    status: int | None = None
    events: list[Event] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    hung: bool = False
    left: list[str] = field(default_factory=list)
    """Those that outlived it."""
    seconds: float = 0.0


def supervise(main: int, listener: int, limit: float, decide: Decide, grace: float = 2.0) -> Seen:
    """Answer every call until all who are watched are gone; end those that take longer or stay behind.

    The caller has made itself a reaper of orphans, so that whoever is left is a child of its own.
    """
    seen, start, ended = Seen(), time.monotonic(), None
    poll = select.poll()
    poll.register(listener, select.POLLIN)
    while True:
        for fd, happened in poll.poll(50):
            if happened & select.POLLIN:
                _answer(fd, seen, decide)
            elif happened & select.POLLHUP:
                poll.unregister(fd)
        if seen.status is None:
            found, how = os.waitpid(main, os.WNOHANG)
            if found:
                seen.status, ended = os.waitstatus_to_exitcode(how), time.monotonic()
                seen.seconds = ended - start
        _reap(main)
        rest = orphans(main if seen.status is None else None)
        if seen.status is not None and not rest:
            break
        if seen.status is None and time.monotonic() - start > limit:
            seen.hung = True
            _kill([main, *descendants(main)])
            start = time.monotonic()
        if ended is not None and time.monotonic() - ended > grace and rest:
            seen.left += [name for pid in rest if (name := name_of(pid)) not in seen.left]
            _kill([p for pid in rest for p in (pid, *descendants(pid))])
    os.close(listener)
    return seen


def _reap(main: int) -> None:
    """Take note of the end of orphans that were handed to us."""
    for pid in orphans(main):
        with suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)


def orphans(main: int | None) -> list[int]:
    """Children of this process other than the main one of a case."""
    listed = Path(f"/proc/self/task/{os.getpid()}/children")
    return [int(p) for p in listed.read_text().split() if int(p) != main]


def descendants(pid: int) -> list[int]:
    """Who descends from a process, the nearest first."""
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
        below = [int(p) for t in tasks for p in Path(f"/proc/{pid}/task/{t}/children").read_text().split()]
    except OSError:
        return []
    return below + [p for b in below for p in descendants(b)]


def name_of(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        return words[:60] or Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return "?"


def _kill(pids: list[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _answer(listener: int, seen: Seen, decide: Decide) -> None:
    asked = bytearray(80)
    try:
        fcntl.ioctl(listener, RECEIVE, asked)
    except OSError as e:
        if e.errno in (errno.ENOENT, errno.EINTR):  # killed while it asked
            return
        raise
    ident, pid, _, number, _, _, *args = struct.unpack("QIIiIQ6Q", asked)
    what, named, descriptor = CALLS[platform.machine()][number]
    if what in (CONNECT, SEND):
        address = _address(pid, args[1] if what == CONNECT else args[4])
        if address is not None:
            seen.requests.append(address)
        error = 0
    else:
        event = Event(what, _paths(pid, args, named, descriptor), pid)
        seen.events.append(event)
        error = decide(event)
    # An error of -1 is the answer of somebody who has dealt with the process: nothing is sent.
    if error < 0:
        return
    # The flag 1 lets the call go on as it was asked.
    answer = struct.pack("QqiI", ident, 0, -error, 0 if error else 1)
    try:
        fcntl.ioctl(listener, ANSWER, answer)
    except OSError as e:
        if e.errno != errno.ENOENT:
            raise


def _paths(pid: int, args: list[int], named: tuple[tuple[int, int], ...], descriptor: int | None) -> tuple[str, ...]:
    if descriptor is not None:
        path = _link(f"/proc/{pid}/fd/{args[descriptor] & 0xFFFFFFFF}")
        return () if path == "?" else (path,)  # else it is not open, and the call will say so
    found = []
    for folder, place in named:
        path = _text(pid, args[place])
        if not path.startswith("/"):
            at = args[folder] & 0xFFFFFFFF if folder >= 0 else 0xFFFFFF9C  # AT_FDCWD
            base = _link(f"/proc/{pid}/cwd" if at == 0xFFFFFF9C else f"/proc/{pid}/fd/{at}")
            path = os.path.join(base, path)
        found.append(os.path.normpath(path))
    return tuple(found)


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return "?"


def _memory(pid: int, at: int, size: int) -> bytes:
    try:
        with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
            memory.seek(at)
            return memory.read(size)
    except (OSError, ValueError, OverflowError):
        return b""


def _text(pid: int, at: int) -> str:
    """The path that stands at this address; memory may end on the page after it."""
    text = b""
    while b"\0" not in text and len(text) < 4096:
        more = _memory(pid, at + len(text), 256 - (at + len(text)) % 256)
        if not more:
            break
        text += more
    return os.fsdecode(text.partition(b"\0")[0])


def _address(pid: int, at: int) -> str | None:
    """Whom a call speaks to, where that is over a network; a socket of this machine's own is nobody's business."""
    raw = _memory(pid, at, 28) if at else b""
    if len(raw) < 8 or struct.unpack_from("H", raw)[0] not in INET:
        return None
    family, port = struct.unpack_from("H", raw)[0], struct.unpack_from(">H", raw, 2)[0]
    where = raw[4:8] if family == socket.AF_INET else raw[8:24]
    return f"{socket.inet_ntop(family, where)} port {port}"
