"""Where labels and population come from: a file, an object store, or a database query.

Addresses stand in configuration files, command lines, process lists and errors, so they carry no
credentials: one that does is refused by a line that does not repeat it. Credentials come from the
environment (``PGPASSFILE``, ``PGSERVICE``, ``AWS_ACCESS_KEY_ID``, …, as the drivers define them) or
from a file that its owner alone can read.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import parse_qsl, urlsplit

from pydantic import BeforeValidator

from labelveil.common.config import Words
from labelveil.common.errors import ConfigError

if TYPE_CHECKING:
    from labelveil.label_party.sources.remote_source import Source

STORES = ("s3", "s3a", "gs", "gcs", "az", "azure", "abfs", "abfss", "adl", "https", "http")
DATABASES = ("sqlite", "postgresql", "postgres")
_PARAMETERS = {
    *("sslmode", "sslrootcert", "sslcert", "sslkey", "connect_timeout", "application_name"),
    *("service", "host", "port", "user", "dbname", "target_session_attrs"),
}
_ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")
_LOOPBACK = {"localhost", "127.0.0.1", "::1"}
_REMEDY = (
    "leave them out and give them by the environment (PGPASSFILE, AWS_ACCESS_KEY_ID, …) or by"
    " [data] credentials_file"
)


def check_address(value: Any) -> Any:
    """Return a path, or an address as text.

    ``ConfigError`` if an address carries credentials or is of no known kind; the line does not
    repeat it.
    """
    text = str(value) if isinstance(value, str | Path) else ""
    match = _ADDRESS.match(text)
    if match is None:
        if re.search(r"password\s*=", text, re.IGNORECASE):
            raise ConfigError(f"an address in [data] holds credentials; {_REMEDY}")
        return value if not isinstance(value, str) else Path(value)
    scheme, rest = match[1].lower(), text[match.end() :].removeprefix("/")
    # a database's login may stand before the @: no password, nor what may be a part of one
    user, at, _ = rest.rpartition("@")
    if at and (":" in user or "/" in user or scheme in ("s3", "s3a", "gs", "gcs", "http", "https")):
        raise ConfigError(f"an address in [data] holds credentials; {_REMEDY}")
    known = scheme in (*STORES, *DATABASES) and text.startswith(f"{match[1]}://")
    try:
        parts = urlsplit(text)
        query = parse_qsl(parts.query, keep_blank_values=True)
        host = parts.hostname
    except ValueError:
        known, query, host = False, [], None
    if not known:
        raise ConfigError(
            "an address in [data] must begin with one of"
            f" {', '.join(name + '://' for name in (*DATABASES, *STORES))}"
        )
    allowed = _PARAMETERS if scheme in DATABASES else set()
    if any(name not in allowed for name, _ in query) or ("?" in text and not query) or "#" in text:
        raise ConfigError(
            "an address in [data] may hold credentials in what follows its '?' or '#';"
            f" {_REMEDY}; databases may be given {', '.join(sorted(_PARAMETERS))}"
        )
    if scheme == "http" and host not in _LOOPBACK:
        raise ConfigError(
            "labels do not travel in the clear: an http:// address must be this machine's own;"
            " use https:// in [data]"
        )
    return text


Address = Annotated[
    Path | str,
    BeforeValidator(check_address),
    Words("a path, or the address of an object or a database"),
]
"""A path, or the address of an object or a database."""


def is_database(place: Path | str) -> bool:
    """Whether a checked place is a database."""
    return isinstance(place, str) and urlsplit(place).scheme in DATABASES


def check_query(name: str, place: Path | str, query: str | None) -> None:
    """Raise ``ConfigError`` if a database has no query, or something else has one."""
    database = is_database(place)
    if database and not query:
        raise ConfigError(
            f"{name} is a database and needs a query that returns its columns; set [data]"
            f" {name}_query"
        )
    if query and not database:
        raise ConfigError(
            f"{name}_query has no effect where {name} is no database; remove it or set [data]"
            f" {name} to sqlite:///… or postgresql://…"
        )


def locate(
    place: Path | str, query: str | None, credentials_file: Path | None, of: str = "labels"
) -> Source:
    """Return the source that a checked place and its query mean; ``of`` is what is read there."""
    if isinstance(place, Path):
        return place
    # a server checks its configuration, too, and reads no table
    if query:
        from labelveil.label_party.sources.databases import Query

        return Query(place, query, credentials_file, of)
    from labelveil.label_party.sources.object_stores import Remote

    return Remote(place, credentials_file)
