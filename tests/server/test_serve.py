"""assay serve as a process: one port, an address that is told, workers that go with it, and no torch."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hired import eventually

pytest.importorskip("fastapi")

from assay.server import roll

if TYPE_CHECKING:
    from assay.server.book import Book


def test_it_serves_with_a_worker_and_without_torch_and_neither_outlives_the_other(sqlite: Book) -> None:
    words = [sys.executable, "-m", "assay", "serve", "--home", str(sqlite.home), "--port", "0", "--keep-free", "0"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        try:
            assert server.stdout is not None
            told = server.stdout.readline()
            assert told.startswith("The workbench is at http://127.0.0.1:")
            with urllib.request.urlopen(f"{told.split()[-1]}/healthz", timeout=20) as answer:
                assert answer.status == 200
            assert "libtorch" not in Path(f"/proc/{server.pid}/maps").read_text()
            eventually(lambda: len(roll.workers(sqlite)) == 1)
            (first,) = roll.workers(sqlite)
            os.kill(first.pid, signal.SIGKILL)  # another takes its place, and sees that this one is gone
            eventually(lambda: [worker.id != first.id for worker in roll.workers(sqlite)] == [True])
            (second,) = roll.workers(sqlite)
        finally:
            server.kill()
    eventually(lambda: roll.workers(sqlite) == [])
    eventually(lambda: not Path(f"/proc/{second.pid}").exists())


@pytest.mark.parametrize("behind_proxy", [False, True])
def test_where_a_request_comes_from_is_believed_of_a_proxy_alone(behind_proxy: bool) -> None:
    """Whoever sits on this machine, or tunnels to it, could have a new address for each guess of a password."""
    import threading

    import uvicorn

    from assay.cli.serve import _config

    async def app(scope: dict[str, Any], receive: Any, send: Any) -> None:
        body = f"{scope['client'][0]} {scope['scheme']}".encode()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": body})

    config = _config(app, behind_proxy)
    config.port, config.lifespan = 0, "off"
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    eventually(lambda: server.started)
    port = server.servers[0].sockets[0].getsockname()[1]
    headers = {"X-Forwarded-For": "6.6.6.6, 192.0.2.7", "X-Forwarded-Proto": "https"}
    asked = urllib.request.Request(f"http://127.0.0.1:{port}/", headers=headers)
    try:
        with urllib.request.urlopen(asked, timeout=20) as answer:
            # of several the last, which the proxy itself has seen; those before anyone can write
            assert answer.read().decode() == ("192.0.2.7 https" if behind_proxy else "127.0.0.1 http")
    finally:
        server.should_exit = True
        thread.join(10)


def refused(*words: str) -> str:
    from typer.testing import CliRunner

    from assay.cli import app

    done = CliRunner().invoke(app, ["serve", *words])
    assert done.exit_code == 2
    return done.output


def test_what_cannot_be_served_is_told_in_one_line(tmp_path: Path) -> None:
    home = ("--home", str(tmp_path / "w"))
    assert "can be reached by others; add --accounts" in refused(*home, "--host", "0.0.0.0")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert "choose another with --port" in refused(*home, "--port", str(taken.getsockname()[1]))
    (tmp_path / "file").write_text("")
    assert "choose another folder with --home" in refused("--home", str(tmp_path / "file" / "x"))
    said = refused(*home, "--queue", "postgresql://assay:secret@127.0.0.1:1/none")
    assert "The workbench's database cannot be used" in said
    assert "secret" not in said


def test_nothing_else_in_assay_knows_the_workbench() -> None:
    import assay

    root = Path(assay.__file__).parent
    theirs = {root / "cli" / "serve.py", root / "cli" / "worker.py", *(root / "server").rglob("*.py")}
    knows = [path for path in root.rglob("*.py") if path not in theirs and "assay.server" in path.read_text()]
    assert [str(path.relative_to(root)) for path in knows] == []
