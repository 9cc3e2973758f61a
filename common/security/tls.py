"""TLS 1.3 and nothing older, on both ends of every gRPC connection.

gRPC for Python has no setting for the lowest TLS version (grpc/grpc issue 37305), and its one
setting for cipher suites, the environment variable ``GRPC_SSL_CIPHER_SUITES``, is about TLS 1.2
alone: the suites of TLS 1.3 are fixed in BoringSSL. So the list of TLS 1.2 suites is narrowed to
one that needs a pre-shared key, which neither end has. A TLS 1.2 handshake then finds no common
suite and fails; TLS 1.3 does not notice.

The variable holds for every gRPC connection of a process and of those that it starts, and gRPC
reads it once, when it is first imported. So it is for programs to set, first of all: ours do. A
library must not decide it for its user's process, whose own services may know TLS 1.2 alone.
Importing this package sets nothing; and where nobody has set it, no channel and no server is made.
"""

from __future__ import annotations

import os
import sys

from labelveil.common.errors import ConfigError

_VARIABLE = "GRPC_SSL_CIPHER_SUITES"
_NO_TLS_12 = "ECDHE-PSK-CHACHA20-POLY1305"

_in_time = os.environ.get(_VARIABLE) == _NO_TLS_12


def only_tls13() -> None:
    """Have gRPC refuse TLS 1.2 in this whole process and its children; before gRPC is imported."""
    global _in_time
    _in_time = _in_time or "grpc" not in sys.modules
    os.environ[_VARIABLE] = _NO_TLS_12


def check_tls13_only() -> None:
    """Make sure that credentials made from now on refuse TLS 1.2.

    ``ConfigError`` unless :func:`only_tls13` was called before gRPC was imported, or the variable
    was set so in the environment.
    """
    if not _in_time:
        raise ConfigError(
            f"this process's gRPC would accept TLS 1.2; run the program, or set {_VARIABLE}="
            f"{_NO_TLS_12} in the environment of a process of its own"
        )
