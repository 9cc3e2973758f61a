"""A session of target charging that lasts: one's own tests and algorithms, paid for by the ledger.

The session is charged once, when it is first opened, for everything that it will ever answer
(:class:`labelveil.common.mechanisms.interactive.Terms`). Each hit is counted in the ledger, in a
transaction of its own, before its outcome leaves: a process may end at any point, and the next one
goes on with the hits that are left. One process has a session at a time. A ledger that is an older
copy than the log of hits beside it closes the session, and so does a restore.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from labelveil.common.arrays import Floats
from labelveil.common.entropy import system_entropy
from labelveil.common.errors import BudgetError, ConfigError, ReleaseError
from labelveil.common.files import append_durably, exclusive, file_errors
from labelveil.common.mechanisms.interactive import Session, Terms
from labelveil.label_party.config.sections import LabelPartyConfig
from labelveil.label_party.events.open import open_events
from labelveil.label_party.queries.evaluation import shown_questions
from labelveil.label_party.store.disk import StoreError
from labelveil.label_party.store.entries import Charge
from labelveil.label_party.store.purchase import Order, pay_once
from labelveil.label_party.store.release_store import ANSWERED_FILE, Store

_PURPOSE = "session"
_LOCK = "session.lock"


@contextmanager
def open_session(config: LabelPartyConfig, name: str, terms: Terms) -> Iterator[Session[Floats]]:
    """Open a session over the labels of the configured epoch, or go on with it.

    ::

        terms = Terms(not_prior(Fraction(1, 10)), hits=20)
        with open_session(config, "models above the bar", terms) as session:
            held = HeldOutcome(session, train_and_score, Fraction(1, 20))
            model = held.ask(lambda scored: scored.score > 0.8)

    Its data are (n, m) labels in the order of a release's rows, clipped to their domains; they must
    stay the same while it lasts. Calls are those of :mod:`labelveil.common.mechanisms.interactive`.
    Outcomes that are held back are forgotten when it ends.

    Parameters
    ----------
    config
        Names the epoch, the account that pays, and the privacy unit, which the terms must have.
    name
        Of the session: another one is another purchase.
    terms
        One target family, and calls whose δ is 0.

    Raises
    ------
    BudgetError
        If the account's budget does not allow it, or another process has it open.
    ConfigError
        For terms that it cannot keep.
    ReleaseError
        If it was sold on other terms, or is closed.
    """
    unit = config.privacy.privacy_unit
    if terms.families > 1 or terms.call_delta or terms.unit != unit or config.privacy.group > 1:
        raise ConfigError(
            f"a session that lasts has one target family, calls of delta 0 and units of one"
            f" {unit}; its terms have {terms.families}, {float(terms.call_delta):g} and units of"
            f" at most {config.privacy.group} of a {terms.unit}"
        )
    store = Store(config.store.directory)
    request = {"name": name, "terms": terms.to_json()}
    order = Order.configured(
        config, f"{_PURPOSE} {name}", terms.guarantee, request, answers=terms.hits
    )
    with open_events(config, quiet=True) as events:
        lower, upper = np.array([label.bounds for label in config.labels]).T
        labels = np.concatenate(
            [np.clip(part, lower, upper) for _, part in events.keys_and_labels()]
        )
        # what is kept holds no label: they are read anew whenever the session is opened
        data = json.dumps(request, sort_keys=True).encode()
        charge = pay_once(store, order, lambda: data, events).payment.charge
    folder = store.folder(*order.name)
    busy = BudgetError(f"session {name!r:.60} is open in another process; wait until that ends")
    with exclusive(folder / _LOCK, busy):
        journal = _Journal(store, order, charge)
        # a call that does not hit costs nothing where its δ is 0, so that hits alone were kept
        state = {
            "version": 1,
            "terms": terms.to_json(),
            "hits": [journal.hits],
            "call_delta": "0",
            "calls": journal.hits,
            "runs": journal.hits,
        }
        entropy = system_entropy()
        try:
            yield Session.resume(state, labels, entropy, journal)
        finally:
            entropy.destroy()


class _Journal:
    """Counts hits in the ledger, before anybody sees what hit."""

    def __init__(self, store: Store, order: Order, charge: Charge) -> None:
        self._store, self._charge = store, charge
        self._log = store.folder(*order.name) / ANSWERED_FILE
        with store.read_ledger() as ledger:
            given, closed = ledger.answers(charge), ledger.closed(charge)
        if closed is None and not shown_questions(self._log) <= {one.question for one in given}:
            closed = f"had hits that the ledger does not know ({self._log}), an older copy,"
        if closed is not None:
            raise ReleaseError(
                f"{order.purpose!r:.60} {closed} and is closed; open one of another name"
            )
        self.hits = len(given)

    def __call__(self, state: dict[str, Any]) -> None:
        (hits,) = state["hits"]
        while self.hits < hits:
            token = secrets.token_hex(32)
            remedy = "; the outcome is lost, and may have been paid for"
            with file_errors(StoreError, f"{self._log} cannot be written", remedy):
                with self._store.open_ledger() as ledger:
                    ledger.answer(self._charge, token, 0.0, 0.0)
                append_durably(self._log, f"\n{token}".encode())
            self.hits += 1
