"""The signature under a manifest: made with the release, served with it, and checked by others."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from labelveil.audit.certificate.evidence import read_evidence
from labelveil.audit.certificate.row_checks import signature_check
from labelveil.audit.verdict import Verdict
from labelveil.common.release.folder import SIGNATURE_FILE
from labelveil.common.release.signature import read_public_key, verify
from labelveil.common.security.new_keys import public_path, write_signing_key
from labelveil.label_party.config import sections as config
from labelveil.label_party.server.run import running
from tests.label_party.conftest import Client, Party, Result

Connect = Callable[..., Client]


def audited(directory: Path, key: Path) -> Verdict:
    """The auditor's verdict on the signature of a release in the store."""
    return signature_check(replace(read_evidence(directory), public_key=key)).verdict


def test_a_release_is_signed_and_served_with_its_signature(party: Party, connect: Connect) -> None:
    public = write_signing_key(party.folder / "signing.key")
    assert party.release(keys__signing_key="signing.key").code == 0
    # the server needs no key
    (party.folder / "signing.key").unlink()
    with running(party.config()) as address:
        described = connect(address).describe()
    key = read_public_key(public, "key")
    assert verify(key, described.signature, described.manifest)
    assert not verify(key, described.signature, described.manifest + b" ")
    assert audited(party.store / "releases" / "labels" / "1", public) is Verdict.PASS


def test_a_release_without_a_key_is_not_signed_until_there_is_one(
    party: Party, connect: Connect
) -> None:
    party.release()
    directory = party.store / "releases" / "labels" / "1"
    with running(party.config()) as address:
        client = connect(address)
        before = client.describe()
        assert before.signature == b""
        for name in ("first.key", "second.key"):
            public = write_signing_key(party.folder / name)
            ended = party.release(keys__signing_key=name)
            assert "already released" in ended.out
            assert audited(directory, public) is Verdict.PASS
            after = client.describe()
            assert after.signature == (directory / SIGNATURE_FILE).read_bytes()
            assert after.manifest == before.manifest
    spent = json.loads(party.run("budget", "--json").out)[0]["charges"]
    assert len(spent) == 1


def test_a_key_that_cannot_be_used_is_one_line_and_spends_nothing(party: Party) -> None:
    key = party.folder / "signing.key"
    assert "cannot be read" in party.release(keys__signing_key=key).error
    write_signing_key(key)
    for mode in (0o640, 0o604, 0o660):
        key.chmod(mode)
        error = party.release(keys__signing_key=key).error
        assert f"mode {mode:04o}" in error
        assert "chmod 600" in error
    key.write_bytes((party.folder / "server.key").read_bytes())
    key.chmod(0o600)
    assert "not an unencrypted Ed25519 private key" in party.release(keys__signing_key=key).error
    key.write_text("nonsense")
    (party.folder / "labels.csv").unlink()  # said before a row of them is read
    assert "not an unencrypted Ed25519 private key" in party.release(keys__signing_key=key).error
    assert party.nothing_left()


def test_init_makes_a_pair(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_cli: Callable[..., Result]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_cli("init", "--new-signing-key").code == 0
    path = config.load(Path("label_party.toml")).keys.signing_key
    assert path == Path("certificates/signing.key")
    assert path.stat().st_mode & 0o777 == 0o600
    read_public_key(public_path(path), "key")
    assert "exists already" in run_cli("init", "--new-signing-key", "--force").error
    assert run_cli("init", "--force").code == 0
    assert config.load(Path("label_party.toml")).keys.signing_key is None
