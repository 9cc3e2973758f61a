"""The secured channel to the labels party, and its failures in words."""

from __future__ import annotations

import socket
import ssl
from datetime import UTC, datetime
from pathlib import Path

import grpc
from cryptography.x509.oid import ExtendedKeyUsageOID

from labelveil.common.error_details import ErrorDetails, details_of
from labelveil.common.errors import (
    ConfigError,
    ConnectionFailed,
    LabelveilError,
    ReleaseError,
    not_none,
    printable,
)
from labelveil.common.files import file_errors, read_private
from labelveil.common.release.limits import MANIFEST_BYTES, MESSAGE_BYTES, WITHDRAWN
from labelveil.common.security.certificate_checks import (
    certificate_names,
    check_authorities,
    check_identity,
    read_chain,
)
from labelveil.common.security.proxies import through_proxy
from labelveil.common.security.tls import check_tls13_only
from labelveil.common.version import software
from labelveil.feature_party.config.labels_party import LabelsPartySection

_RETRYABLE = {
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.ABORTED,
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.DATA_LOSS,
}

_NO_COMMON_VERSION = (
    "alert_handshake_failure",
    "alert_protocol_version",
    "unsupported_protocol",
    "no_shared_cipher",
)

_TOO_LARGE = "larger than max"
"""What gRPC says of a message that it does not take in."""

_DIAGNOSIS_SECONDS = 5.0
# the connection preface of RFC 9113 (section 3.4) and an empty SETTINGS frame
_HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])


class Withdrawn(ReleaseError):
    """The labels party has withdrawn a release."""

    def __init__(self, text: str, reason: str) -> None:
        super().__init__(text)
        self.reason = reason


def open_channel(settings: LabelsPartySection) -> grpc.Channel:
    """Open a mutual TLS channel; nothing is sent before the first call.

    ``ConfigError`` if a certificate or key is not configured, cannot be read, or cannot serve now.
    """
    check_tls13_only()
    authority = _read("ca", settings.ca)
    certificate = _read("certificate", settings.certificate)
    private_key = _read("private_key", settings.private_key, secret=True)
    place = not_none(settings.certificate)
    chain = read_chain(place, certificate)
    check_identity(
        place, chain, not_none(settings.private_key), private_key, ExtendedKeyUsageOID.CLIENT_AUTH
    )
    trusted = not_none(settings.ca)
    check_authorities(trusted, read_chain(trusted, authority))
    credentials = grpc.ssl_channel_credentials(authority, private_key, certificate)
    options: list[tuple[str, str | int]] = [
        ("grpc.max_receive_message_length", MESSAGE_BYTES),
        ("grpc.keepalive_time_ms", 30_000),
        ("grpc.keepalive_timeout_ms", 20_000),
        # Retries are ours: gRPC repeats nothing once the first message has arrived.
        ("grpc.enable_retries", 0),
    ]
    if settings.server_name:
        options.append(("grpc.ssl_target_name_override", settings.server_name))
    return grpc.secure_channel(settings.address, credentials, options=options)


def hangs_up(settings: LabelsPartySection) -> bool:
    """Whether the labels party ends our connection right after the handshake.

    In TLS 1.3 a client has finished before the server has looked at its certificate, and gRPC then
    closes the connection without a word, so that a refused certificate looks like a network that
    fails. It is distinguished by trying without gRPC, twice, since a server may stop in between.
    """
    if settings.ca is None or settings.certificate is None or settings.private_key is None:
        return False
    host, _, port = settings.address.rpartition(":")
    host = host.strip("[]")
    try:
        context = ssl.create_default_context(cafile=settings.ca)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.set_alpn_protocols(["h2"])
        context.load_cert_chain(settings.certificate, settings.private_key, password="")
        name = settings.server_name or host
        return all(_hangs_up(context, host, int(port), name) for _ in range(2))
    except (OSError, ValueError):
        return False


def _hangs_up(context: ssl.SSLContext, host: str, port: int, name: str) -> bool:
    with (
        socket.create_connection((host, port), timeout=_DIAGNOSIS_SECONDS) as plain,
        context.wrap_socket(plain, server_hostname=name) as secured,
    ):
        try:
            secured.sendall(_HTTP2_PREFACE)
            return not secured.recv(1)
        except TimeoutError:
            return False
        except OSError:  # an alert, or a reset
            return True


def _read(name: str, path: Path | None, *, secret: bool = False) -> bytes:
    if path is None:
        raise ConfigError(
            f"[labels_party] {name} is missing; name a PEM file in feature_party.toml, which"
            " feature-party init writes"
        )
    remedy = "; name a PEM file: both parties' test certificates come from labelveil certificates"
    with file_errors(ConfigError, f"[labels_party] {name}={path} cannot be read", remedy):
        data = read_private(path, "private_key") if secret else path.read_bytes()
    if b"-----BEGIN" not in data:
        raise ConfigError(f"[labels_party] {name}={path} is not a PEM file")
    return data


def error_details(error: grpc.RpcError) -> ErrorDetails | None:
    """Return what the labels party itself says of a failed call; None if it said nothing."""
    trailers = getattr(error, "trailing_metadata", None)
    return details_of(trailers()) if callable(trailers) else None


