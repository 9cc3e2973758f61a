"""A prior is gone on with on the terms that paid for it, and on no others."""

from __future__ import annotations

from typing import Any

import pytest

from labelveil.common.release.sections import StratumSection
from labelveil.label_party.release import prior_in_force as module
from labelveil.label_party.release.prior_in_force import (
    open_session,
    prior_in_force,
    session_to_open,
)
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


@pytest.mark.slow
@pytest.mark.parametrize("other", OTHERS)
def test_no_prior_is_gone_on_with_on_other_terms(released: Party, other: str) -> None:
    assert goes_on(released)
    assert not goes_on(released, **OTHERS[other])


def test_no_prior_is_gone_on_with_where_labels_are_several_or_in_strata(released: Party) -> None:
    config, store = released.config(data__epoch="2", **TERMS), Store(released.store)
    with store.read_ledger() as ledger:
        (charge,) = ledger.charges()
        manifest = store.read_manifest(charge)
        stated = {
            "labels": [*manifest.labels, *manifest.labels],
            "strata": [StratumSection(name="a", rows=EVENTS, law=[])],
        }
        for field, value in stated.items():
            other = manifest.model_copy(update={field: value})
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(Store, "read_manifest", lambda *given, other=other: other)
                assert prior_in_force(config, store, ledger) is None, field
        assert prior_in_force(config, store, ledger) is not None


SESSION: dict[str, Any] = TERMS | {
    "privacy__epochs": "additive",
    "privacy__total_epsilon": 60.0,
    "privacy__total_delta": 1e-6,
    "watch__hits": 2,
    "watch__epsilon": 0.03,
}
OTHER_SESSIONS: dict[str, dict[str, Any]] = {
    **{name: OTHERS[name] for name in ("unit", "group")},
    "user": {"privacy__user": "key"},
    "hits": {"watch__hits": 3},
    "epsilon": {"watch__epsilon": 0.02},
    "account": {"privacy__account": "another"},
    "data set": {"data__data_set": "another"},
}


def pays_again(party: Party, **changed: Any) -> bool:
    """Whether a watch would have a session to pay for."""
    asked = {key: value for key, value in (SESSION | changed).items() if value is not None}
    with Store(party.store).read_ledger() as ledger:
        return session_to_open(party.config(**asked), ledger, EVENTS) is not None


@pytest.mark.slow
@pytest.mark.parametrize("other", OTHER_SESSIONS)
def test_a_session_pays_for_tests_on_its_own_terms_alone(party: Party, other: str) -> None:
    """Each of them altered by itself: whoever leaves one out tests on what nobody paid for."""
    config, store = party.config(**SESSION), Store(party.store)
    with store.read_ledger() as ledger:
        order = session_to_open(config, ledger, EVENTS)
    assert order is not None
    asked = module._session_request(config).keys()  # and whatever will be asked besides
    assert asked < OTHER_SESSIONS.keys()
    open_session(store, order)
    assert not pays_again(party)
    assert not pays_again(party, data__epoch="7", domain__upper=11)
    assert pays_again(party, **OTHER_SESSIONS[other])


def test_without_hits_no_session_is_opened(party: Party) -> None:
    assert pays_again(party)
    assert not pays_again(party, watch__hits=None)
