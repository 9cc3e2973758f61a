"""Accounts: whose budget pays, and how its cap is raised and shown."""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from labelveil.label_party.config.sections import StoreSection
from labelveil.label_party.events import open as opening
from labelveil.label_party.store.account import read_accounts
from labelveil.label_party.store.ledger import Ledger, LedgerError
from labelveil.label_party.store.seal import key_path
from tests.label_party.conftest import EVENTS, Party


def accounts(party: Party, *options: str) -> list[dict[str, Any]]:
    return json.loads(party.run("budget", "--json", *options).out)


def test_a_cap_is_raised_by_the_command_alone_and_shown_for_ever(party: Party) -> None:
    party.release(privacy__total_epsilon=1)
    refused = party.release(data__epoch="2", privacy__total_epsilon=5)
    assert refused.code == 1
    assert "label-party budget raise --to 5 --reason TEXT" in refused.err
    assert party.run("budget", "raise", "--to", "0.5", "--reason", "x").code == 1
    assert party.run("budget", "raise", "--to", "2").code == 2  # no reason
    raised = party.run("budget", "raise", "--to", "2", "--reason", "a second year was agreed")
    assert (raised.code, raised.err) == (0, "")
    assert "ε = 2" in raised.out
    assert party.release(data__epoch="2", privacy__total_epsilon=2).code == 0
    shown = party.run("budget").out
    assert "raised to ε = 2" in shown
    assert "a second year was agreed" in shown
    (account,) = accounts(party)
    assert [cap["reason"] for cap in account["caps"]] == ["", "a second year was agreed"]
    assert account["left"]["epsilon"] == "0"
    config = party.folder / "label_party.toml"
    config.write_text(re.sub("total_epsilon = .*", "", config.read_text()))
    (account,) = accounts(party)  # what no file states is the cap
    assert (account["total"]["epsilon"], account["left"]["epsilon"]) == ("2", "0")


def typed(party: Party, error: str) -> list[str]:
    """Type what a refusal says, and return the settings that it names."""
    command = re.search(r"run: label-party (budget raise [^,\n]*) TEXT", error)
    if command is not None:
        done = party.run(*command.group(1).split(), "as agreed")
        assert done.code == 0, done
    settings = re.findall(r"(total_epsilon|total_delta) = ([\d.e-]+)", error.rpartition("set ")[2])
    assert settings or command, error
    return [f"--set=privacy.{name}={value}" for name, value in settings]


LEADERS = ["top-k", "--by", "kind", "--categories", "kinds.txt"]
CONCENTRATED = ["synthesize", "--column", "kind=kinds.txt", "--bins", "2", "--delta", "1e-8"]
OVER = {
    "before the first charge": ([], ["release", "--epsilon", "2", "--set=privacy.total_epsilon=1"]),
    "over what is stated, which is the cap": (
        ["release", "--set=privacy.total_epsilon=1"],
        ["release", "--epoch", "2", "--set=privacy.total_epsilon=1"],
    ),
    "over what is stated, below the cap": (
        ["release"],
        ["release", "--epoch", "2", "--set=privacy.total_epsilon=1.25"],
    ),
    "a limit above the cap": (
        ["release"],
        ["release", "--epoch", "2", "--set=privacy.total_epsilon=5"],
    ),
    "a delta above the cap": (
        ["release"],
        [
            "release",
            "--epoch",
            "2",
            "--set=privacy.total_delta=1e-6",
            "--set=privacy.total_epsilon=2",
        ],
    ),
    "too many digits": (
        ["release", "--epsilon", "0.123456", "--set=privacy.total_epsilon=0.2"],
        ["release", "--epoch", "2", "--epsilon", "0.123456", "--set=privacy.total_epsilon=0.2"],
    ),
    "concentrated charges over the cap": (
        ["release", "--set=privacy.total_delta=1e-6", "--set=privacy.total_epsilon=1"],
        [*CONCENTRATED, "--set=privacy.total_delta=1e-6", "--set=privacy.total_epsilon=1"],
    ),
}


