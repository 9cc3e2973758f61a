"""Paying once for some bytes: the same bytes forever, and nothing spent where there are none."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from labelveil.common.errors import BudgetError, ReleaseError
from labelveil.common.formats import TERMS
from labelveil.common.guarantees import ApproximateDP, PureDP, Unit, ZeroConcentratedDP
from labelveil.label_party.store.disk import StoreError
from labelveil.label_party.store.entries import Charge
from labelveil.label_party.store.ledger import Ledger
from labelveil.label_party.store.purchase import (
    Order,
    Outcome,
    find_outcome,
    noting_charges,
    pay_once,
    rehearsing,
)
from labelveil.label_party.store.recovery import recover
from labelveil.label_party.store.release_store import Store

PURCHASE = Order(
    "shop", "1", "drift", PureDP.of(Fraction(1)), limit=PureDP.of(Fraction(2)), request={"bins": 7}
)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def charges(store: Store) -> list[str]:
    with store.open_ledger() as ledger:
        return [f"{entry.epoch} {entry.purpose} {entry.state}" for entry in ledger.charges()]


def test_the_first_bytes_stay(store: Store) -> None:
    assert find_outcome(store, PURCHASE) is None
    first = pay_once(store, PURCHASE, lambda: b"one")
    assert not first.payment.existed
    assert first.payment.left == PureDP.of(Fraction(1))

    def never() -> bytes:
        raise AssertionError

    again = pay_once(store, PURCHASE, never)
    assert again == Outcome(b"one", replace(first.payment, existed=True))
    assert find_outcome(store, PURCHASE) == again
    other = pay_once(store, replace(PURCHASE, purpose="other"), lambda: b"two")
    assert other.data == b"two"
    with pytest.raises(BudgetError):
        pay_once(store, replace(PURCHASE, epoch="2"), never)
    assert charges(store) == ["1 drift committed", "1 other committed"]


@pytest.mark.parametrize(
    ("terms", "said"),
    [
        ({"request": {"bins": 8}}, "bins was 7 and is 8 now"),
        ({"request": {}}, "bins was 7 and is none now"),
        ({"guarantee": PureDP.of(Fraction(1, 2))}, 'guarantee.epsilon was "1" and is "1/2" now'),
        (
            {"guarantee": PureDP.of(Fraction(1), unit=Unit.USER)},
            'guarantee.unit was "record" and is "user" now',
        ),
        ({"records_per_unit": 5}, "records_per_unit was 1 and is 5 now"),
        ({"answers": 3}, "answers was 0 and is 3 now"),
    ],
)
def test_what_was_sold_on_other_terms_is_refused(
    store: Store, terms: dict[str, Any], said: str
) -> None:
    pay_once(store, PURCHASE, lambda: b"one")
    with pytest.raises(ReleaseError) as refused:
        find_outcome(store, replace(PURCHASE, **terms))
    assert said in str(refused.value)
    assert str(refused.value).endswith("restore that setting, or name another epoch with --epoch")
    again = replace(PURCHASE, limit=PureDP.of(Fraction(9)), composition="disjoint")
    assert find_outcome(store, again) is not None  # what may be spent is no term of what was sold


def test_terms_that_another_version_does_not_know_are_no_other_terms(store: Store) -> None:
    """A purchase of the first versions, whose terms have no format, is found again by a newer."""
    charge = pay_once(store, PURCHASE, lambda: b"one").payment.charge
    newer = {"format": f"{TERMS.name}/{TERMS.number + 1}", "bins": 7, "depth": 2}
    assert find_outcome(store, replace(PURCHASE, request=newer)) is not None
    with pytest.raises(ReleaseError, match=r"bins was 7 and is 8 now; .* nothing is charged again"):
        find_outcome(store, replace(PURCHASE, request=newer | {"bins": 8}))
    assert not charge.differences(replace(PURCHASE, request=newer))
    same = newer | {"format": f"{TERMS.name}/1"}
    assert "depth was none and is 2 now" in charge.differences(replace(PURCHASE, request=same))


def test_what_fails_spends_nothing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> bytes:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        pay_once(store, PURCHASE, fails)

    def full(*given: object) -> None:
        raise StoreError("full")

    for owner, step in ((Store, "write_outcome"), (Ledger, "commit")):
        with monkeypatch.context() as patch:
            patch.setattr(owner, step, full)
            with pytest.raises(StoreError, match="full"):
                pay_once(store, PURCHASE, lambda: b"one")
        assert charges(store) == []
        assert store.folders() == []


def test_bytes_that_cannot_be_removed_stay_reserved(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else they would lie there without a row, as if another ledger had paid for them.

    Each time the row is written anew before they are to go: a commit that failed may yet count.
    """
    reserved: list[str] = []

    def note() -> bytes:
        with sqlite3.connect(store.ledger_path) as database:
            reserved.extend(*database.execute("SELECT reserved_at FROM charges").fetchall())
        return b"one"

    def refused(*given: object) -> None:
        raise StoreError("refused")

    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "commit", refused)
        patch.setattr("labelveil.label_party.store.release_store.shutil.rmtree", refused)
        for _ in range(2):
            with pytest.raises(StoreError, match="refused"):
                pay_once(store, PURCHASE, note)
            note()
    assert len(set(reserved)) == len(reserved) == 3
    assert charges(store) == ["1 drift reserved"]
    with rehearsing(store) as rehearsal:  # a dead builder's takes no room there
        more = [replace(PURCHASE, epoch=epoch) for epoch in "23"]
        assert rehearsal.buy(more).left == PureDP.of(0)
    paid = pay_once(store, PURCHASE, lambda: b"two")
    assert (paid.data, paid.payment.recovered) == (b"two", 1)
    assert charges(store) == ["1 drift committed"]
    assert pay_once(store, PURCHASE, note).payment.recovered == 0


