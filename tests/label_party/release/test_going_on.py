"""A prior is gone on with on the terms that paid for it, and on no others."""

from __future__ import annotations

from typing import Any

import pytest

from labelveil.label_party.release.prior_in_force import prior_in_force
from labelveil.label_party.store.release_store import Store
from tests.label_party.conftest import EVENTS, Party

TERMS: dict[str, Any] = {
    "privacy__unit": "user",
    "privacy__user": "who",
    "privacy__max_records_per_user": 1,
    "privacy__total_epsilon": 10,
    "domain__lower": 0,
    "domain__upper": 10,
}
OTHERS: dict[str, dict[str, Any]] = {
    "unit": {
        "privacy__unit": "record",
        "privacy__user": None,
        "privacy__max_records_per_user": None,
    },
    "group": {"privacy__max_records_per_user": 2},
    "lower": {"domain__lower": -1},
    "upper": {"domain__upper": 11},
}


def goes_on(party: Party, **changed: Any) -> bool:
    """Whether the next epoch would go on with the first one's prior."""
    asked = {key: value for key, value in (TERMS | changed).items() if value is not None}
    config, store = party.config(data__epoch="2", **asked), Store(party.store)
    with store.read_ledger() as ledger:
        return prior_in_force(config, store, ledger) is not None


@pytest.fixture
def released(party: Party) -> Party:
    keys = [f"event-{i}" for i in range(EVENTS)]
    party.write_population({"key": keys, "who": [f"user-{i}" for i in range(EVENTS)]})
    done = party.release(**TERMS)
    assert done.code == 0, done
    return party


@pytest.mark.parametrize("other", OTHERS)
def test_no_prior_is_gone_on_with_on_other_terms(released: Party, other: str) -> None:
    assert goes_on(released)
    assert not goes_on(released, **OTHERS[other])
