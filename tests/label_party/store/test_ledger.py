"""The ledger: exact budgets, reservations, what one record may lose over several epochs."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest

from labelveil.common import noncopyable
from labelveil.common.errors import BudgetError, LabelveilError, PrivacyError
from labelveil.common.guarantees import (
    ApproximateDP,
    PureDP,
    RenyiDP,
    Unit,
    ZeroConcentratedDP,
    adaptive_total,
)
from labelveil.common.guarantees.base import Adjacency
from labelveil.label_party.store import ledger as ledger_module
from labelveil.label_party.store.budget import remaining
from labelveil.label_party.store.entries import LABELS, Composition, Covered, Purchase
from labelveil.label_party.store.ledger import Ledger, LedgerError
from labelveil.label_party.store.schema import VERSION
from tests.label_party.store.ledgers import reserve

DIGEST = "ab" * 32


def pure(epsilon: float | str, unit: Unit = Unit.RECORD) -> PureDP:
    return PureDP.of(Fraction(str(epsilon)), unit=unit)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.sqlite"


def spend(
    ledger: Ledger, epoch: str, epsilon: float | str, total: float | str = 1,
    composition: Composition = "additive",
) -> int:  # fmt: skip
    charge = reserve(ledger, "d", epoch, pure(epsilon), pure(total), composition=composition)
    ledger.commit(charge, DIGEST, 10)
    return charge


def test_charges_add_up_exactly(path: Path) -> None:
    with Ledger(path) as ledger:
        for epoch in range(10):
            spend(ledger, str(epoch), "0.1")
        assert ledger.spent("d", pure(2)) == pure(1)
        with pytest.raises(BudgetError, match=r"ε = 0 .* is left of ε = 1"):
            spend(ledger, "more", "0.000000001")


def test_a_refusal_says_what_is_asked_left_and_total_and_spends_nothing(path: Path) -> None:
    with Ledger(path) as ledger:
        spend(ledger, "1", "0.7")
        with pytest.raises(BudgetError) as refusal:
            reserve(ledger, "d", "2", pure("0.4"), pure(1))
        for part in ("asked for ε = 0.4", "ε = 0.3", "left of ε = 1", "total_epsilon"):
            assert part in str(refusal.value)
        assert [entry.epoch for entry in ledger.charges()] == ["1"]
    with Ledger(path) as ledger, pytest.raises(BudgetError):
        reserve(ledger, "other", "1", pure(2), pure(1))
    with Ledger(path) as ledger:
        assert [entry.data_set for entry in ledger.charges()] == ["d"]


def test_a_reservation_counts_until_it_is_abandoned(path: Path) -> None:
    with Ledger(path) as ledger:
        charge = reserve(ledger, "d", "1", pure(1), pure(1))
        with pytest.raises(BudgetError):
            reserve(ledger, "d", "2", pure(1), pure(1))
        assert ledger.committed("d", "1") is None
        assert [each.committed_at for each in ledger.reservations()] == [None]
        ledger.abandon(charge)
        assert ledger.spent("d", pure(1)) is None
        with pytest.raises(LedgerError, match="not open"):
            ledger.commit(charge, DIGEST, 10)


def test_a_fork_neither_reads_nor_writes_through_a_ledger_it_took_along(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Closing such a connection drops the locks of who made it: SQLite's file may be damaged."""
    with Ledger(path) as ledger:
        spend(ledger, "1", "0.1")
        (charge,) = ledger.charges()
        uses: list[Callable[[], object]] = [
            *(ledger.charges, ledger.reservations, ledger.releases, ledger.withdrawals),
            *(ledger.restores, ledger.accounts, ledger.separations, ledger.coverage),
            *(ledger.identity, ledger.last_change, ledger.fingerprint_secret, ledger.settle),
            lambda: ledger.find("d", "1", LABELS),
            lambda: ledger.answers(charge),
            lambda: ledger.closed(charge),
            lambda: ledger.cap("d"),
            lambda: ledger.spent("d", pure(1)),
            lambda: ledger.left("d", pure(1)),
            lambda: ledger.backup(path.with_name("copy")),
            lambda: spend(ledger, "2", "0.1"),
        ]
        for use in uses[:-1]:
            use()
        path.with_name("copy").unlink()
        with monkeypatch.context() as patch:
            patch.setattr(noncopyable, "_forks", noncopyable._forks + 1)
            for use in uses:
                with pytest.raises(PrivacyError, match="this Ledger was made before a fork"):
                    use()
        assert not path.with_name("copy").exists()
        assert ledger.charges() == [charge]


