"""A client that begins calls in HTTP/2 and says no more, as nobody's library lets it.

It heeds no limit that the server states, opens no window, and reads only to learn what has arrived.
"""

from __future__ import annotations

import socket
import ssl
import struct

_DATA, _HEADERS, _SETTINGS, _PING, _GOAWAY = 0, 1, 4, 6, 7
_END_STREAM, _END_HEADERS, _ACK = 1, 4, 1


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def _text(value: str) -> bytes:
    return bytes([len(value)]) + value.encode()


class Silent:
    """One connection.

    Parameters
    ----------
    address, context
        Where to, and as whom.
    """

    def __init__(self, address: tuple[str, int], context: ssl.SSLContext) -> None:
        plain = socket.create_connection(address, timeout=300)
        self._socket = context.wrap_socket(plain, server_hostname="localhost")
        self._socket.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _frame(_SETTINGS, 0, 0, b""))
        self._stream = 1
        self.settings: dict[int, int] = {}
        """What the server has stated of itself, by the numbers of RFC 9113, 6.5.2."""

    def begin(self, method: str, message: bytes | None = None, *, ends: bool = False) -> None:
        """Begin a call: its headers, and perhaps one message, after which its request may end."""
        # HPACK: three entries of the static table, and literals that are never indexed
        block = b"\x83\x87\x04" + _text(method) + b"\x01" + _text("localhost")
        block += b"\x0f\x10" + _text("application/grpc") + b"\0" + _text("te") + _text("trailers")
        frames = _frame(_HEADERS, _END_HEADERS, self._stream, block)
        if message is not None:
            body = b"\0" + struct.pack(">I", len(message)) + message
            frames += _frame(_DATA, _END_STREAM * ends, self._stream, body)
        self._socket.sendall(frames)
        self._stream += 2

    def arrive(self) -> None:
        """Return when the server has seen all that was sent, or has had enough of it."""
        self._socket.sendall(_frame(_PING, 0, 0, b"arrived?"))
        while True:
            head = self._read(9)
            payload = self._read(int.from_bytes(head[:3], "big"))
            if head[3] == _SETTINGS:
                self.settings |= dict(struct.iter_unpack(">HI", payload))
            if head[3] == _GOAWAY or (head[3], head[4], payload) == (_PING, _ACK, b"arrived?"):
                return

    def close(self) -> None:
        self._socket.close()

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            part = self._socket.recv(size - len(data))
            assert part, "the server closed the connection"
            data += part
        return data
