"""Who may fetch what: one exact subject alternative name of the client's certificate.

gRPC's own list of peer identities mixes every name that a certificate carries, and falls back on
the common name; a certificate that some authority issued for many names would match by accident.
So the certificate itself is parsed, and one configured name must be in it with the same type, DNS
name or URI, and the same spelling.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from common.security.certificate_checks import certificate_names

_SECURED = ([b"ssl"], [b"tls"])
"""What gRPC calls its two implementations of TLS; which one is used depends on its version."""


class AccessPolicy:
    """Which named certificate may fetch which data sets.

    Parameters
    ----------
    entitlements
        Subject alternative name (a URI if it contains ``://``, else a DNS name) to data sets.
    """

    def __init__(self, entitlements: Mapping[str, Iterable[str]]) -> None:
        self._entitled = {_typed(name): frozenset(sets) for name, sets in entitlements.items()}

    def identify(self, auth_context: Mapping[str, Any]) -> str | None:
        """Return the configured name that the peer proved, or None for an unknown client.

        Parameters
        ----------
        auth_context
            What gRPC says about the connection.
        """
        if list(auth_context.get("transport_security_type", ())) not in _SECURED:
            return None
        chain = list(auth_context.get("x509_pem_cert", ()))
        if len(chain) != 1:
            return None
        matches = self._entitled.keys() & certificate_names(chain[0])
        # a certificate with two of our clients' names would be two clients at once
        return matches.pop()[1] if len(matches) == 1 else None

    def allows(self, name: str, data_set: str) -> bool:
        """Whether a client known by this name may fetch this data set."""
        return data_set in self._entitled.get(_typed(name), frozenset())


def _typed(name: str) -> tuple[str, str]:
    return ("uri", name) if "://" in name else ("dns", name.lower())