def test_what_is_committed_stays(path: Path) -> None:
    with Ledger(path) as ledger:
        charge = spend(ledger, "1", 1)
        ledger.abandon(charge)
        with pytest.raises(LedgerError, match="not open"):
            ledger.commit(charge, "cd" * 32, 10)
        entry = ledger.committed("d", "1")
        assert entry is not None
        assert (entry.digest, entry.rows) == (DIGEST, 10)
    database = sqlite3.connect(path)
    for statement in (
        "DELETE FROM charges",
        "UPDATE charges SET guarantee = '{}'",
        "UPDATE charges SET digest = ''",
    ):
        with pytest.raises(sqlite3.IntegrityError, match="never"):
            database.execute(statement)
    database.close()


def test_a_reservation_that_is_settled_is_written_anew(path: Path) -> None:
    """With another value: for the old one no page would take the place of one that was torn."""
    with Ledger(path) as ledger:
        assert ledger.settle() == []
        charge = reserve(ledger, "d", "1", pure(1), pure(1))
        (before,) = ledger.reservations()
        (after,) = ledger.settle()
        assert (after.id, ledger.reservations()) == (charge, [after])
        assert after.reserved_at > before.reserved_at
        assert not after.lost  # it has no bytes yet, and has lost none


def test_an_epoch_has_one_release(path: Path) -> None:
    with Ledger(path) as ledger:
        spend(ledger, "1", "0.1")
        with pytest.raises(BudgetError, match="another epoch"):
            reserve(ledger, "d", "1", pure("0.1"), pure(1))


def test_disjoint_epochs_each_have_the_total(path: Path) -> None:
    with Ledger(path) as ledger:
        for epoch in range(5):
            spend(ledger, str(epoch), 1, composition="disjoint")
        assert ledger.spent("d", pure(2)) == pure(1)
        with pytest.raises(BudgetError):
            spend(ledger, "more", "1.5", composition="disjoint")


def test_a_record_may_be_in_all_additive_epochs_and_one_disjoint_one(path: Path) -> None:
    with Ledger(path) as ledger:
        spend(ledger, "a", "0.5", 2)
        spend(ledger, "b", "1", 2, composition="disjoint")
        spend(ledger, "c", "1.5", 2, composition="disjoint")
        assert ledger.spent("d", pure(2)) == pure(2)
        with pytest.raises(BudgetError):  # a record of epoch c would pass 2
            spend(ledger, "e", "0.1", 2)
        with pytest.raises(BudgetError):
            spend(ledger, "f", "1.6", 2, composition="disjoint")


def test_units_and_kinds_that_do_not_add_are_refused(path: Path) -> None:
    with Ledger(path) as ledger:
        spend(ledger, "1", "0.1")
        with pytest.raises(PrivacyError, match="privacy unit"):
            reserve(ledger, "d", "2", pure("0.1", Unit.USER), pure(1, Unit.USER))
        gaussian = ZeroConcentratedDP.of(Fraction(1, 8), adjacency=Adjacency.REPLACE_LABEL)
        with pytest.raises(BudgetError, match="total_delta"):
            reserve(ledger, "d", "2", gaussian, pure(1))
        assert len(ledger.charges()) == 1


def test_the_remedy_fits_the_reason(path: Path) -> None:
    """With a delta in the limit, setting one is no remedy: the refusal tells what was wrong."""
    short = RenyiDP.of([Fraction(1, 100)], orders=(Fraction(3, 2),))
    with Ledger(path) as ledger:
        with pytest.raises(BudgetError, match=r"do not add up .*ends below order 2 .*extend it$"):
            reserve(ledger, "d", "1", short, mixed(3))
        with pytest.raises(BudgetError, match=r"under any limit: .*extend it$"):
            reserve(ledger, "d", "1", short, pure(3))
        assert ledger.charges() == []


