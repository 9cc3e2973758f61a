"""Questions about an epoch are answered from its own events, and from votes that somebody has."""

from __future__ import annotations

import json
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest

from labelveil.common.errors import DataError
from labelveil.common.guarantees import PureDP
from labelveil.common.security.new_keys import write_secret
from labelveil.label_party.queries.evaluation import Evaluation
from labelveil.label_party.server.catalog import Catalog
from labelveil.label_party.store.entries import EVALUATION
from labelveil.label_party.store.purchase import Order
from labelveil.label_party.store.release_store import Store
from tests.label_party.conftest import EVENTS, Party
from tests.label_party.queries.asking import OFFERED, RELEASED


def another_event(party: Party) -> None:
    text = (party.folder / "population.csv").read_text()
    (party.folder / "population.csv").write_text(text.replace("event-7\n", "event-seven\n"))


def one_event_fewer(party: Party) -> None:
    text = (party.folder / "population.csv").read_text()
    (party.folder / "population.csv").write_text(text.replace("event-7\n", ""))


def another_secret(party: Party) -> None:
    (party.folder / "join.key").unlink()
    write_secret(party.folder / "join.key")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (another_event, "the population is no longer that"),
        (one_event_fewer, "the population is no longer that"),
        (another_secret, "are hashed with another secret"),
    ],
)
def test_other_events_than_the_release_has_are_asked_about_nothing(
    party: Party, change: Callable[[Party], None], said: str
) -> None:
    assert party.release(randomizer__name='"randomized-response"').code == 0
    change(party)
    settings = {"evaluation__offered": True, "randomizer__name": '"randomized-response"'}
    config, store = party.config(**settings), Store(party.store)
    found = Catalog(store).find("labels", "1")
    assert found is not None
    with pytest.raises(DataError, match=said):
        Evaluation(config, store).ask(found, "label", np.zeros(EVENTS))
    with store.read_ledger() as ledger:
        assert [charge.purpose for charge in ledger.charges()] == ["labels"]
    assert EVALUATION not in party.run("budget", "--json").out


def test_a_release_of_the_first_format_does_not_say_under_which_secret(party: Party) -> None:
    """That its keys are the same is enough."""
    assert party.release(**RELEASED).code == 0
    store = Store(party.store)
    found = Catalog(store).find("labels", "1")
    assert found is not None
    stated = found.manifest.population.model_copy(update={"secret_check": None})
    found.manifest = found.manifest.model_copy(update={"population": stated})
    asked = Evaluation(party.config(**OFFERED), store).ask(found, "label", np.full(EVENTS, 5.0))
    assert asked.number == 1


@pytest.mark.parametrize(
    ("term", "changed"),
    [
        ("user", {"privacy__user": "whose"}),
        ("date", {"data__date": "day", "data__epoch": "2024-01-01"}),
        ("duplicates", {"data__duplicates": "last"}),
        ("population", {"data__population": "submitted"}),
        ("records_per_unit", {"privacy__max_records_per_user": 3}),
    ],
)
def test_which_events_these_are_is_a_term_of_every_purchase(
    party: Party, term: str, changed: dict[str, object]
) -> None:
    users = {"privacy__unit": "user", "privacy__user": "who", "privacy__max_records_per_user": 2}
    base = {} if term == "population" else users

    def order(**settings: object) -> Order:
        config = party.config(**base | settings)
        return Order.configured(config, "any", PureDP.of(1), {"bins": 7})

    (said,) = order().differences(order(**changed))
    assert said.startswith(f"{term} was ")
    assert not order(**changed).differences(order(**changed))


@pytest.mark.slow
def test_rows_without_a_user_vote_for_nothing(party: Party) -> None:
    """With ε = 40 noise is 0 but for a chance below 1 in 1000: most of five releases are exact."""
    votes = {"hats": 70, "shoes": 50, "coats": 20}
    rows = [(name, f"user-{i}") for name, size in votes.items() for i in range(size)] * 2
    rows += [(name, None) for name in votes for _ in range(9)]
    keys = [f"event-{i}" for i in range(len(rows))]
    items, users = zip(*rows, strict=True)
    party.write_population({"key": keys})
    party.write_labels({"key": keys, "label": [1.0] * len(rows), "item": items, "who": users})
    (party.folder / "items.txt").write_text("\n".join(votes) + "\n")
    arguments = ["top-k", "--by", "item", "--categories", "items.txt", "--user", "who", "--k", "2"]
    exact = 0
    for epoch in range(5):
        much = party.arguments(data__epoch=epoch, privacy__epsilon=40, privacy__total_epsilon=400)
        assert party.run(*arguments, *much, "--out", f"{epoch}.json").code == 0
        shown = json.loads((party.folder / f"{epoch}.json").read_text())
        assert Fraction(shown["noise"]["scale"]) <= Fraction(1, 8)
        counts = {row["category"]: row["users"] for row in shown["leaders"]}
        exact += counts == {"hats": 70, "shoes": 50}
    assert exact >= 3
