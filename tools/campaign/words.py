"""Bad words: options that say what cannot be, keys that are none, seals with a broken link.

They run as the command line does, in a fork; what is refused here is refused before any model is opened.
"""

from __future__ import annotations

import base64
import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from campaign.case import FORK, Case, Undisturbed, command_here, copy_runs
from campaign.room import Room

OPTIONS: dict[str, str] = {
    "audit fashion-cnm": r"There is no subject 'fashion-cnm'; did you mean",
    "audit nowhere.py:build": r"There is no file 'nowhere\.py'",
    "audit nowhere.pt2 --data x": r"There is no file 'nowhere\.pt2'",
    "audit work": r"There is no",
    "audit .": r"'\.' is a folder",
    "audit digits-mlp --budget lavish": r"lavish",
    "audit digits-mlp --probe acuracy": r"There is no probe 'acuracy'",
    "audit digits-mlp --standards nowhere.toml": r"nowhere\.toml",
    "audit digits-mlp --standards .": r"",
    "audit digits-mlp --standards /dev/zero": r"",
    "audit digits-mlp --device tpu": r"There is no device 'tpu'",
    "audit digits-mlp --bounds 1 0": r"",
    "audit digits-mlp --bounds a b": r"is not a list of numbers",
    "audit digits-mlp --mean x": r"--mean 'x' is not a list of numbers",
    "audit digits-mlp --draws 0": r"--draws 0",
    "audit digits-mlp --size 8": r"--size 8",
    "audit digits-mlp --timeout 0": r"--timeout 0",
    "audit digits-mlp --timeout -1": r"--timeout -1",
    "audit digits-mlp --timeout nan": r"--timeout nan",
    "audit digits-mlp --memory 0": r"--memory 0",
    "audit digits-mlp --memory inf": r"--memory inf",
    "audit digits-mlp --out /dev/null/runs --probe accuracy": r"Cannot write",
    "ask nothing digits-mlp": r"There is no probe 'nothing'",
    "ask worst-case-accuracy digits-mlp --set radios=1": r"has no setting 'radios'",
    "ask worst-case-accuracy digits-mlp --set radius": r"is not NAME=VALUE",
    "ask worst-case-accuracy digits-mlp --set radius=wide": r"",
    "ask worst-case-accuracy digits-mlp --set radius=9**9**9": r"",
    "cure homeopathy digits-mlp": r"There is no remedy 'homeopathy'",
    "report nowhere": r"holds no finished audit",
    "report /dev/null": r"",
    "diff nowhere nowhere": r"holds no finished audit",
    "verify nowhere": r"",
    "verify nowhere --subject digits-mlp": r"",
    "explain digits-mlp --method magic": r"magic",
    "explain digits-mlp --units atoms": r"There are no units 'atoms'",
    "explain digits-mlp --target 3": r"--target",
    "rank nowhere": r"nowhere",
    "claims test nothing/at-all": r"nothing",
    "seal nowhere --key nokey": r"",
    "seal": r"A seal needs --key",
}

KEYS: dict[str, bytes] = {
    "empty": b"",
    "no-key": b"this is no key\n",
    "a-public-key-to-sign": b"PUBLIC",
    "binary": bytes(range(256)),
    "rsa": b"RSA",
    "ed25519": b"ED25519",
    "encrypted": b"ENCRYPTED",
    "cut-in-half": b"HALF",
    "a-gigabyte-in-words": b"-----BEGIN PRIVATE KEY-----\n" + b"A" * 2_000_000,
}


def cases(base: Undisturbed, seed: int) -> list[Case]:
    made = [
        Case("bad words", words.replace(" ", "_").replace("/", "|"), FORK, refused(words, says))
        for words, says in OPTIONS.items()
    ]
    try:
        import cryptography  # noqa: F401
        import cyclonedx  # noqa: F401
    except ImportError:
        return made
    for name in KEYS:
        made.append(Case("bad key", name, FORK, bad_key(base, name)))
    for name in BUNDLES:
        made.append(Case("bad seal", name, FORK, bad_seal(base, name, seed)))
    return made


