"""What a manifest may claim: values of one form each, so that the form itself says nothing."""

from __future__ import annotations

from typing import Annotated, Final, Literal, TypeVar

from pydantic import AfterValidator, ConfigDict, FailFast, Field, with_config
from typing_extensions import TypedDict

from labelveil.common.config.names import NAME_PATTERN
from labelveil.common.exact.rational import parse_rational
from labelveil.common.release.limits import ROWS

CMAC_KEYS: Final = "aes-256-cmac-128"
"""What event keys are hashed by (:mod:`labelveil.common.release.event_keys`)."""
SUBMITTED_KEYS: Final = "submitted"

Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Check = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
"""16 bytes by which a secret is recognised
(:func:`labelveil.common.release.event_keys.secret_check`)."""
Count = Annotated[int, Field(ge=-(1 << 62), le=1 << 62)]
Rows = Annotated[int, Field(ge=1, le=ROWS)]
Name = Annotated[str, Field(pattern=NAME_PATTERN)]

ItemT = TypeVar("ItemT")
Items = Annotated[list[ItemT], FailFast()]
"""Refused at the first item that is none: an error takes a hundred times as much as the item."""


def _lowest_terms(text: str) -> str:
    if str(parse_rational(text)) != text:
        raise ValueError(f"{text!r:.40} must be in lowest terms")
    return text


Rational = Annotated[str, Field(max_length=401), AfterValidator(_lowest_terms)]
"""An exact number >= 0; there is one way to write it, so that the way says nothing."""

_CLOSED = ConfigDict(extra="forbid")


@with_config(_CLOSED)
class PureClaim(TypedDict):
    """ε of one replaced label, or of all labels of one user."""

    kind: Literal["pure"]
    adjacency: Literal["replace-label"]
    unit: Literal["record", "user"]
    epsilon: Rational


@with_config(_CLOSED)
class ChannelClaim(TypedDict):
    """A channel as :meth:`labelveil.common.exact.channel.FiniteChannel.to_json` writes it."""

    outputs: Items[float]
    row_of: Items[int]
    rows: Items[str]


@with_config(_CLOSED)
class TermsClaim(TypedDict):
    """A session's terms, as :meth:`labelveil.common.mechanisms.interactive.Terms.to_json` writes
    them."""

    epsilon: Rational
    q: Rational
    hits: Count
    call_delta: Rational
    families: Count
    adjacency: Literal["replace-label"]
    unit: Literal["record", "user"]


@with_config(_CLOSED)
class SessionClaim(TypedDict):
    """A session's state, as :meth:`labelveil.common.mechanisms.interactive.Session.to_json` writes
    it."""

    version: Literal[1]
    terms: TermsClaim
    hits: Annotated[list[Count], Field(min_length=1, max_length=64)]
    calls: Count
    call_delta: Rational
    runs: Count
