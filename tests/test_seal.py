"""A seal: accepted by the tools whose formats it borrows, and broken at each of its links."""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import json
import os
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch import nn

pytest.importorskip("cryptography", reason="seals need cryptography")

from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from assay import AssayError, Subject, audit
from assay.jobs.seal import SEAL, check, content, seal
from assay.store import envelope
from assay.store.envelope import NotSigned

if TYPE_CHECKING:
    from conftest import Command

ROOT = Path(__file__).parents[1]
PEM, PKCS8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
SPKI, OPEN = serialization.PublicFormat.SubjectPublicKeyInfo, serialization.NoEncryption()


def write_pair(folder: Path, key: Any, name: str = "key", lock: Any = OPEN) -> None:
    (folder / f"{name}.pem").write_bytes(key.private_bytes(PEM, PKCS8, lock))
    (folder / f"{name}.pub").write_bytes(key.public_key().public_bytes(PEM, SPKI))


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, its model, its data and two pairs of keys, in one folder."""
    folder = tmp_path_factory.mktemp("audited")
    rng = np.random.default_rng(0)
    x = rng.random((90, 4), dtype=np.float32)
    y = (x[:, 0] > 0.5).astype(np.int64)
    model = nn.Linear(4, 2)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[-9.0, 0, 0, 0], [9.0, 0, 0, 0]]))
        model.bias.copy_(torch.tensor([5.0, -5.0]))  # it is wrong on some
    subject = Subject.classifier(model, {"train": (x[:30], y[:30]), "test": (x[30:], y[30:])}, name="step")
    done = audit(subject, probes=["accuracy"], out=folder / "runs")
    assert done.folder is not None
    done.folder.rename(folder / "run")
    (folder / "model/parts").mkdir(parents=True)
    (folder / "model/net.safetensors").write_bytes(rng.bytes(5000))
    (folder / "model/parts/käse.json").write_text("{}")
    (folder / "model/.gitattributes").write_text("not a part of it")
    np.savez(folder / "data.npz", x=x, y=y)
    write_pair(folder, ec.generate_private_key(ec.SECP256R1()))
    write_pair(folder, ec.generate_private_key(ec.SECP256R1()), "stranger")
    return folder


@pytest.fixture
def place(audited: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(audited, tmp_path / "place"))


@pytest.fixture(scope="module")
def once_sealed(audited: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("cyclonedx", reason="sealing needs cyclonedx-python-lib")
    folder = Path(shutil.copytree(audited, tmp_path_factory.mktemp("sealed") / "place"))
    seal(folder / "run", folder / "key.pem", model=folder / "model", data=folder / "data.npz")
    return folder


@pytest.fixture
def sealed(once_sealed: Path, tmp_path: Path) -> Path:
    """The same folder with run, model and data sealed."""
    return Path(shutil.copytree(once_sealed, tmp_path / "place"))


def judge(folder: Path, **given: Path) -> tuple[str, ...]:
    """The broken links of the sealed folder."""
    parts = {"model": folder / "model", "data": folder / "data.npz", **given}
    return check(folder / "run", folder / "key.pub", **parts).broken


def statement(bundle: Path) -> dict[str, Any]:
    found = json.loads(base64.b64decode(json.loads(bundle.read_bytes())["dsseEnvelope"]["payload"]))
    assert isinstance(found, dict)
    return found


def sign_again(bundle: Path, key: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """What somebody with the private key can do: sign another statement."""
    said = statement(bundle)
    change(said)
    bundle.write_bytes(envelope.signed(said, envelope.private_key(key)))


def edit_bundle(bundle: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """What anybody can do."""
    found = json.loads(bundle.read_bytes())
    change(found)
    bundle.write_text(json.dumps(found))


# What a seal is.


def test_a_seal_vouches_for_every_file_of_run_model_and_data(sealed: Path) -> None:
    done = check(sealed / "run", sealed / "key.pub", model=sealed / "model", data=sealed / "data.npz")
    assert done.broken == ()
    assert done.unseen == ()
    said = statement(sealed / "run/seal/run.sigstore.json")
    subjects = {s["name"]: s["digest"]["sha256"] for s in said["subject"]}
    own = {f"run/{p.relative_to(sealed / 'run').as_posix()}": p for p in (sealed / "run").rglob("*") if p.is_file()}
    del own["run/seal/run.sigstore.json"]  # nothing holds its own digest
    files = own | {
        "model/net.safetensors": sealed / "model/net.safetensors",
        "model/parts/käse.json": sealed / "model/parts/käse.json",
        "data/data.npz": sealed / "data.npz",
    }
    assert subjects == {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in files.items()}
    assert {"run/audit.json", "run/report.html", "run/seal/bom.cdx.json", "run/seal/model.sig"} <= set(subjects)
    stored = json.loads((sealed / "run/audit.json").read_text())
    assert said["predicateType"] == SEAL
    assert said["predicate"]["run"]["fingerprint"] == stored["subject"]["fingerprint"]
    assert said["predicate"]["run"]["data"] == stored["subject"]["data"]
    assert set(stored["subject"]["data"]) == {"train", "test"}


def test_what_was_not_compared_is_said_and_nothing_compared_is_no_pass(sealed: Path) -> None:
    done = check(sealed / "run", sealed / "key.pub")
    assert (done.broken, done.unseen) == ((), ("model", "data"))
    alone = sealed / "elsewhere.json"
    shutil.copy(sealed / "run/seal/run.sigstore.json", alone)
    with pytest.raises(AssayError, match="nothing to compare it with; give --run or --model or --data"):
        check(alone, sealed / "key.pub")
    assert check(alone, sealed / "key.pub", run=sealed / "run").broken == ()
    assert check(alone, sealed / "key.pub", model=sealed / "model").unseen == ("run", "data")


def test_sealing_again_leaves_nothing_of_the_seal_before(sealed: Path) -> None:
    seal(sealed / "run", sealed / "key.pem")
    assert sorted(p.name for p in (sealed / "run/seal").iterdir()) == ["bom.cdx.json", "run.sigstore.json"]
    assert check(sealed / "run", sealed / "key.pub").broken == ()
    with pytest.raises(AssayError, match="seals no model; leave --model out, or seal again with it"):
        check(sealed / "run", sealed / "key.pub", model=sealed / "model")


def test_a_single_file_may_be_renamed_and_files_of_a_folder_may_not(sealed: Path) -> None:
    (sealed / "data.npz").rename(sealed / "renamed.npz")
    assert judge(sealed, data=sealed / "renamed.npz") == ()
    (sealed / "model/net.safetensors").rename(sealed / "model/other.safetensors")
    assert judge(sealed, data=sealed / "renamed.npz") == (
        "model/net.safetensors is sealed, and gone",
        "model/other.safetensors is there, and not in the seal",
    )


def test_what_is_being_written_into_a_run_is_not_taken_for_a_part_of_it(sealed: Path) -> None:
    (sealed / "run/.audit.json.0123456789abcdef.part").write_text("half")
    assert judge(sealed) == ()


@pytest.mark.parametrize("curve", [ec.SECP256R1(), ec.SECP384R1(), ec.SECP521R1()], ids=lambda c: c.name)
@pytest.mark.parametrize("what", ["model", "data.npz"])
def test_model_signing_accepts_the_models_part(place: Path, what: str, curve: ec.EllipticCurve) -> None:
    """Parity with the reference implementation, on a folder and on a single file, for every curve that it takes."""
    pytest.importorskip("cyclonedx")
    verifying = _model_signing().verifying
    write_pair(place, ec.generate_private_key(curve), "curve")
    seal(place / "run", place / "curve.pem", model=place / what)
    verifier = verifying.Config().use_elliptic_key_verifier(public_key=place / "curve.pub")
    verifier.verify(place / what, place / "run/seal/model.sig")
    assert check(place / "run", place / "curve.pub", model=place / what).broken == ()
    changed = place / "model/net.safetensors" if what == "model" else place / what
    changed.write_bytes(b"other")
    with pytest.raises(ValueError, match="mismatch"):
        verifier.verify(place / what, place / "run/seal/model.sig")


@pytest.mark.parametrize("what", ["model", "data.npz"])
def test_what_model_signing_signed_is_accepted_here(place: Path, what: str) -> None:
    signing = _model_signing().signing
    signing.Config().use_elliptic_key_signer(private_key=place / "key.pem").sign(place / what, place / "their.sig")
    done = check(place / "their.sig", place / "key.pub", model=place / what)
    assert (done.broken, done.unseen) == ((), ())
    assert content(place / what).root == statement(place / "their.sig")["subject"][0]["digest"]["sha256"]
    (place / "model/net.safetensors" if what == "model" else place / what).write_bytes(b"other")
    (broken,) = check(place / "their.sig", place / "key.pub", model=place / what).broken
    assert "is not what was sealed" in broken


def test_shards_are_left_to_model_signing(place: Path) -> None:
    their = _model_signing()
    how = their.hashing.Config().use_shard_serialization(shard_size=1000)
    config = their.signing.Config().use_elliptic_key_signer(private_key=place / "key.pem").set_hashing_config(how)
    config.sign(place / "model", place / "their.sig")
    with pytest.raises(AssayError, match="hashed the model by shards with .*use: model_signing verify key"):
        check(place / "their.sig", place / "key.pub", model=place / "model")


def _model_signing() -> Any:
    pytest.importorskip("OpenSSL", reason="model-signing imports pyOpenSSL, which it does not ask for")
    return pytest.importorskip("model_signing")


def test_another_reader_of_dsse_accepts_the_envelope(sealed: Path) -> None:
    dsse = pytest.importorskip("securesystemslib.dsse")
    signer = pytest.importorskip("securesystemslib.signer")
    stored = json.loads((sealed / "run/seal/run.sigstore.json").read_bytes())["dsseEnvelope"]
    read = dsse.Envelope.from_dict(stored)
    for name, held in (("key", True), ("stranger", False)):
        public = serialization.load_pem_public_key((sealed / f"{name}.pub").read_bytes())
        key = signer.SSlibKey.from_crypto(public)
        key.keyid = ""  # as in the envelope: it takes no key without a name
        if held:
            assert read.verify([key], 1)
        else:
            with pytest.raises(Exception, match="Accepted signatures do not match threshold"):
                read.verify([key], 1)


def test_the_bill_of_materials_is_cyclonedx(sealed: Path) -> None:
    validation = pytest.importorskip("cyclonedx.validation.json")
    pytest.importorskip("jsonschema", reason="the library's validation needs jsonschema")
    from cyclonedx.schema import SchemaVersion

    text = (sealed / "run/seal/bom.cdx.json").read_text()
    strict = validation.JsonStrictValidator(SchemaVersion.V1_6)
    assert strict.validate_str(text) is None
    assert strict.validate_str(text.replace("modelCard", "modelCart")) is not None  # it does look there


def test_the_bill_names_model_data_and_packages_with_the_numbers(sealed: Path) -> None:
    bill = json.loads((sealed / "run/seal/bom.cdx.json").read_text())
    stored = json.loads((sealed / "run/audit.json").read_text())
    model = bill["metadata"]["component"]
    assert (model["type"], model["name"]) == ("machine-learning-model", "step")
    known = {p["name"]: p["value"] for p in model["properties"]}
    assert known["assay:fingerprint"] == stored["subject"]["fingerprint"]
    assert known["assay:sha256_of_digests"] == content(sealed / "model").root
    parts = {c["name"]: c for c in bill["components"]}
    assert parts["torch"]["purl"].startswith("pkg:pypi/torch@2.")
    assert {parts[name]["type"] for name in ("train", "test", "data.npz")} == {"data"}
    (digest,) = parts["data.npz"]["hashes"]
    assert digest == {"alg": "SHA-256", "content": hashlib.sha256((sealed / "data.npz").read_bytes()).hexdigest()}
    refs = {c["bom-ref"] for c in bill["components"]}
    assert {d["ref"] for d in model["modelCard"]["modelParameters"]["datasets"]} <= refs
    measured = [m for row in stored["rows"] for m in row["measures"] if m["value"] is not None]
    metrics = model["modelCard"]["quantitativeAnalysis"]["performanceMetrics"]
    assert [float(m["value"]) for m in metrics] == pytest.approx([m["value"] for m in measured], rel=1e-5)


def test_the_page_works_as_printed(sealed: Path, assay: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every line of docs/seal.md that is typed into a shell, in its order; pip and cosign are not ours to run."""
    for tool in ("openssl", "jq", "sha256sum"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed")
    page = (ROOT / "docs/seal.md").read_text()
    lines = [line[2:] for block in re.findall(r"```console\n(.*?)```", page, re.S) for line in block.splitlines()]
    monkeypatch.chdir(sealed)
    monkeypatch.setenv("ASSAY_KEY_PASSPHRASE", "wind")
    said = ""
    for line in lines:
        tool = line.split()[0]
        if tool == "assay":
            ended = assay(*line.split()[1:])
            assert ended.status == 0, f"{line}\n{ended}"
        elif tool == "model_signing" and _found("OpenSSL", "model_signing"):
            subprocess.run([sys.executable, "-m", *line.split()], check=True)
        elif tool not in ("pip", "cosign", "model_signing"):
            done = subprocess.run(["sh", "-c", line], capture_output=True, text=True)
            assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
            said += done.stdout
    assert said.count("Verified OK") == 1
    assert envelope.private_key(Path("my.pem")).key_size == envelope.public_key(Path("my.pub")).key_size == 256
    Path("run/report.html").write_text("forged")
    last = subprocess.run(["sh", "-c", lines[-1]], capture_output=True, text=True)
    assert last.returncode == 1
    assert "report.html" in last.stdout


def _found(*modules: str) -> bool:
    return all(importlib.util.find_spec(module) is not None for module in modules)


# Its links, each broken once.


def _relabel(folder: Path) -> None:
    stored = json.loads((folder / "run/audit.json").read_text())
    stored["status"] = 0 if stored["status"] else 1
    (folder / "run/audit.json").write_text(json.dumps(stored))


def _link(folder: Path) -> None:
    (folder / "run/card.md").rename(folder / "away.md")
    (folder / "run/card.md").symlink_to("../away.md")


def _pipe(folder: Path) -> None:
    (folder / "run/card.md").unlink()
    os.mkfifo(folder / "run/card.md")


BROKEN: dict[str, tuple[Callable[[Path], Any], str]] = {
    "an edited verdict": (_relabel, r"run/audit\.json is not what was sealed: SHA-256 \w{16}, sealed \w{16}"),
    "an audit that is no JSON": (lambda f: (f / "run/audit.json").write_text("{"), r"run/audit\.json is not what"),
    "an edited finding": (
        lambda f: (f / "run/findings/accuracy.json").write_text("{}"),
        r"run/findings/accuracy\.json is not what was sealed",
    ),
    "a page that says something else": (
        lambda f: (f / "run/report.html").write_text("fine"),
        r"run/report\.html is not",
    ),
    "samples that are gone": (
        lambda f: (f / "run/samples/accuracy.parquet").unlink(),
        r"run/samples/accuracy\.parquet is sealed, and gone",
    ),
    "a file that came later": (
        lambda f: (f / "run/note.txt").write_text("x"),
        r"run/note\.txt is there, and not in the",
    ),
    "a file beside the seal": (
        lambda f: (f / "run/seal/x").write_text("x"),
        r"run/seal/x is there, and not in the seal",
    ),
    "another bill": (lambda f: (f / "run/seal/bom.cdx.json").write_text("{}"), r"run/seal/bom\.cdx\.json is not what"),
    "a link in place of a file": (_link, r"run/card\.md is sealed as a file, and is now a link"),
    "a pipe in place of a file": (_pipe, r"run/card\.md is sealed as a file, and is now no plain file"),
    "another model": (
        lambda f: (f / "model/net.safetensors").write_bytes(b"x"),
        r"model/net\.safetensors is not what was sealed",
    ),
    "a part of the model more": (lambda f: (f / "model/x").write_bytes(b""), r"model/x is there, and not in the seal"),
    "other data": (lambda f: (f / "data.npz").write_bytes(b"x"), r"data/data\.npz is not what was sealed"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_each_broken_link_is_named(sealed: Path, what: str) -> None:
    breaks, says = BROKEN[what]
    breaks(sealed)
    (broken,) = judge(sealed)
    assert re.match(says, broken), broken


def test_a_run_audited_again_has_a_stale_seal(sealed: Path) -> None:
    path = sealed / "run/audit.json"
    path.write_text(path.read_text().replace('"when": "20', '"when": "21'))
    broken = judge(sealed)
    assert re.match(r"the run was audited again \(21.*\): sealed was its audit of 20.*; seal it again", broken[0])
    assert broken[1].startswith("run/audit.json is not what was sealed")
    seal(sealed / "run", sealed / "key.pem", model=sealed / "model", data=sealed / "data.npz")
    assert judge(sealed) == ()


def test_words_of_a_seal_that_its_run_does_not_say(sealed: Path) -> None:
    """The signer himself cannot praise in the predicate what audit.json does not."""
    sign_again(
        sealed / "run/seal/run.sigstore.json", sealed / "key.pem", lambda s: s["predicate"]["run"].update(status=7)
    )
    assert judge(sealed) == ("the seal says otherwise than audit.json of: status",)


def _payload(change: Callable[[str], str]) -> Callable[[dict[str, Any]], None]:
    def changed(bundle: dict[str, Any]) -> None:
        old = base64.b64decode(bundle["dsseEnvelope"]["payload"]).decode()
        assert change(old) != old
        bundle["dsseEnvelope"]["payload"] = base64.b64encode(change(old).encode()).decode()

    return changed


ALTERED: dict[str, Callable[[dict[str, Any]], Any]] = {
    "a digest": _payload(lambda s: re.sub(r'"sha256": "\w{8}', '"sha256": "00000000', s, count=1)),
    "a space": _payload(lambda s: s + " "),
    "the type of the payload": lambda b: b["dsseEnvelope"].update(payloadType="text/plain"),
    "the signature": lambda b: b["dsseEnvelope"]["signatures"][0].update(sig=base64.b64encode(b"0" * 70).decode()),
    "no signature": lambda b: b["dsseEnvelope"]["signatures"][0].update(sig=""),
}


@pytest.mark.parametrize("what", ALTERED)
def test_an_altered_envelope_is_not_signed(sealed: Path, what: str) -> None:
    edit_bundle(sealed / "run/seal/run.sigstore.json", ALTERED[what])
    (broken,) = judge(sealed)
    assert broken.startswith("signature: the signature does not fit: its statement was altered, or another key signed")


def test_a_strangers_signature_is_told_with_both_keys(sealed: Path) -> None:
    bundle = sealed / "run/seal/run.sigstore.json"
    mine = hashlib.sha256((sealed / "key.pub").read_bytes()).hexdigest()[:16]
    other = hashlib.sha256((sealed / "stranger.pub").read_bytes()).hexdigest()[:16]
    sign_again(bundle, sealed / "stranger.pem", lambda s: None)
    (broken,) = judge(sealed)
    assert re.match(rf"signature: it names {other} as the key .* the key given is {mine}: a stranger's", broken)
    for said in (mine, None):  # a stranger who does not say so
        edit_bundle(bundle, lambda b, said=said: b["verificationMaterial"]["publicKey"].update(hint=said))
        assert "signature: " in judge(sealed)[0]


def test_no_flipped_bit_of_a_bundle_changes_what_is_believed(sealed: Path) -> None:
    """Signed or not, each byte: the statement stays as it was, or is refused."""
    bundle = sealed / "run/seal/run.sigstore.json"
    public, before, rng = envelope.public_key(sealed / "key.pub"), bundle.read_bytes(), random.Random(0)
    whole, refused = envelope.opened(bundle, public), 0
    for _ in range(150):
        at, bit = rng.randrange(len(before)), 1 << rng.randrange(8)
        bundle.write_bytes(before[:at] + bytes([before[at] ^ bit]) + before[at + 1 :])
        try:
            assert envelope.opened(bundle, public) == whole
        except AssayError:
            refused += 1
    assert refused > 125


# Bad input: one line, what and how to mend it.


def _keys() -> dict[str, bytes]:
    def secret(key: Any, form: Any = PKCS8, lock: Any = OPEN) -> bytes:
        return bytes(key.private_bytes(PEM, form, lock))

    p256 = ec.generate_private_key(ec.SECP256R1())
    return {
        "text": b"not a key\n",
        "empty": b"",
        "noise": bytes(range(256)) * 8,
        "torn": secret(p256)[:90] + b"\n-----END PRIVATE KEY-----\n",
        "public": p256.public_key().public_bytes(PEM, SPKI),
        "private": secret(p256),
        "large": b"-----BEGIN PRIVATE KEY-----\n" + b"A" * 100_000,
        "rsa": secret(rsa.generate_private_key(65537, 1024)),
        "ed25519": secret(ed25519.Ed25519PrivateKey.generate()),
        "k1": secret(ec.generate_private_key(ec.SECP256K1())),
        "k1-public": ec.generate_private_key(ec.SECP256K1()).public_key().public_bytes(PEM, SPKI),
        "torn-public": b"-----BEGIN PUBLIC KEY-----\nMFkw\n-----END PUBLIC KEY-----\n",
        "certificate": b"-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n",
        "cosign": b"-----BEGIN ENCRYPTED COSIGN PRIVATE KEY-----\neyJr\n-----END ENCRYPTED COSIGN PRIVATE KEY-----\n",
        "locked": secret(p256, lock=serialization.BestAvailableEncryption(b"wind")),
        "locked-of-old": secret(
            p256, serialization.PrivateFormat.TraditionalOpenSSL, serialization.BestAvailableEncryption(b"wind")
        ),
    }


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("keys")
    for name, key in _keys().items():
        (folder / name).write_bytes(key)
    (folder / "folder").mkdir()
    os.mkfifo(folder / "pipe")
    return folder


GENPKEY = "openssl genpkey -algorithm EC"


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("nowhere", r"Cannot read '.*nowhere': No such file or directory; make a key with: openssl genpkey"),
        ("folder", r"Cannot read '.*folder': Is a directory; make a key with"),
        ("pipe", r"'.*pipe' is no plain file; make a key with"),
        ("text", r"'.*text' is no key in PEM form; make a key with: openssl genpkey"),
        ("empty", r"is no key in PEM form"),
        ("noise", r"is no key in PEM form"),
        ("large", r"has more than 65,536 bytes, the most that is read of it"),
        ("torn", r"'.*torn' is no private key that can be read; make one with: openssl genpkey"),
        ("public", r"'.*public' holds a public key; sealing needs the private key that belongs to it"),
        ("certificate", r"holds a certificate; sealing needs the private key"),
        (
            "rsa",
            r"The key '.*rsa' is of the kind RSA with 1024 bits; .* ECDSA on P-256, P-384 or P-521: openssl genpkey",
        ),
        ("ed25519", r"is of the kind Ed25519; OpenSSF Model Signing takes ECDSA"),
        ("k1", r"is on the curve secp256k1; OpenSSF Model Signing takes"),
        ("locked", r"is encrypted; put its passphrase into ASSAY_KEY_PASSPHRASE"),
        ("locked-of-old", r"is encrypted; put its passphrase into ASSAY_KEY_PASSPHRASE"),
        ("cosign", r"is no private key that can be read; make one with"),
    ],
)
def test_a_key_that_cannot_seal(
    audited: Path, keys: Path, name: str, says: str, assay: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(envelope.PASSPHRASE, raising=False)
    ended = assay("seal", str(audited / "run"), "--key", str(keys / name))
    assert (ended.status, ended.out) == (2, "")
    assert ended.err.count("\n") == 1
    assert re.match(f"assay: .*{says}", ended.err), ended.err
    assert not (audited / "run/seal").exists()


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("nowhere", r"Cannot read '.*nowhere': No such file or directory; write the public key of a private one with"),
        ("text", r"is no key in PEM form; write the public key of a private one with: openssl pkey"),
        ("private", r"holds a private key, which only its owner should have; check with the public one: openssl pkey"),
        ("locked", r"holds a private key, which"),
        ("certificate", r"holds a certificate; take its key out: openssl x509"),
        ("torn-public", r"is no public key that can be read; write one with: openssl pkey"),
        ("k1-public", r"is on the curve secp256k1; OpenSSF Model Signing takes ECDSA"),
    ],
)
def test_a_key_that_cannot_check(audited: Path, keys: Path, name: str, says: str, assay: Command) -> None:
    ended = assay("seal", "--check", str(audited / "run"), "--key", str(keys / name))
    assert (ended.status, ended.out) == (2, "")
    assert ended.err.count("\n") == 1
    assert re.match(f"assay: .*{says}", ended.err), ended.err


