"""A PostgreSQL of one's own in a temporary folder: a socket in that folder, no port, no password, gone at the end."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
import time
from pathlib import Path


class NotHere(Exception):
    """Why there is none."""


class Cluster:
    def __init__(self) -> None:
        self._bin = _programs()
        self._user = _somebody()
        self.folder = Path(tempfile.mkdtemp(prefix="assay-pg-"))
        if self._user is not None:
            shutil.chown(self.folder, self._user)
        self._process: subprocess.Popen[bytes] | None = None
        made = self._run(
            "initdb", "-D", self._data, "-U", "assay", "--auth=trust", "--no-sync", "-E", "UTF8", "--locale=C"
        )
        if made.returncode:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise NotHere(f"initdb: {made.stderr.decode()[-300:]}")
        self.start()

    @property
    def _data(self) -> str:
        return str(self.folder / "data")

    def _run(self, program: str, *words: str) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run([self._bin / program, *words], capture_output=True, user=self._user, cwd=self.folder)

    def start(self) -> None:
        options = ("-c", "listen_addresses=", "-c", "fsync=off", "-c", "max_connections=200")
        with open(self.folder / "log", "ab") as log:
            self._process = subprocess.Popen(
                [self._bin / "postgres", "-D", self._data, "-k", str(self.folder), *options],
                stdout=log, stderr=log, user=self._user, cwd=self.folder,
            )  # fmt: skip
        until = time.monotonic() + 30
        while self._run("psql", "-h", str(self.folder), "-U", "assay", "-c", "select 1", "postgres").returncode:
            if time.monotonic() > until or self._process.poll() is not None:
                raise NotHere(f"postgres does not start: {(self.folder / 'log').read_text()[-300:]}")
            time.sleep(0.05)

    def database(self, name: str, like: str = "template1") -> str:
        """The address of a fresh one."""
        drop, make = f"drop database if exists {name} with (force)", f"create database {name} template {like}"
        self._run("psql", "-h", str(self.folder), "-U", "assay", "-c", drop, "-c", make, "postgres")
        return f"postgresql://assay@/{name}?host={self.folder}"

    def stop(self) -> None:
        """As at a power cut: nobody is asked first."""
        if self._process is not None:
            self._process.send_signal(3)  # SIGQUIT: at once
            self._process.wait(30)
            self._process = None

    def remove(self) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)


def _programs() -> Path:
    versions = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda p: -float(p.parent.name))
    found = shutil.which("initdb")
    for folder in ([Path(found).parent] if found else []) + versions:
        if (folder / "postgres").exists() and (folder / "initdb").exists() and (folder / "psql").exists():
            return folder
    raise NotHere("PostgreSQL is not installed: apt-get install postgresql")


def _somebody() -> str | None:
    """PostgreSQL refuses to run as root: then it is somebody else."""
    if os.getuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name).pw_name
        except KeyError:
            continue
    raise NotHere("PostgreSQL does not run as root, and there is nobody else on this machine")