def retryable(error: grpc.RpcError) -> bool:
    """Whether trying again later can help: never for identity, rights or a wrong request.

    The labels party knows best; where it says nothing, the status does.
    """
    if (said := error_details(error)) is not None:
        return said.retry_after is not None
    details = _details(error)
    return (
        error.code() in _RETRYABLE
        and _TOO_LARGE not in details
        and not _identity_problem(details, "")
    )


def _own_names(settings: LabelsPartySection) -> str:
    """What our certificate calls us, and where it is."""
    path = not_none(settings.certificate)
    names = certificate_names(path.read_bytes()) if path.is_file() else ()
    return f"{' or '.join(repr(name) for _, name in sorted(names)) or 'the name'} in {path}"


def explain(
    error: grpc.RpcError, settings: LabelsPartySection, command: str = "fetch"
) -> LabelveilError:
    """Turn a failed call into one line that says what to do; ``command`` is what failed."""
    code, details, said = error.code(), _details(error), error_details(error)
    via = through_proxy(settings.address)
    if said is not None:
        details = f"{details} (reason {said.reason})"
    if said is not None and said.retry_after is not None:
        return ConnectionFailed(
            f"the labels party at {settings.address} refuses {command} for now: {details}; run"
            f" {command} again in {max(said.retry_after, 1):.0f} seconds or later"
        )
    if problem := _identity_problem(details, settings.address):
        return ConnectionFailed(problem + via)
    if _TOO_LARGE in details:
        return ReleaseError(
            f"the labels party at {settings.address} sends a manifest (or rows at once) of more"
            f" than {MANIFEST_BYTES:,} bytes, the most that is taken in; ask it for a release with"
            " a coarser label grid"
        )
    wanted = f"data set {settings.data_set!r}"
    if settings.epoch:
        wanted += f", epoch {settings.epoch!r}"
    if code in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED):
        return ConnectionFailed(
            f"the labels party at {settings.address} refuses this client {wanted}: {details};"
            f" check [labels_party] data_set, or ask it to admit {_own_names(settings)}"
        )
    if code == grpc.StatusCode.NOT_FOUND:
        return ReleaseError(
            f"the labels party at {settings.address} has no release for {wanted}: {details};"
            " check [labels_party] data_set and epoch, or set wait if it is still to be built"
        )
    if said is not None and said.reason == "withdrawn":
        reason = printable(_details(error).removeprefix(WITHDRAWN))
        return Withdrawn(
            f"the labels party at {settings.address} has withdrawn its release of {wanted}:"
            f" {reason}; name another epoch in [labels_party] epoch or epochs",
            reason,
        )
    if code == grpc.StatusCode.UNIMPLEMENTED:
        return ConnectionFailed(
            f"{settings.address} does not know this call of {software()}: check [labels_party]"
            " address; if it is the labels party, it must update labelveil"
        )
    if code in _RETRYABLE and said is None:
        return ConnectionFailed(
            f"the labels party at {settings.address} cannot be reached: {_reason(details, code)};"
            f" check [labels_party] address and that it serves, then run {command} again{via}"
        )
    return ReleaseError(f"the labels party at {settings.address} answered {code.name}: {details}")


def not_accepted(address: str) -> ConnectionFailed:
    """Say that our certificate was refused."""
    return ConnectionFailed(
        f"{address} does not accept our certificate; check [labels_party] certificate,"
        " private_key, and that the labels party trusts its authority and has its clock right"
    )


def _details(error: grpc.RpcError) -> str:
    return " ".join((error.details() or "").split())


def _reason(details: str, code: grpc.StatusCode) -> str:
    """What gRPC says, without the way it got there."""
    known = {
        "Connection refused": "nothing serves there",
        "lookup failed": "no machine of this name is known",
        "Deadline Exceeded": "it does not answer in time",
    }
    return next((text for words, text in known.items() if words in details), details or code.name)


def _identity_problem(details: str, address: str) -> str:
    """One line for a failed TLS handshake, or nothing."""
    lowered = details.lower()
    if "certificate_verify_failed" in lowered:
        clock = f"this machine's clock, {datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
        if "expired" in lowered:
            return (
                f"the certificate of {address}, or of its authority, has expired by {clock}; ask"
                " the labels party to renew it"
            )
        if "not yet valid" in lowered:
            return (
                f"the certificate of {address}, or of its authority, is not valid yet by {clock};"
                " set the clock right, or ask the labels party for one that is"
            )
        return (
            f"the certificate of {address} is not signed by the configured authority;"
            " check [labels_party] ca"
        )
    if "hostname verification" in lowered or "not in peer certificate" in lowered:
        return (
            f"the certificate of {address} is for another name;"
            " check [labels_party] address, or set server_name to the name it must have"
        )
    if any(name in lowered for name in _NO_COMMON_VERSION):
        return f"{address} does not speak TLS 1.3, which is required; check [labels_party] address"
    if "alert_bad_certificate" in lowered or "alert_unknown_ca" in lowered:
        return str(not_accepted(address))
    if "wrong_version_number" in lowered:
        return f"{address} does not speak TLS; check [labels_party] address"
    if "handshake failed" in lowered:
        return f"the TLS handshake with {address} failed: {details}"
    return ""
