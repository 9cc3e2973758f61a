"""A new prior only after drift, the same ε for every epoch, and who pays for tests."""

from __future__ import annotations

import json
import shutil
from fractions import Fraction
from pathlib import Path

import polars as pl
import pytest

from labelveil.common.errors import ReleaseError
from labelveil.common.guarantees import PureDP, Unit, compose
from labelveil.common.release.manifest import Manifest
from labelveil.label_party.release.prior_in_force import TESTS
from labelveil.label_party.store.entries import LABELS, Purchase
from labelveil.label_party.store.ledger import Ledger
from tests.faults import Experiments
from tests.label_party.conftest import BODIES, Party
from tests.label_party.release.watching import ROWS, epochs, manifest, watch, write_day


@pytest.mark.slow
def test_only_drift_pays_for_a_prior_and_every_epoch_spends_the_same(party: Party) -> None:
    for day, shift in (("d1", 0), ("d2", 0), ("d3", 4), ("d4", 4)):
        write_day(party, day, shift)
    done = watch(party)
    assert done.code == 0, done
    found = {day: manifest(party, day) for day in epochs(party)}
    assert [found[day].prior_paid for day in ("d1", "d2", "d3", "d4")] == [True, False, True, False]
    assert found["d1"].drift is None
    for day, origin in (("d2", "d1"), ("d3", "d1"), ("d4", "d3")):
        drift = found[day].drift
        assert drift is not None
        assert drift.in_force.epoch == origin
        assert drift.test is not None
    assert found["d4"].prior.noisy_counts == found["d3"].prior.noisy_counts
    for one in found.values():
        assert one.total_guarantee == compose(one.guarantees)
        total = one.total_guarantee
        assert isinstance(total, PureDP)
        assert 0.999 < total.epsilon <= 1.0
    # what the prior does not cost goes to the labels
    test = found["d2"].test_guarantee
    assert test is not None
    saved = found["d1"].prior_guarantee.exact_epsilon - test.exact_epsilon
    gained = found["d2"].labels_guarantee.epsilon - found["d1"].labels_guarantee.epsilon
    assert gained == pytest.approx(float(saved), rel=1e-3)
    assert "drifted from d1: a new prior" in done.out
    again = watch(party)
    assert "no new epoch" in again.out
    assert watch(party, "--quiet").out == ""
    # whoever releases by hand pays for a prior, whatever is in force
    write_day(party, "d5", 4, rows=500)
    own = {"data__labels": "days/{epoch}.parquet", "data__epoch": "d5"}
    asked = party.arguments(**own, privacy__epochs="disjoint", privacy__total_epsilon=1.0)
    done = party.run("release", *asked)
    assert done.code == 0, done
    assert manifest(party, "d5").prior_paid


@pytest.mark.slow
def test_an_epoch_that_never_drifts_and_one_that_always_does_are_distinguished(
    party: Party,
) -> None:
    for day in range(4):
        write_day(party, f"d{day}")
    assert watch(party).code == 0
    assert sum(manifest(party, day).prior_paid for day in epochs(party)) == 1
    for day in range(4):
        write_day(party, f"e{day}", shift=5.0 * ((day + 1) % 2))
    assert watch(party).code == 0
    paid = [manifest(party, day).prior_paid for day in epochs(party) if day.startswith("e")]
    assert paid == [True] * 4


SESSION = {
    "privacy__epochs": "additive",
    "privacy__total_epsilon": 60.0,
    "privacy__total_delta": 1e-6,
    "watch__hits": 2,
    "watch__epsilon": 0.03,
}


def session_state(party: Party, epoch: str) -> list[int]:
    drift = manifest(party, epoch).drift
    assert drift is not None
    assert drift.test is not None
    assert drift.test.session is not None
    state = drift.test.session.state
    return [state["hits"][0], state["calls"]]