@pytest.mark.parametrize("name", ["locked", "locked-of-old"])
def test_a_passphrase_opens_an_encrypted_key_and_a_wrong_one_does_not(
    keys: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(envelope.PASSPHRASE, "wind")
    held = envelope.hint(envelope.private_key(keys / name).public_key())
    assert held == hashlib.sha256((keys / "public").read_bytes()).hexdigest()
    assert envelope.private_key(keys / "private")  # which has none
    for wrong in ("Wind", "w" * 300, "wind\n"):
        monkeypatch.setenv(envelope.PASSPHRASE, wrong)
        with pytest.raises(AssayError, match="does not open with this passphrase; correct ASSAY_KEY_PASSPHRASE"):
            envelope.private_key(keys / name)
    monkeypatch.delenv(envelope.PASSPHRASE)
    assert envelope.hint(envelope.private_key(keys / name, lambda: "wind").public_key()) == held


def test_a_passphrase_is_asked_for_at_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    from assay.cli import seal as command

    asked: list[dict[str, Any]] = []
    monkeypatch.setattr(command.typer, "prompt", lambda text, **how: asked.append(how) or "wind")
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: False))
    assert command.passphrase() is None
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: True))
    assert command.passphrase() == "wind"
    assert asked == [{"hide_input": True, "err": True}]