def mixed(epsilon: float | str, delta: str = "1e-6") -> ApproximateDP:
    return ApproximateDP.of(Fraction(str(epsilon)), Fraction(delta))


def test_pure_approximate_and_concentrated_charges_add_up_in_one_sum(path: Path) -> None:
    limit = mixed(3)
    charges = {
        "a": pure(1),
        "b": ApproximateDP.of(Fraction(1, 2), Fraction("2e-7")),
        "c": ZeroConcentratedDP.of(Fraction(1, 200), Fraction("1e-7")),
    }
    with Ledger(path) as ledger:
        for epoch, charge in charges.items():
            ledger.commit(reserve(ledger, "d", epoch, charge, limit), DIGEST, 1)
        spent = ledger.spent("d", limit)
        assert spent == adaptive_total(charges.values(), limit.exact_delta)
        assert isinstance(spent, ApproximateDP)
        assert spent.exact_delta == Fraction("8e-7")  # 3e-7 of the charges, half of the total
        assert 1.5 < spent.epsilon < 3
        left = ledger.left("d", limit)
        assert isinstance(left, ApproximateDP)
        assert left.exact_epsilon == 3 - spent.exact_epsilon
        assert left.exact_delta == Fraction("2e-7")
        # what is said to be left fits to the last unit, and no more does
        over = PureDP.of(left.exact_epsilon + Fraction("0.01"))
        with pytest.raises(BudgetError, match=r"raise --to 3\.\d+ --delta 0\.000001 --reason TEXT"):
            reserve(ledger, "d", "e", over, limit)
        with pytest.raises(BudgetError, match=r"raise --to 3 --delta 0\.00001 --reason"):
            reserve(ledger, "d", "e", ApproximateDP.of(Fraction(0), Fraction("3e-7")), limit)
        assert ledger.spent("d", limit) == spent
        reserve(ledger, "d", "e", ApproximateDP.of(left.exact_epsilon, left.exact_delta), limit)
        nothing = ledger.left("d", limit)
        assert isinstance(nothing, ApproximateDP)
        assert nothing.exact_delta == 0
        assert nothing.epsilon < 0.01  # at another order the new sum may be a little cheaper


def test_disjoint_epochs_add_up_within_and_not_across(path: Path) -> None:
    """Two charges on one epoch's records add; those of another epoch do not."""
    with Ledger(path) as ledger:
        for epoch in ("a", "b"):
            spend(ledger, epoch, "0.5", 1, "disjoint")
            for purpose in ("top-k", "watch"):
                charge = reserve(
                    ledger,
                    "d",
                    epoch,
                    pure("0.25"),
                    pure(1),
                    composition="disjoint",
                    purpose=purpose,
                )
                ledger.commit(charge, DIGEST, 1)
        assert ledger.spent("d", pure(1)) == pure(1)
        with pytest.raises(BudgetError):
            reserve(ledger, "d", "a", pure("0.1"), pure(1), composition="disjoint", purpose="more")
        assert ledger.left("d", pure(1), "disjoint") == pure(1)
        assert ledger.left("d", pure(1)) == pure(0)


def test_the_worst_epoch_counts_where_kinds_differ(path: Path) -> None:
    limit = mixed(2)
    gaussian = ZeroConcentratedDP.of(Fraction(1, 200), Fraction("1e-7"))
    with Ledger(path) as ledger:
        reserve(ledger, "d", "a", pure("0.25"), limit)
        reserve(ledger, "d", "b", pure(1), limit, composition="disjoint")
        reserve(ledger, "d", "c", gaussian, limit, composition="disjoint")
        spent = ledger.spent("d", limit)
        other = adaptive_total([pure("0.25"), gaussian], limit.exact_delta)
        assert isinstance(spent, ApproximateDP)
        assert spent.exact_epsilon == max(Fraction("1.25"), other.exact_epsilon)
        assert spent.exact_delta == other.exact_delta


