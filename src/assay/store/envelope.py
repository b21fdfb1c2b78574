"""Signatures: an in-toto statement in a DSSE envelope in a Sigstore bundle, by a key of one's own and no network.

    bundle = {mediaType, verificationMaterial: {publicKey: {hint}}, dsseEnvelope: {payload, payloadType, signatures}}
    signed = "DSSEv1 " length(type) " " type " " length(payload) " " payload

The signature is ECDSA over `signed` with the hash of the curve's size; the hint is the SHA-256 of the public key's PEM.

Sources: DSSE 1.0 (secure-systems-lab/dsse, protocol.md); Sigstore bundle 0.3; OpenSSF Model Signing 1.0, sec. 4, method
`key`, whose three curves these are. Importing this needs no cryptography.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay.errors import AssayError, MissingExtra
from assay.store.files import read_json

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import (
        ECDSA,
        EllipticCurvePrivateKey,
        EllipticCurvePublicKey,
    )

MEDIA = "application/vnd.dev.sigstore.bundle.v0.3+json"
STATEMENT = "https://in-toto.io/Statement/v1"
PAYLOAD = "application/vnd.in-toto+json"
CURVES = ("secp256r1", "secp384r1", "secp521r1")
PASSPHRASE = "ASSAY_KEY_PASSPHRASE"
"""The environment variable that holds the passphrase of an encrypted key."""
KEY_BYTES = 64 * 2**10
BUNDLE_BYTES = 16 * 2**20
"""The most that is read of a bundle: the worst JSON of that size took 560 MiB of memory."""

NEW_KEY = "openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out key.pem"


class NotSigned(AssayError):
    """The bundle can be read, but the key did not sign what it holds."""


def private_key(path: Path, ask: Callable[[], str | None] = lambda: None) -> EllipticCurvePrivateKey:
    """The key to sign with; the passphrase of an encrypted one comes from the environment, else from `ask`."""
    _present()
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    content, labels = _pem(path, f"make a key with: {NEW_KEY}")
    if not any("PRIVATE KEY" in label for label in labels):
        raise AssayError(
            f"{str(path)!r} holds a {labels[0].lower()}; sealing needs the private key that belongs to it, such as "
            f"key.pem of: {NEW_KEY}"
        )
    passphrase = None
    if "ENCRYPTED PRIVATE KEY" in labels or b"Proc-Type: 4,ENCRYPTED" in content:
        passphrase = os.environ.get(PASSPHRASE) or ask()
        if not passphrase:
            raise AssayError(f"The key {str(path)!r} is encrypted; put its passphrase into {PASSPHRASE}.")
    try:
        key = serialization.load_pem_private_key(content, passphrase.encode() if passphrase else None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as e:
        if passphrase:
            raise AssayError(
                f"The key {str(path)!r} does not open with this passphrase; correct {PASSPHRASE} or what you type."
            ) from e
        raise AssayError(f"{str(path)!r} is no private key that can be read; make one with: {NEW_KEY}") from e
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.curve.name not in CURVES:
        raise _unfit(path, key)
    return key


def public_key(path: Path) -> EllipticCurvePublicKey:
    """The key to check with."""
    _present()
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    mend = "openssl pkey -in key.pem -pubout -out key.pub"
    content, labels = _pem(path, f"write the public key of a private one with: {mend}")
    if any("PRIVATE KEY" in label for label in labels):
        raise AssayError(
            f"{str(path)!r} holds a private key, which only its owner should have; check with the public one: {mend}"
        )
    if "CERTIFICATE" in labels:
        raise AssayError(
            f"{str(path)!r} holds a certificate; take its key out: openssl x509 -in cert.pem -pubkey -noout > key.pub"
        )
    try:
        key = serialization.load_pem_public_key(content)
    except (ValueError, TypeError, UnsupportedAlgorithm) as e:
        raise AssayError(f"{str(path)!r} is no public key that can be read; write one with: {mend}") from e
    if not isinstance(key, ec.EllipticCurvePublicKey) or key.curve.name not in CURVES:
        raise _unfit(path, key)
    return key


def hint(key: EllipticCurvePublicKey) -> str:
    """What names a public key in a bundle: the SHA-256 of its PEM."""
    from cryptography.hazmat.primitives import serialization

    pem = key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(pem).hexdigest()


def signed(statement: Mapping[str, Any], key: EllipticCurvePrivateKey) -> bytes:
    """The bundle of a statement, as the bytes of its file."""
    payload = json.dumps(statement, ensure_ascii=False, allow_nan=False, indent=1).encode()
    signature = key.sign(_encoded(PAYLOAD, payload), _algorithm(key.public_key()))
    bundle = {
        "mediaType": MEDIA,
        "verificationMaterial": {"publicKey": {"hint": hint(key.public_key())}, "tlogEntries": []},
        "dsseEnvelope": {
            "payload": base64.b64encode(payload).decode(),
            "payloadType": PAYLOAD,
            "signatures": [{"sig": base64.b64encode(signature).decode(), "keyid": ""}],
        },
    }
    return json.dumps(bundle, indent=1).encode()


def opened(path: Path, key: EllipticCurvePublicKey) -> dict[str, Any]:
    """The statement in a bundle, once its signature is this key's. Nothing in the payload is read before."""
    from cryptography.exceptions import InvalidSignature

    bundle = _parsed(_read(path, BUNDLE_BYTES, "give a bundle of `assay seal`"), f"{str(path)!r}")
    try:
        media, named = bundle["mediaType"], bundle["verificationMaterial"].get("publicKey", {}).get("hint")
        envelope = bundle["dsseEnvelope"]
        kind, payload = str(envelope["payloadType"]), base64.b64decode(envelope["payload"], validate=True)
        (only,) = envelope["signatures"]
        signature = base64.b64decode(only["sig"], validate=True)
    except (KeyError, TypeError, ValueError, AttributeError) as e:
        raise AssayError(
            f"{str(path)!r} is no Sigstore bundle with a DSSE envelope and one signature; give run.sigstore.json of "
            f"`assay seal`, or a model.sig."
        ) from e
    if media != MEDIA:
        raise AssayError(f"{str(path)!r} is a bundle of the type {media!r}; `assay seal` knows {MEDIA}.")
    if named not in (None, "", hint(key)):
        raise NotSigned(
            f"it names {str(named)[:16]} as the key that signed it, and the key given is {hint(key)[:16]}: a stranger's"
            f" signature, unless you check with the public key of whom you trust"
        )
    try:
        key.verify(signature, _encoded(kind, payload), _algorithm(key))
    except InvalidSignature:
        raise NotSigned(
            "the signature does not fit: its statement was altered, or another key signed it; ask for it again"
        ) from None
    if kind != PAYLOAD:
        raise AssayError(f"{str(path)!r} is signed, but holds {kind!r} and no in-toto statement; give a seal.")
    statement = _parsed(payload, f"The statement in {str(path)!r}")
    if statement.get("_type") != STATEMENT:
        raise AssayError(
            f"{str(path)!r} is signed, but holds {statement.get('_type')!r} and not {STATEMENT}; give a seal."
        )
    return statement