def _foreign(folder: Path, payload: bytes, kind: str = envelope.PAYLOAD) -> Path:
    """A bundle by the right key of something that is no seal."""
    key = envelope.private_key(folder / "key.pem")
    encoded = b"DSSEv1 %d %s %d %s" % (len(kind), kind.encode(), len(payload), payload)
    signature = key.sign(encoded, ec.ECDSA(hashes.SHA256()))
    path = folder / "foreign.json"
    path.write_text(
        json.dumps(
            {
                "mediaType": envelope.MEDIA,
                "verificationMaterial": {"publicKey": {}},
                "dsseEnvelope": {
                    "payload": base64.b64encode(payload).decode(),
                    "payloadType": kind,
                    "signatures": [{"sig": base64.b64encode(signature).decode()}],
                },
            }
        )
    )
    return path


def _said(**more: Any) -> bytes:
    return json.dumps({"_type": envelope.STATEMENT, **more}).encode()


@pytest.mark.parametrize(
    ("payload", "kind", "says"),
    [
        (b"hello", "text/plain", "is signed, but holds 'text/plain' and no in-toto statement; give a seal"),
        (b"{", envelope.PAYLOAD, "is no JSON that can be read"),
        (b"[]", envelope.PAYLOAD, "it is a list and no object"),
        (b"\xff", envelope.PAYLOAD, "is no JSON that can be read"),
        (
            b'{"_type": "https://in-toto.io/Statement/v0.1"}',
            envelope.PAYLOAD,
            r"holds '.*v0\.1' and not .*/Statement/v1",
        ),
        (
            _said(predicateType="https://slsa.dev/provenance/v1"),
            envelope.PAYLOAD,
            r"says '.*slsa.*'; `assay seal --che",
        ),
        (_said(predicateType="urn:assay:seal:v2"), envelope.PAYLOAD, r"says 'urn:assay:seal:v2'; .*seal:v1"),
        (_said(predicateType=SEAL), envelope.PAYLOAD, "is signed, but not as .*seal:v1 is written"),
        (_said(predicateType=SEAL, predicate=3, subject=[]), envelope.PAYLOAD, "not as .* is written"),
        (
            _said(predicateType=SEAL, predicate={"run": 3, "sealed": ""}, subject=[]),
            envelope.PAYLOAD,
            "Error predicate",
        ),
        (_said(predicateType=SEAL, predicate={}, subject=[{"name": "../x", "digest": {}}]), envelope.PAYLOAD, "not as"),
        (
            _said(predicateType=SEAL, predicate={}, subject=[{"name": "run/a", "digest": {"sha256": "0"}}] * 2),
            envelope.PAYLOAD,
            r"not as .* is written \(ValueError subject 'run/a'\)",
        ),
    ],
)
def test_what_is_signed_but_no_seal(place: Path, payload: bytes, kind: str, says: str) -> None:
    with pytest.raises(AssayError, match=says) as told:
        check(_foreign(place, payload, kind), place / "key.pub", run=place / "run")
    assert not isinstance(told.value, NotSigned)


