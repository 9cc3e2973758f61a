"""TLS 1.3 and nothing older, on both ends of every gRPC connection.

gRPC for Python has no setting for the lowest TLS version (grpc/grpc issue 37305), and its one
setting for cipher suites, the environment variable ``GRPC_SSL_CIPHER_SUITES``, is about TLS 1.2
alone: the suites of TLS 1.3 are fixed in BoringSSL. So the list of TLS 1.2 suites is narrowed to
one that needs a pre-shared key, which neither end has. A TLS 1.2 handshake then finds no common
suite and fails; TLS 1.3 does not notice.

gRPC reads the variable once, when it is first imported; `common` and the rooms of either party that
use gRPC import this module before that. A program that imported gRPC earlier gets an error, instead
of being left with TLS 1.2.
"""

from __future__ import annotations

import os
import sys

from common.errors import ConfigError

_VARIABLE = "GRPC_SSL_CIPHER_SUITES"
_NO_TLS_12 = "ECDHE-PSK-CHACHA20-POLY1305"

_in_time = "grpc" not in sys.modules or os.environ.get(_VARIABLE) == _NO_TLS_12
os.environ[_VARIABLE] = _NO_TLS_12


def check_tls13_only() -> None:
    """Make sure that credentials made from now on refuse TLS 1.2.

    ``ConfigError`` if gRPC was imported before this package, and so has read another setting.
    """
    if not _in_time:
        raise ConfigError(
            "grpc was imported before labelveil, and would accept TLS 1.2; import common first, or"
            f" set {_VARIABLE}={_NO_TLS_12} in the environment"
        )
