"""What a stranger's code may not do: reach the network, write outside the run, read what is not its own.

`confine` is called once, in a fresh interpreter, before any of the subject's code and before numpy or torch start
threads; it cannot be undone and holds for every thread and process started afterwards. No package and no privilege is
needed: Landlock (Linux 5.13) rules over files, a seccomp filter over system calls, and the capabilities of root are
given up. Where the kernel lacks one of them, nothing raises: `Held.missing` says what is not promised, and why.

What stays open, by design or for want of a rule:
- what the parent left open: it closes its files and sockets (subprocess does) and gives no terminal as stdin;
- names, sizes and times of files whose path is known (stat): Landlock has no rule for them; folders cannot be listed;
- memory, time and number of processes: the parent's limits;
- a GPU's device files, where the machine has one: its driver is trusted;
- a process that the subject starts sees no /proc/self of its own, as the rule is bound to this process.

What is refused although a harmless subject might want it: /dev/shm, which is shared with every process (so workers of a
DataLoader, named semaphores and joblib's processes do not start: `scrubbed` has joblib work in this one); sockets of
any kind but a pair of connected streams, and one that CUDA needs and that cannot connect; symbolic links and FIFOs also
inside the run (the parent could be led outside by one); changed modes and times of files (a filter of system calls
cannot see whose file it is).
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import re
import site
import socket
import stat
import struct
import sys
import sysconfig
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

NETWORK = "no network"
WRITES = "no writes outside the run"
READS = "no reads outside subject, data and interpreter"
MODES = "no change of a file's mode, owner or times"
PROCESSES = "no look into other processes"
SIGNALS = "no signals to other processes"
GROUP = "no process that leaves the audit's group"
PRIVILEGES = "no privileges of root"
PROMISES = (NETWORK, WRITES, READS, MODES, PROCESSES, SIGNALS, GROUP, PRIVILEGES)

LIFT = "if you trust this subject, add --no-sandbox"


@dataclass(frozen=True)
class Held:
    """Which promises hold from now on, and which do not, each with why in brackets."""

    held: tuple[str, ...]
    missing: tuple[str, ...]


def confine(*, read: Sequence[Path], write: Sequence[Path], network: bool = False) -> Held:
    """Give up, for good, everything but reading `read` and the interpreter and writing (and reading) `write`.

    Paths are taken as they are given, links followed: a home folder in `read` is readable as a whole. Of nested
    folders the wider right counts, so a subject that lies inside `write` can be changed by itself. With `network`
    CUDA does not start: it wants a local socket, and those could then be connected.
    """
    if sys.platform != "linux":
        return _nothing(f"{platform.system() or sys.platform} has neither Landlock nor seccomp")
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        return _nothing(f"no_new_privs was refused: {os.strerror(ctypes.get_errno())}")
    threads = len(os.listdir("/proc/self/task")) - 1 if os.path.isdir("/proc/self/task") else 0
    late = f"{threads} threads ran before it was called" if threads else ""
    abi = _landlock_abi(libc)

    why: dict[str, str] = {}  # promise -> why it does not hold
    no_filter = _filter_calls(libc, _refusals(network=network, truncation=abi < 3))
    if no_filter:
        why |= dict.fromkeys((MODES, GROUP), no_filter)
        apart = late or _leave_network(libc) if not network else ""
        if apart:
            why[NETWORK] = f"{no_filter}, and {apart}"
    if network:
        why[NETWORK] = "it was asked for"
    no_rules = late or _rule_files(libc, abi, read, write, network=network)
    if no_rules:
        why |= dict.fromkeys((WRITES, READS), no_rules)
        if no_filter:
            why[PROCESSES] = f"{no_rules}, {no_filter}"
    elif abi < 3 and no_filter:
        why[WRITES] = f"files can be cut short: Landlock has no rule for it before Linux 6.2, and {no_filter}"
    if no_rules or abi < 6:
        why[SIGNALS] = no_rules or "Landlock has no rule for it before Linux 6.12"
    no_drop = late or _drop_privileges(libc)
    if no_drop:
        why[PRIVILEGES] = no_drop
    return Held(tuple(p for p in PROMISES if p not in why), tuple(f"{p} ({why[p]})" for p in PROMISES if p in why))


def _nothing(why: str) -> Held:
    return Held((), tuple(f"{promise} ({why})" for promise in PROMISES))


# Files: Landlock -----------------------------------------------------------------------------------------------------

_PR_SET_NO_NEW_PRIVS = 38
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # on every machine

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR, _REMOVE_DIR, _REMOVE_FILE = (1 << bit for bit in range(6))
_MAKE_CHAR, _MAKE_DIR, _MAKE_REG, _MAKE_SOCK, _MAKE_FIFO, _MAKE_BLOCK, _MAKE_SYM = (1 << bit for bit in range(6, 13))
_REFER, _TRUNCATE, _IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
_SINCE = {2: _REFER, 3: _TRUNCATE, 5: _IOCTL_DEV}  # the ABI that brought a right; the others are in the first

_READING = _READ_FILE | _READ_DIR
_RUNNING = _READING | _EXECUTE
_WRITING = _READING | _WRITE_FILE | _REMOVE_DIR | _REMOVE_FILE | _MAKE_DIR | _MAKE_REG | _REFER | _TRUNCATE
_DRIVING = _READ_FILE | _READ_DIR | _WRITE_FILE | _IOCTL_DEV
_ON_A_FILE = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV


def _landlock_abi(libc: ctypes.CDLL) -> int:
    """Which version of it this kernel has; 0 for none."""
    return max(0, int(libc.syscall(_CREATE_RULESET, None, 0, 1)))


def _rule_files(libc: ctypes.CDLL, abi: int, read: Sequence[Path], write: Sequence[Path], *, network: bool) -> str:
    """Why no rules hold; empty if they do."""
    if not abi:
        _landlock_abi(libc)  # for its errno
        return {
            errno.ENOSYS: "this kernel has no Landlock; Linux 5.13 and later do",
            errno.EOPNOTSUPP: "Landlock is switched off in this kernel; boot it with lsm=landlock added",
        }.get(ctypes.get_errno(), "Landlock is forbidden here, as in some containers")
    handled = (1 << 13) - 1 | sum(right for since, right in _SINCE.items() if since <= abi)
    tcp = 0b11 if abi >= 4 and not network else 0  # neither bind nor connect
    scoped = 0b11 if abi >= 6 else 0  # neither abstract sockets nor signals of others
    attributes = struct.pack("QQQ", handled, tcp, scoped)[: 8 if abi < 4 else 16 if abi < 6 else 24]
    rules = libc.syscall(_CREATE_RULESET, attributes, len(attributes), 0)
    if rules < 0:
        return f"Landlock refused the rules: {os.strerror(ctypes.get_errno())}"
    for path, rights in _granted(read, write, network=network):
        try:
            # Never closed: /proc forgets a file that nobody holds, and the next one of that name has no rule.
            held = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError:
            continue
        kind = os.fstat(held).st_mode
        if not stat.S_ISDIR(kind):
            rights &= _ON_A_FILE
        rule = struct.pack("=Qi", rights & handled, held)
        if libc.syscall(_ADD_RULE, rules, 1, rule, 0):
            return f"Landlock refused a rule for {path}: {os.strerror(ctypes.get_errno())}"
    failed = libc.syscall(_RESTRICT_SELF, rules, 0)
    os.close(rules)
    if failed:
        return f"Landlock refused to begin: {os.strerror(ctypes.get_errno())}"
    return "" if _cannot_list_root(read, write) else "Landlock's rules were taken but do not hold"


def _cannot_list_root(read: Sequence[Path], write: Sequence[Path]) -> bool:
    if Path("/") in map(Path, (*read, *write)):
        return True
    try:
        os.close(os.open("/", os.O_RDONLY | os.O_DIRECTORY))
    except OSError:
        return True
    return False


def _granted(read: Sequence[Path], write: Sequence[Path], *, network: bool) -> Iterator[tuple[Path, int]]:
    for path in read:
        yield Path(path), _READING
    for path in write:
        yield Path(path), _WRITING
    for path in _interpreter():
        yield path, _RUNNING
    for name in (*_SYSTEM_FILES, *(_NETWORK_FILES if network else ())):
        yield Path(name), _READING
    yield Path(f"/proc/{os.getpid()}"), _READING
    for name in ("null", "zero", "full"):
        yield Path("/dev", name), _READ_FILE | _WRITE_FILE
    devices = [*Path("/dev").glob("nvidia*"), *Path("/dev/dri").glob("renderD*"), *Path("/dev").glob("kfd")]
    for path in devices:
        yield path, _DRIVING
    if devices:
        yield Path(f"/proc/{os.getpid()}/task"), _READING | _WRITE_FILE | _TRUNCATE  # CUDA names its threads
        for name in ("/sys", "/proc/driver", "/proc/devices", "/proc/modules"):
            yield Path(name), _READING


_SYSTEM_FOLDERS = ("/usr", "/lib", "/lib32", "/lib64", "/bin", "/sbin", "/nix/store", "/gnu/store")
_SYSTEM_FILES = (
    "/etc/ld.so.cache",
    "/etc/localtime",
    "/etc/timezone",
    "/etc/os-release",
    "/etc/mime.types",
    "/etc/fonts",  # matplotlib asks fontconfig, which complains without its settings
    "/etc/ssl/openssl.cnf",
    "/etc/pki/tls/openssl.cnf",
    "/etc/crypto-policies",
    "/dev/urandom",
    "/dev/random",
    "/proc/cpuinfo",
    "/proc/meminfo",
    "/proc/stat",
    "/proc/version",
    "/proc/filesystems",
    "/proc/sys/kernel",
    "/proc/sys/vm",
    "/sys/bus/pci",
    "/sys/devices/system",
    "/sys/fs/cgroup",
    "/sys/kernel/mm/transparent_hugepage",
)
_NETWORK_FILES = (
    "/etc/resolv.conf",
    "/etc/hosts",
    "/etc/host.conf",
    "/etc/nsswitch.conf",
    "/etc/gai.conf",
    "/etc/services",
    "/etc/protocols",
    "/etc/ssl/certs",
    "/etc/pki/ca-trust/extracted",
)


def _interpreter() -> set[Path]:
    """What Python, its packages and the libraries they load are read from; never a home folder or / as a whole."""
    folders = [sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix, *sysconfig.get_paths().values()]
    # The first entry is the folder that `python -m` was called in; it is nobody's package.
    here = sys.path[:1] if sys.path[:1] in ([""], [os.getcwd()]) and not sys.flags.safe_path else []
    folders += sys.path[len(here) :]
    folders += os.environ.get("LD_LIBRARY_PATH", "").split(":")
    for listed in (Path("/etc/ld.so.conf"), *Path("/etc/ld.so.conf.d").glob("*.conf")):
        folders += [line.strip() for line in _lines(listed) if line.startswith("/")]
    for name, module in list(sys.modules.items()):
        if name.startswith("__editable__"):  # setuptools' finders know folders that are not on sys.path
            folders += getattr(module, "MAPPING", {}).values()
    mapped = {line.split(maxsplit=5)[-1] for line in _lines(Path("/proc/self/maps"))}
    libraries = {name for name in mapped if name.startswith("/") and ".so" in os.path.basename(name)}
    folders += {os.path.dirname(name) for name in libraries}
    files = {sys.executable, str(Path(__file__).parents[1]), *libraries}
    private = _more_than_software()
    narrow = [path for path in _real(folders) if not any(other.is_relative_to(path) for other in private)]
    return {*narrow, *_real(files), *(Path(name) for name in _SYSTEM_FOLDERS)}


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(errors="replace").splitlines()
    except OSError:
        return []


def _real(names: Iterable[str]) -> set[Path]:
    return {Path(os.path.realpath(name)) for name in names if name}


def _more_than_software() -> list[Path]:
    """Folders that, with all above them, are never granted as a whole because a package lies there."""
    names = ["/home", "/root", "/tmp", "/var", "/etc", "/run", "/boot", os.environ.get("TMPDIR", "")]
    names.append(os.path.expanduser("~"))
    try:
        import pwd

        names.append(pwd.getpwuid(os.getuid()).pw_dir)  # HOME may have been changed
    except (ImportError, KeyError):
        pass
    return [*_real(names), Path("/proc"), Path("/sys"), Path("/dev")]


# System calls: seccomp -----------------------------------------------------------------------------------------------

_MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}  # column below, and the name in a filter's data
_CALLS: dict[str, tuple[int | None, int | None]] = {
    "socket": (41, 198),
    "socketpair": (53, 199),
    "connect": (42, 203),
    "io_uring_setup": (425, 425),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "pidfd_getfd": (438, 438),
    "perf_event_open": (298, 241),
    "shmget": (29, 194),
    "shmat": (30, 196),
    "shmctl": (31, 195),
    "semget": (64, 190),
    "semop": (65, 193),
    "semtimedop": (220, 192),
    "semctl": (66, 191),
    "msgget": (68, 186),
    "msgsnd": (69, 189),
    "msgrcv": (70, 188),
    "msgctl": (71, 187),
    "mq_open": (240, 180),
    "mq_unlink": (241, 181),
    "keyctl": (250, 219),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "prlimit64": (302, 261),
    "unshare": (272, 97),
    "setns": (308, 268),
    "clone": (56, 220),
    "clone3": (435, 435),
    "bpf": (321, 280),
    "userfaultfd": (323, 282),
    "open_by_handle_at": (304, 265),
    "inotify_add_watch": (254, 27),
    "fanotify_init": (300, 262),
    "ioctl": (16, 29),
    "setsid": (112, 157),
    "setpgid": (109, 154),
    "chmod": (90, None),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "chown": (92, None),
    "lchown": (94, None),
    "fchown": (93, 55),
    "fchownat": (260, 54),
    "utime": (132, None),
    "utimes": (235, None),
    "futimesat": (261, None),
    "utimensat": (280, 88),
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "fsetxattr": (190, 7),
    "setxattrat": (463, 463),
    "removexattr": (197, 14),
    "lremovexattr": (198, 15),
    "fremovexattr": (199, 16),
    "removexattrat": (466, 466),
    "file_setattr": (469, 469),
    "truncate": (76, 45),
    "open": (2, None),
    "openat": (257, 56),
    "openat2": (437, 437),
    "seccomp": (317, 277),
    "capset": (126, 91),
}


class _Refusal(NamedTuple):
    """System calls that fail with `code`: always, or when `argument` & `mask` is one of `only`, or none of `but`."""

    calls: str
    argument: int | None = None
    mask: int = 0xFFFFFFFF
    only: tuple[int, ...] = ()
    but: tuple[int, ...] = ()
    code: int = errno.EPERM


_NEW_NAMESPACES = 0x7E020000
_TERMINAL_INPUT = (0x5412, 0x541C)  # TIOCSTI and TIOCLINUX type into the user's terminal
_FILE_FLAGS = (0x40086602, 0x401C5820)  # FS_IOC_SETFLAGS, FS_IOC_FSSETXATTR


def _refusals(*, network: bool, truncation: bool) -> list[_Refusal]:
    """`truncation` where Landlock has no rule against it."""
    unix, stream, in_order = 1, 1, 5
    # A socket of this machine leads out as well: docker's, a desktop's. One of a connected pair leads nowhere, unless
    # it sends datagrams, which carry an address each. CUDA makes one that listens, and never connects it.
    sockets = [_Refusal("connect"), _Refusal("socket", 0, but=(unix,)), _Refusal("socket", 1, 0xF, but=(in_order,))]
    if network:
        sockets = [_Refusal("socket", 0, but=(2, 10, 16))]  # IPv4, IPv6, and netlink for looking up names
    refusals = [
        *sockets,
        _Refusal("socketpair", 0, but=(unix,)),
        _Refusal("socketpair", 1, 0xF, but=(stream,)),
        _Refusal("io_uring_setup"),  # opens sockets past this filter
        _Refusal("ptrace process_vm_readv process_vm_writev pidfd_getfd perf_event_open"),
        # Memory, queues and keys that all of a user's processes share without a file.
        _Refusal("shmget shmat shmctl semget semop semtimedop semctl msgget msgsnd msgrcv msgctl mq_open mq_unlink"),
        _Refusal("keyctl add_key request_key"),
        _Refusal("prlimit64", 0, but=(0,)),  # a limit on another process ends it
        # Root of a new namespace reaches more of the kernel. clone3 hides its flags: libc then falls back on clone.
        _Refusal("unshare setns bpf userfaultfd"),
        _Refusal("clone", 0, mask=_NEW_NAMESPACES, but=(0,)),
        _Refusal("clone3", code=errno.ENOSYS),
        _Refusal("open_by_handle_at"),  # opens files by number, past their folders
        _Refusal("inotify_add_watch fanotify_init"),  # tell the names in folders that cannot be listed
        _Refusal("ioctl", 1, only=_TERMINAL_INPUT + _FILE_FLAGS),
        _Refusal("setsid setpgid"),  # the parent ends a group: nothing may leave it
        _Refusal("chmod fchmod fchmodat fchmodat2 chown lchown fchown fchownat utime utimes futimesat utimensat"),
        _Refusal("setxattr lsetxattr fsetxattr setxattrat removexattr lremovexattr fremovexattr removexattrat"),
        _Refusal("file_setattr"),
    ]
    if truncation:
        cutting = os.O_ACCMODE | os.O_TRUNC  # a file opened for reading only is cut all the same
        refusals += [
            _Refusal("truncate"),
            _Refusal("open", 1, mask=cutting, only=(os.O_RDONLY | os.O_TRUNC,)),
            _Refusal("openat", 2, mask=cutting, only=(os.O_RDONLY | os.O_TRUNC,)),
            _Refusal("openat2", code=errno.ENOSYS),
        ]
    return refusals


_LOAD, _AND, _IF_EQUAL, _IF_AT_LEAST, _RETURN = 0x20, 0x54, 0x15, 0x35, 0x06
_ALLOW, _FAIL = 0x7FFF0000, 0x00050000
_X32 = 0x40000000


def _program(refusals: Sequence[_Refusal], machine: str) -> list[tuple[int, int, int, int]]:
    """The filter for Linux's classic BPF: (code, jump if true, jump if false, value), jumps relative to the next."""
    column, name = _MACHINES[machine]
    refuse = (_RETURN, 0, 0, _FAIL | errno.EPERM)
    number = (_LOAD, 0, 0, 0)
    program = [(_LOAD, 0, 0, 4), (_IF_EQUAL, 1, 0, name), refuse, number]  # 32-bit calls have other numbers
    if machine == "x86_64":
        program += [(_IF_AT_LEAST, 0, 1, _X32), refuse]
    for refusal in refusals:
        for call in refusal.calls.split():
            which = _CALLS[call][column]
            if which is None:
                continue
            fail = (_RETURN, 0, 0, _FAIL | refusal.code)
            if refusal.argument is None:
                program += [(_IF_EQUAL, 0, 1, which), fail]
                continue
            values = refusal.only or refusal.but
            # Behind the comparisons: [jump to fail or past it], fail, the number again for the next.
            tests = [(_IF_EQUAL, len(values) - i - 1 + (not refusal.only), 0, v) for i, v in enumerate(values[:-1])]
            last = (_IF_EQUAL, 0, 1, values[-1]) if refusal.only else (_IF_EQUAL, 1, 0, values[-1])
            body = [(_LOAD, 0, 0, 16 + 8 * refusal.argument), (_AND, 0, 0, refusal.mask), *tests, last, fail, number]
            program += [(_IF_EQUAL, 0, len(body), which), *body]
    return [*program, (_RETURN, 0, 0, _ALLOW)]


