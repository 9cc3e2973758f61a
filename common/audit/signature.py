"""Who stands behind a manifest: its Ed25519 signature, where there is one."""

from __future__ import annotations

from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_pem_public_key

from common.audit.verdict import Check, Verdict, verdict_of
from common.errors import ConfigError
from common.release import SIGNATURE_FILE


def signature_check(directory: Path, manifest: bytes, public_key: Path | None) -> Check:
    """The signature file, if there is one, is the named key's over the manifest's bytes."""
    name, claim = "signature", "The labels party signed the manifest's bytes with its Ed25519 key."
    path = directory / SIGNATURE_FILE
    if not path.is_file():
        if public_key is None:
            found = f"There is no {SIGNATURE_FILE}: this release is not signed."
            return Check(name, Verdict.NOT_CHECKABLE, claim, "Looked for a signature.", found)
        found = f"A key was given, but there is no {SIGNATURE_FILE}."
        return Check(name, Verdict.FAIL, claim, "Looked for a signature.", found)
    if public_key is None:
        found = "Pass --public-key with the key that the labels party published."
        return Check(name, Verdict.NOT_CHECKABLE, claim, f"Found {SIGNATURE_FILE}.", found)
    holds = verify(read_public_key(public_key), path.read_bytes(), manifest)
    return Check(
        name=name,
        verdict=verdict_of(holds),
        claim=claim,
        tried=f"{SIGNATURE_FILE} was verified with {public_key}.",
        found="It is valid." if holds else "It is not a signature of these bytes by this key.",
    )


def read_public_key(path: Path) -> Ed25519PublicKey:
    """Read an Ed25519 public key, PEM."""
    try:
        key = load_pem_public_key(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"--public-key {path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"--public-key {path} is not a PEM public key") from error
    if not isinstance(key, Ed25519PublicKey):
        raise ConfigError(f"--public-key {path} is not an Ed25519 key")
    return key


def verify(key: Ed25519PublicKey, signature: bytes, manifest: bytes) -> bool:
    """Whether a signature over a manifest's bytes is valid."""
    try:
        key.verify(signature, manifest)
    except InvalidSignature:
        return False
    return True