@pytest.fixture
def kinds(party: Party) -> Party:
    keys = [f"event-{i}" for i in range(EVENTS)]
    party.write_labels({"key": keys, "label": [1.0] * EVENTS, "kind": ["a", "b"] * (EVENTS // 2)})
    (party.folder / "kinds.txt").write_text("a\nb\n")
    return party


@pytest.mark.parametrize("case", OVER)
def test_the_remedy_of_a_refusal_over_budget_works_when_it_is_typed(
    kinds: Party, case: str
) -> None:
    before, refused = OVER[case]
    assert not before or kinds.run(*before).code == 0
    error = kinds.run(*refused).error
    done = kinds.run(*refused, *typed(kinds, error))
    assert done.code == 0, (error, done)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["over what is stated, which is the cap", "too many digits"])
def test_so_does_asking_for_less(kinds: Party, case: str) -> None:
    before, refused = OVER[case]
    # what is left has more digits than are named: rounded down it fits, rounded up it does not
    assert kinds.run(*before, "--epsilon", "0.00123456").code == 0
    error = kinds.run(*refused, "--epsilon", "7").error
    (less,) = re.findall(r"ask for less with (--epsilon \S+), or", error)
    assert kinds.run(*refused, *less.split()).code == 0


@pytest.mark.slow
def test_so_does_the_remedy_of_tests_for_drift_without_a_delta(kinds: Party) -> None:
    days = kinds.folder / "days"
    days.mkdir()
    (days / "1.csv").write_text((kinds.folder / "labels.csv").read_text())
    watch = [
        "watch", "--once", "--labels", "days/{epoch}.csv", "--set=watch.hits=2",
        "--set=watch.epsilon=0.01",
    ]  # fmt: skip
    assert kinds.run("release", "--epoch", "0").code == 0
    error = kinds.run(*watch).error
    done = kinds.run(*watch, *typed(kinds, error))
    # the session fits; the release beside it may need more, and says so in the same way
    while done.code:
        done = kinds.run(*watch, *typed(kinds, done.error))
    assert done.code == 0


def test_options_before_the_command_are_not_silently_ignored(party: Party) -> None:
    party.release()
    refused = party.run("budget", "--json", "raise", "--to", "9", "--reason", "x")
    assert (refused.code, "put them behind it" in refused.err) == (1, True)
    assert len(accounts(party)[0]["caps"]) == 1


@pytest.mark.parametrize("spelling", ["{:05}", " {}", "{} ", "+{}", "{}.0", "e\u0301{}"])
def test_events_are_recognised_however_they_are_spelt(party: Party, spelling: str) -> None:
    first = "\u00e9{}" if spelling.startswith("e") else "{}"
    party.write_population({"key": [first.format(i) for i in range(EVENTS)]})
    assert party.release().code == 0
    party.write_population({"key": [spelling.format(i) for i in range(EVENTS)]})
    refused = party.release(data__data_set="other")
    assert f"{EVENTS} events of data set 'other' have paid" in refused.err


def test_a_flipped_bit_in_a_fingerprint_hides_no_event(party: Party) -> None:
    assert party.release(privacy__epochs="disjoint").code == 0
    (prints,) = party.store.glob("covered/*")
    party.write_population({"key": [f"event-{i}" for i in range(EVENTS - 1)]})
    data = bytearray(prints.read_bytes())
    data[len(data) // 2] ^= 1
    for changed in (bytes(data), bytes(data[:-8]), None):
        if changed is None:
            prints.unlink()
        else:
            prints.write_bytes(changed)
        for options in ({"data__epoch": "2"}, {"data__data_set": "other"}):
            refused = party.release(**options, privacy__epochs="disjoint")
            assert prints.name in refused.error
            assert "nothing was spent" in refused.error


def test_a_flipped_bit_in_its_own_earlier_events_hides_none_of_another_account(
    party: Party,
) -> None:
    """What two accounts share is counted over all epochs of both, each as it was written."""
    apart = {"privacy__separate": True, "privacy__separate_reason": "of another column"}
    assert party.release().code == 0
    (prints,) = party.store.glob("covered/*")
    party.write_population({"key": [f"event-{i}" for i in range(20)]})
    assert party.release(data__data_set="other", **apart).code == 0
    data = bytearray(prints.read_bytes())
    data[len(data) // 2] ^= 1
    prints.write_bytes(bytes(data))
    party.write_population({"key": [f"event-{i}" for i in range(30)]})
    refused = party.release(data__epoch="2", **apart)
    assert f"{prints.name} is damaged; nothing was spent" in refused.err
    assert len(accounts(party)) == 2
    assert all(len(account["charges"]) == 1 for account in accounts(party))


def test_disjoint_epochs_must_be_disjoint(party: Party) -> None:
    disjoint = {"privacy__epochs": "disjoint"}
    assert party.release(**disjoint).code == 0
    refused = party.release(data__epoch="2", **disjoint)  # the identical files
    assert refused.code == 1
    shared = f"{EVENTS} events of epoch '2' are events of epoch '1', too"
    assert shared in refused.err
    plan = party.run("release", "--dry-run", *party.arguments(data__epoch="2", **disjoint))
    assert shared in plan.err
    assert "disjoint" in refused.err
    keys = [f"event-{i}" for i in range(EVENTS - 1, 2 * EVENTS)]
    party.write_population({"key": keys})
    assert "1 events of epoch '2'" in party.release(data__epoch="2", **disjoint).err
    party.write_population({"key": keys[1:]})
    assert party.release(data__epoch="2", **disjoint).code == 0
    assert party.release(data__epoch="1", **disjoint).code == 0  # as it was
    (account,) = accounts(party)
    assert [charge["epoch"] for charge in account["charges"]] == ["1", "2"]
    (own,) = accounts(party, *party.arguments(**disjoint))
    assert (own["spent"]["epsilon"], own["left"]["epsilon"]) == ("1", "3")
    # nobody knows whether another account's next epoch is disjoint from these, too
    other = party.arguments(privacy__account="other", **disjoint)
    assert [each["left"]["epsilon"] for each in accounts(party, *other)] == ["2", "3"]


def test_another_name_for_the_same_events_is_no_new_budget(party: Party) -> None:
    assert party.release().code == 0
    again = {"data__data_set": "again", "data__epoch": "x"}
    refused = party.release(**again)
    assert (refused.code, len(refused.err.splitlines())) == (1, 1)
    assert f"{EVENTS} events of data set 'again' have paid from account 'labels'" in refused.err
    assert not list((party.store / "covered").glob(".partial"))
    for alone in ({"privacy__separate": True}, {"privacy__separate_reason": "because"}):
        assert "needs a reason" in party.release(**again, **alone).err
    assert party.release(**again, privacy__account="labels").code == 0
    (account,) = accounts(party)
    assert account["spent"]["epsilon"] == "2"
    reason = {"privacy__separate": True, "privacy__separate_reason": "of another column"}
    for epoch in ("1", "2"):
        changes = {"data__data_set": "apart", "data__epoch": epoch}
        assert party.release(**changes, **reason).code == 0
    assert "of another column" in party.run("budget").out
    apart, labels = accounts(party)
    assert [said["reason"] for said in apart["separations"]] == ["of another column"]
    assert apart["spent"]["epsilon"] == labels["spent"]["epsilon"] == "2"
    party.write_population({"key": [f"of-others-{i}" for i in range(9)]})
    assert party.release(data__data_set="third").code == 0
    assert [len(account["separations"]) for account in accounts(party)] == [1, 1, 0]


def test_the_events_of_two_accounts_are_counted_over_all_epochs(party: Party) -> None:
    """Those of later epochs, too, each once, whichever account came first and buys last."""
    apart = {"privacy__separate": True, "privacy__separate_reason": "of another column"}
    bought: dict[str, set[int]] = {"labels": set(), "other": set()}
    spans = [
        ("labels", range(30)), ("other", range(20, 50)), ("other", range(40, 90)),
        ("labels", range(60, 80)), ("other", range(25)), ("labels", range(100, 120)),
    ]  # fmt: skip
    for number, (account, span) in enumerate(spans):
        party.write_population({"key": [f"event-{i}" for i in span]})
        given = {"data__data_set": account, "data__epoch": str(number)} | (apart if number else {})
        assert party.release(**given).code == 0
        bought[account] |= {*span}
        shared = len(bought["labels"] & bought["other"])
        said = [one for entry in accounts(party) for one in entry["separations"]]
        assert {one["events"] for one in said} == ({shared} if number else set())
    assert shared == 50
    assert f"{shared} events of other are events of labels, too" in party.run("budget").out
    assert len({(one["account"], one["other"]) for one in said}) == 2


@pytest.mark.slow
@pytest.mark.parametrize("purchase", ["top-k", "synthesize"])
def test_every_purchase_is_about_events_that_are_compared(party: Party, purchase: str) -> None:
    assert party.release().code == 0
    keys = [f"event-{i}" for i in range(EVENTS)]
    party.write_labels({"key": keys, "label": [1.0] * EVENTS, "kind": ["a", "b"] * (EVENTS // 2)})
    (party.folder / "kinds.txt").write_text("a\nb\n")
    kinds = {
        "top-k": ["--by", "kind", "--categories", "kinds.txt", "--k", "1"],
        "synthesize": ["--column", "kind=kinds.txt", "--bins", "2"],
    }[purchase]
    refused = party.run(purchase, *kinds, "--data-set", "again")
    assert (refused.code, "have paid from account 'labels'" in refused.err) == (1, True)
    assert party.run(purchase, *kinds).code == 0


@pytest.mark.slow
def test_from_memory_and_in_parts_the_same_events_are_found(
    party: Party, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "_IN_MEMORY_ROWS", 1)
    monkeypatch.setattr(opening, "_CSV_IN_MEMORY_BYTES", 1)
    for existed in (False, True):  # what is worked in is not left, nor taken from whoever made it
        assert party.run("release", "--dry-run").code == 0
        assert party.store.exists() is existed
        party.store.mkdir(exist_ok=True)
    assert party.release().code == 0
    refused = party.release(data__data_set="again")
    assert f"{EVENTS} events of data set 'again' have paid" in refused.err
    assert party.release(data__data_set="again", privacy__account="labels").code == 0
    assert len(list((party.store / "covered").iterdir())) == 1  # named by its content


def test_a_user_who_has_paid_is_found_behind_other_events(party: Party) -> None:
    per_user = {
        "privacy__unit": "user", "privacy__user": "who", "privacy__max_records_per_user": 5,
    }  # fmt: skip

    def write(first: int) -> None:
        keys = [f"event-{first + i}" for i in range(20)]
        party.write_population({"key": keys, "who": [f"u{i % 4}" for i in range(20)]})
        party.write_labels({"key": keys, "label": [1.0] * 20})

    write(0)
    assert party.release(**per_user).code == 0
    write(1000)
    refused = party.release(data__data_set="again", **per_user)
    assert "4 events of data set 'again' have paid" in refused.err


def test_another_unit_is_refused_with_what_to_set(party: Party) -> None:
    assert party.release().code == 0
    users = {"privacy__unit": "user", "privacy__user": "id", "privacy__max_records_per_user": 1}
    for refused in (
        party.release(data__epoch="2", **users),
        party.run("budget", "raise", "--to", "9", "--reason", "x", *party.arguments(**users)),
    ):
        assert refused.code == 1
        assert "(replace-label, per record) and a limit per user do not compose;" in refused.err
        assert (
            "; set [privacy] unit as it was for earlier purchases; for other events" in refused.err
        )


def test_a_restored_store_still_knows_who_has_paid(party: Party) -> None:
    assert party.release().code == 0
    assert party.run("backup", "--to", "backup.tar").code == 0
    party.store.rename(party.folder / "lost")
    assert party.run("restore", "backup.tar", "--nothing-since").code == 0
    assert "have paid from account" in party.release(data__data_set="again").err


def test_what_no_budget_allows_is_refused_before_a_row_is_read(party: Party) -> None:
    assert party.release().code == 0
    (party.folder / "labels.csv").unlink()
    assert "is left of" in party.release(data__epoch="2", privacy__epsilon=2.5).error
    (party.folder / "kinds.txt").write_text("a\nb\n")
    kinds = ("--by", "kind", "--categories", "kinds.txt", "--k", "1")
    assert "is left of" in party.run("top-k", *kinds, *party.arguments(privacy__epsilon=2.5)).error
    assert "gone.key" in party.release(data__epoch="2", keys__signing_key="gone.key").error
    assert "does not exist" in party.release(data__epoch="2").error


@contextmanager
def with_rights_to_read(party: Party) -> Iterator[Path]:
    """Be somebody who may read a copy of a store, and write nothing in it; yields the copy."""
    folder = Path(tempfile.mkdtemp(prefix="auditor-", dir="/tmp"))
    store = folder / "label_store"
    shutil.copytree(party.store, store)
    for path in (store, *store.rglob("*")):
        path.chmod(0o550 if path.is_dir() else 0o440)
    key_path(store / "ledger.sqlite").chmod(0o400)
    root, before = os.geteuid() == 0, os.getegid()
    if root:  # whom no rights stop: be a member of a group
        folder.chmod(0o755)
        for path in (store, *store.rglob("*")):
            os.chown(path, 0, GROUP)
        key_path(store / "ledger.sqlite").chmod(0o440 & 0o640)
        os.setegid(GROUP)
        os.seteuid(GROUP)
    try:
        yield store
    finally:
        if root:
            os.seteuid(0)
            os.setegid(before)
        for path in (store, *store.rglob("*")):
            path.chmod(0o700)
        shutil.rmtree(folder)


GROUP = 65534


@pytest.mark.parametrize("log", [False, True])
def test_who_may_only_read_a_store_reads_its_budget(party: Party, log: bool) -> None:
    """With the log's files, as beside a running server, and without, as on a read-only disk."""
    assert party.release().code == 0
    expected, config = party.run("budget", "--json").out, party.config()
    with ExitStack() as stack:
        if log:
            stack.enter_context(Ledger(party.store / "ledger.sqlite"))
            assert (party.store / "ledger.sqlite-wal").exists()
        store = stack.enter_context(with_rights_to_read(party))
        before = sorted(path.name for path in store.iterdir())
        update = {"store": StoreSection(directory=store)}
        found = read_accounts(config.model_copy(update=update))
        assert sorted(path.name for path in store.iterdir()) == before
        more = config.privacy.model_copy(update={"total_epsilon": 9.0}).limit
        with pytest.raises(LedgerError):  # whatever would write is refused, as ever
            Ledger(store / "ledger.sqlite").raise_cap("labels", more, "a test")
    assert [charge.digest for charge in found[0].charges] == [
        charge["digest"] for charge in json.loads(expected)[0]["charges"]
    ]