def test_per_user_charges_add_up_whatever_they_are(path: Path) -> None:
    limit = ApproximateDP.of(Fraction(2), Fraction("1e-6"), unit=Unit.USER)
    gaussian = ZeroConcentratedDP.of(Fraction(1, 200), unit=Unit.USER)
    with Ledger(path) as ledger:
        reserve(ledger, "d", "a", pure(1, Unit.USER), limit)
        reserve(ledger, "d", "b", gaussian, limit)
        with pytest.raises(
            PrivacyError, match=r"limit per user do not compose; set \[privacy\] unit"
        ):
            reserve(ledger, "d", "c", pure("0.1"), limit)
        assert ledger.spent("d", limit) == adaptive_total(
            [pure(1, Unit.USER), gaussian], limit.exact_delta
        )


def test_guarantees_of_any_kind_come_back_as_they_were(path: Path) -> None:
    gaussian = ZeroConcentratedDP.of(Fraction(1, 7), adjacency=Adjacency.REPLACE_LABEL)
    with Ledger(path) as ledger:
        reserve(ledger, "d", "1", gaussian, gaussian)
        assert ledger.charges()[0].guarantee == gaussian
        assert remaining(gaussian, gaussian) is None


def test_the_first_limit_is_the_cap_and_only_a_reason_raises_it(path: Path) -> None:
    with Ledger(path) as ledger:
        spend(ledger, "1", "0.1", total=1)
        spend(ledger, "2", "0.1", total="0.5")  # a lower limit holds, and leaves the cap alone
        assert ledger.cap("d") == pure(1)
        with pytest.raises(BudgetError, match=r"is capped at, ε = 1 .* budget raise --to"):
            spend(ledger, "3", "0.1", total=2)
        with pytest.raises(BudgetError, match="is capped at, ε"):
            reserve(ledger, "d", "3", pure("0.1"), mixed(1))  # δ > 0 is above a pure cap
        with pytest.raises(BudgetError, match="--reason"):
            ledger.raise_cap("d", pure(2), " ")
        for lower in (pure(1), pure("0.5"), mixed(1, "0")):  # the last is the first in other words
            with pytest.raises(BudgetError, match="is not above it"):
                ledger.raise_cap("d", lower, "why not")
        with pytest.raises(BudgetError, match="has no cap yet"):
            ledger.raise_cap("other", pure(2), "early")
        ledger.raise_cap("d", pure(2), "a second year was agreed")
        spend(ledger, "3", "0.1", total=2)
        assert [(cap.guarantee, cap.reason) for cap in ledger.caps("d")] == [
            (pure(1), ""),
            (pure(2), "a second year was agreed"),
        ]
        ledger.raise_cap("d", mixed(2), "releases with a delta")
        assert ledger.cap("d") == mixed(2)
    database = sqlite3.connect(path)
    for statement in ("UPDATE caps SET reason = 'none'", "DELETE FROM caps"):
        with pytest.raises(sqlite3.IntegrityError, match="a cap"):
            database.execute(statement)
    database.close()


def test_a_cap_is_raised_in_no_number_that_falls(path: Path) -> None:
    with Ledger(path) as ledger:
        reserve(ledger, "d", "1", pure("0.5"), mixed(1))
        for to in (mixed(2, "1e-7"), mixed("0.5", "1e-5"), mixed(1), pure(2)):
            with pytest.raises(BudgetError, match="is not above it"):
                ledger.raise_cap("d", to, "a test")
        ledger.raise_cap("d", mixed(1, "2e-6"), "a test")
        assert ledger.cap("d") == mixed(1, "2e-6")


def test_data_sets_that_share_an_account_share_its_budget(path: Path) -> None:
    with Ledger(path) as ledger:
        reserve(ledger, "clicks", "1", pure("0.75"), pure(1), account="shop")
        with pytest.raises(BudgetError, match=r"account 'shop'.*ε = 0.25"):
            reserve(ledger, "sales", "1", pure("0.5"), pure(1), account="shop")
        reserve(ledger, "sales", "1", pure("0.25"), pure(1), account="shop")
        reserve(ledger, "sales", "2", pure(1), pure(1))  # an account of its own
        assert ledger.accounts() == ["sales", "shop"]
        assert ledger.spent("shop", pure(1)) == pure(1)
        assert [entry.account for entry in ledger.charges("sales")] == ["shop", "sales"]