def _read(path: Path, limit: int, mend: str) -> bytes:
    """The content of a file that is a file, and small enough; a pipe is not waited for."""
    try:
        with open(os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)), "rb") as f:
            regular = stat.S_ISREG(os.fstat(f.fileno()).st_mode)
            content = f.read(limit + 1) if regular else b""
    except OSError as e:
        raise AssayError(f"Cannot read {str(path)!r}: {e.strerror}; {mend}") from e
    if not regular:
        raise AssayError(f"{str(path)!r} is no plain file; {mend}")
    if len(content) > limit:
        raise AssayError(f"{str(path)!r} has more than {limit:,} bytes, the most that is read of it; {mend}")
    return content


def _parsed(content: bytes, what: str) -> dict[str, Any]:
    try:
        return read_json(content)
    except ValueError as e:
        raise AssayError(f"{what} is no JSON that can be read: {e}; ask for it again.") from e


def _pem(path: Path, mend: str) -> tuple[bytes, list[str]]:
    content = _read(path, KEY_BYTES, mend)
    labels = [label.decode() for label in re.findall(rb"-----BEGIN ([A-Z0-9 ]{3,40})-----", content)]
    if not labels:
        raise AssayError(f"{str(path)!r} is no key in PEM form; {mend}")
    return content, labels


def _unfit(path: Path, key: Any) -> AssayError:
    kind = type(key).__name__.removeprefix("_").removesuffix("PrivateKey").removesuffix("PublicKey")
    size, curve = getattr(key, "key_size", None), getattr(getattr(key, "curve", None), "name", None)
    what = f"on the curve {curve}" if curve else f"of the kind {kind}" + (f" with {size} bits" if size else "")
    return AssayError(
        f"The key {str(path)!r} is {what}; OpenSSF Model Signing takes ECDSA on P-256, P-384 or P-521: {NEW_KEY}"
    )


def _encoded(kind: str, payload: bytes) -> bytes:
    name = kind.encode()
    return b"DSSEv1 %d %s %d %s" % (len(name), name, len(payload), payload)


def _algorithm(key: EllipticCurvePublicKey) -> ECDSA:
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec

    size: Mapping[str, hashes.HashAlgorithm] = dict(
        zip(CURVES, (hashes.SHA256(), hashes.SHA384(), hashes.SHA512()), strict=True)
    )
    return ec.ECDSA(size[key.curve.name])


def _present() -> None:
    try:
        import cryptography.exceptions  # noqa: F401
    except ImportError:
        raise MissingExtra.of("A seal", "cryptography", "seal") from None
