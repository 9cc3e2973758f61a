"""A small object store on the loopback: GET, HEAD and Range, as HTTP and as S3 know them."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Objects:
    """What is stored, by path, and who asked.

    Attributes
    ----------
    login
        Text that an Authorization header must contain; None lets everybody in.
    """

    address: str = ""
    contents: dict[str, bytes] = field(default_factory=dict)
    login: str | None = None
    refused: int = 0


@contextmanager
def serving() -> Iterator[Objects]:
    objects = Objects()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *given: object) -> None:
            pass

        def do_HEAD(self) -> None:
            self._answer(body=False)

        def do_GET(self) -> None:
            self._answer(body=True)

        def _answer(self, *, body: bool) -> None:
            data = objects.contents.get(self.path.partition("?")[0])
            status, extra = 200, {}
            if objects.login and objects.login not in self.headers.get("Authorization", ""):
                objects.refused += 1
                data, status = None, 403
            elif data is None:
                status = 404
            whole = data or b""
            wanted = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
            sent = whole
            if data is not None and wanted:
                first, last = wanted[1], wanted[2]
                start = int(first) if first else len(whole) - int(last)
                stop = min(int(last) + 1, len(whole)) if first and last else len(whole)
                sent, status = whole[start:stop], 206
                extra = {"Content-Range": f"bytes {start}-{stop - 1}/{len(whole)}"}
            self.send_response(status)
            self.send_header("Content-Length", str(len(sent)))
            self.send_header("Accept-Ranges", "bytes")
            self.send_header("ETag", '"one"')
            self.send_header("Last-Modified", "Mon, 01 Jan 2024 00:00:00 GMT")
            for name, value in extra.items():
                self.send_header(name, value)
            self.end_headers()
            if body:
                self.wfile.write(sent)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    objects.address = f"http://127.0.0.1:{server.server_port}"
    try:
        yield objects
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