def test_what_a_charge_covers_goes_with_it(path: Path) -> None:
    with Ledger(path) as ledger:
        covered = Covered("ab" * 32, 7, "cd" * 16, "ef" * 16, named=True)
        taken_back = reserve(ledger, "d", "1", pure(1), pure(1), covered=covered)
        assert [found for _, found in ledger.coverage()] == [covered]
        ledger.abandon(taken_back)
        assert ledger.coverage() == []
        ledger.separate("d", "e", 7, "a test list of ours")
        assert [(said.other, said.events, said.reason) for said in ledger.separations()] == [
            ("e", 7, "a test list of ours")
        ]


def test_the_file_is_as_durable_as_sqlite_can_make_it(path: Path) -> None:
    with Ledger(path) as ledger:
        database = ledger._database
        assert database.execute("PRAGMA journal_mode").fetchone()[0] == "wal"
        assert database.execute("PRAGMA synchronous").fetchone()[0] == 2


def test_to_open_it_writes_nothing(path: Path) -> None:
    with Ledger(path) as ledger:
        spend(ledger, "1", "0.5")
    before = path.read_bytes(), path.stat().st_mtime_ns
    with Ledger(path) as ledger:
        assert ledger.spent("d", pure(1)) == pure("0.5")
    assert (path.read_bytes(), path.stat().st_mtime_ns) == before


def test_another_schema_is_refused(path: Path) -> None:
    database = sqlite3.connect(path)
    database.execute(f"PRAGMA user_version = {VERSION + 1}")
    database.close()
    with pytest.raises(LabelveilError, match="must update labelveil"):
        Ledger(path)


