"""The server's TLS identity: checked before it is used, read again when its files change."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from pathlib import Path

import grpc
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_private_key,
)

from common.errors import ConfigError, LabelveilError
from label_party.config import ServerSection

_log = logging.getLogger(__name__)

_Stamp = tuple[tuple[int, int], ...]


class ServerCredentials:
    """Mutual TLS credentials that follow their files.

    Parameters
    ----------
    server
        Paths of the certificate, the private key and the clients' authority.

    Raises
    ------
    ConfigError
        If a file is missing or unusable, or the certificate has expired.
    """

    def __init__(self, server: ServerSection) -> None:
        self._server = server
        self._stamp = self._stamps()
        initial = self._read()
        self.grpc: grpc.ServerCredentials = grpc.dynamic_ssl_server_credentials(
            initial,
            self._changed,  # type: ignore[arg-type]  # None, "unchanged", is missing in the stubs
            require_client_authentication=True,
        )

    def _changed(self) -> grpc.ServerCertificateConfiguration | None:
        """Return the new identity at the first handshake after a change; keep the old otherwise."""
        try:
            stamp = self._stamps()
            if stamp == self._stamp:
                return None
            configuration = self._read()
        except LabelveilError as error:
            _log.error("certificates not reloaded", extra={"reason": str(error)})
            return None
        self._stamp = stamp
        _log.info("certificates reloaded")
        return configuration

    def _files(self) -> tuple[Path, ...]:
        return self._server.certificate, self._server.private_key, self._server.client_ca

    def _stamps(self) -> _Stamp:
        stamps = []
        for path in self._files():
            try:
                status = path.stat()
            except OSError as error:
                raise _unreadable(path, error) from error
            stamps.append((status.st_mtime_ns, status.st_ino))
        return tuple(stamps)

    def _read(self) -> grpc.ServerCertificateConfiguration:
        chain, key, authority = (_bytes(path) for path in self._files())
        certificates = _certificates(self._server.certificate, chain)
        _certificates(self._server.client_ca, authority)
        _check_key(self._server, key, certificates[0])
        ends = certificates[0].not_valid_after_utc
        if ends < datetime.now(UTC):
            raise ConfigError(
                f"certificate {self._server.certificate} expired on {ends:%Y-%m-%d %H:%M} UTC;"
                " issue a new one"
            )
        return grpc.ssl_server_certificate_configuration([(key, chain)], authority)


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: OSError) -> ConfigError:
    return ConfigError(
        f"{path} cannot be read: {error.strerror}; set [server] certificate, private_key and"
        " client_ca, or make test certificates with label-dp certificates"
    )


def _certificates(path: Path, data: bytes) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(data)
    except ValueError as error:
        raise ConfigError(f"{path} holds no PEM certificate; replace it") from error


def _check_key(server: ServerSection, data: bytes, certificate: x509.Certificate) -> None:
    try:
        key = load_pem_private_key(data, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise ConfigError(
            f"{server.private_key} is not an unencrypted PEM private key; replace it"
        ) from error
    public = (Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    if key.public_key().public_bytes(*public) != certificate.public_key().public_bytes(*public):
        raise ConfigError(
            f"private key {server.private_key} does not belong to certificate"
            f" {server.certificate}; set [server] certificate and private_key"
        )