BUNDLES: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "is no JSON that can be read"),
    "a picture": (b"\x89PNG\r\n", "is no JSON that can be read"),
    "a list": (b"[]", "it is a list and no object"),
    "another object": (b"{}", "is no Sigstore bundle with a DSSE envelope and one signature"),
    "a deep one": (b'{"a":' * 200_000, "is no JSON that can be read"),
    "a long number": (b'{"a": ' + b"9" * 100_000 + b"}", "is no JSON that can be read"),
    "a name twice": (b'{"mediaType": "a", "mediaType": "b"}', "is no JSON that can be read: a name stands twice"),
    "a large one": (b"{" + b" " * envelope.BUNDLE_BYTES, "has more than 16,777,216 bytes, the most that is read"),
    "wrong kinds": (b'{"mediaType": 1, "verificationMaterial": [], "dsseEnvelope": ""}', "is no Sigstore bundle"),
}


@pytest.mark.parametrize("what", BUNDLES)
def test_what_is_no_bundle(place: Path, what: str, assay: Command) -> None:
    content_of, says = BUNDLES[what]
    (place / "bundle.json").write_bytes(content_of)
    ended = assay("seal", "--check", str(place / "bundle.json"), "--key", str(place / "key.pub"))
    assert (ended.status, ended.out) == (2, "")
    assert ended.err.count("\n") == 1
    assert re.search(says, ended.err), ended.err


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            lambda b: b.update(mediaType="application/vnd.dev.sigstore.bundle+json;version=0.1"),
            "is a bundle of the type",
        ),
        (lambda b: b["dsseEnvelope"].update(signatures=[]), "and one signature"),
        (lambda b: b["dsseEnvelope"]["signatures"].append({"sig": ""}), "and one signature"),
        (lambda b: b["dsseEnvelope"].update(payload="%%%"), "is no Sigstore bundle"),
        (lambda b: b["dsseEnvelope"]["signatures"][0].pop("sig"), "is no Sigstore bundle"),
        (lambda b: b["verificationMaterial"].update(publicKey=None), "is no Sigstore bundle"),
    ],
)
def test_a_bundle_of_another_make(sealed: Path, change: Callable[[dict[str, Any]], Any], says: str) -> None:
    edit_bundle(sealed / "run/seal/run.sigstore.json", change)
    with pytest.raises(AssayError, match=says):
        judge(sealed)


