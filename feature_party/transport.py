"""The secured channel to the labels party, and its failures in words."""

from __future__ import annotations

from pathlib import Path

import grpc

from common.errors import ConfigError, ConnectionFailed, LabelveilError, ReleaseError
from common.tls import check_tls13_only
from feature_party.config import LabelsPartySection

_RETRYABLE = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.UNKNOWN,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.DATA_LOSS,
    }
)

_NO_COMMON_VERSION = (
    "alert_handshake_failure",
    "alert_protocol_version",
    "unsupported_protocol",
    "no_shared_cipher",
)

_MESSAGE_LIMIT = 8 << 20


def open_channel(settings: LabelsPartySection) -> grpc.Channel:
    """Open a mutual TLS channel; nothing is sent before the first call.

    Raises
    ------
    ConfigError
        If a certificate or key is not configured or cannot be read.
    """
    check_tls13_only()
    credentials = grpc.ssl_channel_credentials(
        root_certificates=_read("ca", settings.ca),
        private_key=_read("private_key", settings.private_key),
        certificate_chain=_read("certificate", settings.certificate),
    )
    options: list[tuple[str, str | int]] = [
        ("grpc.max_receive_message_length", _MESSAGE_LIMIT),
        ("grpc.keepalive_time_ms", 30_000),
        ("grpc.keepalive_timeout_ms", 20_000),
        # Retries are ours: gRPC repeats nothing once the first message has arrived.
        ("grpc.enable_retries", 0),
    ]
    if settings.server_name:
        options.append(("grpc.ssl_target_name_override", settings.server_name))
    return grpc.secure_channel(settings.address, credentials, options=options)


def _read(name: str, path: Path | None) -> bytes:
    if path is None:
        raise ConfigError(f"[labels_party] {name} is missing; name a PEM file")
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(
            f"[labels_party] {name}={path} cannot be read: {error.strerror}"
        ) from error
    if b"-----BEGIN" not in data:
        raise ConfigError(f"[labels_party] {name}={path} is not a PEM file")
    return data


def retryable(error: grpc.RpcError) -> bool:
    """Whether trying again later can help: never for identity, rights or a wrong request."""
    return error.code() in _RETRYABLE and not _identity_problem(_details(error), "")


def explain(
    error: grpc.RpcError, settings: LabelsPartySection, command: str = "fetch"
) -> LabelveilError:
    """Turn a failed call into one line that says what to do; ``command`` is what failed."""
    code, details = error.code(), _details(error)
    if problem := _identity_problem(details, settings.address):
        return ConnectionFailed(problem)
    what = f"data set {settings.data_set!r}"
    if settings.epoch:
        what += f", epoch {settings.epoch!r}"
    if code in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED):
        return ConnectionFailed(
            f"the labels party at {settings.address} refuses this client {what}: {details};"
            f" ask it to admit the name in {settings.certificate}"
        )
    if code == grpc.StatusCode.NOT_FOUND:
        return ReleaseError(
            f"the labels party at {settings.address} has no release for {what}: {details};"
            " check [labels_party] data_set and epoch, or set wait if it is still to be built"
        )
    if code == grpc.StatusCode.UNIMPLEMENTED:
        return ConnectionFailed(
            f"{settings.address} is no labels party of this version; check [labels_party] address"
        )
    if code in _RETRYABLE:
        return ConnectionFailed(
            f"the labels party at {settings.address} cannot be reached: {details or code.name};"
            f" check [labels_party] address and that it serves, then run {command} again"
        )
    return ReleaseError(f"the labels party at {settings.address} answered {code.name}: {details}")


def _details(error: grpc.RpcError) -> str:
    return " ".join((error.details() or "").split())


def _identity_problem(details: str, address: str) -> str:
    """One line for a failed TLS handshake, or nothing."""
    lowered = details.lower()
    if "certificate_verify_failed" in lowered:
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
        return (
            f"{address} does not accept our certificate; check [labels_party] certificate,"
            " private_key, and that the labels party trusts its authority"
        )
    if "wrong_version_number" in lowered:
        return f"{address} does not speak TLS; check [labels_party] address"
    if "handshake failed" in lowered:
        return f"the TLS handshake with {address} failed: {details}"
    return ""
