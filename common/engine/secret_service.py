"""Hand secrets to workers on other machines, from memory to memory.

What an engine ships with a task may be written down on the way: broadcast to a block store that
spills to disk, kept in an event log, shown on a page. So a task carries an address and a token that
is good for one run, and the worker asks the driver for the secrets. Both sides make a fresh X25519
key for each question; the answer is sealed with AES-256-GCM under HKDF-SHA256 of their common
secret and the token. Anyone who reads the token after the run, or recorded the traffic, has
nothing.

Sources: X25519, RFC 7748; HKDF, RFC 5869.
"""

from __future__ import annotations

import hmac
import secrets
import socket
import threading
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from common.errors import LabelveilError

_KEY_BYTES = 32
_NONCE = bytes(12)  # every sealing key is used once
_SECONDS = 30.0
_MOST_BYTES = 1 << 16


@dataclass(frozen=True)
class ServiceAddress:
    """Where a worker asks, and the token that lets it."""

    host: str
    port: int
    token: bytes = field(repr=False)


class KeyService:
    """Answers workers as long as it is open.

    Parameters
    ----------
    payload
        What they get, at most 64 KiB.
    host
        ServiceAddress to listen on; workers must reach it.
    """

    def __init__(self, payload: bytes, host: str) -> None:
        self._payload = payload
        self._socket = socket.create_server((host, 0), backlog=128)
        port = int(self._socket.getsockname()[1])
        self.address = ServiceAddress(host, port, secrets.token_bytes(_KEY_BYTES))
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits for a worker
        self._socket.close()
        self._thread.join()
        self._payload = b""

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            # a thread each: a client that sends nothing keeps no other waiting
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection:
            connection.settimeout(_SECONDS)
            try:
                asked, tag = _receive(connection, _KEY_BYTES), _receive(connection, _KEY_BYTES)
                if not hmac.compare_digest(tag, _tag(self.address.token, asked)):
                    return
                own = X25519PrivateKey.generate()
                public = own.public_key().public_bytes_raw()
                key = _sealing_key(own, asked, self.address.token, asked + public)
                connection.sendall(public + AESGCM(key).encrypt(_NONCE, self._payload, None))
            except (OSError, ValueError):
                return


def ask(address: ServiceAddress) -> bytes:
    """Ask for the secrets, in a worker.

    Raises
    ------
    LabelveilError
        If nobody answers, or not the driver.
    """
    own = X25519PrivateKey.generate()
    public = own.public_key().public_bytes_raw()
    try:
        with socket.create_connection((address.host, address.port), timeout=_SECONDS) as connection:
            connection.sendall(public + _tag(address.token, public))
            theirs = _receive(connection, _KEY_BYTES)
            sealed = bytearray()
            while part := connection.recv(_MOST_BYTES):
                sealed += part
                if len(sealed) > 2 * _MOST_BYTES:
                    raise ValueError("too long")
        key = _sealing_key(own, theirs, address.token, public + theirs)
        return AESGCM(key).decrypt(_NONCE, bytes(sealed), None)
    except (OSError, ValueError, InvalidTag) as error:
        raise LabelveilError(
            f"a worker got no secrets from the driver at {address.host}:{address.port}; let workers"
            " reach the driver's host (spark.driver.host)"
        ) from error


def _tag(token: bytes, public: bytes) -> bytes:
    return hmac.digest(token, b"labelveil worker" + public, "sha256")


def _sealing_key(own: X25519PrivateKey, theirs: bytes, token: bytes, both: bytes) -> bytes:
    common = own.exchange(X25519PublicKey.from_public_bytes(theirs))
    return HKDF(SHA256(), _KEY_BYTES, salt=token, info=b"labelveil secrets" + both).derive(common)


def _receive(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise ValueError("the connection ended")
        data += part
    return data