def _of_format(folder: Path, number: Any) -> None:
    path = folder / "run/audit.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": number}))


def _inside(folder: Path) -> None:
    (folder / "run").rename(folder / "model/run")


UNFIT: dict[str, tuple[Callable[[Path], Any], str]] = {
    "a run of another format": (
        lambda f: _of_format(f, 99),
        r"audit\.json has format 99, and this version of Assay reads format \d",
    ),
    "a run that did not end": (lambda f: (f / "run/audit.json").unlink(), "holds no finished audit"),
    "a model that is nowhere": (lambda f: shutil.rmtree(f / "model"), r"Cannot read '.*model': No such file"),
    "a model with a link": (
        lambda f: (f / "model/x").symlink_to("/etc/hostname"),
        "Cannot seal 'x' of the model: it is a link; put a plain file in its place",
    ),
    "a model with a pipe": (lambda f: os.mkfifo(f / "model/x"), "Cannot seal 'x' of the model: it is no plain file"),
    "a run with a link": (
        lambda f: (f / "run/x.html").symlink_to("/etc/hostname"),
        r"is not sealed, for its chain is broken: 'x\.html' is vouched for by nothing in this run; audit again",
    ),
    "a run with a link where its seal goes": (
        lambda f: [(f / "away").mkdir(), (f / "run/seal").symlink_to("../away")],
        r"is not sealed, for its chain is broken: 'seal' is vouched for by nothing|Cannot seal 'seal' of the run",
    ),
    "a run whose finding was edited": (
        lambda f: (f / "run/findings/accuracy.json").write_text("{}"),
        r"is not sealed, for its chain is broken: findings/accuracy\.json was changed after audit\.json was written",
    ),
    "a run whose samples are gone and whose page was edited": (
        lambda f: [(f / "run/samples/accuracy.parquet").unlink(), (f / "run/report.html").write_text("fine")],
        r"chain is broken: .* \(and 1 more\); audit again",
    ),
    "an empty model": (lambda f: [shutil.rmtree(f / "model"), (f / "model").mkdir()], "holds no file; give a file"),
}