class _Filter(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("program", ctypes.c_char_p)]


def _filter_calls(libc: ctypes.CDLL, refusals: Sequence[_Refusal]) -> str:
    """Why no filter holds; empty if it does, for threads that run already too."""
    machine = platform.machine()
    if machine not in _MACHINES or sys.maxsize < 2**32:
        return f"no seccomp filter is written for {machine}"
    program = _program(refusals, machine)
    code = b"".join(struct.pack("=HBBI", *step) for step in program)
    seccomp = _CALLS["seccomp"][_MACHINES[machine][0]]
    # 1: every thread; 4: no slowing of the processor's speculation, which old kernels add to a filter.
    if libc.syscall(seccomp, 1, 1 | 4, ctypes.byref(_Filter(len(program), code))):
        return f"seccomp is forbidden here: {os.strerror(ctypes.get_errno())}"
    opened = libc.socket(int(socket.AF_PACKET), int(socket.SOCK_RAW), 0)
    if opened >= 0 or ctypes.get_errno() != errno.EPERM:
        return "seccomp's filter was taken but does not hold"
    return ""


def _leave_network(libc: ctypes.CDLL) -> str:
    """Enter a network namespace without any device; why that failed, or empty."""
    user, net, uid, gid = 0x10000000, 0x40000000, os.getuid(), os.getgid()
    if not libc.unshare(net):  # root may
        return ""
    if libc.unshare(user | net):
        return f"namespaces are forbidden: {os.strerror(ctypes.get_errno())}"
    for name, line in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        try:
            Path("/proc/self", name).write_text(line)
        except OSError:
            continue  # the files are the same user's all the same; only getuid() tells another number
    return ""