def test_a_session_counts_hits_over_restarts_and_is_charged_once(party: Party) -> None:
    seen = []
    for day, shift in (("d1", 0), ("d2", 0), ("d3", 4), ("d4", 4), ("d5", 0)):
        write_day(party, day, shift)
        assert watch(party, **SESSION).code == 0  # a process of its own would know no more
        if day != "d1":
            seen.append(session_state(party, day))
    assert seen == [[0, 1], [1, 2], [1, 3], [2, 4]]
    write_day(party, "d6", 4)  # drifted, and nobody looks: the session has halted
    done = watch(party, **SESSION)
    assert "no test: all hits are spent" in done.out
    last = manifest(party, "d6")
    assert not last.prior_paid
    assert last.drift is not None
    assert last.drift.test is None
    with Ledger(party.store / "ledger.sqlite") as ledger:
        tests = [charge for charge in ledger.charges("labels") if charge.purpose == TESTS]
    assert len(tests) == 1
    # labels and priors alone are the epoch's: the test is in the session's account
    assert len(manifest(party, "d2").guarantees) == 1
    assert len(manifest(party, "d3").guarantees) == 2


def test_a_session_is_charged_only_if_the_release_fits_beside_it(party: Party) -> None:
    """Each fits alone; with ``--quiet``, too, where nobody is told beforehand."""
    write_day(party, "d1")
    refused = watch(party, "--quiet", **{**SESSION, "privacy__total_epsilon": 1.01})
    assert "is left of" in refused.error
    assert party.nothing_left()


def test_a_session_needs_a_delta_and_no_disjoint_epochs(party: Party) -> None:
    write_day(party, "d1")
    error = watch(party, **{**SESSION, "privacy__total_delta": 0.0})
    assert "total_delta" in error.error
    error = watch(party, **{**SESSION, "privacy__epochs": "disjoint"})
    assert "hits" in error.error
    assert party.nothing_left()


PUBLISH = "labelveil.label_party.store.release_store:ReleaseWriter.publish"
COMMIT = "labelveil.label_party.store.ledger:Ledger.commit"


@pytest.mark.parametrize(
    ("step", "moment"),
    [
        pytest.param(PUBLISH, "after", marks=pytest.mark.slow),
        pytest.param(COMMIT, "before", marks=pytest.mark.slow),
        (COMMIT, "after"),
    ],
)
def test_killed_in_an_epoch_a_hit_is_paid_once(
    party: Party, patient: Experiments, step: str, moment: str
) -> None:
    write_day(party, "d1")
    assert watch(party, **SESSION).code == 0
    write_day(party, "d2", 4)
    arguments = party.arguments(data__labels="days/{epoch}.parquet", **SESSION)
    there = "." if step == PUBLISH else "label_store/releases/labels/d2"
    died = patient.run(
        f"{BODIES}:command", str(party.folder), step, moment, there, "watch", "--once", *arguments,
        folder=party.store,
    )  # fmt: skip
    assert died.killed, died
    assert watch(party, **SESSION).code == 0
    assert session_state(party, "d2") == [1, 1]
    write_day(party, "d3", 0)
    assert watch(party, **SESSION).code == 0
    assert session_state(party, "d3") == [2, 2]


def test_a_release_whose_bytes_are_lost_counts_as_a_hit(party: Party) -> None:
    write_day(party, "d1", rows=300)
    watch(party, **SESSION)
    with Ledger(party.store / "ledger.sqlite") as ledger:
        guarantee = ledger.charges("labels")[-1].guarantee
        ledger.count(Purchase("labels", "lost", LABELS, guarantee))
    for number, day in enumerate(("d2", "d3"), 1):  # as one, and not once more
        write_day(party, day, rows=300)
        watch(party, **SESSION)
        assert session_state(party, day) == [1, number]


def test_what_has_no_histogram_is_not_tested(party: Party) -> None:
    """That of a yes or no is decoded from its codes."""
    binary = {"domain__grid": '"whole"', "domain__upper": 1, "randomizer__name": '"auto"'}
    for day in ("d1", "d2"):
        write_day(party, day, rows=300)
        done = watch(party, **{**SESSION, **binary, "privacy__total_epsilon": 9})
        assert done.code == 0, done
        assert manifest(party, day).drift is None
    with Ledger(party.store / "ledger.sqlite") as ledger:
        assert [charge.purpose for charge in ledger.charges("labels")] == [LABELS] * 2


@pytest.mark.slow
def test_tests_before_a_session_are_none_of_its_calls(party: Party) -> None:
    alone = {name: value for name, value in SESSION.items() if name != "watch__hits"}
    for day, settings in (("d1", alone), ("d2", alone), ("d3", SESSION), ("d4", SESSION)):
        write_day(party, day, rows=300)
        done = watch(party, **settings)
        assert done.code == 0, done
    assert [session_state(party, day)[1] for day in ("d3", "d4")] == [1, 2]