@pytest.mark.parametrize("what", UNFIT)
def test_what_is_not_sealed(place: Path, what: str) -> None:
    pytest.importorskip("cyclonedx")
    spoil, says = UNFIT[what]
    spoil(place)
    with pytest.raises(AssayError, match=says):
        seal(place / "run", place / "key.pem", model=place / "model")
    assert not (place / "run/seal/run.sigstore.json").exists()


def test_a_seal_is_not_written_into_what_it_seals(place: Path) -> None:
    pytest.importorskip("cyclonedx")
    with pytest.raises(AssayError, match=r"lies inside --data '.*', which its own seal would change"):
        seal(place / "run", place / "key.pem", data=place)


def test_more_files_than_a_seal_takes(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("cyclonedx")
    monkeypatch.setattr("assay.jobs.seal.FILES", 20)
    for i in range(21):
        (place / f"model/{i}").touch()
    with pytest.raises(AssayError, match="has more than 20 files, the most that are sealed; pack many files into one"):
        seal(place / "run", place / "key.pem", data=place / "model")
    monkeypatch.setattr("assay.jobs.seal.FILES", 50)
    monkeypatch.setattr("assay.jobs.seal.BUNDLE_BYTES", 5000)
    with pytest.raises(AssayError, match=r"The seal would have [\d,]+ bytes, and 5,000 are read at most; pack many"):
        seal(place / "run", place / "key.pem", data=place / "model")


# The command.


def test_the_command_seals_and_judges(place: Path, assay: Command) -> None:
    pytest.importorskip("cyclonedx")
    run, model = str(place / "run"), str(place / "model")
    ended = assay("seal", run, "--key", str(place / "key.pem"), "--model", model)
    assert (ended.status, ended.last) == (0, f"{run}/seal/run.sigstore.json")
    assert "2 files of the model with the key " in ended.out
    ended = assay("seal", "--check", ended.last, "--key", str(place / "key.pub"))
    assert ended.status == 0
    assert "the model is sealed too, and was not compared: give --model" in ended.out
    assert ended.last.startswith("whole: the signature is of the key ")
    (place / "model/net.safetensors").write_bytes(b"x")
    ended = assay("seal", "--check", run, "--key", str(place / "key.pub"), "--model", model)
    assert ended.status == 1
    assert ended.out.startswith("broken: model/net.safetensors is not what was sealed")
    assert ended.last == "broken: 1 of its links"
    for i in range(30):
        (place / f"model/{i}").touch()
    ended = assay("seal", "--check", run, "--key", str(place / "key.pub"), "--model", model)
    assert ended.out.count("broken: model/") == 20
    assert "and 11 more" in ended.out
    ended = assay("seal", "--check", run, "--key", str(place / "stranger.pub"))
    assert ended.status == 1
    assert "a stranger's signature" in ended.out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["RUN"], "A seal needs --key; make one with: openssl genpkey"),
        (["--key", "key.pem"], "Say what to seal: assay seal RUN --key FILE"),
        (["RUN", "--key", "key.pem", "--run", "RUN"], "Say what to seal: .*; --run goes with --check"),
        (["RUN", "--check", "x", "--key", "key.pub"], "With --check, say --run 'RUN'"),
    ],
)
def test_words_that_do_not_go_together(words: list[str], says: str, assay: Command) -> None:
    ended = assay("seal", *words)
    assert (ended.status, ended.out) == (2, "")
    assert re.match(f"assay: {says}", ended.err), ended.err


@pytest.mark.parametrize(
    ("module", "package"), [("cryptography.exceptions", "cryptography"), ("cyclonedx.model", "cyclonedx-python-lib")]
)
def test_what_is_missing_is_named(place: Path, module: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(AssayError, match=rf"^A seal needs {package}: pip install 'assay\[seal\]'$"):
        seal(place / "run", place / "key.pem")


def test_checking_takes_cryptography_alone_and_the_command_line_not_even_that(sealed: Path) -> None:
    code = (
        "import sys, assay.cli; light = [m for m in ('cryptography', 'cyclonedx') if m in sys.modules]; "
        "sys.modules['cyclonedx'] = sys.modules['torch'] = sys.modules['numpy'] = None; "
        "from pathlib import Path; from assay.jobs.seal import check; f = Path(sys.argv[1]); "
        "print(light, check(f / 'run', f / 'key.pub', model=f / 'model', data=f / 'data.npz').broken)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(sealed)], capture_output=True, text=True)
    assert done.stdout.strip() == "[] ()", done.stderr
