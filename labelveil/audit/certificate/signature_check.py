"""Who stands behind a manifest: its Ed25519 signature, where there is one."""

from __future__ import annotations

from pathlib import Path

from common.release.folder import SIGNATURE_FILE
from common.release.signature import read_public_key, verify
from labelveil.audit.verdict import Check, Verdict, verdict_of


def signature_check(directory: Path, manifest: bytes, public_key: Path | None) -> Check:
    """The signature file, if there is one, is the named key's over the manifest's bytes."""
    name, claim = "signature", "The labels party signed the manifest's bytes with its Ed25519 key."
    path, looked = directory / SIGNATURE_FILE, "Looked for a signature."
    if not path.is_file() and public_key is None:
        unsigned = f"There is no {SIGNATURE_FILE}: this release is not signed."
        return Check(name, Verdict.NOT_CHECKABLE, claim, looked, unsigned)
    if not path.is_file():
        missing = f"A key was given, but there is no {SIGNATURE_FILE}."
        return Check(name, Verdict.FAIL, claim, looked, missing)
    if public_key is None:
        remedy = "Pass --public-key with the key that the labels party published."
        return Check(name, Verdict.NOT_CHECKABLE, claim, f"Found {SIGNATURE_FILE}.", remedy)
    holds = verify(read_public_key(public_key, "--public-key"), path.read_bytes(), manifest)
    return Check(
        name=name,
        verdict=verdict_of(holds),
        claim=claim,
        tried=f"{SIGNATURE_FILE} was verified with {public_key}.",
        found="It is valid." if holds else "It is not a signature of these bytes by this key.",
    )