def test_charges_are_noted_for_who_asked_and_for_nobody_afterwards(store: Store) -> None:
    noted: list[Charge] = []
    with noting_charges(noted):
        charge = pay_once(store, PURCHASE, lambda: b"one").payment.charge
        pay_once(store, PURCHASE, lambda: b"two")  # it is there: nothing is charged
    pay_once(store, replace(PURCHASE, epoch="2"), lambda: b"three")
    assert [entry.id for entry in noted] == [charge.id]


def test_any_kind_of_guarantee_can_be_paid(store: Store) -> None:
    limit = ApproximateDP.of(Fraction(2), Fraction("1e-6"))
    gaussian = ZeroConcentratedDP.of(Fraction(1, 100), Fraction("1e-7"))
    with pytest.raises(BudgetError, match="total_delta"):
        pay_once(store, replace(PURCHASE, guarantee=gaussian), lambda: b"one")
    assert pay_once(store, replace(PURCHASE, guarantee=gaussian, limit=limit), lambda: b"one")
    with store.open_ledger() as ledger:
        assert ledger.charges()[0].guarantee == gaussian


def test_an_older_ledger_counts_what_it_does_not_know(store: Store, tmp_path: Path) -> None:
    pay_once(store, PURCHASE, lambda: b"one")
    with store.open_ledger() as ledger:
        ledger.backup(tmp_path / "older.sqlite")
    later = replace(PURCHASE, purpose="top-k", composition="disjoint")
    pay_once(store, later, lambda: b"two")
    with store.open_ledger() as ledger:
        before = ledger.charges()[-1]
    for path in store.directory.glob("ledger.sqlite*"):
        path.unlink()
    for path in tmp_path.glob("older.sqlite*"):
        path.rename(store.directory / path.name.replace("older", "ledger"))
    with store.building(), store.open_ledger() as ledger:
        found = recover(store, ledger)
        assert found.counted == ["shop/1 (top-k)"]
        assert recover(store, ledger).counted == []
        after = ledger.charges()[-1]
        for field in ("epoch", "purpose", "composition", "guarantee", "request", "state"):
            assert getattr(after, field) == getattr(before, field)
    assert pay_once(store, later, lambda: b"three").data == b"two"


def test_damage_is_refused(store: Store) -> None:
    pay_once(store, PURCHASE, lambda: b"one")
    (path,) = store.folders()
    (path / "outcome.bin").write_bytes(b"two")
    with pytest.raises(ReleaseError, match="digest"):
        find_outcome(store, PURCHASE)
    facts = json.loads((path / "charge.json").read_text())
    assert facts["purpose"] == "drift"
    (path / "outcome.bin").unlink()
    with pytest.raises(ReleaseError, match="cannot be read"):
        find_outcome(store, PURCHASE)