# Privileges, environment, refusals -----------------------------------------------------------------------------------


def _drop_privileges(libc: ctypes.CDLL) -> str:
    """Root keeps the right to read and write files of others, which Landlock rules over, and loses all else."""
    kept = 0b110
    version = struct.pack("=Ii", 0x20080522, 0)
    have = ctypes.create_string_buffer(24)
    if libc.capget(version, have):
        return f"capabilities cannot be read: {os.strerror(ctypes.get_errno())}"
    permitted = struct.unpack("=6I", have.raw)[1] & kept
    if libc.capset(version, struct.pack("=6I", permitted, permitted, 0, 0, 0, 0)):
        return f"capabilities cannot be given up: {os.strerror(ctypes.get_errno())}"
    return ""


_KEPT = re.compile(
    r"PATH|LANG|LANGUAGE|TZ|TERM|COLUMNS|LINES|NO_COLOR|USER|LOGNAME|VIRTUAL_ENV|CONDA_PREFIX|LD_LIBRARY_PATH|LD_PRELOAD"
    r"|(ASSAY_|LC_|PYTHON|TORCH_|PYTORCH_|CUDA_|CUBLAS_|CUDNN_|NVIDIA_|HIP_|HSA_|OMP_|GOMP_|KMP_|MKL_|OPENBLAS_).*"
    r"|DYLD_LIBRARY_PATH|SYSTEMROOT"
)
_SECRET = re.compile("TOKEN|SECRET|PASS|KEY|CREDENTIAL|AUTH")


