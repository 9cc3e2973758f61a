"""``label-party doctor``: whether a configuration can work, without changing anything."""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable
from functools import partial

from labelveil.common.config.answers import Json
from labelveil.common.config.examination import NotYetThere, answer, examine
from labelveil.common.errors import ConfigError, listed
from labelveil.common.security.proxies import proxies
from labelveil.label_party.commands.options import options
from labelveil.label_party.config.data import EPOCH_PLACE
from labelveil.label_party.config.sections import LabelPartyConfig


@options("store.directory")
def doctor(config: LabelPartyConfig, shown: Json) -> None:
    checks: dict[str, Callable[[LabelPartyConfig], str]] = {
        "configuration": _configured,
        "labels": partial(check_source, which="labels"),
        "population": partial(check_source, which="population"),
        "keys": _keys,
        "certificates": _certificates,
        "proxies": lambda config: proxies(),
        "address": _address,
        "budget": _budget,
    }
    answer(examine({name: partial(check, config) for name, check in checks.items()}), shown)


def _configured(config: LabelPartyConfig) -> str:
    labels = (f"{t.name} in {t.bounds[0]:g} … {t.bounds[1]:g}" for t in config.labels)
    data, privacy = config.data, config.privacy
    return (
        f"data set {data.data_set}, epoch {data.epoch}: {listed([*labels])}; ε ="
        f" {privacy.epsilon:g}, of {privacy.limit} in all"
    )


def check_source(config: LabelPartyConfig, which: str) -> str:
    """Say what labels or population are read from, once that has the columns it should have.

    ``LabelveilError`` if it has not; :class:`NotYetThere` if each epoch has files of its own.
    """
    from labelveil.label_party.events.columns import Column
    from labelveil.label_party.events.epoch import rows_of_epoch

    column = config.strata.column
    labels, population = rows_of_epoch(config, (), None if column is None else Column(column))
    rows = labels if which == "labels" else population
    if rows is None:
        return "submitted by the features party" if config.data.submitted else "the labels' keys"
    if EPOCH_PLACE in str(rows.source):
        raise NotYetThere(
            f"{rows.source} is each epoch's own; label-party watch --dry-run reads them"
        )
    rows.check()
    return f"{rows.source}: {listed(rows.columns)}"


def _keys(config: LabelPartyConfig) -> str:
    from labelveil.common.release.event_keys import read_secret
    from labelveil.common.release.signature import read_signing_key

    keys = config.keys
    read_secret(keys.secret_file)
    if keys.signing_key is None:
        return f"join secret in {keys.secret_file}; releases are not signed"
    read_signing_key(keys.signing_key)
    return f"join secret in {keys.secret_file}, signing key in {keys.signing_key}"


def _certificates(config: LabelPartyConfig) -> str:
    from labelveil.common.security.certificate_checks import described
    from labelveil.label_party.server.credentials import ServerCredentials
    from labelveil.label_party.server.handshakes import Handshakes

    ServerCredentials(config.server, Handshakes())  # all that a server would refuse
    return described(config.server.certificate, config.server.client_ca)


def _address(config: LabelPartyConfig) -> str:
    listen = config.server.listen
    host, _, port = listen.rpartition(":")
    try:
        family = socket.AF_INET6 if host.startswith("[") else socket.AF_INET
        socket.create_server((host.strip("[]"), int(port)), family=family).close()
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return f"something listens on {listen}"
        raise ConfigError(
            f"{listen} cannot be listened on: {error.strerror}; set [server] listen"
        ) from error
    raise NotYetThere(f"nothing listens on {listen} yet; run label-party serve")


def _budget(config: LabelPartyConfig) -> str:
    from labelveil.label_party.store.account import read_accounts
    from labelveil.label_party.store.budget import short

    accounts = {each.account: each for each in read_accounts(config)}
    mine = accounts.pop(config.account)
    others = f"; others in this store: {listed([*accounts])}" if accounts else ""
    return (
        f"account {mine.account} pays for these events: spent {short(mine.spent, 'nothing')} of"
        f" {mine.limit}, left {short(mine.left)}, by the ledger in {config.store.directory}{others}"
    )
