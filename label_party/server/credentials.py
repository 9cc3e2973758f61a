"""The server's TLS identity: checked before it is used, read again when its files change."""

from __future__ import annotations

import logging
import threading
from contextlib import AbstractContextManager
from datetime import datetime
from pathlib import Path

import grpc
from cryptography.x509.oid import ExtendedKeyUsageOID

from labelveil.common.errors import ConfigError, LabelveilError
from labelveil.common.files import file_errors, read_private
from labelveil.common.security.certificate_checks import (
    Span,
    check_authorities,
    check_identity,
    check_in_force,
    common_span,
    read_chain,
)
from labelveil.common.security.tls import check_tls13_only
from labelveil.label_party.config.serving import ServerSection
from labelveil.label_party.monitoring.calls import OncePerMinute
from labelveil.label_party.server.handshakes import Handshakes

_log = logging.getLogger(__name__)

_Stamp = tuple[tuple[int, int], ...]


class ServerCredentials:
    """Mutual TLS credentials that follow their files; handshakes are told of new connections.

    ``ConfigError`` if a file is missing or unusable, or no client could use what it holds now.
    """

    def __init__(self, server: ServerSection, handshakes: Handshakes) -> None:
        check_tls13_only()
        self._server = server
        self._handshakes = handshakes
        self._lock = threading.Lock()
        self._spans: dict[str, list[Span]] = {}
        self.reloads = {"done": 0, "failed": 0}  # how often the files were read again
        self._failures = _failures()
        self._stamp = self._stamps()
        initial = self._read()
        self.grpc: grpc.ServerCredentials = grpc.dynamic_ssl_server_credentials(
            initial,
            self._changed,  # type: ignore[arg-type]  # None, "unchanged", is missing in the stubs
            require_client_authentication=True,
        )

    def forget(self) -> None:
        """Have the files read again at the next connection, whether they changed or not."""
        with self._lock:
            self._stamp = ()

    def ends(self, which: str) -> datetime:
        """Return when what is in use ends: ``server``, or the last authority of ``client_ca``."""
        with self._lock:
            return max(end for _, end in self._spans[which])

    def check(self) -> None:
        """Raise a ``ConfigError`` if a certificate in use is not in force: ended, or yet to be."""
        with self._lock:
            spans = self._spans
        check_in_force(self._server.certificate, spans["server"])
        check_in_force(self._server.client_ca, spans["client_ca"])

    def _changed(self) -> grpc.ServerCertificateConfiguration | None:
        """Return the new identity at the first handshake after a change; keep the old otherwise."""
        self._handshakes.connected()
        with self._lock:
            try:
                stamp = self._stamps()
                if stamp == self._stamp:
                    return None
                configuration = self._read()
            except LabelveilError as error:
                self.reloads["failed"] += 1
                self._failures.add((str(error),), {"reason": str(error)})
                return None
            self._stamp, self._failures = stamp, _failures()
            self.reloads["done"] += 1
            _log.info("certificates reloaded")
            return configuration

    def _stamps(self) -> _Stamp:
        stamps = []
        for path in (self._server.certificate, self._server.private_key, self._server.client_ca):
            with _reading(path):
                status = path.stat()
            stamps.append((status.st_mtime_ns, status.st_ino))
        return tuple(stamps)

    def _read(self) -> grpc.ServerCertificateConfiguration:
        with _reading(self._server.certificate):
            chain = self._server.certificate.read_bytes()
        with _reading(self._server.client_ca):
            authority = self._server.client_ca.read_bytes()
        with _reading(self._server.private_key):
            key = read_private(self._server.private_key, "private_key")
        certificates = read_chain(self._server.certificate, chain)
        authorities = read_chain(self._server.client_ca, authority)
        place = self._server.certificate
        check_identity(
            place, certificates, self._server.private_key, key, ExtendedKeyUsageOID.SERVER_AUTH
        )
        check_authorities(self._server.client_ca, authorities)
        self._spans = {
            "server": [common_span(certificates)],
            # during a rotation an old authority may end while the new one goes on
            "client_ca": [common_span([authority]) for authority in authorities],
        }
        return grpc.ssl_server_certificate_configuration([(key, chain)], authority)


def _failures() -> OncePerMinute:
    """Failures to read the files, which are tried again at every connection."""
    return OncePerMinute("certificates not reloaded", level=logging.ERROR)


def _reading(path: Path) -> AbstractContextManager[None]:
    remedy = (
        "; set [server] certificate, private_key and client_ca, or make test certificates with"
        " labelveil certificates"
    )
    return file_errors(ConfigError, f"{path} cannot be read", remedy)