def scrubbed(environ: Mapping[str, str], *, home: Path) -> dict[str, str]:
    """The environment of a confined child: how to compute and where to find packages, and nobody's secrets.

    Caches, settings and temporary files go into `home`, which `confine` must let it write.
    """
    kept = {name: value for name, value in environ.items() if _KEPT.fullmatch(name) and not _SECRET.search(name)}
    if site.ENABLE_USER_SITE:
        kept.setdefault("PYTHONUSERBASE", site.getuserbase())  # packages of `pip install --user` hang on HOME
    kept.setdefault("LOGNAME", "assay")  # else Python looks it up in /etc/passwd
    private = dict.fromkeys(("HOME", "USERPROFILE", "TMPDIR", "TEMP", "TMP"), str(home))
    return kept | private | _CALM


_CALM = {
    "JOBLIB_MULTIPROCESSING": "0",  # its processes need /dev/shm; without, it warns and works in this one as well
    "DNNL_JIT_PROFILE": "0",  # oneDNN tells a profiler of its code, in a file in /tmp
    "ORT_DISABLE_TELEMETRY": "1",  # onnxruntime sends events to its maker unless told not to
}


def refused(error: BaseException) -> str | None:
    """One sentence if this error of a confined process, or one that led to it, was the sandbox's refusal, else None."""
    seen: BaseException | None = error
    for _ in range(20):
        if seen is None:
            return None
        if what := _refusal(seen):
            return f"The sandbox refused {what}; {LIFT}."
        seen = seen.__cause__ or seen.__context__
    return None


