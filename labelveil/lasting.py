"""Sessions of target charging that last: the labels party's ledger pays for them."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from labelveil.common.arrays import Floats
    from labelveil.common.mechanisms.interactive import Session, Terms


def open_session(
    name: str,
    terms: Terms,
    config: str | Path = "label_party.toml",
    settings: Mapping[str, Any] | None = None,
) -> AbstractContextManager[Session[Floats]]:
    """Open a session over the labels of the configured epoch, or go on with it.

    ::

        with open_session("models above the bar", Terms(not_prior(epsilon), hits=5)) as session:
            held = HeldOutcome(session, train_and_score, epsilon / 2)
            model = held.ask(lambda scored: scored[0] > 0.8)  # None unless it is

    The ledger is charged once, when it is first opened, for all that it will ever answer, and has
    each hit before its outcome is seen. Its data are (n, m) labels in the order of a release's
    rows, clipped to their domains, and must stay the same while it lasts.

    Parameters
    ----------
    name
        Of the session: another name is another purchase.
    terms
        One target family, calls whose δ is 0, and the configured privacy unit.
    config, settings
        The labels party's file, and settings over it, such as ``{"data.epoch": "2"}``. An account
        pays for it that has a δ (``[privacy] total_delta``).

    Raises
    ------
    BudgetError, ConfigError, ReleaseError
        If the account's budget does not allow it or another process has it open; for terms that it
        cannot keep; if it was sold on other terms, or is closed.
    """
    from labelveil.label_party.config.sections import load
    from labelveil.label_party.queries import own_session

    pairs = [f"{key}={value}" for key, value in (settings or {}).items()]
    return own_session.open_session(load(Path(config), settings=pairs), name, terms)