def test_what_is_counted_anew_is_what_has_a_histogram_and_follows_none(party: Party) -> None:
    (party.folder / "prior.csv").write_text("label,weight\n0,1\n1,2\n")
    binary = {"domain__grid": '"whole"', "domain__upper": 1}
    for day, settings, paid in (
        ("d1", {"prior__file": '"prior.csv"'}, False),
        ("d2", {}, True),
        ("d3", {"randomizer__name": '"auto"'}, False),
    ):
        write_day(party, day, rows=300)
        done = watch(party, **binary, **settings)
        assert done.code == 0, done
        made = manifest(party, day)
        assert (made.drift, made.prior_paid) == (None, paid)


def test_what_is_found_later_takes_no_hit_back(party: Party, tmp_path: Path) -> None:
    """A release is stated as lost, and then an earlier one turns up that the ledger forgot."""
    write_day(party, "d1", rows=300)
    watch(party, **SESSION)
    assert party.run("backup", "--to", "b.tar").code == 0
    write_day(party, "d2", rows=300)
    watch(party, **SESSION)
    found = party.store / "releases" / "labels" / "d2"
    found.rename(tmp_path / "d2")
    for path in party.store.glob("ledger.sqlite*"):
        path.unlink()
    assert party.run("restore", "b.tar", "--lost", "d3").code == 0
    (tmp_path / "d2").rename(found)
    write_day(party, "d4", rows=300)
    assert watch(party, **SESSION).code == 0
    assert session_state(party, "d2") == [0, 1]
    assert session_state(party, "d4") == [1, 2]  # the lost one may have been a hit


def test_a_session_goes_on_from_its_last_call_in_whatever_order_it_is_found(
    party: Party, tmp_path: Path
) -> None:
    for day in ("d1", "d2", "d3"):
        write_day(party, day, rows=300)
        watch(party, **SESSION)
        if day == "d1":
            assert party.run("backup", "--to", "b.tar").code == 0
    second = party.store / "releases" / "labels" / "d2"
    second.rename(tmp_path / "d2")
    for path in party.store.glob("ledger.sqlite*"):
        path.unlink()
    assert party.run("restore", "b.tar", "--lost", "d9").code == 0
    (party.folder / "days" / "d2.parquet").unlink()  # or it would be released anew
    write_day(party, "d4", rows=300)
    assert watch(party, **SESSION).code == 0
    (tmp_path / "d2").rename(second)
    write_day(party, "d5", rows=300)
    assert watch(party, **SESSION).code == 0
    assert [session_state(party, day)[1] for day in ("d2", "d3", "d4", "d5")] == [1, 2, 3, 4]


def _withdraw(party: Party, epoch: str) -> None:
    done = party.run("withdraw", epoch, "--reason", "of another file", "--yes")
    assert done.code == 0, done


def test_a_prior_of_a_withdrawn_epoch_is_not_gone_on_with(party: Party) -> None:
    """Nor one that a later epoch went on with: the last one before counts, or a new one is paid."""
    for day, shift in (("d1", 0), ("d2", 4), ("d3", 4)):
        write_day(party, day, shift)
    assert watch(party).code == 0
    assert [manifest(party, day).prior_paid for day in ("d1", "d2", "d3")] == [True, True, False]
    _withdraw(party, "d2")
    write_day(party, "d4")
    assert watch(party).code == 0  # d2 itself is never built again
    fourth = manifest(party, "d4")
    assert not fourth.prior_paid
    assert fourth.drift is not None
    assert fourth.drift.in_force.epoch == "d1"
    for day in ("d1", "d3"):
        _withdraw(party, day)
    write_day(party, "d5")
    assert watch(party).code == 0
    fifth = manifest(party, "d5")
    assert fifth.prior_paid
    assert fifth.drift is None
    assert epochs(party) == ["d1", "d2", "d3", "d4", "d5"]
    assert "no new epoch" in watch(party).out