def test_the_latest_is_the_last_that_was_committed_whatever_the_clock_says(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Ledger(path) as ledger:
        spend(ledger, "1", "0.1")
        monkeypatch.setattr(ledger_module, "_now", lambda: "1999-01-01T00:00:00.000000+00:00")
        spend(ledger, "2", "0.1")
        latest = ledger.committed("d")
        assert latest is not None
        assert latest.epoch == "2"


def test_of_what_was_given_back_nothing_is_answered_or_withdrawn(path: Path) -> None:
    with Ledger(path) as ledger:
        charge = ledger.reserve(Purchase("d", "1", "session", pure(1), answers=2), pure(2))
        ledger.abandon(charge.id)
        with pytest.raises(LedgerError, match="FOREIGN KEY"):
            ledger.answer(charge, "a" * 64, 0.5, 1.0)
        with pytest.raises(LedgerError, match="FOREIGN KEY"):
            ledger.withdraw(charge, "too late")
        assert (ledger.answers(charge), ledger.withdrawals()) == ([], {})


def test_answers_only_grow_and_never_beyond_what_was_sold(path: Path) -> None:
    asked = Purchase("d", "1", "session", pure(1), answers=2)
    with Ledger(path) as ledger:
        ledger.commit(ledger.reserve(asked, pure(2)).id, DIGEST, 0)
        charge = ledger.committed(*asked.name)
        assert charge is not None
        first = ledger.answer(charge, "a" * 64, 0.5, 1.0)
        assert ledger.answer(charge, "a" * 64, 7.0, 1.0) == first  # another process was faster
        assert ledger.answer(charge, "b" * 64, 0.25, 1.0).number == 2
        with pytest.raises(BudgetError, match="all of its 2 answers"):
            ledger.answer(charge, "c" * 64, 0.25, 1.0)
        assert [answer.number for answer in ledger.answers(charge)] == [1, 2]
        another = replace(asked, epoch="2")
        ledger.commit(ledger.reserve(another, pure(2)).id, DIGEST, 0)
        later = ledger.committed(*another.name)
        assert later is not None
        told = ledger.answer(later, "a" * 64, 3.0, 2.0)
        assert (told.number, told.value, told.noise_scale) == (1, 3.0, 2.0)
        assert [len(ledger.answers(each)) for each in (charge, later)] == [2, 1]
    database = sqlite3.connect(path)
    for statement in ("DELETE FROM answers", "UPDATE answers SET value = 0"):
        with pytest.raises(sqlite3.IntegrityError, match="an answer"):
            database.execute(statement)
    for number, question in ((3, "a" * 64), (2, "c" * 64)):  # one answer a question, and a number
        with pytest.raises(sqlite3.IntegrityError, match="UNIQUE"):
            database.execute(
                "INSERT INTO answers VALUES (?, ?, ?, 7.0, 1.0)", (charge.id, number, question)
            )
    database.close()


def test_a_session_that_another_ledger_began_answers_nothing_more(path: Path) -> None:
    with Ledger(path) as ledger:
        ledger.count(Purchase("d", "1", "session", pure(1), answers=2, digest=DIGEST))
        charge = ledger.committed("d", "1", "session")
        assert charge is not None
        with pytest.raises(BudgetError, match="under another ledger"):
            ledger.answer(charge, "a" * 64, 0.5, 1.0)
    database = sqlite3.connect(path)
    with pytest.raises(sqlite3.IntegrityError, match="a closed session"):
        database.execute("DELETE FROM closed")
    database.close()


def test_a_damaged_file_is_one_line(path: Path) -> None:
    path.write_bytes(b"this is not a database" * 100)
    with pytest.raises(LedgerError, match="nothing was spent"):
        Ledger(path)


def test_an_index_that_hides_what_its_table_has_is_damage(path: Path) -> None:
    """Although the table, which the seal is of, is as it was: a purchase would be made again."""
    with Ledger(path) as ledger:
        spend(ledger, "1", "0.5")
    database = sqlite3.connect(path)
    database.execute("PRAGMA writable_schema = ON")
    database.execute(
        "UPDATE sqlite_master SET rootpage = (SELECT rootpage FROM sqlite_master"
        " WHERE name = 'sqlite_autoindex_answers_1') WHERE name = 'sqlite_autoindex_charges_1'"
    )
    database.commit()
    database.close()
    with pytest.raises(LedgerError, match="malformed"):
        Ledger(path)


def test_a_backup_taken_while_open_is_a_working_ledger(path: Path, tmp_path: Path) -> None:
    with Ledger(path) as ledger:
        spend(ledger, "1", "0.25")
        ledger.backup(tmp_path / "copy.sqlite")
    with Ledger(tmp_path / "copy.sqlite") as restored:
        assert restored.spent("d", pure(1)) == pure("0.25")


def test_what_another_ledger_sold_is_counted_once_and_does_not_change_what_is_known(
    path: Path,
) -> None:
    with Ledger(path) as ledger:
        spend(ledger, "1", "0.25")
        for epoch, epsilon in (("1", "0.5"), ("2", "0.125"), ("2", "0.125")):
            ledger.count(Purchase("d", epoch, LABELS, pure(epsilon), digest=DIGEST))
        counted = [(entry.epoch, entry.counted) for entry in ledger.charges()]
        assert counted == [("1", False), ("2", True)]
        assert ledger.spent("d", pure(1)) == pure("0.375")


def test_caps_sessions_and_losses_are_told_of_their_own_name(path: Path) -> None:
    with Ledger(path) as ledger:
        for name, limit in (("a", pure(2)), ("b", pure(3))):
            ledger.commit(ledger.reserve(Purchase(name, "1", LABELS, pure(1)), limit).id, DIGEST, 9)
        ledger.raise_cap("a", pure(5), " agreed ")
        assert [ledger.cap(name) for name in "ab"] == [pure(5), pure(3)]
        assert [cap.reason for cap in ledger.caps("a")] == ["", "agreed"]
        ledger.count(Purchase("b", "2", LABELS, pure(1)))  # whose bytes are lost
        ledger.count(Purchase("b", "1", "session", pure(1), answers=2, digest=DIGEST))
        latest, begun = ledger.committed("b"), ledger.committed("b", "1", "session")
        assert latest is not None
        assert begun is not None
        assert latest.epoch == "1"
        asked = Purchase("a", "1", "session", pure(1), answers=2)
        ledger.commit(ledger.reserve(asked, pure(5)).id, DIGEST, 0)
        later = ledger.committed(*asked.name)
        assert later is not None
        assert ledger.closed(later) is None
        first, again = (ledger.withdraw(latest, reason) for reason in ("one", "two"))
        assert [withdrawn for _, withdrawn in (first, again)] == [False, True]
        assert again[0] == first[0]
        ledger.record_restore("then", {})
        assert ledger.closed(later) == "was restored from a backup"
