"""What a database's refusal says, in a line without a password, a row or an escape code.

A driver's own words are read for their kind alone. Of the names in them one is shown that the
configured query has, too: a function of the server's may have put a cell in its place. Sources:
the SQLSTATEs in appendix A of PostgreSQL's manual, libpq's ``fe-connect.c``, SQLite's ``parse.y``
and ``resolve.c``.
"""

from __future__ import annotations

import re

from labelveil.label_party.sources.query_columns import names_in

_ONE_SELECT = "it must be one SELECT that only reads: set [data] {of}_query"
_CORRECT = "correct it in [data] {of}_query, or in the flag that gave it"
_LATER = "run it again later"
_BY_STATE = {
    "42703": ("there is no such column:", _CORRECT),
    "42P01": ("there is no such table, or this login does not see it:", _CORRECT),
    "3F000": ("there is no such schema:", _CORRECT),
    "42501": ("this login may not read it:", "have it given SELECT on tables, USAGE on schemas"),
    "42702": ("several of its tables have such a column:", "write the table before it, as in t.c"),
    "42883": ("there is no such function or operator for these types:", _CORRECT),
    "42601": ("it is not SQL:", _ONE_SELECT),
    "25006": ("it would write", _ONE_SELECT),
    "57014": ("the server ended it, as after its statement_timeout", "raise that for this login"),
    "22": ("a cast or a function in it fails in some row", "write it so that none can"),
    "08": ("the connection was lost", _LATER),
    "53": ("the server is out of memory, disk or connections", _LATER),
    "57": ("the server is shutting down or starting", _LATER),
}
"""Cause and remedy by SQLSTATE, or its class; behind a colon the name follows."""

_PASSWORD = (
    "correct the line host:port:database:user:password in PGPASSFILE or [data] credentials_file"
)
_HOST = "correct host and port in the address, and see that it runs and no firewall is between"
_AUTHORITY = "set sslrootcert in the address to the authority's certificate"
_LOGINS = {
    "port number|bad value|mode value|percent-encoded|forbidden": (
        "the address is not understood",
        "correct port and what follows its ?",
    ),
    "no password supplied": ("there is no password for this login", _PASSWORD),
    "password authentication failed": ("wrong password, or no such user", _PASSWORD),
    "pg_hba.conf": (
        "the server admits no such login from here",
        "have it admitted in pg_hba.conf, or ask for TLS by sslmode=require",
    ),
    "role .* does not exist": ("there is no such user", "correct it, in front of the @"),
    "database .* does not exist": ("there is no such database", "correct it, behind the last /"),
    "permission denied": ("this login may not use this database", "have it given CONNECT"),
    "too many c|connection slots": ("the server has no connection left", _LATER),
    "starting up|shutting down": ("the server is starting or stopping", _LATER),
    "certificate verify failed": (
        "its certificate is not signed by the authority in sslrootcert",
        _AUTHORITY,
    ),
    "does not match host name": (
        "its certificate is for another name",
        "write the host in the address as the certificate has it",
    ),
    "root certificate": ("no authority is there to check its certificate by", _AUTHORITY),
    "private key": ("its sslkey cannot be used", "see that its owner alone can read it"),
    "invalid response": ("what answers there is no PostgreSQL server", _HOST),
    "ssl|could not be received": (
        "TLS was refused or failed",
        "correct sslmode in the address, or have TLS switched on there",
    ),
    "connection refused": ("nothing listens at this host and port", _HOST),
    "no such file": ("no server has a socket there", _HOST),
    "resolve host|translate host": ("no machine of this name is known", _HOST),
    "time-?out|timed out": ("it does not answer in time", _HOST),
    "unreachable|no route": ("there is no way to this host", _HOST),
    "service": ("there is no such service", "name one of the file in PGSERVICEFILE"),
    "session is": ("it is no server such as target_session_attrs asks for", "correct that"),
}
"""Cause and remedy of a connection that fails, by what libpq says, the first that fits."""

_SQLITE = {
    "no such column": ("there is no such column:", _CORRECT),
    "no such table": ("there is no such table:", _CORRECT),
    "no such function": ("there is no such function:", _CORRECT),
    "ambiguous column": ("several of its tables have such a column:", "write the table before it"),
    "syntax error|incomplete input": ("it is not SQL:", _ONE_SELECT),
    "one statement": ("it is more than one statement", _ONE_SELECT),
    "not authorized|prohibited": ("it does more than read tables of this file", _ONE_SELECT),
    "locked": ("another process keeps the file locked", _LATER),
    "not a database": ("the file is no SQLite database", "name another in [data] {of}"),
    "malformed": ("the file is damaged", "restore it"),
    "unable to open": ("the file cannot be opened", "check its rights, and its folder's"),
    "readonly": ("its log cannot be read without writing beside it", "let its folder be written"),
    "disk i/o": ("its disk cannot be read", "check that"),
}


def explain_postgres(error: Exception, query: str, of: str) -> str:
    """Say why PostgreSQL refused a query; ``of`` is whose it is, a setting in [data]."""
    state = getattr(error, "sqlstate", None) or ""
    kind = f"{type(error).__name__}, SQLSTATE {state}" if state else type(error).__name__
    cause, remedy = _BY_STATE.get(state) or _BY_STATE.get(state[:2]) or ("", _ONE_SELECT)
    message = str(getattr(getattr(error, "diag", None), "message_primary", None) or "")
    said = _said(cause, message, query)
    return f"PostgreSQL refused the query{said} ({kind}); {remedy.format(of=of)}"


def explain_login(error: Exception) -> str:
    """Say why no connection to PostgreSQL was made."""
    unknown = f"it cannot be reached ({type(error).__name__})", _HOST
    cause, remedy = _first(_LOGINS, str(error)) or unknown
    return f"no connection to PostgreSQL: {cause}; {remedy}"


def explain_sqlite(error: Exception, query: str, of: str) -> str:
    """Say why SQLite refused to read; ``of`` is whose query it is, a setting in [data]."""
    kind = getattr(error, "sqlite_errorname", None) or type(error).__name__
    cause, remedy = _first(_SQLITE, str(error)) or ("", "check [data] {of} and {of}_query")
    said = _said(cause, str(error), query)
    return f"SQLite refused to read{said} ({kind}); {remedy.format(of=of)}"


def _first(table: dict[str, tuple[str, str]], message: str) -> tuple[str, str] | None:
    """The first entry that fits a message, whatever hosts, users and columns are called."""
    plain = re.sub(r"\"[^\"]*\"|'[^']*'", "", message).lower()
    return next((said for words, said in table.items() if re.search(words, plain)), None)


def _said(cause: str, message: str, query: str) -> str:
    """A cause, and the name in a message that it is about, if the query has it."""
    known, quoted = names_in(query), re.findall(r'["«»„“](.+?)["»«“”](?!\w)', message)
    behind, words = re.findall(r": (.+)$", message), re.split(r"[\s():,]+", message)
    for name in (*quoted, *behind, *reversed(words)) if cause.endswith(":") else ():
        folded = name.casefold()
        if folded and (folded in known or {*folded.split(".")} <= known):
            return f": {cause} {name[:80]!r}"
    return f": {cause.removesuffix(':')}" if cause else ""