def refused(words: str, says: str) -> Callable[[Room], None]:
    def act(room: Room) -> None:
        ended = room.run(command_here(*words.split()), limit=60, lawful=("work/ranker",))  # where `rank` writes
        room.one_line(ended, 2, says)
        room.look("kept", not list(room.runs.glob("*/findings/*")), "something was asked all the same")

    return act


def write_keys(folder: Path) -> None:
    """A key to seal with, its public half, and a stranger's."""
    from cryptography.hazmat.primitives import serialization as s
    from cryptography.hazmat.primitives.asymmetric import ec

    for name in ("key", "stranger"):
        key = ec.generate_private_key(ec.SECP256R1())
        pem = key.private_bytes(s.Encoding.PEM, s.PrivateFormat.PKCS8, s.NoEncryption())
        (folder / f"{name}.pem").write_bytes(pem)
        public = key.public_key().public_bytes(s.Encoding.PEM, s.PublicFormat.SubjectPublicKeyInfo)
        (folder / f"{name}.pub").write_bytes(public)


def write_bad_key(room: Room, name: str) -> Path:
    from cryptography.hazmat.primitives import serialization as s
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

    path, content = room.work / "bad.pem", KEYS[name]

    def private(key: Any, lock: Any = None) -> bytes:
        return bytes(key.private_bytes(s.Encoding.PEM, s.PrivateFormat.PKCS8, lock or s.NoEncryption()))

    whole = private(ec.generate_private_key(ec.SECP256R1()))
    made = {
        b"PUBLIC": lambda: (room.work / "key.pub").read_bytes(),
        b"RSA": lambda: private(rsa.generate_private_key(65537, 2048)),
        b"ED25519": lambda: private(ed25519.Ed25519PrivateKey.generate()),
        b"ENCRYPTED": lambda: private(
            ec.generate_private_key(ec.SECP256R1()), s.BestAvailableEncryption(b"not this one")
        ),
        b"HALF": lambda: whole[: len(whole) // 2],
    }
    path.write_bytes(made[content]() if content in made else content)
    return path


def bad_key(base: Undisturbed, name: str) -> Callable[[Room], None]:
    def act(room: Room) -> None:
        copy_runs(base.runs, room.runs)
        write_keys(room.work)
        write_bad_key(room, name)
        run = f"runs/{base.folder.name}"
        environment = {"ASSAY_KEY_PASSPHRASE": "wrong"} if name == "encrypted" else {}
        room.one_line(
            room.run(command_here("seal", run, "--key", "bad.pem"), environment=environment), 2, r"bad\.pem|key"
        )
        room.look("kept", not (room.runs / base.folder.name / "seal").exists(), "a seal was left all the same")
        room.run(command_here("seal", run, "--key", "key.pem"))
        told = room.run(command_here("seal", "--check", run, "--key", "bad.pem"))
        if name == "a-public-key-to-sign":  # the right one to check with
            room.look("status", told.status == 0, f"status {told.status} with the right key: {told.err}")
        else:
            room.one_line(told, 2, r"bad\.pem|key")

    return act


Break = Callable[[Room, Path, random.Random], None]


def _edit(change: Callable[[dict[str, Any]], None]) -> Break:
    def act(room: Room, bundle: Path, draw: random.Random) -> None:
        stored = json.loads(bundle.read_bytes())
        change(stored)
        bundle.write_text(json.dumps(stored))

    return act


def _payload(change: Callable[[dict[str, Any]], None]) -> Break:
    def inner(stored: dict[str, Any]) -> None:
        statement = json.loads(base64.b64decode(stored["dsseEnvelope"]["payload"]))
        change(statement)
        stored["dsseEnvelope"]["payload"] = base64.b64encode(json.dumps(statement).encode()).decode()

    return _edit(inner)


def _bytes(change: Callable[[bytes, random.Random], bytes]) -> Break:
    def act(room: Room, bundle: Path, draw: random.Random) -> None:
        bundle.write_bytes(change(bundle.read_bytes(), draw))

    return act


def _of_run(name: str, change: Callable[[Path], object]) -> Break:
    def act(room: Room, bundle: Path, draw: random.Random) -> None:
        change(bundle.parents[1] / name)

    return act


def _pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _endless(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


def _sealed_by_a_stranger(room: Room, bundle: Path, draw: random.Random) -> None:
    room.run(command_here("seal", str(bundle.parents[1].relative_to(room.work)), "--key", "stranger.pem"))


BROKEN, NONE = 1, 2
BUNDLES: dict[str, tuple[Break, int, str]] = {
    "empty": (_bytes(lambda b, d: b""), NONE, ""),
    "half": (_bytes(lambda b, d: b[: len(b) // 2]), NONE, ""),
    "no-json": (_bytes(lambda b, d: d.randbytes(3000)), NONE, ""),
    "a-list": (_bytes(lambda b, d: b"[]"), NONE, ""),
    "deep-json": (_bytes(lambda b, d: b"[" * 200_000), NONE, ""),
    "another-type": (_edit(lambda s: s.update(mediaType="application/zip")), NONE, "type"),
    "no-envelope": (_edit(lambda s: s.pop("dsseEnvelope")), NONE, ""),
    "no-signature": (_edit(lambda s: s["dsseEnvelope"].update(signatures=[])), NONE, ""),
    "two-signatures": (_edit(lambda s: s["dsseEnvelope"]["signatures"].append({"sig": "AAAA"})), NONE, ""),
    "signature-of-zeros": (_edit(lambda s: s["dsseEnvelope"]["signatures"][0].update(sig="AAAA")), BROKEN, "signature"),
    "signature-that-is-no-base64": (_edit(lambda s: s["dsseEnvelope"]["signatures"][0].update(sig="??")), NONE, ""),
    "statement-with-a-link-missing": (_payload(lambda s: s["subject"].pop()), BROKEN, "signature"),
    "statement-with-a-digest-changed": (
        _payload(lambda s: s["subject"][0]["digest"].update(sha256="0" * 64)), BROKEN, "signature",
    ),
    "statement-with-another-status": (_payload(lambda s: s["predicate"]["run"].update(status=0)), BROKEN, "signature"),
    "a-strangers-signature": (_sealed_by_a_stranger, BROKEN, "signature|key"),
    "finding-edited": (
        _of_run("findings/accuracy.json", lambda p: p.write_text(p.read_text().replace("0.9", "0.8"))), BROKEN,
        "findings",
    ),
    "samples-gone": (_of_run("samples/accuracy.parquet", lambda p: p.unlink()), BROKEN, "samples"),
    "a-file-more": (_of_run("findings/more.json", lambda p: p.write_text("{}")), BROKEN, "findings/more"),
    "a-file-that-is-a-link": (
        _of_run("card.md", _endless), BROKEN, "card",
    ),
    "a-file-that-is-a-pipe": (_of_run("junit.xml", _pipe), BROKEN, "junit"),
    "audit-of-another-format": (
        _of_run("audit.json", lambda p: p.write_text(json.dumps({**json.loads(p.read_text()), "format": 99}))), BROKEN,
        "audit",
    ),
    "the-bundle-is-a-pipe": (_of_run("seal/run.sigstore.json", _pipe), NONE, ""),
    "the-bundle-is-endless": (_of_run("seal/run.sigstore.json", _endless), NONE, ""),
}  # fmt: skip


def bad_seal(base: Undisturbed, name: str, seed: int) -> Callable[[Room], None]:
    def act(room: Room) -> None:
        copy_runs(base.runs, room.runs)
        write_keys(room.work)
        run = f"runs/{base.folder.name}"
        made = room.run(command_here("seal", run, "--key", "key.pem"))
        room.look("status", made.status == 0, f"it could not be sealed: {made.err}")
        good = room.run(command_here("seal", "--check", run, "--key", "key.pub"))
        room.look("status", good.status == 0, f"a good seal is not whole: {good.out} {good.err}")
        harm, status, says = BUNDLES[name]
        harm(room, room.runs / base.folder.name / "seal" / "run.sigstore.json", random.Random(seed))
        told = room.run(command_here("seal", "--check", run, "--key", "key.pub"), limit=30)
        if status == NONE:
            room.one_line(told, 2, says)
        else:
            import re

            room.look("status", told.status == status, f"status {told.status}, not {status}: {told.out} {told.err}")
            named = [line for line in told.out.splitlines() if line.startswith("broken: ")]
            room.look(
                "line", any(re.search(says, line) for line in named), f"it does not say {says!r}: {told.out[-300:]}"
            )
            room.quiet(told)

    return act
