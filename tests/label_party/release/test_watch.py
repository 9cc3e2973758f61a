"""``watch``: which epochs there are, each released once, whatever stops one of them."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any, cast

import polars as pl
import pytest
from typer.testing import CliRunner

from labelveil.common.release.event_keys import hash_keys, read_secret, secret_check
from labelveil.common.release.table import read_release
from labelveil.common.security.pilot_certificates import Credentials
from labelveil.common.signals import Stop
from labelveil.feature_party.commands.cli import app
from labelveil.label_party.config.sections import LabelPartyConfig
from labelveil.label_party.events.submitted import Populations, Submitted
from labelveil.label_party.release.run import ReleaseOutcome, run_release
from labelveil.label_party.release.watch import arrived, keep_releasing
from labelveil.label_party.server.run import running
from labelveil.label_party.store.disk import StoreBusy
from labelveil.label_party.store.ledger import LedgerError
from labelveil.label_party.store.release_store import Store
from tests.common.security.keys import write_key
from tests.label_party.conftest import CLIENT, Party
from tests.label_party.release.watching import epochs, manifest, watch, write_day
from tests.statistics import RATE


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