@pytest.mark.parametrize("removed", [False, True])
def test_a_withdrawn_epoch_gives_no_hit_back(party: Party, removed: bool) -> None:
    """Its test was made; where nobody can read any more how that ended, it counts as a hit."""
    for day, shift in (("d1", 0), ("d2", 0)):
        write_day(party, day, shift)
        watch(party, **SESSION)
    assert session_state(party, "d2") == [0, 1]
    _withdraw(party, "d2")
    if removed:
        shutil.rmtree(party.store / "releases" / "labels" / "d2")
    write_day(party, "d3")
    assert watch(party, **SESSION).code == 0
    assert session_state(party, "d3") == ([1, 1] if removed else [0, 2])


def test_a_session_tests_for_the_account_that_paid_and_for_no_other(party: Party) -> None:
    write_day(party, "d1")
    watch(party, **SESSION)
    write_day(party, "d2")
    watch(party, **SESSION, privacy__account="other", privacy__separate=True,
          privacy__separate_reason="a test")  # fmt: skip
    with Ledger(party.store / "ledger.sqlite") as ledger:
        tests = [charge for charge in ledger.charges("labels") if charge.purpose == TESTS]
    assert [charge.account for charge in tests] == ["labels", "other"]
    assert len({charge.digest for charge in tests}) == 2
    drift = manifest(party, "d2").drift
    assert drift is not None
    assert drift.test is not None
    assert drift.test.session is not None
    assert drift.test.session.outcome == tests[1].digest


@pytest.mark.slow
def test_a_dry_run_of_a_session_names_all_that_is_charged(party: Party) -> None:
    for day, charged in (("d1", {"tests for drift", "labels"}), ("d2", {"labels"})):
        write_day(party, day)
        told = json.loads(watch(party, "--dry-run", "--json", **SESSION).out)
        assert told["charges"].keys() == charged
        left = float(Fraction(told["left"]["epsilon"]))
        assert f"left ε = {left:.6g}," in watch(party, **SESSION).out


def test_a_manifest_that_hides_its_test_is_refused(party: Party) -> None:
    for day in ("d1", "d2"):
        write_day(party, day)
    watch(party)
    path = party.store / "releases" / "labels" / "d2" / "manifest.json"
    stated = json.loads(path.read_bytes())
    forged = {
        **stated,
        "privacy": {**stated["privacy"], "total": stated["randomizers"][0]["guarantee"]},
    }
    with pytest.raises(ReleaseError, match="add up"):
        Manifest.from_bytes(json.dumps(forged).encode())
    test = {**stated["drift"]["test"], "scale": "1"}
    forged = {**stated, "drift": {**stated["drift"], "test": test}}
    with pytest.raises(ReleaseError, match="scale"):
        Manifest.from_bytes(json.dumps(forged).encode())
    forged = {**stated, "drift": {**stated["drift"], "drifted": True}}
    with pytest.raises(ReleaseError, match="add up"):
        Manifest.from_bytes(json.dumps(forged).encode())


@pytest.mark.slow
def test_users_pay_for_all_their_records_in_a_test(party: Party) -> None:
    for day in ("d1", "d2"):
        write_day(party, day)
        path = party.folder / "days" / f"{day}.parquet"
        users = pl.Series("who", [f"u{i // 2}" for i in range(ROWS)])
        pl.read_parquet(path).with_columns(users).write_parquet(path)
    done = watch(
        party,
        privacy__epochs="additive",
        privacy__total_epsilon=2.0,
        privacy__unit="user",
        privacy__user="who",
        privacy__max_records_per_user=2,
    )
    assert done.code == 0, done
    found = manifest(party, "d2")
    test = found.test_guarantee
    assert test is not None
    assert test.unit == Unit.USER
    assert found.drift is not None
    assert found.drift.test is not None
    assert Fraction(found.drift.test.scale) * test.exact_epsilon == 2


def test_a_ledger_restored_from_before_the_epochs_knows_their_hits(party: Party) -> None:
    write_day(party, "d1")
    watch(party, **SESSION)
    older = (party.store / "ledger.sqlite").read_bytes()
    for day, shift in (("d3", 4), ("d2", 0)):  # two hits, out of the order of names
        write_day(party, day, shift)
        assert watch(party, **SESSION).code == 0
    assert session_state(party, "d2") == [2, 2]
    (party.store / "ledger.sqlite").write_bytes(older)
    write_day(party, "d4")
    done = watch(party, **SESSION)
    assert done.code == 0, done
    assert "no test: all hits are spent" in done.out
