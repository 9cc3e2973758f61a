"""Who may fetch what: one exact subject alternative name of the client's certificate.

gRPC's own list of peer identities mixes every name that a certificate carries, and falls back on
the common name; a certificate that some authority issued for many names would match by accident.
So the certificate itself is parsed, and one configured name must be in it with the same type, DNS
name or URI, and the same spelling.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from labelveil.common.security.certificate_checks import certificate_holder, certificate_names

_SECURED = ([b"ssl"], [b"tls"])
"""What gRPC calls its two implementations of TLS; which one is used depends on its version."""

# every call names its certificate anew, and parsing one takes longer than refusing a call
_names_of = lru_cache(maxsize=256)(certificate_names)
holder_of = lru_cache(maxsize=256)(certificate_holder)


def certificate_of(auth_context: Mapping[str, Any]) -> bytes:
    """Return the one certificate (PEM) that a peer proved over TLS, empty without one.

    ``auth_context`` is what gRPC says about the connection.
    """
    if list(auth_context.get("transport_security_type", ())) not in _SECURED:
        return b""
    chain = list(auth_context.get("x509_pem_cert", ()))
    return chain[0] if len(chain) == 1 else b""


class AccessPolicy:
    """Which named certificate may fetch which data sets.

    Named by a subject alternative name: a URI if it contains ``://``, else a DNS name.
    """

    def __init__(self, entitlements: Mapping[str, Iterable[str]]) -> None:
        self._entitled = {_typed(name): frozenset(sets) for name, sets in entitlements.items()}

    @property
    def clients(self) -> int:
        return len(self._entitled)

    def identify(self, certificate: bytes) -> str | None:
        """Return the configured name in a proven certificate, or None for an unknown client."""
        matches = self._entitled.keys() & _names_of(certificate)
        # a certificate with two of our clients' names would be two clients at once
        return matches.pop()[1] if len(matches) == 1 else None

    def allows(self, name: str, data_set: str) -> bool:
        """Whether a client known by this name may fetch this data set."""
        return data_set in self._entitled.get(_typed(name), frozenset())


def _typed(name: str) -> tuple[str, str]:
    return ("uri", name) if "://" in name else ("dns", name.lower())
