"""``watch``: a new prior only after drift, the same ε for every epoch, kill-safe, in one ledger."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any, cast

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

from labelveil.common.errors import ReleaseError
from labelveil.common.guarantees import PureDP, Unit, compose
from labelveil.common.release.event_keys import hash_keys, read_secret, secret_check
from labelveil.common.release.manifest import Manifest
from labelveil.common.release.table import read_release
from labelveil.common.security.pilot_certificates import Credentials
from labelveil.common.signals import Stop
from labelveil.feature_party.commands.cli import app
from labelveil.label_party.config.sections import LabelPartyConfig
from labelveil.label_party.events.submitted import Populations, Submitted
from labelveil.label_party.release.prior_in_force import TESTS
from labelveil.label_party.release.run import ReleaseOutcome, run_release
from labelveil.label_party.release.watch import arrived, keep_releasing
from labelveil.label_party.server.run import running
from labelveil.label_party.store.disk import StoreBusy
from labelveil.label_party.store.entries import LABELS, Purchase
from labelveil.label_party.store.ledger import Ledger, LedgerError
from labelveil.label_party.store.release_store import Store
from tests.common.security.keys import write_key
from tests.faults import Experiments
from tests.label_party.conftest import BODIES, CLIENT, Party, Result
from tests.statistics import RATE

ROWS = 20_000
"""Enough to miss a shift of 4 as seldom as a false alarm is raised."""


def write_day(party: Party, epoch: str, shift: float = 0.0, rows: int = ROWS) -> None:
    """A day of labels 0 … 10 around 3 + shift, its keys its own."""
    (party.folder / "days").mkdir(exist_ok=True)
    spread = np.random.default_rng(int.from_bytes(epoch.encode(), "big")).normal(0, 1.5, rows)
    labels = np.clip(np.round(3 + shift + spread), 0, 10)
    keys = [f"{epoch}-{i}" for i in range(rows)]
    frame = pl.DataFrame({"key": keys, "label": labels})
    frame.write_parquet(party.folder / "days" / f"{epoch}.parquet")


def watch(party: Party, *arguments: str, **settings: object) -> Result:
    asked = {
        "data__labels": "days/{epoch}.parquet",
        "privacy__epochs": "disjoint",
        "privacy__total_epsilon": 1.0,
        "watch__false_alarm": RATE,
        **settings,
    }
    text = (party.folder / "label_party.toml").read_text()
    alone = text.replace('population = "population.csv"', "")
    (party.folder / "label_party.toml").write_text(alone)
    return party.run("watch", "--once", *arguments, *party.arguments(**asked))


def manifest(party: Party, epoch: str) -> Manifest:
    path = party.store / "releases" / "labels" / epoch / "manifest.json"
    return Manifest.from_bytes(path.read_bytes())


def epochs(party: Party) -> list[str]:
    return sorted(path.name for path in (party.store / "releases" / "labels").iterdir())


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


@pytest.mark.slow
def test_the_ledger_charges_each_disjoint_epoch_once(party: Party) -> None:
    for day in ("d1", "d2", "d3"):
        write_day(party, day)
    watch(party)
    account = json.loads(party.run("budget", "--json").out)[0]
    assert account["spent"]["epsilon"] == "1"
    assert {c["composition"] for c in account["charges"]} == {"disjoint"}
    assert len(account["charges"]) == 3


@pytest.mark.slow
def test_additive_epochs_stop_at_the_total(party: Party) -> None:
    for day in ("d1", "d2", "d3"):
        write_day(party, day)
    error = watch(party, privacy__epochs="additive", privacy__total_epsilon=2.0)
    assert error.code == 1
    assert "left of ε = 2" in error.err
    assert epochs(party) == ["d1", "d2"]


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


def test_days_of_a_column_are_epochs_once_they_are_over(party: Party) -> None:
    days = ["2024-06-01 10:00:00"] * 300 + ["2024-06-02 23:59:59"] * 200
    days += ["2999-01-01"] * 7 + ["soon", "2024-02-30", ""]
    keys = [f"event-{i}" for i in range(len(days))]
    frame = pl.DataFrame({"key": keys, "when": days, "label": [float(i % 10) for i in range(510)]})
    frame.write_csv(party.folder / "all.csv")
    done = watch(party, "--date", "when", data__labels="all.csv")
    assert done.code == 0, done
    assert epochs(party) == ["2024-06-01", "2024-06-02"]
    assert manifest(party, "2024-06-01").population.rows == 300
    assert manifest(party, "2024-06-02").population.rows == 200


def test_an_epoch_has_labels_and_its_population_where_that_is_a_file_a_day(party: Party) -> None:
    for day in ("d1", "d2"):
        write_day(party, day, rows=300)
    people = pl.DataFrame({"key": [f"d1-{i}" for i in range(200)]})
    people.write_csv(party.folder / "people-d1.csv")
    people.write_csv(party.folder / "people-d0.csv")
    done = watch(party, data__population="people-{epoch}.csv")
    assert done.code == 0, done
    assert epochs(party) == ["d1"]
    assert manifest(party, "d1").population.rows == 200
    pl.DataFrame({"key": [f"d2-{i}" for i in range(200)]}).write_csv(party.folder / "others.csv")
    everybody = {"data__population": "others.csv", "privacy__epochs": "additive"}
    done = watch(party, data__data_set="others", privacy__total_epsilon=9.0, **everybody)
    assert done.code == 0, done
    found = (party.store / "releases" / "others").iterdir()
    assert sorted(path.name for path in found) == ["d1", "d2"]


@pytest.mark.parametrize(
    ("settings", "part"),
    [
        ({"data__labels": "labels.csv"}, "neither is set"),
        ({"data__date": "key"}, "both is set"),
        ({"data__labels": "{epoch}"}, "not alone"),
        ({"data__labels": "nowhere/{epoch}.csv"}, "is no folder"),
        ({"data__population": "population.csv"}, "covers the same events in every epoch"),
    ],
)
def test_mistakes_are_one_line_and_cost_nothing(
    party: Party, settings: dict[str, str], part: str
) -> None:
    write_day(party, "d1")
    assert part in watch(party, **settings).error
    assert party.nothing_left()


def test_an_epoch_that_cannot_be_read_is_reported_and_stops_no_other(party: Party) -> None:
    for day in ("d1", "d2", "d3"):
        write_day(party, day)
    for broken in ("a day", "d2"):
        (party.folder / "days" / f"{broken}.parquet").write_bytes(b"PAR1 and no more")
    (party.folder / "days" / ".d4.parquet").write_bytes(b"")  # on its way
    done = watch(party)
    assert "epoch 'a day'" in done.error
    assert "cannot name an epoch" in done.error
    assert "begins with a letter or digit" in done.error
    assert "1 more" in done.error
    assert epochs(party) == ["d1", "d3"]
    write_day(party, "d2")
    assert "epoch 'a day'" in watch(party).error
    assert epochs(party) == ["d1", "d2", "d3"]


class Looks:
    """Asks a watch to end after so many looks; what happens between two is told beforehand."""

    def __init__(self, *between: Callable[[], object]) -> None:
        self._between, self._over = list(between), False

    def is_set(self) -> bool:
        return self._over

    def wait(self, seconds: float | None = None) -> bool:
        if self._between:
            self._between.pop(0)()
        else:
            self._over = True
        return self._over


def keep_watching(party: Party, *between: Callable[[], object]) -> list[str]:
    """Watch, with this done between two looks; return the epochs that were reported."""
    config = party.config(
        data__labels="days/{epoch}.parquet", privacy__epochs="disjoint", watch__false_alarm=RATE
    )
    config = config.model_copy(update={"data": config.data.model_copy(update={"population": None})})
    seen: list[str] = []
    keep_releasing(
        config,
        lambda outcome: seen.append(outcome.manifest.epoch),
        seen.append,
        cast(Stop, Looks(*between)),
        quiet=True,
    )
    return seen


def nothing() -> None:
    """Happens between two looks."""


def test_an_epoch_of_events_that_have_paid_stops_no_other_and_is_told_once(
    party: Party, capfd: pytest.CaptureFixture[str]
) -> None:
    """The partner may name it so that it comes first."""
    write_day(party, "d1", rows=500)
    assert keep_watching(party) == ["d1"]
    days = party.folder / "days"
    shutil.copy(days / "d1.parquet", days / "a.parquet")
    write_day(party, "d2", rows=500)
    capfd.readouterr()
    assert keep_watching(party, nothing, nothing) == ["d2"]
    (told,) = capfd.readouterr().err.splitlines()
    assert told.startswith("error: epoch 'a': ")
    assert epochs(party) == ["d1", "d2"]
    account = json.loads(party.run("budget", "--json").out)[0]
    assert sorted(charge["epoch"] for charge in account["charges"]) == ["d1", "d2"]
    # what is refused for another reason is told again, and released once it is mended
    assert keep_watching(
        party,
        lambda: (days / "a.parquet").write_bytes(b"PAR1 and no more"),
        nothing,
        lambda: write_day(party, "a", rows=500),
    ) == ["a"]
    assert len(capfd.readouterr().err.splitlines()) == 2


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("planted-label"),
        MemoryError(),
        OSError(24, "Too many open files"),
        StoreBusy("its population is being exchanged"),
        LedgerError("the disk failed"),
        pl.exceptions.PanicException("planted-label"),
        RecursionError("planted-label"),
    ],
)
def test_whatever_an_epoch_ends_with_the_others_are_released(
    error: BaseException,
    party: Party,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    def failing(config: LabelPartyConfig, **options: Any) -> ReleaseOutcome:
        if config.data.epoch == "d1":
            raise error
        return run_release(config, **options)

    for day in ("d1", "d2"):
        write_day(party, day, rows=500)
    monkeypatch.setattr("labelveil.label_party.release.watch.run_release", failing)
    assert keep_watching(party, nothing) == ["d2"]
    (told,) = capfd.readouterr().err.splitlines()
    assert told.startswith("error: epoch 'd1': ")
    assert "planted" not in told
    monkeypatch.setattr("labelveil.label_party.release.watch.run_release", run_release)
    assert keep_watching(party) == ["d1"]


def test_a_store_that_is_gone_for_a_while_is_not_begun_anew(
    party: Party, capfd: pytest.CaptureFixture[str]
) -> None:
    """A second ledger would pay for every epoch again, under new noise."""
    write_day(party, "d1", rows=500)
    lost = party.folder / "lost"

    def unmount() -> None:
        party.store.rename(lost)
        party.store.mkdir()
        write_day(party, "d2", rows=500)

    def mount() -> None:
        party.store.rmdir()
        lost.rename(party.store)

    assert keep_watching(party, unmount, nothing, mount) == ["d1", "d2"]
    (told,) = capfd.readouterr().err.splitlines()
    assert "ledger.sqlite was there, and is gone" in told
    assert epochs(party) == ["d1", "d2"]


def test_a_damaged_population_that_was_submitted_stops_no_other(party: Party) -> None:
    populations = Populations(Store(party.store))
    secret = read_secret(party.folder / "join.key")
    for epoch in ("a", "b"):
        keys = hash_keys(pl.Series([f"event-{epoch}{i}" for i in range(50)]), secret)
        with populations.upload() as (upload, question), populations.exchanging("labels", epoch):
            upload.append(keys)
            upload.seal()
            facts = Submitted(
                50, upload.sha256, secret_check(secret).hex(), CLIENT, "2024-06-01T00:00:00+00:00"
            )
            populations.store("labels", epoch, upload, question, facts)
    (damaged,) = (party.store / "populations" / "labels" / "a").glob("*.keys")
    damaged.write_bytes(bytes(50 * 16))
    asked = {"data__population": "submitted", "privacy__epochs": "disjoint"}
    done = party.run("watch", "--once", *party.arguments(**asked))
    assert (done.code, epochs(party)) == (1, ["b"])
    last = done.err.splitlines()[-1]
    assert last.startswith("error: epoch 'a': ")
    assert "is damaged" in last


def test_a_watcher_stops_between_epochs(party: Party) -> None:
    for day in ("d1", "d2", "d3"):
        write_day(party, day)
    stop = threading.Event()
    seen: list[str] = []
    config = party.config(
        data__labels="days/{epoch}.parquet", privacy__epochs="disjoint", watch__interval=1000.0
    )
    config = config.model_copy(update={"data": config.data.model_copy(update={"population": None})})

    def report(outcome: object) -> None:
        seen.append("epoch")
        if len(seen) == 2:
            stop.set()

    assert arrived(config) == ["d1", "d2", "d3"]
    keep_releasing(config, report, seen.append, stop, quiet=True)
    assert seen == ["epoch", "epoch"]
    assert epochs(party) == ["d1", "d2"]


@pytest.mark.slow
def test_a_watching_process_ends_at_a_signal_with_code_0(party: Party) -> None:
    write_day(party, "d1")
    watch(party, data__labels="nothing-{epoch}.csv")  # takes the population out of the file
    arguments = party.arguments(data__labels="days/{epoch}.parquet", privacy__epochs="disjoint")
    process = subprocess.Popen(
        [sys.executable, "-m", "labelveil.label_party", "watch", *arguments],
        cwd=party.folder,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert "d1: 20,000 events, a prior of its own" in process.stdout.readline()
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=300) == 0
    process.stdout.close()


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


@pytest.mark.slow
def test_the_features_party_fetches_every_epoch_into_its_folder(
    party: Party, client_identity: Credentials
) -> None:
    for day in ("d1", "d2"):
        write_day(party, day)
    assert watch(party).code == 0
    (party.folder / "client.pem").write_bytes(client_identity.certificate_pem)
    write_key(party.folder / "client.key", client_identity.key_pem)
    settings = ["data_set='labels'", "ca='ca.pem'", "certificate='client.pem'",
                "private_key='client.key'", "epochs=['d1', 'd2']"]  # fmt: skip
    with running(party.config()) as address:
        arguments = [f"--set=labels_party.{one}" for one in settings]
        fetched = CliRunner().invoke(
            app, ["fetch", "--address", address, *arguments], catch_exceptions=False
        )
    assert fetched.exit_code == 0, fetched.output
    assert "epoch 'd1', in release/d1" in fetched.output
    for day in ("d1", "d2"):
        found = read_release(party.folder / "release" / day).manifest
        assert found == manifest(party, day)


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
