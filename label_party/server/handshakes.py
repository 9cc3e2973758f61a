"""TLS handshakes that failed: gRPC does not report them, so its log is read.

A connection that cannot prove a trusted identity over TLS 1.3 never becomes a call. What gRPC does
with it can be seen in two places: the credentials are asked at every new connection, whatever
becomes of it, and the reason of a failed handshake is printed on standard error. The first is
counted exactly; the second is turned into a reason and counted as a refusal. The reasons are names
in BoringSSL's sources, and a server tries at its start whether it still understands them.
"""

from __future__ import annotations

import contextlib
import re
import socket
import ssl
import threading
from collections.abc import Callable
from typing import Final

from labelveil.common.errors import ConfigError

SECONDS = 5.0
"""How long the server's own connections wait for an answer."""

_HANDSHAKE = b"\x16"
"""First byte of a TLS record that goes on with a handshake; an alert's is 21 (RFC 8446, 5.1)."""

_FAILED = re.compile(r"Handshake failed with (?:fatal )?error .*?:([A-Z][A-Z0-9_]+): ?(.*)$")

_REASONS: Final = {
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "no_certificate",
    "NO_SHARED_CIPHER": "tls_version",
    "UNSUPPORTED_PROTOCOL": "tls_version",
    "WRONG_VERSION_NUMBER": "plaintext",
    "HTTP_REQUEST": "plaintext",
    "HTTPS_PROXY_REQUEST": "plaintext",
}


def reason_of(line: str) -> str | None:
    """Return why a handshake failed, if that is what a line of gRPC's log is about."""
    failed = _FAILED.search(line)
    if failed is None:
        return None
    name, detail = failed.groups()
    if name == "CERTIFICATE_VERIFY_FAILED":
        reasons = {"expired": "certificate_expired", "not yet valid": "certificate_not_yet_valid"}
        known = (reason for words, reason in reasons.items() if words in detail)
        return next(known, "certificate_untrusted")
    return _REASONS.get(name, "handshake")


class Handshakes:
    """Counts connections and why handshakes failed."""

    def __init__(self) -> None:
        # called with the reason of every failed handshake of a client
        self.on_refused: Callable[[str], object] = lambda reason: None
        self._changed = threading.Condition()
        self._connections = 0
        self._own = 0
        self._expected = False

    @property
    def connections(self) -> int:
        """Connections so far, without the server's own."""
        with self._changed:
            return self._connections - self._own

    def connected(self) -> None:
        """Count a new connection; called by gRPC before its handshake."""
        with self._changed:
            self._connections += 1
            self._changed.notify_all()

    def read(self, line: str) -> bool:
        """Take in a line of gRPC's log; whether it was about a failed handshake."""
        reason = reason_of(line)
        if reason is None:
            return False
        with self._changed:
            own = self._expected and reason == "tls_version"
            if own:
                self._expected = False
                self._changed.notify_all()
        if not own:
            self.on_refused(reason)
        return True

    def probe_listener(self, address: str) -> bool:
        """Connect to the server itself; whether gRPC took the connection."""
        with self._changed:
            before = self._connections
        try:
            with socket.create_connection(reachable(address), timeout=SECONDS), self._changed:
                self._own += 1
                return self._changed.wait_for(lambda: self._connections > before, SECONDS)
        except OSError:
            return False

    def try_tls12(self, address: str, *, listening: bool) -> bool:
        """Make sure that the server refuses TLS 1.2; whether gRPC's log said so.

        The log is not waited for unless it is given to :meth:`read` (``listening``).

        ``ConfigError`` if the server answered the first message of a TLS 1.2 handshake with the
        second. What becomes of the handshake later says nothing: it fails in any case, for want of
        a client's certificate.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        with self._changed:
            self._expected = listening
        try:
            with socket.create_connection(reachable(address), timeout=SECONDS) as plain:
                with self._changed:
                    self._own += 1
                plain.sendall(_hello(context))
                answer = plain.recv(1)
        except OSError:
            answer = b""
        if answer == _HANDSHAKE:
            raise ConfigError(
                f"the server at {address} accepts TLS 1.2, which this version of grpcio must have"
                " been prevented from; install a version that the package allows"
            )
        with self._changed:
            seen = listening and self._changed.wait_for(lambda: not self._expected, SECONDS)
            self._expected = False
            return seen


def _hello(context: ssl.SSLContext) -> bytes:
    """Return a client's first message."""
    outgoing = ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), outgoing).do_handshake()
    return outgoing.read()


def reachable(address: str) -> tuple[str, int]:
    """Return where this machine reaches a listening address."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host), int(port)