_ALLOWED = "a subject reads itself, its data and the interpreter, and writes into the run alone"


def _refusal(error: BaseException) -> str | None:
    if isinstance(error, socket.gaierror):
        return "the network (a name was to be looked up)"
    if isinstance(error, ModuleNotFoundError):
        hidden = _hidden_module(error.name or "")
        return f"the module {hidden}: {_ALLOWED}" if hidden else None
    if isinstance(error, OSError) and error.errno in (errno.EACCES, errno.EPERM, errno.EXDEV):
        names = [os.fsdecode(n) for n in (error.filename, error.filename2) if isinstance(n, str | bytes)]
        if names and not all(map(_system_allows, names)):
            return None
        if names:
            return f"{' to '.join(names)}: {_ALLOWED}"
        return f"{_line_of(error)} ({error.strerror or error})" if error.errno != errno.EXDEV else None
    first = (str(error).splitlines() or [""])[0]
    if isinstance(error, RuntimeError) and re.search("Permission denied|Operation not permitted", first):
        return f"what native code tried ({first})"
    return None


def _line_of(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    if any(Path(frame.filename).name in ("socket.py", "socketserver.py") for frame in frames) or isinstance(
        error, ConnectionError
    ):
        return "the network"
    return f"`{frames[-1].line}`" if frames and frames[-1].line else "a call"


def _system_allows(name: str) -> bool:
    """Would the file's mode allow it? Landlock does not show in access(2), so what is left is Landlock's refusal."""
    if os.path.lexists(name):
        return os.access(name, os.R_OK) or os.access(name, os.W_OK)
    folder = os.path.dirname(os.path.abspath(name))
    return os.access(folder, os.W_OK) or not os.path.isdir(folder)


def _hidden_module(name: str) -> str | None:
    """A module that is there but whose folder cannot be listed: an import then says it is not there at all."""
    for folder in sys.path:
        for path in (Path(folder, *name.split(".")), Path(folder, *name.split(".")).with_suffix(".py")):
            if not name or not path.exists():
                continue
            try:
                os.listdir(folder or ".")
            except PermissionError:
                return str(path)
            except OSError:
                continue
    return None
