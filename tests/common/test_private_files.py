"""Keys that others can read are refused, whichever kind they are, with what to type."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from labelveil.audit.canaries.endpoint import connected
from labelveil.audit.settings import Connection
from labelveil.common.errors import ConfigError
from labelveil.common.files import read_private
from labelveil.common.release.event_keys import read_secret
from labelveil.common.release.signature import read_signing_key
from labelveil.common.security.new_keys import write_secret, write_signing_key
from labelveil.common.security.pilot_certificates import CertificateFiles, write_certificates
from labelveil.feature_party.client.channel import open_channel
from labelveil.feature_party.config.labels_party import LabelsPartySection
from labelveil.label_party.config.serving import ServerSection
from labelveil.label_party.server.credentials import ServerCredentials
from labelveil.label_party.server.handshakes import Handshakes
from labelveil.label_party.sources.remote_source import check_private


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> CertificateFiles:
    return write_certificates(tmp_path_factory.mktemp("keys"))


def serving(files: CertificateFiles) -> object:
    server = ServerSection(
        certificate=files.label_party_certificate,
        private_key=files.label_party_key,
        client_ca=files.authority,
    )
    return ServerCredentials(server, Handshakes())


def fetching(files: CertificateFiles) -> None:
    settings = LabelsPartySection(
        address="localhost:1",
        ca=files.authority,
        certificate=files.feature_party_certificate,
        private_key=files.feature_party_key,
    )
    with open_channel(settings):
        pass


def auditing(files: CertificateFiles) -> None:
    connection = Connection(
        address="localhost:1",
        ca=files.authority,
        certificate=files.feature_party_certificate,
        private_key=files.feature_party_key,
    )
    with connected(connection):
        pass


def joining(files: CertificateFiles) -> object:
    return read_secret(files.join_secret)


@pytest.mark.parametrize(
    ("use", "name"),
    [
        (serving, "label_party_key"),
        (fetching, "feature_party_key"),
        (auditing, "feature_party_key"),
        (joining, "join_secret"),
    ],
)
@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o620, 0o666])
def test_keys_that_others_can_use_are_refused(
    files: CertificateFiles, use: Callable[[CertificateFiles], Any], name: str, mode: int
) -> None:
    path: Path = getattr(files, name)
    path.chmod(mode)
    with pytest.raises(ConfigError, match=rf"mode {mode:04o}.*; run chmod 600 {path}$"):
        use(files)
    path.chmod(0o600)
    use(files)


@pytest.mark.parametrize("mode", [0o644, 0o640])
def test_signing_keys_and_credentials_too(tmp_path: Path, mode: int) -> None:
    signing, credentials = tmp_path / "signing.key", tmp_path / "credentials"
    write_signing_key(signing)
    credentials.write_text("")
    for path, read in ((signing, read_signing_key), (credentials, check_private)):
        path.chmod(mode)
        with pytest.raises(ConfigError, match="chmod 600"):
            read(path)
        path.chmod(0o600)
        read(path)


def test_a_group_may_read_what_is_roots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As secrets are mounted: they belong to root, and a group of the process may read them."""
    path = tmp_path / "join.key"
    write_secret(path)
    status = list(os.stat(path))
    status[4] = 0
    monkeypatch.setattr(os, "geteuid", lambda: 10001)
    for mode, right in ((0o440, True), (0o640, True), (0o660, False), (0o644, False)):
        status[0] = 0o100000 | mode
        monkeypatch.setattr(os, "fstat", lambda _: os.stat_result(status))
        if right:
            assert read_private(path, "key secret")
        else:
            with pytest.raises(ConfigError, match="chmod 640"):
                read_private(path, "key secret")
    status[4] = 4321  # another account's: its owner is somebody
    status[0] = 0o100640
    with pytest.raises(ConfigError, match="chmod 600"):
        read_private(path, "key secret")
